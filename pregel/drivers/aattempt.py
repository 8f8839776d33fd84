"""Running one task to its end in an async run: attempt, retry, deadline, cache. The outcome is kept on the task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from time import perf_counter
from types import coroutine
from typing import Any

from ..errors import GraphBubbleUp, GraphInterrupt, ParentCommand
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


async def run_task(task: Task) -> None:
    """Run a task to its end, retries included. Await it in a context of its own; it does not raise."""
    RUNNING.set(task)
    failures: dict[int, int] | None = None
    left: tuple[Any, ...] = ()  # what earlier attempts have called
    timed = task.run.saver is not None
    while True:
        began = perf_counter() if timed else 0.0
        try:
            try:
                if task.node.guarded or (task.send is not None and task.send.timeout is not None):
                    await _guarded(task)
                else:
                    await attempt(task)
            finally:
                if timed:
                    task.spans = (*task.spans, began + task.run.epoch, perf_counter() - began)
            break
        except GraphBubbleUp as signal:
            keep_signal(task, signal)
            break
        except BaseException as failure:
            error = _own_fault(task, failure)
            task.writes = []
            task.finished = False
            failures = {} if failures is None else failures
            wait = wait_before_retry(task.node.retry, failures, error) if task.node.retry else None
            if wait is None:
                left += tuple(task.calls or ())
                keep_error(task, error)
                break
            left += tuple(task.calls or ())
            try:
                await asyncio.sleep(wait)
            except asyncio.CancelledError as cancelled:
                keep_error(task, cancelled)
                break
            task.begin_attempt()
    if left:
        await task.run.calls.aleave(left, task.error)


async def attempt(task: Task) -> None:
    """Call the node once and write what it returned."""
    node = task.node
    signal: BaseException | None = None
    try:
        given = {name: get(task) for name, get in node.inject} if node.inject is not None else {}
        if node.coro is not None:
            result = await node.coro(task.input, **given)
        elif node.inline:
            result = node.sync(task.input, **given)
        else:
            result = await in_thread(lambda: node.sync(task.input, **given))
    except (GraphBubbleUp, BaseExceptionGroup) as raised:
        signal = unwrap_signals(task, raised)
    if isinstance(signal, ParentCommand):
        result = addressed_here(task, signal)
    elif signal is not None:
        if isinstance(signal, GraphBubbleUp) and task.calls:
            await task.run.calls.acollect(task, signal)
        if isinstance(signal, GraphInterrupt) and task.inside:
            await _inside_ended(task)
        raise signal
    for writer in node.writers:
        if writer.is_async:
            await writer.awrite(result, task)
        else:
            writer.write(result, task)
    if task.calls:
        await task.run.calls.ajoin(task)
    task.finished = True


async def _inside_ended(task: Task) -> None:
    """Wait for the graphs that the body runs side by side (`asyncio.gather`): one of them paused it, and what the
    others ask, or have done with an answer, is to be recorded with it."""
    loop = asyncio.get_running_loop()
    while running := [each for each in task.inside if not each.done() and each.get_loop() is loop]:
        await asyncio.wait(running)


async def _guarded(task: Task) -> None:
    """An attempt under a deadline, one whose result may be cached, or one whose input is watched."""
    key = cache_key(task)
    if key is None:
        await _watched(task)
        return
    cache = task.run.cache
    async with _one_at_a_time((id(cache), key)):
        known = await cache.aget([key])
        if key in known:
            restore_cached(task, known[key])
            return
        await _watched(task)
        await cache.aset(to_cache(task, key))


async def _watched(task: Task) -> None:
    """An attempt under its deadline. With `debug`, it fails if it edits its input, before anything is cached."""
    policy = limits(task)
    before = image_of(task) if task.node.debug else None
    await (attempt(task) if policy is None else _timed(task, policy))
    if before is not None:
        check_untouched(task, before)


async def _timed(task: Task, policy: TimeoutPolicy) -> None:
    """An attempt as an asyncio task of its own, abandoned at its deadline even if it ignores its cancellation."""
    twin = twin_of(task)
    twin.watch = watch = Watch(policy, task.life)

    async def work() -> None:
        RUNNING.set(twin)
        await attempt(twin)

    ended: list[BaseException | None] = []

    async def guarded() -> None:
        try:
            await work()
        except BaseException as error:  # a signal must not tear down the event loop
            ended.append(error)
            if isinstance(error, asyncio.CancelledError):
                raise

    running = asyncio.get_running_loop().create_task(guarded())
    try:
        while not running.done() and watch.left() > 0:
            await asyncio.wait([running], timeout=watch.left())
    except asyncio.CancelledError:
        running.cancel()
        await asyncio.wait([running])
        task.calls = calls_left(twin)
        raise
    if not running.done():
        watch.given_up = True
        running.cancel()
        task.calls = calls_left(twin)
        raise watch.error(task.name)
    take_over(task, twin)
    if ended and ended[0] is not None:
        raise ended[0]


def _own_fault(task: Task, error: BaseException) -> BaseException:
    """A CancelledError that nobody asked for is the node's own failure; a signal is what it carries."""
    if isinstance(error, Signal):
        return error.cause
    current = asyncio.current_task()
    return error if current is not None and current.cancelling() else own_fault(task, error)


