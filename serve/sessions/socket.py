"""A session over a WebSocket: it receives commands and sends their answers and the events of all
subscriptions."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

from starlette.requests import Request
from starlette.websockets import WebSocket, WebSocketDisconnect

from ..bodies import CommandRequest, SubscriptionBody
from ..encode import encode
from ..errors import Refused
from ..records import Record
from ..runs.frames import HEARTBEAT, split_frames
from ..service import Service, read_json, validate
from .commands import CommandError, Commands, describe_refusal
from .events import Subscription, Wanted, check_visible

MOST_SUBSCRIPTIONS: Final = 32
_TOO_LARGE: Final = 1009
_GONE: Final = (WebSocketDisconnect, RuntimeError)
"""Raised by reading or writing when one side has closed the connection."""


class Socket:
    """One connection to a thread.

    Args:
        owner: the user; None if there are no users.
    """

    def __init__(
        self, service: Service, socket: WebSocket, thread_id: str, owner: str | None
    ) -> None:
        self._service, self._socket = service, socket
        self._thread_id, self._owner = thread_id, owner
        self._commands = Commands(service, thread_id, owner)
        self._subscriptions: dict[str, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        """Answer commands until the client disconnects or the server stops."""
        await self._socket.accept()
        stop = asyncio.ensure_future(self._service.runs.stopping.wait())
        read = asyncio.ensure_future(self._read())
        try:
            await asyncio.wait([stop, read], return_when=asyncio.FIRST_COMPLETED)
        finally:
            left = [stop, read, *self._subscriptions.values()]
            for each in left:
                each.cancel()
            await asyncio.wait(left)
        with suppress(*_GONE):
            await self._socket.close()

    async def _read(self) -> None:
        with suppress(*_GONE):
            while True:
                text = (await self._socket.receive_text()).encode()
                if len(text) > self._service.most_bytes:
                    await self._socket.close(_TOO_LARGE)
                    return
                await self._send(await self._answer(text))

    async def _answer(self, text: bytes) -> Record:
        id = None
        try:
            request = validate(CommandRequest, read_json(text))
            id = request.id
            if request.method == "subscription.subscribe":
                return {"type": "success", "id": id, "result": self._subscribe(request.params)}
            if request.method == "subscription.unsubscribe":
                self._unsubscribe(request.params)
                return {"type": "success", "id": id, "result": {}}
            return await self._commands.answer(request)
        except (CommandError, Refused) as error:
            return describe_refusal(id, error)

    def _subscribe(self, params: Any) -> Record:
        if len(self._subscriptions) >= MOST_SUBSCRIPTIONS:
            why = f"a connection has at most {MOST_SUBSCRIPTIONS} subscriptions: open another one"
            raise CommandError("invalid_argument", why)
        asked = validate(SubscriptionBody, params)
        wanted = Wanted(asked.channels, asked.namespaces, asked.depth)
        subscription = Subscription(self._service, self._thread_id, self._owner, wanted)
        id = str(uuid4())
        self._subscriptions[id] = asyncio.create_task(self._pump(subscription, asked.since))
        return {"subscription_id": id, "replayed_events": 0}

    def _unsubscribe(self, params: Any) -> None:
        task = self._subscriptions.pop(str(params.get("subscription_id")), None)
        if task is None:
            raise CommandError("no_such_subscription", "there is no such subscription")
        task.cancel()

    async def _pump(self, subscription: Subscription, since: int | None) -> None:
        with suppress(*_GONE):
            async for part in subscription.read(since):
                for frame in split_frames(part):
                    if frame.event != HEARTBEAT:
                        await self._socket.send_text(frame.data.decode())

    async def _send(self, answer: Record) -> None:
        await self._socket.send_text(encode(answer).decode())


async def serve_socket(service: Service, socket: WebSocket) -> None:
    """Serve a WebSocket. It counts as a request for as long as it is open."""
    thread_id = socket.path_params["thread_id"]
    request = Request({**socket.scope, "type": "http", "method": "GET"})
    try:
        service.requests.enter()
    except Refused:
        await socket.close()
        return
    try:
        owner = await service.user(request)
        await check_visible(service, thread_id, owner)
        await Socket(service, socket, thread_id, owner).serve()
    except Refused:
        await socket.close()  # not accepted yet, so the handshake is answered with 403
    finally:
        service.requests.leave(request.scope)
