"""`python -m stategraph draw`: finds a graph by name, and writes its drawing. Other modules make
the drawing."""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import get_args

from ..checkpoint.printable import printable_lines
from ..graph.loader import TARGET_HELP, find_graph
from ..pregel.errors import GraphWarning, StateGraphError
from .dot import GraphvizWarning
from .drawing import Drawing
from .text import terminal_width
from .theme import Theme


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the arguments of the command to its parser."""
    parser.add_argument("graph", help=TARGET_HELP)
    out = "write a .svg, .png, .html, .mmd, .dot or .txt file (default: print text)"
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help=out)
    xray = "draw the graphs inside nodes as well: all of them, or this many levels"
    parser.add_argument(
        "--xray", nargs="?", type=_levels, const=True, default=False, metavar="LEVELS", help=xray
    )
    parser.add_argument(
        "--theme",
        choices=get_args(Theme),
        default="auto",
        help="the colours of .svg and .html (%(default)s)",
    )
    return parser


def _levels(word: str) -> int:
    """Parse a number of levels. The error also covers the usual mistake, a graph in its place.

    Raises:
        argparse.ArgumentTypeError: it is not a number.
    """
    try:
        return int(word)
    except ValueError:
        hint = (
            f"; name the graph first: {word} --xray" if ":" in word or word.endswith(".py") else ""
        )
        raise argparse.ArgumentTypeError(f"LEVELS must be a number, got {word!r}{hint}") from None


def add_command(name: str, parser: argparse.ArgumentParser) -> None:
    """Add this as a command of `python -m stategraph`."""
    add_arguments(parser).set_defaults(run=main)


def main(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    """Execute the command; exit with code 2 and a message if it fails."""
    try:
        with warnings.catch_warnings(record=True) as advice:
            warnings.simplefilter("always")
            drawing = draw(asked.graph, asked.xray)
            if asked.out is not None:
                drawing.save(asked.out, theme=asked.theme)
                print(printable_lines(f"wrote {asked.out}"), file=sys.stderr)
    except OSError as error:
        parser.error(f"{asked.out} cannot be written: {error.strerror}")
    except (StateGraphError, ValueError) as error:
        parser.error(str(error))
    for one in advice:
        if issubclass(one.category, GraphWarning | GraphvizWarning):
            print(printable_lines(f"warning: {one.message}"), file=sys.stderr)
    if asked.out is None:
        encoding = sys.stdout.encoding or "utf-8"
        text = printable_lines(drawing.draw_ascii(width=terminal_width()))
        print(text.encode(encoding, "replace").decode(encoding), end="")
    return 0


def draw(target: str, xray: bool | int = False) -> Drawing:
    """Return the drawing of a graph.

    Args:
        target: "module:name" or "path/to/file.py:name". Without a name: the only graph in the
            module.

    Raises:
        InvalidGraphError: it is a builder with mistakes.
        NotFoundError: there is no such graph, or the module or function that provides it fails.
    """
    return find_graph(target).get_graph(xray=xray)
