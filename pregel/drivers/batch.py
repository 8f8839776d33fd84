"""Jobs side by side: the tasks of one superstep, or the runs of `batch`. How many at once, what a
failure stops, what has ended. Who does them is in `pool` and `aio`; what a job is, its owner
knows.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from ..steps import Steps

Job = TypeVar("Job")
AnyQueue = TypeVar("AnyQueue", bound=Any)


class Batch(Generic[Job]):
    """Jobs that are done side by side.

    Args:
        limit: how many may be under way at once.
        done: told each job that has ended, and what it raised, before it counts as ended.

    Attributes:
        ended: the jobs that have ended and were not taken yet.
        open: how many jobs were neither taken nor dropped.
    """

    __slots__ = ("_done", "_limit", "_lock", "_surplus", "_waiting", "ended", "open")

    def __init__(
        self, jobs: Sequence[Job], limit: int, done: Callable[[Job, BaseException | None], None]
    ) -> None:
        # The jobs that have not been started: a deque, or a queue that lets none go before it may,
        # and is false while none may.
        self._waiting: Any = deque(jobs)
        self._limit = limit
        self._done = done
        self._lock = threading.Lock()
        self._surplus = max(0, len(jobs) - limit)
        self.ended: list[Job] = []
        self.open: int = len(jobs)

    def start(self, *, here: bool = False) -> None:
        """Call in the first worker; it will call in the next.

        Args:
            here: this thread may be the first, until no job is waiting.
        """
        raise NotImplementedError

    def admit_by(self, queue: AnyQueue) -> AnyQueue:
        """Before the start: take the jobs from this queue instead, which holds the same; gives it
        back. It calls `call_worker` when one more may start."""
        self._waiting = queue
        return queue

    def call_worker(self) -> None:
        """Call a worker in if a job may start; from any thread."""
        raise NotImplementedError

    def add(self, jobs: Sequence[Job]) -> None:
        """Do these as well, after those that wait."""
        with self._lock:
            self._waiting.extend(jobs)
            self.open += len(jobs)
            self._surplus = max(0, self.open - len(self.ended) - self._limit)
        self.call_worker()

    def wake(self) -> None:
        """End a wait: a job has ended, or something else is to be looked at."""
        raise NotImplementedError

    def wait(self, seconds: float | None = None) -> Any:
        """Wait until the batch is woken, or for so long. It may end early: look what has ended."""
        raise NotImplementedError

    def gather(self) -> None:
        """On threads: wait for jobs that end at almost the same time as one that has ended."""

    def join(self) -> Any:
        """Wait until nothing is under way any more."""
        raise NotImplementedError

    def abandon(self) -> Any:
        """Cancel, and wait for what has been cancelled while it was under way."""
        raise NotImplementedError

    def take(self) -> list[Job]:
        """The jobs that have ended since the last time."""
        # Nothing is called between the last two: Ctrl-C there would hang `join`.
        with self._lock:
            taken = self.ended[:]
            count = len(taken)
            del self.ended[:count]
            self.open -= count
        return taken

    def stop(self, *, at_once: bool) -> None:
        """After a failure: start only those that could have been started together, the first
        `limit`, so that no accident of timing decides which are run. Or start none, `at_once`."""
        with self._lock:
            self._drop(len(self._waiting) if at_once else self._surplus)
            self._surplus = 0

    def drop(self, jobs: Sequence[Job]) -> None:
        """Do not start these; those that were started go on."""
        with self._lock:
            for job in jobs:
                with suppress(ValueError):
                    self._waiting.remove(job)
                    self.open -= 1

    def cancel(self) -> None:
        """Start no further job, and cancel what is under way and can be."""
        with self._lock:
            self._drop(len(self._waiting))

    def _drop(self, count: int) -> None:
        for _ in range(count):
            try:
                self._waiting.pop()
            except IndexError:  # a worker was faster
                break
            self.open -= 1


def side_by_side(
    results: list[Any], make: Callable[..., Batch[int]], limit: int | None, keep_errors: bool
) -> Steps[list[Any]]:
    """Do independent jobs, at most `limit` at once; results in order.

    Args:
        results: a place for each job, which it fills.
        make: the batch, of their positions.
        keep_errors: put what a job raised in the place of its result.

    Raises:
        Exception: that of the first failed job in order, once all have ended.
    """
    errors: dict[int, BaseException] = {}

    def note(position: int, error: BaseException | None) -> None:
        if error is not None:
            errors[position] = error
        if wants_out(error):
            batch.cancel()

    batch = make(range(len(results)), limit or len(results), note)
    batch.start()
    try:
        while batch.open > len(batch.ended):
            yield batch.wait()
    except GeneratorExit:
        raise
    except BaseException:  # Ctrl-C, or the caller is cancelled
        yield batch.abandon()
        raise
    yield batch.join()
    # Ctrl-C before all others; else the first in order, so that the same batch raises the same
    # error.
    for position in sorted(errors, key=lambda each: (not wants_out(errors[each]), each)):
        if not (keep_errors and isinstance(errors[position], Exception)):
            raise errors[position]
        results[position] = errors[position]
    return results


def wants_out(error: BaseException | None) -> bool:
    """Whether the process is to end: nothing is started any more."""
    return isinstance(error, (KeyboardInterrupt, SystemExit))
