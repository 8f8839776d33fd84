"""`runtime.transaction`: what a function writes to a database and the record of its result are both
there, or neither.

On the saver's database the record stands where that of `runtime.once` does, and is found and taken
along as that is. On a database of the application's it stands in a table there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...checkpoint.base import RETURN, BaseCheckpointSaver, TaskWrites
from ...checkpoint.threads import call_on_thread
from ..run.effects import InTransaction
from ..run.run import Run
from ..running import TRANSACTION, Transaction, effect
from ..task.ids import transaction_id
from ..task.task import Task


class StoredTransaction:
    """A `TransactionRecord` of a run that stores its thread.

    Args:
        records: of the transactions of this run, by their ids.
    """

    def __init__(self, run: Run, records: dict[str, Any], task: Task, key: str) -> None:
        assert run.thread.saver is not None and run.position.saved_id is not None
        self._run, self._records, self._task, self._key = run, records, task, key
        self._saver: BaseCheckpointSaver = run.thread.saver
        self._id, self._beside = transaction_id(task.id, key), run.position.saved_id
        self._made: Any = None
        self._encoded: TaskWrites | None = None

    @property
    def result(self) -> Any:
        """What it has returned."""
        if self._id not in self._records:  # a run before this one has recorded it
            return dict(self._run.position.record_of(self._id).writes).get(RETURN)
        record = self._records[self._id]
        if record is self._encoded:
            return self._made
        return self._saver.serde.loads(record.writes[0][1])

    def run(self, asked: Transaction) -> Any:
        """Have it, unless it was had before; on an event loop, what is to be awaited."""
        if self._id in self._records or self._run.position.record_of(self._id).finished:
            return None
        if asked.on is None and type(self._saver).transact is BaseCheckpointSaver.transact:
            raise NotImplementedError(
                f"{_place(self._task, self._key)} on {type(self._saver).__name__}, which has no "
                "transactions: give it a database of your own with on=, or take a SqliteSaver or "
                "a PostgresSaver"
            )

        # Called in the node's context or a copy of it, on whichever thread.
        def function(connection: Any) -> TaskWrites:
            with effect(asked.key, TRANSACTION):
                self._made = asked.call(connection)
            self._encoded = self._encode(self._made)
            return self._encoded

        if asked.on is not None:
            return self._run_elsewhere(asked, function)
        return self._run.journal.transact(self._entry(function, asked.isolation))

    def _entry(
        self, function: Callable[[Any], TaskWrites] | None, isolation: str | None
    ) -> InTransaction:
        return InTransaction(self._beside, self._id, self._records, function, isolation)

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

    def _encode(self, result: Any) -> TaskWrites:
        where = f"runtime.transaction({self._key!r})"
        if hasattr(result, "__await__"):
            if hasattr(result, "close"):
                result.close()  # else Python says that it was never awaited
            raise TypeError(
                f"the function of {where} must be a plain one, got a coroutine function: it is "
                "called on a thread"
            )
        try:
            return TaskWrites(self._id, "", [(RETURN, self._saver.serde.dumps(result))])
        except Exception as error:
            error.add_note(
                f"while storing the result of {where}, which was undone: let it return what can "
                f"be stored, such as an id, of node {self._task.name!r} of {self._run.thread}"
            )
            raise


def begin_transaction(
    run: Run, records: dict[str, Any], task: Task, key: str, *, awaits: bool
) -> StoredTransaction:
    """Where a transaction of a task is recorded.

    Args:
        records: of the transactions of this run, by their ids.
        awaits: the caller can await it.

    Raises:
        GraphAbandoned: the attempt was given up.
        RuntimeError: it could not be recorded in time, or not be waited for.
    """
    deadline = task.nearest_deadline
    if deadline is not None:
        deadline.check()  # an attempt that was given up has no further effects
    where = _place(task, key)
    if run.thread.saver is None:
        raise RuntimeError(
            f"{where} in a graph without a checkpointer, which keeps no record of it: compile it "
            "with one, or open the transaction yourself"
        )
    if run.settings.durability == "exit":
        raise RuntimeError(
            f'{where} in a run with durability="exit", which records nothing before its end: use '
            '"sync" or "async"'
        )
    if not awaits and not run.journal.can_wait():
        raise RuntimeError(f"{where} in a coroutine: await runtime.atransaction(...) there")
    return StoredTransaction(run, records, task, key)


def _place(task: Task, key: str) -> str:
    return f"node {task.name!r} called runtime.transaction({key!r})"
