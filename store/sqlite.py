"""`SqliteStore`: rows in one SQLite table. Same calls, same results as `InMemoryStore`.

Only the table and its statements, which are constants; what a batch means is in `batch`. Filters
run in the same functions as for all stores, not in SQL.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

from ..checkpoint.errors import StorageError
from ..checkpoint.sql.sqlite_database import Database, GroupWriter, Target, identity_of
from ..checkpoint.threads import Opening
from .base import IndexConfig, Namespace, Result, TTLConfig
from .batch import ItemRow, Plan
from .lookups import FIELDS, Dialect, Part, Place
from .namespaces import below, encode_namespace
from .sql import LIVE, SqlStore, this_machine
from .values import to_json
from .vectors import Vectors

__all__ = ["SqliteStore"]

# `seq` counts the puts: REPLACE takes a new one, above all others. A row holds its vectors itself,
# so that a put replaces them with it. `dims` says of what length they are, and is below zero if
# they are no unit vectors.
_SCHEMA = (
    """
    CREATE TABLE IF NOT EXISTS store_items (
        seq INTEGER PRIMARY KEY,
        namespace BLOB NOT NULL,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        created REAL NOT NULL,
        updated REAL NOT NULL,
        ttl REAL,
        expires REAL,
        dims INTEGER,
        vectors BLOB,
        UNIQUE (namespace, key)
    )
    """,
    "CREATE INDEX IF NOT EXISTS store_items_expires ON store_items (expires) WHERE expires IS NOT "
    "NULL",
)
_FIND = """
    SELECT seq, namespace, key, value, created, updated, ttl, expires, NULL, NULL FROM store_items
    WHERE namespace = ? AND key = ? AND (expires IS NULL OR expires > ?)
"""
_SCAN = """
    SELECT seq, namespace, key, value, created, updated, ttl, expires, NULL, NULL FROM store_items
    WHERE namespace >= ? AND namespace < ? AND (expires IS NULL OR expires > ?) ORDER BY seq DESC
"""
_SCAN_VECTORS = """
    SELECT seq, namespace, key, value, created, updated, ttl, expires, dims, vectors
    FROM store_items
    WHERE namespace >= ? AND namespace < ? AND (expires IS NULL OR expires > ?) ORDER BY seq DESC
"""
_NAMESPACES = "SELECT DISTINCT namespace FROM store_items WHERE expires IS NULL OR expires > ?"
_PUT = """
    INSERT OR REPLACE INTO store_items
        (namespace, key, value, created, updated, ttl, expires, dims, vectors)
    VALUES (?1, ?2, ?3, coalesce((
        SELECT created FROM store_items
        WHERE namespace = ?1 AND key = ?2 AND (expires IS NULL OR expires > ?10)
    ), ?4), ?5, ?6, ?7, ?8, ?9)
"""
_DELETE = "DELETE FROM store_items WHERE namespace = ? AND key = ?"
_TOUCH = (
    "UPDATE store_items SET expires = max(expires, ?) WHERE namespace = ? AND key = ? AND ttl = ?"
)
_SWEEP = "DELETE FROM store_items WHERE expires <= ?"


def _places(places: Sequence[Place]) -> list[Part]:
    """Compare the JSON text of each place: this store has written it, so equal texts are equal in
    all else."""
    parts: list[Part] = []
    for place in places:
        path = "$" + "".join(f'."{name}"' for name in place.path[1:])
        if place.equals is None:
            parts.append(("json_type(metadata, ?) = 'object'", [path]))
        else:
            texts = [*map(to_json, place.equals)]
            if len(texts) == 1:  # most rows do not have the text at all
                parts.append(
                    ("instr(metadata, ?) AND metadata -> ? = ?", [texts[0], path, texts[0]])
                )
            else:
                listed = json.dumps(texts)
                parts.append(("metadata -> ? IN (SELECT value FROM json_each(?))", [path, listed]))
    return parts


_DIALECT = Dialect(
    field="%s",
    among="IN (SELECT value FROM json_each(?))",
    not_among="NOT IN (SELECT value FROM json_each(?))",
    most="BETWEEN '' AND ?",
    text="instr(words, ?)",
    places=_places,
    null=0,
)
_SCALARS = ", ".join(f"ifnull(json_extract(value, '$.{name}'), 0)" for name in FIELDS)
# Only the two replaced letters outside ASCII become letters of ASCII in lower case.
_DOCUMENT = f"""
    INSERT OR REPLACE INTO store_documents
        (key, seq, expires, {", ".join(FIELDS)}, metadata, words)
    SELECT key, seq, expires, {_SCALARS}, json_extract(value, '$.metadata'),
        lower(replace(replace(json_extract(value, '$.thread_id', '$.metadata', '$.error'),
            char(8490), 'k'), char(304), 'i'))
    FROM store_items WHERE namespace = {{0}}
