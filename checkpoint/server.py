"""One Postgres database, for the savers and stores kept in it: connections, transactions, making tables, errors.

No table is known here but the one that counts migrations. No text of a user's ever becomes SQL: the modules that use
this hold their statements as constants and bind every value. Texts are kept as bytes, because Postgres refuses a NUL.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from selectors import EVENT_READ, DefaultSelector
from time import monotonic
from typing import Any

from .errors import StorageError

try:
    from psycopg import Connection, Cursor, Error, OperationalError, RawCursor
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.errors import (
        DeadlockDetected,
        InsufficientPrivilege,
        LockNotAvailable,
        QueryCanceled,
        SerializationFailure,
        UndefinedTable,
    )
    from psycopg.pq import TransactionStatus
    from psycopg.rows import RowFactory, tuple_row
    from psycopg.types.numeric import Int8
    from psycopg_pool import ConnectionPool
except ImportError as error:
    raise ImportError(f"Postgres needs psycopg: pip install stategraph[postgres] ({error})") from error

__all__ = ["ConnectionLostError", "Cursor", "Server", "Target", "Wire", "POOL_SIZE", "SECONDS"]

Target = str | Connection[Any] | ConnectionPool[Any]
"""A connection string or URL, an open connection, or a pool of them."""

SECONDS = 30.0
"""How long to wait for a connection, for a lock, or for the answer to one statement."""

POOL_SIZE = 10
"""The most connections a pool of ours holds."""

_BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_BEGIN_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE"
_COMMIT = "COMMIT"
_ROLLBACK = "ROLLBACK"
_PING = "SELECT 1"
# The server gives up a little before the client does, so that it can say why.
_SETTINGS = """
    SELECT set_config('statement_timeout', $1, false), set_config('lock_timeout', $1, false),
        set_config('default_transaction_isolation', 'read committed', false)
"""
_MIGRATED = "SELECT coalesce(max(version), 0) FROM stategraph_migrations WHERE part = $1"
_LOCK = "SELECT pg_advisory_xact_lock(7290817265301847)"  # any number: it is the lock's name
_MIGRATIONS = """
    CREATE TABLE IF NOT EXISTS stategraph_migrations (
        part BYTEA NOT NULL,
        version BIGINT NOT NULL,
        PRIMARY KEY (part, version)
    )
