"""A compiled graph can be pickled and copied if its functions can; an error names what cannot be, with the way out."""

from __future__ import annotations

import copy
import operator
import pickle
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from kit.drive import each_case
from kit.graphs import CONFIG, chain_of, graph_of
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from stategraph import (
    END,
    START,
    InMemoryCache,
    InMemorySaver,
    InMemoryStore,
    NodeBuilder,
    Pregel,
    RunnableConfig,
    Runtime,
    Send,
    StateGraph,
    entrypoint,
)
from stategraph.channels import BinaryOperatorAggregate, EphemeralValue


@dataclass
class Box:
    items: list[int]


class State(TypedDict, total=False):
    x: int
    log: Annotated[list[Any], operator.add]
    box: Box


@dataclass
class Later:
    x: int = 0
    y: int = field(default=5, init=False)


class Model(BaseModel):
    x: int = Field(default=0, alias="ex")


def plain(state):
    return {"log": ["plain"], "box": Box([1])}


def given(state, config: RunnableConfig, runtime: Runtime, writer, store, previous):
    return {"log": [config["metadata"]["stategraph_node"], runtime.store is store]}


def yields(state):
    yield {"log": ["first"]}
    yield {"log": ["second"]}


def adds(state):
    return {"x": state.x + 1}


def route(state):
    return [Send("b", state)] if len(state["log"]) < 3 else END


def broken(error):
    raise ValueError("no")


def handles(state):
    return {"log": ["handled"]}


def app_of(node=plain, schema=State, **options):
    return chain_of(schema, a=node).compile(**options)


def routed():
    graph = graph_of(State, "S>a", a=plain, b=plain)
    return graph.add_conditional_edges("a", route, ["b", END]).compile()


def joined():
    graph = StateGraph(State).add_node("a", plain).add_node("b", broken, error_handler=handles).add_node("c", plain, defer=True)
    return graph.add_edge(START, "a").add_edge(START, "b").add_edge(["a", "b"], "c").compile()


def raw():
    node = NodeBuilder().subscribe_only("i").do(len).do(range).do(list).write_to("o")
    channels = {"i": EphemeralValue(str), "o": BinaryOperatorAggregate(list, operator.add)}
    return Pregel(nodes={"n": node}, channels=channels, input_channels="i", output_channels="o")


GRAPHS = {
    "plain": (app_of(), {"x": 1}),
    "what a node is given": (app_of(given), {"x": 1}),
    "generator": (app_of(yields), {"x": 1}),
    "dataclass": (app_of(adds, Later), {"x": 1}),
    "model with aliases": (app_of(adds, Model), {"x": 1}),
    "subgraph": (app_of(app_of()), {"x": 1}),
    "router": (routed(), {"x": 1}),
    "join, handler, deferred": (joined(), {"x": 1}),
    "raw": (raw(), "abc"),
}
WAYS = {"pickle": lambda app: pickle.loads(pickle.dumps(app)), "deepcopy": copy.deepcopy, "copy": copy.copy}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(("app", "given"), GRAPHS.values(), ids=GRAPHS)
def test_a_graph_does_the_same_after_it_was_pickled_or_copied(app, given, way, drive):
    one_at_a_time = {"max_concurrency": 1}  # else the order in which tasks end is chance
    before = drive.stream(app, given, one_at_a_time, stream_mode=["updates", "values"])
    twin = way(app)
    assert twin is not app and repr(twin) == repr(app)
    assert drive.stream(twin, given, one_at_a_time, stream_mode=["updates", "values"]) == before
    assert twin.get_graph().draw_mermaid() == app.get_graph().draw_mermaid()


def test_a_graph_from_a_pickle_stores_the_types_of_its_state(drive):
    thread = drive.on(pickle.loads(pickle.dumps(app_of())).copy({"checkpointer": InMemorySaver()}))
    assert thread.invoke({"x": 1})["box"] == Box([1])
    assert thread.state.values["box"] == Box([1])


def test_a_deep_copy_shares_what_the_graph_was_lent(drive):
    lent = {"checkpointer": InMemorySaver(), "store": InMemoryStore(), "cache": InMemoryCache()}
    app = app_of(**lent)
    twin = copy.deepcopy(app)
    assert {name: getattr(twin, name) for name in lent} == lent
    drive.invoke(app, {"x": 1}, CONFIG)
    assert drive.get_state(twin, CONFIG).values == drive.get_state(app, CONFIG).values
    assert twin.nodes is not app.nodes and twin.program is not app.program


@each_case(
    "app, text",
    [
        (app_of(lambda state: None), "node 'a': .*<lambda>.*; define functions and classes at the top of a module, or use"),
        (app_of(checkpointer=InMemorySaver()), r"checkpointer InMemorySaver: .*pickle app\.copy\(\{'checkpointer': None\}\)"),
        (app_of(store=InMemoryStore()), "store InMemoryStore: .*set it again after loading"),
        (app_of(app_of(lambda state: None)), "node 'a': graph 'StateGraph' cannot be pickled: node 'a': .*<lambda>"),
        (StateGraph(State).add_node("a", plain).add_conditional_edges(START, lambda state: "a", ["a"]).compile(),
         "what follows node '__start__': .*<lambda>"),
        (app_of(schema=TypedDict("Here", {"x": Annotated[int, lambda old, new: new]})), "key 'x': .*<lambda>"),  # type: ignore[misc]
    ],
)  # fmt: skip
def test_what_cannot_be_pickled_is_named_with_its_place(app, text):
    with pytest.raises(pickle.PicklingError, match=f"graph 'StateGraph' cannot be pickled: {text}"):
        pickle.dumps(app)
    assert repr(copy.deepcopy(app)) == repr(app), "a copy needs no pickling"


def test_cloudpickle_takes_lambdas_too(drive):
    cloudpickle = pytest.importorskip("cloudpickle")
    app = app_of(lambda state: {"x": 7}, schema=TypedDict("Here", {"x": int}))  # type: ignore[operator]
    assert drive.invoke(pickle.loads(cloudpickle.dumps(app)), {"x": 1}) == {"x": 7}
    outer = app_of(app, schema=TypedDict("Here", {"x": int}))  # type: ignore[operator]
    assert drive.invoke(pickle.loads(cloudpickle.dumps(outer)), {"x": 1}) == {"x": 7}

    @entrypoint()
    def local(x):
        return x + 1

    assert drive.invoke(pickle.loads(cloudpickle.dumps(local)), 1) == 2


def test_a_graph_that_has_run_elsewhere_leaves_that_behind(drive):
    app = app_of()
    drive.invoke(app, {"x": 1}, debug=True)
    assert app.program.variants and not pickle.loads(pickle.dumps(app)).program.variants
