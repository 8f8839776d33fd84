"""`stategraph COMMAND`, or `python -m stategraph COMMAND`: reads the command line and calls what
does the work. Nothing else belongs here. Only the module of the command that was asked for is
loaded."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, NoReturn

from . import __version__

COMMANDS: Final = {
    "demo": ("examples.demo", "show a run that is killed half-way and resumed"),
    "run": ("cli.run_command", "run a graph and print its result as JSON"),
    "resume": ("cli.run_command", "answer a thread's questions, or continue after a failure"),
    "draw": ("visualize.command", "draw a graph, as text or into a file"),
    "report": ("visualize.render.report", "write the history of a thread as one HTML page"),
    "pytest": ("cli.pytest_command", "write a test that replays a stored thread"),
    "lab": ("lab.command", "run stored threads again with one thing changed, or ask why"),
    "threads": ("checkpoint.command", "list the threads of a database, most recently used first"),
    "history": ("checkpoint.command", "list the checkpoints of a thread, newest first"),
    "show": ("checkpoint.command", "print the state of a thread as JSON"),
    "prune": ("checkpoint.command", "delete old checkpoints"),
    "work": ("workers.command", "start a worker that runs jobs from a queue on Postgres"),
    "queue": ("workers.command", "show or change the workers, schedules and jobs of a queue"),
    "serve": ("serve.command", "serve graphs over HTTP"),
    "upgrade": ("upgrade.command", "prove what becomes of stored threads under a new version"),
    "doctor": ("cli.doctor", "check the installation, and optionally a database"),
    "skill": ("cli.skill", "print a page that tells coding agents how to write programs"),
    "completion": ("cli.completion", "print a completion script for bash or zsh"),
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


class _Columns(argparse.HelpFormatter):
    """Help in which the longest command and what it does stand on one line."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **options)
        # argparse forgets by how much commands are indented.
        self._action_max_length = max(map(len, COMMANDS)) + 4


def program_name() -> str:
    """The words by which this program was started."""
    script = os.path.basename(sys.argv[0])
    return script if script == "stategraph" else "python -m stategraph"


def build_parser(loaded: Sequence[str] = tuple(COMMANDS), name: str = "stategraph") -> Parser:
    """The parser of the command line.

    Args:
        loaded: the commands whose arguments are known; of the others only what they do.
    """
    parser = Parser(
        prog=name,
        description="Run, resume, inspect, draw and serve graphs over a typed state.",
        epilog=f"{name} COMMAND --help shows what a command takes.",
        formatter_class=_Columns,
    )
    parser.add_argument("--version", action="version", version=f"stategraph {__version__}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command", required=True
    )
    for command, (home, text) in COMMANDS.items():
        one = commands.add_parser(command, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if command in loaded:
            one.set_defaults(parser=one)
            import_module(f".{home}", __package__).add_command(command, one)
    return parser


def format_help(width: int = 100) -> dict[str, str]:
    """The help of each command, for pages of documentation; "" is the program itself."""
    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
    os.environ |= {"COLUMNS": str(width), "NO_COLOR": "1"}  # where argparse looks for them
    try:
        parser = build_parser()
        [commands] = [each.choices for each in parser._actions if each.dest == "command"]
        texts = {"": parser.format_help()}
        texts |= {name: one.format_help() for name, one in dict(commands or {}).items()}
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
    return texts


def main(given: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 for success, 1 for a failure, 2 for a mistake in
    the command line. Without a command the commands are listed."""
    arguments = sys.argv[1:] if given is None else list(given)
    parser = build_parser(arguments[:1], program_name())
    if not arguments:
        parser.print_help(sys.stderr)
        return 2
    asked, unknown = parser.parse_known_args(arguments)
    if unknown:  # by the command, whose usage says what it takes
        asked.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    import_module(STORED_TYPES, __package__)
    try:
        code = int(asked.run(asked.parser, asked))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read the output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
