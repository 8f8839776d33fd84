"""One long list, encoded again and again as it grows: what has not changed keeps its bytes.

A node may change any item in place, so that looking at the list is not enough: each block of items
is kept frozen beside its bytes, and compared before the bytes are used again. That costs a fraction
of encoding it. The bytes are those that `Serializer.dumps` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .delta import Blob, GrownBlob, join_list, list_body, make_append
from .frozen import FindCodec, freeze_items

LEAST_ITEMS = 64
"""Shorter lists are encoded whole."""

BLOCK = 256
"""The most items that are compared, and encoded again, together."""

WHOLE = 2
"""How often a list is encoded whole before it is frozen, which costs about as much: most calls
store it no more often."""

_SCALARS = frozenset((str, int, float, bool, bytes, type(None)))
"""Encoding these costs no more than comparing them."""


class ListEncoder:
    """Encodes the values that one channel takes in the course of a run.

    Args:
        dumps: encodes any value.
        find_codec: how instances of a class are stored.
    """

    __slots__ = ("_blocks", "_dumps", "_find_codec", "_form", "_last", "_patience", "_whole")

    def __init__(self, dumps: Callable[[Any], Blob], find_codec: FindCodec) -> None:
        self._dumps = dumps
        self._find_codec = find_codec
        self._blocks: list[_Block] = []
        self._form = ""
        self._last = b""  # the bytes of all blocks
        self._whole = WHOLE  # how often to encode whole before it is tried in blocks
        self._patience = WHOLE

    def dumps(self, value: list[Any]) -> Blob:
        """The list as bytes.

        Raises:
            UnserializableError: as `Serializer.dumps`.
        """
        if len(value) >= LEAST_ITEMS and type(value[0]) not in _SCALARS:
            if self._whole:
                self._whole -= 1
            else:
                try:
                    blob = self._dumps_blocks(value)
                except Exception:  # `dumps` will name the place in the whole list
                    blob = None
                if blob is not None:
                    return blob
        self._blocks = []
        return self._dumps(value)

    def _dumps_blocks(self, value: list[Any]) -> Blob | None:
        """The list as bytes; None if most of it has changed, so that comparing did not pay."""
        blocks: list[_Block] = []
        at = changed = 0
        for block in self._blocks:
            items = value[at : at + block.count]
            at += block.count
            if not block.holds(items):
                changed += 1
                block = self._make_block(items)
            blocks.append(block)
        if changed and 2 * changed >= len(blocks):
            self._patience = self._whole = 2 * self._patience
            return None
        # Only then is the old payload a prefix, so that the delta is known without a comparison.
        grown = bool(blocks) and not changed
        added = [self._make_block(value[at : at + BLOCK]) for at in range(at, len(value), BLOCK)]
        for block in added:
            # A list that grows by a few items would else end as many small blocks.
            if blocks and blocks[-1].count + block.count <= BLOCK:
                blocks[-1] = blocks[-1].join(block)
            else:
                blocks.append(block)
        count = sum(block.count for block in blocks)
        payload = join_list(count, [block.payload for block in blocks])
        old, self._last, self._blocks = self._last, payload, blocks
        if not grown:
            return self._form, payload
        return GrownBlob(self._form, payload, old, make_append(old, payload))

    def _make_block(self, items: list[Any]) -> _Block:
        # Frozen first: what another thread changes in between is in the bytes, and is looked at
        # once more the next time.
        frozen = freeze_items(items, self._find_codec)
        self._form, payload = self._dumps(items)
        return _Block(frozen, [*map(type, items)], list_body(payload))


class _Block:
    """Some items in a row: frozen, and as bytes without their list."""

    __slots__ = ("_frozen", "_types", "count", "payload")

    def __init__(self, frozen: list[Any], types: list[type], payload: bytes) -> None:
        self._frozen = frozen
        self._types = types
        self.count = len(frozen)
        self.payload = payload

    def holds(self, items: Sequence[Any]) -> bool:
        """Whether these items have these bytes."""
        try:
            return [*map(type, items)] == self._types and self._frozen == items
        except Exception:  # some values cannot be compared, arrays for one
            return False

    def join(self, other: _Block) -> _Block:
        """One block of both."""
        return _Block(
            self._frozen + other._frozen,
            self._types + other._types,
            self.payload + other.payload,
        )
