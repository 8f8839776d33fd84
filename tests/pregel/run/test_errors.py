"""Errors: which one is raised, at the earliest moment, naming node, key, step and thread.

Routers, Sends, configs and schemas have their own errors in their own files.
"""

from __future__ import annotations

import copy
import operator
import pickle
from functools import partial
from typing import Annotated, Any, Literal

import pytest
from kit.drive import each_case
from kit.graphs import chain_of, parallel_of, thread_config
from pydantic import BaseModel, ValidationError
from typing_extensions import TypedDict

from stategraph import (
    END,
    START,
    Command,
    EmptyInputError,
    InMemorySaver,
    InvalidGraphError,
    InvalidUpdateError,
    NodeBuilder,
    Overwrite,
    Pregel,
    RetryPolicy,
    StateGraph,
    StateGraphError,
)
from stategraph.channels import EmptyChannelError, EphemeralValue, LastValue, UntrackedValue
from stategraph.checkpoint import Serializer, UnserializableError
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.pregel.errors import (
    GraphRecursionError,
    InPlaceEditError,
    InternalError,
    NodeTimeoutError,
    ShippingError,
    StepTimeoutError,
    UnknownInterruptError,
    WorkerLostError,
)


class State(TypedDict, total=False):
    a: int
    log: Annotated[list[Any], operator.add]
    eph: Annotated[int, EphemeralValue]
    un: Annotated[int, UntrackedValue]


THREAD = thread_config("t-1")


def logs(state: State):
    return {"log": ["x"]}


def ends(state: State):
    return END


def one():
    """START -> x."""
    return chain_of(State, x=logs)


def parallel(**nodes):
    return parallel_of(State, nodes)


