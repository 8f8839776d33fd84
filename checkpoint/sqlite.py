"""`SqliteSaver`: threads in an SQLite file. This module manages the connection and access to it;
what a commit means is in `sql/`."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Any

from .errors import StorageError
from .integrity import Integrity
from .records import TaskWrites, Transacted, TransactionPlace
from .retention import Retention
from .serde import Serializer
from .sql.group_commit import GroupCommit
from .sql.queries import NEAR, NO_VALUES, LookUp, Next, SqlSession
from .sql.read_rows import RecentValues
from .sql.rows import CheckpointRow, MaterializedState, NamespaceRow
from .sql.saver import SqlSaver
from .sql.sqlite_database import (
    BEGIN_WRITE,
    BUSY_SECONDS,
    COMMIT,
    RELEASE,
    SAVEPOINT,
    Database,
    Session,
    Synchronous,
    Target,
    is_duplicate,
    is_unknown_name,
    open_error,
)
from .sql.sqlite_tables import ROW, SCHEMA, SPACE, STATEMENTS
from .sql.write_rows import CommitRows
from .threads import Result

__all__ = ["SqliteSaver"]

MANY = 1000
"""Namespaces that are not listed one by one."""

SQLITE_THREADS = 4
"""How many async calls are made at once. They take turns at the one connection; a call that reads
or prunes much lets others between."""


class SqliteSaver(SqlSaver):
    """Keeps threads in an SQLite file, shared by threads, event loops and processes of one machine.

    The tables are created when it is opened. The async methods wait on the checkpointer's own
    threads.

    Args:
        conn: what to open: a file name, `":memory:"`, a `file:` URI; or an open connection that
            serves this checkpointer alone, was opened with `check_same_thread=False`, and stays
            open after `close`.
        synchronous: how much is on the disk when a step's chunk reaches the reader. "full": the
            step is. "normal", several times faster: a power failure may lose the last steps, but
            only whole steps.
        timeout: seconds to wait for another process that writes to the file.
        serde: turns values into bytes and back.
        integrity: guards the stored rows; a checksum by default. `Encryption` hides them as well.
        retention: which checkpoints to delete as runs go on; None keeps all.
        read_only: only read the file: operations that would change it or create files beside it
            are refused.

    Raises:
        StorageError: the file cannot be opened, or `read_only` is set and it holds no threads.
        ValueError: `conn` is the address of a server.

    >>> with SqliteSaver.from_conn_string(":memory:") as saver:
    ...     print(saver.get({"configurable": {"thread_id": "1"}}))
    None
    """

    def __init__(
        self,
        conn: Target,
        *,
        synchronous: Synchronous = "full",
        timeout: float = BUSY_SECONDS,
        serde: Serializer | None = None,
        integrity: Integrity | None = None,
        retention: Retention | None = None,
        read_only: bool = False,
    ) -> None:
        super().__init__(serde=serde, integrity=integrity, retention=retention)
        self._lock = threading.RLock()
        self._database = Database(conn, SCHEMA, synchronous, timeout, _ADVICE, read_only=read_only)
        if read_only:
            self._check_tables(conn)
        self._cursor = self._database.connection.cursor()  # one for all commits, under the lock
        self._recent = RecentValues()
        self._group = GroupCommit(self._lock, self._database.group, self._database.is_undone)

    def _check_tables(self, conn: Target) -> None:
        try:
            for text in (SPACE, ROW):
                self._database.execute(f"{text} LIMIT 0").close()
        except self._database.error as error:
            self._database.close()
            if is_unknown_name(error):
                raise StorageError(
                    f"{str(conn)!r} has no tables of a SqliteSaver: {error}"
                ) from error
            raise open_error(conn, error) from error
        try:
            self._database.execute(STATEMENTS["unlabelled"], (0, 0)).close()
        except self._database.error:
            self._loads_for_labels = None  # an older version has written the file

    def setup(self) -> None:
        """Do nothing: the tables already exist. Kept for programs that call it."""

    def close(self) -> None:
        """Close the connection, unless it was handed in."""
        self._database.close(self._lock)
        self._group.close()
        self._end_threads()

    def _max_threads(self) -> int:
        return SQLITE_THREADS

    async def _acall(self, function: Callable[..., Result], *args: Any) -> Result:
        if self._transacts:
            self._refuse_inside()
        # What a subclass does around a write must not be done before it is on disk: its own method
        # is none of these.
        if getattr(function, "__func__", None) in _GROUPED:
            self._database.check_process()
            return await self._group.call(function, *args)
        return await super()._acall(function, *args)

    @property
    def database(self) -> Database:
        """The connection, for data that is written together with commits; see `awrite`."""
        return self._database

    async def awrite(self, function: Callable[..., Result], *args: Any) -> Result:
        """Write other data on the connection, in one transaction with the waiting commits. The
        given function is called with the lock held, perhaps once more if that transaction was
        rolled back, and must open a session of the database."""
        self._database.check_process()
        return await self._group.call(function, *args)

    def _write(self, function: Callable[..., Result], *args: Any) -> Result:
        if self._transacts:
            self._refuse_inside()
        # Before the lock, which another thread may have held at the fork.
        if self._database.process != os.getpid():
            self._database.check_process()
        lock, group = self._lock, self._group
        if lock.acquire(blocking=False):
            inside = group.is_making  # this is called inside another write, which holds the lock
            try:
                if inside or not group.waiting:
                    group.is_making = True
                    return function(*args)
            finally:
                group.is_making = inside
                lock.release()
        return group.run(function, *args)

    def _transact(
        self, place: TransactionPlace, function: Callable[[Any], TaskWrites]
    ) -> Transacted:
        from .sql.transaction import transact_on_sqlite

        return transact_on_sqlite(self, place, function)

    def _append(
        self,
        state: MaterializedState,
        rows: CommitRows,
        requires: Sequence[tuple[str, str | None]],
    ) -> int | None:
        space, database, execute = state.namespace_id, self._database, self._cursor.execute
        with self._lock:
            grouped = mine = database.grouped
            try:
                mine = mine or not database.connection.in_transaction or database.settle()
                try:
                    # Inside: Ctrl-C may come just as it is done.
                    try:
                        execute(SAVEPOINT if grouped else BEGIN_WRITE)
                    except database.error as error:
                        database.execute_again(error, BEGIN_WRITE)
                    for name, head_id in requires:
                        at = (state.key.thread_id, name)
                        found = execute(STATEMENTS["required"], at).fetchone()
                        if (NamespaceRow(*found).head_id if found else None) != head_id:
                            database.roll_back()
                            return None
                    names = (rows.checkpoint_id, rows.parent_id)
                    row = (space, *names, rows.link, rows.run_id, rows.body)
                    seq = execute(STATEMENTS["add_row"], row).lastrowid
                    # Compare-and-swap: no row is touched if the head, or what is recorded beside
                    # it, is not what this commit was built on.
                    old = (space, state.seq, state.id, state.revision)
                    moved = (seq, rows.checkpoint_id, seq, *old)
                    if execute(STATEMENTS["move_head"], moved).rowcount != 1:
                        database.roll_back()
                        return None
                    if rows.writes is not None:
                        execute(STATEMENTS["add_writes"], (space, rows.parent_id, rows.writes))
                    for channel, base, data in rows.long_values:
                        execute(STATEMENTS["add_value"], (space, seq, channel, base, data))
                    if rows.labels:
                        execute(STATEMENTS["add_labels"], (space, json.dumps(rows.labels)))
                    if grouped:
                        execute(RELEASE)
                    else:
                        database.check_files()
                        execute(COMMIT)
                except BaseException:
                    if mine:
                        database.roll_back()
                    raise
            except database.error as error:
                if is_duplicate(error):
                    # Two runs made the same of the same: whose head it is, the slow way finds out.
                    return None
                raise database.refusal(error) from error
        return seq

    def _seconds_for_others(self, seconds: float) -> float:
        # A process that waits for the file retries after 1, 2, 5, 10, 15, ... ms, and must then
        # find it free: of each moment in which others try it is twice as often free as not.
        return max(0.001, 2 * seconds)

    def _look_up(
        self, session: SqlSession, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None
    ) -> LookUp | None:
        if checkpoint_id is None:
            rows = session.rows("look", thread_id, checkpoint_ns)
        else:
            rows = session.rows("look_at", thread_id, checkpoint_ns, checkpoint_id, NEAR)
        if not rows:
            return None
        written = []
        after: Next = None, NO_VALUES
        while rows[-1][0] is None:  # behind the others
            written.append(rows.pop()[-2:])
        writes = [data for _, data in sorted(written)] if written else written
        first = rows[0]
        if checkpoint_id is None:
            chain = [CheckpointRow(*row[7:]) for row in rows if row[7] is not None]
        else:
            # The first one stands in a row with each short value that came next.
            found = {row[8]: CheckpointRow(*row[7:14]) for row in rows if row[7] is not None}
            chain = [*found.values()]
            if first[14] is not None:
                values = {(first[15], row[21]): row[22] for row in rows if row[21] is not None}
                after = CheckpointRow(*first[14:21]), values
        return NamespaceRow(*first[:7]), chain, writes, after

    def _statements(self) -> _SqliteSession:
        return self._session(write=None)

    def _session(self, *, write: bool | None) -> _SqliteSession:
        if self._transacts:
            self._refuse_inside()
        return _SqliteSession(self._database, write, self._lock)


_ADVICE = "; once the cause is fixed, invoke(None, config) goes on from the last step of the thread"

_GROUPED = {getattr(SqlSaver, name) for name in ("commit", "put", "put_writes", "record")}
"""What is written together with other writes that wait."""


class _SqliteSession(Session):
    """The statements of one transaction."""

    __slots__ = ()

    def rows(self, statement: str, *values: Any) -> list[Any]:
        if statement == "page":
            if len(values[0]) == 1:
                statement, values = "page_of_one", (values[0][0], *values[1:])
            elif len(values[0]) > MANY:
                statement = "page_of_many"
        return self._execute(statement, values).fetchall()

    def run(self, statement: str, *values: Any) -> int:
        return self._execute(statement, values).rowcount

    def _execute(self, statement: str, values: Sequence[Any]) -> sqlite3.Cursor:
        for value in values:
            if type(value) is list:  # SQLite takes it as JSON
                values = [json.dumps(each) if type(each) is list else each for each in values]
                break
        return self._database.execute(STATEMENTS[statement], values)

    def add(self, statement: str, *values: Any) -> int:
        seq = self._database.execute(STATEMENTS[statement], values).lastrowid
        assert seq is not None
        return seq
