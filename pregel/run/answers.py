"""Answers on their way to the questions they are for.

A call brings answers; before any node runs they are stored as a *claim* beside the checkpoint whose
tasks asked, so that of several calls one goes on, and what a person has said outlives the process.
A claim stays open until each of its answers has reached the record of the task that asked, or that
task has finished.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from hashlib import blake2b
from threading import Lock
from typing import Any

from ...channels.base import MISSING
from ...store.keys import canonical_key
from ..superstep.context import TaskContext
from ..superstep.task import Task

FIRST = ""
"""In a claim, in place of a question's id: the first question that is asked."""

TASK, PLACE = slice(0, 16), slice(0, 20)
"""The digits of a question's id that name its task, and its task and place."""
_KEYED = "ffff"
_LAST_PLACE = 0xFFFE
_NO_PLACE = (_KEYED, f"{_LAST_PLACE:04x}")  # the last stands for all places from there on


def question_id(ns: str, place: int, value: Any) -> str:
    """32 hex digits for a question without a key: 16 for its task, 4 for its place among the
    questions of that task, 12 for the place and what is asked. So an answer can never reach another
    question than the one that was shown."""
    content = blake2b(f"{place}\0{_content(value)}".encode(), digest_size=6).hexdigest()
    return f"{task_digits(ns)}{min(place, _LAST_PLACE):04x}{content}"


def keyed_id(ns: str, key: str) -> str:
    """32 hex digits for the question of this key, whatever its place and its words."""
    return f"{task_digits(ns)}{_KEYED}{blake2b(key.encode(), digest_size=6).hexdigest()}"


def unworded_id(ns: str, place: int) -> str:
    """The id of a question as it was before ids knew what is asked. Threads that were stored then
    have it."""
    return blake2b(f"{ns}\0{place}".encode(), digest_size=16).hexdigest()


def task_digits(ns: str) -> str:
    """The digits by which the ids of all questions of one task begin."""
    return blake2b(ns.encode(), digest_size=8).hexdigest()


def moved_id(question: str, ns: str) -> str:
    """The id of the same question in a task with another namespace."""
    return task_digits(ns) + question[TASK.stop :]


def _content(value: Any) -> str:
    try:
        return canonical_key(value)
    except TypeError:  # nothing in it tells it from others of its kind
        return f"{type(value).__module__}.{type(value).__qualname__}"


def at_place(ids: Iterable[str], question: str) -> str | None:
    """One of these ids that is of the same task and place as a question's. A question with a key
    has no place."""
    if question[TASK.stop : PLACE.stop] in _NO_PLACE:
        return None
    return next((each for each in ids if each[PLACE] == question[PLACE]), None)


_FIRST = Lock()


