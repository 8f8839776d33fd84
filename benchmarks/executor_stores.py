"""What the graph's store costs a node: on the driver's threads, and in a worker of
`executor="processes"`.

    .venv/bin/python benchmarks/executor_stores.py    # the table in benchmarks/SCALING.md,
        # best of three sittings

Postgres is a server of the tests' own, which does not wait for its disk; SQLite does. Each sitting
has a new worker.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from kit import cluster

from stategraph import START, StateGraph, get_store
from stategraph.executors import ProcessExecutor
from stategraph.store import BaseStore
from stategraph.store.postgres import PostgresStore
from stategraph.store.sqlite import SqliteStore

CALLS, RUNS, SITTINGS = 300, 200, 3
PLACE = ("a", "b")


class State(TypedDict, total=False):
    """Seconds, by what took them."""

    took: Annotated[list[dict[str, float]], add]


def nothing(state: State) -> State:
    """The cost of a node, and no more."""
    return {}


def look(state: State, store: BaseStore) -> State:
    """One get in a node."""
    store.get(PLACE, "k")
    return {}


def measure(state: State) -> State:
    """The first get, and the quickest of many; the quickest put."""
    first = timed(lambda: get_store().get(PLACE, "k"))
    store = get_store()
    get = min(timed(lambda: store.get(PLACE, "k")) for _ in range(CALLS))
    put = min(timed(lambda: store.put(PLACE, "k", {"text": "x" * 100})) for _ in range(CALLS))
    return {"took": [{"first get": first, "get": get, "put": put}]}


def timed(call: Callable[[], Any]) -> float:
    """Seconds."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


@contextmanager
def open_store(kind: str, folder: str) -> Iterator[BaseStore]:
    """An empty store with one item."""
    if kind == "SqliteStore":
        opened: Any = SqliteStore.from_conn_string(tempfile.mktemp(dir=folder))
    else:
        opened = PostgresStore.from_conn_string(cluster.shared().schema())
    with opened as store:
        store.put(PLACE, "k", {"text": "x" * 100})
        yield store


def figures(kind: str, folder: str, executor: Any) -> dict[str, float]:
    """Seconds, of one sitting."""
    with open_store(kind, folder) as store:
        alone(nothing, None, executor).invoke({})  # the worker starts
        found: dict[str, float] = alone(measure, store, executor).invoke({})["took"][0]
        for name, node, lent in (
            ("a node", nothing, None),
            ("a store", nothing, store),
            ("a get", look, store),
        ):
            app = alone(node, lent, executor)
            found[name] = min(timed(lambda app=app: app.invoke({})) for _ in range(RUNS))
    return found


def alone(node: Any, store: BaseStore | None, executor: Any) -> Any:
    """A graph of one node."""
    return (
        StateGraph(State)
        .add_node("node", node)
        .add_edge(START, "node")
        .compile(store=store, executor=executor)
    )


def main() -> None:
    """The table."""
    best: dict[tuple[str, str], dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(SITTINGS):
            for kind in ("SqliteStore", "PostgresStore"):
                for where in ("threads", "processes"):
                    with ProcessExecutor(1) as processes:
                        found = figures(kind, folder, processes if where == "processes" else where)
                    known = best.setdefault((kind, where), found)
                    best[kind, where] = {
                        name: min(took, known[name]) for name, took in found.items()
                    }
    names = list(next(iter(best.values())))
    print("| store | node on | " + " | ".join(names) + " |")
    print("|---" * (2 + len(names)) + "|")
    for (kind, where), took in best.items():
        print(
            f"| {kind} | {where} | "
            + " | ".join(f"{took[name] * 1e6:,.0f} µs" for name in names)
            + " |"
        )


if __name__ == "__main__":
    main()
