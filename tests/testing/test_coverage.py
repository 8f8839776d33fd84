"""Graph coverage: which nodes, edges and answers of routers of a graph have run."""

from __future__ import annotations

import pickle
from typing import TypedDict

import pytest
from kit.graphs import chain_of, graph_of, thread_config

from stategraph import (
    END,
    START,
    CachePolicy,
    Command,
    InMemorySaver,
    NodeError,
    RetryPolicy,
    Send,
    StateGraph,
    interrupt,
    task,
)
from stategraph.store import InMemoryCache
from stategraph.testing import Coverage, Outcome, measure_coverage, replace


class State(TypedDict, total=False):
    kind: str


def sort(state):
    return {}


def work(state):
    return {}


def route(state):
    return [Send("work", state)] if state["kind"] == "many" else state["kind"]


def build(name="shop"):
    graph = graph_of(State, "S>sort", sort=sort, one=work, two=work, work=work)
    graph.add_conditional_edges("sort", route, {"one": "one", "two": "two", "stop": END, "work": "work"})
    return graph.add_edge("one", "two").compile(name=name)


def test_what_has_run_is_counted(drive):
    app = build()
    with measure_coverage() as coverage:
        for kind in ("one", "many", "one"):
            drive.invoke(app, {"kind": kind})
    drive.invoke(app, {"kind": "stop"})  # afterwards
    found = coverage.of(app)
    assert found.nodes == {"sort": 3, "one": 2, "two": 2, "work": 1}
    assert (found.edges[START, "sort"], found.edges["sort", "one"], found.edges["sort", "work"]) == (3, 2, 1)
    assert found.missed_nodes == []
    assert found.missed_edges == [("sort", "two"), ("sort", END)]
    assert found.outcomes == {Outcome("sort", "route", "one"): 2, Outcome("sort", "route", "work"): 1}
    assert [each.answer for each in found.missed_outcomes] == ["two", "stop"]
    assert coverage.report().splitlines() == [
        "shop: 75 %, 4 of 4 nodes, 6 of 8 edges, 2 of 4 outcomes of routers",
        "    missed: edge 'sort' -> 'two'",
        "    missed: edge 'sort' -> END",
        "    missed: route() behind 'sort': 'two'",
        "    missed: route() behind 'sort': 'stop'",
    ]


def test_a_send_to_a_declared_node_is_that_answer_and_another_one_is_a_send():
    graph = StateGraph(State).add_node("work", work).add_node("rest", work)
    graph.add_conditional_edges(START, route, ["work", "rest"])
    graph.add_conditional_edges("work", lambda state: [Send("rest", state)])
    app = graph.compile()
    with measure_coverage(app) as coverage:
        app.invoke({"kind": "many"})
    assert [each.answer for each in coverage.of(app).outcomes] == ["work", "Send"]
    assert [each.answer for each in coverage.of(app).missed_outcomes] == ["rest"]


def test_a_graph_that_does_not_run_is_reported_if_it_is_named():
    with measure_coverage(build()) as coverage:
        pass
    assert coverage.report().startswith("shop: 0 %, 0 of 4 nodes, 0 of 8 edges, 0 of 4")
    with measure_coverage() as nothing:
        pass
    assert (nothing.report(), nothing.percent) == ("", 100.0)


def test_commands_joins_handlers_and_questions_count(drive):
    def fail(state):
        raise ValueError("no")

    def mend(state, error: NodeError) -> Command:
        return Command(goto="end")

    def ask(state) -> Command:
        interrupt("?")
        return Command(goto=END)

    graph = StateGraph(State).add_node("a", work).add_node("b", work).add_node("joined", work)
    graph.add_node("fail", fail, error_handler=mend).add_node("end", work).add_node(ask, destinations=["end", END])
    for node in ("a", "b", "fail", "ask"):
        graph.add_edge(START, node)
    app = graph.add_edge(["a", "b"], "joined").compile(InMemorySaver())
    thread = thread_config("1")
    with measure_coverage() as coverage:
        drive.invoke(app, {}, thread)
        drive.invoke(app, Command(resume=1), thread)
    found = coverage.of(app)
    assert found.missed() == ["edge 'fail' -> END", "edge 'ask' -> 'end'"]


