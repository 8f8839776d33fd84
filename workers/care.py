"""`QueueCare`: inspects and maintains a queue's jobs, workers and schedules. It submits nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from ..checkpoint.threads import AsyncCaller
from ..pregel.errors import nearest
from .database import JobDatabase
from .jobs import (
    LISTED,
    STATUSES,
    JobCodec,
    JobResult,
    OpenJobs,
    Status,
    VersionInfo,
    WorkerInfo,
    decode_name,
    hash_name,
    read_result,
)
from .schedules import ScheduleInfo, ScheduleKeeper
from .tables import STATEMENTS


class QueueCare(AsyncCaller):
    """The part of `Queue` that inspects and maintains jobs, workers and schedules.

    Attributes:
        graph: the name of the graph whose jobs the queue holds.
    """

    graph: str
    _database: JobDatabase
    _codec: JobCodec
    _schedules: ScheduleKeeper

    def jobs(
        self, statuses: Collection[str] = LISTED, *, limit: int = 100
    ) -> list[JobResult]:
        """Return the jobs of all graphs that have one of these statuses, in the order submitted
        and without their outcomes.

        Raises:
            ValueError: a status does not exist, or the limit is below 0.
        """
        if limit < 0:
            raise ValueError(f"limit must be an integer >= 0, got {limit}")
        for each in statuses:
            if each not in STATUSES:
                raise ValueError(f"unknown status {each!r}; {nearest(each, STATUSES)}")
        return self._list("listed", [*statuses], limit)

    def named(self, run_id: str) -> list[JobResult]:
        """Return the jobs of all graphs that have this run id, at most one per thread, without
        their outcomes."""
        return self._list("named", run_id)

    def _list(self, statement: str, *values: Any) -> list[JobResult]:
        """Return the jobs that a statement finds, without their outcomes."""
        rows = self._database.look_up(statement, *values)
        return [read_result((*row[1:-1], None), self._codec) for row in rows]

    def statuses(self, run_ids: Collection[str]) -> dict[tuple[str, str], Status]:
        """Return the status of the jobs of all graphs that have one of these run ids:
        (thread id, run id) → status."""
        rows = self._database.look_up("statuses", [*run_ids])
        return {(decode_name(thread), decode_name(run)): state for thread, run, state in rows}

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Return the number of jobs in each status: graph → status → number."""
        found: dict[str, dict[str, int]] = {}
        for graph, state, number in self._database.look_up("counts"):
            found.setdefault(decode_name(graph), {})[state] = number
        return found

    def open_jobs(self) -> list[OpenJobs]:
        """Return how many jobs have not ended and how long the oldest has waited: one row per
        status, for this graph and for each other graph with such jobs."""
        found = {
            (decode_name(graph), state): (number, age)
            for graph, state, number, age in self._database.look_up("open")
        }
        rows = []
        for graph in dict.fromkeys((self.graph, *(graph for graph, _ in found))):
            for status in LISTED:
                number, age = found.get((graph, status), (0, 0.0))
                waited = max(0.0, age) if status == "waiting" else 0.0
                rows.append(OpenJobs(graph, status, number, waited))
        return rows

    def workers(self) -> list[WorkerInfo]:
        """Return the workers of all graphs. A dead one is listed until another worker notices."""
        rows = self._database.look_up("workers")
        return [
            WorkerInfo(id, decode_name(graph), decode_name(name), *more)
            for id, graph, name, *more in rows
        ]

    def versions(self) -> list[VersionInfo]:
        """Return the versions of all graphs that workers have had or jobs wait for, of each graph
        the newest first."""
        rows = self._database.look_up("versions")
        return [
            VersionInfo(decode_name(graph), decode_name(version), *more)
            for graph, version, *more in rows
        ]

    def ramp(self, percent: int) -> str:
        """Let the newest version of the graph take so many of 100 new threads, and the other
        versions the rest; 0 sends all new threads back to them. Threads that have begun stay with
        their version. Returns the newest version.

        Raises:
            ValueError: `percent` is not between 0 and 100, or no version is known.
        """
        if not 0 <= percent <= 100:
            raise ValueError(f"ramp() needs a percentage from 0 to 100, got {percent}")
        with self._database.statements() as wire:
            found = wire.rows(STATEMENTS["ramp"], self.graph, percent)
            wire.run(STATEMENTS["notify_workers"], hash_name(self.graph))
        if not found:
            raise ValueError(f"no worker of {self.graph!r} has a version: compile(version=...)")
        return decode_name(found[0][0])

    def evict(self, worker: int) -> int:
        """Take the jobs of a live worker away and close its connection, so that other workers
        continue them. Use it when a worker or a node in it hangs. Its remaining runs can neither
        commit nor end a job.

        Returns:
            How many jobs returned to the queue.
        """
        with self._database.statements() as wire:
            freed = wire.rows(STATEMENTS["free"], worker)
            wire.run(STATEMENTS["evict"], worker)
            for graph in {graph for (graph,) in freed}:
                wire.run(STATEMENTS["notify_workers"], hash_name(decode_name(graph)))
        return len(freed)

    def limit(self, most: int | None) -> None:
        """Limit how many runs of the graph may execute at once, over all workers; None for no
        limit.

        Raises:
            ValueError: the limit is below 1.
        """
        if most is None:
            self._database.run("drop_limit", self.graph)
            return
        if most < 1:
            why = f"a limit must be an integer >= 1, got {most}; to run nothing, start no worker"
            raise ValueError(why)
        self._database.run("set_limit", self.graph, most)

    def forget(self, older_than: timedelta = timedelta()) -> int:
        """Delete jobs of this graph that ended longer ago than this. Their threads and parked jobs
        stay.

        Returns:
            How many jobs were deleted.

        Raises:
            ValueError: the age is negative, which would delete all of them.
        """
        if older_than < timedelta():
            raise ValueError(f"older_than must not be negative, got {older_than}")
        return self._database.run("forget", self.graph, older_than.total_seconds())

    def forget_thread(self, thread_id: str) -> int:
        """Delete the jobs of this graph on a thread that have ended or are parked, with their
        streams.

        Returns:
            How many jobs were deleted.
        """
        return self._database.run("forget_thread", self.graph, hash_name(thread_id), thread_id)

    def schedules(self) -> list[ScheduleInfo]:
        """Return the schedules of all graphs, ordered by graph and name."""
        return self._schedules.list()
