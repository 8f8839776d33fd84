"""Effects that are not repeated when their task runs again: `runtime.once`, `runtime.transaction`,
and until when a task sleeps.

The record of an effect stands beside the checkpoint of the superstep, as that of a `@task` call
does, under an id made of the task's, of its kind and its key. So a retry, a resume and a second
delivery find it, an edit takes it along with its task, and a fork or a new input starts without it.
With a transaction, what its function writes to the database and the record are both there, or
neither; on a database of the application's the record stands in a table there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...checkpoint.base import RETURN, BaseCheckpointSaver, TaskWrites
from ...checkpoint.threads import call_on_thread
from ..run.effects import InTransaction, Save
from ..run.run import Run
from ..running import TRANSACTION, Transaction, inside_effect
from ..task.ids import effect_id
from ..task.task import Task


class EffectRecord:
    """The record of an effect; in a run that stores nothing, for further attempts of its task.

    Args:
        results: what effects of this run have returned, by the ids of their records; encoded in a
            run that stores its thread.
        key: names it, among the effects of the task.
    """

    said = "which has been called"

    def __init__(
        self, run: Run, results: dict[str, Any], task: Task, kind: str, key: str
    ) -> None:
        self._run, self._results, self._task = run, results, task
        self._id, self._key, self._call = effect_id(task.id, kind, key), key, f"{kind}({key!r})"
        self._beside = run.position.saved_id

    @property
    def known(self) -> tuple[Any, ...]:
        """What the effect returned, as a one-item tuple; empty if it is still to be performed."""
        return (self._results[self._id],) if self._id in self._results else ()

    def save(self, result: Any, *, outlasts: bool = False) -> Any:
        """Record it; on an event loop, what is to be awaited.

        Args:
            outlasts: see `Entry`.
        """
        self._results[self._id] = result


class StoredEffect(EffectRecord):
    """The record of an effect in a run that stores its thread."""

    @property
    def known(self) -> tuple[Any, ...]:
        """What the effect returned, as a one-item tuple; empty if it is still to be performed."""
        if self._id in self._results:
            saver: Any = self._run.thread.saver
            return (saver.serde.loads(self._results[self._id].writes[0][1]),)
        found = self._run.ledger.of(self._id)  # a run before this one has recorded it
        return (dict(found.writes).get(RETURN),) if found.finished else ()

    def save(self, result: Any, *, outlasts: bool = False) -> Any:
        """Record it; on an event loop, what is to be awaited."""
        writes = self._results[self._id] = self._encode(result)
        if self._run.settings.durability == "exit":  # a sleep, stored with what the run leaves
            self._run.commits.put_off([writes])
            return None
        assert self._beside is not None
        entry = Save(None, [writes], self._beside)
        entry.outlasts = outlasts
        return self._run.journal.record(entry, wait=True)

    def _encode(self, result: Any) -> TaskWrites:
        where = f"of node {self._task.name!r} of {self._run.thread}"
        return self._run.commits.encode_effect(
            self._id, f"{self._call}, {self.said}", result, where
        )


class StoredTransaction(StoredEffect):
    """The record of a transaction."""

    said = "which was undone"
    _made: Any = None
    _encoded: TaskWrites | None = None

    @property
    def result(self) -> Any:
        """What it has returned."""
        if self._encoded is not None and self._results.get(self._id) is self._encoded:
            return self._made
        return self.known[0]

    def run(self, asked: Transaction) -> Any:
        """Have it, unless it was had before; on an event loop, what is to be awaited."""
        if self._id in self._results or self._run.ledger.of(self._id).finished:
            return None
        saver: Any = self._run.thread.saver
        if asked.on is None and type(saver).transact is BaseCheckpointSaver.transact:
            raise NotImplementedError(
                f"node {self._task.name!r} called {self._call} on {type(saver).__name__}, which "
                "has no transactions: give it a database of your own with on=, or take a "
                "SqliteSaver or a PostgresSaver"
            )

        # Called in the node's context or a copy of it, on whichever thread.
        def function(connection: Any) -> TaskWrites:
            with inside_effect(asked.key, TRANSACTION):
                self._made = asked.call(connection)
            self._encoded = self._encode_returned(self._made)
            return self._encoded

        if asked.on is not None:
            return self._run_elsewhere(asked, function)
        return self._run.journal.transact(self._entry(function, asked.isolation))

    def _entry(
        self, function: Callable[[Any], TaskWrites] | None, isolation: str | None
    ) -> InTransaction:
        assert self._beside is not None
        return InTransaction(self._beside, self._id, self._results, function, isolation)

    def _run_elsewhere(self, asked: Transaction, function: Callable[[Any], TaskWrites]) -> Any:
        """On a database of the application's, once the checkpoint beside which the task stands is
        stored: the record is found by its id."""
        from ...checkpoint.sql.completions import Completion, check_opener, complete

        check_opener(asked.on)
        thread_id = self._run.thread.thread_id or ""
        place = Completion(thread_id, self._task.id, self._key, self._id)
        entry = self._entry(None, None)

        def work() -> None:
            if entry.record is None:
                entry.keep(complete(asked.on, place, function, asked.isolation))

        async def work_later(waited: Any) -> None:
            await waited
            await call_on_thread(work)

        waited = self._run.journal.transact(entry)
        return work() if waited is None else work_later(waited)

    def _encode_returned(self, result: Any) -> TaskWrites:
        if hasattr(result, "__await__"):
            if hasattr(result, "close"):
                result.close()  # else Python says that it was never awaited
            raise TypeError(
                f"the function of {self._call} must be a plain one, got a coroutine function: it "
                "is called on a thread"
            )
        return self._encode(result)


def begin_effect(
    run: Run, results: dict[str, Any], task: Task, kind: str, key: str, *, awaits: bool
) -> EffectRecord:
    """The record of an effect of a task.

    Args:
        results: see `EffectRecord`.
        awaits: the caller can await that it is recorded.

    Raises:
        GraphAbandoned: the attempt was given up.
        RuntimeError: it could not be recorded in time, or not be waited for.
    """
    deadline = task.nearest_deadline
    if deadline is not None:
        deadline.check()  # an attempt that was given up has no further effects
    where = f"node {task.name!r} called {kind}({key!r})"
    if run.thread.saver is None:
        if kind == TRANSACTION:
            raise RuntimeError(
                f"{where} in a graph without a checkpointer, which keeps no record of it: compile "
                "it with one, or open the transaction yourself"
            )
    elif run.settings.durability == "exit":
        raise RuntimeError(
            f'{where} in a run with durability="exit", which records nothing before its end: use '
            '"sync" or "async"'
        )
    elif not awaits and not run.calls.can_wait():
        twin = kind.replace(".", ".a")
        raise RuntimeError(f"{where} in a coroutine: await {twin}(...) there")
    return record_of(run, results, task, kind, key)


def record_of(
    run: Run, results: dict[str, Any], task: Task, kind: str, key: str
) -> EffectRecord:
    """The record of an effect, where its run keeps it."""
    if run.thread.saver is None:
        return EffectRecord(run, results, task, kind, key)
    stored = StoredTransaction if kind == TRANSACTION else StoredEffect
    return stored(run, results, task, kind, key)
