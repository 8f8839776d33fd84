"""Reading the server-sent events of a run again, for routes that send them in another form."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import orjson

HEARTBEAT: Final = "heartbeat"
"""The name that a comment, which only says that the server lives, is told by."""


async def read_frames(frames: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, Any]]:
    """The events in parts of a `text/event-stream`, each with its data; each part holds whole
    events."""
    async for part in frames:
        for frame in part.split(b"\n\n"):
            if frame.startswith(b":"):
                yield HEARTBEAT, None
            elif frame:
                fields = dict(line.split(b": ", 1) for line in frame.split(b"\n"))
                yield fields[b"event"].decode(), orjson.loads(fields[b"data"])
