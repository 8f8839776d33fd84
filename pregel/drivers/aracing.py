"""Racers at work on an event loop; `racing` is the same for threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ..schedule.races import race_of
from ..task.task import Task
from .racing import Racers

GRACE = 0.1
"""For how many seconds a coroutine that has lost may clean up before the others go on without
it."""

_given_up: set[asyncio.Task[None]] = set()  # an event loop holds its tasks weakly


async def race_on_loop(
    execute: Callable[[Task], Coroutine[Any, Any, None]], racers: Racers, task: Task
) -> None:
    """Run a task; one in a race as an asyncio task of its own, until it ends or has lost."""
    if race_of(task) is None:
        await execute(task)
        return
    lost = asyncio.get_running_loop().create_future()
    racer = racers.enter(task, lost.cancel)
    if racer is None:
        return
    work = asyncio.create_task(execute(racer.copy))
    try:
        await asyncio.wait((work, lost), return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        work.cancel()
        await asyncio.wait((work,))
        racers.leave(racer)
        raise
    if not work.done():
        work.cancel()
        await asyncio.wait((work,), timeout=GRACE)
        if not work.done():
            _given_up.add(work)
            work.add_done_callback(_given_up.discard)
    racers.leave(racer)
