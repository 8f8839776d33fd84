"""Running one task to its end in a sync run: attempt, retry, deadline, cache. The outcome is kept on the task."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any

from ..errors import GraphBubbleUp, ParentCommand
from ..runtime import RUNNING
from ..superstep.deadline import Watch
from ..superstep.interrupts import unwrap_signals
from ..superstep.outcome import (
    FullKey,
    addressed_here,
    cache_key,
    check_untouched,
    image_of,
    keep_error,
    keep_signal,
    limits,
    own_fault,
    restore_cached,
    take_over,
    to_cache,
    twin_of,
)
from ..superstep.retry import wait_before_retry
from ..superstep.task import Task
from ..types import TimeoutPolicy
from .pool import POOL


def run_task(task: Task) -> None:
    """Run a task to its end, retries included. Call it in a context of its own; it does not raise."""
    RUNNING.set(task)
    failures: dict[int, int] | None = None
    left: tuple[Any, ...] = ()  # what earlier attempts have called
    timed = task.run.saver is not None
    while True:
        began = perf_counter() if timed else 0.0
        try:
            try:
                if task.node.guarded or (task.send is not None and task.send.timeout is not None):
                    _guarded(task)
                else:
                    attempt(task)
            finally:
                if timed:
                    task.spans = (*task.spans, began + task.run.epoch, perf_counter() - began)
            break
        except GraphBubbleUp as signal:
            keep_signal(task, signal)
            break
        except BaseException as failure:
            error = own_fault(task, failure)
            task.writes = []
            task.finished = False
            failures = {} if failures is None else failures
            wait = wait_before_retry(task.node.retry, failures, error) if task.node.retry else None
            if wait is None:
                left += tuple(task.calls or ())
                keep_error(task, error)
                break
            time.sleep(wait)
            left += tuple(task.calls or ())
            task.begin_attempt()
    if left:
        task.run.calls.leave(left)


def attempt(task: Task) -> None:
    """Call the node once and write what it returned."""
    node = task.node
    signal: BaseException | None = None
    try:
        if node.inject is None:
            result = node.sync(task.input)
        else:
            result = node.sync(task.input, **{name: get(task) for name, get in node.inject})
    except (GraphBubbleUp, BaseExceptionGroup) as raised:
        signal = unwrap_signals(task, raised)
    if isinstance(signal, ParentCommand):
        result = addressed_here(task, signal)
    elif signal is not None:
        if isinstance(signal, GraphBubbleUp) and task.calls:
            task.run.calls.collect(task, signal)
        raise signal
    for writer in node.writers:
        writer.write(result, task)
    if task.calls:
        task.run.calls.join(task)
    task.finished = True


def _guarded(task: Task) -> None:
    """An attempt under a deadline, one whose result may be cached, or one whose input is watched."""
    key = cache_key(task)
    if key is None:
        _watched(task)
        return
    cache = task.run.cache
    with _one_at_a_time((id(cache), key)):
        known = cache.get([key])
        if key in known:
            restore_cached(task, known[key])
            return
        _watched(task)
        cache.set(to_cache(task, key))


def _watched(task: Task) -> None:
    """An attempt under its deadline. With `debug`, it fails if it edits its input, before anything is cached."""
    policy = limits(task)
    before = image_of(task) if task.node.debug else None
    attempt(task) if policy is None else _timed(task, policy)
    if before is not None:
        check_untouched(task, before)


def _timed(task: Task, policy: TimeoutPolicy) -> None:
    """An attempt on a thread of its own, abandoned at its deadline."""
    twin = twin_of(task)
    twin.watch = watch = Watch(policy, task.life)
    ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def work() -> None:
        RUNNING.set(twin)
        try:
            attempt(twin)
        except BaseException as error:
            ended.put(error)
        else:
            ended.put(None)

    context = copy_context()
    POOL.submit(lambda: context.run(work))
    while True:
        try:
            error = ended.get(timeout=max(watch.left(), 0.0))
            break
        except Empty:
            if watch.left() <= 0:
                watch.given_up = True
                for call in twin.calls or ():
                    call.cancel()  # unless it runs; the next attempt may find it
                raise watch.error(task.name) from None
        except BaseException:  # Ctrl-C
            watch.given_up = True
            raise
    take_over(task, twin)
    if error is not None:
        raise error


_locks: dict[tuple[int, FullKey], list[Any]] = {}
_locks_guard = threading.Lock()


@contextmanager
def _one_at_a_time(key: tuple[int, FullKey]) -> Iterator[None]:
    """Equal work waits for the first to finish, and then finds its result."""
    with _locks_guard:
        entry = _locks.setdefault(key, [threading.Lock(), 0])
        entry[1] += 1
    try:
        with entry[0]:
            yield
    finally:
        with _locks_guard:
            entry[1] -= 1
            if not entry[1]:
                _locks.pop(key, None)
