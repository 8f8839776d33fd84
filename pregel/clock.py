"""The clock of the engine: whatever in it looks at a time limit, or waits for a time, does so here.

So `testing.virtual_time` can put another one in its place. What is only measured (the spans of
tasks, how long a run may hold an event loop) is real time. Checkpointers, stores, and executors in
other processes have clocks of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from math import inf
from threading import TIMEOUT_MAX
from typing import Any, Protocol


def read_seconds(name: str, given: Any, *, zero: bool = False) -> float:
    """Return a duration in seconds.

    Args:
        zero: it may be no time at all, and not endless; else the other way round.

    Raises:
        TypeError: it is neither a number nor a timedelta.
        ValueError: it is negative, or what it may not be.
    """
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"{name} must be a number of seconds or a timedelta, got {given!r}")
    if not (0 <= seconds < inf if zero else seconds > 0):
        least = "0 seconds or more, and finite" if zero else "greater than 0 seconds"
        raise ValueError(f"{name} must be {least}, got {given!r}")
    return seconds


class Virtual(Protocol):
    """What moves the time by hand, as far as the engine knows it."""

    def wait(self, ready: Callable[[], bool], seconds: float | None) -> None:
        """Wait until this is true, or so much time has passed."""

    def adopt(self, loop: Any) -> None:
        """Timers of this event loop wait for this time."""


class Clock:
    """The time of this process. The functions are those of `time`, called without a detour.

    Attributes:
        time: seconds since the epoch.
        monotonic: seconds on a clock that does not step back.
        sleep: wait for some seconds on this thread.
        virtual: what moves the time by hand; None while it passes by itself.
    """

    __slots__ = ("monotonic", "sleep", "time", "virtual")

    def __init__(self) -> None:
        self.virtual: Virtual | None = None
        self.run_freely()

    def run_freely(self) -> None:
        """Let the time pass by itself."""
        self.time: Callable[[], float] = time.time
        self.monotonic: Callable[[], float] = time.monotonic
        self.sleep: Callable[[float], None] = time.sleep

    def acquire(self, lock: Any, seconds: float | None) -> None:
        """Wait for a lock, for so long at most."""
        if self.virtual is None:
            lock.acquire(timeout=-1 if seconds is None else min(seconds, TIMEOUT_MAX))
            return
        self.virtual.wait(lambda: not lock.locked(), seconds)
        lock.acquire(blocking=False)


CLOCK = Clock()
