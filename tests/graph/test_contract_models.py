"""Every kind of class as the schema of a state: what nodes see, what is written, what is refused and with which
error.
"""

from __future__ import annotations

import dataclasses
import pickle
from dataclasses import KW_ONLY, InitVar, dataclass, field
from operator import add
from typing import Annotated, Generic, Literal, NotRequired, Required, TypeVar

import pydantic.dataclasses
import pytest
from kit.drive import Drive, each_case
from kit.graphs import CONFIG, thread_config
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    RootModel,
    ValidationInfo,
    computed_field,
    field_validator,
    model_validator,
    with_config,
)
from typing_extensions import ReadOnly, TypedDict

from stategraph import (
    START,
    InMemorySaver,
    InvalidGraphError,
    InvalidUpdateError,
    SqliteSaver,
    StateGraph,
    interrupt,
)

EVERYWHERE = ["input", "nodes", "writes"]
T = TypeVar("T")


def one(schema, node, *, validate=EVERYWHERE, **options):
    graph = StateGraph(schema, validate=validate, **options).add_node("node", node).add_edge(START, "node")
    return graph.compile(InMemorySaver())


def refused(drive: Drive, app, given) -> str:
    with pytest.raises(InvalidUpdateError) as caught:
        drive.invoke(app, given, CONFIG)
    return str(caught.value)


# -- models --------------------------------------------------------------------------------------------------


class Private(BaseModel):
    n: int = 1
    _secret: int = PrivateAttr(default=7)


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    n: int = 1
    log: Annotated[list[int], add] = []


class Computed(BaseModel):
    n: int = 1

    @computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> int:
        return 2 * self.n


class Generic_(BaseModel, Generic[T]):
    n: T
    log: Annotated[list[T], add] = []


class OfInts(Generic_[int]):
    more: int = 0


class Root(RootModel[list[int]]):
    pass


class Recursive(BaseModel):
    n: int = 0
    below: list[Recursive] = []


class Optional_(BaseModel):
    n: int | None
    total: Annotated[int | None, lambda old, new: (old or 0) + (new or 0)] = None
    log: Annotated[list[int] | None, lambda old, new: [*(old or ()), *(new or ())]] = None


MODELS = [
    (Private, {"n": "2"}, lambda s: {"n": s.n + s._secret}, {"n": 9}),
    (Private, {"n": 2}, lambda s: Private(n=5), {"n": 5}),
    (Frozen, {"n": "2"}, lambda s: s.model_copy(update={"n": 9}), {"n": 9, "log": []}),
    (Frozen, Frozen(n=2), lambda s: {"log": ("3",)}, {"n": 2, "log": [3]}),
    (Computed, {"n": "2"}, lambda s: {"n": s.twice}, {"n": 4}),
    (Generic_[int], {"n": "3"}, lambda s: {"log": ["4"]}, {"n": 3, "log": [4]}),
    (OfInts, {"n": "3"}, lambda s: {"log": ["4"]}, {"n": 3, "log": [4]}),
    (Root, {"root": ["1"]}, lambda s: {"root": [*s.root, "2"]}, {"root": [1, 2]}),
    (Root, Root([1]), lambda s: Root([2]), {"root": [2]}),
    (Recursive, {"below": [{"n": "2"}]}, lambda s: {"n": s.below[0].n}, {"n": 2, "below": [Recursive(n=2)]}),
    (Optional_, {"n": None}, lambda s: {"total": 2, "log": ["1"]}, {"n": None, "total": 2, "log": [1]}),
    (Optional_, {"n": 1, "total": 2}, lambda s: {"total": None, "n": None}, {"n": None, "total": 2, "log": None}),
]


@each_case("schema, given, node, found", MODELS)
def test_a_model_is_served(schema, given, node, found, drive):
    app = one(schema, node)
    assert drive.invoke(app, given, CONFIG) == found
    shown = drive.get_state(app, CONFIG, version="v2").values
    assert isinstance(shown, schema) and [getattr(shown, key) for key in found] == list(found.values())


