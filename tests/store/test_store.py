"""Stores: every rule holds for each store in the box and for both faces of it."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import math
import pickle
import platform
import sqlite3
import threading
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from random import Random
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import cluster
from kit.drive import each_case, run_threads

from stategraph.checkpoint import StorageError
from stategraph.store import (
    BaseStore,
    GetOp,
    InMemoryStore,
    InvalidNamespaceError,
    ItemChangedError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
    UnchangedOp,
    escape,
    matches,
    sql,
)
from stategraph.store.namespaces import below, decode_namespace, encode_namespace
from stategraph.store.paths import parse, walk
from stategraph.store.postgres import PostgresStore
from stategraph.store.sqlite import SqliteStore
from stategraph.store.values import MAX_DEPTH

A = ("a",)
NOW = 1_700_000_000.0


class Clock:
    """Seconds that move only when told to."""

    def __init__(self):
        self.now = NOW

    def __call__(self):
        return self.now

    def wait(self, minutes):
        self.now += 60 * minutes


class Driven:
    """A store seen through one face: the async one is driven by a runner, so that tests read the same."""

    def __init__(self, store: BaseStore, runner: asyncio.Runner | None):
        self.store = store
        self.runner = runner

    def __getattr__(self, name):
        if self.runner is None or name == "sweep_ttl":
            return getattr(self.store, name)
        call = getattr(self.store, f"a{name}")
        return lambda *args, **kwargs: self.runner.run(call(*args, **kwargs))


def open_store(backend, place=None, **config):
    """A store; in Postgres in this schema, or in a new one."""
    if backend == "postgres":
        return PostgresStore(place or cluster.shared().schema(), **config)
    return InMemoryStore(**config) if backend == "memory" else SqliteStore(":memory:", **config)


def close_store(store):
    if not isinstance(store, InMemoryStore):
        store.close()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def backend(request):
    return request.param


@pytest.fixture(params=["sync", "async"])
def make(request, backend, clock):
    """Opens a store: `make(index=…, ttl=…)`."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner()) if request.param == "async" else None

        def make(**config):
            place = stack.enter_context(cluster.shared().emptied()) if backend == "postgres" else None
            opened = open_store(backend, place, clock=clock, **config)
            stack.callback(close_store, opened)
            return Driven(opened, runner)

        yield make


@pytest.fixture
def store(make):
    return make()


def keys(items):
    return [item.key for item in items]


# -- items ----------------------------------------------------------------------------------------------------------


@pytest.mark.trial
def test_an_item_is_found_from_its_put_to_its_delete(store):
    assert store.get(A, "k") is None
    store.put(("a", "b"), "k", {"x": 1, "y": [None, True, 1.5, {"z": "ü"}]})
    item = store.get(("a", "b"), "k")
    assert (item.namespace, item.key) == (("a", "b"), "k")
    assert item.value == {"x": 1, "y": [None, True, 1.5, {"z": "ü"}]}
    store.delete(("a", "b"), "k")
    store.delete(("a", "b"), "k")  # again: no error
    store.delete(("never",), "k")
    assert store.get(("a", "b"), "k") is None


def test_keys_become_strings(store):
    store.put(A, 7, {})
    assert store.get(A, "7").key == "7"
    assert store.get(A, 7) is not None


def test_copies_in_and_out(store):
    value = {"list": [1]}
    store.put(A, "k", value)
    value["list"].append(2)
    found = store.get(A, "k")
    found.value["list"].append(3)
    store.search(A)[0].value["list"].append(4)
    assert store.get(A, "k").value == {"list": [1]}


def test_times_are_utc_and_created_at_stays(store, clock):
    store.put(A, "k", {"n": 1})
    clock.wait(5)
    store.put(A, "k", {"n": 2})
    item = store.get(A, "k")
    assert item.created_at == datetime.fromtimestamp(NOW, UTC)
    assert item.updated_at - item.created_at == timedelta(minutes=5)
    assert item.created_at.tzinfo is UTC


@pytest.mark.parametrize("ttl", [None, 5])
def test_a_deleted_or_expired_item_starts_again(store, clock, ttl):
    store.put(A, "k", {}, ttl=ttl)
    if ttl is None:
        store.delete(A, "k")
    clock.wait(5)
    store.put(A, "k", {})
    item = store.get(A, "k")
    assert item.created_at == item.updated_at


def test_item_as_dict(store):
    store.put(A, "k", {"n": 1})
    found = store.get(A, "k").dict()
    assert found == {
        "value": {"n": 1},
        "key": "k",
        "namespace": ["a"],
        "created_at": "2023-11-14T22:13:20+00:00",
        "updated_at": "2023-11-14T22:13:20+00:00",
    }
    assert store.search(A)[0].dict() == {**found, "score": None}


class Color(IntEnum):
    RED = 1


def deep(levels):
    value = 0
    for _ in range(levels):
        value = [value]
    return value


@each_case(
    "value, place",
    [
        ({"a": [1, {"b": (2,)}]}, r"value\['a'\]\[1\]\['b'\]: tuple"),
        ({"a": object()}, r"value\['a'\]: object"),
        ({"a": datetime(2020, 1, 1)}, r"value\['a'\]: datetime"),
        ({"a": math.nan}, r"value\['a'\]: JSON has no nan"),
        ({"a": [math.inf]}, r"value\['a'\]\[0\]: JSON has no inf"),
        ({"a": Color.RED}, r"value\['a'\]: Color"),
        ({"a": {1: 2}}, r"value\['a'\]: the key 1 is not a string"),
        ({"a": "\ud800"}, r"value\['a'\]: .*lone surrogate"),
        ({"\udfff": 1}, r"value: the key '\\udfff'"),
        ({"a": {1, 2}}, r"value\['a'\]: set"),
        ({"a": b"x"}, r"value\['a'\]: bytes"),
        ({"a": 10**5000}, r"value\['a'\]: the integer is too long"),
        ({"a": deep(MAX_DEPTH)}, "nested deeper"),
        ([1], "a list"),
        ("text", "a str"),
    ],
)
def test_a_value_that_is_not_json_is_refused_with_its_place(store, value, place):
    with pytest.raises(ValueError, match=f"cannot store (?s:.*){place}"):
        store.put(A, "k", value)
    assert store.get(A, "k") is None


def test_a_value_within_itself_is_refused(store):
    value = {}
    value["me"] = value
    with pytest.raises(ValueError, match="within itself"):
        store.put(A, "k", value)


