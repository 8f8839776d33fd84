"""One Postgres connection: statements with their values bound, transactions, and a limit to waiting
for an answer.

This file knows how psycopg is used. Texts are sent as bytes, because a Postgres text cannot hold a
NUL.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from time import monotonic
from typing import Any
from weakref import WeakSet

from psycopg import Connection, Error, OperationalError, RawCursor, generators
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.types.array import ListBinaryDumper
from psycopg.types.numeric import Int8

from ..errors import StorageError

_BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_BEGIN_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE"
BEGIN_ISOLATED = {
    "read committed": _BEGIN_WRITE,
    "repeatable read": "BEGIN ISOLATION LEVEL REPEATABLE READ, READ WRITE",
    "serializable": "BEGIN ISOLATION LEVEL SERIALIZABLE, READ WRITE",
}
"""Isolation level → how a transaction that has it begins."""
_COMMIT = "COMMIT"
_ROLLBACK = "ROLLBACK"
_PING = "SELECT 1"
_BACKEND = "SELECT pg_backend_pid()"

PROBES = 20
"""How often to try to get the session of another connection."""

ALIVE = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
"""Connection options: after this many seconds (the last: milliseconds) the client gives up a server
that is unreachable."""

SERVER_ALIVE = """
    set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5',
        false),
    set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '25000', false)
