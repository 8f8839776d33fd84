"""Running one task on this thread, and all that it may have to wait for there. `awaits` is the same
for asyncio."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from time import perf_counter
from typing import Any

from ..clock import CLOCK
from ..errors import DrainSignal, GraphBubbleUp
from ..running import RUNNING
from ..steps import Steps, run_steps
from ..task.outcome import (
    failure_of,
    refuse_unawaited,
    warn_of_lost_questions,
    warn_of_unasked,
)
from ..task.task import Task
from .attempt import attempt_with_policies, join_calls, receive_signal, recover, refuse_late
from .forks import FORKS, end_child
from .pool import POOL


def run_task(task: Task) -> None:
    """Run a task to its end, retries included. Call it in a context of its own; it does not
    raise."""
    RUNNING.set(task)
    timed = task.run.thread.saver is not None
    began = perf_counter() if timed else 0.0
    error: BaseException | None = None
    try:
        # Without policies no generator is made, nor a function called that only looks (P1, P3, P8).
        node, send = task.node, task.send
        if (
            node.guarded
            or (task.run.observing is not None and not node.plain)
            or (send is not None and (send.timeout is not None or send.key is not None))
        ):
            run_steps(attempt_with_policies(task, WAITS))
        else:
            attempt(task)
    except BaseException as raised:
        error = raised
    if timed:
        task.note_span(began)
    if error is not None:
        run_steps(recover(task, error, WAITS))
        error = None  # its traceback holds this frame: no circle for the garbage collector


def run_in_time(task: Task) -> None:
    """`run_task`, in a run that starts no further task when its deadline has come."""
    try:
        refuse_late(task)
    except DrainSignal as drained:
        task.fail(drained)
    else:
        run_task(task)


def attempt(task: Task) -> None:
    """Call the node once and write what it returned."""
    node, forks = task.node, FORKS.count
    call = node.call
    observed = None if task.noted is None else task.noted.observed
    function = call.sync if observed is None else observed.surround(call, awaits=False)
    try:
        if call.inject is None:
            result = function(task.input)
        else:
            result = function(task.input, **{name: get(task) for name, get in call.inject})
    except (GraphBubbleUp, BaseExceptionGroup) as raised:
        result = run_steps(receive_signal(task, raised, WAITS))
    finally:
        if FORKS.count != forks:  # a child of the node: only its parent goes on
            end_child(sys.exc_info()[1])
    if task.noted is not None and task.noted.span is not None:
        task.noted.span.returned(result)
    for writer in node.writers:
        writer.write(result, task)
    if task.noted is not None:
        if task.noted.coroutines:
            refuse_unawaited(task)
        if task.noted.calls:
            run_steps(join_calls(task, WAITS))
        if task.noted.questions:
            warn_of_lost_questions(task)
    if task.run.ledger:
        warn_of_unasked(task)
    task.finish()


class TaskLock:
    """A lock that a task takes on its thread. A task that was abandoned, and may never end, holds
    up nobody."""

    LOOK_AGAIN = 1.0
    """Seconds between two looks at who holds it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: Task | None = None

    def acquire(self, task: Task) -> bool:
        """Wait for it; return whether it was taken, which `release` undoes."""
        seconds = 0.0
        while not self._lock.acquire(timeout=seconds):
            holder, seconds = self._holder, self.LOOK_AGAIN
            if holder is not None and holder.abandoned:
                return False
        self._holder = task
        return True

    def release(self) -> None:
        self._holder = None
        self._lock.release()


class KeyLocks:
    """Locks by key, which are there as long as somebody holds or awaits them."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._users: dict[Any, list[Any]] = {}
        self._guard = threading.Lock()

    @contextmanager
    def use(self, key: Any) -> Iterator[Any]:
        """The lock of a key. Whoever uses it acquires and releases it."""
        with self._guard:
            entry = self._users.setdefault(key, [self._make(), 0])
            entry[1] += 1
        try:
            yield entry[0]
        finally:
            with self._guard:
                entry[1] -= 1
                if not entry[1]:
                    self._users.pop(key, None)


class _OnThread:
    """An attempt on a thread of its own. Nothing can stop it, so it may have to be abandoned."""

    def __init__(self, task: Task) -> None:
        self.done: bool = False
        self.error: BaseException | None = None
        self._ended = threading.Lock()  # free once it has
        self._ended.acquire()
        POOL.submit(partial(copy_context().run, self._run, task))

    def _run(self, task: Task) -> None:
        RUNNING.set(task)
        try:
            attempt(task)
        except BaseException as error:
            self.error = error
        self.done = True
        self._ended.release()

    def wait(self, seconds: float) -> None:
        CLOCK.acquire(self._ended, seconds)

    def cancel(self) -> None:
        """Threads cannot be cancelled."""

    def stop(self) -> None:
        """Return at once: threads cannot be stopped, so there is nothing to wait for."""


class ThreadWaits:
    """`Waits` of threads: each waits here and gives the result itself."""

    _locks = KeyLocks(TaskLock)

    run: staticmethod[[Steps[Any]], Any] = staticmethod(run_steps)
    run_task: staticmethod[[Task], None] = staticmethod(run_task)
    attempt: staticmethod[[Task], None] = staticmethod(attempt)
    start = _OnThread

    def sleep(self, seconds: float) -> None:
        CLOCK.sleep(seconds)

    def lock(self, key: Any) -> Any:
        return self._locks.use(key)

    def acquire(self, lock: Any, task: Task) -> Any:
        return lock.acquire(task)

    def ask(self, owner: Any, method: str, *args: Any) -> Any:
        return getattr(owner, method)(*args)

    def list(self, saver: Any, config: Any, **options: Any) -> Any:
        return [*saver.list(config, **options)]

    def call(self, future: Any) -> None:
        future.peek()

    def nested_runs(self, task: Task) -> None:
        """Graphs that a plain function runs have ended before it, on an event loop of their own
        too."""

    def first_of(
        self, saver: Any, config: Any, accept: Callable[[Any], Any], before: Any = None
    ) -> Any:
        return next(filter(accept, saver.list(config, before=before)), None)

    failure_of = staticmethod(failure_of)


WAITS = ThreadWaits()
