"""Growing messages: what the stream mode "messages" of the peer's server sends for the pieces of a
model's answer. (`messages-tuple` sends the pieces unchanged.)"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class MessageEvents:
    """Puts the pieces of messages together, by the ids of the messages."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def of(self, chunk: tuple[Any, Any]) -> Iterator[tuple[str, Any]]:
        """The events for one piece: its metadata with the first, then all there is so far."""
        message, metadata = chunk
        id = _field(message, "id")
        if id not in self._known:
            yield "messages/metadata", {str(id): {"metadata": metadata}}
        if not str(_field(message, "type") or "").endswith("Chunk"):
            self._known[id] = message
            yield "messages/complete", [message]
            return
        whole = self._known[id] + message if id in self._known else message
        self._known[id] = whole
        yield "messages/partial", [_as_message(whole)]


def _field(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, dict) else getattr(message, name, None)


def _as_message(whole: Any) -> dict[str, Any]:
    """Pieces put together, in the form of a message."""
    shown: dict[str, Any] = whole.model_dump()
    hidden = ("tool_call_chunks", "chunk_position")
    kept = {name: value for name, value in shown.items() if name not in hidden}
    return {**kept, "type": str(shown["type"]).removesuffix("MessageChunk").lower()}
