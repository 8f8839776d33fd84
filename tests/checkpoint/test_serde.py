"""Values ↔ bytes: what comes back exactly, what is refused and with which words, and that bytes run nothing."""

from __future__ import annotations

import random
import threading
import typing
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from functools import cached_property
from ipaddress import IPv4Address
from pathlib import PurePosixPath
from typing import Annotated, Any, Generic, Literal, NewType, TypeVar
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import ormsgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kit import stored_values
from kit.drive import each_case, run_threads
from kit.stored_values import (
    EXACT,
    GADGETS,
    KNOWN,
    AppError,
    Box,
    Color,
    Frozen,
    Kind,
    Late,
    Level,
    Model,
    Move,
    MyDict,
    MyStr,
    Node,
    Open,
    Pair,
    Plain,
    Right,
    SlimStr,
    Slotted,
    T,
    Thing,
    Watch,
    ext,
    fresh,
    marked,
    mutated,
    packed,
    same,
    values,
)
from pydantic import (
    BaseModel,
    Field,
    PrivateAttr,
    SecretStr,
)
from pydantic import dataclasses as pydantic_dataclasses
from typing_extensions import TypedDict

from stategraph.checkpoint import (
    DamagedError,
    Registry,
    Serializer,
    StoredError,
    UnknownTypeError,
    UnserializableError,
    register,
)
from stategraph.checkpoint.serde.codec import MAX_OBJECTS, key_of
from stategraph.pregel.errors import GraphWarning


def back(value, *classes):
    serializer = fresh(*classes)
    return serializer.loads(serializer.dumps(value))


# -- round trips ------------------------------------------------------------------------------------------------


@each_case("name", EXACT)
def test_a_value_is_restored_equal_and_of_the_same_type(name):
    assert same(back(EXACT[name], *KNOWN), EXACT[name])


def test_signalling_nan_of_decimal():
    assert [str(back(Decimal(text))) for text in ("NaN", "sNaN", "-NaN123")] == ["NaN", "sNaN", "-NaN123"]


def test_fold_and_zone_of_times():
    loaded = back(EXACT["datetimes"])
    assert [(each.fold, each.tzinfo) for each in loaded] == [(each.fold, each.tzinfo) for each in EXACT["datetimes"]]
    assert loaded[5].utcoffset() == timedelta(hours=1)
    assert loaded[5].tzinfo is ZoneInfo("Europe/Berlin")


def test_default_factory_and_maxlen_survive():
    assert back(defaultdict(list))["new"] == []
    assert back(defaultdict(None)).default_factory is None
    assert back(deque([1], maxlen=3)).maxlen == 3


def test_a_dataclass_is_restored_without_running_its_init(monkeypatch):
    late = Late(1)
    late.double = 99
    monkeypatch.setattr(Late, "__init__", None)
    monkeypatch.setattr(Late, "__post_init__", None)
    assert back(late, Late).double == 99


def test_unset_field_stays_unset():
    late = Late.__new__(Late)
    late.a = 1
    assert vars(back(late, Late)) == {"a": 1}


def test_attributes_that_are_no_fields_are_kept_but_not_caches():
    class Child(Plain):  # no dataclass itself
        @cached_property
        def size(self):
            return threading.Lock()

    child = Child(1)
    child.note = "mine"
    assert child.size
    assert vars(back(child, Child)) == {"a": 1, "b": [], "note": "mine"}


def test_a_model_is_restored_without_validation_with_private_and_set_fields():
    model = Model(a=1)
    model._token = "secret"
    loaded = back(model, Model)
    assert (loaded.a, loaded._token, loaded.model_fields_set) == (2, "secret", {"a"})
    assert back(Open(a=1, z=2), Open).model_extra == {"z": 2}
    partial = Model.model_construct(tags=("x",))
    assert vars(back(partial, Model)) == vars(partial)


def test_pydantic_dataclass():
    @pydantic_dataclasses.dataclass
    class Point:
        x: int

    assert back(Point(x=1), Point) == Point(x=1)


