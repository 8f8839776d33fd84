"""schedule="ready": deferred nodes start when no task is running, in the order in which they lead to each other."""

import pytest
from kit.drive import each_case
from kit.graphs import EMPTY
from kit.ready_graphs import ask, ends_in, ready, show, writer

from stategraph import Command

GRAPHS = {
    "one leads to the other": ("S>x>y S>a>y", "xy", "a / x / y"),
    "behind different nodes": ("S>a>y S>x>y", "xy", "a / x / y"),
    "with work between them": ("S>x>z>w S>y x>y", "xy", "x / z / w / y"),
    "neither leads to the other": ("S>a S>b>c S>x S>y", "xy", "a / b / c / x / y"),
    "in a circle": ("S>a S>x S>y r:x=y|E r:y=x|E", "xy", "a / x / y"),
    "three in a row": ("S>a S>x S>y S>z x>y>z", "xyz", "a / x / y / z"),
}


def nowhere(state):
    return []


@each_case("graph, deferred, steps", GRAPHS.values())
def test_order(drive, graph, deferred, steps):
    thread = drive.on(ready(graph, {"x": nowhere, "y": nowhere}, deferred=deferred))
    with ends_in(*"abcxyzw"):
        thread.invoke(EMPTY)
    assert show(thread.history()) == steps


@pytest.mark.parametrize("first", ["h", "k"])
def test_blocked_deferred_nodes_wait_until_no_task_is_running(drive, first):
    """f and h lead to each other, h by a loop. Within the turn f comes first, and it goes elsewhere."""
    routes = {"d": lambda _: ["f", "h"], "f": lambda _: ["k"], "h": nowhere}
    thread = drive.on(ready("S>d r:d=f|h r:f=h|k k>l r:h=d", routes, deferred="fh"))
    with ends_in(first):
        thread.invoke(EMPTY)
    assert show(thread.history()) == "d / f / k / l / h"


def test_deferred_nodes_run_in_order_after_an_edit(drive):
    nodes = {"a": ask}
    thread = drive.on(ready("S>a S>x>z>w S>y x>y", {}, nodes, "xy"))
    thread.invoke(EMPTY)
    thread.update({"log": ["a by hand"]}, "a")
    assert thread.state.next == ("x",)
    assert thread.invoke(None)["log"] == ["a by hand", *"xzwy"]


def test_a_deferred_node_that_interrupts_blocks_the_others(drive):
    nodes = {"x": ask, "y": writer("y")}
    thread = drive.on(ready("S>a S>x S>y x>y", {}, nodes, "xy"))
    assert thread.invoke(EMPTY)["log"] == ["a"]
    assert thread.resume("x")["log"] == ["a", "x", "y"]


@pytest.mark.parametrize("way", ["edit", "goto"])
def test_a_pending_deferred_node_that_is_triggered_again_runs(drive, way):
    """a puts d back to sleep, which is awake and waits for it."""
    thread = drive.on(ready("S>a>d", deferred="d", interrupt_before=["d"]))
    thread.invoke(EMPTY)
    assert thread.state.next == ("d",)
    if way == "edit":
        thread.update({"log": ["edit"]}, "__start__")
    thread.invoke(Command(goto="a") if way == "goto" else None)
    assert thread.state.next == ("d",)
    assert thread.invoke(None)["log"][-2:] == ["a", "d"]
