"""Decodes long lists that grow: items that were decoded before are copied instead.

Only lists of immutable items, or of dicts that hold nothing but text, are kept. Every caller gets
a list and dicts of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, NamedTuple

from .delta import Blob, SharedBlob, join_list, opening_length
from .list_encoder import SCALARS, copy_texts
from .serializer import FORMAT

LEAST_BYTES = 1024
"""Shorter lists are decoded each time."""

MOST_BYTES = 800_000
"""About how many bytes a checkpointer keeps."""

MOST_LISTED = 50_000_000
"""About how many bytes are kept while checkpoints are listed."""

_LISTS = {0xDC: 3, 0xDD: 5}
"""The first byte of a list of more than 15 items, and how many bytes tell their number."""


class _KnownList(NamedTuple):
    """A list that was decoded: its bytes and its items, and a buffer of a `SharedBlob` that is
    known to have the same bytes up to `end`."""

    payload: bytes
    items: list[Any]
    has_dicts: bool
    buffer: bytearray | None
    end: int

    def copy(self, count: int) -> list[Any]:
        """Return the first items, for a caller who may change them."""
        items = self.items[:count]
        return [*map(dict.copy, items)] if self.has_dicts else items

    def size(self) -> int:
        """Return about how many bytes it takes."""
        texts = len(self.items) * (400 if self.has_dicts else 64)
        return (2 + (self.buffer is not None)) * len(self.payload) + texts


class ListDecoder:
    """Decodes the values of channels. Safe to share between threads.

    Args:
        most: about how many bytes to keep.
    """

    __slots__ = ("_known", "_lock", "_most", "_size")

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[Hashable, _KnownList] = {}
        self._size = 0
        self._lock = Lock()

    def loads(
        self, loads: Callable[[Blob], Any], channel: Hashable, stored: Blob | SharedBlob
    ) -> Any:
        """Return a value of a channel; raises the same errors as `Serializer.loads`.

        Args:
            loads: decodes any value.
        """
        known = self._known.get(channel)
        buffer, end = None, 0
        if isinstance(stored, SharedBlob):
            _, opening, buffer, end = stored
            is_list = opening[0] in _LISTS
            if is_list and known is not None and buffer is known.buffer and end <= known.end:
                return known.copy(int.from_bytes(opening[1:], "big"))
            stored = stored.read()
            if len(buffer) > 2 * len(stored[1]):  # it would be held for a small part of it
                buffer = None
        payload: Any = stored[1]  # bytes, a bytearray or a view
        if (
            not LEAST_BYTES <= len(payload) <= self._most
            or payload[0] not in _LISTS
            or stored[0] != FORMAT
        ):
            return loads(stored)
        if type(payload) is memoryview:
            payload = bytes(payload)
        start = _LISTS[payload[0]]
        count = int.from_bytes(payload[1:start], "big")
        value: Any
        if known is not None:
            whole, begin = known.payload, opening_length(known.payload)
            if payload is whole or whole.startswith(memoryview(payload)[start:], begin):
                if buffer is not None:
                    self._replace(channel, known, known._replace(buffer=buffer, end=end))
                return known.copy(count)
            if payload.startswith(memoryview(whole)[begin:], start):
                added = payload[start + len(whole) - begin :]
                more = loads((FORMAT, join_list(count - len(known.items), [added])))
                value = [*known.copy(count), *more]
            else:
                value = loads(stored)
        else:
            value = loads(stored)
        new: _KnownList | None = None
        if {*map(type, value)} <= SCALARS:
            new = _KnownList(payload, [*value], False, buffer, end)
        elif (texts := copy_texts(value)) is not None:
            new = _KnownList(payload, texts, True, buffer, end)
        self._replace(channel, known, new)
        return value

    def _replace(self, channel: Hashable, known: _KnownList | None, new: _KnownList | None) -> None:
        """Keep a list in place of another, unless somebody else has done so meanwhile."""
        with self._lock:
            if self._known.get(channel) is not known:
                return
            if known is not None:
                self._size -= self._known.pop(channel).size()
            if new is not None:
                self._known[channel] = new
                self._size += new.size()
            while self._size > self._most:
                self._size -= self._known.pop(next(iter(self._known))).size()

    def clear(self) -> None:
        """Forget all lists."""
        with self._lock:
            self._known.clear()
            self._size = 0
