"""`PostgresStore`: rows in one Postgres table. Same calls, same results as `InMemoryStore`.

Only the table and its statements, which are constants; what a batch means is in `batch`. Filters
run in the same functions as for all stores, not in SQL.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Self
from zlib import crc32

from ..checkpoint.errors import StorageError
from ..checkpoint.sql.postgres_server import (
    POOL_SIZE,
    SECONDS,
    ConnectionLostError,
    NoPermissionError,
    Server,
    Target,
    Wire,
    is_clash,
)
from ..checkpoint.threads import Opening
from .base import IndexConfig, Namespace, Result, TTLConfig
from .batch import ItemRow, Plan
from .lookups import Dialect, Part, Place
from .namespaces import below, encode_namespace
from .sql import LIVE, NEWEST, SqlStore, this_network
from .values import to_json
from .vectors import Vectors

__all__ = ["PostgresStore"]

PAGE = 200
"""Rows that a search reads at first, for it may need no more."""

TRIES = 5
"""How often a batch is tried again before its error is raised."""

LOCKS = 128
"""How many locks there are for all places: as many a batch may need, and the server has room for a
few thousand."""

# `seq` counts the puts. Names are bytes, because a Postgres text cannot hold a NUL; they are found
# by their hash or by their beginning, because an index cannot hold long ones. A row holds its
# vectors itself, so that a put replaces them with it. `dims` says of what length they are, and is
# below zero if they are no unit vectors.
MIGRATIONS = (
    (
        "CREATE SEQUENCE stategraph_puts",
        """
        CREATE TABLE stategraph_items (
            seq BIGINT PRIMARY KEY,
            namespace BYTEA NOT NULL,
            key BYTEA NOT NULL,
            value BYTEA NOT NULL,
            created DOUBLE PRECISION NOT NULL,
            updated DOUBLE PRECISION NOT NULL,
            ttl DOUBLE PRECISION,
            expires DOUBLE PRECISION,
            dims BIGINT,
            vectors BYTEA
        )
        """,
        "CREATE UNIQUE INDEX stategraph_items_by_name ON stategraph_items (sha256(namespace), "
        "sha256(key))",
        "CREATE INDEX stategraph_items_below ON stategraph_items (substr(namespace, 1, 1000), seq)",
        "CREATE INDEX stategraph_items_expires ON stategraph_items (expires) WHERE expires IS NOT "
        "NULL",
    ),
)
_COLUMNS = "namespace, key, value, created, updated, ttl, expires"
_NAMED = "sha256(namespace) = sha256($1) AND sha256(key) = sha256($2)"
_BELOW = """
    substr(namespace, 1, 1000) >= substr($1, 1, 1000)
        AND substr(namespace, 1, 1000) <= substr($2, 1, 1000)
    AND namespace >= $1 AND namespace < $2 AND (expires IS NULL OR expires > $3) AND seq < $4
    ORDER BY seq DESC LIMIT $5
"""
_FIND = f"""
    SELECT seq, {_COLUMNS}, NULL, NULL FROM stategraph_items
    WHERE {_NAMED} AND (expires IS NULL OR expires > $3)
"""
# LIMIT: each place is looked up by the index, whatever the planner knows of the table.
_FIND_ALL = f"""
    SELECT found.* FROM unnest($1::bytea[], $2::bytea[]) AS wanted (namespace, key)
    CROSS JOIN LATERAL (
        SELECT seq, {_COLUMNS}, NULL, NULL FROM stategraph_items AS item
        WHERE sha256(item.namespace) = sha256(wanted.namespace)
            AND sha256(item.key) = sha256(wanted.key) AND (expires IS NULL OR expires > $3)
        LIMIT 1
    ) AS found
