"""`transact` of the checkpointers on databases: a user's function and the record of its result, in
one transaction.

What both databases share, and what keeps the function from ending the transaction on SQLite.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..builtin import BuiltinSaver
from ..errors import CheckpointConflictError, StorageError
from ..records import TaskWrites, Transacted, TransactionPlace
from .queries import SqlSession
from .read_rows import read_writes

if TYPE_CHECKING:
    import sqlite3

INSIDE: ContextVar[Any] = ContextVar("stategraph_transacting", default=None)
"""The checkpointer in whose transaction the function called in this context runs, or None."""


def refuse_inside(saver: Any) -> None:
    """Refuse the use of a checkpointer by the function of a transaction on it.

    Raises:
        RuntimeError: such a function is running.
    """
    if INSIDE.get() is saver:
        raise RuntimeError(
            f"the function of a transaction must not use the {type(saver).__name__} in whose "
            "transaction it runs, nor a graph that has it: use the connection that it was given, "
            "and read the thread before or after"
        )


def check_methods(saver: Any) -> None:
    """Refuse a transaction if a subclass overrides how records are stored.

    Raises:
        TypeError: its class overrides a method that stores records.
    """
    cls = type(saver)
    for name in ("put_writes", "record", "aput_writes", "arecord"):
        if getattr(cls, name) is not getattr(BuiltinSaver, name):
            raise TypeError(
                f"{cls.__name__} overrides {name}(), which a transaction would pass by: override "
                "transact() as well, or give the transaction a database of your own with on="
            )


@dataclass(eq=False)
class UserFunction:
    """The function of a transaction. An error that it raises rolls the transaction back, and is
    kept apart from the checkpointer's own errors."""

    _saver: Any
    _function: Callable[[Any], TaskWrites]
    error: BaseException | None = None

    def call(self, connection: Any, tables: frozenset[str] | None = None) -> TaskWrites:
        """Call the function.

        Args:
            tables: on SQLite, the tables that it must not change.

        Raises:
            Undone: it has raised `error`.
        """
        token = INSIDE.set(self._saver)
        try:
            if tables is not None:
                return call_guarded(self._function, connection, tables)
            return self._function(connection)
        except BaseException as error:
            self.error = error
            raise Undone from None
        finally:
            INSIDE.reset(token)


class Undone(BaseException):
    """Rolls back a transaction whose function has raised."""


def transact_in(
    saver: Any, session: SqlSession, place: TransactionPlace, call: Callable[[], TaskWrites]
) -> Transacted:
    """Lock the thread and look for the record; if there is none, call the function and record its
    result.

    Args:
        session: the session of the transaction.
        call: calls the function.

    Raises:
        CheckpointConflictError: the head has moved, or another run has recorded something.
    """
    where, id, (head, revision), record_id, _ = place
    key = saver._key(*where)
    namespace = saver._lock_namespace(session, key)
    if namespace.head_id != head:
        raise CheckpointConflictError(*where, head, namespace.head_id)
    if namespace.revision != revision:  # something was recorded that the run does not know
        rows = [data for _, data in session.rows("writes", namespace.id, [id])]
        for known in read_writes(key, id, rows):
            if known.task_id == record_id:
                # If the caller itself made the record and the answer was lost, nothing else has
                # changed. If another run made it, the caller does not know what else that run has
                # recorded.
                return Transacted(known, namespace.revision if revision is None else revision + 1)
        if revision is not None:
            raise CheckpointConflictError(*where, head, head)
    record = call()
    return Transacted(record, saver._add_records(session, namespace, {id: [record]}))


# -- SQLite ----------------------------------------------------------------------------------------

OWN_TABLES = frozenset({"spaces", "checkpoints", "channel_values", "writes", "labels", "posts"})

# SQLite's codes of the actions that change a table → which of the two names is the table's.
_CHANGES = {9: 0, 18: 0, 23: 0, 11: 0, 26: 1, 1: 1, 7: 1, 10: 1, 16: 1}
_TRANSACTION, _OK, _DENY = 22, 0, 1


def call_guarded(
    function: Callable[[Any], TaskWrites], connection: sqlite3.Connection, tables: frozenset[str]
) -> TaskWrites:
    """Call a function in an open transaction of a connection, which cannot be ended meanwhile, and
    with some tables that cannot be changed.

    Raises:
        RuntimeError: it has executed a refused statement, and did not handle the error.
        StorageError: SQLite has ended the transaction by itself.
    """
    refused: list[str] = []

    def authorize(action: int, first: str | None, second: str | None, *where: Any) -> int:
        before = len(refused)
        if action == _TRANSACTION:
            refused.append(f"{first} is refused in it (SAVEPOINT is not)")
        elif action in _CHANGES and where[0] in ("main", None):
            name = (first, second)[_CHANGES[action]]
            if str(name).lower() in tables:
                refused.append(f"table {name!r} is the engine's own, and must not be changed")
        if len(refused) == before and not connection.in_transaction:
            # As after INSERT OR ROLLBACK: refuse all further statements, since they would be
            # stored.
            refused.append("SQLite itself has undone it")
        return _OK if len(refused) == before else _DENY

    factories = connection.row_factory, connection.text_factory
    connection.set_authorizer(authorize)
    try:
        record = function(connection)
    except Exception as error:
        # SQLITE_AUTH
        if refused and getattr(error, "sqlite_errorcode", 0) == 23:
            raise RuntimeError(
                f"the function of a transaction has ended or damaged it: {refused[-1]}. "
                "The transaction ends when the function returns, and is undone when it raises"
            ) from error
        raise
    finally:
        connection.set_authorizer(None)
        connection.row_factory, connection.text_factory = factories
    if not connection.in_transaction:
        raise StorageError(
            "SQLite has undone the transaction by itself while its function ran, as it does on "
            "INSERT OR ROLLBACK or a full disk. Nothing of it is stored"
        )
    return record


def check_isolation_of_sqlite(isolation: str | None) -> None:
    """Check that SQLite has an isolation level.

    Raises:
        ValueError: it does not.
    """
    if isolation not in (None, "serializable"):
        raise ValueError(
            f"isolation must be 'serializable' on SQLite, which has no other, got {isolation!r}"
        )


def transact_on_sqlite(
    saver: Any, place: TransactionPlace, function: Callable[[Any], TaskWrites]
) -> Transacted:
    """Implement `SqliteSaver.transact`."""
    check_methods(saver)
    check_isolation_of_sqlite(place.isolation)
    connection = saver._database.connection
    user = UserFunction(saver, function)
    try:
        with saver._session(write=True) as session:
            return transact_in(saver, session, place, lambda: user.call(connection, OWN_TABLES))
    except Undone:
        pass
    assert user.error is not None
    raise user.error