class Signal(BaseException):
    """Carries a KeyboardInterrupt or SystemExit from a call to its caller: raised as it is, asyncio would let it tear
    down the event loop on the way."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(cause)
        self.cause = cause


def calls_left(twin: Task) -> list[Any]:
    """The calls of an attempt that was given up that can be cancelled when its task ends, unless the next attempt
    finds them. Those on threads can only be dropped before they start."""
    calls = twin.calls or ()
    for call in calls:
        if not isinstance(call, asyncio.Future):
            call.cancel()
    return [call for call in calls if isinstance(call, asyncio.Future)]


_locks: dict[tuple[Any, ...], list[Any]] = {}


@asynccontextmanager
async def _one_at_a_time(key: tuple[int, FullKey]) -> AsyncIterator[None]:
    """Equal work waits for the first to finish, and then finds its result."""
    here = (id(asyncio.get_running_loop()), *key)
    entry = _locks.setdefault(here, [asyncio.Lock(), 0])
    entry[1] += 1
    try:
        async with entry[0]:
            yield
    finally:
        entry[1] -= 1
        if not entry[1]:
            _locks.pop(here, None)


@coroutine
def in_context(
    context: Context, work: Coroutine[Any, Any, None], suspended: Callable[[], bool] | None = None
) -> Generator[Any, Any, None]:
    """Await `work` in a context of its own, without an asyncio task. `suspended` is called whenever it is suspended,
    until that says that this was the first real wait."""
    run, send = context.run, work.send
    try:
        awaited = run(send, None)
        while True:
            if suspended is not None and suspended():
                suspended = None
            try:
                answer = yield awaited
            except BaseException as error:
                awaited = run(work.throw, error)
            else:
                awaited = run(send, answer)
    except StopIteration:
        return


async def in_thread(call: Callable[[], Any]) -> Any:
    """Call on a worker thread, in this context. If the waiting is cancelled the thread runs on and its result is
    dropped."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    context = copy_context()

    def tell(result: Any, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)

    def work() -> None:
        result, failure = None, None
        try:
            result = context.run(call)
        except BaseException as error:
            failure = _wrapped(error)
        try:
            loop.call_soon_threadsafe(tell, result, failure)
        except RuntimeError:  # the loop is closed: nobody waits any longer
            pass

    POOL.submit(work)
    try:
        return await answer
    except _Stop as stop:
        raise stop.cause from None


class _Stop(Exception):
    """Carries a StopIteration, which a future cannot hold."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause


def _wrapped(error: BaseException) -> BaseException:
    return _Stop(error) if isinstance(error, StopIteration) else error
