"""What changed between two payloads of one channel: bytes in, bytes out. Knows the format's opening bytes, no types.

A value that grew, lost or replaced one run of items differs in its length, which stands in its opening bytes, and in
one run of bytes. A delta names these two. It is exact because it is made from what is stored, not from the values.
"""

from __future__ import annotations

from collections.abc import Iterable

from ormsgpack import packb, unpackb

LEAST = 128
"""Payloads shorter than this are stored whole: a delta would save nothing."""

MOST_DELTAS = 1000
"""How many deltas may build on each other before a payload is stored whole again, so that reading stays quick."""

ALLOWANCE = 32
"""Bytes that a delta counts beyond its own when deltas are weighed against the whole: its row has a price too."""


def delta_of(old: bytes, new: bytes) -> bytes | None:
    """How to make `new` from `old`, or None where that would save little.

    >>> old, new = packb(list(range(500))), packb(list(range(501)))
    >>> delta = delta_of(old, new)
    >>> len(new), len(delta)
    (1122, 16)
    >>> patched(old, [delta]) == new
    True
    """
    if len(old) < LEAST or len(new) < LEAST:
        return None
    old_opening, new_opening = _opening(old), _opening(new)
    if old[:old_opening] == new[:new_opening]:
        old_opening = new_opening = 0
    a = old[old_opening:] if old_opening else old
    if new.startswith(a, new_opening):  # it grew at its end: a copy of `new` would cost more than all the rest
        front, back, middle = len(a), 0, new[new_opening + len(a) :]
    else:
        b = new[new_opening:] if new_opening else new
        front = _common_front(a, b)
        back = _common_back(a, b, min(len(a), len(b)) - front)
        middle = b[front : len(b) - back]
    if len(middle) > len(new) // 2:
        return None
    delta: bytes = packb([old_opening, new[:new_opening], front, back, middle])
    return delta


def patched(whole: bytes, deltas: Iterable[bytes]) -> bytes:
    """A payload with deltas made on it, one after the other.

    Raises:
        ValueError: a delta does not fit.
    """
    buffer = bytearray(whole)
    for delta in deltas:
        opening, new_opening, front, back, middle = unpackb(delta)
        if opening + front + back > len(buffer):
            raise ValueError("a delta does not fit the value that it changes")
        buffer[opening + front : len(buffer) - back] = middle
        buffer[:opening] = new_opening
    return bytes(buffer)


def outweighed(size: int, count: int, whole: int) -> bool:
    """Whether deltas of so many bytes and such a number should give way to a payload of `whole` bytes."""
    return count > MOST_DELTAS or size + ALLOWANCE * count > whole


def _opening(payload: bytes) -> int:
    """How many bytes tell the kind and length of what follows: of a list, dict or text, also inside one object."""
    at, kind = 0, payload[0]
    if kind in _OBJECTS:
        at = _OBJECTS[kind]
        kind = payload[at] if at < len(payload) else 0
    if 0x80 <= kind < 0xC0:
        return at + 1
    return at + _CONTAINERS.get(kind, 0)


_OBJECTS = {0xC7: 3, 0xC8: 4, 0xC9: 6, **dict.fromkeys(range(0xD4, 0xD9), 2)}
_CONTAINERS = {0xDC: 3, 0xDD: 5, 0xDE: 3, 0xDF: 5, 0xD9: 2, 0xDA: 3, 0xDB: 5, 0xC4: 2, 0xC5: 3, 0xC6: 5}


def _common_front(a: bytes, b: bytes) -> int:
    """How many first bytes are the same; compares each byte about once, in ever smaller runs."""
    low, high = 0, min(len(a), len(b)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _common_back(a: bytes, b: bytes, most: int) -> int:
    """How many last bytes are the same, `most` at most."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        if a[len(a) - middle : len(a) - low] == b[len(b) - middle : len(b) - low]:
            low = middle
        else:
            high = middle
    return low
