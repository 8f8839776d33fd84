"""The streams of jobs: a worker stores what a run sends, and any process can read it from any chunk
on, during the run and after it.

The chunks of a job are stored in the queue's database and deleted with the job. They are numbered
from 1; the numbers continue when another worker takes the job over.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from threading import Condition
from typing import Any, Final, NamedTuple

from ..checkpoint.base import INTERRUPT, SLEEP
from ..checkpoint.errors import StorageError, UnserializableError
from ..pregel.drivers.pool import POOL
from ..pregel.types import GraphOutput
from .database import JobDatabase
from .jobs import OPEN, Job, JobCodec, JobName

LOG = logging.getLogger("stategraph.workers")

MOST_BYTES: Final = 16 * 1024 * 1024
"""How many bytes of a job's stream are kept: the oldest chunks are dropped first. Also how many
bytes may wait to be stored before the run has to wait."""
MOST_READ: Final = 1000
"""How many chunks are read at once."""
TRIES: Final = 5
"""How often storing chunks is attempted."""
SECONDS_TO_GATHER: Final = 0.02
"""How long chunks wait for others, so that one statement stores several. When a run ends, its
chunks do not wait."""


class ChunksGoneError(LookupError):
    """The requested chunks were dropped because the stream grew too long."""


class StreamChunk(NamedTuple):
    """A chunk of the stream of a job.

    Attributes:
        seq: its number, starting at 1.
        ns: the namespace of the graph that sent it; empty for the job's own graph.
        mode: its stream mode.
        data: what `stream` yields in this mode.
    """

    seq: int
    ns: tuple[str, ...]
    mode: str
    data: Any


class ChunkTable:
    """The stored chunks of jobs of one graph. Any thread may use it."""

    def __init__(self, database: JobDatabase, codec: JobCodec) -> None:
        self._database, self._codec = database, codec

    def encode(self, name: JobName, ns: tuple[str, ...], mode: str, data: Any) -> bytes:
        """Return a chunk as it is stored. Data that cannot be stored becomes text."""
        try:
            return self._codec.write("chunk", name, (ns, mode, data))
        except UnserializableError:
            return self._codec.write("chunk", name, (ns, mode, str(data)))

    def add(self, job: Job, chunks: list[bytes]) -> int | None:
        """Store chunks, and notify their readers. Return the number of the last one; None if the
        job has another claim or has ended."""
        ((last, *_),) = self._database.rows("add_chunks", job.id, job.attempt, chunks)
        return None if last is None else int(last)

    def trim(self, job: Job, last: int) -> None:
        """Delete the chunks up to this number."""
        self._database.run("trim_chunks", job.id, last)

    def last(self, id: int) -> int:
        """Return the number of the newest chunk of a job; 0 if there is none."""
        ((last,),) = self._database.look_up("last_chunk", id)
        return int(last)

    def read(self, id: int, name: JobName, after: int) -> tuple[bool, list[StreamChunk]]:
        """Return whether more chunks may follow, and the chunks after the one with this number.

        Raises:
            ChunksGoneError: some of them were dropped.
            LookupError: the job has been deleted.
        """
        rows = self._database.look_up("chunks", id, after, MOST_READ)
        if not rows:
            raise LookupError(f"{name} has been deleted")
        found = [
            StreamChunk(seq, *self._codec.read("chunk", name, data))
            for _, seq, data in rows
            if seq is not None
        ]
        if found and found[0].seq != after + 1:
            raise ChunksGoneError(
                f"the chunks {after + 1} to {found[0].seq - 1} of {name} are not kept any more"
            )
        # There may be more than were read.
        return rows[0][0] in OPEN or len(found) == MOST_READ, found


class ChunkWriter:
    """Stores the chunks of one run, on a thread of the pool. Chunks that arrive soon after one
    another share a statement.

    Args:
        most_bytes: see `MOST_BYTES`.
    """

    def __init__(self, table: ChunkTable, job: Job, most_bytes: int = MOST_BYTES) -> None:
        self._table, self._job, self._most_bytes = table, job, most_bytes
        self._changed = Condition()
        self._waiting: list[bytes] = []
        self._bytes = 0  # of the waiting chunks
        self._is_storing = self._is_closing = False
        self._stored: deque[tuple[int, int]] = deque()  # numbers and sizes of kept chunks
        self._stored_bytes = 0

    def add(self, ns: tuple[str, ...], mode: str, data: Any) -> None:
        """Add a chunk. Blocks while too many bytes wait to be stored."""
        chunk = self._table.encode(self._job.name, ns, mode, data)
        with self._changed:
            self._changed.wait_for(lambda: self._bytes < self._most_bytes)
            self._waiting.append(chunk)
            self._bytes += len(chunk)
            if not self._is_storing:
                self._is_storing = True
                POOL.submit(self._store_all)

    def close(self) -> None:
        """Store all remaining chunks, and wait until that is done."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_storing)

    def _store_all(self) -> None:
        while True:
            with self._changed:
                if self._waiting:
                    self._changed.wait_for(lambda: self._is_closing, SECONDS_TO_GATHER)
                chunks, self._waiting, self._bytes = self._waiting, [], 0
                if not chunks:
                    self._is_storing = False
                self._changed.notify_all()
            if not chunks:
                return
            try:
                self._store(chunks)
            except Exception:  # a run must not fail because of its stream
                LOG.exception("chunks of the stream of %s are lost", self._job.name)

    def _store(self, chunks: Sequence[bytes]) -> None:
        for attempt in range(TRIES):
            try:
                last = self._table.add(self._job, [*chunks])
            except StorageError:
                if attempt == TRIES - 1:
                    raise
                time.sleep(0.05 * 2**attempt)
                continue
            if last is not None:
                self._trim(last, sum(map(len, chunks)))
            return

    def _trim(self, last: int, size: int) -> None:
        self._stored.append((last, size))
        self._stored_bytes += size
        gone = 0
        while self._stored_bytes > self._most_bytes and len(self._stored) > 1:
            gone, size = self._stored.popleft()
            self._stored_bytes -= size
        if gone:
            self._table.trim(self._job, gone)


