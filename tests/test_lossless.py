"""Nothing that is stored comes back silently different: a table of values with something that a codec might forget.

Each comes back as it was (type, content, `__dict__`, slots, and what exceptions hold besides), or it is refused.
"""

from __future__ import annotations

import decimal
import enum
import functools
import ipaddress
import pathlib
import re
import struct
import subprocess
import sys
import uuid
import zoneinfo
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta, timezone
from enum import Enum, Flag, IntFlag
from fractions import Fraction
from pathlib import Path
from types import MemberDescriptorType
from typing import Any, ClassVar, NamedTuple

import pytest
from pydantic import BaseModel, ConfigDict, PrivateAttr, RootModel
from test_serde import ext, packed

from stategraph.checkpoint import (
    DamagedError,
    Registry,
    Serializer,
    StoredError,
    UnserializableError,
)
from stategraph.checkpoint.serde.class_codecs import slots_of
from stategraph.checkpoint.serde.error_codec import MOST_ERRORS, ErrorChain

# -- what Python can see in a value ---------------------------------------------------------------------------------

_LEAVES = (type(None), bool, int, str, bytes, type)
# By these they compare unequal, or print, whatever else they hold.
_TOLD_BY_REPR = (
    complex, datetime, time, timedelta, timezone, range, decimal.Decimal, re.Pattern, pathlib.PurePath, ipaddress.IPv4Address,
    ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv6Network, uuid.UUID, Fraction,
)  # fmt: skip
_IN_C = ("name", "path", "errno", "strerror", "filename", "filename2", "value", "code", "lineno", "offset", "reason",
         "msg", "exceptions", "print_file_and_line", "characters_written")  # fmt: skip


def everything(value: Any, seen: dict[int, int] | None = None) -> Any:
    """A description of a value: the same for two values only if nothing tells them apart."""
    seen = {} if seen is None else seen
    kind = type(value)
    if kind in _LEAVES or isinstance(value, Enum):
        return kind, value
    if isinstance(value, float):
        return kind, struct.pack("d", value)
    if id(value) in seen and isinstance(value, BaseException):
        return "again", seen[id(value)]
    seen[id(value)] = len(seen)
    parts: list[Any] = [kind]
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


# -- types with more to them than their fields ------------------------------------------------------------------------


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

    def __getattribute__(self, name: str) -> Any:
        return 99 if name == "x" else object.__getattribute__(self, name)


class Doubled:
    def __get__(self, owner: Any, cls: Any = None) -> Any:
        return 0 if owner is None else owner._x * 2

    def __set__(self, owner: Any, value: Any) -> None:
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
    def _missing_(cls, value: object) -> Any:
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
    def __init__(self, a: int, b: int) -> None:
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


def serializer() -> Serializer:
    made = Serializer(Registry())
    for cls in KNOWN:
        made.register(cls)
    return made


# -- the table ----------------------------------------------------------------------------------------------------------


def having(value: Any, /, **attributes: Any) -> Any:
    """The value with these attributes, whatever its class thinks of that."""
    for name, each in attributes.items():
        object.__setattr__(value, name, each)
    return value


def set_in(value: Any, /, **attributes: Any) -> Any:
    for name, each in attributes.items():
        setattr(value, name, each)
    return value


def without(value: Any, *names: str) -> Any:
    for name in names:
        object.__delattr__(value, name)
    return value


def raised(handled: BaseException, error: BaseException, *, cause: Any = ...) -> BaseException:
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


def noted(notes: Any) -> BaseException:
    return set_in(ValueError(1), __notes__=notes)


def circle() -> BaseException:
    one, two = ValueError("one"), KeyError("two")
    one.__cause__, two.__context__ = two, one
    return one


def reordered() -> Ordered:
    value = Ordered()
    vars(value).clear()
    vars(value).update(b=1, a=2)
    return value


def quiet_nan(bits: int) -> float:
    return float(struct.unpack("d", struct.pack("Q", 0x7FF8000000000000 | bits))[0])


def zone_of_a_file() -> Any:
    folder = next(Path(each) for each in zoneinfo.TZPATH if Path(each, "UTC").exists())
    with open(folder / "UTC", "rb") as file:
        return zoneinfo.ZoneInfo.from_file(file, key="Europe/Berlin")


COMES_BACK: dict[str, Callable[[], Any]] = {
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

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
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
}


@pytest.mark.parametrize("name", COMES_BACK)
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: {"a": [(value, b"")]}], ids=["bare", "inside"])
def test_nothing_is_forgotten(name: str, wrap: Callable[[Any], Any]) -> None:
    value = wrap(COMES_BACK[name]())
    serde = serializer()
    assert everything(serde.loads(serde.dumps(value))) == everything(value)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_kept_is_refused(name: str) -> None:
    make, text = REFUSED[name]
    with pytest.raises(UnserializableError, match=re.escape(text)) as caught:
        serializer().dumps({"a": [make()]})
    assert str(caught.value).startswith("at ['a'][0]")


