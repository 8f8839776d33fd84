"""The event log of a run, for readers that come and go. Each event is kept and encoded once."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import Any, Final

from ..encode import encode
from .event import Events, Namespace, RunEvent, failure

MOST_BYTES: Final = 16 * 1024 * 1024
"""How many bytes of a run's events are kept. A reader that falls further behind is disconnected."""
MOST_BYTES_OF_ONE: Final = 64 * 1024 * 1024
"""How many bytes of events are kept of one user's live runs, and as many of the ended ones."""
MOST_BYTES_OF_ALL: Final = 256 * 1024 * 1024
"""The same where there are no users."""
PIECE_BYTES: Final = 128 * 1024
"""About how much is sent to a reader at once, and so how much memory a reader that stalls costs."""
PING_SECONDS: Final = 15.0
"""Seconds without an event after which a reader gets a comment, so that proxies keep the connection
open."""


class KeptBytes:
    """Counts the bytes that are kept for each user. Belongs to one event loop.

    Args:
        most_of_one: how many one user may have.
        most_of_all: how many there may be where there are no users.
    """

    def __init__(
        self, most_of_one: int = MOST_BYTES_OF_ONE, most_of_all: int = MOST_BYTES_OF_ALL
    ) -> None:
        self._most_of_one, self._most_of_all = most_of_one, most_of_all
        self._of_user: dict[str, int] = {}

    def add(self, user: str, size: int) -> bool:
        """Count bytes that are kept from now on, or no longer if their number is negative. Return
        whether the user has more than may be kept."""
        kept = self._of_user.get(user, 0) + size
        if kept:
            self._of_user[user] = kept
        else:
            self._of_user.pop(user, None)
        return kept > (self._most_of_one if user else self._most_of_all)

    def is_full(self, user: str) -> bool:
        """Return whether a user has more than may be kept."""
        return self.add(user, 0)


class EventLog:
    """The events of one run. Belongs to one event loop.

    The ids count up from 0, so a reader that reconnects can name the last event it has seen.

    Args:
        first: the first id. If a run continues in another process, its ids must be higher than all
            before, so that a reader that reconnects with an old id gets all new events.
        most_bytes: beyond this size, the oldest events are dropped.
        kept: counts what is kept for the user; beyond that limit they are dropped as well.
        user: whose run it is.
    """

    def __init__(
        self,
        first: int = 0,
        most_bytes: int = MOST_BYTES,
        kept: KeptBytes | None = None,
        user: str = "",
    ) -> None:
        self._kept, self._user = kept or KeptBytes(), user
        self._events: deque[RunEvent] = deque()
        self._begin = self._first = first
        self._bytes = 0
        self._most_bytes = most_bytes
        self._is_closed = False
        self._news = asyncio.Event()

    @property
    def next_id(self) -> int:
        """The id of the next event."""
        return self._first + len(self._events)

    @property
    def size(self) -> int:
        """How many bytes of events are kept."""
        return self._bytes

    def add(self, kind: str, data: Any, ns: Namespace = ()) -> None:
        """Send an event to all readers, including those that come later."""
        event = RunEvent(self.next_id, kind, ns, encode(data))
        self._events.append(event)
        full = self._count(event.size)
        while full and len(self._events) > 1:
            full = self._count(-self._events.popleft().size)
            self._first += 1
        self._wake()

    def _count(self, size: int) -> bool:
        """Count bytes; return whether more are kept than may be."""
        self._bytes += size
        return self._kept.add(self._user, size) or self._bytes > self._most_bytes

    def release(self) -> None:
        """Stop counting its events: they are kept as a part of an ended run, or not at all."""
        self._kept.add(self._user, -self._bytes)
        self._kept = KeptBytes()

    def close(self) -> None:
        """Add no more events: readers end when they have read them all."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _some(self, at: int) -> list[RunEvent]:
        """Return the events from an id on that fit into one piece."""
        some, size = [], 0
        for event in islice(self._events, at - self._first, None):
            some.append(event)
            size += event.size
            if size >= PIECE_BYTES:
                break
        return some

    async def read(self, start: int = 0) -> Events:
        """Yield the events from an id on, until the log is closed. A reader that is too slow gets
        an `error` event and has to reconnect."""
        at = min(max(start, self._begin), self.next_id)
        while True:
            if at < self._first:
                message = f"events {at} to {self._first - 1} are gone"
                yield [failure({"error": "TooSlow", "message": message})]
                return
            news = self._news
            fresh = self._some(at)
            if fresh:
                at += len(fresh)
                yield fresh
            elif self._is_closed:
                return
            else:
                try:
                    async with asyncio.timeout(PING_SECONDS):  # `wait_for` creates tasks
                        await news.wait()
                except TimeoutError:
                    yield []