@each_case(
    "value", [{}, {"": 0}, {"a": 10**4000}, {"a": -0.0}, {"a": 5e-324}, {"a": deep(MAX_DEPTH - 1)}]
)
def test_unusual_json_is_returned_unchanged(store, value):
    store.put(A, "k", value)
    found = store.get(A, "k").value
    assert found == value
    assert type(found.get("a")) is type(value.get("a"))


# -- namespaces -----------------------------------------------------------------------------------------------------


@each_case("namespace", [(), ("",), ("a", ""), "a", None, ("a", 1), ("\ud800",), {"a"}])
def test_an_invalid_namespace_is_refused_by_every_call(store, namespace):
    with pytest.raises(InvalidNamespaceError):
        store.put(namespace, "k", {})
    with pytest.raises(InvalidNamespaceError):
        store.get(namespace, "k")
    if namespace != ():
        with pytest.raises(InvalidNamespaceError):
            store.search(namespace)


def test_an_invalid_key_is_refused(store):
    with pytest.raises(ValueError, match="surrogate"):
        store.put(A, "\ud800", {})


def test_prefix_matches_whole_segments(store):
    for namespace in [("u", "1"), ("u", "10"), ("u", "1", "x"), ("u",), ("v",)]:
        store.put(namespace, "k", {})
    assert [item.namespace for item in store.search(("u", "1"))] == [("u", "1", "x"), ("u", "1")]
    assert len(store.search(())) == 5
    assert store.search(("u", "1", "x", "y")) == []


HOSTILE = [
    "a.b",
    "a",
    ".",
    "%",
    "_",
    "*",
    "\\",
    ":",
    "\0",
    "a\0b",
    "'; DROP TABLE store_items; --",
    '"',
    "ü",
    "😀",
    "langgraph",
]


def test_hostile_names_are_plain_names(store):
    for segment in HOSTILE:
        store.put((segment,), segment, {"is": segment})
    for segment in HOSTILE:
        assert store.get((segment,), segment).value == {"is": segment}
        assert [item.key for item in store.search((segment,))] == [segment]
        assert [item.key for item in store.search((), filter={"is": segment})] == [segment]
    assert store.list_namespaces() == sorted((segment,) for segment in HOSTILE)


def test_namespaces_exist_while_they_have_items(store, clock):
    store.get(("phantom",), "k")
    store.put(A, "k", {})
    store.put(("b",), "k", {}, ttl=1)
    assert store.list_namespaces() == [A, ("b",)]
    store.delete(A, "k")
    clock.wait(1)
    assert store.list_namespaces() == []


def test_namespaces_are_listed_by_prefix_suffix_and_depth(store):
    for namespace in [("b",), ("a", "x", "1"), ("a", "y", "1"), ("a", "x", "2"), ("c", "x")]:
        store.put(namespace, "k", {})
    assert store.list_namespaces() == [("a", "x", "1"), ("a", "x", "2"), ("a", "y", "1"), ("b",), ("c", "x")]
    assert store.list_namespaces(prefix=("a", "x")) == [("a", "x", "1"), ("a", "x", "2")]
    assert store.list_namespaces(prefix=("*", "x")) == [("a", "x", "1"), ("a", "x", "2"), ("c", "x")]
    assert store.list_namespaces(suffix=("1",)) == [("a", "x", "1"), ("a", "y", "1")]
    assert store.list_namespaces(suffix=("*", "1"), prefix=("a", "x")) == [("a", "x", "1")]
    assert store.list_namespaces(max_depth=1) == [A, ("b",), ("c",)]
    assert store.list_namespaces(max_depth=2, limit=2, offset=1) == [("a", "y"), ("b",)]
    assert store.list_namespaces(prefix=A, suffix=("a", "x", "1", "2")) == []


@each_case(
    "call",
    [
        lambda store: store.list_namespaces(max_depth=0),
        lambda store: store.list_namespaces(limit=-1),
        lambda store: store.list_namespaces(prefix="a"),
        lambda store: store.batch([ListNamespacesOp((MatchCondition("infix", A),))]),
        lambda store: store.search((), limit=-1),
        lambda store: store.search((), offset=-1),
        lambda store: store.search((), limit="1; DROP TABLE store_items"),
        lambda store: store.search((), limit=True),
        lambda store: store.search((), query=1),
        lambda store: store.put(A, "k", {}, index="x"),
        lambda store: store.put(A, "k", {}, index=True),
        lambda store: store.put(A, "k", {}, index=["a["]),
    ],
)
def test_an_argument_without_meaning_is_refused(store, call):
    with pytest.raises(ValueError):
        call(store)


segments = st.text(
    st.sampled_from([".", "%", "_", "\\", "*", ":", "'", '"', "a", "b", "ü", "😀", "\x00", "\x01", "ÿ"]),
    min_size=1,
    max_size=3,
)
namespaces = st.lists(segments, min_size=1, max_size=3).map(tuple)


@given(namespaces, namespaces)
def test_encoded_namespaces_are_the_tuples(one, other):
    a, b = encode_namespace(one), encode_namespace(other)
    assert decode_namespace(a) == one
    assert (a == b) == (one == other)
    assert (a < b) == (one < other)
    low, high = below(one)
    assert (low <= b < high) == (other[: len(one)] == one)
    assert below(()) == (b"", b"\xff")


# -- batches --------------------------------------------------------------------------------------------------------


def test_a_batch_reads_before_it_writes_and_the_last_put_wins(store):
    results = store.batch(
        [
            GetOp(A, "k"),
            PutOp(A, "k", {"n": 1}),
            GetOp(A, "k"),
            PutOp(A, "k", {"n": 2}),
            SearchOp(A),
            ListNamespacesOp(),
        ]
    )
    assert results == [None, None, None, None, [], []]
    assert store.get(A, "k").value == {"n": 2}


def test_a_later_delete_in_a_batch_wins_too(store):
    store.batch([PutOp(A, "k", {}), PutOp(A, "k", None)])
    assert store.get(A, "k") is None
    store.batch([PutOp(A, "k", None), PutOp(A, "k", {})])
    assert store.get(A, "k") is not None


def test_a_batch_is_whole_or_nothing(store):
    for bad in [PutOp(A, "2", {"x": object()}), SearchOp(A, {"x": {"$near": 1}}), PutOp((), "2", {})]:
        with pytest.raises(ValueError):
            store.batch([PutOp(A, "1", {}), bad])
    assert store.search(()) == []


