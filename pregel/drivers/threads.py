"""The sync driver: what the loop of a run asks for happens on this thread and on worker threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

from ..run.effects import Effects
from ..run.run import Run
from ..steps import PAUSE, Waits, run_steps
from ..task.task import Task
from . import batch
from .backpressure import hold_writer
from .driver import Driver, ReaderLeft
from .futures import Calls
from .journal import Journal
from .pool import MAX_THREADS, ThreadBatch
from .waits import WAITS, run_in_time, run_task


def drive(run: Run, effects: Effects | None = None) -> None:
    """Carry a run (or other effects on its thread) through to the end; nobody reads."""
    driver = ThreadDriver(run, effects)
    try:
        run_steps(driver.advance())
    except BaseException as error:
        run_steps(driver.abort(error))
        raise


def stream(run: Run) -> Iterator[Any]:
    """Carry a run through, handing over each chunk before anything further is done."""
    driver = ThreadDriver(run)
    output = run.output
    steps, chunks = driver.advance(), output.open(driver.wake, hold_writer)
    try:
        while run_steps(steps) is PAUSE:
            while chunks:
                yield chunks.popleft()
                if output.waiting:
                    output.release()
    except GeneratorExit:
        run_steps(driver.abort(ReaderLeft()))
        raise
    except BaseException as error:
        run_steps(driver.abort(error))
        while chunks:
            yield chunks.popleft()
        raise
    output.close()
    while chunks:
        yield chunks.popleft()


class ThreadDriver(Driver):
    """Answers the effects of one loop on threads."""

    waits: Waits = WAITS
    make_journal: Callable[[Run], Journal] = Journal
    make_calls: Callable[[Run], Any] = Calls
    executes = run_task, run_in_time

    def run_alone(self, task: Task) -> None:
        copy_context().run(self._execute, task)

    def make_batch(self, tasks: Sequence[Task]) -> ThreadBatch[Task]:
        limit = self.run.settings.config.get("max_concurrency") or MAX_THREADS
        races = self._racers is not None or self.run.program.starts_ready
        execute = self._race if races else self._execute
        return ThreadBatch(execute, tasks, limit, self.end)

    def _race(self, task: Task) -> None:
        """Run a task of a batch in which there are racers, or may come."""
        if self._racers is None:
            self._execute(task)
        else:
            from .racing import race_on_thread

            race_on_thread(self._execute, self._racers, task)


def side_by_side(
    jobs: Sequence[Callable[[], Any]], limit: int | None, keep_errors: bool
) -> list[Any]:
    """`batch.side_by_side` for functions, on worker threads."""
    results: list[Any] = [None] * len(jobs)

    def work(position: int) -> None:
        results[position] = jobs[position]()

    make = partial(ThreadBatch, work)
    return run_steps(batch.side_by_side(results, make, limit, keep_errors))
