"""The journal of an async run: the same lane, waited for without holding the event loop up."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

from ..run.effects import Claim, Entry, Save
from ..run.run import Run
from .journal import Journal


class AsyncJournal(Journal):
    """A journal that waits without holding its event loop up. A wait that is cancelled does not cut
    a saver short."""

    def __init__(self, run: Run, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(run)
        self._loop = loop
        self._turn = asyncio.Lock()
        self._drainer: asyncio.Task[None] | None = None

    def record(self, entry: Save) -> None:
        """`Journal.record`, from a worker thread of an async run: the loop's own saver methods
        store it."""
        entry.of_call = True
        if self._run.saves_in_background:
            self._loop.call_soon_threadsafe(self.post, entry)
        else:
            self._wait(asyncio.run_coroutine_threadsafe(self.astore(entry), self._loop))

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

    def post(self, entry: Entry) -> None:
        """`Journal.post`, on the loop's thread."""
        entry.posted = True
        self._queue.append(entry)
        self._draining()

    async def arecord(self, entry: Save) -> None:
        """`record`, on the loop's thread."""
        entry.of_call = True
        if self._run.saves_in_background:
            self.post(entry)
        else:
            await self.astore(entry)

    async def astore(self, entry: Entry) -> None:
        """`store` for coroutines."""
        self._queue.append(entry)
        if self._run.thread.saver.in_memory:  # type: ignore[union-attr]
            async with self._turn:  # quick: not worth a task of its own
                while not entry.done:
                    await self._astore_next()
        while not entry.done:
            await asyncio.shield(self._draining())
        if entry.error is not None:
            raise entry.error

    async def aflush(self) -> None:
        """`flush` for coroutines."""
        while self._queue:
            await asyncio.shield(self._draining())
        self.check()

    def _draining(self) -> asyncio.Task[None]:
        if self._drainer is None or self._drainer.done():
            self._drainer = self._loop.create_task(self._adrain())
        return self._drainer

    async def _adrain(self) -> None:
        async with self._turn:
            while self._queue:
                await self._astore_next()

    async def _astore_next(self) -> None:
        entry = self._queue[0]
        try:
            if self.broken is not None:
                raise self.broken
            if entry.commit is not None:
                await self._run.thread.saver.acommit(entry.commit)  # type: ignore[union-attr]
                self._position.move(entry.commit)
            else:
                await self._arecord(entry)
        except BaseException as error:
            self._fail(entry, error)
        finally:
            entry.done = True
            self._queue.popleft()

    async def _arecord(self, entry: Any) -> None:
        run, position = self._run, self._position
        saver = run.thread.saver
        assert saver is not None
        if entry.__class__ is Claim:
            await saver.aclaim(
                run.thread.config_of(run.position.head), entry.revision, entry.writes
            )
        elif position.is_past(entry):
            return
        else:
            with position.guard(entry):
                await saver.acommit_writes(
                    run.thread.thread_id or "", run.ns, entry.checkpoint_id, entry.writes
                )
        position.count()
