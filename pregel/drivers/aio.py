"""The async driver: what the loop of a run asks for happens on the caller's event loop.

Coroutines run here; a node that is a plain function runs on a worker thread, so that it cannot hold
up the loop.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextvars import copy_context
from functools import partial
from time import monotonic
from typing import Any, NoReturn

from ..clock import CLOCK
from ..errors import DrainSignal, GraphAbandoned
from ..program.program import CompiledNode
from ..run.effects import Effects
from ..run.run import Run
from ..schedule.races import race_of
from ..steps import PAUSE, Waits, arun_steps
from ..task.task import Task
from . import batch
from .ajournal import AsyncJournal
from .awaits import AWAITS as AWAITS
from .awaits import Signal, arun_in_time, arun_task, in_context
from .backpressure import hold_writer
from .batch import Batch, Job
from .call_future import CallFuture
from .driver import LIVE, Driver, ReaderLeft
from .futures import Arguments, Calls, error_of, resolve, result_of
from .pool import MAX_THREADS
from .racing import Racers
from .timeslice import call_on, time_slices


async def drive(run: Run, effects: Effects | None = None) -> None:
    """Carry a run (or other effects on its thread) through to the end; nobody reads."""
    driver = AsyncDriver(run, effects)
    ended = note_nested_run(run.parent) if run.parent is not None else None
    driver.host = asyncio.current_task()
    try:
        await arun_steps(driver.advance())
    except BaseException as error:
        await driver.abort_whole(error)
        _end_quietly(error)
        driver.raise_if_cut(error)
        raise
    finally:
        if ended is not None:
            ended.set_result(None)


def _end_quietly(error: BaseException) -> None:
    """End a graph whose attempt was abandoned as a cancelled task ends. Nobody waits for it, and
    asyncio would report any other error of a task in the background.

    Raises:
        CancelledError: it was abandoned.
    """
    if isinstance(error, GraphAbandoned):
        raise asyncio.CancelledError(
            "the attempt of the node that runs this graph was abandoned"
        ) from None


def note_nested_run(task: Task) -> asyncio.Future[None]:
    """Note on a task that it runs a graph; the future is done when that has ended."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    current = task.current
    current.inside = (*(each for each in current.inside if not each.done()), ended)
    return ended


async def stream(run: Run) -> AsyncGenerator[Any, None]:
    """Carry a run through, handing over each chunk before anything further is done."""
    driver = AsyncDriver(run)
    output = run.output
    steps, chunks = driver.advance(), output.open(driver.wake, hold_writer)
    try:
        while await arun_steps(steps) is PAUSE:
            while chunks:
                yield chunks.popleft()
                if output.waiting:
                    output.release()
                if monotonic() > driver.slice_end:  # the reader may never wait either
                    driver.slice_end = await driver.slices.give_way()
    except GeneratorExit:
        await driver.abort_whole(ReaderLeft())
        raise
    except BaseException as error:
        await driver.abort_whole(error)
        while chunks:
            yield chunks.popleft()
        _end_quietly(error)
        raise
    output.close()
    while chunks:
        yield chunks.popleft()
        if monotonic() > driver.slice_end:
            driver.slice_end = await driver.slices.give_way()


class Unregistered:
    """Reads an async generator of which the event loop is not told: its reader closes it. An event
    loop that ends closes all generators that it knows of at once, and would report that this one
    is being closed already.
    """

    __slots__ = ("_chunks", "_next")

    def __init__(self, chunks: AsyncGenerator[Any, None]) -> None:
        self._chunks = chunks
        self._next: Callable[[], Awaitable[Any]] = self._begin

    def __aiter__(self) -> Unregistered:
        return self

    def __anext__(self) -> Awaitable[Any]:
        return self._next()

    def _begin(self) -> Awaitable[Any]:
        self._next = self._chunks.__anext__
        tell_loop = sys.get_asyncgen_hooks().firstiter
        sys.set_asyncgen_hooks(firstiter=None)
        try:
            return self._next()
        finally:
            sys.set_asyncgen_hooks(firstiter=tell_loop)


