"""The routes of sessions with a thread: commands, and events as they happen."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from ...bodies import CommandRequest, SubscriptionBody
from ...events.event import stream
from ...handlers import Handlers, User, route
from ...records import Record
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
    async def command(self, thread_id: str, owner: User, body: CommandRequest) -> Record:
        """Execute one command. If it fails, the response holds the error, as the protocol
        defines."""
        return await Commands(self._service, thread_id, owner).answer(body)

    @route("POST /threads/{thread_id}/stream/events")
    async def subscribe(self, thread_id: str, owner: User, body: SubscriptionBody) -> Response:
        """Stream the events of some channels, including those of later runs. The thread need not
        exist yet: a later run may create it."""
        await self._service.check_visible(thread_id, owner)
        wanted = Wanted(body.channels, body.namespaces, body.depth)
        events = Subscription(self._service, thread_id, owner, wanted).read(body.since)
        return stream(encode_session(events))

    async def connect(self, socket: WebSocket) -> None:
        """Serve a session over a WebSocket."""
        await serve_socket(self._service, socket)
