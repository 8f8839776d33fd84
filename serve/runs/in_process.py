"""The runs of this server, in its event loop; those of one thread run one after the other. A run is
stored before it begins, so a server that was killed continues it when it starts again.

Theory of operation: a run has a record, which clients see, and until it ends a pointer among the
"unfinished", which the next server looks for. `submit` writes both atomically, together with the
stops of the runs that it replaces. Then the run waits in the lane of its thread. The lane's worker
executes one run after the other, and the end is written atomically: the record and the thread
are updated, and the pointer is deleted. So a crash leaves either a pointer or an end. The next
server repeats each run with a pointer under the same `run_id`, by which the graph takes its input
only once; a run whose pointer says `stopped` ends without being run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from ...checkpoint.base import ERROR, BaseCheckpointSaver
from ...checkpoint.errors import DamagedError, StoredError, UnknownTypeError
from ...pregel.app import Pregel
from ...pregel.drivers import aio, limit  # noqa: F401 - or the first run would wait for them
from ...pregel.errors import GraphDrained
from ...pregel.log import log_failed_run
from ...pregel.names import GRAPH
from ...pregel.program.version import find_version
from ...store.base import ItemChangedError
from ..errors import Refused
from ..events.event import Events
from ..events.log import KeptBytes
from ..limits import OpenRuns
from ..records import Changes, Put, Record, Records, now, pointer_to, seconds_until
from .execution import EndedRuns, Execution, forget_steps, last_changes, stream_run
from .runner import Runner, Stop, puts_of_begin

LOG = logging.getLogger("stategraph.serve")

PAUSES: Final = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds between attempts to store the end of a run. Clients that wait for it are answered after
the first."""


