"""`python -m stategraph COMMAND`: reads the command line and calls who does the work. Nothing else
lives here. Only the module of the command that was asked for is loaded."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NoReturn

COMMANDS: Final = {
    "demo": ("examples.index_library", "index a folder of Python with a graph"),
    "draw": ("visualize.command", "draw a graph"),
    "report": ("visualize.runs.report_command", "a stored thread as one HTML page"),
    "threads": ("checkpoint.command", "list threads, the one that moved last first"),
    "history": ("checkpoint.command", "a thread's steps, the newest first"),
    "show": ("checkpoint.command", "a thread's state as JSON"),
    "prune": ("checkpoint.command", "forget old checkpoints"),
    "work": ("workers.command", "run jobs of a graph from a queue"),
    "queue": ("workers.command", "what waits, runs and is parked"),
    "langgraph": ("compat.langgraph.command", "run a program written for LangGraph"),
}
"""The commands, where they are, and what they do. Each module has `add_command(name, parser)`,
which says what the command takes and sets `run`."""


class Parser(argparse.ArgumentParser):
    """A parser, of a command too, whose errors may quote what users wrote."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2 and a sentence that steers no terminal."""
        from .checkpoint.printable import printable_lines

        super().error(printable_lines(message))


def main(given: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 2 the command line asks for what cannot be.
    Without a command the help is printed."""
    arguments = sys.argv[1:] if given is None else list(given)
    parser = Parser(prog="python -m stategraph", description="Typed-state graphs.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (home, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if name in arguments[:1]:
            command.set_defaults(parser=command)
            import_module(f".{home}", __package__).add_command(name, command)
    asked = parser.parse_args(arguments or ["--help"])
    return int(asked.run(asked.parser, asked))


if __name__ == "__main__":
    sys.exit(main())
