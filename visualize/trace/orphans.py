"""Finds what a stored thread holds that a graph has no place for, because another graph or an older
version has made it.

The engine decides what is lost; this module turns it into sentences and records of the remaining
tasks. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ...checkpoint.base import (
    NULL_TASK_ID,
    UNDOING,
    BaseCheckpointSaver,
    CheckpointTuple,
    RunnableConfig,
)
from ...pregel.drivers.undoing import program_with_undo
from ...pregel.drivers.waits import WAITS
from ...pregel.program.program import Program
from ...pregel.run.ledger import TaskRecord
from ...pregel.run.load import lost_kinds, lost_work
from ...pregel.run.snapshots import View, find_whole, view
from ...pregel.schedule.slots import find_under_way
from ...pregel.steps import run_steps
from .records import TaskState, TraceTask

_NODE = "node "


class Orphans(NamedTuple):
    """What does not fit.

    Attributes:
        remarks: sentences for the top of a page; empty if everything fits.
        tasks: (name, task id, stored record) of each task that has no node here.
    """

    remarks: tuple[str, ...] = ()
    tasks: tuple[tuple[str, str, TaskRecord], ...] = ()


def find_orphans(program: Program, saver: BaseCheckpointSaver, where: RunnableConfig) -> Orphans:
    """Return what this program has no place for in a checkpoint and its history."""
    found = saver.get_tuple(where)
    if found is None:
        return Orphans()
    if UNDOING in found.metadata:
        program = program_with_undo(program)
    seen = view(program, found)
    stored = seen.machine, found, seen.ledger
    lost = [*lost_work(*stored), *lost_kinds(*stored)]
    started = _list_started(program, found) if lost else {}
    remarks = []
    if lost:
        remarks.append(
            "The thread has pending work for parts of the graph that are gone or have changed "
            f"their kind: {', '.join(lost)}. It was made by another graph, or by another version "
            "of this one."
        )
    gone = [
        n
        for n in found.checkpoint["versions_seen"]
        if not n.startswith("__") and n not in program.nodes and n not in started.values()
    ]
    if gone:
        names = ", ".join(map(repr, sorted(gone)))
        remarks.append(
            "Nodes that this graph does not have ran in this thread; their tasks are not shown: "
            f"{names}."
        )
    tasks: list[tuple[str, str, TaskRecord]] = []
    if started:
        whole = run_steps(find_whole(saver, where, WAITS)) or found
        ledger = view(program, whole).ledger
        tasks += ((name, id, ledger.of(id)) for id, name in started.items())
    if lost:
        tasks += _list_tasks(seen, lost, started)
    return Orphans(tuple(remarks), tuple(tasks))


def build_orphan(name: str, id: str, stored: TaskRecord) -> TraceTask:
    """Return a task of a node that this graph does not have."""
    state: TaskState = "waiting"
    if stored.error is not None:
        state = "failed"
    elif stored.wrote:
        state = "done"
    elif stored.interrupts or stored.wake_at is not None:
        state = "paused"
    return TraceTask(
        id,
        name,
        name,
        state,
        stored.spans,
        (0.0,) * len(stored.spans),
        stored.error,
        stored.interrupts,
    )


def _list_started(program: Program, found: CheckpointTuple) -> dict[str, str]:
    """Return task id → node of the tasks that have started (schedule="ready"), and whose nodes this
    program does not have."""
    known = find_under_way(found.checkpoint).values()
    return {each["id"]: each["node"] for each in known if each["node"] not in program.nodes}


def _list_tasks(
    seen: View, lost: list[str], started: Mapping[str, str]
) -> Iterator[tuple[str, str, TaskRecord]]:
    """Yield stored tasks that this program does not plan, but for those that have `started`. Only
    their ids are stored, so a name may mean one of several."""
    planned = {*started, *(task.id for task in seen.tasks)}
    planned_names = {*started.values(), *(task.name for task in seen.tasks)}
    lost_nodes = [what.removeprefix(_NODE).strip("'\"") for what in lost if what.startswith(_NODE)]
    names = [name for name in lost_nodes if name not in planned_names]
    known = [
        (id, stored)
        for id, stored in seen.ledger.items()
        if id not in planned
        and id != NULL_TASK_ID
        and (stored.error is not None or stored.interrupts or stored.spans)
    ]
    for id, stored in known:
        yield " or ".join(names) or "another graph's node", id, stored
    if not known:
        yield from ((name, f"left {name}", TaskRecord()) for name in names)
