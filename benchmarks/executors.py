"""What a task costs on each executor: nothing to do, 10 ms of Python, 1 MB of state to read.

    .venv/bin/python benchmarks/executors.py              # the table in
        # benchmarks/SCALING.md: three sittings, seven minutes
    .venv/bin/python benchmarks/executors.py processes 2  # one executor with 2 workers, as JSON

Every row is a fresh process in each sitting. Each figure is the best of all rounds: what the
machine can do, not what else it was doing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import add
from typing import Annotated, Any, TypedDict

from stategraph import START, Send, StateGraph
from stategraph.executors import ProcessExecutor

INTERPRETERS = ["interpreters"] if sys.version_info >= (3, 14) else []
NAMES = ["threads", "processes", "pool", *INTERPRETERS, "dask", "ray"]
ROWS = [(name, workers) for name in NAMES for workers in (1, 2)]
TASKS, LONG_TASKS, READERS, ROUNDS = 200, 60, 20, 5
CASES = ("alone", "wide", "busy", "large")


class State(TypedDict, total=False):
    """`size` is how many tasks to send, `turns` how long each computes; `text` is the 1 MB."""

    size: int
    turns: int
    text: list[str]
    done: Annotated[list[int], add]


class Reads(TypedDict):
    """What a reader gets."""

    text: list[str]


def nothing(sent: Any) -> dict[str, Any]:
    """The cost of a call, and no more."""
    return {"done": [1]}


def compute(sent: dict[str, int]) -> dict[str, Any]:
    """So many turns of pure Python."""
    total = 0
    for i in range(sent["turns"]):
        total += i * i
    return {"done": [1]}


def read(state: Reads) -> dict[str, Any]:
    """Needs all of the large value."""
    return {"done": [len(state["text"])]}


def alone() -> Any:
    """One node."""
    return StateGraph(State).add_node(nothing).add_edge(START, "nothing")


def fan(node: Callable[..., Any]) -> Any:
    """`size` tasks of one superstep."""

    def sends(state: State) -> list[Send]:
        return [Send(node.__name__, {"turns": state.get("turns", 0)})] * state["size"]

    graph = StateGraph(State).add_node(node)
    return graph.add_conditional_edges(START, sends, [node.__name__])


def readers() -> Any:
    """Nodes side by side that read the same 1 MB."""
    graph = StateGraph(State)
    for n in range(READERS):
        graph.add_node(f"read{n}", read).add_edge(START, f"read{n}")
    return graph


def turns_of(seconds: float) -> int:
    """How many turns of `compute` take so long, at best."""
    turns = 20_000
    best = min(timed(lambda: compute({"turns": turns})) for _ in range(20))
    return round(turns * seconds / best)


def timed(call: Callable[[], Any]) -> float:
    """Seconds."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


@contextmanager
def open_executor(name: str, workers: int) -> Iterator[Any]:
    """The executor of a row."""
    if name == "processes":
        with ProcessExecutor(workers) as processes:
            yield processes
    elif name == "pool":
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        with ProcessPoolExecutor(
            workers, mp_context=multiprocessing.get_context("forkserver")
        ) as pool:
            yield pool
    elif name == "interpreters":
        from concurrent.futures import InterpreterPoolExecutor

        with InterpreterPoolExecutor(workers) as pool:
            yield pool
    elif name == "dask":
        from distributed import Client, LocalCluster

        here = {"dashboard_address": "127.0.0.1:0", "host": "127.0.0.1"}
        with (
            LocalCluster(n_workers=workers, threads_per_worker=1, **here) as cluster,
            Client(cluster) as client,
        ):
            yield client
    elif name == "ray":
        os.environ.update(
            RAY_USAGE_STATS_ENABLED="0",
            RAY_AUTH_MODE="disabled",
            RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
        )
        import ray

        ray.init(
            num_cpus=workers,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            logging_level="ERROR",
        )
        yield ray
        ray.shutdown()
    else:
        yield name


def measure(name: str, workers: int) -> dict[str, float]:
    """Microseconds per task of each case."""
    turns = turns_of(0.01)
    text = [f"{n:0100}" for n in range(10_000)]
    limit = {"max_concurrency": workers} if name == "threads" else {"max_concurrency": 4 * workers}
    jobs: dict[str, tuple[Any, dict[str, Any], int]] = {
        "alone": (alone(), {}, 1),
        "wide": (fan(nothing), {"size": TASKS}, TASKS),
        "busy": (fan(compute), {"size": LONG_TASKS, "turns": turns}, LONG_TASKS),
        "large": (readers(), {"text": text}, READERS),
    }
    found: dict[str, float] = {}
    with open_executor(name, workers) as executor:
        for case, (graph, given, count) in jobs.items():
            app = graph.compile(executor=executor)
            for _ in range(3):
                app.invoke(given, limit)  # workers start, functions arrive
            rounds = 50 if case == "alone" else ROUNDS
            best = min(
                timed(lambda app=app, given=given: app.invoke(given, limit)) for _ in range(rounds)
            )
            found[case] = best / count * 1e6
    return found


def main(words: list[str]) -> None:
    """One row as JSON, or the table, of so many sittings."""
    if len(words) == 2:
        warnings.simplefilter("ignore")
        print(json.dumps(measure(words[0], int(words[1]))))
        return
    best: dict[tuple[str, int], dict[str, float]] = {}
    for _ in range(int(words[0]) if words else 3):
        for row in ROWS:
            figures, known = sitting(*row), best.get(row, {})
            best[row] = {case: min(figures[case], known.get(case, figures[case])) for case in CASES}
    print("| executor | workers | alone | 200 at once | 10 ms of Python | 1 MB of state |")
    print("|---|---|---|---|---|---|")
    for (name, workers), figures in best.items():
        print(
            f"| {name} | {workers} | " + " | ".join(shown(figures[case]) for case in CASES) + " |"
        )


def sitting(name: str, workers: int) -> dict[str, float]:
    """The figures of one fresh process."""
    command = [sys.executable, __file__, name, str(workers)]
    told = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
    ).stdout
    return dict(json.loads(told.splitlines()[-1]))


def shown(micros: float) -> str:
    """A time for people."""
    return f"{micros:,.0f} µs" if micros < 1000 else f"{micros / 1000:.1f} ms"


if __name__ == "__main__":
    main(sys.argv[1:])
