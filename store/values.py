"""What may be stored: JSON, and nothing that would come back changed.

Pure functions over values. All stores check and copy with these, so that all refuse the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from ..checkpoint.serde.codec import is_text
from .base import Value

MAX_DEPTH = 100
"""How many objects and arrays may lie within each other; far below where Python's own recursion
ends."""

_CONSTANTS = (bool, type(None))
_MAX_INT_BITS = 14_000  # Python refuses to write integers of more than 4,300 digits as text


def check_value(value: object) -> Value:
    """Return a private copy of a value that is to be stored; of a pydantic model, its fields.

    Raises:
        ValueError: it is neither a mapping nor a model, or something in it is not JSON. Types
            count: a tuple would come back as a list, an enum as its value, so they are refused. The
            text names the place.

    >>> check_value({"a": [1, {"b": (2,)}]})
    Traceback (most recent call last):
    ValueError: cannot store value['a'][1]['b']: tuple is not a JSON type
    """
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    if not isinstance(value, Mapping):
        raise ValueError(
            f"cannot store a {type(value).__name__}: a stored value must be a mapping (a JSON "
            "object)"
        )
    checked: Value = _check(value if type(value) is dict else dict(value), [])
    return checked


def copy_value(value: Any) -> Any:
    """A copy of JSON data that shares no object or array with it."""
    kind = type(value)
    if kind is dict:
        return {key: copy_value(item) for key, item in value.items()}
    if kind is list:
        return [copy_value(item) for item in value]
    return value


def to_json(value: Any, *, sort_keys: bool = False) -> str:
    """Checked data as compact JSON text."""
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=sort_keys
    )


def _check(value: Any, trail: list[object]) -> Any:
    kind = type(value)
    if kind is str:
        if not is_text(value):
            _refuse(trail, "a string with a lone surrogate is not text")
        return value
    if kind in _CONSTANTS:
        return value
    if kind is int:
        if value.bit_length() > _MAX_INT_BITS:
            _refuse(trail, "the integer is too long")
        return value
    if kind is float:
        if not math.isfinite(value):
            _refuse(trail, f"JSON has no {value}")
        return value
    if len(trail) >= MAX_DEPTH:
        _refuse(trail[:3], f"nested deeper than {MAX_DEPTH}, or within itself")
    if kind is list:
        return [_within(item, index, trail) for index, item in enumerate(value)]
    if kind is dict:
        return {
            # Most keys and values are short ASCII text, or null, true and false, for which a call
            # each would take longest.
            key if type(key) is str and key.isascii() else _key(key, trail): (
                item
                if type(item) in _CONSTANTS or (type(item) is str and item.isascii())
                else _within(item, key, trail)
            )
            for key, item in value.items()
        }
    return _refuse(trail, f"{kind.__name__} is not a JSON type")


def _within(value: Any, step: object, trail: list[object]) -> Any:
    trail.append(step)
    checked = _check(value, trail)
    trail.pop()
    return checked


def _key(key: Any, trail: list[object]) -> str:
    if type(key) is not str:
        _refuse(trail, f"the key {key!r} is not a string")
    if not is_text(key):
        _refuse(trail, f"the key {key!r} has a lone surrogate")
    return str(key)


def _refuse(trail: list[object], why: str) -> NoReturn:
    raise ValueError(f"cannot store {place('value', trail)}: {why}")


def place(name: str, trail: list[object]) -> str:
    """How a reader writes the way from `name` down the keys of `trail`.

    >>> place("value", ["a", 0])
    "value['a'][0]"
    """
    return name + "".join(f"[{step!r}]" for step in trail)
