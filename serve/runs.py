"""The runs of this server: those of one thread one after the other, in its event loop. A run is on
disk before it begins, so that a server that was killed goes on with it when it starts again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ..checkpoint.base import ERROR
from ..pregel.app import Pregel
from ..pregel.control import RunControl
from ..pregel.errors import GraphDrained
from ..pregel.names import COPY
from ..pregel.types import Command, Send
from .encode import describe_error
from .errors import Refused
from .events import EventLog
from .messages import MessageEvents
from .records import Put, Record, Records, now

Stop = Literal["interrupt", "rollback"]
KEPT_RUNS: Final = 1000
"""Of so many ended runs the events are kept, for readers who come back."""


class Execution:
    """A run in this process.

    Attributes:
        record: what is stored of it.
        result: the state at its end, or `{"__error__": ...}`.
        stopped: how it was told to end, if it was.
        instead_of: the runs of its thread that are taken back before it begins, oldest first.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        self.events: EventLog = EventLog()
        self.control: RunControl = RunControl()
        self.ended: asyncio.Event = asyncio.Event()
        self.result: Any = None
        self.task: asyncio.Task[None] | None = None
        self.stopped: Stop | None = None
        self.instead_of: list[Execution] = []

    @property
    def id(self) -> str:
        return str(self.record["run_id"])

    @property
    def thread_id(self) -> str:
        return str(self.record["thread_id"])


@dataclass
class _Lane:
    """The runs of one thread: the one under way, and those that wait for it."""

    waiting: deque[Execution] = field(default_factory=deque)
    current: Execution | None = None
    worker: asyncio.Task[None] | None = None

    def live(self) -> list[Execution]:
        return [*([self.current] if self.current else []), *self.waiting]


