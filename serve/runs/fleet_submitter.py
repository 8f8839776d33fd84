"""Stores the runs of a server with workers and submits their jobs; see `fleet`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ...pregel.errors import ThreadBusyError
from ...workers import Queue, When
from ...workers.jobs import check_config
from ..errors import Refused
from ..events.chunks import engine_mode
from ..records import Changes, Put, Record, Records, pointer_to
from .execution import read_input, read_options


class FleetSubmitter:
    """Stores runs, and submits them to the queues of their graphs.

    Args:
        queues: by the names of the graphs.
    """

    def __init__(self, queues: Mapping[str, Queue], records: Records) -> None:
        self._queues, self._records = queues, records

    async def store(self, record: Record, also: Changes) -> None:
        """Store a run, its pointer and what goes with them; then submit its job.

        Raises:
            ItemChangedError: a record that was seen has changed; nothing is stored.
            Refused: the queue does not take the job; what was stored is undone.
        """
        run_id, thread_id = record["run_id"], record["thread_id"]
        try:
            check_config(_job_config(record))
        except ValueError as error:
            raise Refused(422, f"{error}") from None
        await self._records.put(
            ("runs", run_id, record, thread_id),
            ("unfinished", run_id, pointer_to(record), thread_id),
            *also.puts,
            seen=also.seen,
        )
        try:
            await self.submit(record)
        except (ThreadBusyError, ValueError) as error:
            await self._records.put(
                ("runs", run_id, None, thread_id), ("unfinished", run_id, None, thread_id)
            )
            await self._restore_thread(also)
            status = 409 if isinstance(error, ThreadBusyError) else 422
            raise Refused(status, f"{error}") from None

    async def _restore_thread(self, also: Changes) -> None:
        """Undo what a run that was refused has written to the record of its thread."""
        written = [put for put in also.puts if put[0] == "threads"]
        before = [put for put in also.seen if put[0] == "threads"]
        if written:
            await self._records.put(*before, seen=written)

    async def submit(self, record: Record) -> None:
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


def _job_config(record: Record) -> Any:
    """Return the config of a run's job. The thread is not part of it."""
    config = record["kwargs"]["config"]
    given = config["configurable"].items()
    return {**config, "configurable": {key: value for key, value in given if key != "thread_id"}}
