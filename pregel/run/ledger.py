"""What is recorded beside a checkpoint of the tasks that follow it, and the answers that a call
brings for them: one ledger per checkpoint, asked by task id.

Theory of operation: an answer goes from the call to the claim, from there to the task that asks,
and with that to the record of the task. The claim is stored by compare-and-swap before any node
runs, so of several calls one goes on. What a task was given is recorded together with what it did,
so no crash comes between the two. After a crash an answer may stand in the claim and in a record;
the record counts (`Ledger.undelivered`), so it is never given twice. An answer with which its task
has failed may be replaced: it leaves the record in the transaction that stores the claim of the new
one.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock
from typing import Any, Final, TypedDict

from ...checkpoint.base import (
    CLAIM,
    DIGEST,
    EDITED,
    ERROR,
    ERROR_SOURCE,
    INTERRUPT,
    KEPT,
    MADE_BY,
    NO_WRITES,
    NULL_TASK_ID,
    POST_TASK_ID,
    RAISED,
    RESUME,
    SLEEP,
    TRACEBACK,
    CheckpointTuple,
    PendingWrite,
    Span,
    TaskWrites,
)
from ...checkpoint.serde import Serializer
from ..clock import CLOCK
from ..names import TASKS, path_text
from ..program.program import Program
from ..program.writes import Pair
from ..schedule.machine import Machine
from ..task.attempt_state import Pause
from ..task.ids import Carried
from ..task.interrupts import TASK, task_digits
from ..task.task import Task, handler_of
from ..types import Interrupt

FIRST: Final = ""
"""Among answers, in place of a question's id: the first question that is asked."""


class ClaimRecord(TypedDict):
    """A claim as it is stored: the answers that a call has brought, beside the checkpoint whose
    tasks asked, before any node runs. So of several calls one goes on, and what a person has said
    outlives the process. A claim stays open until each of its answers has reached the record of the
    task that asked, or that task has finished.

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
        traceback: where the last error was raised, see `traceback_of`.
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
    traceback: str = ""

    @property
    def finished(self) -> bool:
        """Whether its writes count."""
        return self.wrote and self.error is None

    @property
    def raised_at(self) -> str:
        """Where its error was raised; empty if it has none any more."""
        return "" if self.error is None else self.traceback

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

    def encode(self, serde: Serializer, task_id: str) -> TaskWrites:
        """Return it as it is stored once more beside another checkpoint."""
        pairs: list[Pair] = [*self.writes] or ([(NO_WRITES, None)] if self.wrote else [])
        if not self.finished and self.interrupts:
            pairs += [(INTERRUPT, list(self.interrupts)), (RAISED, self.raised)]
        if not self.finished and self.wake_at is not None:
            pairs.append((SLEEP, self.wake_at))
        if self.error is not None:
            pairs += [(ERROR, self.error), (TRACEBACK, self.traceback)]
        if self.routed:
            pairs.append((ERROR_SOURCE, None))
        if self.answers:
            pairs.append((RESUME, dict(self.answers)))
        if self.kept is not None:
            pairs.append((KEPT, dict(self.kept)))
        if self.edited:
            pairs.append((EDITED, True))
        if self.claim is not None:
            pairs.append((CLAIM, dict(self.claim)))
        path = path_text(self.kept["path"]) if self.kept is not None and self.kept["path"] else ""
        return TaskWrites(task_id, path, [(name, serde.dumps(value)) for name, value in pairs])


_NOTHING = TaskRecord()
_FIELDS: Final = {
    ERROR: "error",  # None clears it: the task has succeeded since
    RESUME: "answers",
    CLAIM: "claim",
    RAISED: "raised",
    KEPT: "kept",
    EDITED: "edited",
    SLEEP: "wake_at",
    TRACEBACK: "traceback",
}
"""What replaces a field of a task's record → the field."""


