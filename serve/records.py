"""The server's records beside the threads' checkpoints: assistants, threads, runs. They are kept in
a `Store`, so memory, SQLite and Postgres work the same way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import random
from typing import Any, Final, Literal, NamedTuple, TypeVar
from urllib.parse import quote
from weakref import WeakValueDictionary

from ..store.base import BaseStore, GetOp, Item, ItemChangedError, Op, PutOp, UnchangedOp
from ..store.batch import LocalStore
from ..store.filters import compile_filter
from ..store.paths import escape
from .errors import Refused

ROOT: Final = "stategraph_serve"
"""The first part of the namespaces in which the server keeps its records."""

Kind = Literal["assistants", "versions", "threads", "runs", "unfinished", "crons", "webhooks"]
Record = dict[str, Any]
Put = tuple[Kind, str, Record | None, *tuple[str, ...]]
"""A record to write, or None to delete it, and the records within which it lies."""


class Changes(NamedTuple):
    """Records to write, all or none.

    Attributes:
        seen: records as they were read. If one is not so any more, nothing is written.
    """

    puts: Sequence[Put] = ()
    seen: Sequence[Put] = ()


NOTHING_ELSE: Final = Changes()
Found = TypeVar("Found")

DELETED: Final = "is_deleted"
"""A thread that has it is being deleted: nothing begins on it any more."""

TRIES: Final = 30
"""How often a change is tried that meets those of other servers."""

LONGEST_ID: Final = 255
PAGE: Final = 5000
"""So many records are read at a time where all have to be looked at."""
ALL: Final = 1_000_000
"""A limit that lets all records through."""


def now() -> str:
    """This moment, as records say it."""
    return datetime.now(UTC).isoformat()


def pointer_to(run: Record, stopped: str | None = None) -> Record:
    """What is kept of a run until it has ended, within its thread.

    Args:
        stopped: how it was told to end.
    """
    names = ("run_id", "thread_id", "graph_id", "created_at", "owner")
    begins_at = datetime.fromisoformat(run["created_at"])
    begins_at += timedelta(seconds=run["kwargs"].get("after_seconds") or 0)
    told = {"begins_at": begins_at.isoformat(), "stopped": stopped}
    return {**{name: run[name] for name in names}, **told}


def seconds_until(moment: str) -> float:
    """How long it is until a moment; below 0 if it is over."""
    return (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds()


class Records:
    """Records of a kind by their ids, those of some kinds within another record.

    A record is a JSON object. Its `owner` is a user's id, or "" where there are no users; those
    that everybody may read have None. A user finds the own ones and those of everybody.

    Attributes:
        deliveries: set whenever this process has written a webhook that is to be sent.
    """

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self.deliveries: asyncio.Event = asyncio.Event()
        self._locks: WeakValueDictionary[tuple[Kind, str], asyncio.Lock] = WeakValueDictionary()

    def lock(self, kind: Kind, id: str) -> asyncio.Lock:
        """What to hold from reading a record until it is written, so that requests and runs of this
        process do not come between. It does not keep out other servers: see `change`."""
        return self._locks.setdefault((kind, id), asyncio.Lock())

    async def change(self, kind: Kind, id: str, work: Callable[[], Awaitable[Found]]) -> Found:
        """Do what reads a record and writes it with what it has `seen`, holding its lock; again
        from the beginning if another server has written it, or the pointer to a run, meanwhile.

        Raises:
            Refused: others change it all the time.
        """
        async with self.lock(kind, id):
            return await self.repeat(kind, work)

    async def repeat(self, kind: Kind, work: Callable[[], Awaitable[Found]]) -> Found:
        """`change` for one who holds the lock."""
        for attempt in range(TRIES):
            try:
                return await work()
            except ItemChangedError as changed:
                if changed.namespace[1] not in (kind, "unfinished"):
                    raise
            # Servers that meet again and again must not keep step with one another.
            await asyncio.sleep(random() * min(0.001 * 2**attempt, 0.1))
        raise Refused(409, f"one of the {kind} is being changed by others: try again")

    async def get(self, kind: Kind, id: str, *within: str, owner: str | None = None) -> Record:
        """A record.

        Raises:
            Refused: there is none, or it is another user's.
        """
        found = await self.find(kind, id, *within)
        if found is None or not may_see(found, owner):
            raise Refused(404, f"there is no {kind.removesuffix('s')} {id!r}")
        return found

    async def find(self, kind: Kind, id: str, *within: str) -> Record | None:
        """A record; None if there is none."""
        item = await self._store.aget(_space(kind, *within), id)
        return None if item is None else dict(item.value)

    async def find_all(self, *places: tuple[Kind, str, *tuple[str, ...]]) -> list[Record | None]:
        """Several records, each by its kind, its id and the records within which it lies."""
        ops = [GetOp(_space(kind, *within), id) for kind, id, *within in places]
        found = await self._store.abatch(ops)
        return [dict(item.value) if isinstance(item, Item) else None for item in found]

    async def put(self, *records: Put, seen: Sequence[Put] = ()) -> None:
        """Write records, or delete those that are None; all or none.

        Args:
            seen: records as they were read, for a write that follows from them.

        Raises:
            ItemChangedError: one of those is not so any more, and nothing was written. A store of
                a user's own is asked before the write: such a server must be the only one.
            Refused: an id of one, or something in it, cannot be stored.
        """
        for _, id, record, *_ in records:
            if record is not None and not (0 < len(id) <= LONGEST_ID and id.isprintable()):
                shown = id if len(id) <= LONGEST_ID else f"{id[:40]}..."
                why = f"must have 1 to {LONGEST_ID} printable characters, got {shown!r}"
                raise Refused(422, f"an id {why}")
        checks: list[Op] = []
        if isinstance(self._store, LocalStore):
            checks = [UnchangedOp(_space(kind, *more), id, each) for kind, id, each, *more in seen]
        else:
            for kind, id, each, *more in seen:
                if await self.find(kind, id, *more) != each:
                    raise ItemChangedError(_space(kind, *more), id)
        puts = [PutOp(_space(kind, *within), id, record) for kind, id, record, *within in records]
        await self._store.abatch([*checks, *puts])
        if any(kind == "webhooks" and record is not None for kind, _, record, *_ in records):
            self.deliveries.set()

    async def search(
        self,
        kind: Kind,
        *within: str,
        filter: Mapping[str, Any] | None = None,
        owner: str | None = None,
        limit: int = ALL,
        offset: int = 0,
        sort_by: str | None = None,
        sort_order: str | None = None,
    ) -> list[Record]:
        """Records that have what the filter says; by default those written last come first.

        Args:
            filter: conditions by field, as the store has them; see `containing` for what a client
                looks for.
        """
        wanted = dict(filter or {})
        if owner is not None:
            wanted["owner"] = {"$in": [owner, None]}
        space = _space(kind, *within)
        if sort_by is None and sort_order is None:
            found = await self._store.asearch(space, filter=wanted, limit=limit, offset=offset)
            return [dict(item.value) for item in found]
        best: list[Record] = []  # of the pages so far: as many as are wanted, and no more
        async for page in self.pages(kind, *within, filter=filter, owner=owner):
            best = sort([*best, *page], sort_by, sort_order)[: offset + limit]
        return best[offset:]

    async def pages(
        self,
        kind: Kind,
        *within: str,
        ids: Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,
        owner: str | None = None,
    ) -> AsyncIterator[list[Record]]:
        """What `search` finds, some at a time. A record that is written meanwhile may come twice,
        or not at all.

        Args:
            ids: look at these only.
        """
        if ids is not None:
            has, space = compile_filter(filter), _space(kind, *within)
            items = await self._store.abatch([GetOp(space, id) for id in dict.fromkeys(ids)])
            found = [item for item in items if isinstance(item, Item)]
            found.sort(key=lambda item: item.updated_at, reverse=True)
            records = [dict(item.value) for item in found]
            yield [each for each in records if may_see(each, owner) and has(each)]
            return
        offset, is_last = 0, False
        while not is_last:
            page = await self.search(
                kind, *within, filter=filter, owner=owner, limit=PAGE, offset=offset
            )
            yield page
            offset, is_last = offset + PAGE, len(page) < PAGE

    async def unfinished(self, *thread_id: str) -> list[Record]:
        """The pointers to runs that have not ended, the first begun first: all, or those of a
        thread."""
        return await self.search("unfinished", *thread_id, sort_by="created_at", sort_order="asc")

    async def delete_within(self, kind: Kind, *within: str) -> None:
        """Delete all records of a kind within another one."""
        found = await self._store.asearch(_space(kind, *within), limit=ALL)
        await self._store.abatch([PutOp(item.namespace, item.key, None) for item in found])


def may_see(record: Record, owner: str | None) -> bool:
    """Whether a user sees a record; None where there are no users."""
    return owner is None or record.get("owner") in (owner, None)


def sort(records: list[Record], by: str | None, order: str | None) -> list[Record]:
    """Records by a field; by default those made last come first."""
    field = by or "created_at"
    return sorted(records, key=lambda each: str(each.get(field) or ""), reverse=order != "asc")


def select(record: Record, fields: Sequence[str] | None) -> Record:
    """The part of a record that clients see, or the fields of it that they want."""
    shown = {key: value for key, value in record.items() if key not in ("owner", DELETED)}
    return shown if not fields else {key: shown[key] for key in fields if key in shown}


def _space(kind: str, *within: str) -> tuple[str, ...]:
    """The namespace of a kind, whose parts must not hold a dot."""
    return (ROOT, kind, *(quote(each, safe="").replace(".", "%2E") for each in within))


def containing(value: Any) -> Any:
    """The condition that something has what a client looks for, in which nothing is an operator of
    the store. An object is met by one that holds more."""
    if not isinstance(value, Mapping):
        return value
    if any(key.startswith("$") for key in value):
        return {"$eq": value}
    return {escape(key): containing(each) for key, each in value.items()}
