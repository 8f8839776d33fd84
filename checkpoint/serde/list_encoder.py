"""One long list, encoded again and again as it grows: what has not changed keeps its bytes.

A node may change any item in place, so that looking at the list is not enough: each block of items
is kept frozen beside its bytes, and compared before the bytes are used again. That costs a fraction
of encoding it. The bytes are those that `Serializer.dumps` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from gc import is_tracked
from itertools import chain, compress, repeat
from operator import add, is_
from typing import Any

from .codec import Codec
from .delta import LEAST_ITEMS, Blob, GrownBlob, join_list, list_body, make_delta

BLOCK = 256
"""The most items that are compared, and encoded again, together."""

SCALARS = frozenset((str, int, float, bool, bytes, type(None)))
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
        if len(value) >= LEAST_ITEMS and type(value[0]) not in SCALARS:
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
        return GrownBlob(self._form, payload, old, make_delta(old, payload, appended=True))

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


@dataclass(slots=True, eq=False)
class _Block:
    """Some items in a row: frozen, and as bytes without their list."""

    count: int
    frozen: FrozenItems | None
    payload: bytes

    def join(self, other: _Block) -> _Block:
        """One block of both."""
        frozen = None
        if self.frozen is not None and other.frozen is not None:
            frozen = self.frozen + other.frozen
        return _Block(self.count + other.count, frozen, self.payload + other.payload)


FindCodec = Callable[[type], Codec | None]
Parts = tuple[bytes | list[Any], ...]


@dataclass(slots=True)
class FrozenItems:
    """Some items in a row, as they were: that they still are is seen quicker than by encoding them
    again, above all if they are objects.

    Both ways to see it are exact: what equals is stored as the same value of the same types. Dicts
    of nothing but text are compared with copies, in C (`copy_texts`). The parts of anything else
    are packed, for all items at once.

    Args:
        types: of each one.
        parts: class → the parts of its instances: all first ones in a row, all second ones, and so
            on. Sets are those of the items until they are copied.
    """

    types: list[type]
    parts: dict[type, Parts]

    def __add__(self, other: FrozenItems) -> FrozenItems:
        parts = dict(self.parts)
        for cls, added in other.parts.items():
            parts[cls] = tuple(map(add, parts[cls], added)) if cls in parts else added
        return FrozenItems(self.types + other.types, parts)

    def copy_sets(self) -> None:
        """Keep the items' sets as they are now."""
        for cls, parts in self.parts.items():
            copies = [part if type(part) is bytes else [*map(set, part)] for part in parts]
            self.parts[cls] = tuple(copies)


def freeze_items(
    items: Sequence[Any], find_codec: FindCodec, dumps: Callable[[Any], Blob]
) -> FrozenItems | None:
    """Some items as they are now, but for their sets; None if it cannot be told of a class what the
    bytes of its instances depend on.

    Raises:
        UnserializableError: one cannot be stored.

    >>> from stategraph.checkpoint import Serializer
    >>> message = {"role": "user", "content": ["hi"]}
    >>> frozen = freeze_items([message], lambda cls: None, Serializer().dumps)
    >>> frozen == freeze_items([message], lambda cls: None, Serializer().dumps)
    True
    >>> message["content"].append("ho")
    >>> frozen == freeze_items([message], lambda cls: None, Serializer().dumps)
    False
    """
    types = [*map(type, items)]
    parts: dict[type, Parts] = {}
    for cls in dict.fromkeys(types):
        some = [*compress(items, map(is_, types, repeat(cls)))]
        plain: list[list[Any]] = [some]
        sets: list[list[Any]] = []
        if cls in _AS_LISTS:
            plain = [[*map(list, some)]]
        elif cls not in _PLAIN:
            codec = find_codec(cls)
            if codec is None or codec.parts is None:
                return None
            plain, sets = codec.parts(some)
        parts[cls] = (*[list_body(dumps(part)[1]) for part in plain], *sets)
    return FrozenItems(types, parts)


def copy_texts(items: Sequence[Any]) -> list[dict[str, str | None]] | None:
    """Copies of dicts of nothing but text, for `equals_texts`; None if these items are others."""
    if any(map(is_tracked, items)) or not {*map(type, items)} <= {dict}:
        return None
    values = chain.from_iterable(map(dict.values, items))
    if {*map(type, values)} <= _TEXT and {*map(type, set().union(*items))} <= {str}:
        return [*map(dict.copy, items)]
    return None


def equals_texts(texts: list[dict[str, str | None]], items: list[Any]) -> bool:
    """Whether items are what they were when `copy_texts` copied them, but for the order of their
    keys."""
    # Equal is not the same: an `OrderedDict` equals a dict, a member of an enum its text. CPython
    # tracks what can be part of a circle: all such objects, and a dict that holds one. To ask for
    # that is as quick as to ask for the type of each item, where a look at each value would take
    # three times as long (benchmark P21). Where each dict is tracked, nothing is a text.
    return not any(map(is_tracked, items)) and texts == items


_PLAIN = frozenset((dict, list, str, int, float, bool, bytes, type(None)))
"""What the packer knows itself."""
_AS_LISTS = frozenset((tuple, set, frozenset))
_TEXT = frozenset((str, type(None)))
