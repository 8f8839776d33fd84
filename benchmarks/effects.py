"""Cases of effects that happen once and can be undone, on SQLite: what each call costs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import sizes
from cases import Count, Engine, limit
from contracts import in_turn
from timing import more


def act(n: int) -> int:
    return n


def call_once(n: int) -> Any:
    from stategraph import get_runtime

    return get_runtime().once(str(n), act, n)


def declared(kind: Any, *, undo: bool = False) -> Callable[[int], Any]:
    """`act`, with its effect declared."""
    from stategraph import effect

    @effect("keyed")
    def take_back(n: int) -> None: ...

    function = effect(kind, undo=take_back if undo else None)(act)
    return lambda n: (take_back, function(n))  # what undoes it is there as long as it is


def run(e: Engine, saver: Any, call: Callable[[int], Any]) -> Callable[[], Any]:
    """A run of one node that makes many calls, on a new thread each time."""

    def node(state: Any) -> dict[str, Any]:
        for n in range(sizes.CALLS):
            call(n)
        return {"n": 1}

    graph = e.StateGraph(Count).add_node("node", node).add_edge(e.START, "node")
    app, threads = graph.compile(checkpointer=saver), count()

    def work() -> Any:
        config = limit(1, thread_id=f"{id(call)} {next(threads)}")
        app.invoke({"n": 0}, config)
        return app, config

    return work


def added(e: Engine, call: Callable[[int], Any]) -> float:
    """Seconds of processor time that it takes more than a call of the bare function."""
    with TemporaryDirectory() as folder, e.sqlite(f"{folder}/threads.db", "normal") as saver:
        bare, recorded = in_turn(run(e, saver, act), run(e, saver, call))
    return (recorded - bare) / sizes.CALLS


def undone(e: Engine) -> float:
    """Seconds of processor time that undoing a call takes."""
    rounds: list[float] = []
    began = perf_counter()
    with TemporaryDirectory() as folder, e.sqlite(f"{folder}/threads.db", "normal") as saver:
        work = run(e, saver, declared("keyed", undo=True))
        while more(rounds, began):
            app, config = work()
            start = process_time()
            app.undo(config)
            rounds.append(process_time() - start)
    return min(rounds[1:]) / sizes.CALLS
