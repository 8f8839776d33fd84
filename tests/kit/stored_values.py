"""Values that a serializer must bring back exactly, and bytes that it must refuse."""

from __future__ import annotations

import ipaddress
import math
import pathlib
import random
import re
import struct
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum, auto
from fractions import Fraction
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import ormsgpack
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    ConfigDict,
    PrivateAttr,
    RootModel,
    field_validator,
)

from stategraph.checkpoint import (
    Registry,
    Serializer,
)


def fresh(*classes):
    """A serializer that knows these classes and nothing of what other tests registered."""
    serializer = Serializer(Registry())
    for cls in classes:
        serializer.register(cls)
    return serializer


def same(one, two):
    """Equal and of the same type, all the way down; nan equals itself, -0.0 is not 0.0."""
    if type(one) is not type(two):
        return False
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", two)
    if isinstance(one, complex):
        return same(one.real, two.real) and same(one.imag, two.imag)
    if isinstance(one, (list, tuple, deque)):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, dict):
        return len(one) == len(two) and all(
            same(k1, k2) and same(v1, v2) for (k1, v1), (k2, v2) in zip(one.items(), two.items(), strict=True)
        )
    if isinstance(one, (Plain, Frozen, Model)):
        return same(vars(one), vars(two))
    if isinstance(one, (set, frozenset)):
        return len(one) == len(two) and all(any(same(a, b) for b in two) for a in one)
    return bool(one == two)


class Color(Enum):
    RED = 1
    CRIMSON = RED
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


class Kind(StrEnum):
    CHAT = "chat"


class Right(Flag):
    READ = auto()
    WRITE = auto()


class Bits(IntFlag):
    A = 1
    B = 2


Pair = namedtuple("Pair", "left right", defaults=[0])


class Move(NamedTuple):
    name: str
    to: tuple[int, int] = (0, 0)


@dataclass
class Plain:
    a: int
    b: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    a: int


@dataclass(frozen=True, slots=True)
class Slotted:
    a: int
    b: str = "x"


@dataclass
class Late:
    a: int
    double: int = field(init=False)
    extra: InitVar[int] = 5

    def __post_init__(self, extra):
        self.double = self.a * 2 + extra


@dataclass
class Empty:
    pass


@dataclass
class Node:
    child: Any = None


class Model(BaseModel):
    a: int
    tags: tuple[str, ...] = ()
    inner: Model | None = None
    _token: str = PrivateAttr("none")

    @field_validator("a")
    @classmethod
    def grow(cls, value: int) -> int:
        return value + 1


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int = 0


T = TypeVar("T")


class Box(BaseModel, Generic[T]):
    content: T


class Names(RootModel[list[str]]):
    pass


EXACT = {
    "none": None,
    "true": True,
    "ints": [0, -1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**400, -(10**400)],
    "floats": [0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 5e-324],
    "text": ["", "ascii", "ąęć", "\U0001f600", "nul\0"],
    "lone surrogate": ["\ud800", "a\udfffb", {"\ud800": 1}],
    "bytes": [b"", b"\xc4\xc5\xc6", bytes(300)],
    "bytearray": bytearray(b"abc"),
    "bytearrays inside": [{"a": [bytearray(b"x"), b"x"]}, (bytearray(b"y"),), {1: bytearray()}],
    "tuples": [(), (1,), (1, (2, [3, (4,)]))],
    "lists": [[], [[[]]]],
    "dict": {"a": 1, "b": {"c": None}},
    "dict with other keys": {1: "int", None: 2, (1, "x"): 3, b"b": 4, 1.5: 5, False: 6, frozenset({7}): 7, "1": 8},
    "sets": [set(), {1, "a", (2, 3)}, frozenset({frozenset(), 1})],
    "deques": [deque(), deque([1, 2]), deque([3, 4], maxlen=2), deque(maxlen=0)],
    "ordered": OrderedDict([("b", 1), ("a", 2), (3, 4)]),
    "defaultdicts": [defaultdict(list, a=[1]), defaultdict(None, {1: 2}), defaultdict(int)],
    "counter": Counter({"a": 2, 3: -1, "z": 0}),
    "datetimes": [
        datetime(2020, 2, 29, 1, 2, 3, 4),
        datetime.max,
        datetime.min,
        datetime(2024, 1, 1, tzinfo=UTC),
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-3, minutes=-30), "here")),
        datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        datetime(2024, 10, 27, 2, 30, fold=1),
    ],
    "times": [time(), time(1, 2, 3, 4, tzinfo=UTC, fold=1), time(23, 59, 59, 999999)],
    "dates": [date(2020, 1, 1), date.max],
    "spans": [timedelta(), timedelta.max, timedelta.min, timedelta(-1, 2, 3)],
    "zones": [UTC, timezone(timedelta(hours=1)), timezone(timedelta(0), "X"), ZoneInfo("UTC"), ZoneInfo("Asia/Tokyo")],
    "uuid": UUID("12345678123456781234567812345678"),
    "decimals": [Decimal("0.10"), Decimal("-0"), Decimal("Infinity"), Decimal("1E+400")],
    "fraction": Fraction(10**30, -7),
    "complex": [1 + 2j, complex(-0.0, math.inf)],
    "ranges": [range(3), range(10**30, 0, -3)],
    "paths": [
        pathlib.PurePosixPath("/a/b"),
        pathlib.PureWindowsPath("C:/a"),
        pathlib.Path("x/../y"),
        pathlib.PurePosixPath("\udcff"),
    ],
    "patterns": [re.compile("a+", re.I | re.M), re.compile(b"[a-z]"), re.compile("(?x) a # b")],
    "addresses": [
        *map(ipaddress.ip_address, ["10.0.0.1", "::1", "fe80::1%eth0"]),
        *map(ipaddress.ip_network, ["10.0.0.0/8", "2001:db8::/32"]),
        *map(ipaddress.ip_interface, ["10.0.0.1/8", "2001:db8::1/32"]),
    ],
    "enums": [Color.RED, Color.CRIMSON, Color.BLUE, Level.LOW, Kind.CHAT, {Color.RED: 1, Kind.CHAT: 2, Level.LOW: 3}],
    "flags": [Right.READ, Right.READ | Right.WRITE, Right(0), Bits.A | Bits.B, Bits(8)],
    "named tuples": [Pair(1, (2,)), Pair(Pair(1)), Move("x", (1, 2))],
    "dataclasses": [Plain(1, [Frozen(2)]), Slotted(1), Late(4), Empty(), {Frozen(1): Slotted(2)}],
    "models": [
        Model(a=1, inner=Model(a=2, tags=("x",))),
        Open(a=1, b=[(2,)]),
        Box[int](content=3),
        Box[Frozen](content=Frozen(1)),
        Names(["a", "b"]),
    ],
}
KNOWN = (
    Color, Level, Kind, Right, Bits, Pair, Move, Plain, Frozen, Slotted, Late, Empty, Node,
    Model, Open, Box[int], Box[Frozen], Names,
)  # fmt: skip


