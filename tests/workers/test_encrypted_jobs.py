"""Encrypted jobs: the data of a job can be decrypted only for its graph, its thread and its run id."""

import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from itertools import permutations
from pathlib import Path

import psycopg
import pytest
from kit import fleet
from kit.fleet import counting, looped, until, working

from stategraph.checkpoint import DamagedError
from stategraph.workers import Queue

Encryption = pytest.importorskip("stategraph.checkpoint.encryption").Encryption
pytest.importorskip("cryptography")

KEY, OLD = bytes(range(32)), bytes(32)
JOBS = [("pays", "ann", "r"), ("pays", "bob", "r"), ("pays", "ann", "s"), ("asks", "cy", "r")]
"""Graph, thread and run id: each pair differs in one of them, or in more."""


def app(name):
    """A graph that says whose approval it has got, and whose order it is."""
    return looped(lambda state, runtime: {"log": [runtime.execution_info.thread_id]}, name)


@contextmanager
def opened(url, name, *keys):
    with Queue.from_conn_string(url, name, integrity=Encryption(*(keys or (KEY,)))) as queue:
        yield queue


def submit_all(url):
    for graph, thread, run in JOBS:
        with opened(url, graph) as queue:
            queue.submit(thread, {"log": [f"{graph} {thread} {run}"], "left": 2}, run_id=run)


@contextmanager
def both(url):
    with ExitStack() as stack:
        for name in ("pays", "asks"):
            stack.enter_context(working(app(name), url, integrity=Encryption(KEY)))
        yield


def move(url, column, source, target):
    """Put what one job has in a column in place of what the other has."""
    with psycopg.connect(url, autocommit=True) as admin:
        where = "graph = %s AND thread_id = %s AND run_id = %s"
        admin.execute(
            f"UPDATE stategraph_jobs SET {column} = (SELECT {column} FROM stategraph_jobs WHERE {where}) WHERE {where}",  # type: ignore[arg-type]
            [*(each.encode() for each in source), *(each.encode() for each in target)],
        )


@pytest.mark.trial
@pytest.mark.parametrize(("source", "target"), [*permutations(JOBS, 2)])
def test_an_input_that_was_moved_to_another_job_does_not_run_there(postgres, source, target):
    submit_all(postgres)
    move(postgres, "task", source, target)
    with both(postgres), opened(postgres, target[0]) as queue:
        found = queue.result(target[1], run_id=target[2], wait=30)
        assert found.status == "failed"
        assert "it was altered or moved" in str(found.error)
        for job in JOBS:
            if job != target:
                with opened(postgres, job[0]) as other:
                    log = other.result(job[1], run_id=job[2], wait=30).unwrap()["log"]
                    assert " ".join(job) in log


@pytest.mark.trial
@pytest.mark.parametrize(("source", "target"), [*permutations(JOBS, 2)])
def test_an_outcome_that_was_moved_to_another_job_is_refused(postgres, source, target):
    submit_all(postgres)
    with both(postgres):
        for graph, thread, run in JOBS:
            with opened(postgres, graph) as queue:
                assert queue.result(thread, run_id=run, wait=30).status == "done"
    move(postgres, "outcome", source, target)
    with opened(postgres, target[0]) as queue, pytest.raises(DamagedError, match=f"the job '{target[2]}' of thread '{target[1]}'"):
        queue.result(target[1], run_id=target[2])


@pytest.mark.parametrize("column", ["graph", "thread_id", "run_id"])
def test_a_job_that_was_renamed_does_not_run(postgres, column):
    with opened(postgres, "pays") as queue:
        queue.submit("ann", {"log": ["approved"], "left": 2}, run_id="r")
    new = {"graph": "asks", "thread_id": "bob", "run_id": "s"}[column]
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(f"UPDATE stategraph_jobs SET {column} = %s", [new.encode()])  # type: ignore[arg-type]
    with both(postgres), opened(postgres, "pays") as queue:
        until(lambda: {*queue.counts()["asks" if column == "graph" else "pays"]} == {"failed"})


