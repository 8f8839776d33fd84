"""The runs of a thread in the order in which they begin, for readers that follow them all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Final, NamedTuple

from ..events import RunEvent
from ..records import Record, Records, now, pointer_to
from .runner import Runner, first_of

SECONDS_BETWEEN_LOOKS: Final = 1.0
"""How often a reader looks for runs that another server started."""
UNFINISHED: Final = ("pending", "running")
_SOME: Final = 50
_SKEW: Final = 1_000_000
"""How far the clocks of servers may differ, in microseconds."""


class Begin(NamedTuple):
    """When a run begins, in microseconds: the runs of a thread are ordered by it."""

    moment: int
    run_id: str


class Ended(NamedTuple):
    """The end of a run."""

    record: Record
    status: str


class ThreadRuns:
    """The runs of a thread, for one reader."""

    def __init__(self, records: Records, runner: Runner, thread_id: str) -> None:
        self._records, self._runner, self._thread_id = records, runner, thread_id

    async def follow(self, after: Begin) -> AsyncIterator[Begin]:
        """Yield the runs that begin after another one, in order, until the server stops."""
        while not self._runner.stopping.is_set():
            news = self._runner.news.of(self._thread_id)
            begun = await self._begun(after)
            for begin in begun:
                if self._runner.stopping.is_set():
                    return
                yield begin
                after = begin
            if not begun:
                await self._wait(news)

    async def read(
        self, record: Record, start: int | None
    ) -> AsyncIterator[list[RunEvent] | Ended]:
        """Yield the events of a run, and then its end; no end if the next server continues the run.

        Args:
            start: see `Runner.events`.
        """
        while True:
            has_events = False
            async for some in self._runner.events(record, start):
                has_events = True
                yield some
            record = await self._runner.find(record["run_id"], self._thread_id) or record
            status = await self._runner.status(record)
            if status not in UNFINISHED:
                yield Ended(record, status)
                return
            # A run may go on without events, such as one of a graph that is not served.
            if self._runner.stopping.is_set() or not has_events:
                return
            if start is None:  # it may be too slow at once, again and again: no busy loop
                await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
            start = None  # a reader that was too slow continues with new events

    async def _wait(self, news: asyncio.Event) -> None:
        """Wait until there may be a next run."""
        later = await self.open(Begin(moment_of(now()), ""))
        pauses = [max(0.0, each.moment / 1e6 - time.time()) for each in later[:1]]
        if self._runner.queue is not None:
            pauses.append(SECONDS_BETWEEN_LOOKS)
        stopping = self._runner.stopping
        await first_of(news.wait(), stopping.wait(), timeout=min(pauses, default=None))

    async def _begun(self, after: Begin) -> list[Begin]:
        """Return the runs that have begun after another one, in order."""
        # The runs that have not ended are read first: one that ends meanwhile is found twice, and
        # not missed.
        known = {*await self.open(after), *await self._ended_since(after.moment)}
        moment = moment_of(now())
        return sorted(each for each in known if after < each and each.moment <= moment)

    async def open(self, after: Begin) -> list[Begin]:
        """Return the later runs that have not ended, in order."""
        found = await self._records.search("unfinished", self._thread_id)
        begins = [Begin(moment_of(each["begins_at"]), each["run_id"]) for each in found]
        return sorted(each for each in begins if each > after)

    async def since(self, moment: int) -> list[Begin]:
        """Return the runs that were running at a moment, in order."""
        known = [*await self.open(Begin(-1, "")), *await self._ended_since(moment)]
        return sorted(each for each in known if each.moment <= moment)

    async def newest(self) -> list[Begin]:
        """Return the runs that have not ended, in order; if there are none, the last run."""
        found = await self._records.search("runs", self._thread_id, limit=_SOME)
        ended = [begin_of(each) for each in found if each["status"] not in UNFINISHED]
        last = max(ended, default=None)
        moment = moment_of(now())
        begun = [each for each in await self.open(Begin(-1, "")) if each.moment <= moment]
        return begun or ([] if last is None else [last])

    async def _ended_since(self, moment: int) -> list[Begin]:
        """Return the runs that have ended since a moment. A run's record is written when it ends,
        so only records written since then are read."""
        begins: list[Begin] = []
        offset, limit, is_last = 0, _SOME, False
        while not is_last:
            found = await self._records.search("runs", self._thread_id, limit=limit, offset=offset)
            recent = [each for each in found if moment_of(each["updated_at"]) >= moment - _SKEW]
            begins += [begin_of(each) for each in recent if each["status"] not in UNFINISHED]
            is_last = len(recent) < limit
            offset, limit = offset + limit, min(2 * limit, 20 * _SOME)
        return begins


def begin_of(record: Record) -> Begin:
    """Return when a run begins."""
    return Begin(moment_of(pointer_to(record)["begins_at"]), record["run_id"])


def moment_of(when: str) -> int:
    """Return a moment in microseconds since 1970."""
    return round(datetime.fromisoformat(when).timestamp() * 1_000_000)
