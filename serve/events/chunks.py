"""Turns the chunks of a graph's stream into events with the names that clients expect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ..json_messages import add_type, for_clients
from .event import Namespace

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
