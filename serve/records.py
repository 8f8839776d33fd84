"""The server's records besides the threads' checkpoints: assistants, threads, runs. They live in a
`Store`, so memory, SQLite and Postgres work the same way. `SEALED` says which fields are encrypted.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import random
from typing import Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import quote
from weakref import WeakValueDictionary

from ..checkpoint.errors import DamagedError, StorageError
from ..checkpoint.integrity import Integrity
from ..checkpoint.serde.msgpack import packb
from ..store.base import BaseStore, GetOp, Item, ItemChangedError, Namespace, PutOp, UnchangedOp
from ..store.batch import LocalStore
from ..store.filters import compile_filter
from ..store.lookups import Lookup
from ..store.paths import escape
from .authorize import seen_by_caller
from .errors import Refused
from .stores import OwnStore, RecordStore

# -- seals -----------------------------------------------------------------------------------------
# Which fields of the server's records are encrypted, and how: with the keys of the threads.

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



ROOT: Final = "stategraph_serve"
"""The first part of the namespaces in which the server stores its records."""

Kind = Literal["assistants", "versions", "threads", "runs", "unfinished", "crons", "webhooks"]
Record = dict[str, Any]
Put = tuple[Kind, str, Record | None, *tuple[str, ...]]
"""Writes a record, or deletes it if the record is None. The trailing ids name the records that
contain it."""


class Changes(NamedTuple):
    """Records to write, all or none.

    Attributes:
        seen: records as they were read. If one has changed since, nothing is written.
    """

    puts: Sequence[Put] = ()
    seen: Sequence[Put] = ()


NOTHING_ELSE: Final = Changes()
Found = TypeVar("Found")

DELETED: Final = "is_deleted"
"""Marks a thread that is being deleted: no run begins on it any more."""

TAKEN_BACK: Final = "taken_back"
"""On a thread: the run that is being taken back. Another run would begin from what it has done."""

HIDDEN: Final = ("owner", DELETED, TAKEN_BACK, SEAL)
"""Fields of records that clients do not see."""

TRIES: Final = 30
"""How often a change is tried that conflicts with changes of other servers."""

LONGEST_ID: Final = 255
FEW: Final = 50
"""How many records are held at a time while their threads' states are read: so few that they start
no garbage collection, which stops the event loop for long if there is much in memory."""
ALL: Final = 1_000_000
"""A limit that no search reaches."""


def now() -> str:
    """Return the current time in the format of the records."""
    return datetime.now(UTC).isoformat()


def pointer_to(run: Record, stopped: str | None = None) -> Record:
    """Return the pointer that is stored in a run's thread until the run has ended.

    Args:
        stopped: how the run was stopped, if it was.
    """
    names = ("run_id", "thread_id", "graph_id", "created_at", "owner")
    begins_at = datetime.fromisoformat(run["created_at"])
    begins_at += timedelta(seconds=run["kwargs"].get("after_seconds") or 0)
    told = {"begins_at": begins_at.isoformat(), "stopped": stopped}
    return {**{name: run[name] for name in names}, **told}


def seconds_until(moment: str) -> float:
    """Return the seconds until a moment; negative if it has passed."""
    return (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds()


class Records:
    """Records of several kinds, by id; those of some kinds belong to another record.

    A record is a JSON object. Its `owner` is a user's id, "" where there are no users, or None if
    everybody may read it. Users find their own records and those of everybody.

    Args:
        integrity: encrypts what users and nodes say (`seals`); without it all is stored in clear.

    Attributes:
        deliveries: set when this process has stored a webhook to be sent.
    """

    def __init__(self, store: BaseStore, integrity: Integrity | None = None) -> None:
        self._store = store if isinstance(store, LocalStore) else OwnStore(store)
        self._seals = Seals(integrity)
        self.deliveries: asyncio.Event = asyncio.Event()
        self._locks: WeakValueDictionary[tuple[Kind, str], asyncio.Lock] = WeakValueDictionary()

    async def open(self, check_threads: Callable[[], Awaitable[None]]) -> None:
        """Check that the records can be read with the server's keys, and let the database index the
        threads.

        Args:
            check_threads: called at the first start with keys; it raises if the threads have
                others.

        Raises:
            StorageError: they cannot.
        """
        await self._seals.check(self._store, ROOT, check_threads)
        await asyncio.to_thread(self._store.index_fields, _space("threads"))

    def lock(self, kind: Kind, id: str) -> asyncio.Lock:
        """Return the lock to hold from reading a record until writing it, which keeps out other
        requests and runs of this process. It does not keep out other servers: see `change`."""
        return self._locks.setdefault((kind, id), asyncio.Lock())

    async def change(self, kind: Kind, id: str, work: Callable[[], Awaitable[Found]]) -> Found:
        """Hold a record's lock and do work that reads records and writes them with what it has
        `seen`; do it again if another server has written the record, or the pointer to a run,
        meanwhile.

        Raises:
            Refused: it conflicted with other servers at every attempt.
        """
        async with self.lock(kind, id):
            return await self.repeat(kind, work)

    async def repeat(self, kind: Kind, work: Callable[[], Awaitable[Found]]) -> Found:
        """Do the same as `change`, for a caller that holds the lock."""
        for attempt in range(TRIES):
            try:
                return await work()
            except ItemChangedError as changed:
                if changed.namespace[1] not in (kind, "unfinished"):
                    raise
            # A random pause, so that servers in conflict do not retry in lockstep.
            await asyncio.sleep(random() * min(0.001 * 2**attempt, 0.1))
        raise Refused(409, f"one of the {kind} is being changed by others: try again")

    async def get(self, kind: Kind, id: str, *within: str, owner: str | None = None) -> Record:
        """Return a record.

        Raises:
            Refused: there is none, or it is another user's.
        """
        found = await self.find(kind, id, *within)
        if found is None or not may_see(found, owner):
            raise Refused(404, f"there is no {kind.removesuffix('s')} {id!r}")
        return found

    async def find(self, kind: Kind, id: str, *within: str) -> Record | None:
        """Return a record; None if there is none."""
        item = await self._store.aget(_space(kind, *within), id)
        return None if item is None else self._read(item)

    async def find_all(self, *places: tuple[Kind, str, *tuple[str, ...]]) -> list[Record | None]:
        """Return several records, each given by its kind, its id and the ids of the records that
        contain it."""
        ops = [GetOp(_space(kind, *within), id) for kind, id, *within in places]
        found = await self._store.abatch(ops)
        return [self._read(item) if isinstance(item, Item) else None for item in found]

    def _read(self, item: Item) -> Record:
        return self._seals.open(item.namespace, item.key, item.value)

    async def put(self, *records: Put, seen: Sequence[Put] = ()) -> None:
        """Write records, or delete those that are None; all or none.

        Args:
            seen: records as they were read, if the write depends on them.

        Raises:
            ItemChangedError: one of those has changed, and nothing was written. With a store of the
                user's own this check is not atomic with the write, so only one server may use it.
            Refused: the id of a record cannot be stored.
        """
        for _, id, record, *_ in records:
            if record is not None and not (0 < len(id) <= LONGEST_ID and id.isprintable()):
                shown = id if len(id) <= LONGEST_ID else f"{id[:40]}..."
                why = f"must have 1 to {LONGEST_ID} printable characters, got {shown!r}"
                raise Refused(422, f"an id {why}")
        checks = []
        for kind, id, each, *more in seen:
            space = _space(kind, *more)
            checks.append(UnchangedOp(space, id, each and as_stored(space, each)))
        puts = []
        for kind, id, record, *within in records:
            space = _space(kind, *within)
            puts.append(PutOp(space, id, record and self._seals.close(space, id, record), False))
        await self._store.abatch([*checks, *puts])
        if any(kind == "webhooks" and record is not None for kind, _, record, *_ in records):
            self.deliveries.set()

    async def replace(self, kind: Kind, id: str, old: Record | None, new: Record) -> None:
        """Write a record in the place of one as it was read, or of none; see `put`."""
        await self.put((kind, id, new), seen=[(kind, id, old)])

    async def search(
        self,
        kind: Kind,
        *within: str,
        filter: Mapping[str, Any] | None = None,
        owner: str | None = None,
        limit: int = ALL,
        offset: int = 0,
        sort_by: str | Sequence[str] | None = None,
        sort_order: str | None = None,
        test: Callable[[Record], bool] | None = None,
        text: str = "",
    ) -> list[Record]:
        """Return the records that match a filter; by default the most recently written come first.

        Args:
            filter: conditions by field, in the store's form; `containing` makes one from a
                client's.
            sort_by: one field or several; `created_at` if only an order is given.
            test: a further condition.
            text: in lower case; a thread without it in its id, metadata and error does not pass the
                test.
        """
        order = _order(sort_by, sort_order)
        space, wanted = _space(kind, *within), _seen_by(owner, filter)
        if not order and test is None and kind != "threads":
            found = await self._store.asearch(space, filter=wanted, limit=limit, offset=offset)
            return [self._read(item) for item in found]

        def passes(id: str, stored: Mapping[str, Any]) -> bool:
            return test is None or test(self._seals.open(space, id, stored))

        lookup = Lookup(
            space,
            wanted,
            order,
            sort_order == "asc",
            limit,
            offset,
            None if test is None else passes,
            text,
        )
        return [self._read(item) for item in await self._store.alook_up(lookup)]

    async def count(
        self, kind: Kind, filter: Mapping[str, Any] | None = None, owner: str | None = None
    ) -> int:
        """Return how many records of a kind match a filter."""
        return await self._store.acount(Lookup(_space(kind), _seen_by(owner, filter)))

    async def pages(
        self,
        kind: Kind,
        *,
        filter: Mapping[str, Any] | None = None,
        owner: str | None = None,
        sort_by: str | Sequence[str] | None = None,
        sort_order: str | None = None,
    ) -> AsyncIterator[list[Record]]:
        """Yield what `search` finds, page by page. Each record is as it is when its page is read,
        and left out if it does not match any more."""
        order = _order(sort_by, sort_order)
        lookup = Lookup(_space(kind), _seen_by(owner, filter), order, sort_order == "asc")
        ids = await self._store.alook_up_keys(lookup)
        still = compile_filter(lookup.filter)
        for begin in range(0, len(ids), FEW):
            page = await self.find_all(*((kind, id) for id in ids[begin : begin + FEW]))
            yield [record for record in page if record is not None and still(record)]

    async def unfinished(self, *thread_id: str) -> list[Record]:
        """Return the pointers to runs that have not ended, oldest first: all of them, or those of a
        thread."""
        return await self.search("unfinished", *thread_id, sort_by="created_at", sort_order="asc")

    async def delete(self, kind: Kind, id: str, within: Kind | None = None) -> None:
        """Delete a record, and all records of a kind that belong to it."""
        async with self.lock(kind, id):
            await self.put((kind, id, None))
            if within is not None:
                await self.delete_within(within, id)

    async def delete_within(self, kind: Kind, *within: str) -> None:
        """Delete all records of a kind that belong to another record."""
        found = await self._store.asearch(_space(kind, *within), limit=ALL)
        await self._store.abatch([PutOp(item.namespace, item.key, None) for item in found])


def _seen_by(owner: str | None, filter: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a filter that only lets a user's own records and those of everybody pass."""
    if owner is None:
        return {**(filter or {})}
    return {**(filter or {}), **seen_by_caller(), "owner": {"$in": [owner, None]}}


