"""The ids of questions: which task asks, at which place, and what. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...checkpoint.digest import blake2b
from ...checkpoint.keys import canonical_key

TASK, PLACE = slice(0, 16), slice(0, 20)
"""The digits of a question's id that name its task, and its task and place."""
_KEYED = "ffff"
_LAST_PLACE = 0xFFFE
_NO_PLACE = (_KEYED, f"{_LAST_PLACE:04x}")  # the last stands for all places from there on


def question_id(ns: str, place: int, value: Any) -> str:
    """32 hex digits for a question without a key: 16 for its task, 4 for its place among the
    questions of that task, 12 for the place and what is asked. So an answer can never reach another
    question than the one that was shown."""
    content = _digits(f"{place}\0{_content(value)}", 12)
    return f"{task_digits(ns)}{min(place, _LAST_PLACE):04x}{content}"


def keyed_id(ns: str, key: str) -> str:
    """32 hex digits for the question of this key, whatever its place and its words."""
    return f"{task_digits(ns)}{_KEYED}{_digits(key, 12)}"


def unworded_id(ns: str, place: int) -> str:
    """The id of a question as it was before ids knew what is asked. Threads that were stored then
    have it."""
    return _digits(f"{ns}\0{place}", 32)


def task_digits(ns: str) -> str:
    """The digits by which the ids of all questions of one task begin."""
    return _digits(ns, 16)


def _digits(text: str, count: int) -> str:
    return blake2b(text.encode(), digest_size=count // 2).hexdigest()


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
