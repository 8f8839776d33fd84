"""Where a run continues: edges, joins, routers, Command, deferred nodes. `Send` has a file of its own."""

from __future__ import annotations

from typing import Literal

import pytest
from kit.drive import each_case
from kit.graphs import EMPTY, graph_of
from kit.pausing_graphs import State
from typing_extensions import TypedDict

from stategraph import (
    END,
    START,
    Command,
    GraphRecursionError,
    InMemorySaver,
    InvalidRouteError,
    InvalidUpdateError,
    Overwrite,
    Send,
)


def routed(router, path_map=None):
    """START -> x, then the router may go to y and z, which end."""
    return graph_of(State, "S>x y z").add_conditional_edges("x", router, path_map)


def went(drive, router, path_map=None):
    """What ran after x."""
    log = drive.invoke(routed(router, path_map).compile(), {})["log"]
    assert log[0] == "x"
    return log[1:]


# -- what a router may return ----------------------------------------------------------------------------------

ANSWERS = {
    "a name": ("y", ["y"]),
    "a list": (["y", "z"], ["y", "z"]),
    "a list in another order": (["z", "y"], ["y", "z"]),
    "a tuple": (("y", "z"), ["y", "z"]),
    "END beside a name": ([END, "y"], ["y"]),
    "END": (END, []),
    "an empty list": ([], []),
    "a name twice": (["y", "y"], ["y"]),
    "a Send": (Send("y", {}), ["y"]),
    "a Send twice": ([Send("y", {}), Send("y", {})], ["y", "y"]),
    "a mix": ([Send("y", 1), "z", Send("y", 2), END], ["z", "y", "y"]),
}


@each_case("answer, ran", ANSWERS.values())
def test_a_router_returns_names_end_sends_or_a_list_of_these(answer, ran, drive):
    assert went(drive, lambda state: answer) == ran


NOWHERE = {
    "START": START,
    "an empty name": "",
    "a number": 1,
    "a nested list": [["y"]],
    "None in a list": [None],
    "START in a list": [START],
    "an object": object(),
    "an iterator": iter(["y"]),
}


@each_case("answer", NOWHERE.values())
def test_any_other_answer_is_an_error_that_names_the_node(answer, drive):
    """D4, WART-20, WART-26: the peer drops most of these without a word."""
    with pytest.raises(InvalidRouteError, match="node 'x'") as caught:
        went(drive, lambda state: answer)
    assert isinstance(caught.value, InvalidUpdateError) and isinstance(caught.value, ValueError)


# -- path maps -------------------------------------------------------------------------------------------------

MAPS = {
    "True": (True, {True: "y", False: "z"}, ["y"]),
    "1 for True": (1, {True: "y", False: "z"}, ["y"]),
    "None as a key": (None, {None: "y", 1: "z"}, ["y"]),
    "END as a target": ("stop", {"stop": END, "y": "y", "z": "z"}, []),
    "END must be listed": (END, ["y", "z", END], []),
    "list of answers": (["k", "k"], {"k": "y", "j": "z"}, ["y"]),
    "Send goes past the map": (["k", Send("z", {})], {"k": "y", "j": "z"}, ["y", "z"]),
    "list": ("y", ["y", "z"], ["y"]),
    "tuple": ("y", ("y", "z"), ["y"]),
    "set": ("y", {"y", "z"}, ["y"]),
    "empty dict means none": ("y", {}, ["y"]),
    "empty list means none": ("y", [], ["y"]),
}


@each_case("answer, path_map, ran", MAPS.values())
def test_a_path_map_leads_from_answers_to_nodes(answer, path_map, ran, drive):
    assert went(drive, lambda state: answer, path_map) == ran


@each_case(
    "answer, advice",
    [("q", ""), (None, "; is a return missing"), (START, ""), ([[]], ""), ({}, ""), (["keep", "q"], ""), ("kepe", "; did you mean 'keep'")],
)
def test_an_answer_that_the_map_does_not_have_is_named_with_those_it_has(answer, advice, drive):
    """WART-25: the peer raises a bare KeyError, or a TypeError for what cannot be a key."""

    def choose(state: State):
        return answer

    with pytest.raises(InvalidRouteError, match=rf"node 'x': .* router 'choose' must be .*\('keep', 'j'\), got .*{advice}"):
        went(drive, choose, {"keep": "y", "j": "z"})


def test_a_literal_return_annotation_is_a_map():
    def router(state: State) -> Literal["y", "z"]:
        return "y"

    def listed(state: State) -> list[Literal["y", "z"]]:
        return ["y"]

    def union(state: State) -> Literal["y"] | Literal["z"] | Send:
        return "y"

    def loose(state: State):
        return "y"

    for function in (router, listed, union):
        (spec,) = routed(function).branches["x"].values()
        assert spec.ends == {"y": "y", "z": "z"}
    (spec,) = routed(loose).branches["x"].values()
    assert spec.ends is None


def test_a_map_wins_over_the_annotation(drive):
    def router(state: State) -> Literal["yes", "no"]:
        return "yes"

    assert went(drive, router, {"yes": "y", "no": "z"}) == ["y"]


