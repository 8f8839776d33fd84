"""The routes of runs: create, wait, stream, join, cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from ..bodies import BatchBody, CancelBody, CancelQuery, JoinQuery, RunBody, RunQuery
from ..errors import Refused
from ..events import encode_events, read_id, stream
from ..handlers import Handlers, User, route
from ..records import Record, may_see, select
from ..runs.new_runs import begin_run
from ..runs.runner import first_of, puts_of
from ..service import answer


class RunRoutes(Handlers):
    """The handlers of `/threads/.../runs` and `/runs`."""

    # -- begin -------------------------------------------------------------------------------------

    @route("POST /threads/{thread_id}/runs", "POST /runs")
    async def create(self, owner: User, body: RunBody, thread_id: str | None) -> Response:
        """Begin a run without waiting for it."""
        record = await begin_run(self._service, body, thread_id, owner)
        return answer(await self._shown(record), headers=_location(record))

    @route("POST /runs/batch")
    async def create_many(self, owner: User, body: BatchBody) -> Sequence[Record]:
        """Begin several runs. If one is refused, those before it have already begun."""
        begun = [
            await begin_run(self._service, each, each.thread_id, owner) for each in body.runs
        ]
        return [await self._shown(each) for each in begun]

    @route("POST /threads/{thread_id}/runs/wait", "POST /runs/wait")
    async def wait(
        self, request: Request, owner: User, body: RunBody, thread_id: str | None
    ) -> Response:
        """Begin a run, and send the state at its end."""
        record = await begin_run(self._service, body, thread_id, owner)
        if body.on_disconnect == "cancel":
            ends, _ = await first_of(self._service.result_of(record), _disconnect(request))
            if ends.done():
                return _json(ends.result(), _location(record, "/join"))
            await self._runs.cancel(record, "interrupt")
        return _json(await self._service.result_of(record), _location(record, "/join"))

    @route("POST /threads/{thread_id}/runs/stream", "POST /runs/stream")
    async def stream(self, owner: User, body: RunBody, thread_id: str | None) -> Response:
        """Begin a run, and stream its events."""
        record = await begin_run(self._service, body, thread_id, owner)
        return self._streaming(record, 0, cancels=body.on_disconnect == "cancel")

    # -- look --------------------------------------------------------------------------------------

    @route("GET /threads/{thread_id}/runs")
    async def list(self, thread: Record, query: RunQuery) -> Sequence[Record]:
        """Send the runs of a thread, newest first."""
        found = await self._records.search(
            "runs", thread["thread_id"], sort_by="created_at", sort_order="desc"
        )
        shown = [await self._shown(each) for each in found]
        wanted = [each for each in shown if query.status in (None, each["status"])]
        page = wanted[query.offset : query.offset + query.limit]
        return [select(each, query.select) for each in page]

    @route("GET /threads/{thread_id}/runs/{run_id}")
    async def get(self, run: Record) -> Record:
        """Send a run."""
        return await self._shown(run)

    @route("GET /threads/{thread_id}/runs/{run_id}/join")
    async def join(self, run: Record) -> Response:
        """Send the state at the end of a run."""
        return _json(await self._service.result_of(run))

    @route("GET /threads/{thread_id}/runs/{run_id}/stream", "GET /runs/{run_id}/stream")
    async def join_stream(self, request: Request, run: Record, query: JoinQuery) -> Response:
        """Stream the events of a run, from now on or after the last event that the reader has
        seen."""
        last = request.headers.get("last-event-id")
        start = None if last is None else _next_id(last)
        return self._streaming(run, start, cancels=query.cancel_on_disconnect)

    async def _shown(self, record: Record) -> Record:
        shown = {key: value for key, value in record.items() if key != "graph_id"}
        return select({**shown, "status": await self._runs.status(record)}, None)

    # -- stop --------------------------------------------------------------------------------------

    @route("POST /threads/{thread_id}/runs/{run_id}/cancel")
    async def cancel(self, run: Record, query: CancelQuery) -> Record:
        """Stop a run; `action=rollback` also takes its thread back to the state before the run."""
        wait = query.wait or query.action == "rollback"
        was_live = await self._runs.cancel(run, query.action, wait=wait)
        if not was_live and query.action == "rollback":
            raise Refused(
                409, f"the run {run['run_id']!r} has ended: go on from a checkpoint before it"
            )
        return {}

    @route("POST /runs/cancel")
    async def cancel_many(self, owner: User, body: CancelBody, query: CancelQuery) -> None:
        """Stop several runs."""
        for record in await self._runs.live():
            if (
                may_see(record, owner)
                and body.thread_id in (None, record["thread_id"])
                and (body.run_ids is None or record["run_id"] in body.run_ids)
                and body.status in (None, "all", await self._runs.status(record))
            ):
                await self._runs.cancel(record, query.action)

    @route("DELETE /threads/{thread_id}/runs/{run_id}")
    async def delete(self, run: Record) -> None:
        """Delete the record of a run; its steps stay in the thread."""
        run_id, thread_id = run["run_id"], run["thread_id"]
        async with self._records.lock("threads", thread_id):
            pointer = await self._records.find("unfinished", run_id, thread_id)
            if pointer is not None and run["graph_id"] in self._service.graphs:
                raise Refused(409, f"the run {run_id!r} is under way: cancel it first")
            await self._runs.forget(thread_id, run_id)
            await self._records.put(*puts_of(run, deleted=True))

    # -- send --------------------------------------------------------------------------------------

    def _streaming(self, record: Record, start: int | None, *, cancels: bool) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            try:
                async for part in encode_events(self._runs.events(record, start)):
                    yield part
            except (asyncio.CancelledError, GeneratorExit):  # the client has left
                if cancels:
                    self._runs.cancel_soon(record)
                raise

        return stream(parts(), _location(record, "/stream"))


def _next_id(last: str) -> int:
    """Return the id of the first event to send to a reader that has seen `last`; an id of -1 comes
    before all events.

    Raises:
        Refused: it is not an id.
    """
    try:
        return max(read_id(last) + 1, 0)
    except ValueError:
        raise Refused(422, f"last-event-id must be the id of an event, got {last!r}") from None


def _json(body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, headers=headers, media_type="application/json")


async def _disconnect(request: Request) -> None:
    """Return when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _location(record: Record, end: str = "") -> dict[str, str]:
    """Return headers with the address of a run, and the address to which a client that has lost the
    connection goes."""
    thread_id = quote(record["thread_id"], safe="")  # a header has ASCII only
    place = f"/threads/{thread_id}/runs/{record['run_id']}"
    return {"Location": f"{place}{end}", "Content-Location": place}
