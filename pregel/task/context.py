"""What a running task may ask of the run that it belongs to.

A protocol: tasks, `interrupt`, `@task` calls and executors build on it. How a run is carried out
they do not know.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ...checkpoint.serde import Serializer
from ..control import RunControl
from ..program.program import Program, Reader
from ..program.writes import Pair
from ..types import Interrupt, RunnableConfig, StreamWriter
from .deadline import Deadline
from .ids import Carried

TaskT = TypeVar("TaskT")
TaskT_contra = TypeVar("TaskT_contra", contravariant=True)


class SuperstepView(Protocol):
    """The superstep in which the task runs.

    Attributes:
        checkpoint_id: of the checkpoint from which it runs; "" as long as nothing is stored and
            nobody has asked.
    """

    @property
    def checkpoint_id(self) -> str: ...

    def identify(self) -> str:
        """Give the state an id, and return it."""

    @property
    def step(self) -> int:
        """Its number on the thread."""

    @property
    def tick(self) -> int:
        """The highest version of any channel in the state from which it runs."""

    @property
    def carried(self) -> Mapping[tuple[Any, ...], Carried]:
        """Path -> what the tasks take along that were begun before an edit of the thread."""

    def preview(self, reader: Reader, writes: Sequence[Pair]) -> dict[str, Any]:
        """The state as it will be with these writes alone."""

    def find_joined(self, task: Any) -> tuple[str, ...]:
        """The nodes that opened the joins which made a task run."""


class StoredTask(Protocol):
    """What is stored of a task; `run.ledger` has the whole."""

    @property
    def answers(self) -> Mapping[str, Any]:
        """The answers that it was given, by the ids of its questions."""

    @property
    def interrupts(self) -> tuple[Interrupt, ...]:
        """The questions that it has asked."""

    @property
    def raised(self) -> bool:
        """Whether a signal raised by hand had paused it."""

    @property
    def edited(self) -> bool:
        """Whether the thread was edited since its questions were shown."""


class TaskLedger(Protocol[TaskT_contra]):
    """What is stored of tasks beside the checkpoint from which the call goes on, and the answers
    that it brings, or the calls around it. These serve all tasks of the run, so each question says
    whose it is; for one task, `running.AnswerLookup` has said so.

    Attributes:
        brought_any: there are, or were, some answers.
    """

    def __len__(self) -> int: ...

    def of(self, task_id: str) -> StoredTask: ...

    @property
    def brought_any(self) -> bool: ...

    def take(
        self, question: str, by: TaskT_contra, inside: tuple[Any, ...] = ()
    ) -> tuple[Any, ...]:
        """The answer to a question as a one-item tuple, empty if there is none. Only once."""

    def reject(self, question: str) -> None:
        """Drop an answer that did not fit its question."""

    def brought_for(self, task: TaskT_contra) -> dict[str, Any]:
        """The answers to what a task has asked."""

    def known(self, task: TaskT_contra) -> dict[str, Any]:
        """The answers that a task was given before."""

    def keep(self, task: TaskT_contra, asked: Container[str]) -> None:
        """Keep the answers to questions that an attempt, which pauses, has not reached."""


class Surroundings(Protocol):
    """What the call runs with, as far as tasks use it."""

    @property
    def config(self) -> RunnableConfig: ...

    @property
    def context(self) -> Any: ...

    @property
    def graph(self) -> Any:
        """The graph that was called; a task asks for its context schema only."""

    @property
    def control(self) -> RunControl: ...

    @property
    def cache(self) -> Any: ...

    @property
    def serde(self) -> Serializer: ...

    @property
    def store(self) -> Any: ...

    @property
    def executor(self) -> Any: ...


class ThreadPart(Protocol):
    """Where the call's checkpoints go.

    Attributes:
        saver: the checkpointer, or None.
        epoch: the time of day at which `perf_counter` was zero; only there for a checkpointer.
        position: that of the task around it, and which of the things it is that this has started.
    """

    @property
    def saver(self) -> Any: ...

    @property
    def thread_id(self) -> str | None: ...

    @property
    def run_id(self) -> str | None: ...

    @property
    def epoch(self) -> float: ...

    @property
    def position(self) -> tuple[int, ...]: ...


class Readers(Protocol):
    """The readers of the call.

    Attributes:
        streams: where chunks go; empty if nobody reads.
        chunks: those that were not handed over yet.
        live_outputs: where tasks send chunks while they run.
    """

    @property
    def streams(self) -> Sequence[Any]: ...

    @property
    def chunks(self) -> Any: ...

    @property
    def live_outputs(self) -> Any: ...


class TaskContext(Protocol[TaskT]):
    """The run of a task, as far as the task may know it.

    Attributes:
        ns: "" for a root graph, else the namespace of the task that called it.
        parent: the task that runs this graph, or None.
        deadline: that of the attempt that runs this graph, or None.
        cancelled: the run was cut short: what can be ended ends.
        payload_cache: what executors keep for all tasks of the run, by executor.
    """

    @property
    def ns(self) -> str: ...

    @property
    def program(self) -> Program: ...

    @property
    def parent(self) -> TaskT | None: ...

    @property
    def deadline(self) -> Deadline | None: ...

    @property
    def cancelled(self) -> bool: ...

    @property
    def payload_cache(self) -> dict[Any, Any]: ...

    @property
    def observing(self) -> Any:
        """Tells the observers of the run; None if there are none."""

    @property
    def stores(self) -> bool:
        """Whether anything is stored, so that questions can be answered later."""

    @property
    def settings(self) -> Surroundings: ...

    @property
    def thread(self) -> ThreadPart: ...

    @property
    def output(self) -> Readers: ...

    @property
    def machine(self) -> SuperstepView:
        """The superstep that runs now."""

    @property
    def ledger(self) -> TaskLedger[TaskT]: ...

    @property
    def calls(self) -> Any:
        """Starts `@task` calls, and finds those made before."""

    def cancel(self) -> None:
        """Cut the run short: the caller wants out."""

    def previous(self) -> Any:
        """What an entrypoint saved on this thread."""

    def writer_of(self, task: TaskT) -> StreamWriter:
        """Sends a task's custom events to the reader."""
