"""`virtual_time`: in a test, advances time automatically whenever everything waits for it."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from types import FrameType
from typing import Any

from ..channels.base import check_kind
from ..checkpoint.threads import CallThreads
from ..pregel.clock import CLOCK, read_seconds
from ..pregel.drivers.pool import POOL

SECONDS_TO_LOOK = 0.0005
"""Real time between two looks at whether everything waits."""
SECONDS_TO_STALL = 0.5
"""Threads of which none has moved or computed for so much real time wait for something."""
SECONDS_OF_WORK = 0.05
"""Threads that have used the processor for so long compute, such as in a function of NumPy."""
LEAST_SECONDS = 1e-6
"""Shorter waits count as this: a float with a date in it tells no shorter ones."""


class VirtualTime:
    """The clock inside `virtual_time()`.

    Args:
        start: the initial time, with a time zone; None for the current time.
    """

    def __init__(self, start: datetime | None = None) -> None:
        check_kind("start", start, datetime | None, "a datetime with a time zone")
        if start is not None and start.utcoffset() is None:
            raise ValueError(f"virtual_time: start must have a time zone, got {start!r}")
        self._epoch = time.time() if start is None else start.timestamp()
        self._base = time.monotonic()
        self._passed = 0.0
        self._changed = threading.Condition()
        self._waiting: dict[object, tuple[Callable[[], bool], float]] = {}
        self._busy = 0
        self._mine = threading.local()  # whether a thread is counted in `_busy`
        self._loops: dict[Any, Callable[..., Any]] = {}
        self._open = True
        self._seen: tuple[Any, float, float] = (None, 0.0, 0.0)

    # -- for tests ---------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The current time, in UTC."""
        return datetime.fromtimestamp(self.time(), UTC)

    @property
    def elapsed(self) -> float:
        """Seconds that have passed since the beginning."""
        return self._passed

    def advance(self, by: float | timedelta) -> None:
        """Let time pass: seconds or a timedelta.

        Raises:
            TypeError: it is neither.
            ValueError: it is negative, or endless.
        """
        seconds = read_seconds("advance", by, zero=True)
        with self._changed:
            self._passed += seconds
            self._changed.notify_all()

    # -- for the engine ----------------------------------------------------------------------------

    def time(self) -> float:
        """`time.time`, in whole microseconds: those are what a `datetime` can tell."""
        return round(self._epoch + self._passed, 6)

    def monotonic(self) -> float:
        """`time.monotonic`."""
        return self._base + self._passed

    def sleep(self, seconds: float) -> None:
        """`time.sleep`."""
        self.wait(lambda: False, seconds)

    def wait(self, ready: Callable[[], bool], seconds: float | None) -> None:
        """Until this is true, or so much time has passed. It is called on other threads, too."""
        me, counted = object(), getattr(self._mine, "counted", False)
        with self._changed:
            due = inf if seconds is None else self._passed + max(seconds, LEAST_SECONDS)
            self._waiting[me] = ready, due
            self._busy -= counted
            try:
                while self._open and self._passed < due and not ready():
                    self._changed.wait()
            finally:
                self._busy += counted
                del self._waiting[me]

    def adopt(self, loop: Any) -> None:
        """Timers of this event loop wait for this time.

        Raises:
            RuntimeError: it is not one of asyncio's own.
        """
        if loop in self._loops:
            return
        selector = getattr(loop, "_selector", None)
        if selector is None:
            raise RuntimeError(f"virtual_time needs an event loop of asyncio's own, got {loop!r}")
        look = selector.select

        def select(timeout: float | None = None) -> Any:
            if timeout is None or timeout > 0:
                self.wait(lambda: bool(look(0)), timeout)
            return look(0)

        run_on_thread = loop.run_in_executor

        def run_in_executor(executor: Any, function: Callable[..., Any], *args: Any) -> Any:
            if executor is not None and "Thread" not in type(executor).__name__:
                return run_on_thread(executor, function, *args)
            # Until the loop knows the result: so long there is something that does not wait.
            self._count(1)
            future = run_on_thread(executor, self._as_counted(partial(function, *args)))
            future.add_done_callback(lambda _: self._count(-1))
            return future

        self._loops[loop] = look
        selector.select, loop.time = select, self.monotonic
        loop.run_in_executor = run_in_executor

    # -- what moves it -----------------------------------------------------------------------------

    def run(self) -> None:
        """Let time pass whenever everything waits, until it is closed."""
        while self._open:
            time.sleep(SECONDS_TO_LOOK)
            with self._changed:
                waiting = [*self._waiting.values()]
                if any(ready() for ready, _ in waiting):
                    self._changed.notify_all()
                    continue
                due = min((due for _, due in waiting), default=inf)
                if due < inf and (self._busy <= 0 or self._is_stalled()):
                    self._passed = max(self._passed, due)
                    self._seen = None, 0.0, 0.0
                    self._changed.notify_all()

    def _is_stalled(self) -> bool:
        """Whether no thread has moved for a while: a test joins one, or a node waits for a lock."""
        me, frames = threading.get_ident(), find_frames()
        seen = {each: (id(frame), frame.f_lasti) for each, frame in frames.items() if each != me}
        worked = time.process_time() - time.thread_time()  # by all threads but this one
        if seen != self._seen[0] or worked - self._seen[2] > SECONDS_OF_WORK:
            self._seen = seen, time.monotonic(), worked
        return time.monotonic() - self._seen[1] > SECONDS_TO_STALL

    def submit(self, job: Callable[[], None]) -> None:
        """`ThreadPool.submit`: from now on until it has ended, the job is something that does not
        wait."""
        type(POOL).submit(POOL, self._watch(job))

    def _watch(self, job: Callable[[], None]) -> Callable[[], None]:
        """A job for another thread, which has something to do until it has ended."""
        self._count(1)

        def run() -> None:
            try:
                self._as_counted(job)()
            finally:
                self._count(-1)

        return run

    def _count(self, more: int) -> None:
        with self._changed:
            self._busy += more

    def _as_counted(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """A function for a thread that is counted while it runs, but not while it waits here."""

        def run() -> Any:
            self._mine.counted = True
            try:
                return function()
            finally:
                self._mine.counted = False

        return run

    def open(self) -> None:
        """From now on this is the time of the engine. The thread that says so is one of those that
        have to wait for it to pass.

        Raises:
            RuntimeError: there is another one already.
        """
        if CLOCK.virtual is not None:
            raise RuntimeError("virtual_time: it is virtual already; it cannot be nested")
        self._mine.counted, self._busy = True, 1
        CLOCK.virtual = self
        CLOCK.time, CLOCK.monotonic, CLOCK.sleep = self.time, self.monotonic, self.sleep
        POOL.submit = self.submit  # type: ignore[method-assign]
        # Those of checkpointers and stores, which coroutines wait for.
        submit = self._submit_call = CallThreads.submit

        def submit_call(threads: CallThreads, job: Callable[[], None]) -> None:
            submit(threads, self._watch(job))

        CallThreads.submit = submit_call  # type: ignore[method-assign, assignment]
        asyncio = sys.modules.get("asyncio")
        if asyncio is not None and (loop := asyncio._get_running_loop()) is not None:
            self.adopt(loop)

    def close(self) -> None:
        """Real time again. Who still waits goes on."""
        del POOL.submit
        CallThreads.submit = self._submit_call  # type: ignore[method-assign]
        CLOCK.virtual = None
        CLOCK.run_freely()
        for loop, look in self._loops.items():
            del loop.time, loop.run_in_executor
            if loop._selector is not None:  # it is not closed
                loop._selector.select = look
        with self._changed:
            self._open = False
            self._changed.notify_all()


def find_frames() -> dict[int, FrameType]:
    """What each thread executes. Without garbage collection meanwhile: early releases of Python
    3.11 and 3.12 may hang in it (CPython's gh-106883)."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if enabled:
            gc.enable()


@contextmanager
def virtual_time(start: datetime | None = None) -> Iterator[VirtualTime]:
    """Use virtual time: when everything that runs waits, the clock jumps to the next wake-up time.

    This holds for `runtime.sleep`, deadlines, the timeouts of nodes and supersteps, the backoff of
    retries, `Limit(per=...)`, and in coroutines for every timer of asyncio. They share one clock,
    so events happen in the order of their times, the same in every run. Computing takes no time.

    It is the time of this process. It does not affect `time.sleep` in plain functions, databases,
    executors in other processes, or a `Queue`, whose clock is the database's. The thread that
    enters it and those of the engine have to wait before time passes; of other threads that call
    graphs, only their waits count.

    Args:
        start: the initial time, with a time zone; None for the current time.

    Yields:
        the clock: `now`, `elapsed`, and `advance(...)` for sleeps that have paused their task.

    Raises:
        RuntimeError: time is virtual already.

    >>> with virtual_time(datetime(2030, 1, 1, tzinfo=UTC)) as clock:
    ...     clock.advance(timedelta(days=1))
    ...     clock.now.isoformat()
    '2030-01-02T00:00:00+00:00'
    """
    clock = VirtualTime(start)
    clock.open()
    mover = threading.Thread(target=clock.run, name="stategraph-virtual-time", daemon=True)
    mover.start()
    try:
        yield clock
    finally:
        clock.close()
        mover.join()
