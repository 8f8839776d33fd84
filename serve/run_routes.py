"""The routes of runs: create, wait, stream, join, cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from .bodies import CancelBody, CancelQuery, JoinQuery, RunBody, RunQuery
from .errors import Refused
from .execution import Execution
from .new_runs import begin_run
from .records import Record, select
from .service import Service, answer


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
                await self._runs.cancel(execution, "interrupt")
        await ends
        return _json(await execution.answer(), _place(execution))

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
        asked = self._service.query(request, RunQuery)
        found = await self._records.search(
            "runs", thread["thread_id"], sort_by="created_at", sort_order="desc"
        )
        shown = [self._shown(each) for each in found]
        wanted = [each for each in shown if asked.status in (None, each["status"])]
        fields = request.query_params.getlist("select")
        page = wanted[asked.offset : asked.offset + asked.limit]
        return answer([select(each, fields) for each in page])

    async def get(self, request: Request) -> Response:
        """A run."""
        return answer(self._shown(await self._one(request)))

    async def join(self, request: Request) -> Response:
        """The state at the end of a run."""
        record = await self._one(request)
        execution = self._runs.find(record["run_id"])
        if execution is not None:
            return _json(await execution.answer())
        app = self._service.graph(record["graph_id"])
        config: Any = {"configurable": {"thread_id": record["thread_id"]}}
        return answer((await app.aget_state(config)).values)

    async def join_stream(self, request: Request) -> Response:
        """What a run does from now on, or after the event that the reader has seen last."""
        record = await self._one(request)
        execution = self._runs.find(record["run_id"])
        if execution is None:
            return StreamingResponse(_nothing(), media_type=_EVENTS)
        last = request.headers.get("last-event-id")
        start = execution.events.next_id if last is None else _next_id(last)
        asked = self._service.query(request, JoinQuery)
        return self._streaming(execution, start, cancels=asked.cancel_on_disconnect)

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
        asked = self._service.query(request, CancelQuery)
        execution = self._runs.find(record["run_id"])
        was_live = execution is not None and await self._runs.cancel(execution, asked.action)
        if not was_live and asked.action == "rollback":
            raise Refused(
                409, f"the run {record['run_id']!r} has ended: go on from a checkpoint before it"
            )
        if execution is not None and (asked.wait or asked.action == "rollback"):
            await execution.ended.wait()
        return answer({})

    async def cancel_many(self, request: Request) -> Response:
        """Stop several runs."""
        owner = await self._service.user(request)
        body = await self._service.body(request, CancelBody)
        asked = self._service.query(request, CancelQuery)
        live = [each for each in self._runs.live() if owner in (None, each.record["owner"])]
        wanted = [
            each
            for each in live
            if body.thread_id in (None, each.thread_id)
            and (body.run_ids is None or each.id in body.run_ids)
            and body.status in (None, "all", self._runs.status(each.record))
        ]
        for execution in wanted:
            await self._runs.cancel(execution, asked.action)
        return Response(status_code=204)

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
                self._runs.cancel_soon(execution)


_EVENTS = "text/event-stream"


def _next_id(last: str) -> int:
    """The id of the event that follows the last one that a reader has seen; -1 is before all.

    Raises:
        Refused: it is no id.
    """
    try:
        return max(int(last) + 1, 0)
    except ValueError:
        raise Refused(422, f"last-event-id must be an integer, got {last!r}") from None


def _json(body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, headers=headers, media_type="application/json")


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


async def _disconnect(request: Request) -> None:
    """Comes to its end when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _place(execution: Execution) -> dict[str, str]:
    place = f"/threads/{execution.thread_id}/runs/{execution.id}"
    return {"Location": place, "Content-Location": place}
