"""A coroutine waits for a reader that does not keep up; see `backpressure`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Sequence
from types import coroutine
from typing import Any

from ..run.output import MOST_WAITING, Output
from .timeslice import call_on


@coroutine
def keep_pace(
    task: Any, work: Coroutine[Any, Any, Any], outputs: Sequence[Output]
) -> Generator[Any, Any, Any]:
    """Await `work`, the function of a task, but let it go on only while the readers of `outputs`
    keep up."""
    try:
        awaited = work.send(None)
        while True:
            try:
                answer = yield awaited
                for output in outputs:
                    if len(output.chunks) > MOST_WAITING:
                        yield from _wait_for_reader(task, output).__await__()
            except BaseException as error:
                awaited = work.throw(error)
            else:
                awaited = work.send(answer)
    except StopIteration as end:
        return end.value


async def _wait_for_reader(task: Any, output: Output) -> None:
    current = asyncio.current_task()
    if current is not None and current.cancelling():
        return  # it cleans up, and its reader may be gone without a word
    loop = asyncio.get_running_loop()
    room = asyncio.Event()  # of this loop: a node may run a graph on a loop of its own

    if not output.must_wait(lambda: call_on(loop, room.set)):
        return
    deadline = task.nearest_deadline
    if deadline is None:
        await room.wait()
        return
    deadline.pause()
    try:
        await room.wait()
    finally:
        deadline.resume()
