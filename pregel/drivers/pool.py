"""The driver's own place to run tasks: worker threads shared by all runs of the process. Other
places are in the package `executors/`; for those a thread from here waits.

One queue of tasks per superstep, drained by workers that come one at a time and only while tasks
are left: quick tasks are done by the first worker before a second has started, blocking ones get a
thread each.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from typing import Any

from ...checkpoint.threads import HELD_BACK, MANY_STORING, STORING
from ..clock import CLOCK
from .batch import Batch, Job

MAX_THREADS = 512
"""Workers per superstep when `max_concurrency` sets no limit."""
MANY_WORKERS = 32
"""How many workers a superstep calls even while many threads wait for a database: more would wait
there as well (P43)."""
IDLE_SECONDS = 30.0
"""How long a worker thread waits for another job before it ends."""
TOGETHER, AT_MOST = 0.0002, 0.01
"""Seconds between the ends of tasks that count as one end, and in all: they are recorded in one
commit (P16-tasks)."""
HELD_SECONDS = 0.01
"""How long a checkpoint waits for the next one, to be stored with it (P23)."""


class ThreadPool:
    """Daemon threads that are started when no idle one is left and kept between runs."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start with no threads: those of a process that forked are not in its child."""
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._idle = 0
        self._lock = threading.Lock()

    def submit(self, job: Callable[[], None]) -> None:
        """Run `job` on an idle thread, or on a new one. The job must not raise."""
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
                self._jobs.put(job)
                return
        # In a list, from which it is taken: a thread keeps its arguments as long as it lives.
        threading.Thread(
            target=self._serve, args=([job],), name="stategraph-worker", daemon=True
        ).start()

    def _serve(self, first: list[Callable[[], None]]) -> None:
        job = first.pop()
        while True:
            job()
            del job  # hold no run alive while idle
            with self._lock:
                self._idle += 1
            try:
                job = self._jobs.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._lock:
                    # A job may have been promised to this thread after the wait ended.
                    if self._idle > 0:
                        self._idle -= 1
                        return
                job = self._jobs.get()


class HeldEntries:
    """What waits for a moment to be stored with something else, and is stored by itself if nothing
    has come by then. Most has, so that there is one timer for all, which looks once in a while
    (benchmark P23)."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop all entries: in a forked child, what its parent holds is the parent's."""
        self._waiting: deque[tuple[float, Any, Callable[[], bool]]] = deque()
        self._running = False
        self._lock = threading.Lock()

    def submit(self, entry: Any, store: Callable[[], bool]) -> None:
        """Call `store` after `HELD_SECONDS`, unless the entry is `done` by then; and again if it
        returns True."""
        with self._lock:
            self._waiting.append((monotonic() + HELD_SECONDS, entry, store))
            if self._running:
                return
            self._running = True
        try:
            POOL.submit(self._serve)
        except BaseException:
            self._running = False  # the next entry tries again
            raise

    def _serve(self) -> None:
        while True:
            with self._lock:
                while self._waiting and self._waiting[0][1].done:
                    self._waiting.popleft()
                if not self._waiting:
                    self._running = False
                    return
                pause = self._waiting[0][0] - monotonic()
                if pause <= 0:
                    _, entry, store = self._waiting.popleft()
            if pause > 0:
                sleep(pause)
                continue
            if store():
                with self._lock:
                    self._waiting.append((monotonic() + HELD_SECONDS, entry, store))
            del entry, store  # hold no run alive while asleep


POOL = ThreadPool()
HELD = HeldEntries()
os.register_at_fork(after_in_child=HELD.forget)
os.register_at_fork(after_in_child=POOL.forget)


class ThreadBatch(Batch[Job]):
    """Jobs on worker threads.

    Args:
        execute: does one job.
    """

    __slots__ = ("_coming", "_context", "_execute", "_notice", "_workers")

    def __init__(
        self,
        execute: Callable[[Job], Any],
        jobs: Sequence[Job],
        limit: int,
        done: Callable[[Job, BaseException | None], None],
    ) -> None:
        super().__init__(jobs, limit, done)
        self._execute = execute
        self._context: Context = copy_context()
        self._notice = threading.Lock()  # free when there is something to look at
        self._notice.acquire()
        self._workers = 0
        self._coming = False

    def start(self, *, here: bool = False) -> None:
        if not here:
            self.call_worker()
            return
        with self._lock:
            self._workers += 1
        self._drain()

    def wake(self) -> None:
        if self._notice.locked():
            with suppress(RuntimeError):  # another thread was faster
                self._notice.release()

    def wait(self, seconds: float | None = None) -> None:
        # Not through a function of the clock: workers are waited for once a superstep (P7, P8).
        if CLOCK.virtual is None:
            self._notice.acquire(timeout=-1 if seconds is None else seconds)
        else:
            CLOCK.acquire(self._notice, seconds)

    def gather(self) -> None:
        latest, seen = monotonic() + AT_MOST, 0
        while seen < len(self.ended) < self.open and monotonic() < latest:
            self._notice.acquire(blocking=False)  # what it tells is seen now
            seen = len(self.ended)
            self.wait(TOGETHER)

    def join(self) -> None:
        while self.open > len(self.ended):
            self.wait()

    def abandon(self) -> None:
        """Threads cannot be cancelled, so nobody waits for them."""
        self.cancel()

    def call_worker(self) -> None:
        with self._lock:
            if self._coming or self._workers >= self._limit:
                return
            if self._workers >= MANY_WORKERS and len(STORING) >= MANY_STORING:
                HELD_BACK.add(self._call_again)
                if len(STORING) >= MANY_STORING:
                    return  # who has stored calls it; else that may have happened just now
            self._coming = True
            self._workers += 1
        try:
            POOL.submit(self._arrive)
        except RuntimeError:  # no thread can be started
            with self._lock:
                self._coming = False
                self._workers -= 1
                alone = not self._workers
            if alone:
                raise  # else those that are there do the work of all

    def _call_again(self) -> None:
        if self._waiting:
            self.call_worker()

    def _arrive(self) -> None:
        self._coming = False
        self._drain()

    def _drain(self) -> None:
        waiting, context, execute = self._waiting, self._context, self._execute
        done, ended, notice = self._done, self.ended, self._notice
        while True:
            try:
                job = waiting.popleft()
            except IndexError:
                if self._leave():
                    return
                continue
            except BaseException:  # Ctrl-C on the caller's thread: nobody does this job
                with self._lock:
                    self.open -= 1
                raise
            error: BaseException | None = None
            try:
                # Called before the job runs, for it may block; but one at a time, so that quick
                # jobs call no third.
                if waiting and not self._coming and self._workers < self._limit:
                    self.call_worker()
                context.copy().run(execute, job)
            except BaseException as raised:
                error = raised
            # Before it counts as ended: who looks at `ended` finds the outcome on the job.
            try:
                done(job, error)
            finally:
                ended.append(job)
            if notice.locked():
                self.wake()

    def _leave(self) -> bool:
        """Let a worker go that has found nothing to do. Returns False if it must stay: a job may
        have been added since it looked, for which no other worker was called."""
        with self._lock:
            self._workers -= 1
        if not self._waiting:
            return True
        with self._lock:
            if self._coming or self._workers >= self._limit:
                return True
            self._workers += 1
            return False
