"""What is recorded beside a checkpoint of the tasks that follow it, and of the answers brought
for them: read back from what a checkpointer found."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypedDict

from ...checkpoint.base import (
    CLAIM,
    DIGEST,
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
    PendingWrite,
    Span,
    TaskWrites,
)
from ...checkpoint.serde import Serializer
from ..clock import CLOCK
from ..names import TASKS, path_text
from ..program.writes import Pair
from ..schedule.machine import Machine
from ..task.ids import Carried
from ..task.task import Task, handler_of
from ..types import Interrupt


@dataclass(slots=True, eq=False)
class TaskRecord:
    """What a checkpoint's pending writes tell of one task.

    A task has finished if it left output and no error: a failed attempt's output is never kept, and
    a later success clears the error.

    Attributes:
        claim: of the null task, the answers that a run has brought.
        raised: `Pause.raised`.
        wake_at: `Pause.wake_at`.
        kept: the task belongs to an earlier checkpoint and goes on beside this one, after an edit
            or a call with durability "exit", under its `path` here (None for a call of such a
            task); `begun` says whether it had started, or only waited to; `joined` is that of its
            runtime.
        edited: the thread was edited since its questions were shown.
    """

    writes: list[Pair] = field(default_factory=list)
    wrote: bool = False
    error: BaseException | None = None
    routed: bool = False
    interrupts: tuple[Interrupt, ...] = ()
    answers: Mapping[str, Any] = field(default_factory=dict)
    spans: tuple[Span, ...] = ()
    claim: ClaimRecord | None = None
    raised: bool = False
    wake_at: datetime | None = None
    kept: Mapping[str, Any] | None = None
    edited: bool = False

    @property
    def finished(self) -> bool:
        """Whether its writes count."""
        return self.wrote and self.error is None

    @property
    def waiting(self) -> tuple[Interrupt, ...]:
        """Its questions that have no answer in its record."""
        return (
            () if self.finished else tuple(q for q in self.interrupts if q.id not in self.answers)
        )

    @property
    def failed_answers(self) -> set[str]:
        """The questions that it asked last, if it has failed with the answers to them: they can be
        answered anew."""
        if self.error is None or self.routed:
            return set()
        return {question.id for question in self.interrupts} & self.answers.keys()

    @property
    def asleep(self) -> bool:
        """Whether it runs again at a time of its own that has not come."""
        wake_at = None if self.wrote or self.error is not None else self.wake_at
        return wake_at is not None and wake_at.timestamp() > CLOCK.time()

    @property
    def begun(self) -> bool:
        """Whether the task is known to have started."""
        said = self.kept is not None and self.kept.get("begun", False)
        ended = self.wrote or self.error is not None or self.wake_at is not None
        return said or ended or bool(self.interrupts or self.spans)


NOTHING_RECORDED = TaskRecord()


def read_records(pending: Iterable[PendingWrite]) -> dict[str, TaskRecord]:
    """Pending writes by task id. Those of the null task are a `Command`'s, not a task's."""
    found: dict[str, TaskRecord] = {}
    for task_id, channel, value in pending:
        stored = found.get(task_id)
        if stored is None:
            stored = found[task_id] = TaskRecord()
        # None clears it: the task has succeeded since.
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
        elif channel == EDITED:
            stored.edited = value
        elif channel == SLEEP:
            stored.wake_at = value
        else:
            stored.wrote = True
            if channel != NO_WRITES:
                stored.writes.append((channel, value))
    return found


def marks_of_unfinished(task: Task, before: TaskRecord) -> dict[str, Any]:
    """What a task leaves that has failed or paused, as control writes: its error or questions, and
    the answers that it has been given. An answer that was recorded and has been rejected since is
    no longer among them.

    Args:
        before: what is recorded of it.
    """
    marks: dict[str, Any] = {}
    # A signal (Ctrl-C, a cancellation) is no outcome of the node: it simply runs again.
    # Where there is no error now, or no time, that takes the place of what was recorded before.
    if isinstance(task.error, Exception) or (task.paused and before.error is not None):
        marks[ERROR] = task.error
    if task.wake_at is not None or before.wake_at is not None:
        marks[SLEEP] = task.wake_at
    if task.interrupts or (before.interrupts and task.wake_at is not None):
        marks[INTERRUPT] = list(task.interrupts)
        raised = task.pause is not None and task.pause.raised
        # Also False: it replaces what an earlier attempt had recorded.
        if raised or before.raised:
            marks[RAISED] = raised
        if before.edited:  # who answers now has seen the questions as they are since the edit
            marks[EDITED] = False
    # An empty dict is stored where it takes the place of answers that were rejected.
    if task.answers or (task.answers is not None and before.answers):
        # What is asked is open, also where the answer of a graph inside was kept here.
        open_ = {question.id for question in task.interrupts}
        marks[RESUME] = {q: answer for q, answer in task.answers.items() if q not in open_}
    return marks


def find_carried(stored: Mapping[str, TaskRecord]) -> dict[tuple[Any, ...], Carried]:
    """path → what the tasks take along of earlier checkpoints that go on beside this one."""
    return {
        tuple(known.kept["path"]): Carried(task_id, tuple(known.kept.get("joined", ())))
        for task_id, known in stored.items()
        if known.kept and known.kept["path"]
    }


def describe_kept(
    path: tuple[Any, ...] | None, joined: tuple[str, ...] = (), *, begun: bool = False
) -> dict[str, Any]:
    """`TaskRecord.kept`, as it is stored."""
    kept: dict[str, Any] = {"path": path}
    if begun:
        kept["begun"] = True
    if joined:
        kept["joined"] = joined
    return kept


def find_begun(stored: Mapping[str, TaskRecord], carried: Iterable[str]) -> set[str]:
    """Which of the tasks go on that have started, by their ids.

    Args:
        carried: the ids of the tasks that go on.
    """
    known = {id: stored.get(id, NOTHING_RECORDED) for id in carried}
    # What no edit has kept before is carried because it was under way.
    return {id for id, each in known.items() if each.kept is None or each.begun}


def known_only(writes: Iterable[Pair], machine: Machine) -> list[Pair]:
    """The writes to channels that the machine has."""
    return [pair for pair in writes if pair[0] in machine.channels]


def bring_back(machine: Machine, command: TaskRecord) -> None:
    """Apply what `Command`s have brought beside the checkpoint, one after the other."""
    if command.writes:
        for writes in _split_commands(known_only(command.writes, machine)):
            machine.apply_writes(writes)


def _split_commands(writes: Iterable[Pair]) -> Iterator[list[Pair]]:
    """The writes of each, which are stored in a row: a key that is written again is written by a
    later one."""
    found: list[Pair] = []
    names: set[str] = set()
    for name, value in writes:
        if name in names and name != TASKS:
            yield found
            found, names = [], set()
        found.append((name, value))
        names.add(name)
    if found:
        yield found


def with_handlers(tasks: Iterable[Task], stored: Mapping[str, TaskRecord]) -> list[Task]:
    """These tasks without those that have lost a race, and behind each that failed and whose error
    handler had taken over, that handler's."""
    found: list[Task] = []
    racing = False
    for task in tasks:
        found.append(task)
        racing = racing or (task.send is not None and task.send.race is not None)
        known = stored.get(task.id)
        if (
            known is not None
            and known.routed
            and known.error is not None
            and task.node.handler is not None
        ):
            found.append(handler_of(task))
    if racing:
        from ..schedule.races import find_lost

        lost = find_lost(found, stored)
        return [task for task in found if task not in lost]
    return found


