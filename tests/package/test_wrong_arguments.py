"""Who gives a wrong argument gets an error that names it, never one of Python's own from inside the package."""

from __future__ import annotations

import asyncio
import inspect
import re
from itertools import islice

import pytest
from kit.graphs import CONFIG, Count, chain_of

from stategraph import (
    START,
    Budget,
    CachePolicy,
    Command,
    InMemorySaver,
    InMemoryStore,
    Limit,
    Pregel,
    ProcessExecutor,
    Retention,
    RetryPolicy,
    Runtime,
    Send,
    SqliteStore,
    StateGraph,
    TimeoutPolicy,
    lab,
    prebuilt,
    testing,
    upgrade,
)
from stategraph.channels import (
    BinaryOperatorAggregate,
    NamedBarrierValue,
    NamedBarrierValueAfterFinish,
    Topic,
)
from stategraph.graph import acall_model, call_model
from stategraph.store import InMemoryCache

PYTHONS_OWN = re.compile(
    r"object (is not|has no|cannot|does not)|unhashable|not supported between|cannot unpack|unsupported operand"
)
WRONG = (None, 5, "zz", object(), [], {}, [1], {"a": 1}, len)


def step(state):
    return {"n": state["n"] + 1}


GRAPH = chain_of(Count, a=step)
GOOD = {
    "config": CONFIG, "one": CONFIG, "other": CONFIG, "input": {"n": 1}, "threads": ["t"], "variant": {"a": step},
    "values": {"n": 1}, "supersteps": [], "predicate": bool, "path": "n", "node": "a", "messages": [], "tools": (),
}  # fmt: skip
LAB = lab.whatif, lab.awhatif, lab.find_threads, lab.compare, lab.since, lab.why, lab.why_not
KIT = testing.replace, testing.record, testing.arecord, testing.read_thread, testing.survives
FUNCTIONS = *LAB, *KIT, upgrade.prove, prebuilt.create_agent, prebuilt.tools_condition
STORED = "get_state", "get_state_history", "get_subgraphs", "update_state", "bulk_update_state", "undo", "copy"
MADE = (
    Pregel, InMemoryStore, InMemoryCache, SqliteStore, Retention, ProcessExecutor, Budget, Limit, RetryPolicy, TimeoutPolicy,
    CachePolicy, Send, Command, BinaryOperatorAggregate, NamedBarrierValue, NamedBarrierValueAfterFinish, Topic, prebuilt.ToolNode,
    testing.ScriptedModel, testing.VirtualTime,
)  # fmt: skip
READS = "get", "get_tuple", "list", "head", "threads", "prune"


def finish(found):
    """Carry out what a call has given back to be awaited or iterated over."""
    if inspect.iscoroutine(found):
        asyncio.run(found)
    elif inspect.isgenerator(found):
        list(islice(found, 3))


def complaints(function, given):
    """Yield the errors of Python's own that wrong arguments get, one after the other."""
    places = [p for p in inspect.signature(function).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    needed = {p.name: {**GOOD, **given}.get(p.name) for p in places if p.default is p.empty}
    for place in places:
        for wrong in WRONG:
            named = {**needed, place.name: wrong}
            positional = [named.pop(p.name) for p in places if p.kind is p.POSITIONAL_ONLY and p.name in named]
            try:
                finish(function(*positional, **named))
            except Exception as error:
                if PYTHONS_OWN.search(str(error)):
                    yield f"{place.name}={wrong!r:.30}: {type(error).__name__}: {error}"


def stored_in(saver):
    app = GRAPH.compile(saver)
    app.invoke({"n": 1}, CONFIG)
    return app


@pytest.fixture
def app(local_saver):
    return stored_in(local_saver)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_wrong_arguments_of_functions_are_named(function):
    app = stored_in(InMemorySaver())
    assert [*complaints(function, {"app": app, "new": app, "state": {"messages": []}})] == []


@pytest.mark.parametrize("name", [*STORED, *READS])
def test_wrong_arguments_of_methods_are_named(name, app):
    assert [*complaints(getattr(app if name in STORED else app.checkpointer, name), {})] == []


@pytest.mark.parametrize("cls", MADE, ids=lambda cls: cls.__name__)
def test_wrong_arguments_of_classes_are_named(cls, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where a database named "zz" is made
    given = {"typ": int, "operator": max, "node": "a", "arg": 1, "nodes": {}, "channels": {}, "names": ["a"], "script": ["x"]}
    assert [*complaints(cls, {**given, "input_channels": [], "output_channels": [], "tools": ()})] == []


@pytest.mark.parametrize("setting", ["thread_id", "checkpoint_ns", "checkpoint_id"])
def test_wrong_settings_of_a_thread_are_named(setting, app):
    def read(value):
        app.get_state({"configurable": {"thread_id": "t", setting: value}})

    assert [*complaints(read, {})] == []


@pytest.mark.parametrize("option", ["retry_policy", "cache_policy", "timeout", "limit", "metadata", "destinations", "input_schema"])
def test_wrong_options_of_a_node_are_named(option):
    def build(value):
        StateGraph(Count).add_node("a", step, **{option: value}).add_edge(START, "a").compile()

    assert [*complaints(build, {})] == []


def test_an_effect_needs_a_function():
    def node(state, runtime: Runtime):
        runtime.once("key", 5)

    with pytest.raises(TypeError, match=r"the function of once must be a function, got 5"):
        chain_of(Count, a=node).compile(InMemorySaver()).invoke({"n": 1}, CONFIG)


def test_what_is_no_model_is_named():
    for call in call_model, acall_model:
        with pytest.raises(TypeError, match=r"model must be an object with a?invoke\(messages\), got 5"):
            finish(call(5, []))
