"""Jobs side by side on an event loop: who starts when, so that coroutines that never wait cost no
asyncio task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from time import monotonic
from typing import Any

from .awaits import in_context
from .batch import Batch, Job
from .timeslice import call_on, time_slices


class AsyncBatch(Batch[Job]):
    """Jobs as coroutines: the tasks of one superstep, or whole runs.

    A worker does one after the other; only when one of them really waits is the next worker called,
    so that coroutines that never wait cost no asyncio task. Workers give way to the loop's other
    tasks by the clock.

    Args:
        execute: does one job.
        stops: whether a failure cancels a job that is under way.
    """

    __slots__ = (
        "_coming", "_execute", "_loop", "_slices", "_stopping", "_stops", "_waiter", "_workers",
    )  # fmt: skip

    def __init__(
        self,
        execute: Callable[[Job], Coroutine[Any, Any, None]],
        jobs: Sequence[Job],
        limit: int,
        done: Callable[[Job, BaseException | None], None],
        stops: Callable[[Job], bool] = bool,
    ) -> None:
        super().__init__(jobs, limit, done)
        self._execute = execute
        self._stops = stops
        self._loop = asyncio.get_running_loop()
        self._slices = time_slices()
        self._workers: dict[asyncio.Task[None], Job | None] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._stopping = False
        self._coming = False

    def start(self, *, here: bool = False) -> None:
        self._call_worker()

    def wake(self) -> None:
        if asyncio._get_running_loop() is self._loop:
            self._notice()
        else:
            call_on(self._loop, self._notice)

    def _notice(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def wait(self, seconds: float | None = None) -> Any:
        self._waiter = self._loop.create_future()
        return self._waiter if seconds is None else asyncio.wait([self._waiter], timeout=seconds)

    async def join(self) -> None:
        while self._workers:
            await asyncio.wait(self._workers)

    def abandon(self) -> Any:
        self.cancel()
        return self.join()

    def stop(self, *, at_once: bool) -> None:
        """`Batch.stop`; then, once those are started, cancel what a failure stops."""
        super().stop(at_once=at_once)
        self._stopping = True
        self._cancel_started(asyncio.current_task())

    def _cancel_started(self, spared: asyncio.Task[Any] | None = None) -> None:
        if self._stopping and not self._waiting:
            for worker, job in self._workers.items():
                if worker is not spared and (job is None or self._stops(job)):
                    worker.cancel()

    def cancel(self) -> None:
        super().cancel()
        for worker in self._workers:
            if worker is not asyncio.current_task():
                worker.cancel()

    def call_worker(self) -> None:
        call_on(self._loop, self._call_worker)

    def _call_worker(self) -> None:
        # One at a time: if the new worker's jobs never wait, it does them all, and no third is
        # needed.
        if self._waiting and not self._coming and len(self._workers) < self._limit:
            self._coming = True
            worker = self._loop.create_task(self._work())
            self._workers[worker] = None
            worker.add_done_callback(self._dismiss)

    def _dismiss(self, worker: asyncio.Task[None]) -> None:
        if self._workers.pop(worker) is None and worker.cancelled():
            self._coming = False  # it may not have begun
        self._call_worker()  # should it have been cancelled by others, while jobs are left

    def _suspended(self) -> bool:
        """A job has been suspended. Whether the next begins now: not if it only gives way and goes
        on at once."""
        if self._slices.yielding and not self._stopping:
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
            try:
                self._workers[me] = job = self._waiting.popleft()
            except IndexError:  # another run has taken the place that this job needs
                break
            error: BaseException | None = None
            try:
                await in_context(copy_context(), self._execute(job), self._suspended)
            except BaseException as raised:
                error = raised
            self._done(job, error)
            self.ended.append(job)
            self._notice()
        # The last waiting job may have been started by this worker: now the failure stops the rest.
        self._cancel_started(me)
