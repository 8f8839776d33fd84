"""Which classes a type annotation names, all the way down. Reads hints; never raises for a wrong
one."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from enum import Enum
from types import FunctionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

from typing_extensions import Format, get_annotations, is_typeddict

from .class_codecs import is_pydantic, is_storable, pydantic_fields


def classes_in(annotation: Any) -> Iterator[type]:
    """The storable classes that an annotation names, directly or in the fields of those it names,
    and their subclasses as far as they are defined.

    >>> from enum import Enum
    >>> class Color(Enum):
    ...     RED = 1
    >>> [cls.__name__ for cls in classes_in(dict[str, list[Color | None]])]
    ['Color']
    """
    waiting = [annotation]
    seen: dict[int, Any] = {}  # by identity, and kept alive so that no id comes twice
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen[id(item)] = item
        try:
            if isinstance(item, type) and get_origin(item) is None:
                if is_storable(item):
                    yield item
                waiting.extend(_fields(item))
                waiting.extend(
                    reversed(_subclasses(item))
                )  # of two of one name the newer comes last, and counts
            else:
                waiting.extend(_parts(item))
        except Exception:  # a hint is the user's, and being wrong is no reason to stop a graph
            continue


def _parts(item: Any) -> list[Any]:
    """What an annotation that is no plain class is made of."""
    if isinstance(item, (list, tuple)):  # the arguments of a Callable
        return list(item)
    if isinstance(item, TypeVar):
        return [item.__bound__, *item.__constraints__]
    origin, args = get_origin(item), get_args(item)
    if origin is Annotated:
        return [args[0]]  # the rest is reducers and the like
    if origin is Literal:
        return [type(arg) for arg in args if isinstance(arg, Enum)]
    if origin is ClassVar:
        return []
    if origin is None:  # NewType, `type X = ...`
        return [
            getattr(item, name) for name in ("__supertype__", "__value__") if hasattr(item, name)
        ]
    return [origin, *args]


def _fields(cls: Any) -> list[Any]:
    """The annotations of a class's fields, if it is a class whose fields are stored."""
    if is_pydantic(cls):
        annotations = [field.annotation for field in pydantic_fields(cls).values()]
        generic = getattr(cls, "__pydantic_generic_metadata__", {})
        private = {
            name: each
            for name, each in _own_hints(cls).items()
            if name in cls.__private_attributes__
        }
        return [*annotations, *generic.get("args", ()), *private.values()]
    if (
        is_typeddict(cls)
        or dataclasses.is_dataclass(cls)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
    ):
        return list(_own_hints(cls).values())
    return []


def _subclasses(cls: type) -> list[type]:
    """Those known by now: where a base is named, any of its kinds is meant. But not all models or
    errors there are."""
    library = cls.__module__.partition(".")[0]
    return (
        [] if library == "pydantic" or library in sys.stdlib_module_names else cls.__subclasses__()
    )


def _own_hints(cls: type) -> dict[str, Any]:
    """Resolved hints; where one cannot be resolved the others still are."""
    try:
        return get_type_hints(cls, include_extras=True)
    except Exception:
        found: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            for name, hint in get_annotations(base, format=Format.FORWARDREF).items():
                found |= _one_hint(base, name, hint)
        return found


def _one_hint(cls: type, name: str, hint: Any) -> dict[str, Any]:
    bearer = FunctionType((lambda: None).__code__, vars(sys.modules[cls.__module__]))
    bearer.__annotations__ = {name: hint}
    try:
        return get_type_hints(bearer, localns=dict(vars(cls)), include_extras=True)
    except Exception:
        return {}
