"""`SqliteSaver`: threads in an SQLite file. Only the tables, their statements, which are constants,
and the connection; what a commit means is in `sql/`."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from .errors import StorageError
from .integrity import Integrity
from .opening import Opening
from .overrides import make_repeatable
from .retention import Retention
from .serde import Serializer
from .sql.first_commits import SqlSaverOfFirsts
from .sql.group_commit import GroupCommit
from .sql.queries import LookUp, SqlSession
from .sql.rows import CheckpointRow, MaterializedState, NamespaceRow
from .sql.sqlite_database import (
    BEGIN_WRITE,
    BUSY_SECONDS,
    COMMIT,
    RELEASE,
    SAVEPOINT,
    Database,
    Synchronous,
    Target,
    is_duplicate,
    is_unknown_name,
    open_error,
)
from .sql.write_rows import CommitRows
from .threads import Result

__all__ = ["SqliteSaver"]

MANY = 1000
"""Namespaces that are not listed one by one."""

SQLITE_THREADS = 4
"""How many async calls are made at once. They take turns at the one connection; a call that reads
or prunes much lets others between."""

# `seq` orders all checkpoints of the file. A value belongs to the checkpoint that wrote it
# (`owner`), and stays as long as any checkpoint builds on it. `link` and `base` are what a row is a
# change to; NULL where it is whole.
_SCHEMA = (
    """
    CREATE TABLE IF NOT EXISTS spaces (
        id INTEGER PRIMARY KEY,
        thread_id TEXT NOT NULL,
        checkpoint_ns TEXT NOT NULL,
        head INTEGER,
        head_id TEXT,
        stamp INTEGER NOT NULL DEFAULT 0,
        size INTEGER NOT NULL DEFAULT 0,
        UNIQUE (thread_id, checkpoint_ns)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS checkpoints (
        seq INTEGER PRIMARY KEY,
        space INTEGER NOT NULL,
        checkpoint_id TEXT NOT NULL,
        parent_id TEXT,
        link INTEGER,
        run_id TEXT,
        body BLOB NOT NULL
    )
    """,
    "CREATE UNIQUE INDEX IF NOT EXISTS checkpoints_by_id ON checkpoints (space, checkpoint_id)",
    "CREATE INDEX IF NOT EXISTS checkpoints_by_space ON checkpoints (space)",
    "CREATE INDEX IF NOT EXISTS checkpoints_by_run ON checkpoints (run_id) "
    "WHERE run_id IS NOT NULL",
    """
    CREATE TABLE IF NOT EXISTS channel_values (
        space INTEGER NOT NULL,
        owner INTEGER NOT NULL,
        channel TEXT NOT NULL,
        base INTEGER,
        data BLOB NOT NULL
    )
    """,
    "CREATE UNIQUE INDEX IF NOT EXISTS channel_values_by_owner "
    "ON channel_values (space, owner, channel)",
    """
    CREATE TABLE IF NOT EXISTS writes (
        seq INTEGER PRIMARY KEY,
        space INTEGER NOT NULL,
        checkpoint_id TEXT NOT NULL,
        data BLOB NOT NULL
    )
    """,
    "CREATE INDEX IF NOT EXISTS writes_by_checkpoint ON writes (space, checkpoint_id)",
)
_SPACE = "SELECT id, thread_id, checkpoint_ns, head, head_id, stamp, size FROM spaces"
_ROW = "SELECT space, seq, checkpoint_id, parent_id, link, run_id, body FROM checkpoints"
_STATEMENTS = {
    "namespace": f"{_SPACE} WHERE thread_id = ? AND checkpoint_ns = ?",
    "lock_namespace": f"{_SPACE} WHERE thread_id = ? AND checkpoint_ns = ?",
    "namespaces": f"{_SPACE} WHERE thread_id = ? ORDER BY id",
    "lock_namespaces": f"{_SPACE} WHERE thread_id = ? ORDER BY id",
    "all_namespaces": f"{_SPACE} ORDER BY id",
    "threads": "SELECT thread_id, checkpoint_ns FROM spaces ORDER BY head DESC, id",
    "namespaces_after": f"{_SPACE} WHERE id > ? ORDER BY id LIMIT ?",
    "add_namespace": "INSERT OR IGNORE INTO spaces (thread_id, checkpoint_ns) VALUES (?, ?)",
    "set_head": """
        UPDATE spaces SET head = ?, head_id = ?, stamp = ?,
            size = (SELECT count(*) FROM checkpoints WHERE space = spaces.id)
        WHERE id = ?
    """,
    "set_revision": "UPDATE spaces SET stamp = ? WHERE id = ?",
    "count": (
        "SELECT size, (SELECT count(*) FROM checkpoints WHERE space = spaces.id) FROM spaces "
        "WHERE id = ?"
    ),
    "move_head": """
        UPDATE spaces SET head = ?, head_id = ?, stamp = 0, size = size + 1 WHERE id = ?
            AND head_id = ? AND stamp = ?
    """,
    "drop_namespace": "DELETE FROM spaces WHERE id = ?",
    "by_id": f"{_ROW} WHERE space = ? AND checkpoint_id = ?",
    "by_id_unindexed": """
        SELECT 1 FROM checkpoints INDEXED BY checkpoints_by_space WHERE space = ?
            AND checkpoint_id = ?
    """,
    "all_rows": f"{_ROW} WHERE space = ? ORDER BY seq",
    # A namespace, and in it a checkpoint (the head, if ?3 is NULL) with those it builds on and what
    # its tasks wrote. What is long takes no part in the recursion, which would copy it.
    "look": """
        WITH RECURSIVE chain (space, seq, link) AS (
            SELECT c.space, c.seq, c.link FROM spaces AS s JOIN checkpoints AS c
                ON c.space = s.id AND c.checkpoint_id = coalesce(?3, s.head_id)
            WHERE s.thread_id = ?1 AND s.checkpoint_ns = ?2
            UNION ALL
            SELECT c.space, c.seq, c.link FROM chain CROSS JOIN checkpoints AS c
                ON c.seq = chain.link AND chain.link < chain.seq AND c.space = chain.space
        )
        SELECT 0, s.id, s.thread_id, s.checkpoint_ns, s.head, s.head_id, s.stamp, s.size
            FROM spaces AS s WHERE s.thread_id = ?1 AND s.checkpoint_ns = ?2
        UNION ALL
        SELECT 1, c.space, c.seq, c.checkpoint_id, c.parent_id, c.link, c.run_id, c.body
            FROM chain CROSS JOIN checkpoints AS c ON c.seq = chain.seq
        UNION ALL
        SELECT 2, w.seq, w.data, NULL, NULL, NULL, NULL, NULL FROM spaces AS s JOIN writes AS w
            ON w.space = s.id AND w.checkpoint_id = coalesce(?3, s.head_id)
            WHERE s.thread_id = ?1 AND s.checkpoint_ns = ?2
    """,
    "page_of_one": f"{_ROW} WHERE space = ? AND seq < ? ORDER BY seq DESC LIMIT ?",
    # Few namespaces: the newest rows of each, by its index. Many: all rows backwards, of which most
    # are wanted.
    "page": f"""
        {_ROW} WHERE seq IN (
            SELECT c.seq FROM json_each(?1) AS wanted CROSS JOIN checkpoints AS c ON c.seq IN (
                SELECT seq FROM checkpoints WHERE space = wanted.value AND seq < ?2
                ORDER BY seq DESC LIMIT ?3
            )
            ORDER BY c.seq DESC LIMIT ?3
        )
        ORDER BY seq DESC
    """,
    "page_of_all": f"{_ROW} WHERE seq < ? ORDER BY seq DESC LIMIT ?",
    "page_of_many": (
        f"{_ROW} WHERE +space IN (SELECT value FROM json_each(?)) AND seq < ? "
        "ORDER BY seq DESC LIMIT ?"
    ),
    "next": f"{_ROW} WHERE space = ? AND seq > ? ORDER BY seq LIMIT 1",
    "chain": """
        WITH RECURSIVE chain (seq, link) AS (
            SELECT seq, link FROM checkpoints WHERE space = ?1 AND seq = ?2
            UNION ALL
            SELECT c.seq, c.link FROM chain CROSS JOIN checkpoints AS c
                ON c.seq = chain.link AND chain.link < chain.seq AND c.space = ?1
        )
        SELECT c.space, c.seq, c.checkpoint_id, c.parent_id, c.link, c.run_id, c.body
        FROM chain CROSS JOIN checkpoints AS c ON c.seq = chain.seq ORDER BY c.seq DESC
    """,
    "by_run": (
        "SELECT checkpoint_id FROM checkpoints WHERE +space = ? AND run_id = ? "
        "ORDER BY seq DESC LIMIT 1"
    ),
    "add_row": """
        INSERT INTO checkpoints (space, checkpoint_id, parent_id, link, run_id, body)
            VALUES (?, ?, ?, ?, ?, ?)
    """,
    "rewrite": "UPDATE checkpoints SET parent_id = ?, link = NULL, body = ? WHERE seq = ?",
    "drop_rows": (
        "DELETE FROM checkpoints WHERE space = ? AND seq IN (SELECT value FROM json_each(?))"
    ),
    "forget_rows": "DELETE FROM checkpoints WHERE space = ?",
    "threads_of_runs": """
        SELECT DISTINCT thread_id FROM checkpoints JOIN spaces ON spaces.id = space
        WHERE run_id IN (SELECT value FROM json_each(?))
    """,
    "values": """
        WITH RECURSIVE found (id, channel, base) AS (
            SELECT v.rowid, v.channel, v.base FROM json_each(?2) AS wanted
            CROSS JOIN channel_values AS v ON v.space = ?1
                AND v.owner = json_extract(wanted.value, '$[0]')
                AND v.channel = json_extract(wanted.value, '$[1]')
            UNION
            SELECT v.rowid, v.channel, v.base FROM found CROSS JOIN channel_values AS v
                ON v.space = ?1 AND v.owner = found.base AND v.channel = found.channel
        )
        SELECT v.owner, v.channel, v.base, v.data
        FROM found CROSS JOIN channel_values AS v ON v.rowid = found.id
    """,
    "one_value": """
        SELECT owner, channel, base, data FROM channel_values WHERE space = ? AND owner = ?
            AND channel = ?
    """,
    "all_values": "SELECT owner, channel, base FROM channel_values WHERE space = ?",
    "add_value": (
        "INSERT INTO channel_values (space, owner, channel, base, data) VALUES (?, ?, ?, ?, ?)"
    ),
    "drop_values": """
        DELETE FROM channel_values WHERE rowid IN (
            SELECT v.rowid FROM (SELECT ? AS space, ? AS list) AS given
            CROSS JOIN json_each(given.list) AS gone
            CROSS JOIN channel_values AS v ON v.space = given.space
                AND v.owner = json_extract(gone.value, '$[0]')
                AND v.channel = json_extract(gone.value, '$[1]')
        )
    """,
    "forget_values": "DELETE FROM channel_values WHERE space = ?",
    "writes": """
        SELECT checkpoint_id, data FROM writes
        WHERE space = ? AND checkpoint_id IN (SELECT value FROM json_each(?)) ORDER BY seq
    """,
    "all_writes": "SELECT checkpoint_id, data FROM writes WHERE space = ? ORDER BY seq",
    "count_writes": "SELECT count(*) FROM writes WHERE space = ? AND checkpoint_id = ?",
    "add_writes": "INSERT INTO writes (space, checkpoint_id, data) VALUES (?, ?, ?)",
    "drop_writes": (
        "DELETE FROM writes WHERE space = ? AND checkpoint_id IN (SELECT value FROM json_each(?))"
    ),
    "forget_writes": "DELETE FROM writes WHERE space = ?",
}


class SqliteSaver(SqlSaverOfFirsts):
    """Keeps threads in an SQLite file, shared by threads, event loops and processes of one machine.

    The tables are made when it is opened. The async methods wait on threads of the saver's own.

    Args:
        conn: what to open: a file name, `":memory:"`, a `file:` URI; or an open connection that
            serves this saver alone, was opened with `check_same_thread=False`, and stays open after
            `close`.
        synchronous: how much is on the disk when a step's chunk reaches the reader. "full": the
            step is. "normal", several times faster: a loss of power may take the last steps, whole
            ones only.
        timeout: seconds to wait for another process that writes to the file.
        serde: turns values into bytes and back.
        integrity: guards the stored rows; a checksum by default. `Encryption` hides them as well.
        retention: which checkpoints to forget as runs go on; None keeps all.
        read_only: only look at a file: nothing in it or beside it changes, and what would is
            refused.

    Raises:
        StorageError: the file cannot be opened; or it is to be read only and holds no threads.

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
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._database = Database(conn, _SCHEMA, synchronous, timeout, _ADVICE, read_only=read_only)
        if read_only:
            self._check_tables(conn)
        self._cursor = self._database.connection.cursor()  # one for all commits, under the lock
        self._group = GroupCommit(self._lock, self._database.group, self._database.is_undone)

    def _check_tables(self, conn: Target) -> None:
        try:
            for text in (_SPACE, _ROW):
                self._database.execute(f"{text} LIMIT 0").close()
        except self._database.error as error:
            self._database.close()
            if is_unknown_name(error):
                raise StorageError(
                    f"{str(conn)!r} has no tables of a SqliteSaver: {error}"
                ) from error
            raise open_error(conn, error) from error

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Any) -> Opening[Self]:
        """Open a saver for the length of a `with` or `async with` block, then close it; options as
        for the class."""
        return Opening(cls, conn_string, **options)

    def setup(self) -> None:
        """Nothing to do: the tables are there. For programs that call it."""

    def close(self) -> None:
        """Close the connection, unless it was handed in."""
        with self._lock:
            self._database.close()
        self._group.close()
        self._end_threads()

    def _max_threads(self) -> int:
        return SQLITE_THREADS

    async def _acall(self, function: Callable[..., Result], *args: Any) -> Result:
        # What a subclass does around a write must not be done before it is on disk: its own method
        # is none of these.
        if getattr(function, "__func__", None) in _GROUPED:
            self._database.check_process()
            return await self._group.call(make_repeatable(self, function), *args)
        return await super()._acall(function, *args)

    def _write(self, function: Callable[..., None], *args: Any) -> None:
        # Before the lock, which another thread may have held at the fork.
        if self._process != os.getpid():
            self._database.check_process()
        lock, group = self._lock, self._group
        if lock.acquire(blocking=False):
            try:
                # Nobody else writes or waits to; or this is called inside another write.
                if not group.waiting or group.is_making:
                    function(*args)
                    return
            finally:
                lock.release()
        group.run(make_repeatable(self, function), *args)

    def _append(self, state: MaterializedState, rows: CommitRows) -> int | None:
        space, database, execute = state.namespace_id, self._database, self._cursor.execute
        with self._lock:
            grouped = database.grouped
            mine = grouped or not database.connection.in_transaction or database.settle()
            try:
                try:
                    # Inside: Ctrl-C may come just as it is done.
                    execute(SAVEPOINT if grouped else BEGIN_WRITE)
                    names = (rows.checkpoint_id, rows.parent_id)
                    row = (space, *names, rows.link, rows.run_id, rows.body)
                    seq = execute(_STATEMENTS["add_row"], row).lastrowid
                    # Compare-and-swap: no row is touched if the head, or what is recorded beside
                    # it, is not what this commit was built on.
                    moved = (seq, rows.checkpoint_id, space, state.id, state.revision)
                    if execute(_STATEMENTS["move_head"], moved).rowcount != 1:
                        database.roll_back()
                        return None
                    if rows.writes is not None:
                        execute(_STATEMENTS["add_writes"], (space, rows.parent_id, rows.writes))
                    for channel, base, data in rows.long_values:
                        execute(_STATEMENTS["add_value"], (space, seq, channel, base, data))
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
        # Who waits for the file tries again after 1, 2, 5, 10, 15, ... ms, and must then find it
        # free: of each moment in which others try it is twice as often free as not.
        return max(0.001, 2 * seconds)

    def _look_up(
        self, session: SqlSession, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None
    ) -> LookUp | None:
        namespace: NamespaceRow | None = None
        chain: list[CheckpointRow] = []
        writes: list[tuple[int, bytes]] = []
        for kind, *values in session.rows("look", thread_id, checkpoint_ns, checkpoint_id):
            if kind == 0:
                namespace = NamespaceRow(*values)
            elif kind == 1:
                chain.append(CheckpointRow(*values))
            else:
                writes.append((values[0], values[1]))
        if namespace is None:
            return None
        chain.sort(key=lambda row: row.seq, reverse=True)
        return namespace, chain, [data for _, data in sorted(writes)]

    @contextmanager
    def _session(self, *, write: bool) -> Iterator[_SqliteSession]:
        # Before the lock, which another thread may have held at the fork.
        self._database.check_process()
        with self._lock, self._database.session(write):
            yield _SqliteSession(self._database)


