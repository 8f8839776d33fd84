"""Routes for the page alone, since clients of LangGraph's server have no such calls: search threads
for a text, list running and recent work, and retry or drop dead letters, the jobs that were parked
because their workers died repeatedly. Users see only their own threads.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Container, Iterable
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import AwareDatetime, Field
from starlette.requests import Request

from ...pregel.drivers.spending import read_shared
from ..bodies import Body
from ..errors import Refused
from ..handlers import Handlers, User, route
from ..records import Record, pointer_to, seconds_until, select

if TYPE_CHECKING:
    from ...workers import JobResult
    from ...workers.care import QueueCare

SEARCHED: Final = 500
"""How many states one request searches at most; the next request continues after them."""
SECONDS: Final = 2.0
"""About how long one request searches at most, since states may be large."""
JOBS: Final = 500
"""How many jobs are shown at most, the oldest first."""
MINUTES: Final = 60
"""For how long the overview shows the runs that have ended."""
RECENT: Final = 500
"""How many runs, and how many failed threads, it reads at most, the newest first. It shows fewer
minutes where there are more runs."""
_ORDER: Final = ("updated_at", "thread_id")
"""How the found threads are sorted, the most recently written first: a later request can continue
in this order even if other threads have been written meanwhile."""
_DEAD: Final = "WorkersDiedError"
_ID: Final = re.compile(r"\b[\da-f]+(?:-[\da-f]+)*\b")
"""A number or an id if it has a digit. One pattern for both would take quadratic time."""
_DIGIT: Final = re.compile(r"\d")
_OF_RUNS: Final = ("run_id", "thread_id", "graph_id", "created_at")
_SHOWN: Final = ["thread_id", "status", "metadata", "updated_at"]


class TextSearch(Body):
    """Searches for a text in threads that were written since a moment. `further` is the value that
    the previous response returned."""

    text: str = Field("", max_length=1000)
    since: AwareDatetime | None = None
    status: Literal["idle", "busy", "interrupted", "error"] | None = None
    graph_id: str | None = None
    limit: int = Field(200, ge=1, le=1000)
    further: tuple[str, str] | None = None


class PageLists(Handlers):
    """The handlers of `/page/threads`, `/page/threads/{thread_id}`, `/page/overview`, `/page/queue`
    and `/page/dead-letters`."""

    @route("POST /page/threads")
    async def find(self, owner: User, body: TextSearch) -> Record:
        """Find threads that contain a text in their id, metadata, error or state.

        The first request searches the ids, metadata and errors of all threads, and the states of
        those written last. Each further request searches the next states, and finds no thread
        twice. The response says how many threads have been searched, and how many there are.
        """
        text, records = body.text.lower(), self._records
        filter = await self._service.having_status(body.status)
        if body.graph_id is not None:
            filter = {**filter, "metadata.graph_id": body.graph_id}
        written = {} if body.since is None else {"$gte": body.since.astimezone(UTC).isoformat()}
        if written:
            filter |= {"updated_at": written}
        of = await records.count("threads", filter, owner)
        hits: list[Record] = []
        begin = 0
        if body.further is None:
            hits = await records.search(
                "threads",
                filter=filter,
                owner=owner,
                limit=body.limit + 1,
                sort_by=_ORDER,
                test=lambda thread: _names(thread, text),
                text=text,
            )
        else:
            filter = {**filter, "updated_at": {**written, "$lte": body.further[0]}}
            begin = of - await records.count("threads", filter, owner)
        enough = len(hits) > body.limit
        found, searched, last = await self._search_states(body, filter, owner, of - begin, enough)
        hits = sorted([*hits, *found], key=_sort_key, reverse=True)
        busy = await self._runs.busy_threads()
        searched += begin
        return {
            "threads": [select(_with_status(each, busy), _SHOWN) for each in hits[: body.limit]],
            "has_more": len(hits) > body.limit,
            "searched": searched,
            "of": of,
            "further": last if searched < of else None,
        }

    async def _search_states(
        self, body: TextSearch, filter: Record, owner: User, of: int, enough: bool
    ) -> tuple[list[Record], int, tuple[str, str] | None]:
        """Return the threads whose states contain a text, how many of all were searched, the most
        recently written first, and the sort key of the last.

        The states of threads that are found by their records are not read.

        Args:
            of: how many threads match the filter. Without a text they are all found already.
            enough: whether more threads are found already than are shown.
        """
        found: list[Record] = []
        text, last = body.text.lower(), body.further
        if not text:
            return found, of, last
        read, place, until = 0, 0, time.monotonic() + SECONDS
        async for page in self._records.pages(
            "threads", filter=filter, owner=owner, sort_by=_ORDER
        ):
            for thread in page:
                if body.further is not None and _sort_key(thread) >= body.further:
                    place += 1  # written in the same moment, and searched before
                    continue
                named = _names(thread, text)
                if (read == SEARCHED and not named) or (place and time.monotonic() > until):
                    return found, place, last
                # It may have been written since the order was read.
                place, last = place + 1, min(last or _sort_key(thread), _sort_key(thread))
                if not named:
                    read += 1
                    state = await self._service.state(thread)
                    if state is not None and _contains(state.values, text):
                        found.append(thread)
                await asyncio.sleep(0)
            if enough:
                return found, place, last
        return found, of, last

    @route("GET /page/threads/{thread_id}")
    async def get(self, thread: Record) -> Record:
        """Send a thread without its state, which may be large, for clients that poll."""
        return select(_with_status(thread, await self._runs.busy_threads()), None)

    @route("GET /page/overview")
    async def overview(self, owner: User) -> Record:
        """Send how many runs have ended in each of the last minutes, the newest last, and how many
        of them failed; how many seconds half and 99 % of them took at most; and failed threads by
        their errors, without those of dead letters."""
        runs = await self._records.search("runs", owner=owner, limit=RECENT)
        ages = [-seconds_until(each["updated_at"]) / 60 for each in runs]
        minutes = max(min(MINUTES, int(ages[-1])), 1) if len(runs) == RECENT else MINUTES
        counts = [[0, 0] for _ in range(minutes)]
        ended = []
        for run, age in zip(runs, ages, strict=True):
            if age < minutes and run["status"] not in ("pending", "running"):
                ended.append(run)
                for kind in {0, int(run["status"] == "error")}:
                    counts[-1 - max(int(age), 0)][kind] += 1
        filter = await self._service.having_status("error")
        failed = await self._records.search("threads", filter=filter, owner=owner, limit=RECENT)
        took = sorted(map(_seconds, ended))
        shown = [took[len(took) * share // 100] for share in (50, 99)] if took else []
        return {"minutes": counts, "took": shown, "failures": _failures(failed)}

    @route("GET /page/queue")
    async def queue(self, owner: User) -> Record:
        """Send the work in progress: the runs of this server, or the jobs of a queue and its
        workers. And what is spent of budgets that threads share."""
        budgets = await read_shared(self._service.graphs, self._service.store, owner)
        queue = self._runs.queue
        if queue is not None:
            return {**await self._queued(queue, owner), "budgets": budgets}
        live = await self._runs.live()
        shown = [await self._run(each) for each in live if owner in (None, each["owner"])]
        return {"fleet": False, "runs": shown, "budgets": budgets}

    async def _queued(self, queue: QueueCare, owner: User) -> Record:
        """Return the jobs that have not ended and the dead letters. Users see those of their own
        threads, and nothing about the machines."""
        found = await asyncio.to_thread(queue.jobs, limit=JOBS)
        jobs = [_job(each) for each in found if await self._may_act(each, owner)]
        told = {
            "fleet": True,
            "jobs": [each for each in jobs if each["status"] != "parked"],
            "dead": [each for each in jobs if each["status"] == "parked"],
        }
        if owner is not None:
            return told
        workers = await asyncio.to_thread(queue.workers)
        return {**told, "workers": [each._asdict() for each in workers]}

    async def _run(self, record: Record) -> Record:
        status = await self._runs.status(record)
        told = {name: record[name] for name in _OF_RUNS}
        return {**told, "run_at": pointer_to(record)["begins_at"], "status": status}

    # -- dead letters ------------------------------------------------------------------------------

    @route("POST /page/dead-letters/{run_id}/retry")
    async def retry(self, request: Request, owner: User, run_id: str) -> None:
        """Retry the job, as if no worker had died of it."""
        await self._release(request, owner, run_id, to_retry=True)

    @route("DELETE /page/dead-letters/{run_id}")
    async def drop(self, request: Request, owner: User, run_id: str) -> None:
        """End the job, as if its run had been stopped; the thread's next run begins."""
        await self._release(request, owner, run_id, to_retry=False)

    async def _release(
        self, request: Request, owner: User, run_id: str, *, to_retry: bool
    ) -> None:
        """Retry or end the dead letter that a request names by its run; if runs of several threads
        have this id, `?thread_id=` selects one."""
        thread_id = request.query_params.get("thread_id")
        queue = self._runs.queue
        named = [] if queue is None else await asyncio.to_thread(queue.named, run_id)
        found = [
            job
            for job in named
            if job.status == "parked"
            and thread_id in (None, job.thread_id)
            and await self._may_act(job, owner)
        ]
        if len(found) > 1:
            raise Refused(409, f"dead letters of several threads are {run_id!r}: pass thread_id")
        if not found or not await self._runs.release(found[0], to_retry=to_retry):
            raise Refused(404, f"there is no dead letter {run_id!r}")

    async def _may_act(self, job: JobResult, owner: User) -> bool:
        if owner is None:
            return True
        thread = await self._records.find("threads", job.thread_id)
        return thread is not None and thread["owner"] == owner


