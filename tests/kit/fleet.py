"""Workers for tests: graphs that they run, workers on threads, and workers in processes that can be killed.

The graphs are found by `python -m stategraph work tests/kit/fleet.py:counting` too.
"""

from __future__ import annotations

import multiprocessing
import operator
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from functools import cache
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from kit import machines
from kit.graphs import chain_of
from kit.shapes import shaped
from stategraph import END, START, Pregel, StateGraph, interrupt
from stategraph.store.postgres import PostgresStore
from stategraph.testing import Ledger
from stategraph.workers import Queue, Worker
from stategraph.workers.jobs import Job, JobCodec, JobName

NOTES = "STATEGRAPH_TEST_NOTES"
"""Names the file in which nodes note what they do."""

QUICK = {"poll": 0.05}
PLANTED = ExitStack()  # what a worker process has, such as a bug, for as long as it lives
PROCESSES = multiprocessing.get_context("forkserver")


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    left: int
    kills: bool
    exits: str
    pause: float


def note(*words):
    if NOTES in os.environ:
        Ledger(Path(os.environ[NOTES])).note(*words)


def count(state, runtime):
    """One step: has an effect, under its key."""
    number = len(state["log"])
    note(runtime.execution_info.thread_id, number, runtime.idempotency_key)
    if state.get("kills"):
        os.kill(os.getpid(), signal.SIGKILL)
    if "exits" in state and not (left := Path(state["exits"])).exists():
        left.touch()
        os._exit(1)  # once: nothing that Python does at its end is done
    time.sleep(state.get("pause", 0))
    return {"log": [number]}


def looped(node, name="counting"):
    """A graph that runs a node as often as `left` says."""
    return (
        chain_of(State, step=node)
        .add_conditional_edges("step", lambda s: "step" if len(s["log"]) < s["left"] else END, ["step", END])
        .compile(name=name)
    )


counting = looped(count)


def pay(state, runtime):
    """One step: has an effect, once."""
    number, key = len(state["log"]), runtime.idempotency_key

    def have():
        note("had", key, f"effect {number}")
        time.sleep(state.get("pause", 0) * (number % 2))
        return number

    runtime.once("effect", have)
    note("kept", key, f"effect {number}")
    time.sleep(state.get("pause", 0))
    return {"log": [number]}


paying = looped(pay, "paying")


def branch(name):
    """A node of `branches`: notes that it began, has an effect once, and then waits for a file, if the input names
    one."""

    def run(state, runtime):
        key = runtime.idempotency_key
        note(name, "began", key)
        runtime.once("effect", lambda: note(name, "had", key))
        note(name, "kept", key)
        if name in ("b", "long"):
            until(Path(state["exits"]).exists)
        return {"log": [f"{name} saw {len(state['log'])}"]}

    return run


def build_branches():
    """`long` beside a > b, and d behind both, each as soon as its own inputs are there."""
    builder = StateGraph(State)
    for name in ("a", "b", "long", "d"):
        builder.add_node(name, branch(name))
    builder.add_edge(START, "a").add_edge("a", "b").add_edge(START, "long")
    builder.add_edge("b", "d").add_edge("long", "d")
    return builder.compile(name="branches", schedule="ready")


branches = build_branches()


def asks(state):
    """Two questions in one node, and one in another."""
    return {"log": [interrupt("first"), interrupt("second")]}


def asking():
    return chain_of(State, asks=asks, more=lambda state: {"log": [interrupt("third")]}).compile(name="asking")


@contextmanager
def working(graph: Pregel, url, number=1, **options):
    """Workers on threads of this process; stopped in good order."""
    made = [Worker(graph, url, **{**QUICK, **options}) for _ in range(number)]
    failed = []

    def run(worker: Worker):
        try:
            worker.run()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(worker,)) for worker in made]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        for worker in made:
            worker.stop()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a worker does not stop"
    assert not failed, failed


