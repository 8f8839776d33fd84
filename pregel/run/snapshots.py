"""Looking at a stored thread: snapshots as pure functions of a program and what a saver found.

Nothing here writes, waits or runs a node; the sync and async faces share every line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...checkpoint.base import (
    CLAIM,
    DIGEST,
    ERROR,
    ERROR_SOURCE,
    INTERRUPT,
    KEPT,
    NO_WRITES,
    NULL_TASK_ID,
    RAISED,
    RESUME,
    RETURN,
    CheckpointTuple,
    PendingWrite,
    Span,
    address,
)
from ...checkpoint.records import iso
from ..names import GRAPH, TASKS, child_ns, is_routing, triggered_node
from ..program.join import parse_join
from ..program.program import Program
from ..program.version import find_retyped
from ..program.writes import Pair
from ..superstep.machine import Machine
from ..superstep.task import Task, handler_of
from ..types import Interrupt, PregelTask, RunnableConfig, StateSnapshot
from .answers import locked, undelivered
from .stream import result_of

if TYPE_CHECKING:
    from .run import Run


@dataclass(slots=True)
class Stored:
    """What a checkpoint's pending writes tell of one task.

    A task has finished if it left output and no error: a failed attempt's output is never kept, and a later success
    clears the error.

    Attributes:
        claim: of the null task, the answers that a run has brought.
        raised: `Task.raised`.
        kept: the task was begun beside an earlier checkpoint and goes on here, after an edit of the thread, under its
            `path` here (None for a call of such a task).
    """

    writes: list[Pair] = field(default_factory=list)
    wrote: bool = False
    error: BaseException | None = None
    routed: bool = False
    interrupts: tuple[Interrupt, ...] = ()
    answers: Mapping[str, Any] = field(default_factory=dict)
    spans: tuple[Span, ...] = ()
    claim: Mapping[str, Any] | None = None
    raised: bool = False
    kept: Mapping[str, Any] | None = None

    @property
    def finished(self) -> bool:
        """Whether its writes count."""
        return self.wrote and self.error is None

    @property
    def waiting(self) -> tuple[Interrupt, ...]:
        """Its questions that have no answer in its record."""
        return () if self.finished else tuple(q for q in self.interrupts if q.id not in self.answers)

    @property
    def edited(self) -> bool:
        """Whether the thread was edited since its questions were shown."""
        return self.kept is not None


def read_stored(pending: Iterable[PendingWrite]) -> dict[str, Stored]:
    """Pending writes by task id. Those of the null task are a `Command`'s, not a task's."""
    found: dict[str, Stored] = {}
    for task_id, channel, value in pending:
        stored = found.setdefault(task_id, Stored())
        if channel == ERROR:
            stored.error = value
        elif channel == DIGEST:
            continue
        elif channel == ERROR_SOURCE:
            stored.routed = True
        elif channel == INTERRUPT:
            stored.interrupts = tuple(value)
        elif channel == RESUME:
            stored.answers = value
        elif channel == CLAIM:
            stored.claim = value
        elif channel == RAISED:
            stored.raised = bool(value)
        elif channel == KEPT:
            stored.kept = value
        else:
            stored.wrote = True
            if channel != NO_WRITES:
                stored.writes.append((channel, value))
    return found


def kept_ids(stored: Mapping[str, Stored]) -> dict[tuple[Any, ...], str]:
    """path → id of the tasks that go on beside this checkpoint after an edit."""
    return {
        tuple(known.kept["path"]): task_id for task_id, known in stored.items() if known.kept and known.kept["path"]
    }


def lost_work(machine: Machine, found: CheckpointTuple, stored: Mapping[str, Stored]) -> list[str]:
    """What a checkpoint would go on with and the machine's program lacks, because another graph has made it."""
    program = machine.program
    names = set(lost_triggers(machine, found))
    for known in stored.values():
        names.update(c for c, _ in known.writes if c not in program.channels and c != RETURN)
    sends = machine.channels[TASKS].get() if TASKS in machine.expiring else ()
    nodes = {send.node for send in sends if send.node not in program.nodes}
    return sorted({_where_to(name) for name in names} | {f"node {name!r}" for name in nodes})


def lost_kinds(machine: Machine, found: CheckpointTuple) -> list[str]:
    """What a checkpoint holds or would go on with that is of another kind in the machine's program: keys with a value,
    nodes that are to run."""
    changed = find_retyped(found.checkpoint["versions_seen"].get(GRAPH, {}), machine.program.fingerprint)
    if not changed:
        return []
    held = {f"key {name!r}" for name in found.checkpoint["channel_values"]}
    due = {f"node {task.name!r}" for task in machine.plan(coerce=False)}
    return sorted(changed & (held | due))


