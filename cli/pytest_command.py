"""`python -m stategraph pytest`: writes a stored thread as a recording, and a test that replays it.
How it is replayed stands in `testing`."""

from __future__ import annotations

import argparse
import os
import sqlite3
import warnings
from pathlib import Path

from ..checkpoint.base import address
from ..checkpoint.command import open_saver
from ..checkpoint.encryption import KEYS_HELP
from ..graph.loader import TARGET_HELP, NotFoundError, find_graph
from ..pregel.errors import StateGraphError
from ..testing.saved_test import name_test, quote, write_test
from ..testing.thread_reader import read_thread


def add_command(name: str, parser: argparse.ArgumentParser) -> None:
    """As a command of `python -m stategraph`."""
    parser.add_argument("graph", help=TARGET_HELP)
    parser.add_argument(
        "--db", required=True, metavar="FILE-OR-URL", help="an SQLite file, or postgresql://..."
    )
    parser.add_argument("--thread", required=True, metavar="ID", help="the thread's id")
    parser.add_argument(
        "--checkpoint",
        metavar="ID",
        help="replay only what leads to this checkpoint (default: all)",
    )
    parser.add_argument(
        "--run",
        dest="real",
        metavar="NODE",
        action="append",
        default=[],
        help="a node that the test really runs; the others return what is stored; may be repeated",
    )
    parser.add_argument("--keys", metavar="FILE", help=KEYS_HELP)
    parser.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="the file to write (test_thread_ID.py)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    parser.set_defaults(run=main)


def main(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    """Do as asked; ends with exit code 2 and a sentence if that cannot be."""
    test: Path = asked.out or Path(f"test_{name_test(asked.thread)}.py")
    recording = test.with_suffix(".json")
    try:
        if test.suffix != ".py":
            raise NotFoundError(f"{test}: a test's file must end with .py")
        for path in (test, recording):
            if path.exists() and not asked.force:
                raise NotFoundError(f"{path} exists; --force writes over it, -o names another file")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice on the graph is for who builds it
            graph = find_graph(asked.graph)
        with open_saver(asked.db, graph.serde, asked.keys) as saver:
            app = graph.copy({"checkpointer": saver})
            found = read_thread(app, address(asked.thread, "", asked.checkpoint))
        text = write_test(graph, asked.thread, _target(asked.graph, test), asked.real)
        found.save(recording)
        test.write_text(text, "utf-8")
    except OSError as error:
        parser.error(f"{error.filename or test}: {error.strerror or error}")
    except sqlite3.Error as error:
        parser.error(f"{asked.db} cannot be read: {error}")
    except (StateGraphError, ValueError) as error:
        parser.error(str(error))
    print(f"wrote {test} and {recording}")
    print(found)
    return 0


def _target(target: str, test: Path) -> str:
    """How the test finds the graph: a file by its place beside the test."""
    place, _, name = target.rpartition(":") if ":" in target else (target, "", "")
    if not place.endswith(".py"):
        return quote(target)
    near = Path(os.path.relpath(Path(place).resolve(), test.resolve().parent)).as_posix()
    return f'f"{{HERE.parent / {near!r}}}{":" if name else ""}{name}"'