class Ledger(dict[str, TaskRecord]):
    """Task id → what is recorded of the task beside a checkpoint; under `NULL_TASK_ID` what calls
    have brought by `Command`. With them the answers that this call brings, until the questions take
    them. Nested runs take answers from the runs around them.

    Attributes:
        brought: the answers that no question has taken, by question; under `FIRST` the one for the
            first question that is asked.
        brought_any: this call, or one around it, has brought answers.
        beside: the checkpoint beside which what was brought is claimed; None if it is not, or the
            claim has ended.
    """

    # What few calls ever set is an attribute of the class (benchmark P2).
    __slots__ = ("__dict__", "_parent", "_taken", "brought")

    beside: str | None = None
    brought_any: bool = False
    _first_for: tuple[str | None, str] = (None, "")
    _first_lock: AbstractContextManager[Any] = nullcontext()
    _given: set[str] | None = None
    _only: tuple[str, str] | None = None
    _renewed: bool = False

    def __init__(self, pending: Sequence[PendingWrite] = (), parent: Task | None = None) -> None:
        self._parent: Task | None = parent
        self.brought: dict[str, Any] = {}
        self._taken: dict[str, Any] = {}
        if parent is not None:
            self.brought_any = parent.run.ledger.brought_any
        if pending:
            self.load(pending)

    # -- what is recorded --------------------------------------------------------------------------

    def load(self, pending: Sequence[PendingWrite]) -> None:
        """Take up what a checkpointer has found beside a checkpoint."""
        self.replace({})
        for task_id, channel, value in pending:
            if task_id == POST_TASK_ID:  # of no task: it is in the state, and here for the history
                continue
            stored = self.get(task_id)
            if stored is None:
                stored = self[task_id] = TaskRecord()
            known = _FIELDS.get(channel)
            if known is not None:
                setattr(stored, known, value)
            elif channel == ERROR_SOURCE:
                stored.routed = True
            elif channel == INTERRUPT:
                stored.interrupts = tuple(value)
            elif channel != DIGEST and (channel != MADE_BY or task_id == NULL_TASK_ID):
                stored.wrote = True
                if channel != NO_WRITES:
                    stored.writes.append((channel, value))

    def replace(self, records: Mapping[str, TaskRecord]) -> None:
        """Let these records count from now on."""
        self.clear()
        self.update(records)
        self._given = None

    def note_command(self, record: TaskRecord) -> None:
        """Add what this call has brought by `Command`."""
        self[NULL_TASK_ID] = record

    def of(self, task_id: str) -> TaskRecord:
        """Return what is recorded of a task; an empty record if nothing is."""
        return self.get(task_id, _NOTHING)

    @property
    def command(self) -> TaskRecord:
        """What calls have brought by `Command` beside the checkpoint."""
        return self.of(NULL_TASK_ID)

    @property
    def claim(self) -> ClaimRecord | None:
        """The claim that is stored beside the checkpoint, or None."""
        return self.command.claim

    @property
    def has_live_claim(self) -> bool:
        """Whether the run that stored the claim has not ended, as far as is recorded."""
        return self.claim is not None and bool(self.claim.get("live", True))

    @property
    def given(self) -> set[str]:
        """The questions whose answers are recorded, by whichever task."""
        if self._given is None:
            self._given = {question for known in self.values() for question in known.answers}
        return self._given

    def find_waiting(self, tasks: Iterable[Task]) -> dict[str, Task]:
        """Return the recorded questions of tasks that wait for an answer, each with its task."""
        return {
            question.id: task
            for task in tasks
            for question in self.of(task.id).waiting
            if question.id not in self.given
        }

    def find_failed(self, tasks: Iterable[Task]) -> dict[str, Task]:
        """Return the questions with whose answers a task has failed, each with its task."""
        return {question: task for task in tasks for question in self.of(task.id).failed_answers}

    def undelivered(self) -> dict[str, Any]:
        """Return the answers of the claim that have not reached the record of a task. Also to
        questions that only the record of a `@task` call tells of: when its caller paused anew, it
        had failed before it came to them."""
        claim, given = self.claim, self.given
        if claim is None:
            return {}
        open_ = {question.id for known in self.values() for question in known.waiting} - given
        left = {each: answer for each, answer in claim["answers"].items() if each in open_}
        # Any answer that was recorded since the claim may be this one, taken by a question that was
        # asked later. To give it again could answer two questions.
        if FIRST in claim["answers"] and given <= set(claim.get("before", ())):
            left[FIRST] = claim["answers"][FIRST]
        return left

    def with_handlers(self, tasks: Iterable[Task]) -> list[Task]:
        """Return these tasks without those that have lost a race, and behind each that failed and
        whose error handler had taken over, that handler's."""
        found: list[Task] = []
        racing = False
        for task in tasks:
            found.append(task)
            racing = racing or (task.send is not None and task.send.race is not None)
            known = self.of(task.id)
            if known.routed and known.error is not None and task.node.handler is not None:
                found.append(handler_of(task))
        if racing:
            from ..schedule.races import find_lost

            lost = find_lost(found, self)
            return [task for task in found if task not in lost]
        return found

    def marks_of(self, task: Task) -> dict[str, Any]:
        """Return what a task leaves that has failed or paused, as control writes: its error or
        questions, and the answers that it has been given. An answer that was recorded and has been
        rejected since is no longer among them."""
        before = self.of(task.id)
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

    def find_carried(self) -> dict[tuple[Any, ...], Carried]:
        """Return path → what the tasks take along of earlier checkpoints that go on beside this
        one."""
        return {
            tuple(known.kept["path"]): Carried(task_id, tuple(known.kept.get("joined", ())))
            for task_id, known in self.items()
            if known.kept and known.kept["path"]
        }

    def find_begun(self, carried: Iterable[str]) -> set[str]:
        """Return which of the tasks go on that have started, by their ids.

        Args:
            carried: the ids of the tasks that go on.
        """
        # What no edit has kept before is carried because it was under way.
        return {id for id in carried if self.of(id).kept is None or self.of(id).begun}

    def bring_back(self, machine: Machine) -> None:
        """Apply what `Command`s have brought beside the checkpoint, one after the other."""
        if self.command.writes:
            for writes in _split_commands(known_only(self.command.writes, machine)):
                machine.apply_writes(writes)

    # -- answers brought by a call -----------------------------------------------------------------

    def bring(self, answers: Mapping[str, Any], only: tuple[str, str] | None = None) -> None:
        """Take the answers that the call brings.

        Args:
            only: task and id of the only question that is open, if its answer came without an id.
        """
        self.brought, self._only, self.brought_any = dict(answers), only, True
        self._first_lock = Lock()

    def bring_inside(self, around: Ledger, question: str, task_id: str | None) -> None:
        """Take an answer for a question of a nested graph that starts over: it asks the same again,
        under an id that nobody knows yet.

        Args:
            around: of the call that has brought it.
            question: the id that it had. If the answer came without it, it is for what that graph
                asks first.
            task_id: the task of this run that runs that graph; None if that is not known.
        """
        answer = around._take_out(question)
        self.brought[FIRST], self.brought_any, self._first_lock = answer, True, Lock()
        unnamed = around._only is not None and around._only[1] == question
        self._first_for = task_id, "" if unnamed else question[TASK.stop :]

    def bring_again(self, left: Mapping[str, Any], beside: str | None) -> None:
        """Go on with what is left of the claim of a call that did not come to its end. A nested
        graph may have taken the answer to the first question already: so only a task that has been
        given no answer yet takes it."""
        self.brought, self.beside, self._renewed = dict(left), beside, FIRST in left
        self.brought_any, self._first_lock = self.brought_any or bool(left), Lock()

    def move(self, ids: Mapping[str, str]) -> None:
        """Bind the answers to the ids that their questions have in a fork.

        Args:
            ids: old → new.
        """
        for old, new in ids.items():
            if old in self.brought:
                self.brought[new] = self._take_out(old)

    def follow(self, ids: Mapping[str, str]) -> None:
        """Bind the answers of the calls around this one to the ids that its questions have now:
        there they are known by those that they had before a node was renamed.

        Args:
            ids: old → new.
        """
        for ledger in self._outwards():
            ledger.move(ids)
            if ledger._parent is not None:
                answers = ledger._parent.known_answers()
                answers.update({new: answers[old] for old, new in ids.items() if old in answers})

    def begin_claim(self, beside: str | None) -> None:
        """Note that what was brought is claimed beside this checkpoint."""
        self.beside = beside

    @property
    def claimed(self) -> dict[str, Any]:
        """What the claim of this call holds, or of the one that it goes on with."""
        # In this order: an answer that is taken meanwhile is in the one or the other.
        with self._first_lock:
            return {**self.brought, **self._taken}

    def move_claim(self, delivered: Collection[str], beside: str) -> dict[str, Any]:
        """Move the claim beside another checkpoint, without the answers that are recorded there.
        Returns what is left of it; if nothing is, it has ended."""
        for question in delivered:
            self._drop(question)
        left = self.claimed
        self.beside = beside if left else None
        return left

    def end_claim(self) -> str | None:
        """End the claim. Returns the checkpoint beside which it stands; None if there is none."""
        beside, self.beside = self.beside, None
        return beside

    # -- answers taken by questions ----------------------------------------------------------------

    def take(self, question: str, by: Task, inside: tuple[Ledger, ...] = ()) -> tuple[Any, ...]:
        """Return the answer to this question as a one-item tuple, empty if there is none; it can be
        taken once.

        Args:
            by: the task of this run that asks, or in which a nested graph asks.
            inside: those of the nested runs between that task and the question.
        """
        taken = self._take(question, by)
        if not taken and inside and self._only is not None and self._only[0] == by.id:
            # Was the nested graph changed by hand, so that it does not know the question? Then its
            # next one is meant. Not so if the task itself has asked it, or a call.
            only = self._only[1]
            own = only[TASK] == task_digits(by.ns) or self.has_asked(only, but=by.id)
            known = own or any(ledger.has_asked(only) for ledger in inside)
            if only in self.brought and not known:
                taken = (self._take_out(only),)
        # Nearest first: the call of a nested graph may itself have brought the answer.
        if not taken and self._parent is not None:
            taken = self._parent.run.ledger.take(question, self._parent, (*inside, self))
        # A graph inside that saves nothing cannot record it. The task here does, so that the answer
        # is there when the task runs again.
        if taken and inside:
            by.pass_on(question, taken[0])
        return taken

    def _take_out(self, question: str) -> Any:
        # In this order it is never absent from what is `claimed`: another thread may store that.
        answer = self._taken[question] = self.brought[question]
        del self.brought[question]
        return answer

    def _outwards(self) -> Iterator[Ledger]:
        """This ledger, and those of the runs around this one."""
        ledger: Any = self
        while ledger is not None:
            yield ledger
            ledger = None if ledger._parent is None else ledger._parent.run.ledger

    def _take(self, question: str, by: Task) -> tuple[Any, ...]:
        if question in self.brought:
            return (self._take_out(question),)
        for answers in self._kept_by(by):
            if question in answers:
                return (answers[question],)
        # A renewed answer was perhaps taken already, by a graph inside whose record was lost. A
        # task with answers has got past its first question.
        if FIRST not in self.brought or (self._renewed and by.known_answers()):
            return ()
        task_id, words = self._first_for
        if task_id not in (None, by.id) or not question.endswith(words):
            return ()
        with self._first_lock:  # of questions asked at once on several threads one is the first
            if FIRST not in self.brought:
                return ()
            answer = self._taken[question] = self.brought.pop(FIRST)
        return (answer,)

    def _kept_by(self, task: Task) -> Iterator[Mapping[str, Any]]:
        """The answers kept with a task that has shown a question, and with those that call it: an
        earlier attempt has not come to what asks inside."""
        if self:
            yield task.known_answers()
            for caller in task.callers:
                yield self.of(caller).answers

    def reject(self, question: str) -> None:
        """Drop an answer that did not fit its question, so that no later call takes it up."""
        for ledger in self._outwards():
            ledger._drop(question)

    def _drop(self, question: str) -> None:
        self.brought.pop(question, None)
        self._taken.pop(question, None)

    def keep(self, task: Task, asked: Container[str]) -> None:
        """Keep the answers to questions that a task had shown and that its attempt, which ends with
        others, has not reached: they stay with the task.

        Args:
            asked: the questions with which it ends.
        """
        for question, answer in self.brought_for(task).items():
            if question not in asked:
                task.known_answers()[question] = answer
                for ledger in self._outwards():
                    if question in ledger.brought:
                        ledger._take_out(question)

    # -- answers looked at -------------------------------------------------------------------------

    def may_reach(self, questions: Collection[str]) -> bool:
        """Whether this call, or one around it, brings an answer to one of these questions, or an
        earlier one has."""
        if not self.brought.keys().isdisjoint((FIRST, *questions)):
            return True
        if self._parent is None:
            return False
        around: Any = self._parent.run.ledger
        kept = around._kept_by(self._parent)
        return any(not answers.keys().isdisjoint(questions) for answers in kept) or bool(
            around.may_reach(questions)
        )

    def brought_for(self, task: Task) -> dict[str, Any]:
        """Return the answers that this call, or one around it, brings for the questions that a task
        has asked."""
        asked = [question.id for question in self.of(task.id).interrupts]
        return {
            each: ledger.brought[each]
            for ledger in self._outwards()
            for each in asked
            if each in ledger.brought
        }

    def known(self, task: Task) -> dict[str, Any]:
        """Return the answers that a task was given before, but for those with which it has failed
        and that this call, or one around it, brings anew."""
        record = self.of(task.id)
        again = record.failed_answers
        if again:
            again &= self.brought_for(task).keys()
        return {
            question: answer for question, answer in record.answers.items() if question not in again
        }

    def find_pause(self, record: TaskRecord) -> Pause | None:
        """Return what a task goes on waiting for without being run: its time has not come, or
        answers have come, but none of them for what it asks. None if it must run."""
        if record.raised or record.error is not None:
            return None
        asked, asleep = record.waiting, record.asleep
        if asked:
            if record.edited or self.may_reach([question.id for question in record.interrupts]):
                return None
            asked = tuple(question for question in asked if question.id not in self.given)
        if asleep or (asked and self.brought_any and record.wake_at is None):
            return Pause(asked, wake_at=record.wake_at)
        return None

    def has_asked(self, id: str, but: str = "") -> bool:
        """Whether a question was pending when this run was loaded.

        Args:
            but: the id of a task whose record does not count.
        """
        records = self.items()
        return any(q.id == id for task, record in records if task != but for q in record.interrupts)


def revive(program: Program, found: CheckpointTuple) -> tuple[Machine, Ledger]:
    """Bring a stored checkpoint to life, with what is recorded beside it."""
    ledger = Ledger(found.pending_writes or ())
    carried = ledger.find_carried() if ledger else {}
    machine = Machine(program, found.checkpoint, found.metadata.get("step", -1) + 1, carried)
    if NULL_TASK_ID in ledger:
        ledger.bring_back(machine)
    return machine, ledger


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


def known_only(writes: Iterable[Pair], machine: Machine) -> list[Pair]:
    """The writes to channels that the machine has."""
    return [pair for pair in writes if pair[0] in machine.channels]


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
