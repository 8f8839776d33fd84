"""The config of a call: how settings are merged, and what a running node finds in them."""

from __future__ import annotations

import dataclasses
import operator
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import pytest
from kit.drive import each_case
from kit.graphs import thread_config
from pydantic import BaseModel, ValidationError
from typing_extensions import TypedDict

from stategraph import (
    START,
    EmptyInputError,
    GraphRecursionError,
    InMemorySaver,
    RunnableConfig,
    Runtime,
    StateGraph,
    StreamWriter,
    get_config,
    get_runtime,
    get_store,
    get_stream_writer,
)
from stategraph.graph import push_message
from stategraph.store import InMemoryStore


class State(TypedDict, total=False):
    a: int
    log: Annotated[list[Any], operator.add]


def app_of(*nodes, context_schema=None, **options):
    graph = StateGraph(State, context_schema).add_sequence([(f"n{i}", node) for i, node in enumerate(nodes)])
    return graph.add_edge(START, "n0").compile(**options)


def nothing(state):
    """A node without an update."""


class Configs(list[Any]):
    """A node that keeps the config it was given."""

    def node(self, state: State, config: RunnableConfig):
        self.append(config)

    def of(self, drive, config=None, bound=None):
        app = app_of(self.node)
        drive.invoke(app.with_config(bound) if bound else app, {}, config)
        return self[-1]


# -- what a node finds -----------------------------------------------------------------------------------------


def test_metadata_say_where_the_node_runs(drive):
    seen = Configs()
    app = StateGraph(State).add_node("n", seen.node, metadata={"team": "x", "u": 2}).add_edge(START, "n").compile()
    drive.invoke(app, {}, {"metadata": {"u": 1, "v": 3}})
    metadata = seen[0]["metadata"]
    own = {key: metadata.pop(key) for key in list(metadata) if key.startswith("stategraph_")}
    assert metadata == {"team": "x", "u": 2, "v": 3}, "the node's own win"
    assert own.pop("stategraph_checkpoint_ns").startswith("n:")
    assert own == {
        "stategraph_step": 1,
        "stategraph_node": "n",
        "stategraph_triggers": ("branch:to:n",),
        "stategraph_path": ("__pregel_pull", "n"),
    }


def test_the_thread_a_token_belongs_to_is_in_its_metadata(drive):
    app = app_of(lambda state: push_message({"role": "assistant", "content": "x", "id": "1"}, state_key=None) and None)
    [(_, metadata)] = drive.stream(app, {}, thread_config("1"), stream_mode="messages")
    assert metadata["thread_id"] == "1"


def test_without_any_config_a_node_finds_empty_ones(drive):
    config = Configs().of(drive)
    assert config["tags"] == []
    assert set(config["configurable"]) == {"checkpoint_ns"}


def test_a_node_cannot_change_the_config_of_others(drive):
    def spoil(state, config: RunnableConfig):
        config["tags"].append("spoiled")
        config["metadata"]["spoiled"] = True
        config["configurable"]["spoiled"] = True

    seen = Configs()
    mine = {"tags": ["t"], "metadata": {"m": 1}, "configurable": {"c": 1}}
    drive.invoke(app_of(spoil, seen.node), {}, mine)
    assert seen[0]["tags"] == ["t"]
    assert not {"spoiled"} & {*seen[0]["metadata"], *seen[0]["configurable"]}
    assert mine == {"tags": ["t"], "metadata": {"m": 1}, "configurable": {"c": 1}}, "nor the caller's"


def test_unknown_settings_move_into_configurable(drive):
    config = Configs().of(drive, {"user": "u", "configurable": {"lang": "en"}})
    assert (config["configurable"]["user"], config["configurable"]["lang"]) == ("u", "en")


def test_a_flat_thread_id_works(drive):
    app = app_of(lambda state: {"log": ["x"]}, checkpointer=InMemorySaver())
    drive.invoke(app, {}, {"thread_id": "1"})
    assert drive.get_state(app, thread_config("1")).values == {"log": ["x"]}


# -- how settings meet -----------------------------------------------------------------------------------------


def test_a_calls_config_adds_to_the_bound_one(drive):
    bound = {"tags": ["b", "both"], "metadata": {"x": 1, "y": 1}, "configurable": {"x": 1, "y": 1}}
    call = {"tags": ["both", "c"], "metadata": {"y": 2}, "configurable": {"y": 2}}
    config = Configs().of(drive, call, bound)
    assert config["tags"] == ["b", "both", "c"]
    assert (config["metadata"]["x"], config["metadata"]["y"]) == (1, 2)
    assert (config["configurable"]["x"], config["configurable"]["y"]) == (1, 2)


def test_a_bound_limit_counts_until_a_call_brings_its_own(drive):
    app = app_of(nothing, nothing).with_config({"recursion_limit": 1})
    with pytest.raises(GraphRecursionError):
        drive.invoke(app, {})
    drive.invoke(app, {}, {"recursion_limit": 2})
    with pytest.raises(GraphRecursionError):
        drive.invoke(app, {}, {"recursion_limit": None})


