"""`debug=True`: a node that mutates its input gets an error that names it, before the change can spread."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Annotated, TypedDict

import pytest
from kit.drive import each_case
from kit.graphs import chain_of

from stategraph import START, CachePolicy, InMemoryCache, InPlaceEditError, RetryPolicy, StateGraph


class State(TypedDict):
    items: Annotated[list[str], operator.add]
    box: dict[str, int]


@dataclass
class Record:
    items: Annotated[list[str], operator.add] = field(default_factory=list)


def app(node, schema=State, **policies):
    return StateGraph(schema).add_node("n", node, **policies).add_edge(START, "n").compile(debug=True)


def appends(state):
    state["items"].append("in place")


async def appends_async(state):
    state["items"].append("in place")


def edits_deep_inside(state):
    state["box"]["a"] += 1
    return {"items": ["x"]}


@each_case(
    "node, schema, given, key",
    [
        (appends, State, {"items": ["a"], "box": {}}, "items"),
        (appends_async, State, {"items": ["a"], "box": {}}, "items"),
        (edits_deep_inside, State, {"box": {"a": 1}}, "box"),
        (lambda record: record.items.append("x"), Record, {"items": ["a"]}, "items"),
    ],
)
def test_a_node_that_changes_its_input_is_named_with_the_key(drive, node, schema, given, key):
    if node is appends_async and not drive.is_async:
        return
    with pytest.raises(InPlaceEditError, match=f"node 'n' changed '{key}'") as caught:
        drive.invoke(app(node, schema), given)
    assert (caught.value.node, caught.value.keys) == ("n", (key,))


def test_a_mutation_error_is_not_retried(drive):
    """The state is changed already: a second attempt would find nothing wrong."""
    with pytest.raises(InPlaceEditError):
        drive.invoke(app(appends, retry_policy=RetryPolicy(initial_interval=0)), {"items": ["a"]})


def test_correct_nodes_and_incomparable_values_pass(drive):
    def node(state):
        return {"items": [*state["items"], "x"]}

    assert drive.invoke(app(node), {"items": ["a"], "box": {"f": print}}) == {"items": ["a", "a", "x"], "box": {"f": print}}


def test_without_debug_inputs_are_not_checked(drive):
    quiet = chain_of(State, n=appends).compile()
    assert drive.invoke(quiet, {"items": ["a"]}) == {"items": ["a", "in place"]}


def test_a_result_of_a_mutating_node_is_not_cached(drive):
    """Else the next call would find the result and run on as if nothing had happened."""
    graph = StateGraph(State).add_node("n", appends, cache_policy=CachePolicy()).add_edge(START, "n")
    watched = graph.compile(debug=True, cache=InMemoryCache())
    for _ in range(2):
        with pytest.raises(InPlaceEditError):
            drive.invoke(watched, {"items": ["a"]})


def test_a_call_can_switch_debug_on_or_off(drive):
    given = {"items": ["a"], "box": {}}
    plain = chain_of(State, n=appends).compile()
    for _ in range(2):
        with pytest.raises(InPlaceEditError, match="node 'n' changed 'items'"):
            drive.invoke(plain, given, debug=True)
        with pytest.raises(InPlaceEditError):
            drive.stream(plain, given, debug=True)
    assert drive.invoke(plain, given)["items"] == drive.invoke(plain, given, debug=False)["items"]
    assert drive.invoke(app(appends), given, debug=False)["items"] == drive.invoke(plain, given)["items"]
    with pytest.raises(InPlaceEditError):
        drive.invoke(app(appends), given, debug=None)


def test_error_handlers_are_checked_too(drive):
    def fails(state):
        raise ValueError("no")

    graph = StateGraph(State).add_node("n", fails, error_handler=appends).add_edge(START, "n").compile()
    with pytest.raises(InPlaceEditError):
        drive.invoke(graph, {"items": ["a"], "box": {}}, debug=True)
    assert "items" in drive.invoke(graph, {"items": ["a"], "box": {}})
