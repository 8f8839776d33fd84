"""Periodic care for the runs of this server and of servers that died: settles runs whose end nobody
waited for, submits jobs that were never submitted, and cancels those of runs that were stopped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from ...checkpoint.errors import StorageError
from ...pregel.errors import ThreadBusyError
from ...workers import JobResult, Queue
from ...workers.jobs import LISTED, OPEN, Status
from ..records import Record, Records, seconds_until
from .settler import Settler, is_as_told, read_result

LOG = logging.getLogger("stategraph.serve")

SECONDS_BETWEEN_LOOKS: Final = 1.0
"""How often a server looks after the runs."""
SECONDS_TO_SUBMIT: Final = 10.0
"""Seconds after which a stored run without a job in the queue is taken for one whose server died
before submitting it."""
KEPT: Final = timedelta(days=1)
"""How long the events of a run can be read after its end."""


class FleetCare:
    """Looks after the runs of all servers that share a database.

    Args:
        queues: the queues, by the names of their graphs.
        submit: puts the job of a run into its queue.
        cancel_job: cancels the job of a run that has this pointer.
        count: called with the pointers to all runs that have not ended.
    """

    def __init__(
        self,
        queues: Mapping[str, Queue],
        records: Records,
        settler: Settler,
        submit: Callable[[Record], Awaitable[None]],
        cancel_job: Callable[[Record], Awaitable[None]],
        count: Callable[[Sequence[Record]], None],
    ) -> None:
        self._queues, self._records, self._settler = queues, records, settler
        self._submit, self._cancel_job, self._count = submit, cancel_job, count
        self._told: set[str] = set()  # graphs that are not served, and have been logged

    async def look_for_ever(self) -> None:
        """Look after the runs periodically, until cancelled."""
        forgotten = time.monotonic()
        while True:
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
            try:
                await self.look(SECONDS_TO_SUBMIT)
                if time.monotonic() - forgotten > 60:
                    forgotten = time.monotonic()
                    for queue in self._queues.values():
                        await asyncio.to_thread(queue.forget, KEPT)
            except Exception:
                LOG.exception("the server could not look after its runs; it tries again")

    async def look(self, patience: float) -> None:
        """Settle runs whose end nobody has waited for, submit those whose servers died before they
        could, if they were created at least `patience` seconds ago, and cancel those that were
        stopped."""
        pointers = await self._records.unfinished()
        self._count(pointers)
        if not pointers:
            return
        ids = [each["run_id"] for each in pointers]
        one = next(iter(self._queues.values()))  # each knows the jobs of all graphs
        statuses = await asyncio.to_thread(one.statuses, ids)
        for pointer in pointers:
            status = statuses.get((pointer["thread_id"], pointer["run_id"]))
            try:
                await self._look_at(pointer, status, patience)
            except StorageError:
                raise
            except Exception:  # such as an outcome that cannot be read: the others go on
                LOG.exception("the server could not look after the run %s", pointer["run_id"])

    async def _look_at(self, pointer: Record, status: str | None, patience: float) -> None:
        is_new = -seconds_until(pointer["created_at"]) < patience
        if not is_as_told(pointer, status) and not (status is None and is_new):
            await self._update(pointer, status)
        elif pointer.get("stopped") and status in LISTED:
            await self._cancel_job(pointer)  # nobody has, or no job was there yet

    async def _update(self, pointer: Record, status: str | None) -> None:
        """Update the record of a run to the status of its job. Without a job, submit it, or end the
        run if it was stopped."""
        run_id, thread_id = pointer["run_id"], pointer["thread_id"]
        record = await self._records.find("runs", run_id, thread_id)
        if record is None:  # it was deleted
            await self._cancel_job(pointer)
            await self._records.put(("unfinished", run_id, None, thread_id))
            return
        queue = self._queues.get(record["graph_id"])
        if status in OPEN:
            await self._settler.reopen(record)
        elif queue is None:
            self._tell_of(record["graph_id"])
        elif status is None and pointer.get("stopped"):
            await self._settler.settle(record, _result(record, "cancelled"))
        elif status is None:
            await self._submit_again(record)
        else:
            await self._settler.settle(record, await read_result(queue, record, 0))

    def _tell_of(self, graph_id: str) -> None:
        if graph_id not in self._told:
            self._told.add(graph_id)
            LOG.warning("runs of the graph %r, which is not served, stay pending", graph_id)

    async def _submit_again(self, record: Record) -> None:
        try:
            await self._submit(record)
        except (ThreadBusyError, ValueError) as error:
            LOG.warning("the run %s could not be submitted: %s", record["run_id"], error)
            await self._settler.settle(record, _result(record, "failed", error))


def _result(record: Record, status: Status, error: Exception | None = None) -> JobResult:
    """Return the result of a run that never got a job."""
    name = (record["graph_id"], record["thread_id"], record["run_id"])
    return JobResult(*name, status, error=error)