# -- dataclasses ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Slotted:
    n: int
    log: Annotated[list[int], add] = field(default_factory=list)


@dataclass
class Derived:
    n: int
    twice: int = field(init=False, default=0)

    def __post_init__(self):
        self.twice = 2 * self.n


@dataclass
class Initial:
    n: int
    by: InitVar[int] = 3
    _: KW_ONLY
    log: Annotated[list[int], add] = field(default_factory=list)


@dataclass
class GenericData(Generic[T]):
    n: T
    log: Annotated[list[T], add] = field(default_factory=list)


@dataclass
class DataOfInts(GenericData[int]):
    more: int = 0


@pydantic.dataclasses.dataclass
class Checked:
    n: int = Field(alias="N", ge=0)
    log: Annotated[list[int], add] = Field(default_factory=lambda: [0])

    @field_validator("n")
    @classmethod
    def small(cls, n: int) -> int:
        return min(n, 100)


DATACLASSES = [
    (Slotted, {"n": "2"}, lambda s: {"log": ["1"]}, {"n": 2, "log": [1]}),
    (Slotted, Slotted(n=2), lambda s: dataclasses.replace(s, n=s.n + 1, log=[1]), {"n": 3, "log": [1]}),
    (Derived, {"n": "2"}, lambda s: {"n": s.n + s.twice}, {"n": 6}),
    (Derived, {"n": "2"}, lambda s: s, {"n": 2, "twice": 4}),
    (Initial, {"n": "2"}, lambda s: {"log": ["1"]}, {"n": 2, "log": [1]}),
    (GenericData[int], {"n": "2"}, lambda s: {"log": ["1"]}, {"n": 2, "log": [1]}),
    (DataOfInts, {"n": "2"}, lambda s: {"log": ["1"]}, {"n": 2, "log": [1]}),
    (Checked, {"N": "200"}, lambda s: {"log": ["1"]}, {"n": 100, "log": [0, 1]}),
    (Checked, {"n": 2}, lambda s: Checked(N=3), {"n": 3, "log": [0, 0]}),
]


@each_case("schema, given, node, found", DATACLASSES)
def test_a_dataclass_is_served(schema, given, node, found, drive):
    app = one(schema, node)
    assert drive.invoke(app, given, CONFIG) == found
    assert dataclasses.is_dataclass(drive.get_state(app, CONFIG, version="v2").values)


def test_an_init_var_without_a_default_is_refused():
    @dataclass
    class Needy:
        n: int
        by: InitVar[int]

    with pytest.raises(InvalidGraphError, match="Needy: the InitVar 'by' must have a default"):
        StateGraph(Needy)


# -- typed dicts ---------------------------------------------------------------------------------------------


class Partial(TypedDict, total=False):
    n: Required[int]
    text: NotRequired[str]
    fixed: ReadOnly[int]
    log: Annotated[NotRequired[list[int]], add]
    more: NotRequired[Annotated[list[int], add]]


class GenericDict(TypedDict, Generic[T]):
    n: T
    log: Annotated[list[T], add]


DICTS = [
    (Partial, {"n": "1"}, lambda s: {"log": ["1"], "more": ["2"], "fixed": "3"}, {"n": 1, "fixed": 3, "log": [1], "more": [2]}),
    (GenericDict[int], {"n": "1"}, lambda s: {"log": ["1"]}, {"n": 1, "log": [1]}),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "given", "node", "found"), DICTS)
def test_a_typed_dict_is_served(schema, given, node, found, drive):
    app = one(schema, node)
    assert drive.invoke(app, given, CONFIG) == found
    assert drive.get_state(app, CONFIG, version="v2").values == found


@pytest.mark.parametrize("key", ["n", "fixed", "log", "more"])
def test_a_typed_dict_refuses_what_does_not_fit(key, drive):
    text = refused(drive, one(Partial, lambda state: {key: "many"}), {"n": 1})
    assert text.startswith(f"node 'node' wrote 'many' for the key {key!r}, which does not fit: Input should be a valid")


