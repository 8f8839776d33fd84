"""The runs of this server, in its event loop; those of one thread run one after the other. A run is
stored before it begins, so a server that was killed continues it when it starts again.

Theory of operation: a run has a record, which clients see, and until it ends a pointer among the
"unfinished", which the next server looks for. `submit` writes both atomically, together with the
stops of the runs that it replaces. Then the run waits in the lane of its thread, in a task of its
own, until it is the first. Its end is written atomically: the record and the thread are updated,
and the pointer is deleted. So a crash leaves either a pointer or an end. The next server repeats
each run with a pointer under the same `run_id`, by which the graph takes its input only once; a run
whose pointer says `stopped` ends without being run.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Final

from ...checkpoint.base import ERROR, BaseCheckpointSaver, CheckpointTuple
from ...checkpoint.errors import DamagedError, StoredError, UnknownTypeError
from ...pregel.app import Pregel
from ...pregel.drivers import aio, limit  # noqa: F401 - or the first run would wait for them
from ...pregel.errors import GraphDrained
from ...pregel.log import log_failed_run
from ...pregel.names import GRAPH
from ...pregel.program.version import find_version
from ..encode import with_questions
from ..errors import LOG, Refused
from ..events import Events, KeptBytes
from ..limits import OpenRuns
from ..records import Changes, Put, Record, Records, pointer_to, seconds_until
from .execution import EndedRuns, Execution, stream_run
from .runner import Runner, Stop, puts_of
from .settler import Outcome, Seen, Settler

PAUSES: Final = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds between attempts to store the end of a run. Clients that wait for it are answered after
the first."""


