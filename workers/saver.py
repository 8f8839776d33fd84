"""`WorkerSaver`: a worker's saver on the database of the queue. It does not search for what the
claim of a job has told, and stores a new thread's input together with the superstep that follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..checkpoint.postgres import PostgresSaver
from ..checkpoint.records import (
    CheckpointTuple,
    Commit,
    RunnableConfig,
    TaskWrites,
    coordinates,
)
from ..checkpoint.sql.rows import StoredCheckpoint
from .jobs import Job


class WorkerSaver(PostgresSaver):
    """The saver that a worker gives to its graph.

    A claim tells where the job's thread stands. Somebody may have run the thread past the queue
    since: then the run's first commit meets a head that it does not expect
    (`CheckpointConflictError`), and the job is tried again without what the claim has told.

    The input of a new thread waits for the superstep that follows, which is the graph's own: the
    two are one commit. Should the worker die in between, the input is in the job's row, from which
    the job begins again.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # By thread: a worker runs one job of a thread at a time.
        self._claimed: dict[str, ClaimedThread] = {}

    @contextmanager
    def claimed(self, job: Job) -> Iterator[None]:
        """In this context, take what the claim of a job has told of its thread for true."""
        thread_id = job.name.thread_id
        self._claimed[thread_id] = ClaimedThread(job)
        try:
            yield
        finally:
            self._store_input(thread_id)
            del self._claimed[thread_id]

    def commit(self, commit: Commit) -> None:
        """Store one superstep; see `PostgresSaver.commit`. The input of a job whose thread was
        empty is stored with the next one."""
        thread = self._claimed.get(commit.thread_id)
        if thread is None:
            super().commit(commit)
        elif thread.job.head is None and _is_input(commit):
            thread.input = commit
        else:
            first, thread.input = thread.input, None
            if first is not None and commit.head == first.id:
                self._commit_two(first, commit)
            else:
                if first is not None:
                    super().commit(first)
                super().commit(commit)

    def commit_writes(
        self, thread_id: str, checkpoint_ns: str, checkpoint_id: str, writes: Sequence[TaskWrites]
    ) -> None:
        """Record writes beside a checkpoint, after the input."""
        self._store_input(thread_id)
        super().commit_writes(thread_id, checkpoint_ns, checkpoint_id, writes)

    def _store_input(self, thread_id: str) -> None:
        thread = self._claimed.get(thread_id)
        if thread is not None and thread.input is not None:
            first, thread.input = thread.input, None
            super().commit(first)

    def _find(
        self, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None
    ) -> StoredCheckpoint | None:
        """Nothing is looked up in a thread that was empty; once, for the run itself then fills
        it."""
        self._store_input(thread_id)
        thread = self._claimed.get(thread_id)
        is_start = not checkpoint_ns and checkpoint_id is None
        if thread is None or thread.started or not is_start:
            return super()._find(thread_id, checkpoint_ns, checkpoint_id)
        thread.started = True
        if thread.job.head is None:
            return None
        found = super()._find(thread_id, checkpoint_ns, checkpoint_id)
        thread.unchanged = found is not None and found.state.id == thread.job.head
        return found

    def run_of(self, config: RunnableConfig, run_id: str) -> CheckpointTuple | None:
        """The newest checkpoint that a run of this id made, or None. There is none if there was
        none at the claim and the head is still where it was."""
        thread = self._claimed.get(coordinates(config)[0])
        if (
            thread is not None
            and thread.unchanged
            and not thread.job.was_delivered
            and thread.job.name.run_id == run_id
        ):
            return None
        return super().run_of(config, run_id)


@dataclass(slots=True)
class ClaimedThread:
    """The thread of a job that runs for the first time.

    Attributes:
        started: the run has found where it starts.
        unchanged: it starts from the head that the claim saw.
        input: what the run has stored as its input, which waits for the next superstep.
    """

    job: Job
    started: bool = False
    unchanged: bool = False
    input: Commit | None = None


def _is_input(commit: Commit) -> bool:
    """Whether this is the input of a whole graph on a thread that has nothing stored."""
    is_first = commit.head is None and commit.parent_id is None and not commit.carried
    return is_first and not commit.checkpoint_ns and commit.metadata.get("source") == "input"
