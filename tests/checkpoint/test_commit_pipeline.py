"""Commits of coroutines that wait together reach Postgres as one transaction in one round trip. One that fails, or waits
for a lock, holds up nobody."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import psycopg
import pytest
from kit.fleet import until
from kit.graphs import Count, chain_of, thread_config

from stategraph import END
from stategraph.checkpoint.base import CheckpointConflictError, Commit
from stategraph.checkpoint.errors import StorageError, UnserializableError
from stategraph.checkpoint.postgres import LARGE, PostgresSaver
from stategraph.checkpoint.records import address
from stategraph.checkpoint.retention import Retention
from stategraph.checkpoint.sql.postgres_server import ConnectionLostError
from stategraph.checkpoint.sql.postgres_wire import LateError, PreparedStatements
from stategraph.testing import Commits

WAIT = 20
MANY = 12


@pytest.fixture
def saver(postgres):
    with PostgresSaver.from_conn_string(postgres) as opened:
        warm_up(opened)
        yield opened


def warm_up(saver):
    """Commit often enough that its statements are prepared. A pool on a busy machine may have opened a second connection
    at the beginning, and uses them by turns."""
    runs = start(saver, "warm", 1)
    pool = saver._server.pool
    until(lambda: pool.get_stats()["pool_available"] == pool.get_stats()["pool_size"])
    for step in range(1, 4 * pool.get_stats()["pool_size"] + 1):
        assert go_on(saver, runs, str(step)) == [None]


def start(saver, name, count=MANY):
    """Runs that have stored a checkpoint."""
    runs = [Commits(lambda _, commit: saver.commit(commit), saver, f"{name} {number}") for number in range(count)]
    for run in runs:
        run.step("0", a=1)
    return runs


def advance(run: Commits, id="1", **values):
    return run.made(id, "head", (), values or {"a": 2})[0]


def go_on(saver, runs, id, **values):
    """Let these runs store a further checkpoint together."""
    made = [run.made(id, "head", (), values or {"a": 2}) for run in runs]
    ended = store_together(saver, [commit for commit, _ in made])
    for run, (commit, whole) in zip(runs, made, strict=True):
        run.expected[id], run.head, run.saver_state = whole, id, commit.saver_state
    return ended


def store_together(saver, commits):
    """Commit as many coroutines of one turn of the event loop; how each ended."""

    async def go():
        writes = (saver.acommit([commit]) for commit in commits)
        return await asyncio.wait_for(asyncio.gather(*writes, return_exceptions=True), WAIT)

    return asyncio.run(go())


def heads(saver):
    """What is stored, seen by another connection; without what warmed up."""
    with psycopg.connect(saver._server.address()[0]) as other:
        rows = other.execute("SELECT thread_id, head_id FROM stategraph_spaces").fetchall()
    found = {thread.decode(): head.decode() for thread, head in rows}
    return {thread: head for thread, head in found.items() if not thread.startswith("warm")}


class Pipelines:
    """Counts the pipelines that are sent, and the statements of each."""

    def __init__(self, patch):
        self.sizes = []
        real = PreparedStatements.rows_together

        def rows_together(prepared, calls):
            self.sizes.append(len(calls))
            return real(prepared, calls)

        patch.setattr(PreparedStatements, "rows_together", rows_together)


def test_commits_that_wait_together_are_one_round_trip(saver, monkeypatch):
    pipelines = Pipelines(monkeypatch)
    runs = start(saver, "t")
    assert store_together(saver, [advance(run) for run in runs]) == [None] * MANY
    assert pipelines.sizes == [MANY + 1]  # and how long a lock is waited for
    assert heads(saver) == {run.thread: "1" for run in runs}


def test_a_large_one_is_sent_by_itself(saver, monkeypatch):
    pipelines = Pipelines(monkeypatch)
    runs = start(saver, "t")
    commits = [advance(runs[0], a=os.urandom(LARGE)), *(advance(run) for run in runs[1:])]
    assert store_together(saver, commits) == [None] * MANY
    assert pipelines.sizes == [MANY - 1 + 1]
    assert heads(saver) == {run.thread: "1" for run in runs}


def test_how_long_a_lock_is_waited_for_is_of_the_transaction_alone(saver):
    assert store_together(saver, [advance(run) for run in start(saver, "t")]) == [None] * MANY
    with saver._server.statements() as wire:
        assert wire.rows("SELECT current_setting('lock_timeout')") == [("0",)]


def test_it_is_one_transaction(saver):
    runs = start(saver, "t")
    store_together(saver, [advance(run) for run in runs])
    with psycopg.connect(saver._server.address()[0]) as other:
        last = other.execute("SELECT count(DISTINCT xmin::text) FROM stategraph_spaces WHERE head_id = '1'").fetchone()
    assert last == (1,)


def test_runs_whose_commits_were_pipelined_continue(saver):
    runs = start(saver, "t")
    for step in range(1, 5):
        assert go_on(saver, runs, str(step), a=["long " * 100] * step) == [None] * MANY
    for run in runs:
        found = saver.get(address(run.thread, ""))
        assert found is not None and found["channel_values"]["a"] == ["long " * 100] * 4
        assert len([*saver.list(address(run.thread, ""))]) == 5


def test_a_failing_commit_fails_no_other(saver):
    runs = start(saver, "t")
    overtaken, bad, *_ = runs
    stale = advance(overtaken, "stale")
    overtaken.step("other", a=3)
    wrong = advance(bad)
    wrong.metadata["what"] = object()
    ended = store_together(saver, [stale, wrong, *(advance(run) for run in runs[2:])])
    assert isinstance(ended[0], CheckpointConflictError)
    assert isinstance(ended[1], UnserializableError)
    assert ended[2:] == [None] * (MANY - 2)
    assert heads(saver) == {overtaken.thread: "other", bad.thread: "0", **{run.thread: "1" for run in runs[2:]}}


def test_a_database_error_in_one_statement_fails_no_other_commit(saver):
    runs = start(saver, "t")
    twice = runs[3]
    twice.step("1", a=5)
    twice.step("2", a=6)
    again = advance(twice, "1")  # there is one of this id
    others = [run for run in runs if run is not twice]
    ended = store_together(saver, [*(advance(run) for run in others[:5]), again, *(advance(run) for run in others[5:])])
    assert isinstance(ended.pop(5), StorageError)
    assert ended == [None] * (MANY - 1)
    assert heads(saver) == {twice.thread: "2", **{run.thread: "1" for run in others}}


def test_two_of_one_thread_one_wins(saver):
    (run,) = start(saver, "t", 1)
    rivals = [advance(run, name, a=name) for name in "xyz"]
    for rival in rivals:  # each of a run of its own
        rival.saver_state = saver.get_tuple(address(run.thread, "")).saver_state  # type: ignore[union-attr]
    ended = store_together(saver, rivals)
    assert [type(each) for each in ended].count(CheckpointConflictError) == 2
    (winner,) = [name for name, error in zip("xyz", ended, strict=True) if error is None]
    assert heads(saver) == {run.thread: winner}


def test_a_lock_of_another_session_blocks_only_the_commit_that_needs_it(saver):
    runs = start(saver, "t")

    async def go():
        writes = {run.thread: asyncio.ensure_future(saver.acommit([advance(run)])) for run in runs}
        locked = writes.pop(runs[0].thread)
        await asyncio.wait_for(asyncio.gather(*writes.values()), WAIT)
        assert not locked.done()
        other.rollback()
        await asyncio.wait_for(locked, WAIT)

    with psycopg.connect(saver._server.address()[0]) as other:
        other.execute("SELECT 1 FROM stategraph_spaces WHERE thread_id = %s FOR UPDATE", (runs[0].thread.encode(),))
        asyncio.run(go())
    assert heads(saver) == {run.thread: "1" for run in runs}


@pytest.mark.parametrize("arrived", [False, True], ids=["lost on the way there", "lost on the way back"])
def test_when_the_connection_breaks_each_is_stored_once(saver, monkeypatch, arrived):
    runs = start(saver, "t")
    real = PreparedStatements.rows_together

    def rows_together(prepared, calls):
        monkeypatch.setattr(PreparedStatements, "rows_together", real)
        if arrived:
            real(prepared, calls)
        prepared._connection.close()
        raise psycopg.OperationalError("the connection was cut")

    monkeypatch.setattr(PreparedStatements, "rows_together", rows_together)
    assert store_together(saver, [advance(run) for run in runs]) == [None] * MANY
    assert heads(saver) == {run.thread: "1" for run in runs}
    assert all(len([*saver.list(address(run.thread, ""))]) == 2 for run in runs)


def test_when_the_server_does_not_answer_all_waiting_commits_fail(saver, monkeypatch):
    def rows_together(prepared, calls):
        raise LateError("the server did not answer in time")

    runs = start(saver, "t")
    with monkeypatch.context() as patch:
        patch.setattr(PreparedStatements, "rows_together", rows_together)
        ended = store_together(saver, [advance(run) for run in runs])
    assert all(isinstance(error, ConnectionLostError) and error.late for error in ended)
    assert len({id(error) for error in ended}) == MANY  # each has a traceback of its own


async def test_no_commit_returns_before_the_server_has_committed(saver, monkeypatch):
    reached, release = threading.Event(), threading.Event()
    real = PreparedStatements.rows_together

    def rows_together(prepared, calls):
        reached.set()
        assert release.wait(WAIT)
        return real(prepared, calls)

    monkeypatch.setattr(PreparedStatements, "rows_together", rows_together)
    runs = start(saver, "t")
    tasks = [asyncio.ensure_future(saver.acommit([advance(run)])) for run in runs]
    while not reached.is_set():
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    assert heads(saver) == {run.thread: "0" for run in runs}
    release.set()
    await asyncio.wait_for(asyncio.gather(*tasks), WAIT)
    assert heads(saver) == {run.thread: "1" for run in runs}


def test_a_cancelled_commit_that_has_not_started_is_dropped(saver):
    runs = start(saver, "t", 3)

    async def go():
        tasks = [asyncio.ensure_future(saver.acommit([advance(run)])) for run in runs]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.wait(tasks)

    saver._pipeline._started = True  # it is busy
    loop = asyncio.new_event_loop()

    async def release():
        running = asyncio.ensure_future(go())
        for _ in range(5):
            await asyncio.sleep(0)
        saver._pipeline._started = False
        saver._pipeline._start()
        await asyncio.wait_for(running, WAIT)

    loop.run_until_complete(release())
    loop.close()
    assert heads(saver) == {runs[0].thread: "1", runs[1].thread: "0", runs[2].thread: "1"}


def test_commits_that_wait_for_a_closed_saver_fail(postgres):
    saver = PostgresSaver(postgres)
    warm_up(saver)
    runs = start(saver, "t", 3)

    async def go():
        saver._pipeline._started = True  # it is busy
        tasks = [asyncio.ensure_future(saver.acommit([advance(run)])) for run in runs]
        while len(saver._pipeline.waiting) < 3:
            await asyncio.sleep(0)
        saver.close()
        saver._pipeline._started = False
        saver._pipeline._start()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), WAIT)

    assert all(isinstance(error, StorageError) and "closed" in str(error) for error in asyncio.run(go()))


def test_two_event_loops_at_once(saver):
    here, there = start(saver, "here"), start(saver, "there")
    ended = []
    other = threading.Thread(target=lambda: ended.extend(store_together(saver, [advance(run) for run in there])))
    other.start()
    ended += store_together(saver, [advance(run) for run in here])
    other.join(WAIT)
    assert ended == [None] * 2 * MANY
    assert set(heads(saver).values()) == {"1"}


@pytest.mark.parametrize("method", ["commit", "put"])
def test_what_a_subclass_overrides_is_called(postgres, method):
    called = []

    def override(self, *args, **named):
        called.append(method)
        return getattr(PostgresSaver, method)(self, *args, **named)

    own = type("Own", (PostgresSaver,), {method: override})
    with own.from_conn_string(postgres) as saver:
        runs = start(saver, "t")
        called.clear()
        assert store_together(saver, [advance(run) for run in runs]) == [None] * MANY
    assert called == [method] * MANY


def test_retention_prunes_as_ever(postgres):
    with PostgresSaver.from_conn_string(postgres, retention=Retention(keep_last=3)) as saver:
        app = loop(saver, 150)
        asyncio.run(app.ainvoke({"n": 0}, {"configurable": {"thread_id": "1"}, "recursion_limit": 200}))
        assert len([*saver.list(address("1", ""))]) < 100


def loop(saver: PostgresSaver, steps):
    async def tick(state):
        return {"n": state["n"] + 1}

    return (
        chain_of(Count, tick=tick)
        .add_conditional_edges("tick", lambda state: "tick" if state["n"] < steps else END, ["tick", END])
        .compile(saver)
    )


async def test_many_live_runs_are_stored_in_few_transactions(saver, monkeypatch):
    steps, count = 10, 60
    sizes = []
    real = saver._commit_together

    def store_far_away(commits: list[Commit]):
        time.sleep(0.005)  # else a quick server has answered before a second run wants to commit
        sizes.append(len(commits))
        stored = real(commits)
        assert all(stored)
        return stored

    monkeypatch.setattr(saver._pipeline, "_store", store_far_away)
    config = lambda number: thread_config(str(number))  # noqa: E731
    app = loop(saver, steps)
    ended = await asyncio.gather(*(app.ainvoke({"n": 0}, config(number)) for number in range(count)))
    assert ended == [{"n": steps}] * count
    assert sum(sizes) == count * steps
    assert len(sizes) <= count * steps / 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_the_child_of_a_fork_is_refused(saver):
    (run,) = start(saver, "t", 1)
    commit = advance(run)
    with saver._pipeline._starting:  # as another thread may hold it
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if isinstance(store_together(saver, [commit])[0], StorageError) else 2
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