# -- what pydantic knows of a field --------------------------------------------------------------------------


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Owner(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")


def test_a_discriminator_chooses_the_class(drive):
    app = one(Owner, lambda state: {"pet": {"kind": "cat", "lives": "9"}})
    assert drive.invoke(app, {"pet": {"kind": "dog", "name": "Rex"}}, CONFIG) == {"pet": Cat(kind="cat", lives=9)}
    assert refused(drive, app, {"pet": {"kind": "cow"}}) == (
        "the input has {'kind': 'cow'} for the key 'pet', which does not fit: Input tag 'cow' found using 'kind' "
        "does not match any of the expected tags: 'cat', 'dog'"
    )


@with_config(ConfigDict(strict=True))
class StrictDict(TypedDict):
    n: int


class StrictModel(BaseModel):
    model_config = ConfigDict(strict=True)
    n: int = 0


@each_case("schema", [StrictDict, StrictModel])
@each_case("place", ["input", "nodes", "writes"])
def test_a_strict_class_converts_nothing(schema, place, drive):
    app = one(schema, lambda state: {"n": "3"}, validate=place)
    given = {"n": 1} if place == "writes" else {"n": "3"}
    assert "'3' for the key 'n', which does not fit: Input should be a valid integer" in refused(drive, app, given)


def test_the_config_of_a_class_applies_to_writes(drive):
    class Stripped(BaseModel):
        model_config = ConfigDict(str_strip_whitespace=True, str_max_length=5)
        text: str = ""

    app = one(Stripped, lambda state: {"text": " b "})
    assert drive.invoke(app, {"text": " a "}, CONFIG) == {"text": "b"}
    assert "at most 5 characters" in refused(drive, app, {"text": "too long"})


@pytest.mark.parametrize("extra", ["allow", "ignore", "forbid"])
@pytest.mark.filterwarnings("ignore:the input has the unknown key")
def test_other_keys_are_refused_where_the_class_forbids_them(extra, drive):
    class Extra(BaseModel):
        model_config = ConfigDict(extra=extra)
        n: int = 1

    app = one(Extra, lambda state: {"n": state.n + 1})
    if extra == "forbid":
        assert refused(drive, app, {"n": 1, "m": 1}).endswith(
            "the unknown key 'm' (known: 'n'); and the config of its schema has extra=\"forbid\""
        )
    else:
        assert drive.invoke(app, {"n": 1, "m": 1}, CONFIG) == {"n": 2}


class Validated(BaseModel):
    name: Annotated[str, BeforeValidator(str), AfterValidator(str.lower)] = ""
    again: str = ""

    @field_validator("again")
    @classmethod
    def equal(cls, again: str, info: ValidationInfo) -> str:
        if again != info.data["name"]:
            raise ValueError(f"{info.field_name} must be the name")
        return again

    @model_validator(mode="after")
    def no_root(self) -> Validated:
        assert self.name != "root", "must not be root"
        return self


def test_what_validators_return_is_written_and_seen(drive):
    seen = []
    app = one(Validated, lambda state: seen.append(state) or {"name": "ANNE", "again": "anne"})
    assert drive.invoke(app, {"name": 3}, CONFIG) == {"name": "anne", "again": "anne"}
    assert seen == [Validated(name="3")]


def test_a_validator_sees_what_was_written_with_its_value(drive):
    text = refused(drive, one(Validated, lambda state: {"name": "a", "again": "b"}), {"name": "x"})
    assert text == "node 'node' wrote 'b' for the key 'again', which does not fit: Value error, again must be the name"


def test_other_exceptions_of_a_validator_name_the_node(drive):
    with pytest.raises(KeyError) as caught:
        drive.invoke(one(Validated, lambda state: {"again": "b"}, validate="writes"), {"name": "x"}, CONFIG)
    assert "in a validator, called for what node 'node' wrote for 'again'" in caught.value.__notes__


def test_validators_of_a_model_hold_for_nodes_and_for_a_whole_input(drive):
    class State(Validated):
        n: int = 0

    text = refused(drive, one(State, lambda state: {}), {"name": "root"})
    assert text.startswith("the state holds values that do not fit: Assertion failed, must not be root")
    app = one(State, lambda state: {}, validate="input", input_schema=Validated)
    assert "the input has values that do not fit: Assertion failed" in refused(drive, app, {"name": "root"})
    assert drive.history(app, CONFIG) == []


def test_several_keys_that_do_not_fit_are_named(drive):
    app = one(Partial, lambda state: {"n": "a", "fixed": "b", "log": [1]})
    assert refused(drive, app, {"n": 1}).endswith("unable to parse string as an integer. Others do not fit either: 'fixed'")


# -- aliases -------------------------------------------------------------------------------------------------


class Aliased(BaseModel):
    n: int = Field(default=1, validation_alias=AliasChoices("N", "number"))
    path: int = Field(default=1, validation_alias=AliasPath("paths", 0))


class AliasedDict(TypedDict):
    n: Annotated[int, Field(alias="N")]


@dataclass
class AliasedData:
    n: Annotated[int, Field(validation_alias="N")]


@each_case("schema, name", [(Aliased, "N"), (Aliased, "number"), (Aliased, "n"), (AliasedDict, "N"), (AliasedDict, "n"), (AliasedData, "N")])
@each_case("validate", [(), EVERYWHERE])
def test_an_input_may_use_every_name(schema, name, validate, drive):
    seen = []
    app = one(schema, lambda state: seen.append(state) or {"n": 4}, validate=validate)
    assert drive.invoke(app, {name: 3}, CONFIG) == {"n": 4}
    assert (seen[0]["n"] if schema is AliasedDict else seen[0].n) == 3


def test_a_default_made_of_other_fields_is_the_instances_own(drive):
    class Made(BaseModel):
        a: int = 1
        b: int = Field(default_factory=lambda data: data["a"] + 1)
        log: Annotated[list[int], add] = Field(default_factory=lambda data: [data["a"]])

    app = one(Made, lambda state: {"log": [state.b]})
    assert drive.invoke(app, {"a": "5"}, CONFIG) == {"a": 5, "log": [6]}

    def node(state: Made) -> Made:
        made = Made(a=3)
        made.log.append(4)
        return made

    assert drive.invoke(one(Made, node), Made(a=2), CONFIG) == {"a": 3, "log": [3, 4]}


# -- a whole input -------------------------------------------------------------------------------------------


class Question(TypedDict):
    text: str
    limit: int | None
    note: NotRequired[str]


class Answered(Question):
    answer: str


def test_an_input_of_its_own_schema_must_be_whole(drive):
    graph = StateGraph(Answered, input_schema=Question, validate="input").add_node("a", lambda state: {"answer": "!"})
    app = graph.add_edge(START, "a").compile(InMemorySaver())
    assert drive.invoke(app, {"text": "?", "limit": None}, CONFIG)["answer"] == "!"
    assert refused(drive, app, {"text": "?"}) == "the input must have a value for 'limit', as Question says"
    assert "for 'text', 'limit', as" in refused(drive, app, {"note": "n"})


def test_an_input_of_the_state_may_be_a_part_of_it(drive):
    thread = drive.on(one(Answered, lambda state: {"answer": "!"}))
    assert thread.invoke({"text": "?"}) == {"text": "?", "answer": "!"}
    assert thread.invoke({"limit": "3"}) == {"text": "?", "limit": 3, "answer": "!"}


def test_what_a_node_needs_and_the_state_has_not_is_named(drive):
    class Needs(BaseModel):
        a: int
        b: int | None

    assert refused(drive, one(Needs, lambda state: {}), {"a": 1}) == "the state holds nothing for the key 'b': Field required"


# -- stored --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [Owner, Partial, Slotted], ids=["pydantic", "TypedDict", "dataclass"])
@pytest.mark.parametrize("saver", ["memory", "sqlite"])
def test_a_refused_write_after_a_resume_leaves_the_thread_as_it_was(schema, saver, drive, tmp_path):
    key = "pet" if schema is Owner else "n"
    good = {"kind": "cat", "lives": 1} if schema is Owner else 1
    answers = iter(["nothing", good])
    asking = StateGraph(schema, validate=EVERYWHERE).add_node("ask", lambda _: interrupt("go on?") and {key: next(answers)})
    asking.add_node("beside", lambda state: {key: good} if schema is Owner else {"log": [5]})
    graph = asking.add_edge(START, "ask").add_edge("ask", "beside")
    thread = drive.on(graph.compile(InMemorySaver() if saver == "memory" else SqliteSaver(str(tmp_path / "threads.db"))))
    thread.invoke({key: good})
    before = thread.state
    with pytest.raises(InvalidUpdateError, match=f"node 'ask' wrote 'nothing' for the key '{key}'"):
        thread.resume(True)
    after = thread.state
    assert (after.values, after.next) == (before.values, ("ask",))
    value = thread.invoke(None, version="v2").value
    assert isinstance(value, dict if schema is Partial else schema)


def test_a_private_attribute_of_a_stored_model_is_kept(drive, tmp_path):
    class Holder(TypedDict):
        held: Private

    app = StateGraph(Holder, validate="writes").add_node("a", lambda state: {"held": state["held"]}).add_edge(START, "a")
    thread = drive.on(app.compile(SqliteSaver(str(tmp_path / "threads.db"))))
    given = Private(n=2)
    given._secret = 8
    assert thread.invoke({"held": given})["held"]._secret == 8
    assert thread.state.values["held"]._secret == 8


@each_case("schema", [Frozen, Owner, Checked, GenericData[int], AliasedDict])
def test_a_graph_that_validates_is_pickled(schema):
    graph = StateGraph(schema, validate=EVERYWHERE).add_node("a", _nothing).add_edge(START, "a").compile()
    key = "pet" if schema is Owner else "n"
    with pytest.raises(InvalidUpdateError, match=f"the input has 'many' for the key '{key}'"):
        pickle.loads(pickle.dumps(graph)).invoke({key: "many"})


def _nothing(state): ...


def test_validators_are_compiled_once(monkeypatch):
    made = []
    adapter = pydantic.TypeAdapter

    def counted(hint, **options):
        made.append(hint)
        return adapter(hint, **options)

    monkeypatch.setattr(pydantic, "TypeAdapter", counted)
    app = one(Partial, lambda state: {"log": [1]})
    for thread in range(3):
        app.invoke({"n": 1}, thread_config(str(thread)))
    assert len(made) == 2  # of what keys hold, and of what may be written to them


# -- what pydantic cannot do ---------------------------------------------------------------------------------


def test_a_state_of_one_value_is_validated_like_others(drive):
    app = one(int, lambda state: "5")
    assert drive.invoke(app, "4", CONFIG) == 5
    assert refused(drive, app, "four").startswith("the input is 'four', which does not fit: Input should be a valid integer")
    assert len(drive.history(app, CONFIG)) == 3  # nothing was stored of the refused call
    assert refused(drive, one(int, lambda state: "five"), 4).startswith("node 'node' wrote 'five', which does not fit")


def test_a_class_that_is_not_fully_defined_is_refused_with_its_key(drive):
    class Undefined(BaseModel):
        later: Later | None = None

    class Later(BaseModel):
        n: int

    with pytest.raises(InvalidGraphError, match="pydantic cannot validate the keys 'later': .* not fully defined"):
        drive.invoke(one(Undefined, lambda state: {}), {"later": None}, CONFIG)


def test_a_pydantic_dataclass_knows_its_type_arguments(drive):
    @pydantic.dataclasses.dataclass
    class Box(Generic[T]):
        n: T

    app = one(Box[int], lambda state: {"n": "4"})
    assert drive.invoke(app, {"n": "3"}, CONFIG) == {"n": 4}
    assert "'x' for the key 'n', which does not fit" in refused(drive, app, {"n": "x"})
