"""Rows that only who has the key can read or write: authenticated encryption, in place of the
checksum.

Needs the package `cryptography`: the extra `encryption`.
"""

from __future__ import annotations

import binascii
import os
import re
from base64 import b64decode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..extras import install_command
from .errors import DamagedError, UnknownKeyError
from .integrity import ENCRYPTED, Integrity

KEY_ID = 4
NONCE = 12
TAG = 16
LENGTHS = (16, 24, 32)

KEYS = "STATEGRAPH_KEYS"
"""The environment variable from which the command line takes keys."""

KEYS_HELP = (
    "a file with the encryption keys, in hexadecimal or base64; the first one encrypts, all of "
    f"them decrypt (default: the environment variable {KEYS}; without it, nothing is encrypted)"
)


class Encryption(Integrity):
    """Encrypts and authenticates every row with AES-GCM, bound to its place.

    The place of a row of a thread is its thread, namespace, checkpoint and channel; that of a job
    is its graph, thread and run id. Values, metadata, inputs, outcomes and what tasks wrote are
    hidden. Not hidden: names and ids, how jobs stand, how long rows are. A row that was not written
    with one of these keys, at this place, does not open: nothing that is stored without encryption
    is ever taken for granted. docs/explanation/security.md says what is not covered; stores and
    caches are never encrypted.

    To rotate, put a new key before the old ones, first where rows are read, then where they are
    written, and keep an old one for as long as there are rows of it. A key is good for some four
    billion rows.

    Args:
        keys: 16, 24 or 32 secret bytes each, e.g. of `secrets.token_bytes(32)`. The first encrypts,
            all decrypt.

    Raises:
        ImportError: `cryptography` is not installed.
        ValueError: there is no key, or one has another length.

    >>> old, new = bytes(32), bytes(range(32))
    >>> row = Encryption(old).protect(b"state", b"here")
    >>> Encryption(new, old).unprotect(row, b"here")
    b'state'
    """

    digest_size = TAG

    def __init__(self, *keys: bytes) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise ImportError(
                f"Encryption needs the package cryptography: {install_command('encryption')}"
            ) from error
        if not keys or not all(isinstance(key, bytes) and len(key) in LENGTHS for key in keys):
            raise ValueError(
                "Encryption: each key must be 16, 24 or 32 bytes, e.g. secrets.token_bytes(32)"
            )
        self._ciphers: list[tuple[bytes, Any]] = [(key_id(key), AESGCM(key)) for key in keys]
        # Earlier rows have no mark.
        self._starts = [(ENCRYPTED + id, cipher) for id, cipher in self._ciphers] + self._ciphers
        self._invalid = InvalidTag

    @classmethod
    def from_text(cls, text: str) -> Encryption:
        """Keys in hexadecimal or base64, separated by white space or commas; the first encrypts.

        Raises:
            ValueError: there is none, or one is neither; the text says which, and shows no key.

        >>> Encryption.from_text("00" * 32 + " AAECAwQFBgcICQoLDA0ODw==")
        Encryption(2 keys)
        """
        words = [word for word in re.split(r"[\s,]+", text) if word]
        return cls(*(_decode_key(number, word) for number, word in enumerate(words, 1)))

    def protect(self, payload: bytes, place: bytes) -> bytes:
        """The payload encrypted; a mark, its key's id and its nonce before, its tag behind it."""
        nonce = os.urandom(NONCE)
        id, cipher = self._ciphers[0]
        protected: bytes = ENCRYPTED + id + nonce + cipher.encrypt(nonce, payload, place)
        return protected

    def unprotect(self, data: bytes, place: bytes) -> bytes:
        """The payload that was encrypted with one of the keys at this place.

        Raises:
            DamagedError: it was not; the caller adds where.
        """
        is_mine = False
        for start, cipher in self._starts:
            if data.startswith(start):
                is_mine = True
                if (payload := self._decrypt(cipher, data[len(start) :], place)) is not None:
                    return payload
        which = "this key" if len(self._ciphers) == 1 else "any of these keys"
        raise (DamagedError if is_mine else UnknownKeyError)(
            f"it cannot be decrypted with {which}: it was altered or moved, or encrypted with "
            "another key"
        )

    def _decrypt(self, cipher: Any, data: bytes, place: bytes) -> bytes | None:
        try:
            payload: bytes = cipher.decrypt(data[:NONCE], data[NONCE:], place)
        except (self._invalid, ValueError):
            return None
        return payload

    def __repr__(self) -> str:
        if len(self._ciphers) > 1:
            return f"Encryption({len(self._ciphers)} keys)"
        return "Encryption(...)"


def key_id(key: bytes) -> bytes:
    """A few bytes that identify the key of a row. They reveal nothing about the key itself."""
    return sha256(b"stategraph key id" + key).digest()[:KEY_ID]


def encryption_of_keys(file: str | None, environment: Mapping[str, str]) -> Encryption | None:
    """What a command line encrypts with: keys of a file or, without one, of the environment; None
    if there are none.

    Raises:
        OSError: the file cannot be read.
        ValueError: there are no keys in it, or they are damaged.
        ImportError: `cryptography` is not installed.
    """
    if file is not None:
        try:
            text = Path(file).read_text()
        except OSError as error:
            raise OSError(f"the file of keys {file!r} cannot be read: {error.strerror}") from error
        return Encryption.from_text(text)
    if KEYS not in environment:
        return None
    return Encryption.from_text(environment[KEYS])


def _decode_key(number: int, word: str) -> bytes:
    """Hexadecimal if it can be: base64 of 16, 24 or 32 bytes has another length, or other
    letters."""
    if re.fullmatch(r"([0-9a-fA-F]{2}){16}|([0-9a-fA-F]{2}){24}|([0-9a-fA-F]{2}){32}", word):
        return bytes.fromhex(word)
    try:
        key = b64decode(
            word.translate({ord("-"): "+", ord("_"): "/"}) + "=" * (-len(word) % 4), validate=True
        )
    except (binascii.Error, ValueError):
        key = b""
    if len(key) not in LENGTHS:
        raise ValueError(f"key {number} must be 16, 24 or 32 bytes in hexadecimal or base64")
    return key
