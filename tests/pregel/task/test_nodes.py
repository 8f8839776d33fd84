"""What a node can be, what it is given besides the state, and what it can return."""

from __future__ import annotations

import functools
import operator
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Optional, Union

import pytest
from kit.drive import each_case
from kit.graphs import graph_of
from typing_extensions import TypedDict

import stategraph
from stategraph import (
    START,
    Command,
    RunnableConfig,
    Runtime,
    StateGraph,
    StreamWriter,
)
from stategraph.store import BaseStore, InMemoryStore

if TYPE_CHECKING:
    from somewhere import Unknown


class State(TypedDict, total=False):
    a: int
    log: Annotated[list[Any], operator.add]


def app_of(*nodes, **options):
    graph = StateGraph(State).add_sequence([(f"n{i}", node) for i, node in enumerate(nodes)])
    return graph.add_edge(START, "n0").compile(**options)


# -- what a node may be ----------------------------------------------------------------------------------------


def function(state):
    return {"log": [state["a"]]}


async def coroutine(state):
    return {"log": [state["a"]]}


def generator(state):
    yield {"log": [state["a"]]}


async def async_generator(state):
    yield {"log": [state["a"]]}


def two(other, state: State):
    return {"log": [state["a"] + other]}


class Object:
    def __call__(self, state: State):
        return {"log": [state["a"]]}

    def method(self, state: State):
        return {"log": [state["a"]]}

    @staticmethod
    def static(state: State):
        return {"log": [state["a"]]}

    @classmethod
    def of_class(cls, state: State):
        return {"log": [state["a"]]}


class AsyncObject:
    async def __call__(self, state: State):
        return {"log": [state["a"]]}


class Invokable:
    def invoke(self, state: State):
        return {"log": [state["a"]]}


class InvokableWithConfig:
    def invoke(self, state: State, config=None):
        return {"log": [state["a"] if config["metadata"]["stategraph_node"] == "n0" else None]}


class BothWorlds:
    def invoke(self, state: State):
        return {"log": [state["a"]]}

    async def ainvoke(self, state: State):
        return {"log": [state["a"]]}


class Returned(dict[str, Any]):
    def __init__(self, state: State):
        super().__init__(log=[state["a"]])


ACTIONS = {
    "function": function,
    "lambda": lambda state: {"log": [state["a"]]},
    "method": Object().method,
    "static method": Object.static,
    "class method": Object.of_class,
    "callable object": Object(),
    "partial": functools.partial(two, 0),
    "partial of partial": functools.partial(functools.partial(two, 0)),
    "generator": generator,
    "class": Returned,
    "invoke": Invokable(),
    "invoke with config": InvokableWithConfig(),
    "invoke and ainvoke": BothWorlds(),
    "any parameters": lambda *args: {"log": [args[0]["a"]]},
    "default": lambda state, other=0: {"log": [state["a"] + other]},
    "state by name": lambda config, state: {"log": [state["a"]]},
    "positional only": eval("lambda state, /: {'log': [state['a']]}"),
}


@each_case("action", ACTIONS.values())
def test_an_action_may_be(action, drive):
    assert drive.invoke(app_of(action), {"a": 1}) == {"a": 1, "log": [1]}


@each_case(
    "action",
    [coroutine, async_generator, AsyncObject(), AsyncObject().__call__, functools.partial(coroutine)],
)
def test_an_async_action_needs_an_async_run(action, drive):
    app = app_of(action)
    if drive.is_async:
        assert drive.invoke(app, {"a": 1}) == {"a": 1, "log": [1]}
    else:
        with pytest.raises(TypeError, match="node 'n0' is async: run the graph with ainvoke"):
            drive.invoke(app, {"a": 1})


def test_every_yield_of_a_generator_is_an_update(drive):
    """WART-75: the peer keeps the last one."""

    def node(state):
        yield {"a": 7}
        yield {"log": [2]}
        yield None
        yield {"log": [3]}

    assert drive.invoke(app_of(node), {"a": 1}) == {"a": 7, "log": [2, 3]}


NOT_ACTIONS = {
    "number": 3, "string": "n", "list": [function], "dict": {"log": function}, "object": object(),
    "no parameter": lambda: None, "keyword only": lambda *, state: None, "only **kwargs": lambda **kwargs: None,
    "too many": lambda state, other: None, "too many by keyword": lambda state, *, other: None,
}  # fmt: skip


@each_case("action", NOT_ACTIONS.values())
def test_what_cannot_be_called_as_a_node_is_refused_by_name(action):
    with pytest.raises(TypeError, match="node 'n'"):
        StateGraph(State).add_node("n", action)
    with pytest.raises(TypeError, match="the router of node 'n'"):
        StateGraph(State).add_conditional_edges("n", action)


# -- what a node is given --------------------------------------------------------------------------------------


def given(action, drive, **options):
    """What `action` told of its parameters, by calling `tell`."""
    told.clear()
    store = InMemoryStore()
    drive.invoke(app_of(action, store=store), {"a": 1}, {"tags": ["t"]}, **options)
    told["expected_store"] = store
    return dict(told)


told = {}


def tell(**seen):
    told.update(seen)


