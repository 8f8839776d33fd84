"""schedule="ready": what cannot start stays pending, and what runs meanwhile ends and is applied."""

from __future__ import annotations

import operator
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ValidationError
from ready_graphs import build, by_order, ends_by
from typing_extensions import TypedDict

from stategraph import (
    END,
    START,
    Command,
    GraphDrained,
    GraphRecursionError,
    InMemorySaver,
    RemainingSteps,
    RunControl,
    StateGraph,
    interrupt,
)

CONFIG: Any = {"configurable": {"thread_id": "t"}}
EMPTY: Any = {"log": []}
GRAPH = "S>a>c r:x=c|E S>x S>y>y2"
"""c is due after a, waits for x, which does not lead to it, and would start beside y."""


class Short(BaseModel):
    log: list[str]

    def model_post_init(self, context: Any) -> None:
        if len(self.log) < 4:
            raise ValueError("too short")


def app_of(saver: Any, **nodes: Any) -> Any:
    builder = build(GRAPH, {"x": lambda _: END}, nodes)
    return builder.compile(saver, schedule="ready")


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_node_whose_schema_refuses_its_input(drive: Any, durability: Any) -> None:
    def read(state: Short) -> Any:
        return {"log": ["c"]}

    app = app_of(InMemorySaver(), c=read)
    with ends_by(by_order("a", "x", "y")), pytest.raises(ValidationError):
        drive.invoke(app, EMPTY, CONFIG, durability=durability)
    state = drive.get_state(app, CONFIG)
    assert (state.values, state.next) == ({"log": ["a", "x", "y"]}, ("c", "y2"))
    with ends_by(by_order("c")):
        assert drive.invoke(app, Command(update={"log": ["edit"]}), CONFIG)["log"] == ["a", "x", "y", "edit", "c", "y2"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_node_beyond_the_recursion_limit(drive: Any, durability: Any) -> None:
    app = app_of(InMemorySaver())
    with ends_by(by_order("a", "x", "y")), pytest.raises(GraphRecursionError):
        drive.invoke(app, EMPTY, {**CONFIG, "recursion_limit": 1}, durability=durability)
    assert drive.get_state(app, CONFIG).next == ("c", "y2")
    with ends_by(by_order("c")):
        assert drive.invoke(app, None, CONFIG)["log"] == ["a", "x", "y", "c", "y2"]


@pytest.mark.parametrize("schedule", ["ready", "supersteps"])
@pytest.mark.parametrize("where", ["a question", "a breakpoint"])
def test_a_drained_call_from_which_nothing_is_cut_off_pauses(drive: Any, schedule: Any, where: str) -> None:
    """d waits for the answer, or is stopped, anyway."""
    control = RunControl()

    def drain(state: Any) -> Any:
        control.request_drain("deploy")
        return {"log": ["a"]}

    nodes = {"a": drain, **({"q": lambda _: {"log": [interrupt("?")]}} if where == "a question" else {})}
    app = build("S>a>d S>q>d", nodes=nodes).compile(InMemorySaver(), schedule=schedule)
    result = drive.invoke(app, EMPTY, CONFIG, control=control, interrupt_before=["d"])
    assert len(result.get("__interrupt__", ())) == (where == "a question")
    with pytest.raises(GraphDrained):
        drive.invoke(app, Command(resume="yes") if "__interrupt__" in result else None, CONFIG, control=control)


class Counted(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    left: RemainingSteps


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_of_those_that_start_together_each_knows_its_generation(drive: Any, durability: Any) -> None:
    """y, behind x, waits for b. As b leads elsewhere, y starts with c, which is of a later generation."""
    routed = []

    def ask(state: Any) -> Any:
        return {"log": [interrupt(state["left"])]}

    def route(state: Any) -> str:
        routed.append(state["left"])
        return END

    graph = StateGraph(Counted).add_node("y", lambda _: {"log": ["y"]}).add_node("y2", ask).add_node("c", ask)
    for name in ("a", "b", "x"):
        graph.add_node(name, lambda _: {"log": ["n"]})
    graph.add_edge(START, "a").add_edge("a", "b").add_edge(START, "x").add_edge("x", "y").add_edge("x", "y2")
    graph.add_conditional_edges("y", route, [END])
    graph.add_conditional_edges("b", lambda _: "c", ["c", "y", "y2"])
    app = graph.compile(InMemorySaver(), schedule="ready")
    asked = drive.invoke(app, EMPTY, {**CONFIG, "recursion_limit": 10}, durability=durability)["__interrupt__"]
    assert (routed, sorted(each.value for each in asked)) == ([9], [8, 9])
    assert len(drive.get_state(app, CONFIG).interrupts) == 2
