"""The interface between the routes and what executes runs: this process (`in_process`), or workers
(`fleet`), with what both do alike."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ..events.event import Events
from ..records import NOTHING_ELSE, Changes, Record

if TYPE_CHECKING:
    from ...pregel.app import Pregel
    from ...workers import JobResult
    from ...workers.care import QueueCare

Stop = Literal["interrupt", "rollback"]
"""How a run is stopped. "interrupt": what it has stored stays. "rollback": its thread returns to
the state before the run, and its record is deleted."""


class Runner(Protocol):
    """Begins, watches and stops runs, each given by its record."""

    stopping: asyncio.Event
    """Set once no more runs are accepted."""
    _background: set[asyncio.Task[Any]]

    @property
    def queue(self) -> QueueCare | None:
        """The queue whose workers execute the runs; None if this process executes them."""
        return None

    async def open(self) -> None:
        """Continue the runs that an earlier server has left."""

    def leaves(self, app: Pregel, version: str | None) -> bool:
        """Return whether what belongs to this version of a graph is left to another server. None,
        as of a thread at rest, belongs to none."""
        return False

    async def submit(
        self, record: Record, also: Changes = NOTHING_ELSE, thread: Record | None = None
    ) -> None:
        """Store a run, and begin it as soon as its thread is free. The caller holds the lock of the
        thread's record.

        Args:
            also: records to write together with it, all or none.
            thread: the record of its thread after that write.

        Raises:
            ItemChangedError: a record that was seen has changed; nothing is stored.
            Refused: the thread is busy and the run must not wait, or there are too many runs.
        """

    async def answer(self, record: Record) -> bytes | None:
        """Return the state at the end of a run, as JSON; None if only the thread's own state is
        left.

        Raises:
            Refused: this server stops before the run has ended.
        """

    def events(self, record: Record, start: int | None) -> Events:
        """Yield the events of a run until it ends or this server stops.

        Args:
            start: the id of the first event to send; None for only the events that are still to
                come.
        """

    async def cancel(self, record: Record, how: Stop, *, wait: bool = False) -> bool:
        """Stop a run; return whether it had not ended yet.

        Args:
            wait: whether to wait until it has ended.
        """

    def cancel_soon(self, record: Record) -> None:
        """Do the same as `cancel` for a reader that has disconnected, unless the server stops."""
        if not self.stopping.is_set():
            task = asyncio.create_task(self.cancel(record, "interrupt"))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def retry(self, job: JobResult) -> bool:
        """Retry a parked job (a dead letter); return whether it was parked."""
        return False

    async def drop(self, job: JobResult) -> bool:
        """End a parked job, as if its run had been stopped; return whether it had not ended."""
        return False

    async def forget(self, thread_id: str, run_id: str | None = None) -> None:
        """Drop all that is kept of a run besides its records, which are about to be deleted: nobody
        reads it any more, and its job does not run. The caller holds the lock of the thread's
        record.

        Args:
            run_id: None for all runs of the thread.
        """

    async def wait_until_free(self, thread_id: str) -> None:
        """Wait until the runs that a thread has now have ended."""

    def is_left(self, record: Record) -> bool:
        """Return whether another server continues a run because this one stops."""

    def recall(self, run_id: str) -> Record | None:
        """Return a run whose record was deleted, if it is still in memory."""
        return None

    async def status(self, record: Record) -> str:
        """Return the current status of a run."""

    async def is_busy(self, thread_id: str) -> bool:
        """Return whether a run of the thread is in progress or waits."""

    async def has_open_runs(self, thread_id: str) -> bool:
        """Return whether a run of the thread is in progress, waits, or begins later. Neither a
        parked run counts nor one whose graph is not served."""

    async def busy_threads(self) -> list[str]:
        """Return the threads with runs that are in progress or wait."""

    async def live(self) -> list[Record]:
        """Return the runs that are in progress or wait."""

    def begin_to_stop(self) -> None:
        """Accept no more runs, and let all readers and waiting clients end. May be called from any
        thread and from a signal handler."""

    async def close(self, seconds: float) -> None:
        """Stop, at the latest this many seconds after the beginning of the stop."""
