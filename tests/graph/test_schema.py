"""From annotations to channels, and from channel values to a node's input and a call's output."""

# No `from __future__ import annotations` here: schemas made inside tests must keep real types beside string ones.

import dataclasses
import functools
import operator
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    NotRequired,
    Optional,
    TypeVar,
    Union,
)

import pytest
import typing_extensions
from kit.drive import each_case
from kit.graphs import chain_of, thread_config
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel, ValidationError
from typing_extensions import TypedDict

from stategraph import (
    START,
    Command,
    EmptyInputError,
    GraphWarning,
    InMemorySaver,
    Interrupt,
    InvalidGraphError,
    IsLastStep,
    Overwrite,
    RemainingSteps,
    StateGraph,
    interrupt,
)
from stategraph.channels import (
    AnyValue,
    BinaryOperatorAggregate,
    EphemeralValue,
    LastValue,
    NamedBarrierValue,
    Topic,
    UntrackedValue,
)

add = operator.add
T = TypeVar("T")


class S(TypedDict, total=False):
    a: int
    l: Annotated[list[Any], add]


def app_of(schema, *nodes, **schemas):
    """START -> the first node -> ... -> the last."""
    graph = StateGraph(schema, **schemas).add_sequence([(f"n{i}", node) for i, node in enumerate(nodes)])
    return graph.add_edge(START, "n0").compile()


class Seen(list[Any]):
    """A node that keeps what it was given."""

    def node(self, state):
        self.append(state)


def channel(hint):
    """The channel of a key with this annotation."""
    return StateGraph(TypedDict("One", {"key": hint})).channels["key"]  # type: ignore[operator]


class Adder:
    def __call__(self, value, update):
        return value + update


class Pair:
    def __init__(self, value, update):
        self.both = value, update


# -- one annotation, one channel -------------------------------------------------------------------------------

REDUCERS = {
    "last": Annotated[int, "doc", add],
    "not last": Annotated[int, add, "doc"],
    "not required": typing_extensions.NotRequired[Annotated[list, add]],
    "required": typing_extensions.Required[Annotated[list, add]],
    "read only": typing_extensions.ReadOnly[Annotated[list, add]],
    "qualifier inside": Annotated[typing_extensions.NotRequired[list], add],
    "nested": Annotated[Annotated[int, "doc"], add],
    "nested other way": Annotated[Annotated[int, add], "doc"],
    "lambda": Annotated[int, lambda a, b: a],
    "with *rest": Annotated[int, lambda a, b, *rest: a],
    "with keyword": Annotated[int, lambda a, b, *, k=1: a],
    "class": Annotated[Any, Pair],
    "instance": Annotated[int, Adder()],
    "partial": Annotated[int, functools.partial(lambda c, a, b: a, 1)],
    "builtin": Annotated[int, max],
    "builtin with a signature": Annotated[set, set.union],
}


@each_case("hint", REDUCERS.values())
def test_a_callable_of_two_values_in_the_annotation_is_the_reducer(hint):
    assert type(channel(hint)) is BinaryOperatorAggregate


PLAIN = {
    "type": int,
    "optional": Optional[int],
    "any": Any,
    "read only": typing_extensions.ReadOnly[int],
    "not required": typing_extensions.NotRequired[int],
    "doc": Annotated[int, "doc"],
    "pydantic field": Annotated[int, Field(gt=0)],
    "none": None,
}


@each_case("hint", PLAIN.values())
def test_any_other_annotation_keeps_the_last_value(hint):
    assert type(channel(hint)) is LastValue


NOT_REDUCERS = {
    "one argument": lambda a: a,
    "three arguments": lambda a, b, c: a,
    "three with a default": lambda a, b, c=1: a,
    "only *args": lambda *args: args,
    "a type": str,
}


@each_case("reducer", NOT_REDUCERS.values())
def test_a_reducer_with_other_arguments_is_refused(reducer):
    with pytest.raises(InvalidGraphError, match="key 'key'.*exactly two positional"):
        channel(Annotated[int, reducer])


def test_two_reducers_are_refused():
    with pytest.raises(InvalidGraphError, match="key 'key' has several reducers"):
        channel(Annotated[int, add, operator.mul])


def test_a_channel_class_in_the_annotation_is_made_of_the_type():
    assert type(channel(Annotated[int, EphemeralValue, "doc"])) is EphemeralValue
    assert type(channel(Annotated[int, "doc", AnyValue])) is AnyValue
    assert channel(Annotated[int, LastValue]).typ is int


