"""The cases without a database, written once for both engines: each takes the engine's names and
gives the seconds per unit of work.

Nothing here imports an engine: `ours.py` and `peer.py` bring the names, so both run the very same
graphs. Cases with a saver are in `stored.py`, those of memory in `memory.py`; `everything.py` has
the list of all.
"""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from time import process_time, sleep
from typing import Annotated, Any, NamedTuple, TypedDict

import fresh
import sizes
from timing import abest, best, mean


class Engine(NamedTuple):
    """The public names that the cases need, under the names both engines give them."""

    StateGraph: Any
    START: Any
    END: Any
    Send: Any
    InMemorySaver: Any
    sqlite: Callable[[str, str], AbstractContextManager[Any]]
    """(file, synchronous) → an open saver"""
    postgres: Callable[[str], AbstractContextManager[Any]] | None = None
    """connection string → an open saver"""
    stores_all: bool = False
    """Whether the whole state is stored at each step, so that long lists would take for ever."""
    add_messages: Any = None
    call_model: Callable[[Any, Any], Any] | None = None
    """How a node asks a chat model so that its tokens are streamed."""
    CachePolicy: Any = None
    InMemoryCache: Any = None
    delta: Callable[[], Any] | None = None
    """Makes a channel for a list of which only what is new is stored, where that is a choice."""


# -- one superstep ---------------------------------------------------------------------------------


class Count(TypedDict):
    n: int


def tick(state: Any) -> Any:
    return {"n": state["n"] + 1}


async def atick(state: Any) -> Any:
    return {"n": state["n"] + 1}


def limit(steps: int, **configurable: str) -> dict[str, Any]:
    """A config that lets so many supersteps run."""
    return {"recursion_limit": 2 * steps + 10, "configurable": configurable}


def loop(
    e: Engine, steps: int, schema: Any = Count, node: Any = tick, others: int = 0, **options: Any
) -> Any:
    """One node that counts up, and its router, which goes round until `steps`; perhaps a chain of
    other nodes. Options are the node's."""

    def route(state: Any) -> str:
        return "tick" if state["n"] < steps else "end"

    ends = {"tick": "tick", "end": e.END}
    graph = e.StateGraph(schema)
    graph.add_node("tick", node, **options)
    graph.add_edge(e.START, "tick")
    for i in range(others):
        graph.add_node(f"n{i}", node)
        if i:
            graph.add_edge(f"n{i - 1}", f"n{i}")
        else:
            ends["other"] = "n0"
    graph.add_conditional_edges("tick", route, ends)
    return graph


def chain(e: Engine, node: Any = tick) -> Any:
    """a → b → c."""
    graph = e.StateGraph(Count)
    for name in "abc":
        graph.add_node(name, node)
    return graph.add_edge(e.START, "a").add_edge("a", "b").add_edge("b", "c").add_edge("c", e.END)


def called(app: Any, given: Any) -> float:
    """Seconds per call of `invoke`."""

    def work() -> None:
        for _ in range(sizes.INVOKES):
            app.invoke(given)

    return best(work, sizes.INVOKES)


def acalled(app: Any, given: Any) -> float:
    """Seconds per call of `ainvoke`."""

    async def work() -> None:
        for _ in range(sizes.INVOKES):
            await app.ainvoke(given)

    return asyncio.run(abest(work, sizes.INVOKES))


def p1(e: Engine) -> float:
    app, config = loop(e, sizes.STEPS).compile(), limit(sizes.STEPS)
    return best(lambda: app.invoke({"n": 0}, config), sizes.STEPS)


def p2(e: Engine) -> float:
    return called(chain(e).compile(), {"n": 0})


def p2_async(e: Engine) -> float:
    return acalled(chain(e, atick).compile(), {"n": 0})


def p3(e: Engine) -> float:
    app, config = loop(e, sizes.STEPS, node=atick).compile(), limit(sizes.STEPS)
    return asyncio.run(abest(lambda: app.ainvoke({"n": 0}, config), sizes.STEPS))


def wide(e: Engine, keys: int) -> float:
    """Seconds per superstep beside `keys` keys that hold values and are never written."""
    names = {f"k{i}": int for i in range(keys - 1)}
    schema = TypedDict("Wide", {"n": int, **names})  # type: ignore[misc]
    app, config = loop(e, sizes.STEPS, schema).compile(), limit(sizes.STEPS)
    given = dict.fromkeys(names, 1)
    # The input writes every key once; what that costs is taken off, for it is not the supersteps'.
    whole = best(lambda: app.invoke({**given, "n": 0}, config), 1)
    start = best(lambda: app.invoke({**given, "n": sizes.STEPS - 1}, config), 1)
    return (whole - start) / (sizes.STEPS - 1)


def p10(e: Engine) -> float:
    return wide(e, sizes.KEYS)


def p11_build(e: Engine) -> float:
    return best(lambda: loop(e, sizes.STEPS, others=sizes.NODES - 1).compile(), sizes.NODES)


def p11_step(e: Engine) -> float:
    app, config = loop(e, sizes.STEPS, others=sizes.NODES - 1).compile(), limit(sizes.STEPS)
    return best(lambda: app.invoke({"n": 0}, config), sizes.STEPS)


def p29_timeout(e: Engine) -> float:
    """Seconds that a time limit adds to a superstep."""
    plain, limited = (loop(e, sizes.STEPS, **more).compile() for more in ({}, {"timeout": 60}))
    config = limit(sizes.STEPS)
    bare = best(lambda: plain.invoke({"n": 0}, config), sizes.STEPS)
    return best(lambda: limited.invoke({"n": 0}, config), sizes.STEPS) - bare


