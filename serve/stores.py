"""What the server needs of its store besides `BaseStore`: look-ups in a store of a user's own
class, and a lock. Without a queue, only one server at a time may use a store: a second one would
continue the runs of the first, and each would run twice. The lock is released when the process
ends, however it ends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import Any, Final
from weakref import WeakSet

from ..checkpoint.errors import StorageError
from ..store.base import BaseStore, ItemChangedError, Namespace, Op, SearchItem, UnchangedOp
from ..store.batch import LocalStore
from ..store.lookups import Lookup, afinish, cut, pick
from ..store.sqlite import SqliteStore

PAGE: Final = 2000
"""How many items are read at a time where all must be read."""


class OwnStore(BaseStore):
    """Answers look-ups by reading all items of a namespace. Conditions of writes are not atomic
    with them, so only one server may use it."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    def index_fields(self, namespace: Namespace) -> None:
        """Do nothing; see `LocalStore`, also for the other methods."""

    async def abatch(self, ops: Iterable[Op]) -> list[Any]:
        """Check that what must be unchanged is, and then do the rest.

        Raises:
            ItemChangedError: it is not.
        """
        rest = []
        for op in ops:
            if not isinstance(op, UnchangedOp):
                rest.append(op)
                continue
            item = await self._store.aget(op.namespace, op.key)
            if (item and item.value) != op.value:
                raise ItemChangedError(op.namespace, op.key)
        return await self._store.abatch(rest)

    async def alook_up(self, lookup: Lookup) -> list[SearchItem]:
        """Return the items that a look-up selects."""
        return cut(lookup, await self._matching(lookup))

    async def alook_up_keys(self, lookup: Lookup) -> list[str]:
        """Return the keys of all items that match."""
        return [item.key for item in await self._matching(lookup)]

    async def acount(self, lookup: Lookup) -> int:
        """Return how many items match."""
        return len(await self._matching(lookup))

    async def _matching(self, lookup: Lookup) -> list[SearchItem]:
        """Read the items that pass the filter, which the store tests, and pick from them."""
        items: list[SearchItem] = []
        is_last = False
        while not is_last:
            page = await self._store.asearch(
                lookup.namespace, filter=lookup.filter, limit=PAGE, offset=len(items)
            )
            items, is_last = [*items, *page], len(page) < PAGE
        rest = lookup._replace(filter={})
        return await afinish(pick(rest, items))


RecordStore = LocalStore | OwnStore


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
