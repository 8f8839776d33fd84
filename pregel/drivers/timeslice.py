"""Sharing the event loop: when an async run that never waits lets the loop's other tasks have their
turn.

Coroutines that return at once, and functions that run inline, never suspend a run, so it would hold
the loop to its end: no timeout could fire, no cancellation arrive. So the async driver looks at the
clock between pieces of work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Final
from weakref import WeakKeyDictionary

HOLD: Final = 0.005
"""Seconds that all runs of a loop together may hold it in one turn of the loop, plus one piece of
work of each."""


def call_on(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *args: Any) -> None:
    """Call a function on an event loop, from any thread; not if the loop is closed, since nobody
    waits there any longer."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)


class TimeSlices:
    """How long the runs of one event loop may still hold it before they must give way."""

    __slots__ = ("_ends", "_length", "_takers", "_yielding")

    def __init__(self) -> None:
        self._ends = 0.0
        self._length = HOLD
        self._takers = 0
        self._yielding: asyncio.Task[Any] | None = None

    def end(self) -> float:
        """Until when (`monotonic`) a run that begins now may hold the loop.

        How long the loop has been held by others is unknown, so after a while without runs this
        lies in the past: a run gives way once too often rather than never, as a loop of short
        calls would.
        """
        return min(monotonic() + self._length, self._ends)

    async def give_way(self) -> float:
        """Let everything that is ready have its turn. Returns until when the run may then hold the
        loop."""
        if not self._takers:
            # Ahead of all that give way in this turn: the first to come back finds a new slice,
            # shared by them.
            asyncio.get_running_loop().call_soon(self._renew)
        self._takers += 1
        self._yielding = me = asyncio.current_task()
        try:
            await asyncio.sleep(0)
        finally:
            if self._yielding is me:
                self._yielding = None
        return self.end()

    def _renew(self) -> None:
        self._ends = monotonic() + HOLD
        self._length = HOLD / self._takers
        self._takers = 0

    @property
    def yielding(self) -> bool:
        """Whether the current asyncio task is suspended by `give_way`, and so waits for nothing."""
        return self._yielding is not None and self._yielding is asyncio.current_task()


def time_slices() -> TimeSlices:
    """The time slices of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _slices.get(loop)
    if found is None:
        found = _slices[loop] = TimeSlices()
    return found


_slices: WeakKeyDictionary[asyncio.AbstractEventLoop, TimeSlices] = WeakKeyDictionary()