class RunReader:
    """Reads the chunks of a run: passes on those that are wanted, and keeps what `invoke` would
    return.

    Args:
        wanted: the stream modes to pass on.
        subgraphs: whether to pass on the chunks of nested graphs; their messages are always passed
            on.
        send: called with the namespace, the mode and the data of each chunk.

    Attributes:
        modes: the modes with which the run must be streamed.
        looks_inside: whether the chunks of nested graphs are needed. Without them, the engine need
            not create an asyncio task for the only task of a step.
        output: the newest output of the run; None if there is none yet.
    """

    def __init__(
        self,
        wanted: Sequence[str],
        subgraphs: bool,
        send: Callable[[tuple[str, ...], str, Any], object],
    ) -> None:
        self._wanted, self._subgraphs, self._send = {*wanted}, subgraphs, send
        self.modes: list[str] = sorted({*wanted, "values"})
        self.looks_inside: bool = subgraphs or "messages" in wanted
        self.output: GraphOutput[Any] | None = None

    def take(self, chunk: tuple[Any, ...]) -> None:
        """Read one chunk of the run."""
        *place, mode, data = chunk
        ns: tuple[str, ...] = place[0] if place else ()
        if mode == "values" and not ns:
            self.output = read_output(data)
        if mode in self._wanted and (not ns or self._subgraphs or mode == "messages"):
            self._send(ns, mode, data)

    async def take_all(self, chunks: AsyncIterator[Any]) -> None:
        """Read all chunks of an async stream."""
        async for chunk in chunks:
            self.take(chunk)


def read_output(shown: Any) -> GraphOutput[Any]:
    """Split a chunk of the mode "values" into the values, the questions and the wake-up time."""
    if not isinstance(shown, dict):
        return GraphOutput(shown)
    values = {name: value for name, value in shown.items() if name not in (INTERRUPT, SLEEP)}
    return GraphOutput(values, tuple(shown.get(INTERRUPT, ())), shown.get(SLEEP))