def p29_async(e: Engine) -> float:
    """The same for an async node."""
    graphs = (loop(e, sizes.STEPS, node=atick, **more) for more in ({}, {"timeout": 60}))
    plain, limited = (graph.compile() for graph in graphs)
    config = limit(sizes.STEPS)

    async def work() -> float:
        bare = await abest(lambda: plain.ainvoke({"n": 0}, config), sizes.STEPS)
        return await abest(lambda: limited.ainvoke({"n": 0}, config), sizes.STEPS) - bare

    return asyncio.run(work())


def p29_cache(e: Engine) -> float:
    """Seconds that finding its node's result adds to a call, instead of calling the node."""

    def call(**options: Any) -> float:
        graph = e.StateGraph(Count).add_node("tick", tick, **options).add_edge(e.START, "tick")
        return called(graph.compile(cache=e.InMemoryCache()), {"n": 0})

    bare = call()
    return call(cache_policy=e.CachePolicy()) - bare


def p39_graph(e: Engine) -> float:
    """Seconds per node for the drawing's model of a chain."""
    graph = e.StateGraph(TypedDict("Chain", {"n": int}))  # type: ignore[operator]
    names = [f"n{n}" for n in range(sizes.CHAIN)]
    for name in names:
        graph.add_node(name, lambda state: {})
    for first, second in pairwise([e.START, *names]):
        graph.add_edge(first, second)
    app = graph.compile()
    return best(app.get_graph, sizes.CHAIN)


def p39_held(e: Engine) -> float:
    """How many chunks a node has sent while its reader, who has taken one, sleeps."""
    sent = 0

    def say(state: Any, writer: Any) -> dict[str, Any]:
        nonlocal sent
        for _ in range(sizes.SAID):
            sent += 1
            writer("words")
        return {}

    graph = e.StateGraph(TypedDict("Said", {"n": int}))  # type: ignore[operator]
    app = graph.add_node("say", say).add_edge(e.START, "say").compile()
    chunks = app.stream({"n": 0}, stream_mode="custom")
    next(chunks)
    sleep(0.5)
    held = sent
    for _ in chunks:
        pass
    return float(held)


# -- a long run ------------------------------------------------------------------------------------


def long_run(e: Engine) -> tuple[list[float], list[float]]:
    """After each stretch of supersteps of one call: the processor's time, and the resident memory
    in MB."""
    times: list[float] = []
    memory: list[float] = []

    def node(state: Any) -> Any:
        if state["n"] % sizes.STRETCH == 0:
            times.append(process_time())
            memory.append(fresh.megabytes())
        return {"n": state["n"] + 1}

    steps = sizes.STRETCH * sizes.STRETCHES + 1
    loop(e, steps, node=node).compile().invoke({"n": 0}, limit(steps))
    return times, memory


def p15_memory(e: Engine) -> float:
    """MB by which the process grew after the first stretch."""
    _, memory = long_run(e)
    return max(memory[-1] - memory[1], 0.0)


def p15_speed(e: Engine) -> float:
    """Speed at the end ÷ at the start: the quickest stretch of the last tenth, and of the first
    after a warm-up."""
    times, _ = long_run(e)
    spent = [after - before for before, after in pairwise(times)]
    tenth = max(len(spent) // 10, 1)
    return min(spent[1 : 1 + tenth] or spent) / min(spent[-tenth:])


# -- many tasks ------------------------------------------------------------------------------------


class Gathered(TypedDict):
    items: Annotated[list[int], operator.add]


def fan_out(e: Engine, node: Callable[[Any], Any]) -> Any:
    graph = e.StateGraph(Gathered)
    names = [f"n{i}" for i in range(5)]
    for name in names:
        graph.add_node(name, node)
        graph.add_edge(e.START, name)
    graph.add_node("join", lambda state: {"items": [len(state["items"])]})
    graph.add_edge(names, "join").add_edge("join", e.END)
    return graph.compile()


def p7(e: Engine) -> float:
    return called(fan_out(e, lambda state: {"items": [1]}), {"items": []})


def p7_wait(e: Engine) -> float:
    meet = threading.Barrier(5)

    def node(state: Any) -> Any:
        meet.wait(10)
        return {"items": [1]}

    return called(fan_out(e, node), {"items": []})


def p7_async(e: Engine) -> float:
    async def node(state: Any) -> Any:
        return {"items": [1]}

    return acalled(fan_out(e, node), {"items": []})


def double(i: int) -> Any:
    return {"items": [2 * i]}


async def adouble(i: int) -> Any:
    return {"items": [2 * i]}


def map_reduce(e: Engine, count: int, node: Callable[[Any], Any] = double) -> Any:
    graph = e.StateGraph(Gathered)
    graph.add_node("work", node)
    graph.add_conditional_edges(
        e.START, lambda state: [e.Send("work", i) for i in range(count)], ["work"]
    )
    graph.add_edge("work", e.END)
    return graph.compile()


def sends(e: Engine, count: int) -> float:
    """Seconds per Send of a superstep that has `count`."""
    app = map_reduce(e, count)
    return best(lambda: app.invoke({"items": []}), count)


def p8(e: Engine) -> float:
    return sends(e, sizes.SENDS)


def p8_linear(e: Engine) -> float:
    few, many = (map_reduce(e, count) for count in (sizes.FEW, sizes.MANY))
    return mean(lambda: many.invoke({"items": []}), 1) / mean(lambda: few.invoke({"items": []}), 1)


def p9(e: Engine) -> float:
    app = map_reduce(e, sizes.SENDS, adouble)
    return asyncio.run(abest(lambda: app.ainvoke({"items": []}), sizes.SENDS))
