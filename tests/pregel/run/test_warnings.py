"""Nothing is dropped silently (R21): each wrong return value, input, answer and setting gets a warning or an error,
which says the way out.
"""

from __future__ import annotations

import asyncio
import dataclasses
import operator
import types
from collections import namedtuple
from concurrent.futures import Future
from typing import Annotated, Any, NamedTuple
from unittest.mock import AsyncMock, MagicMock, Mock, NonCallableMock, create_autospec

import kit.drive
import pytest
from kit.drive import each_case
from kit.graphs import chain_of, thread_config
from pydantic import BaseModel
from typing_extensions import TypedDict

from stategraph import (
    END,
    START,
    Command,
    GraphWarning,
    InMemorySaver,
    Interrupt,
    InvalidUpdateError,
    MessagesState,
    NodeBuilder,
    Overwrite,
    Pregel,
    PregelTask,
    RetryPolicy,
    Runtime,
    Send,
    StateGraph,
    StateSnapshot,
    StateUpdate,
    TimeoutPolicy,
    entrypoint,
    interrupt,
    task,
)
from stategraph.channels import EphemeralValue, LastValue
from stategraph.pregel.run.config import Options


class State(TypedDict, total=False):
    x: Any
    xs: Annotated[list[Any], operator.add]


class Input(TypedDict):
    x: Any


def graph_of(node, schema=State, **options):
    graph = StateGraph(schema, **options)
    graph.add_node("a", node).add_node("b", lambda state: None).add_edge(START, "a")
    return graph.add_conditional_edges("b", lambda state: END, ["a", "b", END]) if schema is State else graph


def returning(value, **options):
    """A graph whose node returns the value, or what a factory of one makes."""
    with pytest.warns(GraphWarning, match="cannot be reached"):
        return graph_of(lambda state: value() if isinstance(value, types.FunctionType) else value, **options).compile()


# -- objects of another library, known by name and shape ---------------------------------------------------------


def another(name, **fields):
    cls = dataclasses.make_dataclass(name, fields)
    cls.__module__ = "other.types"
    return cls(**fields)


def command(**fields):
    return another("Command", **{"graph": None, "update": None, "resume": None, "goto": (), **fields})


class OtherSend:
    def __init__(self):
        self.node, self.arg = "b", 1


OtherSend.__name__ = OtherSend.__qualname__ = "Send"
OtherSend.__module__ = "other.types"

COMMAND = "it is other.types.Command; import Command from stategraph"
SEND = "it is other.types.Send; import Send from stategraph"
INTERRUPT = "it is other.types.Interrupt; import Interrupt from stategraph"
OVERWRITE = "it is other.types.Overwrite; import Overwrite from stategraph"


# -- what a node may return by mistake ------------------------------------------------------------------------------


@dataclasses.dataclass
class Record:
    foo: int = 1


class Model(BaseModel):
    q: int = 0


class Row(NamedTuple):
    u: int
    v: int


class Message:
    """Annotated, as messages of most libraries are."""

    content: str = "hi"


class Bare:
    pass


class Frame:
    """Like a table of a data frame library: it has keys and items, and is no Mapping."""

    def keys(self):
        return ["x"]

    def __getitem__(self, key):
        return 1


async def coroutine():
    return {"x": 1}


def generator():
    yield {"x": 1}


async def async_generator():
    yield {"x": 1}


def plain(state: State):
    return {"x": 1}


Pair = namedtuple("Pair", "u v")  # one that declares no types is meant