# -- what a router is, and what it sees ------------------------------------------------------------------------


class Router:
    def __call__(self, state: State):
        return "y"

    async def later(self, state: State):
        return "z"


class Invokable:
    def invoke(self, state: State):
        return "y"


def test_routers_may_be_callable_objects_or_have_invoke(drive):
    assert went(drive, Router()) == ["y"]
    assert went(drive, Invokable()) == ["y"]  # type: ignore[arg-type]


def test_an_async_router_needs_an_async_run(drive):
    if drive.is_async:
        assert went(drive, Router().later) == ["z"]
    else:
        with pytest.raises(TypeError, match="router 'later' is async: run the graph with ainvoke"):
            went(drive, Router().later)


def test_a_router_sees_only_its_own_nodes_writes(drive):
    """M14."""
    seen = []

    def router(state: State):
        seen.append(dict(state))
        return END

    graph = graph_of(State, "S>x S>sibling").add_conditional_edges("x", router)
    assert drive.invoke(graph.compile(), {"a": 1}) == {"a": 1, "log": ["sibling", "x"]}
    assert seen == [{"a": 1, "log": ["x"]}]


def test_a_router_with_a_schema_of_its_own_sees_its_keys(drive):
    class Small(TypedDict):
        a: int

    seen = []

    def router(state: Small):
        seen.append(state)
        return END

    went(drive, router)
    assert drive.invoke(routed(router).compile(), {"a": 1})
    assert seen == [{}, {"a": 1}]


def test_a_router_after_a_send_sees_the_state_and_not_the_payload(drive):
    seen = []

    def router(state: State):
        seen.append(state)
        return END

    graph = graph_of(State, "S>x w").add_conditional_edges("x", lambda state: Send("w", {"payload": 1}))
    drive.invoke(graph.add_conditional_edges("w", router).compile(), {"a": 7})
    assert seen == [{"a": 7, "log": ["x", "w"]}]


def test_a_router_at_the_start_sees_the_raw_input(drive):
    """WART-27, kept: without a schema of its own, unknown input keys are below the state's."""
    seen = []

    def router(state):
        seen.append(state)
        return "x"

    app = graph_of(State, "x").add_conditional_edges(START, router).compile()
    assert drive.invoke(app, {"a": 1, "hint": "x"}) == {"a": 1, "log": ["x"]}
    assert seen == [{"a": 1, "hint": "x", "log": []}]


def test_several_routers_on_one_node_all_count(drive):
    graph = routed(lambda state: "y").add_conditional_edges("x", lambda state: "z")
    assert list(graph.branches["x"]) == ["condition", "condition_2"], "nameless ones are numbered (WART-23)"
    assert drive.invoke(graph.compile(), {}) == {"log": ["x", "y", "z"]}


# -- edges and joins -------------------------------------------------------------------------------------------


EDGES = {
    "all edges of a node are followed in one step": ("S>x>z x>y", "x y z"),
    "separate edges run a node once per step in which one arrives": ("S>a S>b>b2>j a>j", "a b b2 j j"),
    "edges that arrive together run a node once": ("S>a>j S>b>j", "a b j"),
    "a join of one works as an edge": ("S>x [x]>y", "x y"),
    "a join to END changes nothing": ("S>x S>y [x,y]>E", "x y"),
    "a deferred node runs once however often it was called": ("S>a>b a>d b>d defer:d", "a b d"),
    "a deferred join gathers and then waits": ("S>a S>b>c [a,b]>d defer:d", "a b c d"),
}


@pytest.mark.filterwarnings("ignore:node .* will run more than once")
@each_case("words, ran", EDGES.values())
def test_edges_and_joins(words, ran, drive):
    assert drive.invoke(graph_of(State, words).compile(), {}) == {"log": ran.split()}


def test_a_join_in_a_loop_fires_every_round(drive):
    graph = graph_of(State, "S>s>a s>b [a,b]>j")
    graph.add_conditional_edges("j", lambda state: "s" if state["log"].count("j") < 3 else END, ["s", END])
    assert drive.invoke(graph.compile(), {}) == {"log": ["s", "a", "b", "j"] * 3}


@pytest.mark.filterwarnings("ignore:the join of")
def test_a_join_with_a_start_that_never_runs_never_fires(drive):
    graph = graph_of(State, "[x,y]>z").add_conditional_edges(START, lambda state: "x", ["x", "y"])
    thread = drive.on(graph.compile(InMemorySaver()))
    assert thread.invoke({}) == {"log": ["x"]}
    assert thread.state.next == ()


def test_the_name_of_a_join_does_not_depend_on_the_order_of_a_set():
    """WART-22: it is part of what is stored."""
    for sources, channel in (({"c", "a", "b"}, "join:a+b+c:j"), (["c", "a", "b", "a"], "join:c+a+b:j")):
        graph = graph_of(State, "S>a S>b S>c j").add_edge(sources, "j")
        assert channel in graph.compile().channels, "a list keeps its order, each name once"


