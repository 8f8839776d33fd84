"""What a `@task` call from sync code returns. Loaded with the first call: `concurrent.futures`
loads `logging` and others (benchmark P26).
"""

from __future__ import annotations

from concurrent.futures import CancelledError, Future
from typing import Any

from ..clock import CLOCK


class CallFuture(Future[Any]):
    """What a call from sync code returns.

    Attributes:
        retrieved: whether anybody has seen how it ended.
        coroutine: the asyncio task that runs it, if it is one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.retrieved: bool = False
        self.coroutine: Any = None

    def result(self, timeout: float | None = None) -> Any:
        """The call's result; waits for it.

        Raises:
            TimeoutError: it is not there within `timeout` seconds.
            BaseException: whatever the call raised.
        """
        try:
            return super().result(self._wait_by_clock(timeout))
        finally:
            self.retrieved = self.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the call raised, or None; waits for it."""
        self.retrieved = True
        return super().exception(self._wait_by_clock(timeout))

    def peek(self) -> BaseException | None:
        """As `exception`, but it does not count as having looked; None if the call was
        cancelled."""
        try:
            return super().exception(self._wait_by_clock(None))
        except CancelledError:
            return None

    def _wait_by_clock(self, timeout: float | None) -> float | None:
        """Wait here if the time is moved by hand; what is left of the timeout."""
        if CLOCK.virtual is None or self.done():
            return timeout
        CLOCK.virtual.wait(self.done, timeout)
        return None if timeout is None else 0
