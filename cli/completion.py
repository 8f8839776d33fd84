"""`stategraph completion`: the script by which a shell completes commands, options and files. Made
by shtab from the parser of the command line."""

from __future__ import annotations

import argparse

SHELLS = ("bash", "zsh")
HINT = (
    'Use it: eval "$(stategraph completion bash)" in ~/.bashrc; for zsh, write it to a file named '
    "_stategraph in a folder of $fpath. Needs shtab (pip install shtab)."
)
FILES = ("db", "keys", "out", "graph", "program", "folder")
"""Arguments that are completed to files."""


def add_command(name: str, parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.epilog = HINT
    parser.add_argument("shell", choices=SHELLS, help="bash or zsh")
    parser.set_defaults(run=main)


def main(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    """Print the script."""
    try:
        import shtab
    except ModuleNotFoundError:
        parser.error("shtab must be installed for this: pip install shtab")
    from ..__main__ import build_parser

    whole = build_parser()
    for one in _parsers(whole):
        for action in one._actions:
            if action.dest in FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # where it looks for it
    print(shtab.complete(whole, shell=asked.shell))
    return 0


def _parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """A parser, and those of its commands."""
    found = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += action.choices.values()
    return found
