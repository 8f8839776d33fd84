"""Faults around group commit: no thread to be had, a fork, a write inside a write, an undo that fails. Nobody waits for
ever, and nothing half-made is stored."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, contextmanager

import pytest
from groups import WAIT, first_commit, heads, path_of, saver, write_together

from stategraph.checkpoint.errors import StorageError
from stategraph.checkpoint.records import Commit, TaskWrites
from stategraph.checkpoint.sql import sqlite_database as database
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.testing import Commits

__all__ = ["saver"]

both = pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])


@contextmanager
def held(saver: SqliteSaver):
    """Another thread uses the database."""
    holding, release = threading.Event(), threading.Event()

    def hold():
        with saver._lock:
            holding.set()
            release.wait(WAIT)

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait(WAIT)
    try:
        yield
    finally:
        release.set()
        thread.join()


@both
def test_if_no_thread_can_be_started_waiting_writes_fail_and_the_next_are_stored(saver, is_async, monkeypatch):
    submit = saver._group._threads.submit

    def refuse(job):
        monkeypatch.setattr(saver._group._threads, "submit", submit)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(saver._group._threads, "submit", refuse)
    commit = first_commit(saver, "1")
    with held(saver), pytest.raises(StorageError, match="can't start new thread"):
        asyncio.run(saver.acommit([commit])) if is_async else saver.commit([commit])
    assert write_together(saver, [first_commit(saver, "2")], is_async) == [None]
    assert set(heads(path_of(saver))) == {"2"}


def test_a_write_inside_a_write_does_not_wait_for_those_that_wait_for_it(tmp_path):
    class Noting(SqliteSaver):
        """Records something each time it prunes, which is while a commit is made."""

        def prune(self, *args, **options):
            others.start()
            while not self._group.waiting:
                pass
            self.record(("notes", ""), None, {"0": [TaskWrites("task", "", [("a", self.serde.dumps(1))])]})

    with Noting.from_conn_string(str(tmp_path / "db"), synchronous="off") as saver:
        other = first_commit(saver, "other")
        others = threading.Thread(target=saver.commit, args=([other],), daemon=True)
        saver.commit([first_commit(saver, "notes")])

        def write(commit: Commit):
            def commit_and_prune(given: Commit):
                SqliteSaver._commit(saver, [given])
                saver.prune(["t"])

            saver._write(commit_and_prune, commit)

        writer = threading.Thread(target=write, args=(first_commit(saver, "t"),), daemon=True)
        writer.start()
        writer.join(WAIT)
        assert not writer.is_alive()
        others.join(WAIT)
        assert set(heads(tmp_path / "db")) == {"notes", "t", "other"}


@both
def test_what_cannot_be_undone_alone_is_undone_with_its_group(saver, is_async, monkeypatch):
    run = Commits(lambda _, commit: saver.commit(commit), saver, "t")
    run.step("0", a=1)
    good = run.made("1", "head", (), {"a": 2})[0]
    bad = first_commit(saver, "bad", a="long " * 100)
    real, broken = saver._insert, [True]

    def insert(session, namespace_id, rows):
        seq = real(session, namespace_id, rows)
        if rows.checkpoint_id == bad.id and rows.long_values:
            raise sqlite3.OperationalError("disk I/O error")
        return seq

    def roll_back(statement, values=()):
        if statement == database._ROLLBACK_TO and broken:
            broken.clear()
            raise sqlite3.OperationalError("disk I/O error")
        return execute(statement, values)

    execute = saver._database.execute
    monkeypatch.setattr(saver, "_insert", insert)
    monkeypatch.setattr(saver._database, "execute", roll_back)
    ended = write_together(saver, [good, bad, first_commit(saver, "other")], is_async)
    assert [type(each) for each in ended] == [type(None), StorageError, type(None)]
    assert not broken
    assert heads(path_of(saver)) == {"t": "1", "other": "0"}
    with closing(sqlite3.connect(path_of(saver))) as other, other:
        assert other.execute("SELECT count(*) FROM channel_values").fetchone() == (0,)
    other.close()


def test_ctrl_c_before_the_wait_takes_the_write_back(saver, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(saver._group, "_start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            saver._group.run(saver._commit, [first_commit(saver, "1")])
    assert not saver._group.waiting
    saver.commit([first_commit(saver, "2")])
    assert set(heads(path_of(saver))) == {"2"}


def test_a_run_of_a_closed_loop_does_not_block_others(saver):
    loop = asyncio.new_event_loop()
    left = loop.create_task(saver.acommit([first_commit(saver, "left")]))
    with saver._lock:
        loop.call_soon(loop.stop)
        loop.run_forever()
    left.cancel()
    loop.run_until_complete(asyncio.wait([left]))
    loop.close()
    assert write_together(saver, [first_commit(saver, str(n)) for n in range(3)], True) == [None] * 3
    assert {"0", "1", "2"} <= set(heads(path_of(saver)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("kind", ["sqlite", "store"])
def test_the_child_of_a_fork_can_close_what_a_thread_of_its_parent_was_using(tmp_path, kind):
    opened = {
        "sqlite": "from stategraph.checkpoint.sqlite import SqliteSaver as Made",
        "store": "from stategraph.store.sqlite import SqliteStore as Made",
    }[kind]
    program = f"""
import os, signal, sys, threading
{opened}
made, held, done = Made({str(tmp_path / "db")!r}), threading.Event(), threading.Event()
def hold():
    with made._lock:
        held.set()
        done.wait(20)
thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(10)
    made.close()
    os._exit(0)
_, status = os.waitpid(child, 0)
done.set()
thread.join()
made.close()
sys.exit(abs(os.waitstatus_to_exitcode(status)))
"""
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", program], timeout=60).returncode == 0