def test_a_channel_instance_in_the_annotation_is_used_as_it_is():
    found = channel(Annotated[list, Topic(str, accumulate=True)])
    assert type(found) is Topic
    assert found.accumulate is True


@pytest.mark.parametrize("cls", [NamedBarrierValue, BinaryOperatorAggregate])
def test_a_channel_class_that_needs_more_than_a_type_is_refused(cls):
    with pytest.raises(InvalidGraphError, match="key 'key'.*put an instance"):
        channel(Annotated[str, cls])


def test_one_channel_instance_under_two_keys_makes_two_channels(drive):
    """WART-05: the peer gives both keys one channel."""
    shared = Topic(str, accumulate=True)
    schema = TypedDict("Two", {"x": Annotated[list, shared], "y": Annotated[list, shared]})  # type: ignore[misc]
    app = app_of(schema, lambda state: {"x": "to x", "y": "to y"})
    assert drive.invoke(app, {}) == {"x": ["to x"], "y": ["to y"]}
    assert shared.key == ""


# -- reducers --------------------------------------------------------------------------------------------------

INITIAL = {
    "int": (int, 0),
    "str": (str, ""),
    "list": (list[int], []),
    "Sequence": (Sequence[int], []),
    "Mapping": (Mapping[str, int], {}),
    "tuple": (tuple[int, ...], ()),
}


@each_case("typ, value", INITIAL.values())
def test_a_reduced_key_starts_as_its_type_called(typ, value, drive):
    app = app_of(TypedDict("R", {"r": Annotated[typ, add]}), lambda state: None)  # type: ignore[operator]
    assert drive.invoke(app, {}) == {"r": value}


@each_case("typ", [Optional[int], Union[int, str], Any, Literal["x"]])
def test_a_type_that_cannot_be_called_starts_empty_and_takes_the_first_write_as_it_is(typ, drive):
    calls = []

    def reduce(value, update):
        calls.append((value, update))
        return update

    schema = TypedDict("R", {"r": Annotated[typ, reduce]})  # type: ignore[operator]
    assert drive.invoke(app_of(schema, lambda state: None), {}) is None
    assert drive.invoke(app_of(schema, lambda state: {"r": 1}), {}) == {"r": 1}
    assert calls == []


def test_reducers_fold_left_in_write_order_from_input_on(drive):
    app = app_of(S, lambda state: {"l": ["a"]}, lambda state: {"l": ["b"]})
    assert drive.invoke(app, {"l": ["in"]}) == {"l": ["in", "a", "b"]}


def test_a_reducer_may_return_none(drive):
    schema = TypedDict("R", {"r": Annotated[list, lambda value, update: None]})  # type: ignore[misc]
    assert drive.invoke(app_of(schema, lambda state: {"r": [1]}), {}) == {"r": None}


def test_a_reducer_that_changes_its_left_side_is_not_applied_twice_by_a_router(drive):
    """WART-10: the router's view is a preview on a copy."""

    def extend(value: list[str], update: list[str]) -> list[str]:
        value.extend(update)
        return value

    schema = TypedDict("R", {"r": Annotated[list, extend]})  # type: ignore[misc]
    app = chain_of(schema, n=lambda state: {"r": ["a"]}).add_conditional_edges("n", lambda state: []).compile()
    assert drive.invoke(app, {"r": ["i"]}) == {"r": ["i", "a"]}


@pytest.mark.parametrize(
    "wrapped", [Overwrite(["new"]), {"__overwrite__": ["new"]}, {"type": "__overwrite__", "value": ["new"]}], ids=str
)
def test_overwrite_replaces_in_a_node_and_as_input(wrapped, drive):
    app = app_of(S, lambda state: {"l": wrapped})
    assert drive.invoke(app, {"l": ["old"]}) == {"l": ["new"]}
    assert drive.invoke(app_of(S, lambda state: None), {"l": wrapped}) == {"l": ["new"]}


def test_overwrite_is_unwrapped_on_an_empty_or_plain_key(drive):
    """WART-08 and WART-09: the peer stores the wrapper."""
    schema = TypedDict("R", {"r": Annotated[int | None, add], "p": int})  # type: ignore[misc]
    app = app_of(schema, lambda state: {"r": Overwrite(1), "p": Overwrite(2)})
    assert drive.invoke(app, {}) == {"r": 1, "p": 2}


