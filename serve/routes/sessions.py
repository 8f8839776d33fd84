"""The routes of sessions with a thread: commands, and events as they happen."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from ..bodies import CommandRequest, SubscriptionBody
from ..service import Service, answer
from ..sessions.commands import Commands
from ..sessions.events import Subscription, Wanted, check_visible
from ..sessions.socket import serve_socket


class Sessions:
    """The handlers of `/threads/{thread_id}/commands` and `/threads/{thread_id}/stream/events`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route | WebSocketRoute]:
        """Return the routes."""
        events = "/threads/{thread_id}/stream/events"
        return [
            Route("/threads/{thread_id}/commands", self.command, methods=["POST"]),
            Route(events, self.subscribe, methods=["POST"]),
            WebSocketRoute(events, self.connect),
        ]

    async def command(self, request: Request) -> Response:
        """Execute one command. If it fails, the response holds the error, as the protocol
        defines."""
        owner = await self._service.user(request)
        body = await self._service.body(request, CommandRequest)
        commands = Commands(self._service, request.path_params["thread_id"], owner)
        return answer(await commands.answer(body))

    async def subscribe(self, request: Request) -> Response:
        """Stream the events of some channels, including those of later runs. The thread need not
        exist yet: a later run may create it."""
        owner = await self._service.user(request)
        body = await self._service.body(request, SubscriptionBody)
        id = request.path_params["thread_id"]
        await check_visible(self._service, id, owner)
        wanted = Wanted(body.channels, body.namespaces, body.depth)
        events = Subscription(self._service, id, owner, wanted).read(body.since)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    async def connect(self, socket: WebSocket) -> None:
        """Serve a session over a WebSocket."""
        await serve_socket(self._service, socket)
