"""Accumulates messages: for each chunk of a model's answer, the stream mode "messages" of
LangGraph's server sends the message so far. (`messages-tuple` sends the chunks unchanged.)"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class MessageEvents:
    """Accumulates the chunks of messages, by message id."""

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