def given_answers(stored: Mapping[str, TaskRecord]) -> set[str]:
    """The questions whose answers are recorded beside a checkpoint, by whichever task."""
    return {question for known in stored.values() for question in known.answers}


def waiting_questions(tasks: Iterable[Task], stored: Mapping[str, TaskRecord]) -> dict[str, Task]:
    """The recorded questions that wait for an answer, each with its task."""
    given = given_answers(stored)
    found: dict[str, Task] = {}
    for task in tasks:
        known = stored.get(task.id)
        if known is not None:
            found.update(
                (question.id, task) for question in known.waiting if question.id not in given
            )
    return found


def failed_questions(
    tasks: Iterable[Task], stored: Mapping[str, TaskRecord]
) -> dict[str, Task]:
    """The questions with whose answers a task has failed, each with its task."""
    found: dict[str, Task] = {}
    for task in tasks:
        known = stored.get(task.id)
        if known is not None:
            found.update((question, task) for question in known.failed_answers)
    return found


def undelivered_answers(stored: Mapping[str, TaskRecord]) -> dict[str, Any]:
    """What a call has brought, and no task's record shows yet. Also for questions that only the
    record of a `@task` call tells of: when its caller paused anew, it had failed before it came to
    them."""
    claim = stored.get(NULL_TASK_ID, NOTHING_RECORDED).claim
    if claim is None:
        return {}
    open_ = {question.id for known in stored.values() for question in known.waiting}
    return find_undelivered(claim, open_, given_answers(stored))


def encode_record(serde: Serializer, task_id: str, known: TaskRecord) -> TaskWrites:
    """What is known of a task, to be stored once more beside another checkpoint."""
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
    return TaskWrites(task_id, path, [(name, serde.dumps(value)) for name, value in pairs])


# -- claims ----------------------------------------------------------------------------------------
# The answers that a call has brought, stored beside the checkpoint whose tasks asked, before any
# node runs: so of several calls one goes on, and what a person has said outlives the process. A
# claim stays open until each of its answers has reached the record of the task that asked, or that
# task has finished. It is live as long as the run that stored it may be at work.

FIRST = ""
"""In a claim, in place of a question's id: the first question that is asked."""


class ClaimRecord(TypedDict):
    """A claim as it is stored.

    Keys:
        answers: by question; the answer without a question is for the first that is asked.
        run_id: the run that brought them, if it has a name.
        taken: the named runs whose commands were taken beside this checkpoint.
        before: the questions whose answers were recorded by then.
        live: the run may be at work, or dead; it has not recorded its end.
    """

    answers: dict[str, Any]
    run_id: str | None
    taken: list[str]
    before: list[str]
    live: bool


def find_undelivered(
    claim: ClaimRecord | None, open_ids: Collection[str], given: Collection[str]
) -> dict[str, Any]:
    """The answers of a claim that have not reached the record of a task.

    Args:
        open_ids: the questions that are recorded and wait.
        given: the questions whose answers are recorded beside this checkpoint.
    """
    if claim is None:
        return {}
    left = {q: answer for q, answer in claim["answers"].items() if q in open_ids and q not in given}
    # Any answer that was recorded since the claim may be this one, taken by a question that was
    # asked later. To give it again could answer two questions.
    if FIRST in claim["answers"] and set(given) <= set(claim.get("before", ())):
        left[FIRST] = claim["answers"][FIRST]
    return left


def is_live(claim: ClaimRecord | None) -> bool:
    """Whether the run that brought these answers has not ended, as far as is recorded."""
    return claim is not None and bool(claim.get("live", True))
