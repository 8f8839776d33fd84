"""Turns the chunks of a graph's stream into events under the names that clients know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from .messages import MessageEvents

CALLBACK_EVENTS: Final = "events"
"""The stream mode of what LangChain's callbacks are told, as `astream_events` has it."""


def engine_mode(mode: str) -> str:
    """The stream mode of the engine for one that clients know."""
    return "messages" if mode == "messages-tuple" else mode


class ChunkEvents:
    """Turns the chunks of one run into events, in order.

    Args:
        asked: the arguments of the run.

    Attributes:
        modes: the stream modes of the engine that the events need.
        has_callbacks: whether what LangChain's callbacks are told is wanted, too: the engine has no
            stream mode for it.
        subgraphs: whether events of graphs inside are wanted.
        looks_inside: whether an event needs the chunks of graphs inside. A run that sends none
            does the only task of a step without an asyncio task of its own.
        has_memory: whether an event depends on the chunks before.
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

    def of(self, ns: tuple[str, ...], mode: str, chunk: Any) -> Iterator[tuple[str, Any]]:
        """The names and data of the events for a chunk; at most three."""
        if ns and not self.subgraphs and mode != "messages":
            return
        place = "|".join(["", *ns]) if self.subgraphs else ""
        if mode != "messages":
            if mode in self._wanted:
                yield f"{mode}{place}", chunk
            return
        if "messages-tuple" in self._wanted:
            yield f"messages{place}", chunk
        if self.has_memory:
            for name, data in self._messages.of(chunk):
                yield f"{name}{place}", data
