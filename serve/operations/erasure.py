"""Erases a user: all that a server stores of one, and a receipt that lists it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any, Final

from ...pregel.drivers.spending import read_shared
from ...store.base import PutOp
from ..errors import Refused
from ..records import ALL, Kind, Record, now
from ..routes.store import NOBODYS
from ..routes.threads import Threads
from ..service import Service

ROUNDS: Final = 5
"""How often all is looked for again: runs that were under way may have begun others."""
LINGERS: Final = {
    "SqliteStore": (
        "the database file's free pages and its -wal file hold old bytes until, with the server "
        "stopped: PRAGMA wal_checkpoint(TRUNCATE); VACUUM;"
    ),
    "PostgresStore": (
        "dead rows hold old bytes until VACUUM FULL; the write-ahead log, replicas and archives "
        "until they are recycled"
    ),
}
_JOBS: Final = (
    "jobs of runs without a thread stay in the queue until: stategraph queue --forget 0"
)
_SPENT: Final = (
    "what the user has spent of a Budget(per=\"user\") stays in the store: erasing would refill it"
)
ELSEWHERE: Final = (
    "backups, exports, logs, traces and the receivers of webhooks keep what they were sent before"
)


async def erase_user(service: Service, user: str) -> Record:
    """Remove what belongs to a user: schedules, runs (those under way are stopped), threads with
    their checkpoints and events, assistants, undelivered webhooks, and the items of the store below
    the user's id.

    Returns:
        The receipt: the ids of what was removed, by kind, and where old bytes may linger.

    Raises:
        Refused: the user makes new threads all the while.
    """
    removed: dict[str, list[Any]] = defaultdict(list)
    for _ in range(ROUNDS):
        before = sum(map(len, removed.values()))
        async for kind, id in _remove(service, user):
            removed[kind].append(id)
        if sum(map(len, removed.values())) == before:
            break
    else:
        way_out = "let auth refuse the user, then try again"
        raise Refused(409, f"{user!r} goes on storing: {way_out}")
    spent = await read_shared(service.graphs, service.store, user)
    lingers = [
        *([_JOBS] if service.runs.queue is not None else []),
        *([_SPENT] if spent else []),
        *(text for name, text in LINGERS.items() if name == type(service.store).__name__),
        ELSEWHERE,
    ]
    return {
        "user": user,
        "erased_at": now(),
        "removed": dict(removed),
        "may_linger": lingers,
    }


async def _remove(service: Service, user: str) -> AsyncIterator[tuple[str, Any]]:
    """Remove what is found now. Schedules come first, since they begin runs."""
    records, threads = service.records, Threads(service)
    for schedule in await _owned(service, "crons", user):
        await records.delete("crons", schedule["cron_id"])
        yield "schedules", schedule["cron_id"]
    for thread in await _owned(service, "threads", user):
        id = thread["thread_id"]
        for run in await records.search("runs", id):
            await service.runs.cancel(run, "interrupt", wait=True)
            await records.put(("webhooks", run["run_id"], None))
            yield "runs", run["run_id"]
        await threads.remove(id, user)
        yield "threads", id
    for assistant in await _owned(service, "assistants", user):
        id = assistant["assistant_id"]
        await records.delete("assistants", id, "versions")
        yield "assistants", id
    store = service.store
    own = [] if user in NOBODYS else await store.alist_namespaces(prefix=(user,), limit=ALL)
    for namespace in own:
        found = await store.asearch(namespace, limit=ALL)
        await store.abatch([PutOp(item.namespace, item.key, None) for item in found])
        for item in found:
            yield "items", [*item.namespace, item.key]


async def _owned(service: Service, kind: Kind, user: str) -> list[Record]:
    return await service.records.search(kind, filter={"owner": user})
