"""The runs of a server with workers: each run is a job in a Postgres queue. Several servers may
share the database; all of them report the same about every run.

The queue holds the status of a run. The first server that learns of the run's end writes the record
that clients see; see `Settler`.

Theory of operation: `submit` writes the record of a run and its pointer, and then the job, in the
queue's own tables. If the server dies in between, another server submits the job,
once: the `run_id` identifies it. A stop is stored in the pointer before the job is cancelled, so
`look` can also finish a stop. A worker runs the job and stores its stream and its outcome in
the queue, without any server. Each server reads the stream from there, with ids computed from a
chunk's position, so a reader may reconnect to any server. A server that waits for the end learns of
it by a notice and settles the run: it writes the record and the thread and deletes the pointer, if
the pointer is still the one that it read. `look` settles runs that nobody waits for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from ...checkpoint.base import ERROR
from ...checkpoint.errors import StorageError
from ...checkpoint.integrity import Integrity
from ...pregel.app import Pregel
from ...pregel.errors import ThreadBusyError
from ...workers import JobResult, Queue, When
from ...workers.jobs import LISTED, OPEN, Status, check_config
from ..encode import describe_error, encode, with_questions
from ..errors import LOG, Refused
from ..events import Events, engine_mode
from ..json_messages import for_clients
from ..limits import OpenRuns
from ..records import Changes, Put, Record, Records, seconds_until
from .execution import read_input, read_options
from .fleet_events import read_events
from .runner import Runner, Stop, puts_of_begin, puts_of_deletion
from .settler import Settler, is_as_told, is_parked, read_result, run_status
from .worker_threads import WorkerThreads

Found = TypeVar("Found")

SECONDS_BETWEEN_LOOKS: Final = 1.0
"""How often a server looks after the runs."""
SECONDS_TO_SUBMIT: Final = 10.0
"""Seconds after which a stored run without a job in the queue is taken for one whose server died
before submitting it."""
KEPT: Final = timedelta(days=1)
"""How long the events of a run can be read after its end."""

SECONDS_TO_COUNT: Final = 0.1
"""How old the count of open runs may be when a run is refused because of it."""


class FleetRuns(Runner):
    """Submits runs to workers and reports on them. The methods are documented in `Runner`.

    Args:
        graphs: the graphs by name, with their checkpointer; the queue of a graph has the same name.
        address: the address of the database with the queue.
        open_runs: refuses runs beyond the limits.
        workers: how many runs of each graph the threads of this process execute at once; 0 leaves
            all to other processes.
        integrity: guards the rows of the queue; all workers need the same.
        serves: as `create_app` has it.
    """

    def __init__(
        self,
        graphs: Mapping[str, Pregel],
        records: Records,
        address: str,
        open_runs: OpenRuns,
        *,
        workers: int,
        integrity: Integrity | None = None,
        serves: Collection[str] = (),
    ) -> None:
        super().__init__(graphs, records, open_runs)
        self._queues = {
            name: Queue(address, name, serde=graph.serde, integrity=integrity)
            for name, graph in graphs.items()
        }
        self._queue = next(iter(self._queues.values()))
        self._looked = 0.0
        self._settler = Settler(graphs, records)
        self._told: set[str] = set()  # graphs that are not served, and have been logged
        self._threads = WorkerThreads(graphs, address, workers, integrity, serves)

    async def open(self) -> None:
        """Start the periodic care and the workers of this process."""
        await super().open()
        await asyncio.to_thread(self._queue.setup)
        await self.look(0.0)
        self._background.add(asyncio.create_task(self.look_for_ever()))
        self._threads.start()

    # -- begin -------------------------------------------------------------------------------------

    async def _check_room(self, owner: str) -> None:
        """Check that one more run may begin. The count of other servers' runs may be a second old,
        so it is updated before a run is refused."""
        try:
            self._open.check(owner)
        except Refused:
            if time.monotonic() - self._looked > SECONDS_TO_COUNT:
                self._count(await self._records.unfinished())
            self._open.check(owner)

    def _count(self, pointers: Sequence[Record]) -> None:
        self._looked = time.monotonic()
        self._open.set(
            {each["run_id"]: each.get("owner") or "" for each in pointers if not is_parked(each)}
        )

    async def _begin(self, record: Record, also: Changes, thread: Record | None) -> None:
        """Store a run, then its job. If the server dies in between, another one submits the job,
        once; see `look`. If the queue does not take the job, what was stored is undone."""
        try:
            check_config(_job_config(record))
        except ValueError as error:
            raise Refused(422, f"{error}") from None
        await self._records.put(*puts_of_begin(record), *also.puts, seen=also.seen)
        try:
            await self.submit_job(record)
        except (ThreadBusyError, ValueError) as error:
            await self._records.put(*puts_of_deletion(record))
            await self._restore_thread(also)
            status = 409 if isinstance(error, ThreadBusyError) else 422
            raise Refused(status, f"{error}") from None

    async def _restore_thread(self, also: Changes) -> None:
        """Undo what a run that was refused has written to the record of its thread."""
        written = [put for put in also.puts if put[0] == "threads"]
        before = [put for put in also.seen if put[0] == "threads"]
        if written:
            await self._records.put(*before, seen=written)

    async def submit_job(self, record: Record) -> None:
        """Submit the job of a run that is stored; once, however often it is called.

        Raises:
            ThreadBusyError: the thread is busy, and the run must not wait.
            ValueError: the queue does not take the job.
        """
        asked = record["kwargs"]
        delay = asked.get("after_seconds")
        multitask = record["multitask_strategy"] if not delay else "enqueue"
        modes = [engine_mode(mode) for mode in asked["stream_mode"]]
        options = {"context": None, **read_options(asked)}
        await self._queues[record["graph_id"]].asubmit(
            record["thread_id"],
            read_input(asked),
            run_id=record["run_id"],
            priority=asked.get("priority", 0),
            fairness_key=record["owner"] or "",
            config=_job_config(record),
            when=When(delay=delay) if delay else None,
            multitask=multitask,
            stream_mode=sorted({*modes}),
            subgraphs=asked["subgraphs"],
            **options,
        )
        if multitask == "rollback":
            await self._records.repeat("runs", lambda: self._note_replaced(record))

    async def _note_replaced(self, record: Record) -> None:
        """Note that the records of the runs that a run has taken back are deleted at their ends;
        delete those of runs whose end another server has already recorded."""
        thread_id, queue = record["thread_id"], self._queues[record["graph_id"]]
        ids = await asyncio.to_thread(queue.replaced_by, record["run_id"], thread_id=thread_id)
        pointers = await self._records.find_all(*(("unfinished", id, thread_id) for id in ids))
        puts: list[Put] = []
        seen: list[Put] = []
        for id, pointer in zip(ids, pointers, strict=True):
            seen.append(("unfinished", id, pointer, thread_id))
            if pointer is None:
                puts.append(("runs", id, None, thread_id))
            else:
                puts.append(("unfinished", id, {**pointer, "stopped": "replaced"}, thread_id))
        await self._records.put(*puts, seen=seen)

    # -- look --------------------------------------------------------------------------------------

    async def answer(self, record: Record) -> bytes | None:
        """Return the state at the end of a run."""
        found = await self._end_of(record)
        if found is None or found.status == "cancelled":
            return None
        if found.error is not None:
            return encode({ERROR: describe_error(found.error)})
        return encode(for_clients(with_questions(found.value, found.interrupts)))

    async def _end_of(self, record: Record) -> JobResult | None:
        """Wait for the end of a run, and settle it. Return the result of its job; None if the queue
        no longer has it, or never will.

        Raises:
            Refused: this server stops first.
        """
        while True:
            try:
                found = await self._unless_stopping(self._result(record, None))
            except LookupError:
                if not await self._comes_later(record):
                    return None
            else:
                await self._settler.settle(record, found)
                return found

    async def events(self, record: Record, start: int | None) -> Events:
        """Yield the events of a run, wherever it runs. The ids are the same on every server."""
        queue = self._queues.get(record["graph_id"])
        while queue is not None and not self.stopping.is_set():
            try:
                async for some in read_events(queue, record, start, self.stopping):
                    yield some
                if not self.stopping.is_set():
                    await self._settler.settle(record, await self._result(record, 0))
                return
            except LookupError:
                if not await self._comes_later(record):
                    return
                start = max(start or 0, 1)  # the event with id 0, if asked for, has been sent

    async def _comes_later(self, record: Record) -> bool:
        """Return whether a run whose job is not in the queue will get one: the server that has
        stored the run may be about to submit it, or has died, and another one will submit it. Waits
        a while if so."""
        if record["graph_id"] not in self._queues:
            return False
        if await self._records.find("unfinished", record["run_id"], record["thread_id"]) is None:
            return False
        await self._stops_within(SECONDS_BETWEEN_LOOKS)
        return True

    async def _result(self, record: Record, wait: float | None) -> JobResult:
        """Return the status and the outcome of a run's job.

        Raises:
            LookupError: the queue has deleted it, or its graph is not served.
        """
        return await read_result(self._queues[record["graph_id"]], record, wait)

    async def status(self, record: Record) -> str:
        """Return the status of a run. A run that has ended is settled first."""
        if record["status"] != "pending":
            return str(record["status"])
        try:
            found = await self._result(record, 0)
        except LookupError:
            return "pending"
        if not found.open:
            await self._settler.settle(record, found)
        return run_status(found.status)

    async def is_busy(self, thread_id: str) -> bool:
        """Return whether a run of the thread is in progress or waits."""
        return any(self._is_at_work(each) for each in await self._records.unfinished(thread_id))

    async def has_open_runs(self, thread_id: str) -> bool:
        """Return whether a run of the thread is in progress, waits, or begins later."""
        found = await self._records.unfinished(thread_id)
        return any(each["graph_id"] in self._graphs and not is_parked(each) for each in found)

    async def busy_threads(self) -> list[str]:
        """Return the threads with runs that are in progress or wait, on all servers."""
        found = await self._records.unfinished()
        return [*{each["thread_id"] for each in found if self._is_at_work(each)}]

    def _is_at_work(self, pointer: Record) -> bool:
        if pointer["graph_id"] not in self._graphs or is_parked(pointer):
            return False
        return seconds_until(pointer["begins_at"]) <= 0

    async def live(self) -> list[Record]:
        """Return the runs that are in progress or wait, on all servers."""
        found = [await self._record(each) for each in await self._records.unfinished()]
        return [each for each in found if each is not None]

    @property
    def queue(self) -> Queue:
        """One of the queues: each can report the jobs and workers of all graphs."""
        return self._queue

    async def _record(self, pointer: Record) -> Record | None:
        return await self._records.find("runs", pointer["run_id"], pointer["thread_id"])

    # -- care --------------------------------------------------------------------------------------

    async def look_for_ever(self) -> None:
        """Look after the runs periodically, until this server stops."""
        forgotten = time.monotonic()
        while not await self._stops_within(SECONDS_BETWEEN_LOOKS):
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
        statuses = await asyncio.to_thread(self._queue.statuses, ids)
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
            await self._settler.settle(record, _without_job(record, "cancelled"))
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
            await self.submit_job(record)
        except (ThreadBusyError, ValueError) as error:
            LOG.warning("the run %s could not be submitted: %s", record["run_id"], error)
            await self._settler.settle(record, _without_job(record, "failed", error))

    # -- stop --------------------------------------------------------------------------------------

    async def cancel(self, record: Record, how: Stop, *, wait: bool = False) -> bool:
        """Stop a run, at the end of its superstep at the latest.

        Raises:
            Refused: it cannot be rolled back, because other runs wait for it.
        """
        if record["graph_id"] not in self._queues:
            return False
        thread_id = record["thread_id"]
        was_open = await self._records.change("threads", thread_id, lambda: self._stop(record, how))
        if wait and was_open:
            await self._end_of(record)
        return was_open

    async def _stop(self, record: Record, how: Stop) -> bool:
        """Store that a run is stopped, and then cancel its job. If this server dies in between, or
        the job is not in the queue yet, `look` does the rest."""
        run_id, thread_id = record["run_id"], record["thread_id"]
        pointer = await self._records.find("unfinished", run_id, thread_id)
        if pointer is None:
            return False
        if how == "rollback":
            await self._refuse_followed(pointer)
        statuses = await asyncio.to_thread(self._queue.statuses, [run_id])
        status = statuses.get((thread_id, run_id))
        if status is not None and status not in LISTED:
            return False  # or the one who settles it would take its steps back
        if how == "rollback" or not pointer.get("stopped"):
            await self._settler.mark_stopped(pointer, how)
        await self._cancel_job(pointer)
        return True

    async def retry(self, job: JobResult) -> bool:
        """Retry a dead letter; see `Runner`."""
        queue = self._queue_of(job.graph)
        was_parked = await asyncio.to_thread(queue.retry, job.run_id, thread_id=job.thread_id)
        record = await self._records.find("runs", job.run_id, job.thread_id)
        if was_parked and record is not None:
            await self._settler.reopen(record)
        return bool(was_parked)

    async def drop(self, job: JobResult) -> bool:
        """End a dead letter; see `Runner`."""
        queue = self._queue_of(job.graph)
        was_open = await asyncio.to_thread(queue.cancel, job.run_id, thread_id=job.thread_id)
        record = await self._records.find("runs", job.run_id, job.thread_id)
        if was_open and record is not None and job.graph in self._queues:
            await self._settler.settle(record, await self._result(record, 0))
        return was_open

    async def forget(self, thread_id: str, run_id: str | None = None) -> None:
        """Cancel the jobs of runs whose records are about to be deleted, and delete those of a
        whole thread with their streams; see `Runner`."""
        for each in await self._records.unfinished(thread_id):
            if run_id in (None, each["run_id"]):
                await self._cancel_job(each)
        if run_id is None:
            graphs = {each["graph_id"] for each in await self._records.search("runs", thread_id)}
            for graph in graphs:
                await asyncio.to_thread(self._queue_of(graph).forget_thread, thread_id)

    async def _cancel_job(self, pointer: Record) -> None:
        """Cancel the job of a run, also if its graph is not served."""
        queue = self._queue_of(pointer["graph_id"])
        await asyncio.to_thread(queue.cancel, pointer["run_id"], thread_id=pointer["thread_id"])

    def _queue_of(self, graph: str) -> Queue:
        return self._queues.get(graph) or self._queue.of_graph(graph)

    async def _refuse_followed(self, pointer: Record) -> None:
        live = await self._records.unfinished(pointer["thread_id"])
        if any(each["run_id"] != pointer["run_id"] for each in live):
            raise Refused(409, "other runs of the thread would begin first: cancel them before")

    async def wait_until_free(self, thread_id: str) -> None:
        """Wait until the runs that a thread has now have ended."""
        for pointer in await self._records.unfinished(thread_id):
            if (record := await self._record(pointer)) is not None:
                await self.answer(record)

    def is_left(self, record: Record) -> bool:
        """Return whether a run continues elsewhere because this server stops."""
        return self.stopping.is_set()

    def _begin_to_stop(self) -> None:
        self.stopping.set()
        self._threads.stop()

    async def close(self, seconds: float) -> None:
        """Stop. Other processes continue what the workers of this process run."""
        self._begin_to_stop()
        await asyncio.to_thread(self._threads.join, seconds)
        if self._background:
            _, late = await asyncio.wait(self._background, timeout=seconds)
            for task in late:  # the database does not answer
                task.cancel()
        for queue in self._queues.values():
            await asyncio.to_thread(queue.close)

    async def _unless_stopping(self, work: Coroutine[Any, Any, Found]) -> Found:
        """Return what a coroutine returns.

        Raises:
            Refused: the server stops first.
        """
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            if not task.done():
                task.cancel()
        if not task.done() or task.cancelled():
            raise Refused(503, "the server stops, and the run goes on: join it at another server")
        return task.result()


def _job_config(record: Record) -> Any:
    """Return the config of a run's job. The thread is not part of it."""
    config = record["kwargs"]["config"]
    given = config["configurable"].items()
    return {**config, "configurable": {key: value for key, value in given if key != "thread_id"}}


def _without_job(record: Record, status: Status, error: Exception | None = None) -> JobResult:
    """Return the result of a run that never got a job."""
    name = (record["graph_id"], record["thread_id"], record["run_id"])
    return JobResult(*name, status, error=error)
