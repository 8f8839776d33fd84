"""One case with Burr: `python with_burr.py CASE` prints one number.

An application is one state machine that goes on from where it stands: one action at a time, no
supersteps. State is immutable, conditions choose the next action. A fan-out is an action of its own
that runs one small application for each item, on threads or asyncio. Its SQLite persister keeps the
state as JSON after each action and no parents, writes or checksums; the connection gets the same
pragmas as in the other columns.
"""

import asyncio
import sqlite3
import sys
from collections.abc import Callable
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

import fresh


def main(case: str) -> float:
    if case.startswith("P13"):
        return fresh.measure(case, lambda: __import__("burr.core"))
    return CASES[case]()


def machine(names: list[str], steps: int, is_async: bool = False, persister: Any = None) -> Any:
    """Actions in a circle that count up to `steps` and stop in "end", which begins anew."""
    from burr.core import ApplicationBuilder, action, default, expr

    def up(state: Any) -> Any:
        return state.update(n=state["n"] + 1)

    async def aup(state: Any) -> Any:
        return state.update(n=state["n"] + 1)

    def zero(state: Any) -> Any:
        return state.update(n=0)

    counts = action(reads=["n"], writes=["n"])
    actions = {name: counts(aup if is_async else up) for name in names} | {"end": counts(zero)}
    ways: list[Any] = list(pairwise(names))
    ways += [
        (names[-1], names[0], expr(f"n < {steps}")),
        (names[-1], "end", default),
        ("end", names[0]),
    ]
    builder = ApplicationBuilder().with_actions(**actions).with_transitions(*ways)
    builder = builder.with_state(n=0).with_entrypoint(names[0])
    if persister is not None:
        builder = builder.with_state_persister(persister).with_identifiers(
            app_id="1", partition_key="1"
        )
    return builder.build()


def timed(app: Any, units: int, calls: int = 1, halt: str = "end", is_async: bool = False) -> float:
    """Seconds per unit; a round is so many calls that run until `halt`."""
    from timing import abest, best

    def work() -> None:
        for _ in range(calls):
            app.run(halt_after=[halt])

    async def awork() -> None:
        for _ in range(calls):
            await app.arun(halt_after=[halt])

    return asyncio.run(abest(awork, units * calls)) if is_async else best(work, units * calls)


def loop(is_async: bool = False, persister: Any = None) -> float:
    from sizes import STEPS

    # "end" is one action more, in 500.
    return timed(machine(["tick"], STEPS, is_async, persister), STEPS, is_async=is_async)


def chain(is_async: bool = False) -> float:
    from sizes import INVOKES

    # A call ends with "c"; the next begins with "a".
    return timed(machine(["a", "b", "c"], 10**12, is_async), 1, INVOKES, "c", is_async)


def saved(synchronous: str) -> float:
    from burr.core.persistence import SQLitePersister

    with TemporaryDirectory() as folder:
        connection = sqlite3.connect(f"{folder}/threads.db")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={synchronous}")
        persister = SQLitePersister("", connection=connection)
        persister.initialize()
        spent = loop(persister=persister)
        connection.close()
    return spent


def in_memory() -> float:
    from burr.core.persistence import InMemoryPersister

    return loop(persister=InMemoryPersister())


def spread(items: int, is_async: bool) -> Any:
    """Its `MapStates`: the same action on a state for each item, gathered in a list."""
    from burr.core import ApplicationBuilder, action
    from burr.core.graph import GraphBuilder
    from burr.core.parallelism import MapStates, RunnableGraph

    @action(reads=["i"], writes=["result"])
    def double(state: Any) -> Any:
        return state.update(result=2 * state["i"])

    @action(reads=["i"], writes=["result"])
    async def adouble(state: Any) -> Any:
        return state.update(result=2 * state["i"])

    graph = GraphBuilder().with_actions(work=adouble if is_async else double).build()

    class Spread(MapStates):
        reads: list[str] = []  # noqa: RUF012  (as its documentation shows it)
        writes = ["items"]  # noqa: RUF012

        def is_async(self) -> bool:
            return is_async

        def action(self, state: Any, inputs: Any) -> Any:
            return RunnableGraph(graph, "work", ["work"])

    class Threads(Spread):
        def states(self, state: Any, context: Any, inputs: Any) -> Any:
            return (state.update(i=i) for i in range(items))

        def reduce(self, state: Any, results: Any) -> Any:
            return state.update(items=[result["result"] for result in results])

    class Tasks(Spread):
        async def states(self, state: Any, context: Any, inputs: Any) -> Any:
            for i in range(items):
                yield state.update(i=i)

        async def reduce(self, state: Any, results: Any) -> Any:
            return state.update(items=[result["result"] async for result in results])

    builder = ApplicationBuilder().with_actions(spread=Tasks() if is_async else Threads())
    return (
        builder.with_transitions(("spread", "spread"))
        .with_state(items=[])
        .with_entrypoint("spread")
        .build()
    )


def fan_out(is_async: bool = False) -> float:
    from sizes import INVOKES

    return timed(spread(5, is_async), 1, INVOKES // 5 or 1, "spread", is_async)


def p9() -> float:
    from sizes import SENDS

    return timed(spread(SENDS, True), SENDS, 1, "spread", True)


CASES: dict[str, Callable[[], float]] = {
    "P1": loop,
    "P2": chain,
    "P2-async": lambda: chain(is_async=True),
    "P3": lambda: loop(is_async=True),
    "P4": in_memory,
    "P5": lambda: saved("normal"),
    "P6": lambda: saved("full"),
    "P7": fan_out,
    "P7-async": lambda: fan_out(is_async=True),
    "P9": p9,
}

print(main(sys.argv[1]))
