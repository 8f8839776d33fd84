"""What an edit keeps of a superstep that is open: tasks to which it leads again go on in the
checkpoint that it makes.

Pure but for encoding: `edit` decides what is kept, and stores it in the commit of the edit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...checkpoint.base import (
    CLAIM,
    ERROR,
    ERROR_SOURCE,
    INTERRUPT,
    KEPT,
    NO_WRITES,
    NULL_TASK_ID,
    RAISED,
    RESUME,
    SLEEP,
    TaskWrites,
)
from ..names import path_text
from ..program.writes import Pair
from ..superstep.machine import Machine
from ..superstep.task import Task
from .claims import ClaimRecord
from .resume import upcoming
from .run import Run
from .task_records import TaskRecord, find_begun, with_handlers


def match(run: Run, old: Sequence[Task], new: Sequence[Task]) -> list[tuple[Task, Task]]:
    """The tasks that are the same before and after an edit: of one node, and of Sends those that
    carry the same."""
    left, found = list(old), []
    for task in new:
        for candidate in left:
            if candidate.name == task.name and _is_same(run, candidate, task):
                found.append((candidate, task))
                # Of equal Sends each goes on once.
                left.remove(candidate)
                break
    return found


def _is_same(run: Run, old: Task, new: Task) -> bool:
    # A node is due once in a superstep, so its name tells the task; Sends differ by what they
    # carry.
    if old.send is None or new.send is None:
        return old.send is new.send
    if old.send is new.send:
        return True
    if (old.send.key, old.send.race) != (new.send.key, new.send.race):
        return False
    dumps = run.settings.serde.dumps
    try:
        return dumps(old.send.arg) == dumps(new.send.arg)
    except Exception:  # it could not be stored either
        return False


class OpenWork:
    """What the tasks of an open superstep have recorded, taken down before an edit: those to which
    the edit leads again go on in its checkpoint. They keep their ids, and with them their
    questions, calls, idempotency keys and the namespaces of graphs inside them.

    Args:
        again: those tasks.
    """

    def __init__(self, run: Run, pending: Sequence[Task], again: Sequence[Task]) -> None:
        known = run.position.records
        planned = {NULL_TASK_ID}
        self.tasks: list[tuple[Task, TaskRecord]] = []
        for task in with_handlers(pending, known):
            planned.add(task.id)
            before = known.get(task.id, TaskRecord())
            if task.cause is None and task in again:
                self.tasks.append((task, before))
            elif task.cause in again and before.finished:  # its handler has dealt with its failure
                self.tasks[-1] = (task.cause, before)  # type: ignore[assignment]
        self.calls: dict[str, TaskRecord] = {
            task_id: before for task_id, before in known.items() if task_id not in planned
        }
        self.claim: ClaimRecord | None = run.position.command.claim
        # Without a record, too: it may have stored something in a graph inside it.
        self.under_way: set[str] = find_begun(known, run.machine.carried_ids.values())

    def carry(self, run: Run, machine: Machine) -> list[TaskWrites]:
        """Their records for the checkpoint of the edit, which has been applied. From then on they
        are the run's."""
        before = {id(task): known for task, known in self.tasks}
        kept = match(run, [task for task, _ in self.tasks], upcoming(run, machine))
        machine.carry({new.path: old.id for old, new in kept})
        records = {
            old.id: _going_on(before[id(old)], new.path, begun=old.id in self.under_way)
            for old, new in kept
        }
        # Calls have ids made of their parents': without any task that goes on nobody asks for them.
        if kept:
            records.update(
                (task_id, _going_on(known, None)) for task_id, known in self.calls.items()
            )
        if self.claim is not None:
            # What it brought has no questions here unless their tasks go on; but which calls were
            # taken stays known, so that a call which comes once more is not taken again.
            answers = self.claim["answers"] if kept else {}
            claim: ClaimRecord = {**self.claim, "answers": answers, "live": False}
            records[NULL_TASK_ID] = TaskRecord(claim=claim)
        run.position.replace_records(records)
        return [encode_record(run, task_id, known) for task_id, known in records.items()]


def _going_on(
    before: TaskRecord, path: tuple[Any, ...] | None, *, begun: bool = False
) -> TaskRecord:
    """What is known of a task in the checkpoint in which it goes on: what it has done, not how it
    failed."""
    # An error is not carried over: the edit may have mended its cause, so the task runs again.
    if before.error is not None:
        before = replace(
            before, writes=[], wrote=False, error=None, routed=False, wake_at=None
        )
    return replace(before, kept={"path": path, "begun": True} if begun else {"path": path})


def encode_record(run: Run, task_id: str, known: TaskRecord) -> TaskWrites:
    """What is known of a task, to be stored once more beside another checkpoint."""
    saver = run.thread.saver
    assert saver is not None
    pairs: list[Pair] = [*known.writes] or ([(NO_WRITES, None)] if known.wrote else [])
    if not known.finished and known.interrupts:
        pairs += [(INTERRUPT, list(known.interrupts)), (RAISED, known.raised)]
    if not known.finished and known.wake_at is not None:
        pairs.append((SLEEP, known.wake_at))
    if known.error is not None:
        pairs.append((ERROR, known.error))
    if known.routed:
        pairs.append((ERROR_SOURCE, None))
    if known.answers:
        pairs.append((RESUME, dict(known.answers)))
    if known.kept is not None:
        pairs.append((KEPT, dict(known.kept)))
    if known.claim is not None:
        pairs.append((CLAIM, dict(known.claim)))
    path = path_text(known.kept["path"]) if known.kept is not None and known.kept["path"] else ""
    return TaskWrites(task_id, path, [(name, saver.serde.dumps(value)) for name, value in pairs])
