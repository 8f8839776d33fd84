"""`stategraph skill`: prints a page for coding agents, to be kept where they look for skills."""

from __future__ import annotations

import argparse
from importlib.resources import files


def add_command(name: str, parser: argparse.ArgumentParser) -> None:
    """Add this as a command of `stategraph`."""
    parser.set_defaults(run=main)


def main(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    """Print the page."""
    print(files(__package__).joinpath("skill.md").read_text("utf-8"), end="")
    return 0
