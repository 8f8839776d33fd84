"""Graphs for tests of schedule="ready", and drivers in which a test says which task ends next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from threading import Thread
from typing import Any

from kit.graphs import Log as State
from kit.graphs import read_words
from stategraph import END, START, InMemorySaver, Send, StateGraph, interrupt
from stategraph.pregel.drivers.aio import AsyncDriver
from stategraph.pregel.drivers.awaits import arun_task
from stategraph.pregel.drivers.batch import Batch
from stategraph.pregel.drivers.threads import ThreadDriver
from stategraph.pregel.drivers.waits import run_task
from stategraph.pregel.task.task import Task

Rank = Callable[[Task], Any]
"""Of the tasks at work the one with the lowest rank ends next."""


class ChosenBatch(Batch[Task]):
    """Runs one task per wait, the one that the test has chosen; the others seem to be at work."""

    rank: Rank

    def call_worker(self):
        pass

    def wake(self):
        pass

    def cancel(self):
        self._waiting.clear()  # type: ignore[attr-defined]
        self.open = len(self.ended)

    def _choose(self):
        chosen = min(self._waiting, key=self.rank)  # type: ignore[call-overload]
        self._waiting.remove(chosen)
        return chosen

    def _end(self, task: Task):
        self._done(task, None)
        self.ended.append(task)

    def wait(self, seconds=None):
        task = self._choose()
        copy_context().run(run_task, task)
        self._end(task)

    def join(self):
        pass


class JointBatch(ChosenBatch):
    """Runs all tasks that are at work: they end together, as in a superstep."""

    def wait(self, seconds=None):
        while self._waiting:  # type: ignore[attr-defined]
            super().wait()


class ChosenAsyncBatch(ChosenBatch):
    def wait(self, seconds=None):  # type: ignore[override]
        return self._wait()

    async def _wait(self):
        task = self._choose()
        await asyncio.create_task(arun_task(task))
        self._end(task)

    async def join(self):
        pass


@contextmanager
def ends_by(rank: Rank):
    """Inside, tasks end one by one, in the order of their ranks."""
    with _open_batches(ThreadDriver, ChosenBatch, rank), _open_batches(AsyncDriver, ChosenAsyncBatch, rank):
        yield


@contextmanager
def _open_batches(driver_class, batch_class: type[ChosenBatch], rank: Rank):
    """Inside, calls with schedule="ready" have batches of this class."""
    before = driver_class.make_batch

    def make(driver, tasks):
        if not driver.run.program.starts_ready:
            return before(driver, tasks)
        batch = batch_class((), 10**6, driver.end)
        batch.rank = rank
        return batch

    driver_class.make_batch = make
    try:
        yield
    finally:
        driver_class.make_batch = before


@contextmanager
def ends_together():
    """Inside, all tasks that are at work end together, in calls that are not async."""
    with _open_batches(ThreadDriver, JointBatch, lambda task: task.path):
        yield


def by_order(*names):
    """Nodes end in this order where they have the choice."""
    return lambda task: names.index(task.name) if task.name in names else len(names)


def ends_in(*names):
    """Inside, nodes end in this order where they have the choice."""
    return ends_by(by_order(*names))


def ready(graph, routes=None, nodes=None, deferred="", saver=None, **options):
    """Compile a builder, or a graph of words as `build` reads it, with schedule="ready"."""
    builder = build(graph, routes, nodes, deferred) if isinstance(graph, str) else graph
    return builder.compile(InMemorySaver() if saver is None else saver, schedule="ready", **options)


def build(graph, routes=None, nodes=None, deferred=""):
    """A graph of words, see `read_words`. The function of a router is in `routes`; without one it goes to all. `deferred` are
    letters. Each node writes its name down, unless `nodes` has a function."""
    builder = StateGraph(State)
    edges, said = read_words(graph)
    assert not said["handled"], f"a handler has no function here: {graph}"
    for name in sorted(said["names"]):
        body, late = (nodes or {}).get(name) or writer(name), name in deferred or name in said["deferred"]
        builder.add_node(name, body, defer=late, destinations=said["destinations"].get(name))
    for edge in edges:
        builder.add_edge(*edge)
    for source, targets in said["routers"].items():
        route = (routes or {}).get("S" if source == START else source) or (
            lambda _, targets=targets: [end for end in targets if end != END]
        )
        builder.add_conditional_edges(source, route, targets)
    return builder


def beside_a_chain(saver, node=None, schedule="ready", **options):
    """`long` beside a > b > c, and d behind both."""
    return build("S>a>b>c>d S>long>d", nodes={"long": node}).compile(saver, schedule=schedule, **options)


def ask(state):
    """A node that asks "?" and logs the answer."""
    return {"log": [interrupt("?")]}


def writer(name):
    def write(state):
        value = state.get("n", "") if isinstance(state, dict) else state
        return {"log": [f"{name}{value}"]}

    write.__name__ = name
    return write


def times(count, *ends, node):
    """A router that leads to these ends until its node has run so often."""
    return lambda state: list(ends) if state["log"].count(node) < count else END


def sends(node, *values):
    return lambda _: [Send(node, {"n": value}) for value in values]


def elsewhere(function):
    """Call it as another process would: outside of the task that runs here."""
    thread = Thread(target=function)
    thread.start()
    thread.join()


def show(history: Sequence[Any]):
    """The steps of a history, newest first, by what each has added to the log."""
    found, before = [], 0
    for snapshot in reversed(history):
        log = snapshot.values.get("log", [])
        if len(log) > before:
            found.append(" ".join(each if isinstance(each, str) else each[1] for each in log[before:]))
        before = len(log)
    return " / ".join(found)
