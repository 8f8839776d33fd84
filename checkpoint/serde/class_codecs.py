"""The codecs of classes: how dataclasses, enums, named tuples and pydantic models are taken apart
and put together again by their fields. No constructor, validator or `__post_init__` of theirs runs.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Container, Iterable, Mapping
from enum import Enum, Flag
from functools import cached_property
from inspect import getattr_static
from operator import attrgetter
from types import BuiltinFunctionType, MemberDescriptorType
from typing import Any
from weakref import WeakSet

from ...channels.base import warn
from .codec import Codec, GetParts, Style

Coders = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""(encode, decode)"""


def make_codec(cls: type, key: str) -> Codec:
    """How a dataclass, enum, named tuple, pydantic model, exception or subclass of `str` is stored.

    Raises:
        TypeError: it is none of these.
    """
    if issubclass(cls, BaseException):
        return Codec(cls, _elsewhere, _elsewhere, key=key, error=True)
    maker = _maker(cls)
    if maker is None:
        raise TypeError(
            f"{key} is not a dataclass, enum, named tuple, pydantic model or exception: give "
            "encode and decode"
        )
    if maker in (_dataclass, _pydantic) and (keeper := _keeper(cls)) is not None:
        raise TypeError(
            f"{key} is a {keeper.__name__}, which holds more than its fields: give encode and "
            "decode"
        )
    encode, decode = maker(cls)
    style: Style = "value" if maker in (_enum, _text) else "fields"
    return Codec(cls, encode, decode, style, key=key, parts=_parts_of(cls, maker))


def _parts_of(cls: Any, maker: object) -> GetParts | None:
    """What the bytes of instances depend on: of a pydantic model, and of a dataclass that has no
    slots."""
    slots = slots_of(cls)
    if maker is _pydantic and slots.keys() <= {*_PYDANTIC_SLOTS}:
        names = ["__dict__", "__pydantic_extra__"]
        if getattr(cls, "__private_attributes__", None):
            names.append("__pydantic_private__")
        return _make_get_parts(names, ["__pydantic_fields_set__"])
    if maker is _dataclass and not slots:
        return _make_get_parts(["__dict__"], [])
    return None


def _make_get_parts(names: Iterable[str], names_of_sets: Iterable[str]) -> GetParts:
    plain, sets = [*map(attrgetter, names)], [*map(attrgetter, names_of_sets)]

    def get_parts(values: list[Any]) -> tuple[list[list[Any]], list[list[Any]]]:
        return [[*map(get, values)] for get in plain], [[*map(get, values)] for get in sets]

    return get_parts


def is_storable(cls: type) -> bool:
    """Whether there is a codec for this class."""
    if issubclass(cls, BaseException):
        return True
    maker = _maker(cls)
    if maker in (_dataclass, _pydantic):
        return _keeper(cls) is None
    return maker is not None


def is_pydantic(cls: type) -> bool:
    """Whether this is a pydantic model, by its attributes: pydantic is not imported just for
    that."""
    return hasattr(cls, "__pydantic_fields_set__") and hasattr(cls, "model_construct")


def pydantic_fields(cls: Any) -> Mapping[str, Any]:
    """The fields of a pydantic model, by name."""
    fields: Mapping[str, Any] | None = getattr(cls, "__pydantic_fields__", None)
    return cls.model_fields if fields is None else fields  # older than pydantic 2.10


def _maker(cls: type) -> Callable[[Any], Coders] | None:
    if issubclass(cls, Enum):
        return _enum
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _namedtuple
    if dataclasses.is_dataclass(cls):
        return _dataclass
    if is_pydantic(cls):
        return _pydantic
    return _text if _is_text(cls) else None


def _keeper(cls: type) -> type | None:
    """The base class, if there is one, that keeps state where fields are not: in C, like `list` and
    `datetime`, or in slots of the standard library's own, like `Fraction` and `Path` (some hold a
    hash, which no other process may have)."""
    for base in cls.__mro__:
        if base is object:
            continue
        if isinstance(vars(base).get("__new__"), BuiltinFunctionType):
            return base
        if base.__module__.partition(".")[0] in sys.stdlib_module_names and slots_of(base):
            return base
    return None


def slots_of(cls: type) -> dict[str, MemberDescriptorType]:
    """What instances keep outside `__dict__`, by name, as it stands in the class and its bases.

    >>> class Point:
    ...     __slots__ = ("x",)
    >>> list(slots_of(Point))
    ['x']
    """
    found = {name: each for base in reversed(cls.__mro__) for name, each in vars(base).items()}
    return {name: each for name, each in found.items() if isinstance(each, MemberDescriptorType)}


# -- subclasses of str -----------------------------------------------------------------------------


