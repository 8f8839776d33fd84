"""The route of the stream of a whole thread."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ..bodies import ThreadStreamQuery
from ..runs.thread_events import EventId, ThreadEvents
from ..service import Service, read_json, validate


class ThreadStreams:
    """The handler of `/threads/{thread_id}/stream`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Return the route."""
        return [Route("/threads/{thread_id}/stream", self.join, methods=["GET"])]

    async def join(self, request: Request) -> Response:
        """Stream the events of all runs of a thread, from now on or after the last event that the
        reader has seen, until the reader disconnects or the server stops."""
        service = self._service
        owner = await service.user(request)
        thread = await service.records.get("threads", request.path_params["thread_id"], owner=owner)
        wanted = validate(ThreadStreamQuery, {"stream_mode": _read_modes(request)})
        last = request.headers.get("last-event-id")
        events = ThreadEvents(service, thread["thread_id"], owner, wanted.stream_mode)
        return StreamingResponse(
            events.read(None if last is None else EventId.parse(last)),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )


def _read_modes(request: Request) -> list[Any]:
    """Return the stream modes in the query: the Python client repeats the parameter, the JavaScript
    client sends a list as JSON."""
    modes: list[Any] = []
    for text in request.query_params.getlist("stream_mode"):
        given = read_json(text.encode()) if text.startswith("[") else text
        modes += given if isinstance(given, list) else [given]
    return modes or ["run_modes"]