@each_case(
    "error",
    [
        ValueError("bad", 1, (2,)),
        KeyError("k"),
        FileNotFoundError(2, "No such file", "/x"),
        OSError(5, "io", "/a", None, "/b"),
        ImportError("no", name="mod", path="/p"),
        NameError("no x", name="x"),
        AttributeError("no y", name="y"),
        StopIteration(3),
        SystemExit(4),
        KeyboardInterrupt(),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "why"),
        SyntaxError("bad", ("f.py", 1, 2, "x =")),
        ValueError("\ud800"),
    ],
)
def test_builtin_exceptions_are_restored(error):
    error.add_note("while testing")
    error.code_of_mine = 7
    loaded = back([error])[0]
    assert type(loaded) is type(error)
    assert (loaded.args, str(loaded), vars(loaded)) == (error.args, str(error), vars(error))
    for name in ("name", "path", "filename", "filename2", "value", "code", "lineno", "reason"):
        assert getattr(loaded, name, None) == getattr(error, name, None)


def test_a_registered_exception_is_restored_without_its_init():
    loaded = back(AppError(3, detail=(1,)), AppError)
    assert type(loaded) is AppError
    assert (loaded.args, loaded.code, loaded.detail) == (("code 3",), 3, (1,))


def test_group_of_exceptions_keeps_its_members():
    loaded = back(ExceptionGroup("several", [ValueError(1), AppError(2, detail=None)]))
    assert type(loaded) is ExceptionGroup
    assert [type(each) for each in loaded.exceptions] == [ValueError, StoredError]


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "type_name", "message"),
    [
        (AppError(3, detail=None), f"{stored_values.__name__}.AppError", "code 3"),
        (ValueError(threading.Lock), "ValueError", str(threading.Lock)),
        (Unspeakable(), f"{__name__}.Unspeakable", "<Unspeakable>"),
        (StoredError("app.Gone", "why"), "app.Gone", "why"),
    ],
    ids=["unregistered", "unstorable argument", "no message", "stored before"],
)
def test_an_error_is_never_refused(error, type_name, message):
    error.add_note("a note")
    loaded = back({"error": error})["error"]
    assert type(loaded) is StoredError
    assert (loaded.type_name, loaded.message, loaded.__notes__) == (type_name, message, ["a note"])
    assert str(loaded) == f"{type_name}: {message}"
    again = back(loaded)
    assert (again.type_name, again.message) == (type_name, message)


def test_an_error_of_a_type_unknown_to_the_reader_still_loads():
    blob = fresh(AppError, Plain).dumps([AppError(3, detail=1), ValueError(Plain(1))])
    loaded = fresh().loads(blob)
    assert [str(each) for each in loaded] == [f"{stored_values.__name__}.AppError: code 3", "ValueError: Plain(a=1, b=[])"]


def test_a_self_referential_error():
    error = ValueError("x")
    error.args = (error,)
    assert isinstance(back(error), ValueError | StoredError)


@given(values)
@example({1: [bytearray(b"x"), {"a": (bytearray(), "\ud800")}]})
def test_any_value_is_restored(value):
    assert same(back(value, *KNOWN), value)


@given(values)
def test_the_careful_way_gives_the_same_bytes(value):
    serializer = fresh(*KNOWN)
    assert serializer._pack_strictly(value, 0) == serializer.dumps(value)[1]


# -- refusals ---------------------------------------------------------------------------------------------------


class MyZone(tzinfo):
    pass


def refusal(value, *classes):
    with pytest.raises(UnserializableError) as caught:
        fresh(*classes).dumps(value)
    return str(caught.value)


def cycle():
    loop = []
    loop.append({"again": loop})
    return loop


def deep(levels, wrap):
    value = 1
    for _ in range(levels):
        value = wrap(value)
    return value


