"""Wraps ormsgpack: its options, long bytes that are unpacked without a copy, and what takes its
place where it does not load.

It does not load in sub-interpreters. The functions of nodes run there and pack nothing, so the
package can be imported, and packing raises an error.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn

__all__ = ["LARGE", "OPTIONS", "Ext", "packb", "unpack_view", "unpackb"]

LONG = 64
"""Bytes from which a view is less than a copy."""

LARGE = 64 * 1024
"""Bytes that are not even copied for a moment, to be unpacked."""

LONGEST_START = 64
"""The most bytes before large ones that are looked through for where these begin."""

_LONG_BYTES = {b"\xc5": 2, b"\xc6": 4}
"""How long bytes begin, and how many bytes of length follow."""


def _in_subinterpreter() -> bool:
    if sys.version_info >= (3, 14):
        from concurrent.interpreters import get_current, get_main

        return get_current() != get_main()
    return False


try:
    import ormsgpack
    from ormsgpack import Ext, packb, unpackb
except ImportError as _error:
    if not _in_subinterpreter():
        raise
    reason: str = str(_error)

    def refuse(*_: Any, **__: Any) -> NoReturn:
        """Say that this cannot be done here."""
        raise ImportError(f"in a sub-interpreter nothing can be stored or loaded: {reason}")

    Ext = packb = unpackb = refuse  # type: ignore[misc, assignment]  # whoever calls one hears it
    OPTIONS = 0
else:
    OPTIONS = (
        ormsgpack.OPT_PASSTHROUGH_BIG_INT
        | ormsgpack.OPT_PASSTHROUGH_DATACLASS
        | ormsgpack.OPT_PASSTHROUGH_DATETIME
        | ormsgpack.OPT_PASSTHROUGH_ENUM
        | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
        | ormsgpack.OPT_PASSTHROUGH_TUPLE
        | ormsgpack.OPT_PASSTHROUGH_UUID
    )


def unpack_view(content: bytes | memoryview) -> list[Any]:
    """A packed list; of long bytes at its end a view of where they are.

    Who reads a value that has grown reads dozens of such lists. A copy of each, held until all are
    read, is memory that the system gives and takes back for each read (benchmark P22).

    >>> [name, view] = unpack_view(packb(["name", b"x" * 1000]))
    >>> name, view.nbytes
    ('name', 1000)
    """
    if len(content) > LARGE and (split := _split_view(memoryview(content))):
        return split
    items: list[Any] = unpackb(content)
    last = items[-1]
    if type(last) is bytes and len(last) > LONG:
        items[-1] = memoryview(content)[-len(last) :]
    return items


def _split_view(content: memoryview) -> list[Any] | None:
    """`unpack_view` of a list of a few short items and large bytes; None if it is another."""
    start = bytes(content[:LONGEST_START])
    for kind, width in _LONG_BYTES.items():
        at = start.find(kind)
        while at >= 0:
            end = at + 1 + width
            if int.from_bytes(start[at + 1 : end], "big") == len(content) - end:  # all the rest
                try:
                    items: list[Any] = unpackb(bytes([start[0] - 1]) + start[1:at])
                except ValueError:
                    return None
                return [*items, content[end:]] if 0x90 < start[0] < 0xA0 else None
            at = start.find(kind, at + 1)
    return None