"""
"""The same for the server's side, whatever its own settings are: a client that vanished holds no
lock and no connection for longer."""


class Wire:
    """Statements on one connection, with their values bound. Strings become bytes; a list of pairs
    becomes two arrays.

    Args:
        make_rows: takes column names, and returns a function that makes a row; tuples by default.
    """

    __slots__ = ("_cursor", "_later", "_make_rows", "connection")

    def __init__(self, connection: Connection[Any], make_rows: RowMaker | None = None) -> None:
        self.connection: Any = connection
        self._make_rows = make_rows
        self._cursor: RawCursor[Any] | None = None
        self._later: dict[str, list[list[Any]]] = {}

    def rows(self, statement: str, *values: Any) -> list[Any]:
        """Execute a query, and return its rows."""
        prepared = self._prepared(statement)
        if prepared is not None:
            return prepared.rows(statement, bind(values), self._make_rows)
        return self._execute(statement, values).fetchall()

    def run(self, statement: str, *values: Any) -> int:
        """Execute a statement, and return how many rows it affected."""
        prepared = self._prepared(statement)
        if prepared is not None:
            return prepared.run(statement, bind(values))
        return self._execute(statement, values).rowcount

    def rows_together(self, *calls: tuple[Any, ...], inside: bool = False) -> list[list[Any]]:
        """Execute several queries, each given as its statement and its values, as one transaction,
        and return the rows of each. Each sees the effects of those before it. Takes one round trip,
        once all are prepared.

        Args:
            inside: a transaction is open, and they are a part of it.
        """
        prepared = [self._prepared(statement) for statement, *_ in calls]
        statements = prepared[0]
        if statements is not None and all(prepared):
            return statements.rows_together([(text, bind(values)) for text, *values in calls])
        with nullcontext() if inside else transaction(self, write=True):
            return [self.rows(*call) for call in calls]

    def _prepared(self, statement: str) -> PreparedStatements | None:
        """Return the prepared statements of the connection, if this statement is to be one of them.
        Behind a pooler, and on given connections, psycopg decides what to prepare."""
        connection = self.connection
        if not isinstance(connection, Patient) or connection.prepare_threshold is None:
            return None
        # psycopg drops all prepared statements of a session in which it sees a ROLLBACK, ours too.
        if not connection.prepared.is_due(statement) and statement != _ROLLBACK:
            return None
        return connection.prepared

    def _execute(self, statement: str, values: Sequence[Any]) -> RawCursor[Any]:
        return self._open_cursor().execute(statement, bind(values), binary=True)

    def _open_cursor(self) -> RawCursor[Any]:
        # Created late: prepared statements need no psycopg cursor.
        if self._cursor is None:
            self._cursor = RawCursor(self.connection)
            make_rows = self._make_rows
            if make_rows is not None:
                self._cursor.row_factory = lambda cursor: make_rows(
                    [column.name for column in cursor.description or ()]
                )
        return self._cursor

    def later(self, statement: str, *values: Any) -> None:
        """Execute a statement at the end of the transaction, together with others in one round
        trip."""
        self._later.setdefault(statement, []).append(bind(values))

    def commit(self) -> None:
        """Execute the deferred statements, and commit: in one round trip, once all are prepared."""
        if self._later:
            prepared = [self._prepared(text) for text in (*self._later, _COMMIT)]
            statements = prepared[0]
            if statements is not None and all(prepared):
                calls = [(text, each) for text, many in self._later.items() for each in many]
                self._later = {}
                statements.rows_together([*calls, (_COMMIT, [])])
                return
            self.finish()
        self.run(_COMMIT)

    def finish(self) -> None:
        """Execute the deferred statements."""
        if not self._later:
            return
        cursor = self._open_cursor()
        for statement, many in self._later.items():
            if len(many) == 1:
                cursor.execute(statement, many[0])
            else:
                cursor.executemany(statement, many)
        self._later = {}


def bind(values: Sequence[Any]) -> list[Any]:
    """Convert values to the form in which they are sent.

    >>> bind(["a", None, [(1, "b"), (2, "c")]])
    [b'a', None, [Int8(1), Int8(2)], [b'b', b'c']]
    """
    sent: list[Any] = []
    for value in values:
        kind = type(value)
        if kind is str:
            sent.append(value.encode())
        elif kind is int:
            sent.append(
                Int8(value)
            )  # one type for all, or each integer size would need its own prepared statement
        elif kind is not list:
            sent.append(value)
        elif value and type(value[0]) is tuple:
            sent.extend(bind(column) for column in zip(*value, strict=True))
        else:
            sent.append(bind(value))
    return sent


@contextmanager
def transaction(wire: Wire, write: bool, isolation: str | None = None) -> Iterator[None]:
    """Run all statements inside as one transaction; deferred statements come last.

    Args:
        isolation: "read committed", "repeatable read" or "serializable"; by default, that of
            `write`.
    """
    try:
        begin = _BEGIN_WRITE if write else _BEGIN_READ
        wire.run(begin if isolation is None else BEGIN_ISOLATED[isolation])
        yield
        wire.commit()
    except BaseException:
        _roll_back(wire)
        raise


def _roll_back(wire: Wire) -> None:
    if wire.connection.closed or wire.connection.info.transaction_status == TransactionStatus.IDLE:
        return
    try:
        wire.run(_ROLLBACK)
    except Error:
        wire.connection.close()  # the server then rolls back by itself


@contextmanager
def outside_transaction(connection: Connection[Any]) -> Iterator[None]:
    """Check that a connection is in no transaction, and let psycopg open none by itself in this
    context."""
    if connection.closed:
        raise StorageError(
            "the Postgres connection that was handed in is closed: hand in a pool, or open it anew"
        )
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise StorageError(
            "the Postgres connection that was handed in is inside a transaction: end it first, or "
            "hand in a pool"
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


def is_alive(connection: Connection[Any], ask: bool = False) -> bool:
    """Return whether an idle connection still has its server. Asks the server only if told to, or
    if there is input to read, which usually announces the end."""
    if connection.closed:
        return False
    if not ask and not _has_input(connection.fileno()):
        return True
    try:
        with outside_transaction(connection):
            Wire(connection).run(_PING)
    except Error:
        return False
    return True


def _has_input(fileno: int) -> bool:
    """Return whether there is input to read. Called before every statement, so it takes one system
    call where possible (P28, P36)."""
    poller = select.poll()
    poller.register(fileno, select.POLLIN)
    return bool(poller.poll(0))


def shares_sessions(connection: Connection[Any], connect: Callable[[], Connection[Any]]) -> bool:
    """Return whether a pooler in between, e.g. PgBouncer, lends sessions for one transaction at a
    time, so that locks and LISTEN are lost. It does if another connection gets the session that
    this one had, or this connection's session changes.

    Args:
        connect: opens another connection to the same address.
    """
    if (first := _backend(connection)) == connection.info.backend_pid:
        return False
    for _ in range(PROBES):
        with connect() as other:
            wire = Wire(other)
            with transaction(wire, write=False):
                if _backend(other) == first or _backend(connection) != first:
                    return True
        # PgBouncer lends first what came back last: asked inside alone, both would get the same
        # sessions each time.
        if _backend(connection) != first:
            return True
    return False


def _backend(connection: Connection[Any]) -> int:
    number: int = Wire(connection).rows(_BACKEND)[0][0]
    return number


def is_proven(connection: Connection[Any], lost: float, seconds: float) -> bool:
    """Do the same as `is_alive`, but ask the server, for at most this many seconds, if the
    connection is older than the last loss of another one. A server that lost power sends no
    message, so all idle connections look alive."""
    if not isinstance(connection, Patient) or connection.proved > lost:
        return is_alive(connection)
    # A dead server must not use up the whole time: another connection may work.
    patience, connection.patience = connection.patience, max(0.1, seconds)
    found = is_alive(connection, ask=True)
    connection.patience, connection.proved = patience, monotonic()
    return found


class LateError(OperationalError):
    """The server did not answer in time."""


class Patient(Connection[Any]):
    """A connection that waits only so long for an answer, even from a server that is frozen or
    unreachable.

    Attributes:
        patience: how many seconds to wait; None for no limit.
        proved: when it was last known to have its server, on the monotonic clock.
        prepared: the statements that it has prepared.
    """

    patience: float | None = None
    proved: float = 0.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _open.add(self)
        # As text, a value in an array is twice as long, and converting it blocks all threads.
        self.adapters.register_dumper(list, ListBinaryDumper)
        self.prepared: PreparedStatements = PreparedStatements(self)

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return super().wait(
                gen if self.patience is None else _until(gen, self.patience), *args, **kwargs
            )
        except LateError:
            self._abort()
            raise

    def _abort(self) -> None:
        """Close it, and discard unsent data: otherwise the system keeps sending it, and once the
        network is back, abandoned statements would run after later ones."""
        handle = socket.socket(fileno=self.fileno())
        try:
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        finally:
            handle.detach()
            self.close()


_open: WeakSet[Patient] = WeakSet()


def _let_go() -> None:
    """In a forked child, such as one that a node made, detach from the parent's sockets: otherwise
    the session, its locks and its claims would live on in the child after the parent has ended. The
    file descriptors stay taken, so that no other file gets them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for connection in list(_open):
        try:
            os.dup2(nothing, connection.pgconn.socket, inheritable=False)
        except (Error, OSError):
            pass  # already closed
    os.close(nothing)


