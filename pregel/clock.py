"""The clock of the engine: whatever in it asks for the time, or waits for some, does so here.

So `testing.virtual_time` can put another one in its place. Savers, stores and executors in other
processes have clocks of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


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
        self.virtual: Any = None
        self.run_freely()

    def run_freely(self) -> None:
        """Let the time pass by itself."""
        self.time: Callable[[], float] = time.time
        self.monotonic: Callable[[], float] = time.monotonic
        self.sleep: Callable[[float], None] = time.sleep


CLOCK = Clock()
