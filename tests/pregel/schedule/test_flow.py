"""Joins that do not wait for all, and deferred nodes in order: which node runs in which superstep."""

from __future__ import annotations

import warnings
from typing import Literal

import pytest
from kit import cluster
from kit.drive import each_case
from kit.flow_cases import CASES, compiled
from kit.flow_graphs import build, show
from kit.graphs import CONFIG, EMPTY, thread_config

from stategraph import (
    START,
    Command,
    GraphWarning,
    InMemorySaver,
    InvalidGraphError,
    InvalidUpdateError,
    Send,
)

postgres = cluster.emptied


@pytest.fixture(autouse=True)
def quiet():
    """Runs that end with an unmet number say so; only the test of that looks at it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* waits for ", category=GraphWarning)
        yield


def finish(drive, app, given, config=CONFIG):
    """Run to the end, answering what is asked; the steps."""
    result = drive.invoke(app, given, config)
    while "__interrupt__" in result:
        result = drive.invoke(app, Command(resume="yes"), config)
    return show(result["log"])


# -- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.trial
@pytest.mark.parametrize("number", CASES)
def test_the_supersteps_on_every_saver(drive, saver, number):
    case = CASES[number]
    assert finish(drive, compiled(case, saver=saver), EMPTY) == case.steps


@pytest.mark.parametrize("durability", ["sync", "exit"])
@pytest.mark.parametrize("number", CASES)
def test_stopped_before_every_step_and_resumed_by_a_fresh_graph(drive, local_saver, number, durability):
    case = CASES[number]
    given = EMPTY
    for _ in range(20):
        thread = drive.on(compiled(case, saver=local_saver, interrupt_before="*"))
        result = thread.invoke(given, durability=durability)
        state = thread.state
        # A question is asked by a node that runs, and so not at a breakpoint.
        given = Command(resume="yes") if any(task.interrupts for task in state.tasks) else None
        if not state.next:
            break
    assert show(result["log"]) == case.steps


@pytest.mark.parametrize("number", CASES)
def test_replayed_from_every_checkpoint_it_ends_the_same(drive, number):
    case = CASES[number]
    app = compiled(case, saver=InMemorySaver())
    finish(drive, app, EMPTY)
    for snapshot in drive.history(app, CONFIG)[:-1]:
        if snapshot.next:
            assert finish(drive, app, None, snapshot.config) == case.steps


def test_a_second_input_restarts_all_waves(drive):
    app = compiled("r:S=a|b|c1 c1>c [a,b,c]2>d", {START: ["a", "c1", ["a", "b"]]}, InMemorySaver())
    assert finish(drive, app, EMPTY) == "a"
    # With the first wave going on, c would open the join.
    again = thread_config("t")
    assert "d" not in finish(drive, app, EMPTY, again)


def test_new_input_amid_a_wave_forgets_what_is_late(drive):
    thread = drive.on(compiled("S>a S>b1>b2>b [a,b]any>d", saver=InMemorySaver(), interrupt_before=["b2"]))
    thread.invoke(EMPTY)
    assert thread.state.next == ("b2", "d")
    log = thread.invoke(EMPTY)["log"]
    assert thread.state.next == ("b2", "d")
    assert show(log) == "a b1 / a b1"


# -- an unmet number -------------------------------------------------------------------------------------------------


def test_a_join_that_never_gets_enough_sources_warns_once_per_graph(drive):
    app = compiled(CASES[5])
    with pytest.warns(GraphWarning, match="^d got a, waits for 2 of a, b, c$"):
        drive.invoke(app, EMPTY)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        drive.invoke(app, EMPTY)


def test_a_join_that_no_predecessor_has_reached_does_not_warn(drive):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        drive.invoke(compiled(CASES[21]), EMPTY)


# -- edits -----------------------------------------------------------------------------------------------------------


EDITS = {
    # a graph, the steps before the edit, as which node it is, what is next, how the run ends
    "as a predecessor it is an arrival": ("S>a1>a S>b1>b [a,b]any>d", "a1 b1", "a", ("b", "d"), "a1 b1 / b d(a)"),
    "as the target of an open join it is its start, and what stays pending is late": (
        "S>a S>b1>b [a,b]any>d d>e", "a b1", "d", ("b", "e"), "a b1 / b e"
    ),
    "as a late task it is late, and does not start d once more": ("S>a S>b1>b [a,b]any>d", "a b1", "b", ("d",), "a b1 / d(a)"),
    "late work to which it leads again stays late": (
        "S>a S>b1>b2>b S>x>b2 [a,b]any>d", "a b1 x / b2 d(a)", "b2", ("b",), "a b1 x / b2 d(a) / b"
    ),
    "as a node that is not pending it begins new work": (
        "S>a S>b1>b2>b [a,b]any>d", "a b1 / b2 d(a)", "a", ("d",), "a b1 / b2 d(a) / d(a)"
    ),
    "a wave that can go no further is opened": ("S>a S>y r:y=b [a,b]reachable>d", "a y", "b", ("d",), "a y / d(a+b)"),
}  # fmt: skip


@each_case("graph, stop, as_node, following, steps", EDITS.values())
def test_an_edit_is_part_of_the_flow(drive, graph, stop, as_node, following, steps):
    script = {"y": ["b"]}
    saver = InMemorySaver()
    stopping = compiled(graph, script, saver, interrupt_before="*")
    result = drive.invoke(stopping, EMPTY, CONFIG)
    while show(result["log"]) != stop:
        result = drive.invoke(stopping, None, CONFIG)
    thread = drive.on(compiled(graph, script, saver))
    thread.update(EMPTY, as_node=as_node)
    assert (thread.state.next, finish(drive, thread.app, None)) == (following, steps)


# -- questions, failures, Sends --------------------------------------------------------------------------------------


def test_a_node_that_waits_for_an_answer_has_not_reached_the_join(drive):
    app = compiled(CASES[26], saver=InMemorySaver())
    drive.invoke(app, EMPTY, CONFIG)
    assert drive.get_state(app, CONFIG).next == ("a",)
    assert finish(drive, app, Command(resume="yes")) == "a b / d(a+b)"


TOGETHER = {
    "joins that wait only for each other open in one step": (
        "S>a S>b [a,q]reachable>p [b,p]reachable>q r:S=a|b", "a b / p(a) q(b)"
    ),
    "a join that waits for a circle waits until it has run": (
        "S>a S>b S>c [a,q]reachable>p [b,p]reachable>q [c,q]reachable>r", "a b c / p(a) q(b) / r(c+q)"
    ),
    "two joins into one node are named in the order they were added": ("S>a S>b S>c [c,b]all>d [b,a]any>d", "a b c / d(c+b+a)"),
    "no edge, router or Send is named as joined": ("S>a>d r:a=* [b,c]any>d", "a / d d"),
    "deferred nodes in a circle wake together": ("S>x S>y r:x=y r:y=x defer:x,y", "x y"),
    "deferred nodes that do not lead to each other wake together": ("S>a>x S>y defer:x,y", "a / x y"),
}  # fmt: skip


@each_case("graph, steps", TOGETHER.values())
def test_what_runs_together(drive, graph, steps):
    send = Send("d", EMPTY)
    assert show(drive.invoke(compiled(graph, {"a": [send]}), EMPTY)["log"]) == steps


# -- deferred nodes --------------------------------------------------------------------------------------------------


def test_an_edit_wakes_deferred_nodes_in_order(drive):
    saver = InMemorySaver()
    thread = drive.on(compiled("S>a>y S>x>y defer:x,y", saver=saver, interrupt_before=["a"]))
    thread.invoke(EMPTY)
    thread.update(EMPTY, as_node="a")
    assert thread.state.next == ("x",)


# -- what is refused -------------------------------------------------------------------------------------------------


def three():
    return build("S>a S>b S>c")


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        ("S>a S>b [a,b]any>a", "into 'a': with wait='any' a node cannot wait for itself"),
        ("S>a S>b [a,b]reachable>d defer:d", "into 'd': with wait='reachable' 'd' cannot be deferred"),
        ("S>a S>b [a,b]0>d", 'wait must be "all", "any", "reachable" or a number from 1 to 2, got 0'),
        ("S>a S>b [a,b]3>d", "a number from 1 to 2, got 3"),
        ("S>a S>b [a,a]2>d", "a number from 1 to 1, got 2"),
        ("S>a S>b [a,b]some>d", "got 'some'"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(graph, text):
    with pytest.raises(InvalidGraphError, match=text):
        compiled(graph)


@pytest.mark.parametrize("wait", [True, 1.0, None])
def test_what_is_no_number_is_refused(wait):
    with pytest.raises(InvalidGraphError, match=f"got {wait!r}"):
        three().add_edge(["a", "b"], "c", wait=wait)


def test_one_node_alone_is_no_join():
    with pytest.raises(InvalidGraphError, match=r"wait='any' is for joins; .* give a list: \['a'\]"):
        three().add_edge("a", "b", wait="any")


UNDECLARED = {
    "a Command": ("S>a S>x x~e [a,b]reachable>d", {"x": ["b"]}),
    "a Send of a Command": ("S>a S>x x~e [a,b]reachable>d", {"x": [[Send("b", {})]]}),
    "a Send of a router": ("S>a S>x>e r:x=e [a,b]reachable>d", {"x": [[Send("b", {})]]}),
}


@pytest.mark.parametrize("how", UNDECLARED)
def test_a_reachable_join_requires_declared_destinations(drive, how):
    graph, script = UNDECLARED[how]
    with pytest.raises(InvalidUpdateError, match=r"'x' goes to 'b', which it does not declare.*destinations=\['b'\]"):
        drive.invoke(compiled(graph, script), EMPTY)
    # Other joins need no declarations.
    assert "b" in show(drive.invoke(compiled(graph.replace("reachable", "any"), script), EMPTY)["log"])


def test_an_error_handler_declares_where_it_goes_by_its_annotation(drive):
    """It has no `add_node` of its own that could take `destinations`."""

    def fails(state):
        raise ValueError

    def sends_on(state):
        return Command(goto="h")

    def declares(state) -> Command[Literal["h"]]:
        return Command(goto="h")

    def graph(handler):
        builder = build("S>a r:a=h [a,h]reachable>d").add_node("x", fails, error_handler=handler)
        return builder.add_edge(START, "x").compile()

    with pytest.raises(InvalidUpdateError, match=r'declare it by the annotation of the error handler: -> Command\[Literal\["h"\]\]'):
        drive.invoke(graph(sends_on), EMPTY)
    assert show(drive.invoke(graph(declares), EMPTY)["log"]) == "a / h / d(a+h)"


# -- explain ---------------------------------------------------------------------------------------------------------


def test_explain_names_the_predecessors_that_are_missing(drive):
    thread = drive.on(compiled(CASES[5], saver=InMemorySaver()))
    thread.invoke(EMPTY)
    found = thread.call("explain")["d"]
    assert found.state == "waiting" and found.missing == ("b", "c")
    assert "waits for 2 of a, b, c (got a)" in found.why


HELD = {
    # a graph, the nodes that ask, for whom d waits then
    "one": ("S>a S>w>x>b [a,b]reachable>d", "x", ("x",)),
    "from afar": ("S>a S>w>x>y>b [a,b]reachable>d", "x", ("x",)),
    "one of two that are under way": ("S>a S>w>x>b w>z>y [a,b]reachable>d", "xz", ("x",)),
    "two": ("S>a S>w>x>b w>z>b [a,b]reachable>d", "xz", ("x", "z")),
    "another join": ("S>a S>c S>w>x [c,x]reachable>b [a,b]reachable>d", "x", ("b", "x")),
}


@pytest.mark.parametrize("case", HELD)
def test_explain_names_the_nodes_for_which_a_join_still_waits(drive, case):
    graph, asking, names = HELD[case]
    thread = drive.on(compiled(graph, {name: ["ask"] for name in asking}, saver=InMemorySaver()))
    thread.invoke(EMPTY)
    found = thread.call("explain")["d"]
    assert found.state == "waiting" and found.missing == names
    assert f"waits until nothing under way leads to a, b any more (got a); under way: {', '.join(names)}" in found.why


# -- the sentence at compile -----------------------------------------------------------------------------------------


def advice(graph):
    """What compile says of branches of unequal length."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        build(graph).compile()
    return [str(each.message) for each in found if "more than once" in str(each.message)]


