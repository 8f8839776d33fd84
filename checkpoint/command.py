"""`python -m stategraph threads|history|show|prune`: looking after stored threads from a terminal.
Needs no graph: what only a graph would know is read off the names of what waits."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from .base import (
    ERROR,
    INTERRUPT,
    SLEEP,
    BaseCheckpointSaver,
    CheckpointTuple,
    RunnableConfig,
    address,
    coordinates,
)
from .encryption import KEYS_HELP, encryption_of_keys
from .errors import DamagedError, StorageError, UnknownTypeError
from .printable import printable, printable_lines
from .records import SLOT, TRIGGER
from .serde import Blob, Serializer
from .sql.redact import is_conninfo, redact_address

DAMAGED = 1
"""The exit code where something was damaged; the rest was done."""

LONGEST = 100
"""Characters of a value that a list shows."""


def add_command(name: str, parser: argparse.ArgumentParser) -> None:
    """What one of the four commands takes. It sets `run`, which takes the parser and what was
    asked."""
    db = "an SQLite file, or postgresql://..."
    add = parser.add_argument
    add("--db", required=True, metavar="FILE-OR-URL", help=db)
    add("--keys", metavar="FILE", help=KEYS_HELP)
    if name in ("history", "show"):
        add("--thread", required=True, metavar="ID", help="the thread's id")
        add("--checkpoint", metavar="ID", help="start at this checkpoint instead of the newest")
        ns = "the namespace of a nested graph (default: the outermost graph)"
        add("--ns", default="", metavar="NAMESPACE", help=ns)
    if name in ("threads", "history"):
        add("--limit", type=int, default=50, metavar="N", help="show at most N (%(default)s)")
    if name == "prune":
        only = "only this thread (default: all); may be repeated"
        add("--thread", action="append", metavar="ID", help=only)
        last = "keep the newest N checkpoints of each thread and nested graph; 0, none of --thread"
        add("--keep-last", type=int, metavar="N", help=last)
        add("--older-than", type=float, metavar="DAYS", help="delete checkpoints older than this")
    run = {"threads": _threads, "history": _history, "show": _show, "prune": _prune}[name]
    parser.set_defaults(run=run)


class _Unknown:
    """Stands for a value whose type only the user's program knows."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __repr__(self) -> str:
        return f"<{self.key}>"


class _Tolerant(Serializer):
    """Shows what it cannot load instead of refusing it. For looking only."""

    def loads(self, blob: Blob) -> Any:
        try:
            return super().loads(blob)
        except UnknownTypeError as error:
            return _Unknown(error.key)


@contextmanager
def open_saver(
    db: str,
    serde: Serializer | None = None,
    keys: str | None = None,
    *,
    write: bool = False,
    create: bool = False,
) -> Iterator[BaseCheckpointSaver]:
    """The checkpointer on a file or URL; by default it shows what it cannot load instead of
    refusing it.

    Args:
        write: whether a file may be changed; a Postgres database may always.
        create: whether a file that is not there is made, and whatever file is there written to.
        keys: a file of keys, if not those of the environment.

    Raises:
        FileNotFoundError: there is no such file, and none is to be made.
        ValueError: the keys are none.
    """
    integrity = encryption_of_keys(keys, os.environ)
    if is_conninfo(db):
        from .postgres import PostgresSaver

        with PostgresSaver.from_conn_string(
            db, serde=serde or _Tolerant(), integrity=integrity
        ) as saver:
            yield saver
        return
    if not create and not Path(db).is_file():
        raise FileNotFoundError(f"there is no file {redact_address(db)!r}")
    from .sqlite import SqliteSaver

    options: Any = {"serde": serde or _Tolerant(), "integrity": integrity}
    if create:
        with SqliteSaver.from_conn_string(db, **options) as saver:
            yield saver
        return
    with SqliteSaver.from_conn_string(db, read_only=True, **options) as saver:
        if not write:
            yield saver
            return
    with SqliteSaver.from_conn_string(
        db, **options
    ) as saver:  # it has threads, so nothing is made in a foreign file
        yield saver


