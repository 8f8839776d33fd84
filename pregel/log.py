"""What is logged, by the logger "stategraph". Loaded when something is: nothing of it costs while
all goes well.

Each record has the fields `thread_id`, `graph`, `node`, `step` and `attempt`, as far as it is about
one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from logging import INFO, getLogger
from time import perf_counter
from typing import Any

LOG = getLogger("stategraph")
SLOW = 1.0
"""Seconds from which on a commit is slow."""


def log_retry(task: Any, error: BaseException, delay: float) -> None:
    """Log that the next attempt of a task begins in so many seconds."""
    if LOG.isEnabledFor(INFO):
        text = "node %r failed in attempt %d; next attempt in %.3g s: %s"
        LOG.info(text, task.name, task.attempt, delay, show(error), extra=fields_of(task))


def log_giving_up(task: Any, error: BaseException) -> None:
    """Log that a task which was tried again, or had a time limit, has failed for good."""
    text = "node %r is given up after attempt %d: %s"
    LOG.warning(text, task.name, task.attempt, show(error), extra=fields_of(task))


def log_lost_worker(task: Any, error: BaseException, deaths: int) -> None:
    """Log that a worker of an executor died while it ran a task."""
    text = "node %r lost its worker (%d by now): %s"
    fields = {"node": task.name, "step": task.step, "attempt": task.attempt}
    LOG.warning(text, task.name, deaths, show(error), extra={**NO_FIELDS, **fields})


def log_conflict(run: Any, error: BaseException) -> None:
    """Log that another run has written to the thread."""
    fields = {"thread_id": run.thread.thread_id, "graph": run.program.name}
    LOG.warning("%s: %s", run.thread, show(error), extra={**NO_FIELDS, **fields})


def time_commits(method: Callable[[Any], Any], run: Any) -> Callable[[Any], Any]:
    """A saver's method that stores commits; slow ones are logged."""
    return partial(_time, method, run)


def _time(method: Callable[[Any], Any], run: Any, stored: Any) -> Any:
    began = perf_counter()
    waited = method(stored)
    if hasattr(waited, "__await__"):
        return _await(waited, run, stored, began)
    if perf_counter() - began >= SLOW:
        _log_slow_commit(run, stored, perf_counter() - began)
    return waited


async def _await(waited: Any, run: Any, stored: Any, began: float) -> Any:
    result = await waited
    if perf_counter() - began >= SLOW:
        _log_slow_commit(run, stored, perf_counter() - began)
    return result


def _log_slow_commit(run: Any, stored: Any, seconds: float) -> None:
    commit = stored[-1] if isinstance(stored, list) else stored
    step = commit.metadata.get("step")
    fields = {"thread_id": commit.thread_id, "graph": run.program.name, "step": step}
    text = "a commit of thread %r took %.3g s"
    LOG.warning(text, commit.thread_id, seconds, extra={**NO_FIELDS, **fields})


NO_FIELDS: dict[str, Any] = dict.fromkeys(("thread_id", "graph", "node", "step", "attempt"))


def fields_of(task: Any) -> dict[str, Any]:
    """The fields of a record about a task."""
    return {
        "thread_id": task.run.thread.thread_id,
        "graph": task.run.program.name,
        "node": task.name,
        "step": task.step,
        "attempt": task.attempt,
    }


def show(error: BaseException) -> str:
    """An error in one line."""
    try:
        return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    except Exception:  # no mistake of an error's own may hide it
        return type(error).__name__
