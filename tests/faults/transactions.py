"""R50: rows that a task writes by `runtime.transaction`, in the saver's database or in another: killed anywhere, each is
there once, without any key in the application."""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, NamedTuple

import psycopg

from stategraph.checkpoint.base import RETURN
from stategraph.testing import CheckFailed, Ledger, assert_same

from .campaign import trial
from .killer import WRITING, Kill, Killer, Kills, carry
from .stages import EFFECTS, TURNS, Storage, Synced, shop, sqlite

PLACES = ("committed", "saver", "before", "after", "begun", "written", "returned", "moment")
"""Where a shop is killed; the first only on SQLite."""


class Play(NamedTuple):
    """One shop: in which world, how it is stored, whether its ledger is in a database of its own, and when nodes start."""

    world: str
    durability: str
    own: bool
    schedule: Any


def connect(storage):
    return sqlite3.connect(storage.address, timeout=30) if storage.kind == "sqlite" else psycopg.connect(storage.address)


def found(storage, statement):
    """The rows of a query; none if there is no such table yet."""
    with closing(connect(storage)) as connection:
        try:
            return [*map(tuple, connection.execute(statement).fetchall())]
        except (sqlite3.OperationalError, psycopg.errors.UndefinedTable):
            return []


def selling(saver, books, play: Play, notes: Ledger, passing):
    """A shop whose effects are rows that are written by `transaction`."""
    mark = "?" if books.kind == "sqlite" else "%s"
    on = partial(connect, books) if play.own else None

    def enter(connection, turn, lane, what):
        passing("begun")
        connection.execute(f"INSERT INTO books VALUES ({mark}, {mark}, {mark})", (turn, lane, what))
        passing("written")
        return what

    def do(runtime, turn, lane, what):
        runtime.transaction(what, enter, turn, lane, what, on=on)
        passing("returned")

    async def ado(runtime, turn, lane, what):
        await runtime.atransaction(what, enter, turn, lane, what, on=on)
        passing("returned")

    def fails(runtime, turn, lane):
        """The first attempt of every other task."""
        if (turn + lane) % 2 or [turn, lane] in notes.read():
            return False
        notes.note(turn, lane)
        return True

    return shop(saver, play.world == "async", do, ado, fails, play.schedule)


def watch_commits(saver, killer: Killer):
    """Pass "committed" after each transaction of an SQLite saver in which a row was written; what passes all else."""
    session, thread = saver._session, threading.local()

    @contextmanager
    def watched(*, write):
        thread.written = False
        with session(write=write) as opened:
            yield opened
        if thread.written:
            killer.passing("committed")

    def passing(how):
        thread.written = how == "written"
        killer.passing(how)

    saver._session = watched
    return passing


def sell(storage, books, play: Play, notes, plan: Kill):
    """Carry a shop through, in a process that may be killed; how often each place was passed."""
    with closing(connect(books)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS books (turn INT, lane INT, what TEXT)")
        connection.commit()

    def make(saver, killer: Killer):
        return selling(saver, books, play, Synced(notes), watch_commits(saver, killer))

    return carry(storage, play, {"left": TURNS, "log": []}, plan, make, *WRITING, "_transact")


def recorded(storage, books, play: Play):
    """How many transactions are recorded."""
    if play.own:
        return len(found(books, "SELECT key FROM stategraph_completions WHERE result IS NOT NULL"))
    return len({record for record, channel, _ in storage.writes() if channel == RETURN})


def check(storage, books, play: Play, where):
    """No row is doubled, and there are as many as records."""
    rows = found(books, "SELECT turn, lane, what FROM books")
    doubled = [row for row, count in Counter(rows).items() if count > 1]
    if doubled:
        raise CheckFailed(f"{where}: {len(doubled)} rows are doubled, such as {doubled[0]}")
    assert_same(recorded(storage, books, play), len(rows), f"{where}: records, and rows")
    return rows


@trial("R50", quick=4, full=720, on_postgres=(1, 500))
def killed_transactions(round, storage: Storage):
    """A run that writes 21 rows by `transaction`, three tasks side by side, retries and a question, is killed one to four
    times: inside the saver, around its writes, before and after a row and its commit, after `transaction`, at a random
    moment. After each kill no row is doubled and each has its record; in the end each is there once. In 720 rounds that is
    about 1,000 kills."""
    random = round.random
    schedule = random.choice(["ready", "supersteps"])
    play = Play(random.choice(["sync", "async"]), random.choice(["sync", "async"]), round.number % 3 == 2, schedule)
    other = sqlite(round, "own") if storage.kind == "sqlite" else storage
    books, dry = other if play.own else storage, sqlite(round, "dry")
    dry_books = sqlite(round, "dry-own") if play.own else dry
    kills = Kills(
        round, play, (sell, storage, books, play, round.folder / "notes"), (sell, dry, dry_books, play, round.folder / "dry")
    )
    places = PLACES if storage.kind == "sqlite" else PLACES[1:]
    for n in range(random.choice([1, 2, 3, 4])):
        check(storage, books, play, kills.kill(places[(round.number + n) % len(places)], 200))
    where = kills.end()
    rows = check(storage, books, play, where)
    assert_same(set(rows), EFFECTS, f"{where}: rows")
    round.count("rows", len(rows))
    round.count("kills", kills.number)
