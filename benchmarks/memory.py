"""The cases of memory, written once for both engines: what a graph, a thread, a Send, a superstep
of history hold.

By tracemalloc: bytes of Python objects, exact and the same in each process; files by their size.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import sizes
from cases import Engine, chain, limit, loop, map_reduce
from stored import file_bytes
from timing import held, live, peak


def graph_of_3(e: Engine) -> float:
    return held(lambda i: chain(e).compile(), sizes.HELD)


def graph_of_100(e: Engine) -> float:
    return held(lambda i: loop(e, sizes.STEPS, others=99).compile(), sizes.HELD // 5 or 1)


def thread(e: Engine) -> float:
    """A thread of three supersteps in the memory saver."""
    app = chain(e).compile(checkpointer=e.InMemorySaver())
    return held(lambda i: app.invoke({"n": 0}, limit(3, thread_id=str(i))), sizes.HELD)


def superstep(e: Engine) -> float:
    """A superstep of history in the memory saver."""
    saver = e.InMemorySaver()
    app = loop(e, sizes.STEPS).compile(checkpointer=saver)
    tracemalloc.start()

    def added(steps: int, name: str) -> int:
        before = live()
        app.invoke({"n": sizes.STEPS - steps}, limit(steps, thread_id=name))
        return live() - before

    added(1, "warm-up")
    few, many = sizes.STEPS // 4, sizes.STEPS
    return (added(many, "many") - added(few, "few")) / (many - few)


def superstep_in_file(e: Engine) -> float:
    """A superstep of history in SQLite, without what an empty file weighs."""
    few, many = sizes.STEPS // 4, sizes.STEPS
    return (file_bytes(e, many) - file_bytes(e, few)) / (many - few)


def send(e: Engine) -> float:
    """What one more Send adds to the superstep at its worst moment: packet, task, result."""
    few, many = (map_reduce(e, count) for count in (sizes.PENDING, 3 * sizes.PENDING))
    tracemalloc.start()
    few.invoke({"items": []})
    return (sends_peak(many) - sends_peak(few)) / (2 * sizes.PENDING)


def sends_peak(app: Any) -> int:
    return peak(lambda: app.invoke({"items": []}))


def send_waiting(e: Engine) -> float:
    """What one more Send holds when the first of them runs."""
    seen: list[int] = []

    def node(item: Any) -> Any:
        if item == 0:
            seen.append(tracemalloc.get_traced_memory()[0])
        return {"items": []}

    few, many = (map_reduce(e, count, node) for count in (sizes.PENDING, 3 * sizes.PENDING))
    tracemalloc.start()
    for app in (few, few, many):
        live()
        app.invoke({"items": []})
    return (seen[2] - seen[1]) / (2 * sizes.PENDING)
