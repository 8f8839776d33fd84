"""The cases, written once for both engines: each takes the engine's names and gives the seconds per unit of work.

Nothing here imports an engine: `ours.py` and `peer.py` bring the names, so both run the very same graphs. How a case
is timed is here too: one warm-up, then rounds until the time is used up; the quickest round counts, for on a shared
machine the others were disturbed. Garbage collection stays on.
"""

from __future__ import annotations

import asyncio
import operator
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Annotated, Any, NamedTuple, TypedDict

QUICK = bool(os.environ.get("BENCH_QUICK"))
SECONDS = 0.3 if QUICK else 1.5
"""How long rounds are repeated within one process."""
FEWEST, MOST = (2, 8) if QUICK else (4, 20)
"""Rounds per process, the warm-up counted: enough for the slow, and no endless tries for luck for the quick."""


class Engine(NamedTuple):
    """The public names that the cases need, under the names both engines give them."""

    StateGraph: Any
    START: Any
    END: Any
    Send: Any
    InMemorySaver: Any
    sqlite: Callable[[str, str], AbstractContextManager[Any]]
    """(file, synchronous) → an open saver"""
    appends: int = 1_000
    """How long a list P12 makes: an engine that stores all of it at each step gets a shorter one."""


# -- timing ---------------------------------------------------------------------------------------------------


def best(work: Callable[[], Any], units: int) -> float:
    """Seconds per unit in the quickest round of `work`, which does `units` of them. The first round warms up."""
    rounds: list[float] = []
    began = perf_counter()
    while more(rounds, began):
        start = perf_counter()
        work()
        rounds.append(perf_counter() - start)
    return min(rounds[1:]) / units


async def abest(work: Callable[[], Awaitable[Any]], units: int) -> float:
    """`best` on the running event loop."""
    rounds: list[float] = []
    began = perf_counter()
    while more(rounds, began):
        start = perf_counter()
        await work()
        rounds.append(perf_counter() - start)
    return min(rounds[1:]) / units


def more(rounds: Sequence[float], began: float) -> bool:
    """Whether another round is worth its time."""
    return len(rounds) < FEWEST or (len(rounds) < MOST and perf_counter() - began < SECONDS)


# -- one superstep --------------------------------------------------------------------------------------------


class Count(TypedDict):
    n: int


STEPS = 500
LIMIT = {"recursion_limit": 2 * STEPS}
INVOKES = 100


def loop(e: Engine, schema: Any = Count, checkpointer: Any = None, others: int = 0) -> Any:
    """One node that counts up, and its router, which goes round until STEPS; perhaps a chain of other nodes."""

    def tick(state: Any) -> Any:
        return {"n": state["n"] + 1}

    def route(state: Any) -> str:
        return "tick" if state["n"] < STEPS else "end"

    ends = {"tick": "tick", "end": e.END}
    graph = e.StateGraph(schema)
    graph.add_node("tick", tick)
    graph.add_edge(e.START, "tick")
    for i in range(others):
        graph.add_node(f"n{i}", tick)
        if i:
            graph.add_edge(f"n{i - 1}", f"n{i}")
        else:
            ends["other"] = "n0"
    graph.add_conditional_edges("tick", route, ends)
    return graph.compile(checkpointer=checkpointer)


def p1(e: Engine) -> float:
    app = loop(e)
    return best(lambda: app.invoke({"n": 0}, LIMIT), STEPS)


def p2(e: Engine) -> float:
    graph = e.StateGraph(Count)
    for name in "abc":
        graph.add_node(name, lambda state: {"n": state["n"] + 1})
    graph.add_edge(e.START, "a").add_edge("a", "b").add_edge("b", "c").add_edge("c", e.END)
    app = graph.compile()

    def work() -> None:
        for _ in range(INVOKES):
            app.invoke({"n": 0})

    return best(work, INVOKES)


def p3(e: Engine) -> float:
    async def tick(state: Any) -> Any:
        return {"n": state["n"] + 1}

    def route(state: Any) -> str:
        return "tick" if state["n"] < STEPS else "end"

    graph = e.StateGraph(Count)
    graph.add_node("tick", tick)
    graph.add_edge(e.START, "tick")
    graph.add_conditional_edges("tick", route, {"tick": "tick", "end": e.END})
    app = graph.compile()
    return asyncio.run(abest(lambda: app.ainvoke({"n": 0}, LIMIT), STEPS))


def p4(e: Engine) -> float:
    def work() -> None:
        # A new saver each round, so that no round pays for the history of those before.
        app = loop(e, checkpointer=e.InMemorySaver())
        app.invoke({"n": 0}, {**LIMIT, "configurable": {"thread_id": "1"}})

    return best(work, STEPS)


def p10(e: Engine) -> float:
    keys = {f"k{i}": int for i in range(1999)}
    app = loop(e, TypedDict("Wide", {"n": int, **keys}))  # type: ignore[operator]
    given = dict.fromkeys(keys, 1)
    # The input writes every key once; what that costs is taken off, for it is not the supersteps'.
    whole = best(lambda: app.invoke({**given, "n": 0}, LIMIT), 1)
    start = best(lambda: app.invoke({**given, "n": STEPS - 1}, LIMIT), 1)
    return (whole - start) / (STEPS - 1)


