"""`@task` calls of an async run: asyncio tasks on its loop; calls from worker threads stay on
threads."""

from __future__ import annotations

import asyncio
from typing import Any

from ..program.program import CompiledNode
from ..run.run import Run
from ..steps import arun_steps
from ..task.task import Task
from .awaits import AWAITS, Signal
from .call_future import CallFuture
from .futures import Arguments, Calls, error_of, resolve, result_of


class AsyncCalls(Calls):
    """The calls of one async run: asyncio tasks on its loop; calls from worker threads stay on
    threads."""

    def __init__(self, run: Run, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(run)
        self._loop = loop
        self._semaphores: dict[str, asyncio.Semaphore] = {}

    def start(self, parent: Task, node: CompiledNode, arguments: Arguments) -> Any:
        """Start a call, or find it. On the loop's thread the answer is awaitable, elsewhere it has
        `.result()`."""
        if asyncio._get_running_loop() is self._loop:
            child, future = self._find(parent, node, arguments)
            if future is None:
                future = self._loop.create_task(self._awork(parent, child))
                self._admit(parent, child, future)
            return future
        # A plain function that was called from a thread stays there: the loop must not be held up.
        if not node.call.sync_missing:
            return super().start(parent, node, arguments)
        child, future = self._find(parent, node, arguments)
        if future is None:
            future = CallFuture()
            self._admit(parent, child, future)
            asyncio.run_coroutine_threadsafe(
                self._work_for_thread(parent, child, future), self._loop
            )
        return future

    def can_wait(self) -> bool:
        """Not on the loop itself."""
        return asyncio._get_running_loop() is not self._loop

    def _resolve(self, value: Any, error: BaseException | None) -> Any:
        if asyncio._get_running_loop() is not self._loop:
            return super()._resolve(value, error)
        return resolve(self._loop.create_future(), value, error)

    async def _awork(self, parent: Task, child: Task) -> Any:
        """Run a call on the loop, and return or raise what it did."""
        limit = self.run.settings.config.get("max_concurrency")
        if limit:
            async with self._semaphores.setdefault(parent.id, asyncio.Semaphore(limit)):
                await arun_steps(self._run_call(child, AWAITS))
        else:
            await arun_steps(self._run_call(child, AWAITS))
        error = error_of(child)
        # asyncio would let these out of the loop at once, before the run has stored anything.
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise Signal(error)
        if error is not None:
            raise error
        return result_of(child)

    async def _work_for_thread(self, parent: Task, child: Task, future: CallFuture) -> None:
        """Run a call on the loop, and resolve the future for which a thread waits."""
        if not future.set_running_or_notify_cancel():
            return
        future.coroutine = asyncio.current_task()
        try:
            await self._awork(parent, child)
        except BaseException as error:
            # Without an error of its own it could not be recorded, or was cancelled by its caller.
            if child.error is None:
                child.fail(error)
        resolve(future, result_of(child), error_of(child))
