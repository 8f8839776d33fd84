"""What an edit keeps of a superstep that is open: tasks to which it leads again go on in the
checkpoint that it makes.

Pure but for encoding: `edit` decides what is kept, and stores it in the commit of the edit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...checkpoint.base import (
    CLAIM,
    EDITED,
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
from ..schedule.machine import Machine
from ..task.ids import Carried
from ..task.task import Task
from .claims import ClaimRecord
from .resume import upcoming
from .run import Run
from .task_records import TaskRecord, describe_kept, find_begun, with_handlers


def match(run: Run, old: Sequence[Task], new: Sequence[Task]) -> list[tuple[Task, Task]]:
    """The tasks that are the same before and after an edit: of one node, and of Sends those that
    carry the same."""
    left, same = list(old), dict[Task, Task]()
    # Of equal Sends each goes on once: as itself, if it stays, and not as one that has finished.
    for fits in (_is_itself, partial(_is_equal, run)):
        for task in new:
            if task not in same:
                found = next((o for o in left if o.name == task.name and fits(o, task)), None)
                if found is not None:
                    same[task] = found
                    left.remove(found)
    return [(same[task], task) for task in new if task in same]


def _is_itself(old: Task, new: Task) -> bool:
    # A node is due once in a superstep, so its name tells the task.
    return old.send is new.send


def _is_equal(run: Run, old: Task, new: Task) -> bool:
    """Whether the Sends of two tasks carry the same."""
    if old.send is None or new.send is None:
        return False
    if (old.send.key, old.send.race) != (new.send.key, new.send.race):
        return False
    dumps = run.settings.serde.dumps
    try:
        return dumps(old.send.arg) == dumps(new.send.arg)
    except Exception:  # it could not be stored either
        return False


class OpenWork:
    """What the tasks of an open superstep have recorded, read before an edit. Tasks to which the
    edit leads again go on in its checkpoint: they keep their ids, and with them their questions,
    calls, idempotency keys and the namespaces of graphs inside them.

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
        machine = run.machine
        self.joined = {task.id: machine.find_joined(task) for task in pending}
        # Without a record, too: it may have stored something in a graph inside it.
        self.begun: set[str] = find_begun(known, (each.id for each in machine.carried.values()))
        # That it has failed is not carried over, so nothing else might tell.
        self.begun.update(task.id for task, before in self.tasks if before.error is not None)

    def carry(self, run: Run, machine: Machine) -> list[TaskWrites]:
        """Their records for the checkpoint of the edit, which has been applied. From then on they
        are the run's."""
        before = {id(task): known for task, known in self.tasks}
        kept = match(run, [task for task, _ in self.tasks], upcoming(run, machine))
        joined, begun = self.joined, self.begun
        machine.carry({new.path: Carried(old.id, joined[old.id]) for old, new in kept})
        records = {
            old.id: _going_on(
                before[id(old)], describe_kept(new.path, joined[old.id], begun=old.id in begun)
            )
            for old, new in kept
        }
        # Calls have ids made of their parents': without any task that goes on nobody asks for them.
        if kept:
            calls = self.calls.items()
            records.update((id, _going_on(known, describe_kept(None))) for id, known in calls)
        if self.claim is not None:
            # What it brought has no questions here unless their tasks go on; but which calls were
            # taken stays known, so that a call which comes once more is not taken again.
            answers = self.claim["answers"] if kept else {}
            claim: ClaimRecord = {**self.claim, "answers": answers, "live": False}
            records[NULL_TASK_ID] = TaskRecord(claim=claim)
        run.position.replace_records(records)
        return [encode_record(run, task_id, known) for task_id, known in records.items()]


def _going_on(before: TaskRecord, kept: Mapping[str, Any]) -> TaskRecord:
    """What is known of a task in the checkpoint in which it goes on: what it has done, not how it
    failed."""
    # An error is not carried over: the edit may have mended its cause, so the task runs again.
    if before.error is not None:
        before = replace(
            before, writes=[], wrote=False, error=None, routed=False, wake_at=None
        )
    return replace(before, kept=kept, edited=True)


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
    if known.edited:
        pairs.append((EDITED, True))
    if known.claim is not None:
        pairs.append((CLAIM, dict(known.claim)))
    path = path_text(known.kept["path"]) if known.kept is not None and known.kept["path"] else ""
    return TaskWrites(task_id, path, [(name, saver.serde.dumps(value)) for name, value in pairs])
