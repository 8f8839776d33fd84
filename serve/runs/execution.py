"""One run in this process: its request, its events and its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ...checkpoint.base import ERROR, INTERRUPT
from ...pregel.app import Pregel
from ...pregel.control import RunControl
from ...pregel.names import COPY
from ...pregel.types import Command, Interrupt, Send
from ..body_fields import list_ends
from ..encode import describe_error, encode
from ..errors import Refused
from ..records import Record
from .chunk_events import ChunkEvents
from .events import EventLog
from .runner import Stop


class Execution:
    """A run in this process.

    Attributes:
        record: what is stored of it.
        thread: the record of its thread as it was when the run was begun, if that is known.
        result: the newest state, or `{"__error__": ...}`.
        body: the result at its end, as JSON.
        stopped: how it was told to end, if it was.
        is_left: it goes on in the next server, as this one stops.
    """

    def __init__(
        self, record: Record, stopped: Stop | None = None, first_id: int = 0
    ) -> None:
        self.record = record
        self.thread: Record | None = None
        self.stopped: Stop | None = stopped
        self.events: EventLog = EventLog(first_id)
        self.control: RunControl = RunControl()
        self.ended: asyncio.Event = asyncio.Event()
        self.result: Any = None
        self.body: bytes = b"null"
        self.task: asyncio.Task[None] | None = None
        self.is_left: bool = False

    @property
    def id(self) -> str:
        return str(self.record["run_id"])

    @property
    def thread_id(self) -> str:
        return str(self.record["thread_id"])

    @property
    def size(self) -> int:
        """Bytes that are kept for readers who come back."""
        return self.events.size + len(self.body)

    def ask(self, questions: Sequence[Interrupt]) -> None:
        """Note the questions with which it has paused: what it has sent last need not have all."""
        values = self.result if isinstance(self.result, dict) else {}
        self.result = {**values, INTERRUPT: [*questions]}

    def fail(self, error: BaseException) -> None:
        """Note what the graph has raised, and tell the readers."""
        described = describe_error(error)
        self.result = {ERROR: described}
        self.events.add("error", described)

    def close(self) -> None:
        """Tell all who read or wait that nothing more comes."""
        if self.ended.is_set():
            return
        try:
            self.body = encode(self.result)
        except TypeError as error:
            self.body = encode({ERROR: describe_error(error)})
        self.result = None
        self.events.close()
        self.ended.set()

    def leave(self) -> None:
        """Let the next server go on with it."""
        self.is_left = True
        self.events.close()
        self.ended.set()

    async def answer(self) -> bytes:
        """The state at its end, as JSON.

        Raises:
            Refused: it has not come to its end in this server.
        """
        await self.ended.wait()
        if self.is_left:
            raise Refused(503, "the server stops, and the next one goes on with the run: join it")
        return self.body


async def stream_run(app: Pregel, execution: Execution) -> None:
    """Run a graph as it was asked for, and keep what it sends."""
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
        for name, data in events.of(ns, mode, chunk):
            execution.events.add(name, data)


async def forget_steps(app: Pregel, record: Record, *, is_taken_back: bool) -> None:
    """Leave no steps of a run behind whose thread was its own, or that is rolled back. Doing it
    twice does no harm."""
    if record["kwargs"]["temporary"]:
        saver: Any = app.checkpointer
        await saver.adelete_thread(record["thread_id"])
    elif is_taken_back:
        await _take_back(app, record["thread_id"], record["run_id"])


async def _take_back(app: Pregel, thread_id: str, run_id: str) -> None:
    """Let a thread stand where it stood before a run, whose steps stay in its history. Of a thread
    that began with the run nothing is left."""
    thread: Any = {"configurable": {"thread_id": thread_id}}
    saver: Any = app.checkpointer
    steps = [step async for step in saver.alist(thread, filter={"run_id": run_id})]
    if not steps:
        return
    before = steps[-1].parent_config
    if before is None:
        await saver.adelete_thread(thread_id)
    else:
        await app.aupdate_state(before, None, as_node=COPY)


def read_options(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a call that a request names."""
    names = ("interrupt_before", "interrupt_after", "durability")
    given = {name: asked[name] for name in names if asked.get(name) is not None}
    return given | ({"context": asked["context"]} if asked.get("context") else {})


def read_input(asked: Mapping[str, Any]) -> Any:
    """The input of a call: a state, a command, or None to go on."""
    command = asked.get("command")
    if command is None:
        return asked.get("input")
    ends = list_ends(command.get("goto"))
    parts = {name: command[name] for name in ("resume", "update") if command.get(name) is not None}
    return Command(goto=[_goto(each) for each in ends], **parts)


def _goto(end: Any) -> Any:
    return end if isinstance(end, str) else Send(end["node"], end.get("input"))
