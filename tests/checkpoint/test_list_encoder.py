"""A long list that is encoded again and again: always the bytes of `Serializer.dumps`, whatever was changed in place,
and deltas that lead from each to the next.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.graphs import chain_of, thread_config
from pydantic import BaseModel, ConfigDict
from typing_extensions import TypedDict

from stategraph import END, InMemorySaver, add_messages
from stategraph.checkpoint import Serializer, UnserializableError
from stategraph.checkpoint.serde import list_encoder as room
from stategraph.checkpoint.serde.delta import GrownBlob, apply_deltas, find_delta, make_delta
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.pregel.run import commits


class Model(BaseModel):
    model_config = ConfigDict(extra="allow")
    content: Any
    id: str | None = None
    extras: dict[str, Any] = {}


@dataclass
class Record:
    content: Any
    id: str = ""
    notes: list[Any] = field(default_factory=list)


class Letter(StrEnum):
    A = "a"


serializer = Serializer()
serializer.register(Model)
serializer.register(Record)
serializer.register(Letter)

EQUALS = [
    0, False, 0.0, -0.0, 1, True, 1.0, None, "", "a", Letter.A, "b", b"a", bytearray(b"a"), (), [], {}, OrderedDict(), set(), frozenset(),
    defaultdict(list), ["a"], ("a",), {"a": 1}, {"a": True}, OrderedDict(a=1), {"a"}, frozenset("a"), [[1]], [[True]],
]  # fmt: skip
"""Values of which many equal each other, though they are stored as different ones."""
VALUES = st.one_of(st.sampled_from(EQUALS), st.text(max_size=3)).map(copy.deepcopy)


def make(kind, n):
    if kind == "model":
        return Model(content=f"text {n}", id=str(n))
    if kind == "record":
        return Record(f"text {n}", str(n))
    message = {"role": "user", "content": f"text {n}", "id": str(n)}
    return message if kind == "flat" else {**message, "calls": [{"name": "f", "args": {"n": n}}], "time": n / 2}


KINDS = st.sampled_from(["flat", "deep", "model", "record"])


def edit(items, how, at, value):
    """Change a list as nodes and reducers do."""
    item = items[at % len(items)]
    fields = item if isinstance(item, dict) else item.__dict__
    if how == "append":
        items.append(make("flat", at))
    elif how == "set":
        fields["content"] = value
    elif how == "add":
        fields["extra" if isinstance(item, dict) else "content"] = value
    elif how == "rename" and isinstance(item, dict):
        item["text"] = item.pop("content", value)
    elif how == "inside":
        for part in fields.values():
            if isinstance(part, list):
                part.append(value)
            elif isinstance(part, dict):
                part["k"] = value
    elif how == "type" and isinstance(item, dict):
        items[at % len(items)] = OrderedDict(item)
    elif how == "extra" and isinstance(item, Model):
        item.model_extra["x"] = value  # type: ignore[index]
    elif how == "field set" and isinstance(item, Model):
        item.model_fields_set.add("extras")
    elif how == "replace":
        items[at % len(items)] = make("deep", at)
    elif how == "drop" and len(items) > 8:
        del items[at % len(items)]
    elif how == "drop front" and len(items) > 8:
        del items[:3]


HOWS = ["append", "set", "add", "rename", "inside", "type", "extra", "field set", "replace", "drop", "drop front", "nothing"]
EDITS = st.lists(st.tuples(st.sampled_from(HOWS), st.integers(0, 60), VALUES), max_size=3)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Blocks and lists short enough for random edits to meet every case."""
    monkeypatch.setattr(room, "LEAST_ITEMS", 4)
    monkeypatch.setattr(commits, "LEAST_ITEMS", 4)
    monkeypatch.setattr(room, "BLOCK", 5)


def encoded(encoder, items):
    return tuple(encoder.dumps(items))


def warm(items):
    """An encoder that has frozen these items."""
    encoder = serializer.make_list_encoder()
    assert encoder is not None
    for _ in range(2):
        assert encoded(encoder, items) == serializer.dumps(items)
    return encoder


@given(st.lists(KINDS, min_size=4, max_size=23) | st.integers(4, 23).map(lambda n: ["flat"] * n), st.lists(EDITS, max_size=6))
def test_the_bytes_are_those_of_the_whole_list_whatever_is_changed_in_place(kinds, steps):
    items = [make(kind, n) for n, kind in enumerate(kinds)]
    encoder = warm(items)
    whole, deltas, last = serializer.dumps(items), [], serializer.dumps(items)
    for edits in steps:
        for how, at, value in edits:
            edit(items, how, at, value)
        blob = encoder.dumps(items)
        assert (blob[0], blob[1]) == serializer.dumps(items)
        delta = find_delta(last, blob)
        if delta is None:
            whole, deltas = (blob[0], blob[1]), []
        else:
            deltas.append(delta)
        last = blob
        assert apply_deltas(whole[1], deltas) == blob[1]


@pytest.mark.parametrize("kind", ["flat", "deep", "model", "record"])
@pytest.mark.parametrize("how", HOWS)
def test_each_kind_of_change_is_noticed(kind, how):
    for at in (0, 7, 11):
        items = [make(kind, n) for n in range(12)]
        encoder = warm(items)
        edit(items, how, at, "other")
        assert encoded(encoder, items) == serializer.dumps(items)


