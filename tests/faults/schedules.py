"""R19: the same inputs make the same history whoever ends first."""

from __future__ import annotations

import asyncio
import hashlib
import operator
import threading
from contextlib import ExitStack
from random import Random
from typing import Annotated, Any, TypedDict

from stategraph import (
    START,
    InMemorySaver,
    Send,
    StateGraph,
)
from stategraph.testing import assert_same
from stategraph.testing.graphs import shown

from .campaign import trial
from .stages import config, sqlite


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    left: int


class Turns:
    """Lets the tasks of a superstep end in an order drawn by chance: each waits until the one before has ended."""

    def __init__(self, random):
        self.random = random
        self.changed = threading.Condition()
        self.orders = {}

    def order(self, step, names):
        """The order in which the tasks of a superstep end."""
        if step not in self.orders:
            self.orders[step] = self.random.sample(names, len(names))
        return self.orders[step]

    def end(self, step, names, me):
        """Wait for my turn."""
        with self.changed:
            order = self.order(step, names)
            self.changed.wait_for(lambda: order[0] == me, timeout=30)
            order.remove(me)
            self.changed.notify_all()

    async def aend(self, step, names, me):
        """The same for coroutines."""
        order = self.order(step, names)
        while order[0] != me:
            await asyncio.sleep(0)
        order.remove(me)


LANES = [0, 1, 2, 3]
SIDES = ["b", "c", "nested"]


def built(turns: Turns, saver, is_async):
    """Sends, nodes side by side and a nested graph, three rounds of it."""

    def node(step, names, me, log):
        def ends(state):
            turns.end((step(state), names[0]), names, me(state))
            return {"log": [log(state)]}

        async def aends(state):
            await turns.aend((step(state), names[0]), names, me(state))
            return {"log": [log(state)]}

        return aends if is_async else ends

    def left(state):
        return state["left"]

    class Told(TypedDict, total=False):
        log: Annotated[list[Any], operator.add]

    inner = StateGraph(State, output_schema=Told)
    inner.add_node("i", node(left, SIDES, lambda s: "nested", lambda s: ("inner", s["left"])))
    inner.add_node("own", lambda state: {"log": ["own"]}).add_edge(START, "i").add_edge("i", "own")
    nested = inner.compile()

    def call(state):
        return {"log": nested.invoke({"left": state["left"], "log": []})["log"]}

    async def acall(state):
        return {"log": (await nested.ainvoke({"left": state["left"], "log": []}))["log"]}

    graph = StateGraph(State)
    graph.add_node("work", node(lambda s: s["left"], LANES, lambda s: s["lane"], lambda s: ("work", s["lane"])))
    graph.add_node("spread", lambda state: {"left": state["left"] - 1})
    for name in SIDES:
        graph.add_node(name, (acall if is_async else call) if name == "nested" else _side(node, left, name))
        graph.add_edge("work", name)
    graph.add_edge(SIDES, "spread")

    def sends(state):
        return [Send("work", {"left": state["left"], "lane": n}) for n in LANES] if state["left"] else "__end__"

    graph.add_conditional_edges(START, sends, ["work", "__end__"])
    graph.add_conditional_edges("spread", sends, ["work", "__end__"])
    return graph.compile(saver)


def _side(node, left, name):
    return node(left, SIDES, lambda state: name, lambda state: (name, state["left"]))


def story(app, is_async):
    """A hash of everything that can be seen of a run, without ids and times."""
    given = {"left": 2, "log": []}
    modes = ["values"]
    chunks = asyncio.run(_read(app, given, modes)) if is_async else [*app.stream(given, config(), stream_mode=modes)]
    told = repr((chunks, shown([*app.get_state_history(config())])))
    return hashlib.sha256(told.encode()).hexdigest()


async def _read(app, given, modes):
    return [chunk async for chunk in app.astream(given, config(), stream_mode=modes)]


@trial("R19", quick=13, full=20_000)
def any_order_of_ends(round):
    """Sends, nodes side by side and nested graphs whose tasks end in an order drawn by chance, sync and async, in memory
    and in SQLite: values and history have the same hash as in the first round."""
    is_async = round.random.random() < 0.5
    with ExitStack() as stack:
        saver = stack.enter_context(sqlite(round).open()) if round.random.random() < 0.3 else InMemorySaver()
        found = story(built(Turns(round.random), saver, is_async), is_async)
        if not isinstance(saver, InMemorySaver):
            stack.close()
    wanted = round.bench.once("story", lambda: story(built(Turns(Random(0)), InMemorySaver(), False), False))
    assert_same(found, wanted, f"hash of values and history ({'async' if is_async else 'sync'})")
    round.count("schedules")
