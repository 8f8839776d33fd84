"""The routes that only the page uses, because clients of the peer's server have no such call: find
threads by a text, and see what is at work. They only read, and show each user the own threads."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..bodies import Page
from ..records import Record, select
from ..service import Service, answer

if TYPE_CHECKING:
    from ...workers import JobResult
    from ...workers.care import QueueCare

SEARCHED: Final = 500
"""The states of so many threads are searched, those written last; ids and metadata of all."""
JOBS: Final = 500
"""At most so many jobs are shown, those submitted first."""
_OF_RUNS: Final = ("run_id", "thread_id", "graph_id", "created_at")
_SHOWN: Final = ["thread_id", "status", "metadata", "updated_at"]


class TextSearch(Page):
    """Which threads hold a text."""

    text: str = Field(min_length=1, max_length=1000)
    status: Literal["idle", "busy", "interrupted", "error"] | None = None


class PageLists:
    """The handlers of `/page/threads`, `/page/threads/{thread_id}` and `/page/queue`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[Route]:
        """Where they are. They stand before the files of the page."""
        return [
            Route("/page/threads", self.find, methods=["POST"]),
            Route("/page/threads/{thread_id}", self.get, methods=["GET"]),
            Route("/page/queue", self.queue, methods=["GET"]),
        ]

    async def find(self, request: Request) -> Response:
        """Threads that hold a text: in their id, their metadata, their error or their state."""
        owner = await self._service.user(request)
        body = await self._service.body(request, TextSearch)
        found, wanted = [], body.offset + body.limit
        busy = await self._service.runs.busy_threads()
        for place, record in enumerate(await self._service.records.search("threads", owner=owner)):
            thread = _with_status(record, busy)
            if body.status not in (None, thread["status"]):
                continue
            if await self._has(thread, body.text.lower(), in_state=place < SEARCHED):
                found.append(select(thread, _SHOWN))
                if len(found) == wanted:
                    break
        return answer(found[body.offset :])

    async def get(self, request: Request) -> Response:
        """A thread without its state, which may be large, for those who look often."""
        owner = await self._service.user(request)
        record = await self._service.records.get(
            "threads", request.path_params["thread_id"], owner=owner
        )
        return answer(select(_with_status(record, await self._service.runs.busy_threads()), None))

    async def queue(self, request: Request) -> Response:
        """What is at work: the runs of this server, or the jobs of a queue and its workers."""
        owner = await self._service.user(request)
        queue = self._service.runs.queue
        if queue is not None:
            return answer(await self._queued(queue, owner))
        live = await self._service.runs.live()
        shown = [await self._run(each) for each in live if owner in (None, each["owner"])]
        return answer({"fleet": False, "runs": shown})

    async def _queued(self, queue: QueueCare, owner: str | None) -> Record:
        """Jobs that have not ended, and dead letters; users see those of the own threads, and are
        told nothing of the machines."""
        found = await asyncio.to_thread(queue.jobs, limit=JOBS)
        if owner is not None:
            found = [each for each in found if await self._is_of(each.thread_id, owner)]
        jobs = [_job(each) for each in found]
        told = {
            "fleet": True,
            "jobs": [each for each in jobs if each["status"] != "parked"],
            "dead": [each for each in jobs if each["status"] == "parked"],
        }
        if owner is not None:
            return told
        workers = await asyncio.to_thread(queue.workers)
        return {**told, "workers": [each._asdict() for each in workers]}

    async def _is_of(self, thread_id: str, owner: str) -> bool:
        thread = await self._service.records.find("threads", thread_id)
        return thread is not None and thread["owner"] == owner

    async def _run(self, record: Record) -> Record:
        status = await self._service.runs.status(record)
        return {**{name: record[name] for name in _OF_RUNS}, "status": status}

    async def _has(self, thread: Record, text: str, *, in_state: bool) -> bool:
        told = {name: thread[name] for name in ("thread_id", "metadata", "error")}
        if _holds(told, text):
            return True
        app = self._service.graphs.get(thread["metadata"].get("graph_id", ""))
        if app is None or not in_state:
            return False
        config: Any = {"configurable": {"thread_id": thread["thread_id"]}}
        return _holds((await app.aget_state(config)).values, text)


def _job(job: JobResult) -> Record:
    return {
        "run_id": job.run_id,
        "thread_id": job.thread_id,
        "graph_id": job.graph,
        "status": job.status,
        "attempts": job.attempts,
        "run_at": job.run_at,
        "error": None if job.error is None else str(job.error),
    }


def _with_status(thread: Record, busy: Container[str]) -> Record:
    return {**thread, "status": "busy" if thread["thread_id"] in busy else thread["status"]}


def _holds(value: Any, text: str) -> bool:
    """Whether a text, in lower case, is somewhere in a value, in any case."""
    if isinstance(value, str):
        return text in value.lower()
    if isinstance(value, dict):
        return any(_holds(each, text) for pair in value.items() for each in pair)
    if isinstance(value, list):
        return any(_holds(each, text) for each in value)
    return value is not None and text in str(value).lower()
