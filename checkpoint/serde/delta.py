"""What changed between two payloads of one channel: bytes in, bytes out. Knows the format's opening
bytes, no types.

A value that grew, lost or replaced one run of items differs in its length, which stands in its
opening bytes, and in one run of bytes. A delta names these two; where the run is long because
something inside has grown, whose own length stands before it, also what stayed the same within. It
is exact because it is made from what is stored, not from the values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .msgpack import packb, unpackb

LEAST = 128
"""Payloads shorter than this are stored whole: a delta would save nothing."""

MOST_DELTAS = 1000
"""How many deltas may build on each other before a payload is stored whole again, so that reading
stays quick."""

ALLOWANCE = 32
"""Bytes that a delta counts beyond its own when deltas are weighed against the whole: its row has a
price too."""


LONG = 64
"""Bytes from which a changed run is looked through for what stayed the same within."""

SAME = 16
"""So many equal bytes are taken for the same; fewer would not pay for naming them."""

MOST_EDITS = 64
"""How many places of one payload a delta can tell apart."""

ANCHORS = (0, 6, 16, 32)
"""How far behind a difference to look for bytes that stand on the other side too: a length may lie
before them."""

NEAR = 16 * 1024
"""How far on the other side they are looked for."""


def make_delta(old: bytes, new: bytes) -> bytes | None:
    """How to make `new` from `old`, or None where that would save little.

    >>> old, new = packb(list(range(500))), packb(list(range(501)))
    >>> delta = make_delta(old, new)
    >>> len(new), len(delta)
    (1122, 16)
    >>> apply_deltas(old, [delta]) == new
    True
    """
    if len(old) < LEAST or len(new) < LEAST:
        return None
    old_opening, new_opening = _opening(old), _opening(new)
    if old[:old_opening] == new[:new_opening]:
        old_opening = new_opening = 0
    a = old[old_opening:] if old_opening else old
    if new.startswith(
        a, new_opening
    ):  # it grew at its end: a copy of `new` would cost more than all the rest
        front, back, middle = len(a), 0, new[new_opening + len(a) :]
    else:
        b = new[new_opening:] if new_opening else new
        front = _common_front(a, b)
        back = _common_back(a, b, min(len(a), len(b)) - front)
        middle = b[front : len(b) - back]
    edits: list[Any] = []
    if len(middle) > LONG:
        edits, middle = _edits(old[old_opening + front : len(old) - back], middle)
    if len(middle) + sum(map(len, edits[1::3])) > len(new) // 2:
        return None
    delta: bytes = packb([old_opening, new[:new_opening], front, back, middle, *edits])
    return delta


def apply_deltas(whole: bytes, deltas: Iterable[bytes]) -> bytes:
    """A payload with deltas made on it, one after the other.

    Raises:
        ValueError: a delta does not fit.
    """
    buffer = bytearray(whole)
    for delta in deltas:
        opening, new_opening, front, back, middle, *edits = unpackb(delta)
        at = opening + front
        for out, added, same in zip(edits[::3], edits[1::3], edits[2::3], strict=True):
            buffer[at : at + out] = added
            at += len(added) + same
        if at + back > len(buffer):
            raise ValueError("a stored delta does not match the value that it changes")
        buffer[at : len(buffer) - back] = middle
        buffer[:opening] = new_opening
    return bytes(buffer)


def _edits(a: bytes, b: bytes) -> tuple[list[Any], bytes]:
    """How to make `b` from `a`: again and again, how many bytes go out, which come in, how many
    then are the same; and what comes in instead of the rest."""
    edits: list[Any] = []
    i = j = 0
    while len(b) - j > LONG and len(edits) < 3 * MOST_EDITS:
        slip = _slip(a, i, b, j)
        if slip is None:
            break
        out, in_ = slip
        added = b[j : j + in_]
        i, j = i + out, j + in_
        same = _common_front(a, b, i, j)
        edits += (out, added, same)
        i, j = i + same, j + same
    return edits, b[j:]


def _slip(a: bytes, i: int, b: bytes, j: int) -> tuple[int, int] | None:
    """How many bytes to leave out on both sides until they are the same for a while."""
    for far in ANCHORS:
        if len(a) < i + far + SAME or len(b) < j + far + SAME:
            return None
        found = b.find(a[i + far : i + far + SAME], j, j + NEAR)
        if found >= 0:
            return far, found - j
        found = a.find(b[j + far : j + far + SAME], i, i + NEAR)
        if found >= 0:
            return found - i, far
    return None


def is_outweighed(size: int, count: int, whole: int) -> bool:
    """Whether deltas of so many bytes and such a number should give way to a payload of `whole`
    bytes."""
    return count > MOST_DELTAS or size + ALLOWANCE * count > whole


def _opening(payload: bytes) -> int:
    """How many bytes tell the kind and length of what follows: of a list, dict or text, also inside
    one object."""
    at, kind = 0, payload[0]
    if kind in _OBJECTS:
        at = _OBJECTS[kind]
        kind = payload[at] if at < len(payload) else 0
    if 0x80 <= kind < 0xC0:
        return at + 1
    return at + _CONTAINERS.get(kind, 0)


_OBJECTS = {0xC7: 3, 0xC8: 4, 0xC9: 6, **dict.fromkeys(range(0xD4, 0xD9), 2)}
_CONTAINERS = {
    0xDC: 3,
    0xDD: 5,
    0xDE: 3,
    0xDF: 5,
    0xD9: 2,
    0xDA: 3,
    0xDB: 5,
    0xC4: 2,
    0xC5: 3,
    0xC6: 5,
}


def _common_front(a: bytes, b: bytes, i: int = 0, j: int = 0) -> int:
    """How many bytes are the same from `i` and `j` on. Runs grow until one differs, and shrink to
    where it does."""
    most = min(len(a) - i, len(b) - j)
    low, size = 0, 64
    while low + size <= most and a[i + low : i + low + size] == b[j + low : j + low + size]:
        low, size = low + size, size * 2
    high = min(low + size, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if a[i + low : i + middle] == b[j + low : j + middle]:
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
