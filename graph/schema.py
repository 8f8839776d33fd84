"""From a schema's annotations to channels, and from channel values back to an instance of the
schema.

Reads types only. Nothing here knows nodes or edges.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Annotated, Any, ClassVar, NamedTuple

import typing_extensions
from typing_extensions import Format, get_annotations

from ..channels import BaseChannel, BinaryOperatorAggregate, LastValue
from ..channels.aggregate import reducer_fault, reducer_for
from ..checkpoint.base import INTERRUPT
from ..pregel.errors import InvalidGraphError
from ..pregel.names import ROOT
from ..pregel.program.callables import is_managed, signature_of
from ..pregel.runtime import ManagedValue
from .fields import (
    declared_names,
    default_of,
    infos_of,
    input_names,
    maker_of,
    output_names,
    required_of,
    strip,
)

Channel = BaseChannel[Any, Any, Any]


class Schema(NamedTuple):
    """A schema, read.

    Attributes:
        source: what the user gave.
        channels: key → channel, in declaration order; `__root__` alone for a state without keys.
        managed: keys that the engine computes.
        first: key with a reducer → makes the default of its field, with which it starts.
        aliases: the names by which an input may call keys → those keys.
        names: the keys that have another name in what a call returns → that name.
        required: the keys without which no instance can be made.
        hints: key → its annotation, as declared.
        coerce: makes an instance of the class from a dict of values; None where a dict is what
            nodes get.
    """

    source: Any
    channels: Mapping[str, Channel]
    managed: Mapping[str, type[ManagedValue]]
    coerce: Callable[[dict[str, Any]], Any] | None
    first: Mapping[str, Callable[[], Any]] = {}
    aliases: Mapping[str, str] = {}
    names: Mapping[str, str] = {}
    required: frozenset[str] = frozenset()
    hints: Mapping[str, Any] = {}

    @property
    def cls(self) -> Any:
        """The class, without type arguments."""
        return typing.get_origin(self.source) or self.source

    @property
    def root(self) -> bool:
        """Whether the state is one value without keys."""
        return ROOT in self.channels

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys in declaration order, managed ones last."""
        return (*self.channels, *self.managed)

    def make(self, values: Any, whole: bool) -> Any:
        """The values as an instance of the class; as they are if that is none.

        Args:
            whole: all that is required should be there. If False, a dict that makes no instance is
                returned as it is.
        """
        if self.coerce is None or not isinstance(values, dict):
            return values
        try:
            return self.coerce({key: values[key] for key in self.channels if key in values})
        except Exception:
            if whole and not self.managed:  # no call returns those
                raise
            return values


def read_schema(schema: Any, first_values: bool = True) -> Schema:
    """Read a TypedDict, dataclass, pydantic model, NamedTuple or any annotated class: one channel
    per key. Any other type is the whole state in one channel.

    Args:
        first_values: whether a key with a reducer starts with the default of its field.

    Raises:
        InvalidGraphError: it is not a type, declares no keys, or one of its annotations cannot be
            used.
    """
    cls = typing.get_origin(schema) or schema
    if _has_keys(cls):
        _check_init(cls)
        hints = _hints(cls, _type_arguments(schema))
        return _keyed(schema, cls, hints, first_values)
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


def _keyed(schema: Any, cls: type, hints: Mapping[str, Any], first_values: bool) -> Schema:
    channels: dict[str, Channel] = {}
    managed: dict[str, type[ManagedValue]] = {}
    first: dict[str, Callable[[], Any]] = {}
    for key, hint in hints.items():
        computed = is_managed(hint)
        if computed is not None:
            managed[key] = computed
        else:
            default = default_of(cls, key) if first_values else None
            channels[key] = channel_of(key, hint, default)
            if default is not None and channels[key].reducer is not None:
                first[key] = default
    if not channels and not managed:
        raise InvalidGraphError(f"{cls.__name__} declares no state keys")
    if ROOT in channels:
        raise InvalidGraphError(f"{cls.__name__}: state key {ROOT!r}: the name is reserved")
    return Schema(
        schema,
        channels,
        managed,
        maker_of(schema, cls),
        first,
        {
            name: key
            for key, names in input_names(cls, hints).items()
            for name in names
            if name not in channels
        },
        output_names(cls, hints),
        required_of(cls, hints) & channels.keys(),
        hints,
    )


def _check_init(cls: Any) -> None:
    """Nodes are given instances made of the state, which has no value for an `InitVar`."""
    signature = signature_of(cls) if is_dataclass(cls) else None
    parameters = signature.parameters if signature is not None else {}
    no_state = getattr(cls, "__dataclass_fields__", {}).keys() - set(declared_names(cls) or ())
    for name in sorted(no_state & parameters.keys()):
        if parameters[name].default is parameters[name].empty:
            raise InvalidGraphError(
                f"{cls.__name__}: the InitVar {name!r} must have a default: it is no key of the "
                "state, of which nodes are given instances"
            )


# -- annotations -----------------------------------------------------------------------------------