"""
_HAS_DOCUMENTS = "SELECT 1 FROM sqlite_master WHERE name = 'store_documents'"
# What look-ups read, of one namespace. Triggers fill it, so that programs of earlier releases fill
# it as well. A REPLACE fires no trigger for the row that it removes.
_DOCUMENTS = (
    f"""
    CREATE TABLE store_documents (
        key TEXT PRIMARY KEY, seq INTEGER NOT NULL, expires REAL, {", ".join(FIELDS)}, metadata,
        words
    )
    """,
    "CREATE INDEX store_documents_updated ON store_documents (updated_at, thread_id)",
    "CREATE INDEX store_documents_created ON store_documents (created_at)",
    "CREATE INDEX store_documents_owner ON store_documents (owner, updated_at, thread_id, "
    "created_at, status, expires, seq)",
    f"""
    CREATE TRIGGER store_documents_put AFTER INSERT ON store_items WHEN NEW.namespace = {{0}} BEGIN
        {_DOCUMENT} AND key = NEW.key;
    END
    """,
    """
    CREATE TRIGGER store_documents_expire AFTER UPDATE OF expires ON store_items
    WHEN NEW.namespace = {0} BEGIN
        UPDATE store_documents SET expires = NEW.expires WHERE key = NEW.key;
    END
    """,
    """
    CREATE TRIGGER store_documents_delete AFTER DELETE ON store_items WHEN OLD.namespace = {0} BEGIN
        DELETE FROM store_documents WHERE key = OLD.key;
    END
    """,
    _DOCUMENT,
)
_VERSION = "SELECT sqlite_version()"
_LOOKUP_VERSION = (3, 38, 0)
"""The first version of SQLite with all functions of these statements."""


class SqliteStore(SqlStore):
    """A store in an SQLite file, shared by threads and by processes of one machine.

    The async methods wait on the store's own thread. A given connection must serve this store
    alone and be opened with `check_same_thread=False`; it stays open after `close`.

    Args:
        conn: a connection, or what to open: a file name, `":memory:"`, a `file:` URI.
        index: how to find items by meaning; None for no such index.
        ttl: how long items live; None for ever, unless a put says otherwise.
        clock: seconds since 1970; asked once per batch.
        saver: a `SqliteSaver` on the same file, which must stay open as long as this store
            is used. Async writes use its connection: those that wait together with commits of
            threads join their transaction and are as durable.

    Raises:
        ValueError: the checkpointer's file is another one.

    >>> with SqliteStore.from_conn_string(":memory:") as store:
    ...     store.put(("users", "7"), "likes", {"drink": "tea"})
    ...     store.get(("users", "7"), "likes").value
    {'drink': 'tea'}
    """

    def __init__(
        self,
        conn: Target,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        clock: Callable[[], float] = time.time,
        saver: GroupWriter | None = None,
    ) -> None:
        super().__init__(index=index, ttl=ttl, clock=clock)
        self._database = Database(conn, _SCHEMA)
        self._saver = saver
        if saver is not None:
            path, other = self._database.path(), getattr(saver, "database", None)
            if path is None or other is None or path != other.path():
                self._database.close()
                raise ValueError(f"saver must be on the same file as the store, {str(conn)!r}")
            # The same store on the connection of the saver, whose lock whoever writes there holds.
            self._grouped = copy(self)
            self._grouped._database, self._grouped._lock = saver.database, nullcontext()

    @classmethod
    def from_conn_string(
        cls,
        conn_string: str,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        saver: GroupWriter | None = None,
    ) -> Opening[Self]:
        """Open a store for the length of a `with` or `async with` block, then close it."""
        return Opening(cls, conn_string, index=index, ttl=ttl, saver=saver)

    @property
    def path(self) -> str | None:
        """The absolute path of the file; None for a database in memory."""
        database = self._database
        with self._lock:
            try:
                return database.path()
            except database.error as error:
                raise database.refusal(error) from error

    def setup(self) -> None:
        """Do nothing: the tables exist since the store was opened. Kept for programs that call
        it."""

    def close(self) -> None:
        """Close the connection, unless it was handed in."""
        self.stop_ttl_sweeper()
        self._database.close(self._lock)
        self._end_threads()

    def _max_threads(self) -> int:
        return 1  # there is one connection

    def reopen(self) -> Callable[[], SqliteStore] | None:
        """Return a function with which another process on this machine opens the same file; None
        for a database in memory. A subclass whose `__init__` takes other arguments must override
        it.

        Raises:
            StorageError: the file no longer exists.
        """
        path = self.path
        if path is None:
            return None
        inode = identity_of(path)
        if inode is None:
            raise StorageError(f"its file {path!r} no longer exists")
        return _File(type(self), path, this_machine(), inode, self._options)

    def _execute(self, plan: Plan, vectors: Vectors) -> list[Result]:
        self._database.check_process()  # before the lock: see `Database.is_inherited`
        return super()._execute(plan, vectors)

    async def _aexecute(self, plan: Plan, vectors: Vectors) -> list[Result]:
        if self._saver is not None and (plan.puts or plan.unchanged):
            return await self._saver.awrite(self._grouped._execute, plan, vectors)
        return await self._acall(self._execute, plan, vectors)

    _find_text, _namespaces_text, _dialect = _FIND, _NAMESPACES, _DIALECT
    _documents = f"store_documents WHERE {LIVE}"

    def index_fields(self, namespace: Namespace) -> None:
        """See `LocalStore.index_fields`."""
        with self._lock, self._database.session(True):
            ((version,),) = self._database.execute(_VERSION).fetchall()
            if tuple(map(int, version.split("."))) < _LOOKUP_VERSION:
                return
            if not self._database.execute(_HAS_DOCUMENTS).fetchall():
                for text in _DOCUMENTS:
                    place = f"X'{encode_namespace(namespace).hex()}'"
                    self._database.execute(text.format(place))
        self._indexed = namespace

    def _select(self, found: str, order: str) -> str:
        return f"""
            SELECT store_items.seq, namespace, key, value, created, updated, ttl, expires, NULL,
                NULL
            FROM (SELECT seq AS place, {", ".join(FIELDS)} {found}
                ORDER BY {order} LIMIT ? OFFSET ?)
            CROSS JOIN store_items ON store_items.seq = place ORDER BY {order}
        """

    def _ask(self, text: str, values: Sequence[Any]) -> list[Any]:
        self._database.check_process()  # before the lock: see `Database.is_inherited`
        with self._lock, self._database.session(False):
            return self._rows(text, *values)

    def _rows(self, text: str, *values: Any) -> list[Any]:
        return self._database.execute(text, values).fetchall()

    def _transaction(self, write: bool, alone: bool = False) -> AbstractContextManager[Any]:
        return self._database.session(write)

    def _scan(self, prefix: Namespace, now: float, vectors: bool) -> Generator[ItemRow, None, None]:
        low, high = below(prefix)
        cursor = self._database.execute(_SCAN_VECTORS if vectors else _SCAN, (low, high, now))
        try:
            yield from map(self._row, cursor)
        finally:
            cursor.close()

    def _put(self, row: ItemRow, now: float) -> None:
        self._database.execute(_PUT, (*self._values(row), now))

    def _delete(self, namespace: Namespace, key: str) -> None:
        self._database.execute(_DELETE, (encode_namespace(namespace), key))

    def _touch(self, row: ItemRow, expires: float) -> None:
        self._database.execute(_TOUCH, (expires, encode_namespace(row.namespace), row.key, row.ttl))

    def _sweep(self, now: float) -> int:
        return self._database.execute(_SWEEP, (now,)).rowcount


@dataclass(frozen=True, slots=True)
class _File:
    """Opens the file of a store, if it is that very file."""

    store: type[SqliteStore]
    path: str
    machine: str
    inode: tuple[int, int]
    options: dict[str, Any]

    def __call__(self) -> SqliteStore:
        if this_machine() != self.machine:
            raise StorageError(f"{self.path!r} is an SQLite file on another machine, {_ADVICE}")
        if identity_of(self.path) != self.inode:
            raise StorageError(
                f"{self.path!r} is missing here or is not the SQLite file of the store, {_ADVICE}"
            )
        return self.store(f"file:{quote(self.path)}?mode=rw", **self.options)


_ADVICE = "which no two machines or containers can share: use a PostgresStore"
