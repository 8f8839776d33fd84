"""Looking at a stored thread: snapshots as pure functions of a program and what a checkpointer
found.

Nothing here writes, waits or runs a node; the sync and async faces share every line.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from ...checkpoint.base import (
    RETURN,
    UNDER_WAY,
    BaseCheckpointSaver,
    CheckpointTuple,
    address,
)
from ...checkpoint.records import iso
from ..names import PUSH, child_ns, numbered_ns, path_text, split_call, split_number
from ..program.program import Program
from ..schedule.machine import Machine
from ..schedule.slots import find_origin, find_under_way
from ..task.task import Task
from ..types import Interrupt, PregelTask, RunnableConfig, StateSnapshot
from .ledger import Ledger, TaskRecord, known_only, revive
from .run import Run
from .stream import result_of


class StoredRun(NamedTuple):
    """Stands in for a run where tasks are only looked at: enough for their ids and namespaces."""

    program: Program
    machine: Machine
    ns: str


class View(NamedTuple):
    """A checkpoint brought to life for looking.

    Attributes:
        tasks: those that count.
        lost: the tasks that have lost a race.
    """

    machine: Machine
    tasks: list[Task]
    ledger: Ledger
    lost: Sequence[Task] = ()


Origins = dict[str, CheckpointTuple | None]
"""Checkpoint id → the checkpoint; many have tasks under way of the same few."""


def find_whole(
    saver: BaseCheckpointSaver, where: RunnableConfig, waits: Any
) -> Generator[Any, Any, CheckpointTuple | None]:
    """Load a checkpoint with what is recorded of its tasks, wherever they have started.

    Args:
        waits: how to wait for the checkpointer; see `steps`.
    """
    found = yield waits.ask(saver, "get_tuple", where)
    if found is None or UNDER_WAY not in found.metadata:
        return found  # type: ignore[no-any-return]
    return (yield from complete(saver, found, {}, waits))


def complete(
    saver: BaseCheckpointSaver, found: CheckpointTuple, known: Origins, waits: Any
) -> Generator[Any, Any, CheckpointTuple]:
    """Return a checkpoint with what is recorded beside the origins of the tasks under way in it.

    Args:
        known: the origins that are loaded by now; more are added.
    """
    from .origins import origins_of, with_origins

    origins = []
    for where in origins_of(found):
        id = where["configurable"]["checkpoint_id"]
        if id not in known:
            known[id] = yield waits.ask(saver, "get_tuple", where)
        origins.append(known[id])
    return with_origins(found, [origin for origin in origins if origin is not None])


def view(program: Program, found: CheckpointTuple) -> View:
    """Bring a stored checkpoint to life, with the tasks that follow it."""
    # A Send of the command has the place that it had when it started.
    machine, ledger = revive(program, found)
    if UNDER_WAY in found.metadata:
        from .origins import requeue_stored

        requeue_stored(machine, found.checkpoint)
    for task_id, spans in (found.spans or {}).items():
        if task_id in ledger:
            ledger[task_id].spans = tuple(spans)
    tasks = plan_to_look(machine, found.config["configurable"].get("checkpoint_ns", ""))
    if found.origins:
        _show_starts(program, found, tasks)
    lost: Sequence[Task] = ()
    if machine.racing:
        from ..schedule.races import find_lost

        lost = find_lost(tasks, ledger)
    return View(machine, ledger.with_handlers(tasks), ledger, lost)


def _show_starts(program: Program, found: CheckpointTuple, tasks: Sequence[Task]) -> None:
    """Show what tasks that are under way have read: the state of their origin."""
    under_way = {
        known["id"]: find_origin(found.checkpoint, slot)
        for slot, known in find_under_way(found.checkpoint).items()
    }
    for origin in found.origins:
        id = origin.checkpoint["id"]
        if mine := [task for task in tasks if under_way.get(task.id) == id]:
            inputs = {each.id: each.input for each in view(program, origin).tasks}
            for task in mine:
                task.show_input(inputs.get(task.id, task.input))


def plan_to_look(machine: Machine, ns: str) -> list[Task]:
    """The tasks of the next superstep, to be looked at: their input is not coerced, and nothing can
    run them."""
    state = machine.as_superstep()
    place: Any = StoredRun(machine.program, state, ns)
    return state.plan(place, coerce=False)


def _answerable(seen: View) -> set[str]:
    """The questions that can be answered now: not those that a call has brought an answer to, and
    none as long as such a call may be at work."""
    open_, left = seen.ledger.find_waiting(seen.tasks), seen.ledger.undelivered()
    # To offer a question now would invite an answer that the next call has to refuse.
    if left and seen.ledger.has_live_claim:
        return set()
    return set(open_) - left.keys()


def snapshot_of(program: Program, found: CheckpointTuple, *, live: bool) -> StateSnapshot:
    """What `get_state` shows of a stored checkpoint.

    Args:
        live: the head as a resume would find it: finished tasks' writes in `values`, the others in
            `next`. Else the superstep as it began.
    """
    seen = view(program, found)
    if not seen.tasks and not seen.lost:
        values, ts = seen.machine.output(program.stream), found.checkpoint["ts"]
        made = found.config, found.metadata, ts, found.parent_config
        return StateSnapshot(values, (), *made, (), ())
    place = found.config["configurable"]
    where = program, place["thread_id"], place.get("checkpoint_ns", "")
    calls = _find_calls(found, seen.ledger)
    shown = _answerable(seen) if live else None
    planned = sorted([*seen.tasks, *seen.lost], key=_plan_order) if seen.lost else seen.tasks
    handled = {t.cause for t in seen.tasks if t.cause is not None} if live else ()
    tasks: list[PregelTask] = []
    following: list[str] = []
    questions: list[Interrupt] = []
    times: list[datetime] = []
    for task in planned:
        known = seen.ledger.of(task.id)
        described = describe(task, known, where, shown, lost=task in seen.lost)
        if calls:
            described.calls = tuple(calls.get(path_text(task.path), ()))
        tasks.append(described)
        if live:
            is_open = not (known.finished or task in handled or task in seen.lost)
        else:
            is_open = task.cause is None
        if is_open:
            following.append(described.name)
            questions += described.interrupts
            if described.wake_at is not None:
                times.append(described.wake_at)
    if live and not following:
        following = [task.name for task in _find_following(seen, where[2])]
    return StateSnapshot(
        _values(program, seen, live=live),
        tuple(following),
        found.config,
        found.metadata,
        found.checkpoint["ts"],
        found.parent_config,
        tuple(tasks),
        tuple(questions),
        wake_at=min(times, default=None),
    )


def _find_calls(found: CheckpointTuple, ledger: Ledger) -> dict[str, list[PregelTask]]:
    """Return the recorded `@task` calls, by the paths of their callers."""
    recorded = [
        (call, id)
        for id, path in (found.paths or {}).items()
        if id in ledger and (call := split_call(path)) is not None
    ]
    calls: dict[str, list[PregelTask]] = {}
    # Paths are nested from the left, so calls that were made within a call come before it.
    for (own, caller, name), id in sorted(recorded, reverse=True):
        known = ledger.of(id)
        result = dict(known.writes).get(RETURN)
        made = PregelTask(id, name, (PUSH, own, True), known.error, known.waiting, None, result)
        made.spans, made.traceback, made.wake_at = known.spans, known.raised_at, known.wake_at
        made.calls = tuple(calls.get(own, ()))
        calls.setdefault(caller, []).insert(0, made)
    return calls


def _plan_order(task: Task) -> tuple[bool, int]:
    """Sends by index, then the others as they are."""
    is_send = task.path[0] == PUSH
    return (not is_send, task.path[1] if is_send else 0)


def _find_following(seen: View, ns: str) -> list[Task]:
    """What the next call runs where all tasks of a superstep have finished and their process died
    before it was applied. If nothing follows, these tasks: the call ends their superstep."""
    done = [task for task in seen.tasks if seen.ledger.of(task.id).finished]
    tasks = [task for task in done if task not in seen.lost]
    machine = seen.machine.as_superstep().copy()
    for task in tasks:
        task.restore(seen.ledger[task.id].writes)
    try:
        machine.apply(tasks)
    except Exception:  # the next call will raise it, and they run again
        return tasks
    return plan_to_look(machine, ns) or tasks


def empty_snapshot(config: RunnableConfig) -> StateSnapshot:
    """What `get_state` shows of a thread that has nothing stored."""
    return StateSnapshot({}, (), config, None, None, None, (), ())


def _values(program: Program, seen: View, *, live: bool) -> Any:
    """The state; in the live view with what finished tasks wrote, as far as that can be applied."""
    if live:
        done = [known for task in seen.tasks if (known := seen.ledger.of(task.id)).finished]
        writes = [pair for known in done for pair in known.writes]
        try:
            return seen.machine.output_with(program.stream, known_only(writes, seen.machine))
        except Exception:  # looking at a thread must work however badly its writes fit together
            pass
    return seen.machine.output(program.stream)


def describe(
    task: Task,
    known: TaskRecord,
    where: tuple[Program, str, str],
    shown: Collection[str] | None = None,
    *,
    lost: bool = False,
) -> PregelTask:
    """A task with what is stored of it.

    Args:
        where: the graph, the thread and the namespace it is in.
        shown: the questions that can be answered; None shows all that were asked.
        lost: whether it has lost a race.
    """
    asked, finished, program = known.interrupts, known.finished, where[0]
    return PregelTask(
        task.id,
        task.name,
        task.path,
        known.error,
        asked if shown is None else tuple(q for q in asked if q.id in shown),
        _nested_config(task, *where) if program.nested else None,
        _result(known, program) if finished else None,
        spans=known.spans,
        input=task.input,
        wake_at=None if finished else known.wake_at,
        key=key_of(task),
        lost=lost,
        traceback=known.raised_at,
    )


def key_of(task: Task) -> str | None:
    """The key of its Send, by which a graph that it runs finds its memory."""
    return None if task.send is None else task.send.key


def list_nested(
    program: Program, ns: str, name: str, task_id: str, key: str | None
) -> Iterator[tuple[str, Any, str]]:
    """Yield the graphs that a task may have run and that keep something: each by its name, with its
    namespace.

    Args:
        name: of the task's node.
        key: `key_of` the task.
    """
    for nested, child in program.nested.items():
        node, number = split_number(nested)
        if node == name and child.checkpointer is not False:
            first = child_ns(ns, name, task_id, stable=child.checkpointer is True, key=key)
            yield nested, child, numbered_ns(first, number)


def _nested_config(task: Task, program: Program, thread_id: str, ns: str) -> RunnableConfig | None:
    """The part of the thread that belongs to the graph a task runs; None if it runs none, or one
    that keeps nothing."""
    child = program.nested.get(task.name)
    if child is None or child.checkpointer is False:
        return None
    stable = child.checkpointer is True
    return address(thread_id, child_ns(ns, task.name, task.id, stable=stable, key=key_of(task)))


def _result(known: TaskRecord, program: Program) -> Any:
    for channel, value in known.writes:
        if channel == RETURN:
            return value
    shown = program.stream
    if isinstance(shown, str):
        values = [value for channel, value in known.writes if channel == shown]
        return values[0] if len(values) == 1 else values or None
    return result_of(known.writes, frozenset(shown))


def live_snapshot(run: Run, tasks: Sequence[Task]) -> StateSnapshot:
    """The checkpoint that a running call has just made or goes on from, and the tasks it is about
    to run."""
    at, thread = run.commits.last, run.thread
    assert at is not None and thread.thread_id is not None
    where = run.program, thread.thread_id, thread.ns
    if isinstance(at, CheckpointTuple):
        config, parent, metadata, ts = at.config, at.parent_config, at.metadata, at.checkpoint["ts"]
    else:
        config, ts = thread.config_of(at.id), iso(at.ts)
        parent = thread.config_of(at.parent_id) if at.parent_id else None
        metadata = at.metadata  # type: ignore[assignment]
    return StateSnapshot(
        values=run.machine.output(run.program.stream),
        next=tuple(t.name for t in tasks),
        config=config,
        metadata=metadata,
        created_at=ts,
        parent_config=parent,
        tasks=tuple(describe(t, run.ledger.of(t.id), where) for t in tasks),
        interrupts=(),
    )
