"""Computes the difference between two JSON values as a JSON Patch (RFC 6902). Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Operation = dict[str, Any]


def diff(old: Any, new: Any, path: str = "") -> Iterator[Operation]:
    """Yield the operations that turn the old value into the new one, in the order in which to apply
    them; only `add`, `remove` and `replace`. The work is proportional to the size of both values
    times their depth.

    Args:
        path: the JSON Pointer of the old value.

    Written here because `jsonpatch.make_patch` takes quadratic time, on the event loop: a client
    chooses the state.

    >>> [*diff({"a": 1, "log": ["x"]}, {"log": ["x", "y"]})]
    [{'op': 'remove', 'path': '/a'}, {'op': 'add', 'path': '/log/1', 'value': 'y'}]
    """
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _diff_objects(old, new, path)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _diff_lists(old, new, path)
    elif not _is_same(old, new):
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
    # What is the same at both ends stays, so that an item that goes is one operation.
    shorter = min(len(old), len(new))
    first = last = 0
    while first < shorter and _is_same(old[first], new[first]):
        first += 1
    while last < shorter - first and _is_same(old[-1 - last], new[-1 - last]):
        last += 1
    before, after = old[first : len(old) - last], new[first : len(new) - last]
    for place, (one, other) in enumerate(zip(before, after, strict=False), first):
        yield from diff(one, other, f"{path}/{place}")
    for place in range(first + len(before) - 1, first + len(after) - 1, -1):  # indexes stay valid
        yield {"op": "remove", "path": f"{path}/{place}"}
    for place, value in enumerate(after[len(before) :], first + len(before)):
        yield {"op": "add", "path": f"{path}/{place}", "value": value}


def _is_same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):  # JSON distinguishes true from 1
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