@pytest.mark.parametrize("place", ["field", "list", "dict", "model", "record"])
def test_a_value_is_distinguished_from_an_equal_one_of_another_type(place):
    """Each of `EQUALS` is put in the place of each."""
    holders = {"field": {}, "list": [None], "dict": {}, "model": Model(content=0), "record": Record(0)}
    holder = holders[place]
    items = [{"role": "user", "content": holder}, *(make("flat", n) for n in range(11))]
    if place == "field":
        holder = items[0]

    def put(value):
        if isinstance(holder, (Model, Record)):
            holder.__dict__["content"] = value
        else:
            holder[0 if place == "list" else "content"] = value

    for before in EQUALS:
        put(before)
        encoder = warm(items)
        for after in EQUALS:
            put(after)
            assert encoded(encoder, items) == serializer.dumps(items), (before, after)


def test_a_string_is_distinguished_from_an_equal_member_of_an_enum():
    """Also where all else is text, which is compared and not packed."""
    items = [make("flat", n) for n in range(12)]
    items[7]["content"] = "a"
    encoder = warm(items)
    items[7]["content"] = Letter.A
    assert encoded(encoder, items) == serializer.dumps(items)


@pytest.mark.parametrize("kind", [tuple, set, list])
def test_rows_are_known_again(kind):
    items = [kind(["user", f"text {n}"]) for n in range(12)]
    encoder = warm(items)
    items.append(kind(["user", "more"]))
    assert isinstance(encoder.dumps(items), GrownBlob)
    items[3] = kind(["user", "other"])
    assert encoded(encoder, items) == serializer.dumps(items)


@pytest.mark.parametrize("kind", ["flat", "deep", "model", "record"])
@pytest.mark.parametrize("count", [12, 20, 70_000])
def test_what_is_appended_is_encoded_alone(kind, count, monkeypatch):
    if count > 1000:
        monkeypatch.setattr(room, "BLOCK", 256)
        if kind != "flat":
            pytest.skip("long lists differ in their openings only")
    items = [make(kind, n) for n in range(count)]
    encoder = warm(items)
    asked = []
    monkeypatch.setattr(encoder, "_dumps", lambda value: asked.append(len(value)) or serializer.dumps(value))
    for n in range(3):
        old = encoder.dumps(items)
        items.append(make(kind, count + n))
        new = encoder.dumps(items)
        assert isinstance(new, GrownBlob) and new.base is old[1]
        assert new.delta == make_delta(old[1], new[1])
        assert (new[0], new[1]) == serializer.dumps(items)
    assert asked == [1, 1, 1]


def test_a_replaced_item_costs_its_block(monkeypatch):
    items = [make("flat", n) for n in range(100)]
    encoder = warm(items)
    asked = []
    monkeypatch.setattr(encoder, "_dumps", lambda value: asked.append(len(value)) or serializer.dumps(value))
    items[50] = make("deep", 50)
    blob = encoder.dumps(items)
    assert asked == [room.BLOCK] and not isinstance(blob, GrownBlob) and blob == serializer.dumps(items)


def test_a_list_that_changes_everywhere_is_frozen_ever_more_seldom(monkeypatch):
    items = [make("flat", n) for n in range(40)]
    encoder, frozen = warm(items), []
    real = room.freeze_items
    monkeypatch.setattr(room, "freeze_items", lambda *given: frozen.append(1) or real(*given))
    for n in range(100):
        del items[0]
        items.append(make("flat", 40 + n))
        assert encoder.dumps(items) == serializer.dumps(items)
    assert len(frozen) <= 10 * 2 * 8  # the blocks of a few tries, each of which fails once


def test_an_item_that_cannot_be_stored_is_named_by_its_place_in_the_whole_list():
    items = [make("flat", n) for n in range(30)]
    encoder = warm(items)
    items.append({**make("flat", 30), "content": print})
    with pytest.raises(UnserializableError, match=r"at \[30\]\['content'\]"):
        encoder.dumps(items)
    items[-1]["content"] = "text"
    assert encoder.dumps(items) == serializer.dumps(items)


def test_values_that_cannot_be_compared_are_encoded():
    class Array:
        def __eq__(self, other):
            raise ValueError("ambiguous")

        __hash__ = None  # type: ignore[assignment]

    items = [make("flat", n) for n in range(30)]
    encoder = warm(items)
    items[3]["content"] = Array()
    with pytest.raises(UnserializableError):
        encoder.dumps(items)


def test_a_serializer_with_dumps_of_its_own_is_asked_for_whole_values():
    class Mine(Serializer):
        def dumps(self, value):
            return super().dumps(value)

    assert Mine().make_list_encoder() is None


class Chat(TypedDict):
    messages: Annotated[list[Any], add_messages]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_history_shows_in_place_changes_at_the_step_that_made_them(drive, kind):
    """What a node changes in an old message is stored with the next write of the key, as if all were encoded."""

    def speak(state: Chat):
        messages = state["messages"]
        messages[len(messages) % 7]["content"] += f" {len(messages)}"
        expected.append(copy.deepcopy(messages))
        expected[-1].append(make("deep", len(messages)))
        return {"messages": [make("deep", len(messages))]}

    graph = chain_of(Chat, speak=speak).add_conditional_edges(
        "speak", lambda state: END if len(state["messages"]) == 40 else "speak"
    )
    expected = []
    with SqliteSaver.from_conn_string(":memory:") as sqlite:
        app = graph.compile(sqlite if kind == "sqlite" else InMemorySaver())
        thread = thread_config("1")
        drive.invoke(app, {"messages": [make("flat", n) for n in range(20)]}, thread)
        stored = [snapshot.values["messages"] for snapshot in app.get_state_history(thread)]
    assert stored[: len(expected)] == expected[::-1] and len(expected) == 20