UNEVEN = {
    "S>a a>c>d a>b1>b2>d": (
        "node 'd' will run more than once: after 'a' it is led to by 'c' (2 steps on) and again by 'b2' (3 steps on). "
        "For one run after both: add_edge(['b2', 'c'], 'd'); if one may be skipped: wait='reachable'"
    ),
    "S>a>d S>d": (
        "node 'd' will run more than once: after START it is led to by START (1 step on) and again by 'a' (2 steps on). "
        "For one run: drop the edge from START"
    ),
    "S>a S>x>d a>d defer:x": (
        "node 'd' will run more than once: after START it is led to by 'a' (2 steps on) and again by 'x' (at the end). "
        "For one run after both: add_edge(['a', 'x'], 'd'); if one may be skipped: wait='reachable'"
    ),
    "S>a S>b1>b [a,b]all>d a>d": (
        "node 'd' will run more than once: after START it is led to by 'a' (2 steps on) and again by the join of 'a', 'b' "
        "(3 steps on). For one run after both: add_edge(['a', 'b'], 'd'); if one may be skipped: wait='reachable'"
    ),
    # What follows counts from the first of the runs, and is told of no more than it adds itself.
    "S>a>d S>d d>e": (
        "node 'd' will run more than once: after START it is led to by START (1 step on) and again by 'a' (2 steps on). "
        "For one run: drop the edge from START"
    ),
}


