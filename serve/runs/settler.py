"""What is written of a run when its job has ended, is parked, or is tried again. Any server may
learn of it first, and several at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...pregel.app import Pregel
from ...workers import JobResult
from ...workers.jobs import OPEN
from ..encode import describe_error
from ..records import Put, Record, Records, now, pointer_to
from ..webhooks import delivery_of
from .execution import take_back

_STATUS: Final = {
    "waiting": "pending",
    "delayed": "pending",
    "running": "running",
    "sleeping": "running",
    "done": "success",
    "paused": "success",
    "cancelled": "interrupted",
}


def run_status(job: str) -> str:
    """How a run stands whose job stands so."""
    return _STATUS.get(job, "error")


def is_as_told(pointer: Record, job: str | None) -> bool:
    """Whether the records tell how a job stands that has not ended.

    Args:
        job: its status; None if it is not in the queue.
    """
    return job == "parked" if is_parked(pointer) else job in OPEN


def is_parked(pointer: Record) -> bool:
    """Whether a run is known to be a dead letter."""
    return bool(pointer.get("parked"))


class Settler:
    """Writes the records of runs and threads. A job that is parked keeps its pointer, as it may be
    tried again."""

    def __init__(self, graphs: Mapping[str, Pregel], records: Records) -> None:
        self._graphs, self._records = graphs, records

    async def settle(self, record: Record, found: JobResult) -> None:
        """Write that a run has ended or is parked, if nobody has."""

        async def write() -> None:
            pointer = await self._records.find("unfinished", record["run_id"], record["thread_id"])
            if pointer is None or is_as_told(pointer, found.status):
                return
            if found.status == "parked":
                await self._park(record, found, pointer)
            elif not found.open:
                await self._end(record, found, pointer)

        await self._records.change("threads", record["thread_id"], write)

    async def reopen(self, record: Record) -> None:
        """Write that the job of a run, which was parked, is tried again."""
        run_id, thread_id = record["run_id"], record["thread_id"]

        async def write() -> None:
            pointer = await self._records.find("unfinished", run_id, thread_id)
            tried = {**(pointer or pointer_to(record)), "parked": False}
            opened = {**record, "status": "pending", "updated_at": now()}
            puts: list[Put] = [
                ("unfinished", run_id, tried, thread_id),
                ("runs", run_id, opened, thread_id),
            ]
            told = {"status": "idle", "error": None}
            await self._write(record, pointer, puts, told)

        await self._records.change("threads", thread_id, write)

    async def _park(self, record: Record, found: JobResult, pointer: Record) -> None:
        run_id, thread_id = record["run_id"], record["thread_id"]
        assert found.error is not None
        told = {"status": "error", "error": describe_error(found.error)}
        puts: list[Put] = [
            ("unfinished", run_id, {**pointer, "parked": True}, thread_id),
            ("runs", run_id, {**record, "status": "error", "updated_at": now()}, thread_id),
        ]
        await self._write(record, pointer, puts, told)

    async def _end(self, record: Record, found: JobResult, pointer: Record) -> None:
        stopped = pointer.get("stopped")
        run_id, thread_id = record["run_id"], record["thread_id"]
        app = self._graphs[record["graph_id"]]
        is_temporary = record["kwargs"]["temporary"]
        if is_temporary:
            saver: Any = app.checkpointer
            await saver.adelete_thread(thread_id)
        elif stopped == "rollback":
            await take_back(app, thread_id, run_id)
        is_kept = not is_temporary and stopped not in ("rollback", "replaced")
        ended = {**record, "status": run_status(found.status), "updated_at": now()}
        puts: list[Put] = [
            ("unfinished", run_id, None, thread_id),
            ("runs", run_id, ended if is_kept else None, thread_id),
        ]
        error = None if found.error is None else describe_error(found.error)
        puts += delivery_of(ended, found.value if error is None else None, error)
        await self._write(record, pointer, puts, {"error": error})

    async def _write(
        self, record: Record, pointer: Record | None, puts: Sequence[Put], told: Record
    ) -> None:
        """Write records of a run, and what is told of its thread now, if nobody has written them
        since they were read.

        Args:
            told: without a status it is that of the thread's state, or of its error.
        """
        thread_id = record["thread_id"]
        seen: list[Put] = [("unfinished", record["run_id"], pointer, record["thread_id"])]
        is_temporary = record["kwargs"]["temporary"]
        thread = None if is_temporary else await self._records.find("threads", thread_id)
        if thread is not None:
            # Its state is read after its record: who writes last has seen the newest one.
            told = told if "status" in told else await self._told_at_end(record, told["error"])
            puts = [*puts, ("threads", thread_id, {**thread, **told, "updated_at": now()})]
            seen.append(("threads", thread_id, thread))
        await self._records.put(*puts, seen=seen)

    async def _told_at_end(self, record: Record, error: Any) -> Record:
        config: Any = {"configurable": {"thread_id": record["thread_id"]}}
        state = await self._graphs[record["graph_id"]].aget_state(config)
        settled = "interrupted" if state.next else "idle"
        return {"status": "error" if error else settled, "error": error}