def test_binding_leaves_the_graph_as_it_was(drive):
    app = app_of(nothing, nothing)
    app.with_config(recursion_limit=1)
    drive.invoke(app, {})


def test_settings_of_none_are_as_if_not_given(drive):
    keys = ["tags", "metadata", "callbacks", "run_name", "run_id", "max_concurrency", "recursion_limit", "configurable"]
    config = Configs().of(drive, dict.fromkeys(keys))
    assert config["tags"] == []


WRONG = {
    "no dict": 3,
    "text": "thread",
    "configurable": {"configurable": 3},
    "configurable list": {"configurable": ["thread_id"]},
    "metadata": {"metadata": "m"},
    "tags text": {"tags": "abc"},
    "tags number": {"tags": 3},
    "run_name": {"run_name": 3},
    "run_id": {"run_id": 3},
    "limit text": {"recursion_limit": "3"},
    "limit fraction": {"recursion_limit": 2.5},
    "concurrency text": {"max_concurrency": "2"},
}


@each_case("config", WRONG.values())
def test_a_setting_of_the_wrong_kind_is_named(config, drive):
    app = app_of(nothing)
    name = next(iter(config)) if isinstance(config, dict) else "config must be a dict"
    for call in (drive.invoke, drive.stream):
        with pytest.raises(TypeError, match=name):
            call(app, {}, config)
    with pytest.raises(TypeError, match=name):
        app.with_config(config)


@each_case("setting", ["recursion_limit", "max_concurrency"])
@each_case("value", [0, -1])
def test_a_limit_below_one_is_refused(setting, value, drive):
    with pytest.raises(ValueError, match=f"{setting} must be an integer >= 1, got {value}"):
        drive.invoke(app_of(nothing), {}, {setting: value})


# -- the thread ------------------------------------------------------------------------------------------------


@each_case("config", [None, {}, {"configurable": {}}, {"configurable": None}, thread_config(None), thread_config(""), {"configurable": {"user": "u"}}])
def test_a_graph_with_a_saver_needs_a_thread_id(config, drive):
    """D15."""
    app = app_of(nothing, checkpointer=InMemorySaver())
    for call in (
        lambda: drive.invoke(app, {}, config),
        lambda: drive.get_state(app, config),
        lambda: drive.history(app, config),
    ):
        with pytest.raises(ValueError, match="thread_id"):
            call()


def test_thread_ids_are_isolated_and_may_be_numbers_or_uuids(drive):
    app = app_of(lambda state: {"log": ["x"]}, checkpointer=InMemorySaver())
    for thread in (1, 1, "2", UUID(int=3)):
        drive.invoke(app, {}, thread_config(thread))
    assert drive.get_state(app, thread_config("1")).values == {"log": ["x", "x"]}
    for thread in (2, str(UUID(int=3))):
        assert drive.get_state(app, thread_config(thread)).values == {"log": ["x"]}


def test_resume_of_an_empty_thread_names_the_thread(drive):
    app = app_of(nothing, checkpointer=InMemorySaver())
    with pytest.raises(EmptyInputError, match="thread '7' has no pending work"):
        drive.invoke(app, None, thread_config("7"))
    with pytest.raises(EmptyInputError, match="without a checkpointer"):
        drive.invoke(app_of(nothing), None)


# -- run_id, run_name ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run_id", ["mine", UUID(int=7)], ids=str)
def test_the_run_id_reaches_nodes(run_id, drive):
    seen = []

    def node(state, runtime: Runtime[Any]):
        assert runtime.execution_info is not None
        seen.append(runtime.execution_info.run_id)

    drive.invoke(app_of(node), {}, {"run_id": run_id, "run_name": "named"})
    assert seen == [str(run_id)]


# -- context ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Data:
    user: str
    age: int = 3


class Model(BaseModel):
    user: str
    age: int = 3


def contextual(schema):
    seen = []

    def node(state, runtime: Runtime[Any]):
        seen.append(runtime.context)

    return app_of(node, context_schema=schema), seen


@each_case(
    "schema, context, seen",
    [
        (Data, {"user": "u"}, Data("u")),
        (Data, Data("v"), Data("v")),
        (Model, {"user": "u", "age": "4"}, Model(user="u", age=4)),
        (dict[str, str], {"user": "u"}, {"user": "u"}),
        (Data, None, None),
    ],
)
def test_a_dict_becomes_the_context_schema_and_all_else_stays(schema, context, seen, drive):
    app, got = contextual(schema)
    drive.invoke(app, {}, context=context)
    assert got == [seen]
    assert type(got[0]) is type(seen)
    assert got[0] is context or not isinstance(context, Data)


