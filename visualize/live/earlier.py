"""Finds what an earlier call has finished of the work that a call continues."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Any

from ...checkpoint.base import address, coordinates
from ...pregel.run.config import merge_configs, normalize
from ...pregel.types import AnyConfig, Command, RunnableConfig, StateSnapshot

MOST_READ = 200
"""How many checkpoints are read to see what an earlier call has finished."""


def find_earlier(app: Any, input: Any, config: AnyConfig | None) -> frozenset[str]:
    """Return the nodes that an earlier call has finished, if this one continues its work."""
    if goes_on(input):
        with suppress(Exception):  # the run itself will report what is wrong with the thread
            return finished_by(app.get_state_history(thread_of(app, config)))
    return frozenset()


async def afind_earlier(app: Any, input: Any, config: AnyConfig | None) -> frozenset[str]:
    """Do the same as `find_earlier`, for coroutines."""
    if goes_on(input):
        with suppress(Exception):  # as above
            history = app.aget_state_history(thread_of(app, config), limit=MOST_READ)
            return finished_by([snapshot async for snapshot in history])
    return frozenset()


def goes_on(input: Any) -> bool:
    """Return whether this input continues what an earlier call has left."""
    return input is None or isinstance(input, Command)


def thread_of(app: Any, config: AnyConfig | None) -> RunnableConfig:
    """Return the config of the thread at its newest checkpoint.

    Raises:
        ValueError: the config names no thread, or an older checkpoint, from which everything is
            done again.
    """
    thread_id, ns, checkpoint_id = coordinates(merge_configs(app.config, normalize(config)))
    if checkpoint_id is not None:
        raise ValueError(f"checkpoint {checkpoint_id!r} is not the newest")
    return address(thread_id, ns)


def finished_by(history: Iterable[StateSnapshot]) -> frozenset[str]:
    """Return the nodes that have finished since the last input, given a thread's checkpoints, the
    newest first."""
    found: set[str] = set()
    left: set[str] = set()
    wanted: str | None = None  # only this line counts, not other branches
    for snapshot in islice(history, MOST_READ):
        if wanted is not None and coordinates(snapshot.config)[2] != wanted:
            continue
        if wanted is None:
            left.update(task.name for task in snapshot.tasks if task.result is None)
        found.update(task.name for task in snapshot.tasks)
        if (snapshot.metadata or {}).get("source") == "input" or snapshot.parent_config is None:
            break
        wanted = coordinates(snapshot.parent_config)[2]
    return frozenset(found - left)