def test_an_input_and_an_outcome_cannot_be_swapped(postgres):
    with working(app("pays"), postgres, integrity=Encryption(KEY)), opened(postgres, "pays") as queue:
        queue.submit("ann", {"log": [], "left": 2}, run_id="r")
        assert queue.result("ann", wait=30).status == "done"
        with psycopg.connect(postgres, autocommit=True) as admin:
            admin.execute("UPDATE stategraph_jobs SET outcome = task")
        with pytest.raises(DamagedError):
            queue.result("ann")


def test_keys_are_rotated_under_load(postgres):
    """Workers that know both are there first; then who submits takes the new one; then the old workers go."""
    app_ = app("pays")
    with opened(postgres, "pays", OLD) as before, opened(postgres, "pays", KEY, OLD) as after:
        before.submit_many([(f"t{number}", {"log": [], "left": 3}) for number in range(8)])
        with working(app_, postgres, integrity=Encryption(OLD)):
            until(lambda: before.counts()["pays"].get("done"))
        with working(app_, postgres, integrity=Encryption(KEY, OLD)):
            after.submit_many([(f"t{number}", {"log": ["again"], "left": 3}) for number in range(12)])
            found = [after.result(f"t{number}", wait=30).unwrap()["log"] for number in range(12)]
        assert [("again" in log, len(log) >= 3) for log in found] == [(True, True)] * 12


@pytest.mark.trial
def test_the_worker_command_takes_keys_from_a_file_and_from_the_environment(postgres, tmp_path, monkeypatch):
    (tmp_path / "keys").write_text(KEY.hex())
    graph = f"{Path(fleet.__file__)}:counting"
    command = [sys.executable, "-m", "stategraph", "work", "--db", postgres, graph, "--poll", "0.05"]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    with opened(postgres, "counting", KEY) as queue:
        for number, (more, environment) in enumerate(
            [(["--keys", str(tmp_path / "keys")], {}), ([], {"STATEGRAPH_KEYS": f"{KEY.hex()} {OLD.hex()}"})]
        ):
            queue.submit(f"t{number}", {"log": [], "left": 2})
            with subprocess.Popen([*command, *more], cwd=tmp_path, env={**os.environ, **environment}) as process:
                assert queue.result(f"t{number}", wait=60).unwrap()["log"] == [0, 1]
                process.terminate()
    wrong = subprocess.run(command, cwd=tmp_path, env={**os.environ, "STATEGRAPH_KEYS": "abc"}, capture_output=True, text=True)
    assert wrong.returncode == 2 and "key 1 must be 16, 24 or 32 bytes" in wrong.stderr and "abc" not in wrong.stderr


@pytest.mark.parametrize("keys", [None, Encryption(OLD)])
def test_a_worker_without_the_key_leaves_the_job_to_others(postgres, caplog, keys):
    with opened(postgres, "counting") as queue:
        queue.submit("t", {"log": ["secret"], "left": 2})
        queue.submit("t", {"log": ["secret"], "left": 2}, run_id="next")
        with working(counting, postgres, integrity=keys):
            until(lambda: "left to other workers" in caplog.text)
            queue.submit("u", {"log": ["secret"], "left": 2})
            until(lambda: caplog.text.count("left to other workers") == 2)
            with working(counting, postgres, integrity=Encryption(KEY)):
                found = [queue.result("t", run_id="next", wait=30), queue.result("u", wait=30)]
        assert [each.status for each in found] == ["done", "done"]
        assert found[1].attempts == 2 and caplog.text.count("left to other workers") <= 3
    assert "secret" not in caplog.text


def test_a_worker_with_other_keys_than_the_thread_leaves_the_job_to_others(postgres, caplog):
    """Keys that are rotated in the wrong order: workers write with the new one while others know only the old one."""
    with opened(postgres, "pays", OLD) as queue:
        with working(app("pays"), postgres, integrity=Encryption(KEY, OLD)):
            queue.submit("t", {"log": [], "left": 2}, run_id="first")
            until(lambda: queue.counts()["pays"].get("done"))
        queue.submit("t", {"log": ["more"], "left": 4}, run_id="second")
        with working(app("pays"), postgres, integrity=Encryption(OLD)):
            until(lambda: "left to other workers" in caplog.text)
        with working(app("pays"), postgres, integrity=Encryption(KEY, OLD)):
            until(lambda: queue.counts()["pays"].get("done") == 2)