@pytest.mark.parametrize("base", [datetime, timedelta, decimal.Decimal, Fraction, uuid.UUID, pathlib.PurePosixPath, list])
def test_a_dataclass_on_a_type_with_state_of_its_own_needs_an_encoder(base: type) -> None:
    cls = dataclass(type("Mixed", (base,), {"__annotations__": {"x": int}, "x": 0}))
    with pytest.raises(TypeError, match="holds more than its fields: give encode and decode"):
        Registry().register(cls)


# -- text ---------------------------------------------------------------------------------------------------------------


class Words(str):
    pass


class Labelled(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


@pytest.mark.filterwarnings("ignore:.*a subclass of str, is stored as str")
@pytest.mark.parametrize("text", [Words("x"), Labelled("x"), Words("\ud800")])
@pytest.mark.parametrize("wrap", [lambda text: text, lambda text: [text, (text,)], lambda text: {text: {"a": text}}])
def test_a_text_of_a_subclass_without_fields_is_stored_as_str(text: Any, wrap: Callable[[Any], Any]) -> None:
    plain = "\ud800" if text == "\ud800" else "x"
    serde = serializer()
    assert everything(serde.loads(serde.dumps(wrap(text)))) == everything(wrap(plain))


# -- exceptions ---------------------------------------------------------------------------------------------------------


def test_a_cause_that_cannot_be_stored_is_told() -> None:
    class Unknown(Exception):
        pass

    error = raised(ValueError(print), KeyError("out"), cause=Unknown("why"))
    serde = serializer()
    loaded = serde.loads(serde.dumps(error))
    assert type(loaded) is KeyError
    assert type(loaded.__cause__) is type(loaded.__context__) is StoredError
    assert str(loaded.__cause__).endswith("Unknown: why")


def test_an_error_that_its_arguments_would_not_make_is_told() -> None:
    changed = set_in(UnicodeDecodeError("utf8", b"ab", 0, 1, "r"), reason="other")
    emptied = set_in(UnicodeDecodeError("utf8", b"ab", 0, 1, "r"), args=())
    serde = serializer()
    for error in (changed, emptied, set_in(OSError(), args=(2, "x"))):
        loaded = serde.loads(serde.dumps(error))
        assert (type(loaded), loaded.type_name, loaded.message) == (StoredError, type(error).__name__, str(error))


def test_the_attribute_error_of_the_interpreter_comes_back_without_the_object() -> None:
    with pytest.raises(AttributeError) as caught:
        sys.nothing_of_this_name  # type: ignore[attr-defined]  # noqa: B018
    serde = serializer()
    loaded = serde.loads(serde.dumps(caught.value))
    assert (type(loaded), str(loaded), loaded.name) == (AttributeError, str(caught.value), "nothing_of_this_name")


def test_a_chain_without_end_is_cut_and_says_so() -> None:
    error = functools.reduce(raised, [ValueError(n) for n in range(3 * MOST_ERRORS)])
    serde = serializer()
    loaded, count = serde.loads(serde.dumps(error)), 0
    while type(loaded) is ValueError:
        loaded, count = loaded.__context__, count + 1
    assert (count, type(loaded)) == (MOST_ERRORS + 1, StoredError)


def test_groups_that_lead_back_to_each_other_stay_small() -> None:
    """Each member's context is the next group, and the last one's the first: followed blindly that is 2**30 errors."""
    groups = [ExceptionGroup(f"{n}", [ValueError(n), KeyError(n)]) for n in range(30)]
    for group, following in zip(groups, [*groups[1:], groups[0]], strict=True):
        for member in group.exceptions:
            member.__context__ = following
    serde = serializer()
    form, payload = serde.dumps(groups[0])
    assert len(payload) < 100_000
    assert type(serde.loads((form, payload))) is ExceptionGroup


def test_after_a_failure_the_next_error_is_stored_whole() -> None:
    error = raised(KeyError("in"), ValueError("out"))
    with pytest.raises(RuntimeError), ErrorChain(error):
        raise RuntimeError
    assert ErrorChain(error).whole == [True, True]


# -- subclasses ---------------------------------------------------------------------------------------------------------


class Shape:
    pass


@dataclass
class Circle(Shape):
    r: int


def test_a_base_is_registered_with_its_subclasses() -> None:
    serde = Serializer(Registry())
    with pytest.raises(UnserializableError):
        serde.dumps(Circle(1))
    serde.register(Shape, subclasses=True)
    stored = serde.dumps(Circle(1))

    @dataclass
    class Square(Shape):
        a: int

    assert serde.loads(serde.dumps([Square(2)])) == [Square(2)]
    reader = Serializer(Registry())
    reader.register(Shape, subclasses=True)
    assert reader.loads(stored) == Circle(1)  # which it has never seen
    learner = Serializer(Registry())
    learner.learn(reader)
    assert learner.loads(learner.dumps(Square(3))) == Square(3)
    with pytest.raises(UnserializableError):
        reader.dumps(Shape())  # no dataclass


def test_an_encoder_is_for_one_class() -> None:
    with pytest.raises(TypeError, match="subclasses=True"):
        Registry().register(Shape, subclasses=True, encode=vars, decode=vars)


# -- NumPy --------------------------------------------------------------------------------------------------------------


def seen_in(array: Any) -> Any:
    flags = array.flags
    order = (flags.c_contiguous, flags.f_contiguous, flags.writeable)
    return type(array), array.dtype, array.dtype.char, array.dtype.byteorder, array.shape, order, array.tobytes("A")


def test_arrays_come_back_with_type_order_and_flags() -> None:
    np = pytest.importorskip("numpy")
    readonly = np.arange(3)
    readonly.flags.writeable = False
    arrays = [
        np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array(5), np.zeros((0, 3)),
        np.array(["a", "bc\0"]), np.array([1, 2], ">i4"), np.array([True]), np.array(["2020-01-01"], "M8[ns]"),
        np.array([b"a\0b"]), np.arange(4, dtype=np.longlong), np.array([1j, -0.0]), np.zeros(2, "V3"), readonly,
    ]  # fmt: skip
    serde = serializer()
    for array in arrays:
        assert seen_in(serde.loads(serde.dumps({"a": [array]}))["a"][0]) == seen_in(array)
    strided = serde.loads(serde.dumps(np.arange(10)[::2]))
    assert strided.tolist() == [0, 2, 4, 6, 8]


def test_scalars_of_numpy_come_back_of_their_type() -> None:
    np = pytest.importorskip("numpy")
    scalars = [np.dtype(char).type(1) for char in "bBhHiIlLqQefdgFDG?"]
    scalars += [np.float64(-0.0), np.datetime64("2020-01-01"), np.timedelta64(5, "s"), np.datetime64("NaT"), np.void(b"ab")]
    serde = serializer()
    for scalar in scalars:
        loaded = serde.loads(serde.dumps([scalar]))[0]
        assert (type(loaded), loaded.dtype, loaded.tobytes()) == (type(scalar), scalar.dtype, scalar.tobytes())
    for text in (np.str_("a\0"), np.bytes_(b"a\0"), np.str_("")):
        loaded = serde.loads(serde.dumps([text]))[0]
        assert (type(loaded), len(loaded)) == (type(text), len(text))


def test_other_arrays_are_refused() -> None:
    np = pytest.importorskip("numpy")
    records = np.zeros(1, [("a", "i4")])
    others = [np.zeros(2).view(cls) for cls in (np.recarray, np.ma.MaskedArray, np.memmap)]
    for value in (np.array([object()]), records, records[0], *others, np.dtype("i4")):
        with pytest.raises(UnserializableError):
            serializer().dumps([value])


@pytest.mark.parametrize(
    "state",
    [
        ["<i8", "", [2**40], "C", True, b"x" * 8], ["|O", "", [1], "C", True, b"x" * 8], ["<i8,<i8", "", [1], "C", True, b"x" * 16],
        ["<i8", "", [-1, -1], "C", True, b"x" * 8], ["<i8", "", [1], "K", True, b"x" * 8], ["<i8", "", [1], "C", True, None],
    ],
)  # fmt: skip
def test_bytes_that_make_no_array_are_damaged(state: list[Any]) -> None:
    pytest.importorskip("numpy")
    with pytest.raises(DamagedError):
        serializer().loads(packed(ext(0, ["numpy:ndarray", state])))


def test_numpy_is_not_loaded_to_read_or_write() -> None:
    code = """
import sys
from stategraph.checkpoint import Serializer, UnknownTypeError
Serializer().dumps({"a": [1, (2,)]})
try:
    Serializer().loads(("msgpack", bytes.fromhex(sys.argv[1])))
except UnknownTypeError as error:
    print(error)
print([name for name in ("numpy", "langchain_core") if name in sys.modules])
"""
    payload = packed(ext(0, ["numpy:ndarray", ["<i8", "", [1], "C", True, bytes(8)]]))[1]
    ran = subprocess.run([sys.executable, "-P", "-c", code, payload.hex()], capture_output=True, text=True, check=True)
    told, loaded = ran.stdout.splitlines()
    assert told.startswith("no type is registered as 'numpy:ndarray'")
    assert loaded == "[]"


def test_slots_are_members() -> None:
    assert all(isinstance(slot, MemberDescriptorType) for slot in slots_of(AllSlots).values())
