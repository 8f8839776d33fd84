"""`python -m stategraph report`: opens a stored thread and writes its report. Other modules make
the page."""

from __future__ import annotations

import argparse
import sqlite3
import warnings
from pathlib import Path

from ...checkpoint.base import RunnableConfig, address
from ...checkpoint.command import open_saver
from ...checkpoint.encryption import KEYS_HELP
from ...graph.loader import TARGET_HELP, NotFoundError, find_graph
from ...pregel.errors import StateGraphError
from .report import report


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the arguments of the command to its parser."""
    parser.add_argument("graph", help=f"the graph that made the thread: {TARGET_HELP}")
    parser.add_argument(
        "--db", required=True, metavar="FILE-OR-URL", help="an SQLite file, or postgresql://..."
    )
    parser.add_argument("--thread", required=True, metavar="ID", help="the thread's id")
    parser.add_argument(
        "--checkpoint",
        metavar="ID",
        help="show the history that leads to this checkpoint (default: the newest)",
    )
    parser.add_argument("--keys", metavar="FILE", help=KEYS_HELP)
    out = "the file to write (%(default)s)"
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("report.html"), metavar="FILE", help=out
    )
    return parser


def add_command(name: str, parser: argparse.ArgumentParser) -> None:
    """Add this as a command of `python -m stategraph`."""
    add_arguments(parser).set_defaults(run=main)


def main(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    """Execute the command; exit with code 2 and a message if it fails."""
    try:
        if asked.out.suffix.lower() not in (".html", ".htm"):
            raise NotFoundError(f"{asked.out}: a report's file must end with .html")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about the graph are for its authors
            graph = find_graph(asked.graph)
        with open_saver(asked.db, graph.serde, asked.keys) as saver:
            app = graph.copy({"checkpointer": saver})
            where: RunnableConfig = address(asked.thread, "", asked.checkpoint)
            if app.get_state(where).metadata is None:
                raise NotFoundError(f"{asked.db} has no thread {asked.thread!r}")
            print(report(app, where, asked.out))
    except OSError as error:
        parser.error(
            f"{error.filename or asked.out}: {error.strerror}" if error.strerror else str(error)
        )
    except sqlite3.Error as error:
        parser.error(f"{asked.db} cannot be read: {error}")
    except (StateGraphError, ValueError) as error:
        parser.error(str(error))
    return 0
