"""The ids of questions, and when two questions are the same. Pure functions.

A question with a key is known by the key. Without one it is known by its value, with a counter
among equal values of its task. Its id also tells at which place it was first shown, but the place
is no part of what it is known by: questions may come in another order when their node runs again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain
from typing import Any, NamedTuple

from ...checkpoint.digest import blake2b
from ...checkpoint.keys import canonical_key

TASK, PLACE, CONTENT = slice(0, 16), slice(0, 20), slice(20, 32)
"""The digits of a question's id that name its task, its task and place, and its value."""
_KEYED = "ffff"
_LAST_PLACE = 0xFFFE  # stands for all places from there on
_NO_PLACE = (_KEYED, f"{_LAST_PLACE:04x}")


class Question(NamedTuple):
    """What a question is known by.

    Attributes:
        id: under which it is shown if it is not recorded.
        earlier: the ids that earlier versions would have given it.
    """

    id: str
    earlier: tuple[str, ...] = ()


def question_id(ns: str, place: int, value: Any, equal: int = 0) -> str:
    """Return 32 hex digits for a question without a key: 16 for its task, 4 for its place among the
    questions of that task, 12 for its value.

    Args:
        equal: how many questions of an equal value the task has asked before.
    """
    return _worded_id(ns, place, content_of(value), equal)


def identify(ns: str, place: int, content: str, equal: int) -> Question:
    """Return what a question without a key is known by.

    Args:
        content: `content_of` its value.
        equal: how many questions of an equal value the task has asked before.
    """
    # 0.2.0 had the place in the last digits, too; before that an id knew nothing of the value.
    earlier = _worded_id(ns, place, content, place), _digits(f"{ns}\0{place}", 32)
    return Question(_worded_id(ns, place, content, equal), earlier)


def keyed_id(ns: str, key: str) -> str:
    """Return 32 hex digits for the question of this key, whatever its place and its words."""
    return f"{task_digits(ns)}{_KEYED}{_digits(key, 12)}"


def content_of(value: Any) -> str:
    """Return a text that is equal for equal values."""
    try:
        return canonical_key(value)
    except TypeError:  # nothing in it tells it from others of its kind
        return f"{type(value).__module__}.{type(value).__qualname__}"


def task_digits(ns: str) -> str:
    """Return the digits by which the ids of all questions of one task begin."""
    return _digits(ns, 16)


def moved_id(question: str, ns: str) -> str:
    """Return the id of the same question in a task with another namespace."""
    return task_digits(ns) + question[TASK.stop :]


def find_same(question: Question, recorded: Collection[str]) -> str | None:
    """Return the id under which a question is recorded, or None."""
    if question.id in recorded:
        return question.id
    same = (each for each in recorded if _is_same(each, question.id))
    # Last: an id of 0.2.0 may look like that of a later question of an equal value.
    earlier = (each for each in question.earlier if each in recorded)
    return next(chain(same, earlier), None)


def at_place(ids: Iterable[str], question: str) -> list[str]:
    """Return those of these ids that are of the same task and place as a question's. A question
    with a key has no place."""
    if not has_place(question):
        return []
    return [each for each in ids if each[PLACE] == question[PLACE]]


def has_place(question: str) -> bool:
    """Whether the id of a question tells its place."""
    return question[TASK.stop : PLACE.stop] not in _NO_PLACE


def place_of(question: str) -> int:
    """Return the place at which a question was first shown, from 0."""
    return int(question[TASK.stop : PLACE.stop], 16)


def _is_same(one: str, other: str) -> bool:
    """Whether two ids differ by the place at most."""
    same = one[TASK] == other[TASK] and one[CONTENT] == other[CONTENT]
    return same and _KEYED not in (one[TASK.stop : PLACE.stop], other[TASK.stop : PLACE.stop])


def _worded_id(ns: str, place: int, content: str, equal: int) -> str:
    digits = _digits(f"{equal}\0{content}", 12)
    return f"{task_digits(ns)}{min(place, _LAST_PLACE):04x}{digits}"


def _digits(text: str, count: int) -> str:
    return blake2b(text.encode(), digest_size=count // 2).hexdigest()
