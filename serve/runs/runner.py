"""The interface between the routes and what executes runs: this process (`in_process`), or workers
(`fleet`), with what both do alike."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from ..errors import Refused
from ..events import Events
from ..limits import OpenRuns
from ..records import NOTHING_ELSE, Changes, Put, Record, Records, pointer_to

if TYPE_CHECKING:
    from ...pregel.app import Pregel
    from ...workers import JobResult
    from ...workers.care import QueueCare

Stop = Literal["interrupt", "rollback"]
"""How a run is stopped. "interrupt": what it has stored stays. "rollback": its thread returns to
the state before the run, and its record is deleted."""


class Runner(ABC):
    """Begins, watches and stops runs, each given by its record.

    Args:
        graphs: the graphs by name, with their checkpointer.
        open_runs: refuses runs beyond the limits.

    Attributes:
        stopping: set once no more runs are accepted.
    """

    def __init__(
        self, graphs: Mapping[str, Pregel], records: Records, open_runs: OpenRuns
    ) -> None:
        self._graphs, self._records, self._open = graphs, records, open_runs
        self._loop: asyncio.AbstractEventLoop | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self.stopping: asyncio.Event = asyncio.Event()

    @property
    def queue(self) -> QueueCare | None:
        """The queue whose workers execute the runs; None if this process executes them."""
        return None

    async def open(self) -> None:
        """Continue the runs that an earlier server has left."""
        self._loop = asyncio.get_running_loop()

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
        if self.stopping.is_set():
            raise Refused(503, "the server is stopping: try again")
        await self._check_room(record["owner"])
        self._open.add(record["run_id"], record["owner"])
        try:
            await self._begin(record, also, thread)
        except BaseException:
            self._open.remove(record["run_id"], begun=False)
            raise

    async def _check_room(self, owner: str) -> None:
        """Check that one more run may begin.

        Raises:
            Refused: there are too many.
        """
        self._open.check(owner)

    @abstractmethod
    async def _begin(self, record: Record, also: Changes, thread: Record | None) -> None:
        """Store a run, and begin it; see `submit`."""

    @abstractmethod
    async def answer(self, record: Record) -> bytes | None:
        """Return the state at the end of a run, as JSON; None if only the thread's own state is
        left.

        Raises:
            Refused: this server stops before the run has ended.
        """

    @abstractmethod
    def events(self, record: Record, start: int | None) -> Events:
        """Yield the events of a run until it ends or this server stops.

        Args:
            start: the id of the first event to send; None for only the events that are still to
                come.
        """

    @abstractmethod
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

    @abstractmethod
    async def forget(self, thread_id: str, run_id: str | None = None) -> None:
        """Drop all that is kept of a run besides its records, which are about to be deleted: nobody
        reads it any more, and its job does not run. The caller holds the lock of the thread's
        record.

        Args:
            run_id: None for all runs of the thread.
        """

    @abstractmethod
    async def wait_until_free(self, thread_id: str) -> None:
        """Wait until the runs that a thread has now have ended."""

    @abstractmethod
    def is_left(self, record: Record) -> bool:
        """Return whether another server continues a run because this one stops."""

    def recall(self, run_id: str) -> Record | None:
        """Return a run whose record was deleted, if it is still in memory."""
        return None

    @abstractmethod
    async def status(self, record: Record) -> str:
        """Return the current status of a run."""

    @abstractmethod
    async def is_busy(self, thread_id: str) -> bool:
        """Return whether a run of the thread is in progress or waits."""

    @abstractmethod
    async def has_open_runs(self, thread_id: str) -> bool:
        """Return whether a run of the thread is in progress, waits, or begins later. Neither a
        parked run counts nor one whose graph is not served."""

    @abstractmethod
    async def busy_threads(self) -> list[str]:
        """Return the threads with runs that are in progress or wait."""

    @abstractmethod
    async def live(self) -> list[Record]:
        """Return the runs that are in progress or wait."""

    def begin_to_stop(self) -> None:
        """Accept no more runs, and let all readers and waiting clients end. May be called from any
        thread and from a signal handler."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_to_stop)

    @abstractmethod
    def _begin_to_stop(self) -> None:
        """Do the same, in the event loop."""

    async def _stops_within(self, seconds: float) -> bool:
        """Wait for a while; return whether the stop has begun."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), seconds)
        return self.stopping.is_set()

    @abstractmethod
    async def close(self, seconds: float) -> None:
        """Stop, at the latest this many seconds after the beginning of the stop."""


def puts_of_begin(record: Record) -> list[Put]:
    """Return what is written when a run begins: its record, and the pointer to it."""
    id, thread_id = record["run_id"], record["thread_id"]
    return [("runs", id, record, thread_id), ("unfinished", id, pointer_to(record), thread_id)]


def puts_of_deletion(run: Record) -> list[Put]:
    """Return what is written to delete the record of a run, and the pointer to it."""
    id, thread_id = run["run_id"], run["thread_id"]
    return [("runs", id, None, thread_id), ("unfinished", id, None, thread_id)]
