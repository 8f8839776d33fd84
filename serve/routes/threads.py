"""The routes of threads: their records, states and histories."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response

from ...pregel.app import Pregel
from ...pregel.types import StateUpdate
from ...store.base import ItemChangedError
from ..authorize import made_by_caller
from ..bodies import (
    CheckpointBody,
    HistoryBody,
    PruneBody,
    StateBody,
    StateQuery,
    Superstep,
    ThreadBody,
    ThreadChange,
    ThreadSearch,
    Ttl,
)
from ..encode import describe_interrupts, describe_snapshot
from ..errors import LOG, Refused
from ..handlers import Handlers, User, route
from ..json_messages import for_clients, from_clients
from ..parts import STATE_FIELDS, extract, select_fields
from ..records import (
    DELETED,
    Record,
    may_see,
    now,
    seconds_until,
    select,
)
from ..service import answer, config_of, graph_assistant, refusing
from ..transfer import export_thread

SECONDS_BETWEEN_LOOKS: float = 60.0
"""How often a server looks for threads whose `ttl` is over."""


class Threads(Handlers):
    """The handlers of `/threads`."""

    # -- records -----------------------------------------------------------------------------------

    @route("POST /threads")
    async def create(self, owner: User, body: ThreadBody) -> Record:
        """Create a thread."""
        id = body.thread_id or str(uuid4())

        async def create() -> Record:
            found = await self._records.find("threads", id)
            if found is not None:
                if body.if_exists == "do_nothing" and may_see(found, owner):
                    return found
                raise Refused(409, f"there is a thread {id!r} already")
            await self._service.check_quota("threads", owner)
            record = _with_ttl(new_thread(id, owner or "", body.metadata), body.ttl)
            if body.supersteps:
                await self._fill(record, body.supersteps)
            await self._records.replace("threads", id, None, record)
            return record

        return await self._shown(await self._records.change("threads", id, create))

    async def _fill(self, thread: Record, supersteps: Sequence[Superstep]) -> None:
        """Give a new thread the states that a client has sent."""
        app = self._service.graph_of_thread(thread)
        if app is None:
            raise Refused(422, "graph_id must name the graph whose state the supersteps are")
        steps = [
            [
                StateUpdate(from_clients(each.get("values"), app.channels), each.get("as_node"))
                for each in step.updates
            ]
            for step in supersteps
        ]
        await refusing(app.abulk_update_state(self._edit_config(thread), steps))

    @route("GET /threads/{thread_id}")
    async def get(self, thread: Record) -> Record:
        """Send a thread with its state and its open questions."""
        return await self._shown(thread)

    @route("PATCH /threads/{thread_id}", "PATCH /threads/{thread_id}/state")
    async def change(
        self, request: Request, thread_id: str, owner: User, body: ThreadChange
    ) -> Record | None:
        """Add to the metadata of a thread."""

        async def merge() -> Record:
            thread = await self._thread(thread_id, owner)
            metadata = {**thread["metadata"], **body.metadata}
            record = {**thread, "metadata": metadata, "updated_at": now()}
            record = _with_ttl(record, body.ttl)
            await self._records.replace("threads", thread_id, thread, record)
            return record

        record = await self._records.change("threads", thread_id, merge)
        is_short = "return=minimal" in request.headers.get("prefer", "")
        return None if is_short else await self._shown(record)

    @route("DELETE /threads/{thread_id}")
    async def delete(self, thread: Record, owner: User) -> None:
        """Delete a thread with its runs and checkpoints. Delayed runs that have not begun are
        cancelled."""
        await self.remove(thread["thread_id"], owner)

    async def remove(self, id: str, owner: User) -> None:
        """Delete a thread as `delete` does.

        Raises:
            Refused: a run of it is under way.
        """
        await self._refuse_busy(id)
        pointers = await self._records.unfinished(id)
        for pointer in pointers:
            if seconds_until(pointer["begins_at"]) > 0:
                record = await self._records.find("runs", pointer["run_id"], id)
                if record is not None:
                    await self._runs.cancel(record, "interrupt", wait=True)
        known = {each["run_id"] for each in pointers}
        await self._records.change("threads", id, lambda: self._delete_idle(id, owner, known))

    async def _delete_idle(self, id: str, owner: User, known: Collection[str]) -> None:
        """Delete a thread. It is marked first: then no server begins a run on it any more, and a
        run that was begun just before the mark is found by the check after it.

        Args:
            known: the runs that do not keep it from being deleted.
        """
        thread = await self._thread(id, owner)
        await self._refuse_busy(id)
        marked = {**thread, DELETED: True}
        await self._records.replace("threads", id, thread, marked)
        if any(each["run_id"] not in known for each in await self._records.unfinished(id)):
            await self._records.replace("threads", id, marked, thread)
            await self._refuse_busy(id)
            raise Refused(409, f"a run of the thread {id!r} was begun meanwhile: delete it again")
        await self._runs.forget(id)
        self._service.logs.forget(id)
        await self._service.saver.adelete_thread(id)
        await self._records.delete_within("unfinished", id)
        await self._records.delete_within("runs", id)
        await self._records.put(("threads", id, None))

    @route("POST /threads/prune")
    async def prune(self, owner: User, body: PruneBody) -> Record:
        """Prune several threads: keep only their last checkpoints, or delete the threads."""
        ids = [*dict.fromkeys(body.thread_ids)]
        for id in ids:
            await self._thread(id, owner)
            await self._refuse_busy(id)
        for id in ids:
            await self._prune(id, body.strategy, owner)
        return {"pruned_count": len(ids)}

    async def _prune(self, id: str, strategy: str, owner: User) -> None:
        if strategy == "delete":
            await self.remove(id, owner)
            return
        async with self._records.lock("threads", id):
            await self._refuse_busy(id)
            await self._service.saver.aprune([id])

    async def expire_for_ever(self) -> None:
        """Prune the threads whose `ttl` is over, until cancelled."""
        while True:
            try:
                due = {"expires_at": {"$lte": now()}}
                async for page in self._records.pages("threads", filter=due):
                    for thread in page:
                        await self._expire(thread)
            except Exception:
                LOG.exception("expired threads could not be pruned: it is tried again")
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)

    async def _expire(self, thread: Record) -> None:
        """Prune a thread if it has not changed for as long as its `ttl` says, and note when to look
        at it again."""
        id, ttl = thread["thread_id"], Ttl.model_validate(thread["ttl"])
        later = _with_ttl(thread, ttl, thread["updated_at"])
        if seconds_until(later["expires_at"]) <= 0:
            with suppress(Refused):  # it is busy
                await self._prune(id, ttl.strategy, thread["owner"] or None)
            later = _with_ttl(thread, ttl, now())
        with suppress(ItemChangedError):  # it was deleted, or has changed meanwhile
            await self._records.replace("threads", id, thread, later)

    @route("POST /threads/{thread_id}/copy")
    async def copy(self, thread_id: str, owner: User) -> Record:
        """Copy a thread with its history to a new id."""
        await self._service.check_quota("threads", owner)
        id = str(uuid4())
        async with self._records.lock("threads", thread_id):
            thread = await self._thread(thread_id, owner)
            await self._refuse_busy(thread_id)
            if await self._service.saver.aget_tuple(config_of(thread_id)) is not None:
                await self._service.saver.acopy_thread(thread_id, id)
        at = now()
        record = {**thread, "thread_id": id, "created_at": at, "updated_at": at}
        await self._records.put(("threads", id, record))
        return await self._shown(record)

    @route("GET /threads/{thread_id}/size")
    async def size(self, thread: Record) -> Record:
        """Send in how many bytes the checkpoints of a thread are stored."""
        try:
            return {"bytes": await self._service.saver.astored_bytes([thread["thread_id"]])}
        except NotImplementedError as error:
            raise Refused(501, str(error)) from None

    @route("GET /threads/{thread_id}/export")
    async def export(self, thread: Record) -> Response:
        """Send a thread with its whole history, as `POST /threads/import` takes it."""
        async with self._records.lock("threads", thread["thread_id"]):
            await self._refuse_busy(thread["thread_id"])
            found = await export_thread(self._service.saver, thread)
        return await asyncio.to_thread(answer, found)  # other requests are answered meanwhile

    @route("POST /threads/search")
    async def search(self, owner: User, body: ThreadSearch) -> list[Record]:
        """Send the threads that match, each with its state."""
        return [await self._part(each, body) for each in await self._found(body, owner)]

    async def _part(self, thread: Record, body: ThreadSearch) -> Record:
        """Return the part of a thread that a search asks for."""
        fields, paths = body.select, body.extract
        bare = fields is not None and not {"values", "interrupts"} & {*fields} and not paths
        shown = await self._bare(thread) if bare else await self._shown(thread)
        part = select(shown, fields)
        return {**part, "extracted": extract(shown, paths)} if paths else part

    @route("POST /threads/count")
    async def count(self, owner: User, body: ThreadSearch) -> int:
        """Send how many threads match."""
        filter = await self._conditions(body)
        if not body.values:
            return await self._records.count("threads", filter, owner)
        return sum([1 async for _ in self._selected(body, filter, owner)])

    async def _found(self, body: ThreadSearch, owner: User) -> list[Record]:
        filter = await self._conditions(body)
        if not body.values:
            return await self._records.search("threads", filter=filter, owner=owner, **body.page)
        found: list[Record] = []
        async for each in self._selected(body, filter, owner):
            found.append(each)
            if len(found) >= body.offset + body.limit:
                break
        return found[body.offset : body.offset + body.limit]

    async def _selected(
        self, body: ThreadSearch, filter: Record, owner: User
    ) -> AsyncIterator[Record]:
        """Yield the threads that match, of those with some values in their states, which must be
        read for it."""
        order = {"sort_by": body.sort_by, "sort_order": body.sort_order}
        async for page in self._records.pages("threads", filter=filter, owner=owner, **order):
            for each in page:
                state = await self._service.state(each)
                if _matches(state and state.values, body.values):
                    yield each
                await asyncio.sleep(0)

    async def _conditions(self, body: ThreadSearch) -> dict[str, Any]:
        """Return the conditions that the store itself can check."""
        return {**body.filter, **await self._service.having_status(body.status, body.ids)}

    async def _refuse_busy(self, id: str) -> None:
        if await self._runs.is_busy(id):
            raise Refused(409, f"a run of the thread {id!r} is under way: cancel it first")

    async def _bare(self, thread: Record) -> Record:
        """Return a thread without its state."""
        busy = await self._runs.is_busy(thread["thread_id"])
        return select({**thread, "status": "busy" if busy else thread["status"]}, None)

    async def _shown(self, thread: Record) -> Record:
        """Return a thread with its state."""
        state = await self._service.state(thread)
        bare = await self._bare(thread)
        if state is None:
            return {**bare, "values": None, "interrupts": {}}
        values = for_clients(state.values) if state.metadata is not None else None
        return {**bare, "values": values, "interrupts": describe_interrupts(state)}

    # -- states ------------------------------------------------------------------------------------

    @route("GET /threads/{thread_id}/state", "GET /threads/{thread_id}/state/{checkpoint_id}")
    async def state(self, thread: Record, checkpoint_id: str | None, query: StateQuery) -> Record:
        """Send the state of a thread, now or at a checkpoint."""
        return await self._state(thread, {"checkpoint_id": checkpoint_id}, query)

    @route("POST /threads/{thread_id}/state/checkpoint")
    async def state_at(self, thread: Record, body: CheckpointBody) -> Record:
        """Send the state of a thread, or of a nested graph, at a checkpoint."""
        return await self._state(thread, body.checkpoint, body)

    async def _state(self, thread: Record, at: Mapping[str, Any], wanted: StateQuery) -> Record:
        reading = self._service.state(thread, at, subgraphs=wanted.subgraphs)
        state = await refusing(reading)
        shown = _NO_STATE if state is None else describe_snapshot(state)
        return select_fields(shown, wanted.select)

    @route("POST /threads/{thread_id}/state")
    async def update(self, thread_id: str, owner: User, body: StateBody) -> Record:
        """Edit the state of a thread."""
        at = body.checkpoint or {"checkpoint_id": body.checkpoint_id}
        async with self._records.lock("threads", thread_id):
            thread = await self._thread(thread_id, owner)
            app = self._service.graph_of_thread(thread)
            if app is None:
                raise Refused(409, "no graph has run on this thread yet: run one first")
            await self._refuse_busy(thread_id)
            config = self._edit_config(thread, at)
            values = from_clients(body.values, app.channels)
            made = await refusing(app.aupdate_state(config, values, as_node=body.as_node))
            await self._records.repeat("threads", lambda: self._note_status(app, thread_id))
        place = made["configurable"]
        names = ("thread_id", "checkpoint_ns", "checkpoint_id")
        checkpoint = {name: place.get(name, "") for name in names}
        return {
            "checkpoint": checkpoint,
            "configurable": checkpoint,
            "checkpoint_id": checkpoint["checkpoint_id"],
        }

    def _edit_config(self, thread: Record, at: Mapping[str, Any] | None = None) -> Any:
        """Return the config of an edit: the routers that it calls learn the user, too."""
        graph, owner = thread["metadata"]["graph_id"], thread["owner"] or None
        known = {"graph_id": graph, "assistant_id": graph_assistant(graph)}
        place = config_of(thread["thread_id"], at)["configurable"]
        return {"configurable": {**self._service.say_who(owner), **known, **place}}

    async def _note_status(self, app: Pregel, id: str) -> None:
        """Store the status that follows from a thread's state."""
        thread = await self._records.find("threads", id)
        if thread is None:
            return
        state = await app.aget_state(config_of(id))
        status = "interrupted" if state.next else "idle"
        record = {**thread, "status": status, "updated_at": now()}
        await self._records.replace("threads", id, thread, record)

    @route("GET,POST /threads/{thread_id}/history")
    async def history(self, thread: Record, body: HistoryBody) -> list[Record]:
        """Send the history of a thread, newest first."""
        app = self._service.graph_of_thread(thread)
        if app is None:
            return []
        before = body.before
        if isinstance(before, str):
            before = {"checkpoint_id": before}
        steps = app.aget_state_history(
            config_of(thread["thread_id"], body.checkpoint or {}),
            limit=body.limit,
            before=None if before is None else config_of(thread["thread_id"], before),
            filter=body.metadata,
        )

        async def read() -> list[Record]:
            return [select_fields(describe_snapshot(each), body.select) async for each in steps]

        return await refusing(read())


