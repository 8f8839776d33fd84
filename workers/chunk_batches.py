"""Statements that write or read the streams of several jobs at once: whatever runs send, or readers
ask for, while the statement before is executed."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from ..checkpoint.errors import StorageError
from ..checkpoint.threads import Answer, answer_on
from ..pregel.drivers.pool import POOL
from .chunks import MOST_BYTES, Asked, ChunkTable, Found
from .jobs import Job

LOG = logging.getLogger("stategraph.workers")

TRIES: Final = 5
"""How often storing chunks is attempted."""
SECONDS_TO_GATHER: Final = 0.02
"""How long chunks wait for others, so that one statement stores several. When a run ends, its
chunks do not wait."""
MOST_READERS: Final = 100
"""How many readers share a statement."""


class ChunkWriter:
    """Takes the chunks of one run, for `ChunkWrites` to store.

    Args:
        most_bytes: see `MOST_BYTES`.
    """

    def __init__(self, writes: ChunkWrites, job: Job, most_bytes: int = MOST_BYTES) -> None:
        self._writes, self.job, self._most_bytes = writes, job, most_bytes
        self.waiting: list[bytes] = []
        self.is_stored: bool = True
        self._bytes = 0  # of the waiting chunks
        self._kept: deque[tuple[int, int]] = deque()  # numbers and sizes of kept chunks
        self._kept_bytes = 0

    def add(self, ns: tuple[str, ...], mode: str, data: Any) -> None:
        """Add a chunk. Blocks while too many bytes wait to be stored."""
        chunk = self._writes.table.encode(self.job.name, ns, mode, data)
        with self._writes.changed:
            self._writes.changed.wait_for(lambda: self._bytes < self._most_bytes)
            self.waiting.append(chunk)
            self._bytes += len(chunk)
            self._writes.enqueue(self)

    def take(self) -> list[bytes]:
        """Return the waiting chunks, which are about to be stored. `changed` is held."""
        chunks, self.waiting, self._bytes, self.is_stored = self.waiting, [], 0, False
        return chunks

    def trim(self, last: int, size: int) -> None:
        """Delete the oldest chunks if too many are kept.

        Args:
            last: the number of the chunk that was stored last.
            size: how many bytes were stored with it.
        """
        self._kept.append((last, size))
        self._kept_bytes += size
        gone = 0
        while self._kept_bytes > self._most_bytes and len(self._kept) > 1:
            gone, size = self._kept.popleft()
            self._kept_bytes -= size
        if gone:
            self._writes.table.trim(self.job, gone)

    def close(self) -> None:
        """Wait until all chunks are stored."""
        with self._writes.changed:
            self._writes.hurry()
            self._writes.changed.wait_for(lambda: self.is_stored and not self.waiting)


class ChunkWrites:
    """Stores the chunks of a worker's runs, on a thread of the pool.

    Attributes:
        changed: guards what waits, here and in the writers.
    """

    def __init__(self, table: ChunkTable) -> None:
        self.table = table
        self.changed: threading.Condition = threading.Condition()
        self._writers: dict[ChunkWriter, None] = {}  # those with waiting chunks, in order
        self._is_storing = self._is_hurried = False

    def enqueue(self, writer: ChunkWriter) -> None:
        """Store the chunks of a run soon. `changed` is held."""
        self._writers[writer] = None
        if not self._is_storing:
            self._is_storing = True
            POOL.submit(self._store_all)

    def hurry(self) -> None:
        """Wait for no further chunks this time. `changed` is held."""
        self._is_hurried = True
        self.changed.notify_all()

    def _store_all(self) -> None:
        while taken := self._take():
            try:
                self._store(taken)
            except Exception:  # the run is worth more than its stream
                names = ", ".join(str(writer.job.name) for writer, _ in taken)
                LOG.exception("chunks of the stream of %s are lost", names)
            with self.changed:
                for writer, _ in taken:
                    writer.is_stored = True
                self.changed.notify_all()

    def _take(self) -> list[tuple[ChunkWriter, list[bytes]]]:
        """Return what is to be stored next; nothing if nothing waits any more."""
        with self.changed:
            if self._writers:
                self.changed.wait_for(lambda: self._is_hurried, SECONDS_TO_GATHER)
            self._is_hurried = False
            taken: list[tuple[ChunkWriter, list[bytes]]] = []
            size = 0
            while self._writers and size < MOST_BYTES:
                writer = next(iter(self._writers))
                del self._writers[writer]
                taken.append((writer, writer.take()))
                size += sum(map(len, taken[-1][1]))
            self._is_storing = bool(taken)
            self.changed.notify_all()
            return taken

    def _store(self, taken: Sequence[tuple[ChunkWriter, list[bytes]]]) -> None:
        pairs = [(writer.job, chunk) for writer, chunks in taken for chunk in chunks]
        for attempt in range(TRIES):
            try:
                last = self.table.add(pairs)
                break
            except StorageError:
                if attempt == TRIES - 1:
                    raise
                time.sleep(0.05 * 2**attempt)
        for writer, chunks in taken:
            if writer.job.id in last:
                writer.trim(last[writer.job.id], sum(map(len, chunks)))


class ChunkReads:
    """Reads the streams of jobs for coroutines, on a thread of the pool."""

    def __init__(self, table: ChunkTable) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._asked: deque[tuple[Asked, asyncio.AbstractEventLoop, asyncio.Future[Found]]] = deque()
        self._is_reading = False

    async def read(self, asked: Asked) -> Found:
        """`ChunkTable.read` for coroutines."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Found] = loop.create_future()
        with self._lock:
            self._asked.append((asked, loop, future))
            is_reading, self._is_reading = self._is_reading, True
        if not is_reading:
            POOL.submit(self._read_all)
        return await future

    def _read_all(self) -> None:
        while True:
            with self._lock:
                number = min(len(self._asked), MOST_READERS)
                taken = [self._asked.popleft() for _ in range(number)]
                self._is_reading = bool(taken)
            if not taken:
                return
            found = self._read_together([asked for asked, *_ in taken])
            answers: dict[asyncio.AbstractEventLoop, list[Answer]] = {}
            for (_, loop, future), each in zip(taken, found, strict=True):
                pair = (None, each) if isinstance(each, Exception) else (each, None)
                answers.setdefault(loop, []).append((future, *pair))
            for loop, ready in answers.items():
                answer_on(loop, ready)

    def _read_together(self, asked: Sequence[Asked]) -> list[Found | Exception]:
        """Read for several readers with one statement. If it fails because of what one of them asks
        for, the others get their chunks."""
        try:
            return self._table.read_many(asked)
        except Exception as error:
            if len(asked) == 1 or isinstance(error, StorageError):
                return [error] * len(asked)
        return [found for each in asked for found in self._read_together([each])]
