"""Without a queue a store serves one server at a time: a second server would go on with the runs of
the first, and each would run twice.

The process holds the lock until it ends, however it ends.
"""

from __future__ import annotations

import sqlite3
from typing import Final
from weakref import WeakSet

from ..checkpoint.errors import StorageError
from ..store.base import BaseStore
from ..store.sqlite import SqliteStore

_BESIDE: Final = "-served"
"""The name of the file that is locked is that of the database and this. It stays, and is empty."""
_SERVED: Final[WeakSet[BaseStore]] = WeakSet()


class StoreLock:
    """The right to serve a store: an SQLite file on this machine, or one in the memory of this
    process. Other stores are not locked. A context manager: inside the block, the server has it."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self._file: sqlite3.Connection | None = None

    def __enter__(self) -> None:
        """Take it.

        Raises:
            StorageError: another server has it.
        """
        if self._store in _SERVED:
            raise StorageError("another server in this process already serves this store; " + _HOW)
        path = self._store.path if isinstance(self._store, SqliteStore) else None
        if path is not None:
            self._file = _lock(path)
        _SERVED.add(self._store)

    def __exit__(self, *_: object) -> None:
        """Let the next server have it."""
        _SERVED.discard(self._store)
        if self._file is not None:
            self._file.close()
            self._file = None


_HOW: Final = "stop it first, or use Postgres with a queue, which several servers may share"


def _lock(path: str) -> sqlite3.Connection:
    """A connection that has an exclusive lock on the file beside a database. SQLite has a way to
    lock files on each system."""
    file = sqlite3.connect(path + _BESIDE, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        file.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        file.close()
        if "locked" in str(error):
            raise StorageError(f"another server already serves {path!r}; {_HOW}") from None
        raise StorageError(f"{path + _BESIDE!r} cannot be locked: {error}") from None
    return file
