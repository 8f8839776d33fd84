"""What changed between two payloads of one channel: bytes in, bytes out. Knows the format's opening
bytes, no types.

A value that grew, lost or replaced one run of items differs in its length, which stands in its
opening bytes, and in one run of bytes. A delta names these two; where the run is long because
something inside has grown, whose own length stands before it, also what stayed the same within. It
is exact because it is made from what is stored, not from the values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from .msgpack import packb, unpack_view, unpackb

Blob = tuple[str, bytes]
"""(format, payload)"""

LEAST = 128
"""Payloads shorter than this are stored whole: a delta would save nothing."""

LEAST_ITEMS = 64
"""Shorter lists are encoded whole, each time."""

MOST_DELTAS = 1000
"""How many deltas may build on each other before a payload is stored whole again, so that reading
stays quick."""

ALLOWANCE = 32
"""Bytes that a delta counts beyond its own when deltas are weighed against the whole: its row has a
price too."""

RUN = 34
"""This many consecutive deltas of about the same size are combined into one, which belongs to a
larger size and is combined again with others. So reading a value takes a few times this many
deltas, however often it has changed."""

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


def make_delta(old: bytes, new: bytes, *, appended: bool = False) -> bytes | None:
    """How to make `new` from `old`, or None where that would save little.

    Args:
        appended: both are lists, and the second is known to begin with the items of the first:
            their bytes are not compared.

    >>> old, new = packb(list(range(500))), packb(list(range(501)))
    >>> delta = make_delta(old, new)
    >>> len(new), len(delta)
    (1122, 16)
    >>> apply_deltas(old, [delta]) == new
    True
    """
    if len(old) < LEAST or len(new) < LEAST:
        return None
    old_opening, new_opening = opening_length(old), opening_length(new)
    # The length has not changed, so the opening is part of what is the same.
    if old[:old_opening] == new[:new_opening]:
        old_opening = new_opening = 0
    front, back = len(old) - old_opening, 0
    # It grew at its end: copies of the two would cost more than all the rest.
    if appended or new.startswith(memoryview(old)[old_opening:], new_opening):
        middle = new[new_opening + front :]
    else:
        a = old[old_opening:] if old_opening else old
        b = new[new_opening:] if new_opening else new
        front = _common_front(a, b)
        back = _common_back(a, b, min(len(a), len(b)) - front)
        middle = b[front : len(b) - back]
    edits: list[Any] = []
    if len(middle) > LONG:
        edits, middle = _edits(old[old_opening + front : len(old) - back], middle)
    # The reader pays for each delta; one that saves less than half is not worth it.
    if len(middle) + sum(map(len, edits[1::3])) > len(new) // 2:
        return None
    delta: bytes = packb([old_opening, new[:new_opening], front, back, middle, *edits])
    return delta


class GrownBlob(tuple[str, bytes]):
    """An encoded list that is another one with items added at its end.

    Attributes:
        base: the payload of the other one.
        delta: what `make_delta` makes of the two.
    """

    base: bytes
    delta: bytes | None

    def __new__(cls, form: str, payload: bytes, base: bytes, delta: bytes | None) -> GrownBlob:
        """A blob that knows where it comes from."""
        blob = super().__new__(cls, (form, payload))
        blob.base, blob.delta = base, delta
        return blob


def extends(old: bytes, new: Blob, start: int, new_start: int) -> bool:
    """Return whether a new payload has all bytes of an old one, from these places on, and more."""
    if isinstance(new, GrownBlob) and new.base is old:
        return True
    return new[1].startswith(memoryview(old)[start:], new_start)


def find_delta(old: Blob, new: Blob) -> bytes | None:
    """`make_delta` of two payloads, which are not read if the delta is known."""
    if isinstance(new, GrownBlob) and new.base is old[1]:
        return new.delta
    return make_delta(old[1], new[1])


def list_body(payload: bytes) -> bytes:
    """The bytes of a list's items.

    Raises:
        ValueError: this is not a list.
    """
    kind = payload[0]
    if not 0x90 <= kind < 0xA0 and kind not in (0xDC, 0xDD):
        raise ValueError("this payload is no list")
    return payload[opening_length(payload) :]


def join_list(count: int, bodies: Iterable[bytes]) -> bytes:
    """A list of so many items by their bytes.

    >>> join_list(3, [b"\x01\x02", b"\x03"]) == packb([1, 2, 3])
    True
    """
    if count < 16:
        opening = bytes((0x90 + count,))
    elif count < 1 << 16:
        opening = b"\xdc" + count.to_bytes(2)
    else:
        opening = b"\xdd" + count.to_bytes(4)
    return b"".join((opening, *bodies))


def apply_deltas(whole: bytes, deltas: Iterable[bytes | memoryview]) -> bytes:
    """Return a payload with deltas made on it, one after the other: a bytearray, so that those that
    add to its end need no copy of it.

    Raises:
        ValueError: a delta does not fit.
    """
    buffer = bytearray(whole)
    for delta in deltas:
        opening, new_opening, front, back, middle, *edits = unpack_view(delta)
        at = opening + front
        for out, added, same in zip(edits[::3], edits[1::3], edits[2::3], strict=True):
            buffer[at : at + out] = added
            at += len(added) + same
        if at + back > len(buffer):
            raise ValueError("a stored delta does not match the value that it changes")
        buffer[at : len(buffer) - back] = middle
        if opening or new_opening:
            buffer[:opening] = new_opening
    made: Any = buffer
    return made  # type: ignore[no-any-return]


OPENING = 16
"""How many bytes a shared buffer leaves free for the opening of a value."""


class SharedBlob(NamedTuple):
    """A payload that longer ones extend, or that extends shorter ones: the first bytes of a buffer
    that they share, behind an opening of its own. One that ends where the buffer does is
    extended in it."""

    form: str
    opening: bytes
    buffer: bytearray
    end: int

    @classmethod
    def share(cls, blob: Blob) -> SharedBlob:
        """Put a payload into a buffer."""
        form, payload = blob
        start = opening_length(payload)
        buffer = bytearray(OPENING)
        buffer += memoryview(payload)[start:]
        return cls(form, bytes(payload[:start]), buffer, len(buffer))

    def read(self) -> Blob:
        """Return it as a bytearray, which saves a copy (benchmark P40)."""
        # A slice, not a view: a buffer that is viewed cannot grow.
        whole: Any = self.buffer[OPENING - len(self.opening) : self.end]
        whole[: len(self.opening)] = self.opening
        return self.form, whole

    def extend(self, opening: bytes, added: bytes | memoryview) -> SharedBlob:
        """Return the payload with another opening and with bytes added at its end."""
        buffer, end = self.buffer, self.end + len(added)
        there: Any = buffer[self.end : end]
        if there != added:  # else a longer one has these bytes already
            buffer = buffer if self.end == len(buffer) else buffer[: self.end]
            buffer += added
        return SharedBlob(self.form, opening, buffer, end)

    def change(self, deltas: Iterable[bytes | memoryview]) -> SharedBlob:
        """Return what deltas make of it, one after the other.

        Raises:
            ValueError: a delta does not fit.
        """
        shared = self
        for packed in deltas:
            _, new_opening, front, _, middle, *_ = delta = unpack_view(packed)
            if only_adds(delta, len(shared.opening)) and front == shared.end - OPENING:
                shared = shared.extend(new_opening, middle)
            else:
                form, payload = shared.read()
                shared = self.share((form, apply_deltas(payload, [packed])))
        return shared


def only_adds(delta: Sequence[Any], opening: int) -> bool:
    """Return whether an unpacked delta only adds to the end of a payload, as long as its opening
    has so many bytes before and after: in place of the opening, a composed delta may have more."""
    replaced, new_opening, _, back, _, *edits = delta
    return not back and not edits and replaced == len(new_opening) == opening


def length_after(delta: Sequence[Any]) -> int:
    """The length of the payload that an unpacked delta makes."""
    _, new_opening, front, back, middle, *edits = delta
    added, same = sum(map(len, edits[1::3])), sum(edits[2::3])
    length: int = len(new_opening) + front + added + same + len(middle) + back
    return length


def compose_deltas(length: int, deltas: Sequence[bytes | memoryview]) -> bytes:
    """One delta that does what several do, one after the other. Bytes that a later one takes away
    again are not in it.

    Args:
        length: of the payload that the first one changes.

    >>> a, b, c = (packb(list(range(size))) for size in (500, 501, 502))
    >>> delta = compose_deltas(len(a), [make_delta(a, b), make_delta(b, c)])
    >>> apply_deltas(a, [delta]) == c
    True
    """
    pieces: list[_Piece] = [(0, length)]
    for delta in deltas:
        pieces = _change_pieces(pieces, delta)
    return _pack_pieces(pieces, length)


def join_run(length: int, deltas: Sequence[bytes | memoryview]) -> tuple[int, bytes] | None:
    """Return the place of the last run of deltas of similar size, and one delta in its stead; None
    if there are fewer than `RUN` of them.

    Args:
        length: of the payload that the first delta changes.
    """
    size = ALLOWANCE
    # Sizes are sorted into classes, each `RUN` times as large as the one before.
    while size <= len(deltas[-1]) + ALLOWANCE:
        size *= RUN
    start = len(deltas) - 1
    while start and len(deltas[start - 1]) + ALLOWANCE < size:
        start -= 1
    if len(deltas) - start < RUN:
        return None
    if start:
        length = length_after(unpackb(deltas[start - 1]))
    return start, compose_deltas(length, deltas[start:])


_Piece = bytes | tuple[int, int]
"""A part of a payload: its bytes, or where they stand in an older one: from, to."""


def _change_pieces(pieces: list[_Piece], delta: bytes | memoryview) -> list[_Piece]:
    """The pieces of a payload → those of the one that a delta makes of it."""
    opening, new_opening, front, back, middle, *edits = unpackb(delta)
    length = sum(map(_piece_length, pieces))
    changed: list[_Piece] = []
    _add_piece(changed, new_opening)
    left = deque(pieces)
    _take(left, opening, [])
    _take(left, front, changed)
    at = opening + front
    for out, added, same in zip(edits[::3], edits[1::3], edits[2::3], strict=True):
        _take(left, out, [])
        _add_piece(changed, added)
        _take(left, same, changed)
        at += out + same
    _add_piece(changed, middle)
    _take(left, length - back - at, [])
    _take(left, back, changed)
    return changed


def _take(pieces: deque[_Piece], count: int, taken: list[_Piece]) -> None:
    """Move the pieces of the next so many bytes to `taken`."""
    while count > 0:
        piece = pieces.popleft()
        size = _piece_length(piece)
        if size > count:
            if isinstance(piece, bytes):
                pieces.appendleft(piece[count:])
                piece = piece[:count]
            else:
                start, end = piece
                pieces.appendleft((start + count, end))
                piece = (start, start + count)
        _add_piece(taken, piece)
        count -= size


def _piece_length(piece: _Piece) -> int:
    return len(piece) if isinstance(piece, bytes) else piece[1] - piece[0]


def _add_piece(pieces: list[_Piece], piece: _Piece) -> None:
    """Add a piece at the end; one with the last if they belong together."""
    last = pieces[-1] if pieces else None
    if not _piece_length(piece):
        return
    if isinstance(piece, bytes):
        if isinstance(last, bytes):
            pieces[-1] = last + piece
            return
    elif isinstance(last, tuple) and last[1] == piece[0]:
        pieces[-1] = (last[0], piece[1])
        return
    pieces.append(piece)


def _pack_pieces(pieces: list[_Piece], length: int) -> bytes:
    """The delta that makes a payload of these pieces from one of this length."""
    added, same = b"", []  # (bytes before it, from, to) of each piece that stays
    for piece in pieces:
        if isinstance(piece, bytes):
            added = piece
        else:
            same.append((added, *piece))
            added = b""
    # Nothing of the old payload is left.
    if not same:
        return packb([length, added, 0, 0, b""])
    # The format names the first run of equal bytes by front, the last by back, and the rest as
    # edits.
    new_opening, opening, end = same.pop(0)
    front, back = end - opening, 0
    if not added and same and same[-1][2] == length:
        added, start, _ = same.pop()
        back = length - start
    edits: list[Any] = []
    for before, start, stop in same:
        edits += (start - end, before, stop - start)
        end = stop
    delta: bytes = packb([opening, new_opening, front, back, added, *edits])
    return delta


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


def opening_length(payload: bytes) -> int:
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
    0xDC: 3, 0xDD: 5, 0xDE: 3, 0xDF: 5, 0xD9: 2, 0xDA: 3, 0xDB: 5, 0xC4: 2, 0xC5: 3, 0xC6: 5,
}  # fmt: skip


def _common_front(a: bytes, b: bytes, i: int = 0, j: int = 0) -> int:
    """How many bytes are the same from `i` and `j` on. Runs grow until one differs, and shrink to
    where it does."""
    most = min(len(a) - i, len(b) - j)
    low, size = 0, 64
    while low + size <= most and a[i + low : i + low + size] == b[j + low : j + low + size]:
        low, size = low + size, size * 2
    # Halved: slices are compared in C, and a loop over bytes would be far slower.
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
