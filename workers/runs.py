"""`Runs`: how a worker runs one claimed job, from its input to what is stored of its end; and what an input means that
may have been given before. Knows nothing of sessions and of other jobs.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..channels.base import MISSING
from ..checkpoint.base import NULL_TASK_ID, BaseCheckpointSaver
from ..checkpoint.errors import CheckpointConflictError, StorageError, UnserializableError
from ..checkpoint.sql.postgres_server import OutOfReachError
from ..pregel.app import Pregel
from ..pregel.errors import GraphDrained, StateGraphError, UnknownInterruptError
from ..pregel.program.program import Program
from ..pregel.run.config import merge_configs
from ..pregel.superstep.interrupts import looks_like_answers
from ..pregel.types import Command, RunnableConfig
from .jobs import Ended, Form, Job

REPEATS = 10
"""How often a run is begun that met another one on its thread, or a database that was away."""


CANCELLED = 5.0
"""Seconds that cancelled runs are waited for when their worker has failed."""


class Runs:
    """Runs jobs of a graph, on the thread that asks.

    Args:
        graph: with a saver.
        form: how tasks and outcomes become bytes.
        store: keeps a task in place of a job's, while the job is still this worker's.
    """

    def __init__(self, graph: Pregel, form: Form, store: Callable[[Job, bytes], None]) -> None:
        assert isinstance(graph.checkpointer, BaseCheckpointSaver)
        self._graph, self._saver = graph, graph.checkpointer
        self._form, self._store = form, store
        self._loop = asyncio.new_event_loop() if is_async(graph.program) else None
        self._thread = threading.Thread(target=self._turn, name="stategraph-loop", daemon=True)
        if self._loop is not None:
            self._thread.start()

    def close(self) -> None:
        """End the event loop, if there is one. What still runs on it, because the worker failed, is cancelled."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CANCELLED)

    def _turn(self) -> None:
        assert self._loop is not None
        self._loop.run_forever()
        if left := asyncio.all_tasks(self._loop):
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(left))
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def run(self, job: Job) -> Ended:
        """Run a job to its end, its next pause or a drain. Whatever a node raises ends the job, not the worker."""
        try:
            return self._run(job)
        except BaseException as error:
            return Ended(job.id, job.attempt, "failed", self.told(job, error))

    def _run(self, job: Job) -> Ended:
        task = self._form.read("task", job.name, job.task)
        own: RunnableConfig = {"run_id": job.name.run_id, "configurable": {"thread_id": job.name.thread_id}}
        config = merge_configs(task["config"], own)
        context = {} if task["context"] is None else {"context": task["context"]}
        given, before = task["input"], job.attempt > 1
        for repeat in range(REPEATS):
            try:
                if isinstance(given, Command):
                    given = self._prepared(job, task, config, before)
                output = self._invoke(given, config, control=job.control, version="v2", **context)
            except GraphDrained:
                return Ended(job.id, job.attempt, "waiting")
            except UnknownInterruptError:
                if not before:
                    raise
                given = None  # it was answered the last time
            except (CheckpointConflictError, StorageError) as error:
                if job.lost or repeat == REPEATS - 1:
                    if isinstance(error, OutOfReachError):  # that is no fault of the job
                        return Ended(job.id, job.attempt, "waiting")
                    raise
                time.sleep(0.01 * 2**repeat)
                before = True
            else:
                asked = tuple(output.interrupts)
                outcome = self._form.write("outcome", job.name, (output.value, asked, None))
                return Ended(job.id, job.attempt, "paused" if asked else "done", outcome)
        raise AssertionError("the last repeat returns or raises")

    def told(self, job: Job, error: BaseException) -> bytes:
        """An error as the outcome of a job."""
        try:
            return self._form.write("outcome", job.name, (None, (), error))
        except UnserializableError as refused:
            return self._form.write("outcome", job.name, (None, (), refused))
        except Exception as broken:  # e.g. its own __reduce__ fails
            text = f"the run ended with a {type(error).__name__}, which cannot be stored ({type(broken).__name__})"
            return self._form.write("outcome", job.name, (None, (), StateGraphError(text)))

    def _invoke(self, *args: Any, **options: Any) -> Any:
        if self._loop is None:
            return self._graph.invoke(*args, **options)
        return asyncio.run_coroutine_threadsafe(self._graph.ainvoke(*args, **options), self._loop).result()

    # -- commands that may have been given before ---------------------------------------------------------

    def _prepared(self, job: Job, task: dict[str, Any], config: RunnableConfig, before: bool) -> Command[Any] | None:
        """What is left to do of a command. An answer is bound to its question before the run begins, so that it never
        reaches the next one, however often the job is begun."""
        command = left_to_do(self._saver, task["input"], config) if before else task["input"]
        if command is None or command.resume is MISSING:
            return command
        asked = self._graph.get_state(config).interrupts
        if task.get("bound") or len(asked) != 1 or looks_like_answers(command.resume):
            return command  # the run takes it, or says why not
        command = replace(command, resume={asked[0].id: command.resume})
        task |= {"input": command, "bound": True}
        self._store(job, self._form.write("task", job.name, task))
        return command


def left_to_do(saver: BaseCheckpointSaver, command: Command[Any], config: RunnableConfig) -> Command[Any] | None:
    """What is left of a command that the same run may have given before: None if all that is left is to go on."""
    found = saver.get_tuple(config)
    if found is None:
        return command
    if found.metadata.get("run_id") == config["run_id"]:
        return None  # a superstep of this run is stored, so it was taken
    if any(task_id == NULL_TASK_ID for task_id, _, _ in found.pending_writes or ()):
        command = replace(command, update=None, goto=())
    return None if command.resume is MISSING and command.update is None and not command.steps() else command


def is_async(program: Program) -> bool:
    """Whether a graph can only be run by `ainvoke`: a node of it, or of a graph inside, has no sync form."""
    nested = [each.program for each in program.nested.values()]
    own = any(node.sync_missing or any(w.is_async for w in node.writers) for node in program.nodes.values())
    return own or any(is_async(each) for each in nested)