# -- a database -----------------------------------------------------------------------------------------------


def saved(e: Engine, synchronous: str) -> float:
    with TemporaryDirectory() as folder, e.sqlite(f"{folder}/threads.db", synchronous) as saver:
        app, thread = loop(e, checkpointer=saver), iter(range(MOST + 1))

        def work() -> None:
            # A new thread each round: within one the history grows.
            app.invoke({"n": 0}, {**LIMIT, "configurable": {"thread_id": str(next(thread))}}, durability="sync")

        return best(work, STEPS)


def p5(e: Engine) -> float:
    return saved(e, "normal")


def p6(e: Engine) -> float:
    return saved(e, "full")


ITEM = 200


class Grows(TypedDict):
    items: Annotated[list[str], operator.add]


def p12(e: Engine) -> float:
    """Bytes on the disk per byte appended."""
    graph = e.StateGraph(Grows)
    graph.add_node("add", lambda state: {"items": [os.urandom(ITEM // 2).hex()]})
    graph.add_edge(e.START, "add")
    ends = {"add": "add", "end": e.END}
    graph.add_conditional_edges("add", lambda s: "add" if len(s["items"]) < e.appends else "end", ends)
    with TemporaryDirectory() as folder:
        with e.sqlite(f"{folder}/threads.db", "off") as saver:
            config = {"recursion_limit": 2 * e.appends, "configurable": {"thread_id": "1"}}
            graph.compile(checkpointer=saver).invoke({"items": []}, config, durability="sync")
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
    return size / (e.appends * ITEM)


SHORT, LONG = 10, 10_000


def p14(e: Engine) -> float:
    """Opening a thread of many checkpoints for one step, by the same for a thread of few."""
    with TemporaryDirectory() as folder, e.sqlite(f"{folder}/threads.db", "off") as saver:
        app, times = loop(e, checkpointer=saver), []
        for steps in (SHORT, LONG):
            config = {"recursion_limit": 2 * steps, "configurable": {"thread_id": str(steps)}}
            while app.get_state(config).metadata is None or app.get_state(config).metadata["step"] < steps:
                app.invoke({"n": max(STEPS - steps, 0)}, config)

            def work(config: Any = config) -> None:
                for _ in range(20):
                    app.invoke({"n": STEPS}, config)

            times.append(best(work, 1))
    return times[1] / times[0]


# -- many tasks -----------------------------------------------------------------------------------------------


class Gathered(TypedDict):
    items: Annotated[list[int], operator.add]


def fan_out(e: Engine, node: Callable[[Any], Any]) -> float:
    graph = e.StateGraph(Gathered)
    names = [f"n{i}" for i in range(5)]
    for name in names:
        graph.add_node(name, node)
        graph.add_edge(e.START, name)
    graph.add_node("join", lambda state: {"items": [len(state["items"])]})
    graph.add_edge(names, "join").add_edge("join", e.END)
    app = graph.compile()

    def work() -> None:
        for _ in range(INVOKES):
            app.invoke({"items": []})

    return best(work, INVOKES)


def p7(e: Engine) -> float:
    return fan_out(e, lambda state: {"items": [1]})


def p7_wait(e: Engine) -> float:
    meet = threading.Barrier(5)

    def node(state: Any) -> Any:
        meet.wait(10)
        return {"items": [1]}

    return fan_out(e, node)


def map_reduce(e: Engine, count: int, node: Callable[[Any], Any]) -> Any:
    graph = e.StateGraph(Gathered)
    graph.add_node("work", node)
    graph.add_conditional_edges(e.START, lambda state: [e.Send("work", i) for i in range(count)], ["work"])
    graph.add_edge("work", e.END)
    return graph.compile()


def double(i: int) -> Any:
    return {"items": [2 * i]}


async def adouble(i: int) -> Any:
    return {"items": [2 * i]}


SENDS = 5_000
FEW, MANY = 10_000, 100_000


def p8(e: Engine) -> float:
    app = map_reduce(e, SENDS, double)
    return best(lambda: app.invoke({"items": []}), SENDS)


def p8_linear(e: Engine) -> float:
    few, many = (map_reduce(e, count, double) for count in (FEW, MANY))
    return best(lambda: many.invoke({"items": []}), 1) / best(lambda: few.invoke({"items": []}), 1)


def p9(e: Engine) -> float:
    app = map_reduce(e, SENDS, adouble)
    return asyncio.run(abest(lambda: app.ainvoke({"items": []}), SENDS))


# -- a large graph --------------------------------------------------------------------------------------------

NODES = 1_000


def p11_build(e: Engine) -> float:
    return best(lambda: loop(e, others=NODES - 1), NODES)


def p11_step(e: Engine) -> float:
    app = loop(e, others=NODES - 1)
    return best(lambda: app.invoke({"n": 0}, LIMIT), STEPS)


CASES: dict[str, Callable[[Engine], float]] = {
    "P1": p1,
    "P2": p2,
    "P3": p3,
    "P4": p4,
    "P5": p5,
    "P6": p6,
    "P7": p7,
    "P7-wait": p7_wait,
    "P8": p8,
    "P8-linear": p8_linear,
    "P9": p9,
    "P10": p10,
    "P11-build": p11_build,
    "P11-step": p11_step,
    "P12": p12,
    "P14": p14,
}
