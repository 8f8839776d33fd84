"""The curves: what one unit of work costs as something grows. Written once for both engines, as the
cases are.

Each curve takes the engine and a size and gives seconds per unit. `grow.py` runs them and says what
is flat.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import cases
import stored
from cases import Engine
from timing import best, mean

POSTGRES = "BENCH_POSTGRES"
"""The environment variable that has the connection string of an empty schema."""


def supersteps(e: Engine, size: int) -> float:
    """Per superstep of a loop that goes round `size` times."""
    app, config = cases.loop(e, size).compile(), cases.limit(size)
    return best(lambda: app.invoke({"n": 0}, config), size)


def sends(e: Engine, size: int) -> float:
    """Per Send of one superstep, on average: the garbage collector's share comes in some rounds
    only."""
    app = cases.map_reduce(e, size)
    return mean(lambda: app.invoke({"items": []}), size)


def nodes_build(e: Engine, size: int) -> float:
    """Per node: declare and compile a graph of `size` nodes."""
    return best(lambda: cases.loop(e, 1, others=size - 1).compile(), size)


def nodes_step(e: Engine, size: int) -> float:
    """Per superstep of a loop of one node, in a graph of `size` nodes, without what a call costs
    once."""
    app, config = cases.loop(e, 200, others=size - 1).compile(), cases.limit(200)
    one, all = (best(lambda n=n: app.invoke({"n": n}, config), 1) for n in (199, 0))  # type: ignore[misc]
    return (all - one) / 199


def nodes_call(e: Engine, size: int) -> float:
    """Per call of one superstep, in a graph of `size` nodes."""
    app, config = cases.loop(e, 1, others=size - 1).compile(), cases.limit(1)

    def work() -> None:
        for _ in range(20):
            app.invoke({"n": 0}, config)

    return best(work, 20)


APPENDS = 60


def appends(e: Engine, size: int, saver: Any) -> float:
    """From one append to a list of `size` items to the next: the median of some."""
    times: list[float] = []

    def item() -> str:
        times.append(perf_counter())
        return "x" * 20

    app = stored.appending(e, item).compile(checkpointer=saver)
    given = {"items": [str(size + APPENDS)] + ["x" * 20] * (size - 1)}
    app.invoke(given, cases.limit(APPENDS, thread_id="1"), **sync(saver))
    return median(after - before for before, after in pairwise(times[10:]))


def sync(saver: Any) -> dict[str, str]:
    """The peer takes a durability only where there is a saver."""
    return {} if saver is None else {"durability": "sync"}


def kept(e: Engine, where: str) -> AbstractContextManager[Any]:
    """An open saver: in memory, a file that is gone afterwards, or the Postgres that the
    environment names."""
    if where == "none":
        return nullcontext(None)
    if where == "memory":
        return nullcontext(e.InMemorySaver())
    if where == "sqlite":
        return Temporary(e)
    assert e.postgres is not None
    return e.postgres(os.environ[POSTGRES])


class Temporary:
    """A saver in a file of a temporary folder."""

    def __init__(self, e: Engine) -> None:
        self._folder = TemporaryDirectory()
        self._saver = e.sqlite(f"{self._folder.name}/threads.db", "normal")

    def __enter__(self) -> Any:
        return self._saver.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._saver.__exit__(*error)
        self._folder.cleanup()


def with_saver(
    curve: Callable[[Engine, int, Any], float], where: str
) -> Callable[[Engine, int], float]:
    def measured(e: Engine, size: int) -> float:
        with kept(e, where) as saver:
            return curve(e, size, saver)

    return measured


def checkpoints(e: Engine, size: int, saver: Any) -> float:
    """Per call of one superstep, on a thread of `size` checkpoints."""
    return stored.opened(e, saver, size)


CURVES: dict[str, Callable[[Engine, int], float]] = {
    "supersteps": supersteps,
    "sends": sends,
    "keys": cases.wide,
    "nodes-build": nodes_build,
    "nodes-step": nodes_step,
    "nodes-call": nodes_call,
    **{
        f"list-{where}": with_saver(appends, where)
        for where in ("none", "memory", "sqlite", "postgres")
    },
    **{
        f"thread-{where}": with_saver(checkpoints, where)
        for where in ("memory", "sqlite", "postgres")
    },
}


def point(asked: str, engine: Engine) -> float:
    """`CURVE@SIZE`."""
    name, _, size = asked.partition("@")
    return CURVES[name](engine, int(size))
