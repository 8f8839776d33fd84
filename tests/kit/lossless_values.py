"""Values with something that a codec might forget: those that come back, and those that are refused."""

from __future__ import annotations

import decimal
import enum
import functools
import ipaddress
import pathlib
import re
import struct
import uuid
import zoneinfo
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta, timezone
from enum import Enum, Flag, IntFlag
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, PrivateAttr, RootModel

from stategraph.checkpoint import (
    Registry,
    Serializer,
)
from stategraph.checkpoint.serde.class_codecs import slots_of

_LEAVES = (type(None), bool, int, str, bytes, type)
# By these they compare unequal, or print, whatever else they hold.
_TOLD_BY_REPR = (
    complex, datetime, time, timedelta, timezone, range, decimal.Decimal, re.Pattern, pathlib.PurePath, ipaddress.IPv4Address,
    ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv6Network, uuid.UUID, Fraction,
)  # fmt: skip
_IN_C = ("name", "path", "errno", "strerror", "filename", "filename2", "value", "code", "lineno", "offset", "reason",
         "msg", "exceptions", "print_file_and_line", "characters_written")  # fmt: skip


def everything(value, seen=None):
    """A description of a value: the same for two values only if nothing tells them apart."""
    seen = {} if seen is None else seen
    kind = type(value)
    if isinstance(value, Flag):  # with Python 3.11.2, one of a bit without a name is not equal to itself
        return kind, value.value
    if kind in _LEAVES or isinstance(value, Enum):
        return kind, value
    if isinstance(value, float):
        return kind, struct.pack("d", value)
    if id(value) in seen and isinstance(value, BaseException):
        return "again", seen[id(value)]
    seen[id(value)] = len(seen)
    parts = [kind]
    if isinstance(value, BaseException):
        links = (value.__cause__, value.__context__, value.__suppress_context__)
        parts += [everything(each, seen) for each in (*value.args, *links)]
        parts += [everything(getattr(value, name, "absent"), seen) for name in _IN_C]
    elif isinstance(value, dict):
        parts += [(everything(key, seen), everything(each, seen)) for key, each in value.items()]
    elif isinstance(value, (list, tuple, deque)):
        parts += [everything(each, seen) for each in value]
    elif isinstance(value, (set, frozenset)):
        parts.append(sorted(repr(everything(each)) for each in value))
    elif isinstance(value, _TOLD_BY_REPR):
        parts.append(repr(value))
    parts += [getattr(value, name, None) for name in ("maxlen", "default_factory", "is_safe", "flags", "fold")]
    told = isinstance(value, (uuid.UUID, pathlib.PurePath, Fraction, ipaddress.IPv4Network, ipaddress.IPv6Network))
    if not told:
        if hasattr(value, "__dict__"):
            parts.append(everything(dict(value.__dict__), seen))
        parts += [everything(getattr(value, name, "absent"), seen) for name in slots_of(kind)]
    return parts


@dataclass
class Point:
    x: int = 0


@dataclass
class Ordered:
    a: int = 1
    b: int = 2


class Taller(Point):
    """A subclass that is no dataclass itself."""


@dataclass(slots=True)
class Slotted:
    x: int = 0


@dataclass
class Wider(Slotted):
    y: int = 0


class Base:
    __slots__ = ("hidden",)


@dataclass
class OnSlots(Base):
    x: int = 0


@dataclass(slots=True)
class AllSlots(Base):
    x: int = 0


@dataclass
class Shadowed:
    x: int = 0
    shared: ClassVar[int] = 1
    later: int = field(init=False)
    given: int = field(init=False, default=5)


@dataclass
class Lying:
    x: int = 0

    def __getattribute__(self, name):
        return 99 if name == "x" else object.__getattribute__(self, name)


class Doubled:
    def __get__(self, owner, cls=None):
        return 0 if owner is None else owner._x * 2

    def __set__(self, owner, value):
        owner._x = value if type(value) is int else 0


@dataclass
class Described:
    x: Any = Doubled()


@dataclass
class Keeper(UserDict[str, Any]):
    x: int = 0


class Pair(NamedTuple):
    left: Any
    right: Any = 0


class NamedPair(Pair):
    pass


