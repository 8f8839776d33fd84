"""Namespaces: what is one, how it becomes bytes, which ones a listing shows.

Pure functions over tuples of strings. As bytes, two namespaces never collide, they sort as the
tuples do, and everything below a prefix is one range; so a database needs no pattern matching to
find whole segments.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import islice
from typing import Any

from ..checkpoint.serde.codec import is_text
from .base import InvalidNamespaceError, ListNamespacesOp, MatchCondition, Namespace

ANY = "*"
"""The segment of a `MatchCondition` that stands for any one segment."""

_END = b"\x00\x01"  # ends each segment
_NUL = b"\x00\xff"  # a NUL inside a segment


def check_namespace(namespace: object, *, empty_ok: bool = False) -> Namespace:
    """The namespace as a tuple.

    Raises:
        InvalidNamespaceError: it is not a tuple (or list), or is empty (without `empty_ok`), or has
            a segment that is empty, not a string, or not valid Unicode.
    """
    if not isinstance(namespace, (tuple, list)):
        raise InvalidNamespaceError(f"a namespace must be a tuple of strings, got {namespace!r}")
    if not namespace and not empty_ok:
        raise InvalidNamespaceError("a namespace must have at least one segment, got none")
    for segment in namespace:
        if not isinstance(segment, str) or not segment:
            raise InvalidNamespaceError(
                f"namespace {namespace!r}: each segment must be a non-empty string, got {segment!r}"
            )
        if not is_text(segment):
            raise InvalidNamespaceError(
                f"namespace {namespace!r}: {segment!r} has a lone surrogate"
            )
    return tuple(map(str, namespace))


def encode_namespace(namespace: Namespace) -> bytes:
    r"""The namespace as bytes that sort like the tuple.

    >>> encode_namespace(("a", "b")), encode_namespace(("a.b",))
    (b'a\x00\x01b\x00\x01', b'a.b\x00\x01')
    """
    return b"".join(
        segment.encode("utf-8", "surrogatepass").replace(b"\x00", _NUL) + _END
        for segment in namespace
    )


def decode_namespace(data: bytes) -> Namespace:
    """The namespace that `encode_namespace` made these bytes of."""
    segments = data.split(_END)[:-1]
    return tuple(
        segment.replace(_NUL, b"\x00").decode("utf-8", "surrogatepass") for segment in segments
    )


def below(prefix: Namespace) -> tuple[bytes, bytes]:
    """The range [low, high) of the encoded namespaces that begin with the segments of `prefix`."""
    low = encode_namespace(prefix)
    return low, low + b"\xff"  # no segment begins with 0xFF: UTF-8 has no such byte


def pick_namespaces(namespaces: Iterable[Namespace], op: ListNamespacesOp) -> list[Namespace]:
    """The page of `namespaces` that a listing shows: matched, cut to `max_depth`, each once,
    sorted."""
    conditions = op.match_conditions or ()
    found = {
        namespace[: op.max_depth]
        for namespace in namespaces
        if all(_meets(namespace, condition) for condition in conditions)
    }
    return window(sorted(found), op.offset, op.limit)


def _meets(namespace: Namespace, condition: MatchCondition) -> bool:
    size = len(condition.path)
    if size > len(namespace):
        return False
    part = (
        namespace[:size] if condition.match_type == "prefix" else namespace[len(namespace) - size :]
    )
    return all(want in (ANY, have) for want, have in zip(condition.path, part, strict=True))


def window(items: Iterable[Any], offset: int, limit: int) -> list[Any]:
    """One page, reading no further than it must."""
    return list(islice(items, min(offset, sys.maxsize), min(offset + limit, sys.maxsize)))
