"""The answers that a test gives to the questions of a run. Nothing is run here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from ..channels.base import MISSING
from ..checkpoint.serde import Serializer
from ..checkpoint.serde.json_form import from_json, to_json
from ..pregel.task.interrupts import identity_of
from ..pregel.types import Command, Interrupt

Answers: TypeAlias = Sequence[Any] | Mapping[Any, Any] | Callable[[Interrupt], Any]
"""What a test answers: a sequence in the order in which questions come; a mapping from what is
asked; or a function of the `Interrupt`."""

OPEN: Final = MISSING
"""What a function answers if it leaves a question open."""


class AnswerBook:
    """Gives the answers, each once where they are a sequence.

    Args:
        answers: as a test gives them.

    Raises:
        TypeError: they are none of the three kinds.
    """

    def __init__(self, answers: Answers) -> None:
        if isinstance(answers, str) or not (
            callable(answers) or isinstance(answers, (Mapping, Sequence))
        ):
            raise TypeError(
                "answers must be a list in the order of the questions, a dict by what is asked, "
                f"or a function of the Interrupt, got {answers!r}"
            )
        self._answers = answers
        self._used = 0
        self._asked: list[Any] = []

    def answer(self, questions: Sequence[Interrupt]) -> Command | None:
        """The command that answers these questions, as far as there are answers; None if there is
        none for any of them."""
        found = {question.id: self.find(question) for question in questions}
        given = {id: answer for id, answer in found.items() if answer is not OPEN}
        return Command(resume=given) if given else None

    @property
    def unasked(self) -> list[Any]:
        """The keys of a mapping that nothing has asked."""
        given = self._answers if isinstance(self._answers, Mapping) else ()
        return [key for key in given if key not in self._asked]

    def check_asked(self, left: Sequence[Interrupt]) -> None:
        """Refuse answers to questions that were not asked, if others were left open.

        Args:
            left: the questions without an answer.

        Raises:
            ValueError: a mapping has keys that were not asked.
        """
        if left and (unasked := self.unasked):
            names = ", ".join(map(repr, unasked))
            asked = ", ".join(f"{question.value!r:.200}" for question in left)
            raise ValueError(f"answers: no question is {names}; open: {asked}")

    def find(self, question: Interrupt) -> Any:
        """The answer to a question; OPEN if there is none."""
        answers = self._answers
        self._asked.append(question.value)
        if callable(answers):
            return answers(question)
        if isinstance(answers, Mapping):
            try:
                return answers.get(question.value, OPEN)
            except TypeError:  # what is asked cannot be a key
                return OPEN
        if self._used < len(answers):
            self._used += 1
            return answers[self._used - 1]
        return OPEN


class RecordedAnswers:
    """The answers that a recording holds, each given once.

    Args:
        questions: those that were answered, as `RecordedTask.asked` gives them.
    """

    def __init__(self, questions: Iterable[Mapping[str, Any]], serde: Serializer) -> None:
        self._left, self._serde = list(questions), serde

    def find(self, question: Interrupt) -> Any:
        """The answer to a question; `OPEN` if there is none."""
        form = {"asks": to_json(question.value, self._serde), "id": identity_of(question.id)}
        found = self.take(form)
        return OPEN if found is None else from_json(found["answer"], self._serde)

    def take(self, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Remove the recorded question that is this one: by its words and its id, its words, or its
        id."""
        for parts in (("asks", "id"), ("asks",), ("id",)):
            for each in self._left:
                if all(part in each and each[part] == question.get(part, "") for part in parts):
                    self._left.remove(each)
                    return each
        return None