def lost_triggers(machine: Machine, found: CheckpointTuple) -> list[str]:
    """The channels that hold what makes a node run, in a graph that is not the machine's program."""
    left = [name for name in found.checkpoint["channel_values"] if name not in machine.channels]
    if machine.program.scope.triggers:
        return [name for name in left if is_routing(name)]
    moved = found.checkpoint["updated_channels"] or ()
    return [name for name in left if name in moved]


def _where_to(channel: str) -> str:
    node = triggered_node(channel)
    if node is not None:
        return f"node {node!r}"
    join = parse_join(channel)
    if join is not None:
        return f"the join of {' and '.join(map(repr, join.sources))} before {join.target!r}"
    return f"channel {channel!r}"


def known_only(writes: Iterable[Pair], machine: Machine) -> list[Pair]:
    """The writes to channels that the machine has."""
    return [pair for pair in writes if pair[0] in machine.channels]


@dataclass(slots=True)
class Place:
    """Stands in for a run where tasks are only looked at: enough for their ids and namespaces."""

    program: Program
    machine: Machine
    ns: str


@dataclass(slots=True)
class View:
    """A checkpoint brought to life for looking.

    Attributes:
        live: show what a resume would find done already; else the superstep as it began.
    """

    machine: Machine
    tasks: list[Task]
    stored: Mapping[str, Stored]
    live: bool


def view(program: Program, found: CheckpointTuple, *, live: bool) -> View:
    """Bring a stored checkpoint to life, with the tasks that follow it."""
    machine = Machine(program, found.checkpoint, found.metadata.get("step", -1) + 1)
    stored = read_stored(found.pending_writes or ())
    machine.carried_ids = kept_ids(stored)
    for task_id, spans in (found.spans or {}).items():
        if task_id in stored:
            stored[task_id].spans = tuple(spans)
    null = stored.get(NULL_TASK_ID)
    if null is not None:
        machine.apply_writes(known_only(null.writes, machine))
    tasks = machine.plan(coerce=False)
    ns = found.config["configurable"].get("checkpoint_ns", "")
    place = Place(program, machine, ns)
    for task in tasks:
        task.run = place  # type: ignore[assignment]
    return View(machine, with_handlers(tasks, stored), stored, live)


def upcoming(run: Run, machine: Machine) -> list[Task]:
    """The tasks of the next superstep, to be looked at: their input is not coerced."""
    tasks = machine.plan(coerce=False)
    for task in tasks:
        task.run = run
    return tasks


def with_handlers(tasks: Iterable[Task], stored: Mapping[str, Stored]) -> list[Task]:
    """These tasks, and behind each that failed and whose error handler had taken over, that handler's."""
    found: list[Task] = []
    for task in tasks:
        found.append(task)
        known = stored.get(task.id)
        if known is not None and known.routed and known.error is not None and task.node.handler is not None:
            found.append(handler_of(task))
    return found


def given_answers(stored: Mapping[str, Stored]) -> set[str]:
    """The questions whose answers are recorded beside a checkpoint, by whichever task."""
    return {question for known in stored.values() for question in known.answers}


def still_asked(run: Run, known: Stored, given: Collection[str]) -> tuple[Interrupt, ...]:
    """The questions for which a task need not run to ask them again: answers have come, but none of them for what it
    asks. None if it must run.

    Args:
        given: the questions whose answers are recorded beside the checkpoint.
    """
    if not run.answers.brought_any or known.raised or known.edited or known.error is not None or not known.waiting:
        return ()
    if run.answers.may_reach([question.id for question in known.interrupts]):
        return ()
    return tuple(question for question in known.waiting if question.id not in given)


def waiting_questions(tasks: Iterable[Task], stored: Mapping[str, Stored]) -> dict[str, Task]:
    """The recorded questions that wait for an answer, each with its task."""
    given = given_answers(stored)
    found: dict[str, Task] = {}
    for task in tasks:
        known = stored.get(task.id)
        if known is not None:
            found.update((question.id, task) for question in known.waiting if question.id not in given)
    return found


def undelivered_answers(stored: Mapping[str, Stored]) -> dict[str, Any]:
    """What a call has brought, and no task's record shows yet. Also for questions that only the record of a `@task`
    call tells of: when its caller paused anew, it had failed before it came to them."""
    null = stored.get(NULL_TASK_ID)
    if null is None or null.claim is None:
        return {}
    open_ = {question.id for known in stored.values() for question in known.waiting}
    return undelivered(null.claim, open_, given_answers(stored))


