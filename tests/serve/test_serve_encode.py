"""Encoding values as JSON: no value fails a run."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from stategraph.serve.encode import MAX_DEPTH, decode, encode


class Color(Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Pair:
    one: Any
    two: Any


class Model(BaseModel):
    n: int = 1


class Hostile:
    """Fails however it is looked at."""

    def __repr__(self):
        raise RuntimeError("no")

    def __hash__(self):
        return 1

    def model_dump(self):
        raise RuntimeError("no")


class Endless:
    """Makes another one each time it is asked."""

    def model_dump(self):
        return Endless()


def decoded(value):
    return json.loads(encode(value))


holds_itself = []
holds_itself.append(holds_itself)
deep = "bottom"
for _ in range(MAX_DEPTH * 10):
    deep = [deep]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2**64, 2**64),
        (-(2**90), -(2**90)),
        ({2**70: [2**70]}, {str(2**70): [2**70]}),
        ([10**5000, {-(10**5000): 1}], [hex(10**5000), {hex(-(10**5000)): 1}]),
        ("\ud800", "\ud800"),
        ({"\udfff": 1}, {"\udfff": 1}),
        ({(1, 2): "a", None: "b", True: "c", Color.RED: "d"}, {"(1, 2)": "a", "null": "b", "true": "c", "red": "d"}),
        ([2**64, math.nan, math.inf], [2**64, None, None]),
        ([2**64, Color.RED, Point(1, 2)], [2**64, "red", {"x": 1, "y": 2}]),
        ([2**64, date(2026, 1, 2), UUID(int=7)], [2**64, "2026-01-02", str(UUID(int=7))]),
        ([2**64, datetime(2026, 1, 2, tzinfo=UTC)], [2**64, "2026-01-02T00:00:00+00:00"]),
        ([2**64, Pair(2**65, Model())], [2**64, {"one": 2**65, "two": {"n": 1}}]),
        ([2**64, {1}, b"x", Decimal("1.5")], [2**64, [1], "eA==", "1.5"]),
        (holds_itself, ["[[...]]"]),
        ([Hostile(), {Hostile(): 1}], ["<Hostile>", {"<Hostile>": 1}]),
        (Model, str(Model)),
    ],
)  # fmt: skip
def test_values_without_a_json_form_are_encoded(value, expected):
    assert decoded(value) == expected


def test_values_too_deep_or_endless_are_encoded_as_text():
    found, depth = decoded(deep), 0
    while isinstance(found, list):
        [found] = found
        depth += 1
    assert depth == MAX_DEPTH and isinstance(found, str)
    assert "Endless" in decoded(Endless())


@pytest.mark.parametrize("value", [{"n": [1.5, "ü"]}, 2**63, [10**400, "x"], [10**5000], math.nan])
def test_encoded_values_can_be_decoded(value):
    assert decode(encode(value)) == decoded(value)
    assert decode(encode(["\ud800ü", value])) == ["?ü", decoded(value)]


def test_a_generator_is_not_used_up():
    numbers = (n for n in range(3))
    assert "generator" in decoded({"n": numbers})["n"]
    assert [*numbers] == [0, 1, 2]


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters()), st.binary(), st.dates(),
    st.datetimes(), st.uuids(), st.decimals(), st.complex_numbers(), st.builds(Hostile), st.just(Color.RED),
    st.builds(Point, st.integers(), st.integers()), st.builds(Model), st.sets(st.integers()),
)  # fmt: skip
KEYS = st.one_of(st.text(st.characters()), st.integers(), st.floats(), st.none(), st.tuples(st.integers()), st.dates())
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner), st.dictionaries(KEYS, inner), st.tuples(inner, inner), st.builds(Pair, inner, inner)
    ),
    max_leaves=20,
)  # fmt: skip


@given(VALUES)
def test_no_value_fails(value):
    decoded(value)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    max_leaves=20,
)  # fmt: skip


@given(PLAIN)
def test_json_values_are_encoded_unchanged(value):
    assert decoded(value) == value
