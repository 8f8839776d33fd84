"""`JobRunner`: how a worker runs one claimed job, from its input to its stored outcome.

A worker that died may have begun the job before, so this also decides what is left to do of its
input. It knows nothing of sessions and other jobs.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, TypeVar

from ..channels.base import MISSING
from ..checkpoint.base import NULL_TASK_ID, BaseCheckpointSaver
from ..checkpoint.errors import CheckpointConflictError, StorageError, UnserializableError
from ..checkpoint.sql.postgres_server import OutOfReachError
from ..pregel.app import Pregel
from ..pregel.clock import CLOCK
from ..pregel.errors import GraphDrained, StateGraphError, UnknownInterruptError
from ..pregel.program.program import is_async
from ..pregel.run.config import merge_configs
from ..pregel.superstep.interrupts import looks_like_answers
from ..pregel.types import Command, GraphOutput, Interrupt, RunnableConfig
from .chunks import ChunkTable, ChunkWriter, RunReader
from .jobs import Job, JobCodec, JobDeadlineError, JobEnd, Status
from .saver import WorkerSaver
from .turns import find_start

Found = TypeVar("Found")

REPEATS = 10
"""How often a run is begun that meets another one on its thread, or a database that is out of
reach."""
SECONDS_BEHIND = 0.5
"""How long a job is held back whose time has come by the database's clock, but not by ours."""
SECONDS_TO_CANCEL = 5.0
"""How long to wait for cancelled runs when their worker has failed."""


class JobRunner:
    """Runs jobs of a graph, on the thread that calls `run`. An async graph runs on one event loop
    for all jobs.

    Args:
        graph: with a saver.
        codec: how tasks and outcomes become bytes.
        store_task: stores a task in place of a job's, if the job is still this worker's.
        chunks: where the streams of jobs are stored; with None there must be none.
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
        self._codec, self._store_task, self._chunks = codec, store_task, chunks
        self._loop = asyncio.new_event_loop() if is_async(graph.program) else None
        self._tasks: dict[Job, asyncio.Task[Any] | None] = {}  # on the loop
        self._thread = threading.Thread(target=self._run_loop, name="stategraph-loop", daemon=True)
        if self._loop is not None:
            self._thread.start()

    def close(self) -> None:
        """End the event loop, if there is one. What still runs on it, because the worker failed, is
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
        """Run a job to its end, its next pause or sleep, or a drain. Whatever a node raises ends
        the job, not the worker."""
        try:
            return self._run(job)
        except BaseException as error:
            return JobEnd(job.id, job.attempt, "failed", self.encode_error(job, error))

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
            except (CheckpointConflictError, StorageError) as error:
                # Another run is on the thread, such as that of a worker which is not known to be
                # dead yet; or the database is out of reach. Both pass. What was stored before that
                # must not be done again.
                if job.lost or repeat == REPEATS:
                    if isinstance(error, OutOfReachError):  # that is not the job's fault
                        return JobEnd(job.id, job.attempt, "waiting")
                    raise
            time.sleep(0.01 * 2 ** (repeat - 1))
            # The failed try may have stored a part: the input must not be taken a second time.
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
        """Put a job back until its run goes on, by the database's clock."""
        left = wake_at - CLOCK.time()
        if job.attempt > 1 and left > 0:
            # Perhaps that clock is ahead, so that it would be claimed again at once.
            CLOCK.sleep(min(left, SECONDS_BEHIND))
        # What is asked may be answered before: by a job, which must not wait for this one.
        status: Status = "delayed" if questions else "sleeping"
        return JobEnd(job.id, job.attempt, status, outcome, wake_at)

    def _try(self, job: Job, task: dict[str, Any], config: RunnableConfig, was_begun: bool) -> Any:
        """Run a job once: what `invoke` returns, or None if the run was asked to stop.

        Args:
            was_begun: it may have been begun before, so that its input may be stored already.
        """
        # What is left of a command is kept for the next try: the checkpoint by which it is found
        # may be followed by that of another run, and the command would then be taken for a new one.
        if isinstance(task["input"], Command):
            task["input"] = self._prepare(job, task, config, was_begun)
        options: dict[str, Any] = {"control": job.control}
        options["durability"] = task.get("durability")  # jobs of an earlier version have none
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
                task["input"] = None  # its question was answered the last time
                return invoke(None)
        except GraphDrained as drained:
            if job.control.drain_requested:
                return None
            # Its own deadline, which will not come later: given back, it would be tried for ever.
            raise JobDeadlineError(
                f"{job.name} has stopped: {drained.reason}. What was done is kept: submit the "
                "input None with a later deadline to go on"
            ) from None

    def _running(self, job: Job, *, trusted: bool) -> AbstractContextManager[None]:
        """A context in which the saver knows the job, if it is one that can use it."""
        saver = self._saver
        if isinstance(saver, WorkerSaver):
            return saver.running(job, trusted=trusted)
        return nullcontext()

    def encode_error(self, job: Job, error: BaseException) -> bytes:
        """An error as the outcome of a job."""
        try:
            return self._encode(job, error)
        except UnserializableError as refused:
            return self._encode(job, refused)
        except Exception as broken:  # such as an error whose own __reduce__ fails
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
        """What a coroutine returns on the loop, unless the job is cut off."""
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
        """End the run of an async graph at once, after `request_drain`. For any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cut_off, job)

    def _cut_off(self, job: Job) -> None:
        if (task := self._tasks.pop(job, None)) is not None:
            task.cancel()

    def _stream(
        self, job: Job, wanted: dict[str, Any], input: Any, config: RunnableConfig, **options: Any
    ) -> GraphOutput[Any]:
        """`_invoke`, with what the run sends on the way."""
        assert self._chunks is not None
        writer = ChunkWriter(self._chunks, job)
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
        # What it shows last need not have all questions; or there was nothing to do.
        state = self._graph.get_state(config)
        if output is None:
            return GraphOutput(state.values, state.interrupts)
        return replace(output, interrupts=state.interrupts, wake_at=state.wake_at)

    # -- commands that may have been given before --------------------------------------------------

    def _prepare(
        self, job: Job, task: dict[str, Any], config: RunnableConfig, was_begun: bool
    ) -> Command[Any] | None:
        """What is left to do of a command. An answer is bound to its question before the run
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
        task |= bound  # now that it is stored: should that fail, it is tried again
        return command


def find_rest(
    saver: BaseCheckpointSaver, command: Command[Any], config: RunnableConfig
) -> Command[Any] | None:
    """What is left of a command that the same run may have given before; None if all that is left
    is to go on."""
    found = saver.get_tuple(config)
    if found is None:
        return command
    if found.metadata.get("run_id") == config["run_id"]:
        return None  # a superstep of this run is stored, so it was taken
    if any(task_id == NULL_TASK_ID for task_id, _, _ in found.pending_writes or ()):
        command = replace(command, update=None, goto=())  # both are stored beside the checkpoint
    is_empty = command.resume is MISSING and command.update is None and not command.steps()
    return None if is_empty else command
