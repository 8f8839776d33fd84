"""An async run that never waits shares its event loop. The clock is a fake one that only work advances."""

from __future__ import annotations

import asyncio
import operator
from contextlib import suppress
from itertools import pairwise
from typing import Annotated, TypedDict

import pytest
from kit.drive import cancel, each_durability
from kit.graphs import chain_of

from stategraph import END, START, InMemorySaver, Send, StateGraph
from stategraph.pregel import thread_api as state
from stategraph.pregel.drivers import aio, driver, timeslice

MILLISECOND = 0.001
MOST = timeslice.HOLD + 2 * MILLISECOND
"""How long the loop may be held at a stretch: the limit, and the piece of work in which it is reached."""
WORK = 100
"""Pieces of work in each test, a millisecond each."""
CONFIG = {"configurable": {"thread_id": "1"}, "recursion_limit": 2 * WORK}


class Clock:
    """Seconds of work done."""

    def __init__(self):
        self.now = 1000.0

    def work(self):
        self.now += MILLISECOND


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (aio, driver, state, timeslice):
        monkeypatch.setattr(module, "monotonic", lambda: clock.now)
    return clock


class State(TypedDict, total=False):
    count: int
    done: Annotated[list[int], operator.add]


def counting(clock: Clock, steps=WORK, saver=None):
    """A loop of supersteps whose node never waits."""

    async def count(state):
        clock.work()
        return {"count": state["count"] + 1, "done": [state["count"]]}

    def route(state):
        return "count" if state["count"] < steps else END

    return (
        chain_of(State, count=count).add_conditional_edges("count", route, ["count", END]).compile(saver)
    )


def wide(clock: Clock, work=None):
    """As many `Send`s as there is work, in one superstep."""

    async def one(state):
        clock.work()
        return {"done": [state["count"]]}

    def fan_out(_):
        return [Send("one", {"count": n}) for n in range(WORK if work is None else 4)]

    return (
        StateGraph(State).add_node("one", work or one).add_conditional_edges(START, fan_out, ["one"]).compile()
    )


async def drain(chunks):
    async for _ in chunks:
        pass


class SlowToRead(InMemorySaver):
    """Takes a millisecond for each checkpoint read from a list."""

    clock: Clock

    def list(self, *args, **kwargs):
        for found in super().list(*args, **kwargs):
            self.clock.work()
            yield found


async def in_supersteps(clock: Clock):
    await counting(clock).ainvoke({"count": 0}, CONFIG)


async def in_supersteps_that_are_stored(clock: Clock):
    await counting(clock, saver=InMemorySaver()).ainvoke({"count": 0}, CONFIG)


async def in_a_wide_superstep(clock: Clock):
    await wide(clock).ainvoke({})


async def in_a_stream(clock: Clock):
    await drain(counting(clock).astream({"count": 0}, CONFIG, stream_mode=["values", "updates", "debug"]))


async def in_a_wide_stream(clock: Clock):
    await drain(wide(clock).astream({}, stream_mode=["values", "updates", "debug"]))


async def by_a_reader(clock: Clock):
    async for _ in wide(Clock()).astream({}, stream_mode="tasks"):  # its chunks come many at a time
        clock.work()


async def in_a_nested_graph(clock: Clock):
    inner = counting(clock)
    await chain_of(State, inner=inner).compile().ainvoke({"count": 0}, CONFIG)


