"""Every stored row is sealed: its bytes say whether they are what was written, and whether they stand where they were
written. A seal only closes and opens bytes; what rows there are is not its concern.
"""

from __future__ import annotations

from zlib import crc32

from .errors import DamagedError

MARK = 4


class Seal:
    """Guards against damage: a checksum over the bytes and their place.

    The place is what tells a row from all others. A row that was altered, cut, or moved does not open.
    """

    mark = MARK
    """How many last bytes of a closed row tell it from all others."""

    def close(self, payload: bytes, place: bytes) -> bytes:
        """The payload with its seal."""
        return payload + crc32(payload, crc32(place)).to_bytes(MARK, "big")

    def open(self, data: bytes, place: bytes) -> bytes:
        """The payload that was closed at this place.

        Raises:
            DamagedError: it is not; the caller adds where.
        """
        payload = data[:-MARK]
        if len(data) < MARK or crc32(payload, crc32(place)).to_bytes(MARK, "big") != data[-MARK:]:
            raise DamagedError("its checksum does not fit: the row was altered, or moved from elsewhere")
        return payload
