"""The JSON schemas of a graph describe its input: a value fits the schema if, and only if, `validate="input"` accepts
it.
"""

from __future__ import annotations

import threading
from dataclasses import KW_ONLY, dataclass, field
from operator import add
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, Required, TypeVar

import jsonschema
import pydantic.dataclasses
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kit.drive import each_case
from kit.graphs import chain_of, thread_config
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    computed_field,
    with_config,
)
from typing_extensions import ReadOnly, TypedDict

from stategraph import (
    START,
    Command,
    InMemorySaver,
    InvalidUpdateError,
    RemainingSteps,
    StateGraph,
    add_messages,
    interrupt,
)

T = TypeVar("T")


def collect(old: list[str], new: str):
    return [*old, new]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str = "Rex"


class Model(BaseModel):
    n: int
    maybe: int | None
    text: str = "t"
    pet: Cat | Dog | None = Field(default=None, discriminator="kind")
    log: Annotated[list[int], add] = []
    said: Annotated[list[str], collect] = []
    within: Annotated[int, Field(ge=2, le=5)] = 3
    _private: int = 1

    @computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> int:
        return 2 * self.n


class Forbidding(BaseModel):
    model_config = ConfigDict(extra="forbid")
    n: int
    pets: dict[str, Cat] = {}


class Aliased(BaseModel):
    n: int = Field(alias="N")
    text: str = Field(default="t", validation_alias=AliasChoices("Text", "TEXT"))


class Generic_(BaseModel, Generic[T]):
    n: T
    log: Annotated[list[T], add]


class Root(RootModel[list[int]]):
    pass


class Recursive(BaseModel):
    n: int
    below: list[Recursive] = []


@dataclass
class Data:
    n: int
    maybe: int | None
    _: KW_ONLY
    inner: Cat | None = None
    log: Annotated[list[int], add] = field(default_factory=list)
    later: int = field(init=False, default=0)


@dataclass
class GenericData(Generic[T]):
    n: T
    maybe: T | None = None


@pydantic.dataclasses.dataclass
class Checked:
    n: int = Field(alias="N", ge=2)
    log: Annotated[list[int], add] = Field(default_factory=list)


class Typed(TypedDict):
    n: int
    maybe: int | None
    text: NotRequired[str]
    log: Annotated[NotRequired[list[int]], add]
    within: Annotated[int, Field(ge=2, le=5)]


class Partial(TypedDict, total=False):
    n: Required[int]
    fixed: ReadOnly[int | None]
    said: Annotated[list[str], collect]


@with_config(ConfigDict(extra="forbid"))
class Closed(TypedDict):
    n: Annotated[int, Field(alias="N")]
    text: NotRequired[str]


class Pair(NamedTuple):
    n: int
    text: str = "t"


SCHEMAS = [
    Model, Forbidding, Aliased, Generic_[int], Root, Recursive, Data, GenericData[int], Checked, Typed, Partial,
    Closed, Pair,
]  # fmt: skip


class State(TypedDict, total=False):
    """Keys of its own, so that each of the schemas above is an input of its own."""

    result: int


def graph_of(schema):
    graph = StateGraph(State, input_schema=schema, output_schema=schema, context_schema=Data, validate="input")
    return graph.add_node("node", lambda state: {}).add_edge(START, "node").compile()


GRAPHS = {schema: graph_of(schema) for schema in SCHEMAS}

# Values that pydantic converts into none of another type: no digits in texts, no 0 and 1, no whole floats.
SCALARS = st.one_of(st.none(), st.integers(2, 9), st.sampled_from(["word", "cat"]), st.just(2.5))
PETS = st.fixed_dictionaries(
    {}, optional={"kind": st.sampled_from(["cat", "dog", "cow"]), "lives": SCALARS, "name": SCALARS, "n": SCALARS}
)
VALUES = st.one_of(SCALARS, PETS, st.lists(SCALARS, max_size=2), st.lists(PETS, max_size=1), st.just({"x": {}}))


@st.composite
def inputs(draw: st.DrawFn, described):
    """An object that fits, or has one fault: a key is missing, is one too many, or has another value."""
    target = described["$defs"][described["$ref"].split("/")[-1]] if "$ref" in described else described
    known = {key: fitting(each, described) for key, each in target["properties"].items()}
    required = {key: known.pop(key) for key in target.get("required", ())}
    found = draw(st.fixed_dictionaries(required, optional=known))
    key = draw(st.sampled_from(list(target["properties"])))
    match draw(st.sampled_from(["", "", "missing", "other", "value", "value"])):
        case "missing":
            found.pop(key, None)
        case "other":
            found["unknown"] = 2
        case "value":
            found[key] = draw(VALUES)
    return found


def fitting(described, whole):
    """Values that the schema of one key takes, nearly always."""
    for choice in ("anyOf", "oneOf"):
        if choice in described:
            return st.one_of(*(fitting(each, whole) for each in described[choice]))
    if "$ref" in described:
        return st.sampled_from([{"kind": "cat", "lives": 9}, {"kind": "dog"}, {"n": 2}, {"n": 3, "below": [{"n": 2}]}])
    simple = {"integer": st.integers(2, 5), "string": st.just("word"), "null": st.none(), "object": st.just({})}
    if described.get("type") == "array":
        return st.lists(fitting(described["items"], whole), max_size=2)
    return simple[described["type"]]


