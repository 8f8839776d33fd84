"""Parses the server-sent events of a run, for routes that send them in another form."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, NamedTuple

from ..encode import decode

HEARTBEAT: Final = "heartbeat"
"""The event name for a comment, which only keeps the connection open."""


class Frame(NamedTuple):
    """A server-sent event.

    Attributes:
        id: None if a reader cannot resume at it.
        data: the data, as JSON.
    """

    id: int | None
    event: str
    data: bytes


def split_frames(part: bytes) -> Iterator[Frame]:
    """Yield the events in a part of a `text/event-stream`, which holds whole events."""
    for text in part.split(b"\n\n"):
        if text.startswith(b":"):
            yield Frame(None, HEARTBEAT, b"null")
        elif text:
            fields = dict(line.split(b": ", 1) for line in text.split(b"\n"))
            id = int(fields[b"id"]) if b"id" in fields else None
            yield Frame(id, fields[b"event"].decode(), fields[b"data"])


async def read_frames(frames: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, Any]]:
    """Yield each event in the parts of a `text/event-stream`, with its data; each part holds whole
    events."""
    async for part in frames:
        for frame in split_frames(part):
            yield frame.event, decode(frame.data)