@each_case("value, text", [
    (threading.Lock(), "cannot store _thread.lock; register the type with stategraph.checkpoint.register"),
    ({"a": [0, 1, 2, Plain(threading.Lock())]}, "at ['a'][3].a: cannot store _thread.lock"),
    ({"a": (0, [Pair(1, print)])}, "at ['a'][1][0].right: cannot store builtin_function_or_method print"),
    ([Model.model_construct(a=Thing())], f"at [0].a: cannot store {stored_values.__name__}.Thing"),
    ({1: {2: Thing()}}, f"at [1][2]: cannot store {stored_values.__name__}.Thing"),
    ({Thing: 1}, f"at (key <class '{stored_values.__name__}.Thing'>): cannot store type Thing"),
    (OrderedDict(x=[Thing()]), "at ['x'][0]: cannot store"),
    ({"s": {print}}, "at ['s']{<built-in function print>}: cannot store"),
    (deque([1, Thing()], maxlen=5), "at [1]: cannot store"),
    ([int], "at [0]: cannot store type int"),
    ([lambda: 1], "at [0]: cannot store function"),
    ([MyDict()], f"at [0]: cannot store {stored_values.__name__}.MyDict"),
    ([marked("x")], f"at [0]: cannot store {stored_values.__name__}.MyStr"),
    ({marked("x"): 1}, "at (key 'x'): cannot store"),
    (memoryview(b"x"), "cannot store memoryview"),
    ([b"", memoryview(b"x")], "at [1]: cannot store memoryview"),
    (SecretStr("x"), "cannot store pydantic"),
    (defaultdict(lambda: 1), "cannot store collections.defaultdict: its default_factory must be"),
    ([datetime(2020, 1, 1, tzinfo=MyZone())], f"at [0]: cannot store {__name__}.MyZone"),
    (..., "cannot store ellipsis"),
    (cycle(), "at [0]['again']: cannot store list: it contains itself"),
    (deep(300, lambda x: [x]), "at [0][0]"),
    (deep(300, lambda x: [x]), "[0]: cannot store list: nested too deeply"),
    (deep(100_000, lambda x: {"a": x}), "at ['a']['a']"),
    (deep(100_000, lambda x: (x,)), "[0]: cannot store tuple: nested too deeply"),
    (deep(100_000, Node), f".child: cannot store {stored_values.__name__}.Node: nested too deeply"),
])
def test_refused_with_the_place_and_what_to_do(value, text):
    assert text in refusal(value, Plain, Pair, Model, Node)


def subclassed(base, *args):
    return type(f"My{base.__name__}", (base,), {"__module__": __name__})(*args)


SUBCLASSED = [
    subclassed(base, *args)
    for base, *args in (
        (int, 1), (float, 1.5), (complex, 1j), (bytes, b"x"), (bytearray, b"x"), (list, [1]), (tuple, [1]), (dict, {"a": 1}),
        (set, {1}), (frozenset, {1}), (deque, [1]), (OrderedDict, {"a": 1}), (Counter, "aa"), (defaultdict, list),
        (datetime, 2020, 1, 1), (date, 2020, 1, 1), (time, 1), (timedelta, 1), (Decimal, 1), (Fraction, 1, 2), (UUID, "1" * 32),
        (PurePosixPath, "a"), (IPv4Address, "1.2.3.4"),
    )
]  # fmt: skip


class Both(str, Enum):  # noqa: UP042  # both kinds are meant
    LOW = "low"


class Mode(StrEnum):
    FAST = "fast"


class Rank(IntEnum):
    FIRST = 1


@each_case("value", [*SUBCLASSED, marked("x"), Both.LOW, Mode.FAST, Rank.FIRST])
def test_instances_of_unregistered_subclasses_are_refused_at_any_depth(value):
    places = [value, [value], (value,), {"a": value}, {1: value}, [{"a": 1}] * 300 + [value]]
    if isinstance(value, Hashable):
        places += [{value: 1}, {value: 1, 2: 3}, {(value,): 1}, {value}, frozenset({value})]
    for place in places:
        assert f"cannot store {type(value).__module__}.{type(value).__name__}" in refusal(place)


@pytest.mark.parametrize("cls", [Both, Mode, Rank, MyStr, SlimStr], ids=lambda cls: cls.__name__)
def test_registered_subclasses_of_str_and_int_are_restored(cls):
    value = next(iter(cls)) if issubclass(cls, Enum) else cls("x")
    for place in (value, [value], (value,), {"a": value}, {value: 1}, {value: 1, 2: 3}, {(value,): 1}, {value}):
        assert same(back(place, cls), place)


def test_a_subclass_of_str_in_a_schema_is_restored():
    serializer = fresh()
    serializer.register_schema(dict[str, list[MyStr] | str])
    for value in (MyStr("x"), {MyStr("x"): "y"}):
        assert same(serializer.loads(serializer.dumps(value)), value)
    with pytest.raises(UnserializableError, match="it has attributes of its own: 'mark'"):
        serializer.dumps(marked("x"))


