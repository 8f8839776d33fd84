"""Checks that damage the stored bytes: damage is seen, never guessed. And the helper that damages
SQLite files."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from ..checkpoint.base import CheckpointTuple
from ..checkpoint.errors import DamagedError, StorageError
from .asserts import SYNC, CheckFailed, assert_same
from .conformance import register_check
from .graphs import asking, looping, thread
from .harness import Harness

THREADS = ("a", "b", "c")


def damage_sqlite(path: Path | str, random: Random) -> str:
    """Damage one place of an SQLite file: flip a bit or cut a value, swap a column of two rows,
    delete a row.

    Args:
        path: a file that is not open anywhere.

    Returns:
        What was done.
    """
    with closing(sqlite3.connect(path)) as connection, connection:
        names = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        rows = {name: _rows(connection, name) for name in names if not name.startswith("sqlite_")}
        table = random.choice([name for name, found in rows.items() if found])
        return _damage(connection, table, rows[table], random)


def _rows(connection: sqlite3.Connection, table: str) -> list[int]:
    return [rowid for (rowid,) in connection.execute(f'SELECT rowid FROM "{table}"')]


def _damage(connection: sqlite3.Connection, table: str, rows: list[int], random: Random) -> str:
    row, other = random.choice(rows), random.choice(rows)
    columns = [name for _, name, *_ in connection.execute(f'PRAGMA table_info("{table}")')]
    column = random.choice(columns)
    kind = random.choice(["flip", "flip", "cut", "swap", "delete"])
    if kind == "delete":
        connection.execute(f'DELETE FROM "{table}" WHERE rowid = ?', (row,))
        return f"deleted row {row} of {table}"
    get = f'SELECT "{column}" FROM "{table}" WHERE rowid = ?'
    put = f'UPDATE OR IGNORE "{table}" SET "{column}" = ? WHERE rowid = ?'
    (value,) = connection.execute(get, (row,)).fetchone()
    if kind == "swap":
        (theirs,) = connection.execute(get, (other,)).fetchone()
        connection.execute(put, (theirs, row))
        connection.execute(put, (value, other))
        return f"swapped {column} of rows {row} and {other} of {table}"
    altered = _altered(value, kind, random)
    connection.execute(put, (altered, row))
    return f"{kind}: {column} of row {row} of {table}, {value!r:.60} -> {altered!r:.60}"


def _altered(value: Any, kind: str, random: Random) -> Any:
    """The value with one bit flipped, or cut."""
    if value is None:
        return random.randrange(9)
    if isinstance(value, int):
        return value // 2 if kind == "cut" else value ^ (1 << random.randrange(8))
    if isinstance(value, float):
        return -value
    data = value.encode() if isinstance(value, str) else value
    if kind == "cut" or not data:
        data = data[: random.randrange(len(data))] if data else b"x"
    else:
        at = random.randrange(len(data))
        data = data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]
    return data.decode("latin-1") if isinstance(value, str) else data


# -- what is read before and after -----------------------------------------------------------------

Place = tuple[str, str, str]
"""(thread, namespace, checkpoint id)"""


def _filled(harness: Harness) -> None:
    """Threads with long and short values, deltas, pending writes and a nested graph."""
    for name in THREADS:
        looping(harness.saver).invoke({"left": 3, "log": [name * 40] * 5}, thread(name))
        asking(harness.saver).invoke({"log": ["more"]}, thread(name))


class Reading:
    """Everything that can be read of the threads; typed errors stand where a read was refused.

    Attributes:
        heads: thread → its newest checkpoint.
        lists: thread → its checkpoints as listed.
        each: place → the checkpoint read by its id.
    """

    def __init__(self, harness: Harness, places: list[Place] | None = None) -> None:
        self.heads: dict[str, Any] = {
            name: _tried(partial(harness.get, thread=name)) for name in THREADS
        }
        self.lists: dict[str, Any] = {
            name: _tried(partial(harness.listed, name)) for name in THREADS
        }
        places = (
            [_place(found) for name in THREADS for found in self.lists[name]]
            if places is None
            else places
        )
        self.each: dict[Place, Any] = {
            at: _tried(partial(harness.get, at[2], thread=at[0], ns=at[1])) for at in places
        }

    def refused(self) -> set[str]:
        """The threads of which something could not be read."""
        named = [
            *self.heads.items(),
            *self.lists.items(),
            *((at[0], found) for at, found in self.each.items()),
        ]
        return {name for name, found in named if isinstance(found, Exception)}


def _place(found: CheckpointTuple) -> Place:
    configurable = found.config["configurable"]
    return configurable["thread_id"], configurable["checkpoint_ns"], found.checkpoint["id"]


def _tried(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (DamagedError, StorageError) as error:
        return error


def _invented(was: Reading, now: Reading) -> None:
    """What is read now was there before: something may be missing, nothing is different."""
    for name in THREADS:
        head, listed = now.heads[name], now.lists[name]
        before = {_place(found): found for found in was.lists[name]}
        if isinstance(head, CheckpointTuple):
            _part(head, was.heads[name], f"the newest checkpoint of thread {name!r}")
        for found in [] if isinstance(listed, Exception) else listed:
            _part(found, before.get(_place(found)), f"a checkpoint in the list of thread {name!r}")
    for at, found in now.each.items():
        if isinstance(found, CheckpointTuple):
            _part(found, was.each[at], f"checkpoint {at}")


def _part(found: CheckpointTuple, was: CheckpointTuple | None, what: str) -> None:
    """Equal, but for writes that are missing."""
    if was is None:
        raise CheckFailed(f"{what} was never stored: {found!r:.300}")
    left = [tuple(each) for each in found.pending_writes or ()]
    before = [tuple(each) for each in was.pending_writes or () if tuple(each) in left]
    assert_same(_bare(found), _bare(was), what)
    assert_same(left, before, f"writes of {what}")


def _bare(found: CheckpointTuple) -> Any:
    return (found.config, found.checkpoint, found.metadata, found.parent_config)


def _missed(was: Reading, now: Reading) -> None:
    """Nothing is missing of what is read now. A namespace that is wholly gone may have been deleted
    by somebody."""
    for name in THREADS:
        listed = now.lists[name]
        if isinstance(listed, Exception):
            continue
        left = {_place(found)[1] for found in listed}
        before = [found for found in was.lists[name] if _place(found)[1] in left]
        assert_same(
            [_place(f) for f in listed], [_place(f) for f in before], f"the list of thread {name!r}"
        )
        for found, old in zip(listed, before, strict=True):
            assert_same(
                found.pending_writes,
                old.pending_writes,
                f"writes listed with checkpoint {_place(old)}",
            )
        head = now.heads[name]
        if not isinstance(head, Exception) and "" in left:
            assert_same(
                head and _place(head),
                _place(was.heads[name]),
                f"the newest checkpoint of thread {name!r}",
            )


def _damaged_reads(harness: Harness, judge: Callable[[Reading, Reading], None]) -> None:
    for number in range(12 * harness.scale):
        with harness.fresh(f"{number}") as one:
            _filled(one)
            was = Reading(one)
            one.close()
            what = harness.suite.damage(one.folder, harness.random)
            one.saver = one.another()
            now = Reading(one, [*was.each])
            try:
                judge(was, now)
            except CheckFailed as error:
                raise CheckFailed(
                    f"damage {number}, {what}; then {error}, or DamagedError"
                ) from error
            if len(now.refused()) == len(THREADS):
                raise CheckFailed(
                    f"{what}: reading fails for all threads, though the damage is in one place"
                )


@register_check("damage", "durable", "damage", modes=(SYNC,))
def damaged_bytes_are_never_believed(harness: Harness) -> None:
    """A flipped bit, a cut value, two rows swapped, one deleted: no read gives anything that was
    not stored, the typed error names the place, and other threads can still be read."""
    _damaged_reads(harness, _invented)


@register_check("damage", "durable", "damage", modes=(SYNC,))
def nothing_goes_missing_unseen(harness: Harness) -> None:
    """After the same damage: a list that is silently shorter makes a step or an effect happen
    twice. Only a whole thread or namespace that is gone cannot be told from one that was
    deleted."""
    _damaged_reads(harness, _missed)
