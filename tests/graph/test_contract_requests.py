"""Public feature requests of users of pydantic and dataclass states, each under the short name of its thread."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Generic, TypeVar

import pytest
from kit.graphs import CONFIG
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from typing_extensions import TypedDict

from stategraph import (
    START,
    Command,
    InMemorySaver,
    InvalidUpdateError,
    SqliteSaver,
    StateGraph,
    interrupt,
)

T = TypeVar("T")


def chain(schema, *nodes, saver=None, **options):
    graph = StateGraph(schema, **options).add_sequence([(f"node{n}", node) for n, node in enumerate(nodes, 1)])
    return graph.add_edge(START, "node1").compile(saver)


class Overall(BaseModel):
    a: float = 0.0
    seen: str = ""


def test_surprising_results_when_using_pydantic_for_state_schema(drive):
    """A node that returns text for a float must not end in a result that is no Overall."""
    app = chain(Overall, lambda state: {"a": "foo"}, validate="writes")
    with pytest.raises(InvalidUpdateError, match="node 'node1' wrote 'foo' for the key 'a', which does not fit"):
        drive.invoke(app, {"a": 2.3})


def test_no_useful_traceback_when_using_pydantic_schema_and_failing_validation(drive):
    """Which node is named also where nothing but the class itself validates."""
    with pytest.raises(ValidationError) as caught:
        drive.invoke(chain(Overall, lambda state: {"a": "foo"}, lambda state: {}), {"a": 2.3})
    assert any("'node2'" in note for note in caught.value.__notes__)


def test_validation_occurs_only_for_the_first_node(drive):
    app = chain(Overall, lambda state: {"a": "foo"}, lambda state: {}, validate="nodes")
    with pytest.raises(InvalidUpdateError, match="the state holds 'foo' for the key 'a'"):
        drive.invoke(app, {"a": 2.3})


def test_graph_silently_converts_output_to_dict_even_though_it_should_be_pydantic_class(drive):
    class Given(TypedDict):
        text: str

    class Message(BaseModel):
        message: str

    def process(state: Given) -> Message:
        return Message(message=f"Processed: {state['text']}")

    app = chain(Given, process, output_schema=Message)
    assert drive.invoke(app, {"text": "test"}, version="v2").value.message == "Processed: test"


def test_populate_by_name_not_respected_in_input_validation(drive):
    class Base(BaseModel):
        model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, serialize_by_alias=True)

    class Given(Base):
        user_name: str
        user_age: int | None = None

    class Result(Base):
        greeting: str | None = None
        user_title: str = ""

    class State(Given, Result):
        pass

    def greet(state: State) -> dict[str, Any]:
        return {"greeting": f"Hello, {state.user_name}!", "user_title": "Ms"}

    app = chain(State, greet, input_schema=Given, output_schema=Result, validate="input")
    for given in ({"userName": "Anne"}, {"user_name": "Anne", "userAge": 3}):
        assert drive.invoke(app, given) == {"greeting": "Hello, Anne!", "userTitle": "Ms"}


def test_honor_pydantic_field_aliases_and_annotated_reducer_defaults(drive):
    class State(BaseModel):
        log: Annotated[list[str], operator.add] = Field(default_factory=lambda: ["default"], alias="entries")

    app = chain(State, lambda state: {"log": ["node"]})
    assert drive.invoke(app, State())["log"] == ["default", "node"]
    assert drive.invoke(app, {"entries": ["given"]})["log"] == ["default", "given", "node"]


def test_seed_reducer_defaults_from_a_dataclass(drive):
    @dataclass
    class State:
        n: int = 1
        log: Annotated[list[str], operator.add] = field(default_factory=lambda: ["default"])

    assert drive.invoke(chain(State, lambda state: {"log": ["node"]}), {"n": 2}) == {"n": 2, "log": ["default", "node"]}


def test_handle_pydantic_state_updates_better_for_fields_with_defaults(drive):
    app = chain(Overall, lambda state: Overall(seen="node1"), lambda state: Overall(a=state.a + 1))
    assert drive.invoke(app, {"a": 2.0}) == {"a": 3.0, "seen": "node1"}


class Letter(BaseModel):
    text: str


class Envelope(BaseModel, Generic[T]):
    content: T


def test_state_validation_error_with_generic_model(drive):
    class State(BaseModel):
        envelope: Envelope[Letter]

    seen = []
    app = chain(State, lambda state: seen.append(state) or {}, validate=["input", "writes"])
    found = drive.invoke(app, {"envelope": {"content": {"text": "hello"}}})
    assert seen[0].envelope.content == Letter(text="hello") == found["envelope"].content


class Step(BaseModel):
    class Status(StrEnum):
        PENDING = "pending"
        DONE = "done"

    name: str
    status: Status = Status.PENDING
    notes: list[str] = []


class Tracked(TypedDict):
    step: Step
    answer: str


def test_fails_to_track_changes_made_to_a_model_in_the_state(drive):
    def work(state: Tracked) -> dict[str, Any]:
        step = state["step"]
        step.status, step.notes = Step.Status.DONE, ["worked"]
        return {"step": step}

    app = chain(Tracked, work, saver=InMemorySaver())
    drive.invoke(app, {"step": Step(name="s")}, CONFIG)
    newest, _, first = drive.history(app, CONFIG)[0], *drive.history(app, CONFIG)[-2:]
    assert newest.values["step"] == Step(name="s", status=Step.Status.DONE, notes=["worked"])
    assert first.values == {}


@pytest.mark.parametrize("saver", ["memory", "sqlite"])
def test_nested_enum_fields_become_none_after_a_checkpoint(saver, drive, tmp_path):
    app = chain(
        Tracked,
        lambda state: {"answer": f"{interrupt('?')} {state['step'].status is Step.Status.DONE}"},
        saver=InMemorySaver() if saver == "memory" else SqliteSaver(str(tmp_path / "threads.db")),
        validate=["input", "nodes", "writes"],
    )
    drive.invoke(app, {"step": Step(name="s", status=Step.Status.DONE)}, CONFIG)
    assert drive.invoke(app, Command(resume="yes"), CONFIG)["answer"] == "yes True"


def test_edited_state_is_no_longer_a_model(drive):
    app = chain(Tracked, lambda state: {}, saver=InMemorySaver(), validate="writes")
    drive.invoke(app, {"step": Step(name="s")}, CONFIG)
    drive.update_state(app, CONFIG, {"step": {"name": "edited", "status": "done"}})
    assert drive.get_state(app, CONFIG).values["step"] == Step(name="edited", status=Step.Status.DONE)