class Runs:
    """Begins, watches and stops runs.

    Args:
        graphs: the graphs by name, with their saver.
        most: how many runs may be under way or waiting; further ones are refused.
    """

    def __init__(self, graphs: Mapping[str, Pregel], records: Records, most: int) -> None:
        self._graphs, self._records, self._most = graphs, records, most
        self._lanes: dict[str, _Lane] = {}
        self._ended: dict[str, Execution] = {}
        self._live: dict[str, Execution] = {}
        self._is_stopping = False

    # -- begin -------------------------------------------------------------------------------------

    async def recover(self) -> int:
        """Go on with what an earlier server has left; how many runs that are."""
        left = await self._records.search("unfinished", sort_by="created_at", sort_order="asc")
        for pointer in left:
            record = await self._records.find("runs", pointer["run_id"], pointer["thread_id"])
            if record is not None:
                self._enqueue(Execution(record))
        return len(left)

    async def submit(self, record: Record, also: Sequence[Put] = ()) -> Execution:
        """Store a run, and begin it as soon as its thread is free.

        Args:
            also: records that are written with it, all or none.

        Raises:
            Refused: the thread is busy and the run does not want to wait, or there are too many.
        """
        if self._is_stopping:
            raise Refused(503, "the server is stopping: try again")
        if len(self._live) >= self._most:
            raise Refused(429, f"{self._most} runs are under way already: try again later")
        execution = Execution(record)
        strategy = record["multitask_strategy"]
        lane = self._lanes.setdefault(execution.thread_id, _Lane())
        before = lane.live()
        if before and strategy == "reject":
            raise Refused(
                409,
                "the thread is busy: wait for its run to end, or choose another multitask_strategy",
            )
        self._live[execution.id] = execution  # at once: whoever comes next finds the thread busy
        lane.waiting.append(execution)
        try:
            await self._records.put(
                ("runs", execution.id, record, execution.thread_id),
                ("unfinished", execution.id, {k: record[k] for k in _POINTER}),
                *also,
            )
        except BaseException:
            lane.waiting.remove(execution)
            del self._live[execution.id]
            raise
        if strategy in ("interrupt", "rollback"):
            execution.instead_of = before if strategy == "rollback" else []
            for other in before:
                self.stop(other, strategy)
        self._wake(execution.thread_id)
        return execution

    def _enqueue(self, execution: Execution) -> None:
        self._live[execution.id] = execution
        self._lanes.setdefault(execution.thread_id, _Lane()).waiting.append(execution)
        self._wake(execution.thread_id)

    def _wake(self, thread_id: str) -> None:
        lane = self._lanes[thread_id]
        if lane.worker is None:
            lane.worker = asyncio.create_task(self._work(thread_id, lane))

    async def _work(self, thread_id: str, lane: _Lane) -> None:
        while lane.waiting and not self._is_stopping:
            execution = lane.current = lane.waiting.popleft()
            execution.task = asyncio.create_task(self._run(execution))
            await asyncio.wait([execution.task])
            if not execution.task.cancelled() and execution.task.exception() is not None:
                raise execution.task.exception()  # type: ignore[misc]
            lane.current = None
        lane.worker = None
        if not lane.waiting:
            self._lanes.pop(thread_id, None)

    # -- look --------------------------------------------------------------------------------------

    def is_busy(self, thread_id: str) -> bool:
        """Whether a run of the thread is under way, or waits."""
        lane = self._lanes.get(thread_id)
        return lane is not None and bool(lane.live())

    def busy_threads(self) -> list[str]:
        """The threads of which that is so."""
        return [thread_id for thread_id in self._lanes if self.is_busy(thread_id)]

    def live(self) -> list[Execution]:
        """The runs that are under way, or wait."""
        return [*self._live.values()]

    def find(self, run_id: str) -> Execution | None:
        """A run of this process, also one that has ended not long ago."""
        return self._live.get(run_id) or self._ended.get(run_id)

    def status(self, record: Record) -> str:
        """How a stored run stands at this moment."""
        execution = self._live.get(record["run_id"])
        is_running = execution is not None and execution.task is not None
        return "running" if is_running else str(record["status"])

    # -- stop --------------------------------------------------------------------------------------

    def stop(self, execution: Execution, how: Stop) -> None:
        """Let a run end: "interrupt" at its next barrier, "rollback" at once."""
        execution.stopped = how
        execution.control.request_drain(f"the run was stopped: {how}")
        if how == "rollback" and execution.task is not None:
            execution.task.cancel()

    def cancel(self, execution: Execution) -> None:
        """Let a run end at once; what it has stored stays."""
        execution.stopped = execution.stopped or "interrupt"
        if execution.task is not None:
            execution.task.cancel()
        else:
            execution.control.request_drain("the run was cancelled")

    async def close(self, seconds: float) -> None:
        """Let all runs pause at their next barrier; the next server goes on with them."""
        self._is_stopping = True
        for execution in self._live.values():
            execution.control.request_drain()
        workers = [lane.worker for lane in self._lanes.values() if lane.worker is not None]
        if workers:
            await asyncio.wait(workers, timeout=seconds)
        for execution in [*self._live.values()]:
            if execution.task is not None:
                execution.task.cancel()
        if workers:
            await asyncio.wait(workers)

    # -- run ---------------------------------------------------------------------------------------

    async def _run(self, execution: Execution) -> None:
        status = "success"
        try:
            if execution.stopped is not None:
                status = "interrupted"
            else:
                await self._stream(execution)
        except (GraphDrained, asyncio.CancelledError):
            if execution.stopped is None:  # the server stops: the next one goes on
                execution.events.close()
                execution.ended.set()
                self._live.pop(execution.id, None)
                return
            status = "interrupted"
        except Exception as error:
            status = "error"
            execution.result = {ERROR: describe_error(error)}
            execution.events.add("error", describe_error(error))
        await asyncio.shield(self._end(execution, status))

    async def _end(self, execution: Execution, status: str) -> None:
        record = {**execution.record, "status": status, "updated_at": now()}
        run_id = execution.id
        async with self._records.lock("threads", execution.thread_id):
            await self._records.put(*await self._last_changes(execution, record))
        execution.record = record
        self._live.pop(run_id, None)
        self._ended[run_id] = execution
        while len(self._ended) > KEPT_RUNS:
            del self._ended[next(iter(self._ended))]
        execution.events.close()
        execution.ended.set()

    async def _last_changes(self, execution: Execution, record: Record) -> list[Put]:
        """What is written at the end of a run."""
        thread_id, run_id = execution.thread_id, execution.id
        changes: list[Put] = [("unfinished", run_id, None)]
        if record["kwargs"]["temporary"]:
            app = self._graphs[record["graph_id"]]
            saver: Any = app.checkpointer
            await saver.adelete_thread(thread_id)
            changes += [("runs", run_id, None, thread_id)]
        else:
            changes += [("runs", run_id, record, thread_id)]
            thread = await self._records.find("threads", thread_id)
            if thread is not None:
                state = await self._graphs[record["graph_id"]].aget_state(_config(thread_id))
                error = execution.result[ERROR] if record["status"] == "error" else None
                settled = "error" if error else ("interrupted" if state.next else "idle")
                more = {"status": settled, "error": error, "updated_at": now()}
                changes += [("threads", thread_id, {**thread, **more})]
        return changes

    async def _stream(self, execution: Execution) -> None:
        record = execution.record
        asked = record["kwargs"]
        app = self._graphs[record["graph_id"]]
        wanted = asked["stream_mode"]
        modes = {"messages" if mode == "messages-tuple" else mode for mode in wanted} | {"values"}
        execution.events.add("metadata", {"run_id": execution.id, "attempt": 1})
        partial = MessageEvents() if "messages" in wanted else None
        for other in execution.instead_of:
            await take_back(app, other)
        config = {**asked["config"], "run_id": execution.id}
        chunks = app.astream(
            _input(asked),
            config,
            stream_mode=sorted(modes),  # type: ignore[arg-type]
            subgraphs=True,
            control=execution.control,
            **_options(asked),
        )
        chunk: Any
        async for ns, mode, chunk in chunks:
            if mode == "values" and not ns:
                execution.result = chunk
            if ns and not asked["subgraphs"] and mode != "messages":
                continue
            place = "|".join(["", *ns]) if asked["subgraphs"] else ""
            if mode == "messages":
                if "messages-tuple" in wanted:
                    execution.events.add(f"messages{place}", chunk)
                if partial is not None:
                    for name, data in partial.of(chunk):
                        execution.events.add(f"{name}{place}", data)
            elif mode in wanted:
                execution.events.add(f"{mode}{place}", chunk)


