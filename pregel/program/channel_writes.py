"""The writers of raw Pregel nodes: a result, or what is made of it, goes to channels by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from ..errors import InvalidRouteError, InvalidUpdateError, nearest
from ..names import TASKS
from ..types import Send
from .writes import Pair, Writer, explain_keyless, find_keyless, note_sender, shown


class _Marker(Enum):
    PASSTHROUGH = "PASSTHROUGH"
    SKIP_WRITE = "SKIP_WRITE"


PASSTHROUGH: Final = _Marker.PASSTHROUGH
"""Write what the node returned."""
SKIP_WRITE: Final = _Marker.SKIP_WRITE
"""What a mapper returns to write nothing."""


@dataclass(frozen=True, slots=True)
class ChannelWriteEntry:
    """One write to one channel.

    Args:
        channel: its name.
        value: a constant, or `PASSTHROUGH` for the node's result.
        skip_none: write nothing when the value is None.
        mapper: applied to the value first; it may return `SKIP_WRITE`.
    """

    channel: str
    value: Any = PASSTHROUGH
    skip_none: bool = False
    mapper: Callable[[Any], Any] | None = None

    def pairs(self, result: Any) -> Sequence[Pair]:
        """The writes this entry makes of a node's result."""
        value = result if self.value is PASSTHROUGH else self.value
        if self.mapper is not None:
            value = self.mapper(value)
        if value is SKIP_WRITE or (self.skip_none and value is None):
            return ()
        return ((self.channel, value),)


@dataclass(frozen=True, slots=True)
class ChannelWriteTupleEntry:
    """Any number of writes computed from the node's result.

    Args:
        mapper: from the value to (channel, value) pairs; None for none.
        value: a constant, or `PASSTHROUGH` for the node's result.
    """

    mapper: Callable[[Any], Sequence[Pair] | None]
    value: Any = PASSTHROUGH

    def pairs(self, result: Any) -> Sequence[Pair]:
        """The writes this entry makes of a node's result."""
        return self.mapper(result if self.value is PASSTHROUGH else self.value) or ()


class ChannelWrite(Writer):
    """Writes to channels by name: the writer of raw Pregel nodes.

    Args:
        writes: entries, channel names (write the result), or `Send`s.
    """

    def __init__(
        self, writes: Sequence[ChannelWriteEntry | ChannelWriteTupleEntry | Send | str]
    ) -> None:
        self.writes: list[ChannelWriteEntry | ChannelWriteTupleEntry | Send] = [
            ChannelWriteEntry(w) if isinstance(w, str) else w for w in writes
        ]

    def write(self, result: Any, task: Any) -> None:
        """Append what each entry makes of the result, in the order declared."""
        out, known = task.writes, task.known_channels()
        for entry in self.writes:
            if isinstance(entry, Send):
                out.append((TASKS, check_send(entry, task)))
                continue
            for channel, value in entry.pairs(result):
                if channel not in known:
                    raise InvalidUpdateError(
                        f"node {task.name!r} wrote to the unknown channel {channel!r}; "
                        f"{nearest(channel, known)}"
                    )
                if channel == TASKS:
                    sends = value if isinstance(value, list) else [value]
                    out.extend((TASKS, check_send(send, task)) for send in sends)
                else:
                    out.append((channel, value))

    def check(self, channels: Mapping[str, Any]) -> Iterable[str]:
        """Static entries must name a channel, and not the engine's own."""
        for entry in self.writes:
            if isinstance(entry, ChannelWriteEntry):
                if entry.channel == TASKS:
                    yield f"writes to the reserved channel {TASKS!r}; add a Send instead"
                elif entry.channel not in channels:
                    near = nearest(entry.channel, channels)
                    yield f"writes to the unknown channel {entry.channel!r}; {near}"


def check_send(send: Any, task: Any) -> Send:
    """Refuse what is no Send, or goes to no node, in the task that wrote it. Returns the Send to be
    written.

    Raises:
        InvalidUpdateError: naming the node that wrote it.
    """
    if not isinstance(send, Send):
        raise InvalidUpdateError(
            f"node {task.name!r}: a write to {TASKS!r} must be a Send, got {shown(send)}"
        )
    nodes = task.known_nodes()
    if send.node not in nodes:
        raise InvalidRouteError(
            f"node {task.name!r} sends to the unknown node {send.node!r}; "
            f"{nearest(send.node, nodes)}"
        )
    if send.key is not None and find_keyless({send.node: nodes[send.node].source}):
        raise InvalidUpdateError(explain_keyless(send.node, send.key))
    return send if send.race is None else note_sender(send, task)
