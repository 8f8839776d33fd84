"""What a running task may ask of the run that it belongs to.

A protocol: tasks, `interrupt`, `@task` calls and executors build on it. How a run is carried out they do not know.
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


class Superstep(Protocol):
    """The superstep in which the task runs.

    Attributes:
        checkpoint_id: of the checkpoint from which it runs; "" as long as nothing is stored and nobody has asked.
        carried_ids: path -> id of the tasks that go on under the id they had before an edit of the thread.
    """

    checkpoint_id: str

    @property
    def step(self) -> int: ...

    @property
    def carried_ids(self) -> Mapping[tuple[Any, ...], str] | None: ...

    def preview(self, reader: Reader, writes: Sequence[Pair]) -> dict[str, Any]:
        """The state as it will be with these writes alone."""


class TaskRecord(Protocol):
    """What is stored of a task."""

    @property
    def answers(self) -> Mapping[str, Any]: ...

    @property
    def interrupts(self) -> tuple[Interrupt, ...]: ...

    @property
    def edited(self) -> bool: ...


class AnswerSource(Protocol[TaskT_contra]):
    """The answers that the call brings. What the methods mean stands in `run.answers`."""

    brought_any: bool
    by_id: dict[str, Any]

    def take(
        self, question: str, by: TaskT_contra, inside: tuple[Any, ...] = ()
    ) -> tuple[Any, ...]: ...

    def reject(self, question: str) -> None: ...

    def may_reach(self, questions: Collection[str]) -> bool: ...

    def brought(self, task: TaskT_contra) -> dict[str, Any]: ...

    def shown(self, task: TaskT_contra, question: str) -> Any: ...


class TaskContext(Protocol[TaskT]):
    """The run of a task, as far as the task may know it.

    Attributes:
        ns: "" for a root graph, else the namespace of the task that called it.
        parent: the task that runs this graph, or None.
        deadline: that of the attempt that runs this graph, or None.
        saver: where checkpoints go, or None.
        dropped: the run was cut short: what can be ended ends. A task sets it when the caller wants out.
        luggage: per executor, what the tasks of the run take along there, packed.
        out: chunks for the reader that were not handed over yet.
        stored: per task id, what the loaded checkpoint knows of the task.
        epoch: what makes seconds since the epoch of `perf_counter`; only there for a saver.
    """

    config: RunnableConfig
    context: Any
    control: RunControl
    deadline: Deadline | None
    cache: Any
    dropped: bool
    epoch: float
    ns: str
    luggage: dict[Any, Any] | None
    out: Any
    parent: TaskT | None
    program: Program
    run_id: str | None
    saver: Any
    serde: Serializer
    store: Any
    thread_id: str | None

    @property
    def machine(self) -> Superstep: ...

    @property
    def stored(self) -> Mapping[str, TaskRecord]: ...

    @property
    def answers(self) -> AnswerSource[TaskT]: ...

    @property
    def streams(self) -> Sequence[Any]: ...

    @property
    def calls(self) -> Any:
        """Starts `@task` calls, and finds those made before."""

    def previous(self) -> Any:
        """What an entrypoint saved on this thread."""

    def writer_of(self, task: TaskT) -> StreamWriter:
        """Sends a task's custom events to the reader."""