"""
_MIGRATE = "INSERT INTO stategraph_migrations (part, version) VALUES ($1, $2)"
_GONE = frozenset({"57P01", "57P02", "57P03"})  # the server goes down, or is not up yet


class ConnectionLostError(StorageError):
    """The connection broke before the server's answer came, so it is not known whether what was asked was done. It was
    done whole or not at all.

    Attributes:
        late: the server did not answer in time; asking again would only take as long again.
    """

    def __init__(self, text: str, late: bool = False) -> None:
        super().__init__(text)
        self.late = late


class Server:
    """A database with its tables made on first use. Any thread may use it.

    Args:
        target: what to open; a connection or a pool is used as it is, and left open by `close`.
        part: the name under which migrations are counted.
        migrations: statements that make the tables, one group for each version.
        pool_size: connections that may be open at once.
        timeout: seconds to wait for a connection, a lock, or an answer.

    Raises:
        TypeError: `target` is none of these.
    """

    def __init__(
        self,
        target: Target,
        part: str,
        migrations: Sequence[Sequence[str]],
        *,
        pool_size: int = POOL_SIZE,
        timeout: float = SECONDS,
    ) -> None:
        if not isinstance(target, str | Connection | ConnectionPool):
            raise TypeError(
                f"Postgres is opened by a connection string, a psycopg.Connection or a ConnectionPool, not by {target!r}"  # noqa: E501
            )
        self._part = part
        self._migrations = migrations
        self._timeout = timeout
        self._process = os.getpid()
        self._lock = threading.RLock()  # held by the one user of a connection that was handed in
        self._starting = threading.Lock()
        self._ready = False
        self._one: Connection[Any] | None = target if isinstance(target, Connection) else None
        self._pool: ConnectionPool[Any] | None = target if isinstance(target, ConnectionPool) else None
        self._own: ConnectionPool[_Patient] | None = None
        self._options: dict[str, Any] = {}
        if isinstance(target, str):
            self._options = {"fallback_application_name": "stategraph", **_parsed(target)}
            self._options |= {"autocommit": True, "connect_timeout": max(2, int(timeout))}
            self._pool = self._own = ConnectionPool(
                connection_class=_Patient,
                kwargs=self._options,
                min_size=1,
                max_size=pool_size,
                timeout=timeout,
                configure=self._configure,
                name="stategraph",
                open=False,
            )

    def _configure(self, connection: _Patient) -> None:
        connection.patience = self._timeout
        milliseconds = max(1, int(900 * self._timeout))
        RawCursor(connection).execute(_SETTINGS, [str(milliseconds)])

    # -- starting and ending ------------------------------------------------------------------------------

    def setup(self) -> None:
        """Make the tables, or bring them up to date. Any number of processes may do so at once.

        Raises:
            StorageError: the server cannot be reached, refuses, or its tables were made by a later version.
        """
        if self._own is None:
            with self._connection() as connection:
                self._migrate(connection)
        else:
            self._start(self._own)
        self._ready = True

    def _start(self, pool: ConnectionPool[_Patient]) -> None:
        """With a connection of its own, so that a wrong name or password is told at once, in the server's words."""
        try:
            connection = _Patient.connect(**self._options)
        except Error as error:
            raise StorageError(f"the Postgres server cannot be reached: {str(error).strip()}") from error
        try:
            with self._told(connection):
                self._configure(connection)
                self._migrate(connection)
        finally:
            connection.close()
        if pool.closed:
            pool.open()

    def _migrate(self, connection: Connection[Any]) -> None:
        wire = Wire(connection)
        try:
            version = wire.rows(_MIGRATED, self._part)[0][0]
        except UndefinedTable:
            version = 0
        newest = len(self._migrations)
        if version > newest:
            raise StorageError(
                f"the tables of {self._part} are of version {version}, made by a newer stategraph; "
                f"this one knows versions up to {newest}. Update it"
            )
        if version == newest:
            return
        try:
            with _transaction(wire, write=True):
                self._raise_version(wire)
        except InsufficientPrivilege as error:
            raise StorageError(
                f"the tables of {self._part} are not there, and this role may not make them ({error}): "
                "call setup() once with a role that may"
            ) from error

    def _raise_version(self, wire: Wire) -> None:
        wire.run(_LOCK)
        wire.run(_MIGRATIONS)
        done = wire.rows(_MIGRATED, self._part)[0][0]
        for version, statements in enumerate(self._migrations, 1):
            if version > done:
                for statement in statements:
                    wire.run(statement)
                wire.run(_MIGRATE, self._part, version)

    def close(self) -> None:
        """Close the connections that were opened here. The next use opens them again only if they never were."""
        if self._own is not None and self._process == os.getpid():
            self._own.close()

    # -- use ----------------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self, write: bool, row_factory: RowFactory[Any] = tuple_row) -> Iterator[Wire]:
        """All that is done inside sees one state of the database, or, if writing, is kept whole or not at all.

        Raises:
            StorageError: the database refused, or cannot be reached; nothing was done.
            ConnectionLostError: nobody knows.
        """
        with self.statements(row_factory) as wire, _transaction(wire, write):
            yield wire

    @contextmanager
    def statements(self, row_factory: RowFactory[Any] = tuple_row) -> Iterator[Wire]:
        """Each statement done inside is a transaction of its own."""
        if not self._ready:
            with self._starting:
                if not self._ready:
                    self.setup()
        with self._connection() as connection:
            yield Wire(connection, row_factory)

    @contextmanager
    def _connection(self) -> Iterator[Connection[Any]]:
        """A live connection that is in no transaction, with every error it gives put in our words."""
        if self._process != os.getpid():
            raise StorageError("a Postgres connection does not survive a fork: open another in the new process")
        if self._one is not None:
            if not self._lock.acquire(timeout=self._timeout):
                raise StorageError(f"the connection was in use by another thread for {self._timeout:g} s")
            try:
                with self._told(self._one), _alone(self._one):
                    yield self._one
            finally:
                self._lock.release()
            return
        assert self._pool is not None
        connection = self._checkout(self._pool)
        try:
            with self._told(connection), _alone(connection):
                yield connection
        finally:
            self._pool.putconn(connection)

    def _checkout(self, pool: ConnectionPool[Any]) -> Connection[Any]:
        """A connection that still has its server: those of before a restart are thrown away, not tried."""
        deadline = monotonic() + self._timeout
        try:
            while True:
                connection: Connection[Any] = pool.getconn(max(0.0, deadline - monotonic()))
                if _alive(connection):
                    return connection
                connection.close()
                pool.putconn(connection)
        except Error as error:
            raise StorageError(
                f"no connection to the Postgres server within {self._timeout:g} s ({error}): it is down or out of "
                "reach, or all connections are in use. Nothing of what was asked was done"
            ) from error

    @contextmanager
    def _told(self, connection: Connection[Any]) -> Iterator[None]:
        try:
            yield
        except Error as error:
            raise self._translated(error, connection) from error

    def _translated(self, error: Error, connection: Connection[Any]) -> StorageError:
        text = (error.diag.message_primary or str(error)).strip()
        if isinstance(error, _LateError):
            return ConnectionLostError(f"{text}. {_UNKNOWN}", late=True)
        if isinstance(error, OperationalError) and (connection.closed or error.sqlstate in _GONE):
            connection.close()
            return ConnectionLostError(f"the connection to the Postgres server broke: {text}. {_UNKNOWN}")
        if isinstance(error, LockNotAvailable | QueryCanceled):
            text = f"{text} (waited about {self._timeout:g} s; does another session hold a lock?)"
        elif isinstance(error, DeadlockDetected | SerializationFailure):
            text = f"{text} (try again)"
        return StorageError(f"the Postgres database refused: {text}. Nothing of what was asked was done")


