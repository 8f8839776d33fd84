"""The cache of task results, and the keys by which a result is found."""

from __future__ import annotations

import asyncio
import functools
import importlib
import operator
import os
import random
import subprocess
import sys
import threading
from collections import OrderedDict, namedtuple
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from pathlib import PurePosixPath
from uuid import UUID
from zoneinfo import ZoneInfo

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.drive import each_case, run_threads

from stategraph.store.cache import (
    BaseCache,
    InMemoryCache,
    SqliteCache,
    canonical_key,
    function_identity,
)

ONE = ("raw", b"1")
TWO = ("raw", b"2")


class Clock:
    """Seconds that move only when told to."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
def cache(request, clock):
    if request.param == "memory":
        yield InMemoryCache(clock=clock)
        return
    with closing(SqliteCache(":memory:", clock=clock)) as cache:
        yield cache


# -- caches ---------------------------------------------------------------------------------------------------------


def test_get_what_was_set(drive, cache):
    key, other = (("node",), "k"), (("node",), "other")
    assert drive.call(cache, "get", [key]) == {}
    drive.call(cache, "set", {key: (ONE, None)})
    assert drive.call(cache, "get", [key, other]) == {key: ONE}
    drive.call(cache, "set", {key: (TWO, None), other: (ONE, None)})
    assert drive.call(cache, "get", [other, key]) == {key: TWO, other: ONE}


def test_clear_takes_whole_namespaces(drive, cache):
    places = [("a", "b"), ("a,b",), ("a",), ("a", "b", "c"), ()]
    everything = {(place, "k"): (ONE, None) for place in places}
    drive.call(cache, "set", everything)
    drive.call(cache, "clear", [])
    assert drive.call(cache, "get", list(everything)).keys() == everything.keys()
    drive.call(cache, "clear", [("a", "b"), ("unknown",)])
    assert {place for place, _ in drive.call(cache, "get", list(everything))} == set(places) - {("a", "b")}
    drive.call(cache, "clear")
    assert drive.call(cache, "get", list(everything)) == {}


HOSTILE = ["a", "a,b", "a\0b", "\0", "\x01", "'; --", "%", "", "ü", "\ud800"]


def test_keys_never_collide(cache):
    keys = [(place, key) for key in HOSTILE for a in HOSTILE for place in [(a,), (a, "b"), ("b", a), (a, a)]]
    blobs = {key: (("n", str(n).encode()), None) for n, key in enumerate(dict.fromkeys(keys))}
    cache.set(blobs)
    assert cache.get(list(blobs)) == {key: blob for key, (blob, _) in blobs.items()}


def test_seconds_to_live(drive, cache, clock):
    short, long, ever, never = ((("n",), key) for key in ("short", "long", "ever", "never"))
    drive.call(cache, "set", {short: (ONE, 10), long: (ONE, 20.5), ever: (ONE, None), never: (ONE, 0)})
    assert drive.call(cache, "get", [short, long, ever, never]).keys() == {short, long, ever}
    clock.now += 10
    assert drive.call(cache, "get", [short, long, ever]).keys() == {long, ever}
    drive.call(cache, "set", {short: (TWO, 10)})
    clock.now += 10.5
    assert drive.call(cache, "get", [short, long, ever]) == {ever: ONE}


def test_a_set_without_ttl_lifts_the_one_before(cache, clock):
    key = (("n",), "k")
    cache.set({key: (ONE, 1)})
    cache.set({key: (TWO, None)})
    clock.now += 5
    assert cache.get([key]) == {key: TWO}


def test_expired_entries_are_removed_without_a_read(clock):
    memory = InMemoryCache(clock=clock)
    with closing(SqliteCache(":memory:", clock=clock)) as sqlite:
        for n in range(1000):
            clock.now += 1
            memory.set({(("n",), str(n)): (ONE, 5)})
            sqlite.set({(("n",), str(n)): (ONE, 5)})
        assert len(memory._entries) <= 64
        assert sqlite._database.execute("SELECT count(*) FROM cache_entries").fetchone() == (5,)


def test_the_least_recently_used_goes_first():
    cache = InMemoryCache(max_entries=2)
    a, b, c = ((("n",), key) for key in "abc")
    cache.set({a: (ONE, None), b: (ONE, None)})
    cache.get([a])
    cache.set({c: (ONE, None)})
    assert cache.get([a, b, c]).keys() == {a, c}
    cache.set({a: (TWO, None)})
    cache.set({b: (ONE, None)})
    assert cache.get([a, b, c]).keys() == {a, b}


def test_max_entries_is_positive():
    with pytest.raises(ValueError, match="max_entries"):
        InMemoryCache(max_entries=0)


def test_a_file_is_shared(tmp_path, clock):
    path, key = tmp_path / "cache.db", (("n",), "k")
    with closing(SqliteCache(path, clock=clock)) as one, closing(SqliteCache(path, clock=clock)) as two:
        one.set({key: (("msgpack", b"\x00\xff"), 60)})
        assert two.get([key]) == {key: ("msgpack", b"\x00\xff")}
    with closing(SqliteCache(path, clock=clock)) as again:
        assert again.get([key]) == {key: ("msgpack", b"\x00\xff")}


def test_many_threads(cache):
    start = threading.Barrier(4)
    failures = []

    def work(name):
        try:
            start.wait()
            for n in range(50):
                key = ((name,), str(n))
                cache.set({key: (ONE, None)})
                assert cache.get([key]) == {key: ONE}
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    run_threads(threads)
    assert not failures


def test_a_custom_cache():
    class Own(BaseCache):
        def get(self, keys):
            return dict.fromkeys(keys, ONE)

    assert asyncio.run(Own().aget([(("n",), "k")])) == {(("n",), "k"): ONE}
    with pytest.raises(NotImplementedError, match=r"Own must define set\(\)"):
        Own().set({})
    with pytest.raises(NotImplementedError, match=r"Own must define clear\(\)"):
        Own().clear()


# -- keys of values -------------------------------------------------------------------------------------------------


class Color(Enum):
    RED = 1
    BLUE = 2


class Mode(Flag):
    A = 1
    B = 2


@dataclass
class Point:
    x: int
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Fixed:
    x: int


class Model(pydantic.BaseModel):
    x: int
    y: int = 0


@pydantic.dataclasses.dataclass
class Checked:
    x: int


class Plain:
    def __init__(self, x):
        self.x = x


class Slotted:
    __slots__ = ("x", "y")

    def __init__(self, x):
        self.x = x


class Words(str):
    pass


class Numbers(list):  # type: ignore[type-arg]
    pass


def local_class(result):
    class Local:
        def run(self):
            return result

        __call__ = run

    return Local


Pair = namedtuple("Pair", "a b")
Other = namedtuple("Other", "a b")

DIFFERENT = [
    None,
    True,
    False,
    0,
    1,
    -1,
    10**5000,
    0.0,
    -0.0,
    1.0,
    float("nan"),
    float("inf"),
    1j,
    ...,
    "",
    "1",
    "\ud800",
    b"",
    b"1",
    bytearray(b"1"),
    [],
    [1],
    [1, [2]],
    [[1], 2],
    ["ab"],
    ["as1(b", "c"],  # what only the written lengths tell apart
    ["a", "bs1(c"],
    ["a", "b"],
    (),
    (1,),
    {},
    {1: 2},
    {"1": 2},
    {2: 1},
    {True: 2},
    set(),
    {1},
    {1, 2},
    frozenset(),
    frozenset({1}),
    {frozenset({1})},
    range(3),
    datetime(2020, 1, 1),
    datetime(2020, 1, 1, tzinfo=UTC),
    datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=1))),
    datetime(2020, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")),
    datetime(2020, 10, 25, 2, 30, fold=0),
    datetime(2020, 10, 25, 2, 30, fold=1),
    timedelta(1),
    Decimal("1.0"),
    Decimal("1.00"),
    UUID(int=1),
    PurePosixPath("a"),
    Color.RED,
    Color.BLUE,
    Mode.A,
    Mode.A | Mode.B,
    Mode(0),
    Point(1),
    Point(2),
    Point(1, ["a"]),
    Fixed(1),
    Fixed(2),
    Model(x=1),
    Model(x=2),
    Checked(1),
    Checked(2),
    Plain(1),
    Plain(2),
    Plain([]),
    Slotted(1),
    Slotted(2),
    Words("1"),
    Numbers([1]),
    Numbers([2]),
    Pair(1, 2),
    Other(1, 2),
    Color,
    Mode,
    int,
    sys,
    random,
]


def test_different_values_have_different_keys():
    keys = [canonical_key(value) for value in DIFFERENT]
    assert len(set(keys)) == len(keys)
    assert keys == [canonical_key(value) for value in DIFFERENT]


@each_case(
    "one, other",
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}),
        ({"a", "b", "c"}, {"c", "b", "a"}),
        ({1: 1, "1": 2}, {"1": 2, 1: 1}),
        (Model(x=1), Model(x=1, y=0)),
        (Point(1), Point(1)),
        (local_class(1)(), local_class(1)()),
        (Plain({"a": 1, "b": 2}), Plain({"b": 2, "a": 1})),
        (float("nan"), -float("nan")),
    ],
)
def test_equal_values_have_equal_keys(one, other):
    assert canonical_key(one) == canonical_key(other)


def test_sharing_does_not_count():
    shared = [1]
    assert canonical_key([shared, shared]) == canonical_key([[1], [1]])


def test_a_value_within_itself_has_a_key():
    one = [1]
    one.append(one)
    other = [1]
    other.append(other)
    longer = [1, [1]]
    longer[1].append(longer)
    assert canonical_key(one) == canonical_key(other) != canonical_key(longer)


def nested(levels):
    value = 0
    for _ in range(levels):
        value = [value]
    return value


class OddZone(type(UTC).__base__):  # type: ignore[misc]
    def utcoffset(self, when):
        return timedelta(0)


@each_case("value, place", [
    ({"a": [0, object()]}, r"value\['a'\]\[1\] is a builtins.object"),
    ({"lock": threading.Lock()}, r"value\['lock'\] is a _thread.lock"),
    (Plain(threading.Lock()), r"value\['x'\]"),
    ([random.Random()], r"value\[0\] is a random.Random"),
    ((n for n in ()), "value is a builtins.generator"),
    (OrderedDict(), "value is a collections.OrderedDict"),
    (nested(200), "nested deeper"),
    ([datetime(2020, 1, 1, tzinfo=OddZone())], "tells an address"),
])
def test_refuses_what_has_no_canonical_form(value, place):
    with pytest.raises(TypeError, match=f"{place}.*; pass a key_func"):
        canonical_key(value)


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def shuffled(value, chance: random.Random):
    if isinstance(value, list):
        return [shuffled(item, chance) for item in value]
    if isinstance(value, dict):
        pairs = [(key, shuffled(item, chance)) for key, item in value.items()]
        chance.shuffle(pairs)
        return dict(pairs)
    return value


@given(json, st.randoms(use_true_random=False))
def test_order_of_maps_never_counts(value, chance):
    assert canonical_key(value) == canonical_key(shuffled(value, chance))


@given(json, json)
def test_keys_are_equal_only_for_equal_values(one, other):
    if canonical_key(one) == canonical_key(other):
        assert one == other


# -- identity of functions ------------------------------------------------------------------------------------------


def make(bound):
    def inner(x):
        return (x, bound)

    return inner


def default(value):
    def inner(x=value):
        return x

    return inner


def logged(fn):
    @functools.wraps(fn)
    def wrapper(*args):
        return fn(*args)

    return wrapper


class Tool:
    def __init__(self, name):
        self.name = name

    def run(self, x):
        return (self.name, x)

    def walk(self, x):
        return (self.name, x)

    def __call__(self, x):
        return (self.name, x)

    @classmethod
    def build(cls):
        return cls

    @staticmethod
    def still(x):
        return x


async def coroutine(x):
    return x


def one():
    def inner(x):
        return x

    return inner


def other():
    def inner(x):
        return x + 1

    return inner


FUNCTIONS = {
    "plain": lambda: nested,
    "coroutine": lambda: coroutine,
    "class": lambda: Tool,
    "static method": lambda: Tool.still,
    "unbound method": lambda: Tool.run,
    "another": lambda: Tool.walk,
    "inside a function": one,
    "inside another": other,
}


def test_functions_have_different_keys():
    identities = {name: function_identity(build()) for name, build in FUNCTIONS.items()}
    assert len(set(identities.values())) == len(FUNCTIONS)
    assert identities == {name: function_identity(build()) for name, build in FUNCTIONS.items()}


def test_an_identity_names_its_function():
    assert function_identity(nested).startswith(f"{__name__}.nested:")
    assert function_identity(Tool).startswith(f"{__name__}.Tool:")


def test_changed_source_is_another_identity(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for number in (1, 22, 333):  # other lengths, so that no compiled file is taken for the new one
        (tmp_path / "changing.py").write_text(f"def node(state):\n    return {number}\n")
        found.append(function_identity(importlib.import_module("changing").node))
        sys.modules.pop("changing")
    assert len(set(found)) == 3
    assert all(each.startswith("changing.node:") for each in found)


@each_case(
    "build, why",
    [
        (lambda: lambda x: x + 1, "a lambda has no name"),
        (lambda: make("A"), r"make\.<locals>\.inner has a closure \(bound\)"),
        (lambda: logged(make("A")), r"has a closure \(fn\)"),
        (lambda: default(1), "has defaults and is defined inside a function"),
        (lambda: local_class(1), "is a class inside a function"),
        (lambda: Tool("a"), "is neither a Python function nor a class"),
        (lambda: Tool("a").run, "is neither a Python function nor a class"),
        (lambda: Tool.build, "is neither a Python function nor a class"),
        (lambda: functools.partial(operator.add, 1), "is neither a Python function nor a class"),
        (lambda: len, "is neither a Python function nor a class"),
        (lambda: type("Made", (), {}), "the source of .* cannot be read"),
    ],
)
def test_indistinguishable_functions_are_refused(build, why):
    with pytest.raises(TypeError, match=f"{why}.*: give the cache policy a key_func, or cache a named function"):
        function_identity(build())


SCRIPT = """
from stategraph.store.cache import canonical_key, function_identity
from textwrap import dedent
print(canonical_key({"set": {"a", "b", "c", "d"}, 1: frozenset("xyz")}), function_identity(dedent))
"""


def test_every_process_makes_the_same_keys():
    found = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT], check=True, capture_output=True, env=os.environ | {"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1
