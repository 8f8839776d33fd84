"""States with a contract: defaults that apply, validated values, models that are restored with their types."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import add
from typing import Annotated, Any

import pytest
from kit.drive import each_case
from kit.graphs import CONFIG, chain_of, thread_config
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from stategraph import (
    START,
    Command,
    InMemorySaver,
    InvalidGraphError,
    InvalidUpdateError,
    Overwrite,
    StateGraph,
)
from stategraph.graph.messages import add_messages


class Model(BaseModel):
    n: int = Field(default=0, ge=0)
    log: Annotated[list[str], add] = Field(default_factory=lambda: ["first"])
    total: Annotated[int | None, lambda old, new: old + new] = 1


@dataclass
class Data:
    n: int = 0
    log: Annotated[list[str], add] = field(default_factory=lambda: ["first"])
    total: Annotated[int, add] = 1


class State(TypedDict, total=False):
    n: Annotated[int, Field(ge=0)]
    log: Annotated[list[str], add]
    messages: Annotated[list[Any], add_messages]


def one(schema, node: Callable[..., Any], **options):
    graph = StateGraph(schema, **options).add_node("node", node).add_edge(START, "node")
    return graph.compile(InMemorySaver())




# -- defaults ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [Model, Data])
def test_a_key_with_a_reducer_starts_with_its_default(schema, drive):
    app = one(schema, lambda state: {"log": ["node"], "total": 2})
    for given in ({"n": 1}, schema(n=1), {"log": [], "n": 1}):
        found = drive.invoke(app, given, thread_config(repr(given)))
        assert (found["log"], found["total"]) == (["first", "node"], 3)


def test_each_thread_starts_with_a_default_of_its_own(drive):
    def append(old: list[str], new: list[str]):
        old.extend(new)
        return old

    class Own(BaseModel):
        log: Annotated[list[str], append] = ["first"]
        n: int = 0

    app = one(Own, lambda state: {"log": ["node"]})
    for thread in ("1", "2"):
        found = drive.invoke(app, {"n": 1}, thread_config(thread))
        assert found["log"] == ["first", "node"]


@pytest.mark.parametrize("schema", [Model, Data])
def test_what_is_given_is_folded_into_the_default(schema, drive):
    app = one(schema, lambda state: {})
    found = drive.invoke(app, schema(n=1, log=["given"], total=5), CONFIG)
    assert (found["log"], found["total"]) == (["first", "given"], 6)


def test_a_graph_with_defaults_is_pickled():
    graph = chain_of(Data, node=_nothing).compile()
    assert pickle.loads(pickle.dumps(graph)).invoke({"n": 1})["log"] == ["first"]


def _nothing(state): ...


# -- returned models -----------------------------------------------------------------------------------------


def test_a_returned_model_writes_what_was_set_or_changed_in_place(drive):
    class Plain(BaseModel):
        n: int = 0
        names: list[str] = []
        untouched: list[str] = ["default"]

    def node(state: Plain) -> Plain:
        made = Plain()
        made.names.append("in place")
        return made

    found = drive.invoke(one(Plain, node), {"n": 3, "untouched": ["kept"]}, CONFIG)
    assert found == {"n": 3, "names": ["in place"], "untouched": ["kept"]}


# -- aliases -------------------------------------------------------------------------------------------------


class Aliased(BaseModel):
    model_config = ConfigDict(validate_by_name=True)

    user_name: str = Field(alias="userName")
    n: int = Field(default=0, validation_alias="N")


@each_case("given", [{"userName": "a", "N": 2}, {"user_name": "a", "n": 2}, Aliased(userName="a", N=2)])
@each_case("validate", [(), "input"])
def test_an_input_may_use_aliases(given, validate, drive):
    thread = drive.on(one(Aliased, lambda state: {"user_name": state.user_name * state.n}, validate=validate))
    assert thread.invoke(given) == {"user_name": "aa", "n": 2}
    assert thread.invoke(given, version="v2").value == Aliased(userName="aa", N=2)


def test_a_graph_that_saves_nothing_knows_aliases(drive):
    graph = chain_of(Aliased, node=_nothing).compile()
    assert drive.invoke(graph, {"userName": "a"}) == {"user_name": "a"}


# -- validation ----------------------------------------------------------------------------------------------

WRONG = {"n": "three", "log": "no list"}
SCHEMAS = pytest.mark.parametrize("schema", [State, Model, Data], ids=["TypedDict", "pydantic", "dataclass"])


@SCHEMAS
@pytest.mark.parametrize("key", ["n", "log"])
def test_what_a_node_writes_is_validated(schema, key, drive):
    thread = drive.on(one(schema, lambda state: {key: WRONG[key]}, validate="writes"))
    text = rf"^node 'node' wrote {WRONG[key]!r} for the key '{key}', which does not fit: Input should be a valid"
    with pytest.raises(InvalidUpdateError, match=text):
        thread.invoke({"n": 1})
    assert thread.state.values["n"] == 1


def test_nothing_of_the_superstep_is_applied(drive):
    graph = StateGraph(State, validate="writes")
    graph.add_node("good", lambda state: {"log": ["good"]}).add_node("bad", lambda state: {"n": -1})
    thread = drive.on(graph.add_edge(START, "good").add_edge(START, "bad").compile(InMemorySaver()))
    with pytest.raises(InvalidUpdateError, match="node 'bad' wrote -1 for the key 'n'"):
        thread.invoke({"log": ["in"]})
    assert thread.history()[0].values ["log"] == ["in"]


def test_commands_edits_and_overwrites_are_validated_too(drive):
    app = one(State, lambda state: Command(update={"log": Overwrite(["new"])}), validate="writes")
    assert drive.invoke(app, {"log": ["old"]}, CONFIG)["log"] == ["new"]
    with pytest.raises(InvalidUpdateError, match="for the key 'n'"):
        drive.update_state(app, CONFIG, {"n": "three"})
    with pytest.raises(InvalidUpdateError, match="the input has 'three' for the key 'n'"):
        drive.invoke(app, Command(update={"n": "three"}), CONFIG)
    app = one(State, lambda state: {"log": Overwrite("text")}, validate="writes")
    with pytest.raises(InvalidUpdateError, match="node 'node' wrote 'text' for the key 'log'"):
        drive.invoke(app, {"log": ["old"]}, CONFIG)


def test_what_a_reducer_takes_is_what_its_second_parameter_says(drive):
    def append(old: list[str], new: str):
        return [*old, new]

    class Own(TypedDict):
        log: Annotated[list[str], append]

    assert drive.invoke(one(Own, lambda _: {"log": "a"}, validate="writes"), {"log": "in"}, CONFIG) == {"log": ["in", "a"]}
    with pytest.raises(InvalidUpdateError, match="wrote 3 for the key 'log'"):
        drive.invoke(one(Own, lambda _: {"log": 3}, validate="writes"), {"log": "in"}, CONFIG)


def test_messages_are_written_as_before(drive):
    app = one(State, lambda state: {"messages": {"role": "ai", "content": "hello"}}, validate=["input", "nodes", "writes"])
    found = drive.invoke(app, {"messages": ("user", "hi")}, CONFIG)
    assert [message["content"] for message in found["messages"]] == ["hi", "hello"]


@SCHEMAS
def test_the_input_is_validated_before_anything_is_stored(schema, drive):
    thread = drive.on(one(schema, lambda state: {}, validate="input"))
    with pytest.raises(InvalidUpdateError, match="the input has 'three' for the key 'n'"):
        thread.invoke({"n": "three"})
    assert thread.state.metadata is None
    assert thread.invoke({"n": "3"})["n"] == 3


@pytest.mark.parametrize("schema", [State, Data], ids=["TypedDict", "dataclass"])
def test_what_nodes_are_given_is_validated(schema, drive):
    seen = []
    thread = drive.on(one(schema, seen.append, validate="nodes"))
    thread.invoke({"n": "3"})
    assert (seen[0]["n"] if isinstance(seen[0], dict) else seen[0].n) == 3
    with pytest.raises(InvalidUpdateError, match="the state holds 'three' for the key 'n'"):
        thread.invoke({"n": "three"})


@each_case("given, shown", [("all", "'all'"), (["input", "all"], "'all'"), (3, "3"), (None, "None"), (True, "True")])
def test_an_unknown_place_is_refused(given, shown):
    with pytest.raises(InvalidGraphError, match=f"validate must be one or several of 'input', 'nodes', 'writes', got {shown}"):
        StateGraph(State, validate=given)
