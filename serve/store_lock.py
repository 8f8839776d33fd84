"""Without a queue, only one server at a time may use a store: a second server would continue the
runs of the first, and each would run twice.

The lock is released when the process ends, however it ends.
"""

from __future__ import annotations

import sqlite3
from typing import Final
from weakref import WeakSet

from ..checkpoint.errors import StorageError
from ..store.base import BaseStore
from ..store.sqlite import SqliteStore

_BESIDE: Final = "-served"
"""Appended to the name of the database, it names the file that is locked. The file is empty and is
never deleted."""
_SERVED: Final[WeakSet[BaseStore]] = WeakSet()


class StoreLock:
    """The exclusive right to serve a store: an SQLite file on this machine, or a store in the
    memory of this process. Other stores are not locked. A context manager that holds the lock
    inside its block."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self._file: sqlite3.Connection | None = None

    def __enter__(self) -> None:
        """Take the lock.

        Raises:
            StorageError: another server holds it.
        """
        if self._store in _SERVED:
            raise StorageError("another server in this process already serves this store; " + _HOW)
        path = self._store.path if isinstance(self._store, SqliteStore) else None
        if path is not None:
            self._file = _lock(path)
        _SERVED.add(self._store)

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        _SERVED.discard(self._store)
        if self._file is not None:
            self._file.close()
            self._file = None


_HOW: Final = "stop it first, or use Postgres with a queue, which several servers may share"


def _lock(path: str) -> sqlite3.Connection:
    """Return a connection that holds an exclusive lock on the file beside a database. SQLite locks
    files portably."""
    file = sqlite3.connect(path + _BESIDE, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        file.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        file.close()
        if "locked" in str(error):
            raise StorageError(f"another server already serves {path!r}; {_HOW}") from None
        raise StorageError(f"{path + _BESIDE!r} cannot be locked: {error}") from None
    return file
