"""Conversations of LangChain's message objects, whatever comes in."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, TypeAlias

from langchain_core.messages import (
    AnyMessage,
    BaseMessage,
    BaseMessageChunk,
    convert_to_messages,
    message_chunk_to_message,
)

from ...channels.aggregate import FOLDING
from ...graph.messages import Format
from ...graph.messages import add_messages as _add_messages
from ...graph.messages import push_message as _push_message
from ...graph.messages.reducer import MessageFolding

__all__ = ["AnyMessage", "add_messages", "push_message", "to_messages"]

Given: TypeAlias = Any
"""A message object, a dict, a tuple (role, content), a string, or a list of them."""

_UNSET: Any = object()


def add_messages(left: Any = _UNSET, right: Any = _UNSET, *, format: Format | None = None) -> Any:
    """Merge messages into a list of messages, all of them LangChain's objects.

    See `stategraph.add_messages` for how they are merged.
    """
    if left is _UNSET and right is _UNSET:
        return _with_format(format)
    if left is _UNSET or right is _UNSET or left is None or right is None:
        raise ValueError("add_messages must be given both left and right, or neither")
    return _add_messages(to_messages(left), to_messages(right), format=format)


def _make_folding(reducer: Any) -> ObjectFolding | None:
    """What folds like `add_messages` with these options; None if this is another function."""
    if getattr(reducer, "func", reducer) is not add_messages:
        return None
    return ObjectFolding(reducer, rewrite=bool(getattr(reducer, "keywords", {}).get("format")))


setattr(add_messages, FOLDING, _make_folding)


@cache  # the same reducer for the same options: two schemas that share a key must agree on it
def _with_format(format: Format | None) -> Any:
    reducer = partial(add_messages, format=format)
    setattr(reducer, FOLDING, _make_folding)
    return reducer


def to_messages(given: Given) -> list[BaseMessage]:
    """Message objects made of whatever describes messages; chunks become whole messages.

    Raises:
        ValueError: a role is unknown.
    """
    listed = given if isinstance(given, list) else [given]
    plain = all(
        isinstance(each, BaseMessage) and not isinstance(each, BaseMessageChunk) for each in listed
    )
    if plain:
        return listed
    return [
        message_chunk_to_message(message) if isinstance(message, BaseMessageChunk) else message
        for message in convert_to_messages(listed)
    ]


class ObjectFolding(MessageFolding):
    """The folding of `add_messages` here: a turn costs what it adds, however long the list."""

    __slots__ = ()

    listed = staticmethod(to_messages)


def push_message(message: Any, *, state_key: str | None = "messages") -> BaseMessage:
    """Send a message to those who read messages, at once, and write it to the state.

    Raises:
        ValueError: it has no id.
        RuntimeError: called outside of a node.
    """
    (whole,) = to_messages(message)
    _push_message(whole, state_key=state_key)
    return whole
