"""What a check is, and how it says what is wrong. No check lives here, and nothing of pytest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from .harness import Harness

SYNC = "sync"
ASYNC = "async"
MODES = (SYNC, ASYNC)

NEEDS = {
    "commit": (
        "it inherits commit(), which promises neither one transaction per superstep nor one "
        "writer per thread"
    ),
    "claim": "it inherits claim(), which lets several runs bring an answer at once",
    "delete_for_runs": "it has no delete_for_runs()",
    "copy_thread": "it has no copy_thread()",
    "prune": "it has no prune()",
    "durable": "durable = False: nothing is there when it is opened again",
    "damage": "no damage() hook: the suite cannot reach its bytes",
    "full": "no full() hook: the suite cannot limit its space",
    "size": "no size() hook: the suite cannot weigh what it stores",
}
"""What a check may need of a saver or its suite, and what is said where it is missing."""


class CheckFailed(AssertionError):
    """A saver broke a rule. The text says what was expected and what came."""


@dataclass(frozen=True, slots=True)
class Check:
    """One rule that savers keep.

    Attributes:
        name: the rule in short; unique.
        group: the capability it belongs to, such as "list" or "crash".
        about: what it means and why it matters.
        run: raises `CheckFailed`, or whatever the saver raised, if the rule is broken.
        needs: keys of `NEEDS`; where one is missing the check is skipped.
        modes: in which it is run.
    """

    name: str
    group: str
    about: str
    run: Callable[[Harness], None]
    needs: tuple[str, ...] = ()
    modes: tuple[str, ...] = MODES


GROUPS = {
    "put": "checkpoints are kept and found",
    "writes": "what tasks wrote is kept beside them",
    "commit": "a superstep is stored whole, by one writer",
    "list": "histories are listed and searched",
    "delete": "threads and runs are forgotten",
    "prune": "old checkpoints are forgotten",
    "copy": "threads are copied",
    "engine": "real graphs: run, pause, resume, fork, nested graphs, durability",
    "clock": "no clock decides order",
    "growth": "bytes grow with what changed",
    "hostile": "no text of a user's is more than text",
    "concurrency": "threads, loops and processes at once",
    "crash": "the process is killed",
    "damage": "stored bytes are damaged",
    "full": "there is no room",
}
"""The capabilities, in the order in which they are checked, and what each is about."""

CHECKS: dict[str, Check] = {}
"""All checks by name."""

Function = TypeVar("Function", bound=Callable[["Harness"], None])


def register_check(
    group: str, *needs: str, modes: tuple[str, ...] = MODES
) -> Callable[[Function], Function]:
    """Make a function a check: its name is the rule, its docstring says why."""

    def add(function: Function) -> Function:
        name = function.__name__
        assert (
            name not in CHECKS and group in GROUPS and function.__doc__ and set(needs) <= set(NEEDS)
        ), name
        CHECKS[name] = Check(
            name, group, " ".join(function.__doc__.split()), function, needs, modes
        )
        return function

    return add


def assert_same(got: Any, expected: Any, what: str) -> None:
    """Both are equal, with equal types all the way down.

    Raises:
        CheckFailed: names the first place where they are not.
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
    kind: type[Error], what: str, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Error:
    """The call raises an error of this kind; gives it.

    Raises:
        CheckFailed: it raises none, or another one.
    """
    try:
        got = function(*args, **kwargs)
    except kind as error:
        return error
    except Exception as error:
        raise CheckFailed(
            f"{what}: expected {kind.__name__}, got {type(error).__name__}: {error}"
        ) from error
    raise CheckFailed(f"{what}: expected {kind.__name__}, got no error but {_describe(got)}")


MISSING = type("Missing", (), {"__repr__": lambda self: "nothing"})()


def difference(one: Any, two: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """The first place where two values differ, in value or type: (path, one, two); None if they do
    not.

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


def explain_missing(needs: tuple[str, ...], given: Mapping[str, bool]) -> str | None:
    """Why a check cannot be run, or None."""
    return next((NEEDS[need] for need in needs if not given[need]), None)
