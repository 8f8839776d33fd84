"""The answers to the questions of one task, wherever among the graphs around it they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from .context import AnswerSource, TaskContext


class Asker(Protocol):
    """The part of a task that is needed to find its answers."""

    @property
    def run(self) -> TaskContext[Any]: ...

    @property
    def id(self) -> str: ...

    def known_answers(self) -> dict[str, Any]: ...


class TaskAnswers:
    """The answers to the questions of one task, as `running.AnswerLookup`.

    Args:
        holder: the task that keeps them: this one, or the nearest one around it whose graph saves.
        inside: those of the runs between the holder and the task, the innermost first.
    """

    __slots__ = ("_holder", "_inside")

    def __init__(self, holder: Asker, inside: tuple[AnswerSource[Any], ...]) -> None:
        self._holder = holder
        self._inside = inside

    @property
    def given(self) -> dict[str, Any]:
        """The answers that the holder was given."""
        return self._holder.known_answers()

    def take(self, question: str) -> tuple[Any, ...]:
        """See `Answers.take`."""
        return self._holder.run.answers.take(question, self._holder, self._inside)

    def brought(self) -> dict[str, Any]:
        """See `Answers.brought`."""
        return self._holder.run.answers.brought(self._holder)

    @property
    def asked(self) -> Sequence[str]:
        """The ids of the questions that the holder has asked last."""
        stored = self._holder.run.position
        if not stored.records:
            return ()
        return [question.id for question in stored.record_of(self._holder.id).interrupts]

    def reject(self, question: str) -> None:
        """See `Answers.reject`."""
        self._holder.run.answers.reject(question)


def find_answers(task: Asker) -> TaskAnswers | None:
    """Those of a task; None if no graph around it saves, or the outermost does not: then nobody can
    resume the run."""
    inside: list[AnswerSource[Any]] = []
    holder = task
    # A graph that saves nothing starts over with its task, so the answers must be with the nearest
    # graph around that saves.
    while not holder.run.stores:
        inside.append(holder.run.answers)
        if holder.run.parent is None:
            return None
        holder = holder.run.parent
    # Only the outermost run can be called again.
    root = holder
    while root.run.parent is not None:
        root = root.run.parent
    if not root.run.stores:
        return None
    return TaskAnswers(holder, tuple(inside))
