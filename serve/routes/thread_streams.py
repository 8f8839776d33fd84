"""The route of the stream of a whole thread."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ..bodies import ThreadStreamQuery
from ..runs.thread_events import EventId, ThreadEvents
from ..service import Service, validate


class ThreadStreams:
    """The handler of `/threads/{thread_id}/stream`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Where it is."""
        return [Route("/threads/{thread_id}/stream", self.join, methods=["GET"])]

    async def join(self, request: Request) -> Response:
        """What all runs of a thread do, from now on or after the event that the reader has seen
        last, until the reader goes or the server stops."""
        service, asked = self._service, request.query_params
        owner = await service.user(request)
        thread = await service.records.get("threads", request.path_params["thread_id"], owner=owner)
        modes = [*asked.getlist("stream_mode"), *asked.getlist("stream_modes")] or ["run_modes"]
        wanted = validate(ThreadStreamQuery, {"stream_mode": modes})
        last = request.headers.get("last-event-id")
        events = ThreadEvents(
            service.records,
            service.runs,
            service.news,
            service.graphs,
            thread["thread_id"],
            wanted.stream_mode,
        )
        return StreamingResponse(
            events.read(None if last is None else EventId.parse(last)),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
