"""What an executor adds where every task has 1 MB of its own (P38): 200 tasks of a graph ÷ the same
calls of the bare pool or cluster.

    .venv/bin/python benchmarks/executor_inputs.py                # all executors
    .venv/bin/python benchmarks/executor_inputs.py pool dask      # some

The bare calls and the graph take turns in one process; each figure is the best of all rounds. What
stands beside own processes is a bare `ProcessPoolExecutor`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from operator import add
from typing import Annotated, Any, TypedDict

import sizes

from stategraph import START, Send, StateGraph

BYTES = 1_000_000
NAMES = ("threads", "pool", "processes", "dask", "ray")
WORKERS, ROUNDS = 2, 3


class State(TypedDict, total=False):
    """What the tasks found."""

    done: Annotated[list[int], add]


def size(sent: dict[str, bytes]) -> dict[str, Any]:
    """Needs all of its input."""
    return {"done": [len(sent["blob"])]}


def build() -> Any:
    """A graph that sends 1 MB to each task."""

    def sends(state: State) -> list[Send]:
        return [Send("size", given) for given in inputs()]

    return StateGraph(State).add_node(size).add_conditional_edges(START, sends, ["size"])


def inputs() -> list[dict[str, bytes]]:
    """1 MB for each task, all different."""
    return [{"blob": n.to_bytes(4, "big") * (BYTES // 4)} for n in range(sizes.INPUTS)]


def bare(name: str, executor: Any) -> Callable[[], Any]:
    """The same calls without us."""
    if name == "dask":
        return lambda: executor.gather([executor.submit(size, x, pure=False) for x in inputs()])
    if name == "ray":
        remote = executor.remote(size)
        return lambda: executor.get([remote.remote(x) for x in inputs()])
    return lambda: [f.result() for f in [executor.submit(size, x) for x in inputs()]]


def measure(name: str) -> tuple[float, float]:
    """Seconds: ours, and bare."""
    # Not above: a worker of Ray's that imports this file finds the package of this name first.
    from executors import open_executor

    with ExitStack() as stack:
        given: Any = ThreadPoolExecutor(WORKERS) if name == "threads" else None
        executor = stack.enter_context(given or open_executor(name, WORKERS))
        beside = executor
        if name == "processes":
            beside = stack.enter_context(open_executor("pool", WORKERS))
        app, limit = build().compile(executor=executor), {"max_concurrency": 4 * WORKERS}
        plain = bare(name, beside)
        found: list[tuple[float, float]] = []
        for _ in range(1 + ROUNDS):  # the first starts workers
            found.append((timed(lambda: app.invoke({}, limit)), timed(plain)))
    ours, others = zip(*found[1:], strict=True)
    return min(ours), min(others)


def ratio(name: str) -> float:
    """Ours ÷ bare."""
    ours, others = measure(name)
    return ours / others


def timed(call: Callable[[], Any]) -> float:
    """Seconds."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main(names: list[str]) -> None:
    """The table."""
    print("| executor | ours | bare | ratio |\n|---|---|---|---|")
    for name in names or NAMES:
        ours, plain = measure(name)
        print(f"| {name} | {ours * 1e3:.0f} ms | {plain * 1e3:.0f} ms | {ours / plain:.2f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
