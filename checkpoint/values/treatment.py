"""The standard treatment: how dataclasses, enums, named tuples and pydantic models are taken apart and put
together again by their fields. No constructor, validator or `__post_init__` of theirs runs.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum, Flag
from functools import cached_property
from operator import attrgetter
from typing import Any

from .codec import Codec

Way = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""(encode, decode)"""

# What an instance of a subclass of these holds is not in its fields.
_HOLD_THEIR_OWN = (
    int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, deque,
)  # fmt: skip


def standard(cls: type, key: str) -> Codec:
    """How a dataclass, enum, named tuple, pydantic model or exception is stored.

    Raises:
        TypeError: it is none of these.
    """
    if issubclass(cls, BaseException):
        return Codec(cls, _elsewhere, _elsewhere, key=key, error=True)
    if issubclass(cls, Enum):
        encode, decode = _enum(cls)
        return Codec(cls, encode, decode, key=key)
    maker = _maker(cls)
    if maker is None:
        raise TypeError(
            f"{key} is not a dataclass, enum, named tuple, pydantic model or exception: give encode and decode"
        )
    encode, decode = maker(cls)
    return Codec(cls, encode, decode, "fields", key=key)


def storable(cls: type) -> bool:
    """Whether there is a standard treatment for this class."""
    return issubclass(cls, (BaseException, Enum)) or _maker(cls) is not None


def is_pydantic(cls: type) -> bool:
    """Whether this is a pydantic model, told by its marks: pydantic is not imported just to ask."""
    return hasattr(cls, "__pydantic_fields_set__") and hasattr(cls, "model_construct")


def pydantic_fields(cls: Any) -> Mapping[str, Any]:
    """The fields of a pydantic model, by name."""
    fields: Mapping[str, Any] | None = getattr(cls, "__pydantic_fields__", None)
    return cls.model_fields if fields is None else fields  # older than pydantic 2.10


def _maker(cls: type) -> Callable[[Any], Way] | None:
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _namedtuple
    if issubclass(cls, _HOLD_THEIR_OWN):
        return None
    if dataclasses.is_dataclass(cls):
        return _dataclass
    return _pydantic if is_pydantic(cls) else None


def _elsewhere(_: Any) -> Any:
    raise NotImplementedError("the serializer gives exceptions to stored_errors")


def _enum(cls: type[Enum]) -> Way:
    members = cls._member_map_

    def encode(member: Enum) -> Any:
        name = member._name_
        return name if members.get(name) is member else member._value_  # a union of flags has no name of its own

    def decode(state: Any) -> Any:
        if type(state) is str and state in members:
            return members[state]
        if issubclass(cls, Flag) and isinstance(state, int):
            return cls(state)
        raise ValueError(f"no member {state!r}")

    return encode, decode


def _namedtuple(cls: Any) -> Way:
    names: tuple[str, ...] = cls._fields
    defaults: Mapping[str, Any] = cls._field_defaults

    def encode(value: Any) -> dict[str, Any]:
        if getattr(value, "__dict__", None):
            raise TypeError("it has attributes beside its fields")
        return dict(zip(names, value, strict=True))

    def decode(state: Any) -> Any:
        whole = {**defaults, **_fields_in(state)}
        return tuple.__new__(cls, [whole[name] for name in names])

    return encode, decode


# -- dataclasses -----------------------------------------------------------------------------------------------


def _dataclass(cls: Any) -> Way:
    fields = dataclasses.fields(cls)
    names = [field.name for field in fields]
    get = attrgetter(*names) if len(names) > 1 else lambda value: [getattr(value, name) for name in names]

    def encode(value: Any) -> dict[str, Any]:
        try:
            state = dict(zip(names, get(value), strict=True))
        except AttributeError:
            state = _set_fields(value, fields)
        own = getattr(value, "__dict__", state)
        if len(own) > len(state):  # a subclass, or someone from outside, gave it more
            state |= {name: each for name, each in own.items() if name not in state and not _cached(cls, name)}
        return state

    def decode(state: Any) -> Any:
        value = object.__new__(cls)
        rest = dict(_fields_in(state))
        for field in fields:
            if field.name in rest:
                object.__setattr__(value, field.name, rest.pop(field.name))
            else:
                _set_default(value, field)
        if rest and hasattr(value, "__dict__"):
            value.__dict__.update(rest)
        return value

    return encode, decode


def _cached(cls: type, name: str) -> bool:
    return isinstance(getattr(cls, name, None), cached_property)


def _set_fields(value: Any, fields: tuple[dataclasses.Field[Any], ...]) -> dict[str, Any]:
    """The fields of an instance some of which are not set. Refused unless it comes back that way."""
    state = {}
    for field in fields:
        if hasattr(value, field.name):
            state[field.name] = getattr(value, field.name)
        elif field.init or field.default_factory is not dataclasses.MISSING:
            raise TypeError(f"its field {field.name!r} is not set")
    return state


def _set_default(value: Any, field: dataclasses.Field[Any]) -> None:
    """Give a field that is not in the stored data what a new object would have."""
    if field.default is not dataclasses.MISSING:
        object.__setattr__(value, field.name, field.default)
    elif field.default_factory is not dataclasses.MISSING:
        object.__setattr__(value, field.name, field.default_factory())
    elif field.init:
        raise ValueError(f"nothing is stored for field {field.name!r}, and it has no default")


# -- pydantic --------------------------------------------------------------------------------------------------

# Beside the fields, whose names are identifiers.
_SET, _UNSET, _EXTRA, _PRIVATE = "|set", "|unset", "|extra", "|private"


def _pydantic(cls: Any) -> Way:
    def encode(value: Any) -> dict[str, Any]:
        fields = pydantic_fields(cls)
        state = {name: each for name, each in value.__dict__.items() if name in fields}
        if len(state) < len(fields):
            state[_UNSET] = [name for name in fields if name not in state]
        state[_SET] = sorted(value.__pydantic_fields_set__)
        if value.__pydantic_extra__ is not None:
            state[_EXTRA] = value.__pydantic_extra__
        if value.__pydantic_private__ is not None:
            state[_PRIVATE] = _defined(value.__pydantic_private__)
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
        object.__setattr__(value, "__pydantic_extra__", state.get(_EXTRA))
        object.__setattr__(value, "__pydantic_private__", _private(cls, state.get(_PRIVATE, {})))
        return value

    return encode, decode


def _pydantic_default(name: str, field: Any) -> Any:
    if field.is_required():
        raise ValueError(f"nothing is stored for field {name!r}, and it has no default")
    return field.get_default(call_default_factory=True)


def _private(cls: Any, stored: dict[str, Any]) -> dict[str, Any] | None:
    declared = cls.__private_attributes__
    if not declared:
        return None
    return _defined({name: stored.get(name, default.get_default()) for name, default in declared.items()})


def _defined(attributes: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in attributes.items() if type(v).__name__ != "PydanticUndefinedType"}


def _fields_in(state: Any) -> dict[str, Any]:
    if type(state) is not dict:
        raise TypeError(f"fields are stored as a dict, found {type(state).__name__}")
    return state