class AppError(Exception):
    def __init__(self, code, *, detail):
        super().__init__(f"code {code}")
        self.code = code
        self.detail = detail


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers()
    | st.datetimes(timezones=st.none() | st.just(UTC) | st.timezones()) | st.dates() | st.timedeltas() | st.uuids()
    | st.times(timezones=st.none() | st.just(UTC))
    | st.decimals(allow_nan=False) | st.fractions() | st.binary().map(bytearray) | st.sampled_from(list(Color))
    | st.text(st.characters(categories=["Cs", "L"])) | st.ip_addresses()
)  # fmt: skip
hashables = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.dates() | st.sampled_from(list(Color)),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3) | st.builds(Frozen, inner),
    max_leaves=4,
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.lists(inner, max_size=4).map(deque)
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.dictionaries(hashables, inner, max_size=4)
        | st.dictionaries(hashables, inner, max_size=3).map(OrderedDict)
        | st.sets(hashables, max_size=3)
        | st.builds(Plain, inner)
        | st.builds(Pair, inner, inner)
        | st.builds(lambda x: Model.model_construct({"a"}, a=x), inner)
    ),
    max_leaves=20,
)


class MyDict(dict):
    pass


class MyStr(str):
    pass


class SlimStr(str):
    __slots__ = ()


def marked(text):
    """A text with an attribute, so that it is not only its characters."""
    made = MyStr(text)
    made.mark = 1  # type: ignore[attr-defined]
    return made


class Thing:
    pass


def packed(value):
    return "msgpack", ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)


def ext(code, value):
    return ormsgpack.Ext(code, packed(value)[1])


GADGETS = (
    ["os:system", "true"],
    ["builtins:eval", ["1"]],
    ["builtins:exec", "1", [], ormsgpack.packb([["1"], {}, {}])],
    ["posix", "system", ["true"]],
    ["subprocess:Popen", {"args": ["true"]}],
    b"cposix\nsystem\n(S'true'\ntR.",
    b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x04true\x94\x85\x94R\x94.",
    {"__reduce__": ["os", "system"]},
    {"lc": 2, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "true"}},
    {"__class__": "os.system", "py/object": "os.system", "py/reduce": [{"py/function": "os.system"}, ["true"]]},
    "!!python/object/apply:os.system [true]",
    [0, "os", "system", ["true"]],
    "os",
)
"""What has made other programs run code: names of functions in every form, pickles, constructors, tags."""


class Watch:
    """Notes what Python reports to auditors while it is on. Hooks cannot be removed, so there is one."""

    on = False
    events: list[str]

    def __init__(self):
        self.events = []
        sys.addaudithook(self.hook)

    def hook(self, event, args):
        if self.on and not (event == "open" and "zoneinfo" in str(args[0])):
            self.events.append(f"{event} {args!r:.100}")

    @contextmanager
    def watching(self):
        self.events.clear()
        self.on = True
        try:
            yield
        finally:
            self.on = False


def mutated(payload, rng: random.Random):
    data = bytearray(payload)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(data) + 1)
        kind = rng.randrange(5)
        if kind == 0 and data:
            data[place % len(data)] = rng.randrange(256)
        elif kind == 1:
            data[place:place] = rng.randbytes(rng.randint(1, 4))
        elif kind == 2:
            del data[place : place + rng.randint(1, 5)]
        elif kind == 3 and data:
            data[place % len(data)] ^= 1 << rng.randrange(8)
        else:
            end = rng.randrange(len(data) + 1)
            data[place:place] = data[min(place, end) : max(place, end)][:50]
    return bytes(data)