@pytest.mark.trial
@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
@pytest.mark.filterwarnings("ignore:the input has the unknown key")
@settings(deadline=None)
@given(data=st.data())
def test_an_input_fits_its_json_schema_if_and_only_if_it_is_accepted(schema, data):
    app = GRAPHS[schema]
    described = app.get_input_jsonschema()
    value = data.draw(inputs(described))
    assume(value)  # an empty input is refused for that alone
    try:
        app.invoke(value)
        taken = True
    except InvalidUpdateError:
        taken = False
    assert jsonschema.Draft202012Validator(described).is_valid(value) is taken


@each_case("schema", SCHEMAS)
def test_schemas_are_right_json_schemas(schema):
    app = GRAPHS[schema]
    for described in (app.get_input_jsonschema(), app.get_output_jsonschema(), app.get_context_jsonschema()):
        jsonschema.Draft202012Validator.check_schema(described)


def test_an_optional_key_without_a_default_is_required_and_may_be_null():
    for schema in (Model, Data, Typed):
        described = GRAPHS[schema].get_input_jsonschema()
        assert "maybe" in described["required"], schema
        assert described["properties"]["maybe"]["anyOf"] == [{"type": "integer"}, {"type": "null"}], schema


def test_an_output_is_described_as_it_is_returned():
    class Camel(BaseModel):
        model_config = ConfigDict(alias_generator=str.upper, serialize_by_alias=True)
        n: int
        inner: Cat | None = None

    for schema, given_, names in ((Aliased, {"N": 1}, ["n", "text"]), (Camel, {"N": 1}, ["N", "INNER"])):
        app = chain_of(schema, node=lambda state: {}).compile()
        described = app.get_output_jsonschema()
        assert list(described["properties"]) == names
        jsonschema.validate(app.invoke(given_), described)


def test_an_input_is_what_a_reducer_takes_an_output_what_it_makes():
    app = GRAPHS[Model]
    assert app.get_input_jsonschema()["properties"]["said"]["type"] == "string"
    assert app.get_output_jsonschema()["properties"]["said"]["type"] == "array"

    class Chat(TypedDict):
        messages: Annotated[list[Any], add_messages]

    assert graph_of(Chat).get_input_jsonschema()["properties"]["messages"]["type"] == "array"


def test_texts_of_fields_are_shown():
    class Told(BaseModel):
        n: int = Field(2, title="Number", description="how many", examples=[3])
        left: RemainingSteps = 0

    app = chain_of(Told, node=lambda state: {}).compile()
    shown = app.get_input_jsonschema()["properties"]
    assert shown == {"n": {"title": "Number", "description": "how many", "examples": [3], "default": 2, "type": "integer"}}


def test_types_without_a_json_schema_accept_anything():
    class Locked(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        n: int
        lock: threading.Thread | None = None

    assert graph_of(Locked).get_input_jsonschema()["properties"]["lock"] == {"title": "Lock", "default": None}

    def ask(state: State):
        interrupt("?", response_schema=Locked)
        return {}

    app = chain_of(State, ask=ask).compile(InMemorySaver())
    [question] = app.invoke({}, thread_config("1"), version="v2").interrupts
    assert question.response_schema == {}


# -- context and questions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [Model, Forbidding, Aliased, Generic_[int], Recursive, Checked], ids=str)
@settings(deadline=None)
@given(data=st.data())
def test_a_context_fits_its_json_schema_if_and_only_if_its_class_takes_it(schema, data):
    graph = StateGraph(State, context_schema=schema).add_node("node", lambda state: {}).add_edge(START, "node")
    app = graph.compile()
    described = app.get_context_jsonschema()
    value = data.draw(inputs(schema_of(schema)))
    try:
        app.invoke({}, context=value)
        taken = True
    except ValueError:
        taken = False
    assert jsonschema.Draft202012Validator(described).is_valid(value) is taken


def schema_of(schema):
    return pydantic.TypeAdapter(schema).json_schema()


@pytest.mark.trial
@pytest.mark.filterwarnings("ignore:Item .fixed. on TypedDict")  # pydantic says that it does not guard ReadOnly
@pytest.mark.parametrize("schema", [int | None, list[int], Model, Aliased, Generic_[int], Data, Typed, Partial, Cat | Dog], ids=str)
@settings(deadline=None)
@given(data=st.data())
def test_an_answer_fits_the_schema_of_its_interrupt_if_and_only_if_it_is_accepted(schema, data):
    def ask(state: State):
        interrupt("?", response_schema=schema)
        return {"result": 1}

    app = chain_of(State, ask=ask).compile(InMemorySaver())
    config = thread_config("1")
    [question] = app.invoke({}, config, version="v2").interrupts
    described = question.response_schema
    value = data.draw(inputs(described) if "properties" in described else st.one_of(fitting(described, described), VALUES))
    # pydantic passes over a dataclass's field with init=False, and describes it all the same.
    assume(schema is not Data or not isinstance(value, dict) or "later" not in value)
    try:
        app.invoke(Command(resume={question.id: value}), config)
        taken = True
    except ValueError:
        taken = False
    assert jsonschema.Draft202012Validator(described).is_valid(value) is taken


def test_a_plain_class_says_which_keys_have_a_value():
    class Plain:
        n: int
        text: str = "t"

    app = chain_of(Plain, node=lambda state: {}).compile()
    assert app.get_input_jsonschema()["required"] == ["n"]


def test_a_context_knows_its_type_arguments():
    app = StateGraph(State, context_schema=GenericData[int]).add_node("node", lambda state: {}).add_edge(START, "node")
    assert app.compile().get_context_jsonschema()["properties"]["n"] == {"title": "N", "type": "integer"}
    assert app.compile().invoke({"result": 1}, context={"n": 1}) == {"result": 1}
