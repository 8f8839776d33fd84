"""Turns the stored stream of a job into events, whose ids are the same on every server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final

from ...checkpoint.errors import DamagedError, UnknownTypeError
from ...workers import ChunksGoneError, Queue, StreamChunk
from ..encode import describe_error, encode
from ..events.chunks import ChunkEvents
from ..events.event import Events, RunEvent, failure
from ..events.log import PING_SECONDS
from ..records import Record
from .settler import read_result

_EACH: Final = 4
"""How many ids are reserved for a chunk, which makes at most three events. Those of chunk 0 are for
the event `metadata`."""
_MOST_AHEAD: Final = 1000
"""How many chunks are read before a slow reader takes them."""


async def read_events(
    queue: Queue, record: Record, start: int | None, stopping: asyncio.Event
) -> Events:
    """Yield the events of a run from an id on, until it ends.

    Args:
        start: the first id; None for only the events that are still to come.
        stopping: ends the events when it is set.

    Raises:
        LookupError: nothing is stored of the run any more.
    """
    thread_id, run_id = record["thread_id"], record["run_id"]
    if start is None:
        start = (await queue.alast_chunk(thread_id, run_id=run_id) + 1) * _EACH
    if start <= 0:
        yield [RunEvent(0, "metadata", (), encode({"run_id": run_id, "attempt": 1}))]
    events = ChunkEvents(record["kwargs"])
    last = after = 0 if events.has_memory else max(0, start // _EACH - 1)
    reader = _Reader(queue.astream(thread_id, run_id=run_id, after=after), stopping)
    try:
        async for chunk in reader:
            if chunk is None:
                yield []
                continue
            last = chunk.seq
            for place, told in enumerate(events.of(chunk.ns, chunk.mode, chunk.data)):
                kind, data, ns = told
                if (id := chunk.seq * _EACH + place) >= start:
                    yield [RunEvent(id, kind, ns, encode(data))]
    except ChunksGoneError as error:
        yield [failure({"error": "TooSlow", "message": str(error)})]
        return
    except (DamagedError, UnknownTypeError) as error:  # a chunk that cannot be read
        yield [failure(describe_error(error))]
        return
    finally:
        reader.leave()
    if stopping.is_set():
        return
    found = await read_result(queue, record, 0)
    if found.error is not None and (id := (last + 1) * _EACH) >= start:
        yield [failure(describe_error(found.error), id)]


class _Reader:
    """Reads the chunks of a run in a task of its own: when a client leaves, its request is
    cancelled at every `await`, so it could not wait until the read in progress has ended.

    Args:
        stopping: no more chunks are yielded once it is set.
    """

    def __init__(self, chunks: AsyncIterator[StreamChunk], stopping: asyncio.Event) -> None:
        self._stopping = stopping
        self._found: deque[StreamChunk] = deque()
        self._wake, self._space = asyncio.Event(), asyncio.Event()
        self._reading = asyncio.create_task(self._read(chunks))
        self._stop = asyncio.create_task(stopping.wait())
        for task in (self._reading, self._stop):
            task.add_done_callback(self._on_done)

    async def __aiter__(self) -> AsyncIterator[StreamChunk | None]:
        """Yield the chunks, and None whenever none has come for a while."""
        while not self._stopping.is_set():
            if self._found:
                yield self._found.popleft()
                self._space.set()
            elif self._reading.done():
                self._reading.result()
                return
            else:
                self._wake.clear()
                try:
                    async with asyncio.timeout(PING_SECONDS):
                        await self._wake.wait()
                except TimeoutError:
                    yield None

    def leave(self) -> None:
        """Stop reading."""
        self._stop.cancel()
        self._reading.cancel()

    async def _read(self, chunks: AsyncIterator[StreamChunk]) -> None:
        async for chunk in chunks:
            self._found.append(chunk)
            self._wake.set()
            if len(self._found) >= _MOST_AHEAD:
                self._space.clear()
                await self._space.wait()

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # otherwise asyncio logs it as never retrieved
        self._wake.set()