class Answers:
    """What a call brings, until the questions take it.

    Attributes:
        by_id: by question.
        first: for the first question that is asked; MISSING if there is none such. `renewed`: it is
            of a call that died, so it may have been taken by a nested graph already; then only a
            task that was given no answer yet takes it.
        only_in: the task in which the only pending question was asked, if its answer was given
            without an id; and that question.
        brought_any: this call, or one around it, has brought answers.
        claimed: what the claim of this call, or the one that it goes on with, holds; None if there
            is none, or it has ended. It stands beside the checkpoint `beside`.
    """

    __slots__ = ("_run", "beside", "brought_any", "by_id", "claimed", "first", "only_in", "renewed")

    def __init__(self, run: TaskContext[Task]) -> None:
        self._run = run
        self.by_id: dict[str, Any] = {}
        self.first: Any = MISSING
        self.renewed = False
        self.only_in: tuple[str, str] | None = None
        self.brought_any: bool = run.parent is not None and run.parent.run.answers.brought_any
        self.claimed: dict[str, Any] | None = None
        self.beside: str | None = None

    def take(self, question: str, by: Task, inside: tuple[Any, ...] = ()) -> tuple[Any, ...]:
        """The answer to this question as a one-item tuple, empty if there is none; it can be taken
        once.

        Args:
            by: the task of this run that asks, or in which a nested graph asks.
            inside: the nested runs between that task and the question.
        """
        taken = self._take(question, fresh=not by.known_answers())
        if not taken and inside and self.only_in is not None and self.only_in[0] == by.id:
            # Was the nested graph changed by hand, so that it does not know the question? Then its
            # next one is meant.
            only = self.only_in[1]
            if only in self.by_id and not any(run.answers.has_asked((only,)) for run in inside):
                taken = (self.by_id.pop(only),)
        around = self._run.parent
        if not taken and around is not None:
            taken = around.run.answers.take(question, around, (*inside, self._run))
        if taken and inside:
            by.passed_on = {**by.passed_on, question: taken[0]}
        return taken

    def _take(self, question: str, *, fresh: bool) -> tuple[Any, ...]:
        if question in self.by_id:
            return (self.by_id.pop(question),)
        if self.first is MISSING or (self.renewed and not fresh):
            return ()
        with _FIRST:  # of questions asked at once on several threads one is the first
            answer, self.first = self.first, MISSING
        if answer is MISSING:
            return ()
        if self.claimed is not None and FIRST in self.claimed:
            del self.claimed[FIRST]
            self.claimed[question] = answer  # from now on it is known which question it is for
        return (answer,)

    def reject(self, question: str) -> None:
        """An answer did not fit its question: no later call takes it up."""
        if self.claimed is not None:
            self.claimed.pop(question, None)
        if self._run.parent is not None:
            self._run.parent.run.answers.reject(question)

    def may_reach(self, questions: Collection[str]) -> bool:
        """Whether this call, or one around it, brings an answer to one of these questions."""
        if self.first is not MISSING or not self.by_id.keys().isdisjoint(questions):
            return True
        return self._run.parent is not None and self._run.parent.run.answers.may_reach(questions)

    def brought(self, task: Task) -> dict[str, Any]:
        """The answers that this call, or one around it, brings for the questions that a task has
        asked."""
        known = self._run.stored.get(task.id)
        asked = {question.id for question in known.interrupts} if known is not None else set()
        found: dict[str, Any] = {}
        run: TaskContext[Task] | None = self._run if asked else None
        while run is not None:
            found.update((each, run.answers.by_id[each]) for each in asked if each in run.answers.by_id)
            run = run.parent.run if run.parent is not None else None
        return found

    def has_asked(self, ids: Container[str]) -> bool:
        """Whether one of these questions was pending when this run was loaded."""
        return any(question.id in ids for known in self._run.stored.values() for question in known.interrupts)

    def shown(self, task: Task, question: str) -> Any:
        """What a task had asked under this id, if it is recorded."""
        known = self._run.stored.get(task.id)
        return next((each for each in known.interrupts if each.id == question), None) if known is not None else None


def claim_record(answers: Mapping[str, Any], run_id: str | None, taken: Sequence[str], before: Iterable[str]) -> Any:
    """A claim as it is stored by a run that goes on.

    Args:
        taken: the runs whose commands were taken beside this checkpoint.
        before: the questions whose answers were recorded by then.
    """
    return {"answers": dict(answers), "run_id": run_id, "taken": [*taken], "before": [*before], "live": True}


def undelivered(claim: Mapping[str, Any] | None, open_ids: Collection[str], given: Collection[str]) -> dict[str, Any]:
    """The answers of a claim that have not reached the record of a task.

    Args:
        open_ids: the questions that are recorded and wait.
        given: the questions whose answers are recorded beside this checkpoint.
    """
    if claim is None:
        return {}
    left = {q: answer for q, answer in claim["answers"].items() if q in open_ids and q not in given}
    if FIRST in claim["answers"] and set(given) <= set(claim.get("before", ())):
        left[FIRST] = claim["answers"][FIRST]
    return left


def locked(claim: Mapping[str, Any] | None) -> bool:
    """Whether the run that brought these answers has not ended, as far as is recorded: it may be at
    work, or dead."""
    return claim is not None and bool(claim.get("live", True))
