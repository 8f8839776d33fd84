"""schedule="ready": a task that cannot start stays pending, and running tasks end and are applied."""

from __future__ import annotations

import operator
from contextlib import suppress
from typing import Annotated

import pytest
from kit.drive import each_durability, each_schedule
from kit.graphs import CONFIG, EMPTY, graph_of
from kit.ready_graphs import build, ends_in, ready
from pydantic import BaseModel, ValidationError
from typing_extensions import TypedDict

from stategraph import (
    END,
    Command,
    GraphDrained,
    GraphRecursionError,
    InMemorySaver,
    RemainingSteps,
    RunControl,
    Runtime,
    Send,
    interrupt,
)

GRAPH = "S>a>c r:x=c|E S>x S>y>y2"
"""c is due after a, waits for x, which does not lead to it, and would start beside y."""


class Short(BaseModel):
    log: list[str]

    def model_post_init(self, context):
        if len(self.log) < 4:
            raise ValueError("too short")


def app_of(saver, **nodes):
    builder = build(GRAPH, {"x": lambda _: END}, nodes)
    return ready(builder, saver=saver)


@each_durability
def test_a_node_whose_schema_refuses_its_input_stays_pending(drive, durability):
    def read(state: Short):
        return {"log": ["c"]}

    thread = drive.on(app_of(InMemorySaver(), c=read))
    with ends_in("a", "x", "y"), pytest.raises(ValidationError):
        thread.invoke(EMPTY, durability=durability)
    state = thread.state
    assert (state.values, state.next) == ({"log": ["a", "x", "y"]}, ("c", "y2"))
    with ends_in("c"):
        assert thread.invoke(Command(update={"log": ["edit"]}))["log"] == ["a", "x", "y", "edit", "c", "y2"]


@each_durability
def test_a_node_beyond_the_recursion_limit_stays_pending(drive, durability):
    thread = drive.on(app_of(InMemorySaver()))
    with ends_in("a", "x", "y"), pytest.raises(GraphRecursionError):
        thread.invoke(EMPTY, {**CONFIG, "recursion_limit": 1}, durability=durability)
    assert thread.state.next == ("c", "y2")
    with ends_in("c"):
        assert thread.invoke(None)["log"] == ["a", "x", "y", "c", "y2"]


@each_schedule
@pytest.mark.parametrize("where", ["a question", "a breakpoint"])
@each_durability
def test_a_drained_call_from_which_nothing_is_cut_off_pauses(drive, schedule, where, durability):
    """d waits for the answer, or is stopped, anyway."""
    control = RunControl()

    def drain(state):
        control.request_drain("deploy")
        return {"log": ["a"]}

    nodes = {"a": drain, **({"q": lambda _: {"log": [interrupt("?")]}} if where == "a question" else {})}
    thread = drive.on(build("S>a>d S>q>d", nodes=nodes).compile(InMemorySaver(), schedule=schedule))
    result = thread.invoke(EMPTY, control=control, durability=durability, interrupt_before=["d"])
    assert len(result.get("__interrupt__", ())) == (where == "a question")
    answer = Command(resume="yes") if "__interrupt__" in result else None
    with pytest.raises(GraphDrained):
        thread.invoke(answer, control=control, durability=durability)


@pytest.mark.parametrize("answered", [("a",), ("a", "b")])
@pytest.mark.parametrize("sent", [False, True])
@each_durability
def test_a_drained_call_goes_on_with_what_has_begun_in_a_newer_state_than_an_open_task(drive, sent, answered, durability):
    """b has asked in the state behind l, which a's end leaves behind: it keeps its answer, its result and its key."""
    keys = []

    def ask(state, runtime: Runtime):
        keys.append(runtime.idempotency_key)
        return {"log": [interrupt("b")]}

    nodes = {"a": lambda _: {"log": [interrupt("a")]}, "b": ask}
    routes = {"l": lambda _: Send("b", EMPTY) if sent else "b"}
    thread = drive.on(ready(build("S>a S>l r:l=b", routes, nodes), saver=InMemorySaver()))
    asked = {each.value: each.id for each in thread.invoke(EMPTY, durability=durability)["__interrupt__"]}
    control = RunControl()
    control.request_drain("deploy")
    answers = {asked[each]: f"yes {each}" for each in answered}
    with suppress(GraphDrained):  # if nothing was open: "exit" stores no state before both
        thread.invoke(Command(resume=answers), control=control, durability=durability)
    if thread.state.next and not thread.state.interrupts:
        thread.invoke(None)
    if "b" not in answered:
        assert [each.id for each in thread.state.interrupts] == [asked["b"]]
        thread.resume("yes b")
    assert sorted(thread.log) == ["l", "yes a", "yes b"]
    assert len({*keys}) == 1


class Counted(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    left: RemainingSteps


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_of_those_that_start_together_each_knows_its_generation(drive, durability):
    """y, behind x, waits for b. As b leads elsewhere, y starts with c, which is of a later generation."""
    routed = []

    def ask(state):
        return {"log": [interrupt(state["left"])]}

    def route(state):
        routed.append(state["left"])
        return END

    graph = graph_of(Counted, "S>a>b S>x>y x>y2", y2=ask, c=ask)
    graph.add_conditional_edges("y", route, [END])
    graph.add_conditional_edges("b", lambda _: "c", ["c", "y", "y2"])
    app = ready(graph)
    asked = drive.invoke(app, EMPTY, {**CONFIG, "recursion_limit": 10}, durability=durability)["__interrupt__"]
    assert (routed, sorted(each.value for each in asked)) == ([9], [8, 9])
    assert len(drive.get_state(app, CONFIG).interrupts) == 2


@pytest.mark.filterwarnings("ignore::stategraph.GraphWarning")
def test_a_blocked_node_does_not_keep_sends_to_it_at_its_breakpoint(drive):
    """The race holds back y, whose breakpoint holds back the race."""
    racers = [Send("x", {"n": 1}, race="r"), Send("y", {"n": 1}, race="r")]
    builder = build("S>a r:a=x|y x>y", {"a": lambda state: [*racers, "y"]})
    app = ready(builder, interrupt_before=["y"])
    with ends_in("x", "y"):
        logs = [drive.invoke(app, given, CONFIG)["log"] for given in (EMPTY, None, None)]
    assert logs == [["a"], ["a", "x1"], ["a", "x1", "y"]]


def test_a_send_of_a_command_is_none_of_those_that_run(drive):
    """b's question was asked at an earlier checkpoint than c's, behind which the new Send comes."""

    def ask(state, runtime: Runtime[None]):
        asked.add(runtime.idempotency_key)
        return {"log": [interrupt("?")]}

    def note(state, runtime: Runtime[None]):
        noted.append(runtime.idempotency_key)
        return {}

    asked = set()
    noted = []
    routes = {name: lambda state, name=name: [Send("ask", {"name": name})] for name in "bc"}
    nodes = {"ask": ask, "note": note}
    builder = build("S>b S>c r:b=ask r:c=ask r:ask=note", {**routes, "ask": lambda state: []}, nodes)
    thread = drive.on(ready(builder))
    with ends_in("b", "c"):
        thread.invoke(EMPTY)
    first = thread.state.interrupts[0]
    thread.invoke(Command(resume={first.id: "!"}, goto=Send("note", {})))
    assert len(asked) == 2 and len(noted) == 1 and not asked.intersection(noted)
