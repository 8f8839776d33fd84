"""The task whose code is running, in one context variable, and the effect that it performs.

Nothing here starts, waits or stores.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from itertools import count
from typing import Any, NamedTuple, Protocol

from .steps import Steps

ONCE, TRANSACTION = "runtime.once", "runtime.transaction"
"""The kinds of effects that a task records."""

RUNNING: ContextVar[Any] = ContextVar("stategraph_running", default=None)
"""The task whose code is running in this context, or None."""


def note_coroutine(name: str, coroutine: Any) -> None:
    """Let the running task see at its end whether a coroutine was awaited."""
    attempt = getattr(RUNNING.get(), "current", None)
    if attempt is not None:
        attempt.coroutines = (*attempt.coroutines, (name, coroutine))


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


def find_observed() -> Any:
    """What tells observers of the attempt that runs in this context; None if there are none."""
    task = RUNNING.get()
    return None if task is None else task.current.observed


class Transaction(NamedTuple):
    """A transaction that a task has asked for.

    Attributes:
        key: names it, among the effects of the task.
        on: where it is; None for the checkpointer's database.
        isolation: of the transaction, by the name that the database has for it.
    """

    key: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    on: Any
    isolation: str | None

    def call(self, connection: Any) -> Any:
        """Call its function in the transaction."""
        return self.function(connection, *self.args, **self.kwargs)


class AnswerLookup(Protocol):
    """The answers to the questions of one task."""

    @property
    def given(self) -> dict[str, Any]:
        """The answers that the task was given, by interrupt id; an answer that is taken is added
        here."""

    def take(self, question: str) -> tuple[Any, ...]:
        """An answer that the call brings, as a one-item tuple; empty if it brings none. It can be
        taken once."""

    def brought(self) -> dict[str, Any]:
        """The answers that the call brings for recorded questions of the task, by interrupt id."""

    @property
    def asked(self) -> Sequence[str]:
        """The ids of the questions that the task is recorded to have asked last."""

    def reject(self, question: str) -> None:
        """Drop an answer that did not fit its question, so that no later call takes it up."""


class EffectRecord(Protocol):
    """The record of what an effect has returned that a task performs once."""

    @property
    def known(self) -> tuple[Any, ...]:
        """What the effect returned, as a one-item tuple; empty if it is still to be performed."""

    def save(self, result: Any) -> Any:
        """Record it; on an event loop, what is to be awaited."""


class TransactionRecord(Protocol):
    """The record of a transaction."""

    @property
    def result(self) -> Any:
        """What the transaction's function has returned."""

    def run(self, asked: Transaction) -> Any:
        """Run the transaction, unless it is recorded; on an event loop, what is to be awaited."""


EFFECT: ContextVar[str | None] = ContextVar("stategraph_effect", default=None)
"""The effect that runs in this context, as its call, such as `runtime.once('charge')`; or
None."""


def refuse_in_effect(what: str, kind: str = "") -> None:
    """Refuse what would let an effect end before its time, or be repeated.

    Args:
        kind: refuse it in effects of this kind alone.

    Raises:
        RuntimeError: such an effect runs in this context.
    """
    having = EFFECT.get()
    if having is not None and having.startswith(kind):
        raise RuntimeError(f"{what} cannot be used inside of {having}: call it before or after")


def begin_effect(kind: str, key: str, *, awaits: bool) -> Any:
    """The record of an effect of the running task: an `EffectRecord`, or a `TransactionRecord`.

    Args:
        kind: `ONCE` or `TRANSACTION`.
        awaits: the caller can await that the effect is recorded.

    Raises:
        TypeError: the key is not a string.
        ValueError: this attempt has come to the same key before.
        RuntimeError: it could not be recorded in time, or not be waited for.
    """
    task = running(f"{kind}()")
    refuse_in_effect(f"{kind}()")
    if not isinstance(key, str) or not key:
        raise TypeError(f"the key of {kind} must be a non-empty string, got {key!r}")
    with _noting:
        if key in task.current.once_keys:
            raise ValueError(
                f"node {task.name!r} has come to {kind}({key!r}) twice: give each effect a "
                "key of its own, for example one that contains the item it is about"
            )
        task.current.once_keys = (*task.current.once_keys, key)
        task.current.count_start()
    return task.begin_effect(kind, key, awaits=awaits)


_noting = threading.Lock()


def number_call(task: Any, call: str) -> str:
    """Return the key of a call whose effect is declared: the call and the first number that no
    equal call of this attempt has."""
    with _noting:
        taken = task.current.once_keys
        key = next(key for n in count() if (key := f"{call} {n}") not in taken)
        task.current.once_keys = (*taken, key)
        task.current.count_start()
    return key


def release_call(task: Any, key: str) -> None:
    """Give back the key of a call that has failed: the next equal call of this attempt is another
    try of this one."""
    with _noting:
        task.current.once_keys = tuple(each for each in task.current.once_keys if each != key)
        task.current.started -= 1


class TaskPlace(NamedTuple):
    """Where a task stands among all that its thread does, told without a clock.

    Attributes:
        position: the superstep; then, for each `@task` call and graph in which the task runs, from
            the outermost, how many things its caller had started by then, and for a graph also the
            superstep inside it.
        recorded: how many records beside its checkpoint are known.
        node: the names of the nodes around it and of its own.
    """

    position: tuple[int, ...]
    recorded: int
    node: tuple[str, ...]


class PendingSpend(Protocol):
    """A call that spends of a budget."""

    def choose(self, model: Any) -> Any:
        """Return the model to call in place of this one."""

    def reserve(
        self, amounts: Mapping[str, float] | None = None, *, swaps: bool = True
    ) -> Any:
        """Count the call before it begins; on an event loop, return what is to be awaited."""

    def settle(
        self, model: str = "", tokens: tuple[float, float] = (0, 0), seconds: float = 0.0
    ) -> Any:
        """Count what it has spent; on an event loop, return what is to be awaited."""


def begin_spend(*, awaits: bool) -> PendingSpend | None:
    """A call of the running task that spends; None if no budget counts it."""
    task = RUNNING.get()
    begin = getattr(task, "begin_spend", None)
    return None if begin is None else begin(awaits=awaits)


class SleepRequest(NamedTuple):
    """What a node has asked for with `runtime.sleep`."""

    seconds: float | timedelta | None
    until: datetime | None
    key: str | None
    durable_after: float | timedelta


def sleep(request: SleepRequest, *, awaits: bool) -> Steps[None]:
    """The steps of a sleep of the running task."""
    task = running("runtime.sleep()")
    refuse_in_effect("runtime.sleep()")
    steps: Steps[None] = task.sleep(request, awaits=awaits)
    return steps


@contextmanager
def inside_effect(key: str, kind: str = ONCE) -> Iterator[None]:
    """Mark this context as that of an effect."""
    token = EFFECT.set(f"{kind}({key!r})")
    try:
        yield
    finally:
        EFFECT.reset(token)
