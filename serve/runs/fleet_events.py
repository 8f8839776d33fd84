"""Turns the stored stream of a job into server-sent events, whose ids are the same on every
server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from ...workers import ChunksGoneError, Queue, StreamChunk
from ..encode import describe_error
from ..records import Record
from .chunk_events import ChunkEvents
from .events import PING, PING_SECONDS, frame

_EACH: Final = 4
"""How many ids are reserved for a chunk, which makes at most three events. Those of chunk 0 are for
the event `metadata`."""


async def read_events(
    queue: Queue, record: Record, start: int | None, stopping: asyncio.Event
) -> AsyncIterator[bytes]:
    """Yield the events of a run from an id on, as parts of a `text/event-stream`, until it ends.

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
        yield frame(0, "metadata", {"run_id": run_id, "attempt": 1})
    events = ChunkEvents(record["kwargs"])
    last = after = 0 if events.has_memory else max(0, start // _EACH - 1)
    chunks = queue.astream(thread_id, run_id=run_id, after=after)
    try:
        async for chunk in _with_pauses(chunks, stopping):
            if chunk is None:
                yield PING
                continue
            last = chunk.seq
            for place, (name, data) in enumerate(events.of(chunk.ns, chunk.mode, chunk.data)):
                if (id := chunk.seq * _EACH + place) >= start:
                    yield frame(id, name, data)
    except ChunksGoneError as error:
        yield frame(None, "error", {"error": "TooSlow", "message": str(error)})
        return
    finally:
        await chunks.aclose()  # type: ignore[attr-defined]
    if stopping.is_set():
        return
    found = await queue.aresult(thread_id, run_id=run_id, wait=0)
    if found.error is not None:
        yield frame((last + 1) * _EACH, "error", describe_error(found.error))


async def _with_pauses(
    chunks: AsyncIterator[StreamChunk], stopping: asyncio.Event
) -> AsyncIterator[StreamChunk | None]:
    """Yield chunks until there are no more, or until it is time to stop; None whenever none has
    come for a while."""
    stop: asyncio.Future[Any] = asyncio.ensure_future(stopping.wait())
    following: asyncio.Future[Any] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(anext(chunks, _END))
            await asyncio.wait(
                [following, stop], timeout=PING_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if not following.done():
                if stop.done():
                    return
                yield None
                continue
            chunk, following = following.result(), None
            if chunk is _END:
                return
            yield chunk
    finally:
        stop.cancel()
        if following is not None:
            following.cancel()
            await asyncio.wait([following])


_END: Final[Any] = object()
