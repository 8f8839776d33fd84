"""Writes that wait together are one transaction: each in its savepoint, answered when it is on disk."""

import asyncio
import os
import sqlite3
import threading
from contextlib import closing, contextmanager

import pytest
from groups import WAIT, first_commit, heads, path_of, together, write_together
from groups import saver as saver
from kit.graphs import Count, chain_of, thread_config

from stategraph import END
from stategraph.checkpoint.base import CheckpointConflictError
from stategraph.checkpoint.errors import StorageError, UnserializableError
from stategraph.checkpoint.records import Expected, TaskWrites, address
from stategraph.checkpoint.sql import group_commit as module
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.store import GetOp, ItemChangedError, PutOp, UnchangedOp
from stategraph.store.sqlite import SqliteStore
from stategraph.testing import Commits

MANY = 20


class Trace:
    """Counts statements by their first word."""

    def __init__(self, saver):
        self.counts = {}
        saver._database.connection.set_trace_callback(self._add)

    def _add(self, statement):
        word = statement.split()[0]
        self.counts[word] = self.counts.get(word, 0) + 1


both = pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])


@both
def test_commits_that_wait_together_are_one_transaction(saver, is_async):
    trace = Trace(saver)
    commits = [first_commit(saver, str(number)) for number in range(MANY)]
    assert write_together(saver, commits, is_async) == [None] * MANY
    assert (trace.counts["BEGIN"], trace.counts["COMMIT"], trace.counts["SAVEPOINT"]) == (1, 1, MANY)
    assert heads(path_of(saver)) == {str(number): "0" for number in range(MANY)}


@both
def test_a_commit_that_waits_alone_has_no_savepoint(saver, is_async):
    trace = Trace(saver)
    assert write_together(saver, [first_commit(saver, "t")], is_async) == [None]
    assert "SAVEPOINT" not in trace.counts


@both
def test_a_failing_write_fails_no_other(saver, is_async):
    moved = Commits(lambda _, commit: saver.commit(commit), saver, "moved")
    moved.step("0", a=1)
    stale = moved.made("1", "head", (), {"a": 2})[0]
    moved.step("other", a=3)
    bad = first_commit(saver, "bad")
    bad.metadata["what"] = object()
    good = [first_commit(saver, str(number), a="long " * 50) for number in range(6)]
    trace = Trace(saver)
    ended = write_together(saver, [*good[:3], stale, bad, *good[3:]], is_async)
    assert ended[:3] == ended[5:] == [None] * 3
    assert isinstance(ended[3], CheckpointConflictError)
    assert isinstance(ended[4], UnserializableError)
    assert trace.counts["COMMIT"] == 1
    assert heads(path_of(saver)) == {"moved": "other", **{str(number): "0" for number in range(6)}}
    for number in range(6):
        found = saver.get(address(str(number), ""))
        assert found is not None and found["channel_values"] == {"a": "long " * 50}


@both
def test_two_of_one_thread_in_a_group_one_wins(saver, is_async):
    run = Commits(lambda _, commit: saver.commit(commit), saver, "t")
    run.step("0", a=1)
    rivals = [run.made(name, "head", (), {"a": name})[0] for name in "xyz"]
    for rival in rivals:  # each of a run of its own
        found = saver.get_tuple(address("t", ""))
        rival.saver_state = found.saver_state  # type: ignore[union-attr]
    ended = write_together(saver, rivals, is_async)
    assert [type(each) for each in ended].count(CheckpointConflictError) == 2
    (winner,) = [name for name, error in zip("xyz", ended, strict=True) if error is None]
    assert heads(path_of(saver)) == {"t": winner}
    assert [each.checkpoint["id"] for each in saver.list(address("t", ""))] == [winner, "0"]


@both
def test_when_the_disk_is_full_those_for_which_there_is_room_are_stored(saver, is_async):
    database = saver._database
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count={pages + 40}").fetchone()
    sizes = [200, 200, 900_000, 200, 900_000, 200, 200]
    commits = [first_commit(saver, str(number), a=os.urandom(size)) for number, size in enumerate(sizes)]
    ended = write_together(saver, commits, is_async)
    stored = {str(number) for number, size in enumerate(sizes) if size == 200}
    assert set(heads(path_of(saver))) == stored
    for number, error in enumerate(ended):
        assert (error is None) == (str(number) in stored)
        assert error is None or (isinstance(error, StorageError) and "full" in str(error))
    database.execute("PRAGMA max_page_count=100000").fetchone()
    assert write_together(saver, [first_commit(saver, "2"), first_commit(saver, "4")], is_async) == [None, None]


