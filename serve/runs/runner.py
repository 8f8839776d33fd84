"""The interface between the routes and what executes runs: this process (`in_process`), or workers
(`fleet`), with what both do alike."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

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


async def first_of(
    *work: Awaitable[Any], timeout: float | None = None
) -> list[asyncio.Future[Any]]:
    """Wait until one of several is done, or the time is over, and cancel those that are not."""
    begun: list[asyncio.Future[Any]] = [*map(asyncio.ensure_future, work)]
    try:
        await asyncio.wait(begun, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in begun:
            each.cancel()
    return begun


class ThreadNews:
    """Wakes readers that wait for the next run of a thread. Belongs to one event loop."""

    def __init__(self) -> None:
        self._news: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()

    def of(self, thread_id: str) -> asyncio.Event:
        """Return the event that the next run sets. Get it before you look for runs."""
        return self._news.setdefault(thread_id, asyncio.Event())

    def tell(self, thread_id: str) -> None:
        """Wake the readers of a thread because a run of it has begun."""
        if (news := self._news.pop(thread_id, None)) is not None:
            news.set()


class Runner(ABC):
    """Begins, watches and stops runs, each given by its record.

    Args:
        graphs: the graphs by name, with their checkpointer.
        open_runs: refuses runs beyond the limits.

    Attributes:
        queue: that whose workers execute the runs; None if this process executes them.
        stopping: set once no more runs are accepted.
        news: wakes the readers of a thread when a run has begun.
    """

    queue: QueueCare | None = None

    def __init__(
        self, graphs: Mapping[str, Pregel], records: Records, open_runs: OpenRuns
    ) -> None:
        self._graphs, self._records, self._open = graphs, records, open_runs
        self._loop: asyncio.AbstractEventLoop | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self.stopping: asyncio.Event = asyncio.Event()
        self.news: ThreadNews = ThreadNews()

    async def open(self) -> None:
        """Continue the runs that an earlier server has left."""
        self._loop = asyncio.get_running_loop()

    def leaves(self, app: Pregel, version: str | None) -> bool:
        """Return whether what belongs to this version of a graph is left to another server. None,
        as of a thread at rest, belongs to none."""
        return False

    async def submit(self, record: Record, thread: Record, also: Changes = NOTHING_ELSE) -> None:
        """Store a run, and begin it as soon as its thread is free. The caller holds the lock of the
        thread's record.

        Args:
            thread: the record of its thread after that write.
            also: records to write together with it, all or none.

        Raises:
            ItemChangedError: a record that was seen has changed; nothing is stored.
            Refused: the thread is busy and the run must not wait, or there are too many runs.
        """
        if self.stopping.is_set():
            raise Refused(503, "the server is stopping: try again")
        await self.check_room(record["owner"])
        self._open.add(record["run_id"], record["owner"])
        try:
            await self._begin(record, thread, also)
        except BaseException:
            self._open.remove(record["run_id"], begun=False)
            raise
        self.news.tell(record["thread_id"])

    async def check_room(self, owner: str) -> None:
        """Check that one more run may begin.

        Raises:
            Refused: there are too many.
        """
        self._open.check(owner)

    @abstractmethod
    async def _begin(self, record: Record, thread: Record, also: Changes) -> None:
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

    async def release(self, job: JobResult, *, to_retry: bool) -> bool:
        """Retry a parked job (a dead letter), or end it, as if its run had been stopped; return
        whether it was parked."""
        return False

    @abstractmethod
    async def forget(self, thread_id: str, run_id: str | None = None) -> None:
        """Drop all that is kept of a run besides its records, which are about to be deleted: nobody
        reads it any more, and its job does not run. The caller holds the lock of the thread's
        record.

        Args:
            run_id: None for all runs of the thread.
        """

    async def find(self, run_id: str, thread_id: str) -> Record | None:
        """Return the record of a run of a thread; None if there is none. A run whose record is not
        kept is found for as long as it is in memory."""
        record = await self._records.find("runs", run_id, thread_id) or self.recall(run_id)
        return record if record is not None and record["thread_id"] == thread_id else None

    def recall(self, run_id: str) -> Record | None:
        """Return a run whose record was deleted, if it is still in memory."""
        return None

    @abstractmethod
    async def status(self, record: Record) -> str:
        """Return the current status of a run; "pending" or "running" after its last event if
        another server continues it."""

    @abstractmethod
    async def is_busy(self, thread_id: str) -> bool:
        """Return whether a run of the thread is in progress or waits. Neither a parked run counts
        nor one whose graph is not served."""

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
        await first_of(self.stopping.wait(), timeout=seconds)
        return self.stopping.is_set()

    @abstractmethod
    async def close(self, seconds: float) -> None:
        """Stop, at the latest this many seconds after the beginning of the stop."""


def puts_of(run: Record, *, deleted: bool = False) -> list[Put]:
    """Return what is written when a run begins: its record, and the pointer to it; or to delete
    both."""
    id, thread_id = run["run_id"], run["thread_id"]
    record, pointer = (None, None) if deleted else (run, pointer_to(run))
    return [("runs", id, record, thread_id), ("unfinished", id, pointer, thread_id)]
