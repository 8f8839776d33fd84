"""From a schema's annotations to channels, and from channel values back to an instance of the
schema.

Reads types only. Nothing here knows nodes or edges.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any, ClassVar

import typing_extensions
from typing_extensions import Format, get_annotations

from ..channels import BaseChannel, BinaryOperatorAggregate, LastValue
from ..channels.aggregate import reducer_for
from ..pregel.errors import InvalidGraphError
from ..pregel.names import ROOT
from ..pregel.program.callables import is_managed, signature_of
from ..pregel.runtime import ManagedValue

Channel = BaseChannel[Any, Any, Any]

# From 3.13 on typing has a ReadOnly of its own, which typing_extensions then re-exports.
_QUALIFIERS = (typing.Required, typing.NotRequired, typing_extensions.ReadOnly)


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """A schema, read.

    Attributes:
        source: what the user gave.
        channels: key → channel, in declaration order; `__root__` alone for a state without keys.
        managed: keys that the engine computes.
        coerce: makes an instance of the class from a dict of values; None where a dict is what
            nodes get.
    """

    source: Any
    channels: Mapping[str, Channel]
    managed: Mapping[str, type[ManagedValue]]
    coerce: Callable[[dict[str, Any]], Any] | None

    @property
    def root(self) -> bool:
        """Whether the state is one value without keys."""
        return ROOT in self.channels

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys in declaration order, managed ones last."""
        return (*self.channels, *self.managed)


def read_schema(schema: Any) -> Schema:
    """Read a TypedDict, dataclass, pydantic model, NamedTuple or any annotated class: one channel
    per key. Any other type is the whole state in one channel.

    Raises:
        InvalidGraphError: it is not a type, declares no keys, or one of its annotations cannot be
            used.
    """
    cls = typing.get_origin(schema) or schema
    if _has_keys(cls):
        hints = _hints(cls, _type_arguments(schema))
        return _keyed(schema, cls, hints)
    if not _is_type(schema):
        raise InvalidGraphError(not_a_schema(schema))
    if is_managed(schema) is not None:
        raise InvalidGraphError(
            f"{schema!r} is a managed value; it can be a key of a state, not the state itself"
        )
    return Schema(schema, {ROOT: channel_of(ROOT, schema)}, {}, None)


def not_a_schema(schema: Any) -> str:
    """The sentence for something that cannot be a schema."""
    return f"a state schema must be a TypedDict, dataclass, pydantic model or type, got {schema!r}"


def _has_keys(cls: Any) -> bool:
    return isinstance(cls, type) and any(map(_is_annotated, cls.__mro__))


def _is_annotated(cls: type) -> bool:
    # `__annotate__` makes them when somebody asks, from Python 3.14 on
    return "__annotations__" in cls.__dict__ or getattr(cls, "__annotate__", None) is not None


def _is_type(schema: Any) -> bool:
    if schema is None or schema is Any or isinstance(schema, (str, bytes, int, float)):
        return False
    if isinstance(schema, type):
        # A built-in type may be a state of one value; an empty class of the user's is a mistake.
        return schema is not object and (schema.__module__ == "builtins" or not _is_bare(schema))
    return typing.get_origin(schema) is not None


def _is_bare(cls: type) -> bool:
    """A class that declares no fields and whose instances take no value: its annotations were
    forgotten."""
    return not any(name in vars(c) for c in cls.__mro__[:-1] for name in ("__init__", "__new__"))


def _keyed(schema: Any, cls: type, hints: Mapping[str, Any]) -> Schema:
    channels: dict[str, Channel] = {}
    managed: dict[str, type[ManagedValue]] = {}
    for key, hint in hints.items():
        computed = is_managed(hint)
        if computed is not None:
            managed[key] = computed
        else:
            channels[key] = channel_of(key, hint)
    if not channels and not managed:
        raise InvalidGraphError(f"{cls.__name__} declares no state keys")
    if ROOT in channels:
        raise InvalidGraphError(f"{cls.__name__}: state key {ROOT!r}: the name is reserved")
    return Schema(schema, channels, managed, _coercer(cls))


# -- annotations -----------------------------------------------------------------------------------


def channel_of(key: str, hint: Any) -> Channel:
    """The channel that an annotation asks for: the one it holds, a reducer's, else LastValue.

    Raises:
        InvalidGraphError: its reducer does not take two arguments, or there are several.
    """
    bare = _strip(hint)
    metadata = getattr(bare, "__metadata__", ())
    for item in metadata:
        if isinstance(item, BaseChannel):
            return item.declare(key, bare)
        if isinstance(item, type) and issubclass(item, BaseChannel):
            return _made(key, item, typing.get_args(bare)[0]).declare(key, bare)
    reducer = _reducer(key, metadata)
    if reducer is not None:
        return BinaryOperatorAggregate(bare, reducer_for(reducer, bare), key=key)
    return LastValue(bare, key)


def _made(key: str, cls: type[Channel], typ: Any) -> Channel:
    try:
        return cls(typ)
    except TypeError as error:
        raise InvalidGraphError(
            f"key {key!r}: {cls.__name__} cannot be made of a type alone ({error}); "
            "put an instance into the annotation"
        ) from None


def describe_declaration(channel: Channel) -> str:
    """A channel in an error about two declarations that differ."""
    reducer = channel.reducer
    if reducer is not None:
        name = getattr(reducer, "__qualname__", None) or repr(reducer)
        return f"{type(channel).__name__} with the reducer {name}"
    return repr(channel)


