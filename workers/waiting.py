"""`ResultWaiter`: returns the status of a job, now or at its end, and streams what it sends until
then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from threading import Event
from typing import Any

from .chunk_batches import ChunkReads
from .chunks import Asked, ChunkTable, StreamChunk
from .database import JobDatabase
from .jobs import JobCodec, JobName, JobResult, check_thread, hash_name, read_result
from .listener import Listener

POLL = 1.0
"""Seconds between two looks at a job without a notice."""

CallOnThread = Callable[..., Awaitable[Any]]
"""Runs a blocking function on a thread, for a coroutine."""


class ResultWaiter:
    """Looks up jobs of one graph, and waits for their ends.

    Args:
        listener: sends notices of ends, which may get lost: waiting also polls.
    """

    def __init__(
        self, database: JobDatabase, graph: str, codec: JobCodec, listener: Listener
    ) -> None:
        self._database, self._graph, self._codec = database, graph, codec
        self._listener = listener
        self._chunks = ChunkTable(database, codec)
        self._reads = ChunkReads(self._chunks)

    def wait(self, thread_id: str, run_id: str | None, seconds: float | None) -> JobResult:
        """Return the status of a job at its end, or after this many seconds; None to wait as long
        as it takes.

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
            found = self._begin(id, thread_id, found)
            while found.open and (left := _seconds_left(deadline)) > 0:
                ended.wait(min(left, POLL))
                ended.clear()
                _, found = self._look(thread_id, found.run_id)
        return found

    async def await_end(
        self, call: CallOnThread, thread_id: str, run_id: str | None, seconds: float | None
    ) -> JobResult:
        """Do the same as `wait`, for coroutines: no thread is held while it waits."""
        deadline = None if seconds is None else time.monotonic() + seconds
        found: JobResult
        id, found = await call(self._look, thread_id, run_id)
        if not found.open or seconds == 0:
            return found
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        with self._listener.notify(id, lambda: loop.call_soon_threadsafe(ended.set)):
            found = await call(self._begin, id, thread_id, found)
            while found.open and (left := _seconds_left(deadline)) > 0:
                await _wait(ended, min(left, POLL))
                ended.clear()
                _, found = await call(self._look, thread_id, found.run_id)
        return found

    def _begin(self, id: int, thread_id: str, found: JobResult) -> JobResult:
        """Announce that somebody waits for a job that was open; return its status now."""
        # If nothing was changed, it may have ended since, or others already wait.
        return found if self._add_waiter(id) else self._look(thread_id, found.run_id)[1]

    def stream(self, thread_id: str, run_id: str | None, after: int) -> Iterator[StreamChunk]:
        """Yield the chunks of a job that follow the one with this number, until the job has ended.

        Raises:
            ChunksGoneError: some of them were dropped.
            LookupError: there is no such job.
            StorageError: the database was out of reach.
        """
        id, found = self._look(thread_id, run_id)
        name, news = JobName(self._graph, thread_id, found.run_id), Event()
        with self._listener.notify(id, news.set):
            self._add_waiter(id)
            is_open = True
            while is_open:
                news.clear()
                is_open, chunks = self._chunks.read(Asked(id, name, after))
                for chunk in chunks:
                    after = chunk.seq
                    yield chunk
                if is_open and not chunks:
                    news.wait(POLL)

    async def astream(
        self, call: CallOnThread, thread_id: str, run_id: str | None, after: int
    ) -> AsyncIterator[StreamChunk]:
        """Do the same as `stream`, for coroutines: no thread is held while it waits."""
        id, found = await call(self._look, thread_id, run_id)
        name, news = JobName(self._graph, thread_id, found.run_id), asyncio.Event()
        loop = asyncio.get_running_loop()
        with self._listener.notify(id, lambda: loop.call_soon_threadsafe(news.set)):
            await call(self._add_waiter, id)
            is_open = True
            while is_open:
                news.clear()
                is_open, chunks = await self._reads.read(Asked(id, name, after))
                for chunk in chunks:
                    after = chunk.seq
                    yield chunk
                if is_open and not chunks:
                    await _wait(news, POLL)

    def last_chunk(self, thread_id: str, run_id: str | None) -> int:
        """Return the number of the newest chunk of a job; 0 if there is none."""
        return self._chunks.last(self._look(thread_id, run_id)[0])

    def _look(self, thread_id: str, run_id: str | None) -> tuple[int, JobResult]:
        """Return the number of a job, and its status."""
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

    def _add_waiter(self, id: int) -> bool:
        """Request a notice for the end of a job; return whether the job is open and nobody has
        requested one before."""
        added = self._database.look_up("add_waiter", id)
        if added == [(True,)]:
            # A claim passes over rows that are locked, as this one has just been.
            self._database.run("notify_workers", hash_name(self._graph))
        return bool(added)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most this long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _seconds_left(deadline: float | None) -> float:
    return POLL if deadline is None else deadline - time.monotonic()
