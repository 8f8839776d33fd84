"""The async driver: it performs what the loop asks for on the caller's event loop, and nothing
else.

Coroutines run here; a node that is a plain function runs on a worker thread, so that it cannot hold
up the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextvars import copy_context
from time import monotonic
from typing import Any

from ..errors import GraphAbandoned, GraphBubbleUp
from ..run.effects import Claim, Effects, GiveWay, Load, RunTasks, Save
from ..run.loop import supersteps
from ..run.run import Run
from ..superstep.outcome import StepLimit
from ..superstep.task import Task
from .abatch import AsyncBatch, wants_out
from .afutures import AsyncCalls
from .ajournal import AsyncJournal
from .awaits import AWAITS, arun_task, in_context
from .loading import load
from .pool import MAX_THREADS
from .steps import arun_steps
from .threads import ReaderLeft, note_loss
from .timeslice import time_slices


async def drive(run: Run, effects: Effects | None = None) -> None:
    """Carry a run (or other effects on its thread) through to the end; nobody reads."""
    loop = supersteps(run) if effects is None else effects
    driver = AsyncDriver(run)
    slices = time_slices()
    slice_end = slices.end()
    ended = note_nested_run(run.parent) if run.parent is not None else None
    try:
        for effect in loop:
            if effect.__class__ is RunTasks:
                # Here all is stored and nothing runs: a good place to be cancelled.
                if monotonic() > slice_end:
                    slice_end = await slices.give_way()
                await driver.run_tasks(effect)
            elif effect.__class__ is not GiveWay:
                await driver.perform(effect)
            elif monotonic() > slice_end:
                slice_end = await slices.give_way()
        await driver.settle()
    except BaseException as error:
        await driver.abort(loop, error)
        _end_quietly(error)
        raise
    finally:
        if ended is not None:
            ended.set_result(None)


def _end_quietly(error: BaseException) -> None:
    """A graph whose attempt was given up ends as a cancelled task does. Nobody waits for it, and
    asyncio would report any other error of a task in the background.

    Raises:
        CancelledError: it was abandoned.
    """
    if isinstance(error, GraphAbandoned):
        raise asyncio.CancelledError(
            "the attempt of the node that runs this graph was abandoned"
        ) from None


def note_nested_run(task: Task) -> asyncio.Future[None]:
    """Note on a task that it runs a graph; the future is done when that has ended."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    current = task.current
    current.inside = (*(each for each in current.inside if not each.done()), ended)
    return ended


async def stream(run: Run) -> AsyncGenerator[Any, None]:
    """Carry a run through, handing over each chunk before anything further is done."""
    loop = supersteps(run)
    driver = AsyncDriver(run)
    out = run.output.open(driver.wake)
    slices = time_slices()
    slice_end = slices.end()
    try:
        for effect in loop:
            if effect.__class__ is GiveWay:
                if monotonic() > slice_end:
                    slice_end = await slices.give_way()
                continue
            if effect.__class__ is not RunTasks:
                # Before the reader sees chunks of what is being stored.
                await driver.perform(effect)
                continue
            while True:
                while out:
                    yield out.popleft()
                    if monotonic() > slice_end:  # the reader may never wait either
                        slice_end = await slices.give_way()
                if monotonic() > slice_end:
                    slice_end = await slices.give_way()
                await driver.run_tasks(effect)
                if effect.finished:
                    break
        await driver.settle()
    except GeneratorExit:
        await driver.abort(loop, ReaderLeft())
        raise
    except BaseException as error:
        await driver.abort(loop, error)
        # A cancellation does not wait for the reader.
        while out and isinstance(error, (Exception, GraphBubbleUp)):
            yield out.popleft()
        _end_quietly(error)
        raise
    while out:
        yield out.popleft()
        if monotonic() > slice_end:
            slice_end = await slices.give_way()


