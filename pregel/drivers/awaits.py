"""Running one task on an event loop, and all that it may have to wait for there. `waits` is the
same for threads."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import aclosing, nullcontext
from contextvars import Context, copy_context
from time import perf_counter
from types import coroutine
from typing import Any

from ..errors import DrainSignal, GraphBubbleUp
from ..run.output import MOST_WAITING, Output
from ..running import RUNNING
from ..steps import Steps, arun_steps
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
from .timeslice import call_on
from .waits import KeyLocks


async def arun_in_time(task: Task) -> None:
    """`arun_task`, in a run that starts no further task when its deadline has come."""
    try:
        refuse_late(task)
    except DrainSignal as drained:
        task.fail(drained)
    else:
        await arun_task(task)


async def arun_task(task: Task) -> None:
    """Run a task to its end, retries included. Await it in a context of its own; it does not
    raise."""
    RUNNING.set(task)
    timed = task.run.thread.saver is not None
    began = perf_counter() if timed else 0.0
    error: BaseException | None = None
    try:
        node, send = task.node, task.send
        if (
            node.guarded
            or (task.run.observing is not None and not node.plain)
            or (send is not None and (send.timeout is not None or send.key is not None))
        ):
            await arun_steps(attempt_with_policies(task, AWAITS))
        else:
            await aattempt(task)
    except BaseException as raised:
        error = raised
        if isinstance(raised, asyncio.InvalidStateError) and task.current.calls:
            raised.add_note("In a coroutine await what a @task call returns: it has no result yet")
    if timed:
        task.note_span(began)
    if error is not None:
        await arun_steps(recover(task, error, AWAITS))


async def aattempt(task: Task) -> None:
    """Call the node once and write what it returned."""
    node, forks = task.node, FORKS.count
    call, awaits = node.call, node.call.coro is not None
    observed = None if task.noted is None else task.noted.observed
    function: Any = call.coro if awaits else call.sync
    if observed is not None:
        function = observed.surround(call, awaits=awaits)
    try:
        given = {name: get(task) for name, get in call.inject} if call.inject is not None else {}
        if awaits:
            work = function(task.input, **given)
            outputs = task.run.output.live_outputs
            if outputs and isinstance(work, Coroutine):
                work = keep_pace(task, work, outputs)
            result = await work
        elif call.inline:
            result = function(task.input, **given)
        else:
            abandon = task.enter_thread().abandon
            result = await in_thread(lambda: _call(function, task.input, given), abandon)
    except (GraphBubbleUp, BaseExceptionGroup) as raised:
        result = await arun_steps(receive_signal(task, raised, AWAITS))
    finally:
        if FORKS.count != forks:  # a child of the node: only its parent goes on
            end_child(sys.exc_info()[1])
    if task.noted is not None and task.noted.span is not None:
        task.noted.span.returned(result)
    for writer in node.writers:
        if writer.is_async or (writer.routes and task.run.observing is not None):
            await writer.awrite(result, task)
        else:
            writer.write(result, task)
    if task.noted is not None:
        if task.noted.coroutines:
            refuse_unawaited(task)
        if task.noted.calls:
            await arun_steps(join_calls(task, AWAITS))
        if task.noted.questions:
            warn_of_lost_questions(task)
    if task.run.ledger:
        warn_of_unasked(task)
    task.finish()


def _call(function: Callable[..., Any], value: Any, given: dict[str, Any]) -> Any:
    """Call a node's function on a worker thread: a child that it forks must not leave that."""
    forks = FORKS.count
    try:
        return function(value, **given)
    finally:
        if FORKS.count != forks:
            end_child(sys.exc_info()[1])


class _AsTask:
    """An attempt as an asyncio task of its own. It may ignore its cancellation, and is abandoned
    then."""

    def __init__(self, task: Task) -> None:
        self.error: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None]
        if sys.version_info >= (3, 12):  # what ends before its first wait needs no turn (P29)
            self._task = asyncio.Task(self._run(task), loop=self._loop, eager_start=True)
        else:
            self._task = self._loop.create_task(self._run(task))

    async def _run(self, task: Task) -> None:
        RUNNING.set(task)
        try:
            await aattempt(task)
        except BaseException as error:
            self.error = error
            # Any other signal must not reach the event loop, which it would tear down.
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            # Not by a callback of the task: who waits would go on one turn of the loop later (P29).
            if self._timer is not None:
                self._timer.cancel()
                _wake(self._waiter)

    @property
    def done(self) -> bool:
        return self._task.done()

    def wait(self, seconds: float) -> Awaitable[None]:
        self._waiter = self._loop.create_future()
        self._timer = self._loop.call_later(seconds, _wake, self._waiter)
        return self._waiter

    def cancel(self) -> None:
        self._task.cancel()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


