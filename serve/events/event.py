"""One event of a run, and its form as a server-sent event."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, NamedTuple

from starlette.responses import StreamingResponse

from ..encode import decode, encode

PING: Final = b": heartbeat\n\n"
"""A comment, which only keeps the connection open."""
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
"""The events of a run, in the portions in which they come; an empty portion is a heartbeat."""


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
        yield b"".join([sse(each.id, each.name, each.data) for each in some]) or PING


def stream(parts: Any, headers: Mapping[str, str] | None = None) -> StreamingResponse:
    """Return a response that sends the parts of a `text/event-stream`."""
    kept = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})}
    return StreamingResponse(parts, media_type="text/event-stream", headers=kept)


def read_id(text: str) -> int:
    """Parse the id of an event that a reader has seen.

    Raises:
        ValueError: it is not an integer, or too high.
    """
    id = int(text)
    if id > MOST_ID:
        raise ValueError(f"an id must be at most {MOST_ID}")
    return id
