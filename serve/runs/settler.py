"""Writes the record of a run, and of its thread, when it has ended or its job is parked or tried
again. With workers any server may be the first to notice, and several may at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...checkpoint.errors import DamagedError, UnknownTypeError
from ...pregel.app import Pregel
from ...pregel.names import COPY
from ...workers.jobs import OPEN, JobResult
from ..encode import describe_error, with_questions
from ..records import TAKEN_BACK, Put, Record, Records, now
from ..webhooks import delivery_of
from .runner import Stop

if TYPE_CHECKING:
    from ...workers import Queue  # psycopg: a server without a queue starts sooner

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
    """The pointer to a run, the record of its thread and its own, as they were read."""

    pointer: Record
    thread: Record | None
    run: Record


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

    async def settle(self, found: JobResult) -> None:
        """Record that a run has ended or is parked, as its job says, unless another server already
        has."""

        async def write() -> None:
            seen = await self._look(found.run_id, found.thread_id)
            if seen is None or is_as_told(seen.pointer, found.status):
                return
            error = None if found.error is None else describe_error(found.error)
            if found.status == "parked":
                await self._mark(seen, error)
            elif not found.open:
                values = with_questions(found.value, found.interrupts)
                app, asked = self._graphs[found.graph], seen.run["kwargs"]
                stops = asked.get("interrupt_before") or asked.get("interrupt_after")
                stops = stops or app.interrupt_before or app.interrupt_after
                is_over = found.status == "done" and not stops and not app.inbox
                await self._end(seen, Outcome(run_status(found.status), values, error, is_over))

        await self._records.change("threads", found.thread_id, write)

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

    async def reopen(self, run_id: str, thread_id: str) -> None:
        """Record that the parked job of a run is tried again, unless the run has ended since."""

        async def write() -> None:
            if (seen := await self._look(run_id, thread_id)) is not None:
                await self._mark(seen, None)

        await self._records.change("threads", thread_id, write)

    async def _look(self, run_id: str, id: str) -> Seen | None:
        """Read what is written at the end of a run; None if its end has been recorded."""
        pointer, thread, record = await self._records.find_all(
            ("unfinished", run_id, id), ("threads", id), ("runs", run_id, id)
        )
        return None if pointer is None or record is None else Seen(pointer, thread, record)

    async def _mark(self, seen: Seen, error: Record | None) -> None:
        """Record that the job of a run is parked because of an error, which its webhook gets; or,
        without one, that it is tried again."""
        run_id, thread_id = seen.run["run_id"], seen.run["thread_id"]
        run = {**seen.run, "status": "error" if error else "pending", "updated_at": now()}
        puts: list[Put] = [
            ("unfinished", run_id, {**seen.pointer, "parked": bool(error)}, thread_id),
            ("runs", run_id, run, thread_id),
            *(delivery_of(run, None, error) if error else ()),
        ]
        await self._write(seen, puts, {"status": "error" if error else "idle", "error": error})

    async def end(self, run: Record, outcome: Outcome, seen: Seen | None) -> Record | None:
        """Record the end of a run, and return its record then; None if its end has been recorded
        already. The caller holds the lock of the thread's record, and repeats this if the records
        have changed meanwhile.

        Args:
            seen: the records, if they are known.
        """
        seen = seen or await self._look(run["run_id"], run["thread_id"])
        return seen and await self._end(seen, outcome)

    async def _end(self, seen: Seen, outcome: Outcome) -> Record:
        record, stopped = seen.run, seen.pointer.get("stopped")
        app, id, thread_id = self._graphs[record["graph_id"]], record["run_id"], record["thread_id"]
        is_temporary = record["kwargs"]["temporary"]
        if is_temporary or stopped == "rollback":
            await _forget_steps(app, thread_id, None if is_temporary else id)
        ended = {**record, "status": outcome.status, "updated_at": now()}
        is_kept = not is_temporary and stopped not in ("rollback", "replaced")
        puts: list[Put] = [
            ("unfinished", id, None, thread_id),
            ("runs", id, ended if is_kept else None, thread_id),
        ]
        if not is_parked(seen.pointer):  # or the webhook was sent when the job was parked
            puts += delivery_of(ended, None if outcome.error else outcome.values, outcome.error)
        standing: Record = {"status": "error", "error": outcome.error}
        if outcome.error is None:
            # The state is read after the record, so that the last server to write has seen the
            # newest one. The end of a later run may have been recorded before.
            has_work = False
            if stopped or not outcome.is_over or (seen.thread or {}).get("status") != "idle":
                config: Any = {"configurable": {"thread_id": thread_id}}
                has_work = bool((await app.aget_state(config)).next)
            standing["status"] = "interrupted" if has_work else "idle"
        if self._pins and (version := app.program.version) is not None:
            standing["version"] = version if standing["status"] == "interrupted" else None
        await self._write(seen, puts, standing)
        return ended

    async def _write(self, seen: Seen, puts: Sequence[Put], standing: Record) -> None:
        """Write records of a run and the status of its thread, unless they have changed since they
        were read.

        Args:
            standing: the status of the thread, and its error.
        """
        pointer, thread, record = seen
        id = record["thread_id"]
        checks: list[Put] = [("unfinished", record["run_id"], pointer, id)]
        if thread is not None and not record["kwargs"]["temporary"]:
            free = {key: value for key, value in thread.items() if key != TAKEN_BACK}
            puts = [*puts, ("threads", id, {**free, **standing, "updated_at": now()})]
            checks.append(("threads", id, thread))
        await self._records.put(*puts, seen=checks)


async def _forget_steps(app: Pregel, thread_id: str, run_id: str | None) -> None:
    """Return a thread to the state before a run, whose steps stay in the history. If the thread
    began with the run, or without a run, delete it. Idempotent."""
    thread: Any = {"configurable": {"thread_id": thread_id}}
    saver: Any = app.checkpointer
    before = None
    if run_id is not None:
        steps = [step async for step in saver.alist(thread, filter={"run_id": run_id})]
        if not steps:
            return
        before = steps[-1].parent_config
    if before is None:
        await saver.adelete_thread(thread_id)
    else:
        await app.aupdate_state(before, None, as_node=COPY)