def _strip(hint: Any) -> Any:
    while typing.get_origin(hint) in _QUALIFIERS:
        hint = typing.get_args(hint)[0]
    return hint


def _reducer(key: str, metadata: tuple[Any, ...]) -> Callable[[Any, Any], Any] | None:
    """The one callable among an annotation's metadata that takes two values."""
    candidates = [item for item in metadata if callable(item)]
    fitting = [item for item in candidates if _takes_two(item)]
    if len(fitting) > 1:
        raise InvalidGraphError(
            f"key {key!r} has several reducers: {', '.join(map(repr, fitting))}; keep one"
        )
    # A callable in the last place was meant as the reducer; others may be pydantic's validators.
    if not fitting and candidates and candidates[-1] is metadata[-1]:
        raise InvalidGraphError(
            f"key {key!r}: the reducer {candidates[-1]!r} must take exactly two positional "
            "arguments (value, update)"
        )
    return fitting[0] if fitting else None


_BUILTIN = (BuiltinFunctionType, MethodDescriptorType)


def _takes_two(function: Callable[..., Any]) -> bool:
    signature = signature_of(function)
    if signature is None:
        return not isinstance(function, type)  # a builtin such as max, which tells nothing
    parameters = signature.parameters.values()
    if isinstance(function, _BUILTIN) and any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return True  # such as set.union, which tells this much from Python 3.14 on
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) == 2


def _type_arguments(schema: Any) -> Mapping[Any, Any]:
    """TypeVar → argument of a parametrised class."""
    origin = typing.get_origin(schema)
    parameters = getattr(origin, "__parameters__", ())
    return dict(zip(parameters, typing.get_args(schema), strict=False))


def _hints(cls: type, arguments: Mapping[Any, Any]) -> dict[str, Any]:
    """The annotations that declare state: no ClassVars, no private attributes of models."""
    resolved = _resolve(cls)
    private = hasattr(cls, "model_fields")
    return {
        key: _substitute(hint, arguments)
        for key, hint in resolved.items()
        if hint is not ClassVar
        and typing.get_origin(hint) is not ClassVar
        and not (private and (key.startswith("_") or key == "model_config"))
    }


def _resolve(cls: type) -> dict[str, Any]:
    try:
        return typing_extensions.get_type_hints(cls, include_extras=True)
    except NameError:
        pass
    except Exception as error:
        # An annotation may be any string, and evaluating it may raise anything.
        raise InvalidGraphError(
            f"schema {cls.__name__}: an annotation cannot be resolved: {error!r}"
        ) from error
    # A class made inside a function may name things that only live there: look in the callers'
    # frames.
    frame = sys._getframe()
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        try:
            return typing_extensions.get_type_hints(
                cls, localns=dict(frame.f_locals), include_extras=True
            )
        except NameError as error:
            missing = error
    raise InvalidGraphError(
        f"schema {cls.__name__}: an annotation cannot be resolved: {missing}"
    ) from missing


def _substitute(hint: Any, arguments: Mapping[Any, Any]) -> Any:
    if not arguments:
        return hint
    if isinstance(hint, typing.TypeVar):
        return arguments.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    return hint[tuple(arguments.get(p, p) for p in parameters)] if parameters else hint


# -- instances -------------------------------------------------------------------------------------


def _coercer(cls: type) -> Callable[[dict[str, Any]], Any] | None:
    """How nodes get this schema: pydantic validates at every node's entry, a dataclass or
    NamedTuple only binds."""
    if hasattr(cls, "model_fields"):
        if aliases := _aliases(cls):
            return partial(_renamed, cls, aliases)
        return partial(_bound, cls)
    if is_dataclass(cls):
        if later := [field.name for field in fields(cls) if not field.init]:
            return partial(_built, cls, later)
        return partial(_bound, cls)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return partial(_bound, cls)
    return None


# Partials of functions at the top of a module: a compiled graph can be pickled.


def _bound(cls: Any, values: dict[str, Any]) -> Any:
    return cls(**values)


def _renamed(cls: Any, aliases: Mapping[str, str], values: dict[str, Any]) -> Any:
    return cls(**{aliases.get(key, key): value for key, value in values.items()})


def _built(cls: Any, later: list[str], values: dict[str, Any]) -> Any:
    """For a dataclass with fields that its constructor does not take: they are set afterwards."""
    made = cls(**{key: value for key, value in values.items() if key not in later})
    for key in later:
        if key in values:
            object.__setattr__(made, key, values[key])  # also of a frozen dataclass
    return made


def _aliases(model: Any) -> dict[str, str]:
    """Field name → the name that its constructor takes."""
    found = {}
    for name, field in model.model_fields.items():
        alias = field.validation_alias if field.validation_alias is not None else field.alias
        if isinstance(alias, str):
            found[name] = alias
    return found


def is_schema(hint: Any) -> bool:
    """Whether the annotation of a node's first parameter says which keys it reads."""
    cls = typing.get_origin(hint) or hint
    if not isinstance(cls, type) or cls.__module__ in ("builtins", "typing"):
        return False
    return _has_keys(cls) and any(not key.startswith("_") for key in _annotated_names(cls))


def _annotated_names(cls: type) -> list[str]:
    return [key for c in cls.__mro__ for key in get_annotations(c, format=Format.FORWARDREF)]
