"""M17: `Send`. Map and reduce, the order of what is gathered, and who waits for it."""

from __future__ import annotations

import operator
from enum import StrEnum
from typing import Annotated, Any

import pytest
from kit.drive import each_case
from kit.graphs import thread_config
from pydantic import BaseModel
from typing_extensions import TypedDict

from stategraph import (
    END,
    START,
    Command,
    InMemorySaver,
    InvalidRouteError,
    Send,
    StateGraph,
)


class State(TypedDict, total=False):
    items: list[int]
    done: Annotated[list[Any], operator.add]
    total: int


def work(item):
    return {"done": [item * 10]}


def sends(state: State):
    return [Send("work", item) for item in state["items"]]


def map_reduce():
    """START sends each item to `work`; `sum` gathers."""
    graph = StateGraph(State).add_node("work", work).add_node("sum", lambda state: {"total": sum(state["done"])})
    return graph.add_conditional_edges(START, sends, ["work"]).add_edge("work", "sum")


@each_case("items", [[3, 1, 2], [1, 1, 1], [], [*range(2000, 0, -1)]])
def test_map_reduce(items, drive):
    """Results are in the order of the Sends; equal ones each run, and without any the path ends."""
    summed = {"total": 10 * sum(items)} if items else {}
    assert drive.invoke(map_reduce().compile(), {"items": items}) == {"items": items, "done": [10 * n for n in items], **summed}


def test_all_sends_run_in_one_superstep_and_the_edge_after_them_fires_once(drive):
    chunks = drive.stream(map_reduce().compile(), {"items": [1, 2, 3]}, {"recursion_limit": 2})
    assert [next(iter(chunk)) for chunk in chunks] == ["work", "work", "work", "sum"]


def test_several_senders_are_gathered_in_name_order_each_in_its_own(drive):
    graph = StateGraph(State).add_node("work", lambda item: {"done": [item]})
    for name in "ba":
        graph.add_node(name, lambda state: None).add_edge(START, name)
        graph.add_conditional_edges(
            name, lambda state, n=name: [Send("work", n + "0"), Send("work", n + "1")], ["work"]
        )
    assert drive.invoke(graph.compile(), {}) == {"done": ["a0", "a1", "b0", "b1"]}


PAYLOADS = {
    "dict": {"any": "key"},
    "None": None,
    "number": 0,
    "list": [1],
    "text": "x",
    "object": object(),
}


@each_case("payload", PAYLOADS.values())
def test_a_payload_arrives_as_it_is(payload, drive):
    """Whatever the node's schema says, and whatever the state holds."""

    class Strict(BaseModel):
        a: int

    got = []

    def node(given: Strict):
        got.append(given)

    graph = StateGraph(State).add_node("n", node).add_conditional_edges(START, lambda state: Send("n", payload), ["n"])
    drive.invoke(graph.compile(), {})
    assert got == [payload]
    assert got[0] is payload


def test_a_node_may_send_to_itself(drive):
    def countdown(left):
        return [{"done": [left]}, Send("n", left - 1)] if left else {"done": ["end"]}

    graph = StateGraph(State).add_node("n", countdown).add_conditional_edges(START, lambda state: Send("n", 3), ["n"])
    assert drive.invoke(graph.compile(), {}) == {"done": [3, 2, 1, "end"]}


RETURNED = {
    "a Send": Send("work", 1),
    "a list": [Send("work", 1)],
    "a tuple": (Send("work", 1),),
    "a Command": Command(goto=Send("work", 1)),
    "a list of a Command and an update": [Command(goto=Send("work", 1)), {"total": 5}],
    "a Send beside a Command": [Command(update={"total": 5}), Send("work", 1)],
}


@each_case("returned", RETURNED.values())
def test_a_node_may_return_sends(returned, drive):
    """WART-32: the peer loses a Send beside a Command, and refuses a list of Sends."""
    graph = StateGraph(State).add_node("n", lambda state: returned, destinations=["work"]).add_node("work", work)
    result = drive.invoke(graph.add_edge(START, "n").compile(), {})
    assert result["done"] == [10]


