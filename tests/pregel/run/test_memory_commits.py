"""A commit in the memory of a nested graph (`checkpointer=True`) answers for the whole thread: nothing of a call that has
lost the thread to another one is stored in it, and with durability "exit" it is stored with what is around it."""

from __future__ import annotations

import operator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Event
from typing import Annotated, TypedDict

import pytest
from kit import cluster
from kit.drive import each_durability, each_schedule
from kit.graphs import CONFIG, chain_of, thread_config

from stategraph import START, CheckpointConflictError, Send, StateGraph

postgres = cluster.emptied


class Memory(TypedDict, total=False):
    heard: Annotated[list[str], operator.add]
    news: str


class Talk(TypedDict, total=False):
    news: str
    heard: list[str]


def nothing(news):
    """Stands for what a test does before a graph is run."""


def make_app(
    drive, saver, shape, before, schedule="supersteps", **policies
):
    """A node that runs a graph with a memory: one for the thread, one for each key, or one inside another one."""

    def hear(state: Memory):
        return {"heard": [state["news"]]}

    def runs(graph, first):
        def run(state):
            first(state["news"])
            return {"heard": graph.invoke({"news": state["news"]})["heard"]}

        async def arun(state):
            import asyncio

            await asyncio.to_thread(first, state["news"])
            return {"heard": (await graph.ainvoke({"news": state["news"]}))["heard"]}

        return arun if drive.is_async else run

    inner = chain_of(Memory, hear=hear).compile(checkpointer=True, schedule=schedule)
    if shape == "twice":
        inner = chain_of(Talk, inside=runs(inner, nothing)).compile(checkpointer=True, schedule=schedule)
    builder = StateGraph(Talk).add_node("talk", runs(inner, before), **policies)
    if shape == "keyed":
        builder.add_conditional_edges(START, lambda state: [Send("talk", state, key="ann")], ["talk"])
    else:
        builder.add_edge(START, "talk")
    return builder.compile(saver, schedule=schedule)


NAMESPACES = {"plain": "talk", "keyed": "talk:=ann", "twice": "talk|inside"}


def remembered(saver, shape):
    found = saver.get_tuple(thread_config(checkpoint_ns=NAMESPACES[shape]))
    return [] if found is None else found.checkpoint["channel_values"]["heard"]


@pytest.mark.trial
@each_schedule
@each_durability
@pytest.mark.parametrize("shape", NAMESPACES)
def test_the_loser_of_a_race_stores_nothing_in_a_memory(drive, saver, shape, durability, schedule):
    entered, overtaken = Event(), Event()

    def wait(news):
        if news == "turn 1":
            entered.set()
            assert overtaken.wait(30)

    thread = drive.on(make_app(drive, saver, shape, wait, schedule))
    thread.invoke({"news": "turn 0"}, durability=durability)
    with ThreadPoolExecutor() as pool:
        loser = pool.submit(drive.invoke, thread.app, {"news": "turn 1"}, CONFIG, durability=durability)
        try:
            assert entered.wait(30)
            if durability == "async":  # the step before may be stored late, and this is not about that
                assert any(thread.state.next == ("talk",) for _ in range(10_000))
            thread.invoke({"news": "turn 2"}, durability=durability)
        finally:
            overtaken.set()
        with pytest.raises(CheckpointConflictError):
            loser.result(30)
    assert remembered(saver, shape) == ["turn 0", "turn 2"]
    thread.invoke({"news": "turn 3"}, durability=durability)
    assert remembered(saver, shape) == ["turn 0", "turn 2", "turn 3"]


class Killed(BaseException):
    """Ends a process, for the tests: nothing is stored after it."""


STORING = ["commit", "record"]


@contextmanager
def dies_after(drive, saver, number):
    """In this context the process dies once it has stored so often; what then would have been stored is listed."""
    stored = []
    lost = []

    def wrap(name):
        method = getattr(saver, name)

        def store(*args, **options):
            if len(stored) >= number:
                lost.append(name)
                raise Killed
            result = method(*args, **options)
            stored.append(name)
            return result

        async def astore(*args, **options):
            if len(stored) >= number:
                lost.append(name)
                raise Killed
            await method(*args, **options)
            stored.append(name)

        return astore if drive.is_async else store

    names = [f"a{name}" if drive.is_async else name for name in STORING]
    for name in names:
        setattr(saver, name, wrap(name))
    try:
        yield lost
    finally:
        for name in names:
            delattr(saver, name)


@pytest.mark.trial
@each_schedule
@pytest.mark.parametrize("shape", NAMESPACES)
def test_exit_stores_a_memory_with_the_step_around_it(drive, saver, shape, schedule):
    """Whatever is stored first, a process that dies after it leaves a thread on which the repeated call counts once."""
    thread = drive.on(make_app(drive, saver, shape, nothing, schedule))
    thread.invoke({"news": "turn 0"}, durability="exit")
    number = 0
    while True:
        config = {**CONFIG, "run_id": f"run {number}"}
        with dies_after(drive, saver, number) as died, suppress(Killed):
            thread.invoke({"news": f"turn {number + 1}"}, config, durability="exit")
        result = thread.invoke({"news": f"turn {number + 1}"}, config, durability="exit")
        number += 1
        if not died:
            break
        assert remembered(saver, shape) == [f"turn {n}" for n in range(number + 1)]
        assert result["heard"] == remembered(saver, shape)
    assert number > 1
