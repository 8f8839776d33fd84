"""The sync driver: it performs what the loop asks for, on this thread and on worker threads, and
nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from ..errors import GraphBubbleUp
from ..run.effects import Claim, Effects, Load, RunTasks, Save
from ..run.loop import supersteps
from ..run.run import Run
from ..superstep.outcome import StepLimit
from ..superstep.task import Task
from .futures import Calls
from .journal import Journal
from .loading import load
from .pool import MAX_THREADS, POOL, Batch
from .steps import run_steps
from .waits import WAITS, run_task

TOGETHER, AT_MOST = 0.0002, 0.01
"""Seconds between the ends of tasks that count as one end, and in all: they are recorded in one
commit (P16-tasks)."""


class ReaderLeft(BaseException):
    """Thrown into the loop when the reader of a stream stops early."""


def drive(run: Run, effects: Effects | None = None) -> None:
    """Carry a run (or other effects on its thread) through to the end; nobody reads."""
    loop = supersteps(run) if effects is None else effects
    driver = Driver(run)
    perform, run_tasks = driver.perform, driver.run_tasks
    try:
        for effect in loop:
            if effect.__class__ is RunTasks:  # no isinstance: once a superstep (P1)
                run_tasks(effect)
            else:
                perform(effect)
    except BaseException as error:
        driver.abort(loop, error)
        raise
    driver.settle()


def stream(run: Run) -> Iterator[Any]:
    """Carry a run through, handing over each chunk before anything further is done."""
    loop = supersteps(run)
    driver = Driver(run)
    out = run.output.open(driver.wake)
    try:
        for effect in loop:
            if effect.__class__ is not RunTasks:
                driver.perform(effect)  # before the reader sees chunks of what is being stored
                continue
            while True:
                while out:
                    yield out.popleft()
                driver.run_tasks(effect)
                if effect.finished:
                    break
        driver.settle()
    except GeneratorExit:
        driver.abort(loop, ReaderLeft())
        raise
    except BaseException as error:
        driver.abort(loop, error)
        # Ctrl-C does not wait for the reader.
        while out and isinstance(error, (Exception, GraphBubbleUp)):
            yield out.popleft()
        raise
    while out:
        yield out.popleft()


class Driver:
    """Answers the effects of one loop."""

    __slots__ = ("_batch", "_dropped", "_ended", "_journal", "_limit", "_open", "_run")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._batch: Batch | None = None
        self._ended: SimpleQueue[Task | None] = SimpleQueue()
        self._dropped: list[Task] = []
        self._open = 0
        self._journal = None if run.thread.saver is None else Journal(run)
        run.use_driver(self._journal, Calls)
        self._limit = (
            None if run.settings.step_timeout is None else StepLimit(run.settings.step_timeout)
        )

    def wake(self) -> None:
        """A chunk is waiting for the reader."""
        if self._batch is not None:
            self._ended.put(None)

    def perform(self, effect: Any) -> None:
        """Load or save; threads give way by themselves."""
        journal = self._journal
        if journal is None:
            return  # nothing is stored
        if isinstance(effect, Save):
            try:
                if self._run.saves_in_background:
                    journal.flush()  # one step at most is unsaved
                    journal.post(effect)
                else:
                    journal.store(effect)
            except BaseException:
                self._run.output.drop_chunks()
                raise
        elif isinstance(effect, Claim):
            journal.store(effect)
        elif isinstance(effect, Load):
            run_steps(load(self._run, effect, WAITS))

    def settle(self) -> None:
        """Wait for what is still being saved.

        Raises:
            Exception: whatever the save raised.
        """
        if self._journal is not None:
            self._journal.flush()

    def run_tasks(self, effect: RunTasks) -> None:
        """Start the tasks, or wait for more of them."""
        tasks = effect.tasks
        if self._batch is None:
            journal = self._journal
            if journal is not None and journal.unreported is not None:
                journal.check()
            if len(tasks) == 1 and not self._run.output.live:
                # One task needs no batch, no worker and no queue (P1, P2).
                copy_context().run(run_task, tasks[0])
                effect.finished = tasks
                return
            self._start(effect)
        self._collect(effect)
        if not effect.open:
            self._batch = None

    def _start(self, effect: RunTasks) -> None:
        run = self._run
        tasks = effect.tasks if self._limit is None else self._limit.detach(effect.tasks)
        self._open = len(tasks)
        self._dropped = []
        self._batch = Batch(
            tasks, run_task, run.settings.config.get("max_concurrency") or MAX_THREADS, self._end
        )
        if run.watched:
            self._batch.start()
        else:
            # Nobody waits for single tasks: this thread is the first worker. Quick tasks are done
            # before another thread has woken (P7, P8).
            self._batch.work()

    def _end(self, task: Task) -> None:
        """A task has ended, on its worker's thread. After a failure (a signal is none) no further
        one is started, but for those that could have been started with it."""
        if task.fatal and self._batch is not None and not isinstance(task.error, GraphBubbleUp):
            wants_out = isinstance(task.error, (KeyboardInterrupt, SystemExit))
            self._dropped += self._batch.cancel() if wants_out else self._batch.stop()
        self._ended.put(task)

    def _collect(self, effect: RunTasks) -> None:
        """Wait for one task, or for all if nobody waits for single ones; take along what else has
        ended."""
        ended, run = self._ended, self._run
        # Tasks that end at almost the same time are recorded together.
        gathers = self._limit is None and run.records_early
        latest = 0.0
        finished: list[Task] = []
        while self._open > len(self._dropped):
            if finished and gathers:
                try:
                    task = ended.get(timeout=TOGETHER)
                except Empty:
                    break
                gathers = time.monotonic() < latest
            elif finished and run.watched and ended.empty():
                break  # somebody waits for single tasks: this one is not held back for the next
            else:
                task = ended.get() if self._limit is None else self._in_time(self._limit)
                latest = time.monotonic() + AT_MOST
            if task is not None:
                self._open -= 1
                finished.append(task)
            elif run.watched and run.output.chunks:
                break
        effect.finished = finished
        effect.open = self._open - len(self._dropped)

    def _in_time(self, limit: StepLimit) -> Task | None:
        """What has ended next.

        Raises:
            StepTimeoutError: nothing has until the superstep's limit. Nobody waits for its tasks
                any longer.
        """
        while True:
            try:
                copy = self._ended.get(timeout=limit.remaining())
            except Empty:
                if limit.remaining() > 0:
                    continue
                if self._batch is not None:
                    self._batch.cancel()
                self._batch = None
                raise limit.expire() from None
            return None if copy is None else limit.admit(copy)

    def abort(self, loop: Effects, error: BaseException) -> None:
        """Let running tasks end, then let the loop keep what was done. Its own end is not our
        concern."""
        self._run.cancel()
        if self._batch is not None:
            self._dropped += self._batch.cancel()
            while self._open > len(self._dropped):
                ended = self._ended.get()
                if ended is not None:
                    self._open -= 1
                    if self._limit is not None:
                        self._limit.admit(ended)
            self._batch = None
        try:
            effect = loop.throw(error)
            while True:
                if not isinstance(effect, RunTasks):
                    self.perform(effect)
                effect = next(loop)
        except BaseException as end:
            note_loss(error, end)
        finally:
            loop.close()
        try:
            self.settle()
        except BaseException as end:
            note_loss(error, end)


def note_loss(error: BaseException, end: BaseException) -> None:
    """A loop that was thrown `error` ended with `end`. The caller raises the first cause; if
    keeping what was done has failed as well, that is noted on it."""
    if end is not error and isinstance(end, Exception) and not isinstance(end, StopIteration):
        error.add_note(f"Storing the work that was done by then failed as well: {end!r}")


def side_by_side(
    jobs: Sequence[Callable[[], Any]], limit: int | None, keep_errors: bool
) -> list[Any]:
    """Call independent jobs on worker threads, at most `limit` at once; results in order.

    Args:
        keep_errors: put what a job raised in the place of its result.

    Raises:
        Exception: that of the first failed job in order, once all have ended.
    """
    results: list[Any] = [None] * len(jobs)
    errors: list[BaseException | None] = [None] * len(jobs)
    waiting = list(range(len(jobs)))[::-1]
    done: SimpleQueue[None] = SimpleQueue()

    def work() -> None:
        while waiting:
            try:
                position = waiting.pop()
            except IndexError:
                break
            try:
                results[position] = copy_context().run(jobs[position])
            except BaseException as error:
                errors[position] = error
        done.put(None)

    workers = min(limit or len(jobs), len(jobs))
    for _ in range(workers):
        POOL.submit(partial(copy_context().run, work))
    for _ in range(workers):
        done.get()
    for position, error in enumerate(errors):
        if keep_errors and isinstance(error, Exception):
            results[position] = error
        elif error is not None:
            raise error
    return results
