"""`python -m stategraph pytest`: writes a stored thread as a recording, and a test that replays it.
How it is replayed stands in `testing`."""

from __future__ import annotations

import argparse
import os
import re
import sqlite3
import warnings
from pathlib import Path
from typing import Final

from ..checkpoint.base import address
from ..checkpoint.command import open_saver
from ..checkpoint.encryption import KEYS_HELP
from ..graph.loader import TARGET_HELP, NotFoundError, find_graph
from ..pregel.app import Pregel
from ..pregel.errors import StateGraphError
from ..pregel.program.program import is_async
from ..testing.recorder import list_nodes
from ..testing.thread_reader import read_thread

TEST: Final = '''\
"""Thread {thread!r} runs as it was stored. Written by `stategraph pytest`."""

{imports}from pathlib import Path

from stategraph.testing import find_graph, {replay}

HERE = Path(__file__)
GRAPH = find_graph({target})

# These nodes do not run: they give what was stored. Delete a name to run the node for real.
RECORDED = [
{recorded}]


def test_{name}() -> None:
    {call}
'''


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
    name = re.sub(r"\W+", "_", asked.thread).strip("_").lower() or "stored"
    test: Path = asked.out or Path(f"test_thread_{name}.py")
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
        text = _write_test(asked, graph, test, name)
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


def _write_test(asked: argparse.Namespace, graph: Pregel, test: Path, name: str) -> str:
    """The text of the test."""
    nodes = list_nodes(graph)
    for real in asked.real:
        if real not in nodes:
            known = ", ".join(map(repr, nodes))
            raise NotFoundError(f"--run {real}: the graph has no such node; known: {known}")
    recorded = "".join(f"    {_quote(node)},\n" for node in nodes if node not in asked.real)
    call = 'replay(HERE.with_suffix(".json"), GRAPH, recorded=RECORDED)'
    wait = is_async(graph.program)
    return TEST.format(
        thread=asked.thread,
        imports="import asyncio\n" if wait else "",
        replay="areplay" if wait else "replay",
        target=_target(asked.graph, test),
        recorded=recorded,
        name=f"thread_{name}",
        call=f"asyncio.run(a{call})" if wait else call,
    )


def _target(target: str, test: Path) -> str:
    """How the test finds the graph: a file by its place beside the test."""
    place, _, name = target.rpartition(":") if ":" in target else (target, "", "")
    if not place.endswith(".py"):
        return _quote(target)
    near = Path(os.path.relpath(Path(place).resolve(), test.resolve().parent)).as_posix()
    return f'f"{{HERE.parent / {near!r}}}{":" if name else ""}{name}"'


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