WRONG_RETURNS = {
    # of another library
    "another library's Command": (command(goto="b"), COMMAND),
    "another library's Command in a list": ([command(update={"x": 1})], COMMAND),
    "another library's Command beside a dict": ([{"x": 1}, command()], COMMAND),
    "another library's Command as update": (Command(update=command()), COMMAND),
    "another library's Send": (OtherSend(), SEND),
    "another library's Send in a list": ([OtherSend()], SEND),
    "another library's Interrupt": (another("Interrupt", value="?", id="1"), INTERRUPT),
    "another library's Overwrite": (another("Overwrite", value=1, type="__overwrite__"), OVERWRITE),
    # records
    "a dataclass without any key": (Record(), "none of the state's keys: its fields are 'foo'; known: 'x', 'xs'"),
    "a model without any key": (Model(q=1), "none of the state's keys: its fields are 'q'"),
    "a NamedTuple without any key": (Row(1, 2), "none of the state's keys: its fields are 'u', 'v'"),
    "a namedtuple without any key": (Pair(1, 2), "none of the state's keys: its fields are 'u', 'v'"),
    "a message": (Message(), "none of the state's keys: its fields are 'content'"),
    "a record in a list": ([{"x": 1}, Record()], "none of the state's keys"),
    "a record as the update of a Command": (Command(update=Record()), "none of the state's keys"),
    "an object without fields": (Bare(), "Bare: <"),
    "a namespace": (types.SimpleNamespace(x=1), "SimpleNamespace"),
    "what has keys and is no mapping": (Frame(), "Frame: <"),
    "a runtime": (Runtime(), "none of the state's keys"),
    "a mock": (Mock(), "Mock: <"),
    "a mock that does magic": (MagicMock(), "MagicMock: <"),
    # objects of ours in the wrong place
    "a Command inside a Command": (Command(update=Command(update={"x": 1})), "return both in a list"),
    "a Command with an answer": (Command(update={"x": 1}, resume=1), "only the caller can answer"),
    "a Command for a parent that is not there": (Command(graph=Command.PARENT), "there is no parent graph"),
    "a Send inside a Command's update": (Command(update=Send("b", 1)), r"put Sends into Command\(goto="),
    "an Interrupt": (Interrupt("?", "1"), r"to ask a question, call interrupt\(value\)"),
    "a list of Interrupts": ([Interrupt("?", "1")], r"to ask a question, call interrupt\(value\)"),
    "an Overwrite without a key": (Overwrite({"x": 1}), r'under the key .*: \{"key": Overwrite\(value\)\}'),
    "a snapshot": (StateSnapshot({}, (), {}, None, None, None, (), ()), r"the values of a snapshot are in \.values"),
    "a task of a snapshot": (PregelTask("1", "a", ()), "PregelTask"),
    "a StateUpdate": (StateUpdate({"x": 1}), "for bulk_update_state"),
    "a retry policy": (RetryPolicy(), "RetryPolicy"),
    "a timeout policy": (TimeoutPolicy(), "TimeoutPolicy"),
    "a builder of nodes": (NodeBuilder(), "NodeBuilder"),
    "a task that was not called": (task(plain), "should it be called"),
    # classes and functions
    "a class": (Record, "an instance, not the class"),
    "a model's class": (Model, "an instance, not the class"),
    "the class Send": (Send, "an instance, not the class"),
    "the class Command": (Command, "an instance, not the class"),
    "the class dict": (dict, "an instance, not the class"),
    "a bound method": ([].append, "should it be called"),
    "a function": (lambda: plain, "should it be called"),
    "a module": (types, "module"),
    # not awaited, not collected
    "a coroutine": (lambda: coroutine(), "is an await missing"),
    "a coroutine in a list": (lambda: [coroutine()], "is an await missing"),
    "a coroutine under a key": (lambda: {"x": coroutine()}, "to the key 'x'; is an await missing"),
    "a coroutine as update": (lambda: Command(update={"x": coroutine()}), "to the key 'x'; is an await missing"),
    "a generator": (lambda: generator(), "`yield` each update in the node itself"),
    "an async generator": (lambda: async_generator(), "`yield` each update in the node itself"),
    "an iterator": (lambda: iter([{"x": 1}]), "`yield` each update in the node itself"),
    "a zip": (lambda: zip("x", [1], strict=True), "`yield` each update in the node itself"),
    "a future": (Future(), r"take its \.result\(\)"),
    # errors that are not raised
    "an error": (ValueError("x"), "raise errors, do not return them"),
    "an error in a list": ([ValueError("x")], "raise errors, do not return them"),
    "the class of an error": (ValueError, "an instance, not the class"),
    # plain values
    "a number": (5, "int: 5"),
    "zero": (0, "int: 0"),
    "True": (True, "bool: True"),
    "False": (False, "bool: False"),
    "an ellipsis": (..., "ellipsis"),
    "NotImplemented": (NotImplemented, "NotImplemented"),
    "bytes": (b"x", "bytes: b'x'"),
    "text": ("done", "str: 'done'"),
    "no text": ("", "str: ''"),
    "a long text": ("y" * 500, r"'y{50,100}\.\.\. \("),
    "the name of a node": ("b", r'to go there, return Command\(goto="b"\)'),
    "the end": (END, r'to go there, return Command\(goto="__end__"\)'),
    "a dict and the name of a node": ([{"x": 1}, "b"], r'to go there, return Command\(goto="b"\)'),
    "a set": ({"x"}, "a set has no keys"),
    "a pair": (("x", 1), "str: 'x'"),
    "a list of pairs": ([("x", 1), ("xs", [1])], r"put the pair into a dict: \{'x': \.\.\.\}"),
    "items": ({"x": 1}.items(), "dict_items"),
    "keys": ({"x": 1}.keys(), "dict_keys"),
    "a list in a list": ([[{"x": 1}]], "list: "),
    # names
    "a key that is misspelt": ({"xss": 1}, r"unknown key 'xss'; did you mean 'xs'\?.*extra_keys"),
    "a key of the engine": ({"__start__": 1}, "unknown key '__start__'"),
    "a trigger": ({"branch:to:a": None}, "unknown key 'branch:to:a'"),
    "the tasks": ({"__pregel_tasks": []}, "unknown key '__pregel_tasks'"),
    "a key in capitals": ({"X": 1}, "unknown key 'X'; known: 'x', 'xs'"),
    "a key that is a number": ({1: 2}, "unknown key 1"),
    "a key that is None": ({None: 1}, "unknown key None"),
    "a Command as a dict": ({"goto": "b", "update": {"x": 1}}, "unknown key 'goto'"),
    "a way to nowhere": (Command(goto="c"), "goes to the unknown node 'c'; known: 'a', 'b'"),
    "a way to nowhere beside another": (Command(goto=["b", "c"]), "goes to the unknown node 'c'"),
    "the end in quotes": (Command(goto="END"), "goes to the unknown node 'END'; write END, without quotes"),
    "a way back to the start": (Command(goto=START), "neither START nor END can be run"),
    "a Send to nowhere": ([Send("c", 1)], "goes to the unknown node 'c'"),
    "a Send to the end": ([Send(END, 1)], "neither START nor END can be run"),
    "triples as update": (Command(update=[("x", 1, 2)]), r"\(key, value\) pairs"),
    "text as update": (Command(update="x"), "str: 'x'"),
}


