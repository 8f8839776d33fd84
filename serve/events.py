"""The events of runs, as records that every protocol encodes at its own edge: how they are made of
the chunks of a graph's stream, the log that keeps them for readers that come and go, and their form
as server-sent events.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, NamedTuple

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from .encode import decode, encode
from .json_messages import add_type, for_clients

PING: Final = b": heartbeat\n\n"
"""A comment, which only keeps the connection open."""
PING_SECONDS: Final = 15.0
"""How often a reader gets a comment, so that proxies keep the connection open."""
MOST_ID: Final = 2**63 - 1
"""The highest id of an event: a database counts with 64 bits."""
Namespace = tuple[str, ...]
_BYTES_OF_HEAD: Final = 64


class RunEvent(NamedTuple):
    """What a run tells its readers.

    Attributes:
        id: None if a reader cannot resume at it.
        kind: a stream mode, such as "updates" or "messages/partial"; "metadata" or "error".
        ns: the nested graph that has sent it, if events of nested graphs are wanted.
        data: the data as JSON: encoded once, for all readers, before the graph changes it.
    """

    id: int | None
    kind: str
    ns: Namespace
    data: bytes

    @property
    def name(self) -> str:
        """The name under which clients know it."""
        return "|".join((self.kind, *self.ns))

    @property
    def value(self) -> Any:
        """Its data."""
        return decode(self.data)

    @property
    def size(self) -> int:
        """About how many bytes are kept of it."""
        return len(self.data) + _BYTES_OF_HEAD


Events = AsyncIterator[list[RunEvent]]
"""The events of a run, in the portions in which they come."""


def failure(error: Any, id: int | None = None) -> RunEvent:
    """Return the event for an error."""
    return RunEvent(id, "error", (), encode(error))


def sse(id: int | str | None, name: str, data: bytes) -> bytes:
    """Return a server-sent event; a reader cannot resume at one without an id."""
    head = "" if id is None else f"id: {id}\n"
    return b"%sevent: %s\ndata: %s\n\n" % (head.encode(), name.encode(), data)


async def encode_events(events: Events) -> AsyncIterator[bytes]:
    """Yield the events of a run as parts of a `text/event-stream`."""
    async for some in events:
        yield b"".join([sse(each.id, each.name, each.data) for each in some])


class EventStream(StreamingResponse):
    """Sends the parts of a `text/event-stream`, and a comment now and then."""

    media_type = "text/event-stream"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all parts, until the reader leaves."""
        # Of servers by ASGI 2.4 Starlette expects that `send` fails then, and listens to no other
        # sign: it would not notice while nothing is sent.
        asgi = {**scope["asgi"], "spec_version": "2.3"}
        await super().__call__({**scope, "asgi": asgi}, receive, send)

    async def stream_response(self, send: Send) -> None:
        """Send all parts."""
        pings = asyncio.create_task(_ping(send))
        try:
            await super().stream_response(send)
        finally:
            pings.cancel()


async def _ping(send: Send) -> None:
    with suppress(OSError, RuntimeError):  # the client has gone, or the last part was sent
        while True:
            await asyncio.sleep(PING_SECONDS)
            await send({"type": "http.response.body", "body": PING, "more_body": True})


def stream(parts: Any, headers: Mapping[str, str] | None = None) -> StreamingResponse:
    """Return a response that sends the parts of a `text/event-stream`."""
    kept = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})}
    return EventStream(parts, headers=kept)


def read_id(text: str) -> int:
    """Parse the id of an event that a reader has seen.

    Raises:
        ValueError: it is not an integer, or too high.
    """
    id = int(text)
    if id > MOST_ID:
        raise ValueError(f"an id must be at most {MOST_ID}")
    return id


MOST_BYTES: Final = 16 * 1024 * 1024
"""How many bytes of a run's events are kept. A reader that falls further behind is disconnected."""
MOST_BYTES_OF_ONE: Final = 64 * 1024 * 1024
"""How many bytes of events are kept of one user's live runs, and as many of the ended ones."""
MOST_BYTES_OF_ALL: Final = 256 * 1024 * 1024
"""The same where there are no users."""
PIECE_BYTES: Final = 128 * 1024
"""About how much is sent to a reader at once, and so how much memory a reader that stalls costs."""


