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
_THOUGHTS: Final = {"reasoning": "reasoning", "thinking": "thinking"}
_DATA: Final = ("image", "audio", "video", "file", "non_standard")
_CLOSED: Final = ""


class Block:
    """A content block of a message while it grows."""

    def __init__(self, index: int, key: tuple[str, int], content: Data) -> None:
        self.index, self.key, self.content = index, key, content

    def start(self) -> Data:
        """Return the event for its start."""
        return {"event": "content-block-start", "index": self.index, "content": {**self.content}}

    def grow(self, field: str, more: str, kind: str) -> Data:
        """Add to its text, and return the event for that."""
        self.content[field] += more
        delta = {"type": kind, field: more}
        return {"event": "content-block-delta", "index": self.index, "delta": delta}

    def finish(self) -> Data:
        """Return the event for its end."""
        content = self.content
        if content["type"] == "tool_call_chunk":
            content = _read_call(content)
        return {"event": "content-block-finish", "index": self.index, "content": content}


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
    """A message that arrives in chunks."""

    def __init__(self, id: str, role: str) -> None:
        self._id, self._role = id, role
        self._block: Block | None = None
        self._blocks = 0
        self._usage: Any = None

    def start(self) -> Data:
        """Return the event for its start."""
        return {"event": "message-start", "role": self._role, "id": self._id}

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
        if kind == "text" and isinstance(part.get("text"), str):
            yield from self._grow(("text", 0), {"type": "text", "text": ""}, part["text"])
        elif kind in _THOUGHTS and isinstance(part.get(_THOUGHTS[kind]), str):
            empty = {"type": "reasoning", "reasoning": ""}
            yield from self._grow(("reasoning", 0), empty, part[_THOUGHTS[kind]])
        elif kind not in ("text", "tool_use", "tool_call", "tool_call_chunk", "input_json_delta"):
            whole = dict(part) if kind in _DATA else {"type": "non_standard", "value": dict(part)}
            yield from self._open(("part", self._blocks), whole)
            yield from self._close()

    def _call(self, call: CallPiece) -> Iterator[Data]:
        key = ("call", call.index)
        if self._block is None or self._block.key != key or call.id not in (None, self._id_of()):
            named = {"id": call.id, "name": call.name}
            yield from self._open(key, {"type": "tool_call_chunk", **named, "args": ""})
        if call.arguments and self._block is not None:
            yield self._block.grow("args", call.arguments, "tool-call-delta")

    def _id_of(self) -> Any:
        return self._block and self._block.content.get("id")

    def _grow(self, key: tuple[str, int], empty: Data, more: str) -> Iterator[Data]:
        if not more:
            return
        if self._block is None or self._block.key != key:
            yield from self._open(key, empty)
        if self._block is not None:
            kind = empty["type"]
            yield self._block.grow(kind, more, f"{kind}-delta")

    def _open(self, key: tuple[str, int], content: Data) -> Iterator[Data]:
        yield from self._close()
        self._block = Block(self._blocks, key, content)
        self._blocks += 1
        yield self._block.start()

    def _close(self) -> Iterator[Data]:
        if self._block is not None:
            yield self._block.finish()
            self._block = None


class Messages:
    """The messages of one graph. One is sent at a time; others that begin meanwhile wait."""

    def __init__(self) -> None:
        self._current: tuple[str, Growing] | None = None
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
        if self._current is not None and self._current[0] != id:
            self._waiting.setdefault(id, []).append(piece)
            return
        if self._current is None:
            self._current = id, Growing(id, role)
            yield self._current[1].start()
        yield from self._current[1].add(piece)
        is_piece = str(piece.get("type") or "").endswith("Chunk")
        if not is_piece or piece.get("chunk_position") == "last":
            yield from self.finish()

    def finish(self) -> Iterator[Data]:
        """End the current message, then send those that wait."""
        if self._current is not None:
            _, growing = self._current
            self._current = None
            yield from growing.finish()
        while self._current is None and self._waiting:
            id = next(iter(self._waiting))
            for piece in self._waiting.pop(id):
                yield from self.add(piece, id)

    def finish_all(self) -> Iterator[Data]:
        """End all messages, because a superstep has ended."""
        while self._current is not None:
            yield from self.finish()
