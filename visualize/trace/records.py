"""The history of a stored thread, as plain records: its steps, their tasks, and where other
branches leave. Reads nothing; see `trace_reader`."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from ...pregel.names import NS_END, START, is_handler
from ...pregel.types import Interrupt
from .values import INSIDE, display_name, format_value, sanitize

TaskState = Literal["done", "failed", "paused", "running", "waiting", "lost"]
"""`paused`: it has asked and waits for an answer. `waiting`: it has not been started, or was
interrupted. `running`: the same while a run is in progress, see `mark_running`. `lost`: another
task has won the race."""

Source = Literal["input", "loop", "update", "fork", "dropped", "open"]
"""The origin of a step, according to its checkpoint's metadata. `dropped`: begun, but then replaced
by a new input. `open`: it has made no checkpoint yet."""


@dataclass(frozen=True, slots=True)
class TraceTask:
    """One task of a step.

    Attributes:
        node: the node's id in a drawing: its name, after the ids of the enclosing nodes.
        name: the node's name; for an error handler, its label in drawings.
        spans: for each start, when it began, in seconds since the epoch, and how many seconds it
            took.
        waits: for each attempt, the most seconds that the node's policies let it wait for the next
            one.
        wrote: the keys that it wrote.
        input, result: what it was called with and what it wrote, as short texts; empty if there is
            none, or unless requested.
        steps: the steps of the nested graph that it ran.
        key: the key of its `Send`, which selects the memory of that graph.
        sent: whether a `Send` has started it, so that it was given that and not the state.
        traceback: where its error was raised, as Python prints it.
        may_retry: whether its node has retry policies.
        held: whether it waits to start until others have ended, with schedule="ready".
        earlier: whether it began in an earlier step, with schedule="ready". What it had come to is
            recorded when a run ends, so a run in progress takes it up.
    """

    id: str
    node: str
    name: str
    state: TaskState
    spans: tuple[tuple[float, float], ...] = ()
    waits: tuple[float, ...] = ()
    error: BaseException | None = None
    questions: tuple[Interrupt, ...] = ()
    wrote: tuple[str, ...] = ()
    steps: tuple[TraceStep, ...] = ()
    input: str = ""
    result: str = ""
    key: str | None = None
    may_retry: bool = False
    held: bool = False
    earlier: bool = False
    sent: bool = False
    traceback: str = ""

    @property
    def noun(self) -> str:
        """The word for the times it was started: a task that goes on with an answer, or after a
        sleep, makes no further attempt."""
        return "attempt" if self.may_retry and not self.questions else "start"

    @property
    def path(self) -> str:
        """Its display name, after those of the enclosing nodes."""
        key = "" if self.key is None else f" [{sanitize(self.key, 40)}]"
        return INSIDE.join(
            [
                *(display_name(part) for part in self.node.split(NS_END)[:-1]),
                f"{display_name(self.name)}{key}",
            ]
        )


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One superstep: the tasks that ran, and the checkpoint that they made.

    Attributes:
        number: its number in the checkpoint's metadata.
        checkpoint: the id of the checkpoint that it made; None if it is open.
        at: when that was stored, in seconds since the epoch.
        stopped: whether a breakpoint that the graph was compiled with is before it.
        since: when the checkpoint before it was stored, if tasks were under way there, with
            schedule="ready": then some of its tasks may have started before it. Else None.
    """

    number: int
    source: Source
    tasks: tuple[TraceTask, ...]
    checkpoint: str | None
    at: float | None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    stopped: bool = False
    since: float | None = None

    def all_tasks(self, besides: Container[str] = ()) -> Iterator[TraceTask]:
        """Yield its tasks, each followed by those of the graph that it ran, without that graph's
        input.

        Args:
            besides: the ids of its tasks to leave out.
        """
        for task in self.tasks:
            if task.id in besides:
                continue
            yield task
            for inner in task.steps:
                yield from (t for t in inner.all_tasks() if t.name != START)

    def own_tasks(self, besides: Container[str] = ()) -> Iterator[TraceTask]:
        """Yield `all_tasks` without those that a later step shows again: with schedule="ready", a
        task may start and ask in one step, and end in another. For counting tasks."""
        for task in self.tasks:
            waits = self.source == "loop" and task.state in ("paused", "waiting")
            if waits or task.id in besides:
                continue
            yield task
            for inner in task.steps:
                yield from (t for t in inner.own_tasks() if t.name != START)