def _is_text(cls: type) -> bool:
    """Whether instances of a subclass of `str` hold their characters, and what `__dict__` holds."""
    # Not `str` itself, which the table of builtins has: that table is loaded late.
    return cls is not str and issubclass(cls, str) and _keeper(cls) is str and not slots_of(cls)


def _text(cls: Any) -> Coders:
    def encode(value: Any) -> str:
        check_no_attributes(value)
        return str.__str__(value)

    def decode(state: Any) -> Any:
        if type(state) is not str:
            raise TypeError(f"text is stored as str, found {type(state).__name__}")
        return str.__new__(cls, state)

    return encode, decode


def plain_text(value: object) -> str | None:
    """Return the characters of a text whose class, a subclass of `str`, is not registered; None for
    any other value, and for a text that holds more than its characters.

    Warns once for each class, but for that of LangChain's `message.text`, which is meant to be
    taken for a `str`.
    """
    cls = type(value)
    if not isinstance(value, str) or getattr(value, "__dict__", None) or slots_of(cls):
        return None
    if cls not in _told and cls.__module__.partition(".")[0] != "langchain_core":
        warn(
            f"a value of {cls.__module__}.{cls.__qualname__}, a subclass of str, is stored as str; "
            "to keep its type, name the class in the state's schema or register it with "
            "stategraph.checkpoint.register"
        )
        _told.add(cls)
    return str.__str__(value)


_told: WeakSet[type] = WeakSet()


def check_no_attributes(value: Any) -> None:
    if attributes := getattr(value, "__dict__", None):
        raise TypeError(f"it has attributes of its own: {', '.join(map(repr, attributes))}")


def _elsewhere(_: Any) -> Any:
    raise NotImplementedError("the serializer gives exceptions to error_codec")


def _enum(cls: type[Enum]) -> Coders:
    members = cls._member_map_

    def encode(member: Any) -> Any:
        name = member._name_
        # By name: values may change from one version of a program to the next.
        if members.get(name) is member:
            return name
        if not isinstance(member, Flag):
            raise TypeError(f"it is not a member of {cls.__qualname__}")  # `_missing_` has made it
        return member._value_  # a union of flags has no name of its own

    def decode(state: Any) -> Any:
        if type(state) is str and state in members:
            return members[state]
        if issubclass(cls, Flag) and isinstance(state, int):
            return cls(state)
        raise ValueError(f"no member {state!r}")

    return encode, decode


def _namedtuple(cls: Any) -> Coders:
    names: tuple[str, ...] = cls._fields
    defaults: Mapping[str, Any] = cls._field_defaults

    def encode(value: Any) -> dict[str, Any]:
        if getattr(value, "__dict__", None):
            raise TypeError("it has attributes that are not fields")
        return dict(zip(names, value, strict=True))

    def decode(state: Any) -> Any:
        whole = {**defaults, **_fields_in(state)}
        # Not by the class: a `__new__` of the user's may check, count or change what it is given.
        return tuple.__new__(cls, [whole[name] for name in names])

    return encode, decode


# -- dataclasses -----------------------------------------------------------------------------------


# Beside the fields, whose names are identifiers.
_SET, _UNSET, _EXTRA, _PRIVATE = "|set", "|unset", "|extra", "|private"


def _dataclass(cls: Any) -> Coders:
    """All that an instance holds is stored: its `__dict__` and its slots, whether they are fields
    or not."""
    fields = dataclasses.fields(cls)
    names = frozenset(field.name for field in fields)
    slots = slots_of(cls)
    getters = [(name, slot.__get__) for name, slot in slots.items()]
    # A descriptor that the class put in a field's place keeps what it was given as it likes: that
    # is in `__dict__`.
    described = {
        name for name in names if hasattr(type(getattr_static(cls, name, None)), "__set__")
    }
    settable = names - described | slots.keys()
    set_ = object.__setattr__

    def encode(value: Any) -> dict[str, Any]:
        state = dict(getattr(value, "__dict__", ()))
        for name, get in getters:
            try:
                state[name] = get(value)
            except AttributeError:
                continue
        return state if state.keys() == names else _unusual(cls, state, fields, slots)

    def decode(state: Any) -> Any:
        value = object.__new__(cls)
        unset = _fields_in(state).get(_UNSET, ())
        for name, each in state.items():
            if name in settable:
                set_(value, name, each)
            elif name != _UNSET and hasattr(value, "__dict__"):
                value.__dict__[name] = each
        if not names <= state.keys():
            for field in fields:
                if field.name not in state and field.name not in unset:
                    _set_default(value, field)
        return value

    return encode, decode


