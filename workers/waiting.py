"""`ResultWaiter`: how a job stands, now or when it has come to its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from threading import Event
from typing import Any

from .database import JobDatabase
from .jobs import JobCodec, JobResult, check_thread, hash_name, read_result
from .listener import Listener

POLL = 1.0
"""Seconds after which one who waits looks again, even without a notice."""

CallOnThread = Callable[..., Awaitable[Any]]
"""Calls a function that waits on a thread, for a coroutine."""


class ResultWaiter:
    """Looks at jobs of one graph, and waits for their ends.

    Args:
        listener: gives notice of ends. Nobody relies on it.
    """

    def __init__(
        self, database: JobDatabase, graph: str, codec: JobCodec, listener: Listener
    ) -> None:
        self._database, self._graph, self._codec = database, graph, codec
        self._listener = listener

    def wait(self, thread_id: str, run_id: str | None, seconds: float | None) -> JobResult:
        """How a job stands at its end, or after so many seconds; None for as long as it takes.

        Raises:
            LookupError: there is no such job.
            StorageError: the database was out of reach.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        id, found = self._look(thread_id, run_id)
        if not found.open or seconds == 0:
            return found
        ended = Event()
        with self._listener.notify(id, ended.set):
            self._add_waiter(id)
            id, found = self._look(thread_id, found.run_id)
            while found.open and (left := _seconds_left(deadline)) > 0:
                ended.wait(min(left, POLL))
                ended.clear()
                id, found = self._look(thread_id, found.run_id)
        return found

    async def await_end(
        self, call: CallOnThread, thread_id: str, run_id: str | None, seconds: float | None
    ) -> JobResult:
        """`wait` for coroutines: no thread is held while it waits."""
        deadline = None if seconds is None else time.monotonic() + seconds
        found: JobResult
        id, found = await call(self._look, thread_id, run_id)
        if not found.open or seconds == 0:
            return found
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        with self._listener.notify(id, lambda: loop.call_soon_threadsafe(ended.set)):
            await call(self._add_waiter, id)
            id, found = await call(self._look, thread_id, found.run_id)
            while found.open and (left := _seconds_left(deadline)) > 0:
                try:
                    await asyncio.wait_for(ended.wait(), min(left, POLL))
                except TimeoutError:
                    pass
                ended.clear()
                id, found = await call(self._look, thread_id, found.run_id)
        return found

    def _look(self, thread_id: str, run_id: str | None) -> tuple[int, JobResult]:
        """The number of a job, and how it stands."""
        check_thread(thread_id)
        if run_id is None:
            rows = self._database.look_up("newest", self._graph, hash_name(thread_id), thread_id)
        else:
            rows = self._database.look_up("of_run", self._graph, run_id, thread_id)
        if not rows:
            named = "" if run_id is None else f" named {run_id!r}"
            why = f"thread {thread_id!r} has no job{named} here"
            raise LookupError(f"{why}: none was submitted, or it has been deleted")
        return rows[0][0], read_result(rows[0][1:], self._codec)

    def _add_waiter(self, id: int) -> None:
        """Whoever ends the job sends a notice from now on."""
        self._database.retry_once(self._database.run, "add_waiter", id)


def _seconds_left(deadline: float | None) -> float:
    return POLL if deadline is None else deadline - time.monotonic()
