"""How long an attempt may still take. Pure but for the clock it is given."""

from __future__ import annotations

import time
from collections.abc import Callable

from .errors import NodeTimeoutError
from .types import TimeoutPolicy


class Watch:
    """The limits of one attempt, from now on.

    Args:
        clock: seconds on a clock that does not step back.
    """

    __slots__ = ("_clock", "_policy", "_sign", "_started")

    def __init__(self, policy: TimeoutPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._started = self._sign = clock()

    def touch(self, *, heartbeat: bool = False) -> None:
        """A sign of life: the idle limit starts anew, unless the policy counts heartbeats only."""
        if heartbeat or self._policy.refresh_on == "auto":
            self._sign = self._clock()

    def left(self) -> float:
        """Seconds until the nearer limit; zero or less once it is hit."""
        now, policy = self._clock(), self._policy
        limits = []
        if policy.run_timeout is not None:
            limits.append(self._started + policy.run_timeout - now)
        if policy.idle_timeout is not None:
            limits.append(self._sign + policy.idle_timeout - now)
        return min(limits)

    def error(self, node: str) -> NodeTimeoutError:
        """What to raise for the limit that was hit."""
        now, policy = self._clock(), self._policy
        run = policy.run_timeout
        if run is not None and now - self._started >= run:
            return NodeTimeoutError(node, now - self._started, "run", run)
        return NodeTimeoutError(node, now - self._started, "idle", policy.idle_timeout or 0.0)
