"""What all runs of a thread send, one run after the other, in one stream without an end.

An event has the id `begin.number.run`: the moment at which its run began, its number there ("end"
for the last), and the id of the run. So a reader who comes back is led to the run that it has seen
last, behind that event, and then to the runs that began later. Nothing is kept beside what is kept
of the runs themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple
from weakref import WeakValueDictionary

from ...pregel.app import Pregel
from ..encode import describe_snapshot, encode
from ..errors import Refused
from ..records import Record, Records, pointer_to
from .events import PING, PING_SECONDS
from .runner import Runner

ThreadMode = Literal["run_modes", "lifecycle", "state_update"]
"""What is sent: what the runs send, and their ends; their beginnings and ends; the thread's state
after each run."""

SECONDS_BETWEEN_LOOKS: Final = 1.0
"""How often a reader looks for a run that another server has begun."""
_SOME: Final = 20
_END: Final = "end"
_OPEN: Final = ("pending", "running")


class Begin(NamedTuple):
    """When a run begins, by which the runs of a thread are ordered: in microseconds."""

    moment: int
    run_id: str


class EventId(NamedTuple):
    """Which event a reader has seen last. The number is None for the end of the run."""

    begin: Begin
    number: int | None

    @classmethod
    def parse(cls, text: str) -> EventId:
        """An id that was sent before; "-" and "-1" are before all.

        Raises:
            Refused: it is none.
        """
        if text in ("-", "-1"):
            return cls(Begin(-1, ""), None)
        try:
            moment, number, run_id = text.split(".", 2)
            return cls(Begin(int(moment), run_id), None if number == _END else int(number))
        except ValueError:
            why = f"last-event-id must be the id of an event of the thread, or -1, got {text!r}"
            raise Refused(422, why) from None


class ThreadNews:
    """Wakes those who wait for the next run of a thread. Belongs to one event loop."""

    def __init__(self) -> None:
        self._news: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()

    def of(self, thread_id: str) -> asyncio.Event:
        """What is set with the next run. To be taken before one looks for runs."""
        return self._news.setdefault(thread_id, asyncio.Event())

    def tell(self, thread_id: str) -> None:
        """A run has been begun."""
        if (news := self._news.pop(thread_id, None)) is not None:
            news.set()


class ThreadEvents:
    """The events of a thread for one reader.

    Args:
        graphs: the graphs by name.
        modes: what is wanted.
    """

    def __init__(
        self,
        records: Records,
        runner: Runner,
        news: ThreadNews,
        graphs: Mapping[str, Pregel],
        thread_id: str,
        modes: Sequence[ThreadMode],
    ) -> None:
        self._records, self._runner, self._news = records, runner, news
        self._graphs, self._thread_id, self._modes = graphs, thread_id, modes

    async def read(self, last: EventId | None) -> AsyncIterator[bytes]:
        """The events as parts of a `text/event-stream`, until the server stops.

        Args:
            last: the event that the reader has seen last; None for those that come from now on.
        """
        joined: set[str] = set()  # the runs of which the reader gets what comes from now on
        if last is None:
            last = EventId(Begin(_moment(datetime.now(UTC)), ""), None)
            live = await self._open_runs(Begin(-1, ""))
            joined = {each.run_id for each in live if each < last.begin}
            last = EventId(min([last.begin, *live])._replace(run_id=""), None)
        elif last.number is not None:
            async for part in self._run(last.begin, last.number + 1):
                yield part
        after = last.begin
        while not self._runner.stopping.is_set():
            news = self._news.of(self._thread_id)
            begin = await self._next(after)
            if begin is not None:
                start = None if begin.run_id in joined else 0
                async for part in self._run(begin, start):
                    yield part
                after = begin
            elif not await self._wait(news):
                yield PING

    async def _run(self, begin: Begin, start: int | None) -> AsyncIterator[bytes]:
        """The events of one run, and those about its end."""
        run_id = begin.run_id
        record = await self._records.find("runs", run_id, self._thread_id)
        record = record or self._runner.recall(run_id)
        if record is None or record["thread_id"] != self._thread_id:
            return
        if start is None and await self._runner.status(record) == "pending":
            start = 0
        status = "pending"
        for first in (start, None):  # who is too slow goes on with what comes from now on
            async for part in self._runner.events(record, first):
                if told := self._renumber(begin, part):
                    yield told
            record = await self._records.find("runs", run_id, self._thread_id) or record
            status = await self._runner.status(record)
            if self._runner.is_left(record) or status not in _OPEN:
                break
        if not self._runner.is_left(record) and status not in _OPEN:
            yield await self._end(begin, record, status)

    def _renumber(self, begin: Begin, part: bytes) -> bytes:
        """Events of a run with the ids that they have in the thread; those that are wanted."""
        told = []
        for frame in part.split(b"\n\n"):
            if frame.startswith(b"id: "):
                number, _, rest = frame[4:].partition(b"\n")
                is_wanted = "run_modes" in self._modes or (
                    "lifecycle" in self._modes and rest.startswith(b"event: metadata\n")
                )
                id = f"{begin.moment}.{number.decode()}.{begin.run_id}"
                frame = b"id: %s\n%s" % (id.encode(), rest) if is_wanted else b""
            if frame:
                told.append(frame + b"\n\n")
        return b"".join(told)

    async def _end(self, begin: Begin, record: Record, status: str) -> bytes:
        """The events about the end of a run; the last one has the id."""
        told = []
        if "state_update" in self._modes and record["graph_id"] in self._graphs:
            app = self._graphs[record["graph_id"]]
            state = await app.aget_state({"configurable": {"thread_id": self._thread_id}})
            told.append(("state_update", encode(describe_snapshot(state))))
        if {"run_modes", "lifecycle"} & {*self._modes}:
            done = {"run_id": begin.run_id, "thread_id": self._thread_id, "status": status}
            told.append(("run_done", encode(done)))
        frames = [b"event: %s\ndata: %s\n\n" % (name.encode(), data) for name, data in told]
        id = f"id: {begin.moment}.{_END}.{begin.run_id}\n".encode()
        return b"".join([*frames[:-1], *(id + frame for frame in frames[-1:])])

    async def _wait(self, news: asyncio.Event) -> bool:
        """Wait until there may be a next run; whether it came within the time of a heartbeat."""
        waits = [asyncio.ensure_future(each.wait()) for each in (news, self._runner.stopping)]
        seconds = PING_SECONDS if self._runner.queue is None else SECONDS_BETWEEN_LOOKS
        try:
            future = await self._open_runs(Begin(_moment(datetime.now(UTC)), ""))
            if future:
                seconds = min(seconds, future[0].moment / 1e6 - datetime.now(UTC).timestamp())
            done, _ = await asyncio.wait(
                waits, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED
            )
            return bool(done) or seconds < PING_SECONDS
        finally:
            for each in waits:
                each.cancel()

    # -- which runs --------------------------------------------------------------------------------

    async def _next(self, after: Begin) -> Begin | None:
        """The run that has begun first of those behind another one."""
        ended = await self._ended_runs(after)
        known = min([*ended, *await self._open_runs(after)], default=None)
        is_there = known is not None and known.moment <= _moment(datetime.now(UTC))
        return known if is_there else None

    async def _open_runs(self, after: Begin) -> list[Begin]:
        """The runs that have not ended, in order."""
        found = await self._records.search("unfinished", self._thread_id)
        begins = [Begin(_moment(each["begins_at"]), each["run_id"]) for each in found]
        return sorted(each for each in begins if each > after)

    async def _ended_runs(self, after: Begin) -> list[Begin]:
        """The runs that have ended: a run is written after it has begun, so those that were written
        last are enough."""
        begins: list[Begin] = []
        offset, is_last = 0, False
        while not is_last:
            found = await self._records.search(
                "runs", self._thread_id, limit=_SOME, offset=offset
            )
            begins += [begin_of(each) for each in found if each["status"] not in _OPEN]
            offset += _SOME
            is_last = len(found) < _SOME or _moment(found[-1]["updated_at"]) < after.moment
        return [each for each in begins if each > after]


def begin_of(record: Record) -> Begin:
    """When a run begins."""
    return Begin(_moment(pointer_to(record)["begins_at"]), record["run_id"])


def _moment(when: str | datetime) -> int:
    moment = datetime.fromisoformat(when) if isinstance(when, str) else when
    return round(moment.timestamp() * 1_000_000)