@dataclass
class _Lane:
    """The runs of one thread: the current one, and those that wait for it.

    To change them, hold the lock of the thread's record until the change is stored.
    """

    waiting: deque[Execution] = field(default_factory=deque)
    current: Execution | None = None
    worker: asyncio.Task[None] | None = None

    def live(self) -> list[Execution]:
        return [*([self.current] if self.current else []), *self.waiting]


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
        self._lanes: dict[str, _Lane] = {}
        self._ended = EndedRuns()
        self._kept = KeptBytes()  # the events of live runs
        self._live: dict[str, Execution] = {}
        self._later: dict[str, asyncio.TimerHandle] = {}  # of delayed runs that have not begun
        self._stopped_at = 0.0  # when the stop began, by the monotonic clock

    # -- begin -------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Continue the runs that an earlier server has left. Runs of graphs, or of versions of
        them, that are not served stay as they are."""
        await super().open()
        passed_over: Counter[str] = Counter()
        for pointer in await self._records.unfinished():
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

    def leaves(self, app: Pregel, version: str | None) -> bool:
        """Return whether this version of a graph is none that is served; see `Runner`."""
        return version not in (None, app.program.version, *self._serves)

    async def _passes(self, app: Pregel, record: Record) -> bool:
        """Return whether a run, or its thread, belongs to a version that is not served; then new
        runs of the thread are refused as well."""
        id, saver = record["thread_id"], app.checkpointer
        assert isinstance(saver, BaseCheckpointSaver)
        thread = await self._records.find("threads", id)
        wanted = thread.get("version") if thread else None
        head = None
        with suppress(DamagedError, StoredError, UnknownTypeError):  # the run itself will tell
            head = await saver.aget_tuple({"configurable": {"thread_id": id}})
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
        if seconds > 0 and execution.stopped is None:
            loop = asyncio.get_running_loop()
            self._later[execution.id] = loop.call_later(seconds, self._begin_later, execution)
            return
        lane = self._lanes.setdefault(execution.thread_id, _Lane())
        lane.waiting.append(execution)
        if lane.worker is None:
            lane.worker = asyncio.create_task(self._work(execution.thread_id, lane))

    def _begin_later(self, execution: Execution) -> None:
        del self._later[execution.id]
        self._enqueue(execution)

    async def _begin(self, record: Record, also: Changes, thread: Record | None) -> None:
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
        before = self._live_of(execution.thread_id)
        is_later = bool(execution.record["kwargs"].get("after_seconds"))
        strategy: Any = "enqueue" if is_later else execution.record["multitask_strategy"]
        if before and strategy == "reject":
            raise Refused(
                409,
                "the thread is busy: wait for its run to end, or choose another multitask_strategy",
            )
        stopped = before if strategy in ("interrupt", "rollback") else []
        await self._records.put(
            *puts_of_begin(execution.record),
            *(
                ("unfinished", each.id, pointer_to(each.record, strategy), each.thread_id)
                for each in stopped
            ),
            *also.puts,
            seen=also.seen,
        )
        for each in stopped:
            await self._stop(each, strategy)

    # -- the runs of a thread ----------------------------------------------------------------------

    def _live_of(self, thread_id: str) -> list[Execution]:
        return self._lanes.get(thread_id, _Lane()).live()

    async def _work(self, thread_id: str, lane: _Lane) -> None:
        """Execute the waiting runs, one after the other."""
        while lane.waiting and not self.stopping.is_set():
            execution = lane.current = lane.waiting.popleft()
            if execution.stopped is None:
                app = self._graphs[execution.record["graph_id"]]
                execution.task = asyncio.create_task(stream_run(app, execution))
                await asyncio.wait([execution.task])
            async with self._records.lock("threads", thread_id):
                await self._finish(execution)
                lane.current = None
                self._drop_idle(thread_id, lane)
            self._release(execution)  # last, so that whoever has waited finds the thread idle
        lane.worker = None
        self._drop_idle(thread_id, lane)

    def _drop_idle(self, thread_id: str, lane: _Lane) -> None:
        """Drop a lane that has no runs; a later run creates a new one."""
        if not lane.live() and self._lanes.get(thread_id) is lane:
            del self._lanes[thread_id]

    async def _finish(self, execution: Execution) -> None:
        """Store the end of a run. Never raises: the next server continues a run whose end cannot be
        stored."""
        status = self._status_at_end(execution)
        if status is None:
            execution.is_left = True
            return
        for pause in (*PAUSES, 0.0):
            try:
                await self._write_end(execution, status)
                break
            except Exception:
                LOG.exception("the end of the run %s could not be stored", execution.id)
            execution.close()
            if self.stopping.is_set():
                break
            await self._stops_within(pause)

    async def _write_end(self, execution: Execution, status: str) -> None:
        """Store the end of a run: its record, the status of its thread, its webhook, and that it
        has no pointer any more.

        Raises:
            Exception: the database does not take it. It may be repeated.
        """
        record = {**execution.record, "status": status, "updated_at": now()}
        app = self._graphs[record["graph_id"]]
        await forget_steps(app, record, is_taken_back=execution.stopped == "rollback")
        standing, failed = None, execution.result[ERROR] if status == "error" else None
        if not record["kwargs"]["temporary"]:
            settled = "error" if failed else await self._settled(execution)
            standing = {"status": settled, "error": failed, "updated_at": now()}
            if (version := app.program.version) is not None:
                standing["version"] = version if settled == "interrupted" else None
        execution.record = record  # from here on its status is final, even if storing it fails
        changes = last_changes(record, execution.stopped, execution.result, failed)
        await self._put_end(execution, changes, standing)

    async def _settled(self, execution: Execution) -> str:
        """Return a thread's status after a run, which depends on whether work is left in it."""
        app = self._graphs[execution.record["graph_id"]]
        if execution.control.paused is False and not execution.stopped and not app.inbox:
            return "idle"  # the graph has ended
        config: Any = {"configurable": {"thread_id": execution.thread_id}}
        state = await app.aget_state(config)
        if execution.control.paused and state.interrupts:
            execution.ask(state.interrupts)
        return "interrupted" if state.next else "idle"

    async def _put_end(
        self, execution: Execution, changes: list[Put], standing: Record | None
    ) -> None:
        """Write the end of a run and the status of its thread, or None if the thread was deleted
        with the run. The thread's record is read unless the one with which the run was begun is
        still current."""
        id, thread = execution.thread_id, execution.thread
        if standing is not None and thread is not None:
            with suppress(ItemChangedError):
                seen: list[Put] = [("threads", id, thread)]
                put: Put = ("threads", id, {**thread, **standing})
                await self._records.put(*changes, put, seen=seen)
                return
        thread = None if standing is None else await self._records.find("threads", id)
        if standing is not None and thread is not None:
            changes = [*changes, ("threads", id, {**thread, **standing})]
        await self._records.put(*changes)

    def _release(self, execution: Execution) -> None:
        """Tell all readers that a run has ended here, and keep it for those that reconnect."""
        self._live.pop(execution.id, None)
        self._open.remove(execution.id)
        if execution.is_left:
            execution.leave()
        else:
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

    async def has_open_runs(self, thread_id: str) -> bool:
        """Return whether a run of the thread is in progress, waits, or begins later."""
        return any(each.thread_id == thread_id for each in self._live.values())

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
            is_later = execution.id in self._later
            if not is_later and execution not in self._live_of(execution.thread_id):
                return False
            pointer = pointer_to(execution.record, how)
            await self._records.put(("unfinished", execution.id, pointer, execution.thread_id))
            await self._stop(execution, how)
        if wait:
            await execution.ended.wait()
        return True

    async def forget(self, thread_id: str, run_id: str | None = None) -> None:
        """Drop what is kept of ended runs; see `Runner`."""
        self._ended.forget(thread_id, run_id)

    async def wait_until_free(self, thread_id: str) -> None:
        """Wait until the runs that a thread has now have ended."""
        for execution in self._live_of(thread_id):
            await execution.ended.wait()

    def is_left(self, record: Record) -> bool:
        """Return whether the next server continues a run because this one stops."""
        execution = self._find(record["run_id"])
        return execution is not None and execution.is_left

    async def _stop(self, execution: Execution, how: Stop) -> None:
        """Stop a run. The stop has been stored, and the caller holds the lock of its thread."""
        if execution.stopped != "rollback":
            execution.stopped = how
        lane = self._lanes.get(execution.thread_id, _Lane())
        timer = self._later.pop(execution.id, None)
        if timer is not None or execution in lane.waiting:
            if timer is not None:
                timer.cancel()
            else:
                lane.waiting.remove(execution)  # before any await, or the lane could begin it
            await self._finish(execution)
            self._release(execution)
        elif execution.task is not None:
            execution.task.cancel()

    def _begin_to_stop(self) -> None:
        """Let the current runs pause at their next barrier."""
        if self.stopping.is_set():
            return
        self.stopping.set()
        self._stopped_at = time.monotonic()
        for execution in [*self._live.values()]:
            execution.control.request_drain("the server stops")
        for timer in self._later.values():
            timer.cancel()
        waiting = [each for lane in self._lanes.values() for each in lane.waiting]
        for execution in [*waiting, *(self._live[id] for id in self._later)]:
            execution.leave()

    async def close(self, seconds: float) -> None:
        """Let all runs pause at their next barrier; the next server continues them. Runs that take
        longer than this many seconds from the beginning of the stop are cancelled."""
        self._begin_to_stop()
        left = self._stopped_at + seconds - time.monotonic()
        workers = [lane.worker for lane in self._lanes.values() if lane.worker is not None]
        if workers:
            await asyncio.wait(workers, timeout=max(0.0, left))
        for execution in [*self._live.values()]:
            if execution.task is not None:
                execution.task.cancel()
        if left_over := {*workers, *self._background}:
            await asyncio.wait(left_over, timeout=seconds)  # a database may not answer