@each_case("result, text", WRONG_RETURNS.values())
def test_invalid_return_values_of_nodes_warn(result, text, drive):
    with pytest.raises(InvalidUpdateError, match=text) as caught:
        drive.invoke(returning(result), {"x": 0})
    shown = f"{caught.value} {''.join(caught.value.__notes__) if hasattr(caught.value, '__notes__') else ''}"
    assert "'a'" in shown or "no parent graph" in shown, "the node is named"


@pytest.mark.parametrize("value", [Send("b", 1), Command(goto="b")], ids=["Send", "Command"])
def test_a_command_or_send_written_as_a_value_warns(value, drive):
    for result in ({"x": value}, Command(update=[("x", value)])):
        with pytest.warns(GraphWarning, match=f"node 'a' wrote a {type(value).__name__} to the key 'x'.*beside the dict"):
            assert drive.invoke(returning(result), {"x": 0})["x"] == value


def test_a_key_that_is_declared_to_hold_a_send_may(drive):
    class Holding(TypedDict, total=False):
        x: Send | None

    assert drive.invoke(chain_of(Holding, a=lambda state: {"x": Send("a", 1)}).compile(), {}) == {"x": Send("a", 1)}


def test_a_returned_message_gets_an_error_that_names_the_messages_key(drive):
    graph = chain_of(MessagesState, a=lambda state: Message())
    with pytest.raises(InvalidUpdateError, match=r'return \{"messages": \[message\]\}'):
        drive.invoke(graph.compile(), {"messages": []})


