"""Writes the record of a run, and of its thread, when it has ended or its job is parked or tried
again. With workers any server may be the first to notice, and several may at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ...checkpoint.errors import DamagedError, UnknownTypeError
from ...pregel.app import Pregel
from ...workers import JobResult, Queue
from ...workers.jobs import OPEN
from ..encode import describe_error, with_questions
from ..records import TAKEN_BACK, Put, Record, Records, now
from ..webhooks import delivery_of
from .execution import forget_steps, last_changes
from .runner import Stop

_STATUS: Final = {
    "waiting": "pending",
    "delayed": "pending",
    "running": "running",
    "sleeping": "running",
    "done": "success",
    "paused": "success",
    "cancelled": "interrupted",
}


async def read_result(queue: Queue, record: Record, wait: float | None) -> JobResult:
    """Return the status and the outcome of a run's job, or what it has become when it ends. A job
    whose outcome cannot be read counts as failed.

    Raises:
        LookupError: the queue no longer has it.
    """
    thread_id, run_id = record["thread_id"], record["run_id"]
    try:
        return await queue.aresult(thread_id, run_id=run_id, wait=wait)
    except (DamagedError, UnknownTypeError) as error:  # the latter is a LookupError, too
        return JobResult(record["graph_id"], thread_id, run_id, "failed", error=error)


def run_status(job: str) -> str:
    """Return the status of a run for the status of its job."""
    return _STATUS.get(job, "error")


def is_as_told(pointer: Record, job: str | None) -> bool:
    """Return whether the records of an unfinished run match the status of its job.

    Args:
        job: the status of the job; None if it is not in the queue.
    """
    return job == "parked" if is_parked(pointer) else job in OPEN


def is_parked(pointer: Record) -> bool:
    """Return whether a run is recorded as a dead letter."""
    return bool(pointer.get("parked"))


class Seen(NamedTuple):
    """The pointer to a run and the record of its thread, as they were read."""

    pointer: Record
    thread: Record | None


class Outcome(NamedTuple):
    """How a run has ended.

    Attributes:
        status: of its record.
        values: the newest state, with the open questions.
        error: describes what the graph has raised, if it has.
        is_over: whether the graph has come to its end, so that no work is left in the thread.
    """

    status: str
    values: Any
    error: Record | None
    is_over: bool


class Settler:
    """Writes the records of runs and threads. The pointer to a parked job stays, since the job may
    be retried.

    Args:
        pins_versions: whether a thread that pauses is noted to wait for the version of its graph.
    """

    def __init__(
        self, graphs: Mapping[str, Pregel], records: Records, *, pins_versions: bool = False
    ) -> None:
        self._graphs, self._records, self._pins = graphs, records, pins_versions

    async def settle(self, record: Record, found: JobResult) -> None:
        """Record that a run has ended or is parked, unless another server already has."""

        async def write() -> None:
            seen = await self._look(record)
            if seen is None or is_as_told(seen.pointer, found.status):
                return
            if found.status == "parked":
                await self._park(record, found, seen)
            elif not found.open:
                values = with_questions(found.value, found.interrupts)
                error = None if found.error is None else describe_error(found.error)
                is_over = _came_to_end(self._graphs[record["graph_id"]], record, found)
                outcome = Outcome(run_status(found.status), values, error, is_over)
                await self._end(record, outcome, seen)

        await self._records.change("threads", record["thread_id"], write)

    async def mark_stopped(self, pointer: Record, how: Stop) -> None:
        """Record how a run is stopped, for whoever settles it. On a thread from which it is taken
        back no run begins before."""
        run_id, thread_id = pointer["run_id"], pointer["thread_id"]
        puts: list[Put] = [("unfinished", run_id, {**pointer, "stopped": how}, thread_id)]
        seen: list[Put] = [("unfinished", run_id, pointer, thread_id)]
        thread = await self._records.find("threads", thread_id) if how == "rollback" else None
        if thread is not None:
            puts.append(("threads", thread_id, {**thread, TAKEN_BACK: run_id}))
            seen.append(("threads", thread_id, thread))
        await self._records.put(*puts, seen=seen)

    async def reopen(self, record: Record) -> None:
        """Record that the parked job of a run is tried again, unless the run has ended since."""
        run_id, thread_id = record["run_id"], record["thread_id"]

        async def write() -> None:
            seen = await self._look(record)
            if seen is None:
                return
            opened = {**record, "status": "pending", "updated_at": now()}
            puts: list[Put] = [
                ("unfinished", run_id, {**seen.pointer, "parked": False}, thread_id),
                ("runs", run_id, opened, thread_id),
            ]
            await self._write(record, seen, puts, {"status": "idle", "error": None})

        await self._records.change("threads", thread_id, write)

    async def _look(self, record: Record) -> Seen | None:
        """Read what is written at the end of a run; None if its end has been recorded."""
        id = record["thread_id"]
        pointer, thread = await self._records.find_all(
            ("unfinished", record["run_id"], id), ("threads", id)
        )
        return None if pointer is None else Seen(pointer, thread)

    async def _park(self, record: Record, found: JobResult, seen: Seen) -> None:
        run_id, thread_id = record["run_id"], record["thread_id"]
        assert found.error is not None
        standing = {"status": "error", "error": describe_error(found.error)}
        failed = {**record, "status": "error", "updated_at": now()}
        puts: list[Put] = [
            ("unfinished", run_id, {**seen.pointer, "parked": True}, thread_id),
            ("runs", run_id, failed, thread_id),
            *delivery_of(failed, None, standing["error"]),
        ]
        await self._write(record, seen, puts, standing)

    async def end(self, record: Record, outcome: Outcome, seen: Seen | None) -> Record | None:
        """Record the end of a run, and return its record then; None if its end has been recorded
        already. The caller holds the lock of the thread's record, and repeats this if the records
        have changed meanwhile.

        Args:
            seen: the records, if they are known.
        """
        seen = seen or await self._look(record)
        return seen and await self._end(record, outcome, seen)

    async def _end(self, record: Record, outcome: Outcome, seen: Seen) -> Record:
        stopped = seen.pointer.get("stopped")
        app = self._graphs[record["graph_id"]]
        await forget_steps(app, record, is_taken_back=stopped == "rollback")
        ended = {**record, "status": outcome.status, "updated_at": now()}
        puts = last_changes(ended, stopped, outcome.values, outcome.error)
        if is_parked(seen.pointer):  # the webhook was already sent when the job was parked
            puts = [put for put in puts if put[0] != "webhooks"]
        standing: Record = {"status": "error", "error": outcome.error}
        if outcome.error is None:
            # The state is read after the record, so that the last server to write has seen the
            # newest one.
            has_work = False
            if stopped or not outcome.is_over:
                config: Any = {"configurable": {"thread_id": record["thread_id"]}}
                has_work = bool((await app.aget_state(config)).next)
            standing["status"] = "interrupted" if has_work else "idle"
        if self._pins and (version := app.program.version) is not None:
            standing["version"] = version if standing["status"] == "interrupted" else None
        await self._write(record, seen, puts, standing)
        return ended

    async def _write(
        self, record: Record, seen: Seen, puts: Sequence[Put], standing: Record
    ) -> None:
        """Write records of a run and the status of its thread, unless they have changed since they
        were read.

        Args:
            standing: the status of the thread, and its error.
        """
        (pointer, thread), id = seen, record["thread_id"]
        checks: list[Put] = [("unfinished", record["run_id"], pointer, id)]
        if thread is not None and not record["kwargs"]["temporary"]:
            free = {key: value for key, value in thread.items() if key != TAKEN_BACK}
            puts = [*puts, ("threads", id, {**free, **standing, "updated_at": now()})]
            checks.append(("threads", id, thread))
        await self._records.put(*puts, seen=checks)


def _came_to_end(app: Pregel, record: Record, found: JobResult) -> bool:
    """Return whether a run has reached the end of its graph, so that no work is left in its
    thread."""
    asked = record["kwargs"]
    stops = (
        *(app.interrupt_before, app.interrupt_after),
        *(asked.get("interrupt_before"), asked.get("interrupt_after")),
    )
    return found.status == "done" and not any(stops) and not app.inbox