"""
_SCAN = f"SELECT seq, {_COLUMNS}, NULL, NULL FROM stategraph_items WHERE {_BELOW}"
_SCAN_VECTORS = f"SELECT seq, {_COLUMNS}, dims, vectors FROM stategraph_items WHERE {_BELOW}"
_NAMESPACES = (
    "SELECT DISTINCT namespace FROM stategraph_items WHERE expires IS NULL OR expires > $1"
)
# A DELETE does not wait for a row that another transaction is about to insert, so rows' own locks
# do not keep batches apart. Who writes several places first takes the locks of all of them, in one
# order; who puts or deletes one, that one's, shared.
_CLASS = "'stategraph_items'::regclass::oid::integer"
_LOCK = f"SELECT pg_advisory_xact_lock({_CLASS}, place::integer) FROM unnest($1::bigint[]) AS place"
_PUT = f"""
    INSERT INTO stategraph_items AS item ({_COLUMNS}, dims, vectors, seq)
    SELECT $1::bytea, $2::bytea, $3::bytea, $4::float8, $5::float8, $6::float8, $7::float8,
        $8::bigint, $9::bytea,
        coalesce($11::bigint, nextval('stategraph_puts'))
    FROM pg_advisory_xact_lock_shared({_CLASS}, $12::bigint::integer)
    ON CONFLICT (sha256(namespace), sha256(key)) DO UPDATE SET
        seq = excluded.seq,
        value = excluded.value,
        created = CASE WHEN item.expires IS NULL OR item.expires > $10 THEN item.created
            ELSE excluded.created END,
        updated = excluded.updated,
        ttl = excluded.ttl,
        expires = excluded.expires,
        dims = excluded.dims,
        vectors = excluded.vectors
"""
_RESERVE = "SELECT nextval('stategraph_puts') FROM generate_series(1, $1)"
_DELETE = f"""
    DELETE FROM stategraph_items USING pg_advisory_xact_lock_shared({_CLASS}, $3::bigint::integer)
    WHERE {_NAMED}
"""
_TOUCH = (
    f"UPDATE stategraph_items SET expires = greatest(expires, $3) WHERE {_NAMED} AND ttl = $4"
)
_SWEEP = """
    DELETE FROM stategraph_items
    WHERE seq IN (SELECT seq FROM stategraph_items WHERE expires <= $1 FOR UPDATE SKIP LOCKED)
"""

# What look-ups read lies in two columns, which a trigger fills, so that servers of earlier releases
# fill them as well. JSONB cannot hold a NUL. `words` is what texts are searched in, in lower case:
# only the two replaced letters outside ASCII become letters of ASCII.
_LOOKUP_FUNCTION = r"""
    CREATE FUNCTION stategraph_fill_document() RETURNS trigger LANGUAGE plpgsql AS $body$
    DECLARE
        told text := replace(convert_from(NEW.value, 'UTF8'), '\u0000', '\ufffd');
    BEGIN
        NEW.document := told::jsonb;
        NEW.words := lower(replace(replace(concat_ws(' ', NEW.document ->> 'thread_id',
            told::json ->> 'metadata', told::json ->> 'error'), U&'\212A', 'k'), U&'\0130', 'i')
            COLLATE "C");
        RETURN NEW;
    END
    $body$