def test_a_record_with_only_ignored_keys_warns_once(drive):
    app = returning(Record(), extra_keys="ignore")
    with pytest.warns(GraphWarning, match="node 'a' returned a Record.*none of the state's keys; it was dropped"):
        assert drive.invoke(app, {"x": 0}) == {"x": 0, "xs": []}
    with pytest.raises(InvalidUpdateError, match=COMMAND):
        drive.invoke(returning(command(), extra_keys="ignore"), {"x": 0})


def test_a_state_that_is_one_value_takes_any_but_a_command_of_another_library(drive):
    def app_of(value):
        return chain_of(int | list[Any], a=lambda state: value).compile()

    for value in (Record(), ValueError, {1: 2}, [Row(1, 2)]):
        assert drive.invoke(app_of(value), 0) == value
    for value, text in ((command(), COMMAND), ([1, OtherSend()], SEND), (Command(update=Command()), "both in a list")):
        with pytest.raises(InvalidUpdateError, match=text):
            drive.invoke(app_of(value), 0)


def test_langgraphs_own_objects_are_known_under_a_key_too(monkeypatch, drive):
    send, overwrite = OtherSend(), another("Overwrite", value=1, type="__overwrite__")
    loaded = types.SimpleNamespace(Send=type(send), Overwrite=type(overwrite))
    monkeypatch.setitem(__import__("sys").modules, "langgraph.types", loaded)
    for value, text in ((send, SEND), (overwrite, OVERWRITE)):
        with pytest.raises(InvalidUpdateError, match=f"to the key 'x'; {text}"):
            drive.invoke(returning({"x": value}), {"x": 0})


def test_an_unawaited_coroutine_is_not_a_result(drive):
    @task
    def call():
        return coroutine()

    @entrypoint()
    def inside(x):
        return call().result()

    @entrypoint()
    def outside(x):
        return coroutine()

    for app, text in ((outside, "entrypoint 'outside' returned a coroutine"), (inside, "task 'call' returned a coro")):
        if app is inside and drive.is_async:
            continue
        with pytest.raises(InvalidUpdateError, match=f"{text}.*is an await missing"):
            drive.invoke(app, 1)


# -- routers --------------------------------------------------------------------------------------------------------


WRONG_ROUTES = {
    "nothing": (None, "must return a node name, END, a Send"),
    "a truth": (True, "got True"),
    "a dict": ({"goto": "a"}, "got {'goto': 'a'}"),
    "a Command": (Command(goto="a"), "return a Command from the node, not from its router"),
    "another library's Send": (OtherSend(), SEND),
    "another library's Sends": ([OtherSend()], SEND),
    "a coroutine": (lambda: coroutine(), "is an await missing"),
    "a name that is misspelt": ("aa", "goes to the unknown node 'aa'; did you mean 'a'"),
    "a set": ({"a"}, "a set has no keys"),
    "a generator": (lambda: generator(), "must return a node name"),
    "a function": (lambda: plain, "should it be called"),
}


@each_case("mapped", [False, True])
@each_case("answer, text", WRONG_ROUTES.values())
def test_invalid_return_values_of_routers_warn(answer, text, mapped, drive):
    graph = StateGraph(State).add_node("a", lambda state: None)
    graph.add_conditional_edges(START, lambda state: "a", ["a"])
    graph.add_conditional_edges(
        "a", lambda state: answer() if isinstance(answer, types.FunctionType) else answer, ["a", END] if mapped else None
    )
    if mapped and "its path map" not in text and not text.startswith(("it is", "is ", "return a Command", "a set")):
        text = r"must be a key of its path map \('a', '__end__'\), got"
    with pytest.raises(InvalidUpdateError, match=text):
        drive.invoke(graph.compile(), {"x": 0})


# -- inputs ---------------------------------------------------------------------------------------------------------

WRONG_INPUTS = {
    "another library's Command": (command(resume=True), COMMAND),
    "a Send": (Send("a", 1), "got Send"),
    "an Interrupt": (Interrupt("?", "1"), "got Interrupt"),
    "a misspelt key alone": ({"xx": 1}, "the unknown key 'xx' .*; an input needs at least one of the keys 'x'"),
    "a key that is no text": ({1: 1}, "the unknown key 1"),
    "a key of the state alone": ({"xs": [1]}, "'xs', a key of the state but not of the input schema; an input needs"),
    "a record of something else": (Record(), "the unknown key 'foo'.*; an input needs"),
    "a class": (Model, "an instance, not the class"),
    "a list": ([{"x": 1}], "got list"),
    "text": ("x", "got str: 'x'"),
    "a coroutine": (lambda: coroutine(), "is an await missing"),
}


