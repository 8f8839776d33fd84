"""The results of a graph whose state is a class: instances with `version="v2"`, aliases where the class has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import add
from typing import Annotated

import pytest
from kit.graphs import CONFIG, chain_of
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from typing_extensions import TypedDict

from stategraph import START, InMemorySaver, RemainingSteps, StateGraph, entrypoint, interrupt


class Model(BaseModel):
    n: int
    log: Annotated[list[str], add] = []
    answer: str = ""


@dataclass
class Data:
    n: int
    log: Annotated[list[str], add] = field(default_factory=list)
    answer: str = ""


class Typed(TypedDict, total=False):
    n: int
    log: Annotated[list[str], add]
    answer: str


CLASSES = pytest.mark.parametrize("schema", [Model, Data], ids=["pydantic", "dataclass"])


def count(state):
    return {"n": state.n + 1, "log": ["counted"]}


def ask(state):
    return {"answer": interrupt("yes?")}


def counting(schema, **options):
    return StateGraph(schema, **options).add_node("count", count).add_edge(START, "count")


def values_of(drive, app, given, **options):
    return [part["data"] for part in drive.stream(app, given, stream_mode="values", version="v2", **options)]


# -- instances -----------------------------------------------------------------------------------------------


@CLASSES
def test_parts_of_values_are_instances_of_the_output_schema(schema, drive):
    shown = values_of(drive, counting(schema).compile(), {"n": 1})
    assert shown == [schema(n=1), schema(n=2, log=["counted"])]

    class Out(BaseModel):
        n: int

    assert values_of(drive, counting(schema, output_schema=Out).compile(), {"n": 1}) == [Out(n=1), Out(n=2)]


def test_values_stay_dicts_without_being_asked_and_where_the_state_is_a_dict(drive):
    assert drive.stream(counting(Model).compile(), {"n": 1}, stream_mode="values")[0] == {"n": 1, "log": []}
    graph = chain_of(Typed, count=lambda state: {"n": 2}).compile()
    assert values_of(drive, graph, {"n": 1}) == [{"n": 1, "log": []}, {"n": 2, "log": []}]


def test_what_makes_no_instance_yet_is_shown_as_a_dict(drive):
    class Given(BaseModel):
        text: str

    class Whole(Given):
        length: int

    graph = StateGraph(Whole, input_schema=Given)
    graph.add_node("measure", lambda given: {"length": len(given.text)}, input_schema=Given)
    app = graph.add_edge(START, "measure").compile(InMemorySaver())
    assert values_of(drive, app, {"text": "abc"}, config=CONFIG) == [{"text": "abc"}, Whole(text="abc", length=3)]
    newest, first = (drive.history(app, CONFIG, version="v2")[place].values for place in (0, -2))
    assert (newest, first) == (Whole(text="abc", length=3), {"text": "abc"})


@CLASSES
def test_get_state_returns_an_instance_of_the_state_on_request(schema, drive):
    thread = drive.on(counting(schema, output_schema=Typed).compile(InMemorySaver()))
    thread.invoke({"n": 1})
    assert thread.state.values == {"n": 2, "log": ["counted"]}
    assert thread.get_state(version="v2").values == schema(n=2, log=["counted"])
    assert [found.values for found in thread.history(version="v2")][:2] == [
        schema(n=2, log=["counted"]), schema(n=1),
    ]  # fmt: skip


def test_a_thread_without_checkpoints_has_no_instance(drive):
    assert drive.get_state(counting(Model).compile(InMemorySaver()), CONFIG, version="v2").values == {}


def test_private_keys_of_nodes_are_no_part_of_the_instance(drive):
    class Strict(BaseModel):
        model_config = ConfigDict(extra="forbid")
        n: int

    class Private(BaseModel):
        secret: str = ""

    graph = StateGraph(Strict).add_node("a", lambda state: {"secret": "s"})
    graph.add_node("b", lambda private: {"n": len(private.secret)}, input_schema=Private)
    thread = drive.on(graph.add_edge(START, "a").add_edge("a", "b").compile(InMemorySaver()))
    assert thread.invoke({"n": 0}, version="v2").value == Strict(n=1)
    assert thread.state.values == {"n": 1, "secret": "s"}
    assert thread.get_state(version="v2").values == Strict(n=1)


@CLASSES
def test_a_paused_call_shows_instances_and_its_questions(schema, drive):
    app = chain_of(schema, ask=ask).compile(InMemorySaver())
    parts = drive.stream(app, {"n": 1}, CONFIG, stream_mode="values", version="v2")
    assert [part["data"] for part in parts] == [schema(n=1), schema(n=1)]
    assert [question.value for question in parts[1]["interrupts"]] == ["yes?"]
    assert drive.get_state(app, CONFIG, version="v2").values == schema(n=1)


def test_nested_graphs_show_instances_of_their_own_classes(drive):
    class Inner(BaseModel):
        n: int
        answer: str = ""

    inner = chain_of(Inner, ask=ask).compile()
    app = chain_of(Model, inner=inner).compile(InMemorySaver())
    parts = drive.stream(app, {"n": 1}, CONFIG, stream_mode="values", version="v2", subgraphs=True)
    assert {type(part["data"]) for part in parts if part["ns"]} == {Inner}
    assert {type(part["data"]) for part in parts if not part["ns"]} == {Model}
    [task] = drive.get_state(app, CONFIG, subgraphs=True, version="v2").tasks
    assert task.state.values == Inner(n=1)


def test_keys_that_are_computed_are_no_part_of_what_a_call_returns(drive):
    class Managed(BaseModel):
        n: int
        left: RemainingSteps

    app = chain_of(Managed, a=lambda state: {"n": 2}).compile()
    assert drive.invoke(app, {"n": 1}, version="v2").value == {"n": 2}


def test_an_entrypoint_returns_what_its_function_does(drive):
    @entrypoint(checkpointer=InMemorySaver())
    def run(n: int) -> Model:
        return Model(n=n)

    assert run.invoke(1, CONFIG, version="v2").value == Model(n=1)
    assert run.get_state(CONFIG, version="v2").values == Model(n=1)


def test_an_unknown_version_is_refused():
    app = counting(Model).compile(InMemorySaver())
    for look in (app.get_state, lambda config, **more: list(app.get_state_history(config, **more))):
        with pytest.raises(ValueError, match='version must be "v1" or "v2", got 2'):
            look(CONFIG, version=2)


# -- aliases -------------------------------------------------------------------------------------------------


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, serialize_by_alias=True)

    user_name: str
    user_age: int | None = None


def rename(state: Camel):
    return {"user_name": state.user_name.title(), "user_age": 3}


def camel(**options):
    return StateGraph(Camel, **options).add_node("rename", rename).add_edge(START, "rename")


def test_a_class_that_serializes_by_alias_is_returned_with_aliases(drive):
    thread = drive.on(camel().compile(InMemorySaver()))
    assert thread.invoke({"userName": "anne"}) == {"userName": "Anne", "userAge": 3}
    assert thread.stream({"user_name": "ben"}, stream_mode="values") == [
        {"userName": "ben", "userAge": 3}, {"userName": "Ben", "userAge": 3},
    ]  # fmt: skip
    value = thread.invoke({"user_name": "cy"}, version="v2").value
    assert value == Camel(user_name="Cy", user_age=3) and value.model_dump() == {"userName": "Cy", "userAge": 3}


def test_inside_keys_have_the_names_of_fields(drive):
    thread = drive.on(camel().compile(InMemorySaver()))
    assert thread.stream({"userName": "anne"}, stream_mode="updates") == [
        {"rename": {"user_name": "Anne", "user_age": 3}}
    ]
    found = thread.state.values
    assert found == {"user_name": "Anne", "user_age": 3}
    thread.update(found)


def test_an_output_is_a_valid_input(drive):
    app = camel().compile()
    once = drive.invoke(app, {"userName": "anne"})
    assert drive.invoke(app, once) == once


def test_aliases_stay_outside_where_the_class_does_not_serialize_by_them(drive):
    class Given(BaseModel):
        user_name: str = Field(alias="userName", serialization_alias="USER")

    app = chain_of(Given, a=lambda state: {}).compile()
    assert drive.invoke(app, {"userName": "anne"}) == {"user_name": "anne"}


def test_a_nested_graph_gives_its_parent_keys_not_aliases(drive):
    thread = drive.on(chain_of(Camel, inner=camel().compile()).compile(InMemorySaver()))
    assert thread.invoke({"userName": "anne"}) == {"userName": "Anne", "userAge": 3}
    shown = thread.stream({"userName": "ben"}, stream_mode="values", subgraphs=True)
    assert {tuple(chunk) for _, chunk in shown} == {("userName", "userAge")}


def test_a_paused_call_returns_interrupts_with_aliases(drive):
    class Asking(Camel):
        answer: str = ""

    app = chain_of(Asking, ask=ask).compile(InMemorySaver())
    paused = drive.invoke(app, {"userName": "anne"}, CONFIG)
    assert (paused["userName"], [question.value for question in paused["__interrupt__"]]) == ("anne", ["yes?"])