def _unusual(
    cls: type,
    state: dict[Any, Any],
    fields: tuple[dataclasses.Field[Any], ...],
    slots: Container[str],
) -> dict[str, Any]:
    """The state of an instance that has more than its fields, or less. What is cached will be
    computed again."""
    state = {name: each for name, each in state.items() if name in slots or not is_cache(cls, name)}
    _check_names(state)
    unset = [
        each.name
        for each in fields
        if each.name not in state and not _is_left_to_class(each, slots)
    ]
    return {**state, _UNSET: unset} if unset else state


def is_cache(cls: type, name: object) -> bool:
    """Whether an attribute of this name is what a `cached_property` has computed."""
    return type(name) is str and isinstance(getattr(cls, name, None), cached_property)


def _check_names(names: Iterable[object]) -> None:
    for name in names:
        if type(name) is not str or name.startswith("|"):
            raise TypeError(f"it has an attribute named {name!r}")


def _is_left_to_class(field: dataclasses.Field[Any], slots: Container[str]) -> bool:
    """Whether new objects do not have the field themselves, but find its default in their class."""
    no_factory = field.default_factory is dataclasses.MISSING
    return not field.init and no_factory and field.name not in slots


def _set_default(value: Any, field: dataclasses.Field[Any]) -> None:
    """Give a field that is not in the stored data what a new object would have."""
    if _is_left_to_class(field, slots_of(type(value))):
        return
    if field.default is not dataclasses.MISSING:
        object.__setattr__(value, field.name, field.default)
    elif field.default_factory is not dataclasses.MISSING:
        object.__setattr__(value, field.name, field.default_factory())
    elif field.init:
        raise ValueError(f"nothing is stored for field {field.name!r}, and it has no default")


# -- pydantic --------------------------------------------------------------------------------------

# Where every model keeps what it holds beside its fields: in slots, a RootModel in its `__dict__`.
_PYDANTIC_SLOTS = ("__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")


def _pydantic(cls: Any) -> Coders:
    slots = slots_of(cls)
    foreign = [name for name in slots if name not in _PYDANTIC_SLOTS]

    def encode(value: Any) -> dict[str, Any]:
        fields = pydantic_fields(cls)
        state = {name: each for name, each in value.__dict__.items() if name in fields}
        if len(state) < len(value.__dict__):
            _check_fields_only(cls, value.__dict__.keys() - state.keys())
        if foreign:
            _check_fields_only(cls, [name for name in foreign if hasattr(value, name)])
        # A model made by `model_construct` may lack fields; read back, it must lack them too.
        if len(state) < len(fields):
            state[_UNSET] = [name for name in fields if name not in state]
        state[_SET] = sorted(value.__pydantic_fields_set__)
        if value.__pydantic_extra__ is not None:
            state[_EXTRA] = value.__pydantic_extra__
        if value.__pydantic_private__ is not None:
            state[_PRIVATE] = _drop_undefined(value.__pydantic_private__)
        return state

    def decode(state: Any) -> Any:
        state = _fields_in(state)
        unset = state.get(_UNSET, ())
        values = {
            name: state[name] if name in state else _pydantic_default(name, field)
            for name, field in pydantic_fields(cls).items()
            if name not in unset
        }
        value = object.__new__(cls)
        object.__setattr__(value, "__dict__", values)
        object.__setattr__(value, "__pydantic_fields_set__", set(state[_SET]))
        private = _private(cls, state.get(_PRIVATE, {}))
        if "__pydantic_extra__" in slots:
            object.__setattr__(value, "__pydantic_extra__", state.get(_EXTRA))
        if "__pydantic_private__" in slots or private is not None:
            object.__setattr__(value, "__pydantic_private__", private)
        return value

    return encode, decode


def _check_fields_only(cls: type, names: Iterable[str]) -> None:
    others = sorted(
        name for name in names if name not in _PYDANTIC_SLOTS and not is_cache(cls, name)
    )
    if others:
        raise TypeError(f"it has attributes that are not fields: {', '.join(map(repr, others))}")


def _pydantic_default(name: str, field: Any) -> Any:
    if field.is_required():
        raise ValueError(f"nothing is stored for field {name!r}, and it has no default")
    return field.get_default(call_default_factory=True)


def _private(cls: Any, stored: dict[str, Any]) -> dict[str, Any] | None:
    declared = cls.__private_attributes__
    if not declared:
        return None
    return _drop_undefined(
        {name: stored.get(name, default.get_default()) for name, default in declared.items()}
    )


def _drop_undefined(attributes: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in attributes.items() if type(v).__name__ != "PydanticUndefinedType"}


def _fields_in(state: Any) -> dict[str, Any]:
    if type(state) is not dict:
        raise TypeError(f"fields are stored as a dict, found {type(state).__name__}")
    return state
