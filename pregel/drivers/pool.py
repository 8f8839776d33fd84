"""The driver's own place to run tasks: worker threads shared by all runs of the process. Other
places are in the room `executors/`; for those a thread from here waits.

One queue of tasks per superstep, drained by workers that come one at a time and only while tasks
are left: quick tasks are done by the first worker before a second has started, blocking ones get a
thread each.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue

from ..superstep.task import Task

MAX_THREADS = 512
"""Workers per superstep when `max_concurrency` sets no limit."""
IDLE_SECONDS = 30.0
"""How long a worker thread waits for another job before it ends."""


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
        threading.Thread(
            target=self._serve, args=(job,), name="stategraph-worker", daemon=True
        ).start()

    def _serve(self, job: Callable[[], None]) -> None:
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


POOL = ThreadPool()
os.register_at_fork(after_in_child=POOL.forget)


class Batch:
    """The tasks of one superstep on worker threads.

    Args:
        execute: runs one task and keeps its outcome on it; must not raise.
        limit: how many tasks may run at once.
        done: told each task that has ended, on the thread it ran on.
    """

    __slots__ = (
        "_coming",
        "_context",
        "_done",
        "_execute",
        "_limit",
        "_lock",
        "_surplus",
        "_waiting",
        "_workers",
    )

    def __init__(
        self,
        tasks: Sequence[Task],
        execute: Callable[[Task], None],
        limit: int,
        done: Callable[[Task], None],
    ) -> None:
        self._waiting = deque(tasks)
        self._execute = execute
        self._limit = limit
        self._surplus = max(0, len(tasks) - limit)
        self._done = done
        self._context: Context = copy_context()
        self._lock = threading.Lock()
        self._workers = 0
        self._coming = False

    def start(self) -> None:
        """Call in the first worker; it will call in the next."""
        self._call_worker()

    def work(self) -> None:
        """Be one of the workers until no task is waiting."""
        with self._lock:
            self._workers += 1
        self._drain()

    def stop(self) -> list[Task]:
        """After a failure: take back the tasks that no worker has started, but for those that could
        have been started together, the first `limit`: no accident of timing decides which of these
        are run."""
        with self._lock:
            count, self._surplus = self._surplus, 0
        return self._take_back(count)

    def cancel(self) -> list[Task]:
        """Take back the tasks that no worker has started."""
        return self._take_back(len(self._waiting))

    def _take_back(self, count: int) -> list[Task]:
        taken = []
        for _ in range(count):
            try:
                taken.append(self._waiting.pop())
            except IndexError:  # a worker was faster
                break
        return taken

    def _call_worker(self) -> None:
        with self._lock:
            if self._coming or self._workers >= self._limit:
                return
            self._coming = True
            self._workers += 1
        POOL.submit(self._arrive)

    def _arrive(self) -> None:
        self._coming = False
        self._drain()

    def _drain(self) -> None:
        waiting, context, execute, done = self._waiting, self._context, self._execute, self._done
        while True:
            try:
                task = waiting.popleft()
            except IndexError:
                break
            if waiting and not self._coming and self._workers < self._limit:
                self._call_worker()
            try:
                context.copy().run(execute, task)
            except BaseException as error:
                # It must not raise. If it does, nobody may wait for ever.
                if task.error is None:
                    task.fail(error)
            done(task)
        with self._lock:
            self._workers -= 1
