"""One Postgres database, for the checkpointers and stores kept in it: connections, transactions,
table creation, errors.

It knows no table except the one that counts migrations. User text never becomes SQL: the modules
that use this hold their statements as constants and bind every value. Texts are stored as bytes,
because Postgres refuses a NUL.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from ...extras import install_command
from ..errors import StorageError

try:
    from psycopg import Connection, Error, OperationalError, errors
    from psycopg.conninfo import make_conninfo
    from psycopg_pool import ConnectionPool, PoolTimeout
except ModuleNotFoundError as _error:
    _needs = f"threads and stores in Postgres need psycopg: {install_command('postgres')}"
    raise ModuleNotFoundError(_needs, name=_error.name) from _error

from .postgres_address import (
    escape_option,
    is_local,
    parse_address,
    read_surroundings,
    without_secrets,
)
from .postgres_wire import (
    ALIVE,
    SERVER_ALIVE,
    LateError,
    Patient,
    RowMaker,
    Wire,
    is_proven,
    outside_transaction,
    transaction,
)
from .redact import redact

__all__ = ["POOL_SIZE", "SECONDS", "ConnectionLostError", "Server", "Target", "Wire", "is_clash"]

Target = str | Connection[Any] | ConnectionPool[Any]
"""A connection string or URL, an open connection, or a pool of them."""

SECONDS = 30.0
"""How long to wait for a connection, for a lock, or for the answer to one statement."""

POOL_SIZE = 10
"""The most connections a pool of ours holds."""

AGAIN = 5.0
"""Seconds after which a caller that waits for a connection asks the pool again, which then tries to
connect at once. By itself, a pool doubles its pause after each attempt, so it would find a server
that was down for minutes only minutes after its return."""

# The server gives up a little before the client does, so that it can say why. A session that a
# pooler lends for one transaction is not ours, so its settings are left alone.
_SETTINGS = f"""
    SELECT pg_backend_pid() = $2, current_setting('default_transaction_isolation'),
        CASE WHEN pg_backend_pid() = $2 THEN ARRAY[
            set_config('statement_timeout', $1::bigint::text, false),
            set_config('default_transaction_isolation', 'read committed', false), {SERVER_ALIVE}
        ] END
"""
# Settings changed within the session that decide which tables it sees.
_SET = """
    SELECT name, setting FROM pg_settings WHERE source = 'session' AND name = 'search_path'
    UNION ALL SELECT 'role', current_setting('role') WHERE current_setting('role') <> 'none'
"""
_MIGRATED = "SELECT coalesce(max(version), 0) FROM stategraph_migrations WHERE part = $1"
# A table lock, not an advisory lock, which any role may take: this one requires the right to write
# to the table.
_LOCK = "LOCK TABLE stategraph_migrations IN SHARE ROW EXCLUSIVE MODE"
_MIGRATIONS = """
    CREATE TABLE IF NOT EXISTS stategraph_migrations (
        part BYTEA NOT NULL,
        version BIGINT NOT NULL,
        PRIMARY KEY (part, version)
    )