async def in_nested_graphs_side_by_side(clock: Clock):
    inner = counting(clock, WORK // 4)

    async def call(_):
        await inner.ainvoke({"count": 0}, CONFIG)
        return {}

    await wide(clock, call).ainvoke({})


async def in_a_batch(clock: Clock):
    await counting(clock, 1).abatch([{"count": 0}] * WORK)


async def in_a_batch_of_long_runs(clock: Clock):
    await counting(clock, WORK // 4).abatch([{"count": 0}] * 4, CONFIG)


async def in_runs_side_by_side(clock: Clock):
    await asyncio.gather(*(counting(clock, WORK // 4).ainvoke({"count": 0}, CONFIG) for _ in range(4)))


async def in_one_short_call_after_the_other(clock: Clock):
    app = counting(clock, 1)
    for _ in range(WORK):
        await app.ainvoke({"count": 0})


async def in_updates(clock: Clock):
    app = counting(Clock(), WORK, InMemorySaver())
    for _ in range(WORK):
        clock.work()
        await app.aupdate_state(CONFIG, {"count": 0}, as_node="count")


async def in_a_history(clock: Clock):
    saver = SlowToRead()
    saver.clock = clock
    app = counting(Clock(), WORK, saver)
    await app.ainvoke({"count": 0}, CONFIG)
    await drain(app.aget_state_history(CONFIG))


@pytest.mark.parametrize(
    "held",
    [
        in_supersteps,
        in_supersteps_that_are_stored,
        in_a_wide_superstep,
        in_a_stream,
        in_a_wide_stream,
        by_a_reader,
        in_a_nested_graph,
        in_nested_graphs_side_by_side,
        in_a_batch,
        in_a_batch_of_long_runs,
        in_runs_side_by_side,
        in_one_short_call_after_the_other,
        in_updates,
        in_a_history,
    ],
)
async def test_other_tasks_of_the_loop_run_however_much_is_computed(held, clock):
    turns = []

    async def tick():
        while True:
            turns.append(clock.now)
            await asyncio.sleep(0)

    began = clock.now
    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0)
    await held(clock)
    turns.append(clock.now)
    ticker.cancel()
    with suppress(asyncio.CancelledError):
        await ticker
    assert clock.now - began >= 0.99 * WORK * MILLISECOND  # there was something to hold the loop with
    longest = max(after - before for before, after in pairwise(turns))
    assert longest <= MOST * 1.001


@each_durability
@pytest.mark.parametrize("streaming", [False, True])
def test_a_run_that_never_waits_can_be_cancelled_and_resumed(durability, streaming, clock):
    app = counting(clock, saver=InMemorySaver())

    async def cut_short():
        began = clock.now
        if streaming:
            call = asyncio.create_task(
                drain(app.astream({"count": 0}, CONFIG, durability=durability, stream_mode="custom"))
            )
        else:
            call = asyncio.create_task(app.ainvoke({"count": 0}, CONFIG, durability=durability))
        while clock.now < began + WORK / 2 * MILLISECOND:  # what a timeout does
            await asyncio.sleep(0)
        asked = clock.now
        await cancel(call)
        assert clock.now - asked <= MOST

    asyncio.run(cut_short())
    stored = app.get_state(CONFIG)
    assert stored.values["count"] >= WORK // 2 - 1
    assert stored.next == ("count",)
    assert asyncio.run(app.ainvoke(None, CONFIG))["done"] == [*range(WORK)]


async def test_runs_side_by_side_all_move_on(clock):
    """The time is shared: one that was there first does not go first every time."""
    seen = []

    def app(name):
        async def count(state):
            clock.work()
            seen.append(name)
            return {"count": state["count"] + 1}

        return (
            chain_of(State, count=count)
            .add_conditional_edges("count", lambda s: "count" if s["count"] < WORK else END)
            .compile()
        )

    await asyncio.gather(*(app(name).ainvoke({"count": 0}, CONFIG) for name in "ab"))
    half = seen[:WORK]
    assert min(half.count("a"), half.count("b")) >= WORK // 4


def test_siblings_begin_in_order_though_the_first_gives_way(clock):
    """A nested graph that gives way waits for nothing: no sibling is begun for that, so few are under way at once."""
    inner = counting(clock, WORK // 4)
    under_way, most = 0, 0

    async def call(_):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await inner.ainvoke({"count": 0}, CONFIG)
        under_way -= 1
        return {}

    asyncio.run(wide(clock, call).ainvoke({}))
    assert most == 1


def test_a_sibling_that_another_waits_for_begins_at_once(clock):
    there = []

    async def meet(state):
        clock.work()
        there.append(asyncio.Event())
        if len(there) == 4:
            for event in there:
                event.set()
        await there[-1].wait()
        return {"done": [state["count"]]}

    assert asyncio.run(wide(clock, meet).ainvoke({}))["done"] == [0, 1, 2, 3]
