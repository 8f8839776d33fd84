"""The task-result cache: results of finished tasks, kept as bytes under a key.

The contract and the two built-in caches. Only the engine knows what the bytes mean; `keys` makes
the keys. A cache may drop anything at any time: it is never the only place that holds a result.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import GenericAlias
from typing import Any, ClassVar, TypeVar

from ..channels.base import check_kind
from ..checkpoint.keys import canonical_key, function_identity
from ..checkpoint.sql.sqlite_database import Database, Target
from ..checkpoint.threads import AsyncCaller
from .base import Namespace
from .namespaces import encode_namespace

__all__ = [
    "BaseCache",
    "InMemoryCache",
    "SqliteCache",
    "Blob",
    "FullKey",
    "canonical_key",
    "function_identity",
]

Result = TypeVar("Result")

FullKey = tuple[Namespace, str]
"""(namespace, key). Namespaces are compared whole: `("a", "b")` is neither `("a",)` nor
`("a,b",)`."""

Blob = tuple[str, bytes]
"""An encoded value: the name of its encoding, and the bytes."""


class BaseCache(AsyncCaller):
    """Keeps blobs for a limited time. Subclass it and define `get`, `set` and `clear` to keep them
    elsewhere.

    The async twins call these on threads of the cache's own, unless overridden.
    """

    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)
    """Some write `BaseCache[T]`, after the type of what it keeps."""

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Blob]:
        """Return the blobs of these keys; missing keys are left out."""
        raise NotImplementedError(f"{type(self).__name__} must define get()")

    def set(self, pairs: Mapping[FullKey, tuple[Blob, float | None]]) -> None:
        """Store each blob for this many seconds; None for ever, 0 or less not at all."""
        raise NotImplementedError(f"{type(self).__name__} must define set()")

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Delete all entries of these namespaces (not below them); everything if None."""
        raise NotImplementedError(f"{type(self).__name__} must define clear()")

    async def aget(self, keys: Sequence[FullKey]) -> dict[FullKey, Blob]:
        """`get` for coroutines."""
        return await self._acall(self.get, keys)

    async def aset(self, pairs: Mapping[FullKey, tuple[Blob, float | None]]) -> None:
        """`set` for coroutines."""
        await self._acall(self.set, pairs)

    async def aclear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """`clear` for coroutines."""
        await self._acall(self.clear, namespaces)


class InMemoryCache(BaseCache):
    """A cache in this process, safe to share between threads.

    Args:
        max_entries: above this number, the least recently read or set entry is dropped; None for
            no bound.
        clock: returns seconds and never goes back.

    >>> cache = InMemoryCache()
    >>> cache.set({(("node",), "k"): (("raw", b"42"), None)})
    >>> cache.get([(("node",), "k"), (("node",), "other")])
    {(('node',), 'k'): ('raw', b'42')}
    """

    def __init__(
        self, *, max_entries: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        check_kind("max_entries", max_entries, int | None, "an integer >= 1 or None")
        if max_entries is not None and max_entries < 1:
            raise ValueError(f"max_entries must be an integer >= 1 or None, got {max_entries!r}")
        self._max_entries = max_entries
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[FullKey, tuple[Blob, float | None]] = OrderedDict()
        self._sweep_at = 64

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Blob]:
        """See `BaseCache.get`."""
        with self._lock:
            now = self._clock()
            return {key: blob for key in keys if (blob := self._read(key, now)) is not None}

    def _read(self, key: FullKey, now: float) -> Blob | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        blob, expires = entry
        if _is_expired(expires, now):
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return blob

    def set(self, pairs: Mapping[FullKey, tuple[Blob, float | None]]) -> None:
        """See `BaseCache.set`."""
        with self._lock:
            now = self._clock()
            for key, (blob, ttl) in pairs.items():
                self._entries[key] = (blob, _expiry(now, ttl))
                self._entries.move_to_end(key)
            self._make_room(now)

    def _make_room(self, now: float) -> None:
        # Sweeping whenever the size has doubled costs each entry a constant share.
        if len(self._entries) >= self._sweep_at:
            for key in [
                key for key, (_, expires) in self._entries.items() if _is_expired(expires, now)
            ]:
                del self._entries[key]
            self._sweep_at = max(64, 2 * len(self._entries))
        while self._max_entries is not None and len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """See `BaseCache.clear`."""
        gone = None if namespaces is None else set(namespaces)
        with self._lock:
            for key in [key for key in self._entries if gone is None or key[0] in gone]:
                del self._entries[key]

    async def _acall(self, function: Callable[..., Result], *args: Any) -> Result:
        return function(*args)  # a dict needs no worker thread


