"""One SQLite connection: what happens to a transaction when its owner is interrupted."""

import os
import sqlite3
import sys
import threading
from contextlib import closing

import pytest
from kit.graphs import CONFIG, EMPTY, Log, chain_of, says, thread_config

from stategraph.checkpoint.errors import DamagedError, StorageError
from stategraph.checkpoint.sql.sqlite_database import Database
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.store.cache import SqliteCache
from stategraph.store.sqlite import SqliteStore
from stategraph.testing import Commits


class Interrupted(sqlite3.Connection):
    """Ctrl-C comes while a BEGIN waits for its lock: it is raised as soon as that is done."""

    armed = False

    def cursor(self):  # type: ignore[override]
        return super().cursor(_Cursor)

    def execute(self, *args):
        return self.cursor().execute(*args)


class _Cursor(sqlite3.Cursor):
    def execute(self, statement, *args):
        done = super().execute(statement, *args)
        if self.connection.armed and statement.startswith("BEGIN"):
            self.connection.armed = False
            raise KeyboardInterrupt
        return done


@pytest.fixture
def connection():
    opened = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, factory=Interrupted)
    yield opened
    opened.close()


def test_an_interrupt_as_a_transaction_begins_leaves_none_open(connection):
    database = Database(connection, ())
    connection.armed = True
    with pytest.raises(KeyboardInterrupt), database.session(write=True):
        pass
    assert not connection.in_transaction


def test_an_interrupt_as_a_commit_begins_leaves_no_transaction_open(connection):
    saver = SqliteSaver(connection)
    run = Commits(lambda method, *args: getattr(saver, method)(*args), saver)
    run.step("0", a=0)
    connection.armed = True
    with pytest.raises(KeyboardInterrupt):
        run.step("1", a=1)
    run.step("1", a=1)
    assert saver.head(CONFIG) == "1"


def test_a_transaction_of_another_owner_is_not_touched(connection):
    database = Database(connection, ("CREATE TABLE t (x)",))
    connection.execute("BEGIN")
    connection.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(StorageError, match="within a transaction"), database.session(write=True):
        pass
    assert connection.in_transaction
    connection.execute("ROLLBACK")


def test_a_damaged_file_or_one_that_is_no_database_is_refused_with_an_error(tmp_path):
    file = tmp_path / "threads.db"
    SqliteSaver(file).close()
    cut = file.read_bytes()[:6000]
    for content in (cut, b"no database " * 1000):
        file.write_bytes(content)
        with pytest.raises(StorageError, match="threads.db"):
            SqliteSaver(file)


def test_a_damaged_schema_is_a_storage_error(tmp_path):
    file = tmp_path / "threads.db"
    SqliteSaver(file).close()
    data = file.read_bytes()
    assert b"CREATE TABLE spaces" in data
    file.write_bytes(data.replace(b"CREATE TABLE spaces", b"CREATE TABL\xe5 spaces"))
    with pytest.raises(StorageError, match="cannot be opened"):
        SqliteSaver(file)


USES = {
    SqliteSaver: lambda saver: saver.get_tuple(CONFIG),
    SqliteStore: lambda store: store.get(("a",), "b"),
    SqliteCache: lambda cache: cache.get([(("a",), "b")]),
}


@pytest.mark.parametrize("kind", [SqliteStore, SqliteCache])
def test_an_interrupt_at_any_call_leaves_it_usable_for_other_threads(kind):
    """Python looks for Ctrl-C as a function begins, and as one of C's has ended."""
    with closing(kind(":memory:")) as opened:
        at = 0
        while interrupt_at(at := at + 1, lambda: USES[kind](opened)):
            other = threading.Thread(target=USES[kind], args=(opened,), daemon=True)
            other.start()
            other.join(5)
            assert not other.is_alive(), f"after call {at}"
        assert at > 10


def interrupt_at(number, function):
    """Whether Ctrl-C came, at that call inside a function."""
    left = [number]

    def count(_frame, event, _arg):
        left[0] -= event in ("call", "c_return")
        if left[0] == 0:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(count)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.parametrize("kind", USES)