os.register_at_fork(after_in_child=_let_go)


def _until(gen: Generator[Any, Any, Any], seconds: float) -> Generator[Any, Any, Any]:
    """Wrap a generator so that it fails if it still has to wait after this many seconds. It is
    resumed ten times a second."""
    deadline = monotonic() + seconds
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and monotonic() > deadline:
                raise LateError(f"the Postgres server did not answer within {seconds:g} s")
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value


RowMaker = Callable[[Sequence[str]], Callable[[Sequence[Any]], Any]]
"""Takes column names; returns a function that makes a row from its values."""

AFTER = 2
"""How often a statement is executed before it is prepared: many are executed only once, when a
program starts."""

MOST = 200
"""How many statements are counted. Ours are constants, except searches by many keys."""

_GOOD = frozenset({ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK})


class PreparedStatements:
    """The prepared statements of one connection, executed without a cursor; one thread uses them at
    a time.

    For each statement psycopg creates a cursor, a query and a row maker; for statements that are
    always the same, that is most of the client's time (P28, P36). Waiting, notices, types and
    errors are psycopg's own.
    """

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        self._transformer = Transformer(connection)
        self._uses: dict[str, int] = {}
        # By text and parameter types: None has no type.
        self._names: dict[tuple[str, tuple[int, ...]], bytes] = {}
        self._makers: dict[tuple[str, RowMaker], Callable[[Sequence[Any]], Any]] = {}

    def is_due(self, statement: str) -> bool:
        """Count the use of a statement, and return whether it is worth preparing."""
        uses = self._uses.get(statement, 0)
        if uses >= AFTER:
            return True
        if uses or len(self._uses) < MOST:
            self._uses[statement] = uses + 1
        return False

    def rows(self, statement: str, values: Sequence[Any], make_rows: RowMaker | None) -> list[Any]:
        """Execute a query, and return its rows."""
        return self._load(statement, self._execute(statement, values), make_rows)

    def _load(
        self, statement: str, result: PGresult, make_rows: RowMaker | None = None
    ) -> list[Any]:
        make_row: Callable[[Sequence[Any]], Any] = tuple
        if make_rows is not None:
            known = self._makers.get((statement, make_rows))
            make_row = known or self._name_columns(statement, make_rows, result)
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, make_row)

    def run(self, statement: str, values: Sequence[Any]) -> int:
        """Execute a statement, and return how many rows it affected."""
        return self._execute(statement, values).command_tuples or 0

    def _name_columns(
        self, statement: str, make_rows: RowMaker, result: PGresult
    ) -> Callable[[Sequence[Any]], Any]:
        names = [(result.fname(number) or b"").decode() for number in range(result.nfields)]
        made = self._makers[statement, make_rows] = make_rows(names)
        return made

    def rows_together(self, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[list[Any]]:
        """Execute several queries as one transaction in one round trip, and return the rows of
        each. Each sees the effects of those before it."""
        pgconn = self._connection.pgconn
        bound = [self._bind(*call) for call in calls]
        pgconn.enter_pipeline_mode()
        try:
            for each in bound:
                pgconn.send_query_prepared(*each, Format.BINARY)
            pgconn.pipeline_sync()
            results = self._connection.wait(_fetch_all(pgconn, len(calls)))
            pgconn.exit_pipeline_mode()
        except BaseException:
            self._connection.close()  # pending results would be taken for later answers
            raise
        for result in results:
            _check(result)
        return [self._load(text, result) for (text, _), result in zip(calls, results, strict=True)]

    def _execute(self, statement: str, values: Sequence[Any]) -> PGresult:
        bound = self._bind(statement, values)
        self._connection.pgconn.send_query_prepared(*bound, Format.BINARY)
        return self._fetch()

    def _bind(self, statement: str, values: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Return the name of a statement for values of these types, the values in wire format, and
        their formats."""
        transformer = self._transformer
        params = transformer.dump_sequence(values, [PyFormat.BINARY] * len(values))
        types, formats = transformer.types or (), transformer.formats
        name = self._names.get((statement, types)) or self._prepare(statement, types)
        return name, params, formats

    def _prepare(self, statement: str, types: tuple[int, ...]) -> bytes:
        name = b"stategraph_%d" % len(self._names)
        self._connection.pgconn.send_prepare(name, statement.encode(), types)
        self._fetch()
        self._names[statement, types] = name
        return name

    def _fetch(self) -> PGresult:
        connection = self._connection
        results = connection.wait(generators.execute(connection.pgconn))
        result: PGresult = results[-1]
        _check(result)
        return result


def _fetch_all(pgconn: PGconn, count: int) -> Generator[Any, Any, list[PGresult]]:
    """Return the results of this many statements that were sent together."""
    yield from generators.send(pgconn)
    results = []
    for _ in range(count):
        results.append((yield from generators.fetch_many(pgconn))[-1])
    yield from generators.fetch_many(pgconn)  # the end of the pipeline
    return results


def _check(result: PGresult) -> None:
    if result.status not in _GOOD:
        raise error_from_result(result, encoding="utf-8")
