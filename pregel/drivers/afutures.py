"""`@task` calls of an async run: asyncio tasks on its loop; calls from worker threads stay on threads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import GraphBubbleUp, GraphInterrupt
from ..program.program import CompiledNode
from ..superstep.interrupts import merge_questions
from ..superstep.task import Task
from . import aattempt as awork
from .futures import (
    Arguments,
    CallFuture,
    Calls,
    ended,
    ending_of,
    fail,
    how,
    raise_open,
    record_of,
    returned,
    settle,
)

if TYPE_CHECKING:
    from ..run.run import Run


class AsyncCalls(Calls):
    """The calls of one async run: asyncio tasks on its loop; calls from worker threads stay on threads."""

    def __init__(self, run: Run, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(run)
        self._loop = loop
        self._semaphores: dict[str, asyncio.Semaphore] = {}

    def start(self, parent: Task, node: CompiledNode, arguments: Arguments) -> Any:
        """Start a call, or find it. On the loop's thread the answer is awaitable, elsewhere it has `.result()`."""
        if asyncio._get_running_loop() is self._loop:
            child, future = self._find(parent, node, arguments)
            if future is None:
                future = self._loop.create_task(self._awork(parent, child))
                self._admit(parent, child, future)
            return future
        if not node.sync_missing:
            return super().start(parent, node, arguments)
        child, future = self._find(parent, node, arguments)
        if future is None:
            future = CallFuture()
            self._admit(parent, child, future)
            asyncio.run_coroutine_threadsafe(self._for_thread(parent, child, future), self._loop)
        return future

    def _done(self, value: Any, error: BaseException | None) -> Any:
        if asyncio._get_running_loop() is not self._loop:
            return super()._done(value, error)
        return ended(self._loop.create_future(), value, error)

    async def _awork(self, parent: Task, child: Task) -> Any:
        limit = self.run.config.get("max_concurrency")
        if limit:
            async with self._semaphores.setdefault(parent.id, asyncio.Semaphore(limit)):
                await self._call(child)
        else:
            await self._call(child)
        ending = ending_of(child)
        if isinstance(ending, (KeyboardInterrupt, SystemExit)):
            raise awork.Signal(ending)
        if ending is not None:
            raise ending
        return returned(child)

    async def _call(self, child: Task) -> None:
        for stream in self.run.streams:
            stream.started(child, self.run.machine.step)
        await awork.run_task(child)
        record = record_of(self.run, child)
        if record is not None:
            await self.run.journal.arecord(record)
        for stream in self.run.streams:
            stream.ended(child, self.run.machine.step)

    async def _for_thread(self, parent: Task, child: Task, future: CallFuture) -> None:
        if not future.set_running_or_notify_cancel():
            return
        future.coroutine = asyncio.current_task()
        try:
            await self._awork(parent, child)
        except BaseException as error:
            if isinstance(error, Exception) and child.error is None:
                fail(child, error)
            child.error = child.error or error
        settle(child, future)

    async def ajoin(self, parent: Task) -> None:
        """`join` for coroutines."""
        endings = []
        for call in parent.calls or ():
            if isinstance(call, asyncio.Future):
                await asyncio.wait([call])
                seen = not call._log_traceback  # asyncio notes here whether an error was ever looked at
            else:
                seen = call.retrieved
            endings.append((call, await _ending(call), seen))
        raise_open(endings)

    async def acollect(self, parent: Task, signal: GraphBubbleUp) -> None:
        """`collect` for coroutines."""
        endings = [await _ending(call) for call in parent.calls or ()]
        if isinstance(signal, GraphInterrupt):
            merge_questions(signal, endings)

    async def aleave(self, calls: Sequence[Any], error: BaseException | None = None) -> None:
        """`leave` for coroutines: calls under way are cancelled. Those on threads cannot be, and if the caller is
        cancelled nobody waits for them."""
        for call in calls:
            call.cancel()
            if isinstance(call, CallFuture) and call.coroutine is not None:
                call.coroutine.cancel()
        for call in calls:
            on_thread = isinstance(call, CallFuture) and call.coroutine is None
            if not (on_thread and isinstance(error, asyncio.CancelledError)):
                await _ending(call)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def _ending(call: Any) -> BaseException | None:
    """Wait for a call; how it ended, without raising it."""
    if isinstance(call, asyncio.Future):
        await asyncio.wait([call])
        return asyncio.CancelledError() if call.cancelled() else call.exception()
    if not call.done():
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def tell(_: Any) -> None:
            try:
                loop.call_soon_threadsafe(_wake, ended)
            except RuntimeError:  # the loop is closed: nobody waits any longer
                pass

        call.add_done_callback(tell)
        await ended
    return how(call)