@pytest.mark.parametrize(("given", "text"), WRONG_INPUTS.values(), ids=WRONG_INPUTS)
def test_an_input_without_effect_is_refused_before_anything_is_stored(given, text, drive):
    saver = InMemorySaver()
    app = StateGraph(State, input_schema=Input).add_node("a", plain).add_edge(START, "a").compile(saver)
    with pytest.raises(InvalidUpdateError, match=text):
        drive.invoke(app, given() if isinstance(given, types.FunctionType) else given, thread_config(1))
    assert not list(saver.list(None))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"x": 1, "y": 2}, "the unknown key 'y'.*; dropped"),
        ({"x": 1, "xs": [2]}, "'xs', a key of the state but not of the input schema; dropped"),
    ],
)
def test_an_input_with_extra_keys_is_accepted_with_a_warning(given, text, drive):
    app = StateGraph(State, input_schema=Input).add_node("a", lambda state: None).add_edge(START, "a").compile()
    with pytest.warns(GraphWarning, match=text) as told:
        assert drive.invoke(app, given)["x"] == 1
    assert drive.is_async or told[0].filename == kit.drive.__file__, "the caller is named"


def test_the_output_of_a_call_is_an_input_of_the_next(drive):
    """`__interrupt__` is no typo, nor are keys that a subgraph does not share, or a router at START is shown."""
    app = chain_of(State, a=lambda state: {"x": interrupt("?")}).compile(InMemorySaver())
    result = drive.invoke(app, {"xs": []}, thread_config("1"))
    assert drive.invoke(app, {**result}, thread_config("2")).keys() == result.keys()
    inner = StateGraph(State, input_schema=Input).add_node("n", lambda state: {"x": 2}).add_edge(START, "n").compile()
    outer = StateGraph(State).add_node("in", inner).add_node("of", lambda state: inner.invoke({**state}))
    outer.add_edge(START, "in").add_edge("in", "of")
    assert drive.invoke(outer.compile(), {"x": 1, "xs": [3]})["x"] == 2
    routed = StateGraph(Input).add_node("a", plain)
    routed.add_conditional_edges(START, lambda state: state["way"], ["a", END])
    assert drive.invoke(routed.compile(), {"way": "a"}) == {"x": 1}


def test_raw_graphs_refuse_another_librarys_command_too(drive):
    def app_of(*inputs: str):
        node = NodeBuilder().subscribe_to("i").do(lambda x: x).write_to("o")
        return Pregel(
            nodes={"n": node},
            channels={"i": EphemeralValue(int), "j": EphemeralValue(int), "o": LastValue(Any)},
            input_channels=inputs[0] if len(inputs) == 1 else inputs,
            output_channels="o",
        )

    for app in (app_of("i"), app_of("i", "j")):
        with pytest.raises(InvalidUpdateError, match=COMMAND):
            drive.invoke(app, command(resume=1))


# -- settings -------------------------------------------------------------------------------------------------------