def _answerable(seen: View) -> set[str]:
    """The questions that can be answered now: not those that a call has brought an answer to, and none as long as such
    a call may be at work."""
    open_ = waiting_questions(seen.tasks, seen.stored)
    null = seen.stored.get(NULL_TASK_ID)
    claim = null.claim if null is not None else None
    left = undelivered_answers(seen.stored)
    return set() if left and locked(claim) else set(open_) - left.keys()


def snapshot_of(program: Program, found: CheckpointTuple, *, live: bool) -> StateSnapshot:
    """What `get_state` shows of a stored checkpoint.

    Args:
        live: the head as a resume would find it: finished tasks' writes in `values`, the others in `next`. Else
            the superstep as it began.
    """
    seen = view(program, found, live=live)
    place = found.config["configurable"]
    where = program, place["thread_id"], place.get("checkpoint_ns", "")
    shown = _answerable(seen) if live else None
    tasks = tuple(describe(task, seen.stored.get(task.id), where, shown) for task in seen.tasks)
    handled = {t.cause for t in seen.tasks if t.cause is not None}
    open_tasks = [
        described
        for described, task in zip(tasks, seen.tasks, strict=True)
        if (not _finished(seen, task.id) and task not in handled if live else task.cause is None)
    ]
    return StateSnapshot(
        values=_values(program, seen),
        next=tuple(t.name for t in open_tasks),
        config=found.config,
        metadata=found.metadata,
        created_at=found.checkpoint["ts"],
        parent_config=found.parent_config,
        tasks=tasks,
        interrupts=tuple(q for t in open_tasks for q in t.interrupts),
    )


def empty_snapshot(config: RunnableConfig) -> StateSnapshot:
    """What `get_state` shows of a thread that has nothing stored."""
    return StateSnapshot({}, (), config, None, None, None, (), ())


def _finished(seen: View, task_id: str) -> bool:
    known = seen.stored.get(task_id)
    return known is not None and known.finished


def _values(program: Program, seen: View) -> Any:
    """The state; in the live view with what finished tasks wrote, as far as that can be applied."""
    if seen.live:
        writes = [pair for t in seen.tasks if _finished(seen, t.id) for pair in seen.stored[t.id].writes]
        try:
            return seen.machine.output_with(program.stream, known_only(writes, seen.machine))
        except Exception:  # looking at a thread must work however badly its writes fit together
            pass
    return seen.machine.output(program.stream)


def describe(
    task: Task, known: Stored | None, where: tuple[Program, str, str], shown: Collection[str] | None = None
) -> PregelTask:
    """A task with what is stored of it.

    Args:
        where: the graph, the thread and the namespace it is in.
        shown: the questions that can be answered; None shows all that were asked.
    """
    known = known or Stored()
    return PregelTask(
        id=task.id,
        name=task.name,
        path=task.path,
        error=known.error,
        interrupts=known.interrupts if shown is None else tuple(q for q in known.interrupts if q.id in shown),
        state=_nested_config(task, *where),
        result=_result(known, where[0]) if known.finished else None,
        spans=known.spans,
    )


def _nested_config(task: Task, program: Program, thread_id: str, ns: str) -> RunnableConfig | None:
    """The part of the thread that belongs to the graph a task runs; None if it runs none, or one that keeps nothing."""
    child = program.nested.get(task.name)
    if child is None or child.checkpointer is False:
        return None
    return address(thread_id, child_ns(ns, task.name, task.id, stable=child.checkpointer is True))


def _result(known: Stored, program: Program) -> Any:
    for channel, value in known.writes:
        if channel == RETURN:
            return value
    shown = program.stream
    if isinstance(shown, str):
        values = [value for channel, value in known.writes if channel == shown]
        return values[0] if len(values) == 1 else values or None
    return result_of(known.writes, frozenset(shown))


def live_snapshot(run: Run, tasks: Sequence[Task]) -> StateSnapshot:
    """The checkpoint that a running call has just made or goes on from, and the tasks it is about to run."""
    at = run.committed
    assert at is not None and run.thread_id is not None
    where = run.program, run.thread_id, run.ns
    if isinstance(at, CheckpointTuple):
        config, parent, metadata, ts = at.config, at.parent_config, at.metadata, at.checkpoint["ts"]
    else:
        config, ts = address(run.thread_id, run.ns, at.id), iso(at.ts)
        parent = address(run.thread_id, run.ns, at.parent_id) if at.parent_id else None
        metadata = at.metadata  # type: ignore[assignment]
    return StateSnapshot(
        values=run.machine.output(run.program.stream),
        next=tuple(t.name for t in tasks),
        config=config,
        metadata=metadata,
        created_at=ts,
        parent_config=parent,
        tasks=tuple(describe(t, run.stored.get(t.id), where) for t in tasks),
        interrupts=(),
    )