def test_a_batch_is_written_only_if_items_are_unchanged_since_they_were_read(store):
    space = A
    store.batch([UnchangedOp(space, "1", None), PutOp(space, "1", {"n": [1, 1.5]})])
    for wrong in (None, {"n": [1]}, {"n": [1, 1.5], "m": 0}):
        with pytest.raises(ItemChangedError, match="the item '1' in .* was changed") as raised:
            store.batch([PutOp(space, "2", {}), UnchangedOp(space, "1", wrong), PutOp(space, "1", None)])
        assert (raised.value.namespace, raised.value.key) == (space, "1")
    assert keys(store.search(space)) == ["1"]
    read = store.get(space, "1").value
    store.batch([UnchangedOp(space, "1", read), UnchangedOp(space, "2", None), PutOp(space, "1", {"n": 2})])
    assert store.get(space, "1").value == {"n": 2}


def test_a_batch_takes_only_ops(store):
    with pytest.raises(TypeError, match="an operation must be a GetOp"):
        store.batch(["get"])


# -- order and paging -----------------------------------------------------------------------------------------------


def test_the_last_put_is_listed_first(store):
    for key in "abc":
        store.put(("n",), key, {})
    store.put(("n",), "a", {})
    assert keys(store.search(("n",))) == ["a", "c", "b"]
    store.batch([PutOp(("n",), "x", {}), PutOp(("n",), "y", {})])
    assert keys(store.search(())) == ["y", "x", "a", "c", "b"]
    store.batch([PutOp(("n",), "x", {}), PutOp(("n",), "y", {}), PutOp(("n",), "x", {})])
    assert keys(store.search((), limit=2)) == ["x", "y"]


def test_no_clock_decides_the_order(store, clock):
    for key in "abc":
        store.put(("n",), key, {})
        clock.wait(-60)
    assert keys(store.search(("n",))) == ["c", "b", "a"]


def test_limit_and_offset_give_pages(store):
    for n in range(7):
        store.put(("n",), str(n), {"even": n % 2 == 0})
    assert keys(store.search(("n",), limit=3)) == ["6", "5", "4"]
    assert keys(store.search(("n",), limit=3, offset=5)) == ["1", "0"]
    assert keys(store.search(("n",), limit=2, offset=1, filter={"even": True})) == ["4", "2"]
    assert store.search(("n",), limit=0) == []
    assert len(store.search(("n",), limit=10**30)) == 7
    assert store.search(("n",), offset=10**30) == []


def test_ten_items_by_default(store):
    store.batch([PutOp(("n",), str(n), {}) for n in range(12)])
    assert len(store.search(("n",))) == 10


# -- filters --------------------------------------------------------------------------------------------------------

DATA = {
    "k1": {"n": 2, "s": "abc", "l": [1, 2], "d": {"a": 1, "b": 2}, "b": True, "z": None},
    "k2": {"n": 10, "s": "abd"},
    "k3": {"n": 3.5, "s": "b"},
}

FILTERS = [
    (None, "k1 k2 k3"),
    ({}, "k1 k2 k3"),
    ({"n": 10}, "k2"),
    ({"n": 10.0}, "k2"),
    ({"n": {"$gt": 2}}, "k2 k3"),
    ({"n": {"$gte": 2, "$lt": 10}}, "k1 k3"),
    ({"n": {"$lte": 3.5}, "s": {"$ne": "b"}}, "k1"),
    ({"n": {"$gt": "2"}}, ""),
    ({"n": {"$gt": None}}, ""),
    ({"n": {"$lt": [3]}}, ""),
    ({"s": {"$gt": "abc"}}, "k2 k3"),
    ({"s": {"$gt": 1}}, ""),
    ({"l": {"$eq": [1, 2]}}, "k1"),
    ({"l": [1, 2]}, "k1"),
    ({"l": [2, 1]}, ""),
    ({"l": {"$contains": 2}}, "k1"),
    ({"l": {"$contains": True}}, ""),
    ({"l[0]": 1, "l[-1]": 2}, "k1"),
    ({"l[2]": {"$exists": False}}, "k1 k2 k3"),
    ({"l[-3]": {"$exists": False}}, "k1 k2 k3"),
    ({"d": {"a": 1}}, "k1"),
    ({"d": {"a": {"$gt": 0}, "b": 2}}, "k1"),
    ({"d": {"a": 1, "c": {"$exists": True}}}, ""),
    ({"d": {}}, "k1"),
    ({"d": {"$eq": {"a": 1}}}, ""),
    ({"d": {"$eq": {"b": 2, "a": 1}}}, "k1"),
    ({"d.a": 1}, "k1"),
    ({"d\\.a": 1}, ""),
    ({"n.a": 1}, ""),
    ({"z": None}, "k1"),
    ({"z": {"$ne": None}}, "k2 k3"),
    ({"z": {"$exists": True}}, "k1"),
    ({"z": {"$exists": False}}, "k2 k3"),
    ({"missing": {"$ne": 1}}, "k1 k2 k3"),
    ({"missing": None}, ""),
    ({"b": 1}, ""),
    ({"b": True}, "k1"),
    ({"b": {"$gt": 0}}, ""),
    ({"b": {"$ne": 1}}, "k1 k2 k3"),
    ({"n": {"$in": [10, "abc", 3.5]}}, "k2 k3"),
    ({"n": {"$nin": [10, 3.5]}}, "k1"),
    ({"missing": {"$in": [None]}}, ""),
    ({"missing": {"$nin": [None]}}, "k1 k2 k3"),
    ({"s": {"$contains": "b"}}, "k1 k2 k3"),
    ({"s": {"$contains": "bd"}}, "k2"),
    ({"s": {"$contains": 1}}, ""),
    ({"n": {"$eq": ...}}, ""),
    ({"n": {"$gt": math.nan}}, ""),
    ({"n": {"$lt": 10**400}}, "k1 k2 k3"),
]


@each_case("filter, expected", FILTERS)
def test_a_filter_finds_the_items_that_match_it(store, filter, expected):
    if store.get(("f",), "k1") is None:
        store.batch([PutOp(("f",), key, value) for key, value in reversed(DATA.items())])
    assert keys(store.search(("f",), filter=filter)) == expected.split()


