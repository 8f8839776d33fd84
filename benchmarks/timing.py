"""How a case is timed: one warm-up, then rounds until the time is used up; the quickest round
counts, for on a shared machine the others were disturbed. Garbage collection stays on. And memory:
what objects hold, by tracemalloc.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from typing import Any

import sizes


def best(work: Callable[[], Any], units: int) -> float:
    """Seconds per unit in the quickest round of `work`, which does `units` of them. The first round
    warms up."""
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


def mean(work: Callable[[], Any], units: int) -> float:
    """Seconds per unit on average, for what the quickest round would hide: a full garbage
    collection comes only in some of the rounds, and is paid for all the same. Twice the time, for
    more rounds."""
    work()
    rounds, began = 0, perf_counter()
    while rounds < sizes.FEWEST or perf_counter() - began < 2 * sizes.SECONDS:
        work()
        rounds += 1
    return (perf_counter() - began) / rounds / units


def more(rounds: Sequence[float], began: float) -> bool:
    """Whether another round is worth its time."""
    return len(rounds) < sizes.FEWEST or (
        len(rounds) < sizes.MOST and perf_counter() - began < sizes.SECONDS
    )


def held(make: Callable[[int], Any], count: int) -> float:
    """Bytes that one of `count` things keeps alive once it is made. The first one, made before,
    warms up."""
    tracemalloc.start()
    kept = [make(0)]
    before = live()
    kept += [make(i) for i in range(1, count + 1)]
    return (live() - before) / count


def live() -> int:
    """Bytes that Python objects hold now."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def peak(work: Callable[[], Any]) -> int:
    """Bytes above what was held before, at the worst moment of `work`."""
    before = live()
    tracemalloc.reset_peak()
    work()
    return tracemalloc.get_traced_memory()[1] - before