def told(error: BaseException):
    """All that a traceback would show of it."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


# -- building: refused at once ---------------------------------------------------------------------------------

AT_ONCE = {
    "name taken": (lambda g: g.add_node("x", logs), ValueError, "node 'x' already exists"),
    "END as a name": (lambda g: g.add_node(END, logs), ValueError, "'__end__'.*reserved"),
    "START as a name": (lambda g: g.add_node(START, logs), ValueError, "'__start__'.*reserved"),
    "engine's word as a name": (lambda g: g.add_node("__input__", logs), ValueError, "'__input__'.*reserved"),
    "engine's prefix": (lambda g: g.add_node("__pregel_x", logs), ValueError, "'__pregel_x'.*reserved"),
    "colon in a name": (lambda g: g.add_node("a:b", logs), ValueError, "'a:b': ':'"),
    "bar in a name": (lambda g: g.add_node("a|b", logs), ValueError, r"'a\|b': '\|'"),
    "no action": (lambda g: g.add_node("y"), TypeError, "node 'y' has no action"),
    "None alone": (lambda g: g.add_node(None), TypeError, "needs an action"),
    "number as an action": (lambda g: g.add_node("y", 3), TypeError, "node 'y' must be a function.*int: 3"),
    "two actions": (lambda g: g.add_node(logs, logs), TypeError, "a name and an action"),
    "unknown keyword": (lambda g: g.add_node("y", logs, foo=1), TypeError, "foo"),
    "metadata": (lambda g: g.add_node("y", logs, metadata="m"), TypeError, "node 'y': metadata must be a dict, got 'm'"),
    "retry policy": (lambda g: g.add_node("y", logs, retry_policy=3), TypeError, "node 'y': retry_policy.*got 3"),
    "retry policy's class": (lambda g: g.add_node("y", logs, retry_policy=[RetryPolicy]), TypeError, "node 'y': retry_policy"),
    "default policy": (lambda g: g.set_node_defaults(retry_policy=3), TypeError, "set_node_defaults: retry_policy"),
    "destinations": (lambda g: g.add_node("y", logs, destinations=3), TypeError, "node 'y': destinations"),
    "a destination": (lambda g: g.add_node("y", logs, destinations=[["x"]]), ValueError, r"node 'y'.*\['x'\]"),
    "edge from END": (lambda g: g.add_edge(END, "x"), ValueError, "cannot start at END"),
    "edge to START": (lambda g: g.add_edge("x", START), ValueError, "cannot end at START"),
    "edge from None": (lambda g: g.add_edge(None, "x"), ValueError, "starts at None"),
    "edge to None": (lambda g: g.add_edge("x", None), ValueError, "leads to None"),
    "edge to a list": (lambda g: g.add_edge("x", ["x"]), ValueError, r"leads to \['x'\]"),
    "edge from a function": (lambda g: g.add_edge(logs, "x"), ValueError, "starts at <function logs"),
    "edge to a function": (lambda g: g.add_edge("x", logs), ValueError, "leads to <function logs"),
    "finish at None": (lambda g: g.set_finish_point(None), ValueError, "starts at None"),
    "entry at None": (lambda g: g.set_entry_point(None), ValueError, "leads to None"),
    "join of nothing": (lambda g: g.add_edge([], "x"), ValueError, "at least one"),
    "join of an unknown node": (lambda g: g.add_edge(["x", "zz"], "x"), ValueError, "unknown node 'zz': add it first"),
    "join to an unknown node": (lambda g: g.add_edge(["x"], "zz"), ValueError, "unknown node 'zz': add it first"),
    "join of START": (lambda g: g.add_edge([START], "x"), ValueError, "__start__"),
    "join of END": (lambda g: g.add_edge([END], "x"), ValueError, "__end__"),
    "join of None": (lambda g: g.add_edge([None], "x"), ValueError, "waits for None"),
    "join of None and a name": (lambda g: g.add_edge({None, "x"}, "x"), ValueError, "waits for None"),
    "join of lists": (lambda g: g.add_edge([["x"]], "x"), ValueError, r"waits for \['x'\]"),
    "router of None": (lambda g: g.add_conditional_edges(None, logs), ValueError, "starts at None"),
    "router of a list": (lambda g: g.add_conditional_edges(["x"], logs), ValueError, r"starts at \['x'\]"),
    "no router": (lambda g: g.add_conditional_edges("x", None), TypeError, "router of node 'x'.*None"),
    "text as a router": (lambda g: g.add_conditional_edges("x", "y"), TypeError, "router of node 'x'.*'y'"),
    "map is text": (lambda g: g.add_conditional_edges("x", logs, "y"), ValueError, "node 'x'.*router 'logs'.*got 'y'"),
    "map is a number": (lambda g: g.add_conditional_edges("x", logs, 3), ValueError, "router 'logs'.*got 3"),
    "map to None": (lambda g: g.add_conditional_edges("x", logs, {1: None}), ValueError, "router 'logs'.*leads to None"),
    "map to a list": (lambda g: g.add_conditional_edges("x", logs, {1: ["x"]}), ValueError, r"leads to \['x'\]"),
    "list of lists": (lambda g: g.add_conditional_edges("x", logs, [["x"]]), ValueError, r"leads to \['x'\]"),
    "same router twice": (
        lambda g: g.add_conditional_edges("x", ends).add_conditional_edges("x", ends), ValueError, "router named 'ends'"
    ),
    "empty sequence": (lambda g: g.add_sequence([]), ValueError, "at least one node"),
    "sequence with a name twice": (lambda g: g.add_sequence([logs, logs]), ValueError, "'logs' already exists"),
    "sequence with a taken name": (lambda g: g.add_sequence([("x", logs)]), ValueError, "'x' already exists"),
    "sequence of None": (lambda g: g.add_sequence(None), TypeError, "got None"),
    "sequence is a function": (lambda g: g.add_sequence(logs), TypeError, "got <function logs"),
    "sequence is text": (lambda g: g.add_sequence("ab"), TypeError, "got 'ab'"),
    "sequence of text": (lambda g: g.add_sequence(["ab"]), TypeError, "'ab'"),
    "pair of one": (lambda g: g.add_sequence([("y",)]), TypeError, r"\('y',\)"),
    "pair of a number": (lambda g: g.add_sequence([(3, logs)]), TypeError, "name must be a string, got 3"),
    "pair without an action": (lambda g: g.add_sequence([("y", None)]), TypeError, "node 'y' has no action"),
}  # fmt: skip


@each_case("build, error, text", AT_ONCE.values())
def test_what_cannot_work_is_refused_at_the_line_that_says_it_and_the_graph_still_compiles(build, error, text):
    graph = one()
    with pytest.raises(error, match=text):
        build(graph)
    assert graph.compile().invoke({}) == {"log": ["x"]}


@pytest.mark.parametrize("extra", ["drop", None, [], True], ids=str)
def test_extra_keys_must_be_one_of_two_values(extra):
    with pytest.raises(InvalidGraphError, match="extra_keys"):
        StateGraph(State, extra_keys=extra)


# -- building: refused by compile ------------------------------------------------------------------------------


def says_unknown(state: State) -> Literal["zz"]:
    return "zz"


def commands_unknown(state: State) -> Command[Literal["zz"]]:
    return Command(goto="zz")


AT_COMPILE = {
    "edge to an unknown node": (lambda g: g.add_edge("x", "zz"), "'x' -> 'zz' leads to an unknown node"),
    "edge from an unknown node": (lambda g: g.add_edge("zz", "x"), "'zz' -> 'x' starts at an unknown node"),
    "map to an unknown node": (
        lambda g: g.add_conditional_edges("x", logs, {1: "zz"}),
        "node 'x': its router 'logs'.*'zz'",
    ),
    "map to START": (lambda g: g.add_conditional_edges("x", logs, {1: START}), "router 'logs'.*'__start__'"),
    "Literal of an unknown node": (lambda g: g.add_conditional_edges("x", says_unknown), "router 'says_unknown'.*'zz'"),
    "router of an unknown node": (
        lambda g: g.add_conditional_edges("zz", logs),
        "conditional edge starts at unknown node 'zz'",
    ),
    "router of END": (lambda g: g.add_conditional_edges(END, logs), "starts at unknown node '__end__'"),
    "destination": (
        lambda g: g.add_node("y", logs, destinations=["zz"]).add_edge("x", "y"),
        "node 'y'.*destination 'zz'",
    ),
    "Command's Literal": (lambda g: g.add_node("y", commands_unknown).add_edge("x", "y"), "node 'y'.*destination 'zz'"),
}


@each_case("build, text", AT_COMPILE.values())
def test_what_only_shows_in_the_whole_is_refused_by_compile(build, text):
    graph = one()
    build(graph)
    with pytest.raises(InvalidGraphError, match=text) as caught:
        graph.compile()
    assert "known: " in str(caught.value), "it says which nodes there are"


@pytest.mark.parametrize(
    "graph", [StateGraph(State), StateGraph(State).add_node("x", logs)], ids=["no node", "no edge"]
)
def test_a_graph_without_an_entry_point_is_refused(graph):
    with pytest.raises(InvalidGraphError, match=r"no entry point: add_edge\(START"):
        graph.compile()


def test_running_an_uncompiled_graph_raises():
    with pytest.raises(AttributeError, match=r"no attribute 'invoke'; call it on the compiled graph: graph\.compile\(\)"):
        one().invoke({"a": 1})
    with pytest.raises(AttributeError, match=r"no attribute 'add_nod'[^;]*$"):
        one().add_nod("x", logs)


def test_all_mistakes_are_reported_at_once():
    graph = StateGraph(State).add_node("summary", logs)
    graph.add_edge("sumary", "x").add_edge("summary", "y").add_conditional_edges("z", logs, ["q"])
    with pytest.raises(InvalidGraphError) as caught:
        graph.compile(interrupt_before=["b"], interrupt_after=["a"])
    assert len(caught.value.mistakes) == 8
    assert "did you mean 'summary'?" in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, StateGraphError)


COMPILE = {
    "breakpoint": ({"interrupt_before": ["nope"]}, ValueError, "unknown node 'nope'; known: 'x'"),
    "breakpoint as text": ({"interrupt_after": "nope"}, ValueError, "unknown node 'nope'"),
    "breakpoint at START": ({"interrupt_before": [START]}, ValueError, "'__start__'"),
    "breakpoint at None": ({"interrupt_before": [None]}, ValueError, "interrupt_before names None"),
    "breakpoint in a list": ({"interrupt_before": [["x"]]}, ValueError, r"interrupt_before names \['x'\]"),
    "breakpoint of no kind": ({"interrupt_after": 3}, ValueError, "interrupt_after names 3"),
    "checkpointer": ({"checkpointer": object()}, TypeError, "checkpointer must be a BaseCheckpointSaver"),
    "checkpointer's class": ({"checkpointer": InMemorySaver}, TypeError, "an instance, not the class"),
    "checkpointer as text": ({"checkpointer": "memory"}, TypeError, "'memory'"),
    "checkpointer not opened": ({"checkpointer": SqliteSaver.from_conn_string(":memory:")}, TypeError, "open it: `with"),
    "store": ({"store": 3}, TypeError, "store.* got 3"),
    "cache": ({"cache": True}, TypeError, "cache.* got True"),
    "store's class": ({"store": dict}, TypeError, "an instance, not the class"),
    "name": ({"name": 3}, TypeError, "name.* got 3"),
    "unknown keyword": ({"foo": 1}, TypeError, "foo"),
}


@each_case("options, error, text", COMPILE.values())
def test_a_wrong_option_of_compile_is_named(options, error, text):
    with pytest.raises(error, match=text):
        one().compile(**options)


# -- running: the input ----------------------------------------------------------------------------------------

NO_INPUT = {
    "list": [1, 2], "empty list": [], "text": "x", "number": 3, "zero": 0, "False": False, "set": {"a"}, "object": object(),
    "a schema": State, "pairs": [("a", 1)], "a function": logs, "an iterator": iter([]),
}  # fmt: skip


@each_case("given", NO_INPUT.values())
def test_input_without_keys_is_refused_before_anything_is_stored(given, drive):
    app = one().compile(InMemorySaver())
    with pytest.raises(InvalidUpdateError, match="the input of this graph must be a dict"):
        drive.invoke(app, given, THREAD)
    assert drive.history(app, THREAD) == []


def test_input_that_a_reducer_cannot_take_names_key_and_step(drive):
    app = one().compile(InMemorySaver())
    with pytest.raises(TypeError) as caught:
        drive.invoke(app, {"log": 3}, THREAD)
    assert "key 'log'" in told(caught.value)
    assert "step 0" in told(caught.value)


COMMANDS = {
    "unknown key": (Command(update={"lof": 1}), InvalidUpdateError, "'lof'; did you mean 'log'"),
    "empty": (Command(), EmptyInputError, "no update, no goto and no resume"),
    "resume": (Command(resume=1), RuntimeError, "needs a checkpointer"),
    "resume with None": (Command(resume=None), RuntimeError, "needs a checkpointer"),
}


@each_case("command, error, text", COMMANDS.values())
def test_a_command_as_input_that_cannot_work(command, error, text, drive):
    with pytest.raises(error, match=text) as caught:
        drive.invoke(one().compile(), command)
    if command.update is not None or command.goto:
        assert "given as input" in told(caught.value)


# -- running: writes that cannot be taken ----------------------------------------------------------------------

CLASHES = {
    "LastValue": ({"a": 1}, "'a'", "INVALID_CONCURRENT_GRAPH_UPDATE"),
    "two Overwrites": ({"log": Overwrite([])}, "'log'", "INVALID_CONCURRENT_GRAPH_UPDATE"),
    "EphemeralValue": ({"eph": 1}, "'eph'", "guard=False"),
    "UntrackedValue": ({"un": 1}, "'un'", "guard=False"),
}


@each_case("update, key, advice", CLASHES.values())
def test_two_writes_where_one_is_allowed_name_key_step_writers_and_thread(update, key, advice, drive):
    """D6."""
    app = parallel(p=lambda state: update, q=lambda state: update, r=logs).compile(InMemorySaver())
    with pytest.raises(InvalidUpdateError) as caught:
        drive.invoke(app, {"log": ["in"]}, THREAD)
    text = told(caught.value)
    for part in (f"key {key}", advice, "step 1", "p, q", "'t-1'", "No write of this superstep was applied"):
        assert part in text
    state = drive.get_state(app, THREAD)
    assert state.values == {"log": ["in"]}, "all or nothing"
    assert state.next == ("p", "q", "r")


@each_case("update", [3, None, {"x": 1}, "text"])
def test_a_reducer_that_raises_names_key_step_and_writer(update, drive):
    app = parallel(p=lambda state: {"log": update}, q=lambda state: {"a": 1}).compile(InMemorySaver())
    with pytest.raises(TypeError) as caught:
        drive.invoke(app, {}, THREAD)
    for part in ("key 'log'", "step 1", "written by p", "'t-1'"):
        assert part in told(caught.value)
    assert drive.get_state(app, THREAD).values == {"log": []}


# -- running: nodes that fail ----------------------------------------------------------------------------------


def fails(state: State):
    raise LookupError("boom")


def test_a_node_error_is_raised_unchanged_with_a_note(drive):
    app = parallel(x=fails).compile(InMemorySaver())
    with pytest.raises(LookupError, match="^'boom'|^boom") as caught:
        drive.invoke(app, {}, THREAD)
    (note,) = caught.value.__notes__
    task = drive.get_state(app, THREAD).tasks[0]
    assert note == f"During task with name 'x' and id {task.id!r}, in step 1 of thread 't-1'"


def test_without_a_saver_no_thread_is_named(drive):
    with pytest.raises(LookupError) as caught:
        drive.invoke(parallel(x=fails).compile(), {})
    assert caught.value.__notes__[0].endswith(", in step 1")


def test_an_error_in_a_nested_graph_has_a_note_of_each_level(drive):
    inner = parallel(x=fails).compile()
    with pytest.raises(LookupError) as caught:
        drive.invoke(parallel(outer=inner).compile(), {})
    assert [note.split("'")[1] for note in caught.value.__notes__] == ["x", "outer"]


def test_an_invalid_model_names_the_node_that_could_not_start(drive):
    class Model(BaseModel):
        a: int

    app = chain_of(Model, x=lambda state: None).compile()
    with pytest.raises(ValidationError) as caught:
        drive.invoke(app, {"a": "x"})
    assert caught.value.__notes__ == ["Before task with name 'x' and path ('__pregel_pull', 'x'), in step 1"]


# -- running: no saver where one is needed ---------------------------------------------------------------------


def test_state_methods_need_a_saver(drive):
    app = one().compile()
    for call in (drive.get_state, drive.history, partial(drive.update_state, values={"a": 1})):
        with pytest.raises(ValueError, match="no checkpointer set"):
            call(app, THREAD)


# -- raw Pregel ------------------------------------------------------------------------------------------------


def raw(node=None, **options):
    """a -> n -> b, unless told otherwise."""
    settings = {
        "nodes": {"n": node or NodeBuilder().subscribe_only("a").do(lambda value: value).write_to("b")},
        "channels": {"a": EphemeralValue(str), "b": LastValue(str)},
        "input_channels": "a",
        "output_channels": "b",
    }
    return Pregel(**{**settings, **options})


def test_several_input_channels_need_a_dict_with_one_of_them(drive):
    app = raw(input_channels=["a"])
    with pytest.raises(TypeError, match=r"dict with the input channels \['a'\], got str"):
        drive.invoke(app, "text")
    with pytest.raises(EmptyInputError, match="'a'"):
        drive.invoke(app, {"q": 1})


OWN_ERRORS = [
    GraphRecursionError("too many"), NodeTimeoutError("n", 1.0, "run", 2.0), WorkerLostError("n", "Ray", 3, "gone"),
    ShippingError("n", "state", "no"), InvalidGraphError(["a", "b"]), InPlaceEditError("n", ["k"]), InternalError("i"),
    UnknownInterruptError("no pending", ["a"], ["b"]), StepTimeoutError(["n"], 1.0), UnserializableError("['a']", "why"),
    InvalidUpdateError("k"), EmptyChannelError("k"),
]  # fmt: skip


@each_case("error", OWN_ERRORS)
def test_the_engines_own_errors_can_be_copied_pickled_and_stored(error):
    serializer = Serializer()
    pickled, stored = pickle.loads(pickle.dumps(error)), serializer.loads(serializer.dumps(error))
    for found in (copy.copy(error), copy.deepcopy(error), pickled, stored):
        assert type(found) is type(error) and str(found) == str(error) and vars(found) == vars(error)


def test_a_timeout_says_which_limit_ran_out():
    run, idle = NodeTimeoutError("n", 1.5, "run", 1.0), NodeTimeoutError("n", 1.5, "idle", 0.5)
    assert (run.kind, run.limit, run.elapsed, run.run_timeout, run.idle_timeout) == ("run", 1.0, 1.5, 1.0, None)
    assert (idle.kind, idle.limit, idle.timeout, idle.run_timeout, idle.idle_timeout) == ("idle", 0.5, 0.5, None, 0.5)
    assert "run timeout of 1 s" in str(run) and "idle timeout of 0.5 s" in str(idle)