# -- other channels as state keys ------------------------------------------------------------------------------


def test_step_scoped_keys_are_seen_for_one_step(drive):
    schema = TypedDict(  # type: ignore[misc]
        "Scoped",
        {
            "eph": Annotated[int, EphemeralValue],
            "any": Annotated[int, AnyValue],
            "topic": Annotated[list, Topic(int)],
            "grown": Annotated[list, Topic(int, accumulate=True)],
            "un": Annotated[int, UntrackedValue],
            "n": int,
        },
    )
    seen = Seen()
    every = {"eph": 1, "any": 2, "topic": [3, 4], "grown": 5, "un": 6}
    drive.invoke(app_of(schema, lambda state: every, seen.node, seen.node), {"n": 0})
    assert seen[0] == {"eph": 1, "any": 2, "topic": [3, 4], "grown": [5], "un": 6, "n": 0}
    assert seen[1] == {"grown": [5], "un": 6, "n": 0}


# -- what can be a schema --------------------------------------------------------------------------------------


class Model(BaseModel):
    a: int
    b: Annotated[list[Any], add] = []
    c: str | None = None
    d: int = 5


@dataclasses.dataclass
class Data:
    a: int
    b: Annotated[list[Any], add] = dataclasses.field(default_factory=list)
    c: str = "x"


@dataclasses.dataclass(slots=True)
class Slotted:
    a: int
    b: Annotated[list[Any], add]
    version: ClassVar[int] = 3


class Tuple(NamedTuple):
    a: int
    b: Annotated[list[Any], add]


class Annotated_:
    a: int
    b: Annotated[list[Any], add]


class Base(TypedDict):
    a: int


class Inherited(Base):
    b: Annotated[list[Any], add]


class InString(TypedDict):
    a: "int"
    b: "Annotated[list[Any], add]"


SCHEMAS = [Model, Data, Slotted, Tuple, Annotated_, Inherited, InString]


@each_case("schema", SCHEMAS)
def test_every_kind_of_schema_gives_the_same_channels(schema, drive):
    channels = StateGraph(schema).channels
    assert type(channels["a"]) is LastValue
    assert type(channels["b"]) is BinaryOperatorAggregate
    app = app_of(schema, lambda state: {"b": ["n"]})
    assert drive.invoke(app, {"a": 1, "b": ["i"]}) == {"a": 1, "b": ["i", "n"]}


def test_a_schema_may_name_types_of_the_function_around_it(drive):
    class Local:
        pass

    class State(TypedDict):
        thing: "Local"

    local = Local()
    assert drive.invoke(app_of(State, lambda state: {"thing": local}), {}) == {"thing": local}


class GenericDict(TypedDict, Generic[T]):
    v: T
    l: Annotated[list[T], add]


def test_a_parametrised_schema_has_keys_of_the_given_types(drive):
    """WART-03: the peer takes it for a state without keys."""
    channels = StateGraph(GenericDict[int]).channels
    assert set(channels) == {"v", "l"}
    assert channels["v"].typ is int
    assert drive.invoke(app_of(GenericDict[int], lambda state: None), {"v": 1}) == {"v": 1, "l": []}


def test_class_variables_and_private_attributes_are_no_keys(drive):
    """WART-04."""

    class Private(BaseModel):
        model_config = ConfigDict(extra="forbid")
        a: int
        constant: ClassVar[int] = 2
        _secret: int = PrivateAttr(default=1)

    assert list(StateGraph(Private).channels) == ["a"]
    assert drive.invoke(app_of(Private, lambda state: Private(a=state.a + 1)), {"a": 1}) == {"a": 2}
    assert list(StateGraph(Slotted).channels) == ["a", "b"]


def test_a_root_model_has_one_key_named_root(drive):
    class Root(RootModel[list[int]]):
        pass

    seen = Seen()
    assert drive.invoke(app_of(Root, seen.node), {"root": [1]}) == {"root": [1]}
    assert seen == [Root([1])]


