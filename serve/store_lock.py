"""Without a queue, only one server at a time may use a store: a second server would continue the
runs of the first, and each would run twice.

The lock is released when the process ends, however it ends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import Final
from weakref import WeakSet

from ..checkpoint.errors import StorageError
from ..store.base import BaseStore
from ..store.sqlite import SqliteStore

_BESIDE: Final = "-served"
"""Appended to the name of the database, it names the file that is locked. The file is empty and is
never deleted."""
_SERVED: Final[WeakSet[BaseStore]] = WeakSet()


@contextmanager
def lock_store(store: BaseStore) -> Iterator[None]:
    """Hold the exclusive right to serve a store inside a block: an SQLite file on this machine, or
    a store in the memory of this process. Other stores are not locked.

    Raises:
        StorageError: another server holds it.
    """
    if store in _SERVED:
        raise StorageError("another server in this process already serves this store; " + _HOW)
    path = store.path if isinstance(store, SqliteStore) else None
    with nullcontext() if path is None else closing(_lock(path)):
        _SERVED.add(store)
        try:
            yield
        finally:
            _SERVED.discard(store)


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