_ADVICE = "; once the cause is fixed, invoke(None, config) goes on from the last step of the thread"

_GROUPED = {
    getattr(SqlSaverOfFirsts, name)
    for name in ("commit", "commit_all", "commit_writes", "claim", "put", "put_writes")
}
"""What is written together with other writes that wait."""


def _bind(values: Sequence[Any]) -> Sequence[Any]:
    """Values as SQLite takes them: a list becomes JSON."""
    return [json.dumps(value) if type(value) is list else value for value in values]


class _SqliteSession:
    """The statements of one transaction."""

    __slots__ = ("_execute",)

    def __init__(self, database: Database) -> None:
        self._execute = database.connection.execute

    def rows(self, statement: str, *values: Any) -> list[Any]:
        if statement == "page":
            if len(values[0]) == 1:
                statement, values = "page_of_one", (values[0][0], *values[1:])
            elif len(values[0]) > MANY:
                statement = "page_of_many"
        return self._execute(_STATEMENTS[statement], _bind(values)).fetchall()

    def run(self, statement: str, *values: Any) -> int:
        return self._execute(_STATEMENTS[statement], _bind(values)).rowcount

    def add(self, statement: str, *values: Any) -> int:
        seq = self._execute(_STATEMENTS[statement], values).lastrowid
        assert seq is not None
        return seq
