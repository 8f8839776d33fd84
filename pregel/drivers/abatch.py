"""Jobs side by side on an event loop: the tasks of one superstep, or the runs of `abatch`. How many
at once, who starts when, what a failure stops. What a job is, its owner knows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import copy_context
from time import monotonic
from typing import Any, Generic, TypeVar

from .awaits import in_context
from .timeslice import time_slices

Job = TypeVar("Job")


class AsyncBatch(Generic[Job]):
    """Jobs side by side as coroutines: the tasks of one superstep, or whole runs.

    A worker does one after the other; only when one of them really waits is the next worker called,
    so that coroutines that never wait cost no asyncio task. Workers give way to the loop's other
    tasks by the clock.

    Args:
        execute: does one job.
        limit: how many may be under way at once.
        done: told each job that has ended, and what it raised.
    """

    __slots__ = (
        "_coming", "_done", "_execute", "_limit", "_slices", "_surplus", "_to_cancel", "_waiting",
        "_workers", "open",
    )  # fmt: skip

    def __init__(
        self,
        jobs: Sequence[Job],
        execute: Callable[[Job], Coroutine[Any, Any, None]],
        limit: int,
        done: Callable[[Job, BaseException | None], None],
    ) -> None:
        self._waiting = deque(jobs)
        self._execute = execute
        self._limit = limit
        self._done = done
        self._slices = time_slices()
        self._surplus = max(0, len(jobs) - limit)
        self._workers: dict[asyncio.Task[None], Job | None] = {}
        self._to_cancel: Callable[[Job], bool] | None = None
        self._coming = False
        self.open = len(jobs)

    def start(self) -> None:
        """Call the first worker."""
        self._call_worker()

    def stop(self, to_cancel: Callable[[Job], bool], *, at_once: bool = False) -> None:
        """After a failure: start only those that could have been started together, the first
        `limit`, so that no accident of timing decides; then cancel what is under way and
        `to_cancel`. Or start none, `at_once`."""
        self._to_cancel = to_cancel
        self._drop(len(self._waiting) if at_once else self._surplus)
        self._surplus = 0
        self._cancel_started(asyncio.current_task())

    def _cancel_started(self, spared: asyncio.Task[Any] | None = None) -> None:
        if self._to_cancel is not None and not self._waiting:
            for worker, job in self._workers.items():
                if worker is not spared and (job is None or self._to_cancel(job)):
                    worker.cancel()

    def _drop(self, count: int) -> None:
        for _ in range(min(count, len(self._waiting))):
            self._waiting.pop()
            self.open -= 1

    def cancel(self) -> None:
        """Start no further job, and cancel all that are under way."""
        self._drop(len(self._waiting))
        for worker in self._workers:
            if worker is not asyncio.current_task():
                worker.cancel()

    async def ended(self) -> None:
        """Wait until no worker is left."""
        while self._workers:
            await asyncio.wait(self._workers)

    def _call_worker(self) -> None:
        if self._waiting and not self._coming and len(self._workers) < self._limit:
            self._coming = True
            worker = asyncio.get_running_loop().create_task(self._work())
            self._workers[worker] = None
            worker.add_done_callback(self._dismiss)

    def _dismiss(self, worker: asyncio.Task[None]) -> None:
        del self._workers[worker]
        self._call_worker()  # should it have been cancelled by others, while jobs are left

    def _suspended(self) -> bool:
        """A job has been suspended. Whether the next begins now: not if it only gives way and goes
        on at once."""
        if self._slices.yielding and self._to_cancel is None:
            return False
        self._call_worker()
        self._cancel_started()
        return True

    async def _work(self) -> None:
        self._coming = False
        me = asyncio.current_task()
        assert me is not None
        slice_end = self._slices.end()
        while self._waiting:
            if monotonic() > slice_end:
                slice_end = await self._slices.give_way()
                continue
            self._workers[me] = job = self._waiting.popleft()
            error: BaseException | None = None
            try:
                await in_context(copy_context(), self._execute(job), self._suspended)
            except BaseException as raised:
                error = raised
            self.open -= 1
            self._done(job, error)
        self._cancel_started(me)


async def side_by_side(
    jobs: Sequence[Callable[[], Awaitable[Any]]], limit: int | None, keep_errors: bool
) -> list[Any]:
    """Await independent jobs, at most `limit` at once; results in order.

    Args:
        keep_errors: put what a job raised in the place of its result.

    Raises:
        Exception: that of the first failed job in order, once all have ended.
    """
    results: list[Any] = [None] * len(jobs)
    errors: dict[int, BaseException] = {}
    ended = asyncio.get_running_loop().create_future()

    async def execute(position: int) -> None:
        results[position] = await jobs[position]()

    def note(position: int, error: BaseException | None) -> None:
        if error is not None:
            errors[position] = error
        if wants_out(error):
            batch.cancel()
        if not batch.open and not ended.done():
            ended.set_result(None)

    batch = AsyncBatch(range(len(jobs)), execute, limit or len(jobs), note)
    try:
        if jobs:
            batch.start()
            await ended
    finally:
        batch.cancel()
        await batch.ended()
    for position, error in sorted(
        errors.items(), key=lambda each: (not wants_out(each[1]), each[0])
    ):
        if not (keep_errors and isinstance(error, Exception)):
            raise error
        results[position] = error
    return results


def wants_out(error: BaseException | None) -> bool:
    """Whether the process is to end: nothing is started any more."""
    return isinstance(error, (KeyboardInterrupt, SystemExit))
