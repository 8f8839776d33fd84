"""Stores how the runs of this process have ended; for those of workers see `settler`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ...checkpoint.base import ERROR
from ...pregel.app import Pregel
from ...store.base import ItemChangedError
from ..records import Put, Record, Records, now
from .execution import Execution, forget_steps, last_changes


class EndWriter:
    """Writes the ends of runs, each atomically.

    Args:
        graphs: the graphs by name, with their checkpointer.
    """

    def __init__(self, graphs: Mapping[str, Pregel], records: Records) -> None:
        self._graphs, self._records = graphs, records

    async def write(self, execution: Execution, status: str) -> None:
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
        await self._put(execution, changes, standing)

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

    async def _put(
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