def test_what_was_closed_says_so(kind, tmp_path):
    opened = kind(str(tmp_path / "file.db"))
    opened.close()
    with pytest.raises(StorageError, match="it was closed"):
        USES[kind](opened)


def test_a_run_whose_checkpointer_is_closed_says_so(drive, tmp_path):
    saver = SqliteSaver(str(tmp_path / "file.db"))
    app = chain_of(Log, first=says("first"), close=lambda state: saver.close()).compile(checkpointer=saver)
    with pytest.raises(StorageError, match="it was closed"):
        drive.invoke(app, EMPTY, CONFIG)


@pytest.mark.parametrize("kind", USES)
def test_errors_of_the_driver_get_our_messages(kind, tmp_path):
    opened = kind(str(tmp_path / "file.db"))
    for (table,) in opened._database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'").fetchall():
        opened._database.execute(f"DROP TABLE IF EXISTS {table}")
    with pytest.raises(StorageError, match=r"refused: no such table: \w+\. Nothing of this call was stored"):
        USES[kind](opened)
    opened.close()


@pytest.mark.parametrize("kind", USES)
def test_a_forked_child_gets_an_error_that_says_to_open_another(kind, tmp_path, monkeypatch):
    opened = kind(str(tmp_path / "file.db"))
    with monkeypatch.context() as patch, pytest.raises(StorageError, match="does not survive a fork"):
        patch.setattr(os, "getpid", lambda: 1)
        USES[kind](opened)
    opened.close()


def test_a_number_in_place_of_bytes_is_damage(tmp_path):
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
        saver.put_writes(thread_config(checkpoint_id="1"), [("a", 1)], "task")
        checkpoint = {"v": 1, "id": "1", "ts": "", "channel_values": {"b": "x" * 99}, "channel_versions": {"b": 1}}
        saver.put(CONFIG, {**checkpoint, "versions_seen": {}}, {}, {"b": 1})
        for table, column in (("writes", "data"), ("channel_values", "data"), ("checkpoints", "body")):
            saver._database.execute(f"UPDATE {table} SET {column} = -5")
            with pytest.raises(DamagedError):
                saver.get_tuple(CONFIG)


@pytest.mark.parametrize("cls", [SqliteSaver, SqliteStore, SqliteCache])
@pytest.mark.parametrize("lock", ["IMMEDIATE", "EXCLUSIVE"])
def test_opening_waits_for_others_that_write(tmp_path, cls, lock):
    """SQLite itself gives up at once on the way to WAL; several processes that open one new file meet there."""
    file = tmp_path / "new.db"
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute(f"BEGIN {lock}")
    threading.Timer(0.2, other.execute, ["COMMIT"]).start()
    cls(file).close()
    other.close()


def test_opening_gives_up_after_the_timeout(tmp_path):
    other = sqlite3.connect(tmp_path / "new.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match="database is locked"):
        SqliteSaver(tmp_path / "new.db", timeout=0.05)
    other.close()


@pytest.mark.parametrize("polls", [1, 5, 40])
def test_a_file_that_others_write_to_is_tried_often(tmp_path, polls, monkeypatch):
    """SQLite itself would sleep for up to 100 ms between two tries, and find the file locked by the next transaction of a
    `prune` in another process each time (PERFORMANCE P34)."""
    import stategraph.checkpoint.sql.sqlite_database as database_module

    other = sqlite3.connect(tmp_path / "t.db", isolation_level=None)
    with SqliteSaver.from_conn_string(str(tmp_path / "t.db")) as saver:
        run = Commits(lambda _, commit: saver.commit(commit), saver)
        slept = []

        def sleep(seconds):
            slept.append(seconds)
            if len(slept) == polls:
                other.execute("COMMIT")

        monkeypatch.setattr(database_module.time, "sleep", sleep)
        for step in range(3):  # the first of a thread, and what every superstep does
            other.execute("BEGIN IMMEDIATE")
            run.step(f"{step}", a=step)
            assert len(slept) == polls and max(slept) <= 0.002
            slept.clear()
        assert saver.head(CONFIG) == "2"
        assert not slept  # who reads does not wait
    other.close()