_UNKNOWN = "Whether what was asked was done is not known; it was done whole or not at all. Read again to see"


class Wire:
    """Statements on one connection, with their values bound. Strings become bytes; a list of pairs, two arrays."""

    __slots__ = ("_cursor", "connection")

    def __init__(self, connection: Connection[Any], row_factory: RowFactory[Any] = tuple_row) -> None:
        self.connection = connection
        self._cursor = RawCursor(connection, row_factory=row_factory)

    def rows(self, statement: str, *values: Any) -> list[Any]:
        """All rows of a query."""
        self._cursor.execute(statement, bound(values), binary=True)
        return self._cursor.fetchall()

    def run(self, statement: str, *values: Any) -> int:
        """Execute; how many rows it touched."""
        return self._cursor.execute(statement, bound(values), binary=True).rowcount


def bound(values: Sequence[Any]) -> list[Any]:
    """Values as they are sent.

    >>> bound(["a", None, [(1, "b"), (2, "c")]])
    [b'a', None, [1, 2], [b'b', b'c']]
    """
    sent: list[Any] = []
    for value in values:
        kind = type(value)
        if kind is str:
            sent.append(value.encode())
        elif kind is int:
            sent.append(Int8(value))  # one type for all, or each size would be a statement of its own to prepare
        elif kind is not list:
            sent.append(value)
        elif value and type(value[0]) is tuple:
            sent.extend(bound(column) for column in zip(*value, strict=True))
        else:
            sent.append(bound(value))
    return sent


@contextmanager
def _transaction(wire: Wire, write: bool) -> Iterator[None]:
    wire.run(_BEGIN_WRITE if write else _BEGIN_READ)
    try:
        yield
        wire.run(_COMMIT)
    except BaseException:
        _rolled_back(wire)
        raise


def _rolled_back(wire: Wire) -> None:
    if wire.connection.closed or wire.connection.info.transaction_status == TransactionStatus.IDLE:
        return
    try:
        wire.run(_ROLLBACK)
    except Error:
        wire.connection.close()  # what the server then does by itself


@contextmanager
def _alone(connection: Connection[Any]) -> Iterator[None]:
    """A connection in no transaction, in which psycopg opens none by itself."""
    if connection.closed:
        raise StorageError("the Postgres connection that was handed in is closed: hand in a pool, or open it anew")
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise StorageError(
            "the Postgres connection that was handed in is inside a transaction: end it first, or hand in a pool"
        )
    if connection.autocommit:
        yield
        return
    connection.autocommit = True
    try:
        yield
    finally:
        if not connection.closed:
            connection.autocommit = False


def _alive(connection: Connection[Any]) -> bool:
    """Whether an idle connection has its server. Asks it only if it has something to say: then it mostly is the end."""
    if connection.closed:
        return False
    with DefaultSelector() as selector:
        selector.register(connection.fileno(), EVENT_READ)
        if not selector.select(0):
            return True
    try:
        with _alone(connection):
            Wire(connection).run(_PING)
    except Error:
        return False
    return True


def _parsed(conninfo: str) -> dict[str, Any]:
    try:
        return conninfo_to_dict(conninfo)
    except Error as error:
        raise StorageError(f"this is no Postgres connection string: {str(error).strip()}") from error


class _LateError(OperationalError):
    """No answer in time."""


class _Patient(Connection[Any]):
    """A connection that waits only so long for an answer, even from a server that is frozen or cut off."""

    patience: float | None = None

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return super().wait(gen if self.patience is None else _until(gen, self.patience), *args, **kwargs)
        except _LateError:
            self.close()
            raise


def _until(gen: Generator[Any, Any, Any], seconds: float) -> Generator[Any, Any, Any]:
    """The same generator; it fails if it still has to wait after so many seconds. It is asked ten times a second."""
    deadline = monotonic() + seconds
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and monotonic() > deadline:
                raise _LateError(f"the Postgres server did not answer within {seconds:g} s")
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value


