"""The schemas of a graph as JSON schemas: every kind of schema, what is left out, and types without a JSON schema."""

import operator
import threading
import typing
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, NotRequired

from kit.drive import each_case
from kit.graphs import chain_of
from pydantic import BaseModel
from typing_extensions import TypedDict

from stategraph import (
    START,
    MessagesState,
    NodeBuilder,
    Pregel,
    RemainingSteps,
    StateGraph,
    entrypoint,
)
from stategraph.channels import BinaryOperatorAggregate, EphemeralValue, LastValue, Topic


class Typed(TypedDict):
    n: int
    log: Annotated[list[str], operator.add]
    note: NotRequired[str]
    left: RemainingSteps


class FromTyping(typing.TypedDict):
    n: int


@dataclass
class Data:
    n: int
    log: list[str] = field(default_factory=list)


class Pair(NamedTuple):
    n: int
    word: str = "w"


class Model(BaseModel):
    n: int
    inner: Data | None = None


class Managed(BaseModel):
    n: int
    word: str = "w"
    left: RemainingSteps


def app_of(schema, **given):
    return StateGraph(schema, **given).add_node("n", lambda state: None).add_edge(START, "n").compile()


INT = {"title": "N", "type": "integer"}
LOG = {"items": {"type": "string"}, "title": "Log", "type": "array"}
WORD = {"default": "w", "title": "Word", "type": "string"}


@each_case(
    "schema, properties, required",
    [
        (Typed, {"n": INT, "log": LOG, "note": {"title": "Note", "type": "string"}}, ["n", "log"]),
        (FromTyping, {"n": INT}, ["n"]),
        (Data, {"n": INT, "log": LOG}, ["n"]),
        (Pair, {"n": INT, "word": WORD}, ["n"]),
        (Managed, {"n": INT, "word": WORD}, ["n"]),
    ],
)
def test_keys_have_their_types_and_managed_ones_are_left_out(schema, properties, required):
    found = app_of(schema).get_input_jsonschema()
    assert (found["type"], found["title"]) == ("object", schema.__name__)
    assert (found["properties"], found["required"]) == (properties, required)


def test_a_model_says_it_itself():
    assert app_of(Model).get_output_jsonschema() == Model.model_json_schema()


def test_input_output_and_context_have_schemas_of_their_own():
    app = app_of(Typed, input_schema=FromTyping, output_schema=Data, context_schema=Pair)
    shown = app.get_input_jsonschema(), app.get_output_jsonschema(), app.get_context_jsonschema()
    assert [schema["title"] for schema in shown] == ["FromTyping", "Data", "Pair"]
    assert app_of(Typed).get_context_jsonschema() is None


def test_a_state_without_keys_is_its_type():
    assert app_of(Annotated[list[int], operator.add]).get_input_jsonschema() == {
        "items": {"type": "integer"}, "type": "array",
    }  # fmt: skip


def test_types_without_a_json_schema_accept_anything():
    odd = TypedDict("odd", {"lock": threading.Lock, "_x": int, "copy": str, "model_config": int})  # type: ignore[misc]
    found = app_of(odd).get_input_jsonschema()["properties"]
    assert found["lock"] == {"title": "Lock"}
    assert {key: found[key]["type"] for key in found if key != "lock"} == {
        "_x": "integer", "copy": "string", "model_config": "integer",
    }  # fmt: skip


def test_a_graph_of_one_function_has_the_types_of_its_annotations():
    @entrypoint(context_schema=Data)
    def run(ns: list[int]) -> entrypoint.final[Data, int]:
        raise AssertionError("nothing runs")

    assert run.get_input_jsonschema() == {"items": {"type": "integer"}, "type": "array"}
    assert run.get_output_jsonschema()["title"] == "Data"
    context = run.get_context_jsonschema()
    assert context is not None and context["properties"]["n"] == INT

    @entrypoint()
    def bare(x):  # type: ignore[no-untyped-def]
        return x

    assert (bare.get_input_jsonschema(), bare.get_output_jsonschema(), bare.get_context_jsonschema()) == ({}, {}, None)


def test_a_raw_graph_has_the_types_of_its_channels():
    node = NodeBuilder().subscribe_to("n", "word").do(lambda values: values["n"]).write_to("sum", "log")
    channels = {
        "n": EphemeralValue(int), "word": EphemeralValue(str), "sum": BinaryOperatorAggregate(int, operator.add),
        "log": Topic(int, accumulate=True), "lock": LastValue(threading.Lock),
    }  # fmt: skip
    outputs = ["sum", "log", "lock"]
    raw = Pregel(nodes={"a": node}, channels=channels, input_channels=["n", "word"], output_channels=outputs, name="Raw")
    given, shown = raw.get_input_jsonschema(), raw.get_output_jsonschema()
    assert (given["title"], given["properties"], "required" in given) == (
        "RawInput", {"n": INT, "word": {"title": "Word", "type": "string"}}, False,
    )  # fmt: skip
    assert shown["title"] == "RawOutput" and shown["properties"]["sum"] == {"title": "Sum", "type": "integer"}
    assert shown["properties"]["log"]["type"] == "array" and shown["properties"]["lock"] == {"title": "Lock"}


class Told(TypedDict):
    """Plan a trip
    to some cities."""

    n: int


@dataclass
class ToldData:
    """A trip."""

    n: int


class ToldModel(BaseModel):
    """A trip, checked."""

    n: int


class Silent(MessagesState):
    n: int


@each_case("schema, text", [
    (Told, "Plan a trip\nto some cities."),
    (ToldData, "A trip."),
    (ToldModel, "A trip, checked."),
    *((each, None) for each in (Typed, FromTyping, Data, Pair, Model, Silent, MessagesState)),
])
def test_the_docstring_of_a_schema_is_its_description(schema, text):
    app = chain_of(schema, a=lambda _: {}).compile()
    assert app.get_input_jsonschema().get("description") == text
    assert app.get_output_jsonschema().get("description") == text