NONSENSE = {
    "string": "State",
    "number": 3,
    "Any": Any,
    "object": object,
    "list": [],
    "dict": {"a": int},
    "function": lambda state: state,
    "instance": Data(1),
    "class without fields": type("Bare", (), {}),
    "class without annotations": type("Forgot", (), {"a": 1}),
    "its subclass": type("Sub", (type("Bare", (), {}),), {}),
    "empty TypedDict": TypedDict("Empty", {}),  # type: ignore[operator]
    "empty model": BaseModel,
    "type variable": T,
    "managed value": RemainingSteps,
    "unresolvable": TypedDict("Lost", {"a": "Nowhere"}),  # type: ignore[operator]  # noqa: F821 - the point of the test
    "raising": TypedDict("Raises", {"a": "1 / 0"}),  # type: ignore[operator]
}


def test_none_is_no_state_schema():
    """Elsewhere None means: as the state."""
    with pytest.raises(InvalidGraphError, match="a state schema must be .*, got None"):
        StateGraph(None)


@each_case("schema", NONSENSE.values())
@each_case("place", ["state_schema", "input_schema", "output_schema", "node"])
def test_nonsense_is_no_schema_anywhere(schema, place):
    """WART-02."""
    with pytest.raises(InvalidGraphError):
        if place == "state_schema":
            StateGraph(schema)
        elif place == "node":
            StateGraph(S).add_node("n", lambda state: None, input_schema=schema)
        else:
            StateGraph(S, **{place: schema})


def test_an_unknown_annotation_is_named_with_its_schema():
    with pytest.raises(InvalidGraphError, match="schema Lost.*Nowhere"):
        StateGraph(NONSENSE["unresolvable"])


@each_case(
    "key",
    ["__start__", "__end__", "__pregel_tasks", "__root__", "__input__", "__interrupt__", "configurable", "checkpoint_id",
     "branch:to:n", "join:a+b:c"],
)  # fmt: skip
def test_a_key_that_the_engine_needs_is_refused(key):
    with pytest.raises(InvalidGraphError, match="reserved|engine's own") as caught:
        chain_of(TypedDict("T", {key: int}), n=lambda s: None).compile()  # type: ignore[operator]
    assert repr(key) in str(caught.value)


def test_a_declared_result_key_for_questions_is_no_key_of_the_state(drive):
    """Type checkers then know `result["__interrupt__"]`."""
    hints = {"n": int, "__interrupt__": NotRequired[list[Interrupt]]}
    graph = StateGraph(TypedDict("T", hints)).add_node("n", lambda state: {"n": interrupt("more?")})  # type: ignore[operator]
    app, thread = graph.add_edge(START, "n").compile(InMemorySaver()), thread_config("1")
    assert drive.invoke(app, {"n": 1}, thread)["__interrupt__"][0].value == "more?"
    assert drive.invoke(app, Command(resume=2), thread) == {"n": 2}
    assert "__interrupt__" not in app.channels


@each_case("key", ["", "two words", "größe", "thread_id", "self", "n"])
def test_other_unusual_keys_work(key, drive):
    app = app_of(TypedDict("T", {key: int}), lambda state: {key: state[key] + 1})  # type: ignore[operator]
    assert drive.invoke(app, {key: 1}) == {key: 2}


# -- a state without keys --------------------------------------------------------------------------------------


@each_case(
    "schema, given, update, result",
    [
        (int, 0, 3, 3),
        (int, 5, None, 5),
        (str, "", "x", "x"),
        (list, [], ["n"], ["n"]),
        (dict, {}, {"b": 1}, {"b": 1}),
        (Annotated[list, add], ["i"], ["n"], ["i", "n"]),
        (Annotated[list[int], add], [], [], []),
        (Optional[int], 1, 0, 0),
        (Decimal, Decimal(1), Decimal(2), Decimal(2)),
        (bool, True, False, False),
    ],
)
def test_any_other_type_is_the_whole_state(schema, given, update, result, drive):
    """Falsy values are values; only a node that returns None writes nothing."""
    seen = Seen()
    app = app_of(schema, seen.node, lambda state: update)
    assert list(app.builder.channels) == ["__root__"]
    assert drive.invoke(app, given) == result
    assert seen == [given]


def test_a_command_updates_a_state_without_keys(drive):
    """WART-39: a dict is the whole update there, too."""
    assert drive.invoke(app_of(dict, lambda state: Command(update={"b": 1})), {"a": 1}) == {"b": 1}
    assert drive.invoke(app_of(int, lambda state: [Command(update=3)]), 1) == 3


def test_none_is_no_input_for_a_state_without_keys(drive):
    with pytest.raises(EmptyInputError):
        drive.invoke(app_of(int, lambda state: 1), None)


