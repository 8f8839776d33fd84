"""Effects of nodes: rows that they write in a transaction, and what they do once."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from kit.graphs import CONFIG, Log, graph_of, parallel_of
from kit.savers import opened_saver
from stategraph import Runtime, interrupt, task

INSERT = {"sqlite": "INSERT INTO ledger (what) VALUES (?)", "postgres": "INSERT INTO ledger (what) VALUES (%s)"}


class Bank:
    """A ledger beside the tables of a saver, and how often it was written to.

    Attributes:
        fails: what the next calls raise once they have written.
    """

    method = "transaction"

    def __init__(self, kind, target, saver):
        self.kind, self.target, self.saver = kind, target, saver
        self.calls = []
        self.fails = []
        with self.connect() as connection:
            connection.execute("CREATE TABLE ledger (what TEXT)")
            connection.commit()
        connection.close()

    def connect(self):
        return sqlite3.connect(self.target) if self.kind == "sqlite" else psycopg.connect(self.target)

    def pay(self, connection, what="book"):
        """The function of a transaction: one row."""
        self.calls.append(what)
        connection.execute(INSERT[self.kind], (what,))
        if self.fails:
            raise self.fails.pop()
        return f"receipt {len(self.calls)}"

    def rows(self):
        connection = self.connect()
        try:
            return [what for (what,) in connection.execute("SELECT what FROM ledger ORDER BY what").fetchall()]
        finally:
            connection.close()


def open_bank(kind, saver, request, tmp_path):
    """A bank beside the tables of a saver of this kind."""
    return Bank(kind, request.getfixturevalue("emptied") if kind == "postgres" else str(tmp_path / "threads.db"), saver)


@pytest.fixture(params=["sqlite", "postgres"])
def bank(request, tmp_path):
    with opened_saver(request.param, request, tmp_path, "emptied") as saver:
        yield open_bank(request.param, saver, request, tmp_path)


class Till:
    """What `Bank` is, for `runtime.once`: rows are the effects that were had."""

    method = "once"

    def __init__(self, saver):
        self.saver = saver
        self.calls = []
        self.fails = []
        self.had = []

    def pay(self, what="book"):
        self.calls.append(what)
        if self.fails:
            raise self.fails.pop()
        self.had.append(what)
        return f"receipt {len(self.calls)}"

    def rows(self):
        return self.had


@pytest.fixture(params=["once memory", "once sqlite", "once postgres", "transaction sqlite", "transaction postgres"])
def effects(request, tmp_path):
    """A `Till` or a `Bank`, on each saver."""
    method, kind = request.param.split()
    with opened_saver(kind, request, tmp_path, "emptied") as saver:
        yield Till(saver) if method == "once" else open_bank(kind, saver, request, tmp_path)


def node_of(drive, body: Callable[[Any], Any], method="transaction"):
    """A node. `body` is a generator that yields what `transaction` or `once` is called with, and is sent what that returned."""

    def node(state, runtime: Runtime):
        steps = body(state)
        try:
            asked = next(steps)
            while True:
                asked = steps.send(getattr(runtime, method)(*asked))
        except StopIteration as end:
            return end.value

    async def anode(state, runtime: Runtime):
        steps = body(state)
        try:
            asked = next(steps)
            while True:
                asked = steps.send(await getattr(runtime, f"a{method}")(*asked))
        except StopIteration as end:
            return end.value

    return anode if drive.is_async else node


def one_node(drive, body, saver, method="transaction", **policies):
    """A graph of one node, made of a body: see `node_of`."""
    return parallel_of(Log, {"pay": node_of(drive, body, method)}, **policies).compile(saver)


def asking(drive, effects):
    """a, then a node that pays and asks; it pays under a key, and by a @task."""

    @task
    def charge():
        effects.calls.append("task")
        return "charged"

    def ask(state, runtime: Runtime):
        receipt = getattr(runtime, effects.method)("pay", effects.pay)
        return {"log": [receipt, charge().result(), interrupt("content?")]}

    async def aask(state, runtime: Runtime):
        receipt = await getattr(runtime, f"a{effects.method}")("pay", effects.pay)
        return {"log": [receipt, await charge(), interrupt("content?")]}

    graph = graph_of(Log, "S>a>ask", ask=aask if drive.is_async else ask)
    return graph.compile(effects.saver)


def failing(drive, effects, *calls, **options):
    """What a node comes to that makes these calls one after the other."""

    def body(state):
        got = []
        for call in calls:
            got.append((yield call))
        return {"log": got}

    return drive.invoke(one_node(drive, body, effects.saver, effects.method), {}, CONFIG, **options)


def lose(monkeypatch, statement, *, arrives):
    """The connection breaks at the next statement of this text; empty once that has happened."""
    from stategraph.checkpoint.sql import postgres_wire

    armed, run = [statement], postgres_wire.Wire.run

    def breaks(self, text, *values):
        if [text] != armed or not was_called(text):
            return run(self, text, *values)
        armed.clear()
        if arrives:
            run(self, text, *values)
        self.connection.close()
        raise psycopg.OperationalError("the connection broke")

    def was_called(text):
        return bool(calls)

    calls = []
    monkeypatch.setattr(postgres_wire.Wire, "run", breaks)
    return calls
