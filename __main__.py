"""`python -m stategraph COMMAND`: reads the command line and calls what does the work. Nothing else
belongs here."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from .checkpoint import command as threads_command
from .checkpoint.printable import printable_lines
from .examples import index_library
from .visualize import command as draw_command
from .visualize.runs import report_command
from .workers import command as workers_command


class Parser(argparse.ArgumentParser):
    """A parser, of a command too, whose errors may quote what users wrote."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2 and a sentence that steers no terminal."""
        super().error(printable_lines(message))


def main(given: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 for success, 2 for a mistake in the command
    line."""
    parser = Parser(prog="python -m stategraph", description="Typed-state graphs.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    demo = commands.add_parser(
        "demo",
        help="index a folder of Python files with a graph",
        description="Index a folder of Python files.",
    )
    index_library.add_arguments(demo).set_defaults(parser=demo, run=index_library.main)
    draw = commands.add_parser("draw", help="draw a graph", description="Draw a graph.")
    draw_command.add_arguments(draw).set_defaults(parser=draw, run=draw_command.main)
    report = commands.add_parser(
        "report",
        help="write a stored thread as one HTML page",
        description="Write a stored thread as one HTML page.",
    )
    report_command.add_arguments(report).set_defaults(parser=report, run=report_command.main)
    threads_command.add_commands(commands)
    workers_command.add_commands(commands)
    asked = parser.parse_args(given)
    return int(asked.run(asked.parser, asked))


if __name__ == "__main__":
    sys.exit(main())
