"""What an `EngineObserver` puts around a run, the attempts of its tasks and its routers. Unlike the
methods of an `Observer`, those of a span may be coroutines, and it surrounds writers, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

EVERYWHERE: Final[list[Any]] = []
"""The observers of all runs of this process; see `add_observer`."""


class RemoteSpan(Protocol):
    """Surrounds the part of an attempt that an executor runs in another process. It is pickled."""

    def enter(self, send: Callable[[Any], None]) -> None:
        """Begin in this context, just before the work does.

        Args:
            send: takes what `receive` of the span gets in the driver, pickled; from any thread.
        """


class Span:
    """Surrounds one piece of work; this one does nothing. A sync run calls `enter` and `leave` on
    the thread that does the work, an async one awaits `aenter` and `aleave` there: context
    variables that they set are seen by the work."""

    def enter(self) -> None:
        """Begin, just before the work does."""

    def returned(self, result: Any) -> None:
        """Take what the user's function has returned. Not called if it raises."""

    def leave(self, error: BaseException | None) -> None:
        """End with the work, and with its error if any; signals such as a pause count as errors."""

    async def aenter(self) -> None:
        """`enter`, on an event loop."""
        self.enter()

    async def aleave(self, error: BaseException | None) -> None:
        """`leave`, on an event loop."""
        self.leave(error)

    def remote(self) -> RemoteSpan | None:
        """The span to send to the process where an attempt runs; None if there is nothing to do.
        The attempt has begun."""
        return None

    def receive(self, data: Any) -> None:
        """Take what the remote span has sent; called on any thread."""
