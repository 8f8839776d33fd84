"""How long an attempt may still take, and whether it was abandoned. Pure but for the clock it is
given."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from math import inf
from typing import Any

from ..clock import CLOCK
from ..errors import GraphAbandoned, NodeTimeoutError
from ..types import TimeoutPolicy

NO_LIMIT = TimeoutPolicy()
QUEUED_SECONDS = 0.05
"""Seconds between two looks at an attempt that is queued by its executor, or waits for a reader."""


_pausing = threading.Lock()


class Deadline:
    """The time limits of one attempt, from now on.

    Args:
        above: the deadline of the attempt around this one: a sign of life is one for both, and who
            abandons that one abandons this one too.
        clock: seconds on a clock that does not step back; None for that of the engine.
    """

    __slots__ = (
        "_abandoned", "_above", "_clock", "_paused", "_paused_at", "_policy", "_queued", "_sign",
        "_started",
    )  # fmt: skip

    def __init__(
        self,
        policy: TimeoutPolicy = NO_LIMIT,
        above: Deadline | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._policy = policy
        self._above = above
        self._clock = clock = clock or CLOCK.monotonic
        self._started = self._sign = clock()
        self._queued = False
        self._paused = 0
        self._paused_at = 0.0
        self._abandoned = False

    @property
    def abandoned(self) -> bool:
        """Whether nobody waits for this attempt any longer, or for one around it. What it still
        says and stores is dropped."""
        return self._abandoned or (self._above is not None and self._above.abandoned)

    def abandon(self) -> None:
        """Wait for the attempt no longer."""
        self._abandoned = True

    def touch(self, *, heartbeat: bool = False) -> None:
        """Take a sign of life: restart the idle limit, unless the policy counts heartbeats only."""
        if heartbeat or self._policy.refresh_on == "auto":
            self._sign = self._clock()
        if self._above is not None:
            self._above.touch(heartbeat=heartbeat)

    def check(self) -> None:
        """Take a sign of life, and end an attempt that nobody waits for.

        Raises:
            GraphAbandoned: nobody waits for it.
        """
        self.touch()
        if self.abandoned:
            raise GraphAbandoned

    def fence(self, put: Callable[[Any], None]) -> Callable[[Any], None]:
        """`put`, as long as the attempt is not abandoned."""
        return lambda chunk: None if self.abandoned else put(chunk)

    def queue(self) -> None:
        """Stop the clock while the attempt waits for a place to run."""
        self._queued = True

    def start(self) -> None:
        """Start the clock: the attempt has a place to run."""
        self._started = self._sign = self._clock()
        self._queued = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock, also of the attempts around it, while the attempt waits for the reader of
        its stream. Its threads may wait side by side."""
        with _pausing:
            if not self._paused:
                self._paused_at = self._clock()
            self._paused += 1
        try:
            with nullcontext() if self._above is None else self._above.paused():
                yield
        finally:
            with _pausing:
                self._paused -= 1
                if not self._paused:
                    now = self._clock()
                    waited = now - self._paused_at
                    self._started += waited
                    self._sign = min(self._sign + waited, now)

    def remaining(self) -> float:
        """Seconds until the nearer limit; zero or less once it is hit."""
        if self._queued or self._paused:
            return QUEUED_SECONDS
        return min(self._limits())[0]

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


class ChildDeadline(Deadline):
    """That of a call made by a timed attempt: its signs of life reach the caller, but it is a task
    of its own and is not abandoned with it, for the caller's next attempt may find it."""

    __slots__ = ()

    @property
    def abandoned(self) -> bool:
        """Never: it ends when it ends."""
        return False


class ThreadDeadline(Deadline):
    """That of an attempt which an event loop runs on a thread. The thread runs on when the wait for
    it is cancelled: the attempt is abandoned then. It has the limits of its `own` deadline, if it
    has one.
    """

    __slots__ = ("own",)

    def __init__(self, own: Deadline | None, above: Deadline | None) -> None:
        super().__init__(above=above if own is None else own)
        self.own: Deadline | None = own

    def queue(self) -> None:
        """See `Deadline.queue`."""
        if self.own is not None:
            self.own.queue()

    def start(self) -> None:
        """See `Deadline.start`."""
        if self.own is not None:
            self.own.start()

    def remaining(self) -> float:
        """See `Deadline.remaining`."""
        return inf if self.own is None else self.own.remaining()