def test_a_state_without_keys_does_not_go_with_one_that_has_keys():
    with pytest.raises(InvalidGraphError, match="one is a state with keys, the other is one value"):
        StateGraph(S, input_schema=int)
    with pytest.raises(InvalidGraphError, match="one is a state with keys, the other is one value"):
        StateGraph(int).add_node("n", lambda state: None, input_schema=S)


# -- several schemas -------------------------------------------------------------------------------------------


class Question(TypedDict):
    q: int


class Answer(TypedDict):
    r: str


class Private(TypedDict):
    secret: int


class Whole(Question, Answer):
    t: int


def test_input_and_output_schema_filter_keys(drive):
    seen = Seen()
    app = app_of(Whole, seen.node, lambda state: {"r": "done", "t": 2}, input_schema=Question, output_schema=Answer)
    with pytest.warns(GraphWarning, match="'t', a key of the state but not of the input schema, the unknown key 'unknown'"):
        assert drive.invoke(app, {"q": 1, "t": 5, "unknown": 0}) == {"r": "done"}
    assert seen == [{"q": 1}], "t is no key of the input"


def test_private_keys_reach_only_the_nodes_that_name_them(drive):
    seen, private = Seen(), Seen()

    def reads(state: Private) -> Answer:
        private.append(state)
        return {"r": str(state["secret"])}

    app = app_of(Whole, lambda state: {"secret": 1}, reads, seen.node)
    app.builder.validate()
    graph = StateGraph(Whole, output_schema=Whole)
    graph.add_node("reads", reads).add_node("writes", lambda state: {"secret": 1}).add_node("seen", seen.node)
    app = graph.add_edge(START, "writes").add_edge("writes", "reads").add_edge("reads", "seen").compile()
    assert drive.invoke(app, {"q": 2}) == {"q": 2, "r": "1"}
    assert private[-1] == {"secret": 1}
    assert seen[-1] == {"q": 2, "r": "1"}
    last = drive.stream(app, {"q": 2}, stream_mode="values")[-1]
    assert last == {"q": 2, "r": "1", "secret": 1}, "values show all of the state"


def test_a_node_schema_given_by_argument_wins_over_the_annotation(drive):
    seen = Seen()

    def node(state: Private):
        seen.append(state)

    graph = StateGraph(Whole).add_node("n", node, input_schema=Question).add_edge(START, "n")
    drive.invoke(graph.compile(), {"q": 1, "t": 2})
    assert seen == [{"q": 1}]


@each_case("hint", [dict, Any, Optional[Question], "Nowhere", int, None])
def test_other_annotations_of_the_first_parameter_mean_the_state(hint, drive):
    seen = Seen()

    def node(state):  # type: ignore[no-untyped-def]
        seen.append(state)

    node.__annotations__["state"] = hint
    drive.invoke(app_of(Whole, node), {"q": 1, "t": 2})
    assert seen == [{"q": 1, "t": 2}]


def test_an_unresolvable_return_hint_does_not_hide_the_first_parameter(drive):
    """WART-76."""
    seen = Seen()

    def node(state: "Question") -> "Nowhere":  # type: ignore[name-defined]  # noqa: F821 - the point of the test
        seen.append(state)

    drive.invoke(app_of(Whole, node), {"q": 1, "t": 2})
    assert seen == [{"q": 1}]


class Summed(TypedDict):
    a: Annotated[int, add]


class Plain(TypedDict):
    a: int


class OtherReducer(TypedDict):
    a: Annotated[int, lambda value, update: update]


class PartialReducer(TypedDict):
    a: Annotated[int, functools.partial(lambda c, a, b: a, 1)]


def test_the_reducer_of_a_key_wins_over_a_plain_declaration():
    assert type(StateGraph(Summed, input_schema=Plain).channels["a"]) is BinaryOperatorAggregate


@pytest.mark.parametrize(
    ("state", "other"),
    [(Plain, Summed), (Summed, OtherReducer), (OtherReducer, Summed), (Summed, PartialReducer)],
    ids=lambda schema: schema.__name__,
)
def test_a_key_declared_in_two_ways_is_refused(state, other):
    """Reducers are the same only if they are one object (WART-12, WART-13)."""
    with pytest.raises(InvalidGraphError, match="key 'a' is declared as") as caught:
        StateGraph(state, input_schema=other)
    assert other.__name__ in str(caught.value)


