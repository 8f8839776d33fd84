"""Selects the parts of threads and states that a client asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from .encode import encode

STATE_FIELDS: Final = (
    "values",
    "next",
    "tasks",
    "checkpoint",
    "metadata",
    "created_at",
    "parent_checkpoint",
    "interrupts",
)
"""The fields of a state that a client may select."""

MOST_PATHS: Final = 10
"""How many values of a thread one request may extract."""

_ONE_KEY: Final = "values."
_STEP: Final = r"\.([^.\[\]]+)|\[(-?\d{1,9})\]"
_PATH: Final = re.compile(rf"[^.\[\]]+(?:{_STEP})*")


def check_state_fields(fields: list[str]) -> list[str]:
    """Check that states have all these fields.

    Raises:
        ValueError: a field does not exist.
    """
    for field in fields:
        if field not in STATE_FIELDS and (not field.startswith(_ONE_KEY) or field == _ONE_KEY):
            offered = ", ".join([*STATE_FIELDS, f"{_ONE_KEY}KEY"])
            raise ValueError(f"a state has no field {field!r}; offered are: {offered}")
    return fields


def check_number(paths: Any) -> Any:
    """Check that there are not too many paths, before each is validated.

    Raises:
        ValueError: there are too many.
    """
    if isinstance(paths, Mapping) and len(paths) > MOST_PATHS:
        raise ValueError(f"extract takes at most {MOST_PATHS} paths, got {len(paths)}")
    return paths


def check_paths(paths: dict[str, str]) -> dict[str, str]:
    """Check that the paths are well-formed.

    Raises:
        ValueError: a path is malformed.
    """
    for path in paths.values():
        if not _PATH.fullmatch(path):
            raise ValueError(f"a path must be like 'values.messages[-1].content', got {path!r}")
    return paths


def select_fields(state: dict[str, Any], fields: Sequence[str] | None) -> dict[str, Any]:
    """Return the requested fields of a state; `values.KEY` is one key of its values."""
    if not fields:
        return state
    shown = {name: state[name] for name in STATE_FIELDS if name in fields}
    keys = [field.removeprefix(_ONE_KEY) for field in fields if field.startswith(_ONE_KEY)]
    if keys and "values" not in shown:
        values = state["values"] if isinstance(state["values"], Mapping) else {}
        shown["values"] = {key: values[key] for key in keys if key in values}
    return shown


def extract(record: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    """Return the values at some paths in a record, in the form in which it is sent; None where a
    path leads nowhere.

    >>> extract({"values": {"log": ["a", "b"]}}, {"last": "values.log[-1]", "first": "log[0]"})
    {'last': 'b', 'first': None}
    """
    plain = json.loads(encode(record))
    return {name: _follow(plain, path) for name, path in paths.items()}


def _follow(value: Any, path: str) -> Any:
    for key, index in re.findall(_STEP, f".{path}"):
        if key and isinstance(value, dict):
            value = value.get(key)
        elif index and isinstance(value, list) and -len(value) <= int(index) < len(value):
            value = value[int(index)]
        else:
            return None
    return value
