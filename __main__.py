"""`python -m stategraph COMMAND`: reads the command line and calls who does the work. Nothing else lives here."""

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
    """Run one command; returns the exit code: 0 done, 2 the command line asks for what cannot be."""
    parser = Parser(prog="python -m stategraph", description="Typed-state graphs.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    demo = commands.add_parser("demo", help="index a folder of Python with a graph", description="Index a folder.")
    index_library.add_arguments(demo).set_defaults(parser=demo, run=index_library.main)
    draw = commands.add_parser("draw", help="draw a graph", description="Draw a graph.")
    draw_command.add_arguments(draw).set_defaults(parser=draw, run=draw_command.main)
    told = commands.add_parser("report", help="a stored thread as one HTML page", description="Tell a thread's run.")
    report_command.add_arguments(told).set_defaults(parser=told, run=report_command.main)
    threads_command.add_commands(commands)
    workers_command.add_commands(commands)
    asked = parser.parse_args(given)
    return int(asked.run(asked.parser, asked))


if __name__ == "__main__":
    sys.exit(main())
