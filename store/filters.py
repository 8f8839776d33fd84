r"""Filters: whether a stored value meets a condition. They work the same way in all stores.

A filter maps paths to conditions, all of which must hold. The paths are those of
`stategraph.store.paths` (`a.b`, `a[0]`; a literal dot is written `\.`). A condition is

- an object of operators: `$eq $ne $gt $gte $lt $lte $in $nin $exists $contains`; all must hold; -
an object without operators: what lies there is an object that meets it as a filter, and may hold
more; - anything else: what lies there equals it, as in `$eq`.

Equality is deep and by JSON type: `True` is not `1`, but `1` is `1.0`; null is a value, missing is
none, so nothing missing equals anything. `$ne` and `$nin` are the exact opposites of `$eq` and
`$in`, so they hold for what is missing. Order is known only among numbers and among strings;
anything else does not match. `$contains` holds for an array with an equal element and for a string
with that part. Only pure functions are here; the only exception they raise is ValueError, for a
filter that has no meaning, before any value is seen.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from ..channels.base import MISSING
from .paths import find, parse_place
from .values import MAX_DEPTH

Predicate = Callable[[Any], bool]
"""Says of a JSON value, or `MISSING`, whether it meets a condition."""


def matches(value: Any, filter: Mapping[str, Any]) -> bool:
    """Return whether a value meets a filter.

    >>> matches({"n": 10, "tags": ["x"]}, {"n": {"$gt": 9.5}, "tags": {"$contains": "x"}})
    True
    """
    return compile_filter(filter)(value)


def compile_filter(filter: Mapping[str, Any] | None) -> Predicate:
    """The test that a filter stands for; None and `{}` let everything pass.

    Raises:
        ValueError: an unknown operator, an operand or a path without meaning.
    """
    return _compile({} if filter is None else filter, 0)


def same(a: Any, b: Any) -> bool:
    """Deep equality of JSON values.

    >>> same({"a": [1]}, {"a": [1.0]}), same(True, 1), same(None, MISSING)
    (True, False, False)
    """
    kind = _kind(a)
    if not kind or kind != _kind(b):
        return False
    if kind == "array":
        return len(a) == len(b) and all(map(same, a, b))
    if kind == "object":
        return len(a) == len(b) and all(key in b and same(item, b[key]) for key, item in a.items())
    return bool(a == b)


def _compile(filter: object, depth: int) -> Predicate:
    if not isinstance(filter, Mapping):
        raise ValueError(
            f"a filter must be a mapping of paths to conditions, got {type(filter).__name__}"
        )
    if depth > MAX_DEPTH:
        raise ValueError(f"a filter must not be nested deeper than {MAX_DEPTH} levels")
    tests = [
        (parse_place(path), _condition(condition, depth)) for path, condition in filter.items()
    ]
    return lambda value: all(test(find(value, path)) for path, test in tests)


def _condition(condition: Any, depth: int) -> Predicate:
    if not isinstance(condition, Mapping):
        return _equals(condition)
    named = [name for name in condition if isinstance(name, str) and name.startswith("$")]
    if not named:
        inner = _compile(condition, depth + 1)
        return lambda found: isinstance(found, dict) and inner(found)
    if len(named) < len(condition):
        raise ValueError(f"a condition must have operators or keys, got both: {list(condition)}")
    tests = [_operator(name, condition[name]) for name in named]
    return lambda found: all(test(found) for test in tests)


def _operator(name: str, operand: Any) -> Predicate:
    make = _OPERATORS.get(name)
    if make is None:
        raise ValueError(
            f"an operator in a filter must be one of {', '.join(_OPERATORS)}, got {name!r}"
        )
    return make(operand)


def _kind(value: Any) -> str:
    """The JSON type of a value, "" if it has none."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for types, kind in _KINDS:
        if isinstance(value, types):
            return kind
    return ""


_KINDS: list[tuple[Any, str]] = [
    ((int, float), "number"),
    (str, "string"),
    ((list, tuple), "array"),
    (Mapping, "object"),
]


def _equals(operand: Any) -> Predicate:
    if isinstance(operand, str):
        return lambda found: isinstance(found, str) and found == operand
    return lambda found: same(found, operand)


def _compares(holds: Callable[[Any, Any], Any]) -> Callable[[Any], Predicate]:
    def make(operand: Any) -> Predicate:
        kind = _kind(operand)
        if kind not in ("number", "string"):
            return lambda found: False
        return lambda found: _kind(found) == kind and bool(holds(found, operand))

    return make


def _among(operand: Any) -> Predicate:
    if not isinstance(operand, (list, tuple, set, frozenset)):
        raise ValueError(
            f"$in and $nin must be given a list of values, got {type(operand).__name__}"
        )
    choices = list(operand)
    if all(choice is None or isinstance(choice, str) for choice in choices):
        texts = frozenset(choices)
        return lambda found: (found is None or isinstance(found, str)) and found in texts
    return lambda found: any(same(found, choice) for choice in choices)


def _exists(operand: Any) -> Predicate:
    if not isinstance(operand, bool):
        raise ValueError(f"$exists must be given True or False, got {type(operand).__name__}")
    return lambda found: (found is not MISSING) is operand


def _contains(operand: Any) -> Predicate:
    def test(found: Any) -> bool:
        if isinstance(found, str):
            return isinstance(operand, str) and operand in found
        return isinstance(found, list) and any(same(item, operand) for item in found)

    return test


def _opposite(make: Callable[[Any], Predicate]) -> Callable[[Any], Predicate]:
    def opposite(operand: Any) -> Predicate:
        test = make(operand)
        return lambda found: not test(found)

    return opposite


_OPERATORS: dict[str, Callable[[Any], Predicate]] = {
    "$eq": _equals,
    "$ne": _opposite(_equals),
    "$gt": _compares(operator.gt),
    "$gte": _compares(operator.ge),
    "$lt": _compares(operator.lt),
    "$lte": _compares(operator.le),
    "$in": _among,
    "$nin": _opposite(_among),
    "$exists": _exists,
    "$contains": _contains,
}