def test_nested_graphs_and_copies_count(drive):
    outer = chain_of(State, inner=build("inner")).compile(name="outer")
    with measure_coverage() as coverage:
        drive.invoke(replace(outer, {"inner:one": {}}), {"kind": "one"})
    assert [graph.model.name for graph in coverage.graphs.values()] == ["outer", "inner"]
    assert coverage.of(build("inner")).nodes["one"] == 1
    assert coverage.of(outer).percent == 100.0


def test_other_processes_can_be_added():
    app = build()
    with measure_coverage(app) as coverage:
        app.invoke({"kind": "one"})
    other = pickle.loads(pickle.dumps(coverage))
    assert other.report() == coverage.report()
    coverage.add(other)
    assert coverage.of(app).nodes["sort"] == 2
    empty = Coverage()
    empty.add(other)
    assert empty.of(app).nodes["sort"] == 1


def test_nothing_is_counted_once_it_is_over():
    from stategraph.pregel.task.spans import EVERYWHERE

    before = list(EVERYWHERE)
    with pytest.raises(RuntimeError), measure_coverage():
        raise RuntimeError
    assert before == EVERYWHERE


def test_attempts_count_and_calls_of_tasks_and_cached_results_do_not(drive):
    failures = [ConnectionError("of the call"), ConnectionError("of the node")]

    @task(retry_policy=RetryPolicy(initial_interval=0.001, jitter=False))
    def look():
        if len(failures) == 2:
            raise failures.pop(0)
        return "found"

    def first(state):
        kind = look().result()
        if failures:
            raise failures.pop()
        return {"kind": kind}

    retry = RetryPolicy(initial_interval=0.001, jitter=False)
    graph = StateGraph(State).add_node(first, retry_policy=retry).add_node("work", work, cache_policy=CachePolicy())
    app = graph.add_edge(START, "first").add_edge("first", "work").compile(cache=InMemoryCache())
    with measure_coverage() as coverage:
        drive.invoke(app, {"kind": ""})
        drive.invoke(app, {"kind": ""})
    (found,) = coverage.graphs.values()
    assert dict(found.nodes) == {"first": 3, "work": 1}
    assert found.edges["first", "work"] == 2


def test_a_stored_thread_can_be_counted_wherever_it_has_run(drive):
    """As for threads of a fleet whose workers were killed: what is stored is counted as if it had run here."""
    app = build().copy({"checkpointer": InMemorySaver()})
    outer = StateGraph(State).add_node("shop", build("inner")).add_node("plan", lambda state: Command(goto=Send("end", {})), destinations=["end"])
    outer.add_node("end", work).add_conditional_edges(START, lambda state: "shop", ["shop", "plan"]).add_edge("shop", "plan")
    nested = outer.compile(InMemorySaver(), name="outer")
    with measure_coverage() as here:
        for number, kind in enumerate(["one", "many"]):
            drive.invoke(app, {"kind": kind}, thread_config(str(number)))
        drive.invoke(nested, {"kind": "one"}, thread_config("1"))
    found = Coverage()
    for number in range(2):
        found.add_thread(app, thread_config(str(number)))
    found.add_thread(nested, thread_config("1"))
    assert found.graphs.keys() == here.graphs.keys() and len(found.graphs) == 3
    for key, graph in here.graphs.items():
        assert found.graphs[key].nodes == graph.nodes
        assert {edge: count for edge, count in found.graphs[key].edges.items() if count} == dict(graph.edges)


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_thread_with_schedule_ready_counts_all_that_a_router_behind_start_has_led_to(drive, is_nested):
    """Its first step holds only the task that ended first."""
    graph = graph_of(State, "one>three", one=work, two=work, three=work)
    graph.add_conditional_edges(START, lambda state: ["one", "two"], ["one", "two", "three"])
    app = graph.compile(None if is_nested else InMemorySaver(), schedule="ready")
    if is_nested:
        app = chain_of(State, inside=app).compile(InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}, "max_concurrency": 1}
    drive.invoke(app, {"kind": ""}, thread)
    found = Coverage()
    found.add_thread(app, thread)
    edges = list(found.graphs.values())[-1].edges
    assert [edges[START, name] for name in ("one", "two", "three")] == [1, 1, 0]