def _is_expired(expires: float | None, now: float) -> bool:
    return expires is not None and expires <= now


_SCHEMA = (
    """
    CREATE TABLE IF NOT EXISTS cache_entries (
        namespace BLOB NOT NULL,
        key BLOB NOT NULL,
        encoding TEXT NOT NULL,
        data BLOB NOT NULL,
        expires REAL,
        PRIMARY KEY (namespace, key)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX IF NOT EXISTS cache_entries_expires ON cache_entries (expires) WHERE expires IS "
    "NOT NULL",
)
_GET = """
    SELECT encoding, data FROM cache_entries
    WHERE namespace = ? AND key = ? AND (expires IS NULL OR expires > ?)
"""
_SET = (
    "INSERT OR REPLACE INTO cache_entries (namespace, key, encoding, data, expires) VALUES (?, ?, "
    "?, ?, ?)"
)
_SWEEP = "DELETE FROM cache_entries WHERE expires <= ?"
_CLEAR = "DELETE FROM cache_entries WHERE namespace = ?"
_CLEAR_ALL = "DELETE FROM cache_entries"
_NORMAL = (
    "PRAGMA synchronous=NORMAL"  # a power cut may take the last entries: a cache can afford that
)


class SqliteCache(BaseCache):
    """A cache in an SQLite file, shared by threads and by processes of one machine. Each `set`
    removes what has expired.

    Args:
        path: a file name, `":memory:"`, a `file:` URI, or a connection opened with
            `check_same_thread=False` that serves this cache alone.
        clock: seconds since 1970; it must mean the same in all processes that share the file.
    """

    def __init__(self, path: Target, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._database = Database(
            path, _SCHEMA, watched=False
        )  # who deletes a cache means to clear it
        if self._database.owned:
            self._database.execute(_NORMAL)

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Blob]:
        """See `BaseCache.get`."""
        found: dict[FullKey, Blob] = {}
        with self._transaction(write=False):
            now = self._clock()
            for key in keys:
                for encoding, data in self._database.execute(_GET, (*_place(key), now)).fetchall():
                    found[key] = (encoding, data)
        return found

    def set(self, pairs: Mapping[FullKey, tuple[Blob, float | None]]) -> None:
        """See `BaseCache.set`."""
        with self._transaction(write=True):
            now = self._clock()
            for key, ((encoding, data), ttl) in pairs.items():
                expires = _expiry(now, ttl)
                self._database.execute(_SET, (*_place(key), encoding, data, expires))
            self._database.execute(_SWEEP, (now,))

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """See `BaseCache.clear`."""
        with self._transaction(write=True):
            if namespaces is None:
                self._database.execute(_CLEAR_ALL)
            for namespace in namespaces or ():
                self._database.execute(_CLEAR, (encode_namespace(namespace),))

    def close(self) -> None:
        """Close the connection, unless it was handed in."""
        self._database.close(self._lock)
        self._end_threads()

    def _max_threads(self) -> int:
        return 1  # there is one connection

    @contextmanager
    def _transaction(self, write: bool) -> Iterator[None]:
        self._database.check_process()  # before the lock: see `Database.is_inherited`
        # The lock by `with`: Ctrl-C as the session takes it or ends would leave it taken for ever.
        with self._lock, self._database.session(write):
            yield


def _place(key: FullKey) -> tuple[bytes, bytes]:
    namespace, name = key
    return encode_namespace(namespace), name.encode("utf-8", "surrogatepass")


def _expiry(now: float, ttl: float | None) -> float | None:
    """When an entry that lives for `ttl` seconds expires; None for never."""
    if ttl is None:
        return None
    return now + ttl
