"""`QueueResults`: what comes of the jobs of a queue, at their end and on the way. Nothing is
submitted here; what waits and looks is in `waiting`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from .care import QueueCare
from .chunks import StreamChunk
from .jobs import JobResult
from .waiting import ResultWaiter


class QueueResults(QueueCare):
    """The part of `Queue` that tells what jobs have done."""

    _waiter: ResultWaiter

    # -- wait for results --------------------------------------------------------------------------

    def result(
        self, thread_id: str, *, run_id: str | None = None, wait: float | None = None
    ) -> JobResult:
        """How a job stands, and what came of it.

        Args:
            thread_id: its thread; the one that was submitted last is meant, unless `run_id` says
                which.
            wait: seconds to wait for its end; None for as long as it takes, 0 to look only.

        Raises:
            LookupError: there is none, or it was deleted.
            StorageError: the database was out of reach for `timeout` seconds, however long `wait`
                is. Ask again.
        """
        return self._waiter.wait(thread_id, run_id, wait)

    async def aresult(
        self, thread_id: str, *, run_id: str | None = None, wait: float | None = None
    ) -> JobResult:
        """`result` for coroutines: no thread is held while it waits."""
        return await self._waiter.await_end(self._acall, thread_id, run_id, wait)

    # -- read streams ------------------------------------------------------------------------------

    def stream(
        self, thread_id: str, *, run_id: str | None = None, after: int = 0
    ) -> Iterator[StreamChunk]:
        """What a job sends that was submitted with a `stream_mode`, from its beginning until it has
        ended. Any process may read it, at any time, until the job is forgotten.

        Args:
            thread_id: its thread; the job that was submitted last is meant, unless `run_id` says
                which.
            after: the number of the last chunk that was seen already.

        Raises:
            ChunksGoneError: chunks that follow are not kept any more; of a job, 16 MB are.
            LookupError: there is none, or it was deleted.
            StorageError: the database was out of reach. Ask again, with `after`.
        """
        return self._waiter.stream(thread_id, run_id, after)

    def astream(
        self, thread_id: str, *, run_id: str | None = None, after: int = 0
    ) -> AsyncIterator[StreamChunk]:
        """`stream` for coroutines: no thread is held while it waits."""
        return self._waiter.astream(self._acall, thread_id, run_id, after)

    async def alast_chunk(self, thread_id: str, *, run_id: str | None = None) -> int:
        """The number of the newest chunk of a job's stream; 0 if there is none.

        Raises:
            LookupError: there is no such job, or it was deleted.
        """
        return await self._acall(self._waiter.last_chunk, thread_id, run_id)
