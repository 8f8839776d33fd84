"""Which fields of the server's records are encrypted, and how: with the keys of the threads."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from ..checkpoint.errors import DamagedError, StorageError
from ..checkpoint.integrity import Integrity
from ..checkpoint.serde.msgpack import packb
from ..store.base import Namespace
from .stores import RecordStore

SEALED: Final[Mapping[str, tuple[str, ...]]] = {
    "assistants": ("config", "context"),
    "versions": ("config", "context"),
    "threads": ("error",),
    "runs": ("metadata", "kwargs", "webhook"),
    "crons": ("payload",),
    "webhooks": ("url", "told"),
    "keys": (),
}
"""By the kind of a record, the fields that hold what users and nodes say. Searches read the other
fields, or they hold names, times and statuses only."""

SEAL: Final = "sealed"
"""The field of a stored record that holds its encrypted fields."""

CHECK: Final = "check"
"""The id of the only record of the kind "keys": it tells which keys the records have."""


class Seals:
    """Encrypts fields of records and decrypts them.

    Args:
        integrity: encrypts; without it nothing is encrypted.
    """

    def __init__(self, integrity: Integrity | None) -> None:
        self._integrity = integrity

    def close(self, space: Namespace, id: str, record: dict[str, Any]) -> dict[str, Any]:
        """Return a record as it is to be stored. The given one gets the seal as well, so that it
        can be compared later with what is stored."""
        names = SEALED.get(space[1])
        if self._integrity is None or names is None:
            return record
        hidden = json.dumps({name: record[name] for name in names if name in record})
        sealed = self._integrity.protect(hidden.encode(), packb([*space, id]))
        record[SEAL] = b64encode(sealed).decode()
        return as_stored(space, record)

    def open(self, space: Namespace, id: str, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return a stored record with all its fields.

        Raises:
            DamagedError: it was not encrypted with the server's keys, at this place.
        """
        sealed = stored.get(SEAL)
        if space[1] not in SEALED or (sealed is None and self._integrity is None):
            return dict(stored)
        try:
            if sealed is None:
                raise DamagedError("it is not encrypted, though the server has keys")
            if self._integrity is None:
                raise DamagedError("it is encrypted, and the server has no keys")
            text = self._integrity.unprotect(b64decode(sealed), packb([*space, id]))
            return {**stored, **json.loads(text)}
        except ValueError as error:
            raise DamagedError(f"the record {id!r} of the server's {space[1]}: {error}") from error

    async def check(
        self, store: RecordStore, root: str, check_threads: Callable[[], Awaitable[None]]
    ) -> None:
        """Check that the server has the keys of the records; see `Records.open`.

        Raises:
            StorageError: it does not have them.
        """
        space: Namespace = (root, "keys")
        found = await store.aget(space, CHECK)
        if found is None and self._integrity is not None:
            await check_threads()
            for kind in SEALED:  # another server may be writing sealed ones by now
                clear = {SEAL: {"$exists": False}}
                if await store.asearch((root, kind), filter=clear, limit=1):
                    way_out = "start it without keys, or on a new database"
                    raise StorageError(f"the server's records here are not encrypted: {way_out}")
            await store.aput(space, CHECK, self.close(space, CHECK, {}), False)
        elif found is not None:
            try:
                self.open(space, CHECK, found.value)
            except DamagedError as error:
                raise StorageError(
                    f"{error}: start the server with the keys of its database (--keys FILE, or "
                    "create_app(integrity=...))"
                ) from error


def as_stored(space: Namespace, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record that was read or written as it is stored."""
    hidden = SEALED.get(space[1], ()) if SEAL in record else ()
    return {name: value for name, value in record.items() if name not in hidden}
