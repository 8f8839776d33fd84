"""What a task records of a call that can be undone. Values only; `drivers.undoing` undoes.

The record stands beside that of the call's result, as that of an effect, and is stored before the
call is made: so an undo finds what was done, whether its task has ended, failed or died.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any, Final
from weakref import WeakValueDictionary

from .names import UNDO
from .running import ONCE, TaskPlace

DECLARED: Final[WeakValueDictionary[str, Any]] = WeakValueDictionary()
"""The functions with `@effect`, by name. What is stored calls no other function."""
_numbers = count()
"""Tells the order of calls that are made side by side, and which nothing else puts in order."""


def name_of(function: Any) -> str:
    """Return the name by which a stored call finds its function."""
    function = inspect.unwrap(function)
    return f"{function.__module__}.{function.__qualname__}"


def record_keys(key: str, number: int) -> tuple[str, str]:
    """Return the keys of the records that an effect is to be performed, and that it has not been.

    Args:
        key: of the effect.
        number: of the try.
    """
    return f"{key}\0undo {number}", f"{key}\0not done {number}"


class UndoNote:
    """The record of how a call of a task is undone.

    Args:
        key: of the effect.
        awaits: the caller can await that it is recorded.
    """

    def __init__(self, task: Any, key: str, *, awaits: bool) -> None:
        self._task, self._key = task, key
        begin = partial(task.begin_effect, ONCE, awaits=awaits)
        for self._number in count():
            begun, not_done = map(begin, record_keys(key, self._number))
            if not not_done.known:
                self._begun, self._not_done = begun, not_done
                return

    def save(self, undo: Any, call: str, arguments: Mapping[str, Any], **more: Any) -> Any:
        """Record a call before it is made; on an event loop, return what is to be awaited.

        Args:
            call: as it is shown.
            arguments: by the names of their parameters.
            more: `effect`, the name of its function, if that is declared, and its
                `idempotency_key`.
        """
        if self._begun.known:
            return None
        task = self._task
        place: TaskPlace = task.place
        return self._begun.save({
            UNDO: name_of(undo),
            "task": task.runtime.idempotency_key,
            "key": self._key,
            "number": self._number,
            "call": call,
            "arguments": dict(arguments),
            "node": list(place.node),
            "at": [[*place.position, task.current.started], place.recorded, next(_numbers)],
            **more,
        })

    def withdraw(self) -> Any:
        """Note that it has not happened; on an event loop, return what is to be awaited."""
        return self._not_done.save(True)


def note_once(
    task: Any,
    key: str,
    function: Callable[..., Any],
    undo: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    awaits: bool,
) -> tuple[UndoNote, Any]:
    """Record a call of `runtime.once`, and what undoes it; also return what is to be awaited.

    Raises:
        TypeError: another process would not find the function that undoes it.
    """
    if DECLARED.get(name_of(undo) if callable(undo) else "") is not undo:
        raise TypeError(
            f"runtime.once({key!r}, undo=...) must be given a function declared with @effect, by "
            f"which another process finds it, got {undo!r}: write @effect(\"keyed\") above it"
        )
    try:
        arguments = dict(inspect.signature(function).bind_partial(*args, **kwargs).arguments)
    except (TypeError, ValueError):  # it has no signature, or the call will fail
        arguments = dict(kwargs)
    name = getattr(function, "__name__", key)
    note = UndoNote(task, key, awaits=awaits)
    return note, note.save(undo, show_call(name, arguments), arguments)


def show_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as a text."""
    return f"{name}({', '.join(f'{k}={v!r:.80}' for k, v in arguments.items())})"
