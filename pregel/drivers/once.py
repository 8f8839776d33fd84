"""`runtime.once`: effects that are not repeated when their task runs again.

The record stands beside the checkpoint of the superstep, as that of a `@task` call does, under an
id made of the task's and the key. So a retry, a resume and a second delivery find it, an edit takes
it along with its task, and a fork or a new input starts without it.
"""

from __future__ import annotations

from typing import Any

from ...checkpoint.base import RETURN, TaskWrites
from ..run.effects import Save
from ..run.run import Run
from ..task.ids import once_id
from ..task.task import Task


class StoredOnce:
    """An `OnceRecord` beside a checkpoint.

    Args:
        results: what effects of this run have returned, encoded, by the ids of their records.
    """

    def __init__(self, run: Run, results: dict[str, Any], task: Task, key: str) -> None:
        self._run, self._results = run, results
        self._id, self._key = once_id(task.id, key), key
        self._where = f"of node {task.name!r} of {run.thread}"
        self._beside = run.position.saved_id

    @property
    def known(self) -> tuple[Any, ...]:
        """What the effect returned, as a one-item tuple; empty if it is still to be performed."""
        saver = self._run.thread.saver
        assert saver is not None
        if self._id in self._results:
            return (saver.serde.loads(self._results[self._id]),)
        found = self._run.position.record_of(self._id)
        return (dict(found.writes).get(RETURN),) if found.finished else ()

    def save(self, result: Any) -> Any:
        """Record it."""
        writes = self._encode(result)
        assert self._beside is not None
        return self._run.journal.record(Save(None, [writes], self._beside), wait=True)

    def _encode(self, result: Any) -> TaskWrites:
        writes = self._run.commits.encode_once(self._id, self._key, result, self._where)
        self._results[self._id] = writes.writes[0][1]
        return writes


class RememberedOnce:
    """An `OnceRecord` of a run that stores nothing: for further attempts of its task.

    Args:
        results: what effects of this run have returned, by the ids of their records.
    """

    def __init__(self, results: dict[str, Any], task: Task, key: str) -> None:
        self._results, self._id = results, once_id(task.id, key)

    @property
    def known(self) -> tuple[Any, ...]:
        """What the effect returned, as a one-item tuple; empty if it is still to be performed."""
        return (self._results[self._id],) if self._id in self._results else ()

    def save(self, result: Any) -> None:
        """Remember it."""
        self._results[self._id] = result


def begin_once(
    run: Run, results: dict[str, Any], task: Task, key: str, *, awaits: bool
) -> StoredOnce | RememberedOnce:
    """The record of an effect of a task.

    Args:
        results: what the effects of this run have returned.
        awaits: the caller can await that it is recorded.

    Raises:
        GraphAbandoned: the attempt was given up.
        RuntimeError: it could not be recorded in time, or not be waited for.
    """
    deadline = task.nearest_deadline
    if deadline is not None:
        deadline.check()  # an attempt that was given up has no further effects
    if run.thread.saver is None:
        return RememberedOnce(results, task, key)
    where = f"node {task.name!r} called runtime.once({key!r})"
    if run.settings.durability == "exit":
        raise RuntimeError(
            f'{where} in a run with durability="exit", which records nothing before its end: use '
            '"sync" or "async"'
        )
    if not awaits and not run.journal.can_wait():
        raise RuntimeError(f"{where} in a coroutine: await runtime.aonce(...) there")
    return StoredOnce(run, results, task, key)
