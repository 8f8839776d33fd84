"""What nodes call to send messages while they run: whole ones, and texts part by part.

What readers get to see is decided in `pregel.run.tokens`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import Any
from uuid import uuid4

from ...pregel.errors import InvalidUpdateError, nearest
from ...pregel.program.writes import shown
from ...pregel.run.tokens import emit_message, emitter, message_id, sending
from ...pregel.running import running
from .normalize import AnyMessage, to_message


def push_message(message: Any, *, state_key: str | None = "messages") -> AnyMessage:
    """Send a message to readers of the `messages` stream now, and write it to the state when the
    node ends.

    Args:
        message: it must have an id.
        state_key: the key to write to; None sends only.

    Returns:
        The message.

    Raises:
        ValueError: the message has no id.
        InvalidUpdateError: the state has no such key.
        RuntimeError: called outside of a running node.
    """
    task = running("push_message()")
    message = to_message(message)
    if message_id(message) is None:
        raise ValueError(f"push_message(): the message must have an id, got {shown(message)}")
    if state_key is not None and state_key not in task.known_channels():
        raise InvalidUpdateError(
            f"node {task.name!r} pushed a message to the unknown key {state_key!r}; "
            f"{nearest(state_key, task.known_channels())} (state_key=None only streams it)"
        )
    emit_message(task, message)
    if state_key is not None:
        task.writes.append((state_key, message))
    return message


def emit_message_delta(id: str, content: Any = "", role: str = "assistant") -> None:
    """Send one part of a message to readers of the `messages` stream; the parts of a message share
    its id.

    Raises:
        RuntimeError: called outside of a running node.
    """
    emit = emitter(running("emit_message_delta()"))
    if emit is not None:
        emit({"role": role, "content": content, "id": id})


def stream_text(
    deltas: Iterable[str], *, id: str | None = None, role: str = "assistant"
) -> dict[str, Any]:
    """Send the parts of a text as they come to readers of the `messages` stream; each is a message
    with the same id.

    Args:
        deltas: the parts, in order; empty ones are passed over.
        id: the message's id; a random one if None.

    Returns:
        The whole message, for the node to return.

    Raises:
        RuntimeError: called outside of a running node.
    """
    telling = _Telling("stream_text()", id, role)
    with sending():
        for delta in deltas:
            telling.tell(delta)
    return telling.message()


async def astream_text(
    deltas: AsyncIterable[str] | Iterable[str], *, id: str | None = None, role: str = "assistant"
) -> dict[str, Any]:
    """`stream_text` for an async iterable; a plain one will do as well."""
    telling = _Telling("astream_text()", id, role)
    with sending():
        if isinstance(deltas, AsyncIterable):
            async for delta in deltas:
                telling.tell(delta)
        else:
            for delta in deltas:
                telling.tell(delta)
    return telling.message()


class _Telling:
    """A text that is sent part by part, and put together."""

    __slots__ = ("_emit", "_id", "_parts", "_role")

    def __init__(self, what: str, id: str | None, role: str) -> None:
        self._emit = emitter(running(what))
        self._id = str(uuid4()) if id is None else id
        self._role = role
        self._parts: list[str] = []

    def tell(self, delta: str | None) -> None:
        if delta:
            self._parts.append(delta)
            if self._emit is not None:
                self._emit({"role": self._role, "content": delta, "id": self._id})

    def message(self) -> dict[str, Any]:
        return {"role": self._role, "content": "".join(self._parts), "id": self._id}
