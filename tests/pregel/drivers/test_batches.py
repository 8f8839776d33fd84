"""Jobs that are added to a batch while others end: none waits for a worker that has just stopped."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from kit.drive import each_schedule
from kit.graphs import EMPTY
from kit.graphs import Log as State

from stategraph import START, Send, StateGraph
from stategraph.pregel.drivers import aio
from stategraph.pregel.drivers.aio import AsyncBatch
from stategraph.pregel.drivers.pool import ThreadBatch

WAIT = 10.0


def test_a_job_that_is_added_while_the_only_worker_leaves_is_done():
    did = []
    over = threading.Event()

    def done(job, error: BaseException | None):
        if job == "second":
            over.set()

    batch = ThreadBatch(did.append, (), 1, done)

    class Window(deque[str]):
        """Between the look of a worker that finds nothing and its end, somebody adds a job."""

        def popleft(self):
            try:
                return super().popleft()
            except IndexError:
                if batch.open == 1:
                    batch.add(["second"])
                raise

    batch._waiting = Window()
    batch.add(["first"])
    assert over.wait(WAIT) and did == ["first", "second"]


async def test_a_job_whose_worker_is_cancelled_before_it_starts_is_done_by_another():
    did = []

    async def execute(job):
        did.append(job)

    batch = AsyncBatch(execute, ["job"], 2, lambda job, error: None)
    batch.start()
    (worker,) = batch._workers
    worker.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert did == ["job"]


@each_schedule
def test_plain_functions_are_kept_to_a_number_of_threads(drive, monkeypatch, schedule):
    monkeypatch.setattr(aio, "MAX_THREADS", 3)
    if not drive.is_async:
        monkeypatch.setattr("stategraph.pregel.drivers.threads.MAX_THREADS", 3)
    lock, at_once, most = threading.Lock(), [0], [0]
    full = threading.Event()

    def work(state):
        with lock:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
            if at_once[0] > 3:
                full.set()
        full.wait(0.2)
        with lock:
            at_once[0] -= 1
        return {"log": [1]}

    builder = StateGraph(State).add_node("work", work)
    builder.add_conditional_edges(START, lambda state: [Send("work", {}) for _ in range(7)], ["work"])
    assert len(drive.invoke(builder.compile(schedule=schedule), EMPTY)["log"]) == 7
    assert most[0] == 3