class AsyncioWaits:
    """`Waits` of asyncio: each gives an awaitable of its result."""

    _locks = KeyLocks(asyncio.Lock)

    run: staticmethod[[Steps[Any]], Awaitable[Any]] = staticmethod(arun_steps)
    run_task: staticmethod[[Task], Awaitable[None]] = staticmethod(arun_task)
    attempt: staticmethod[[Task], Awaitable[None]] = staticmethod(aattempt)
    start = _AsTask

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        return asyncio.sleep(seconds)

    def lock(self, key: Any) -> Any:
        return self._locks.use((id(asyncio.get_running_loop()), key))

    def acquire(self, lock: Any, task: Task) -> Any:
        return lock.acquire()

    def ask(self, owner: Any, method: str, *args: Any) -> Any:
        return getattr(owner, f"a{method}")(*args)

    async def list(self, saver: Any, config: Any, **options: Any) -> Any:
        return [each async for each in saver.alist(config, **options)]

    async def call(self, future: Any) -> None:
        if isinstance(future, asyncio.Future):
            await asyncio.wait([future])
            return
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        future.add_done_callback(lambda _: call_on(loop, _wake, ended))
        await ended

    async def nested_runs(self, task: Task) -> None:
        """Wait for the graphs that the body runs side by side, as one of them has paused it."""
        loop = asyncio.get_running_loop()
        while running := [e for e in task.current.inside if not e.done() and e.get_loop() is loop]:
            await asyncio.wait(running)

    async def first_of(
        self, saver: Any, config: Any, accept: Callable[[Any], Any], before: Any = None
    ) -> Any:
        async with aclosing(saver.alist(config, before=before)) as listed:
            async for each in listed:
                if accept(each):
                    return each
        return None

    def failure_of(self, task: Task, error: BaseException) -> BaseException:
        """A signal is what it carries; a cancellation that was asked for is one."""
        if isinstance(error, Signal):
            return error.cause
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            return error
        return failure_of(task, error)


AWAITS = AsyncioWaits()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Signal(BaseException):
    """Carries a KeyboardInterrupt or SystemExit from a call to its caller: raised as it is, asyncio
    would let it tear down the event loop on the way."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(cause)
        self.cause = cause


@coroutine
def in_context(
    context: Context, work: Coroutine[Any, Any, None], suspended: Callable[[], bool] | None = None
) -> Generator[Any, Any, None]:
    """Await `work` in a context of its own, without an asyncio task (P8, P9).

    `suspended` is called whenever it is suspended, until that says that this was the first real
    wait.
    """
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


async def in_thread(call: Callable[[], Any], abandon: Callable[[], None]) -> Any:
    """Call on a worker thread, in this context. If the waiting is cancelled the thread runs on, its
    attempt is abandoned, and its result is dropped."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    context = copy_context()

    def resolve(result: Any, error: BaseException | None) -> None:
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
            failure = _Stop(error) if isinstance(error, StopIteration) else error
        call_on(loop, resolve, result, failure)

    POOL.submit(work)
    try:
        return await answer
    except _Stop as stop:
        raise stop.cause from None
    except asyncio.CancelledError:
        if answer.cancelled():  # else the function has raised it
            abandon()
        raise


class _Stop(Exception):
    """Carries a StopIteration, which a future cannot hold."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause


# -- a reader that does not keep up; see `backpressure` --------------------------------------------


@coroutine
def keep_pace(
    task: Any, work: Coroutine[Any, Any, Any], outputs: Sequence[Output]
) -> Generator[Any, Any, Any]:
    """Await `work`, the function of a task, but let it go on only while the readers of `outputs`
    keep up."""
    try:
        awaited = work.send(None)
        while True:
            try:
                answer = yield awaited
                for output in outputs:
                    if len(output.chunks) > MOST_WAITING:
                        yield from _wait_for_reader(task, output).__await__()
            except BaseException as error:
                awaited = work.throw(error)
            else:
                awaited = work.send(answer)
    except StopIteration as end:
        return end.value


async def _wait_for_reader(task: Any, output: Output) -> None:
    current = asyncio.current_task()
    if current is not None and current.cancelling():
        return  # it cleans up, and its reader may be gone without a word
    loop = asyncio.get_running_loop()
    room = asyncio.Event()  # of this loop: a node may run a graph on a loop of its own

    if not output.must_wait(lambda: call_on(loop, room.set)):
        return
    deadline = task.nearest_deadline
    with nullcontext() if deadline is None else deadline.paused():
        await room.wait()