@both
def test_a_transaction_that_could_not_be_committed_is_made_again_one_by_one(saver, is_async, monkeypatch):
    runs = [Commits(lambda _, commit: saver.commit(commit), saver, str(number)) for number in range(5)]
    for run in runs:
        run.step("0", a=1)
    commits = [run.made("1", "head", (), {"a": 2})[0] for run in runs]
    fails = [StorageError("the group"), None, None, StorageError("this one"), None, None]
    asked = []

    def check_files():
        asked.append("")
        error = fails[len(asked) - 1]
        if error is not None:
            raise error

    monkeypatch.setattr(saver._database, "check_files", check_files)
    ended = write_together(saver, commits, is_async)
    assert [str(each) for each in ended if each] == ["this one"]
    failed = next(number for number, error in enumerate(ended) if error)
    assert heads(path_of(saver)) == {str(number): "0" if number == failed else "1" for number in range(5)}
    for number in range(5):
        assert len([*saver.list(address(str(number), ""))]) == (1 if number == failed else 2)


@both
def test_no_write_returns_before_the_transaction_is_committed(saver, is_async, monkeypatch):
    seen = []
    answer = module.answer

    def watched(made):
        seen.append(heads(path_of(saver)))
        answer(made)

    monkeypatch.setattr(module, "answer", watched)
    commits = [first_commit(saver, str(number)) for number in range(MANY)]
    assert write_together(saver, commits, is_async) == [None] * MANY
    assert seen == [{str(number): "0" for number in range(MANY)}]


async def test_no_task_continues_before_the_transaction_is_committed(saver, monkeypatch):
    reached, release = threading.Event(), threading.Event()

    def check_files():  # just before COMMIT
        reached.set()
        assert release.wait(WAIT)

    monkeypatch.setattr(saver._database, "check_files", check_files)
    commits = [first_commit(saver, str(number)) for number in range(MANY)]
    tasks = [asyncio.ensure_future(saver.acommit([commit])) for commit in commits]
    while not reached.is_set():
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    assert heads(path_of(saver)) == {}
    release.set()
    await asyncio.gather(*tasks)


@both
def test_all_waiting_writes_fail_when_another_process_locks_the_file(tmp_path, is_async):
    with SqliteSaver(str(tmp_path / "db"), timeout=0.05) as saver:
        with closing(sqlite3.connect(tmp_path / "db", isolation_level=None)) as other, other:
            other.execute("BEGIN IMMEDIATE")
            ended = write_together(saver, [first_commit(saver, str(number)) for number in range(4)], is_async)
            other.execute("ROLLBACK")
        other.close()
        assert all(isinstance(error, StorageError) and "locked" in str(error) for error in ended)
        assert len({id(error) for error in ended}) == 4  # each has a traceback of its own
        again = [first_commit(saver, str(number)) for number in range(4)]
        assert write_together(saver, again, is_async) == [None] * 4


async def test_a_guarded_record_is_checked_again_when_its_group_was_undone(saver, monkeypatch):
    run = Commits(lambda _, commit: saver.commit(commit), saver, "t")
    run.step("0", a=1)
    writes = [TaskWrites("task", "", [("a", saver.serde.dumps(1))])]
    failing = [True]

    def check_files():
        if failing.pop() if failing else False:
            # Another process records as well, before the group is made again one by one.
            saver._database.grouped = False
            saver._database.roll_back()
            saver._database.grouped = True
            with closing(sqlite3.connect(path_of(saver))) as other, other:
                other.execute("UPDATE spaces SET stamp = 1")
            other.close()
            raise StorageError("the group")

    async def record():
        await saver.arecord(("t", ""), Expected("0", 0), {"0": writes})

    monkeypatch.setattr(saver._database, "check_files", check_files)

    ended = await together(saver, [record, lambda: saver.acommit([first_commit(saver, "other")])])
    assert isinstance(ended[0], CheckpointConflictError)
    assert ended[1] is None


async def test_what_a_subclass_does_after_its_commit_finds_it_on_disk(tmp_path):
    class Telling(SqliteSaver):
        def commit(self, commits):
            commit = commits[-1]
            super().commit(commits)
            found.append(commit.thread_id in heads(tmp_path / "db"))

    found = []
    async with Telling.from_conn_string(str(tmp_path / "db")) as saver:
        await asyncio.gather(*(saver.acommit([first_commit(saver, str(number))]) for number in range(MANY)))
    assert found == [True] * MANY


async def test_a_cancelled_commit_that_has_not_started_is_dropped(saver):
    with saver._lock:
        tasks = [asyncio.ensure_future(saver.acommit([first_commit(saver, str(number))])) for number in range(3)]
        while len(saver._group.waiting) < 3:
            await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.sleep(0)
    await asyncio.wait(tasks)
    assert set(heads(path_of(saver))) == {"0", "2"}