def test_a_refused_schema_leaves_the_builder_as_it_was():
    class Bad(TypedDict):
        fresh: int
        a: Annotated[int, add]

    graph = StateGraph(Plain)
    with pytest.raises(InvalidGraphError):
        graph.add_node("n", lambda state: None, input_schema=Bad)
    assert set(graph.channels) == {"a"}
    assert graph.nodes == {}


# -- what nodes are given --------------------------------------------------------------------------------------


def test_keys_without_a_value_are_absent(drive):
    seen = Seen()
    drive.invoke(app_of(S, seen.node), {})
    assert seen == [{"l": []}]


def test_typed_dicts_are_never_validated(drive):
    assert drive.invoke(app_of(Plain, lambda state: {"a": "text"}), {"a": None}) == {"a": "text"}


def test_a_dataclass_state_is_bound_and_its_defaults_stay_out_of_the_state(drive):
    seen = Seen()
    assert drive.invoke(app_of(Data, seen.node), {"a": 1}) == {"a": 1, "b": []}
    assert seen == [Data(1, [], "x")]


def test_a_dataclass_may_be_input_and_update(drive):
    app = app_of(Data, lambda state: Data(5, [9]))
    assert drive.invoke(app, Data(4, [1])) == {"a": 5, "b": [1, 9], "c": "x"}


def test_a_field_that_the_constructor_does_not_take_is_bound_too(drive):
    @dataclasses.dataclass
    class Late:
        b: int
        a: int = dataclasses.field(init=False, default=3)

    seen = Seen()
    assert drive.invoke(app_of(Late, lambda state: {"a": 4}, seen.node), {"b": 2}) == {"a": 4, "b": 2}
    assert (seen[0].a, seen[0].b) == (4, 2)


def test_a_missing_field_stops_the_node_before_it_runs(drive):
    seen = Seen()
    with pytest.raises(TypeError, match="Data cannot be made: nothing has written 'a' yet. Give it in the input") as caught:
        drive.invoke(app_of(Data, seen.node), {"c": "1"})
    assert "'n0'" in caught.value.__notes__[0]
    with pytest.raises(ValidationError) as invalid:
        drive.invoke(app_of(Model, seen.node), {"c": "1"})
    assert "'n0'" in invalid.value.__notes__[0]
    assert seen == []


def test_a_model_is_validated_when_a_node_starts(drive):
    seen = Seen()
    assert drive.invoke(app_of(Model, seen.node), {"a": "1"}) == {"a": "1", "b": []}, "the state keeps what was written"
    assert seen == [Model(a=1)]
    with pytest.raises(ValidationError):
        drive.invoke(app_of(Model, seen.node), {"a": "x"})
    assert len(seen) == 1


def test_a_bad_value_is_found_where_the_next_node_starts(drive):
    with pytest.raises(ValidationError) as caught:
        drive.invoke(app_of(Model, lambda state: {"a": "bad"}, lambda state: None), {"a": 1})
    assert "'n1'" in caught.value.__notes__[0]
    assert "step 2" in caught.value.__notes__[0]


def test_only_the_fields_set_on_a_model_are_written(drive):
    """WART-33: a default never overwrites state; a None that was set does."""
    given = {"a": 1, "b": [1], "c": "q", "d": 9}
    assert drive.invoke(app_of(Model, lambda state: Model(a=2)), given) == {"a": 2, "b": [1], "c": "q", "d": 9}
    assert drive.invoke(app_of(Model, lambda state: Model(a=2, c=None)), given)["c"] is None
    assert drive.invoke(app_of(Model, lambda state: None), Model(a=1)) == {"a": 1, "b": []}, "input too"


def test_a_model_with_aliases_is_built_by_field_name(drive):
    """WART-15."""

    class Aliased(BaseModel):
        a: int = Field(alias="A")
        v: int = Field(default=1, validation_alias="V")

    seen = Seen()
    assert drive.invoke(app_of(Aliased, seen.node, lambda state: {"v": state.a + 1}), {"a": 1}) == {"a": 1, "v": 2}
    assert seen[0].a == 1


def test_unknown_input_keys_do_not_reach_a_strict_model(drive):
    class Strict(BaseModel):
        model_config = ConfigDict(extra="forbid")
        a: int

    with pytest.warns(GraphWarning, match="the unknown key 'other'"):
        assert drive.invoke(app_of(Strict, lambda state: None), {"a": 1, "other": 2}) == {"a": 1}


