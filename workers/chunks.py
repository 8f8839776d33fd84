"""The streams of jobs: a worker stores what a run sends, and any process can read it from any chunk
on, during the run and after it.

The chunks of a job are stored in the queue's database and deleted with the job. They are numbered
from 1; the numbers continue when another worker takes the job over.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, NamedTuple

from ..checkpoint.base import INTERRUPT, SLEEP
from ..checkpoint.errors import UnserializableError
from ..pregel.types import GraphOutput
from .database import JobDatabase
from .jobs import OPEN, Job, JobCodec, JobName

MOST_BYTES: Final = 16 * 1024 * 1024
"""How many bytes of a job's stream are kept: the oldest chunks are dropped first. Also how many
bytes may wait to be stored before the run has to wait."""
MOST_READ: Final = 1000
"""How many chunks are read at once."""


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


Found = tuple[bool, list[StreamChunk]]
"""Whether more chunks may follow, and the chunks."""


class Asked(NamedTuple):
    """What a reader asks for.

    Attributes:
        id, name: of the job.
        after: the number of the last chunk that it has.
    """

    id: int
    name: JobName
    after: int


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

    def add(self, chunks: Sequence[tuple[Job, bytes]]) -> dict[int, int]:
        """Store chunks of several jobs, and notify their readers. Return the number of the last
        chunk of each job, by its id; nothing of a job that has another claim or has ended."""
        ids = [job.id for job, _ in chunks]
        attempts = [job.attempt for job, _ in chunks]
        data = [chunk for _, chunk in chunks]
        return {id: last for id, last, *_ in self._database.rows("add_chunks", ids, attempts, data)}

    def trim(self, job: Job, last: int) -> None:
        """Delete the chunks up to this number."""
        self._database.run("trim_chunks", job.id, last)

    def last(self, id: int) -> int:
        """Return the number of the newest chunk of a job; 0 if there is none."""
        ((last,),) = self._database.look_up("last_chunk", id)
        return int(last)

    def read(self, asked: Asked) -> Found:
        """Return whether more chunks may follow, and the chunks after the one asked for.

        Raises:
            ChunksGoneError: some of them were dropped.
            LookupError: the job has been deleted.
        """
        (found,) = self.read_many([asked])
        if isinstance(found, Exception):
            raise found
        return found

    def read_many(self, asked: Sequence[Asked]) -> list[Found | Exception]:
        """`read` for several readers with one statement. What it would raise for one of them is
        returned in its place."""
        ids, afters = [each.id for each in asked], [each.after for each in asked]
        rows: list[list[Any]] = [[] for _ in asked]
        for place, *row in self._database.look_up("chunks", ids, afters, MOST_READ):
            rows[place - 1].append(row)
        return [self._decode(*pair) for pair in zip(asked, rows, strict=True)]

    def _decode(self, asked: Asked, rows: Sequence[Any]) -> Found | Exception:
        if not rows:
            return LookupError(f"{asked.name} has been deleted")
        try:
            found = [
                StreamChunk(seq, *self._codec.read("chunk", asked.name, data))
                for _, seq, data in rows
                if seq is not None
            ]
        except Exception as error:
            return error
        if found and found[0].seq != asked.after + 1:
            first, last = asked.after + 1, found[0].seq - 1
            return ChunksGoneError(f"the chunks {first} to {last} of {asked.name} were dropped")
        # There may be more than were read.
        return rows[0][0] in OPEN or len(found) == MOST_READ, found


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