def test_text_of_an_unregistered_class_is_stored_as_str_with_one_warning():
    class Name(str):
        __slots__ = ()

    for place in (Name("x"), [Name("x")], {Name("x"): 1}):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert same(back(place), ["x"] if isinstance(place, list) else {"x": 1} if isinstance(place, dict) else "x")
        if place == "x":
            assert "Name, a subclass of str, is stored as str" in str(told[0].message)
            assert "register" in str(told[0].message)
        else:
            assert not told


def test_a_warning_about_text_that_is_an_error_is_raised_each_time():
    class Name(str):
        __slots__ = ()

    for _ in range(2):
        with pytest.raises(GraphWarning, match="is stored as str"):
            fresh().dumps([Name("x")])


def test_a_str_subclass_of_langchain_becomes_str_without_a_warning():
    accessor = type("TextAccessor", (str,), {"__module__": "langchain_core.messages.base", "__slots__": ()})
    assert same(back({"text": accessor("x")}), {"text": "x"})


def test_bytes_that_are_no_text_are_damage_for_a_subclass_of_str():
    serializer = fresh(MyStr)
    with pytest.raises(DamagedError, match="text is stored as str, found int"):
        serializer.decode_object(key_of(MyStr), 5)


def test_deeply_nested_values_within_the_limit_are_restored():
    for value in (
        deep(240, lambda x: [x]),
        deep(240, lambda x: {"a": x}),
        deep(MAX_OBJECTS, lambda x: (x,)),
        deep(MAX_OBJECTS - 1, lambda x: {1: [x]}),
        deep(MAX_OBJECTS, lambda x: Node([[[x]]])),
        (deep(200, lambda x: [x]),),
    ):
        assert back(value, Node) == value


def test_shared_parts_are_no_cycle():
    part = [threading.Lock]
    with pytest.raises(UnserializableError, match=r"at \[0\]\[0\]: cannot store"):
        fresh().dumps([part, part])
    part = [1]
    assert back([part, part, {1: part, 2: part}]) == [part, part, {1: part, 2: part}]


def test_an_encoder_that_fails_is_a_refusal_with_the_place():
    serializer = fresh()
    serializer.register(Thing, encode=lambda thing: 1 / 0, decode=lambda state: Thing())
    with pytest.raises(UnserializableError, match=r"at \['a'\]: cannot store .*Thing: division by zero") as caught:
        serializer.dumps({"a": Thing()})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_interrupt_in_an_encoder_is_not_swallowed():
    def stop(_):
        raise KeyboardInterrupt

    serializer = fresh()
    serializer.register(Thing, encode=lambda thing: 1, decode=stop)
    blob = serializer.dumps([Thing()])
    with pytest.raises(KeyboardInterrupt):
        serializer.loads(blob)
    moments = iter([stop])  # it comes once
    serializer.register(Thing, encode=lambda thing: next(moments, len)(()), decode=stop)
    with pytest.raises(KeyboardInterrupt):
        serializer.dumps([(Thing(),)])
    serializer.dumps([(Thing(),)])


def test_refusal_seen_from_further_out():
    error = UnserializableError("[0]", "no").inside("['messages']")
    assert (str(error), error.path, error.reason) == ("at ['messages'][0]: no", "['messages'][0]", "no")
    assert isinstance(error, TypeError)


# -- registering ------------------------------------------------------------------------------------------------


def test_register_with_own_encoder_and_name():
    class Money:
        def __init__(self, cents):
            self.cents = cents

    serializer = fresh()
    serializer.register(Money, encode=lambda m: (m.cents,), decode=lambda s: Money(*s), name="bank.Money")
    blob = serializer.dumps([Money(5)])
    assert b"bank.Money" in blob[1]
    assert serializer.loads(blob)[0].cents == 5


@each_case("state", [{1: (2,)}, [bytearray(b"x")], {"a": {None: 1}}, "\ud800", 2**70])
def test_an_encoder_may_return_whatever_can_be_stored(state):
    serializer = fresh()
    serializer.register(Thing, encode=lambda thing: state, decode=lambda found: [found])
    assert serializer.loads(serializer.dumps([Thing()])) == [[state]]
    assert serializer.loads(serializer.dumps({1: Thing()})) == {1: [state]}