@each_case(
    "filter",
    [
        {"n": {"$near": 1}},
        {"$or": [{"n": 1}]},
        {"n": {"$gt": 1, "a": 2}},
        {"n": {"$in": "abc"}},
        {"n": {"$in": 3}},
        {"n": {"$exists": 1}},
        {"d": {"e": {"$x": 1}}},
        {"l[*]": 1},
        {"*": 1},
        {"{a,b}": 1},
        {"l[": 1},
        {"l[x]": 1},
        {"a\\": 1},
        {1: 2},
        [],
        "n",
    ],
)
def test_a_filter_without_meaning_is_refused_even_by_an_empty_store(store, filter):
    with pytest.raises(ValueError):
        store.search((), filter=filter)


def test_a_filter_of_any_depth_raises_nothing_else():
    nested = 1
    for _ in range(5000):
        nested = {"a": nested}
    with pytest.raises(ValueError, match="nested deeper"):
        matches({}, nested)
    assert not matches({"a": 1}, {"a": {"$eq": nested}})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, -0.0]) | segments,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(segments, inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.trial
@given(json_values, json_values, st.text(min_size=0, max_size=5))
def test_opposites_and_escapes(value, operand, key):
    stored = {key: value}
    path = escape(key)
    assert matches(stored, {path: {"$exists": True}})
    assert matches(stored, {path: {"$eq": value}})
    for one, other in [("$eq", "$ne"), ("$in", "$nin")]:
        given_operand = operand if one == "$eq" else [operand]
        assert matches(stored, {path: {one: given_operand}}) is not matches(stored, {path: {other: given_operand}})
    assert not (matches(stored, {path: {"$gt": operand}}) and matches(stored, {path: {"$lte": operand}}))


@given(
    json_values,
    st.recursive(
        st.none() | st.integers() | st.text(max_size=4),
        lambda inner: st.dictionaries(
            st.text(max_size=4) | st.sampled_from(["$gt", "$in", "$eq", "$exists", "a.b", "a[0]"]), inner, max_size=3
        ),
    ),
)
def test_filters_raise_nothing_but_value_error(value, filter):
    try:
        assert matches(value, filter) in (True, False)
    except ValueError:
        pass


# -- paths ----------------------------------------------------------------------------------------------------------


@each_case(
    "path, expected",
    [
        ("a.b", [1]),
        ("l[0].n", [1]),
        ("l[-1].n", [3]),
        ("l[7].n", []),
        ("l[-7].n", []),
        ("l[*].n", [1, 2, 3]),
        ("l.*.n", [1, 2, 3]),
        ("a.*", [1, "two"]),
        ("a[*]", []),
        ("{a.b,l[0].n}", [1, 1]),
        ("a.{b,c}", [1, "two"]),
        ("{a,l[*]}.{b,n}", [1, 1, 2, 3]),
        ("grid[*][1]", [2, 4]),
        ("x\\.y", [5]),
        ("x.y", []),
        ("\\*", [6]),
        ("p,q}", [7]),
        ("", []),
    ],
)
def test_a_path_leads_to_the_values_it_names(path, expected):
    value = {
        "a": {"b": 1, "c": "two"},
        "l": [{"n": 1}, {"n": 2}, {"n": 3}],
        "grid": [[1, 2], [3, 4]],
        "x.y": 5,
        "*": 6,
        "p,q}": 7,
    }
    assert list(walk(value, parse(path))) == expected
    assert list(walk(value, parse("$"))) == [value]


@each_case("path", ["a[", "a[]", "a[1", "a[b]", "a[1]b", "{a", "{a}b", "a\\", "$.a", 1, None])
def test_paths_that_cannot_be_read(path):
    with pytest.raises(ValueError):
        parse(path)


# -- time to live ---------------------------------------------------------------------------------------------------


def test_an_expired_item_is_invisible_everywhere(make, clock):
    store = make(ttl={"refresh_on_read": False})
    store.put(A, "k", {}, ttl=1.5)
    clock.wait(1.4)
    assert store.get(A, "k") is not None
    clock.wait(0.1)
    assert store.get(A, "k") is None
    assert store.search(A) == []
    assert store.list_namespaces() == []
    assert store.sweep_ttl() == 1
    assert store.sweep_ttl() == 0


def test_default_ttl_and_no_ttl(make, clock):
    store = make(ttl={"default_ttl": 1, "refresh_on_read": False})
    store.put(A, "default", {})
    store.put(A, "longer", {}, ttl=10)
    store.put(A, "ever", {}, ttl=None)
    clock.wait(2)
    assert keys(store.search(A)) == ["ever", "longer"]
    clock.wait(1e6)
    assert keys(store.search(A)) == ["ever"]


def test_a_put_restarts_the_time(make, clock):
    store = make(ttl={"default_ttl": 2, "refresh_on_read": False})
    store.put(A, "k", {})
    clock.wait(1.5)
    store.put(A, "k", {})
    clock.wait(1.5)
    assert store.get(A, "k") is not None


def test_reads_refresh_the_ttl_by_default_and_on_request(store, clock):
    for key in ("get", "search", "quiet"):
        store.put(A, key, {"key": key}, ttl=2)
    updated = store.get(A, "get").updated_at
    clock.wait(1.5)
    store.get(A, "get")
    store.search(A, filter={"key": "search"})
    store.get(A, "quiet", refresh_ttl=False)
    clock.wait(1.5)
    assert keys(store.search(A)) == ["search", "get"]
    assert store.get(A, "get").updated_at == updated


def test_refresh_on_read_can_be_off(make, clock):
    store = make(ttl={"refresh_on_read": False})
    for key in "ab":
        store.put(("n",), key, {}, ttl=2)
    clock.wait(1.5)
    store.get(("n",), "a")
    store.search(("n",), filter={"x": 1}, refresh_ttl=True)  # finds nothing, refreshes nothing
    store.get(("n",), "b", refresh_ttl=True)
    clock.wait(1.5)
    assert keys(store.search(("n",))) == ["b"]


def test_only_the_page_that_was_read_is_refreshed(store, clock):
    for key in "ab":
        store.put(("n",), key, {}, ttl=2)
    clock.wait(1.5)
    assert keys(store.search(("n",), limit=1)) == ["b"]
    clock.wait(1)
    assert keys(store.search(("n",))) == ["b"]


def test_a_read_by_a_machine_whose_clock_is_slow_shortens_no_life(store, clock):
    store.put(A, "k", {}, ttl=2)
    clock.wait(-1)
    assert store.get(A, "k") is not None
    clock.wait(2.5)
    assert store.get(A, "k") is not None


def test_puts_sweep_now_and_then(make, clock):
    store = make(ttl={"sweep_interval_minutes": 5})
    store.put(A, "k", {}, ttl=1)
    clock.wait(4)
    store.put(A, "x", {})
    clock.wait(1)
    store.put(A, "y", {})
    assert store.sweep_ttl() == 0


def test_an_emptied_store_keeps_no_memory(clock):
    store = InMemoryStore(clock=clock)
    store.put(A, "k", {}, ttl=1)
    store.put(("b",), "k", {})
    store.delete(("b",), "k")
    clock.wait(1)
    store.sweep_ttl()
    assert store._rows == {}


@each_case("ttl", [0, -1, math.nan, math.inf, "1", True, 10**400])
def test_a_ttl_that_is_no_time_is_refused(store, ttl):
    with pytest.raises(ValueError, match="minutes"):
        store.put(A, "k", {}, ttl=ttl)


@pytest.mark.parametrize("config", [{"default_tll": 1}, {"default_ttl": 0}, {"sweep_interval_minutes": -1}])
def test_a_ttl_config_without_meaning_is_refused(backend, config):
    with pytest.raises(ValueError):
        open_store(backend, ttl=config)


# -- search by meaning ----------------------------------------------------------------------------------------------

WORDS = {"cat": [1, 0], "kitten": [4, 1], "dog": [0, 1], "both": [1, 1], "anti": [-1, 0], "nothing": [0, 0]}


def embed(texts):
    return [WORDS.get(text, [0.5, -0.5]) for text in texts]


async def aembed(texts):
    await asyncio.sleep(0)
    return embed(texts)


class Embeddings:
    embed_documents = staticmethod(embed)

    def embed_query(self, text):
        return embed([text])[0]


class AsyncEmbeddings:
    aembed_documents = staticmethod(aembed)

    async def aembed_query(self, text):
        return embed([text])[0]


@pytest.fixture(
    params=[embed, aembed, Embeddings(), AsyncEmbeddings()], ids=["plain", "async", "object", "async object"]
)
def semantic(request, make):
    return make(index={"dims": 2, "embed": request.param, "fields": ["text"]})


def test_results_are_sorted_by_similarity_and_unscored_ones_are_last(semantic):
    semantic.put(("n",), "plain", {"no": "text"})
    for word in ["dog", "cat", "anti", "both", "nothing", "kitten"]:
        semantic.put(("n",), word, {"text": word})
    found = semantic.search(("n",), query="cat")
    assert keys(found) == ["cat", "kitten", "both", "nothing", "dog", "anti", "plain"]
    scores = [item.score for item in found]
    assert scores[:-1] == pytest.approx([1, 4 / math.sqrt(17), math.sqrt(0.5), 0, 0, -1])
    assert scores[-1] is None


def test_paging_is_applied_after_ranking(semantic):
    semantic.batch([PutOp(("n",), word, {"text": word, "len": len(word)}) for word in WORDS])
    semantic.put(("n",), "plain", {"len": 3})
    whole = semantic.search(("n",), query="dog", limit=100)
    pages = [semantic.search(("n",), query="dog", limit=2, offset=at) for at in range(0, 8, 2)]
    assert [item for page in pages for item in page] == whole
    assert len(set(keys(whole))) == 7
    assert keys(semantic.search(("n",), query="dog", filter={"len": 3})) == ["dog", "cat", "plain"]
    assert keys(semantic.search(("n",), query="dog", filter={"len": 3}, limit=1, offset=1)) == ["cat"]


def test_without_a_query_it_is_a_listing(semantic):
    for word in ["dog", "cat"]:
        semantic.put(("n",), word, {"text": word})
    for query in (None, ""):
        found = semantic.search(("n",), query=query)
        assert [(item.key, item.score) for item in found] == [("cat", None), ("dog", None)]


def test_without_an_index_a_query_is_a_listing(store):
    store.put(("n",), "k", {"text": "cat"}, index=["text"])
    assert [item.score for item in store.search(("n",), query="cat")] == [None]


def test_a_put_replaces_all_vectors(make):
    store = make(index={"dims": 2, "embed": embed, "fields": ["tags[*]"]})

    def score(query):
        return store.search(("n",), query=query)[0].score

    store.put(("n",), "k", {"tags": ["cat", "dog"]})
    assert (score("cat"), score("dog")) == (1, 1)
    store.put(("n",), "k", {"tags": ["dog"]})
    assert (score("cat"), score("dog")) == (0, 1)
    store.put(("n",), "k", {"tags": ["dog"]}, index=False)
    assert score("dog") is None
    store.put(("n",), "k", {"tags": ["dog"]})
    store.delete(("n",), "k")
    store.put(("n",), "k", {"tags": []})
    assert score("dog") is None


def test_equal_texts_are_embedded_once(make):
    calls = []

    def counted(texts):
        calls.append(list(texts))
        return embed(texts)

    store = make(index={"dims": 2, "embed": counted, "fields": ["a", "b"]})
    store.batch([PutOp(("n",), str(n), {"a": "cat", "b": "cat"}) for n in range(3)])
    assert calls == [["cat"]]
    assert [item.score for item in store.search(("n",), query="cat")] == [1, 1, 1]


def test_fields_of_one_put_and_of_the_whole_value(make):
    texts = []

    def note(given):
        texts.extend(given)
        return embed(given)

    store = make(index={"dims": 2, "embed": note})
    store.put(("n",), "1", {"b": [1, None], "a": "ü"})
    store.put(("n",), "2", {"a": {"x": "cat"}, "n": 5, "t": True}, index=["a.x", "n", "t", "missing"])
    store.put(("n",), "3", {"a": "", "z": None}, index=["a", "z"])
    assert texts == ['{"a":"ü","b":[1,null]}', "cat", "5", "true"]


@pytest.mark.parametrize(
    "bad",
    [
        lambda texts: [],
        lambda texts: [[1, 2, 3] for _ in texts],
        lambda texts: [[math.nan, 0] for _ in texts],
        lambda texts: [[1e308, math.inf] for _ in texts],
    ],
)
def test_a_bad_embedding_stores_nothing(make, bad):
    store = make(index={"dims": 2, "embed": bad})
    with pytest.raises(ValueError, match="embed function"):
        store.put(("n",), "k", {"text": "cat"})
    assert store.search(()) == []


@pytest.mark.parametrize(
    "config",
    [
        {"dims": 2},
        {"embed": embed},
        {"dims": 0, "embed": embed},
        {"dims": True, "embed": embed},
        {"dims": 2, "embed": "openai:text-embedding-3-small"},
        {"dims": 2, "embed": embed, "fields": "text"},
        {"dims": 2, "embed": embed, "fields": ["a["]},
        {"dims": 2, "embed": embed, "text_fields": ["a["]},
        {"dims": 2, "embed": embed, "paths": ["a"]},
    ],
)
def test_an_index_config_without_meaning_is_refused(backend, config):
    with pytest.raises(ValueError):
        open_store(backend, index=config)


async def test_an_async_embed_works_when_called_inside_a_loop(backend):
    store = open_store(backend, index={"dims": 2, "embed": aembed, "fields": ["text"]})
    store.put(("n",), "k", {"text": "cat"})
    assert store.search(("n",), query="cat")[0].score == 1
    close_store(store)


# -- threads --------------------------------------------------------------------------------------------------------


def test_no_change_of_many_threads_is_lost(backend):
    store = open_store(backend)
    store.put(("shared",), "k", {"n": 0})

    def add():
        read = store.get(("shared",), "k").value
        try:
            store.batch([UnchangedOp(("shared",), "k", read), PutOp(("shared",), "k", {"n": read["n"] + 1})])
        except ItemChangedError:
            add()

    threads = [threading.Thread(target=lambda: [add() for _ in range(8)]) for _ in range(4)]
    run_threads(threads)
    assert store.get(("shared",), "k").value == {"n": 32}
    close_store(store)


def test_a_batch_that_is_rolled_back_leaves_the_connection_usable():
    """psycopg drops the prepared statements of a session in which it sees a ROLLBACK, ours as well."""
    with PostgresStore(cluster.shared().schema(), pool_size=1) as store:
        for n in range(8):  # until psycopg has prepared the one, and we the other
            store.batch([PutOp(A, "1", {"n": n}), PutOp(A, "2", {"n": n})])
            assert store.get(A, "1").value == {"n": n}
        for _ in range(3):
            with pytest.raises(ItemChangedError):
                store.batch([UnchangedOp(A, "1", None), PutOp(A, "1", {})])
            store.put(A, "2", {})
            assert store.get(A, "1").value == {"n": 7}


def test_gathered_calls(backend):
    store = open_store(backend)

    async def main():
        await asyncio.gather(*(store.aput(("n",), str(n), {"n": n}) for n in range(20)))
        return await asyncio.gather(*(store.aget(("n",), str(n)) for n in range(20)))

    assert [item.value["n"] for item in asyncio.run(main())] == list(range(20))
    close_store(store)


def test_a_custom_store_needs_only_batch():
    class Own(BaseStore):
        def batch(self, ops):
            return [inner.batch([op])[0] for op in ops]

    inner = InMemoryStore()
    store = Own()
    asyncio.run(store.aput(A, "k", {"n": 1}))
    assert store.get(A, "k").value == {"n": 1}
    with pytest.raises(NotImplementedError, match=r"must define batch\(\)"):
        BaseStore().get(A, "k")


# -- sqlite ---------------------------------------------------------------------------------------------------------


def test_an_unknown_option_of_a_file_is_refused_before_it_is_opened(tmp_path):
    with pytest.raises(TypeError, match="unexpected keyword argument 'indx'"):
        SqliteStore.from_conn_string(str(tmp_path / "items.db"), indx=None)


def test_a_file_keeps_all(tmp_path, clock):
    path = tmp_path / "store.db"
    index = {"dims": 2, "embed": embed, "fields": ["text"]}
    with closing(SqliteStore(path, clock=clock, index=index)) as store:
        store.put(("a", "b"), "k", {"text": "cat"}, ttl=5)
        before = store.search((), query="cat")
    with closing(SqliteStore(path, clock=clock, index=index)) as store:
        assert store.search((), query="cat") == before
        clock.wait(6)
        assert store.search(()) == []
    with SqliteStore.from_conn_string(str(path)) as store:
        store.setup()
        store.put(A, "k", {})
    with pytest.raises(StorageError):
        store.get(A, "k")


def test_vectors_of_another_index_do_not_count(tmp_path):
    path = tmp_path / "store.db"
    with closing(SqliteStore(path, index={"dims": 2, "embed": embed})) as store:
        store.put(A, "k", {})
    with closing(SqliteStore(path, index={"dims": 1, "embed": lambda texts: [[1] for _ in texts]})) as store:
        assert [item.score for item in store.search((), query="x")] == [None]


def test_two_connections_see_each_other_and_use_wal(tmp_path):
    path = tmp_path / "store.db"
    with closing(SqliteStore(path)) as one, closing(SqliteStore(path)) as two:
        one.put(A, "k", {"n": 1})
        assert two.get(A, "k").value == {"n": 1}
        two.put(A, "l", {"n": 2})
        assert keys(one.search(A)) == ["l", "k"]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


class Watched(sqlite3.Connection):
    """Notes the statements it is given, and fails at one of them if told to."""

    fail_at: int | None = None
    statements: list[str]

    def execute(self, statement, values=()):
        self.statements = [*getattr(self, "statements", []), statement]
        if self.fail_at is not None:
            self.fail_at -= 1
            if self.fail_at < 0:
                self.fail_at = None
                raise sqlite3.OperationalError("disk I/O error")
        return super().execute(statement, values)


@pytest.fixture
def watched():
    connection = sqlite3.connect(":memory:", factory=Watched, check_same_thread=False)
    yield connection
    connection.close()


def test_a_write_that_fails_leaves_nothing_behind(watched):
    store = SqliteStore(watched)
    store.put(A, "old", {"n": 0}, ttl=5)
    before = store.search(())
    batch = [GetOp(A, "old"), PutOp(A, "old", {"n": 1}), PutOp(A, "new", {}), PutOp(("b",), "x", None)]
    watched.statements = []
    SqliteStore(watched).batch(batch[:1])
    for step in range(100):
        watched.fail_at = step
        try:
            store.batch(batch)
        except StorageError:
            assert store.search(()) == before
        else:
            break
    watched.fail_at = None
    assert step > 8
    assert keys(store.search(())) == ["new", "old"]


def test_a_connection_handed_in_stays_open(watched):
    SqliteStore(watched).close()
    assert watched.execute("SELECT 1").fetchone() == (1,)


# -- sqlite is memory -----------------------------------------------------------------------------------------------

conditions = (
    json_values
    | st.builds(
        lambda op, operand: {op: operand}, st.sampled_from(["$eq", "$ne", "$gt", "$lte", "$contains"]), json_values
    )
    | st.builds(lambda op, operand: {op: operand}, st.sampled_from(["$in", "$nin"]), st.lists(json_values, max_size=2))
    | st.sampled_from([{"$exists": True}, {"$exists": False}, {"$drop": 1}])
)
# Few names of each kind, and few numbers without meaning, so that most ops meet something.
fields = st.sampled_from(["a", "b", "a.b", "*"])
values = st.dictionaries(fields | segments, json_values, max_size=3)
filters = st.none() | st.dictionaries(fields.map(escape) | segments, conditions, max_size=1)
limits = st.sampled_from([10] * 12 + [0, 1, 2, 10**30, -1])
offsets = st.sampled_from([0] * 12 + [1, 2, 10**30, -1])
refresh = st.sampled_from([None, True, False])
names = st.sampled_from(["%", "a\0b"])
places = st.sampled_from([A, ("a", "b"), ("a\0", "b")] * 4 + [None]).flatmap(
    lambda place: st.just(place) if place else namespaces
)
ops = st.one_of(
    st.builds(GetOp, places, names, refresh),
    st.builds(
        PutOp,
        places,
        names,
        st.none() | values,
        st.sampled_from([None, False, ["*"], ["a", "b[*]"]]),
        st.none() | st.sampled_from([1, 2.5]),
    ),
    st.tuples(places, names, values).map(lambda put: PutOp(*put)),
    st.builds(
        SearchOp,
        st.just(()) | places,
        filters,
        limits,
        offsets,
        st.none() | st.sampled_from(["a", "bb", "%"]),
        refresh,
    ),
    st.builds(
        ListNamespacesOp,
        st.lists(st.builds(MatchCondition, st.sampled_from(["prefix", "suffix"]), places), max_size=2).map(tuple),
        st.none() | st.integers(1, 3),
        limits,
        offsets,
    ),
)
steps = st.lists(
    st.lists(ops, min_size=1, max_size=4) | st.sampled_from([0.5, 2.0, -1.0, "sweep"]), min_size=4, max_size=15
)


def letters(texts):
    return [[text.count("a"), text.count("b"), 1] for text in texts]


def run(store, clock, steps, batch):
    """What a store answers, errors included."""
    answers = []
    for step in steps:
        try:
            if step == "sweep":
                answers.append(store.sweep_ttl())
            elif isinstance(step, float):
                clock.wait(step)
            else:
                answers.append(batch(store, step))
        except ValueError as error:
            answers.append((type(error), str(error)))
    return answers


def compare(steps, batch, other="sqlite"):
    config = {
        "index": {"dims": 3, "embed": letters, "fields": ["$"]},
        "ttl": {"default_ttl": 3, "sweep_interval_minutes": 2},
    }
    everything = [[SearchOp((), limit=100), ListNamespacesOp(), SearchOp((), limit=100, query="ab")]]
    answers = []
    for backend in ("memory", other):
        clock = Clock()
        store = open_store(backend, clock=clock, **config)
        answers.append(run(store, clock, steps + everything, batch))
        close_store(store)
    assert answers[0] == answers[1]


@pytest.mark.trial
@settings(max_examples=4 * settings.default.max_examples)
@given(steps)
def test_sqlite_answers_as_memory_does(steps):
    compare(steps, lambda store, ops: store.batch(ops))


@pytest.mark.trial
@given(steps)
def test_sqlite_answers_as_memory_does_async(steps):
    with asyncio.Runner() as runner:
        compare(steps, lambda store, ops: runner.run(store.abatch(ops)))


@pytest.mark.trial
@given(steps)
def test_postgres_answers_as_memory_does(steps):
    compare(steps, lambda store, ops: store.batch(ops), "postgres")


@given(steps)
def test_the_set_of_sql_texts_is_fixed(steps):
    with closing(sqlite3.connect(":memory:", factory=Watched)) as connection:
        store = SqliteStore(connection, index={"dims": 3, "embed": letters})
        run(store, Clock(), steps, lambda store, ops: store.batch(ops))
        known = {text for module in (SqliteStore.__module__, "stategraph.checkpoint.sql.sqlite_database") for text in constants(module)}
        assert set(connection.statements) <= known


def constants(module):
    found = vars(importlib.import_module(module)).values()
    return {
        text for value in found for text in (value if isinstance(value, tuple) else [value]) if isinstance(text, str)
    }


# -- reopened in another process ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [str, lambda path: f"file:{quote(str(path))}?cache=private", sqlite3.connect])
def test_a_file_is_opened_again_as_it_is(tmp_path, monkeypatch, target):
    path = tmp_path / "what? 100%.db"
    index = {"dims": 3, "embed": letters, "fields": ["text"]}
    store = SqliteStore(target(path), index=index, ttl={"default_ttl": 3}, clock=Clock())
    store.put(A, "k", {"text": "abc"})
    monkeypatch.chdir("/")
    with closing(pickle.loads(pickle.dumps(store.reopen()))()) as again:
        assert again.search((), query="abc") == store.search((), query="abc") != []
        again.put(A, "l", {})
        assert again._options.keys() == store._options.keys() and again._ttl == {"default_ttl": 3}
    assert store.get(A, "l") is not None
    store._database.connection.close()


def test_a_file_by_a_relative_name_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with closing(SqliteStore("a.db")) as store:
        opens = store.reopen()
        monkeypatch.chdir("/")
        opens().close()


def test_what_is_not_in_a_file_is_only_here():
    for target in (":memory:", "", "file:a?mode=memory&cache=shared"):
        with closing(SqliteStore(target)) as store:
            assert store.reopen() is None
    assert InMemoryStore().reopen() is None and BaseStore().reopen() is None


def test_a_replaced_file_of_the_same_name_is_another_store(tmp_path):
    path = tmp_path / "a.db"
    with closing(SqliteStore(path)) as store:
        opens = store.reopen()
        with pytest.raises(StorageError, match="an SQLite file on another machine.*: use a PostgresStore"):
            dataclasses.replace(opens, machine="another")()
        path.rename(tmp_path / "b.db")
        with pytest.raises(StorageError, match=r"'.*/a.db' is missing here or is not the SQLite file of the store"):
            opens()
        assert not path.exists()
        path.write_bytes(b"")
        with pytest.raises(StorageError, match="is missing here or is not the SQLite file"):
            opens()
        assert path.read_bytes() == b""
        path.unlink()
        with pytest.raises(StorageError, match=r"its file '.*/a.db' no longer exists"):
            store.reopen()


def test_a_machine_without_proc_goes_by_its_name(monkeypatch, tmp_path):
    assert sql.this_machine() in sql.this_network() != sql.this_machine()
    monkeypatch.setattr(sql, "_BOOT", tmp_path / "none")
    monkeypatch.setattr(sql, "_NETWORK", tmp_path / "none")
    sql.this_machine.cache_clear()
    assert sql.this_network() == sql.this_machine() == platform.node()
    sql.this_machine.cache_clear()


@pytest.mark.parametrize("after", range(4))
def test_a_batch_in_memory_that_is_interrupted_leaves_nothing(after):
    """Ctrl-C may come between any two lines."""
    store = InMemoryStore(ttl={"default_ttl": 5})
    store.put(A, "old", {"n": 0})
    store.put(("b",), "gone", {"n": 0})
    before = store.search((), limit=100, refresh_ttl=False)

    def numbers():
        yield from range(100, 100 + after)
        raise KeyboardInterrupt

    store._puts = numbers()  # type: ignore[assignment]
    batch = [GetOp(A, "old"), PutOp(("b",), "gone", None), PutOp(A, "old", {"n": 1})]
    batch += [PutOp(("c", str(number)), "new", {}) for number in range(3)]
    with pytest.raises(KeyboardInterrupt):
        store.batch(batch)
    assert store.search((), limit=100, refresh_ttl=False) == before
    assert store.list_namespaces() == [A, ("b",)]


# -- other distances --------------------------------------------------------------------------------------------------


def plane(texts):
    """A text of two numbers is a point."""
    return [[float(number) for number in text.split()] for text in texts]


SLANTED = 2.5 / (math.sqrt(2) * math.hypot(1.4, 1.1))


@pytest.mark.parametrize(
    ("distance", "expected"),
    [
        (None, [("far", 1.0), ("near", SLANTED), ("here", SLANTED)]),
        ("cosine", [("far", 1.0), ("near", SLANTED), ("here", SLANTED)]),
        ("inner_product", [("far", 200.0), ("near", 5.0), ("here", 2.5)]),
        ("l2", [("here", -0.5), ("near", -1.0), ("far", -math.hypot(98, 98))]),
    ],
)
def test_what_a_score_is(make, distance, expected):
    config = {"dims": 2, "embed": plane, "text_fields": ["at"]}
    store = make(index=config | ({"distance_type": distance} if distance else {}))
    query = "2 2" if distance == "l2" else "1 1"
    points = {"here": "1.5 2", "near": "3 2", "far": "100 100"}
    expected = [(key, pytest.approx(score)) for key, score in expected]
    if distance != "l2":  # their angles and products, from the origin
        points = {"here": "1.4 1.1", "near": "2.8 2.2", "far": "100 100"}
    for key, text in points.items():
        store.put(A, key, {"at": text})
    store.put(A, "none", {})
    assert [(item.key, item.score) for item in store.search(A, query=query)] == [*expected, ("none", None)]


def test_stores_compute_the_same_scores(clock, backend):
    rng = Random(1)
    points = [f"{rng.uniform(-9, 9)} {rng.uniform(-9, 9)}" for _ in range(30)]
    for distance in ("cosine", "inner_product", "l2"):
        index = {"dims": 2, "embed": plane, "fields": ["at"], "distance_type": distance}
        answers = []
        for kind in ("memory", backend):
            store = open_store(kind, clock=clock, index=index)
            store.batch([PutOp((distance,), str(number), {"at": point}) for number, point in enumerate(points)])
            answers.append([(item.key, item.score) for item in store.search((distance,), query="1 -2", limit=40)])
            close_store(store)
        assert answers[0] == answers[1] and len(answers[0]) == 30


def test_vectors_of_another_distance_do_not_count(tmp_path):
    def opened(distance):
        index = {"dims": 2, "embed": plane, "fields": ["at"], "distance_type": distance}
        return SqliteStore(str(tmp_path / "store.db"), index=index)

    with closing(opened("cosine")) as store:
        store.put(A, "k", {"at": "3 4"})
    with closing(opened("l2")) as store:
        assert store.search(A, query="3 4")[0].score is None
        store.put(A, "k", {"at": "3 4"})
        assert store.search(A, query="3 4")[0].score == 0
    with closing(opened("inner_product")) as store:
        assert store.search(A, query="3 4")[0].score == 25


@pytest.mark.parametrize("more", [{"distance_type": "hamming"}, {"fields": ["a"], "text_fields": ["b"]}])
def test_an_index_that_means_nothing_is_refused(more):
    with pytest.raises(ValueError, match="distance_type must be|mean the same"):
        InMemoryStore(index={"dims": 2, "embed": plane, **more})


# -- the sweeper ------------------------------------------------------------------------------------------------------


def test_a_sweeper_sweeps_until_it_is_stopped(clock, backend):
    store = open_store(backend, clock=clock, ttl={"default_ttl": 1})
    swept = threading.Event()
    sweep = store._sweep
    store._sweep = lambda now: (sweep(now), swept.set())[0]
    store.put(A, "k", {})
    clock.now += 61
    future = store.start_ttl_sweeper(1e-4)
    assert store.start_ttl_sweeper() is future, "one is enough"
    assert swept.wait(20) and not future.done()
    assert store.stop_ttl_sweeper(20) and future.done()
    assert store.stop_ttl_sweeper()
    assert store.sweep_ttl() == 0, "it was swept"
    again = store.start_ttl_sweeper(1e-4)
    assert not again.done()
    close_store(store)
    if backend != "memory":
        again.result(20)
    store.stop_ttl_sweeper()


def test_a_sweeper_continues_after_an_error(clock, caplog):
    store = InMemoryStore(ttl={"default_ttl": 1}, clock=clock)
    tries = []
    gone = threading.Event()

    def sweep():
        tries.append(1)
        if len(tries) == 1:
            raise StorageError("away")
        gone.set()
        return 0

    store._sweeper._sweep = sweep
    store.start_ttl_sweeper(1e-4)
    assert gone.wait(20) and store.stop_ttl_sweeper(20)
    assert "could not be removed" in caplog.text and "away" in caplog.text


def test_without_times_to_live_there_is_nothing_to_sweep():
    assert InMemoryStore().start_ttl_sweeper().done()
    with pytest.raises(ValueError, match="sweep_interval_minutes"):
        InMemoryStore(ttl={"default_ttl": 1}).start_ttl_sweeper(0)