def test_a_returned_send_is_no_update_of_keys_named_like_its_fields(drive):
    """WART-31."""

    class Fields(TypedDict, total=False):
        node: str
        arg: int

    graph = StateGraph(Fields).add_node("n", lambda state: Send("m", 1), destinations=["m"])
    app = graph.add_node("m", lambda given: None).add_edge(START, "n").compile()
    assert drive.invoke(app, {}) is None


def test_a_member_of_a_string_enum_is_a_target_and_can_be_stored(drive):
    class Names(StrEnum):
        WORK = "work"

    graph = StateGraph(State).add_node(Names.WORK, work)
    graph.add_conditional_edges(START, lambda state: Send(Names.WORK, 1), [Names.WORK])
    app = graph.compile(InMemorySaver())
    assert drive.invoke(app, {}, thread_config("1")) == {"done": [10]}


def test_a_join_waits_for_sends(drive):
    graph = map_reduce().add_node("other", lambda state: {"done": [5]}).add_edge(START, "other")
    graph.add_node("join", lambda state: {"done": [len(state["done"])]}).add_edge(["work", "other"], "join")
    assert drive.invoke(graph.compile(), {"items": [1, 2]})["done"] == [5, 10, 20, 3]


def test_fan_out_to_a_subgraph(drive):
    class Inner(TypedDict, total=False):
        item: int
        done: Annotated[list[int], operator.add]

    inner = StateGraph(Inner).add_sequence(
        [("double", lambda state: {"item": state["item"] * 2}), ("tell", lambda state: {"done": [state["item"]]})]
    )
    graph = StateGraph(State).add_node("inner", inner.add_edge(START, "double").compile())
    graph.add_conditional_edges(START, lambda state: [Send("inner", {"item": i}) for i in state["items"]], ["inner"])
    assert drive.invoke(graph.compile(), {"items": [1, 2, 3]}) == {"items": [1, 2, 3], "done": [2, 4, 6]}


# -- nowhere ---------------------------------------------------------------------------------------------------

TARGETS = {
    "unknown": "wrok",
    "END": END,
    "START": START,
    "no name": 3,
    "None": None,
    "list": [],
    "empty": "",
}


@each_case("target", TARGETS.values())
@each_case("by", ["router", "node", "command"])
def test_a_send_to_nowhere_fails_in_the_task_that_sent_it(target, by, drive):
    """D4, WART-20, WART-26."""
    send = Send(target, {})
    node = {"router": lambda s: None, "node": lambda s: send, "command": lambda s: Command(goto=send)}[by]
    graph = StateGraph(State).add_node("n", node, destinations=["work"]).add_node("work", work).add_edge(START, "n")
    if by == "router":
        graph.add_conditional_edges("n", lambda state: send)
    with pytest.raises(InvalidRouteError, match="node 'n' goes to") as caught:
        drive.invoke(graph.compile(), {})
    assert repr(target) in str(caught.value)
    if target == "wrok":
        assert "did you mean 'work'?" in str(caught.value)


def test_nothing_runs_if_one_of_many_sends_goes_nowhere(drive):
    ran = []
    graph = StateGraph(State).add_node("work", ran.append)
    graph.add_conditional_edges(START, lambda state: [Send("work", 1), Send("lost", 2)])
    with pytest.raises(InvalidRouteError):
        drive.invoke(graph.compile(), {})
    assert ran == []


# -- the value -------------------------------------------------------------------------------------------------


def test_sends_are_equal_by_value():
    assert Send("a", {"x": 1}) == Send("a", {"x": 1})
    assert Send("a", 1) != Send("a", 2)
    assert Send("a", 1) != Send("b", 1)
    assert Send("a", 1, timeout=1) != Send("a", 1)
    assert hash(Send("a", 1)) == hash(Send("a", 1))
    assert repr(Send("a", [1])) == "Send(node='a', arg=[1])"