class Model(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: Any = 0
    _private: Any = PrivateAttr(5)


class Closed(BaseModel):
    a: Any = 0
    _unset: Any = PrivateAttr()


class WithSlot(BaseModel):
    __slots__ = ("own",)
    a: int = 0


class Roots(RootModel[list[Any]]):
    pass


class Color(Enum):
    RED = 1

    @classmethod
    def _missing_(cls, value):
        made = object.__new__(cls)
        made._value_, made._name_ = value, f"made of {value}"
        return made


class Right(Flag):
    READ = 1
    WRITE = 2


class Bits(IntFlag):
    A = 1


class Kept(Flag, boundary=enum.KEEP):
    A = 1


class SlotError(Exception):
    __slots__ = ("held",)


class TwoArguments(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")
        self.a = a


class Group(ExceptionGroup[Exception]):
    pass


class FileTrouble(OSError, ValueError):
    pass


@dataclass
class DataError(Exception):
    x: int = 0


KNOWN = (
    Point, Ordered, Taller, Slotted, Wider, OnSlots, AllSlots, Shadowed, Lying, Described, Keeper, Pair, NamedPair,
    Model, Closed, WithSlot, Roots, Color, Right, Bits, Kept, SlotError, TwoArguments, Group, FileTrouble, DataError,
)  # fmt: skip


def serializer():
    made = Serializer(Registry())
    for cls in KNOWN:
        made.register(cls)
    return made


def having(value, /, **attributes):
    """The value with these attributes, whatever its class thinks of that."""
    for name, each in attributes.items():
        object.__setattr__(value, name, each)
    return value


def set_in(value, /, **attributes):
    for name, each in attributes.items():
        setattr(value, name, each)
    return value


def without(value, *names: str):
    for name in names:
        object.__delattr__(value, name)
    return value


def raised(handled: BaseException, error: BaseException, *, cause=...):
    """The error as it was raised while another was handled."""
    try:
        try:
            raise handled
        except type(handled):
            if cause is ...:
                raise error  # noqa: B904  # the context is what is tried
            raise error from cause
    except type(error):
        return error


def noted(notes):
    return set_in(ValueError(1), __notes__=notes)


def circle():
    one, two = ValueError("one"), KeyError("two")
    one.__cause__, two.__context__ = two, one
    return one


def reordered():
    value = Ordered()
    vars(value).clear()
    vars(value).update(b=1, a=2)
    return value


def quiet_nan(bits):
    return float(struct.unpack("d", struct.pack("Q", 0x7FF8000000000000 | bits))[0])


def zone_of_a_file():
    folder = next(Path(each) for each in zoneinfo.TZPATH if Path(each, "UTC").exists())
    with open(folder / "UTC", "rb") as file:
        return zoneinfo.ZoneInfo.from_file(file, key="Europe/Berlin")


COMES_BACK = {
    "dataclass, another attribute": lambda: having(Point(1), z=[1]),
    "dataclass, its subclass's attribute": lambda: having(Taller(1), z=1),
    "dataclass on slots, another attribute": lambda: having(Wider(1, 2), z=3),
    "dataclass, a base's slot": lambda: having(OnSlots(1), hidden=(2,)),
    "dataclass in slots, a base's slot": lambda: having(AllSlots(1), hidden=(2,)),
    "dataclass, an empty slot": lambda: OnSlots(1),
    "dataclass, a class variable of its own": lambda: having(Shadowed(1), shared=2),
    "dataclass, a field not set": lambda: Shadowed(1),
    "dataclass, a field deleted": lambda: without(Point(1), "x"),
    "dataclass, a slot deleted": lambda: without(Slotted(1), "x"),
    "dataclass, another order": reordered,
    "dataclass that lies": lambda: Lying(1),
    "dataclass with a descriptor": lambda: Described(3),
    "dataclass, a UserDict": lambda: having(Keeper(1), data={"k": 1}),
    "named tuple": lambda: NamedPair(1),
    "model, extra": lambda: Model(a=1, z=(5,)),
    "model, private": lambda: set_in(Model(a=1), _private=9),
    "model, private not set": lambda: Closed(a=1),
    "model, private set": lambda: set_in(Closed(a=1), _unset=2),
    "model, field deleted": lambda: without(Closed(a=1), "a"),
    "model, not validated": lambda: Closed.model_construct(a=print.__name__),
    "model, no field set": lambda: Closed(),
    "root model": lambda: Roots([1, (2,)]),
    "error, cause": lambda: raised(KeyError("in"), ValueError("out"), cause=KeyError("why")),
    "error, context": lambda: raised(KeyError("in"), ValueError("out")),
    "error, from None": lambda: raised(KeyError("in"), ValueError("out"), cause=None),
    "error, cause is the context": lambda: raised(inner := KeyError("in"), ValueError("out"), cause=inner),
    "error, a long chain": lambda: functools.reduce(raised, [ValueError(n) for n in range(50)]),
    "error, its own cause": lambda: set_in(error := ValueError(1), __cause__=error),
    "error, a circle": circle,
    "error, suppressed only": lambda: set_in(ValueError(1), __suppress_context__=True),
    "error, notes": lambda: noted(["a", "b"]),
    "error, no notes": lambda: noted([]),
    "error, odd notes": lambda: noted(["a", 5]),
    "error, notes that are none": lambda: noted("text"),
    "error, attribute": lambda: set_in(ValueError(1), mine=(1,)),
    "error, a slot": lambda: set_in(SlotError(1), held=5),
    "error, an init": lambda: TwoArguments(1, 2),
    "error, dataclass": lambda: DataError(4),
    "group": lambda: ExceptionGroup("g", [ValueError(1), raised(KeyError(2), TypeError(3))]),
    "group, subclass": lambda: set_in(Group("g", [ValueError(1)]), mine=1),
    "group, base": lambda: BaseExceptionGroup("g", [KeyboardInterrupt(1)]),
    "OSError": lambda: OSError(2, "no", "a", None, "b"),
    "OSError, later file name": lambda: set_in(OSError(2, "no"), filename="f"),
    "OSError, other number": lambda: set_in(OSError(2, "no", "f"), errno=77),
    "OSError, only a file name": lambda: set_in(OSError(), filename="f"),
    "OSError, subclass": lambda: FileTrouble(2, "x"),
    "BlockingIOError": lambda: BlockingIOError(11, "x", 7),
    "BlockingIOError, later": lambda: set_in(BlockingIOError(11, "x"), characters_written=9),
    "StopIteration": lambda: set_in(StopIteration(5), value=6),
    "SystemExit": lambda: set_in(SystemExit(5), code=6),
    "SyntaxError": lambda: set_in(SyntaxError("bad", ("f", 1, 2, "text", 1, 3)), lineno=50, print_file_and_line=1),
    "ImportError": lambda: ImportError("x", name="n", path="p"),
    "UnicodeDecodeError": lambda: UnicodeDecodeError("utf8", b"ab", 0, 1, "r"),
    "flags": lambda: [Right.READ | Right.WRITE, Right(0), ~Right.READ, Bits(64), Bits(-1), Kept(9)],
    "deque": lambda: [deque([1], 3), deque(maxlen=0)],
    "defaultdict": lambda: [defaultdict(list, a=[1]), defaultdict(None)],
    "Counter": lambda: Counter({"a": -1, "b": "x"}),
    "OrderedDict": lambda: OrderedDict(b=1, a=2),
    "zones": lambda: [UTC, timezone(timedelta(0), "UTC"), timezone(timedelta(microseconds=1)), zoneinfo.ZoneInfo("UTC")],
    "fold": lambda: [datetime(2020, 10, 25, 2, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1), time(2, fold=1)],
    "floats": lambda: [-0.0, quiet_nan(0x123), -quiet_nan(0), float("inf"), 5e-324, {-0.0: 1}],
    "complex": lambda: [complex(-0.0, -0.0), complex(0.0, -0.0)],
    "decimals": lambda: [decimal.Decimal(text) for text in ("1.50", "-0", "-NaN7", "sNaN123", "1E+400", "0E-7")],
    "ranges": lambda: [range(0, 10, 3), range(0, 9, 3), range(5, 0), range(2**70)],
    "paths": lambda: [pathlib.PurePosixPath("//a/../b\udc80"), pathlib.PureWindowsPath("c:x"), Path(".")],
    "UUIDs": lambda: [uuid.UUID(int=5, is_safe=safe) for safe in uuid.SafeUUID],
    "patterns": lambda: [re.compile("a", re.I | re.X), re.compile(b"a", re.L), re.compile("(?i)a")],
    "addresses": lambda: [ipaddress.ip_address("fe80::1%eth0"), ipaddress.ip_interface("fe80::1%x/64")],
    "network that was asked": lambda: [network := ipaddress.ip_network("10.0.0.0/8"), network.is_private][:1],
    "keys": lambda: {1: 1, "1": 2, None: 3, (1,): 4, 1.5: 5, Color.RED: 6, quiet_nan(1): 7},
}  # fmt: skip
REFUSED = {
    "dataclass, odd attribute": (lambda: having(Point(1), **{"|unset": 1}), "named '|unset'"),
    "dataclass, key that is no text": (lambda: (value := Point(1), vars(value).update({5: 1}))[0], "named 5"),
    "named tuple, attribute": (lambda: having(NamedPair(1), z=1), "attributes that are not fields"),
    "named tuple, too long": (lambda: tuple.__new__(Pair, (1, 2, 3)), "longer"),
    "model, attribute": (lambda: (model := Model(), vars(model).update(weird=1))[0], "are not fields: 'weird'"),
    "model, slot": (lambda: having(WithSlot(), own=1), "are not fields: 'own'"),
    "enum that is no member": (lambda: Color(5), "not a member of Color"),
    "OrderedDict, attribute": (lambda: set_in(OrderedDict(a=1), mine=5), "attributes of its own: 'mine'"),
    "Counter, attribute": (lambda: set_in(Counter("a"), mine=5), "attributes of its own: 'mine'"),
    "network, attribute": (lambda: set_in(ipaddress.ip_network("10.0.0.0/8"), mine=1), "attribute of its own: 'mine'"),
    "interface, attribute": (lambda: set_in(ipaddress.ip_interface("1.2.3.4"), mine=1), "of its own: 'mine'"),
    "zone of a file": (zone_of_a_file, "read from a file"),
    "defaultdict, factory": (lambda: defaultdict(deque), "its default_factory must be"),
    "list, subclass": (lambda: type("MyList", (list,), {})([1]), "cannot store"),
    "float, subclass": (lambda: type("MyFloat", (float,), {})(1), "cannot store"),
    "str, attribute": (lambda: set_in(type("MyStr", (str,), {})("x"), mine=1), "cannot store"),
    "memoryview": (lambda: memoryview(b"x"), "cannot store memoryview"),
    "slice": (lambda: slice(1, 2), "cannot store slice"),
    "awaitable": (lambda: type("Coming", (), {"__await__": iter})(), "Coming; await it first, or take its .result()"),
}
