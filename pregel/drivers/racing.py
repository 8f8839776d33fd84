"""Racers at work: each runs as a copy of its task that can be given up. `aio.race_on_loop` is the
same for asyncio.

What a copy has done counts if it ends before another one has won. Else its deadline is abandoned,
which fences off whatever it still writes; an executor then cancels its call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

from ..schedule.races import RaceKey, RacerKey, Races, race_of, racer_of
from ..task.deadline import Deadline
from ..task.task import Task
from .attempt import cancel_calls
from .batch import Batch
from .pool import POOL


class Racer:
    """A racer at work.

    Args:
        task: where its end is noted.

    Attributes:
        copy: what is run.
        give_up: ends the wait for it; may be called more than once.
    """

    __slots__ = ("copy", "deadline", "give_up", "task")

    def __init__(self, task: Task) -> None:
        self.task: Task = task
        self.deadline: Deadline = Deadline(above=task.nearest_deadline)
        self.copy: Task = task.detach(self.deadline)
        self.give_up: Callable[[], Any] = bool

    def abandon(self) -> None:
        """Give it up: it has lost."""
        self.deadline.abandon()
        cancel_calls(self.copy)
        self.give_up()


class Racers:
    """The racers among the tasks of a batch."""

    def __init__(self, races: Races) -> None:
        self._races = races
        self._jobs: dict[RacerKey, Task] = {}
        self._at_work: dict[RacerKey, Racer] = {}
        self._lost: set[RacerKey] = set()
        self._finished: dict[RaceKey | None, Task] = {}
        self._lock = threading.Lock()

    def add(self, jobs: Sequence[Task]) -> None:
        """Note tasks that come into the batch."""
        self._jobs.update((racer_of(job), job) for job in jobs if race_of(job) is not None)

    def enter(self, task: Task, give_up: Callable[[], Any]) -> Racer | None:
        """Begin to run a racer; None if it has lost by now, or will: another one has finished."""
        key, racer = racer_of(task), Racer(task)
        racer.give_up = give_up
        with self._lock:
            # One that has finished may have failed since: what it wrote could not be applied.
            first = self._finished.get(race_of(task))
            if key in self._lost or (first is not None and first.finished):
                return None
            self._at_work[key] = racer
        return racer

    def leave(self, racer: Racer) -> None:
        """Nobody waits for a racer any more: note how it has ended, if it has not lost."""
        with self._lock:
            self._at_work.pop(racer_of(racer.task), None)
            self._jobs.pop(racer_of(racer.task), None)
        if racer.deadline.abandoned:
            return
        racer.task.take_outcome(racer.copy)
        if racer.task.finished:
            self._finished[race_of(racer.task)] = racer.task

    def stop(self, losers: Sequence[Task], batch: Batch[Task]) -> None:
        """Stop those that have lost: who has not begun does not begin."""
        keys = [racer_of(task) for task in losers]
        with self._lock:
            self._lost.update(keys)
            at_work = [self._at_work[key] for key in keys if key in self._at_work]
        batch.drop([self._jobs[key] for key in keys if key in self._jobs])
        for racer in at_work:
            racer.abandon()

    def fails(self, task: Task) -> bool:
        """Whether the superstep fails by the failure of this task."""
        has_lost = race_of(task) is not None and racer_of(task) in self._lost
        return not has_lost and self._races.note_failure(task)


def race_on_thread(execute: Callable[[Task], None], racers: Racers, task: Task) -> None:
    """Run a task; one in a race on a thread of its own, until it ends or has lost."""
    if race_of(task) is None:
        execute(task)
        return
    ended = threading.Event()
    racer = racers.enter(task, ended.set)
    if racer is None:
        return

    def work() -> None:
        try:
            if not racer.deadline.abandoned:  # it may have lost before this thread came
                execute(racer.copy)
        finally:
            ended.set()

    POOL.submit(partial(copy_context().run, work))
    ended.wait()
    racers.leave(racer)
