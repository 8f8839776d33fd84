"""schedule="ready": a running task is resumed by a later call with everything that was stored at its origin."""

from __future__ import annotations

import operator
from typing import Annotated, Any

import pytest
from kit.drive import each_schedule
from kit.graphs import EMPTY, chain_of, graph_of
from kit.ready_graphs import ready
from typing_extensions import TypedDict

from stategraph import (
    END,
    START,
    Command,
    InMemorySaver,
    RemainingSteps,
    Send,
    StateGraph,
    interrupt,
    task,
)
from stategraph.pregel import rename_node

CONFIG = {"configurable": {"thread_id": "t"}, "recursion_limit": 10}


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    x: Any
    left: RemainingSteps


class Changed(State):
    x: list[Any]


def graph_that_asks(ask, schema=State):
    """q asks, and z would too; b > b2 ends meanwhile."""
    graph = StateGraph(schema).add_node("q", ask).add_node("z", ask)
    for name in ("b", "b2"):
        graph.add_node(name, lambda _, name=name: {"log": [name]})
    graph.add_conditional_edges(START, lambda _: ["q", "b"], ["q", "b", "z"])
    return graph.add_edge("b", "b2")


@each_schedule
def test_a_task_reads_the_update_of_a_command(drive, schedule):
    read = []

    def ask(state):
        read.append(state.get("x"))
        return {"log": [interrupt("?")]}

    thread = drive.on(graph_that_asks(ask).compile(InMemorySaver(), schedule=schedule), CONFIG)
    thread.invoke(EMPTY, interrupt_before=["q", "b"])
    thread.invoke(Command(update={"x": 5}, goto=["z", Send("z", {"x": 7})]))
    asked = [question.id for question in thread.state.interrupts]
    assert (len(asked), sorted(read)) == (3, [5, 5, 7])
    thread.resume(dict.fromkeys(asked, "answer"))
    assert sorted(read) == [5, 5, 5, 5, 7, 7]


@pytest.mark.parametrize("edited", [False, True])
@each_schedule
def test_a_send_of_a_command_keeps_its_interrupt_if_an_equal_task_is_running(drive, schedule, edited):
    def ask(state):
        return {"log": [f"{state['x']}{interrupt(state['x'])}"]}

    graph = graph_of(State, "S>b", z=ask)
    thread = drive.on(graph.add_conditional_edges(START, lambda _: Send("z", {"x": 1}), ["z"]).compile(
        InMemorySaver(), schedule=schedule
    ), CONFIG)
    thread.invoke(EMPTY)
    thread.invoke(Command(goto=Send("z", {"x": 7})))
    if edited:
        thread.update({"log": ["edit"]}, "z")  # stands for one of them
    asked = {each.value: each.id for each in thread.state.interrupts}
    assert len(asked) == (1 if edited else 2)
    result = thread.resume(dict.fromkeys(asked.values(), "yes"))
    assert {f"{value}yes" for value in asked} <= {*result["log"]}
    assert thread.state.next == ()


@each_schedule
def test_a_task_may_last_through_all_steps_of_the_call(drive, schedule):
    left = []

    def ask(state):
        left.append(state["left"])
        return {"log": [interrupt("?")]}

    thread = drive.on(graph_that_asks(ask).compile(InMemorySaver(), schedule=schedule), CONFIG)
    thread.invoke(EMPTY)
    thread.resume("answer")
    assert left == [10, 10]


# -- after a change of the graph -----------------------------------------------------------------------------------


def test_the_origin_of_a_task_is_migrated_too(drive):
    read = []

    @task
    def call():
        read.append("called")
        return "found"

    def ask(state):
        found = call().result()
        read.append(state["x"])
        return {"log": [f"{found} {interrupt('1?')} {interrupt('2?')}"]}

    saver = InMemorySaver()
    ready(graph_that_asks(ask), saver=saver).invoke({**EMPTY, "x": "old"}, CONFIG)

    def migrate(checkpoint, changed):
        assert changed == ["key 'x' has changed its kind"]
        checkpoint["channel_values"]["x"] = [checkpoint["channel_values"]["x"]]
        return checkpoint

    thread = drive.on(ready(graph_that_asks(ask, Changed), saver=saver, migrate=migrate), CONFIG)
    for answer in ("a", "b"):
        thread.resume(answer)
    assert thread.log == ["b", "b2", "found a b"]
    assert read == ["called", "old", ["old"], ["old"]]


