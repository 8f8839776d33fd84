"""The events of all runs of a thread, one run after the other, in one endless stream.

An event has the id `begin.number.run`: the moment at which its run began, its number in that run
("end" for the last), and the id of the run. So a reader that reconnects continues after the last
event that it saw, and then with the runs that began later. No state is kept besides that of the
runs themselves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ..bodies import ThreadStreamQuery
from ..encode import describe_snapshot, encode
from ..errors import Refused
from ..events import RunEvent, read_id, sse, stream
from ..handlers import Handlers, User, route
from ..records import Record, may_see, now
from ..runs.thread_runs import Begin, Ended, ThreadRuns, moment_of
from ..service import Service, config_of, read_json, validate

_END: Final = "end"


class EventId(NamedTuple):
    """The event that a reader has seen last. The number is None for the end of the run."""

    begin: Begin
    number: int | None

    @classmethod
    def parse(cls, text: str) -> EventId:
        """Parse the id of an event; "-" and "-1" come before all events.

        Raises:
            Refused: it is not an id.
        """
        if text in ("-", "-1"):
            return cls(Begin(-1, ""), None)
        try:
            moment, number, run_id = text.split(".", 2)
            seen = None if number == _END else read_id(number)
            return cls(Begin(read_id(moment), run_id), seen)
        except ValueError:
            why = f"last-event-id must be the id of an event of the thread, or -1, got {text!r}"
            raise Refused(422, why) from None


class ThreadEvents:
    """The events of a thread for one reader.

    Args:
        owner: the user who reads; None if there are no users.
        modes: what is sent. "run_modes": the events of the runs and their ends; "lifecycle": only
            their beginnings and ends; "state_update": the thread's state after each run.
    """

    def __init__(
        self, service: Service, thread_id: str, owner: str | None, modes: Sequence[str]
    ) -> None:
        self._service = service
        self._thread_id, self._owner, self._modes = thread_id, owner, modes
        self._runs = ThreadRuns(service.records, service.runs, thread_id)

    async def read(self, last: EventId | None) -> AsyncIterator[bytes]:
        """Yield the events as parts of a `text/event-stream`, until the server stops, or a run
        begins after the thread was deleted and another user has made one with the same id.

        Args:
            last: the last event that the reader has seen; None for only those still to come.
        """
        joined: set[str] = set()  # runs of which the reader gets only new events
        if last is None:
            last = EventId(Begin(moment_of(now()), ""), None)
            live = await self._runs.open(Begin(-1, ""))
            joined = {each.run_id for each in live if each < last.begin}
            last = EventId(min([last.begin, *live])._replace(run_id=""), None)
        elif last.number is not None:
            async for part in self._run(last.begin, last.number + 1):
                yield part
        async for begin in self._runs.follow(last.begin):
            if not await self._is_visible():
                return
            async for part in self._run(begin, None if begin.run_id in joined else 0):
                yield part

    async def _is_visible(self) -> bool:
        """Return whether the thread is still there, and the reader's."""
        thread = await self._service.records.find("threads", self._thread_id)
        return thread is not None and may_see(thread, self._owner)

    async def _run(self, begin: Begin, start: int | None) -> AsyncIterator[bytes]:
        """Yield the events of one run, and those for its end."""
        record = await self._service.runs.find(begin.run_id, self._thread_id)
        if record is None or not may_see(record, self._owner):
            return
        if start is None and await self._service.runs.status(record) == "pending":
            start = 0
        async for part in self._runs.read(record, start):
            if isinstance(part, Ended):
                yield await self._end(begin, *part)
            elif told := b"".join(self._wanted(begin, part)):
                yield told

    def _wanted(self, begin: Begin, some: Sequence[RunEvent]) -> Iterator[bytes]:
        """Yield the requested events, with their ids in the thread's stream."""
        all_modes, begins = "run_modes" in self._modes, "lifecycle" in self._modes
        for each in some:
            if each.id is None:
                yield sse(None, each.name, each.data)
            elif all_modes or (begins and each.kind == "metadata"):
                id = f"{begin.moment}.{each.id}.{begin.run_id}"
                yield sse(id, each.name, each.data)

    async def _end(self, begin: Begin, record: Record, status: str) -> bytes:
        """Return the events for the end of a run; only the last one has an id."""
        told = []
        app = self._service.graphs.get(record["graph_id"])
        if "state_update" in self._modes and app is not None:
            state = await app.aget_state(config_of(self._thread_id))
            if await self._is_visible():  # asked last: the state read before is the reader's too
                told.append(("state_update", encode(describe_snapshot(state))))
        if {"run_modes", "lifecycle"} & {*self._modes}:
            done = {"run_id": begin.run_id, "thread_id": self._thread_id, "status": status}
            told.append(("run_done", encode(done)))
        ids = [*[None for _ in told[1:]], f"{begin.moment}.{_END}.{begin.run_id}"]
        return b"".join([sse(id, *each) for id, each in zip(ids, told, strict=False)])


class ThreadStreams(Handlers):
    """The handler of `/threads/{thread_id}/stream`."""

    @route("GET /threads/{thread_id}/stream")
    async def join(self, request: Request, owner: User, thread: Record) -> Response:
        """Stream the events of all runs of a thread, from now on or after the last event that the
        reader has seen, until the reader disconnects or the server stops."""
        wanted = validate(ThreadStreamQuery, {"stream_mode": _read_modes(request)})
        last = request.headers.get("last-event-id")
        events = ThreadEvents(self._service, thread["thread_id"], owner, wanted.stream_mode)
        return stream(events.read(None if last is None else EventId.parse(last)))


def _read_modes(request: Request) -> list[Any]:
    """Return the stream modes in the query: the Python client repeats the parameter, the JavaScript
    client sends a list as JSON."""
    modes: list[Any] = []
    for text in request.query_params.getlist("stream_mode"):
        given = read_json(text.encode()) if text.startswith("[") else text
        modes += given if isinstance(given, list) else [given]
    return modes or ["run_modes"]
