"""A schema of a graph as a JSON schema, for those who make forms, tools or API pages of it.

Runs nothing. Pydantic writes it, and is loaded for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from inspect import cleandoc
from typing import Any, Literal

from ..pregel.program.json_schema import object_schema, type_schema
from .fields import config_of, infos_of, input_names
from .schema import Schema, read_schema
from .validation import update_hint, value_hint

Way = Literal["in", "out", "context"]
"""Whether values are given to a graph, come from it, or are given beside its input: which names
they have, and whether those of keys with a reducer are what it takes or what it makes."""


def json_schema(schema: Schema, way: Way = "in") -> dict[str, Any]:
    """What the values of a schema look like, without managed keys. A type that JSON has no word for
    may be anything.

    >>> import typing
    >>> class State(typing.TypedDict):
    ...     topic: str
    >>> json_schema(read_schema(State))["properties"]
    {'topic': {'title': 'Topic', 'type': 'string'}}
    """
    hints = {key: value_hint(schema, key) for key in schema.channels}
    taken = {key: _taken(schema, key, hint) if way == "in" else hint for key, hint in hints.items()}
    if schema.root:
        [hint] = taken.values()
        return type_schema(hint) or {}
    if _says_it_itself(schema, way) and taken == hints:
        found: dict[str, Any] | None = type_schema(schema.source, by_alias=way != "out")
        if found is not None:
            return found
    described = {key: _describe(schema, key, way) for key in hints}
    extra = config_of(schema.cls).get("extra")
    written = object_schema(schema.cls.__name__, taken, described, extra)
    if text := _docstring(schema.cls):
        written["description"] = text
    return written


def context_json_schema(context_schema: Any) -> dict[str, Any] | None:
    """The same for what a graph's nodes find in `runtime.context`; None if nothing was declared."""
    if context_schema is None:
        return None
    return json_schema(read_schema(context_schema), "context")


def _says_it_itself(schema: Schema, way: Way) -> bool:
    """A model, unless its own schema says something else than what a graph takes or returns: the
    values without their keys, managed keys, or names that only one of the two knows."""
    if not hasattr(schema.cls, "model_json_schema") or schema.managed:
        return False
    return not hasattr(schema.cls, "__pydantic_root_model__") or not (
        schema.cls.__pydantic_root_model__ or (way == "out" and schema.names)
    )


def _docstring(cls: type) -> str | None:
    """The docstring that a user has written for a class; none of a class of this package, which
    tells nothing about the graph, nor the signature that dataclasses and named tuples have."""
    text: str | None = vars(cls).get("__doc__")
    own = cls.__module__.partition(".")[0] == __name__.partition(".")[0]
    if not text or own or text.startswith(f"{cls.__name__}("):
        return None
    return cleandoc(text)


def _taken(schema: Schema, key: str, hint: Any) -> Any:
    """The annotation of what may be written; where a reducer takes anything, of what it makes."""
    found = update_hint(schema.channels[key], hint)
    return hint if found is Any else found


def _describe(schema: Schema, key: str, way: Way) -> dict[str, Any]:
    """What pydantic's Field says of a key besides its type: its name, texts, and default."""
    info = infos_of(schema.cls).get(key)
    names = input_names(schema.cls, schema.hints).get(key, (key,))
    found: dict[str, Any] = {"alias": names[0] if way != "out" else schema.names.get(key, key)}
    for name in ("title", "description", "examples", "deprecated", "json_schema_extra"):
        if (said := getattr(info, name, None)) is not None:
            found[name] = said
    return found if key in schema.required else {**found, **_default(schema.cls, key)}


def _default(cls: Any, key: str) -> Mapping[str, Any]:
    """The default of a key that may be left out, where somebody says it."""
    info = infos_of(cls).get(key)
    if info is not None and info.default_factory is None:
        return {"default": info.default}
    for field in fields(cls) if info is None and is_dataclass(cls) else ():
        if field.name == key and field.default is not MISSING:
            return {"default": field.default}
    named: Mapping[str, Any] = getattr(cls, "_field_defaults", {})
    return {"default": named[key]} if key in named else {"default_factory": str}  # is not shown
