"""Answers on their way to the questions they are for: what one call brings, until the questions
take it."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from threading import Lock
from typing import Any

from ...channels.base import MISSING
from ..task.attempt_state import Pause
from ..task.interrupts import TASK, task_digits
from ..task.task import Task
from .position import Position
from .task_records import FIRST, TaskRecord

_first_lock = Lock()


class Answers:
    """What a call brings. Nested runs take answers from the runs around them.

    Attributes:
        by_id: by question.
        first: for the first question that is asked; MISSING if there is none such.
        brought_any: this call, or one around it, has brought answers.
        claimed: what the claim of this call, or the one that it goes on with, holds; None if there
            is none, or it has ended.
        beside: the checkpoint beside which that claim stands.
    """

    __slots__ = (
        "_first_for",
        "_only",
        "_parent",
        "_position",
        "_renewed",
        "beside",
        "brought_any",
        "by_id",
        "claimed",
        "first",
    )

    def __init__(self, parent: Task | None, position: Position) -> None:
        self._parent = parent
        self._position = position
        self.by_id: dict[str, Any] = {}
        self.first: Any = MISSING
        self._first_for: tuple[str | None, str] | None = None
        self._renewed = False
        self._only: tuple[str, str] | None = None
        self.brought_any: bool = parent is not None and parent.run.answers.brought_any
        self.claimed: dict[str, Any] | None = None
        self.beside: str | None = None

    # -- brought by a call -------------------------------------------------------------------------

    def bring(self, by_id: Mapping[str, Any], only: tuple[str, str] | None = None) -> None:
        """Take the answers that the call brings.

        Args:
            only: task and id of the only question that is open, if its answer came without an id.
        """
        self.by_id, self._only, self.brought_any = dict(by_id), only, True

    def bring_first(self, answer: Any) -> None:
        """Take an answer for the first question that is asked."""
        self.first, self._first_for, self.brought_any = answer, None, True

    def bring_inside(self, around: Answers, question: str, task_id: str | None) -> None:
        """Take an answer for a question of a nested graph that starts over: it asks the same again,
        under an id that nobody knows yet.

        Args:
            around: of the call that has brought it.
            question: the id that it had. If the answer came without it, it is for what that graph
                asks first.
            task_id: the task of this run that runs that graph; None if that is not known.
        """
        self.bring_first(around.by_id.pop(question))
        unnamed = around._only is not None and around._only[1] == question
        self._first_for = task_id, "" if unnamed else question[TASK.stop :]

    def bring_again(self, left: Mapping[str, Any], beside: str | None) -> None:
        """Go on with what is left of the claim of a call that did not come to its end. A nested
        graph may have taken the answer to the first question already: so only a task that has been
        given no answer yet takes it."""
        self.claimed, self.beside = dict(left), beside
        self.by_id = {question: answer for question, answer in left.items() if question != FIRST}
        if FIRST in left:
            self.first, self._renewed = left[FIRST], True
        self.brought_any = self.brought_any or bool(left)

    def move(self, ids: Mapping[str, str]) -> None:
        """Bind the answers to the ids that their questions have in a fork.

        Args:
            ids: old → new.
        """
        self.by_id = {ids.get(old, old): answer for old, answer in self.by_id.items()}

    def claim(self, beside: str | None) -> None:
        """Claim all that was brought, beside this checkpoint."""
        self.claimed, self.beside = dict(self.by_id), beside
        if self.first is not MISSING:
            self.claimed[FIRST] = self.first

    def move_claim(self, delivered: Collection[str], beside: str) -> dict[str, Any]:
        """Move the claim beside another checkpoint, without the answers that are recorded there.
        Returns what is left of it."""
        self.claimed = {q: each for q, each in (self.claimed or {}).items() if q not in delivered}
        self.beside = beside
        return self.claimed

    def end_claim(self) -> dict[str, Any] | None:
        """End the claim. Returns what it held; None if there was none."""
        claimed, self.claimed = self.claimed, None
        return claimed

    # -- taken by questions ------------------------------------------------------------------------

    def take(self, question: str, by: Task, inside: tuple[Answers, ...] = ()) -> tuple[Any, ...]:
        """The answer to this question as a one-item tuple, empty if there is none; it can be taken
        once.

        Args:
            by: the task of this run that asks, or in which a nested graph asks.
            inside: those of the nested runs between that task and the question.
        """
        taken = self._take(question, by)
        if not taken and inside and self._only is not None and self._only[0] == by.id:
            # Was the nested graph changed by hand, so that it does not know the question? Then its
            # next one is meant. Not so if the task itself has asked it, or a call.
            only = self._only[1]
            own = only[TASK] == task_digits(by.ns) or self.has_asked((only,), but=by.id)
            known = own or any(answers.has_asked((only,)) for answers in inside)
            if only in self.by_id and not known:
                taken = (self.by_id.pop(only),)
        around = self._around
        # Nearest first: the call of a nested graph may itself have brought the answer.
        if not taken and around is not None:
            taken = around.take(question, self._parent, (*inside, self))
        # A graph inside that saves nothing cannot record it. The task here does, so that the answer
        # is there when the task runs again.
        if taken and inside:
            by.pass_on(question, taken[0])
        return taken

    @property
    def _around(self) -> Any:
        """The answers of the run around this one, or None."""
        if self._parent is None:
            return None
        return self._parent.run.answers

    def _outwards(self) -> Iterator[Answers]:
        """These, and those of the runs around this one."""
        answers: Answers | None = self
        while answers is not None:
            yield answers
            answers = answers._around

    def _take(self, question: str, by: Task) -> tuple[Any, ...]:
        if question in self.by_id:
            return (self.by_id.pop(question),)
        for answers in self._kept_by(by):
            if question in answers:
                return (answers[question],)
        # A renewed answer was perhaps taken already, by a graph inside whose record was lost. A
        # task with answers has got past its first question.
        if self.first is MISSING or (self._renewed and by.known_answers()):
            return ()
        if self._first_for is not None:
            task_id, words = self._first_for
            if task_id not in (None, by.id) or not question.endswith(words):
                return ()
        with _first_lock:  # of questions asked at once on several threads one is the first
            answer, self.first = self.first, MISSING
        # Another thread was faster between the look above and the lock.
        if answer is MISSING:
            return ()
        if self.claimed is not None and FIRST in self.claimed:
            del self.claimed[FIRST]
            self.claimed[question] = answer  # from now on it is known which question it is for
        return (answer,)

    def _kept_by(self, task: Task) -> Iterator[Mapping[str, Any]]:
        """The answers kept with a task that has shown a question, and with those that call it: an
        earlier attempt has not come to what asks inside."""
        if self._position.records:
            yield task.known_answers()
            for caller in task.callers:
                yield self._position.record_of(caller).answers

    def reject(self, question: str) -> None:
        """Drop an answer that did not fit its question, so that no later call takes it up."""
        for answers in self._outwards():
            answers.by_id.pop(question, None)
            if answers.claimed is not None:
                answers.claimed.pop(question, None)

    def keep(self, task: Task, asked: Container[str]) -> None:
        """Keep the answers to questions that a task had shown and that its attempt, which ends with
        others, has not reached: they stay with the task.

        Args:
            asked: the questions with which it ends.
        """
        for question, answer in self.brought(task).items():
            if question not in asked:
                task.known_answers()[question] = answer
                for answers in self._outwards():
                    answers.by_id.pop(question, None)

    # -- looked at ---------------------------------------------------------------------------------

    def may_reach(self, questions: Collection[str]) -> bool:
        """Whether this call, or one around it, brings an answer to one of these questions, or an
        earlier one has."""
        if self.first is not MISSING or not self.by_id.keys().isdisjoint(questions):
            return True
        around = self._around
        if around is None:
            return False
        kept = around._kept_by(self._parent)
        return any(not answers.keys().isdisjoint(questions) for answers in kept) or bool(
            around.may_reach(questions)
        )

    def brought(self, task: Task) -> dict[str, Any]:
        """The answers that this call, or one around it, brings for the questions that a task has
        asked."""
        found: dict[str, Any] = {}
        asked = [question.id for question in self._position.record_of(task.id).interrupts]
        for answers in self._outwards():
            found.update((each, answers.by_id[each]) for each in asked if each in answers.by_id)
        return found

    def known(self, task: Task) -> dict[str, Any]:
        """The answers that a task was given before, but for those with which it has failed and that
        this call, or one around it, brings anew."""
        record = self._position.record_of(task.id)
        again = record.failed_answers
        if again:
            again &= self.brought(task).keys()
        return {
            question: answer for question, answer in record.answers.items() if question not in again
        }

    def still_waits(self, record: TaskRecord, given: Collection[str]) -> Pause | None:
        """What a task goes on waiting for without being run: its time has not come, or answers have
        come, but none of them for what it asks. None if it must run.

        Args:
            given: the questions whose answers are recorded beside the checkpoint.
        """
        if record.raised or record.error is not None:
            return None
        asked, asleep = record.waiting, record.asleep
        if asked:
            if record.edited or self.may_reach([question.id for question in record.interrupts]):
                return None
            asked = tuple(question for question in asked if question.id not in given)
        if asleep or (asked and self.brought_any and record.wake_at is None):
            return Pause(asked, wake_at=record.wake_at)
        return None

    def has_asked(self, ids: Container[str], but: str = "") -> bool:
        """Whether one of these questions was pending when this run was loaded.

        Args:
            but: the id of a task whose record does not count.
        """
        records = self._position.records.items()
        return any(q.id in ids for id, record in records if id != but for q in record.interrupts)