WRONG_SETTINGS = {
    "misspelt": ({"recursion_limt": 3}, "'recursion_limt' is not a setting.*\"recursion_limit\""),
    "in camels": ({"recursionLimit": 3}, '"recursion_limit"'),
    "with a dash": ({"max-concurrency": 3}, '"max_concurrency"'),
    "configurable misspelt": ({"configurables": {"thread_id": 1}}, '"configurable"'),
    "a limit inside configurable": ({"configurable": {"recursion_limit": 3}}, "has no effect inside `configurable`"),
    "a bound inside configurable": ({"configurable": {"max_concurrency": 3}}, "has no effect inside `configurable`"),
    "tags inside configurable": ({"configurable": {"tags": ["a"]}}, "has no effect inside `configurable`"),
    "callbacks inside configurable": ({"configurable": {"callbacks": []}}, "has no effect inside `configurable`"),
    "a thread misspelt": ({"configurable": {"threadId": 1}}, "did you mean.*\"configurable\": {\"thread_id\""),
    "a checkpoint misspelt": (thread_config(1, checkpointid=2), '"checkpoint_id"'),
    "a flat thread misspelt": ({"threadid": 1}, "\"configurable\": {\"thread_id\""),
    "a flat thread without a saver": ({"thread_id": 1}, "'thread_id' has no effect: the graph has no checkpointer"),
    "a flat checkpoint without a saver": ({"checkpoint_id": "c"}, "'checkpoint_id' has no effect: .* no checkpointer"),
    "a run misspelt": ({"runId": "r"}, "'runId' is not a setting.*config = {\"run_id\""),
    "an option misspelt": ({"durabilty": "exit"}, r"'durabilty' is not a setting.*invoke\(input, config, durability=...\)"),
    "an option misspelt inside configurable": ({"configurable": {"streamMode": "updates"}}, r"config, stream_mode=...\)"),
    **{
        f"{option} as a setting": ({option: None}, rf"'{option}' has no effect here.*invoke\(input, config, {option}=...\)")
        for option in Options.__annotations__
    },
    **{
        f"{option} inside configurable": ({"configurable": {option: 1}}, rf"has no effect inside .*, {option}=...\)")
        for option in ("durability", "stream_mode", "output_keys", "interrupt_before", "interrupt_after", "subgraphs")
    },
}


@each_case("config, text", WRONG_SETTINGS.values())
def test_a_setting_without_effect_warns(config, text, drive):
    app = chain_of(State, a=plain).compile()
    with pytest.warns(GraphWarning, match=text):
        drive.invoke(app, {"x": 0}, config)


@dataclasses.dataclass
class Context:
    user: str = "nobody"


def test_a_context_inside_configurable_warns_if_the_graph_has_a_context_schema(drive):
    builder = StateGraph(State, context_schema=Context).add_node("a", plain).add_edge(START, "a")
    config = {"configurable": {"context": {"user": "u"}}}
    with pytest.warns(GraphWarning, match=r"'context' has no effect inside .*invoke\(input, config, context=...\)"):
        drive.invoke(builder.compile(), {"x": 0}, config)
    assert drive.invoke(builder.compile(), {"x": 0}, config, context={"user": "u"})["x"] == 1


def test_a_setting_without_effect_warns_once(drive):
    builder = chain_of(State, a=plain)
    with pytest.warns(GraphWarning, match="'recursion_limt' is not a setting") as told:
        app = builder.compile(InMemorySaver()).with_config({"recursion_limt": 3}, configurable={"thread_id": 1})
        drive.invoke(app, {"x": 0})
        drive.get_state(app, None)
        drive.batch(app, [{"x": 0}], {"tags": ["t"]})
    assert len(told) == 1
    with pytest.warns(GraphWarning, match="'recursion_limt' is not a setting") as told:
        drive.batch(builder.compile(), [{"x": 0}], {"recursion_limt": 3})
    assert len(told) == 1


def test_a_flat_thread_names_the_thread_of_a_graph_that_a_node_runs(drive):
    inner = chain_of(State, a=plain).compile(InMemorySaver())
    drive.invoke(
        chain_of(State, n=lambda state: inner.invoke({"x": 0}, {"thread_id": "of its own"})).compile(
            checkpointer=InMemorySaver()
        ),
        {"x": 0},
        {"thread_id": "outer"},
    )
    assert drive.get_state(inner, {"thread_id": "of its own"}).values["x"] == 1


class Foreign(NamedTuple):
    values: Any
    as_node: str | None = None
    task_id: str | None = None


class Other(NamedTuple):
    as_node: str
    values: Any


def test_a_foreign_state_update_is_accepted_and_other_types_are_refused(drive):
    app = chain_of(State, a=plain).compile(InMemorySaver())
    config = thread_config("1")
    drive.call(app, "bulk_update_state", config, [[Foreign({"x": 7}, "a")]])
    assert drive.get_state(app, config).values["x"] == 7
    for wrong in (Other("a", {"x": 8}), {"values": {"x": 8}, "as_node": "a"}, {"x": 8}, "xy", None, ()):
        with pytest.raises(InvalidUpdateError, match=r"an update must be StateUpdate\(values, as_node\), got"):
            drive.call(app, "bulk_update_state", config, [[wrong]])
    assert drive.get_state(app, config).values["x"] == 7


