"""The floor of each case: bare Python that does only the bookkeeping nobody can leave out. No engine is imported.

`python floor.py CASE` prints one number. What every floor keeps: a node gets a dict of its own, writes are gathered
and applied only when all of the superstep have run, a router sees its own node's writes.
"""

from __future__ import annotations

import sys

import fresh

case = sys.argv[1]
if case.startswith("P13"):
    # The two standard modules that an engine with async faces and a database needs; nothing else is loaded before.
    print(fresh.measure(case, lambda: [__import__("asyncio"), __import__("sqlite3")]))
    raise SystemExit

import asyncio
import pickle
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Barrier
from typing import Any

from cases import SENDS, STEPS, abest, adouble, best, double


def tick(state: dict[str, Any]) -> dict[str, Any]:
    return {"n": state["n"] + 1}


async def atick(state: dict[str, Any]) -> dict[str, Any]:
    return {"n": state["n"] + 1}


def route(state: dict[str, Any]) -> str:
    return "tick" if state["n"] < STEPS else "end"


def p1(keys: int = 0) -> float:
    """A superstep: input dict, call, writes, router on a view with these writes, barrier, next node by name."""
    nodes, start = {"tick": tick}, {"n": 0, **{f"k{i}": 1 for i in range(keys)}}

    def work() -> None:
        state, todo, limit = start.copy(), ["tick"], 2 * STEPS
        while todo and limit:
            writes: dict[str, list[Any]] = {}
            chosen = []
            for name in todo:
                result = nodes[name](state.copy())
                for key, value in result.items():
                    writes.setdefault(key, []).append(value)
                chosen.append(route({**state, **result}))
            for key, values in writes.items():
                state[key] = values[-1]
            todo, limit = [name for name in chosen if name in nodes], limit - 1

    return best(work, STEPS)


def p2() -> float:
    """Three supersteps without a router, and an input and output dict per invoke."""
    nodes, edges = {"a": tick, "b": tick, "c": tick}, {"a": ["b"], "b": ["c"], "c": []}

    def invoke(given: dict[str, Any]) -> dict[str, Any]:
        state, todo = given.copy(), ["a"]
        while todo:
            writes: dict[str, list[Any]] = {}
            after: list[str] = []
            for name in todo:
                for key, value in nodes[name](state.copy()).items():
                    writes.setdefault(key, []).append(value)
                after.extend(edges[name])
            for key, values in writes.items():
                state[key] = values[-1]
            todo = after
        return state.copy()

    def work() -> None:
        for _ in range(100):
            invoke({"n": 0})

    return best(work, 100)


def p3() -> float:
    """As P1, with an await of the node; no asyncio task is needed for a single one."""
    nodes = {"tick": atick}

    async def work() -> None:
        state, todo, limit = {"n": 0}, ["tick"], 2 * STEPS
        while todo and limit:
            writes: dict[str, list[Any]] = {}
            chosen = []
            for name in todo:
                result = await nodes[name](state.copy())
                for key, value in result.items():
                    writes.setdefault(key, []).append(value)
                chosen.append(route({**state, **result}))
            for key, values in writes.items():
                state[key] = values[-1]
            todo, limit = [name for name in chosen if name in nodes], limit - 1

    return asyncio.run(abest(work, STEPS))


def p4() -> float:
    """As P1, with one record per superstep: its id, the one before, versions, and the changed values as bytes."""

    def work() -> None:
        history: list[Any] = []
        state, todo, versions, step = {"n": 0}, ["tick"], {"n": 0}, 0
        while todo:
            result = tick(state.copy())
            chosen = route({**state, **result})
            state.update(result)
            step += 1
            versions["n"] = step
            history.append((step, step - 1, versions.copy(), {"n": pickle.dumps(state["n"], 5)}))
            todo = ["tick"] if chosen == "tick" else []

    return best(work, STEPS)


def fan_out(node: Any) -> float:
    """Five jobs handed to threads that are kept, and one wait for all; then the join is called."""
    with ThreadPoolExecutor(5) as pool:

        def work() -> None:
            for _ in range(50):
                state: dict[str, Any] = {"items": []}
                jobs = [pool.submit(node, state.copy()) for _ in range(5)]
                wait(jobs)
                for job in jobs:
                    state["items"] = state["items"] + job.result()["items"]
                state["items"] = state["items"] + [len(state.copy()["items"])]

        return best(work, 50)


def p7() -> float:
    return fan_out(lambda state: {"items": [1]})


def p7_wait() -> float:
    """The same, and the five wait for each other, so that each needs a thread of its own."""
    meet = Barrier(5)

    def node(state: Any) -> Any:
        meet.wait(10)
        return {"items": [1]}

    return fan_out(node)


def p8() -> float:
    """One job per task in a thread pool's queue; results gathered in order."""
    with ThreadPoolExecutor() as pool:

        def work() -> None:
            items: list[int] = []
            for result in pool.map(double, range(SENDS)):
                items.extend(result["items"])

        return best(work, SENDS)


def p9() -> float:
    """One asyncio task per Send; results gathered in order."""

    async def work() -> None:
        items: list[int] = []
        for result in await asyncio.gather(*(adouble(i) for i in range(SENDS))):
            items.extend(result["items"])

    return asyncio.run(abest(work, SENDS))


FLOORS = {
    "P1": p1,
    "P2": p2,
    "P3": p3,
    "P4": p4,
    "P7": p7,
    "P7-wait": p7_wait,
    "P8": p8,
    "P9": p9,
    "P10": lambda: p1(keys=1999),
}
print(FLOORS[case]())
