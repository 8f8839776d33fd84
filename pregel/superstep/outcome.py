"""What an attempt leaves on its task, whichever driver ran it; and what of it may be reused."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

from ...store.keys import KeyWatch, canonical_key, function_identity
from ..errors import (
    GraphBubbleUp,
    GraphInterrupt,
    InPlaceEditError,
    NodeCancelledError,
    ParentCommand,
    StepTimeoutError,
)
from ..names import CACHED_WRITES
from ..program.program import CompiledNode
from ..types import Command, TimeoutPolicy
from .deadline import Watch
from .interrupts import questions_of
from .task import Task, in_path_order

FullKey = tuple[tuple[str, ...], str]


def addressed_here(task: Task, signal: ParentCommand) -> Command[Any]:
    """The command that a nested graph sent to its parent, which this task's graph is; a mid-task call hands it on to
    its caller."""
    if task.path[-1] is True:
        raise signal
    return Command(update=signal.command.update, goto=signal.command.goto)


def own_fault(task: Task, error: BaseException) -> BaseException:
    """An asyncio.CancelledError that nobody asked for is the node's own failure. By name: asyncio may not be loaded."""
    if type(error).__name__ != "CancelledError" or isinstance(error, Exception):
        return error
    mine = NodeCancelledError(task.name)
    mine.__cause__ = error
    return mine


def keep_signal(task: Task, signal: GraphBubbleUp) -> None:
    """Note that a task pauses, or hands over to the graph around it."""
    task.writes = []
    task.finished = False
    if isinstance(signal, GraphInterrupt):
        noted = sorted(getattr(task, "questions", ()), key=lambda note: note[0])
        asked = (*(question for _, question in noted), *questions_of(task, signal))
        task.interrupts = tuple({question.id: question for question in asked}.values())
        task.paused = True
        task.raised = task.raised or signal.by_hand
        task.rejected = signal.error or task.rejected_inside
    else:
        task.error = signal


def keep_error(task: Task, error: BaseException) -> None:
    """Note that a task failed, and where."""
    if isinstance(error, StopIteration):  # the loop is a generator, and none may raise this
        stop, error = error, RuntimeError(f"node {task.name!r} raised StopIteration")
        error.__cause__ = stop
    run = task.run
    if isinstance(error, (KeyboardInterrupt, SystemExit)):  # the caller wants out
        run.dropped = True
    if isinstance(error, KeyError) and isinstance(task.input, dict) and error.args:
        key = error.args[0]
        if key not in task.input and key in run.program.channels:
            error.add_note(f"State key {key!r} has no value yet: nothing has written it, and it has no reducer")
    thread = "" if run.thread_id is None else f" of thread {run.thread_id!r}"
    error.add_note(f"During task with name {task.name!r} and id {task.id!r}, in step {run.machine.step}{thread}")
    task.error = error


# -- inputs that must not be changed ----------------------------------------------------------------------------


def image_of(task: Task) -> dict[str, Any]:
    """What a task's input looks like, key by key; what cannot be encoded is left out."""
    value = task.input
    fields = value if isinstance(value, dict) else getattr(value, "__dict__", None) or {"input": value}
    image = {}
    for key, part in fields.items():
        try:
            image[str(key)] = task.run.serde.dumps(part)
        except Exception:  # a client or a lock: no state to keep an eye on
            continue
    return image


def check_untouched(task: Task, before: dict[str, Any]) -> None:
    """Compare a task's input with what it looked like.

    Raises:
        InPlaceEditError: the node changed it; names the keys.
    """
    after = image_of(task)
    changed = [key for key in before if key in after and after[key] != before[key]]
    if changed:
        raise InPlaceEditError(task.name, changed)


# -- attempts that may be abandoned ---------------------------------------------------------------------------


def limits(task: Task) -> TimeoutPolicy | None:
    """The time limits of a task: its Send's, else its node's."""
    return (task.send.timeout if task.send is not None else None) or task.node.timeout


def twin_of(task: Task) -> Task:
    """A copy for an attempt that may have to be abandoned: nothing it does later can reach the task."""
    task.known_answers()
    task.first_attempt_time()
    twin = task.copy()
    twin.writes = []
    twin.answers = dict(task.known_answers())
    return twin


