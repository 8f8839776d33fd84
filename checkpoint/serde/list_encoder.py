"""One long list, encoded again and again as it grows: what has not changed keeps its bytes.

A node may change any item in place, so that looking at the list is not enough: each block of items
is kept frozen beside its bytes, and compared before the bytes are used again. That costs a fraction
of encoding it. The bytes are those that `Serializer.dumps` gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .delta import Blob, GrownBlob, join_list, list_body, make_append
from .frozen import FindCodec, FrozenItems, copy_texts, equals_texts, freeze_items

LEAST_ITEMS = 64
"""Shorter lists are encoded whole."""

BLOCK = 256
"""The most items that are compared, and encoded again, together."""

_SCALARS = frozenset((str, int, float, bool, bytes, type(None)))
"""Encoding these costs no more than comparing them."""


class ListEncoder:
    """Encodes the values that one channel takes in the course of a run.

    Args:
        dumps: encodes any value.
        find_codec: how instances of a class are stored.
    """

    __slots__ = (
        "_blocks", "_dumps", "_find_codec", "_form", "_freeze", "_last", "_patience", "_texts",
        "_whole",
    )  # fmt: skip

    def __init__(self, dumps: Callable[[Any], Blob], find_codec: FindCodec) -> None:
        self._dumps = self._freeze = dumps
        self._find_codec = find_codec
        self._blocks: list[_Block] = []
        self._texts: list[Any] | None = None  # of the items of all blocks
        self._form = ""
        self._last = b""  # the bytes of all blocks
        self._whole = 0  # how often to encode whole before it is tried in blocks
        self._patience = 1

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
                self._patience = self._whole = 2 * self._patience
        self._blocks, self._texts = [], None
        return self._dumps(value)

    def _dumps_blocks(self, value: list[Any]) -> Blob | None:
        """The list as bytes; None if most of it has changed, so that comparing did not pay."""
        known, changed = bool(self._blocks), 0
        if self._begins_with_texts(value):
            added = value[len(self._texts or ()) :]
            copies = copy_texts(added)
            self._texts = None if copies is None else [*(self._texts or ()), *copies]
        else:
            # Not at the first time: many a list is stored only once. The copies are what is
            # encoded: so nothing that another thread changes in between is in them alone.
            self._texts = copies = copy_texts(value) if known else None
            items = value if copies is None else copies
            changed = self._renew_blocks(items)
            if changed and 2 * changed >= len(self._blocks):
                return None
            added = items[sum([block.count for block in self._blocks]) :]
        self._append(added)
        count = sum([block.count for block in self._blocks])
        payload = join_list(count, [block.payload for block in self._blocks])
        old, self._last = self._last, payload
        # Only then is the old payload a prefix, so that the delta is known without a comparison.
        if changed or not known:
            return self._form, payload
        return GrownBlob(self._form, payload, old, make_append(old, payload))

    def _begins_with_texts(self, value: list[Any]) -> bool:
        """Whether the list begins with the texts of all blocks, as they were."""
        texts = self._texts
        if texts is None:
            return False
        count = len(texts)
        texts[count:] = value[count:]  # to compare lists of one length without a copy
        same = equals_texts(texts, value)
        del texts[count:]
        return same

    def _renew_blocks(self, value: list[Any]) -> int:
        """Encode the items of the blocks again that have changed; how many have."""
        at = changed = 0
        blocks: list[_Block] = []
        for block in self._blocks:
            items = value[at : at + block.count]
            at += block.count
            frozen = freeze_items(items, self._find_codec, self._freeze)
            if frozen is None or frozen != block.frozen:
                block = self._make_block(items, frozen)
                changed += 1
            blocks.append(block)
        self._blocks = blocks
        return changed

    def _append(self, added: list[Any]) -> None:
        """Encode what stands behind the last block."""
        blocks = self._blocks
        for at in range(0, len(added), BLOCK):
            items = added[at : at + BLOCK]
            frozen = freeze_items(items, self._find_codec, self._freeze)
            block = self._make_block(items, frozen)
            # A list that grows by a few items would else end as many small blocks.
            if blocks and blocks[-1].count + block.count <= BLOCK:
                blocks[-1] = blocks[-1].join(block)
            else:
                blocks.append(block)

    def _make_block(self, items: list[Any], frozen: FrozenItems | None) -> _Block:
        # First: what another thread changes in between is in the bytes, and is looked at once more
        # the next time.
        if frozen is not None:
            frozen.copy_sets()
        self._form, payload = self._dumps(items)
        return _Block(len(items), frozen, list_body(payload))


class _Block:
    """Some items in a row: frozen, and as bytes without their list."""

    __slots__ = ("count", "frozen", "payload")

    def __init__(self, count: int, frozen: FrozenItems | None, payload: bytes) -> None:
        self.count = count
        self.frozen = frozen
        self.payload = payload

    def join(self, other: _Block) -> _Block:
        """One block of both."""
        frozen = None
        if self.frozen is not None and other.frozen is not None:
            frozen = self.frozen + other.frozen
        return _Block(self.count + other.count, frozen, self.payload + other.payload)
