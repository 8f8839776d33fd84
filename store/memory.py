"""`InMemoryStore`: rows in dicts, for tests and for programs whose data may end with the process.

This module stores and finds rows; what a batch means is in `batch`.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from operator import itemgetter

from .base import IndexConfig, Namespace, TTLConfig
from .batch import ItemRow, LocalStore
from .lookups import Lookup, afinish, pick


class InMemoryStore(LocalStore):
    """A store in this process. Thread-safe; it stores and returns copies.

    Args:
        index: how to find items by meaning; None for no such index.
        ttl: how long items live; None for ever, unless a put says otherwise.
        clock: seconds since 1970; asked once per batch.

    >>> store = InMemoryStore()
    >>> store.put(("users", "7"), "likes", {"drink": "tea"})
    >>> [item.value for item in store.search(("users",), filter={"drink": "tea"})]
    [{'drink': 'tea'}]
    """

    _keeps_rows = True

    def __init__(
        self,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(index=index, ttl=ttl, clock=clock)
        self._rows: dict[
            Namespace, dict[str, tuple[int, ItemRow]]
        ] = {}  # a namespace is here iff it has rows
        self._spaces: list[Namespace] = []  # these, sorted
        self._puts = count()
        self._undo: list[tuple[Namespace, str, tuple[int, ItemRow] | None]] = []

    @contextmanager
    def _transaction(self, write: bool, alone: bool = False) -> Iterator[None]:
        """A batch that is interrupted, by Ctrl-C for instance, leaves nothing."""
        self._undo = []
        try:
            yield
        except BaseException:
            for namespace, key, before in reversed(self._undo):
                self._set(namespace, key, before)
            raise

    def _find(self, namespace: Namespace, key: str, now: float) -> ItemRow | None:
        found = self._rows.get(namespace, {}).get(key)
        if found and _lives(found[1], now):
            return found[1]
        return None

    def _scan(self, prefix: Namespace, now: float, vectors: bool) -> Generator[ItemRow, None, None]:
        size, spaces = len(prefix), self._spaces
        end = bisect_right(spaces, prefix, key=lambda namespace: namespace[:size])
        found = spaces[bisect_left(spaces, prefix) : end]
        below = [
            numbered for namespace in found for numbered in self._rows.get(namespace, {}).values()
        ]
        below.sort(key=itemgetter(0), reverse=True)
        return (row for _, row in below if _lives(row, now))

    def _namespaces(self, now: float) -> Iterable[Namespace]:
        return (
            namespace
            for namespace, rows in self._rows.items()
            if any(_lives(row, now) for _, row in rows.values())
        )

    def _put(self, row: ItemRow, now: float) -> None:
        before = self._find(row.namespace, row.key, now)
        if before:
            row.created = before.created
        self._change(row.namespace, row.key, (next(self._puts), row))

    def _delete(self, namespace: Namespace, key: str) -> None:
        self._change(namespace, key, None)

    def _change(self, namespace: Namespace, key: str, to: tuple[int, ItemRow] | None) -> None:
        # What was there before, so that a batch that fails half-way can be rolled back.
        self._undo.append((namespace, key, self._rows.get(namespace, {}).get(key)))
        self._set(namespace, key, to)

    def _set(self, namespace: Namespace, key: str, to: tuple[int, ItemRow] | None) -> None:
        place = bisect_left(self._spaces, namespace)
        if self._spaces[place : place + 1] != [namespace]:
            self._spaces.insert(place, namespace)
        rows = self._rows.setdefault(namespace, {})
        rows.pop(key, None)  # so that rows lie nearly in the order in which they are read
        if to is not None:
            rows[key] = to
        elif not rows:  # an empty namespace must not be listed, nor take memory
            del self._rows[namespace], self._spaces[place]

    def _touch(self, row: ItemRow, expires: float) -> None:
        number, found = self._rows[row.namespace][row.key]
        expires = max(expires, found.expires or 0)
        self._change(row.namespace, row.key, (number, replace(row, expires=expires)))

    async def _amatching(self, lookup: Lookup) -> list[ItemRow]:
        """On the event loop, in pieces: a thread would hold the processor as well. The rows that
        are read stay as they are, whatever is written meanwhile."""
        with self._lock:
            rows = self._scan(lookup.namespace, self._clock(), False)
        return await afinish(pick(lookup, rows))

    def _sweep(self, now: float) -> int:
        dead = [
            row for rows in self._rows.values() for _, row in rows.values() if not _lives(row, now)
        ]
        for row in dead:
            self._delete(row.namespace, row.key)
        return len(dead)


def _lives(row: ItemRow, now: float) -> bool:
    return row.expires is None or row.expires > now