def take_over(task: Task, twin: Task) -> None:
    """Make what the twin has done the task's own."""
    task.writes, task.finished, task.answers = twin.writes, twin.finished, twin.answers
    task.asked, task.keys, task.raised, task.passed_on = twin.asked, twin.keys, twin.raised, twin.passed_on
    task.children, task.calls, task.rejected_inside = twin.children, twin.calls, twin.rejected_inside
    task.questions = getattr(twin, "questions", [])


class StepLimit:
    """The limit on a whole superstep: its tasks run as twins, and what a twin has done counts if it ends in time.

    Args:
        seconds: how long a superstep may take, error handlers included.
    """

    __slots__ = ("_due", "_open", "_seconds", "_step", "_watch")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._step: int | None = None
        self._due = 0.0
        self._open: dict[Task, Task] = {}
        self._watch = Watch()

    def twins(self, tasks: Sequence[Task]) -> list[Task]:
        """Copies of these tasks, to run in their places."""
        run = tasks[0].run
        if run.machine.step != self._step:
            self._step, self._due = run.machine.step, time.monotonic() + self._seconds
        self._watch = Watch(above=run.watch)
        self._open = {twin_of(task): task for task in tasks}
        for twin in self._open:
            twin.watch = self._watch
        return list(self._open)

    def left(self) -> float:
        """Seconds until the limit, never below zero."""
        return max(self._due - time.monotonic(), 0.0)

    def admit(self, twin: Task) -> Task:
        """The task whose twin has ended, with what the twin has done, if that was in time."""
        if self._watch.given_up:
            return twin
        task = self._open.pop(twin)
        for name in _OUTCOME:
            setattr(task, name, getattr(twin, name))
        return task

    def hit(self) -> StepTimeoutError:
        """Give up what has not ended; the error to raise."""
        self._watch.given_up = True
        return StepTimeoutError([task.name for task in in_path_order([*self._open.values()])], self._seconds)


_OUTCOME = (
    "answers", "attempt", "error", "finished", "interrupts", "passed_on", "paused", "raised", "rejected",
    "restored", "spans", "writes",
)  # fmt: skip


# -- results that may be reused -------------------------------------------------------------------------------


def cache_key(task: Task) -> FullKey | None:
    """Where the result of a task is cached; None if its node has no policy or its graph no cache.

    Raises:
        TypeError: the node's function or input has no stable identity; says to give a `key_func`.
    """
    policy = task.node.cache_policy
    if policy is None or task.run.cache is None:
        return None
    if policy.key_func is None:
        plain, namespace = canonical_key(task.input), cache_namespace(task.node)
        _watch_keys(task, namespace[1], plain)
        return namespace, plain
    key = policy.key_func(task.input)
    return cache_namespace(task.node), key.hex() if isinstance(key, bytes) else str(key)


def _watch_keys(task: Task, function: str, key: str) -> None:
    """Tell once if a node's key is another one at every call, so that its cache never helps."""
    node = task.node
    watch = node.key_watch
    if watch is None:
        watch = node.key_watch = KeyWatch(node.name)
    if not watch.done:
        told = watch.look(function, node.source, key, task.input, task.run.out)
        if told is not None:
            warnings.warn(told, RuntimeWarning, stacklevel=2)


def cache_namespace(node: CompiledNode) -> tuple[str, ...]:
    """The part of a cache that belongs to one node.

    Raises:
        TypeError: the node's function cannot be told from others, and its policy has no `key_func` to do so.
    """
    if node.cache_policy is None or node.cache_policy.key_func is None:
        return (CACHED_WRITES, function_identity(node.source), node.name)
    if node.cached_as is None:  # once: what the function holds may change, and the keys are not made from that
        try:
            node.cached_as = function_identity(node.source)
        except TypeError:
            node.cached_as = "key_func"  # whoever makes the keys tells apart what has the same name
    return (CACHED_WRITES, node.cached_as, node.name)


def restore_cached(task: Task, blob: Any) -> None:
    """Take a cached result as the task's own."""
    task.writes = [tuple(pair) for pair in task.run.serde.loads(blob)]
    task.finished = task.restored = True


def to_cache(task: Task, key: FullKey) -> dict[FullKey, Any]:
    """A finished task's result as a cache takes it; nothing if it cannot be stored."""
    assert task.node.cache_policy is not None
    try:
        blob = task.run.serde.dumps([tuple(pair) for pair in task.writes])
    except Exception as error:
        warnings.warn(f"node {task.name!r}: its result is not cached: {error}", stacklevel=2)
        return {}
    return {key: (blob, task.node.cache_policy.ttl)}