def find_still_failed(step: TraceStep, steps: Sequence[TraceStep]) -> frozenset[str]:
    """Return the ids of those tasks of a step whose failure the open step, the last of `steps`,
    shows again: with schedule="ready", a task that has failed stays pending while others go on."""
    failed = [task for task in step.tasks if task.error is not None]
    if not failed or step.source != "loop" or steps[-1].source != "open":
        return frozenset()
    # After an edit a task keeps its id, and may have failed with another error since.
    pending = {
        (task.id, format_value(task.error, 2000))
        for task in steps[-1].tasks
        if task.error is not None
    }
    return frozenset(
        task.id for task in failed if (task.id, format_value(task.error, 2000)) in pending
    )


def mark_running(
    step: TraceStep, since: float, besides: Container[str] = (), *, nested: bool = False
) -> TraceStep:
    """Return an open step as it is while a run is in progress: tasks that waited for a call, or
    failed in an earlier run, are running. Nothing stored says so.

    Args:
        since: when the run began, in seconds since the epoch.
        besides: the ids of tasks that do not run.
        nested: whether it is a step of a nested graph that is running. Then tasks that asked in an
            earlier run are running, too: the question of the node around them is answered.
    """
    begun_anew = ["paused"] if nested else []
    if not any(is_handler(task.node.rpartition(NS_END)[2]) for task in step.tasks):
        begun_anew.append("failed")  # otherwise a handler has taken the failure, for good
    tasks = []
    for task in step.tasks:
        ends = [began + took for began, took in task.spans]
        is_old = max(ends) < since if ends else task.earlier
        runs_again = task.state in begun_anew and is_old
        starts = task.state == "waiting" and not task.held
        if task.id not in besides and (starts or runs_again):
            inner = tuple(
                mark_running(each, since, nested=True) if each.source == "open" else each
                for each in task.steps
            )
            task = replace(task, state="running", steps=inner)
        tasks.append(task)
    return replace(step, tasks=tuple(tasks))


class TraceBranch(NamedTuple):
    """Checkpoints that are not on the line.

    Attributes:
        parent: the checkpoint on the line where they branch off; None if there is none.
        source: the source of the first of them.
        size: how many there are.
        tip: the id of the newest.
    """

    parent: str | None
    source: str
    size: int
    tip: str


_STOPPED: tuple[Literal["failed", "paused"], ...] = ("failed", "paused")


@dataclass(frozen=True, slots=True)
class Trace:
    """The history of a thread, the oldest step first.

    Attributes:
        ns: the namespace that was read; empty at the top.
        checkpoint: the id of the newest checkpoint on the line.
        whole: whether that is the thread's newest one.
        questions: the questions that wait for an answer.
        next: the nodes that would run now.
        remarks: what a reader must know first, such as that another graph has made the thread.
        unread: the number of nested graphs whose history was left out.
    """

    name: str
    thread: str
    ns: str
    checkpoint: str | None
    steps: tuple[TraceStep, ...]
    branches: tuple[TraceBranch, ...] = ()
    whole: bool = True
    questions: tuple[Interrupt, ...] = ()
    next: tuple[str, ...] = ()
    unread: int = 0
    remarks: tuple[str, ...] = ()

    @property
    def state(self) -> TaskState:
        """The state of the thread."""
        open_tasks = [task for step in self.steps if step.source == "open" for task in step.tasks]
        for state in _STOPPED:
            if any(task.state == state for task in open_tasks):
                return state
        return "waiting" if self.next or open_tasks else "done"