class AsyncDriver:
    """Answers the effects of one loop."""

    __slots__ = ("_batch", "_ended", "_journal", "_limit", "_loop", "_run", "_waiter")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._batch: AsyncBatch[Task] | None = None
        self._ended: deque[Task] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._journal = None if run.thread.saver is None else AsyncJournal(run, self._loop)
        run.use_driver(self._journal, self._open_calls)
        self._limit = (
            None if run.settings.step_timeout is None else StepLimit(run.settings.step_timeout)
        )

    def _open_calls(self, run: Run) -> AsyncCalls:
        """The mid-task calls of the run; may be asked for from any thread."""
        return AsyncCalls(run, self._loop)

    def wake(self) -> None:
        """A chunk is waiting for the reader; may be called from any thread."""
        if asyncio._get_running_loop() is self._loop:
            self._notice()
        else:
            try:
                self._loop.call_soon_threadsafe(self._notice)
            except RuntimeError:  # the loop is closed: nobody reads any longer
                pass

    def _notice(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def perform(self, effect: Any) -> None:
        """Load or save."""
        journal = self._journal
        if journal is None:
            return  # nothing is stored
        if isinstance(effect, Save):
            try:
                if self._run.saves_in_background:
                    await journal.flush()  # one step at most is unsaved
                    journal.post(effect)
                else:
                    await journal.store(effect)
            except BaseException:
                self._run.output.drop_chunks()
                raise
        elif isinstance(effect, Claim):
            await journal.store(effect)
        elif isinstance(effect, Load):
            await arun_steps(load(self._run, effect, AWAITS))

    async def settle(self) -> None:
        """Wait for what is still being saved, and raise what that raised. A cancelled wait does not
        cut it short."""
        if self._journal is not None:
            await self._journal.flush()

    async def run_tasks(self, effect: RunTasks) -> None:
        """Start the tasks, or wait for more of them."""
        tasks = effect.tasks
        if self._batch is None:
            journal = self._journal
            if journal is not None and journal.unreported is not None:
                journal.check()
            if len(tasks) == 1 and not self._run.output.live:
                # One task needs no asyncio task of its own (P2-async, P3).
                await in_context(copy_context(), arun_task(tasks[0]))
                effect.finished = tasks
                return
            if self._limit is not None:
                tasks = self._limit.detach(tasks)
            limit = self._run.settings.config.get("max_concurrency") or width(tasks)
            self._batch = AsyncBatch(tasks, arun_task, limit, self._end)
            self._batch.start()
        await self._collect(effect, self._batch)
        if not effect.open:
            self._batch = None

    def _end(self, task: Task, error: BaseException | None) -> None:
        """A task has ended; after a failure (a signal is none) its siblings are cancelled. A
        function on a worker thread cannot be: it is waited for and its result kept, as in a sync
        run."""
        if error is not None and task.error is None:
            task.fail(error)  # it must not raise; if it does, nobody may wait for ever
        self._ended.append(task if self._limit is None else self._limit.admit(task))
        if task.fatal and self._batch is not None and not isinstance(task.error, GraphBubbleUp):
            self._batch.stop(
                lambda sibling: sibling.node.call.coro is not None, at_once=wants_out(task.error)
            )
        self._notice()

    async def _collect(self, effect: RunTasks, batch: AsyncBatch[Task]) -> None:
        """Wait for one task, or for all if nobody waits for single ones; take along what else has
        ended."""
        watched, ended = self._run.watched, self._ended
        while batch.open and not (watched and (ended or self._run.output.chunks)):
            self._waiter = self._loop.create_future()
            if self._limit is None:
                await self._waiter
            else:
                await self._in_time(self._limit, self._waiter)
        self._waiter = None
        effect.finished = tuple(ended)
        ended.clear()
        effect.open = batch.open

    async def _in_time(self, limit: StepLimit, waiter: asyncio.Future[None]) -> None:
        """Wait for a task to end.

        Raises:
            StepTimeoutError: none has until the superstep's limit. Nobody waits for its tasks any
                longer.
        """
        while not waiter.done():
            await asyncio.wait([waiter], timeout=limit.remaining())
            if waiter.done() or limit.remaining() > 0:
                continue
            if self._batch is not None:
                self._batch.cancel()
            self._batch = None
            raise limit.expire()

    async def abort(self, loop: Effects, error: BaseException) -> None:
        """Cancel running tasks, then let the loop keep what was done, even if this task is being
        cancelled."""
        self._run.cancel()
        if self._batch is not None:
            self._batch.cancel()
        keeping = asyncio.ensure_future(self._keep(loop, error))
        cancelled = False
        while not keeping.done():
            try:
                await asyncio.shield(keeping)
            except asyncio.CancelledError:
                cancelled = True  # later: it is quick, and half a save helps nobody
        if cancelled and not isinstance(error, asyncio.CancelledError):
            raise asyncio.CancelledError

    async def _keep(self, loop: Effects, error: BaseException) -> None:
        if self._batch is not None:
            await self._batch.ended()
        try:
            effect = loop.throw(error)
            while True:
                if not isinstance(effect, RunTasks):
                    await self.perform(effect)
                effect = next(loop)
        except BaseException as end:
            note_loss(error, end)
        finally:
            loop.close()
        try:
            await self.settle()
        except Exception as end:
            note_loss(error, end)


def width(tasks: Sequence[Task]) -> int:
    """How many tasks may be under way at once where no limit is set: any number, unless each may
    need a thread."""
    if len(tasks) <= MAX_THREADS or any(task.node.call.coro is not None for task in tasks):
        return len(tasks)
    return MAX_THREADS
