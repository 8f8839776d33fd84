"""A worker that ends leaves nothing behind: however it ends, each of its jobs continues elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from kit import fleet
from kit.fleet import QUICK, State, all_ended, counting, log_of, looped, until, working

from stategraph.workers import Queue, Worker
from stategraph.workers.runner import JobRunner
from stategraph.workers.session import WorkerSession

THREADS = ["t0", "t1", "t2"]


class Stage:
    """A graph whose nodes hold still in the worker that is to end, and pass in the one after it. One thread, "quick",
    passes in both."""

    def __init__(self):
        self.begun = threading.Semaphore(0)
        self.ended, self.release = threading.Event(), threading.Event()
        self.graph = looped(self.step)

    def step(self, state: State, runtime):
        if not self.ended.is_set() and runtime.execution_info.thread_id != "quick":
            self.begun.release()
            assert self.release.wait(60)
        return {"log": [len(state["log"])]}

    @contextmanager
    def failing(self, url):
        """A worker that runs until something ends it; how it ended. The error lives as long as this block, as it does in
        a notebook, with all that its frames hold."""
        failed = []
        worker = Worker(self.graph, url, **QUICK)

        def run():
            try:
                worker.run()
            except BaseException as error:
                failed.append(error)
            self.ended.set()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield failed
        finally:
            self.release.set()
            worker.stop()
            thread.join(60)
            until(lambda: not any(each.name == "stategraph-job" for each in threading.enumerate()))


def fail_once(patch, name, when, error: type[BaseException], armed):
    """The next call of this method of the session fails, before it has done anything or after."""
    real, left = getattr(WorkerSession, name), [1]

    def call(self: WorkerSession, *args):
        fails = bool(left) and armed()
        if fails:
            left.clear()
            if when == "before":
                raise error("planted")
        found = real(self, *args)
        if fails:
            raise error("planted")
        return found

    patch.setattr(WorkerSession, name, call)


@pytest.mark.trial
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["claim", "end", "watch", "find_cancelled", "wait"])
def test_however_a_workers_loop_ends_its_jobs_continue_in_the_next(postgres, name, when, error, monkeypatch):
    stage = Stage()
    with Queue.from_conn_string(postgres, stage.graph) as queue:
        queue.submit_many([(name, {"log": [], "left": 2}) for name in THREADS])
        under_way = threading.Event()
        with pytest.MonkeyPatch.context() as patch:
            fail_once(patch, name, when, error, under_way.is_set)
            with stage.failing(postgres) as failed:
                for _ in THREADS:
                    assert stage.begun.acquire(timeout=60)
                under_way.set()
                queue.submit("quick", {"log": [], "left": 2})
                assert stage.ended.wait(60)
                assert [type(each) for each in failed] == [error]
                with working(stage.graph, postgres):
                    for thread in [*THREADS, "quick"]:
                        assert queue.result(thread, wait=30).unwrap()["log"] == [0, 1]
        assert queue.counts() == {"counting": {"done": 4}}
        assert queue.workers() == []


def test_an_interrupted_connection_is_found_by_others(postgres, monkeypatch):
    """Where the worker could not give its jobs back itself."""
    monkeypatch.setattr(WorkerSession, "_give_back", lambda self: self._connection.execute("no SQL"))
    stage = Stage()
    with Queue.from_conn_string(postgres, stage.graph) as queue, pytest.MonkeyPatch.context() as patch:
        queue.submit_many([(name, {"log": [], "left": 2}) for name in THREADS])
        under_way = threading.Event()
        fail_once(patch, "wait", "before", KeyboardInterrupt, under_way.is_set)
        with stage.failing(postgres):
            for _ in THREADS:
                assert stage.begun.acquire(timeout=60)
            under_way.set()
            queue.submit("quick", {"log": [], "left": 2})
            assert stage.ended.wait(60)
            with working(stage.graph, postgres):
                assert [queue.result(thread, wait=30).status for thread in THREADS] == ["done"] * 3


def test_a_worker_may_run_again_after_it_failed(postgres, monkeypatch):
    worker = Worker(counting, postgres, **QUICK)
    with Queue.from_conn_string(postgres, counting) as queue:
        with pytest.MonkeyPatch.context() as patch:
            fail_once(patch, "claim", "after", RuntimeError, lambda: True)
            queue.submit("t", {"log": [], "left": 2})
            with pytest.raises(RuntimeError, match="planted"):
                worker.run()
        thread = threading.Thread(target=worker.run)
        thread.start()
        assert queue.result("t", wait=30).status == "done"
        worker.stop()
        thread.join(60)
        assert not thread.is_alive()


def test_an_async_run_is_cancelled_when_its_worker_fails(postgres):
    import asyncio

    begun, cancelled = threading.Event(), threading.Event()

    async def step(state: State):
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return {"log": [0]}

    graph = looped(step, "awaited")
    with Queue.from_conn_string(postgres, graph) as queue, pytest.MonkeyPatch.context() as patch:
        fail_once(patch, "wait", "before", RuntimeError, begun.is_set)
        queue.submit("t", {"log": [], "left": 2})
        with pytest.raises(RuntimeError, match="planted"):
            Worker(graph, postgres, **QUICK).run()
        assert cancelled.is_set()
        assert queue.counts() == {"awaited": {"waiting": 1}}
        until(lambda: not any(each.name == "stategraph-job" for each in threading.enumerate()))


PLAIN = "import sys, stategraph.workers as w; from kit import fleet; w.Worker(fleet.counting, sys.argv[1], poll=0.05).run()"
WAYS = {
    "Ctrl-C where nobody handles signals": ([sys.executable, "-c", PLAIN], [signal.SIGINT]),
    "SIGTERM twice": ("work", [signal.SIGTERM, signal.SIGTERM]),
    "SIGINT twice": ("work", [signal.SIGINT, signal.SIGINT]),
    "kill": ("work", [signal.SIGKILL]),
}


TRIALS = [pytest.param(way, marks=pytest.mark.trial) for way in ("SIGTERM twice", "SIGINT twice")]


@pytest.mark.trial
@pytest.mark.parametrize("way", [*TRIALS, *(way for way in WAYS if not way.endswith("twice"))])
def test_however_a_process_ends_its_jobs_continue_elsewhere(postgres, queue, way, tmp_path, monkeypatch):
    words, signals = WAYS[way]
    if words == "work":
        graph = f"{Path(fleet.__file__)}:counting"
        command = [sys.executable, "-m", "stategraph", "work", "--db", postgres, graph, "--poll", "0.05"]
    else:
        command = [*words, postgres]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    queue.submit_many([(name, {"log": [], "left": 2, "pause": 1}) for name in THREADS])
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        until(lambda: queue.counts() == {"counting": {"running": 3}})
        for number in signals:
            process.send_signal(number)
        with working(counting, postgres):
            for thread in THREADS:
                assert queue.result(thread, wait=30).unwrap()["log"] == [0, 1]
        process.kill()


def test_a_job_of_an_unknown_worker_is_requeued(postgres, queue):
    queue.submit("t", {"log": [], "left": 2})
    with psycopg.connect(postgres) as admin:
        admin.execute("UPDATE stategraph_jobs SET state = 'running', worker = 4711, attempt = 1")
    with working(counting, postgres):
        assert log_of(queue) == [0, 1]


def test_a_job_of_a_dead_worker_can_be_cancelled_without_another_worker(postgres, queue):
    queue.submit("t", {"log": [], "left": 2}, run_id="r")
    with psycopg.connect(postgres) as admin:
        admin.execute("UPDATE stategraph_jobs SET state = 'running', worker = 4711, attempt = 1")
    assert queue.cancel("r")
    assert queue.result("t").status == "cancelled"


def test_a_row_with_a_damaged_name_fails_and_stops_nothing(postgres, queue):
    queue.submit_many([("bad thread", {"log": [], "left": 2}), ("bad run", {"log": [], "left": 2})], run_ids=["a", "b"])
    queue.submit_many([(name, {"log": [], "left": 2}) for name in THREADS])
    with psycopg.connect(postgres) as admin:
        admin.execute(r"UPDATE stategraph_jobs SET thread_id = '\xff00'::bytea WHERE run_id = 'a'::bytea")
        admin.execute(r"UPDATE stategraph_jobs SET run_id = '\xc3'::bytea WHERE run_id = 'b'::bytea")
    with working(counting, postgres):
        for thread in THREADS:
            assert queue.result(thread, wait=30).unwrap()["log"] == [0, 1]
        until(lambda: all_ended(queue))
    assert queue.counts() == {"counting": {"failed": 2, "done": 3}}
    assert {(each.thread_id, each.run_id) for each in queue.jobs(["failed"])} == {
        ("\\xff\0", "a"), ("bad run", "\\xc3")
    }  # fmt: skip
    assert "altered, or moved from elsewhere" in str(queue.result("bad run").error)


def test_an_outcome_that_the_database_refuses_fails_its_job_and_no_other(postgres, queue):
    """As one of more than a gigabyte would be."""
    with psycopg.connect(postgres) as admin:
        admin.execute("ALTER TABLE stategraph_jobs ADD CHECK (length(outcome) < 100000)")

    def step(state: State, runtime):
        return {"log": ["x" * 200_000 if runtime.execution_info.thread_id == "t1" else "y"]}

    with working(looped(step), postgres):
        queue.submit_many([(name, {"log": [], "left": 1}) for name in THREADS])
        found = [queue.result(thread, wait=30) for thread in THREADS]
    assert [each.status for each in found] == ["done", "failed", "done"]
    assert "the Postgres database refused" in str(found[1].error)


def test_an_error_that_cannot_be_stored_ends_its_job(postgres, queue):
    class Odd(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    def step(state: State):
        raise Odd

    with working(looped(step), postgres):
        queue.submit("t", {"log": [], "left": 1})
        assert queue.result("t", wait=30).status == "failed"


def test_a_lost_run_does_not_end_the_job_its_worker_claimed_again(postgres, monkeypatch):
    """A server that crashed has lost the claim, since that waits for no disk: the next one has the same number."""
    ended, begun = threading.Semaphore(0), threading.Semaphore(0)
    release = [threading.Event(), threading.Event(), threading.Event()]
    calls, real = [], JobRunner.run

    def run(self: JobRunner, job):
        end = real(self, job)
        ended.release()
        return end

    def step(state: State, runtime):
        if runtime.execution_info.thread_id != "quick":
            calls.append(runtime)
            begun.release()
            assert release[len(calls) - 1].wait(60)
        return {"log": [len(state["log"])]}

    monkeypatch.setattr(JobRunner, "run", run)
    graph = looped(step)
    with Queue.from_conn_string(postgres, graph) as queue:
        queue.submit("t", {"log": [], "left": 1})
        with working(graph, postgres):
            try:
                assert begun.acquire(timeout=60)
                with psycopg.connect(postgres, autocommit=True) as admin:
                    admin.execute("UPDATE stategraph_jobs SET state = 'waiting', worker = NULL, attempt = 0")
                    admin.execute("SELECT pg_terminate_backend(backend::int) FROM stategraph_workers")
                assert begun.acquire(timeout=60), "claimed again"
                release[0].set()
                assert ended.acquire(timeout=60)
                queue.submit("quick", {"log": [], "left": 1})
                assert queue.result("quick", wait=60).status == "done"
                assert queue.result("t", wait=0).status == "running"
            finally:
                for each in release:
                    each.set()
            assert queue.result("t", wait=60).unwrap()["log"] == [0]
    assert len(calls) == 2