_POINTER = ("run_id", "thread_id", "created_at")


async def take_back(app: Pregel, execution: Execution) -> None:
    """Let a thread stand where it stood before a run, whose steps stay in its history. Of a thread
    that began with the run nothing is left."""
    thread: Any = _config(execution.thread_id)
    saver: Any = app.checkpointer
    steps = [step async for step in saver.alist(thread, filter={"run_id": execution.id})]
    if not steps:
        return
    before = steps[-1].parent_config
    if before is None:
        await saver.adelete_thread(execution.thread_id)
    else:
        await app.aupdate_state(before, None, as_node=COPY)


def _config(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}


def _options(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What of a request is options of a call."""
    names = ("interrupt_before", "interrupt_after", "durability")
    given = {name: asked[name] for name in names if asked.get(name) is not None}
    return given | ({"context": asked["context"]} if asked.get("context") else {})


def _input(asked: Mapping[str, Any]) -> Any:
    """The input of a call: a state, a command, or None to go on."""
    command = asked.get("command")
    if command is None:
        return asked.get("input")
    goto = command.get("goto")
    ends = goto if isinstance(goto, list) else [goto] if goto else []
    parts = {name: command[name] for name in ("resume", "update") if command.get(name) is not None}
    return Command(goto=[_goto(each) for each in ends], **parts)


def _goto(end: Any) -> Any:
    return end if isinstance(end, str) else Send(end["node"], end.get("input"))