class Runs(Runner):
    """Begins, watches and stops runs in this process.

    Args:
        graphs: the graphs by name, with their checkpointer.
        open_runs: refuses runs beyond the limits.
        serves: as `create_app` has it.
    """

    def __init__(
        self,
        graphs: Mapping[str, Pregel],
        records: Records,
        open_runs: OpenRuns,
        serves: Collection[str] = (),
    ) -> None:
        super().__init__(graphs, records, open_runs)
        self._serves = serves
        self._settler = Settler(graphs, records, pins_versions=True)
        # By thread, the runs whose time has come; the first is being executed. To change one, hold
        # the lock of the thread's record until the change is stored.
        self._lanes: dict[str, list[Execution]] = {}
        self._ended = EndedRuns()
        self._kept = KeptBytes()  # the events of live runs
        self._live: dict[str, Execution] = {}
        self._stopped_at = 0.0  # when the stop began, by the monotonic clock

    # -- begin -------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Continue the runs that an earlier server has left. Runs of graphs, or of versions of
        them, that are not served stay as they are."""
        await super().open()
        passed_over: Counter[str] = Counter()
        for pointer in await self._left():
            record = await self._records.find("runs", pointer["run_id"], pointer["thread_id"])
            if record is None:
                continue
            app = self._graphs.get(record["graph_id"])
            if app is None or (pointer.get("stopped") is None and await self._passes(app, record)):
                passed_over[record["graph_id"]] += 1
            else:
                first_id = int(time.time() * 1000)  # higher than those of the previous process
                self._enqueue(Execution(record, pointer.get("stopped"), first_id, self._kept))
        if passed_over:
            text = "runs of graphs, or of versions, that are not served stay pending: %s"
            LOG.warning(text, dict(passed_over))

    async def _left(self) -> list[Record]:
        """Return the pointers to the runs of an earlier server in the order of their lanes. A run
        that had begun comes first, whatever the clock says: a new input drops what is pending."""
        left = await self._records.unfinished()
        lanes = Counter(each["thread_id"] for each in left)
        begun = set()
        for each in left:
            app = self._graphs.get(each["graph_id"]) if lanes[each["thread_id"]] > 1 else None
            head = app and await _head(app, each["thread_id"])
            if head and head.metadata.get("run_id") == each["run_id"]:
                begun.add(each["run_id"])
        return sorted(left, key=lambda each: (each["run_id"] not in begun, each["begins_at"]))

    def leaves(self, app: Pregel, version: str | None) -> bool:
        """Return whether this version of a graph is none that is served; see `Runner`."""
        return version not in (None, app.program.version, *self._serves)

    async def _passes(self, app: Pregel, record: Record) -> bool:
        """Return whether a run, or its thread, belongs to a version that is not served; then new
        runs of the thread are refused as well."""
        id = record["thread_id"]
        thread = await self._records.find("threads", id)
        wanted = thread.get("version") if thread else None
        head = await _head(app, id)
        if head is not None and head.metadata.get("run_id") == record["run_id"]:
            wanted = find_version(head.checkpoint["versions_seen"].get(GRAPH, {}))
        if not self.leaves(app, wanted):
            return False
        if thread is not None:
            await self._records.put(("threads", id, {**thread, "version": wanted}))
        return True

    def _enqueue(self, execution: Execution) -> None:
        """Put a run into the lane of its thread, once its delay is over."""
        self._live[execution.id] = execution
        self._open.add(execution.id, execution.owner)
        seconds = seconds_until(pointer_to(execution.record)["begins_at"])
        if seconds <= 0 or execution.stopped is not None:
            seconds = 0.0
            self._lanes.setdefault(execution.thread_id, []).append(execution)
        work = self._work(execution, seconds)
        asyncio.create_task(work)  # noqa: RUF006 its first step makes it the `worker`

    async def _begin(self, record: Record, thread: Record, also: Changes) -> None:
        """Store a run, and begin it as soon as its thread is free; see `Runner`."""
        execution = self._live[record["run_id"]] = Execution(record, kept=self._kept)
        execution.thread = thread
        try:
            await self._store(execution, also)
        except BaseException:
            del self._live[execution.id]
            raise
        if self.stopping.is_set():
            execution.leave()
        else:
            self._enqueue(execution)

    async def _store(self, execution: Execution, also: Changes) -> None:
        """Store a new run and, in the same write, the stops of the runs that it replaces."""
        before = self._lanes.get(execution.thread_id, [])
        is_later = bool(execution.record["kwargs"].get("after_seconds"))
        strategy: Any = "enqueue" if is_later else execution.record["multitask_strategy"]
        if before and strategy == "reject":
            raise Refused(
                409,
                "the thread is busy: wait for its run to end, or choose another multitask_strategy",
            )
        stopped = [*before] if strategy in ("interrupt", "rollback") else []
        await self._records.put(
            *puts_of(execution.record),
            *(_put_of_stop(each, strategy) for each in stopped),
            *also.puts,
            seen=also.seen,
        )
        for each in stopped:
            self._stop(each, strategy)

    # -- the runs of a thread ----------------------------------------------------------------------

    async def _work(self, execution: Execution, seconds: float) -> None:
        """Execute a run when its time and its turn have come, and store its end. A run that is
        stopped before that ends at once."""
        id, lane = execution.thread_id, self._lanes.get(execution.thread_id, [])
        execution.worker = asyncio.current_task()  # a task that has not begun must not be cancelled
        try:
            if execution.stopped is None and not execution.is_left:
                if execution not in lane:
                    await asyncio.sleep(seconds)
                    lane = self._lanes.setdefault(id, [])
                    lane.append(execution)
                while lane[0] is not execution:
                    assert lane[0].worker is not None
                    await asyncio.wait([lane[0].worker])
                app = self._graphs[execution.record["graph_id"]]
                execution.task = asyncio.create_task(stream_run(app, execution))
                await asyncio.wait([execution.task])
        except asyncio.CancelledError:
            if execution.task is not None or not (execution.stopped or execution.is_left):
                raise
        if execution.task is None and execution.is_left:
            return
        try:
            async with self._records.lock("threads", id):
                await self._finish(execution)
                self._leave_lane(execution)
        finally:  # the next one's turn comes whatever happens
            self._leave_lane(execution)
            self._release(execution)  # last, so that whoever has waited finds the thread idle

    def _leave_lane(self, execution: Execution) -> None:
        lane = self._lanes.get(execution.thread_id, [])
        if execution in lane:
            lane.remove(execution)
            if not lane:
                del self._lanes[execution.thread_id]

    async def _finish(self, execution: Execution) -> None:
        """Store the end of a run. Never raises: the next server continues a run whose end cannot be
        stored."""
        status = self._status_at_end(execution)
        if status is None:
            execution.is_left = True
            return
        values = execution.result
        for pause in (*PAUSES, 0.0):
            try:
                await self._write_end(execution, status, values)
                return
            except Exception:
                LOG.exception("the end of the run %s could not be stored", execution.id)
            execution.record = {**execution.record, "status": status}  # final, though not stored
            execution.close()
            if self.stopping.is_set():
                break
            await self._stops_within(pause)

    async def _write_end(self, execution: Execution, status: str, values: Any) -> None:
        """Store the end of a run with its newest state.

        Raises:
            Exception: the database does not take it. It may be repeated.
        """
        app, record = self._graphs[execution.record["graph_id"]], execution.record
        error = values[ERROR] if status == "error" else None
        if execution.control.paused:  # the last values that were sent may lack some questions
            state = await app.aget_state({"configurable": {"thread_id": execution.thread_id}})
            values = execution.result = with_questions(values, state.interrupts)
        is_over = execution.control.paused is False and not execution.stopped and not app.inbox
        outcome = Outcome(status, values, error, is_over)

        async def end() -> Record | None:
            thread, execution.thread = execution.thread, None  # if it has changed, all is read anew
            known = Seen(pointer_to(record, execution.stopped), thread, record) if thread else None
            return await self._settler.end(record, outcome, known)

        ended = await self._records.repeat("threads", end)
        execution.record = ended or {**record, "status": status}

    def _release(self, execution: Execution) -> None:
        """Tell all readers that a run has ended here, and keep it for those that reconnect."""
        self._live.pop(execution.id, None)
        self._open.remove(execution.id)
        execution.close()
        self._ended.add(execution)

    def _status_at_end(self, execution: Execution) -> str | None:
        """Return the status with which a run has ended; None if the next server continues it."""
        task = execution.task
        if task is None:
            return "interrupted"
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            return "success"
        if isinstance(error, GraphDrained | asyncio.CancelledError):
            if execution.stopped is not None:
                return "interrupted"
            if self.stopping.is_set():
                return None
        execution.fail(error)
        ids = {name: execution.record[name] for name in ("run_id", "thread_id")}
        graph, user = execution.record["graph_id"], execution.record["owner"] or None
        log_failed_run(LOG, error, **ids, graph=graph, user=user)
        return "error"

    # -- look --------------------------------------------------------------------------------------

    async def answer(self, record: Record) -> bytes | None:
        """Return the state at the end of a run; see `Runner`."""
        execution = self._find(record["run_id"])
        return None if execution is None else await execution.answer()

    async def events(self, record: Record, start: int | None) -> Events:
        """Yield the events of a run; see `Runner`. Those of runs that ended long ago are no longer
        kept."""
        execution = self._find(record["run_id"])
        if execution is not None:
            first = execution.events.next_id if start is None else start
            async for some in execution.events.read(first):
                yield some

    async def status(self, record: Record) -> str:
        """Return the current status of a run."""
        execution = self._find(record["run_id"])
        if execution is None:
            return str(record["status"])
        is_running = execution.task is not None and execution.record["status"] == "pending"
        return "running" if is_running and not execution.is_left else execution.record["status"]

    async def is_busy(self, thread_id: str) -> bool:
        """Return whether a run of the thread is in progress or waits."""
        return thread_id in self._lanes

    async def busy_threads(self) -> list[str]:
        """Return the threads with runs that are in progress or wait."""
        return [*self._lanes]

    async def live(self) -> list[Record]:
        """Return the runs that are in progress or wait."""
        return [each.record for each in self._live.values()]

    def recall(self, run_id: str) -> Record | None:
        """Return a run of this process, even if it has ended recently."""
        execution = self._find(run_id)
        return None if execution is None else execution.record

    def _find(self, run_id: str) -> Execution | None:
        return self._live.get(run_id) or self._ended.find(run_id)

    # -- stop --------------------------------------------------------------------------------------

    async def cancel(self, record: Record, how: Stop, *, wait: bool = False) -> bool:
        """Stop a run at once, in this server or the next; see `Runner`."""
        execution = self._live.get(record["run_id"])
        if execution is None:
            return False
        async with self._records.lock("threads", execution.thread_id):
            if self._live.get(execution.id) is not execution:
                return False
            await self._records.put(_put_of_stop(execution, how))
            self._stop(execution, how)
        if wait or execution.task is None:  # what has not begun ends at once
            await execution.ended.wait()
        return True

    async def forget(self, thread_id: str, run_id: str | None = None) -> None:
        """Drop what is kept of ended runs; see `Runner`."""
        self._ended.forget(thread_id, run_id)

    def _stop(self, execution: Execution, how: Stop) -> None:
        """Stop a run. The stop has been stored."""
        was = execution.stopped
        if was != "rollback":
            execution.stopped = how
        if execution.task is not None:
            execution.task.cancel()
        elif was is None and execution.worker is not None:  # else it is storing the end already
            execution.worker.cancel()

    def _begin_to_stop(self) -> None:
        """Let the current runs pause at their next barrier, and leave the others."""
        if self.stopping.is_set():
            return
        self.stopping.set()
        self._stopped_at = time.monotonic()
        for execution in self._live.values():
            execution.control.request_drain("the server stops")
            if execution.task is None and execution.stopped is None:
                execution.leave()
                if execution.worker is not None:
                    execution.worker.cancel()

    async def close(self, seconds: float) -> None:
        """Let all runs pause at their next barrier; the next server continues them. Runs that take
        longer than this many seconds from the beginning of the stop are cancelled."""
        self._begin_to_stop()
        left = self._stopped_at + seconds - time.monotonic()
        workers = {each.worker for each in self._live.values() if each.worker is not None}
        if workers:
            await asyncio.wait(workers, timeout=max(0.0, left))
        for execution in self._live.values():
            if execution.task is not None:
                execution.task.cancel()
        if left_over := workers | self._background:
            await asyncio.wait(left_over, timeout=seconds)  # a database may not answer


async def _head(app: Pregel, thread_id: str) -> CheckpointTuple | None:
    saver = app.checkpointer
    assert isinstance(saver, BaseCheckpointSaver)
    with suppress(DamagedError, StoredError, UnknownTypeError):  # the run itself will tell
        return await saver.aget_tuple({"configurable": {"thread_id": thread_id}})
    return None


def _put_of_stop(execution: Execution, how: Stop) -> Put:
    """Return what is written when a run is stopped: the pointer to it says how."""
    how = "rollback" if execution.stopped == "rollback" else how
    return "unfinished", execution.id, pointer_to(execution.record, how), execution.thread_id