def test_register_decorates_and_is_seen_by_every_serializer():
    @register
    @dataclass
    class Everywhere:
        a: int

    assert isinstance(Everywhere, type)
    assert Serializer().loads(Serializer().dumps(Everywhere(1))) == Everywhere(1)
    with pytest.raises(UnserializableError):
        fresh().dumps(Everywhere(1))


def test_register_on_one_serializer_stays_there():
    registry = Registry()
    one, two = Serializer(registry), Serializer(registry)
    one.register(Frozen)
    with pytest.raises(UnserializableError):
        two.dumps(Frozen(1))
    registry.register(Frozen)
    assert two.loads(one.dumps(Frozen(1))) == Frozen(1)


@each_case(
    "cls, options, text",
    [
        (Thing, {}, "give encode and decode"),
        (MyDict, {}, "give encode and decode"),
        (Frozen, {"encode": vars}, "give both encode and decode, or neither"),
        (list[int], {}, "must be given a class"),
        ("Frozen", {}, "must be given a class"),
    ],
)
def test_register_refuses(cls, options, text):
    with pytest.raises(TypeError, match=text):
        Registry().register(cls, **options)


def test_typed_dict_needs_no_registering():
    class State(TypedDict):
        a: int

    assert back(State(a=1), State) == {"a": 1}


def local_class(**fields):
    @dataclass
    class Local:
        __annotations__ = dict.fromkeys(fields, int)
        locals().update(fields)

    return Local


def test_a_second_class_of_the_same_name_replaces_the_first():
    old, new = local_class(a=0), local_class(a=0)
    registry = Registry()
    registry.register(old)
    serializer = Serializer(registry)
    blob = serializer.dumps(old())
    serializer.register(new)
    assert type(serializer.loads(blob)) is new
    with pytest.raises(UnserializableError):  # it would come back as the new one
        serializer.dumps(old())
    registry.register(new)
    with pytest.raises(UnserializableError):
        Serializer(registry).dumps(old())


def test_a_class_with_more_or_fewer_fields_than_stored():
    small, large = local_class(a=1), local_class(a=1, b=2)
    blob = fresh(small).dumps(small(5))
    assert vars(fresh(large).loads(blob)) == {"a": 5, "b": 2}
    blob = fresh(large).dumps(large(5, 6))
    assert vars(fresh(small).loads(blob)) == {"a": 5, "b": 6}

    @dataclass
    class Needs:
        a: int
        needed: int

    key = f"{small.__module__}:{small.__qualname__}"
    serializer = fresh()
    serializer.register(Needs, name=key)
    with pytest.raises(DamagedError, match="nothing is stored for field 'needed'"):
        serializer.loads(fresh(small).dumps(small(5)))


def test_a_model_with_more_fields_than_stored():
    class More(BaseModel):
        a: int
        items: list[int] = Field(default_factory=lambda: [7])
        _count: int = PrivateAttr(3)

    serializer = fresh()
    serializer.register(More, name=f"{stored_values.__name__}:Model")
    loaded = serializer.loads(fresh(Model).dumps(Model(a=1)))
    assert (loaded.a, loaded.items, loaded._count, loaded.model_fields_set) == (2, [7], 3, {"a"})


# -- what a schema names ----------------------------------------------------------------------------------------


class Inner(Enum):
    X = 1


@dataclass
class Tree:
    children: list[Tree]
    leaf: Leaf | None = None
    color: Literal[Color.RED] = Color.RED


@dataclass
class Leaf:
    tree: Tree | None
    inner: Inner


class Deep(BaseModel):
    box: Box[Frozen]
    _plain: Plain | None = PrivateAttr(None)


class Wrong(TypedDict):
    unknown: NoSuchName  # noqa: F821 - the point of the test
    tree: list[Tree]
    broken: "list["  # noqa: F722


class Shape(TypedDict, total=False):
    pair: typing.Required[Pair]
    move: Annotated[dict[str, list[Move]], "reducer", Slotted]
    errors: list[AppError]


UserId = NewType("UserId", Frozen)
Bound = TypeVar("Bound", bound=Late)


@dataclass
class Crate(Generic[T]):
    content: T