def test_custom_configurable_keys_and_flat_coordinates_do_not_warn(drive):
    app = chain_of(State, a=plain).compile(InMemorySaver())
    own = {"user_id": 1, "model_name": "m", "run_id": "r", "thread": "t", "checkpoint_ns": "", "limit": 3, "lang": "en"}
    own.update({"context": "c", "version": "v3", "debug": True, "executor": "e", "mode": "fast"})
    assert drive.invoke(app, {"x": 0}, {"configurable": {"thread_id": "1", **own}})["x"] == 1
    assert drive.invoke(app, {"x": 0}, {"thread_id": "2", "user": 1})["x"] == 1
    assert drive.get_state(app, thread_config("2")).values["x"] == 1


def test_two_different_thread_ids_in_one_config_are_refused(drive):
    app = chain_of(State, a=plain).compile(InMemorySaver())
    with pytest.raises(ValueError, match="thread_id must be given once, got '1' and, inside `configurable`, '2'"):
        drive.invoke(app, {"x": 0}, {"thread_id": "1", "configurable": {"thread_id": "2"}})


@pytest.mark.parametrize(
    ("option", "text"),
    [("recursion_limit", r'in the config: \{"recursion_limit"'), ("thread_id", r'\{"configurable": \{"thread_id"')],
)
def test_a_setting_given_as_an_option_gets_an_error_that_names_its_place(option, text, drive):
    app = chain_of(State, a=plain).compile()
    with pytest.raises(TypeError, match=text):
        drive.invoke(app, {"x": 0}, **{option: 3})


# -- Overwrite ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapped", [Overwrite(["new"]), {"__overwrite__": ["new"]}], ids=["object", "JSON"])
def test_writes_replaced_by_an_overwrite_warn_with_key_and_nodes(wrapped, drive):
    graph = StateGraph(State).add_node("b", lambda state: {"xs": wrapped})
    for name in "acd":
        graph.add_node(name, lambda state, name=name: {"xs": [name]})
    for name in "abc":
        graph.add_edge(START, name)
    graph.add_edge([*"abc"], "d")
    with pytest.warns(GraphWarning, match="key 'xs': an Overwrite .* dropped; they came from 'a', 'c'\\. ") as told:
        assert drive.invoke(graph.compile(), {"xs": ["old"]})["xs"] == ["new", "d"]
    assert len(told) == 1


# -- what is called -------------------------------------------------------------------------------------------------


class Runnable:
    def __init__(self):
        self.x = 5

    def invoke(self, state: State):
        return {"x": self.x}

    def __call__(self, state: State):
        raise AssertionError("its invoke is to be called")


async def later(state: State):
    return {"x": 5}


@each_case(
    "node",
    [
        Mock(return_value={"x": 5}),
        MagicMock(return_value={"x": 5}),
        Mock(side_effect=lambda state: {"x": 5}),
        Mock(spec=plain, return_value={"x": 5}),
        create_autospec(plain, return_value={"x": 5}),
        Mock(spec=Runnable, **{"invoke.return_value": {"x": 5}}),
        Runnable(),
    ],
)
def test_a_mock_is_called_and_what_has_invoke_is_invoked(node, drive):
    app = chain_of(State, a=node).compile()
    assert drive.invoke(app, {"x": 0}) == {"x": 5, "xs": []}


@pytest.mark.parametrize("make", [lambda: AsyncMock(return_value={"x": 5}), lambda: create_autospec(later)])
def test_an_async_mock_is_awaited(make):
    node = make()
    node.return_value = {"x": 5}
    app = chain_of(State, a=node).compile()
    assert asyncio.run(app.ainvoke({"x": 0}))["x"] == 5
    with pytest.raises(TypeError, match="is async"):
        app.invoke({"x": 0})


def test_an_invoke_that_only_the_object_has_does_not_make_it_a_node():
    for node in (types.SimpleNamespace(invoke=plain), NonCallableMock()):
        with pytest.raises(TypeError, match=r"node 'a' must be a function, or an object whose class has invoke\(\)"):
            StateGraph(State).add_node("a", node)
