"""Computes the difference between two JSON values as a JSON Patch (RFC 6902). Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Operation = dict[str, Any]


def diff(old: Any, new: Any, path: str = "") -> Iterator[Operation]:
    """Yield the operations that turn the old value into the new one, in the order in which to apply
    them; only `add`, `remove` and `replace`. The work is proportional to the size of both values.

    Args:
        path: the JSON Pointer of the old value.

    >>> [*diff({"a": 1, "log": ["x"]}, {"log": ["x", "y"]})]
    [{'op': 'remove', 'path': '/a'}, {'op': 'add', 'path': '/log/1', 'value': 'y'}]
    """
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _diff_objects(old, new, path)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _diff_lists(old, new, path)
    elif type(old) is not type(new) or old != new:  # JSON distinguishes true from 1
        yield {"op": "replace", "path": path, "value": new}


def _diff_objects(old: dict[str, Any], new: dict[str, Any], path: str) -> Iterator[Operation]:
    for key in old:
        if key not in new:
            yield {"op": "remove", "path": f"{path}/{_escape(key)}"}
    for key, value in new.items():
        place = f"{path}/{_escape(key)}"
        if key in old:
            yield from diff(old[key], value, place)
        else:
            yield {"op": "add", "path": place, "value": value}


def _diff_lists(old: list[Any], new: list[Any], path: str) -> Iterator[Operation]:
    for place, (before, after) in enumerate(zip(old, new, strict=False)):
        yield from diff(before, after, f"{path}/{place}")
    for place in range(len(old) - 1, len(new) - 1, -1):  # backwards: indexes stay valid
        yield {"op": "remove", "path": f"{path}/{place}"}
    for place in range(len(old), len(new)):
        yield {"op": "add", "path": f"{path}/{place}", "value": new[place]}


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
