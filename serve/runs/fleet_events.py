"""Turns the stored stream of a job into events, whose ids are the same on every server."""

from __future__ import annotations

import asyncio
from typing import Final

from ...checkpoint.errors import DamagedError, UnknownTypeError
from ...workers import ChunksGoneError, Queue
from ..encode import describe_error, encode
from ..events import ChunkEvents, Events, RunEvent, failure
from ..records import Record
from .runner import first_of
from .settler import read_result

_EACH: Final = 4
"""How many ids are reserved for a chunk, which makes at most three events. Those of chunk 0 are for
the event `metadata`."""


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
    chunks = queue.astream(thread_id, run_id=run_id, after=after)
    try:
        while True:
            # Not awaited here: when a client leaves, its request is cancelled at every `await`, so
            # it could not wait until the read in progress has ended.
            read, _ = await first_of(anext(chunks, None), stopping.wait())
            if not read.done() or (chunk := read.result()) is None:
                break
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
    if stopping.is_set():
        return
    found = await read_result(queue, record, 0)
    if found.error is not None and (id := (last + 1) * _EACH) >= start:
        yield [failure(describe_error(found.error), id)]