@each_schedule
def test_the_node_of_a_running_task_may_be_renamed(drive, schedule):
    def app_of(name, **options):
        graph = StateGraph(State).add_node(name, lambda state: {"log": [f"{state.get('x', '')}{interrupt('?')}"]})
        for other in ("b", "b2"):
            graph.add_node(other, lambda _, other=other: {"log": [other]})
        graph.add_conditional_edges(START, lambda _: ["b", name, Send(name, {"x": 7})], ["b", name])
        return graph.add_edge("b", "b2").compile(saver, schedule=schedule, **options)

    saver = InMemorySaver()
    drive.invoke(app_of("old"), EMPTY, CONFIG)
    thread = drive.on(app_of("new", migrate=lambda checkpoint, _: rename_node(checkpoint, "old", "new")), CONFIG)
    assert set(thread.state.next) == {"new"}
    thread.invoke(None)
    asked = [question.id for question in thread.state.interrupts]
    assert len(asked) == 2
    result = thread.resume(dict.fromkeys(asked, "yes"))
    assert sorted(result["log"]) == ["7yes", "b", "b2", "yes"]


# -- after its origin was deleted ----------------------------------------------------------------------------------


def test_without_its_origin_a_task_starts_again(drive):
    def ask(state):
        return {"log": [f"{state.get('x')}{interrupt('?')}"]}

    def restarted():
        """A thread with two tasks that have lost what they had started from."""
        builder = graph_that_asks(ask).add_conditional_edges(START, lambda _: [Send("z", {"x": 7})], ["z"])
        app = ready(builder)
        drive.invoke(app, {**EMPTY, "x": 5}, {**CONFIG, "run_id": "first"}, interrupt_before=["b2"])
        drive.invoke(app, None, {**CONFIG, "run_id": "second"})
        drive.call(app.checkpointer, "delete_for_runs", ["first"])
        assert drive.get_state(app, CONFIG).next == ("z", "q")
        return app

    app = restarted()
    drive.invoke(app, None, CONFIG)
    for _ in range(2):
        first, *_ = drive.get_state(app, CONFIG).interrupts
        drive.invoke(app, Command(resume={first.id: "yes"}), CONFIG)
    state = drive.get_state(app, CONFIG)
    assert (state.next, sorted(state.values["log"])) == ((), ["5yes", "7yes", "b", "b2"])
    drive.update_state(restarted(), CONFIG, None, END)
    assert len(drive.invoke(restarted(), EMPTY, CONFIG)["__interrupt__"]) == 2


# -- inside a graph ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [None, True])
@pytest.mark.parametrize("outer", ["ready", "supersteps"])
def test_an_interrupt_is_answered_again_from_a_checkpoint_of_the_nested_graph(drive, outer, memory):
    inner = graph_that_asks(lambda state: {"log": [interrupt("?")]}).compile(memory, schedule="ready")
    thread = drive.on(chain_of(State, n=inner).compile(InMemorySaver(), schedule=outer), CONFIG)
    thread.invoke(EMPTY)
    (inside,) = [task.state for task in thread.state.tasks]
    thread.resume("one")
    stops = [each for each in thread.history(inside) if "q" in each.next]
    assert [each.next for each in stops] == [("q",), ("b2", "q"), ("b", "q")]
    for stop in stops:
        (asked,) = [question for task in stop.tasks for question in task.interrupts]
        result = thread.invoke(Command(resume={asked.id: "two"}), stop.config)
        assert sorted(result["log"]) == ["b", "b2", "two"]
