"""Schedules: jobs submitted at the times of a cron expression. This module stores and lists them;
workers fire them, in `scheduler`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, get_args

from .cron import check_cron
from .database import JobDatabase
from .jobs import JobCodec, JobName, check_key, check_thread, decode_name, hash_name

Missed = Literal["one", "all", "none"]
"""What happens to planned times when no worker was running. `one`: only the newest is run late.
`all`: all are, in order. `none`: none is, unless it is less than a minute ago."""

MISSED: tuple[Missed, ...] = get_args(Missed)


class ScheduleInfo(NamedTuple):
    """A schedule as stored in the database.

    Attributes:
        graph: the name of the graph whose workers fire it.
        name: the schedule's name, unique within the graph.
        cron: the cron expression of its planned times.
        tz: the time zone of `cron`.
        missed: see `Missed`.
        thread_id: the thread of all its jobs; None if each job has its own.
        priority: the priority of its jobs.
        next_at: the next planned time, in UTC.
        last_at: the newest planned time that was fired, in UTC; None before the first.
    """

    graph: str
    name: str
    cron: str
    tz: str
    missed: Missed
    thread_id: str | None
    priority: int
    next_at: datetime
    last_at: datetime | None


class ScheduleKeeper:
    """Stores the schedules of one graph. Any thread may use it."""

    def __init__(self, database: JobDatabase, graph: str, codec: JobCodec) -> None:
        self._database, self._graph, self._codec = database, graph, codec

    def add(
        self,
        name: str,
        planned: tuple[str, str, Missed, str | None],
        priority: int,
        given: dict[str, Any],
    ) -> datetime:
        """Store a schedule, or change the one with this name; return its next planned time.

        Args:
            planned: its cron expression, its zone, what happens to missed times, and its thread.

        Raises:
            ImportError, TypeError, UnserializableError, ValueError: it cannot be stored.
        """
        text, zone, missed, thread_id = planned
        check_schedule_name(name)
        cron = check_cron(text, zone)
        if missed not in MISSED:
            raise ValueError(f"missed must be one of {', '.join(MISSED)}, got {missed!r}")
        if thread_id is not None:
            check_thread(thread_id)
        task = self._codec.write("schedule", schedule_place(self._graph, name), given)
        ((clock,),) = self._database.look_up("clock")
        next_at = cron.next(datetime.fromtimestamp(clock, UTC)).timestamp()
        ((stored,),) = self._database.look_up(
            "schedule", self._graph, name, *planned, priority, task, next_at
        )
        self._database.run("notify_delay", hash_name(self._graph), None, stored)
        return datetime.fromtimestamp(stored, UTC)

    def remove(self, name: str) -> bool:
        """Delete a schedule; return whether it existed."""
        return bool(self._database.run("unschedule", self._graph, name))

    def list(self) -> list[ScheduleInfo]:
        """Return the schedules of all graphs."""
        return [
            ScheduleInfo(decode_name(graph), *read_schedule(row))
            for graph, *row in self._database.look_up("schedules")
        ]


def schedule_place(graph: str, name: str) -> JobName:
    """Return the place that the input of a schedule is bound to. The empty thread id keeps it apart
    from all jobs."""
    return JobName(graph, "", name)


def read_schedule(row: Any) -> tuple[Any, ...]:
    """Decode the columns of a schedule, beginning with its name."""
    name, cron, zone, missed, thread_id, priority, next_at, last_at = row
    texts = (decode_name(name), decode_name(cron), decode_name(zone), decode_name(missed))
    thread = None if thread_id is None else decode_name(thread_id)
    last = None if last_at is None else datetime.fromtimestamp(last_at, UTC)
    return (*texts, thread, priority, datetime.fromtimestamp(next_at, UTC), last)


def check_schedule_name(name: Any) -> None:
    """Check that a value can be the name of a schedule.

    Raises:
        TypeError: it is not a string.
        ValueError: it is empty, too long, or cannot be stored.
    """
    if not isinstance(name, str):
        raise TypeError(f"a schedule's name must be a string, got {name!r}")
    check_key("schedule", name)
