"""The channel `messages`: messages as blocks of content that begin, grow and end. Pure.

The events of a message do not name it, so messages of one graph that grow at the same time are sent
one after the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ...json_messages import CallPiece, calls_of, role_of

Data = dict[str, Any]

_ROLES: Final = {"assistant": "ai", "user": "human", "system": "system", "developer": "system"}
_TEXTS: Final = {"text": "text", "reasoning": "reasoning", "thinking": "reasoning"}
"""The types of texts in what models send, and in events. The key of the text has the same name."""
_DATA: Final = ("image", "audio", "video", "file", "non_standard")


def _read_call(chunk: Data) -> Data:
    """Return a tool call whose arguments are complete."""
    named = {"id": chunk["id"], "name": chunk["name"]}
    try:
        arguments = json.loads(chunk["args"] or "{}")
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        return {"type": "tool_call", **named, "args": arguments}
    why = "the arguments are not a JSON object"
    return {"type": "invalid_tool_call", **named, "args": chunk["args"], "error": why}


class Growing:
    """A message that arrives in chunks. One of its blocks is open at a time."""

    def __init__(self, id: str, role: str) -> None:
        self.id, self._role = id, role
        self._blocks = 0
        self._key: tuple[str, int] | None = None  # of the open block
        self._content: Data = {}  # of the open block
        self._usage: Any = None

    def start(self) -> Data:
        """Return the event for its start."""
        return {"event": "message-start", "role": self._role, "id": self.id}

    def add(self, piece: Mapping[str, Any]) -> Iterator[Data]:
        """Add a chunk, or the whole message."""
        content = piece.get("content")
        for part in content if isinstance(content, list) else [content]:
            yield from self._part(part)
        for call in calls_of(piece):
            yield from self._call(call)
        self._usage = piece.get("usage_metadata") or self._usage

    def finish(self) -> Iterator[Data]:
        """End the open block and the message."""
        yield from self._close()
        yield {"event": "message-finish", **({"usage": self._usage} if self._usage else {})}

    def _part(self, part: Any) -> Iterator[Data]:
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        if not isinstance(part, Mapping):
            return
        kind = part.get("type")
        if kind in _TEXTS and isinstance(text := part.get(kind), str):
            field = _TEXTS[kind]
            if text and self._key != (field, 0):
                yield from self._open((field, 0), {"type": field, field: ""})
            yield from self._grow(field, text, f"{field}-delta")
        elif kind not in ("text", "tool_use", "tool_call", "tool_call_chunk", "input_json_delta"):
            whole = dict(part) if kind in _DATA else {"type": "non_standard", "value": dict(part)}
            yield from self._open(("part", self._blocks), whole)
            yield from self._close()

    def _call(self, call: CallPiece) -> Iterator[Data]:
        key = ("call", call.index)
        if self._key != key or call.id not in (None, self._content.get("id")):
            named = {"id": call.id, "name": call.name}
            yield from self._open(key, {"type": "tool_call_chunk", **named, "args": ""})
        yield from self._grow("args", call.arguments, "tool-call-delta")

    def _open(self, key: tuple[str, int], content: Data) -> Iterator[Data]:
        yield from self._close()
        self._key, self._content = key, content
        yield {"event": "content-block-start", "index": self._blocks, "content": {**content}}
        self._blocks += 1

    def _grow(self, field: str, more: str, kind: str) -> Iterator[Data]:
        """Add to a text in the open block."""
        if more:
            self._content[field] += more
            delta = {"type": kind, field: more}
            yield {"event": "content-block-delta", "index": self._blocks - 1, "delta": delta}

    def _close(self) -> Iterator[Data]:
        if self._key is not None:
            self._key, content = None, self._content
            if content["type"] == "tool_call_chunk":
                content = _read_call(content)
            yield {"event": "content-block-finish", "index": self._blocks - 1, "content": content}


class Messages:
    """The messages of one graph. One is sent at a time; others that begin meanwhile wait."""

    def __init__(self) -> None:
        self._current: Growing | None = None
        self._waiting: dict[str, list[Mapping[str, Any]]] = {}

    def add(self, piece: Mapping[str, Any], task: str) -> Iterator[Data]:
        """Add a chunk of a message, or a whole one.

        Args:
            task: stands for the message's id if it has none.
        """
        role = _ROLES.get(role_of(piece))
        if role is None:  # tool results have a channel of their own
            return
        id = str(piece.get("id") or task)
        if self._current is None:
            self._current = Growing(id, role)
            yield self._current.start()
        elif self._current.id != id:
            self._waiting.setdefault(id, []).append(piece)
            return
        yield from self._current.add(piece)
        is_piece = str(piece.get("type") or "").endswith("Chunk")
        if not is_piece or piece.get("chunk_position") == "last":
            yield from self.finish()

    def finish(self) -> Iterator[Data]:
        """End the current message, then send those that wait."""
        if self._current is not None:
            growing, self._current = self._current, None
            yield from growing.finish()
        while self._current is None and self._waiting:
            id = next(iter(self._waiting))
            for piece in self._waiting.pop(id):
                yield from self.add(piece, id)

    def finish_all(self) -> Iterator[Data]:
        """End all messages, because a superstep has ended."""
        while self._current is not None:
            yield from self.finish()
