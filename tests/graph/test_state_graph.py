"""StateGraph: building, and what the built graph is. Its schemas, routers, nodes and errors have files of their own."""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any

import pytest
from kit.drive import each_case
from kit.graphs import chain_of, thread_config
from typing_extensions import TypedDict

from stategraph import (
    END,
    START,
    CompiledStateGraph,
    InvalidGraphError,
    IsLastStep,
    Pregel,
    RemainingSteps,
    StateGraph,
)
from stategraph.channels import (
    BinaryOperatorAggregate,
    EphemeralValue,
    LastValue,
    LastValueAfterFinish,
    NamedBarrierValue,
    NamedBarrierValueAfterFinish,
    Topic,
)


class State(TypedDict, total=False):
    a: int
    log: Annotated[list[str], operator.add]


Node = Callable[[Any], Any]


def logs(name):
    return lambda state: {"log": [name]}


def chain(*names):
    """START -> the first -> ... -> the last; each node logs its name."""
    return StateGraph(State).add_sequence([(n, logs(n)) for n in names]).add_edge(START, names[0])


# -- M16: a StateGraph compiles to a Pregel --------------------------------------------------------------------


def test_compile_gives_a_pregel_that_remembers_its_builder():
    graph = chain("x")
    app = graph.compile()
    assert isinstance(app, Pregel)
    assert isinstance(app, CompiledStateGraph)
    assert app.builder is graph
    assert list(app.nodes) == ["__start__", "x"]


def test_worked_layout_of_channels_and_triggers():
    class Full(TypedDict):
        a: int
        log: Annotated[list[str], operator.add]
        left: RemainingSteps
        last: IsLastStep

    graph = StateGraph(Full)
    for name in "xyzw":
        graph.add_node(name, logs(name))
    graph.add_node("d", logs("d"), defer=True)
    graph.add_edge(START, "x").add_edge(START, "y").add_edge(["x", "y"], "z").add_edge(["x", "y"], "d").add_edge(
        "z", "d"
    )
    graph.add_conditional_edges("z", lambda state: "w", ["w", END]).add_edge("w", END)
    app = graph.compile()

    kinds = {name: type(channel) for name, channel in app.channels.items() if name not in ("left", "last")}
    assert kinds == {
        "a": LastValue,
        "log": BinaryOperatorAggregate,
        "__start__": EphemeralValue,
        "__pregel_tasks": Topic,
        **{f"branch:to:{name}": EphemeralValue for name in "xyzw"},
        "branch:to:d": LastValueAfterFinish,
        "join:x+y:z": NamedBarrierValue,
        "join:x+y:d": NamedBarrierValueAfterFinish,
    }
    assert {"left", "last"} <= set(app.channels), "managed values are listed beside the channels"
    triggers = {name: set(node.triggers) for name, node in app.nodes.items()}
    assert triggers == {
        "__start__": {"__start__"},
        "x": {"branch:to:x"},
        "y": {"branch:to:y"},
        "z": {"branch:to:z", "join:x+y:z"},
        "w": {"branch:to:w"},
        "d": {"branch:to:d", "join:x+y:d"},
    }
    assert app.input_channels == "__start__"
    assert set(app.output_channels) == {"a", "log"}
    assert app.stream_mode == "updates"


def test_worked_layout_runs(drive):
    graph = StateGraph(State)
    for name in "xyzw":
        graph.add_node(name, logs(name))
    graph.add_node("d", logs("d"), defer=True)
    graph.add_edge(START, "x").add_edge(START, "y").add_edge(["x", "y"], "z").add_edge(["x", "y"], "d").add_edge(
        "z", "d"
    )
    graph.add_conditional_edges("z", lambda state: "w", ["w", END])
    app = graph.compile()
    assert drive.invoke(app, {"a": 1}, {"recursion_limit": 4}) == {"a": 1, "log": ["x", "y", "z", "w", "d"]}
    ended = [next(iter(chunk)) for chunk in drive.stream(app, {"a": 1})]
    assert sorted(ended[:2]) == ["x", "y"], "updates come as tasks end; only the state has a fixed order"
    assert ended[2:] == ["z", "w", "d"]


# -- compile ---------------------------------------------------------------------------------------------------


def test_compile_leaves_the_builder_as_it_was(drive):
    graph = chain("x", "y")
    nodes, edges, channels = dict(graph.nodes), set(graph.edges), dict(graph.channels)
    first, second = graph.compile(), graph.compile()
    assert (graph.nodes, graph.edges, graph.channels) == (nodes, edges, channels)
    assert drive.invoke(first, {}) == drive.invoke(second, {}) == {"log": ["x", "y"]}