@each_case("schema, context, error", [
    (Data, {}, TypeError),
    (Data, {"user": "u", "shoe": 1}, TypeError),
    (Model, {"user": 3}, ValidationError),
    (int, {"a": 1}, TypeError),
])
def test_a_context_that_does_not_fit_says_of_which_graph_and_class(schema, context, error, drive):
    app, got = contextual(schema)
    with pytest.raises(error) as caught:
        drive.invoke(app, {}, context=context)
    assert any(schema.__name__ in note and "StateGraph" in note for note in caught.value.__notes__)
    assert got == []


# -- asking for it by function ---------------------------------------------------------------------------------


def test_the_same_things_can_be_had_by_function(drive):
    store = InMemoryStore()
    seen = []

    def node(state, config: RunnableConfig, runtime: Runtime[Any], writer: StreamWriter):
        seen.append(get_config() == config)
        seen.append(get_runtime() is runtime)
        seen.append(get_store() is store is runtime.store)
        get_stream_writer()("one")
        writer("two")
        runtime.stream_writer("three")

    events = drive.stream(app_of(node, store=store), {}, stream_mode="custom")
    assert seen == [True, True, True]
    assert events == ["one", "two", "three"]


# -- options of a call -----------------------------------------------------------------------------------------

OPTIONS = {
    "unknown option": ({"stream_mod": "values"}, TypeError, "unknown option 'stream_mod'.*did you mean 'stream_mode'"),
    "unknown mode": ({"stream_mode": "value"}, ValueError, "stream_mode must be 'values', .* or 'debug', got 'value'"),
    "one unknown mode": ({"stream_mode": ["values", "foo"]}, ValueError, "stream_mode must be 'values', .* or 'debug', got 'foo'"),
    "mode of no kind": ({"stream_mode": 3}, TypeError, "stream_mode"),
    "unknown output": ({"output_keys": "lof"}, ValueError, "'lof' does not exist; did you mean 'log'"),
    "outputs show state keys only": ({"output_keys": ["zzz"]}, ValueError, r"known: 'a', 'log'$"),
    "output of no kind": ({"output_keys": 3}, TypeError, "output_keys"),
    "output in a list": ({"output_keys": [["a"]]}, ValueError, "does not exist"),
    "breakpoint": ({"interrupt_before": ["n9"]}, ValueError, "unknown node 'n9'; known: 'n0'"),
    "breakpoint after": ({"interrupt_after": "n9"}, ValueError, "unknown node 'n9'"),
    "breakpoint of no kind": ({"interrupt_before": 3}, TypeError, "breakpoint"),
    "durability": ({"durability": "never"}, ValueError, "durability must be 'sync', 'async' or 'exit', got 'never'"),
    "version": ({"version": "v3"}, ValueError, "'v3'"),
    "control": ({"control": 3}, TypeError, "RunControl"),
}


@each_case("options, error, text", OPTIONS.values())
def test_a_wrong_option_is_named(options, error, text, drive):
    ran = []
    app = app_of(ran.append)
    for call in (drive.invoke, drive.stream):
        with pytest.raises(error, match=text):
            call(app, {}, **options)
    assert ran == [], "before anything runs"


def test_an_empty_list_of_breakpoints_means_none(drive):
    """WART-34: None means those of compile."""
    app = app_of(lambda state: {"log": ["x"]}, interrupt_before="n0")
    assert drive.invoke(app, {}) == {"log": []}
    assert drive.invoke(app, {}, interrupt_before=[]) == {"log": ["x"]}


@each_case("names", ["n0", ["n0"], ("n0",), {"n0"}, "*"])
def test_breakpoints_may_be_a_name_or_any_collection(names, drive):
    """WART-28."""
    app = app_of(lambda state: {"log": ["x"]}, lambda state: {"log": ["y"]}, interrupt_after=names)
    assert drive.invoke(app, {}) == {"log": ["x"]}


def test_batch_takes_one_config_or_one_each(drive):
    app = app_of(lambda state, config: {"log": [config["configurable"].get("user"), state["a"]]})
    both = [{"a": 1}, {"a": 2}]
    one = drive.batch(app, both, {"configurable": {"user": "u"}})
    assert [result["log"] for result in one] == [["u", 1], ["u", 2]]
    each = drive.batch(app, both, [{"configurable": {"user": name}} for name in "vw"])
    assert [result["log"] for result in each] == [["v", 1], ["w", 2]]
    assert drive.batch(app, []) == []
    with pytest.raises(ValueError, match="each of its 2 inputs, got 1"):
        drive.batch(app, both, [{}])


def test_batch_can_return_exceptions_among_results(drive):
    def divide(state):
        return {"a": 6 // state["a"]}

    batch = partial(drive.call, app_of(divide), "batch", [{"a": 2}, {"a": 0}, {"a": 3}])
    first, failed, last = batch(return_exceptions=True)
    assert (first["a"], type(failed), last["a"]) == (3, ZeroDivisionError, 2)
    with pytest.raises(ZeroDivisionError):
        batch()
