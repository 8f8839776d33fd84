"""Nothing that is stored comes back silently different: a table of values with something that a codec might forget.

Each comes back as it was (type, content, `__dict__`, slots, and what exceptions hold besides), or it is refused.
"""

from __future__ import annotations

import decimal
import functools
import pathlib
import re
import sys
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from types import MemberDescriptorType

import pytest
from kit.drive import each_case
from kit.lossless_values import (
    COMES_BACK,
    REFUSED,
    AllSlots,
    everything,
    raised,
    serializer,
    set_in,
)
from kit.programs import printed
from kit.stored_values import ext, packed

from stategraph.checkpoint import (
    DamagedError,
    Registry,
    Serializer,
    StoredError,
    UnserializableError,
)
from stategraph.checkpoint.serde.class_codecs import slots_of
from stategraph.checkpoint.serde.error_codec import MOST_ERRORS, open_chain

# -- what Python can see in a value ---------------------------------------------------------------------------------


# -- types with more to them than their fields ------------------------------------------------------------------------


# -- the table ----------------------------------------------------------------------------------------------------------


@each_case("name", COMES_BACK)
@each_case("wrap", [lambda value: value, lambda value: {"a": [(value, b"")]}])
def test_nothing_is_forgotten(name, wrap):
    value = wrap(COMES_BACK[name]())
    serde = serializer()
    assert everything(serde.loads(serde.dumps(value))) == everything(value)


@each_case("name", REFUSED)
def test_what_cannot_be_kept_is_refused(name):
    make, text = REFUSED[name]
    with pytest.raises(UnserializableError, match=re.escape(text)) as caught:
        serializer().dumps({"a": [make()]})
    assert str(caught.value).startswith("at ['a'][0]")


@each_case("base", [datetime, timedelta, decimal.Decimal, Fraction, uuid.UUID, pathlib.PurePosixPath, list])
def test_a_dataclass_on_a_type_with_state_of_its_own_needs_an_encoder(base):
    cls = dataclass(type("Mixed", (base,), {"__annotations__": {"x": int}, "x": 0}))
    with pytest.raises(TypeError, match="holds more than its fields: give encode and decode"):
        Registry().register(cls)


# -- text ---------------------------------------------------------------------------------------------------------------


class Words(str):
    pass


class Labelled(str):
    __slots__ = ()

    def __str__(self):
        return "something else"


@pytest.mark.filterwarnings("ignore:.*a subclass of str, is stored as str")
@each_case("text", [Words("x"), Labelled("x"), Words("\ud800")])
@each_case("wrap", [lambda text: text, lambda text: [text, (text,)], lambda text: {text: {"a": text}}])
def test_a_text_of_a_subclass_without_fields_is_stored_as_str(text, wrap):
    plain = "\ud800" if text == "\ud800" else "x"
    serde = serializer()
    assert everything(serde.loads(serde.dumps(wrap(text)))) == everything(wrap(plain))


# -- exceptions ---------------------------------------------------------------------------------------------------------


def test_a_cause_that_cannot_be_stored_is_reported():
    class Unknown(Exception):
        pass

    error = raised(ValueError(print), KeyError("out"), cause=Unknown("why"))
    serde = serializer()
    loaded = serde.loads(serde.dumps(error))
    assert type(loaded) is KeyError
    assert type(loaded.__cause__) is type(loaded.__context__) is StoredError
    assert str(loaded.__cause__).endswith("Unknown: why")


def test_an_error_that_its_arguments_would_not_restore_is_reported():
    changed = set_in(UnicodeDecodeError("utf8", b"ab", 0, 1, "r"), reason="other")
    emptied = set_in(UnicodeDecodeError("utf8", b"ab", 0, 1, "r"), args=())
    serde = serializer()
    for error in (changed, emptied, set_in(OSError(), args=(2, "x"))):
        loaded = serde.loads(serde.dumps(error))
        assert (type(loaded), loaded.type_name, loaded.message) == (StoredError, type(error).__name__, str(error))


def test_the_attribute_error_of_the_interpreter_is_restored_without_the_object():
    with pytest.raises(AttributeError) as caught:
        sys.nothing_of_this_name  # type: ignore[attr-defined]  # noqa: B018
    serde = serializer()
    loaded = serde.loads(serde.dumps(caught.value))
    assert (type(loaded), str(loaded), loaded.name) == (AttributeError, str(caught.value), "nothing_of_this_name")


