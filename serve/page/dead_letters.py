"""The page's routes for dead letters: jobs that were parked because their workers died repeatedly.
Users see only those of their own threads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.requests import Request

from ..errors import Refused
from ..handlers import Handlers, User, route

if TYPE_CHECKING:
    from ...workers import JobResult


class DeadLetters(Handlers):
    """The handlers of `/page/dead-letters`."""

    @route("POST /page/dead-letters/{run_id}/retry")
    async def retry(self, request: Request, owner: User, run_id: str) -> None:
        """Retry the job, as if no worker had died of it."""
        if not await self._runs.retry(await self._one(request, owner, run_id)):
            raise _gone(run_id)

    @route("DELETE /page/dead-letters/{run_id}")
    async def drop(self, request: Request, owner: User, run_id: str) -> None:
        """End the job, as if its run had been stopped; the thread's next run begins."""
        if not await self._runs.drop(await self._one(request, owner, run_id)):
            raise _gone(run_id)

    async def _one(self, request: Request, owner: User, run_id: str) -> JobResult:
        """Return the dead letter that a request names by its run; if runs of several threads have
        this id, `?thread_id=` selects one."""
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
        if not found:
            raise _gone(run_id)
        if len(found) > 1:
            raise Refused(409, f"dead letters of several threads are {run_id!r}: pass thread_id")
        return found[0]

    async def _may_act(self, job: JobResult, owner: User) -> bool:
        if owner is None:
            return True
        thread = await self._records.find("threads", job.thread_id)
        return thread is not None and thread["owner"] == owner


def _gone(run_id: str) -> Refused:
    return Refused(404, f"there is no dead letter {run_id!r}")
