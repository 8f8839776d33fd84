"""How one type becomes a simpler value and comes back. Only the record, the format's numbers and
its limits, and which strings are text.

A codec does one level: what it returns is stored by the codecs of its parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

# The numbers are on people's disks: add new ones at the end, never give one a second meaning.
OBJECT, TUPLE, MAP, BIG_INT, TEXT, BYTEARRAY, SET, FROZENSET, DEQUE = range(9)
DATETIME, DATE, TIME, TIMEDELTA, TIMEZONE, ZONE = range(9, 15)
UUID_, DECIMAL, FRACTION, COMPLEX, RANGE, PATTERN = range(15, 21)
PURE_POSIX_PATH, POSIX_PATH, PURE_WINDOWS_PATH, WINDOWS_PATH = range(21, 25)
IPV4, IPV6, IPV4_NETWORK, IPV6_NETWORK, IPV4_INTERFACE, IPV6_INTERFACE = range(25, 31)
ORDERED_DICT, DEFAULT_DICT, COUNTER, ERROR = range(31, 35)

MAX_OBJECTS = 64
"""How many stored objects (a tuple, a dataclass, ...) may lie inside each other. Lists and dicts do
not count."""

FREE_OBJECTS = 4
"""Down to here lists and dicts may nest as deep as the packer lets them: a few hundred levels."""

MAX_NESTING = 32
"""How deep lists and dicts may nest within one object further down. With these three limits no
bytes, however hostile, need more than 5 MB of stack."""

Style = Literal["value", "items", "elements", "pairs", "fields", "form"]
"""How the parts of an encoded value are called in an error's path."""


GetParts = Callable[[list[Any]], tuple[list[list[Any]], list[list[Any]]]]
"""Some instances → all first parts of them, all second ones, and so on; and the same of parts that
are sets of text."""


class Codec(NamedTuple):
    """The way of one type there and back.

    Attributes:
        key: the name under which a registered type is stored; a built-in one has a `code` instead.
        encode: value → a value of simpler types.
        decode: the reverse. Gets whatever the bytes held and must raise if it does not fit.
        style: what the parts of the encoded form are to the user: items, elements of a set, pairs,
            fields, nothing of their own (a value), or a form that the user's encoder chose.
        parts: what the bytes of instances depend on, got quicker than by `encode`; None if that is
            not known.
        error: an exception that is stored by its parts, as `error_codec` describes.
    """

    cls: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    style: Style = "value"
    code: int = OBJECT
    key: str = ""
    error: bool = False
    parts: GetParts | None = None


def key_of(cls: type) -> str:
    """The name under which a class is stored unless it is given another.

    >>> from decimal import Decimal
    >>> key_of(Decimal)
    'decimal:Decimal'
    """
    return f"{cls.__module__}:{cls.__qualname__}"


def is_text(string: str) -> bool:
    """Whether a string can be written as UTF-8, that is, has no lone surrogate."""
    if string.isascii():
        return True
    try:
        string.encode()
    except UnicodeEncodeError:
        return False
    return True
