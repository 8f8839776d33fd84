"""What a superstep costs, in calls of Python functions: counts do not wobble as times do, so CI can hold them.

A limit is the count when it was last set, plus a tenth. A change that needs more says why and sets it anew; one that
needs much less sets it lower.
"""

from __future__ import annotations

import gc
import json
import operator
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Barrier
from typing import Annotated, Any, TypedDict

import pytest

from stategraph import END, START, CompiledStateGraph, InMemorySaver, Send, StateGraph
from stategraph.checkpoint.sqlite import SqliteSaver

# Calls as measured with Python 3.11. Newer Pythons need fewer: they run comprehensions in place.
SUPERSTEP = 41
SUPERSTEP_SAVED = 71
SEND = 12


def calls(work: Callable[[], Any]) -> int:
    """How many Python functions are called by `work` on this thread; a generator counts each time it goes on."""
    count = 0

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call"

    gc.collect()
    gc.disable()  # a collection would run others' finalizers here, and count them
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def per_unit(run: Callable[[int], Any], few: int = 100, many: int = 300) -> float:
    """Calls for one more unit of work: what a run costs once, whatever its length, falls out."""
    run(few)  # whatever is made at the first run is made here
    return (calls(lambda: run(many)) - calls(lambda: run(few))) / (many - few)


class Count(TypedDict):
    n: int
    goal: int


def tick(state: Any) -> dict[str, int]:
    return {"n": state["n"] + 1}


def route(state: Any) -> str:
    return "tick" if state["n"] < state["goal"] else "end"


def loop(schema: Any = Count, others: int = 0, saver: Any = None) -> CompiledStateGraph:
    """A node that counts up with a router, and a chain of nodes that never runs."""
    graph = StateGraph(schema).add_node("tick", tick).add_edge(START, "tick")
    ends = {"tick": "tick", "end": END}
    for i in range(others):
        graph.add_node(f"n{i}", tick)
        if i:
            graph.add_edge(f"n{i - 1}", f"n{i}")
        else:
            ends["other"] = "n0"
    return graph.add_conditional_edges("tick", route, ends).compile(checkpointer=saver)


def per_superstep(app: CompiledStateGraph, **more: Any) -> float:
    return per_unit(lambda steps: app.invoke({"n": 0, "goal": steps, **more}))


def test_a_superstep() -> None:
    assert per_superstep(loop()) <= 1.1 * SUPERSTEP


def test_a_superstep_that_is_saved_in_memory() -> None:
    threads = iter(range(100))
    app = loop(saver=InMemorySaver())

    def run(steps: int) -> None:
        app.invoke({"n": 0, "goal": steps}, {"configurable": {"thread_id": str(next(threads))}})

    assert per_unit(run) <= 1.1 * SUPERSTEP_SAVED


class Gathered(TypedDict):
    items: Annotated[list[int], operator.add]
    count: int


def test_a_send() -> None:
    graph = StateGraph(Gathered).add_node("work", lambda item: {"items": [item]})
    graph.add_conditional_edges(START, lambda state: [Send("work", i) for i in range(state["count"])], ["work"])
    app = graph.compile()
    # One worker, so that all calls are on this thread; the lambda below is one of them, the node another.
    assert per_unit(lambda count: app.invoke({"count": count}, {"max_concurrency": 1})) <= 1.1 * SEND


@pytest.mark.parametrize("others", [10, 100])
def test_nodes_that_do_not_run_cost_nothing(others: int) -> None:
    assert per_superstep(loop(others=others)) == per_superstep(loop())


def test_keys_that_nobody_touches_cost_nothing() -> None:
    keys = {f"k{i}": int for i in range(2000)}
    wide = TypedDict("wide", {"n": int, "goal": int, **keys})  # type: ignore[operator]
    app = loop(wide)
    assert per_superstep(app, **dict.fromkeys(keys, 1)) == per_superstep(loop())


def test_supersteps_cost_the_same_at_the_end_as_at_the_start() -> None:
    app = loop()

    def run(steps: int) -> None:
        app.invoke({"n": 0, "goal": steps})

    assert per_unit(run, 10, 20) == per_unit(run, 1000, 1010)


def test_sends_cost_the_same_among_many() -> None:
    graph = StateGraph(Gathered).add_node("work", lambda item: {"items": [item]})
    graph.add_conditional_edges(START, lambda state: [Send("work", i) for i in range(state["count"])], ["work"])
    app = graph.compile()

    def run(count: int) -> None:
        app.invoke({"count": count}, {"max_concurrency": 1})

    assert per_unit(run, 10, 20) == per_unit(run, 5000, 5010)


def test_import_loads_no_library_that_only_some_runs_need(tmp_path: Path) -> None:
    code = "import json, sys, stategraph; print(json.dumps(list(sys.modules)))"
    shown = subprocess.check_output([sys.executable, "-P", "-c", code], cwd=tmp_path, text=True)
    loaded = {name.partition(".")[0] for name in json.loads(shown)}
    assert not loaded & {"networkx", "graphviz", "pydantic", "sqlite3"}


# -- a database ---------------------------------------------------------------------------------------------------


def said(app: Any, saver: SqliteSaver, given: Any) -> list[str]:
    """The SQL statements of one call."""
    texts: list[str] = []
    saver._database.connection.set_trace_callback(texts.append)
    app.invoke(given, {"configurable": {"thread_id": str(given)}, "recursion_limit": 1000})
    saver._database.connection.set_trace_callback(None)
    return texts


def test_a_superstep_in_sqlite_is_one_commit_of_four_statements() -> None:
    """Begin, the checkpoint with what led to it, its head, commit (PERFORMANCE P16)."""
    with SqliteSaver.from_conn_string(":memory:") as saver:
        few, many = (said(loop(saver=saver), saver, {"n": 0, "goal": goal}) for goal in (10, 110))
    assert many.count("COMMIT") - few.count("COMMIT") == 100
    assert len(many) - len(few) == 400


@pytest.mark.parametrize("count", [2, 5, 20])
def test_tasks_that_end_together_take_two_commits_at_most(count: int) -> None:
    meet = Barrier(count)

    def node(state: Any) -> Any:
        meet.wait(10)
        return {"items": [1]}

    builder = StateGraph(Gathered).add_node("w", node)
    builder.add_conditional_edges(START, lambda state: [Send("w", {})] * (count if state["items"] else 0), ["w"])
    with SqliteSaver.from_conn_string(":memory:") as saver:
        app = builder.compile(checkpointer=saver)
        none, all = (said(app, saver, {"items": items}).count("COMMIT") for items in ([], [0]))
    assert all - none <= 2
