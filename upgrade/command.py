"""`stategraph upgrade`: proves, from a terminal or in CI, what becomes of the stored threads under
a new version of their graph."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing
from datetime import datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from ..checkpoint.base import BaseCheckpointSaver, address
from ..checkpoint.command import open_saver
from ..checkpoint.encryption import KEYS_HELP
from ..checkpoint.errors import CheckpointConflictError, StorageError
from ..checkpoint.printable import printable
from ..checkpoint.serde import Serializer
from ..checkpoint.sql.redact import is_conninfo
from ..graph.loader import TARGET_HELP, find_graph
from ..pregel.app import Pregel
from ..pregel.errors import StateGraphError, ThreadUndoingError
from .cohort import save
from .outline import Outline, outline
from .outlook import Outlook, look
from .proof import Proof, apply_migration, judge_all

FAILED = 1
"""The exit code if a thread breaks, or with --strict also if one changes."""
BATCH = 100
"""How many threads the process of the old graph looks at for one message."""
FIRST = 3
"""How many threads of each reason are named."""


def add_command(name: str, parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.epilog = (
        "Nothing is run, and without --apply nothing is stored. Exit codes: 0: no thread breaks; "
        "1: some do, or with --strict some change; 2: the command line is wrong."
    )
    add = parser.add_argument
    add("graph", help=f"the new version: {TARGET_HELP}")
    add("--db", required=True, metavar="FILE-OR-URL", help="an SQLite file, or postgresql://...")
    old = (
        "the version that runs now, which a process of its own loads; without it, edges and joins "
        "ahead of a thread are not compared"
    )
    add("--old", metavar="GRAPH", help=old)
    only = "only this thread (default: all); may be repeated"
    add("--thread", action="append", metavar="ID", help=only)
    add("--strict", action="store_true", help="fail also if a thread changes")
    add("--json", action="store_true", help="print JSON instead of a table")
    explain = "print what `explain` says of the first thread of each reason"
    add("--explain", action="store_true", help=explain)
    apply = (
        "store the threads that migrate as the new version has them, each in a transaction; an "
        "SQLite file is copied before"
    )
    add("--apply", action="store_true", help=apply)
    save = (
        "write one anonymised thread of each shape to this folder, which lab.whatif runs again; "
        "the graph must be the one that has run them"
    )
    add("--save", metavar="FOLDER", help=save)
    add("--keys", metavar="FILE", help=KEYS_HELP)
    parser.set_defaults(run=_run)


def _run(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    try:
        new = find_graph(asked.graph)
        with open_saver(asked.db, Serializer(), asked.keys) as saver:
            app = new.copy({"checkpointer": saver})
            proof = _prove(app, saver, asked)
            print(_format_json(proof) if asked.json else _format_table(proof))
            if asked.explain:
                _explain(app, proof)
            if asked.save is not None:
                _save(app, proof, asked.save)
        if asked.apply:
            _apply(new, proof, asked)
    except BrokenPipeError:
        raise
    except (OSError, ImportError, StorageError, StateGraphError, ValueError) as error:
        parser.error(str(error))
    counts = proof.count()
    return FAILED if counts["breaks"] or (asked.strict and counts["changes"]) else 0


def _prove(
    app: Pregel[Any, Any, Any, Any], saver: BaseCheckpointSaver, asked: argparse.Namespace
) -> Proof:
    threads = [*saver.threads()] if asked.thread is None else asked.thread
    if asked.old is None:
        return judge_all(app, threads, None, None)
    with _OldGraph(asked.old, asked.db, asked.keys) as old:
        return judge_all(app, threads, old.ask(threads), old.outline())


def _save(app: Pregel[Any, Any, Any, Any], proof: Proof, folder: str) -> None:
    saved = save(app, proof, folder)
    print(f"saved {saved.threads} threads in {printable(folder)}")
    for thread, why in saved.left_out.items():
        print(printable(f"left out {thread}: {why}"))


def _apply(new: Pregel[Any, Any, Any, Any], proof: Proof, asked: argparse.Namespace) -> None:
    """Store what is to be converted. What was done stays done if it is interrupted, and done
    again it finds only the rest."""
    due = [verdict for verdict in proof.verdicts if verdict.kind in ("migrates", "changes")]
    if due and not is_conninfo(asked.db):
        print(f"backup: {_back_up(asked.db)}")
    done, left = 0, Counter[str]()
    with open_saver(asked.db, Serializer(), asked.keys, write=True) as saver:
        app = new.copy({"checkpointer": saver})
        for verdict in due:
            try:
                done += apply_migration(app, verdict)
            except CheckpointConflictError:
                left["moved on meanwhile"] += 1
            except ThreadUndoingError:
                left["are being undone"] += 1
    print("; ".join([f"converted {done} threads", *(f"{n} {why}" for why, n in left.items())]))


def _back_up(path: str) -> str:
    """Copy an SQLite file, also while it is written to; returns the name of the copy.

    Raises:
        StorageError: it cannot be copied.
    """
    import sqlite3

    # Another command, which runs at the same time, must not copy over it.
    copy = f"{path}.{datetime.now():%Y%m%d-%H%M%S-%f}.backup"
    try:
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
    except sqlite3.Error as error:
        Path(copy).unlink(missing_ok=True)
        raise StorageError(f"no thread was converted: {path} cannot be copied: {error}") from error
    return copy


# -- the old graph, in a process of its own: both versions have modules of the same names ----------


class _OldGraph:
    """Asks a process that has loaded the old graph what that would do with threads."""

    def __init__(self, target: str, db: str, keys: str | None) -> None:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), _open_old, (target, db, keys))

    def __enter__(self) -> _OldGraph:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def outline(self) -> Outline:
        """The structure of the old graph.

        Raises:
            ValueError: it cannot be loaded.
        """
        return self._pool.submit(_outline_old).result()

    def ask(self, threads: Sequence[str]) -> Any:
        """Return a function from a thread's id to its outlook; while this process looks at some
        threads, the other one looks at the next."""
        waiting: dict[str, Future[dict[str, Outlook | None]]] = {}
        for start in range(0, len(threads), BATCH):
            ids = threads[start : start + BATCH]
            waiting.update(dict.fromkeys(ids, self._pool.submit(_look_old, ids)))

        def before(thread_id: str) -> Outlook | None:
            asked = waiting.pop(thread_id, None) or self._pool.submit(_look_old, (thread_id,))
            return asked.result()[thread_id]

        return before


_OLD: list[Any] = []
"""In the process of the old graph: first it, or why it cannot be loaded."""


def _open_old(target: str, db: str, keys: str | None) -> None:
    try:
        opened = open_saver(db, Serializer(), keys)
        graph = find_graph(target).copy({"checkpointer": opened.__enter__()})
        _OLD.extend((graph, opened))  # kept, as the end of what has opened it would close it
    except Exception as error:  # raised here, it would only break the pool
        _OLD.append(f"--old {target}: {error}")


def _old() -> Any:
    if isinstance(_OLD[0], str):
        raise ValueError(_OLD[0])
    return _OLD[0]


def _outline_old() -> Outline:
    return outline(_old())


def _look_old(threads: Sequence[str]) -> dict[str, Outlook | None]:
    return {thread_id: look(_old(), thread_id) for thread_id in threads}


# -- what is printed -------------------------------------------------------------------------------


def _format_table(proof: Proof) -> str:
    counts = proof.count()
    lines = [", ".join(f"{number} {kind}" for kind, number in counts.items())]
    if proof.others:
        lines[0] += f"; {proof.others} threads of other graphs were left out"
    if not proof.compared:
        lines.append("no --old graph: edges and joins ahead of the threads were not compared")
    for (kind, reason), verdicts in proof.by_reason().items():
        if kind != "same" or reason:
            first = ", ".join(verdict.thread_id for verdict in verdicts[:FIRST])
            more = ", ..." if len(verdicts) > FIRST else ""
            lines.append(f"{kind:8} {len(verdicts):7}  {reason}  [{first}{more}]")
    return "\n".join(map(printable, lines))


def _format_json(proof: Proof) -> str:
    reasons = [
        {
            "verdict": kind,
            "reason": reason,
            "count": len(verdicts),
            "threads": [verdict.thread_id for verdict in verdicts],
        }
        for (kind, reason), verdicts in proof.by_reason().items()
    ]
    found: Mapping[str, Any] = {
        "counts": proof.count(),
        "others": proof.others,
        "compared": proof.compared,
        "reasons": reasons,
    }
    return json.dumps(found, indent=2)


def _explain(app: Pregel[Any, Any, Any, Any], proof: Proof) -> None:
    for (kind, reason), verdicts in proof.by_reason().items():
        if kind == "same":
            continue
        thread_id = verdicts[0].thread_id
        print("\n" + printable(f"{thread_id}: {kind}, {reason}"))
        try:
            statuses = app.explain(address(thread_id, ""))
        except Exception as error:  # it is what breaks the thread
            print(printable(f"  {type(error).__name__}: {error}"))
            continue
        for node, status in statuses.items():
            print(printable(f"  {node}: {status.state}, {status.why}"))
