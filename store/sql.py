"""What `SqliteStore` and `PostgresStore` have in common: rows in a table, and look-ups that the
database answers by its indexes. The statements are theirs. Also which machine this process runs on,
for what means something only there."""

from __future__ import annotations

import json
import os
import platform
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .base import Item, Namespace
from .batch import ItemRow, LocalStore
from .lookups import Conditions, Dialect, Lookup, tested, understand, where
from .namespaces import decode_namespace, encode_namespace
from .values import to_json

NEWEST = 2**62
"""A number beyond all puts."""

LIVE = "(expires IS NULL OR expires > ?)"


class SqlStore(LocalStore):
    """A store in a database. Its rows are (seq, namespace, key, value, created, updated, ttl,
    expires, dims, vectors)."""

    _find_text: str
    """Selects the row at a namespace and key, if it is live at a time."""
    _namespaces_text: str
    _dialect: Dialect
    _indexed: Namespace | None = None
    """The namespace of whose items the database has indexes."""
    _documents: str
    """Where look-ups find these: a table, `WHERE`, and `LIVE` last."""

    @abstractmethod
    def _rows(self, text: str, *values: Any) -> list[Any]:
        """What a statement gives inside the transaction of a batch."""

    @abstractmethod
    def _ask(self, text: str, values: Sequence[Any]) -> list[Any]:
        """What a look-up's statement gives, in a transaction of its own; `?` stands for a value."""

    @abstractmethod
    def _select(self, found: str, order: str) -> str:
        """A statement for the rows of the items that a look-up finds; takes a limit and an
        offset."""

    # -- a batch -----------------------------------------------------------------------------------

    def _find(self, namespace: Namespace, key: str, now: float) -> ItemRow | None:
        found = self._rows(self._find_text, encode_namespace(namespace), key, now)
        return self._row(found[0]) if found else None

    def _namespaces(self, now: float) -> Iterable[Namespace]:
        return [decode_namespace(data) for (data,) in self._rows(self._namespaces_text, now)]

    def _row(self, found: tuple[Any, ...]) -> ItemRow:
        _, namespace, key, value, created, updated, ttl, expires, dims, vectors = found
        fits = self._index is not None and dims == self._index.mark
        return ItemRow(
            decode_namespace(namespace),
            _text(key),
            json.loads(value),
            created,
            updated,
            ttl,
            expires,
            vectors if fits else None,
        )

    def _values(self, row: ItemRow) -> tuple[Any, ...]:
        """What a put stores of a row, from its namespace to its vectors."""
        times = (row.created, row.updated, row.ttl, row.expires)
        dims = self._index.mark if self._index and row.vectors else None
        place = (encode_namespace(row.namespace), row.key)
        return (*place, to_json(row.value), *times, dims, row.vectors)

    # -- look-ups ----------------------------------------------------------------------------------

    async def alook_up(self, lookup: Lookup) -> list[Item]:
        """See `LocalStore.alook_up`."""
        conditions = self._conditions(lookup)
        if conditions is None:
            return await super().alook_up(lookup)
        return await self._acall(self._look_up, lookup, conditions)

    def _look_up(self, lookup: Lookup, conditions: Conditions) -> list[Item]:
        found, order, values = self._selection(lookup, conditions)
        limits = (NEWEST, 0) if lookup.test else (lookup.limit, lookup.offset)
        rows = map(self._row, self._ask(self._select(found, order), (*values, *limits)))
        return [Item(**self._parts(row)) for row in tested(lookup, rows)]

    async def alook_up_keys(self, lookup: Lookup) -> list[str]:
        """See `LocalStore.alook_up_keys`."""
        conditions = self._conditions(lookup)
        if conditions is None:
            return await super().alook_up_keys(lookup)
        found, order, values = self._selection(lookup, conditions)
        rows = await self._acall(self._ask, f"SELECT key {found} ORDER BY {order}", values)
        return [_text(key) for (key,) in rows]

    async def acount(self, lookup: Lookup) -> int:
        """See `LocalStore.acount`."""
        conditions = self._conditions(lookup)
        if conditions is None or lookup.test is not None:
            return await super().acount(lookup)
        found, _, values = self._selection(lookup, conditions)
        ((count,),) = await self._acall(self._ask, f"SELECT count(*) {found}", values)
        return int(count)

    def _conditions(self, lookup: Lookup) -> Conditions | None:
        return understand(lookup) if lookup.namespace == self._indexed else None

    def _selection(self, lookup: Lookup, conditions: Conditions) -> tuple[str, str, list[Any]]:
        """The FROM and WHERE of a statement, its order, and the values that it binds."""
        parts, order = where(self._dialect, lookup, conditions)
        texts = [self._documents, *(text for text, _ in parts)]
        values = [self._clock(), *(value for _, some in parts for value in some)]
        return f"FROM {' AND '.join(texts)}", order, values


def _text(key: str | bytes) -> str:
    """A key: a database whose texts cannot hold a NUL keeps it as bytes."""
    return key if isinstance(key, str) else key.decode()


_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")


@cache
def this_machine() -> str:
    """The same for all processes that share a kernel, in whatever containers."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return platform.node()


def this_network() -> str:
    """The same for all processes for which `localhost` is the same."""
    try:
        return f"{this_machine()} {os.stat(_NETWORK).st_ino}"
    except OSError:
        return this_machine()
