"""A bank whose rows a node changes in a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from stategraph import (
    Runtime,
)
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.checkpoint.sqlite import SqliteSaver

INSERT = {"sqlite": "INSERT INTO ledger (what) VALUES (?)", "postgres": "INSERT INTO ledger (what) VALUES (%s)"}


class Bank:
    """A ledger beside the tables of a saver, and how often it was written to.

    Attributes:
        fails: what the next calls raise once they have written.
    """

    def __init__(self, kind: str, target: str, saver: Any) -> None:
        self.kind, self.target, self.saver = kind, target, saver
        self.calls: list[str] = []
        self.fails: list[Exception] = []
        with self.connect() as connection:
            connection.execute("CREATE TABLE ledger (what TEXT)")
            connection.commit()
        connection.close()

    def connect(self) -> Any:
        return sqlite3.connect(self.target) if self.kind == "sqlite" else psycopg.connect(self.target)

    def pay(self, connection: Any, what: str = "book") -> str:
        """The function of a transaction: one row."""
        self.calls.append(what)
        connection.execute(INSERT[self.kind], (what,))
        if self.fails:
            raise self.fails.pop()
        return f"receipt {len(self.calls)}"

    def rows(self) -> list[str]:
        connection = self.connect()
        try:
            return [what for (what,) in connection.execute("SELECT what FROM ledger ORDER BY what").fetchall()]
        finally:
            connection.close()


@pytest.fixture(params=["sqlite", "postgres"])
def bank(request, tmp_path):
    if request.param == "sqlite":
        name = str(tmp_path / "threads.db")
        with SqliteSaver.from_conn_string(name, synchronous="off") as opened:
            yield Bank("sqlite", name, opened)
    else:
        url = request.getfixturevalue("emptied")
        with PostgresSaver.from_conn_string(url) as saver:
            yield Bank("postgres", url, saver)


def node_of(drive: Any, body: Callable[[Any], Any]) -> Any:
    """A node. `body` is a generator that yields what `transaction` is called with, and is sent what that returned."""

    def node(state: Any, runtime: Runtime) -> Any:
        steps = body(state)
        try:
            asked = next(steps)
            while True:
                asked = steps.send(runtime.transaction(*asked))
        except StopIteration as end:
            return end.value

    async def anode(state: Any, runtime: Runtime) -> Any:
        steps = body(state)
        try:
            asked = next(steps)
            while True:
                asked = steps.send(await runtime.atransaction(*asked))
        except StopIteration as end:
            return end.value

    return anode if drive.is_async else node


def lose(monkeypatch: pytest.MonkeyPatch, statement: str, *, arrives: bool) -> list[str]:
    """The connection breaks at the next statement of this text; empty once that has happened."""
    from stategraph.checkpoint.sql import postgres_wire

    armed, run = [statement], postgres_wire.Wire.run

    def breaks(self: Any, text: str, *values: Any) -> int:
        if [text] != armed or not was_called(text):
            return run(self, text, *values)
        armed.clear()
        if arrives:
            run(self, text, *values)
        self.connection.close()
        raise psycopg.OperationalError("the connection broke")

    def was_called(text: str) -> bool:
        return bool(calls)

    calls: list[str] = []
    monkeypatch.setattr(postgres_wire.Wire, "run", breaks)
    return calls