class KeptBytes:
    """Counts the bytes that are kept for each user. Belongs to one event loop.

    Args:
        most_of_one: how many one user may have.
        most_of_all: how many there may be where there are no users.
    """

    def __init__(
        self, most_of_one: int = MOST_BYTES_OF_ONE, most_of_all: int = MOST_BYTES_OF_ALL
    ) -> None:
        self._most_of_one, self._most_of_all = most_of_one, most_of_all
        self._of_user: dict[str, int] = {}

    def add(self, user: str, size: int) -> bool:
        """Count bytes that are kept from now on, or no longer if their number is negative. Return
        whether the user has more than may be kept."""
        kept = self._of_user.get(user, 0) + size
        if kept:
            self._of_user[user] = kept
        else:
            self._of_user.pop(user, None)
        return kept > (self._most_of_one if user else self._most_of_all)

    def is_full(self, user: str) -> bool:
        """Return whether a user has more than may be kept."""
        return self.add(user, 0)


class EventLog:
    """The events of one run. Belongs to one event loop.

    The ids count up from 0, so a reader that reconnects can name the last event it has seen.

    Args:
        first: the first id. If a run continues in another process, its ids must be higher than all
            before, so that a reader that reconnects with an old id gets all new events.
        most_bytes: beyond this size, the oldest events are dropped.
        kept: counts what is kept for the user; beyond that limit they are dropped as well.
        user: whose run it is.

    Attributes:
        size: how many bytes of events are kept.
    """

    def __init__(
        self,
        first: int = 0,
        most_bytes: int = MOST_BYTES,
        kept: KeptBytes | None = None,
        user: str = "",
    ) -> None:
        self._kept, self._user = kept or KeptBytes(), user
        self._events: deque[RunEvent] = deque()
        self._begin = self._first = first
        self.size: int = 0
        self._most_bytes = most_bytes
        self._is_closed = False
        self._news = asyncio.Event()

    @property
    def next_id(self) -> int:
        """The id of the next event."""
        return self._first + len(self._events)

    def add(self, kind: str, data: Any, ns: Namespace = ()) -> None:
        """Send an event to all readers, including those that come later."""
        event = RunEvent(self.next_id, kind, ns, encode(data))
        self._events.append(event)
        full = self._count(event.size)
        while full and len(self._events) > 1:
            full = self._count(-self._events.popleft().size)
            self._first += 1
        self._wake()

    def _count(self, size: int) -> bool:
        """Count bytes; return whether more are kept than may be."""
        self.size += size
        return self._kept.add(self._user, size) or self.size > self._most_bytes

    def release(self) -> None:
        """Stop counting its events: they are kept as a part of an ended run, or not at all."""
        self._kept.add(self._user, -self.size)
        self._kept = KeptBytes()

    def close(self) -> None:
        """Add no more events: readers end when they have read them all."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _some(self, at: int) -> list[RunEvent]:
        """Return the events from an id on that fit into one piece."""
        some, size = [], 0
        for event in islice(self._events, at - self._first, None):
            some.append(event)
            size += event.size
            if size >= PIECE_BYTES:
                break
        return some

    async def read(self, start: int = 0) -> Events:
        """Yield the events from an id on, until the log is closed. A reader that is too slow gets
        an `error` event and has to reconnect."""
        at = min(max(start, self._begin), self.next_id)
        while True:
            if at < self._first:
                message = f"events {at} to {self._first - 1} are gone"
                yield [failure({"error": "TooSlow", "message": message})]
                return
            news = self._news
            fresh = self._some(at)
            if fresh:
                at += len(fresh)
                yield fresh
            elif self._is_closed:
                return
            else:
                await news.wait()


CALLBACK_EVENTS: Final = "events"
"""The stream mode for the events of LangChain's callbacks, as `astream_events` yields them."""

_STATES: Final = ("values", "input", "result")
"""The parts of tasks and checkpoints that are states or updates."""