class Chunks(AsyncGenerator[Any, None]):
    """What `astream` returns: its generator, which goes on in no other event loop.

    The first loop closes the generator when it ends, and a closed generator looks like one that
    has come to its end.

    Args:
        read: makes the generator; it calls what it is given when the stream has ended by itself.
    """

    __slots__ = ("_chunks", "_ended", "_loop")

    def __init__(self, read: Callable[[Callable[[], None]], AsyncGenerator[Any, None]]) -> None:
        # A method of this object would close a circle: a stream that is dropped is closed at once.
        self._ended: list[bool] = []
        self._chunks = read(partial(self._ended.append, True))
        self._loop: asyncio.AbstractEventLoop | None = None

    def __anext__(self) -> Coroutine[Any, Any, Any]:
        self._enter_loop()
        return self._chunks.__anext__()

    def _enter_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None and not self._ended:
            raise RuntimeError(
                "this stream began in another event loop and cannot go on in this one: read and "
                "close it in one loop. What was stored is kept: astream(None, config) continues "
                "the thread"
            )
        self._loop = loop

    def asend(self, value: Any) -> Coroutine[Any, Any, Any]:
        self._enter_loop()
        return self._chunks.asend(value)

    def athrow(self, *error: Any) -> Coroutine[Any, Any, Any]:
        self._enter_loop()
        return self._chunks.athrow(*error)

    def aclose(self) -> Coroutine[Any, Any, None]:
        if getattr(self._chunks, "ag_frame", None) is not None:  # else its loop has closed it
            self._enter_loop()
        self._ended.append(True)
        return self._chunks.aclose()


