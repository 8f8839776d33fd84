"""`JobRunner`: how a worker runs one claimed job, from its input to its stored outcome.

A worker that died may have begun the job earlier, so this module also decides what is left to do of
its input. It does not deal with sessions or other jobs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any, TypeVar

from ..channels.base import MISSING
from ..checkpoint.base import NULL_TASK_ID, BaseCheckpointSaver
from ..checkpoint.errors import (
    CheckpointConflictError,
    StorageError,
    UnknownKeyError,
    UnknownTypeError,
    UnserializableError,
)
from ..checkpoint.sql.postgres_server import OutOfReachError
from ..pregel.app import Pregel
from ..pregel.clock import CLOCK
from ..pregel.drivers import threads
from ..pregel.errors import (
    GraphChangedError,
    GraphDrained,
    StateGraphError,
    UnknownInterruptError,
)
from ..pregel.log import log_failed_run
from ..pregel.program.program import is_async
from ..pregel.run.config import merge_configs
from ..pregel.run.effects import Effects
from ..pregel.run.run import Run
from ..pregel.run.start import check_unchanged
from ..pregel.run.update_state import load_to_edit
from ..pregel.task.interrupts import looks_like_answers
from ..pregel.types import Command, GraphOutput, Interrupt, RunnableConfig
from .chunk_batches import ChunkWriter, ChunkWrites
from .chunks import ChunkTable, RunReader
from .jobs import Job, JobCodec, JobDeadlineError, JobEnd, Status
from .saver import WorkerSaver
from .turns import find_start

Found = TypeVar("Found")
LOG = logging.getLogger("stategraph.workers")

_FOR_OTHERS = (GraphChangedError, UnknownKeyError, UnknownTypeError)
"""What a worker raises that has another version of the graph, or other keys, than a job needs."""

REPEATS = 10
"""How often a run is attempted while it conflicts with another run on its thread, or the database
is out of reach."""
SECONDS_BEHIND = 0.5
"""How long to hold back a job that is due by the database's clock but not by this machine's."""
SECONDS_TO_CANCEL = 5.0
"""How long to wait for cancelled runs when their worker has failed."""


class JobRunner:
    """Runs jobs of a graph, on the thread that calls `run`. An async graph runs on one event loop
    for all jobs.

    Args:
        graph: the graph, with a checkpointer.
        codec: converts tasks and outcomes to bytes.
        store_task: replaces the stored task of a job, if this worker still holds the job.
        chunks: stores the streams of jobs; with None, no job may have a stream.
    """

    def __init__(
        self,
        graph: Pregel,
        codec: JobCodec,
        store_task: Callable[[Job, bytes], None],
        chunks: ChunkTable | None = None,
    ) -> None:
        assert isinstance(graph.checkpointer, BaseCheckpointSaver)
        self._graph, self._saver = graph, graph.checkpointer
        self._codec, self._store_task = codec, store_task
        self._writes = None if chunks is None else ChunkWrites(chunks)
        self._loop = asyncio.new_event_loop() if is_async(graph.program) else None
        self._tasks: dict[Job, asyncio.Task[Any] | None] = {}  # used on the loop only
        self._thread = threading.Thread(target=self._run_loop, name="stategraph-loop", daemon=True)
        if self._loop is not None:
            self._thread.start()

    def close(self) -> None:
        """End the event loop, if there is one. Runs that a failed worker has left on it are
        cancelled."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(SECONDS_TO_CANCEL)

    def _run_loop(self) -> None:
        assert self._loop is not None
        self._loop.run_forever()
        if left := asyncio.all_tasks(self._loop):
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(left))
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def run(self, job: Job) -> JobEnd:
        """Run a job until it ends, pauses, sleeps or is drained. An exception from a node ends the
        job, not the worker. A job that only another version of the graph, or a worker with other
        keys, can run goes back to the queue."""
        try:
            return self._run(job)
        except BaseException as error:
            if isinstance(error, _FOR_OTHERS):
                LOG.warning("%s is left to other workers: %s", job.name, error)
                job.left = True
                return JobEnd(job.id, job.attempt, "left")
            if not job.lost:
                self._log(job, error)
            return JobEnd(job.id, job.attempt, "failed", self.encode_error(job, error))

    def _log(self, job: Job, error: BaseException) -> None:
        user = None
        with suppress(Exception):  # the task may be what cannot be read
            config = self._codec.read("task", job.name, job.task)["config"]
            user = config["configurable"].get("langgraph_auth_user_id")
        log_failed_run(LOG, error, **job.name._asdict(), user=user)

    def _run(self, job: Job) -> JobEnd:
        task = self._codec.read("task", job.name, job.task)
        own: RunnableConfig = {
            "run_id": job.name.run_id,
            "configurable": {"thread_id": job.name.thread_id},
        }
        config = merge_configs(task["config"], own)
        was_begun = job.attempt > 1
        for repeat in range(1, REPEATS + 1):
            try:
                start = config
                if "instead_of" in task:
                    start = find_start(self._saver, config, task["instead_of"], was_begun)
                output = self._try(job, task, start, was_begun)
                break
            except _Overtaken as end:
                raise end.conflict from None
            except (CheckpointConflictError, StorageError) as error:
                # Another run uses the thread, such as that of a worker whose death was not noticed
                # yet, or the database is out of reach. Both are temporary. Work that was already
                # stored must not be repeated.
                if job.lost or repeat == REPEATS:
                    if isinstance(error, OutOfReachError):  # not the job's fault
                        return JobEnd(job.id, job.attempt, "waiting")
                    raise
            time.sleep(0.01 * 2 ** (repeat - 1))
            # The failed attempt may have stored a part: the input must not be applied twice.
            was_begun = True
        if output is None:
            return JobEnd(job.id, job.attempt, "waiting")
        questions = tuple(output.interrupts)
        outcome = self._codec.write("outcome", job.name, (output.value, questions, None))
        if output.wake_at is not None:
            return self._put_to_sleep(job, output.wake_at.timestamp(), questions, outcome)
        return JobEnd(job.id, job.attempt, "paused" if questions else "done", outcome)

    def _put_to_sleep(
        self, job: Job, wake_at: float, questions: tuple[Interrupt, ...], outcome: bytes
    ) -> JobEnd:
        """Return the end of a run that continues later, by the database's clock."""
        left = wake_at - CLOCK.time()
        if job.attempt > 1 and left > 0:
            # That clock may be ahead of ours: without a pause, the job would be claimed again at
            # once.
            CLOCK.sleep(min(left, SECONDS_BEHIND))
        # A run that asks may be answered earlier, by another job, which must not wait for this one.
        status: Status = "delayed" if questions else "sleeping"
        return JobEnd(job.id, job.attempt, status, outcome, wake_at)

    def _try(self, job: Job, task: dict[str, Any], config: RunnableConfig, was_begun: bool) -> Any:
        """Run a job once; return what `invoke` returns, or None if the run was asked to stop.

        Args:
            was_begun: whether it may have been begun earlier, so that its input may already be
                stored.
        """
        # What is left of a command is kept in the task for the next attempt: once another run has
        # added a checkpoint, `find_rest` would take the command for a new one.
        if isinstance(task["input"], Command):
            task["input"] = self._prepare(job, task, config, was_begun)
        elif was_begun and was_edited(self._graph, task, config):
            task["input"] = None  # it was taken: the run goes on from the edit
        options: dict[str, Any] = {"control": job.control}
        options["durability"] = task.get("durability")  # jobs of earlier versions lack it
        if task["context"] is not None:
            options["context"] = task["context"]
        for name in ("interrupt_before", "interrupt_after"):
            if name in task:
                options[name] = task[name]

        def invoke(input: Any) -> Any:
            if "stream" in task:
                return self._stream(job, task["stream"], input, config, **options)
            return self._invoke(job, input, config, version="v2", **options)

        try:
            try:
                with self._running(job, trusted=not was_begun and "instead_of" not in task):
                    return invoke(task["input"])
            except UnknownInterruptError:
                if not was_begun:
                    raise
                task["input"] = None  # an earlier attempt has answered its question
                return invoke(None)
        except GraphDrained as drained:
            if job.control.drain_requested:
                return None
            # Its own deadline has passed: returned to the queue, it would be retried forever.
            raise JobDeadlineError(
                f"{job.name} has stopped: {drained.reason}. What was done is kept: submit the "
                "input None with a later deadline to go on"
            ) from None

    def _running(self, job: Job, *, trusted: bool) -> AbstractContextManager[None]:
        """Return a context in which the checkpointer knows the job, if it is a `WorkerSaver`."""
        saver = self._saver
        if isinstance(saver, WorkerSaver):
            return saver.running(job, trusted=trusted)
        return nullcontext()

    def encode_error(self, job: Job, error: BaseException) -> bytes:
        """Return an error as the stored outcome of a job."""
        try:
            return self._encode(job, error)
        except UnserializableError as refused:
            return self._encode(job, refused)
        except Exception as broken:  # such as an error whose __reduce__ fails
            return self._encode(job, StateGraphError(
                f"the run ended with a {type(error).__name__}, which cannot be stored "
                f"({type(broken).__name__})"
            ))  # fmt: skip

    def _encode(self, job: Job, error: BaseException) -> bytes:
        return self._codec.write("outcome", job.name, (None, (), error))

    def _invoke(self, job: Job, *arguments: Any, **options: Any) -> Any:
        if self._loop is None:
            return self._graph.invoke(*arguments, **options)
        return self._await(job, self._graph.ainvoke(*arguments, **options))

    def _await(self, job: Job, work: Coroutine[Any, Any, Found]) -> Found:
        """Run a coroutine on the loop and return its result, unless the job is cut off."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(self._watch(job, work), self._loop).result()

    async def _watch(self, job: Job, work: Coroutine[Any, Any, Found]) -> Found:
        task = self._tasks[job] = asyncio.current_task()
        try:
            return await work
        except asyncio.CancelledError:
            if task is None or self._tasks.get(job) is task:
                raise
            raise GraphDrained("the job was cancelled") from None
        finally:
            self._tasks.pop(job, None)

    def cut_off(self, job: Job) -> None:
        """End the run of an async graph at once, after `request_drain`. May be called from any
        thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cut_off, job)

    def _cut_off(self, job: Job) -> None:
        if (task := self._tasks.pop(job, None)) is not None:
            task.cancel()

    def _stream(
        self, job: Job, wanted: dict[str, Any], input: Any, config: RunnableConfig, **options: Any
    ) -> GraphOutput[Any]:
        """Do the same as `_invoke`, and store what the run sends."""
        assert self._writes is not None
        writer = ChunkWriter(self._writes, job)
        reader = RunReader(wanted["modes"], wanted["subgraphs"], writer.add)
        options |= {"stream_mode": reader.modes, "subgraphs": reader.looks_inside}
        try:
            if self._loop is None:
                for chunk in self._graph.stream(input, config, **options):
                    reader.take(chunk)
            else:
                chunks = self._graph.astream(input, config, **options)
                self._await(job, reader.take_all(chunks))
        finally:
            writer.close()  # before the job's end is stored
        output = reader.output
        if output is not None and not job.control.paused:
            return output
        # The last values may lack some questions, or the run had nothing to do and sent none.
        if output is None:
            state = self._graph.get_state(config)
            return GraphOutput(state.values, state.interrupts)
        # A run that began at an earlier checkpoint asks at the end of its own branch, the head.
        state = self._graph.get_state({"configurable": {"thread_id": job.name.thread_id}})
        return replace(output, interrupts=state.interrupts, wake_at=state.wake_at)

    # -- commands that may have been given before --------------------------------------------------

    def _prepare(
        self, job: Job, task: dict[str, Any], config: RunnableConfig, was_begun: bool
    ) -> Command[Any] | None:
        """Return what is left to do of a command. An answer is bound to its question before the run
        begins, so that it never reaches the next question, however often the job is begun."""
        command: Command[Any] | None = task["input"]
        if was_begun:
            command = find_rest(self._saver, task["input"], config)
        if command is None or command.resume is MISSING:
            return command
        asked = self._graph.get_state(config).interrupts
        if task.get("bound") or len(asked) != 1 or looks_like_answers(command.resume):
            return command  # the run takes it, or raises
        command = replace(command, resume={asked[0].id: command.resume})
        bound = {**task, "input": command, "bound": True}
        self._store_task(job, self._codec.write("task", job.name, bound))
        task |= bound  # only after it was stored: if that fails, the next attempt binds it again
        return command


