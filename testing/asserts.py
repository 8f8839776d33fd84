"""Compares actual with expected values and says where they differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any, TypeVar

from ..checkpoint.errors import CheckpointConflictError

SYNC = "sync"
ASYNC = "async"
MODES = (SYNC, ASYNC)


class CheckFailed(AssertionError):
    """A checkpointer broke a rule. The text says what was expected and what was returned."""


def assert_same(got: Any, expected: Any, what: str) -> None:
    """Check that two values are equal, with equal types at every level.

    Raises:
        CheckFailed: names the first place where they differ.
    """
    found = difference(got, expected)
    if found is not None:
        path, one, two = found
        raise CheckFailed(
            f"{what}{path}: expected {_describe(two, one)}, got {_describe(one, two)}"
        )


def assert_that(condition: object, what: str) -> None:
    """The condition is true.

    Raises:
        CheckFailed: with this text.
    """
    if not condition:
        raise CheckFailed(what)


Error = TypeVar("Error", bound=BaseException)


def assert_raises(
    kind: type[Error], function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Error:
    """The call raises an error of this kind; gives it.

    Raises:
        CheckFailed: it raises none, or another one.
    """
    cause = None
    try:
        got = function(*args, **kwargs)
    except kind as error:
        return error
    except Exception as error:
        got = cause = error
    called = f"{function.__name__}{args!r:.200}"
    raise CheckFailed(f"{called}: expected {kind.__name__}, got {_describe(got)}") from cause


def assert_conflict(
    heads: tuple[str | None, str | None], function: Callable[..., Any], *args: Any, **kwargs: Any
) -> None:
    """The call loses thread "t" to another writer; the error names the expected and actual head.

    Raises:
        CheckFailed: it does not.
    """
    lost = assert_raises(CheckpointConflictError, function, *args, **kwargs)
    told = lost.thread_id, (lost.expected, lost.actual)
    assert_same(told, ("t", heads), "the error's thread, and expected and actual head")


MISSING = type("Missing", (), {"__repr__": lambda self: "nothing"})()


def difference(one: Any, two: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """Return the first place where two values differ in value or type, as (path, one, two); None if
    they do not.

    >>> difference({"a": [1, (2,)]}, {"a": [1, [2]]})
    ("['a'][1]", (2,), [2])
    >>> difference(float("nan"), float("nan"))
    """
    if type(one) is not type(two):
        return path, one, two
    parts = _pair_parts(one, two)
    if parts is None:
        return None if _equal(one, two) else (path, one, two)
    for key, left, right in parts:
        found = difference(left, right, f"{path}[{key!r}]")
        if found is not None:
            return found
    return None


def _pair_parts(one: Any, two: Any) -> Iterator[tuple[Any, Any, Any]] | None:
    """(key, part of one, part of two) of two values that hold others; None if they do not."""
    if isinstance(one, dict):
        keys = [*two, *(key for key in one if key not in two)]
        return ((key, one.get(key, MISSING), two.get(key, MISSING)) for key in keys)
    if isinstance(one, (list, tuple)):
        pairs = zip_longest(one, two, fillvalue=MISSING)
        return ((position, *pair) for position, pair in enumerate(pairs))
    return None


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, float):  # NaN is the same as NaN here, and 0.0 is not -0.0
        same_sign = math.copysign(1, one) == math.copysign(1, two)
        return (one == two and same_sign) or (math.isnan(one) and math.isnan(two))
    if isinstance(one, BaseException):
        return bool(one.args == two.args)
    return bool(one == two)


def _describe(value: Any, other: Any = MISSING) -> str:
    text = repr(value)
    text = text if len(text) <= 300 else f"{text[:200]} ... {text[-80:]}"
    return (
        text
        if type(value) is type(other) or other is MISSING
        else f"{text} ({type(value).__name__})"
    )
