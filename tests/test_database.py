"""One SQLite connection: what becomes of a transaction when its owner is interrupted."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from stategraph.checkpoint.errors import StorageError
from stategraph.checkpoint.sql.database import Database
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.testing import Commits


class Interrupted(sqlite3.Connection):
    """Ctrl-C comes while a BEGIN waits for its lock: it is raised as soon as that is done."""

    armed = False

    def cursor(self) -> Any:  # type: ignore[override]
        return super().cursor(_Cursor)

    def execute(self, *args: Any) -> Any:
        return self.cursor().execute(*args)


class _Cursor(sqlite3.Cursor):
    def execute(self, statement: str, *args: Any) -> Any:
        done = super().execute(statement, *args)
        if self.connection.armed and statement.startswith("BEGIN"):
            self.connection.armed = False
            raise KeyboardInterrupt
        return done


@pytest.fixture
def connection() -> Any:
    opened = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, factory=Interrupted)
    yield opened
    opened.close()


def test_an_interrupt_as_a_transaction_begins_leaves_none_open(connection: Any) -> None:
    database = Database(connection, ())
    connection.armed = True
    with pytest.raises(KeyboardInterrupt), database.transaction(write=True):
        pass
    assert not connection.in_transaction


def test_an_interrupt_as_a_commit_begins_leaves_no_transaction_open(connection: Any) -> None:
    saver = SqliteSaver(connection)
    run = Commits(lambda method, *args: getattr(saver, method)(*args), saver)
    run.step("0", a=0)
    connection.armed = True
    with pytest.raises(KeyboardInterrupt):
        run.step("1", a=1)
    run.step("1", a=1)
    assert saver.head({"configurable": {"thread_id": "t"}}) == "1"


def test_a_transaction_of_somebody_else_is_left_alone(connection: Any) -> None:
    database = Database(connection, ("CREATE TABLE t (x)",))
    connection.execute("BEGIN")
    connection.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(sqlite3.OperationalError, match="within a transaction"), database.transaction(write=True):
        pass
    assert connection.in_transaction
    connection.execute("ROLLBACK")


def test_a_file_that_is_damaged_or_no_database_is_refused_in_words(tmp_path: Path) -> None:
    file = tmp_path / "threads.db"
    SqliteSaver(file).close()
    cut = file.read_bytes()[:6000]
    for content in (cut, b"no database " * 1000):
        file.write_bytes(content)
        with pytest.raises(StorageError, match="threads.db"):
            SqliteSaver(file)