# -- deferred nodes --------------------------------------------------------------------------------------------


def test_a_deferred_node_waits_until_nothing_else_is_left(drive):
    seen = []

    def last(state: State):
        seen.append(state["log"])
        return {"log": ["d"]}

    graph = graph_of(State, "S>a>b>c S>d defer:d", d=last)
    assert drive.invoke(graph.compile(), {}) == {"log": ["a", "b", "c", "d"]}
    assert seen == [["a", "b", "c"]]


def test_a_deferred_node_waits_for_pending_sends(drive):
    """D19: the peer starts it beside them."""
    graph = graph_of(State, "S>a>d w defer:d")
    graph.add_conditional_edges("a", lambda state: [Send("w", {}), Send("w", {})], ["w"])
    assert drive.invoke(graph.compile(), {}) == {"log": ["a", "w", "w", "d"]}


# -- Command ---------------------------------------------------------------------------------------------------


COMMANDS = {
    "goto adds to the edges": (Command(goto="y"), "x>z", ["y", "z"]),
    "goto beside an edge to the same node": (Command(goto="y"), "x>y", ["y"]),
    "a Send beside an edge to the same node": (Command(goto=Send("y", {})), "x>y", ["y", "y"]),
    "END does not cut edges": (Command(goto=END), "x>y", ["y"]),
    "several": (Command(goto=["y", "z"]), "", ["y", "z"]),
    "a tuple with a Send": (Command(goto=("z", Send("y", {}))), "", ["z", "y"]),
    "nothing": (Command(), "x>y", ["y"]),
    "a list of commands": ([Command(goto="y"), Command(goto="z")], "", ["y", "z"]),
}


@pytest.mark.filterwarnings("ignore:node .* cannot be reached")
@each_case("command, edges, ran", COMMANDS.values())
def test_where_a_command_goes(command, edges, ran, drive):
    app = graph_of(State, f"S>x y z {edges}", x=lambda state: command).compile()
    assert drive.invoke(app, {}) == {"log": ran}


UPDATES = {
    "dict": ({"a": 1, "log": ["u"]}, {"a": 1, "log": ["u"]}),
    "pairs": ([("log", [1]), ("log", [2]), ("a", 3)], {"a": 3, "log": [1, 2]}),
    "tuple of pairs": ((("a", 3),), {"a": 3, "log": []}),
    "empty": ({}, EMPTY),
    "no pairs": ([], EMPTY),
    "None": (None, EMPTY),
    "Overwrite": ({"log": Overwrite(["o"])}, {"log": ["o"]}),
}


@each_case("update, state", UPDATES.values())
def test_what_a_command_updates(update, state, drive):
    app = graph_of(State, "S>x", x=lambda state: Command(update=update)).compile()
    assert drive.invoke(app, {}) == state


def test_several_updates_of_one_node_are_applied_in_order(drive):
    def node(state: State) -> list[Command[Literal["y"]]]:
        return [Command(update={"log": [1]}), Command(update={"log": [2]}, goto="y")]

    app = graph_of(State, "S>x y", x=node).compile()
    assert drive.invoke(app, {}) == {"log": [1, 2, "y"]}
    assert drive.stream(app, {}) == [{"x": [{"log": [1]}, {"log": [2]}]}, {"y": {"log": ["y"]}}]


@each_case("goto", [None, 3, {"y"}, {"y": 1}, ["y", None], ["y", 3], ...])
def test_a_goto_that_is_no_name_is_refused_where_it_is_written(goto):
    """WART-38."""
    with pytest.raises(TypeError, match="goto"):
        Command(goto=goto)


def test_an_unknown_graph_is_refused_where_it_is_written():
    """WART-40."""
    with pytest.raises(ValueError, match="'other'"):
        Command(graph="other")


@each_case(
    "update", [3, "abc", [1, 2], [("a", 1, 2)], ..., State, {"b": 1}, [("b", 1)], [([], 1)]]
)
def test_an_update_that_cannot_be_one_is_an_error_that_names_the_node(update, drive):
    """WART-38: the peer ignores it."""
    with pytest.raises(InvalidUpdateError, match="node 'x'"):
        drive.invoke(graph_of(State, "S>x", x=lambda state: Command(update=update)).compile(), {})


def test_a_declared_destination_does_not_restrict(drive):
    def node(state: State) -> Command[Literal["y"]]:
        return Command(goto="z")  # type: ignore[arg-type]

    graph = graph_of(State, "S>x y>z", x=node)
    assert drive.invoke(graph.compile(), {}) == {"log": ["z"]}


# -- the limit -------------------------------------------------------------------------------------------------


def test_a_loop_ends_at_the_limit_and_the_error_names_the_next_nodes(drive):
    app = graph_of(State, "S>x>y>x").compile()
    with pytest.raises(GraphRecursionError, match="recursion limit of 3 .*work left: y.*GRAPH_RECURSION_LIMIT"):
        drive.invoke(app, {}, {"recursion_limit": 3})
