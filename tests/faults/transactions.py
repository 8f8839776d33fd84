"""R50: rows that a task writes by `runtime.transaction`, in the saver's database or in another: killed anywhere, each is
there once, without any key in the application."""

from __future__ import annotations

import operator
import sqlite3
import threading
from collections import Counter
from contextlib import closing, contextmanager
from functools import partial
from typing import Annotated, Any, NamedTuple, TypedDict

import psycopg

from stategraph import END, START, RetryPolicy, Runtime, Send, StateGraph, interrupt
from stategraph.checkpoint.base import RETURN
from stategraph.testing import CheckFailed, Ledger, assert_same

from .campaign import Round, trial
from .killer import WRITING, Kill, Killer, Kills, carry
from .stages import Storage, Synced, sqlite

LANES, ENTRIES, TURNS = 3, ("charge", "mail"), 3
PLACES = ("committed", "saver", "before", "after", "begun", "written", "returned", "moment")
"""Where a shop is killed; the first only on SQLite."""
AGAIN = RetryPolicy(max_attempts=2, initial_interval=0, retry_on=ConnectionError)
ROWS = {*((turn, lane, what) for turn in range(1, TURNS + 1) for lane in range(LANES) for what in ENTRIES)} | {
    (turn, -1, "close") for turn in range(1, TURNS + 1)
}


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    left: int


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


def shop(saver, books, play: Play, notes: Ledger, passing):
    """`TURNS` times: three tasks side by side with two rows each, of which some fail at first; then one with a row, which
    asks in one of the turns."""
    mark = "?" if books.kind == "sqlite" else "%s"
    on = partial(connect, books) if play.own else None

    def enter(connection, turn, lane, what):
        passing("begun")
        connection.execute(f"INSERT INTO books VALUES ({mark}, {mark}, {mark})", (turn, lane, what))
        passing("written")
        return what

    def fails(turn, lane):
        """Whether this attempt is to fail: the first of every other task, after its rows."""
        if (turn + lane) % 2 or [turn, lane] in notes.read():
            return False
        notes.note(turn, lane)
        return True

    def end(task):
        passing("returned")
        if fails(task["turn"], task["lane"]):
            raise ConnectionError
        return {"log": [("paid", task["turn"], task["lane"])]}

    def pay(task, runtime: Runtime):
        for what in ENTRIES:
            runtime.transaction(what, enter, task["turn"], task["lane"], what, on=on)
        return end(task)

    async def apay(task, runtime: Runtime):
        for what in ENTRIES:
            await runtime.atransaction(what, enter, task["turn"], task["lane"], what, on=on)
        return end(task)

    def close(state, runtime: Runtime):
        runtime.transaction("close", enter, state["left"], -1, "close", on=on)
        passing("returned")
        if state["left"] == 2:
            interrupt("go on?")
        return {"left": state["left"] - 1, "log": [("closed", state["left"])]}

    def sends(state):
        return [Send("pay", {"turn": state["left"], "lane": n}) for n in range(LANES)] if state["left"] else END

    is_async = play.world == "async"
    graph = StateGraph(State).add_node("pay", apay if is_async else pay, retry_policy=AGAIN).add_node("close", close)
    graph.add_conditional_edges(START, sends, ["pay", END]).add_edge("pay", "close")
    return graph.add_conditional_edges("close", sends, ["pay", END]).compile(
        checkpointer=saver, schedule=play.schedule
    )


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
        return shop(saver, books, play, Synced(notes), watch_commits(saver, killer))

    return carry(storage, play, {"left": TURNS, "log": []}, plan, make, *WRITING, "_transact")


def recorded(storage, books, play: Play):
    """How many transactions are recorded."""
    if play.own:
        return len(found(books, "SELECT key FROM stategraph_completions WHERE result IS NOT NULL"))
    with storage.open() as saver:
        writes = [each for found in saver.list(None) for each in found.pending_writes or ()]
    return len({record for record, channel, _ in writes if channel == RETURN})


def check(storage, books, play: Play, where):
    """No row is doubled, and there are as many as records."""
    rows = found(books, "SELECT turn, lane, what FROM books")
    doubled = [row for row, count in Counter(rows).items() if count > 1]
    if doubled:
        raise CheckFailed(f"{where}: {len(doubled)} rows are doubled, such as {doubled[0]}")
    assert_same(recorded(storage, books, play), len(rows), f"{where}: records, and rows")
    return rows


@trial("R50", quick=8, full=720, on_postgres=(1, 500))
def killed_transactions(round: Round, storage: Storage) -> None:
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
    assert_same(set(rows), ROWS, f"{where}: rows")
    round.count("rows", len(rows))
    round.count("kills", kills.number)