class _Overtaken(Exception):
    """Carries a conflict that no repetition of the run would end."""

    def __init__(self, thread_id: str, stopped: str, head: str) -> None:
        self.conflict = CheckpointConflictError(thread_id, "", stopped, head)


def was_edited(graph: Pregel, task: dict[str, Any], config: RunnableConfig) -> bool:
    """Return whether the thread was edited since the run of an input stopped short of its end. The
    run itself would take what followed for calls that came after it, and show what it had.

    Raises:
        _Overtaken: another run has gone on from there, or the edit has left nothing to do.
        GraphChangedError: another version has stored it, whose nodes this graph lacks.
    """
    run_id, saver = str(config["run_id"]), graph.checkpointer
    assert isinstance(saver, BaseCheckpointSaver)
    head = found = saver.get_tuple(config)
    if head is None or head.metadata.get("run_id") == run_id or _may_stop_early(task, config):
        return False
    mine = saver.run_of(config, run_id)
    left = None if mine is None else graph.get_state(mine.config)
    if mine is None or left is None or left.interrupts or not left.next:
        return False
    while found and found.metadata.get("source") == "update" and found.parent_config:
        found = saver.get_tuple(found.parent_config)
    if found and found.metadata.get("run_id") == run_id:
        if graph.get_state(config).next:
            return True
        run = graph._editing(config)
        threads.drive(run, _check_nodes(run))
    thread_id = config["configurable"]["thread_id"]
    raise _Overtaken(thread_id, mine.checkpoint["id"], head.checkpoint["id"])


def _check_nodes(run: Run) -> Effects:
    """Refuse a thread that has pending work for nodes which the graph lacks."""
    yield from load_to_edit(run)
    check_unchanged(run)


def _may_stop_early(task: dict[str, Any], config: RunnableConfig) -> bool:
    """Return whether a run may end where something is left to do: at a breakpoint, or on a
    branch."""
    has_breakpoints = "interrupt_before" in task or "interrupt_after" in task
    return has_breakpoints or "checkpoint_id" in config["configurable"]


def find_rest(
    saver: BaseCheckpointSaver, command: Command[Any], config: RunnableConfig
) -> Command[Any] | None:
    """Return what is left of a command that an earlier attempt of the same run may have applied;
    None if the run only has to continue."""
    found = saver.get_tuple(config)
    if found is None:
        return command
    if found.metadata.get("run_id") == config["run_id"]:
        return None  # a superstep of this run is stored, so the command was applied
    if any(task_id == NULL_TASK_ID for task_id, _, _ in found.pending_writes or ()):
        command = replace(command, update=None, goto=())  # both are stored as pending writes
    is_empty = command.resume is MISSING and command.update is None and not command.steps()
    return None if is_empty else command
