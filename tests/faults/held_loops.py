"""R29: an async run that never waits shares its event loop, and can be cancelled."""

from __future__ import annotations

import asyncio
import operator
from contextlib import ExitStack, suppress
from typing import Annotated, Any, TypedDict

from kit.graphs import graph_of

from stategraph import END, START, InMemorySaver, Send, StateGraph
from stategraph.pregel.drivers import aio, driver, timeslice
from stategraph.testing import CheckFailed, assert_same

from .campaign import patched, trial

LONGEST = 0.004
"""Seconds that a piece of work takes at most."""
CUT_WITHIN = 0.02


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    left: int
    piece: int


class Clock:
    """Moved on by work only, so that a busy machine makes no difference."""

    def __init__(self, round):
        self.random = round.random
        self.now = 1000.0

    def work(self):
        self.now += self.random.choice([0.0, 0.0001, 0.001, LONGEST])


def busy(clock: Clock, saver, rounds, width):
    """So many times: a wide superstep, then a nested graph of several supersteps. No node ever waits."""

    async def one(state):
        clock.work()
        return {"log": [(state["left"], state["piece"])]}

    async def count(state):
        clock.work()
        return {"left": state["left"] - 1}

    async def rest(_):
        clock.work()
        return {}

    def fan_out(state):
        return [Send("one", {"left": state["left"], "piece": n}) for n in range(width)] if state["left"] else END

    inner = graph_of(State, "S>rest>count", rest=rest, count=count).compile()
    graph = StateGraph(State).add_node("one", one).add_node("inner", inner, input_schema=Left).add_edge("one", "inner")
    graph.add_conditional_edges(START, fan_out, ["one", END]).add_conditional_edges("inner", fan_out, ["one", END])
    return graph.compile(saver)


class Left(TypedDict, total=False):
    left: int


@trial("R29", quick=5, full=1_000)
def shared_loops(round):
    """A run of coroutines that never wait (wide supersteps, nested graphs; called, streamed; in each durability) is
    cancelled at any moment: the loop sees to that within 20 ms of work, and the run goes on to the same end."""
    random, clock = round.random, Clock(round)
    app = busy(clock, InMemorySaver(), rounds := random.randrange(1, 8), width := random.randrange(1, 40))
    config = {"configurable": {"thread_id": "1"}}
    durability = random.choice(["sync", "async", "exit"])
    mode = random.choice([None, "updates", ["values", "debug"]])
    moment = clock.now + random.random() * 0.0013 * rounds * (width + 2)

    async def run():
        if mode is None:
            await app.ainvoke({"left": rounds}, config, durability=durability)
        else:
            async for _ in app.astream({"left": rounds}, config, durability=durability, stream_mode=mode):
                pass

    async def main():
        call = asyncio.create_task(run())
        while clock.now < moment and not call.done():
            await asyncio.sleep(0)
        late = clock.now - moment
        call.cancel()
        before = clock.now
        with suppress(asyncio.CancelledError):
            await call
        late += clock.now - before
        if late > CUT_WITHIN:
            raise CheckFailed(f"cut {late * 1000:.0f} ms of work after it was due ({durability}, {mode})")

    with ExitStack() as stack:
        for module in (aio, driver, timeslice):
            stack.enter_context(patched(module, "monotonic", lambda: clock.now))
        asyncio.run(main())
    if not app.get_state(config).metadata:  # cut before it began
        asyncio.run(app.ainvoke({"left": rounds}, config))
    elif app.get_state(config).next:
        asyncio.run(app.ainvoke(None, config))
    wanted = [(left, piece) for left in range(rounds, 0, -1) for piece in range(width)]
    assert_same(app.get_state(config).values["log"], wanted, f"log after a cancellation ({durability}, {mode})")
    round.count("cancellations")