def test_a_chain_without_end_is_cut_and_says_so():
    error = functools.reduce(raised, [ValueError(n) for n in range(3 * MOST_ERRORS)])
    serde = serializer()
    loaded, count = serde.loads(serde.dumps(error)), 0
    while type(loaded) is ValueError:
        loaded, count = loaded.__context__, count + 1
    assert (count, type(loaded)) == (MOST_ERRORS + 1, StoredError)


def test_groups_that_lead_back_to_each_other_stay_small():
    """Each member's context is the next group, and the last one's the first: followed blindly that is 2**30 errors."""
    groups = [ExceptionGroup(f"{n}", [ValueError(n), KeyError(n)]) for n in range(30)]
    for group, following in zip(groups, [*groups[1:], groups[0]], strict=True):
        for member in group.exceptions:
            member.__context__ = following
    serde = serializer()
    form, payload = serde.dumps(groups[0])
    assert len(payload) < 100_000
    assert type(serde.loads((form, payload))) is ExceptionGroup


def test_after_a_failure_the_next_error_is_stored_whole():
    error = raised(KeyError("in"), ValueError("out"))
    with pytest.raises(RuntimeError), open_chain(error):
        raise RuntimeError
    with open_chain(error) as (_, whole, _):
        assert whole == [True, True]


# -- subclasses ---------------------------------------------------------------------------------------------------------


class Shape:
    pass


@dataclass
class Circle(Shape):
    r: int


def test_a_base_is_registered_with_its_subclasses():
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


def test_an_encoder_is_for_one_class():
    with pytest.raises(TypeError, match="subclasses=True"):
        Registry().register(Shape, subclasses=True, encode=vars, decode=vars)


# -- NumPy --------------------------------------------------------------------------------------------------------------


def seen_in(array):
    flags = array.flags
    order = (flags.c_contiguous, flags.f_contiguous, flags.writeable)
    return type(array), array.dtype, array.dtype.char, array.dtype.byteorder, array.shape, order, array.tobytes("A")


def test_arrays_are_restored_with_type_order_and_flags():
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


def test_numpy_scalars_are_restored_with_their_type():
    np = pytest.importorskip("numpy")
    scalars = [np.dtype(char).type(1) for char in "bBhHiIlLqQefdgFDG?"]
    scalars += [np.float64(-0.0), np.datetime64("2020-01-01"), np.timedelta64(5, "s"), np.datetime64("NaT", "s"), np.void(b"ab")]
    serde = serializer()
    for scalar in scalars:
        loaded = serde.loads(serde.dumps([scalar]))[0]
        assert (type(loaded), loaded.dtype, loaded.tobytes()) == (type(scalar), scalar.dtype, scalar.tobytes())
    for text in (np.str_("a\0"), np.bytes_(b"a\0"), np.str_("")):
        loaded = serde.loads(serde.dumps([text]))[0]
        assert (type(loaded), len(loaded)) == (type(text), len(text))


def test_other_arrays_are_refused():
    np = pytest.importorskip("numpy")
    records = np.zeros(1, [("a", "i4")])
    others = [np.zeros(2).view(cls) for cls in (np.recarray, np.ma.MaskedArray, np.memmap)]
    for value in (np.array([object()]), records, records[0], *others, np.dtype("i4")):
        with pytest.raises(UnserializableError):
            serializer().dumps([value])


@each_case(
    "state",
    [
        ["<i8", "", [2**40], "C", True, b"x" * 8], ["|O", "", [1], "C", True, b"x" * 8], ["<i8,<i8", "", [1], "C", True, b"x" * 16],
        ["<i8", "", [-1, -1], "C", True, b"x" * 8], ["<i8", "", [1], "K", True, b"x" * 8], ["<i8", "", [1], "C", True, None],
    ],
)  # fmt: skip
def test_bytes_that_make_no_array_are_damaged(state):
    pytest.importorskip("numpy")
    with pytest.raises(DamagedError):
        serializer().loads(packed(ext(0, ["numpy:ndarray", state])))


def test_numpy_is_not_loaded_to_read_or_write():
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
    told, loaded = printed(code, payload.hex()).splitlines()
    assert told.startswith("no type is registered as 'numpy:ndarray'")
    assert loaded == "[]"


def test_slots_are_members():
    assert all(isinstance(slot, MemberDescriptorType) for slot in slots_of(AllSlots).values())