def new_thread(id: str, owner: str, metadata: dict[str, Any]) -> Record:
    """Return the record of a thread on which nothing has run yet."""
    at = now()
    return {
        "thread_id": id,
        "created_at": at,
        "updated_at": at,
        "metadata": {**metadata, **made_by_caller()},
        "status": "idle",
        "config": {},
        "error": None,
        "owner": owner,
    }


def _with_ttl(thread: Record, ttl: Ttl | None, since: str | None = None) -> Record:
    """Return a thread with the time to live that a request sets, if it sets one."""
    if ttl is None:
        return thread
    begin = datetime.fromisoformat(since or thread["updated_at"])
    expires_at = (begin + timedelta(minutes=ttl.ttl)).isoformat()
    return {**thread, "ttl": ttl.model_dump(), "expires_at": expires_at}


_NO_STATE: Record = {
    **dict.fromkeys((*STATE_FIELDS, "checkpoint_id", "parent_checkpoint_id")),
    "values": {},
    **{name: [] for name in ("next", "tasks", "interrupts")},
}


def _matches(value: Any, part: Any) -> bool:
    """Return whether a value contains a part: objects may have more keys than the part."""
    if isinstance(part, Mapping):
        return isinstance(value, Mapping) and all(
            key in value and _matches(value[key], each) for key, each in part.items()
        )
    return bool(value == part)