def check(seen):
    """That each parameter got what its name stands for."""
    kinds = {
        "config": lambda v: v["tags"] == ["t"] and v["metadata"]["stategraph_node"] == "n0",
        "runtime": lambda v: isinstance(v, Runtime) and v.context == {"user": "u"},
        "writer": callable,
        "store": lambda v: v is seen["expected_store"],
        "previous": lambda v: v is None,
    }
    for name, value in seen.items():
        if name in kinds:
            assert kinds[name](value), name


def by_name(state, config, runtime, writer, store, previous):  # type: ignore[no-untyped-def]
    tell(config=config, runtime=runtime, writer=writer, store=store, previous=previous)


def by_keyword(state, *, store, writer, runtime, config):  # type: ignore[no-untyped-def]
    tell(config=config, runtime=runtime, writer=writer, store=store)


def by_string(state, config: RunnableConfig | None, store: BaseStore | None, runtime: Runtime[Any]):
    tell(config=config, store=store, runtime=runtime)


def by_old_union(state, config: Optional[RunnableConfig], store: Union[BaseStore, None]):
    tell(config=config, store=store)


def by_default(state, config: RunnableConfig | None = None, writer: StreamWriter = print):
    tell(config=config, writer=writer)


def by_annotation(state, cfg: RunnableConfig, kept: BaseStore, rt: Runtime[Any], send: StreamWriter):
    tell(config=cfg, store=kept, runtime=rt, writer=send)


def by_dict(state, config: dict[str, Any]):
    tell(config=config)


def by_unknown(state: Unknown, config: Unknown, runtime: Unknown):
    tell(config=config, runtime=runtime)


def by_qualified(
    state, config: stategraph.RunnableConfig | None, runtime: stategraph.Runtime[dict[str, str]]
):
    tell(config=config, runtime=runtime)


def state_later(runtime: Runtime[Any], state: State):
    tell(runtime=runtime)


WAYS = [
    by_name,
    by_keyword,
    by_string,
    by_old_union,
    by_default,
    by_annotation,
    by_dict,
    by_unknown,
    by_qualified,
    state_later,
]


@each_case("action", WAYS)
def test_further_parameters_are_filled_by_name_or_annotation(action, drive):
    """WART-57: string annotations and unions count like any other."""
    seen = given(action, drive, context={"user": "u"})
    assert len(seen) > 1
    check(seen)


def test_async_nodes_partials_and_objects_get_the_same_parameters(drive):
    async def later(state, config: RunnableConfig, store: BaseStore | None):
        tell(config=config, store=store)

    class Called:
        def __call__(self, state: State, runtime: Runtime[Any]):
            tell(runtime=runtime)

    if drive.is_async:
        check(given(later, drive))
    check(
        given(functools.partial(by_string, runtime=None), drive, context={"user": "u"})
        | {"runtime": Runtime(context={"user": "u"})}
    )
    check(given(Called(), drive, context={"user": "u"}))


def test_the_first_parameter_is_the_state_whatever_its_name(drive):
    """WART-58."""
    for action in (lambda config: {"log": [config["a"]]}, lambda runtime: {"log": [runtime["a"]]}):
        assert drive.invoke(app_of(action), {"a": 1}) == {"a": 1, "log": [1]}


def test_without_a_store_none_is_given(drive):
    def node(state, store: BaseStore):
        return {"log": [store]}

    assert drive.invoke(app_of(node), {})["log"] == [None]


def test_a_reserved_name_with_a_foreign_annotation_is_refused():
    def node(state, config: int): ...

    with pytest.raises(TypeError, match="node 'n': the parameter 'config' is annotated"):
        StateGraph(State).add_node("n", node)


def test_a_foreign_annotation_with_a_default_keeps_the_default(drive):
    def node(state, writer: int = 3, other="x"):
        return {"log": [writer, other]}

    assert drive.invoke(app_of(node), {})["log"] == [3, "x"]


def test_routers_are_filled_like_nodes(drive):
    def router(state, config: RunnableConfig | None, *, runtime: Runtime[Any]):
        tell(config=config, runtime=runtime)
        return "n1"

    graph = graph_of(State, "S>n0", n0=lambda s: None, n1=function)
    app = graph.add_conditional_edges("n0", router).compile()
    assert drive.invoke(app, {"a": 1}, {"tags": ["t"]}, context={"user": "u"})["log"] == [1]
    check(dict(told))


# -- what a node may return ------------------------------------------------------------------------------------


def test_unknown_keys_can_be_dropped_on_demand(drive):
    """D4."""
    graph = StateGraph(State, extra_keys="ignore").add_edge(START, "n")
    graph.add_node(
        "n", lambda state: [{"b": 1, "a": 2}, Command(update={"c": 1, "log": [1]}), MappingProxyType({"d": 1})]
    )
    assert drive.invoke(graph.compile(), {}) == {"a": 2, "log": [1]}


def test_a_node_that_reads_a_key_without_a_value_gets_an_error(drive):
    with pytest.raises(KeyError) as caught:
        drive.invoke(app_of(lambda state: {"log": [state["a"]]}), {"log": ["in"]})
    assert any("'a' has no value yet" in note for note in caught.value.__notes__)
