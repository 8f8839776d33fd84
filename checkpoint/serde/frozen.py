"""What the items of a list were, kept so that it can be seen later whether they still are the same.
That is quicker than to encode them again, above all if they are objects.

Two ways, and both are exact: what equals is stored as the same value of the same types. Dicts of
nothing but text are compared with copies, in C. The parts of anything else are packed, for all
items at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from gc import is_tracked
from itertools import chain, compress, repeat
from operator import add, is_
from typing import Any, ClassVar

from .codec import Codec
from .delta import Blob, list_body

FindCodec = Callable[[type], Codec | None]
Parts = tuple[bytes | list[Any], ...]


class FrozenItems:
    """Some items in a row, as they were.

    Args:
        types: of each one.
        parts: class → the parts of its instances: all first ones in a row, all second ones, and so
            on. Sets are those of the items until they are copied.
    """

    __slots__ = ("parts", "types")

    def __init__(self, types: list[type], parts: dict[type, Parts]) -> None:
        self.types: list[type] = types
        self.parts: dict[type, Parts] = parts

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FrozenItems):
            return NotImplemented
        return self.types == other.types and self.parts == other.parts

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

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
