"""The events that a session receives from its thread: those of the channels that it subscribed to,
run by run, as long as it is open.

Each event has a number, `seq`, which grows across events and runs and is the same on every server,
so a reader can say where to continue. It is computed from the moment at which the run began and the
position in the run's log; nothing else is stored.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final, NamedTuple

from ...bodies import SubscriptionBody
from ...encode import encode
from ...events import sse
from ...records import Record, may_see
from ...runs.thread_runs import Begin, Ended, ThreadRuns, begin_of
from ...service import Service
from .translate import Event, Translator

_EPOCH: Final = 1_767_225_600_000_000
"""The beginning of 2026 in microseconds: `seq` must be a safe integer in JavaScript."""
_A_MICROSECOND: Final = 8
"""How many numbers a microsecond has. A run may write an event to its log every 32 microseconds
without reaching the numbers of a later run; writing one takes longer."""
_AN_EVENT: Final = 256
"""How many numbers an event of a run's log has. Protocol events beyond that share the last one, so
a reader who reconnects amid them misses some. The end of a run, which has the questions of all
tasks, takes as many numbers as it needs: no event follows it."""
_RESTARTED: Final = 1_000_000_000_000
"""Ids of log events from here on are milliseconds since 1970: another process of the server has
continued the run."""


def first_seq(moment: int) -> int:
    """Return the number before the first one of a run that begins at this moment."""
    return max(0, (moment - _EPOCH) * _A_MICROSECOND)


def moment_of_seq(seq: int) -> int:
    """Return the latest moment at which a run with this number can have begun."""
    return seq // _A_MICROSECOND + _EPOCH


def wants(asked: SubscriptionBody, event: Event) -> bool:
    """Return whether a subscription asks for an event."""
    if not any(each in asked.channels for each in event.channels):
        return False
    prefixes = [[]] if asked.namespaces is None else asked.namespaces
    return any(_is_below(event.namespace, prefix, asked.depth) for prefix in prefixes)


def _is_below(ns: Sequence[str], prefix: Sequence[str], most: int | None) -> bool:
    depth = len(ns) - len(prefix)
    if depth < 0 or (most is not None and depth > most):
        return False
    return all(
        part in (found, found.partition(":")[0]) for part, found in zip(prefix, ns, strict=False)
    )


class Numbered(NamedTuple):
    """An event with its number and its id."""

    seq: int
    id: str
    event: Event

    def encode(self) -> bytes:
        """Return its JSON form."""
        method, namespace, data = self.event
        at = int(time.time() * 1000)
        params = {"namespace": namespace, "timestamp": at, "data": data}
        named = {"type": "event", "event_id": self.id, "seq": self.seq}
        return encode({**named, "method": method, "params": params})


class Subscription:
    """The events of a thread for one reader.

    Args:
        owner: the user who reads; None if there are no users.
    """

    def __init__(
        self, service: Service, thread_id: str, owner: str | None, asked: SubscriptionBody
    ) -> None:
        self._service, self._thread_id, self._owner = service, thread_id, owner
        self._asked = asked
        self._runs = ThreadRuns(service.records, service.runs, thread_id)

    async def read(self) -> AsyncIterator[list[Numbered]]:
        """Yield the events, in the portions in which they come, until the server stops. A reader
        that has no event yet gets all events of the current run, or of the last one."""
        since = self._asked.since
        if since is None:
            known, after = await self._runs.newest(), Begin(-1, "")
        else:
            moment = moment_of_seq(since)
            known, after = await self._runs.since(moment), Begin(moment, "")
        if known:
            after = known[0]._replace(run_id="")
        async for begin in self._runs.follow(after):
            async for some in self._run(begin, since or 0):
                yield some

    async def _run(self, begin: Begin, since: int) -> AsyncIterator[list[Numbered]]:
        """Yield the events of one run. Its whole log is read, since a protocol event depends on the
        log events before it."""
        record = await self._service.runs.find(begin.run_id, self._thread_id)
        if record is None or not may_see(record, self._owner):
            return
        translator = Translator(begin.run_id, record["graph_id"], self._asked.channels)
        place = first_seq(begin.moment)
        async for some in self._runs.read(record, 0):
            if isinstance(some, Ended):
                end = translator.end(some.status, await self._is_paused())
                id = f"{begin.run_id}:end"
                yield [*self._number(place + _AN_EVENT, sys.maxsize, since, id, end)]
                return
            told: list[Numbered] = []
            for each in some:
                if each.id is not None:
                    place = _place_of(begin, each.id)
                    last, id = place + _AN_EVENT - 1, f"{begin.run_id}:{each.id}"
                    told += self._number(place, last, since, id, translator.of(each))
            if told:
                yield told

    def _number(
        self, place: int, last: int, since: int, id: str, events: Iterator[Event]
    ) -> Iterator[Numbered]:
        for number, event in enumerate(events):
            seq = min(place + number + 1, last)
            if seq > since and wants(self._asked, event):
                yield Numbered(seq, f"{id}.{number}", event)

    async def _is_paused(self) -> bool:
        thread = await self._service.records.find("threads", self._thread_id)
        return thread is not None and thread["status"] == "interrupted"


def seq_before(record: Record) -> int:
    """Return the number after which the events of a run come."""
    return first_seq(begin_of(record).moment)


def _place_of(begin: Begin, number: int) -> int:
    if number >= _RESTARTED:
        return first_seq(number * 1000)
    return first_seq(begin.moment) + number * _AN_EVENT


async def encode_session(events: AsyncIterator[list[Numbered]]) -> AsyncIterator[bytes]:
    """Yield the events of a session as parts of a `text/event-stream`."""
    async for some in events:
        yield b"".join([sse(each.seq, each.event.method, each.encode()) for each in some])
