"""`Submitter`: stores the jobs that a queue has checked, and notifies the workers."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from ..checkpoint.errors import StorageError
from ..checkpoint.records import check_names
from ..checkpoint.sql.postgres_server import Wire
from .database import JobDatabase
from .delays import Debounce, Due
from .jobs import JobCodec, JobName, decode_name, hash_name
from .tables import STATEMENTS

FAIRNESS_KEY = "fairness_key"
"""In the options of a job, beside what is stored with its input."""
TRIES = 20
"""How often a debounced job is tried that conflicts with another submission to its thread, or whose
predecessor has just been begun."""


def read_fairness_key(key: Any) -> dict[str, str]:
    """Return a fairness key as an option of a job.

    Raises:
        ValueError: it is not a string that a database can store.
    """
    if not isinstance(key, str):
        raise ValueError(f"fairness_key must be a string, got {key!r}")
    check_names(key)
    return {FAIRNESS_KEY: key}


class Submitter:
    """Stores jobs of one graph. Any thread may use it.

    Args:
        graph: the graph that runs the jobs.
    """

    def __init__(self, database: JobDatabase, graph: str, codec: JobCodec) -> None:
        self.graph: str = graph
        self._database, self._codec = database, codec

    def row(self, thread_id: str, run_id: str, priority: int, given: dict[str, Any]) -> Any:
        """Return a job in the form that `insert` takes.

        Raises:
            UnserializableError: the input cannot be stored.
        """
        key = given.get(FAIRNESS_KEY, "")
        told = {name: each for name, each in given.items() if name != FAIRNESS_KEY}
        task = self._codec.write("task", JobName(self.graph, thread_id, run_id), told)
        return hash_name(thread_id), thread_id, run_id, priority, key, task

    def read_instead_of(self, rows: list[Any], thread_id: str, run_id: str) -> list[str]:
        """Return the run ids of the jobs that a job takes back; none if there is no such job.

        Args:
            rows: what the statement "task" has found.
        """
        name = JobName(self.graph, thread_id, run_id)
        return [
            each
            for (task,) in rows
            for each in self._codec.read("task", name, task).get("instead_of", ())
        ]

    def insert(self, rows: list[Any], due: Due) -> None:
        """Store jobs, each once, and notify workers.

        Raises:
            ValueError: a thread's job of such a name is another graph's.
            ConnectionLostError: whether they are stored is not known.
        """
        if rows:
            self._database.retry_once(self._insert, rows, due)

    def _insert(self, rows: list[Any], due: Due) -> None:
        with self._database.statements() as wire:
            self.store(wire, rows, due)
            self.notify(wire, due)

    def store(self, wire: Wire, rows: list[Any], due: Due) -> None:
        """Store jobs, each once, on this connection.

        Raises:
            ValueError: a thread's job of such a name is another graph's.
        """
        foreign = wire.rows(STATEMENTS["submit"], self.graph, rows, *due)
        for graph, thread_id, run_id in foreign:
            name = JobName(*map(decode_name, (graph, thread_id, run_id)))
            raise ValueError(
                f"{name} belongs to the graph {name.graph!r}, so no job of {self.graph!r} can "
                "have this run_id. Nothing was submitted: use another run_id or thread"
            )

    def debounce(
        self, thread_id: str, priority: int, given: dict[str, Any], wait: Debounce
    ) -> str:
        """Store a job that waits for a newer input, or replace the input of the thread's waiting
        job. Return its run id.

        Raises:
            StorageError: it conflicted with other submissions at every attempt; nothing is stored.
            ConnectionLostError: whether it is stored is not known.
        """
        return self._database.retry_once(self._debounce, thread_id, priority, given, wait)

    def _debounce(
        self, thread_id: str, priority: int, given: dict[str, Any], wait: Debounce
    ) -> str:
        with self._database.statements() as wire:
            for _ in range(TRIES):
                # A task is bound to its run id, which must therefore be known first.
                known = wire.rows(STATEMENTS["debounced"], self.graph, thread_id)
                run_id = decode_name(known[0][0]) if known else str(uuid4())
                lane, *_, task = self.row(thread_id, run_id, priority, given)
                job = (thread_id, run_id, priority, task)
                if known:
                    found = wire.rows(STATEMENTS["replace_debounced"], self.graph, *job, *wait)
                else:
                    values = (self.graph, *job, lane, wait.seconds)
                    found = wire.rows(STATEMENTS["submit_debounced"], *values)
                if found:
                    self.notify(wire, Due(at=found[0][0]))
                    return run_id
        raise StorageError(
            f"{TRIES} submissions to thread {thread_id!r} came between: nothing was submitted, "
            "submit it again"
        )

    def notify(self, wire: Wire, due: Due) -> None:
        """Notify workers, in a separate transaction: Postgres serializes commits that send notices,
        and each holds the next up until it is on disk."""
        if due.later:
            wire.run(STATEMENTS["notify_delay"], hash_name(self.graph), *due)
        else:
            wire.run(STATEMENTS["notify_workers"], hash_name(self.graph))
