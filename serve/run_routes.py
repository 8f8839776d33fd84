"""The routes of runs: create, wait, stream, join, cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from .bodies import CancelBody, RunBody
from .errors import Refused
from .records import Put, Record, now, select
from .runs import Execution, take_back
from .service import Service, answer
from .threads import new_thread


class RunRoutes:
    """The handlers of `/threads/.../runs` and `/runs`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._records = service.records
        self._runs = service.runs

    def routes(self) -> list[Route]:
        """Where they are."""
        begin = {"": self.create, "/wait": self.wait, "/stream": self.stream}
        runs, one = "/threads/{thread_id}/runs", "/threads/{thread_id}/runs/{run_id}"
        return [
            *(
                Route(f"{base}{end}", handler, methods=["POST"])
                for base in (runs, "/runs")
                for end, handler in begin.items()
            ),
            Route("/runs/batch", self.create_many, methods=["POST"]),
            Route("/runs/cancel", self.cancel_many, methods=["POST"]),
            Route(runs, self.list, methods=["GET"]),
            Route(one, self.get, methods=["GET"]),
            Route(one, self.delete, methods=["DELETE"]),
            Route(f"{one}/join", self.join, methods=["GET"]),
            Route(f"{one}/stream", self.join_stream, methods=["GET"]),
            Route(f"{one}/cancel", self.cancel, methods=["POST"]),
        ]

    # -- begin -------------------------------------------------------------------------------------

    async def create(self, request: Request) -> Response:
        """Begin a run, and do not wait for it."""
        execution, _ = await self._begin(request)
        return answer(self._shown(execution.record), headers=_place(execution))

    async def create_many(self, request: Request) -> Response:
        """Begin several runs, each on a thread of its own."""
        raise Refused(422, "batches are not offered: create the runs one by one")

    async def wait(self, request: Request) -> Response:
        """Begin a run, and answer with the state at its end."""
        execution, body = await self._begin(request)
        ends = asyncio.ensure_future(execution.ended.wait())
        if body.on_disconnect == "cancel":
            gone = asyncio.ensure_future(_disconnect(request))
            await asyncio.wait([ends, gone], return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            if not ends.done():
                self._runs.cancel(execution)
        await ends
        return answer(execution.result, headers=_place(execution))

    async def stream(self, request: Request) -> Response:
        """Begin a run, and send what it does as it happens."""
        execution, body = await self._begin(request)
        return self._streaming(execution, 0, cancels=body.on_disconnect == "cancel")

    async def _begin(self, request: Request) -> tuple[Execution, RunBody]:
        owner = await self._service.user(request)
        body = await self._service.body(request, RunBody)
        thread_id = request.path_params.get("thread_id")
        return await begin_run(self._service, body, thread_id, owner), body

    # -- look --------------------------------------------------------------------------------------

    async def list(self, request: Request) -> Response:
        """The runs of a thread, the newest first."""
        thread = await self._own_thread(request)
        asked = request.query_params
        limit, offset = int(asked.get("limit", 10)), int(asked.get("offset", 0))
        found = await self._records.search(
            "runs", thread["thread_id"], sort_by="created_at", sort_order="desc"
        )
        shown = [self._shown(each) for each in found]
        status = asked.get("status")
        wanted = [each for each in shown if status in (None, each["status"])]
        fields = asked.getlist("select")
        return answer([select(each, fields) for each in wanted[offset : offset + limit]])

    async def get(self, request: Request) -> Response:
        """A run."""
        return answer(self._shown(await self._one(request)))

    async def join(self, request: Request) -> Response:
        """The state at the end of a run."""
        record = await self._one(request)
        execution = self._runs.find(record["run_id"])
        if execution is not None:
            await execution.ended.wait()
            return answer(execution.result)
        app = self._service.graphs[record["graph_id"]]
        config: Any = {"configurable": {"thread_id": record["thread_id"]}}
        return answer((await app.aget_state(config)).values)

    async def join_stream(self, request: Request) -> Response:
        """What a run does from now on, or after the event that the reader has seen last."""
        record = await self._one(request)
        execution = self._runs.find(record["run_id"])
        if execution is None:
            return StreamingResponse(_nothing(), media_type=_EVENTS)
        last = request.headers.get("last-event-id")
        if last is None:
            start = execution.events.next_id
        else:
            start = int(last) + 1 if last.lstrip("-").isdigit() else 0
        cancels = request.query_params.get("cancel_on_disconnect", "").lower() in ("1", "true")
        return self._streaming(execution, max(start, 0), cancels=cancels)

    async def _own_thread(self, request: Request) -> Record:
        owner = await self._service.user(request)
        return await self._records.get("threads", request.path_params["thread_id"], owner=owner)

    async def _one(self, request: Request) -> Record:
        run_id = request.path_params["run_id"]
        execution = self._runs.find(run_id)
        if execution is not None and execution.record["kwargs"]["temporary"]:
            owner = await self._service.user(request)
            if owner is None or execution.record["owner"] == owner:
                return execution.record
        thread = await self._own_thread(request)
        return await self._records.get("runs", run_id, thread["thread_id"])

    def _shown(self, record: Record) -> Record:
        hidden = ("graph_id",)
        shown = {key: value for key, value in record.items() if key not in hidden}
        return select({**shown, "status": self._runs.status(record)}, None)

    # -- stop --------------------------------------------------------------------------------------

    async def cancel(self, request: Request) -> Response:
        """Stop a run; with `action=rollback` its thread stands afterwards where it stood before."""
        record = await self._one(request)
        action = request.query_params.get("action", "interrupt")
        await self._cancel([record["run_id"]], action, wait=request.query_params.get("wait") == "1")
        return answer({})

    async def cancel_many(self, request: Request) -> Response:
        """Stop several runs."""
        owner = await self._service.user(request)
        body = await self._service.body(request, CancelBody)
        live = [each for each in self._runs.live() if owner in (None, each.record["owner"])]
        wanted = [
            each.id
            for each in live
            if body.thread_id in (None, each.thread_id)
            and (body.run_ids is None or each.id in body.run_ids)
            and body.status in (None, "all", self._runs.status(each.record))
        ]
        await self._cancel(wanted, request.query_params.get("action", "interrupt"), wait=False)
        return Response(status_code=204)

    async def _cancel(self, ids: Any, action: str, *, wait: bool) -> None:
        if action not in ("interrupt", "rollback"):
            raise Refused(422, f"action must be 'interrupt' or 'rollback', got {action!r}")
        found = [each for id in ids if (each := self._runs.find(id)) is not None]
        for execution in found:
            self._runs.cancel(execution)
        if wait or action == "rollback":
            for execution in found:
                await execution.ended.wait()
                if action == "rollback":
                    app = self._service.graphs[execution.record["graph_id"]]
                    await take_back(app, execution)
                    await self._records.put(("runs", execution.id, None, execution.thread_id))

    async def delete(self, request: Request) -> Response:
        """No record of a run any more; its steps stay in the thread."""
        record = await self._one(request)
        if (execution := self._runs.find(record["run_id"])) and not execution.ended.is_set():
            raise Refused(409, f"the run {record['run_id']!r} is under way: cancel it first")
        await self._records.put(("runs", record["run_id"], None, record["thread_id"]))
        return Response(status_code=204)

    # -- send --------------------------------------------------------------------------------------

    def _streaming(self, execution: Execution, start: int, *, cancels: bool) -> Response:
        headers = {**_place(execution), "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        frames = self._frames(execution, start, cancels)
        return StreamingResponse(frames, media_type=_EVENTS, headers=headers)

    async def _frames(
        self, execution: Execution, start: int, cancels: bool
    ) -> AsyncIterator[bytes]:
        try:
            async for frame in execution.events.read(start):
                yield frame
        finally:
            if cancels and not execution.ended.is_set():
                self._runs.cancel(execution)


_EVENTS = "text/event-stream"


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


async def _disconnect(request: Request) -> None:
    """Comes to its end when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def begin_run(
    service: Service,
    body: RunBody,
    thread_id: str | None,
    owner: str | None,
    id: str | None = None,
    also: Sequence[Put] = (),
) -> Execution:
    """Begin a run.

    Args:
        thread_id: None for a run on a thread of its own.
        id: the run's; a new one by default.
        also: records that are written with the run, all or none.

    Raises:
        Refused: it cannot be.
    """
    _, assistant = await service.graph_of(body.assistant_id, owner)
    is_temporary = thread_id is None and body.on_completion != "keep"
    place = thread_id or str(uuid4())
    async with service.records.lock("threads", place):
        thread, is_new = await _thread(service, place, thread_id is None, owner, body)
        record = _new_run(id or str(uuid4()), thread, assistant, body, is_temporary=is_temporary)
        known = {"graph_id": assistant["graph_id"], "assistant_id": assistant["assistant_id"]}
        is_told = not is_new and known.items() <= thread["metadata"].items()
        puts = [*also]
        if not is_told and not is_temporary:
            changed = {**thread, "metadata": {**thread["metadata"], **known}}
            puts.append(("threads", place, changed))
        return await service.runs.submit(record, puts)


async def _thread(
    service: Service, id: str, is_own: bool, owner: str | None, body: RunBody
) -> tuple[Record, bool]:
    """The thread of a run, and whether it is new.

    Args:
        is_own: whether the run has a thread of its own.
    """
    if is_own:
        return new_thread(id, owner or "", {}), True
    found = await service.records.find("threads", id)
    if found is None and body.if_not_exists == "create":
        return new_thread(id, owner or "", {}), True
    if found is None or (owner is not None and found["owner"] != owner):
        way_out = "create it, or pass if_not_exists='create'"
        raise Refused(404, f"there is no thread {id!r}: {way_out}")
    return found, False


def _place(execution: Execution) -> dict[str, str]:
    place = f"/threads/{execution.thread_id}/runs/{execution.id}"
    return {"Location": place, "Content-Location": place}


def _new_run(
    id: str, thread: Record, assistant: Record, body: RunBody, *, is_temporary: bool
) -> Record:
    """A run as it is stored, with all that it takes to begin it again."""
    if body.after_seconds:
        raise Refused(422, "after_seconds is not offered: create the run when it is to begin")
    at = now()
    known = {"graph_id": assistant["graph_id"], "assistant_id": assistant["assistant_id"]}
    metadata = {**assistant["metadata"], **thread["metadata"], **(body.metadata or {}), **known}
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
            "input": body.input,
            "command": body.command.model_dump() if body.command else None,
            "config": _run_config(thread, assistant, body, metadata),
            "context": {**assistant["context"], **(body.context or {})},
            "stream_mode": body.modes,
            "subgraphs": body.stream_subgraphs,
            "resumable": body.stream_resumable,
            "interrupt_before": body.interrupt_before,
            "interrupt_after": body.interrupt_after,
            "durability": body.durability,
            "temporary": is_temporary,
        },
    }


def _run_config(
    thread: Record, assistant: Record, body: RunBody, metadata: dict[str, Any]
) -> dict[str, Any]:
    """The config of a run: the assistant's, the request's, and what the server says itself."""
    theirs = body.config or {}
    kept = ("tags", "recursion_limit", "max_concurrency")
    both = {**assistant["config"], **theirs}
    config = {key: both[key] for key in kept if key in both}
    free = {
        key: value
        for given in (assistant["config"], theirs)
        for key, value in given.get("configurable", {}).items()
        if not key.startswith(("__", "checkpoint_")) and key != "thread_id"
    }
    at = body.checkpoint or {"checkpoint_id": body.checkpoint_id}
    place = {k: at[k] for k in ("checkpoint_id", "checkpoint_ns") if at.get(k)}
    configurable = {**free, **place, "thread_id": thread["thread_id"]}
    return {**config, "metadata": metadata, "configurable": configurable}