def test_runs_of_two_compiled_graphs_share_nothing(drive):
    graph = chain("x")
    first, second = graph.compile(), graph.compile()
    drive.invoke(first, {"a": 1, "log": ["in"]})
    assert drive.invoke(second, {}) == {"log": ["x"]}
    assert drive.invoke(first, {}) == {"log": ["x"]}, "nor do two runs of one"


def test_additions_after_compile_warn_and_count_for_the_next_compile(drive):
    graph = chain("x")
    before = graph.compile()
    with pytest.warns(UserWarning, match="this node .* compile again"):
        graph.add_node("y", logs("y"))
    with pytest.warns(UserWarning, match="this edge"):
        graph.add_edge("x", "y")
    with pytest.warns(UserWarning, match="conditional edge"):
        graph.add_conditional_edges("y", lambda state: END)
    assert drive.invoke(before, {}) == {"log": ["x"]}
    assert drive.invoke(graph.compile(), {}) == {"log": ["x", "y"]}


def test_name_of_the_compiled_graph():
    assert chain("x").compile().get_name() == "StateGraph"
    assert chain("x").compile(name="mine").get_name() == "mine"


def test_every_building_method_returns_the_builder():
    graph = StateGraph(State)
    assert graph.add_node("x", logs("x")) is graph
    assert graph.add_edge(START, "x") is graph
    assert graph.add_sequence([("y", logs("y"))]) is graph
    assert graph.add_edge(["x"], "y") is graph
    assert graph.add_conditional_edges("y", lambda state: END) is graph
    assert graph.set_conditional_entry_point(lambda state: "x") is graph
    assert graph.set_entry_point("x") is graph
    assert graph.set_finish_point("y") is graph
    assert graph.set_node_defaults() is graph
    assert graph.validate() is graph


# -- entry, finish, sequences ----------------------------------------------------------------------------------


def test_start_to_end_alone_is_a_graph(drive):
    app = StateGraph(State).add_edge(START, END).compile()
    assert drive.invoke(app, {"a": 1}) == {"a": 1, "log": []}


def test_sequence_chains_nodes_and_leaves_the_start_to_you(drive):
    def first(state: State):
        return {"log": ["first"]}

    graph = StateGraph(State).add_sequence([first, ("second", logs("2")), logs("x")])
    assert graph.edges == {("first", "second"), ("second", "<lambda>")}
    assert drive.invoke(graph.add_edge(START, "first").compile(), {}) == {"log": ["first", "2", "x"]}


def test_sequence_of_any_iterable():
    graph = StateGraph(State).add_sequence((name, logs(name)) for name in "ab")
    assert list(graph.nodes) == ["a", "b"]


def test_sequence_that_fails_adds_nothing():
    graph = StateGraph(State)
    with pytest.raises(TypeError):
        graph.add_sequence([("a", logs("a")), ("b", 3)])
    assert graph.nodes == {}
    assert graph.edges == set()


def test_duplicate_edges_count_once(drive):
    graph = chain("x", "y").add_edge("x", "y").add_edge("x", "y")
    assert drive.invoke(graph.compile(), {}) == {"log": ["x", "y"]}


# -- names -----------------------------------------------------------------------------------------------------


class Callable_:
    def __call__(self, state: State):
        return {"log": ["called"]}

    def method(self, state: State):
        return {"log": ["method"]}


async def coroutine(state: State):
    return {"log": ["coroutine"]}


def plain(state: State):
    return {"log": ["plain"]}


class Invokable:
    name = "invokable"

    def invoke(self, state: State):
        return {"log": ["invoked"]}


NAMES = [
    (plain, "plain"),
    (coroutine, "coroutine"),
    (Callable_().method, "method"),
    (dict, "dict"),
    (lambda state: None, "<lambda>"),
    (functools.partial(plain), "plain"),
    (functools.update_wrapper(functools.partial(plain), plain), "plain"),
    (Callable_(), "Callable_"),
    (Invokable(), "invokable"),
    (chain("x").compile(), "StateGraph"),
    (chain("x").compile(name="inner"), "inner"),
]


@each_case("action, name", NAMES)
def test_a_node_without_a_name_is_named_after_its_action(action, name):
    assert list(StateGraph(State).add_node(action).nodes) == [name]
    assert list(StateGraph(State).add_sequence([action]).nodes) == [name], "sequences name alike"


@each_case("name", ["", "a", "two words", "größe", "thread_id", "join", "x+y"])
def test_unusual_names_work(name, drive):
    """Empty, equal to a state key, with spaces, not ASCII."""
    app = StateGraph(State).add_node(name, logs("it")).add_edge(START, name).compile()
    assert drive.invoke(app, {}) == {"log": ["it"]}
    assert drive.stream(app, {}) == [{name: {"log": ["it"]}}]


