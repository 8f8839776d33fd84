"""What a value was, kept so that it can be seen later whether it still is the same: one comparison
in C for most values, which is quicker than to encode them again. Knows no bytes.

A frozen value equals another only if both are stored as the same value of the same types: `1` is
not `True`, a dict no `OrderedDict`. It says "changed" where it cannot tell. Only the order of the
keys of a dict is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from .codec import Codec

FindCodec = Callable[[type], Codec | None]


def freeze(value: Any, find_codec: FindCodec) -> Any:
    """Something that equals a value of the same type for as long as that is stored the same.

    It must stand on the left: `frozen == value`. What is inside may be changed in place later.

    >>> message = {"role": "user", "content": ["hi"]}
    >>> frozen = freeze(message, lambda cls: None)
    >>> frozen == {"role": "user", "content": ["hi"]}
    True
    >>> message["content"].append("ho")
    >>> frozen == message
    False
    """
    cls = type(value)
    if cls is dict:
        return _freeze_dict(value, find_codec)
    if cls is str or value is None:
        return value
    # By identity: 1 == True and 0.0 == -0.0, which are stored as different values.
    if cls in _ATOMS:
        return _Same(value)
    if cls is list or cls is tuple:
        return cls([_freeze_typed(part, find_codec) for part in value])
    if cls is set:
        return value.copy() if {*map(type, value)} <= {str} else _Changed()
    codec = find_codec(cls)
    if codec is None or codec.parts is None:
        return _Changed()
    parts = codec.parts(value)
    return _Object(cls, codec.parts, tuple([freeze(part, find_codec) for part in parts]))


def freeze_items(items: list[Any], find_codec: FindCodec) -> list[Any]:
    """The items of a list, frozen. Many dicts of nothing but text are copied in C."""
    if {*map(type, items)} == {dict}:
        values = chain.from_iterable(map(dict.values, items))
        if {*map(type, values)} <= _TEXT and {*map(type, set().union(*items))} <= _TEXT:
            return [*map(dict.copy, items)]
    find_codec = _KnownCodecs(find_codec).__getitem__
    return [freeze(item, find_codec) for item in items]


class _KnownCodecs(dict[type, Codec | None]):
    """Codecs that were asked for once: finding one costs more than freezing a message."""

    def __init__(self, find_codec: FindCodec) -> None:
        self._find_codec = find_codec

    def __missing__(self, cls: type) -> Codec | None:
        found = self[cls] = self._find_codec(cls)
        return found


def _freeze_dict(value: dict[Any, Any], find_codec: FindCodec) -> Any:
    # 1, 1.0 and True are one key: equal dicts could be stored as different ones.
    if not {*map(type, value)} <= {str}:
        return _Changed()
    return {
        key: part if part is None or type(part) is str else _freeze_typed(part, find_codec)
        for key, part in value.items()
    }


def _freeze_typed(value: Any, find_codec: FindCodec) -> Any:
    """As `freeze`, for where another type may stand later."""
    cls = type(value)
    if (cls is dict or cls is list) and not value:
        return _EMPTY_DICT if cls is dict else _EMPTY_LIST
    frozen = freeze(value, find_codec)
    return _Typed(cls, frozen) if cls in _CONTAINERS else frozen


_TEXT = frozenset((str, type(None)))
_CONTAINERS = frozenset((dict, list, tuple, set))
_ATOMS = frozenset((bool, int, float, bytes))


class _Changed:
    """Equals nothing: it cannot be told whether the value is still the same."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


class _Same:
    """Equals the very same object."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return other is self._value

    __hash__ = None  # type: ignore[assignment]


class _Typed:
    """Equals what is of exactly this type and equals the frozen value."""

    __slots__ = ("_cls", "_frozen")

    def __init__(self, cls: type, frozen: Any) -> None:
        self._cls = cls
        self._frozen = frozen

    def __eq__(self, other: object) -> bool:
        return type(other) is self._cls and bool(self._frozen == other)

    __hash__ = None  # type: ignore[assignment]


class _EmptyDict:
    """Equals an empty dict. Messages of LangChain hold several, and empty lists."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return type(other) is dict and not other

    __hash__ = None  # type: ignore[assignment]


class _EmptyList:
    """Equals an empty list."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return type(other) is list and not other

    __hash__ = None  # type: ignore[assignment]


_EMPTY_DICT, _EMPTY_LIST = _EmptyDict(), _EmptyList()


class _Object:
    """Equals an object of this class whose parts equal the frozen ones."""

    __slots__ = ("_cls", "_frozen", "_parts")

    def __init__(self, cls: type, parts: Callable[[Any], Any], frozen: Any) -> None:
        self._cls = cls
        self._parts = parts
        self._frozen = frozen

    def __eq__(self, other: object) -> bool:
        return type(other) is self._cls and bool(self._frozen == self._parts(other))

    __hash__ = None  # type: ignore[assignment]
