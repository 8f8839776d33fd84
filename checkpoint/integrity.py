"""What guards the stored rows: their bytes say whether they are what was written, and where they
were written.

Only bytes are protected and checked here; which rows there are is not known.
"""

from __future__ import annotations

from zlib import crc32

from .errors import DamagedError, UnknownKeyError

DIGEST_SIZE = 4
ENCRYPTED = b"\xc1"
"""The first byte of an encrypted row: a reader without the key tells it from a damaged one by that.
MessagePack does not use this byte."""


class Integrity:
    """Guards rows against damage by a checksum over the bytes and their place.

    The place is what tells a row from all others. A row that was altered, cut, or moved is refused.
    """

    digest_size = DIGEST_SIZE
    """How many last bytes of a protected row tell it from all others."""

    def protect(self, payload: bytes, place: bytes) -> bytes:
        """The payload with its checksum."""
        return payload + crc32(payload, crc32(place)).to_bytes(DIGEST_SIZE, "big")

    def unprotect(self, data: bytes, place: bytes) -> bytes:
        """The payload that was protected at this place.

        Raises:
            UnknownKeyError: it is encrypted; the caller adds where.
            DamagedError: it is not protected at this place.
        """
        payload = data[:-DIGEST_SIZE]
        checksum = crc32(payload, crc32(place))
        if len(data) < DIGEST_SIZE or checksum != int.from_bytes(data[-DIGEST_SIZE:], "big"):
            if data[:1] == ENCRYPTED:
                raise UnknownKeyError("it is encrypted, and no key was given")
            raise DamagedError(
                "its checksum does not match: the row was altered, or moved from elsewhere"
            )
        return payload
