"""Writers wait for a reader that does not keep up, so that a stream holds a bounded number of
chunks.

A chunk is always taken; who sent it waits afterwards. A task's function on a worker thread waits in
its writer. A coroutine waits where it would go on after an `await`. Whoever may be needed for the
reader to go on never waits: the thread or event loop that hands chunks over, and threads that run
no task of the graph.
"""

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext
from typing import Any

from ..run.output import Output
from ..running import RUNNING
from ..task.task import outwards


def hold_writer(output: Output) -> None:
    """Wait on this thread until the reader has taken chunks, or has left."""
    task: Any = RUNNING.get()
    if task is None or _on_event_loop():
        return
    # The reader must wait for the task, not the other way round, as where the task itself reads the
    # stream of a graph that it calls.
    if not any(each.run.output is output for each in outwards(task)):
        return
    gate = threading.Lock()
    gate.acquire()
    if not output.must_wait(gate.release):
        return
    deadline = task.nearest_deadline
    with nullcontext() if deadline is None else deadline.paused():
        gate.acquire()


def _on_event_loop() -> bool:
    """Whether this thread runs one now. Where asyncio was never loaded none can."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None
