"""Kills this process at a place of a plan: inside a saver's call, around it, behind an effect, or after some time."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any, NamedTuple

from stategraph.testing import KillAt, kill

WRITING = ("commit", "record")
"""The methods of a saver that store."""


class Kill(NamedTuple):
    """When to kill: at the n-th call inside the saver, before or after the n-th write, after the n-th effect, or after
    some milliseconds; `at` 0 never."""

    how: str
    at: int


class Killer:
    """Counts how often each place is passed, and kills where the plan says."""

    def __init__(self, plan: Kill) -> None:
        self._plan = plan
        self._passed: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._inside = KillAt(plan.at if plan.how == "saver" else None)

    def start(self) -> None:
        """Begin to count the milliseconds, if the plan does."""
        if self._plan.how == "moment":
            timer = threading.Timer(self._plan.at / 1000, kill)
            timer.daemon = True
            timer.start()

    def passing(self, how: str) -> None:
        """This place is passed."""
        with self._lock:
            self._passed[how] += 1
            if self._plan == (how, self._passed[how]):
                kill()

    def watch(self, saver: Any, methods: tuple[str, ...] = WRITING) -> None:
        """Pass "before" and "after" around each of a saver's methods, and "saver" at each call inside."""
        self._inside.around(saver, *methods)
        for name in methods:
            setattr(saver, name, self._around(getattr(saver, name)))

    def _around(self, method: Any) -> Any:
        def call(*args: Any) -> Any:
            self.passing("before")
            result = method(*args)
            self.passing("after")
            return result

        return call

    @property
    def passed(self) -> dict[str, int]:
        """How often each place was passed."""
        return {**self._passed, "saver": self._inside.calls}
