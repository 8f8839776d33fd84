"""Types as JSON schemas, for those who make forms, tools or API pages of a graph.

Runs nothing. Pydantic writes them, and is loaded for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..types import Selection


def type_schema(hint: Any, *, by_alias: bool = True) -> dict[str, Any] | None:
    """One annotation; None if it cannot be described.

    Args:
        by_alias: whether fields have the names by which they are given.
    """
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        return TypeAdapter(hint).json_schema(by_alias=by_alias)
    except PydanticUserError:
        return None


def object_schema(
    name: str,
    hints: Mapping[str, Any],
    fields: Mapping[str, Mapping[str, Any]],
    extra: Any = None,
) -> dict[str, Any]:
    """An object with these keys. A type that JSON has no word for may be anything.

    Args:
        fields: key → what pydantic's `Field` takes besides; a key is required unless a default
            stands here.
        extra: what pydantic's config calls so: whether other keys are allowed.
    """
    from pydantic.errors import PydanticUserError

    try:
        return _describe(name, hints, fields, extra)
    except PydanticUserError:
        known = {key: Any if type_schema(hint) is None else hint for key, hint in hints.items()}
        return _describe(name, known, fields, extra)


def _describe(
    name: str, hints: Mapping[str, Any], fields: Mapping[str, Mapping[str, Any]], extra: Any
) -> dict[str, Any]:
    from pydantic import ConfigDict, Field, create_model

    # Under names of our own: a key may be one that a model does not take, such as "_x" or "copy".
    shown: dict[str, Any] = {}
    for place, (key, hint) in enumerate(hints.items()):
        more = {"alias": key, "title": key.replace("_", " ").title(), **fields.get(key, {})}
        shown[f"f{place}"] = (hint, Field(**more))
    config = ConfigDict() if extra is None else ConfigDict(extra=extra)
    model: Any = create_model(name, __config__=config, **shown)
    found: dict[str, Any] = model.model_json_schema()
    return found


def selection_schema(name: str, keys: Selection, hints: Mapping[str, Any]) -> dict[str, Any]:
    """What channels take, or show: one of them its bare value, several a dict in which any may be
    missing.

    Args:
        hints: the type of each.
    """
    if isinstance(keys, str):
        return type_schema(hints[keys]) or {}
    return object_schema(
        name, hints, {key: {"default_factory": str} for key in keys}
    )  # a factory is not shown