def test_commits_that_wait_for_a_closed_saver_fail(tmp_path):
    saver = SqliteSaver(str(tmp_path / "db"))

    async def go():
        with saver._lock:
            tasks = [asyncio.ensure_future(saver.acommit([first_commit(saver, str(number))])) for number in range(3)]
            while len(saver._group.waiting) < 3:
                await asyncio.sleep(0)
            saver.close()
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(error, StorageError) and "closed" in str(error) for error in asyncio.run(go()))


async def test_many_live_runs_are_stored_in_few_transactions_and_few_hops_to_a_thread(saver, monkeypatch):
    steps, runs = 10, 100

    async def tick(state):
        return {"n": state["n"] + 1}

    app = (
        chain_of(Count, tick=tick)
        .add_conditional_edges("tick", lambda state: "tick" if state["n"] < steps else END, ["tick", END])
        .compile(saver)
    )
    hops = []  # each wakes a thread, and hands the interpreter lock to another core
    submit = module.CallThreads.submit
    monkeypatch.setattr(module.CallThreads, "submit", lambda self, job: hops.append(job) or submit(self, job))
    trace = Trace(saver)
    config = lambda number: thread_config(str(number))  # noqa: E731
    ended = await asyncio.gather(*(app.ainvoke({"n": 0}, config(number)) for number in range(runs)))
    assert ended == [{"n": steps}] * runs
    stored = runs * (steps + 2)  # the input, START, the steps
    assert trace.counts["COMMIT"] <= stored / 20 + runs  # runs read before they begin, one transaction each
    assert len(hops) <= stored / 20 + runs
    assert len(heads(path_of(saver))) == runs


# -- a store on the file of a saver ------------------------------------------------------------------


@pytest.fixture
def store(saver):
    with SqliteStore.from_conn_string(path_of(saver), saver=saver) as opened:
        yield opened


def test_what_a_store_writes_is_one_transaction_with_commits(saver, store):
    trace = Trace(saver)
    writes = []
    for number in range(MANY):
        writes.append(lambda n=number: saver.acommit([first_commit(saver, str(n))]))  # type: ignore[misc]
        writes.append(lambda n=number: store.aput(("a",), str(n), {"n": n}))  # type: ignore[misc]
    assert asyncio.run(together(saver, writes)) == [None] * 2 * MANY
    assert (trace.counts["BEGIN"], trace.counts["COMMIT"], trace.counts["SAVEPOINT"]) == (1, 1, 2 * MANY)
    assert len(heads(path_of(saver))) == MANY
    assert {item.value["n"] for item in store.search(("a",), limit=MANY)} == {*range(MANY)}


def test_a_store_alone_writes_without_a_savepoint(saver, store):
    trace = Trace(saver)
    write = lambda: store.aput(("a",), "1", {"n": 1})  # noqa: E731
    assert asyncio.run(together(saver, [write])) == [None]
    assert (trace.counts["BEGIN"], trace.counts["COMMIT"]) == (1, 1) and "SAVEPOINT" not in trace.counts


def test_a_refused_batch_of_a_store_fails_no_other(saver, store):
    stale = [UnchangedOp(("a",), "1", {"n": 0}), PutOp(("a",), "1", {"n": 2}), PutOp(("a",), "2", {"n": 2})]
    writes = [
        lambda: store.aput(("a",), "1", {"n": 1}),
        lambda: store.abatch(stale),
        lambda: saver.acommit([first_commit(saver, "t")]),
    ]
    ended = asyncio.run(together(saver, writes))
    assert ended[0] is ended[2] is None and isinstance(ended[1], ItemChangedError)
    assert heads(path_of(saver)) == {"t": "0"}
    assert [item.value for item in store.search(("a",))] == [{"n": 1}]


async def test_a_batch_that_reads_and_writes_reads_first(store):
    await store.aput(("a",), "1", {"n": 1})
    _, found = await store.abatch([PutOp(("a",), "1", {"n": 2}), GetOp(("a",), "1")])
    assert found.value == {"n": 1}
    assert store.get(("a",), "1").value == {"n": 2}  # type: ignore[union-attr]


def test_what_a_store_wrote_is_made_again_if_its_group_is_undone(saver, store):
    undone = saver._database.group
    tries = []

    @contextmanager
    def undo_once():
        with undone():
            yield
            tries.append(1)
            if len(tries) == 1:
                raise StorageError("it was undone")

    saver._group._group = undo_once
    writes = [
        lambda: store.aput(("a",), "1", {"n": 1}),
        lambda: saver.acommit([first_commit(saver, "t")]),
    ]
    assert asyncio.run(together(saver, writes)) == [None, None]
    assert heads(path_of(saver)) == {"t": "0"}
    assert [item.value for item in store.search(("a",))] == [{"n": 1}]


def test_the_saver_of_a_store_must_have_its_file(saver, tmp_path):
    for other in (tmp_path / "other", ":memory:"):
        with pytest.raises(ValueError, match="saver must be on the same file as the store"):
            SqliteStore(other, saver=saver)
