"""The routes of sessions with a thread: commands, and events as they happen."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from ...bodies import CommandRequest, SubscriptionBody
from ...events.event import stream
from ...handlers import Handlers, route
from ...service import answer
from .commands import Commands
from .events import Subscription, Wanted, encode_session
from .socket import serve_socket


class Sessions(Handlers):
    """The handlers of `/threads/{thread_id}/commands` and `/threads/{thread_id}/stream/events`."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        socket = WebSocketRoute("/threads/{thread_id}/stream/events", self.connect)
        return [*super().routes(), socket]

    @route("POST /threads/{thread_id}/commands")
    async def command(self, request: Request) -> Response:
        """Execute one command. If it fails, the response holds the error, as the protocol
        defines."""
        owner = await self._user(request)
        body = await self._body(request, CommandRequest)
        commands = Commands(self._service, request.path_params["thread_id"], owner)
        return answer(await commands.answer(body))

    @route("POST /threads/{thread_id}/stream/events")
    async def subscribe(self, request: Request) -> Response:
        """Stream the events of some channels, including those of later runs. The thread need not
        exist yet: a later run may create it."""
        owner = await self._user(request)
        body = await self._body(request, SubscriptionBody)
        id = request.path_params["thread_id"]
        await self._service.check_visible(id, owner)
        wanted = Wanted(body.channels, body.namespaces, body.depth)
        events = Subscription(self._service, id, owner, wanted).read(body.since)
        return stream(encode_session(events))

    async def connect(self, socket: WebSocket) -> None:
        """Serve a session over a WebSocket."""
        await serve_socket(self._service, socket)
