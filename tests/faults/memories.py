"""R54 and R55: memories of nested graphs (`checkpointer=True`) when callers race, and when a call with "exit" dies."""

from __future__ import annotations

import operator
import time
from contextlib import nullcontext
from functools import partial
from typing import Annotated, TypedDict

from kit.graphs import chain_of

from stategraph import (
    START,
    CheckpointConflictError,
    Command,
    InMemorySaver,
    Send,
    StateGraph,
    interrupt,
)
from stategraph.checkpoint.base import address
from stategraph.testing import CheckFailed, assert_same
from stategraph.testing.concurrency import side_by_side
from stategraph.testing.harness import Mode

from .campaign import trial
from .stages import config, postgres, sqlite

PLACES = {"plain": "talk", "keyed": "talk:=ann", "twice": "talk|inside"}
SCHEDULES = ["supersteps", "ready"]


class Memory(TypedDict, total=False):
    heard: Annotated[list[str], operator.add]
    news: str


class Talk(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    news: str


def talking(saver, shape, schedule, world, pause, *, asks=False):
    """A node that runs a graph with a memory, once or twice in one call, and notes what it was told."""

    def hear(state: Memory):
        pause()
        return {"heard": [state["news"] + (f" {interrupt('?')}" if asks else "")]}

    def runs(graph):
        def run(state):
            pause()
            graph.invoke({"news": state["news"]})
            return {"log": [state["news"]]}

        async def arun(state):
            pause()
            await graph.ainvoke({"news": state["news"]})
            return {"log": [state["news"]]}

        return arun if world == "async" else run

    inner = chain_of(Memory, hear=hear, rest=lambda _: {}).compile(checkpointer=True, schedule=schedule)
    if shape == "twice":
        inner = chain_of(Talk, inside=runs(inner)).compile(checkpointer=True, schedule=schedule)
    builder = StateGraph(Talk).add_node("talk", runs(inner)).add_node("after", lambda _: pause())
    if shape == "keyed":
        builder.add_conditional_edges(START, lambda state: [Send("talk", state, key="ann")], ["talk"])
    else:
        builder.add_edge(START, "talk")
    return builder.add_edge("talk", "after").compile(saver, schedule=schedule)


def heard(saver, shape):
    found = saver.get_tuple(address("t", PLACES[shape]))
    return [] if found is None else found.checkpoint["channel_values"].get("heard", [])


def check_order(saver, shape, plan):
    """What a memory holds came about in the order of the thread."""
    order = [each.checkpoint["id"] for each in saver.list(address("t", ""))][::-1]
    made = [each.metadata["parents"][""] for each in saver.list(address("t", PLACES[shape]))][::-1]
    places = [order.index(id) for id in made if id in order]
    if places != sorted(places):
        raise CheckFailed(f"{plan}: the memory was made under the checkpoints {places} of the thread, in this order")


def raced(round, saver):
    random = round.random
    shape, schedule = random.choice([*PLACES]), random.choice(SCHEDULES)
    only = random.choice(["sync", "async", "exit", None])
    callers = [
        (random.choice(["sync", "async"]), [only or random.choice(["sync", "async", "exit"]) for _ in range(4)])
        for _ in range(random.choice([2, 3, 4]))
    ]
    plan = shape, schedule, callers
    told = []

    def call(number):
        world, durabilities = callers[number]
        app = talking(saver, shape, schedule, world, lambda: time.sleep(random.choice([0, 0, 0.001, 0.004])))
        with Mode(world) as mode:
            for turn, durability in enumerate(durabilities):
                news = f"caller {number}, turn {turn}"
                try:
                    mode.call(app, "invoke", {"news": news}, config(), durability=durability)
                except CheckpointConflictError:
                    continue
                told.append(news)

    side_by_side(partial(call, number) for number in range(len(callers)))
    found = heard(saver, shape)
    log = talking(saver, shape, schedule, "sync", lambda: None).get_state(config()).values.get("log", [])
    assert_same(sorted({*found}), sorted(found), f"{plan}: the turns in the memory, each once")
    assert_same([news for news in found if news in log], log, f"{plan}: the turns in the memory that the thread counts")
    assert_same([news for news in told if news not in log], [], f"{plan}: turns told ok that the thread does not count")
    if only == "exit":
        assert_same(found, log, f"{plan}: the turns in the memory")
    check_order(saver, shape, plan)
    round.count("turns", sum(len(durabilities) for _, durabilities in callers))
    round.count("won", len(told))


@trial("R54", quick=6, full=20_000)
def racing_memories(round):
    """2 to 4 callers, sync and async, on one thread whose node runs a graph with a memory: for the thread, for a key, or
    inside another; each durability, both schedules; in memory and SQLite. A memory holds each turn once, in the order of
    the thread, and each that the thread counts; with "exit" no other."""
    if round.number % 2:
        raced(round, InMemorySaver())
    else:
        with sqlite(round).open() as saver:
            raced(round, saver)


@trial("R54", quick=1, full=5_000)
def racing_memories_on_postgres(round):
    """The same on Postgres."""
    with postgres(round).open() as saver:
        raced(round, saver)


class Died(BaseException):
    """The process has died: nothing is stored after it."""


STORING = ["commit", "record"]


def die_after(saver, number):
    """Let a saver store so often, and nothing after it; what it was asked for then is listed."""
    stored = []
    lost = []

    def count(name, method):
        def store(*args):
            if len(stored) >= number:
                lost.append(name)
                raise Died
            result = method(*args)
            stored.append(name)
            return result

        return store

    for name in STORING:
        setattr(saver, name, count(name, getattr(saver, name)))
    return lost


def revive(saver):
    for name in STORING:
        delattr(saver, name)


@trial("R55", quick=3, full=5_000)
def exit_inside_and_outside(round):
    """A call with "exit" runs a graph with a memory, which may ask, and dies after each thing that it stores, as does the
    call that answers. It is delivered again: the memory and the thread hold each turn once, and the same."""
    random = round.random
    shape, schedule, asks = random.choice([*PLACES]), random.choice(SCHEDULES), random.random() < 0.5
    saver = InMemorySaver() if round.number % 2 else None
    with sqlite(round).open() if saver is None else nullcontext(saver) as opened:
        app = talking(opened, shape, schedule, "sync", lambda: None, asks=asks)
        turns = []
        for number in range(4):
            turns.append(f"turn {number}")
            given = [{"news": turns[-1]}, *([Command(resume="yes")] if asks else [])]
            for part, each in enumerate(given):
                at = config(run_id=f"run {number} {part}")
                lost = die_after(opened, number)
                try:
                    app.invoke(each, at, durability="exit")
                except Died:
                    pass
                revive(opened)
                app.invoke(each, at, durability="exit")
                round.count("deaths", bool(lost))
            wanted = [f"{turn} yes" if asks else turn for turn in turns]
            plan = shape, schedule, asks, number
            assert_same(heard(opened, shape), wanted, f"{plan}: the turns in the memory")
            assert_same(app.get_state(config()).values["log"], turns, f"{plan}: the turns that the thread counts")
