"""`WorkerSaver`: a worker's checkpointer on the queue's database. It does not read again what the
claim of a job already returned, and it knows that the queue holds the job's input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..checkpoint.postgres import PostgresSaver
from ..checkpoint.records import CheckpointTuple, RunnableConfig, coordinates
from ..checkpoint.sql.rows import StoredCheckpoint
from .jobs import Job


class WorkerSaver(PostgresSaver):
    """The checkpointer that a worker gives to its graph.

    A claim returns the head of the job's thread. If a run outside the queue has moved the head
    since, the run's first commit fails (`CheckpointConflictError`), and the job is tried again
    without relying on the claim.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # By thread: a worker runs one job of a thread at a time, besides, at most, the remains of
        # an attempt that it has lost.
        self._running: dict[str, RunningJob] = {}

    @contextmanager
    def running(self, job: Job, *, trusted: bool) -> Iterator[None]:
        """Return a context in which a job runs.

        Args:
            trusted: whether to rely on what the claim returned about its thread.
        """
        thread_id = job.name.thread_id
        running = self._running[thread_id] = RunningJob(job, trusted)
        try:
            yield
        finally:
            if self._running.get(thread_id) is running:
                del self._running[thread_id]

    def keeps_input(self, thread_id: str, run_id: str | None) -> bool:
        """Return whether this is the run of a job: the queue keeps its input until it has ended."""
        running = self._running.get(thread_id)
        return running is not None and running.job.name.run_id == run_id

    def _find(
        self, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None
    ) -> StoredCheckpoint | None:
        """Skip the lookup in a thread that was empty at the claim; only once, because then the run
        itself fills the thread."""
        running = self._running.get(thread_id)
        is_start = not checkpoint_ns and checkpoint_id is None
        if running is None or not running.trusted or running.started or not is_start:
            return super()._find(thread_id, checkpoint_ns, checkpoint_id)
        running.started = True
        if running.job.head is None:
            return None
        found = super()._find(thread_id, checkpoint_ns, checkpoint_id)
        running.unchanged = found is not None and found.state.id == running.job.head
        return found

    def run_of(self, config: RunnableConfig, run_id: str) -> CheckpointTuple | None:
        """Return the newest checkpoint of a run with this id, or None. If there was none at the
        claim and the head has not moved since, there is still none."""
        running = self._running.get(coordinates(config)[0])
        if (
            running is not None
            and running.unchanged
            and not running.job.was_delivered
            and running.job.name.run_id == run_id
        ):
            return None
        return super().run_of(config, run_id)


@dataclass(slots=True)
class RunningJob:
    """A job that is running.

    Attributes:
        trusted: whether to rely on what the claim returned about the thread.
        started: whether the run has looked up its first checkpoint.
        unchanged: whether it starts from the head that the claim returned.
    """

    job: Job
    trusted: bool
    started: bool = False
    unchanged: bool = False