def engine_mode(mode: str) -> str:
    """Return the engine's stream mode for a client's."""
    return "messages" if mode == "messages-tuple" else mode


class ChunkEvents:
    """Turns the chunks of one run into events, in order.

    Args:
        asked: the arguments of the run.

    Attributes:
        modes: the stream modes of the engine that the events need.
        has_callbacks: whether events of LangChain's callbacks are wanted, for which the engine has
            no stream mode.
        subgraphs: whether events of nested graphs are wanted.
        looks_inside: whether an event needs the chunks of nested graphs. Without them, the engine
            need not create an asyncio task for the only task of a step.
        has_memory: whether an event depends on earlier chunks.
    """

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self._wanted: Sequence[str] = asked["stream_mode"]
        self.subgraphs: bool = asked["subgraphs"]
        self.modes: list[str] = sorted(
            {engine_mode(mode) for mode in self._wanted if mode != CALLBACK_EVENTS}
        )
        self.has_callbacks: bool = CALLBACK_EVENTS in self._wanted
        self.looks_inside: bool = self.subgraphs or "messages" in self.modes
        self.has_memory: bool = "messages" in self._wanted
        self._messages = MessageEvents()

    def of(self, ns: Namespace, mode: str, chunk: Any) -> Iterator[tuple[str, Any, Namespace]]:
        """Yield kind, data and namespace of the events for a chunk; at most three."""
        told = ns if self.subgraphs else ()
        for kind, data in self._of(ns, mode, chunk):
            yield kind, data, told

    def _of(self, ns: Namespace, mode: str, chunk: Any) -> Iterator[tuple[str, Any]]:
        if ns and not self.subgraphs and mode != "messages":
            return
        if mode != "messages":
            if mode in self._wanted:
                yield mode, _convert(mode, chunk)
            return
        message, metadata = chunk
        chunk = add_type(message), metadata
        if "messages-tuple" in self._wanted:
            yield "messages", chunk
        if self.has_memory:
            yield from self._messages.of(chunk)


def _convert(mode: str, chunk: Any) -> Any:
    """Return a chunk with its messages in the form that clients read."""
    if mode == "values":
        return for_clients(chunk)
    if not isinstance(chunk, dict):
        return chunk
    if mode == "updates":
        return {node: for_clients(update) for node, update in chunk.items()}
    if mode in ("tasks", "checkpoints"):
        found = {name: for_clients(chunk[name]) for name in _STATES if name in chunk}
        return {**chunk, **found}
    return chunk


class MessageEvents:
    """Accumulates messages by id: for each chunk of a model's answer, the stream mode "messages" of
    LangGraph's server sends the message so far. (`messages-tuple` sends the chunks unchanged.)"""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def of(self, chunk: tuple[Any, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the events for one chunk: the metadata with the first one, then the message so
        far."""
        message, metadata = chunk
        id = _field(message, "id")
        if id not in self._known:
            yield "messages/metadata", {str(id): {"metadata": metadata}}
        known = self._known.get(id)
        if isinstance(known, dict) and isinstance(message, dict):  # the next part of a text
            self._known[id] = _join(known, message)
            yield "messages/partial", [self._known[id]]
            return
        if not str(_field(message, "type") or "").endswith("Chunk"):
            self._known[id] = message
            yield "messages/complete", [message]
            return
        whole = self._known[id] + message if id in self._known else message
        self._known[id] = whole
        yield "messages/partial", [_as_message(whole)]


def _field(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, dict) else getattr(message, name, None)


def _join(message: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    contents = message["content"], part["content"]
    if not all(isinstance(each, str) for each in contents):
        return part
    return {**message, **part, "content": "".join(contents)}


def _as_message(whole: Any) -> dict[str, Any]:
    """Return accumulated chunks in the form of a message."""
    shown: dict[str, Any] = whole.model_dump()
    hidden = ("tool_call_chunks", "chunk_position")
    kept = {name: value for name, value in shown.items() if name not in hidden}
    return {**kept, "type": str(shown["type"]).removesuffix("MessageChunk").lower()}