@each_case(
    "annotation, named",
    [
        (Color, {Color}),
        (Plain | None, {Plain}),
        (typing.Optional[dict[Kind, tuple[Frozen, ...]]], {Kind, Frozen}),
        (Tree, {Tree, Leaf, Inner, Color}),
        (Deep, {Deep, Box[Frozen], Frozen, Plain}),
        (Wrong, {Tree, Leaf, Inner, Color}),
        (Shape, {Pair, Move, AppError}),
        (UserId, {Frozen}),
        (list[Bound], {Late}),
        (Crate[Right], {Crate, Right}),
        (Callable[[Color], Level], {Color, Level}),
        ("Plain", set()),
        (None, set()),
        (42, set()),
        (int, set()),
        (MyDict, set()),
        (Any, set()),
    ],
)
def test_schema_registers_what_it_names(annotation, named):
    serializer = fresh()
    serializer.register_schema(annotation)
    assert set(serializer._registry._by_type) == named


class Event:
    """A base that cannot be stored itself."""


@dataclass
class Click(Event):
    x: int


@dataclass
class Drag(Click):
    to: int


class Request(BaseModel):
    n: int


class Question(Request):
    inner: Event | None = None
    model_config = {"arbitrary_types_allowed": True}


@pytest.mark.parametrize("value", [Click(1), Drag(1, 2), Question(n=1, inner=Drag(1, 2))], ids=repr)
def test_schema_that_names_a_base_registers_its_kinds(value):
    serializer = fresh()
    serializer.register_schema(list[Event] | Request)
    assert serializer.loads(serializer.dumps([value])) == [value]


@each_case("base", [BaseModel, Exception, Enum, object, tuple, Any])
def test_schema_that_names_a_base_of_everybodys_registers_nothing_below_it(base):
    serializer = fresh()
    serializer.register_schema(list[base])
    assert set(serializer._registry._by_type) <= {base}


def test_schema_leaves_what_is_registered_alone():
    serializer = fresh()
    serializer.register(Frozen, encode=lambda f: "mine", decode=lambda s: Frozen(42))
    serializer.register_schema(list[Frozen])
    assert serializer.loads(serializer.dumps(Frozen(1))) == Frozen(42)


# -- loading runs nothing, and survives anything ----------------------------------------------------------------


def test_unknown_type_names_its_key():
    with pytest.raises(UnknownTypeError, match=r"no type is registered as .*Frozen.*register\(") as caught:
        fresh().loads(fresh(Frozen).dumps([{1: (Frozen(1),)}]))
    assert caught.value.key == f"{stored_values.__name__}:Frozen"
    assert isinstance(caught.value, LookupError)


def test_unknown_extension_and_zone():
    with pytest.raises(UnknownTypeError, match="extension 99"):
        fresh().loads(packed(ext(99, 1)))
    with pytest.raises(UnknownTypeError, match="Mars/Olympus"):
        fresh().loads(packed(ext(14, "Mars/Olympus")))


@each_case(
    "blob",
    [
        ("pickle", b"x"),
        ("msgpack", b""),
        ("msgpack", b"\xc1"),
        ("msgpack", b"\xdd\xff\xff\xff\xff"),
        ("msgpack", b"\xa1\xff"),
        packed({1: 2}),
        packed(ext(0, 5)),
        packed(ext(0, [["a"], 1])),
        packed(ext(1, "text")),
        packed(ext(2, [1, 2, 3])),
        packed(ext(2, [[], 2])),
        packed(ext(5, 10**12)),
        packed(ext(8, [1, -1])),
        packed(ext(9, [2020, 13, 1, 0, 0, 0, 0])),
        packed(ext(10, [b"\x07\xe0\x0c\xff"])),
        packed(ext(12, [10**12, 0, 0])),
        packed(ext(14, [])),
        packed(ext(15, b"short")),
        packed(ext(17, ["1e99999", None])),
        packed(ext(17, [1, 0])),
        packed(ext(20, ["(", 0])),
        packed(ext(20, ["(" * 50_000, 0])),
        packed(ext(20, ["a", 128])),
        packed(ext(32, [1, 2, "eval"])),
        packed(ext(34, ["builtins:ValueError", 1, [], b""])),
        packed(ext(34, ["builtins:UnicodeDecodeError", "", [], packed([[], {}, {}])[1]])),
        packed(ext(34, ["builtins:ValueError", "", [], packed([[], {}, {"args": 1}])[1]])),
    ],
)
def test_damage_is_reported(blob):
    with pytest.raises(DamagedError):
        fresh().loads(blob)


