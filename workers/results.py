"""`QueueResults`: reads the results and the streams of a queue's jobs. It submits nothing;
`waiting` does the waiting and polling."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from .care import QueueCare
from .chunks import StreamChunk
from .jobs import JobResult
from .waiting import ResultWaiter


class QueueResults(QueueCare):
    """The part of `Queue` that reads the results and the streams of jobs."""

    _waiter: ResultWaiter

    # -- wait for results --------------------------------------------------------------------------

    def result(
        self, thread_id: str, *, run_id: str | None = None, wait: float | None = None
    ) -> JobResult:
        """Return the status and the outcome of a job.

        Args:
            thread_id: the job's thread. Without `run_id`, the job submitted last is meant.
            wait: seconds to wait for its end; None for as long as it takes, 0 not to wait.

        Raises:
            LookupError: there is no such job, or it was deleted.
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
        """Stream what a job sends, from its beginning until it has ended; the job must have been
        submitted with a `stream_mode`. Any process may read it, at any time, until the job is
        deleted.

        Args:
            thread_id: the job's thread. Without `run_id`, the job submitted last is meant.
            after: the number of the last chunk already seen.

        Raises:
            ChunksGoneError: chunks that follow were dropped; 16 MB per job are kept.
            LookupError: there is no such job, or it was deleted.
            StorageError: the database was out of reach. Ask again, with `after`.
        """
        return self._waiter.stream(thread_id, run_id, after)

    def astream(
        self, thread_id: str, *, run_id: str | None = None, after: int = 0
    ) -> AsyncIterator[StreamChunk]:
        """`stream` for coroutines: no thread is held while it waits."""
        return self._waiter.astream(self._acall, thread_id, run_id, after)

    async def alast_chunk(self, thread_id: str, *, run_id: str | None = None) -> int:
        """Return the number of the newest chunk of a job's stream; 0 if there is none.

        Raises:
            LookupError: there is no such job, or it was deleted.
        """
        return await self._acall(self._waiter.last_chunk, thread_id, run_id)