def channel_of(key: str, hint: Any, first: Callable[[], Any] | None = None) -> Channel:
    """The channel that an annotation asks for: the one it holds, a reducer's, else LastValue.

    Args:
        first: makes the value with which a reducer starts; None for the empty value of its type.

    Raises:
        InvalidGraphError: its reducer does not take two arguments, or there are several.
    """
    bare = strip(hint)
    metadata = getattr(bare, "__metadata__", ())
    for item in metadata:
        if isinstance(item, BaseChannel):
            return item.declare(key, bare)
        if isinstance(item, type) and issubclass(item, BaseChannel):
            return _made(key, item, typing.get_args(bare)[0]).declare(key, bare)
    reducer = _reducer(key, metadata)
    if reducer is not None:
        return BinaryOperatorAggregate(bare, reducer_for(reducer, bare), first=first, key=key)
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
    if fitting and (fault := reducer_fault(fitting[0])):
        raise InvalidGraphError(f"key {key!r}: the reducer {fitting[0]!r} {fault}")
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
    """TypeVar → argument of a parametrised class, and of those it is derived from."""
    origin = typing.get_origin(schema)
    parameters = getattr(origin, "__parameters__", ())
    found = dict(zip(parameters, typing.get_args(schema), strict=False))
    for base in getattr(origin or schema, "__orig_bases__", ()):
        for variable, argument in _type_arguments(base).items():
            found.setdefault(variable, _substitute(argument, found))
    return found


def _hints(cls: type, arguments: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the annotations that declare state: no ClassVars; of dataclasses and models only
    fields. A `NotRequired` `__interrupt__` is no key of the state: it tells type checkers what a
    paused run returns."""
    resolved = _resolve(cls)
    declared = declared_names(cls)
    infos = infos_of(cls)
    return {
        key: _substitute(_generic(hint, infos.get(key)), arguments)
        for key, hint in resolved.items()
        if not (key == INTERRUPT and typing.get_origin(hint) is typing.NotRequired)
        and hint is not ClassVar
        and typing.get_origin(hint) is not ClassVar
        and (declared is None or key in declared)
    }


def _generic(hint: Any, info: Any) -> Any:
    """The annotation of a field; of a generic model as pydantic has filled it in."""
    generic = isinstance(hint, typing.TypeVar) or bool(getattr(hint, "__parameters__", None))
    if info is None or not generic:
        return hint
    return Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation


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


def is_schema(hint: Any) -> bool:
    """Whether the annotation of a node's first parameter says which keys it reads."""
    cls = typing.get_origin(hint) or hint
    if not isinstance(cls, type) or cls.__module__ in ("builtins", "typing"):
        return False
    annotated = (get_annotations(each, format=Format.FORWARDREF) for each in cls.__mro__)
    return _has_keys(cls) and any(not key.startswith("_") for keys in annotated for key in keys)


# -- the keys of a graph's state, gathered from all of its schemas ---------------------------------

class StateKeys:
    """The keys of all schemas together.

    Attributes:
        channels: key → channel, in the order declared.
        managed: keys that the engine computes.
        schemas: the schemas as read, by what the user gave.
        first_values: whether a key with a reducer starts with the default of its field.
    """

    def __init__(self, state_schema: Any, first_values: bool = True) -> None:
        self.state_schema = state_schema
        self.first_values = first_values
        self.channels: dict[str, Channel] = {}
        self.managed: dict[str, Any] = {}
        self.schemas: dict[Any, Schema] = {}

    def add(self, schema: Any) -> Schema:
        """Read a schema and merge its keys with those known.

        Raises:
            InvalidGraphError: a key is declared in two ways that cannot both hold.
        """
        try:
            known = self.schemas.get(schema)
        except TypeError:
            raise InvalidGraphError(not_a_schema(schema)) from None
        if known is not None:
            return known
        read = read_schema(schema, self.first_values)
        self._check(schema, read)
        for key, channel in read.channels.items():
            self.channels.setdefault(key, channel)
        self.managed.update(read.managed)
        self.schemas[schema] = read
        return read

    def _check(self, schema: Any, read: Schema) -> None:
        if self.channels and read.channels and read.root != (ROOT in self.channels):
            raise InvalidGraphError(
                f"{schema!r} cannot be combined with {self.state_schema!r}: "
                "one is a state with keys, the other is one value"
            )
        for key, channel in read.channels.items():
            mine = self.channels.get(key, channel)
            if key in self.managed:
                raise InvalidGraphError(
                    f"key {key!r} is a managed value in one schema and a stored value in another"
                )
            # A plain annotation says nothing of the channel: a node's own schema may repeat a key
            # without its reducer.
            if mine != channel and not isinstance(channel, LastValue):
                raise InvalidGraphError(
                    f"key {key!r} is declared as {describe_declaration(mine)} and, by {schema!r}, "
                    f"as {describe_declaration(channel)}"
                )
        for key, managed in read.managed.items():
            if key in self.channels or self.managed.get(key, managed) is not managed:
                raise InvalidGraphError(
                    f"key {key!r} is declared as {managed.name} and as something else"
                )
