"""`python -m stategraph COMMAND`: reads the command line and calls what does the work. Nothing else
belongs here. Only the module of the command that was asked for is loaded."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NoReturn

COMMANDS: Final = {
    "demo": ("examples.index_library", "index a folder of Python files with a graph"),
    "draw": ("visualize.command", "draw a graph"),
    "report": ("visualize.runs.report_command", "write a stored thread as one HTML page"),
    "threads": ("checkpoint.command", "list threads, the most recently used first"),
    "history": ("checkpoint.command", "list a thread's steps, the newest first"),
    "show": ("checkpoint.command", "show a thread's state as JSON"),
    "prune": ("checkpoint.command", "delete old checkpoints"),
    "work": ("workers.command", "run jobs of a graph from a queue"),
    "queue": ("workers.command", "list waiting, running and parked jobs"),
    "langgraph": ("compat.langgraph.command", "run a program written for LangGraph"),
}
"""The commands, where they are, and what they do. Each module has `add_command(name, parser)`,
which says what the command takes and sets `run`."""


STORED_TYPES: Final = ".graph.messages"
"""Loading it registers the types of ours that threads may hold, from `Send` to `RemoveMessage`."""


class Parser(argparse.ArgumentParser):
    """A parser, of a command too, whose errors may quote what users wrote."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2 and a sentence that steers no terminal."""
        from .checkpoint.printable import printable_lines

        super().error(printable_lines(message))


def main(given: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 for success, 2 for a mistake in the command line.
    Without a command the commands are listed."""
    arguments = sys.argv[1:] if given is None else list(given)
    parser = Parser(prog="python -m stategraph", description="Typed-state graphs.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (home, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if name in arguments[:1]:
            command.set_defaults(parser=command)
            import_module(f".{home}", __package__).add_command(name, command)
            import_module(STORED_TYPES, __package__)
    if not arguments:
        parser.print_help(sys.stderr)
        return 2
    asked = parser.parse_args(arguments)
    return int(asked.run(asked.parser, asked))


if __name__ == "__main__":
    sys.exit(main())
