"""The runs of this process: their requests, events and outcomes, also of those that ended recently,
for readers who reconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Literal

from ...checkpoint.base import ERROR
from ...pregel.app import Pregel
from ...pregel.control import RunControl
from ...pregel.types import Command, Send
from ..bodies import list_ends
from ..encode import describe_error, encode
from ..errors import Refused
from ..events import MOST_BYTES_OF_ALL, ChunkEvents, EventLog, KeptBytes
from ..json_messages import for_clients
from ..records import Record
from .runner import Stop

MOST_RUNS: Final = 1000


class Execution:
    """A run in this process.

    Attributes:
        record: what is stored of it.
        owner: the user whose run it is; "" where there are no users.
        thread: the record of its thread when the run was begun, if that is known.
        worker: waits for its turn, executes it as its `task`, and stores its end.
        result: the newest state, or `{"__error__": ...}`.
        body: the final result, as JSON.
        stopped: how it was stopped, if it was.
        is_left: whether this server stops and the next one continues the run.
    """

    def __init__(
        self,
        record: Record,
        stopped: Stop | None = None,
        first_id: int = 0,
        kept: KeptBytes | None = None,
    ) -> None:
        self.record: Record = record
        self.id: str = str(record["run_id"])
        self.owner: str = record.get("owner") or ""
        self.thread: Record | None = None
        self.stopped: Stop | None = stopped
        self.events: EventLog = EventLog(first_id, kept=kept, user=self.owner)
        self.control: RunControl = RunControl()
        self.ended: asyncio.Event = asyncio.Event()
        self.result: Any = None
        self.body: bytes = b"null"
        self.task: asyncio.Task[None] | None = None
        self.worker: asyncio.Task[Any] | None = None
        self.is_left: bool = False

    @property
    def thread_id(self) -> str:
        return str(self.record["thread_id"])

    @property
    def size(self) -> int:
        """The bytes kept for readers that reconnect."""
        return self.events.size + len(self.body) + len(encode(self.record))

    def fail(self, error: BaseException) -> None:
        """Record an exception that the graph has raised, and send it to the readers."""
        described = describe_error(error)
        self.result = {ERROR: described}
        self.events.add("error", described)

    def close(self) -> None:
        """Tell all readers and waiting clients that the run has ended, or goes on elsewhere."""
        if self.ended.is_set():
            return
        try:
            self.body = encode(for_clients(self.result))
        except Exception as error:  # or the lane of its thread would stand still
            self.body = encode({ERROR: describe_error(error)})
        self.result = None
        self.events.close()
        self.ended.set()

    def shrink(self) -> None:
        """Drop what nobody asks for after the end: the request, and the tasks, whose error holds
        the frames of a node that has failed."""
        self.task = self.worker = self.thread = None
        self.events.release()
        self.record = {**self.record, "kwargs": {}}

    def leave(self) -> None:
        """Leave the run to the next server."""
        self.is_left = True
        self.close()

    async def answer(self) -> bytes:
        """Wait for the end of the run and return its final state as JSON.

        Raises:
            Refused: this server stops before the run has ended.
        """
        await self.ended.wait()
        if self.is_left:
            raise Refused(503, "the server stops, and the next one goes on with the run: join it")
        return self.body


class EndedRuns:
    """Keeps the runs that ended most recently, with their events and results.

    Args:
        most_runs: how many runs are kept.
        most_bytes: how many bytes of JSON they may have together; the newest is always kept.
        kept: counts them by user, and limits those of one.
    """

    def __init__(
        self,
        most_runs: int = MOST_RUNS,
        most_bytes: int = MOST_BYTES_OF_ALL,
        kept: KeptBytes | None = None,
    ) -> None:
        self._most_runs, self._most_bytes = most_runs, most_bytes
        self._kept = kept or KeptBytes()
        self._runs: dict[str, Execution] = {}
        self._bytes = 0

    def find(self, run_id: str) -> Execution | None:
        """Return a run; None if it is no longer kept."""
        return self._runs.get(run_id)

    def add(self, execution: Execution) -> None:
        """Keep what readers of a run may ask for, and drop the oldest runs beyond the limits."""
        self.drop(execution.id)
        execution.shrink()
        self._runs[execution.id] = execution
        self._count(execution, 1)
        while len(self._runs) > 1 and (
            len(self._runs) > self._most_runs or self._bytes > self._most_bytes
        ):
            self.drop(next(iter(self._runs)))
        if self._kept.is_full(execution.owner):
            for each in [each for each in self._runs.values() if each.owner == execution.owner]:
                if each is not execution and self._kept.is_full(execution.owner):
                    self.drop(each.id)

    def drop(self, run_id: str) -> None:
        """Drop a run."""
        if (execution := self._runs.pop(run_id, None)) is not None:
            self._count(execution, -1)

    def forget(self, thread_id: str, run_id: str | None) -> None:
        """Drop a run of a thread, or all its runs."""
        for each in [*self._runs.values()]:
            if each.thread_id == thread_id and run_id in (None, each.id):
                self.drop(each.id)

    def _count(self, execution: Execution, sign: Literal[1, -1]) -> None:
        self._bytes += sign * execution.size
        self._kept.add(execution.owner, sign * execution.size)


async def stream_run(app: Pregel, execution: Execution) -> None:
    """Run a graph as requested, and record its events and result."""
    asked = execution.record["kwargs"]
    events = ChunkEvents(asked)
    execution.events.add("metadata", {"run_id": execution.id, "attempt": 1})
    config: Any = {**asked["config"], "run_id": execution.id}
    options: dict[str, Any] = {"stream_mode": sorted({*events.modes, "values"})}
    options |= {"subgraphs": events.looks_inside, **read_options(asked)}
    options["control"] = execution.control
    if events.has_callbacks:
        from ...compat.langchain.events import astream_with_events

        chunks = astream_with_events(app, read_input(asked), config, **options)
    else:
        chunks = app.astream(read_input(asked), config, **options)
    async for *place, mode, chunk in chunks:
        ns = place[0] if place else ()
        if mode == "values" and not ns:
            execution.result = chunk
        for told in events.of(ns, mode, chunk):
            execution.events.add(*told)


def read_options(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the call options that a request sets."""
    names = ("interrupt_before", "interrupt_after", "durability")
    given = {name: asked[name] for name in names if asked.get(name) is not None}
    return given | ({"context": asked["context"]} if asked.get("context") else {})


def read_input(asked: Mapping[str, Any]) -> Any:
    """Return the input of a call: a state, a command, or None to continue."""
    command = asked.get("command")
    if command is None:
        return asked.get("input")
    ends = list_ends(command.get("goto"))
    parts = {name: command[name] for name in ("resume", "update") if command.get(name) is not None}
    goto = [e if isinstance(e, str) else Send(e["node"], e.get("input")) for e in ends]
    return Command(goto=goto, **parts)