@each_case("key", ["../../etc/passwd", "/etc/passwd", "os", "tzdata.zoneinfo", "a\0b", "", "Europe/"])
def test_a_time_zone_key_outside_the_zone_database_is_refused(key):
    with pytest.raises((UnknownTypeError, DamagedError)):
        fresh().loads(packed(ext(14, key)))


@each_case("state", [[1], "text", {"a": 1, "b": {}}, None, {}])
@each_case("cls", [Plain, Move, Pair, Model, Color, Right])
def test_state_that_does_not_fit_its_class(cls, state):
    blob = packed(ext(0, [f"{stored_values.__name__}:{cls.__name__}", state]))
    try:
        assert type(fresh(cls).loads(blob)) is cls
    except DamagedError as error:
        assert cls.__name__ in str(error)


def test_the_first_error_is_forgotten_by_the_next_load():
    serializer = fresh()
    with pytest.raises(UnknownTypeError):
        serializer.loads(packed([ext(0, ["x:Y", 1])]))
    with pytest.raises(DamagedError, match="end of file"):
        serializer.loads(("msgpack", b""))


def nested_bytes(objects, levels):
    payload = b"\xc0"
    for _ in range(objects):
        payload = packed(ormsgpack.Ext(1, b"\x91" * levels + payload))[1]
    return "msgpack", payload


@pytest.mark.parametrize("objects", [1, 4, 5, MAX_OBJECTS - 1, MAX_OBJECTS, 500])
@pytest.mark.parametrize("levels", [1, 30, 40, 250, 1000, 100_000])
def test_bytes_that_nest_deep_do_not_overflow_the_stack(objects, levels):
    if objects * levels > 10_000_000:
        pytest.skip("takes too long")
    found = []

    def load():
        try:
            found.append(fresh().loads(nested_bytes(objects, levels)))
        except DamagedError as error:
            found.append(error)

    size = threading.stack_size(6 * 2**20)
    try:
        thread = threading.Thread(target=load)
        thread.start()
    finally:
        threading.stack_size(size)
    thread.join()
    assert found


@pytest.fixture(scope="module")
def watch():
    return Watch()


def test_mutated_bytes_run_nothing(watch):
    rng = random.Random(7)
    serializer = fresh(*KNOWN, AppError)
    samples = [serializer.dumps(value)[1] for value in EXACT.values()]
    samples += [serializer.dumps([AppError(1, detail=uuid4()), OSError(2, "x", "y"), KeyError((1,))])[1]]
    with pytest.raises(UnknownTypeError):  # the list of zones is read once
        serializer.loads(packed(ext(14, "No/Zone")))
    for _ in range(6000):
        payload = mutated(rng.choice(samples), rng)
        with watch.watching():
            try:
                serializer.loads(("msgpack", payload))
            except (DamagedError, UnknownTypeError):
                pass
        assert not watch.events, (payload, watch.events)


def test_gadgets_run_nothing(watch):
    with pytest.raises(UnknownTypeError):  # the list of zones is read once
        fresh().loads(packed(ext(14, "No/Zone")))
    for code in range(128):
        for state in GADGETS:
            with watch.watching():
                try:
                    fresh().loads(packed(ext(code, state)))
                except (DamagedError, UnknownTypeError):
                    pass
            assert not watch.events


@given(st.binary(max_size=200))
def test_any_bytes_load_or_fail_cleanly(payload):
    try:
        fresh(*KNOWN).loads(("msgpack", payload))
    except (DamagedError, UnknownTypeError):
        pass


def test_many_threads_share_one_serializer():
    serializer = fresh(Plain)
    wrong = []

    def work(number):
        for i in range(300):
            value = {"n": (number, [Plain(i)]), i: "x"}
            try:
                if serializer.loads(serializer.dumps(value)) != value:
                    wrong.append(value)
                serializer.dumps([(number, Thing())])
            except UnserializableError as error:
                if "at [0][1]" not in str(error):
                    wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    run_threads(threads)
    assert not wrong


def test_the_other_names_are_the_same_methods():
    class Sealed(Serializer):
        def dumps(self, value):
            return "sealed", super().dumps(value)[1]

        def loads(self, blob):
            return super().loads(("msgpack", blob[1]))

    assert Sealed().dumps_typed(1)[0] == "sealed"
    assert Sealed().loads_typed(Sealed().dumps_typed((1,))) == (1,)