def test_members_of_a_string_enum_are_names(drive):
    class Names(str, Enum):
        FIRST = "first"
        SECOND = "second"

    graph = StateGraph(State).add_node(Names.FIRST, logs("1")).add_node(Names.SECOND, logs("2"))
    app = graph.add_edge(START, Names.FIRST).add_conditional_edges(Names.FIRST, lambda state: Names.SECOND).compile()
    assert drive.stream(app, {}) == [{"first": {"log": ["1"]}}, {"second": {"log": ["2"]}}]


# -- output ----------------------------------------------------------------------------------------------------


def test_output_is_the_state_when_no_node_wrote_anything(drive):
    app = chain_of(State, x=lambda state: None).compile()
    assert drive.invoke(app, {}) == {"log": []}


def test_output_is_none_if_no_output_key_has_a_value(drive):
    class Out(TypedDict):
        a: int

    app = StateGraph(State, output_schema=Out).add_node("x", logs("x")).add_edge(START, "x").compile()
    assert drive.invoke(app, {}) is None


def test_output_keys_select_a_bare_value_or_a_dict(drive):
    app = chain("x").compile()
    assert drive.invoke(app, {"a": 1}, output_keys="log") == ["x"]
    assert drive.invoke(app, {"a": 1}, output_keys=["a"]) == {"a": 1}
    assert drive.invoke(app, {}, output_keys="a") is None


def test_caller_may_change_what_was_returned(drive):
    app = chain("x").compile()
    drive.invoke(app, {})["log"].append("mine")
    assert drive.invoke(app, {}) == {"log": ["x"]}


def test_version_two_gives_an_instance_of_the_output_schema(drive):
    from pydantic import BaseModel

    class Model(BaseModel):
        a: int
        b: int = 2

    app = chain_of(Model, x=lambda state: {"a": state.a + 1}).compile()
    assert drive.invoke(app, {"a": "1"}, version="v2").value == Model(a=2, b=2)
    bound = app.with_config({"tags": ["t"]})
    assert drive.invoke(bound, {"a": "1"}, version="v2").value == Model(a=2), "a bound graph does so too"


def test_version_two_gives_a_dict_where_keys_of_the_output_schema_are_not_there_yet(drive):
    from pydantic import BaseModel

    from stategraph import Command, InMemorySaver, interrupt

    class Begun(BaseModel):
        a: int

    class Done(Begun):
        b: str

    graph = StateGraph(Done, input_schema=Begun)
    graph.add_node("ask", lambda state: {"b": interrupt("b?")}, input_schema=Begun).add_edge(START, "ask")
    app, thread = graph.compile(InMemorySaver()), thread_config("1")
    paused = drive.invoke(app, {"a": 1}, thread, version="v2")
    assert (paused.value, [question.value for question in paused.interrupts]) == ({"a": 1}, ["b?"])
    assert drive.invoke(app, Command(resume="B"), thread, version="v2").value == Done(a=1, b="B")
    assert drive.invoke(app, None, thread, version="v2", output_keys=["b"]).value == {"b": "B"}


# -- advice ----------------------------------------------------------------------------------------------------


def advice(graph: StateGraph):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph.compile()
    return [str(warning.message) for warning in caught]


def test_a_node_that_nothing_leads_to_is_named():
    (said,) = advice(chain("x").add_node("lost", logs("lost")))
    assert "'lost' cannot be reached" in said
    assert "destinations" in said, "it says what to do"


def test_breakpoints_do_not_repeat_the_advice():
    graph = chain("x").add_node("lost", logs("lost"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph.compile(interrupt_before=["x"], interrupt_after=["x"])
    assert len(caught) == 1


def test_a_router_without_a_map_may_lead_anywhere():
    graph = chain("x").add_node("y", logs("y")).add_conditional_edges("x", lambda state: "y")
    assert advice(graph) == []


def test_a_declared_destination_counts_as_a_way():
    graph = StateGraph(State).add_node("x", logs("x"), destinations=["y"]).add_node("y", logs("y")).add_edge(START, "x")
    assert advice(graph) == []


def test_a_join_that_a_router_can_starve_is_named():
    graph = StateGraph(State)
    for name in "xabj":
        graph.add_node(name, logs(name))
    graph.add_edge(START, "x").add_conditional_edges("x", lambda state: "a", ["a", "b"]).add_edge(["a", "b"], "j")
    said = advice(graph)
    assert len(said) == 2, "one for a, one for b"
    assert "waits for 'a'" in said[0]
    assert "'j' never runs" in said[0]


def test_advice_points_at_the_line_that_compiles():
    graph = chain("x").add_node("lost", logs("lost"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph.compile()
    assert [warning.filename for warning in caught] == [__file__]


def test_validate_alone_finds_the_same_mistakes():
    with pytest.raises(InvalidGraphError, match="no entry point"):
        StateGraph(State).add_node("x", logs("x")).validate()
