"""Rows that only who has the key can read or write: a seal by authenticated encryption, in place of the checksum.

Needs the package `cryptography` (`pip install stategraph[encryption]`).
"""

from __future__ import annotations

import os
from typing import Any

from .errors import DamagedError
from .seal import Seal

NONCE = 12
TAG = 16


class Encryption(Seal):
    """Encrypts and authenticates every row with AES-GCM, bound to its thread, namespace, checkpoint and channel.

    Values, metadata and what tasks wrote are hidden. Not hidden: thread ids, namespaces, checkpoint and run ids, the
    names of channels, and how long rows are. A row that was not written with this key, at this place, does not open:
    nothing that is stored without encryption is ever taken for granted.

    Args:
        key: 16, 24 or 32 secret bytes, e.g. of `secrets.token_bytes(32)`.

    Raises:
        ImportError: `cryptography` is not installed.
        ValueError: the key has another length.

    >>> seal = Encryption(bytes(32))
    >>> seal.open(seal.close(b"state", b"here"), b"here")
    b'state'
    """

    mark = TAG

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise ImportError("Encryption needs a package: pip install stategraph[encryption]") from error
        if not isinstance(key, bytes) or len(key) not in (16, 24, 32):
            raise ValueError("Encryption: the key is 16, 24 or 32 bytes, e.g. secrets.token_bytes(32)")
        self._cipher: Any = AESGCM(key)
        self._invalid = InvalidTag

    def close(self, payload: bytes, place: bytes) -> bytes:
        """The payload encrypted, with its nonce before and its tag behind it."""
        nonce = os.urandom(NONCE)
        sealed: bytes = nonce + self._cipher.encrypt(nonce, payload, place)
        return sealed

    def open(self, data: bytes, place: bytes) -> bytes:
        """The payload that was encrypted with this key at this place.

        Raises:
            DamagedError: it was not; the caller adds where.
        """
        try:
            payload: bytes = self._cipher.decrypt(data[:NONCE], data[NONCE:], place)
        except (self._invalid, ValueError):
            raise DamagedError("it does not open with this key: altered, moved, or never encrypted with it") from None
        return payload

    def __repr__(self) -> str:
        return "Encryption(...)"