class AsyncDriver(Driver):
    """Answers the effects of one loop on an event loop."""

    waits: Waits = AWAITS
    executes = arun_task, arun_in_time
    host: asyncio.Task[Any] | None = None
    """The asyncio task that waits for the run and does nothing else; None for a stream, whose
    reader may be anywhere."""

    sees_cancels = sys.version_info >= (3, 13)
    """Before, a `TaskGroup` that has failed may leave `cancelling()` of its own task raised."""

    _cut_reason: str | None = None
    _cancels: int = 0

    def __init__(self, run: Run, effects: Effects | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        if CLOCK.virtual is not None:
            CLOCK.virtual.adopt(self._loop)
        self.slices: Any = time_slices()
        self.slice_end: Any = self.slices.end()
        # Not a method: the run holds it, and would hold this driver with it, which holds the run.
        self.make_calls = partial(AsyncCalls, loop=self._loop)
        super().__init__(run, effects)

    def make_journal(self, run: Run) -> AsyncJournal:
        return AsyncJournal(run, self._loop)

    def run_alone(self, task: Task) -> Any:
        if self.sees_cancels:
            self._cancels = _count_cancels()
        return in_context(copy_context(), self._execute(task))

    def look_for_cancel(self) -> None:
        # It runs in the caller's own asyncio task, so `asyncio.timeout` and `cancel()` reach the
        # node first. Of a batch the caller waits itself.
        if _count_cancels() > self._cancels:
            self.lost_cancel = True

    def raise_cancel(self) -> NoReturn:
        raise asyncio.CancelledError("a node caught the cancellation of its run")

    def make_batch(self, tasks: Sequence[Task]) -> AsyncBatch[Task]:
        program, races = self.run.program, self._racers is not None
        most, stops = len(tasks), _is_coroutine
        if program.starts_ready:
            # A failure cancels nobody: what is at work comes to its end.
            most, races, stops = sys.maxsize, True, _is_spared
        # Any number may be under way at once, unless each may need a thread.
        if most > MAX_THREADS:
            nodes = [task.node for task in tasks] or program.nodes.values()
            if not any(node.call.coro is not None for node in nodes):
                most = MAX_THREADS
        limit = self.run.settings.config.get("max_concurrency") or most
        return AsyncBatch(self._race if races else self._execute, tasks, limit, self.end, stops)

    def _race(self, task: Task) -> Coroutine[Any, Any, None]:
        """Run a task of a batch in which there are racers, or may come."""
        if self._racers is None:
            return self._execute(task)  # type: ignore[no-any-return]
        return race_on_loop(self._execute, self._racers, task)

    def cut(self, reason: str) -> None:
        """Let the run end at once: coroutines are cancelled."""
        self.drain(reason)
        call_on(self._loop, self._cancel_host, reason)

    def _cancel_host(self, reason: str) -> None:
        # Once: a second cancellation would be taken for one by somebody else.
        ending = self._cut_reason is not None or self.run.cancelled
        if self in LIVE and self.host is not None and not ending:
            self._cut_reason = reason
            self.host.cancel()

    def raise_if_cut(self, error: BaseException) -> None:
        """End as a run that was drained, if `cut` has cancelled it and nobody else.

        Raises:
            DrainSignal: it has.
        """
        if self._cut_reason is None or self.host is None:
            return
        others = self.host.uncancel()
        if not others and isinstance(error, asyncio.CancelledError):
            raise DrainSignal(self._cut_reason) from None

    async def abort_whole(self, error: BaseException) -> None:
        """`abort` to its end, even if this task is being cancelled."""
        # An asyncio task of its own: a second cancellation would cut the saving short.
        keeping = asyncio.ensure_future(arun_steps(self.abort(error)))
        cancelled = False
        while not keeping.done():
            try:
                await asyncio.shield(keeping)
            except asyncio.CancelledError:
                cancelled = True  # later: it is quick, and a save must not be cut short
        if cancelled and not isinstance(error, asyncio.CancelledError):
            raise asyncio.CancelledError


def _count_cancels() -> int:
    """How often the current asyncio task was asked to end, and has not taken it back."""
    current = asyncio.current_task()
    return 0 if current is None else current.cancelling()


def _is_spared(task: Task) -> bool:
    return False


def _is_coroutine(task: Task) -> bool:
    return task.node.call.coro is not None


class AsyncCalls(Calls):
    """The calls of one async run: asyncio tasks on its loop; calls from worker threads stay on
    threads."""

    def __init__(self, run: Run, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(run)
        self._loop = loop
        self._semaphores: dict[str, asyncio.Semaphore] = {}

    def start(self, parent: Task, node: CompiledNode, arguments: Arguments) -> Any:
        """Start a call, or find it. On the loop's thread the answer is awaitable, elsewhere it has
        `.result()`."""
        if asyncio._get_running_loop() is self._loop:
            child, future = self._find(parent, node, arguments)
            if future is None:
                future = self._loop.create_task(self._awork(parent, child))
                self._admit(parent, child, future)
            return future
        # A plain function that was called from a thread stays there: the loop must not be held up.
        if not node.call.sync_missing:
            return super().start(parent, node, arguments)
        child, future = self._find(parent, node, arguments)
        if future is None:
            future = CallFuture()
            self._admit(parent, child, future)
            asyncio.run_coroutine_threadsafe(
                self._work_for_thread(parent, child, future), self._loop
            )
        return future

    def can_wait(self) -> bool:
        """Not on the loop itself."""
        return asyncio._get_running_loop() is not self._loop

    def begin_effect(self, task: Task, kind: str, key: str, *, awaits: bool) -> Any:
        """The record of an effect of a task.

        Raises:
            GraphAbandoned: a call on a thread runs on, though its run was cut short: the next run
                makes it again.
        """
        if self.run.cancelled and self.can_wait():
            raise GraphAbandoned
        return super().begin_effect(task, kind, key, awaits=awaits)

    def _resolve(self, value: Any, error: BaseException | None) -> Any:
        if asyncio._get_running_loop() is not self._loop:
            return super()._resolve(value, error)
        return resolve(self._loop.create_future(), value, error)

    async def _awork(self, parent: Task, child: Task) -> Any:
        """Run a call on the loop, and return or raise what it did."""
        limit = self.run.settings.config.get("max_concurrency")
        if limit:
            async with self._semaphores.setdefault(parent.id, asyncio.Semaphore(limit)):
                await arun_steps(self._run_call(child, AWAITS))
        else:
            await arun_steps(self._run_call(child, AWAITS))
        error = error_of(child)
        # asyncio would let these out of the loop at once, before the run has stored anything.
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise Signal(error)
        if error is not None:
            raise error
        return result_of(child)

    async def _work_for_thread(self, parent: Task, child: Task, future: CallFuture) -> None:
        """Run a call on the loop, and resolve the future for which a thread waits."""
        if not future.set_running_or_notify_cancel():
            return
        future.coroutine = asyncio.current_task()
        try:
            await self._awork(parent, child)
        except BaseException as error:
            # Without an error of its own it could not be recorded, or was cancelled by its caller.
            if child.error is None:
                child.fail(error)
        resolve(future, result_of(child), error_of(child))


# -- races: `racing` is the same for threads -------------------------------------------------------

GRACE = 0.1
"""For how many seconds a coroutine that has lost may clean up before the others go on without
it."""

_given_up: set[asyncio.Task[None]] = set()  # an event loop holds its tasks weakly


async def race_on_loop(
    execute: Callable[[Task], Coroutine[Any, Any, None]], racers: Racers, task: Task
) -> None:
    """Run a task; one in a race as an asyncio task of its own, until it ends or has lost."""
    if race_of(task) is None:
        await execute(task)
        return
    lost = asyncio.get_running_loop().create_future()
    racer = racers.enter(task, lost.cancel)
    if racer is None:
        return
    work = asyncio.create_task(execute(racer.copy))
    try:
        await asyncio.wait((work, lost), return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        work.cancel()
        await asyncio.wait((work,))
        racers.leave(racer)
        raise
    if not work.done():
        work.cancel()
        await asyncio.wait((work,), timeout=GRACE)
        if not work.done():
            _given_up.add(work)
            work.add_done_callback(_given_up.discard)
    racers.leave(racer)


async def side_by_side(
    jobs: Sequence[Callable[[], Awaitable[Any]]], limit: int | None, keep_errors: bool
) -> list[Any]:
    """`batch.side_by_side` for coroutines, on this event loop."""
    results: list[Any] = [None] * len(jobs)

    async def work(position: int) -> None:
        results[position] = await jobs[position]()

    make = partial(AsyncBatch, work)
    return await arun_steps(batch.side_by_side(results, make, limit, keep_errors))


# -- abatch ----------------------------------------------------------------------------------------
# Jobs side by side on an event loop: who starts when, so that coroutines that never wait cost no
# asyncio task.

class AsyncBatch(Batch[Job]):
    """Jobs as coroutines: the tasks of one superstep, or whole runs.

    A worker does one after the other; only when one of them really waits is the next worker called,
    so that coroutines that never wait cost no asyncio task. Workers give way to the loop's other
    tasks by the clock.

    Args:
        execute: does one job.
        stops: whether a failure cancels a job that is under way.
    """

    __slots__ = (
        "_coming", "_execute", "_loop", "_slices", "_stopping", "_stops", "_waiter", "_workers",
    )  # fmt: skip

    def __init__(
        self,
        execute: Callable[[Job], Coroutine[Any, Any, None]],
        jobs: Sequence[Job],
        limit: int,
        done: Callable[[Job, BaseException | None], None],
        stops: Callable[[Job], bool] = bool,
    ) -> None:
        super().__init__(jobs, limit, done)
        self._execute = execute
        self._stops = stops
        self._loop = asyncio.get_running_loop()
        self._slices = time_slices()
        self._workers: dict[asyncio.Task[None], Job | None] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._stopping = False
        self._coming = False

    def start(self, *, here: bool = False) -> None:
        self._call_worker()

    def wake(self) -> None:
        if asyncio._get_running_loop() is self._loop:
            self._notice()
        else:
            call_on(self._loop, self._notice)

    def _notice(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def wait(self, seconds: float | None = None) -> Any:
        self._waiter = self._loop.create_future()
        return self._waiter if seconds is None else asyncio.wait([self._waiter], timeout=seconds)

    async def join(self) -> None:
        while self._workers:
            await asyncio.wait(self._workers)

    def abandon(self) -> Any:
        self.cancel()
        return self.join()

    def stop(self, *, at_once: bool) -> None:
        """`Batch.stop`; then, once those are started, cancel what a failure stops."""
        super().stop(at_once=at_once)
        self._stopping = True
        self._cancel_started(asyncio.current_task())

    def _cancel_started(self, spared: asyncio.Task[Any] | None = None) -> None:
        if self._stopping and not self._waiting:
            for worker, job in self._workers.items():
                if worker is not spared and (job is None or self._stops(job)):
                    worker.cancel()

    def cancel(self) -> None:
        super().cancel()
        for worker in self._workers:
            if worker is not asyncio.current_task():
                worker.cancel()

    def call_worker(self) -> None:
        call_on(self._loop, self._call_worker)

    def _call_worker(self) -> None:
        # One at a time: if the new worker's jobs never wait, it does them all, and no third is
        # needed.
        if self._waiting and not self._coming and len(self._workers) < self._limit:
            self._coming = True
            worker = self._loop.create_task(self._work())
            self._workers[worker] = None
            worker.add_done_callback(self._dismiss)

    def _dismiss(self, worker: asyncio.Task[None]) -> None:
        if self._workers.pop(worker) is None and worker.cancelled():
            self._coming = False  # it may not have begun
        self._call_worker()  # should it have been cancelled by others, while jobs are left

    def _suspended(self) -> bool:
        """A job has been suspended. Whether the next begins now: not if it only gives way and goes
        on at once."""
        if self._slices.yielding and not self._stopping:
            return False
        self._call_worker()
        self._cancel_started()
        return True

    async def _work(self) -> None:
        self._coming = False
        me = asyncio.current_task()
        assert me is not None
        slice_end = self._slices.end()
        while self._waiting:
            if monotonic() > slice_end:
                slice_end = await self._slices.give_way()
                continue
            try:
                self._workers[me] = job = self._waiting.popleft()
            except IndexError:  # another run has taken the place that this job needs
                break
            error: BaseException | None = None
            try:
                await in_context(copy_context(), self._execute(job), self._suspended)
            except BaseException as raised:
                error = raised
            self._done(job, error)
            self.ended.append(job)
            self._notice()
        # The last waiting job may have been started by this worker: now the failure stops the rest.
        self._cancel_started(me)
