"""How long an attempt may still take, and whether it was given up. Pure but for the clock it is given."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Any

from ..errors import GraphAbandoned, NodeTimeoutError
from ..types import TimeoutPolicy

NO_LIMIT = TimeoutPolicy()
HELD = 0.05
"""Seconds between two looks at an attempt that waits for a place to run."""


class Watch:
    """The limits of one attempt, from now on.

    Args:
        above: the watch of the attempt around this one: a sign of life is one for both, and what gives up that one
            gives up this one too.
        clock: seconds on a clock that does not step back.

    Attributes:
        given_up: nobody waits for the attempt any longer; what it still says and stores is dropped.
    """

    __slots__ = ("_above", "_clock", "_held", "_policy", "_sign", "_started", "given_up")

    def __init__(
        self,
        policy: TimeoutPolicy = NO_LIMIT,
        above: Watch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = policy
        self._above = above
        self._clock = clock
        self._started = self._sign = clock()
        self._held = False
        self.given_up = False

    @property
    def over(self) -> bool:
        """Whether this attempt, or one around it, was given up."""
        return self.given_up or (self._above is not None and self._above.over)

    def touch(self, *, heartbeat: bool = False) -> None:
        """A sign of life: the idle limit starts anew, unless the policy counts heartbeats only."""
        if heartbeat or self._policy.refresh_on == "auto":
            self._sign = self._clock()
        if self._above is not None:
            self._above.touch(heartbeat=heartbeat)

    def check(self) -> None:
        """A sign of life of an attempt that goes on only if somebody waits for it.

        Raises:
            GraphAbandoned: nobody does.
        """
        self.touch()
        if self.over:
            raise GraphAbandoned

    def fence(self, put: Callable[[Any], None]) -> Callable[[Any], None]:
        """`put`, as long as the attempt is not given up."""
        return lambda chunk: None if self.over else put(chunk)

    def hold(self) -> None:
        """The attempt waits for a place to run: that does not count."""
        self._held = True

    def begin(self) -> None:
        """It has one: now its time begins."""
        self._started = self._sign = self._clock()
        self._held = False

    def left(self) -> float:
        """Seconds until the nearer limit; zero or less once it is hit."""
        return HELD if self._held else min(self._limits())[0]

    def error(self, node: str) -> NodeTimeoutError:
        """What to raise for the limit that was hit."""
        _, kind, limit = min(self._limits())
        return NodeTimeoutError(node, self._clock() - self._started, kind, limit)

    def _limits(self) -> list[tuple[float, str, float]]:
        """Seconds left, which limit, its length; for each limit there is."""
        now, policy = self._clock(), self._policy
        limits = [(inf, "run", inf)]
        if policy.idle_timeout is not None:
            limits.append((self._sign + policy.idle_timeout - now, "idle", policy.idle_timeout))
        if policy.run_timeout is not None:
            limits.append((self._started + policy.run_timeout - now, "run", policy.run_timeout))
        return limits


class Pulse(Watch):
    """The watch of a call made by a timed attempt: its signs of life reach the caller, but it is a task of its own and
    is not given up with it, for the caller's next attempt may find it."""

    __slots__ = ()

    @property
    def over(self) -> bool:
        """Never: it ends when it ends."""
        return False