@contextmanager
def queue_at_work(graph, url, *number, **options):
    """The queue of a graph, and workers that take from it."""
    with Queue.from_conn_string(url, graph) as queue, working(graph, url, *number, **options):
        yield queue


def log_of(queue, run_id=None):
    """The log of a thread "t" once its newest run, or this one, has ended."""
    return queue.result("t", run_id=run_id, wait=30).unwrap()["log"]


def serve(url, notes, folder, options, bug, host):
    """What a worker process does: as `python -m stategraph work`, without reading a command line."""
    if host is not None:
        machines.enter(host)
    if bug is not None:
        from faults.planted import planted

        PLANTED.enter_context(planted(bug))
    os.setsid()  # a group, and a folder, of its own: another machine, as far as that goes
    os.environ[NOTES] = notes
    tempfile.tempdir = folder
    os.chdir(folder)
    named = options.pop("graph", "counting")
    if isinstance(named, tuple):
        graph = shaped(*named)
    elif named == "spending":
        from kit.spenders import served

        graph = served.copy({"store": PLANTED.enter_context(PostgresStore.from_conn_string(url))})
    else:
        graph = {"counting": counting, "paying": paying, "branches": branches}[named]
    worker = Worker(graph, url, **{**QUICK, **options})
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run()


@cache
def warm_up():
    """Let worker processes begin with this module loaded. `sys.path` is given by hand, since Python 3.11 forgets it."""
    PROCESSES.set_forkserver_preload([__name__])
    with pytest.MonkeyPatch.context() as patch, machines.outside():
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()
        resource_tracker.ensure_running()


class Fleet:
    """Worker processes. Ended with the `with` block.

    Args:
        folder: where their nodes note what they do, and each has a folder of its own.
        bug: a planted bug, by name.
        options: those of `Worker`; and `graph`, by name, or the arguments of `shaped`.
    """

    def __init__(self, url, folder, bug=None, **options):
        warm_up()
        self._bug = bug
        self._url, self._folder, self._options = url, folder, options
        self.notes = Ledger(folder / "notes")
        self.processes = []
        self.started = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.join()

    def start(self, host: machines.Host | None = None):
        """One more worker, on a machine or here."""
        self.started += 1
        own = self._folder / f"machine-{self.started}"
        own.mkdir()
        options = {"label": f"w{self.started}", **self._options}
        args = (self._url, str(self.notes.path), str(own), options, self._bug, host and host.name)
        process = PROCESSES.Process(target=serve, args=args)
        process.start()
        self.processes.append(process)
        return process

    def kill(self, process):
        """As a loss of power does."""
        process.kill()
        process.join()
        self.processes.remove(process)

    def reap(self):
        """Forget those that died."""
        self.processes = [process for process in self.processes if process.is_alive()]

    def repeats(self):
        """How many effects were had more than once."""
        notes = self.notes.read()
        return len(notes) - len({str(each) for each in notes})


def until(what, seconds=60):
    """What it gives as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.005)
    return found


def all_ended(queue):
    """Whether nothing waits or runs."""
    return not queue.jobs(("waiting", "running"), limit=1)


def judged(queue, workers: Fleet, names, steps=5):
    """Every thread has each step once, and every step one key, however often it was tried."""
    for name in names:
        found = queue.result(name, wait=60)
        assert found.unwrap()["log"] == [*range(steps)], found
    keys = {}
    for thread, number, key in workers.notes.read():
        keys.setdefault((thread, number), set()).add(key)
    assert len(keys) == steps * len(names)
    doubled = {where: tried for where, tried in keys.items() if len(tried) > 1}
    assert not doubled, "an effect under two keys"
    assert len({key for each in keys.values() for key in each}) == len(keys)


def job_of(form: JobCodec, given, attempt=1, **more):
    name = JobName("counting", "t", "r")
    task = form.write("task", name, {"input": given, "config": {}, "context": None})
    return Job(1, attempt, 1, True, name, task, **more)