def _order(sort_by: str | Sequence[str] | None, sort_order: str | None) -> tuple[str, ...]:
    if sort_by is None and sort_order is None:
        return ()
    return (sort_by or "created_at",) if isinstance(sort_by, str | None) else tuple(sort_by)


def may_see(record: Record, owner: str | None) -> bool:
    """Return whether a user may see a record; `owner` is None where there are no users."""
    if owner is None or record.get("owner") is None:
        return True
    return bool(record["owner"] == owner and compile_filter(seen_by_caller())(record))


def select(record: Record, fields: Sequence[str] | None) -> Record:
    """Return the part of a record that clients see, or only the fields that they ask for."""
    shown = {key: value for key, value in record.items() if key not in HIDDEN}
    return shown if not fields else {key: shown[key] for key in fields if key in shown}


def _space(kind: str, *within: str) -> tuple[str, ...]:
    """Return the namespace of a kind. Dots are quoted, since a part of a namespace must not hold
    one."""
    if not within:
        return (ROOT, kind)
    return (ROOT, kind, *[quote(each, safe="").replace(".", "%2E") for each in within])


def containing(value: Any) -> Any:
    """Return the condition that a value matches what a client searches for, where no key acts as an
    operator of the store. An object matches objects that have more keys."""
    if not isinstance(value, Mapping):
        return value
    if any(key.startswith("$") for key in value):
        return {"$eq": value}
    return {escape(key): containing(each) for key, each in value.items()}
