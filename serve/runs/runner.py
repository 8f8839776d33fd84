"""The interface between the routes and what runs graphs: this process (`in_process`), or workers
(`fleet`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Literal, Protocol

from ..records import NOTHING_ELSE, Changes, Record

if TYPE_CHECKING:
    from ...workers import JobResult
    from ...workers.care import QueueCare

Stop = Literal["interrupt", "rollback"]
"""How a run is stopped. "interrupt": what it has stored stays. "rollback": its thread stands where
it stood before, and its record is deleted."""


class Runner(Protocol):
    """Begins, watches and stops runs, each by its record."""

    @property
    def queue(self) -> QueueCare | None:
        """The queue of the workers that do the runs; None where this process does them itself."""

    @property
    def stopping(self) -> asyncio.Event:
        """Set once no more runs are taken."""

    async def open(self) -> None:
        """Go on with what an earlier server has left."""

    async def submit(
        self, record: Record, also: Changes = NOTHING_ELSE, thread: Record | None = None
    ) -> None:
        """Store a run, and let it begin as soon as its thread is free. The caller holds the lock of
        the thread's record.

        Args:
            also: records that are written with it, all or none.
            thread: the record of its thread, as it is then.

        Raises:
            ItemChangedError: a record that was seen is not so any more; nothing is stored.
            Refused: the thread is busy and the run does not want to wait, or there are too many.
        """

    async def answer(self, record: Record) -> bytes | None:
        """The state at the end of a run, as JSON; None if only the thread's state is left of it.

        Raises:
            Refused: this server stops before the run has ended.
        """

    def events(self, record: Record, start: int | None) -> AsyncIterator[bytes]:
        """What a run sends, as parts of a `text/event-stream`, until it ends or this server stops.

        Args:
            start: the id of the first event that is wanted; None for those that come from now on.
        """

    async def cancel(self, record: Record, how: Stop, *, wait: bool = False) -> bool:
        """Stop a run; whether it had not ended yet.

        Args:
            wait: until it has ended.
        """

    def cancel_soon(self, record: Record) -> None:
        """`cancel` for a reader who has gone, unless that is because the server stops."""

    async def retry(self, job: JobResult) -> bool:
        """Let a job be tried again that is parked, a dead letter; whether it was."""

    async def drop(self, job: JobResult) -> bool:
        """End a job that is parked, as if its run had been stopped; whether it had not ended."""

    async def drop_dead_letters(self, thread_id: str) -> None:
        """End those of a thread that is about to be deleted. The caller holds the lock of its
        record."""

    async def wait_until_free(self, thread_id: str) -> None:
        """Wait until the runs have ended that a thread has now."""

    def is_left(self, record: Record) -> bool:
        """Whether a run goes on in another server, as this one stops."""

    def recall(self, run_id: str) -> Record | None:
        """A run that is not on record any more, if it is still known."""

    async def status(self, record: Record) -> str:
        """How a run stands at this moment."""

    async def is_busy(self, thread_id: str) -> bool:
        """Whether a run of the thread is under way, or waits."""

    async def busy_threads(self) -> list[str]:
        """The threads of which that is so."""

    async def live(self) -> list[Record]:
        """The runs that are under way, or wait."""

    def begin_to_stop(self) -> None:
        """Take no more runs, and let all who read or wait come to an end. For any thread, and for a
        signal handler."""

    async def close(self, seconds: float) -> None:
        """Stop, at the latest after so many seconds from the beginning of the stop."""