def test_each_task_gets_a_dict_of_its_own(drive):
    graph = StateGraph(S)
    for name in "xy":
        graph.add_node(name, lambda state: {"l": [state.pop("a", "gone")]}).add_edge(START, name)
    assert drive.invoke(graph.compile(), {"a": 1}) == {"a": 1, "l": [1, 1]}


# -- managed values --------------------------------------------------------------------------------------------


class Counted(TypedDict):
    a: int
    left: RemainingSteps
    last: IsLastStep


def test_managed_values_count_the_steps_that_the_call_may_still_take(drive):
    """With a limit of 2, the first node has 2 steps left, itself counted (D2)."""
    seen = Seen()
    assert drive.invoke(app_of(Counted, seen.node, seen.node), {"a": 1}, {"recursion_limit": 2}) == {"a": 1}
    assert seen == [{"a": 1, "left": 2, "last": False}, {"a": 1, "left": 1, "last": True}]


def test_managed_values_are_not_accepted_as_input(drive):
    seen = Seen()
    with pytest.warns(GraphWarning, match="'left', which is computed; dropped"):
        drive.invoke(app_of(Counted, seen.node), {"a": 1, "left": 77}, {"recursion_limit": 3})
    assert seen[0]["left"] == 3


def test_a_node_may_ask_for_managed_values_alone(drive):
    class Left(TypedDict):
        left: RemainingSteps

    seen = Seen()
    graph = StateGraph(Plain).add_node("n", seen.node, input_schema=Left).add_edge(START, "n")
    drive.invoke(graph.compile(), {"a": 1}, {"recursion_limit": 3})
    assert seen == [{"left": 3}]


def test_a_managed_value_may_be_wrapped():
    schema = TypedDict("W", {"a": int, "left": typing_extensions.NotRequired[RemainingSteps]})  # type: ignore[misc]
    assert set(StateGraph(schema).managed) == {"left"}


class ClashPlain(TypedDict):
    left: int


class ClashManaged(TypedDict):
    left: IsLastStep


def test_managed_values_are_keys_of_the_state_alone():
    for place in ("input_schema", "output_schema"):
        with pytest.raises(InvalidGraphError, match=f"{place}: managed values"):
            StateGraph(Plain, **{place: Counted})
    StateGraph(Counted, input_schema=Counted)  # the state itself is fine


@pytest.mark.parametrize("other", [ClashPlain, ClashManaged])
def test_a_managed_key_declared_as_something_else_is_refused(other):
    """WART-81."""
    with pytest.raises(InvalidGraphError, match="'left'"):
        StateGraph(Counted).add_node("n", lambda state: None, input_schema=other)


LAZY = """
from dataclasses import dataclass
from enum import Enum
from stategraph import RunnableConfig

def fold(old: Unseen, new: list[Unseen]) -> Unseen:
    return old + new

class Color(Enum):
    RED = 1

@dataclass
class Paint:
    color: Color
    tin: Unseen = None

class State(TypedDict):
    n: int
    log: Annotated[list, fold]
    paint: Paint

class Wrong(TypedDict):
    key: Unseen

def node(state: State, settings: RunnableConfig, other: list[Unseen] = (), last: Unseen = None) -> Unseen:
    return Update(log=[settings["configurable"]["mine"], state["paint"].color], n=2)

class Update:
    log: Unseen
    n: int

    def __init__(self, **fields):
        vars(self).update(fields)
"""


@pytest.mark.skipif(sys.version_info < (3, 14), reason="before Python 3.14 such names cannot be written without quotes")
def test_names_that_only_type_checkers_see_spoil_no_graph(drive):
    there = {"__name__": __name__, "TypedDict": TypedDict, "Annotated": Annotated}
    exec(compile(LAZY, "<lazy>", "exec", dont_inherit=True), there)
    app = StateGraph(there["State"]).add_node(there["node"]).add_edge(START, "node").compile(InMemorySaver())
    thread = thread_config("1", mine=7)
    red = there["Color"].RED
    done = drive.invoke(app, {"log": [], "paint": there["Paint"](red)}, thread)
    assert (done["log"], done["n"]) == ([7, red], 2)
    assert drive.get_state(app, thread).values == done, "what its fields name is known to the serializer"
    with pytest.raises(InvalidGraphError, match="schema Wrong: an annotation cannot be resolved: name 'Unseen'"):
        StateGraph(there["Wrong"])