def _threads(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    damaged = 0
    with _saver(parser, asked) as saver:
        for thread_id in islice(saver.threads(), asked.limit):
            try:
                head = saver.get_tuple({"configurable": {"thread_id": thread_id}})
                standing = "" if head is None else _describe(saver, head, {})
            except (DamagedError, ValueError) as error:  # the others can be listed
                damaged += 1
                print(f"{printable(thread_id)}\tdamaged: {printable(error)}")
                continue
            if head is not None:
                shown = (
                    thread_id,
                    f"step {head.metadata.get('step')}",
                    head.checkpoint["ts"],
                    standing,
                )
                print("\t".join(map(printable, shown)))
    return DAMAGED if damaged else 0


def _history(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    with _saver(parser, asked) as saver:
        found = [*islice(saver.list(_config(asked)), asked.limit)]
        if not found:
            parser.error(f"thread {asked.thread!r} has no checkpoints here")
        known: _Origins = {}
        for each in found:
            parent = each.parent_config
            after = coordinates(parent)[2] if parent else "nothing"
            step, source = each.metadata.get("step"), each.metadata.get("source")
            made = each.checkpoint["ts"]
            print(printable(f"{each.checkpoint['id']}  step {step}  {source}  {made}"))
            print(printable(f"    after {after}; {_describe(saver, each, known)}"))
    return 0


def _show(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    with _saver(parser, asked) as saver:
        found = saver.get_tuple(_config(asked))
        if found is None:
            parser.error(f"thread {asked.thread!r} has no such checkpoint here")
        values = found.checkpoint["channel_values"]
        state = {
            name: value
            for name, value in values.items()
            if ":" not in name and not name.startswith("__")
        }
        print(printable_lines(json.dumps(state, indent=2, default=repr, ensure_ascii=False)))
    return 0


def _prune(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    if asked.keep_last is None and asked.older_than is None:
        parser.error("prune needs --keep-last N, --older-than DAYS, or both")
    if asked.keep_last == 0 and asked.thread is None:
        parser.error(
            "--keep-last 0 would delete every thread, also those that wait for an answer: name "
            "those to delete with --thread ID"
        )
    age = None if asked.older_than is None else timedelta(days=asked.older_than)
    damaged = 0
    with _saver(parser, asked, write=True) as saver:
        threads = [*saver.threads()] if asked.thread is None else asked.thread
        before = _count(saver, threads)
        try:
            saver.prune(threads, keep_last=asked.keep_last, older_than=age)
        except DamagedError as error:  # all others were pruned
            for text in (error, *getattr(error, "__notes__", ())):
                damaged += 1
                print(f"not pruned: {printable(text)}")
        except ValueError as error:
            parser.error(str(error))
        after = _count(saver, threads)
    print(f"deleted {before - after} checkpoints, kept {after}")
    return DAMAGED if damaged else 0


def _count(saver: BaseCheckpointSaver, threads: list[str]) -> int:
    """How many checkpoints these threads have, but for damaged ones."""
    count = 0
    for thread_id in threads:
        with suppress(DamagedError):
            count += len([*saver.list({"configurable": {"thread_id": thread_id}})])
    return count


@contextmanager
def _saver(
    parser: argparse.ArgumentParser, asked: argparse.Namespace, *, write: bool = False
) -> Iterator[BaseCheckpointSaver]:
    try:
        with open_saver(asked.db, keys=asked.keys, write=write) as saver:
            yield saver
    except BrokenPipeError:
        raise  # no fault of the database's
    except (OSError, ImportError, StorageError, ValueError) as error:
        parser.error(str(error))


def _config(asked: argparse.Namespace) -> RunnableConfig:
    configurable = {"thread_id": asked.thread, "checkpoint_ns": asked.ns}
    if asked.checkpoint:
        configurable["checkpoint_id"] = asked.checkpoint
    return {"configurable": configurable}


_Origins = dict[str, CheckpointTuple | None]
"""Checkpoint id → the checkpoint; many have tasks under way of the same few."""


def _describe(saver: BaseCheckpointSaver, found: CheckpointTuple, known: _Origins) -> str:
    """`describe_standing`, with what the tasks under way (schedule="ready") have recorded beside
    their origins, the checkpoints at which they started."""
    thread_id, ns, _ = coordinates(found.config)
    slots = _find_slots(found)
    tasks = [task for _, task in slots if isinstance(task, dict)]
    mine = {id for task in tasks for id in (task["id"], task["handler"])}
    # Of a task with a value that cannot be loaded not even the id is known.
    unread = {origin for origin, task in slots if not isinstance(task, dict)}
    recorded: dict[tuple[str, str], Any] = {}
    for origin in dict.fromkeys(origin for origin, _ in slots):
        if origin not in known:
            known[origin] = saver.get_tuple(address(thread_id, ns, origin))
        for task_id, channel, value in getattr(known[origin], "pending_writes", None) or ():
            if task_id in mine or origin in unread:
                recorded[task_id, channel] = value
    if not recorded:
        return describe_standing(found)
    # Supersteps may have run them since, and recorded that beside this checkpoint.
    recorded.update(((id, channel), value) for id, channel, value in found.pending_writes or ())
    pending = [(id, channel, value) for (id, channel), value in recorded.items()]
    return describe_standing(found._replace(pending_writes=pending))


def _find_slots(found: CheckpointTuple) -> list[tuple[str, Any]]:
    """The origin of each task under way, and what is stored of the task."""
    seen = found.checkpoint.get("versions_seen", {})
    return [
        (origin, task)
        for name, task in found.checkpoint["channel_values"].items()
        if name.startswith(SLOT)
        for origin in seen.get(name, ())
    ]


def describe_standing(found: CheckpointTuple) -> str:
    """How a checkpoint stands, in one line: what runs next, what was asked, what failed.

    >>> describe_standing(CheckpointTuple({}, {"channel_values": {"branch:to:review": None}}, {}))
    'next: review'
    """
    pending = found.pending_writes or []
    parts = []
    held = found.checkpoint["channel_values"]
    names = {name.removeprefix(TRIGGER) for name in held if name.startswith(TRIGGER)}
    for _, task in _find_slots(found):
        names.add(task["node"] if isinstance(task, dict) else f"a task with {task!r}")
    if names:
        parts.append(f"next: {', '.join(sorted(names))}")
    asked: set[Any] = set()  # of a `@task` its caller's record tells, too
    for _, channel, value in pending:
        if channel == INTERRUPT:
            new = {id: text for id, text in _questions(value) if id not in asked}
            asked.update(new)
            parts.extend(f"asks: {_short(question)}" for question in new.values())
        elif channel == SLEEP and value is not None:
            parts.append(f"sleeps until {value:%Y-%m-%d %H:%M:%S} UTC")
        elif channel == ERROR and value is not None:
            parts.append(f"failed: {_short(value)}")
    return "; ".join(parts) or "nothing waits"


def _questions(value: Any) -> list[tuple[Any, Any]]:
    """The id and the value of each question; of a question without an id, a new object."""
    given = value if isinstance(value, list | tuple) else [value]
    return [(getattr(each, "id", object()), getattr(each, "value", each)) for each in given]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
