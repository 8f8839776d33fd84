"""How a run is asked to stop: by hand, or by its deadline."""

from __future__ import annotations

from datetime import datetime

from .clock import CLOCK


class RunControl:
    """A handle by which a run can be asked to stop between two supersteps.

    `request_drain` may be called from any thread, and by a node. The run stores everything and ends
    with `GraphDrained` before its next superstep.

    Attributes:
        paused: how a run on a thread has ended that had this handle: whether it has paused, with
            questions, asleep or at a breakpoint. None before, and after an error.
    """

    __slots__ = ("drain_reason", "paused")

    def __init__(self) -> None:
        self.drain_reason: str | None = None
        self.paused: bool | None = None

    def request_drain(self, reason: str = "shutdown") -> None:
        """Ask the run to stop before its next superstep. Only the first call counts."""
        if self.drain_reason is None:
            self.drain_reason = reason

    @property
    def drain_requested(self) -> bool:
        """Whether `request_drain` was called."""
        return self.drain_reason is not None

    def end(self, *, paused: bool) -> None:
        """A run has ended without an error."""
        self.paused = paused


class Ending:
    """Whether one run, with the graphs inside, is to end early, and no other that its caller has
    given the same `RunControl`."""

    __slots__ = ("reason",)

    def __init__(self) -> None:
        self.reason: str | None = None

    def request(self, reason: str) -> None:
        """Ask the run to end before its next superstep. Only the first call counts."""
        if self.reason is None:
            self.reason = reason


class TimedControl(RunControl):
    """The control of a run with a deadline: when that has come, the run stops as if it had been
    asked to.

    Args:
        around: by which others ask it to stop.
        deadline: with a time zone.
    """

    __slots__ = ("_around", "_at", "deadline")

    def __init__(self, around: RunControl, deadline: datetime) -> None:
        self.paused = None
        self._around, self._at = around, deadline.timestamp()
        self.deadline: datetime = deadline

    @property
    def is_late(self) -> bool:
        """Whether the deadline has come, or that of a run around this one."""
        around = self._around
        return CLOCK.time() >= self._at or (isinstance(around, TimedControl) and around.is_late)

    @property
    def drain_reason(self) -> str | None:  # type: ignore[override]
        """Why the run is to stop; None as long as it may go on."""
        reason = self._around.drain_reason
        if reason is None and CLOCK.time() >= self._at:
            return f"its deadline, {self.deadline.isoformat()}, has come"
        return reason

    def request_drain(self, reason: str = "shutdown") -> None:
        """Ask the run to stop before its next superstep, and those that share its control."""
        self._around.request_drain(reason)

    def end(self, *, paused: bool) -> None:
        """The run has ended without an error."""
        self._around.end(paused=paused)
