"""The journal of an async run: the same lane, waited for without holding the event loop up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

from ...checkpoint.base import Commit
from ..run.effects import Entry, InTransaction, Save
from ..run.run import Run
from ..steps import Steps, arun_steps
from .journal import Journal
from .pool import HELD_SECONDS


class AsyncJournal(Journal):
    """A journal that waits without holding its event loop up. A wait that is cancelled does not cut
    a checkpointer short."""

    face = "a"

    def __init__(self, run: Run, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(run)
        saver = run.thread.saver
        assert saver is not None
        # A memory waits for its turn with the outermost run, also if the saver is quick.
        memory = run.parent is not None and run.settings.graph.checkpointer is True
        self._in_memory = saver.in_memory and not memory
        self._loop = loop
        self._drainer: asyncio.Future[Any] | None = None  # who holds the lane

    def commit_inside(self, commits: Sequence[Commit], *, awaits: bool) -> Any:
        """`Journal.commit_inside`: the loop's own checkpointer methods store it."""
        if self.can_wait():
            turn = self._turn(self._commit_inside_lane(commits))
            future = asyncio.run_coroutine_threadsafe(turn, self._loop)
            return asyncio.wrap_future(future) if awaits else self._wait(future)
        if awaits:
            return self._turn(self._commit_inside_lane(commits))
        # A graph that a coroutine calls without `await` holds the loop up: nothing else is stored
        # meanwhile, nor can be waited for.
        if not self._queue and not self._is_draining():
            return self._commit_below("", commits)
        saver: Any = self._thread.saver
        return saver.commit(commits)

    def record(self, entry: Save, *, wait: bool) -> Any:
        """`Journal.record`: the loop's own checkpointer methods store it."""
        if not self.can_wait():
            return super().record(entry, wait=wait)
        while True:
            turn = self._record_on_loop(entry, wait)
            try:
                stored = asyncio.run_coroutine_threadsafe(turn, self._loop)
                return self._wait(stored) if wait else None
            except CancelledError:  # its loop ends, and cancels whatever runs there
                entry.done, entry.error = False, None
            except RuntimeError:
                if not self._loop.is_closed():
                    raise
                turn.close()
                return self._record_after_loop(entry)

    def transact(self, asked: InTransaction) -> Any:
        """`Journal.transact`: the function is called on a thread of the checkpointer's."""
        turn = self._turn(self._transact_in_lane(asked))
        if not self.can_wait():
            return turn
        return self._wait(asyncio.run_coroutine_threadsafe(turn, self._loop))

    async def _turn(self, steps: Steps[None]) -> None:
        while self._is_draining():
            await asyncio.shield(self._start_draining())
        # Whoever stores meanwhile waits for it as for one who stores.
        self._drainer = turn = self._loop.create_task(_run_quietly(steps))
        error = await asyncio.shield(turn)
        if error is not None:
            raise error

    def can_wait(self) -> bool:
        """Return whether this is another thread: waiting on the loop itself would deadlock."""
        return asyncio._get_running_loop() is not self._loop

    async def _record_on_loop(self, entry: Save, wait: bool) -> None:
        waited = super().record(entry, wait=wait)
        if waited is not None:
            await waited

    def _record_after_loop(self, entry: Save) -> None:
        """Record on this thread what a function has left there that has outlived its loop. It has
        been done, so the next call must find it."""
        with self._lane:
            if not entry.done or entry.error is not None:
                entry.done, entry.error = False, None
                self._queue.append(entry)
                asyncio.run(arun_steps(self._store_queued(entry)))
        if entry.error is not None:
            raise entry.error

    def _wait(self, stored: Future[None]) -> None:
        while True:
            try:
                return stored.result(1.0)
            except TimeoutError:
                if stored.done():
                    raise
                # The run was given up, and its loop with it: nobody will answer.
                if self._loop.is_closed():
                    raise RuntimeError(
                        "the event loop of the run was closed before this write was stored"
                    ) from None

    async def store(self, entry: Entry) -> None:
        """`Journal.store` for coroutines."""
        entry.queued = True
        self._queue.append(entry)
        if entry.held:
            self._hold(entry)
            return
        if self._in_memory and (self._drainer is None or self._drainer.done()):
            # Quick: not worth a task of its own (P4). Who comes meanwhile waits for this one.
            self._drainer = here = self._loop.create_future()
            try:
                await arun_steps(self._store_queued(entry))
            finally:
                here.set_result(None)
        # Shielded: the caller may be cancelled, but what a saver has begun is brought to its end.
        while not entry.done:
            await asyncio.shield(self._start_draining())
        if entry.error is not None:
            raise entry.error

    def _hold(self, entry: Any) -> None:
        if entry.expires:
            self._loop.call_later(HELD_SECONDS, self._store_held, entry)

    def _store_held(self, entry: Entry) -> None:
        if not entry.done:
            self._start_draining()

    async def flush(self) -> None:
        """`Journal.flush` for coroutines."""
        # Again, if others have come while this one waited.
        while self._queue or self._is_draining():
            await asyncio.shield(self._start_draining())
        self.check()

    def _start_draining(self) -> asyncio.Future[Any]:
        if self._drainer is None or self._drainer.done():
            self._drainer = self._loop.create_task(self._drain())
        return self._drainer

    def _is_draining(self) -> bool:
        return self._drainer is not None and not self._drainer.done()

    async def _drain(self) -> None:
        with suppress(BaseException):  # it is noted, see `Journal._drain`
            await arun_steps(self._store_queued())


async def _run_quietly(steps: Steps[None]) -> BaseException | None:
    """Run a procedure; give what it has raised."""
    try:
        await arun_steps(steps)
    except BaseException as error:
        return error
    return None