@pytest.mark.parametrize("graph", UNEVEN)
def test_compile_warns_of_a_node_that_branches_of_unequal_length_run_again(graph):
    assert advice(graph) == [UNEVEN[graph]]


@pytest.mark.parametrize(
    "graph",
    [
        "S>a a>b>d a>c>d",  # of equal length
        "S>a a>b>d a>d defer:d",  # it waits for both
        "S>a a>b1>b [a,b]all>d",  # a join follows its last start
        "S>a S>b1>b [a,b]any>d",  # only a run tells
        "S>a a>b r:b=d a>d",
        "S>a>b>a b>c",  # a circle
        "S>a S>b a>b b>a",
        "S>x S>y x>d y>d defer:x,y",  # both at the end
        "S>END S>a>END",
    ],
)
def test_compile_does_not_warn_where_a_node_runs_once_or_only_a_run_decides(graph):
    assert advice(graph) == []


def test_a_join_that_does_not_wait_for_all_starves_no_node():
    for wait in ("any", "2", "reachable"):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            build(f"r:S=a|b [a,b]{wait}>d").compile()


# -- drawings --------------------------------------------------------------------------------------------------------


def test_every_drawing_says_what_a_join_waits_for():
    graph = build("S>a S>b S>c [a,b,c]2>d [a,b]any>e [b,c]reachable>f [d,e]all>g").compile().get_graph()
    shown = {"2 of 3", "any", "reachable", "all"}
    assert {node.label for node in graph.model.node_records if node.kind == "join"} == shown
    for text in (graph.draw_mermaid(), graph.draw_ascii(), graph.draw_svg(), graph.draw_dot(), graph.draw_html()):
        assert all(label in text for label in shown)
    svg = graph.draw_svg()
    assert "a → any: waits for the first that comes" in svg and "waits for 2 of 3, whichever come first" in svg
    assert "waits for all that can still come" in svg and "d → all: waits for all" in svg
