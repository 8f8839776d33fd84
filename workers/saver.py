"""`WorkerSaver`: a worker's saver on the database of the queue, which does not search for what the
claim of a job has told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..checkpoint.postgres import PostgresSaver
from ..checkpoint.records import CheckpointTuple, RunnableConfig, coordinates
from ..checkpoint.sql.rows import StoredCheckpoint
from .jobs import Job


class WorkerSaver(PostgresSaver):
    """The saver that a worker gives to its graph.

    A claim tells where the job's thread stands. Somebody may have run the thread past the queue
    since: then the run's first commit meets a head that it does not expect
    (`CheckpointConflictError`), and the job is tried again without what the claim has told.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # By thread: a worker runs one job of a thread at a time.
        self._claimed: dict[str, Job] = {}

    @contextmanager
    def claimed(self, job: Job) -> Iterator[None]:
        """In this context, take what the claim of a job has told of its thread for true."""
        self._claimed[job.name.thread_id] = job
        try:
            yield
        finally:
            self._claimed.pop(job.name.thread_id, None)

    def _find(
        self, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None
    ) -> StoredCheckpoint | None:
        """Nothing is looked up in a thread that was empty; once, for the run itself then fills
        it."""
        job = self._claimed.get(thread_id)
        if job is None or checkpoint_ns or checkpoint_id is not None:
            return super()._find(thread_id, checkpoint_ns, checkpoint_id)
        if job.head is None:
            del self._claimed[thread_id]
            return None
        found = super()._find(thread_id, checkpoint_ns, checkpoint_id)
        if found is None or found.state.id != job.head:
            del self._claimed[thread_id]  # what the claim saw is no longer so
        return found

    def run_of(self, config: RunnableConfig, run_id: str) -> CheckpointTuple | None:
        """The newest checkpoint that a run of this id made, or None. None was there at the claim of
        a job that was never delivered, nor is there one as long as the head is where it was."""
        job = self._claimed.get(coordinates(config)[0])
        if job is not None and not job.was_delivered and job.name.run_id == run_id:
            return None
        return super().run_of(config, run_id)