"""
_FIELD = "coalesce(document ->> '%s', chr(1)) COLLATE \"C\""
_LOOKUP_INDEXES = (
    ("owner", "updated_at"),
    ("owner", "created_at"),
    ("updated_at", "thread_id"),
    ("created_at",),
)
_LOOKUP = f"SELECT seq, {_COLUMNS}, NULL, NULL FROM stategraph_items"
_CHOICES = "ARRAY(SELECT jsonb_array_elements_text(convert_from(?, 'UTF8')::jsonb))"
_ENCODING = "SELECT 1 WHERE current_setting('server_encoding') = 'UTF8'"


def _places(places: Sequence[Place]) -> list[Part]:
    """Compare all places at once with a document that they make."""
    if not places:
        return []
    document: dict[str, Any] = {}
    for place in places:
        inside = document
        for name in place.path[:-1]:
            inside = inside.setdefault(name, {})
        # JSONB compares numbers by what they are, so one of the equal ones is enough.
        inside[place.path[-1]] = {} if place.equals is None else place.equals[0]
    return [("document @> convert_from(?, 'UTF8')::jsonb", [to_json(document)])]


_DIALECT = Dialect(
    field=_FIELD,
    among=f"= ANY ({_CHOICES})",
    not_among=f"<> ALL ({_CHOICES})",
    most="BETWEEN '' AND convert_from(?, 'UTF8')",
    text="strpos(words, convert_from(?, 'UTF8')) > 0",
    places=_places,
    null=chr(1),
)


class PostgresStore(SqlStore):
    """A store in a Postgres database, shared by any number of machines.

    It creates the table on first use. The async methods wait on the store's own threads, as many as
    there are connections.

    Args:
        conn: a connection string or URL; or an open psycopg `Connection`, which then serves this
            store alone; or a `ConnectionPool`. A given connection or pool stays open after `close`.
        index: how to find items by meaning; None for no such index.
        ttl: how long items live; None for ever, unless a put says otherwise.
        clock: seconds since 1970; asked once per batch.
        pool_size: connections that may be open at once.
        timeout: seconds to wait for a connection, for another session's lock, or for the answer to
            one statement.

    Raises:
        StorageError: the string is not a connection string.
        TypeError: `conn` has another type.
        ValueError: `pool_size` or `timeout` is not above 0.
    """

    def __init__(
        self,
        conn: Target,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        clock: Callable[[], float] = time.time,
        pool_size: int = POOL_SIZE,
        timeout: float = SECONDS,
    ) -> None:
        super().__init__(index=index, ttl=ttl, clock=clock)
        self._lock = (
            nullcontext()
        )  # each thread has a connection of its own, and the database keeps them apart
        self._options |= {"pool_size": pool_size, "timeout": timeout}
        self._server = Server(conn, "store", MIGRATIONS, pool_size=pool_size, timeout=timeout)
        self._mine = threading.local()

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Any) -> Opening[Self]:
        """Open a store for the length of a `with` or `async with` block, then close it; options as
        for the class."""
        return Opening(cls, conn_string, **options)

    def setup(self) -> None:
        """Create the table or migrate it. The first use of the store does so too; further calls do
        nothing.

        Raises:
            StorageError: the server cannot be reached, refuses, or its tables were made by a later
                version.
        """
        self._server.setup()

    def close(self) -> None:
        """Close the connections, unless they were handed in."""
        self.stop_ttl_sweeper()
        self._server.close()
        self._end_threads()

    def _max_threads(self) -> int:
        return self._server.size

    def reopen(self) -> Callable[[], PostgresStore]:
        """Return a function with which another process opens the same tables: by the connection
        string and what this process's environment adds to it, or by that of the given connection,
        including its password and schema. A subclass whose `__init__` takes other arguments must
        override it."""
        address, local = self._server.address()
        return _Tables(type(self), address, this_network() if local else None, self._options)

    _find_text, _namespaces_text, _dialect = _FIND, _NAMESPACES, _DIALECT

    def index_fields(self, namespace: Namespace) -> None:
        """See `LocalStore.index_fields`. Nothing is indexed if the role may not alter the table, or
        if the database holds texts in another encoding than UTF-8."""
        self._server.setup()
        with self._server.statements() as wire:
            if not wire.rows(_ENCODING):
                return
        # The condition that names the namespace: a literal, which the indexes have as well.
        rows = f"namespace = '\\x{encode_namespace(namespace).hex()}'::bytea"
        fields = (", ".join(f"({_FIELD % name})" for name in names) for names in _LOOKUP_INDEXES)
        steps = (
            "ALTER TABLE stategraph_items ADD COLUMN document JSONB, ADD COLUMN words TEXT",
            _LOOKUP_FUNCTION,
            "CREATE TRIGGER stategraph_fill_document BEFORE INSERT OR UPDATE OF value ON "
            f"stategraph_items FOR EACH ROW WHEN (NEW.{rows}) "
            "EXECUTE FUNCTION stategraph_fill_document()",
            f"UPDATE stategraph_items SET value = value WHERE {rows}",
            *(
                f"CREATE INDEX stategraph_items_fields_{number} ON stategraph_items ({names}) "
                f"WHERE {rows}"
                for number, names in enumerate(fields)
            ),
            "CREATE INDEX stategraph_items_document ON stategraph_items USING gin "
            f"(document jsonb_path_ops) WHERE {rows}",
        )
        try:
            self._server.add_part("look-ups", (steps,))
        except NoPermissionError:
            return
        self._indexed, self._documents = namespace, f"stategraph_items WHERE {rows} AND {LIVE}"

    def _select(self, found: str, order: str) -> str:
        chosen = f"SELECT seq {found} ORDER BY {order} LIMIT ? OFFSET ?"
        return f"{_LOOKUP} WHERE seq IN ({chosen}) ORDER BY {order}"

    def _ask(self, text: str, values: Sequence[Any]) -> list[Any]:
        with self._server.statements() as wire:
            return wire.rows(_numbered(text), *values)

    def _rows(self, text: str, *values: Any) -> list[Any]:
        return self._wire.rows(text, *values)

    async def _aexecute(self, plan: Plan, vectors: Vectors) -> list[Result]:
        return await self._acall(self._execute, plan, vectors)

    def _execute(self, plan: Plan, vectors: Vectors) -> list[Result]:
        """Done again if two batches stood in each other's way, or if it only reads and the
        connection broke."""
        for _ in range(TRIES):
            try:
                return super()._execute(plan, vectors)
            except StorageError as error:
                lost = isinstance(error, ConnectionLostError) and not error.late and not plan.puts
                if not lost and not is_clash(error):
                    raise
        return super()._execute(plan, vectors)

    @contextmanager
    def _transaction(self, write: bool, alone: bool = False) -> Iterator[None]:
        """Around the reads, then around the writes of a batch."""
        with self._server.statements() if alone else self._server.transaction(write) as wire:
            self._mine.wire, self._mine.seqs = wire, {}
            try:
                yield
            finally:
                del self._mine.wire

    @property
    def _wire(self) -> Wire:
        wire: Wire = self._mine.wire
        return wire

    def _find_all(
        self, places: Sequence[tuple[Namespace, str]], now: float
    ) -> dict[tuple[Namespace, str], ItemRow | None]:
        if len(places) < 2:
            return super()._find_all(places, now)
        named = [(encode_namespace(namespace), key) for namespace, key in dict.fromkeys(places)]
        rows = map(self._row, self._wire.rows(_FIND_ALL, named, now))
        found = {(row.namespace, row.key): row for row in rows}
        return {place: found.get(place) for place in places}

    def _scan(self, prefix: Namespace, now: float, vectors: bool) -> Generator[ItemRow, None, None]:
        low, high = below(prefix)
        edge, size = NEWEST, PAGE
        while True:
            found = self._wire.rows(_SCAN_VECTORS if vectors else _SCAN, low, high, now, edge, size)
            yield from map(self._row, found)
            if len(found) < size:
                return
            edge, size = (
                found[-1][0],
                8 * size,
            )  # each page sorts all that is left, so there must be few

    def _write(self, plan: Plan, touched: list[ItemRow], now: float) -> None:
        """Whole, and in the order of the places, so that no two batches wait for each other; what
        was put last still counts as the last."""
        if plan.unchanged or len(plan.puts) + len(touched) > 1:
            rows = ((row.namespace, row.key) for row in touched)
            places = {*plan.puts, *plan.unchanged, *rows}
            locks = sorted({_lock_of(*place) for place in places})
            _, found = self._wire.rows_together(
                (_LOCK, locks), (_RESERVE, len(plan.puts)), inside=True
            )
            seqs = sorted(seq for (seq,) in found)
            self._mine.seqs = dict(zip(plan.puts, seqs, strict=True))
            plan = replace(plan, puts=dict(sorted(plan.puts.items(), key=lambda put: put[0])))
        super()._write(plan, sorted(touched, key=lambda row: (row.namespace, row.key)), now)

    def _put(self, row: ItemRow, now: float) -> None:
        seq = self._mine.seqs.get((row.namespace, row.key))
        # The lock of a place in a batch is held already.
        lock = None if seq is not None else _lock_of(row.namespace, row.key)
        self._wire.later(_PUT, *self._values(row), now, seq, lock)

    def _delete(self, namespace: Namespace, key: str) -> None:
        self._wire.later(_DELETE, encode_namespace(namespace), key, _lock_of(namespace, key))

    def _touch(self, row: ItemRow, expires: float) -> None:
        self._wire.run(_TOUCH, encode_namespace(row.namespace), row.key, expires, row.ttl)

    def _sweep(self, now: float) -> int:
        return self._wire.run(_SWEEP, now)


def _numbered(text: str) -> str:
    """A statement in which each `?` stands for the next value."""
    first, *more = text.split("?")
    return first + "".join(f"${number}{part}" for number, part in enumerate(more, 1))


def _lock_of(namespace: Namespace, key: str) -> int:
    """The number of the lock that guards a place, the same in every process."""
    return crc32(encode_namespace(namespace) + b"\0" + key.encode()) % LOCKS


@dataclass(frozen=True, slots=True)
class _Tables:
    """Opens the tables of a store; `network` is where its address holds, if it is a local one."""

    store: type[PostgresStore]
    address: str = field(repr=False)  # it may hold a password
    network: str | None
    options: dict[str, Any]

    def __call__(self) -> PostgresStore:
        if self.network not in (None, this_network()):
            raise StorageError(
                "the Postgres server of the store has a local address, which means another server "
                "on this machine or in this container: open the store with a host name or address "
                "that is valid everywhere"
            )
        return self.store(self.address, **self.options)
