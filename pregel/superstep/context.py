"""What a running task may ask of the run that it belongs to.

A protocol: tasks, `interrupt`, `@task` calls and executors build on it. How a run is carried out
they do not know.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ...checkpoint.serde import Serializer
from ..program.program import Program, Reader
from ..program.writes import Pair
from ..runtime import RunControl
from ..types import Interrupt, RunnableConfig, StreamWriter
from .deadline import Deadline

TaskT = TypeVar("TaskT")
TaskT_contra = TypeVar("TaskT_contra", contravariant=True)


class SuperstepView(Protocol):
    """The superstep in which the task runs.

    Attributes:
        checkpoint_id: of the checkpoint from which it runs; "" as long as nothing is stored and
            nobody has asked.
    """

    checkpoint_id: str

    @property
    def step(self) -> int:
        """Its number on the thread."""

    @property
    def carried_ids(self) -> Mapping[tuple[Any, ...], str] | None:
        """Path -> id of the tasks that go on under the id they had before an edit of the thread."""

    def preview(self, reader: Reader, writes: Sequence[Pair]) -> dict[str, Any]:
        """The state as it will be with these writes alone."""


class TaskRecord(Protocol):
    """What is stored of a task."""

    @property
    def answers(self) -> Mapping[str, Any]:
        """The answers that it was given, by the ids of its questions."""

    @property
    def interrupts(self) -> tuple[Interrupt, ...]:
        """What it has asked."""

    @property
    def edited(self) -> bool:
        """Whether the thread was edited since its questions were shown."""


class AnswerSource(Protocol[TaskT_contra]):
    """The answers that the call brings, and those of the calls around it.

    Attributes:
        by_id: by question. `brought_any`: there are, or were, some.
    """

    brought_any: bool
    by_id: dict[str, Any]

    def take(
        self, question: str, by: TaskT_contra, inside: tuple[Any, ...] = ()
    ) -> tuple[Any, ...]:
        """The answer to a question as a one-item tuple, empty if there is none. Only once."""

    def reject(self, question: str) -> None:
        """An answer did not fit its question."""

    def may_reach(self, questions: Collection[str]) -> bool:
        """Whether there is an answer to one of these questions."""

    def brought(self, task: TaskT_contra) -> dict[str, Any]:
        """The answers to what a task has asked."""

    def shown(self, task: TaskT_contra, question: str) -> Any:
        """What a task had asked under this id, if it is recorded."""


class TaskContext(Protocol[TaskT]):
    """The run of a task, as far as the task may know it.

    Attributes:
        ns: "" for a root graph, else the namespace of the task that called it.
        parent: the task that runs this graph, or None.
        deadline: that of the attempt that runs this graph, or None.
        saver: where checkpoints go, or None.
        dropped: the run was cut short: what can be ended ends. A task that was told to exit sets
            it.
        payload_cache: what executors keep for all tasks of the run, by executor.
        executor: where `@task` calls run that name none of their own; None for the driver's
            threads.
        out: chunks for the reader that were not handed over yet.
        epoch: what makes seconds since the epoch of `perf_counter`; only there for a saver.
    """

    config: RunnableConfig
    context: Any
    control: RunControl
    deadline: Deadline | None
    cache: Any
    dropped: bool
    epoch: float
    executor: Any
    ns: str
    payload_cache: dict[Any, Any]
    out: Any
    parent: TaskT | None
    program: Program
    run_id: str | None
    saver: Any
    serde: Serializer
    store: Any
    thread_id: str | None

    @property
    def machine(self) -> SuperstepView:
        """The superstep that runs now."""

    @property
    def stored(self) -> Mapping[str, TaskRecord]:
        """Per task id, what the loaded checkpoint knows of the task."""

    @property
    def answers(self) -> AnswerSource[TaskT]:
        """What the call brings."""

    @property
    def streams(self) -> Sequence[Any]:
        """Where chunks go; empty if nobody reads."""

    @property
    def calls(self) -> Any:
        """Starts `@task` calls, and finds those made before."""

    def previous(self) -> Any:
        """What an entrypoint saved on this thread."""

    def writer_of(self, task: TaskT) -> StreamWriter:
        """Sends a task's custom events to the reader."""
