"""Transactions on the application's own database, each with its record in a small table there:
`runtime.transaction(..., on=)`.

The table is keyed by thread, task and key. This module works on connections of sqlite3 and of
psycopg, and uses no checkpointer.
"""

from __future__ import annotations

import inspect
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from ..records import RETURN, TaskWrites
from .transaction import Undone, UserFunction, check_isolation_of_sqlite

TABLE = "stategraph_completions"

_SQLITE_TABLE = f"""
    CREATE TABLE IF NOT EXISTS {TABLE} (
        thread TEXT NOT NULL,
        task TEXT NOT NULL,
        key TEXT NOT NULL,
        form TEXT,
        result BLOB,
        PRIMARY KEY (thread, task, key)
    )
"""
_POSTGRES_TABLE = _SQLITE_TABLE.replace("BLOB", "BYTEA")
_FIND = f"SELECT form, result FROM {TABLE} WHERE thread = ? AND task = ? AND key = ?"
_ADD = f"INSERT INTO {TABLE} (thread, task, key, form, result) VALUES (?, ?, ?, ?, ?)"
_FILL = f"UPDATE {TABLE} SET form = ?, result = ? WHERE thread = ? AND task = ? AND key = ?"
_RESERVE = f"INSERT INTO {TABLE} (thread, task, key) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"


class Completion(NamedTuple):
    """Identifies the record of a transaction.

    Attributes:
        record_id: the id with which the record is returned.
    """

    thread: str
    task: str
    key: str
    record_id: str

    @property
    def names(self) -> tuple[str, str, str]:
        """The key of the record in the table. NULs are escaped, since a Postgres text cannot hold
        one."""
        return (
            self.thread.replace("\0", "\\0"),
            self.task,
            self.key.replace("\0", "\\0"),
        )

    def record(self, row: tuple[Any, Any]) -> TaskWrites:
        """Return a row as a record."""
        form, result = row
        form = form.decode() if isinstance(form, bytes) else form
        return TaskWrites(self.record_id, "", [(RETURN, (form, bytes(result)))])


def check_opener(on: Any) -> None:
    """Check that `on` opens connections.

    Raises:
        TypeError: it is neither a function nor a pool, or it is asynchronous.
    """
    opens = on.getconn if hasattr(on, "getconn") else on
    if not callable(opens) or isinstance(on, sqlite3.Connection):
        raise TypeError(
            "on must be a function that opens a connection of sqlite3 or psycopg, or a "
            f"psycopg_pool.ConnectionPool, got {type(on).__name__}: the transaction needs a "
            "connection of its own"
        )
    if inspect.iscoroutinefunction(opens):
        raise TypeError(
            f"on must open plain connections, got {type(on).__name__} of asyncio: the function is "
            "called on a thread"
        )


def complete(
    on: Any, place: Completion, function: Callable[[Any], TaskWrites], isolation: str | None
) -> TaskWrites:
    """Call a function in a transaction and record its result there, unless it has already been
    recorded.

    Raises:
        RuntimeError: the function has ended the transaction.
        Exception: what the function or the database raised.
    """
    tries: Any = None
    while True:
        try:
            return _complete_once(on, place, UserFunction(None, function), isolation)
        except Exception as error:
            if "psycopg" not in sys.modules:
                raise
            if tries is None:
                from .postgres_transaction import Tries

                tries = Tries()
            tries.note(error)


def _complete_once(
    on: Any, place: Completion, user: UserFunction, isolation: str | None
) -> TaskWrites:
    try:
        with _opened(on) as connection:
            if isinstance(connection, sqlite3.Connection):
                check_isolation_of_sqlite(isolation)
                return _complete_on_sqlite(connection, place, user)
            from .postgres_transaction import check_isolation, losing

            check_isolation(isolation)
            with losing(connection, user):
                return _complete_on_postgres(connection, place, user, isolation)
    except Undone:
        pass
    assert user.error is not None
    raise user.error


@contextmanager
def _opened(on: Any) -> Iterator[Any]:
    """Yield a connection for one transaction."""
    if hasattr(on, "getconn"):
        with on.connection() as connection:
            yield connection
        return
    opened = on()
    if hasattr(opened, "__await__"):
        with suppress(AttributeError):
            opened.close()
        raise TypeError("on must open plain connections, got a coroutine")
    psycopg = sys.modules.get("psycopg")
    kinds = (sqlite3.Connection,) if psycopg is None else (sqlite3.Connection, psycopg.Connection)
    if isinstance(opened, kinds):
        try:
            yield opened
        finally:
            opened.close()
    elif hasattr(opened, "__enter__"):  # e.g. `pool.connection`
        with opened as connection:
            yield connection
    else:
        raise TypeError(
            "on must open a connection of sqlite3 or psycopg, got one of "
            f"{type(opened).__module__}.{type(opened).__name__}"
        )


def _complete_on_sqlite(
    connection: sqlite3.Connection, place: Completion, user: UserFunction
) -> TaskWrites:
    if connection.in_transaction:
        raise RuntimeError("on must give a connection that is in no transaction")
    # From here on, transactions begin and end only by the statements below.
    if getattr(connection, "autocommit", True) is False:  # Python 3.12
        setattr(connection, "autocommit", True)  # noqa: B010 - not known to the types of 3.11
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.row_factory = None
    try:
        cursor.execute("BEGIN IMMEDIATE")
        cursor.execute(_SQLITE_TABLE)
        known = cursor.execute(_FIND, place.names).fetchone()
        if known is not None:
            record = place.record(known)
        else:
            record = user.call(connection, frozenset({TABLE}))
            cursor.execute(_ADD, (*place.names, *record.writes[0][1]))
        cursor.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            cursor.execute("ROLLBACK")
        raise
    return record


class _NoTable(Exception):
    """The table does not exist yet."""


def _complete_on_postgres(
    connection: Any, place: Completion, user: UserFunction, isolation: str | None
) -> TaskWrites:
    from psycopg import IsolationLevel, errors

    before = connection.isolation_level
    if isolation is not None:
        connection.isolation_level = IsolationLevel[isolation.upper().replace(" ", "_")]
    try:
        return _transact(connection, place, user)
    except _NoTable:
        # Another session may be creating it right now.
        made = errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject
        with suppress(*made), connection.transaction():
            connection.execute(_POSTGRES_TABLE)
        return _transact(connection, place, user)
    finally:
        if isolation is not None and not connection.closed:
            connection.isolation_level = before


def _transact(connection: Any, place: Completion, user: UserFunction) -> TaskWrites:
    from psycopg import errors
    from psycopg.rows import tuple_row

    from .postgres_transaction import unended

    cursor = connection.cursor(row_factory=tuple_row)
    with connection.transaction():
        # If two run at once, the second waits here until the first has ended.
        try:
            cursor.execute(_for_psycopg(_RESERVE), place.names)
        except errors.UndefinedTable:
            raise _NoTable from None
        if cursor.rowcount == 0:
            known = cursor.execute(_for_psycopg(_FIND), place.names).fetchone()
            return place.record(known)
        with unended(connection):
            record = user.call(connection)
        cursor.execute(_for_psycopg(_FILL), (*record.writes[0][1], *place.names))
    return record


def _for_psycopg(statement: str) -> str:
    return statement.replace("?", "%s")
