"""When a job is to run: checks the callers' arguments and converts them for the statements."""

from __future__ import annotations

from datetime import datetime, timedelta
from math import isfinite
from typing import NamedTuple

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


class When(NamedTuple):
    """When jobs are to run: this many seconds after they are submitted, or at a time in seconds
    since 1970; with neither, at once. The database's clock decides."""

    delay: float | None = None
    at: float | None = None

    @property
    def later(self) -> bool:
        """Whether a time was given."""
        return self != NOW


NOW = When()


def check_when(delay: float | timedelta | None, at: datetime | None) -> When:
    """Check the arguments of a submission that say when the job is to run.

    Raises:
        TypeError: `at` is not a datetime, or `delay` neither a number nor a timedelta.
        ValueError: both are given, `at` has no time zone, or `delay` is negative or too long.
    """
    if at is None:
        return NOW if delay is None else When(delay=check_seconds("delay", delay))
    if delay is not None:
        raise ValueError(f"a job must have a delay or a time, got both: delay={delay!r}, at={at!r}")
    if not isinstance(at, datetime):
        raise TypeError(f"at must be a datetime, got {at!r}")
    if at.utcoffset() is None:
        raise ValueError(f"at must have a time zone, such as datetime.now(UTC), got {at!r}")
    return When(at=at.timestamp())


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


def check_debounce(
    debounce: float | timedelta | None, most: float | timedelta | None
) -> Debounce | None:
    """Check the arguments for debouncing; None if there are none.

    Raises:
        TypeError: they are neither numbers nor timedeltas.
        ValueError: `most` is given alone or is below `debounce`, or one of them is out of range.
    """
    if debounce is None:
        if most is not None:
            raise ValueError(f"debounce_max must come with debounce, got {most!r} alone")
        return None
    seconds = check_seconds("debounce", debounce)
    longest = LONGEST.total_seconds() if most is None else check_seconds("debounce_max", most)
    if longest < seconds:
        raise ValueError(f"debounce_max must be at least debounce, got {most!r} and {debounce!r}")
    return Debounce(seconds, longest)


def check_alone(**others: object) -> None:
    """Refuse options that a debounced job cannot have, since its input may replace that of another
    job.

    Raises:
        ValueError: one of these is given.
    """
    for name, value in others.items():
        if value is not None:
            raise ValueError(
                f"a debounced job must have no {name} of its own, got {value!r}: it may take the "
                "place of a job that has one"
            )


def check_no_time(**times: object) -> None:
    """Refuse times for a job with a multitask strategy, which deals with the jobs that are open
    when it is submitted.

    Raises:
        ValueError: one of these is given.
    """
    for name, value in times.items():
        if value is not None:
            raise ValueError(
                f"a job that does not enqueue must have no {name}, got {value!r}: which jobs are "
                "in its way is decided as it is submitted"
            )
