"""The task whose code is running, in one context variable, and the effect that it is having.

Nothing here starts, waits or stores.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

RUNNING: ContextVar[Any] = ContextVar("stategraph_running", default=None)
"""The task whose code is running in this context, or None."""


def running(what: str) -> Any:
    """The current task, which `what` needs.

    Raises:
        RuntimeError: no task is running in this context.
    """
    task = RUNNING.get()
    if task is None:
        raise RuntimeError(
            f"{what} must be called inside a running node. In a thread of your own, run the call "
            "in a contextvars.copy_context() that was taken inside the node."
        )
    return task


class OnceRecord(Protocol):
    """Where it is recorded what an effect has returned that a task has once."""

    @property
    def known(self) -> tuple[Any, ...]:
        """That, as a one-item tuple; empty if the effect is still to be had."""

    def save(self, result: Any) -> Any:
        """Record it; on an event loop, what is to be awaited."""


EFFECT: ContextVar[str | None] = ContextVar("stategraph_effect", default=None)
"""The key of the effect that is had in this context (`runtime.once`), or None."""


def refuse_in_effect(what: str) -> None:
    """Refuse what would let an effect end before its time, or be had again.

    Raises:
        RuntimeError: an effect is being had in this context.
    """
    key = EFFECT.get()
    if key is not None:
        raise RuntimeError(
            f"{what} cannot be used inside of runtime.once({key!r}): call it before or after"
        )


def begin_once(key: str, *, awaits: bool) -> OnceRecord:
    """Where the running task records an effect.

    Raises:
        TypeError: the key is not a string.
        ValueError: this attempt has come to the same key before.
        RuntimeError: it could not be recorded in time, or not be waited for.
    """
    task = running("runtime.once()")
    refuse_in_effect("runtime.once()")
    _note_key(task, key)
    record: OnceRecord = task.begin_once(key, awaits=awaits)
    return record


def _note_key(task: Any, key: str) -> None:
    if not isinstance(key, str) or not key:
        raise TypeError(f"the key of runtime.once must be a non-empty string, got {key!r}")
    with _noting:
        if key in task.current.once_keys:
            raise ValueError(
                f"node {task.name!r} has come to runtime.once({key!r}) twice: give each effect a "
                "key of its own, for example one that contains the item it is about"
            )
        task.current.once_keys = (*task.current.once_keys, key)


_noting = threading.Lock()


class SleepRequest(NamedTuple):
    """What a node has asked for with `runtime.sleep`."""

    seconds: float | timedelta | None
    until: datetime | None
    key: str | None
    durable_after: float | timedelta


class Sleep(Protocol):
    """A sleep of a task that is recorded, or is being recorded. Both of its methods let the task
    pause if it is long."""

    def wait(self) -> None:
        """Until it is over, on this thread."""

    async def wait_async(self) -> None:
        """Until it is over, on this event loop."""


def begin_sleep(request: SleepRequest, *, awaits: bool) -> Sleep:
    """A sleep of the running task."""
    task = running("runtime.sleep()")
    refuse_in_effect("runtime.sleep()")
    sleep: Sleep = task.begin_sleep(request, awaits=awaits)
    return sleep


@contextmanager
def effect(key: str) -> Iterator[None]:
    """In this context an effect is had."""
    token = EFFECT.set(key)
    try:
        yield
    finally:
        EFFECT.reset(token)
