"""A schema of a graph as a JSON schema, for those who make forms, tools or API pages of it.

Runs nothing. Pydantic writes it, and is loaded for that.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from ..pregel.program.json_schema import object_schema, type_schema
from .schema import Schema, read_schema


def json_schema(schema: Schema) -> dict[str, Any]:
    """What the values of a schema look like, without managed keys. A type that JSON has no word for
    may be anything.

    >>> class State(typing.TypedDict):
    ...     topic: str
    >>> json_schema(read_schema(State))["properties"]
    {'topic': {'title': 'Topic', 'type': 'string'}}
    """
    if schema.root:
        return type_schema(schema.source) or {}
    cls = typing.get_origin(schema.source) or schema.source
    found: dict[str, Any]
    if hasattr(cls, "model_json_schema") and not schema.managed:
        found = schema.source.model_json_schema()
        return found
    hints = {key: channel.ValueType for key, channel in schema.channels.items()}
    return object_schema(cls.__name__, hints, _optional(cls))


def context_json_schema(context_schema: Any) -> dict[str, Any] | None:
    """The same for what a graph's nodes find in `runtime.context`; None if nothing was declared."""
    if context_schema is None:
        return None
    return json_schema(read_schema(context_schema))


def _optional(cls: Any) -> Mapping[str, dict[str, Any]]:
    """Keys that may be left out, with their default where somebody says it, as pydantic's Field
    takes it."""
    found: dict[str, dict[str, Any]] = {
        key: {"default_factory": str} for key in getattr(cls, "__optional_keys__", ())
    }
    for field in fields(cls) if is_dataclass(cls) else ():
        if field.default is not MISSING:
            found[field.name] = {"default": field.default}
        elif field.default_factory is not MISSING:
            found[field.name] = {"default_factory": field.default_factory}
    for name, item in getattr(cls, "model_fields", {}).items():
        if not item.is_required():
            found[name] = (
                {"default_factory": str} if item.default_factory else {"default": item.default}
            )
    return {
        **found,
        **{key: {"default": value} for key, value in getattr(cls, "_field_defaults", {}).items()},
    }
