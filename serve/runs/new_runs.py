"""Checks and stores a request for a run, with all that is needed to begin it now or later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any
from uuid import uuid4

from ...pregel.app import Pregel
from ...pregel.errors import nearest
from ...pregel.names import START
from ..bodies import RunBody, check_segment
from ..errors import Refused
from ..events import CALLBACK_EVENTS
from ..json_messages import from_clients
from ..records import DELETED, NOTHING_ELSE, TAKEN_BACK, Changes, Record, may_see, now
from ..routes.threads import new_thread
from ..service import AUTH, Service


async def begin_run(
    service: Service,
    body: RunBody,
    thread_id: str | None,
    owner: str | None,
    id: str | None = None,
    also: Changes = NOTHING_ELSE,
) -> Record:
    """Begin a run, and return its record.

    Args:
        thread_id: None for a run on a new thread.
        id: the id of the run; a new one by default.
        also: records to write together with the run, all or none.

    Raises:
        Refused: the request is invalid, or the run cannot begin.
    """
    app, assistant = await service.graph_of(body.assistant_id, owner)
    _check_nodes(app, body)
    await service.check_room(owner)
    service.webhooks.check(body.webhook)
    check_modes(service, body.stream_mode)
    is_temporary = thread_id is None and body.on_completion != "keep"
    said = service.say_who(owner)
    place = thread_id or str(uuid4())

    async def begin() -> Record:
        thread, is_new = await _thread(service, place, thread_id is None, owner, body)
        if is_new and not is_temporary:
            await service.check_quota("threads", owner)
        _check_version(service, app, thread)
        record = _new_run(
            app, id or str(uuid4()), thread, assistant, body, said, is_temporary=is_temporary
        )
        if service.priority is not None:
            asked = body.model_dump(exclude_unset=True)
            record["kwargs"]["priority"] = priority = service.priority(owner, asked)
            from ...workers.jobs import check_priority

            try:
                check_priority(priority)
            except ValueError as error:  # no mistake of the client's
                raise TypeError(f"a function given as priority= returned it: {error}") from None
        known = {name: record[name] for name in ("graph_id", "assistant_id")}
        is_told = not is_new and known.items() <= thread["metadata"].items()
        puts, seen = [*also.puts], [*also.seen]
        if not is_told and not is_temporary:
            before = None if is_new else thread
            thread = {**thread, "metadata": {**thread["metadata"], **known}}
            puts.append(("threads", place, thread))
            seen.append(("threads", place, before))
        elif not is_new and service.runs.queue is not None:
            seen.append(("threads", place, thread))  # in case another server deletes it
        await service.runs.submit(record, thread, Changes(puts, seen))
        return record

    return await service.records.change("threads", place, begin)


def check_modes(service: Service, modes: str | Sequence[str]) -> None:
    """Check the stream modes of a run.

    Raises:
        Refused: this server does not offer one of them.
    """
    if CALLBACK_EVENTS not in modes:
        return
    if service.runs.queue is not None:
        why = "a server whose runs are jobs of workers has not"
        raise Refused(422, f"stream_mode: {CALLBACK_EVENTS!r} is what {why}: choose other modes")
    if find_spec("langchain_core") is None:
        why = "needs langchain-core where the server runs: pip install langchain-core"
        raise Refused(422, f"stream_mode: {CALLBACK_EVENTS!r} {why}")


def _check_nodes(app: Pregel, body: RunBody) -> None:
    """Refuse names of nodes that the graph does not have. `goto` is not checked at a checkpoint of
    a nested graph, whose nodes have other names."""
    known = [name for name in app.nodes if name != START]
    asked = {
        "interrupt_before": body.interrupt_before,
        "interrupt_after": body.interrupt_after,
        "command.goto": body.command.nodes if body.command else None,
    }
    if body.checkpoint and body.checkpoint.get("checkpoint_ns"):
        del asked["command.goto"]
    for place, names in asked.items():
        for name in [] if names is None or names == "*" else names:
            if name not in known:
                raise Refused(422, f"{place} names no node: {name!r}; {nearest(name, known)}")


async def _thread(
    service: Service, id: str, is_own: bool, owner: str | None, body: RunBody
) -> tuple[Record, bool]:
    """Return the thread of a run, and whether it is new.

    Args:
        is_own: whether the request names no thread.
    """
    if is_own:
        return new_thread(id, owner or "", {}), True
    found = await service.records.find("threads", id)
    if found is None and body.if_not_exists == "create":
        try:
            check_segment(id)
        except ValueError as error:
            raise Refused(422, f"the id of a thread {error}, got {id!r}") from None
        return new_thread(id, owner or "", {}), True
    if found is None or not may_see(found, owner):
        way_out = "create it, or pass if_not_exists='create'"
        raise Refused(404, f"there is no thread {id!r}: {way_out}")
    if found.get(DELETED):
        raise Refused(409, f"the thread {id!r} is being deleted: delete it again")
    leaving = found.get(TAKEN_BACK)
    if leaving and await service.records.find("unfinished", leaving, id):
        why = f"the run {leaving} is being rolled back: wait for its end and try again"
        raise Refused(409, f"the thread {id!r} is busy, for {why}")
    return found, False


def _check_version(service: Service, app: Pregel, thread: Record) -> None:
    """Refuse to continue a thread that waits for another version of the graph."""
    wanted, own = thread.get("version"), app.program.version
    if not service.runs.leaves(app, wanted):
        return
    served = "has no version" if own is None else f"has version {own!r}"
    raise Refused(
        409,
        f"the thread {thread['thread_id']!r} waits for version {wanted!r} of {app.name!r}, which "
        f"{served} here: ask the server of that version, or let this one continue its threads "
        f"(--serves {wanted})",
    )


def _new_run(
    app: Pregel,
    id: str,
    thread: Record,
    assistant: Record,
    body: RunBody,
    said: Mapping[str, Any],
    *,
    is_temporary: bool,
) -> Record:
    """Return the record of a run, with all that is needed to begin it, also after a restart.

    Args:
        said: what the server says about the user; see `Service.say_who`.
    """
    at = now()
    command = None if body.command is None else body.command.model_dump()
    if command is not None:
        command["update"] = from_clients(command["update"], app.channels)
    known = {"graph_id": assistant["graph_id"], "assistant_id": assistant["assistant_id"]}
    metadata = {
        **assistant["metadata"],
        **assistant["config"].get("metadata", {}),
        **thread["metadata"],
        **(body.config or {}).get("metadata", {}),
        **(body.metadata or {}),
        **known,
    }
    return {
        "run_id": id,
        "thread_id": thread["thread_id"],
        "assistant_id": assistant["assistant_id"],
        "graph_id": assistant["graph_id"],
        "created_at": at,
        "updated_at": at,
        "status": "pending",
        "metadata": metadata,
        "multitask_strategy": body.multitask_strategy or "enqueue",
        "owner": thread["owner"],
        "kwargs": {
            "input": from_clients(body.input, app.channels),
            "command": command,
            "config": _run_config(thread, assistant, body, metadata, said),
            "context": _context(assistant, body, said),
            "stream_mode": body.modes,
            "subgraphs": body.stream_subgraphs,
            "resumable": body.stream_resumable,
            "interrupt_before": body.interrupt_before,
            "interrupt_after": body.interrupt_after,
            "durability": body.durability,
            "after_seconds": body.after_seconds,
            "webhook": body.webhook,
            "temporary": is_temporary,
        },
    }


def _context(assistant: Record, body: RunBody, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the context of a run. A graph whose context has a `user_id` gets the user's."""
    given = {**assistant["context"], **(body.context or {})}
    return {key: said.get(key, value) for key, value in given.items()}


def _run_config(
    thread: Record,
    assistant: Record,
    body: RunBody,
    metadata: dict[str, Any],
    said: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the config of a run: the assistant's, the request's, and what the server adds."""
    theirs = body.config or {}
    kept = ("tags", "recursion_limit", "max_concurrency")
    both = {**assistant["config"], **theirs}
    config = {key: both[key] for key in kept if key in both}
    free = {
        key: value
        for given in (assistant["config"], theirs)
        for key, value in given.get("configurable", {}).items()
        if not key.startswith(("__", "checkpoint_", AUTH)) and key != "thread_id"
    }
    at = body.checkpoint or {"checkpoint_id": body.checkpoint_id}
    place = {k: at[k] for k in ("checkpoint_id", "checkpoint_ns") if at.get(k)}
    names = {name: metadata[name] for name in ("assistant_id", "graph_id")}
    configurable = {**free, **said, **place, **names, "thread_id": thread["thread_id"]}
    return {**config, "metadata": metadata, "configurable": configurable}
