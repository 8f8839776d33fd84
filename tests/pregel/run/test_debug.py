"""`debug=True`: a node that changes its input in place is told so, by name, before the change can spread."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import pytest

from stategraph import START, CachePolicy, InMemoryCache, InPlaceEditError, RetryPolicy, StateGraph


class State(TypedDict):
    items: Annotated[list[str], operator.add]
    box: dict[str, int]


@dataclass
class Record:
    items: Annotated[list[str], operator.add] = field(default_factory=list)


def app(node: Any, schema: Any = State, **policies: Any) -> Any:
    return StateGraph(schema).add_node("n", node, **policies).add_edge(START, "n").compile(debug=True)


def appends(state: Any) -> None:
    state["items"].append("in place")


async def appends_async(state: Any) -> None:
    state["items"].append("in place")


def test_a_node_that_appends_to_its_input_is_named_with_the_key(drive: Any) -> None:
    for node in [appends] + ([appends_async] if drive.is_async else []):
        with pytest.raises(InPlaceEditError, match="node 'n' changed 'items'") as caught:
            drive.invoke(app(node), {"items": ["a"], "box": {}})
        assert (caught.value.node, caught.value.keys) == ("n", ("items",))


def test_an_edit_deep_inside_is_seen_as_well(drive: Any) -> None:
    def node(state: Any) -> dict[str, Any]:
        state["box"]["a"] = 2
        return {"items": ["x"]}

    with pytest.raises(InPlaceEditError, match="'box'"):
        drive.invoke(app(node), {"box": {"a": 1}})


def test_an_edit_of_a_record_is_seen(drive: Any) -> None:
    with pytest.raises(InPlaceEditError, match="'items'"):
        drive.invoke(app(lambda record: record.items.append("x"), Record), {"items": ["a"]})


def test_it_is_not_tried_again(drive: Any) -> None:
    """The state is changed already: a second attempt would find nothing wrong."""
    with pytest.raises(InPlaceEditError):
        drive.invoke(app(appends, retry_policy=RetryPolicy(initial_interval=0)), {"items": ["a"]})


def test_good_nodes_and_what_cannot_be_compared_pass(drive: Any) -> None:
    def node(state: Any) -> dict[str, Any]:
        return {"items": [*state["items"], "x"]}

    assert drive.invoke(app(node), {"items": ["a"], "box": {"f": print}}) == {"items": ["a", "a", "x"], "box": {"f": print}}


def test_without_debug_nobody_looks(drive: Any) -> None:
    quiet = StateGraph(State).add_node("n", appends).add_edge(START, "n").compile()
    assert drive.invoke(quiet, {"items": ["a"]}) == {"items": ["a", "in place"]}


def test_what_such_a_node_returned_is_not_cached(drive: Any) -> None:
    """Else the next call would find the result and run on as if nothing had happened."""
    graph = StateGraph(State).add_node("n", appends, cache_policy=CachePolicy()).add_edge(START, "n")
    watched = graph.compile(debug=True, cache=InMemoryCache())
    for _ in range(2):
        with pytest.raises(InPlaceEditError):
            drive.invoke(watched, {"items": ["a"]})


def test_a_call_may_ask_for_it_or_do_without(drive: Any) -> None:
    given = {"items": ["a"], "box": {}}
    plain = StateGraph(State).add_node("n", appends).add_edge(START, "n").compile()
    for _ in range(2):
        with pytest.raises(InPlaceEditError, match="node 'n' changed 'items'"):
            drive.invoke(plain, given, debug=True)
        with pytest.raises(InPlaceEditError):
            drive.stream(plain, given, debug=True)
    assert drive.invoke(plain, given)["items"] == drive.invoke(plain, given, debug=False)["items"]
    assert drive.invoke(app(appends), given, debug=False)["items"] == drive.invoke(plain, given)["items"]
    with pytest.raises(InPlaceEditError):
        drive.invoke(app(appends), given, debug=None)


def test_error_handlers_are_watched_too(drive: Any) -> None:
    def fails(state: Any) -> None:
        raise ValueError("no")

    graph = StateGraph(State).add_node("n", fails, error_handler=appends).add_edge(START, "n").compile()
    with pytest.raises(InPlaceEditError):
        drive.invoke(graph, {"items": ["a"], "box": {}}, debug=True)
    assert "items" in drive.invoke(graph, {"items": ["a"], "box": {}})