"""
_MIGRATE = "INSERT INTO stategraph_migrations (part, version) VALUES ($1, $2)"
_GONE = frozenset({"57P01", "57P02", "57P03"})  # the server shuts down, or is still starting


class ConnectionLostError(StorageError):
    """The connection broke before the server answered, so the operation may or may not have been
    done. It was done completely or not at all.

    Attributes:
        late: the server did not answer in time; another attempt would take as long again.
    """

    def __init__(self, text: str, late: bool = False) -> None:
        super().__init__(text)
        self.late = late


class NoPermissionError(StorageError):
    """The tables do not exist, and the role may not create them."""


class OutOfReachError(StorageError):
    """No connection was available in time, so nothing was done."""


class Server:
    """A database whose tables are created on first use. Any thread may use it.

    Args:
        target: what to open; a given connection or pool is used as it is, and `close` leaves it
            open.
        part: the name under which migrations are counted.
        migrations: the statements that create the tables, one group for each version.
        pool_size: how many connections may be open at once.
        timeout: seconds to wait for a connection, a lock, or an answer.

    Raises:
        TypeError: `target` is none of these.
        ValueError: `pool_size` or `timeout` is not above 0.
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
                "the target must be a connection string, a psycopg.Connection or a "
                f"ConnectionPool, got {type(target).__name__}"
            )
        if pool_size < 1 or not timeout > 0:
            raise ValueError(
                f"pool_size and timeout (seconds) must be above 0, got {pool_size} and {timeout}"
            )
        self._part = part
        self._migrations = migrations
        self._timeout = timeout
        self._process = os.getpid()
        self._lock = threading.RLock()  # held while a given connection is in use
        self._starting = threading.Lock()
        self._ready = self._closed = False
        self.can_pipeline: bool = False  # until the sessions are known not to be shared
        self._lost = 0.0  # when a connection last broke, on the monotonic clock
        self._one: Connection[Any] | None = target if isinstance(target, Connection) else None
        self._pool: ConnectionPool[Any] | None = (
            target if isinstance(target, ConnectionPool) else None
        )
        self._own: ConnectionPool[Patient] | None = None
        self._given: dict[str, Any] = {}
        self._address: tuple[str, bool] | None = None
        self._options: dict[str, Any] = {}
        self._conninfo = target if isinstance(target, str) else ""
        if isinstance(target, str):
            self._given = parse_address(target)
            self._options = {"fallback_application_name": "stategraph", **ALIVE, **self._given}
            self._options |= {"autocommit": True, "connect_timeout": max(2, int(timeout))}
            self._pool = self._own = ConnectionPool(
                connection_class=Patient,
                kwargs=self._options,
                min_size=1,
                max_size=pool_size,
                timeout=timeout,
                reconnect_timeout=1.0,
                configure=self._configure,
                name="stategraph",
                open=False,
            )

    def _configure(self, connection: Patient) -> None:
        connection.patience, connection.proved = self._timeout, monotonic()
        values = (max(1, int(900 * self._timeout)), connection.info.backend_pid)  # milliseconds
        ((own, isolation, _),) = Wire(connection).rows(_SETTINGS, *values)
        if own:
            self.can_pipeline = True
            return
        # A pooler, e.g. PgBouncer, reports a backend number of its own. A prepared statement may be
        # in another session.
        connection.prepare_threshold = None
        if isolation != "read committed":
            raise StorageError(
                "behind a pooler the server's default_transaction_isolation must be "
                f"'read committed', got {isolation!r}: set it with ALTER ROLE or ALTER DATABASE, "
                "or connect to the server's own address"
            )

    # -- starting and ending -----------------------------------------------------------------------

    def setup(self) -> None:
        """Create the tables, or migrate them. Several processes may do so at once.

        Raises:
            StorageError: the server cannot be reached, refuses, or its tables were made by a later
                version.
        """
        self.check_usable()  # before the lock, which another thread may have held at a fork
        with self._starting:
            if self._ready:
                return
            self.add_part(self._part, self._migrations)
            if self._own is not None:
                self._own.open()
            self._ready = True

    def check_usable(self) -> None:
        """Raise `StorageError` once this was closed, or in the child of a fork."""
        if self._process != os.getpid():
            raise StorageError(
                "a Postgres connection does not survive a fork: open another in the new process"
            )
        if self._closed:
            raise StorageError(
                "the Postgres checkpointer, store or queue cannot be used: it was closed, and its "
                "connections with it. Open another"
            )

    def add_part(self, part: str, migrations: Sequence[Sequence[str]]) -> None:
        """Create or migrate the tables of a part, which is counted apart: programs without it can
        still open the database.

        Raises:
            NoPermissionError: the role may not do so.
        """
        # A given connection or pool already works, so the password need not be tested.
        if self._own is None:
            with self._connection() as connection:
                self._migrate(connection, part, migrations)
            return
        # A separate connection, so that a wrong name or password is reported at once, in the
        # server's words.
        with without_secrets("the Postgres server cannot be reached", self._conninfo):
            connection = Patient.connect(**self._options)
        try:
            with self._translate_errors(connection):
                self._configure(connection)
                self._migrate(connection, part, migrations)
        finally:
            connection.close()

    def _migrate(
        self, connection: Connection[Any], part: str, migrations: Sequence[Sequence[str]]
    ) -> None:
        wire = Wire(connection)
        try:
            version = wire.rows(_MIGRATED, part)[0][0]
        except errors.UndefinedTable:
            version = 0
        newest = len(migrations)
        if version > newest:
            raise StorageError(
                f"the tables of {part} must be of version {newest} or lower, got {version}: "
                "a newer stategraph made them. Update stategraph"
            )
        # Before any lock: most starts change nothing, and the role may lack the permission.
        if version == newest:
            return
        try:
            self._raise_version(wire, part, migrations)
        except errors.InsufficientPrivilege as error:
            raise NoPermissionError(
                f"the tables of {part} do not exist, and this role may not create them "
                f"({error}): call setup() once with a role that may"
            ) from error

    def _raise_version(self, wire: Wire, part: str, migrations: Sequence[Sequence[str]]) -> None:
        while True:
            try:
                wire.run(_MIGRATIONS)
                break
            except (errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject):
                continue  # another session was creating it, and has finished
        with transaction(wire, write=True):
            wire.run(_LOCK)
            # Read again under the lock: another process may have migrated meanwhile.
            done = wire.rows(_MIGRATED, part)[0][0]
            for version, statements in enumerate(migrations, 1):
                if version > done:
                    for statement in statements:
                        wire.run(statement)
                    wire.run(_MIGRATE, part, version)

    def close(self) -> None:
        """Close the connections that were opened here. It cannot be used afterwards."""
        self._closed = True
        # In the child of a fork the sockets are the parent's: closing them would end its sessions.
        if self._own is not None and self._process == os.getpid():
            self._own.close()

    @property
    def pool(self) -> Target:
        """The source of its connections, to be shared with others; open once `setup` was called."""
        found = self._own or self._pool or self._one
        assert found is not None
        return found

    @property
    def size(self) -> int:
        """How many connections may be in use at once."""
        pool = self._own or self._pool
        return 1 if pool is None else pool.max_size

    def address(self) -> tuple[str, bool]:
        """Return the connection string by which another process reaches the same tables, including
        the password, and whether it is valid on this machine only.

        Raises:
            StorageError: this was closed, or the given connection cannot be used.
        """
        self.check_usable()
        if self._address is None:
            self._address = self._find_address()
        return self._address

    def _find_address(self) -> tuple[str, bool]:
        if self._own is not None:
            found = {**({} if "service" in self._given else read_surroundings()), **self._given}
        else:
            with self._connection() as connection:
                found = {**connection.info.get_parameters(), "password": connection.info.password}
                options = [
                    f"-c {name}={escape_option(value)}"
                    for name, value in Wire(connection).rows(_SET)
                ]
            found["options"] = " ".join([found.get("options", ""), *options]).strip()
        hosts = str(found.get("hostaddr") or found.get("host") or "")
        string = make_conninfo(**{name: value for name, value in found.items() if value})
        return string, any(map(is_local, hosts.split(",")))

    # -- use ---------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self, write: bool, make_rows: RowMaker | None = None) -> Iterator[Wire]:
        """Open a transaction: everything inside sees one state of the database, and writes are
        stored all or none.

        Raises:
            StorageError: the database refused, or cannot be reached; nothing was done.
            ConnectionLostError: whether it was stored is not known.
        """
        with self.statements(make_rows) as wire, transaction(wire, write):
            yield wire

    @contextmanager
    def statements(self, make_rows: RowMaker | None = None) -> Iterator[Wire]:
        """Open a connection on which each statement is its own transaction."""
        if not self._ready:
            self.setup()
        with self._connection() as connection:
            wire = Wire(connection, make_rows)
            yield wire
            wire.finish()

    @contextmanager
    def _connection(self) -> Iterator[Connection[Any]]:
        """Yield a live connection that is in no transaction, and translate its errors."""
        self.check_usable()
        if self._one is not None:
            if not self._lock.acquire(timeout=self._timeout):
                raise StorageError(
                    f"the connection was in use by another thread for {self._timeout:g} s"
                )
            try:
                with self._translate_errors(self._one), outside_transaction(self._one):
                    yield self._one
            finally:
                self._lock.release()
            return
        assert self._pool is not None
        connection = self._checkout(self._pool)
        try:
            if isinstance(connection, Patient):  # in no transaction: only our pool makes these
                yield connection
            else:
                with outside_transaction(connection):
                    yield connection
        except Error as error:
            raise self.translate(error, connection) from error
        finally:
            self._pool.putconn(connection)

    def _checkout(self, pool: ConnectionPool[Any]) -> Connection[Any]:
        """Return a connection that still has its server. Those from before a restart are dropped
        without being tried."""
        deadline = monotonic() + self._timeout
        try:
            while True:
                left = max(0.0, deadline - monotonic())
                try:
                    connection: Connection[Any] = pool.getconn(min(left, AGAIN))
                except PoolTimeout:
                    if left > AGAIN:
                        continue
                    raise
                if is_proven(connection, self._lost, deadline - monotonic()):
                    return connection
                connection.close()
                pool.putconn(connection)
        except Error as error:
            self.check_usable()  # it may have been closed meanwhile
            reason = (
                "" if isinstance(error, PoolTimeout) else f" ({redact(str(error), self._conninfo)})"
            )
            raise OutOfReachError(
                f"no connection to the Postgres server within {self._timeout:g} s{reason}: it is "
                "down or out of reach, or all connections are in use. Nothing was done"
            ) from error

    @contextmanager
    def _translate_errors(self, connection: Connection[Any]) -> Iterator[None]:
        try:
            yield
        except Error as error:
            raise self.translate(error, connection) from error

    def translate(self, error: Error, connection: Connection[Any]) -> StorageError:
        """Return the error to raise for one of the driver's."""
        text = (error.diag.message_primary or str(error)).strip()
        # Late: the statement may still be running, so its outcome is unknown.
        if isinstance(error, LateError):
            self._lost = monotonic()
            return ConnectionLostError(f"{text}. {_UNKNOWN}", late=True)
        if isinstance(error, OperationalError) and (connection.closed or error.sqlstate in _GONE):
            self._lost = monotonic()
            connection.close()
            return ConnectionLostError(
                f"the connection to the Postgres server broke: {text}. {_UNKNOWN}"
            )
        if isinstance(error, errors.LockNotAvailable | errors.QueryCanceled):
            text = f"{text} (waited about {self._timeout:g} s; does another session hold a lock?)"
        elif isinstance(error, errors.DeadlockDetected | errors.SerializationFailure):
            text = f"{text} (try again)"
        return StorageError(f"the Postgres database refused: {text}. Nothing was done")


_UNKNOWN = (
    "It is not known whether the call was carried out; it was carried out whole or not at all. "
    "Read again to find out"
)


def is_clash(error: BaseException) -> bool:
    """Return whether an error, or one that caused it, says that Postgres rolled back because of
    other transactions (codes 40001 and 40P01): repeated, it will most likely succeed."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, errors.DeadlockDetected | errors.SerializationFailure):
            return True
        found = found.__cause__
    return False
