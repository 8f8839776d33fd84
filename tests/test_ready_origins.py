"""schedule="ready": a task that is under way goes on in a later call with all that it had found at its origin."""

from __future__ import annotations

import operator
from typing import Annotated, Any

import pytest
from typing_extensions import TypedDict

from stategraph import START, Command, InMemorySaver, RemainingSteps, Send, StateGraph, interrupt

CONFIG: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": 10}
EMPTY: Any = {"log": []}


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    x: Any
    left: RemainingSteps


def graph_that_asks(ask: Any) -> Any:
    """q asks, and z would too; b > b2 ends meanwhile."""
    graph = StateGraph(State).add_node("q", ask).add_node("z", ask)
    for name in ("b", "b2"):
        graph.add_node(name, lambda _, name=name: {"log": [name]})
    graph.add_conditional_edges(START, lambda _: ["q", "b"], ["q", "b", "z"])
    return graph.add_edge("b", "b2")


@pytest.mark.parametrize("schedule", ["ready", "supersteps"])
def test_it_reads_what_a_command_had_brought(drive: Any, schedule: Any) -> None:
    read = []

    def ask(state: Any) -> Any:
        read.append(state.get("x"))
        return {"log": [interrupt("?")]}

    app = graph_that_asks(ask).compile(InMemorySaver(), schedule=schedule)
    drive.invoke(app, EMPTY, CONFIG, interrupt_before=["q", "b"])
    drive.invoke(app, Command(update={"x": 5}, goto=["z", Send("z", {"x": 7})]), CONFIG)
    asked = [question.id for question in drive.get_state(app, CONFIG).interrupts]
    assert (len(asked), sorted(read)) == (3, [5, 5, 7])
    drive.invoke(app, Command(resume=dict.fromkeys(asked, "answer")), CONFIG)
    assert sorted(read) == [5, 5, 5, 5, 7, 7]


@pytest.mark.parametrize("schedule", ["ready", "supersteps"])
def test_it_may_take_all_steps_of_the_call(drive: Any, schedule: Any) -> None:
    left = []

    def ask(state: Any) -> Any:
        left.append(state["left"])
        return {"log": [interrupt("?")]}

    app = graph_that_asks(ask).compile(InMemorySaver(), schedule=schedule)
    drive.invoke(app, EMPTY, CONFIG)
    drive.invoke(app, Command(resume="answer"), CONFIG)
    assert left == [10, 10]
