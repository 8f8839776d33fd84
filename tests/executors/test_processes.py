"""Our worker processes: a response belongs to its call, whoever else writes; a lost worker is detected at once."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from kit import forking_nodes, hostile_nodes
from kit.forking_nodes import FORKING, PATIENCE, graph_of
from kit.hostile_nodes import HOSTILE

from stategraph.executors import ProcessExecutor
from stategraph.pregel import WorkerLostError


@pytest.fixture(scope="module")
def two():
    with ProcessExecutor(2) as found:
        yield found


@pytest.fixture(scope="module")
def one():
    """All calls go to the same worker, for as long as it lives."""
    with ProcessExecutor(1) as found:
        yield found


def within_patience(work):
    """What a call returns, or raises, that may never do so."""
    found = []

    def run():
        try:
            found.append((work(), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=run, name="stategraph-test", daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert found, "it waits for ever"
    result, error = found[0]
    if error is not None:
        raise error
    return result


def until_gone(pid):
    """Wait for the end of a process that is not our child; its parent may take its time with what is left of it."""
    due = time.monotonic() + PATIENCE
    while is_alive(pid):
        assert time.monotonic() < due, f"process {pid} goes on"
        time.sleep(0.01)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# -- an answer belongs to its call --------------------------------------------------------------------------------


@pytest.mark.parametrize("node", FORKING, ids=lambda node: node.__name__)
def test_each_call_gets_its_own_answer_from_its_worker_though_nodes_fork(drive, one, node):
    app, plain = graph_of(node, executor=one), graph_of(forking_nodes.plain, executor=one)
    pids = {worker.process.pid for worker in one._workers}
    for token in ("one", "two"):
        told = drive.stream(app, {"token": token}, stream_mode=["custom", "updates"])
        assert told[-1][1][node.__name__]["answers"] == [(token, True, *FORKING[node])]
        assert drive.invoke(plain, {"token": token})["answers"] == [(token, True)]
    assert not pids or {worker.process.pid for worker in one._workers} == pids, "the worker is kept"


def test_the_error_of_a_child_is_shown_with_its_last_output(capfd):
    with ProcessExecutor(1) as processes:
        app = graph_of(hostile_nodes.child_speaks_at_last, executor=processes)
        assert app.invoke({"token": "t"})["answers"] == [("t", True, 1)]
    assert capfd.readouterr().err == "last words\n"


def test_a_program_that_a_node_starts_does_not_have_the_pipe(one):
    (found,) = graph_of(hostile_nodes.lists_open_files, executor=one).invoke({"token": "t"})["answers"]
    assert [name for name in found[2] if name.startswith("socket")] == []


# -- what is no answer is noticed ---------------------------------------------------------------------------------


@pytest.mark.trial
@pytest.mark.parametrize("act", HOSTILE, ids=lambda act: act.__name__)
def test_what_is_no_answer_costs_its_call_a_worker_and_no_other_call(drive, two, tmp_path, act):
    app, plain = graph_of(hostile_nodes.hostile, executor=two), graph_of(forking_nodes.plain, executor=two)
    once = {"token": f"{act.__name__} False", "folder": str(tmp_path)}
    assert within_patience(lambda: drive.invoke(app, once))["answers"] == [(once["token"], True)]
    for token in ("one", "two"):
        assert drive.invoke(plain, {"token": token})["answers"] == [(token, True)]


# Each way starts three processes; what one of them costs is tried above, for all ways.
THREE_TIMES = [pytest.param(act, id=act.__name__, marks=[pytest.mark.trial] * (at > 1)) for at, act in enumerate(HOSTILE)]


@pytest.mark.trial
@pytest.mark.parametrize("act", THREE_TIMES)
def test_an_invalid_response_is_an_error_after_three_workers(two, tmp_path, act):
    always = {"token": f"{act.__name__} True", "folder": str(tmp_path)}
    with pytest.raises(WorkerLostError, match=f"'hostile' lost its worker on 2 processes 3 times: {HOSTILE[act]}"):
        within_patience(lambda: graph_of(hostile_nodes.hostile, executor=two).invoke(always))


@pytest.mark.trial
def test_a_worker_that_writes_between_two_calls_is_replaced_and_costs_nothing(one, tmp_path):
    app, plain = graph_of(hostile_nodes.writes_later, executor=one), graph_of(forking_nodes.plain, executor=one)
    app.invoke({"token": "t", "folder": str(tmp_path)})
    (worker,) = one._workers
    assert worker._poll.poll(PATIENCE * 1000), "it has written"
    assert plain.invoke({"token": "next"})["answers"] == [("next", True)]
    assert worker not in one._workers and not is_alive(worker.process.pid)


@pytest.mark.trial
def test_a_worker_that_is_sent_what_is_no_call_says_so_and_is_replaced(capfd):
    one = ProcessExecutor(1)
    plain = graph_of(forking_nodes.plain, executor=one)
    plain.invoke({"token": "one"})
    (worker,) = one._workers
    worker.frames._unsent.append(memoryview(b"x" * 100))
    worker.frames.flush()
    until_gone(worker.process.pid)
    assert worker.explain_end() == "its process was sent something that is not a call"
    assert "a worker process ends because of: its pipe delivered something that is not a frame" in capfd.readouterr().err
    assert plain.invoke({"token": "two"})["answers"] == [("two", True)]
    one.close()


# -- a worker that is lost is noticed -----------------------------------------------------------------------------


@pytest.fixture(params=["pidfd", "thread"])
def sentinel(request, monkeypatch):
    """Not all systems have process file descriptors."""
    if request.param == "thread":
        monkeypatch.delattr(os, "pidfd_open")


@pytest.mark.trial
def test_a_worker_that_dies_is_detected_though_its_child_keeps_the_pipe_open(drive, sentinel, tmp_path):
    with ProcessExecutor(1) as one:
        app = graph_of(forking_nodes.dies_beside_a_child, executor=one)
        found = within_patience(lambda: drive.invoke(app, {"token": "t", "folder": str(tmp_path)}))
        assert found["answers"] == [("t", True)]
        first, second = map(int, (tmp_path / "children-t").read_text().split())
        until_gone(first)
        assert is_alive(second), "its worker lives"
    until_gone(second)


@pytest.mark.trial
def test_a_worker_that_dies_while_it_is_sent_a_large_call_is_noticed(sentinel, tmp_path):
    """It never begins to read, and what holds its pipe does not either."""
    given = {"token": "t", "folder": str(tmp_path)}
    with ProcessExecutor(1) as one:
        app = graph_of(forking_nodes.leaves_a_child_of_c, executor=one)
        app.invoke(given)
        (worker,) = one._workers
        os.kill(worker.process.pid, signal.SIGSTOP)

        def kill_amid():
            while not worker.frames._unsent:
                time.sleep(0.01)
            os.kill(worker.process.pid, signal.SIGKILL)

        thread = threading.Thread(target=kill_amid, name="stategraph-test", daemon=True)
        thread.start()
        large = {**given, "token": "x" * 10_000_000}
        assert within_patience(lambda: app.invoke(large))["answers"][0][0] == large["token"]
        thread.join()


@pytest.mark.trial
def test_an_idle_worker_that_died_costs_no_call_a_try(drive, sentinel):
    with ProcessExecutor(1) as one:
        app = graph_of(forking_nodes.plain, executor=one)
        app.invoke({"token": "one"})
        (worker,) = one._workers
        os.kill(worker.process.pid, signal.SIGKILL)
        until_gone(worker.process.pid)
        assert drive.invoke(app, {"token": "two"})["answers"] == [("two", True)]
        assert worker not in one._workers


def test_what_a_node_has_started_ends_with_its_worker():
    with ProcessExecutor(1) as one:
        (found,) = graph_of(forking_nodes.leaves_a_child, executor=one).invoke({"token": "t"})["answers"]
        assert is_alive(found[2])
    until_gone(found[2])


DRIVER = """
import ctypes, os, signal, sys, threading
from kit import forking_nodes
from stategraph.executors import ProcessExecutor
executor = ProcessExecutor(1)
app = forking_nodes.graph_of(forking_nodes.leaves_a_child, executor=executor)
(found,) = app.invoke({"token": "t"})["answers"]
(worker,) = executor._workers
holds = forking_nodes.fork_in_c()
if holds == 0:
    while True:
        signal.pause()
print(worker.process.pid, found[2], holds, flush=True)
signal.pause()
"""


def test_a_worker_ends_with_its_driver_though_a_child_of_the_driver_keeps_the_pipe_open():
    command = [sys.executable, "-c", DRIVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        worker, child, holds = map(int, driver.stdout.readline().split())
        driver.kill()
    try:
        until_gone(worker)
        until_gone(child)
    finally:
        os.kill(holds, signal.SIGKILL)