def _job(job: JobResult) -> Record:
    names = ("run_id", "thread_id", "status", "attempts", "run_at")
    error = None if job.error is None else str(job.error)
    return {**{name: getattr(job, name) for name in names}, "graph_id": job.graph, "error": error}


def _seconds(run: Record) -> float:
    """Return how long a run took that has ended, without the delay that it was begun with."""
    begun = pointer_to(run)["begins_at"]
    return max(seconds_until(run["updated_at"]) - seconds_until(begun), 0)


def _failures(threads: Iterable[Record]) -> list[Record]:
    """Return failed threads by assistant and error, the most frequent first. Errors whose messages
    differ only in numbers and ids are one."""
    found: dict[tuple[str, ...], Record] = {}
    for thread in threads:
        ran = {name: thread["metadata"].get(name, "") for name in ("graph_id", "assistant_id")}
        error = {"error": "", "message": "", **(thread["error"] or {})}
        alike = _ID.sub(lambda id: "#" if _DIGIT.search(id[0]) else id[0], error["message"])
        group = found.setdefault(
            (*ran.values(), error["error"], alike), {**ran, **error, "threads": []}
        )
        group["threads"].append(thread["thread_id"])
    groups = [each for each in found.values() if each["error"] != _DEAD]
    return sorted(groups, key=lambda each: -len(each["threads"]))


def _sort_key(thread: Record) -> tuple[str, str]:
    """Return a thread's sort key in the search."""
    return str(thread["updated_at"]), thread["thread_id"]


def _names(thread: Record, text: str) -> bool:
    """Return whether a thread's record contains a text."""
    return _contains([thread[name] for name in ("thread_id", "metadata", "error")], text)


def _with_status(thread: Record, busy: Container[str]) -> Record:
    return {**thread, "status": "busy" if thread["thread_id"] in busy else thread["status"]}


def _contains(value: Any, text: str) -> bool:
    """Return whether a text, given in lower case, occurs anywhere in a value, ignoring case."""
    if isinstance(value, str):
        return text in value.lower()
    if isinstance(value, dict):
        return any(_contains(each, text) for pair in value.items() for each in pair)
    if isinstance(value, list):
        return any(_contains(each, text) for each in value)
    return value is not None and text in str(value).lower()
