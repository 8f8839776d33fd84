"""`Scheduler`: creates the jobs of schedules that are due. Each worker has one; there is no
separate process for it.

If several workers find a schedule due, one of them advances it and stores the jobs, in one
transaction. So each planned time fires once, even if workers are killed at any point.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

from ..checkpoint.sql.postgres_wire import Wire
from .cron import Cron, check_cron
from .jobs import JobCodec, JobName, hash_name
from .schedules import read_schedule, schedule_place
from .timed_tables import TIMED_STATEMENTS

LATE = timedelta(minutes=1)
"""How late a planned time may still fire with `missed="none"`."""

MOST_AT_ONCE = 500
"""How many planned times are fired in one transaction."""

LOG = logging.getLogger("stategraph.workers")


class DueSchedule(NamedTuple):
    """A schedule whose planned time `first` has come. `given` holds its input and its options."""

    name: str
    cron: Cron
    missed: str
    thread_id: str | None
    priority: int
    given: dict[str, Any]
    revision: int
    first: datetime


class Scheduler:
    """Fires the schedules of one graph, on a worker's connection."""

    def __init__(self, graph: str, codec: JobCodec) -> None:
        self._graph, self._codec = graph, codec
        self._refused: set[tuple[str, int]] = set()  # names and revisions that have been logged

    def fire(self, wire: Wire) -> tuple[bool, int]:
        """Store the jobs of all schedules that are due. Return whether a schedule advanced, and how
        many jobs were stored."""
        has_moved, made = False, 0
        for *row, task, revision, clock in wire.rows(
            TIMED_STATEMENTS["due_schedules"], self._graph
        ):
            now = datetime.fromtimestamp(clock, UTC)
            name, text, zone, missed, thread_id, priority, first, _ = read_schedule(row)
            try:
                given = self._codec.read("schedule", schedule_place(self._graph, name), task)
                cron = check_cron(text, zone)
            except Exception as error:  # another worker may be able to fire it
                self._refuse(name, revision, error)
                continue
            due = DueSchedule(name, cron, missed, thread_id, priority, given, revision, first)
            has_moved = True  # by this worker or another one
            if first > now:  # the clock was ahead when it fired last
                self._store(wire, due, [], cron.next(now), now)
            while due.first <= now:
                moments, after = find_moments(due, now)
                if not self._store(wire, due, moments, after):
                    break
                made += len(moments)
                due = due._replace(first=after)
        return has_moved, made

    def _refuse(self, name: str, revision: int, error: Exception) -> None:
        """Log once that this worker cannot fire a schedule."""
        if (name, revision) not in self._refused:
            self._refused.add((name, revision))
            LOG.error("the schedule %r cannot be fired here: %s", name, error)

    def _store(
        self,
        wire: Wire,
        due: DueSchedule,
        moments: list[datetime],
        after: datetime,
        last: datetime | None = None,
    ) -> bool:
        """Store the jobs of these planned times, and advance the schedule. Return whether this
        worker was the first to do so.

        Args:
            last: what is stored as the last planned time if there is none.
        """
        last = moments[-1] if moments else last
        runs = [f"{due.name}@{moment:%Y-%m-%dT%H:%M:%SZ}" for moment in moments]
        # A thread belongs to one graph, and two graphs may have schedules with the same name.
        threads = [due.thread_id or f"{self._graph}/{run_id}" for run_id in runs]
        tasks = [
            self._codec.write("task", JobName(self._graph, thread, run_id), due.given)
            for thread, run_id in zip(threads, runs, strict=True)
        ]
        ((moved, made),) = wire.rows(
            TIMED_STATEMENTS["fire"],
            self._graph,
            due.name,
            due.revision,
            due.first.timestamp(),
            after.timestamp(),
            None if last is None else last.timestamp(),
            [*map(hash_name, threads)],
            threads,
            runs,
            [due.priority] * len(runs),
            tasks,
        )
        if moved and made < len(runs):
            LOG.warning("some jobs of the schedule %r were there already: %s", due.name, runs)
        return bool(moved)


def find_moments(due: DueSchedule, now: datetime) -> tuple[list[datetime], datetime]:
    """Return the planned times to fire now, and the one that follows them. For `missed="all"`, more
    may be due."""
    if due.missed == "all":
        moments = [*islice(due.cron.due(due.first, now), MOST_AT_ONCE)]
        return moments, due.cron.next(moments[-1])
    last = due.cron.last(due.first, now)
    after = due.cron.next(last)
    if due.missed == "none" and now - last >= LATE:
        return [], after
    return [last], after
