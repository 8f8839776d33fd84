"""Our fleet: one `Worker`, four jobs at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypedDict

import fleets

from stategraph import END, START, StateGraph
from stategraph.workers import Queue, Worker


class Count(TypedDict):
    n: int


def chain(nodes: int, done: Callable[[], None]) -> Any:
    """Nodes that count; the last says that it has run."""

    def tick(state: Count) -> Any:
        return {"n": state["n"] + 1}

    def last(state: Count) -> Any:
        done()
        return {"n": state["n"] + 1}

    graph = StateGraph(Count)
    before = START
    for number in range(nodes):
        graph.add_node(f"n{number}", last if number == nodes - 1 else tick)
        graph.add_edge(before, f"n{number}")
        before = f"n{number}"
    return graph.add_edge(before, END).compile(name="jobs")


def work(url: str, nodes: int, meter: fleets.Meter, **options: Any) -> None:
    app = chain(nodes, meter.count)
    with Queue.from_conn_string(url, app, **options) as queue:
        queue.setup()
        queue.submit_many([(f"t{number}", {"n": 0}) for number in range(meter.submitted)])
    worker = Worker(app, url, concurrency=fleets.AT_ONCE)
    meter.stops.append(worker.stop)
    worker.run()


CASES: dict[str, Callable[[], float]] = {
    **{case: partial(fleets.measure, case, work) for case in ("P28-1", "P28-3", "P36-1", "P36-3")},
    "P36-exit": partial(fleets.measure, "P36-exit", partial(work, durability="exit")),
}
