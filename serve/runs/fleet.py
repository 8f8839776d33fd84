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
import threading
import time
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any, Final

from ...checkpoint.base import ERROR
from ...checkpoint.errors import DamagedError, StorageError, UnknownTypeError
from ...checkpoint.integrity import Integrity
from ...pregel.app import Pregel
from ...pregel.errors import ThreadBusyError
from ...workers import ChunksGoneError, JobResult, Queue, When, Worker
from ...workers.jobs import LISTED, OPEN, check_config
from ..encode import describe_error, encode, with_questions
from ..errors import LOG, Refused
from ..events import ChunkEvents, Events, RunEvent, engine_mode, failure
from ..json_messages import for_clients
from ..limits import OpenRuns
from ..records import Changes, Put, Record, Records, seconds_until
from .execution import read_input, read_options
from .runner import Runner, Stop, first_of, puts_of
from .settler import Settler, is_as_told, is_parked, read_result, run_status

SECONDS_TO_COUNT: Final = 0.1
"""How old the count of open runs may be when a run is refused because of it."""
SECONDS_BETWEEN_LOOKS: Final = 1.0
"""How often a server looks after the runs."""
SECONDS_TO_SUBMIT: Final = 10.0
"""Seconds after which a stored run without a job in the queue is taken for one whose server died
before submitting it."""
SECONDS_TO_RETRY: Final = 1.0
"""How long to wait before a worker that failed is started again."""
KEPT: Final = timedelta(days=1)
"""How long the events of a run can be read after its end."""


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
        # Each can report the jobs and workers of all graphs.
        self.queue: Queue = next(iter(self._queues.values()))
        self._settler = Settler(graphs, records)
        self._counted = 0.0
        self._told: set[str] = set()  # graphs that are not served, and have been logged
        self._workers = [
            Worker(
                graph,
                address,
                name=name,
                concurrency=workers,
                integrity=integrity,
                serves=[*serves] if graph.program.version is not None else (),
            )
            for name, graph in graphs.items()
            if workers
        ]
        self._threads: list[threading.Thread] = []

    async def open(self) -> None:
        """Start the periodic care and the workers of this process."""
        await super().open()
        await asyncio.to_thread(self.queue.setup)
        await self.look(0.0)
        self._background.add(asyncio.create_task(self.look_for_ever()))
        for worker in self._workers:
            name = f"stategraph-worker-{worker.name}"
            thread = threading.Thread(target=self._work, args=(worker,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self, worker: Worker) -> None:
        """Let a worker run until this server stops. If it fails, it is started again."""
        while not self.stopping.is_set():
            try:
                worker.run()
            except Exception:
                LOG.exception("the worker of %r has failed; it is started again", worker.name)
                time.sleep(SECONDS_TO_RETRY)

    # -- begin -------------------------------------------------------------------------------------

    async def _begin(self, record: Record, thread: Record, also: Changes) -> None:
        """Store a run, then its job. If the server dies in between, another one submits the job,
        once; see `look`. If the queue does not take the job, what was stored is undone."""
        try:
            check_config(_job_config(record))
        except ValueError as error:
            raise Refused(422, f"{error}") from None
        await self._records.put(*puts_of(record), *also.puts, seen=also.seen)
        try:
            await self.submit_job(record)
        except (ThreadBusyError, ValueError) as error:
            await self._records.put(*puts_of(record, deleted=True))
            written = {put[:2] for put in also.puts}
            before = [put for put in also.seen if put[:2] in written]
            await self._records.put(*before, seen=also.puts)
            status = 409 if isinstance(error, ThreadBusyError) else 422
            raise Refused(status, f"{error}") from None

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
                result, _ = await first_of(self._result(record, None), self.stopping.wait())
                if not result.done() or result.cancelled():
                    why = "the server stops, and the run goes on: join it at another server"
                    raise Refused(503, why)
                found: JobResult = result.result()
            except LookupError:
                if not await self._comes_later(record):
                    return None
            else:
                await self._settle(found)
                return found

    async def events(self, record: Record, start: int | None) -> Events:
        """Yield the events of a run, wherever it runs. The ids are the same on every server."""
        queue = self._queues.get(record["graph_id"])
        while queue is not None and not self.stopping.is_set():
            try:
                async for some in read_events(queue, record, start, self.stopping):
                    yield some
                if not self.stopping.is_set():
                    await self._settle(await self._result(record, 0))
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
            await self._settle(found)
        return run_status(found.status)

    async def _settle(self, found: JobResult) -> None:
        """Record that a run has ended, whose place another one may take at once."""
        await self._settler.settle(found)
        if not found.open:
            self._open.remove(found.run_id)

    async def is_busy(self, thread_id: str) -> bool:
        """Return whether a run of the thread is in progress or waits."""
        return any(self._is_at_work(each) for each in await self._records.unfinished(thread_id))

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
        found = await self._records.unfinished()
        places: Any = (("runs", each["run_id"], each["thread_id"]) for each in found)
        return [each for each in await self._records.find_all(*places) if each is not None]

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

    async def check_room(self, owner: str) -> None:
        try:
            self._open.check(owner)
        except Refused:  # runs that have ended at other servers may be counted still
            if time.monotonic() - self._counted > SECONDS_TO_COUNT:
                await self._count()
            self._open.check(owner)

    async def _count(self) -> list[Record]:
        """Count the open runs of all servers anew; return the pointers to them."""
        self._counted = time.monotonic()
        found = await self._records.unfinished()
        self._open.set({each["run_id"]: each["owner"] for each in found if not is_parked(each)})
        return found

    async def look(self, patience: float) -> None:
        """Settle runs whose end nobody has waited for, submit those whose servers died before they
        could, if they were created at least `patience` seconds ago, and cancel those that were
        stopped."""
        pointers = await self._count()
        if not pointers:
            return
        ids = [each["run_id"] for each in pointers]
        statuses = await asyncio.to_thread(self.queue.statuses, ids)
        for pointer in pointers:
            status = statuses.get((pointer["thread_id"], pointer["run_id"]))
            try:
                is_new = -seconds_until(pointer["created_at"]) < patience
                if not is_as_told(pointer, status) and not (status is None and is_new):
                    await self._update(pointer, status)
                elif pointer.get("stopped") and status in LISTED:
                    await self._cancel_job(pointer)  # nobody has, or no job was there yet
            except StorageError:
                raise
            except Exception:  # such as an outcome that cannot be read: the others go on
                LOG.exception("the server could not look after the run %s", pointer["run_id"])

    async def _update(self, pointer: Record, status: str | None) -> None:
        """Update the record of a run to the status of its job. Without a job, submit it, or end the
        run if it was stopped."""
        run_id, thread_id, graph_id = (pointer[n] for n in ("run_id", "thread_id", "graph_id"))
        record = await self._records.find("runs", run_id, thread_id)
        if record is None:  # it was deleted
            await self._cancel_job(pointer)
            await self._records.put(("unfinished", run_id, None, thread_id))
        elif status in OPEN:
            await self._settler.reopen(run_id, thread_id)
        elif graph_id not in self._queues:
            if graph_id not in self._told:
                self._told.add(graph_id)
                LOG.warning("runs of the graph %r, which is not served, stay pending", graph_id)
        elif status is None and pointer.get("stopped"):
            await self._settle(JobResult(graph_id, thread_id, run_id, "cancelled"))
        elif status is None:
            try:
                await self.submit_job(record)
            except (ThreadBusyError, ValueError) as error:
                LOG.warning("the run %s could not be submitted: %s", run_id, error)
                failed = JobResult(graph_id, thread_id, run_id, "failed", error=error)
                await self._settle(failed)
        else:
            await self._settle(await self._result(pointer, 0))

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
        live = await self._records.unfinished(thread_id) if how == "rollback" else ()
        if any(each["run_id"] != run_id for each in live):
            raise Refused(409, "other runs of the thread would begin first: cancel them before")
        statuses = await asyncio.to_thread(self.queue.statuses, [run_id])
        status = statuses.get((thread_id, run_id))
        if status is not None and status not in LISTED:
            return False  # or the one who settles it would take its steps back
        if how == "rollback" or not pointer.get("stopped"):
            await self._settler.mark_stopped(pointer, how)
        await self._cancel_job(pointer)
        return True

    async def release(self, job: JobResult, *, to_retry: bool) -> bool:
        """Retry or end a dead letter; see `Runner`."""
        queue = self._queue_of(job.graph)
        act = queue.retry if to_retry else queue.cancel
        was_parked = await asyncio.to_thread(act, job.run_id, thread_id=job.thread_id)
        if was_parked and to_retry:
            await self._settler.reopen(job.run_id, job.thread_id)
        elif was_parked and job.graph in self._queues:  # or was retried just before, and is at work
            where = {"graph_id": job.graph, "thread_id": job.thread_id, "run_id": job.run_id}
            await self._settle(await self._result(where, 0))
        return was_parked

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
        return self._queues.get(graph) or self.queue.of_graph(graph)

    def _begin_to_stop(self) -> None:
        self.stopping.set()
        for worker in self._workers:
            worker.stop()

    async def close(self, seconds: float) -> None:
        """Stop. Other processes continue what the workers of this process run, also what they
        still run when the time is over."""
        self._begin_to_stop()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            await asyncio.to_thread(thread.join, max(0.0, deadline - time.monotonic()))
        if self._background:
            _, late = await asyncio.wait(self._background, timeout=seconds)
            for task in late:  # the database does not answer
                task.cancel()
        for queue in self._queues.values():
            await asyncio.to_thread(queue.close)


def _job_config(record: Record) -> Any:
    """Return the config of a run's job. The thread is not part of it."""
    config = record["kwargs"]["config"]
    given = config["configurable"].items()
    return {**config, "configurable": {key: value for key, value in given if key != "thread_id"}}


# -- fleet events ----------------------------------------------------------------------------------
# Turns the stored stream of a job into events, whose ids are the same on every server.

_EACH: Final = 4
"""How many ids are reserved for a chunk, which makes at most three events. Those of chunk 0 are for
the event `metadata`."""


async def read_events(
    queue: Queue, record: Record, start: int | None, stopping: asyncio.Event
) -> Events:
    """Yield the events of a run from an id on, until it ends.

    Args:
        start: the first id; None for only the events that are still to come.
        stopping: ends the events when it is set.

    Raises:
        LookupError: nothing is stored of the run any more.
    """
    thread_id, run_id = record["thread_id"], record["run_id"]
    if start is None:
        start = (await queue.alast_chunk(thread_id, run_id=run_id) + 1) * _EACH
    if start <= 0:
        yield [RunEvent(0, "metadata", (), encode({"run_id": run_id, "attempt": 1}))]
    events = ChunkEvents(record["kwargs"])
    last = after = 0 if events.has_memory else max(0, start // _EACH - 1)
    chunks = queue.astream(thread_id, run_id=run_id, after=after)
    try:
        while True:
            # Not awaited here: when a client leaves, its request is cancelled at every `await`, so
            # it could not wait until the read in progress has ended.
            read, _ = await first_of(anext(chunks, None), stopping.wait())
            if not read.done() or (chunk := read.result()) is None:
                break
            last = chunk.seq
            for place, told in enumerate(events.of(chunk.ns, chunk.mode, chunk.data)):
                kind, data, ns = told
                if (id := chunk.seq * _EACH + place) >= start:
                    yield [RunEvent(id, kind, ns, encode(data))]
    except ChunksGoneError as error:
        yield [failure({"error": "TooSlow", "message": str(error)})]
        return
    except (DamagedError, UnknownTypeError) as error:  # a chunk that cannot be read
        yield [failure(describe_error(error))]
        return
    if stopping.is_set():
        return
    found = await read_result(queue, record, 0)
    if found.error is not None and (id := (last + 1) * _EACH) >= start:
        yield [failure(describe_error(found.error), id)]
