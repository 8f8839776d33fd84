"""The events that a session receives from its thread: those of the channels that it subscribed to,
run by run, as long as it is open.

Each event has a number, `seq`, which grows across events and runs and is the same on every server,
so a reader can say where to continue. It is computed from the moment at which the run began and the
position in the run's log; nothing else is stored.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final

from ..encode import encode
from ..errors import Refused
from ..records import Record, may_see
from ..runs.events import PING
from ..runs.frames import HEARTBEAT, split_frames
from ..runs.thread_runs import Begin, Ended, ThreadRuns, begin_of
from ..service import Service
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


class Wanted:
    """Which events a subscription asks for.

    Args:
        namespaces: prefixes of the namespaces of nested graphs; all by default.
        depth: how many levels below these prefixes.
    """

    def __init__(
        self,
        channels: Sequence[str],
        namespaces: Sequence[Sequence[str]] | None,
        depth: int | None,
    ) -> None:
        self.channels: tuple[str, ...] = (*channels,)
        self._namespaces = [()] if namespaces is None else [tuple(each) for each in namespaces]
        self._depth = depth

    def has(self, event: Event) -> bool:
        """Return whether the subscription asks for an event."""
        if not any(each in self.channels for each in event.channels):
            return False
        return any(self._is_below(event.namespace, prefix) for prefix in self._namespaces)

    def _is_below(self, ns: tuple[str, ...], prefix: tuple[str, ...]) -> bool:
        depth = len(ns) - len(prefix)
        if depth < 0 or (self._depth is not None and depth > self._depth):
            return False
        return all(
            part in (found, found.partition(":")[0])
            for part, found in zip(prefix, ns, strict=False)
        )


class Subscription:
    """The events of a thread for one reader.

    Args:
        owner: the user who reads; None if there are no users.
    """

    def __init__(
        self, service: Service, thread_id: str, owner: str | None, wanted: Wanted
    ) -> None:
        self._service = service
        self._thread_id, self._owner, self._wanted = thread_id, owner, wanted
        self._runs = ThreadRuns(service.records, service.runs, service.news, thread_id)

    async def read(self, since: int | None) -> AsyncIterator[bytes]:
        """Yield the events as parts of a `text/event-stream`, until the server stops.

        Args:
            since: the number of the last event that the reader has; None for all events of the
                current run, or of the last one.
        """
        if since is None:
            known, after = await self._runs.newest(), Begin(-1, "")
        else:
            moment = moment_of_seq(since)
            known, after = await self._runs.since(moment), Begin(moment, "")
        if known:
            after = known[0]._replace(run_id="")
        async for begin in self._runs.follow(after):
            if begin is None:
                yield PING
                continue
            async for part in self._run(begin, since or 0):
                yield part

    async def _run(self, begin: Begin, since: int) -> AsyncIterator[bytes]:
        """Yield the events of one run. Its whole log is read, since a protocol event depends on the
        log events before it."""
        record = await self._runs.find(begin.run_id)
        if record is None or not may_see(record, self._owner):
            return
        translator = Translator(begin.run_id, record["graph_id"], self._wanted.channels)
        place = first_seq(begin.moment)
        async for part in self._runs.read(record, 0):
            if isinstance(part, Ended):
                end = translator.end(part.status, await self._is_paused())
                id = f"{begin.run_id}:end"
                yield b"".join(self._number(place + _AN_EVENT, sys.maxsize, since, id, end))
                return
            parts = []
            for frame in split_frames(part):
                if frame.event == HEARTBEAT:
                    parts.append(PING)
                elif frame.id is not None:
                    place = _place_of(begin, frame.id)
                    last, id = place + _AN_EVENT - 1, f"{begin.run_id}:{frame.id}"
                    events = translator.of(frame.event, frame.data)
                    parts += self._number(place, last, since, id, events)
            if parts:
                yield b"".join(parts)

    def _number(
        self, place: int, last: int, since: int, id: str, events: Iterator[Event]
    ) -> Iterator[bytes]:
        for number, event in enumerate(events):
            seq = min(place + number + 1, last)
            if seq > since and self._wanted.has(event):
                yield _frame(seq, f"{id}.{number}", event)

    async def _is_paused(self) -> bool:
        thread = await self._service.records.find("threads", self._thread_id)
        return thread is not None and thread["status"] == "interrupted"


async def check_visible(service: Service, thread_id: str, owner: str | None) -> None:
    """Let users read their own threads, and threads that do not exist yet.

    Raises:
        Refused: the thread is another user's.
    """
    thread = await service.records.find("threads", thread_id)
    if thread is not None and not may_see(thread, owner):
        raise Refused(404, f"there is no thread {thread_id!r}")


def seq_before(record: Record) -> int:
    """Return the number after which the events of a run come."""
    return first_seq(begin_of(record).moment)


def _place_of(begin: Begin, number: int) -> int:
    if number >= _RESTARTED:
        return first_seq(number * 1000)
    return first_seq(begin.moment) + number * _AN_EVENT


def _frame(seq: int, id: str, event: Event) -> bytes:
    params: Mapping[str, Any] = {
        "namespace": event.namespace,
        "timestamp": int(time.time() * 1000),
        "data": event.data,
    }
    frame = {"type": "event", "event_id": id, "seq": seq, "method": event.method, "params": params}
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (seq, event.method.encode(), encode(frame))
