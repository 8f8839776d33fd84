"""Values are stored as JSON that people can read, and restored equal and of the same type."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import PurePosixPath
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.drive import each_case
from pydantic import BaseModel

from stategraph import Command, Send
from stategraph.checkpoint.errors import UnknownTypeError
from stategraph.checkpoint.serde import Serializer
from stategraph.checkpoint.serde.json_form import from_json, to_json
from stategraph.graph.messages import RemoveMessage
from stategraph.testing import assert_same


@dataclass
class Point:
    x: int
    y: tuple[int, ...]


class Colour(Enum):
    RED = 1


class Word(StrEnum):
    A = "a"


class Model(BaseModel):
    when: datetime


def serde():
    made = Serializer()
    for cls in (Point, Colour, Word, Model):
        made.register(cls)
    return made


def back(value):
    return from_json(json.loads(json.dumps(to_json(value, serde()), allow_nan=False)), serde())


VALUES = [
    None, True, 1, 2**70, 1.5, -0.0, float("inf"), float("nan"), "text", b"bytes", bytearray(b"b"),
    [1, [2]], {"a": {"b": [1]}}, {1: "one", (1, 2): "pair"}, {"$type": "no", "value": 1}, {},
    (1, (2, [3])), {1, 2}, frozenset({"a"}), deque([1]), Counter("aab"), OrderedDict(a=1), defaultdict(list, a=[1]),
    datetime(2026, 1, 2, tzinfo=UTC), date(2026, 1, 2), timedelta(seconds=3), Decimal("1.50"), UUID(int=7), 1 + 2j,
    PurePosixPath("/a"), Point(1, (2, 3)), [Colour.RED, Word.A], Model(when=datetime(2026, 1, 1)),
    Send("work", {"x": (1,)}), RemoveMessage(id="7"), Command(update={"a": (1,)}, goto="b"),
]  # fmt: skip


@each_case("value", VALUES)
def test_a_value_survives_the_round_trip_through_json(value):
    assert_same(back(value), value, "value")


def test_an_error_survives_the_round_trip_through_json():
    assert_same(back({"e": ValueError("no", 3)}), {"e": ValueError("no", 3)}, "value")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


@given(json_values)
def test_any_value_survives_the_round_trip_through_json(value):
    assert_same(back(value), value, "value")


def test_it_can_be_read():
    assert to_json({"at": (1, 2), "who": Point(1, (2,))}, serde()) == {
        "at": {"$tuple": [1, 2]},
        "who": {"$type": "test_json_form:Point", "value": {"x": 1, "y": {"$tuple": [2]}}},
    }


def test_equal_sets_have_one_form():
    assert json.dumps(to_json({"b", "a", "c"}, serde())) == json.dumps(to_json({"c", "b", "a"}, serde()))


def test_an_unknown_type_is_reported():
    form = to_json(Point(1, ()), serde())
    with pytest.raises(UnknownTypeError, match="Point"):
        from_json(form, Serializer())
    with pytest.raises(ValueError, match="a 'future', which this version cannot read"):
        from_json({"$future": 1}, Serializer())
