"""`When`: the time of a submitted job, checked and converted for the statements."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from math import isfinite
from typing import NamedTuple

from ..channels.base import check_kind

LONGEST = timedelta(days=36_500)
"""The longest delay."""


class Debounce(NamedTuple):
    """How long a job waits for a newer input, in seconds.

    Attributes:
        seconds: the wait after the newest input.
        most: the longest wait after the first one, however many follow.
    """

    seconds: float
    most: float


class Due(NamedTuple):
    """When jobs are to run: this many seconds after they are submitted, or at a time in seconds
    since 1970; with neither, at once. The database's clock decides."""

    delay: float | None = None
    at: float | None = None

    @property
    def later(self) -> bool:
        """Whether a time was given."""
        return self != NOW


NOW = Due()


@dataclass(frozen=True, kw_only=True)
class When:
    """When a submitted job runs, by the database's clock; with nothing given, at once.

    Args:
        delay: seconds, or a timedelta, to wait before it may run. Until then it holds up no other
            job of its thread.
        at: the time before which it does not run, instead of `delay`. It must have a time zone; a
            time in the past means at once.
        debounce: seconds, or a timedelta, to wait for a newer input. If the thread has a debounced
            job that has not started, this input replaces the one of that job and its wait starts
            again. All submissions merged into a job share its run id.
        debounce_max: the longest wait, counted from the first of these submissions; by default they
            can delay the job for ever.

    Raises:
        TypeError: `at` is not a datetime, or another time neither a number nor a timedelta.
        ValueError: several of `delay`, `at` and `debounce` are given, `at` has no time zone, a time
            is negative or too long, or `debounce_max` is below `debounce` or given alone.
    """

    delay: float | timedelta | None = None
    at: datetime | None = None
    debounce: float | timedelta | None = None
    debounce_max: float | timedelta | None = None

    def __post_init__(self) -> None:
        names = ("delay", "at", "debounce")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if len(given) > 1:
            raise ValueError(f"a job must have one of delay, at and debounce, got {given!r}")
        if self.at is not None:
            check_kind("at", self.at, datetime, "a datetime")
            if self.at.utcoffset() is None:
                why = "at must have a time zone, such as datetime.now(UTC)"
                raise ValueError(f"{why}, got {self.at!r}")
        for name in ("delay", "debounce", "debounce_max"):
            if (value := getattr(self, name)) is not None:
                check_seconds(name, value)
        read_debounce(self)


def read_due(when: When) -> Due:
    """Return the time of a job that is not debounced."""
    if when.at is not None:
        return Due(at=when.at.timestamp())
    return NOW if when.delay is None else Due(delay=check_seconds("delay", when.delay))


def read_debounce(when: When) -> Debounce | None:
    """Return how long a debounced job waits, None for any other.

    Raises:
        ValueError: `debounce_max` is given alone or is below `debounce`.
    """
    most = when.debounce_max
    if when.debounce is None:
        if most is not None:
            raise ValueError(f"debounce_max must come with debounce, got {most!r} alone")
        return None
    seconds = check_seconds("debounce", when.debounce)
    longest = LONGEST.total_seconds() if most is None else check_seconds("debounce_max", most)
    if longest < seconds:
        why = "debounce_max must be at least debounce"
        raise ValueError(f"{why}, got {most!r} and {when.debounce!r}")
    return Debounce(seconds, longest)


def check_when(when: object, run_id: object = None, multitask: str = "enqueue") -> When:
    """Check that a submission's time fits its other options; None means at once.

    Raises:
        TypeError: it is no `When`.
        ValueError: a debounced job has a run id, though its input may replace that of another job;
            or a job that cancels others, which are looked up as it is submitted, has a time.
    """
    if when is None:
        return When()
    if not isinstance(when, When):
        raise TypeError(f"when must be a When such as When(delay=60), got {when!r}")
    if run_id is not None and when.debounce is not None:
        raise ValueError(
            f"a debounced job must have no run_id of its own, got {run_id!r}: it may take the "
            "place of a job that has one"
        )
    if multitask != "enqueue" and when != When():
        raise ValueError(
            f"a job that does not enqueue must have no time, got {when!r}: which jobs are in its "
            "way is decided as it is submitted"
        )
    return when


def check_seconds(name: str, value: float | timedelta) -> float:
    """Return a number of seconds or a timedelta as seconds.

    Raises:
        TypeError: it is neither.
        ValueError: it is negative, not finite, or longer than `LONGEST`.
    """
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{name} must be a number of seconds or a timedelta, got {value!r}")
    if not (isfinite(seconds) and 0 <= seconds <= LONGEST.total_seconds()):
        raise ValueError(
            f"{name} must be 0 seconds or more, and at most {LONGEST.days} days, got {value!r}"
        )
    return float(seconds)
