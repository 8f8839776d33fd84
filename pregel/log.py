"""What is logged, by the logger "stategraph". Loaded when something is: nothing of it costs while
all goes well.

Each record has the fields in `NO_FIELDS`, as far as it is about one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from logging import INFO, WARNING, Formatter, Logger, LogRecord, StreamHandler, getLogger
from threading import Lock
from time import gmtime, perf_counter, strftime
from typing import Any, Literal

from ..checkpoint.printable import printable

LOG = getLogger("stategraph")
SLOW = 1.0
"""Seconds from which on a commit is slow."""
SECONDS_BETWEEN = 60.0
"""How often slow commits are logged: a slow database would write a line for each commit."""
LOG_FORMAT_HELP = (
    "how log lines are written to stderr (default: text, unless the graph's module configures "
    "logging itself)"
)
_TASK = re.compile(r"During task with name '(.*?)' and id")


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


def log_conflict(thread: Any, graph: str, error: BaseException) -> None:
    """Log that another run has written to the thread."""
    fields = {"thread_id": thread.thread_id, "graph": graph}
    LOG.warning("%s: %s", thread, show(error), extra={**NO_FIELDS, **fields})


def watch(
    method: Callable[..., Any], told: Callable[[float, Any, BaseException | None], None]
) -> Callable[..., Any]:
    """Return a method of a checkpointer that tells how it has ended, also if it gives an awaitable.

    Args:
        told: takes the seconds that it took, its first argument, and what it has raised or None.
    """

    def watched(*args: Any) -> Any:
        began = perf_counter()
        try:
            waited = method(*args)
        except BaseException as error:
            told(perf_counter() - began, args[0], error)
            raise
        if hasattr(waited, "__await__"):
            return awaited(waited, began, args[0])
        told(perf_counter() - began, args[0], None)
        return waited

    async def awaited(waited: Any, began: float, first: Any) -> Any:
        try:
            result = await waited
        except BaseException as error:
            told(perf_counter() - began, first, error)
            raise
        told(perf_counter() - began, first, None)
        return result

    return watched


def time_commits(method: Callable[[Any], Any], thread: Any, graph: str) -> Callable[[Any], Any]:
    """A checkpointer's method that stores commits; slow ones are logged."""
    return watch(method, partial(_log_slow_commit, thread.run_id, graph))


class _SlowCommits:
    """Logs the first slow commit at once, and then how many there were in each minute."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.logged_at: float | None = None
        self._count, self._slowest = 0, 0.0

    def add(self, seconds: float, now: float) -> str | None:
        """Count a slow commit; return what is to be logged, if anything."""
        with self._lock:
            self._count, self._slowest = self._count + 1, max(self._slowest, seconds)
            since = None if self.logged_at is None else now - self.logged_at
            if since is not None and since < SECONDS_BETWEEN:
                return None
            count, slowest = self._count, self._slowest
            self.logged_at, self._count, self._slowest = now, 0, 0.0
        if count == 1 or since is None:
            return f"took {seconds:.3g} s"
        others = f"{count - 1} more in {since:.0f} s"
        return f"took {seconds:.3g} s; {others} were slow, the slowest {slowest:.3g} s"


SLOW_COMMITS = _SlowCommits()


def _log_slow_commit(
    run_id: str | None, graph: str, seconds: float, stored: Any, error: BaseException | None
) -> None:
    told = None if error or seconds < SLOW else SLOW_COMMITS.add(seconds, perf_counter())
    if told is None:
        return
    commit = stored[-1]
    fields = {"thread_id": commit.thread_id, "graph": graph}
    fields |= {"run_id": run_id, "step": commit.metadata.get("step")}
    LOG.warning("a commit of thread %r %s", commit.thread_id, told, extra={**NO_FIELDS, **fields})


def log_failed_run(logger: Logger, error: BaseException, **fields: Any) -> None:
    """Log that a run of a server or a worker has ended with an exception, with its traceback.

    Args:
        fields: `thread_id`, `run_id`, `graph` and `user`.
    """
    found = (_TASK.match(note) for note in getattr(error, "__notes__", ()))
    node = next((match[1] for match in found if match), None)
    text = "the run %s of thread %r has failed%s: %s"
    place = f" in node {node!r}" if node else ""
    names = (fields["run_id"], fields["thread_id"], place, show(error))
    extra = {**NO_FIELDS, **fields, "node": node}
    logger.error(text, *names, exc_info=error, extra=extra)


# -- lines of the commands -------------------------------------------------------------------------


def configure_logging(style: Literal["text", "json"] | None) -> None:
    """Write what is logged to stderr, a line each with time, level, logger and ids.

    Args:
        style: None writes text, unless the program has configured logging itself.
    """
    root = getLogger()
    if style is None and root.handlers:
        return
    handler = StreamHandler()
    handler.setFormatter(_JsonLine() if style == "json" else _TextLine())
    root.handlers[:] = [handler]
    root.setLevel(WARNING)
    LOG.setLevel(INFO)


def _time_of(record: LogRecord) -> str:
    return f"{strftime('%Y-%m-%dT%H:%M:%S', gmtime(record.created))}.{record.msecs:03.0f}Z"


def _ids_of(record: LogRecord) -> dict[str, Any]:
    found = {name: getattr(record, name, None) for name in NO_FIELDS}
    return {name: value for name, value in found.items() if value is not None}


class _TextLine(Formatter):
    """A line of text; a traceback follows it. Texts of users cannot forge lines of their own."""

    def format(self, record: LogRecord) -> str:
        ids = " ".join(f"{name}={printable(value)}" for name, value in _ids_of(record).items())
        head = f"{_time_of(record)} {record.levelname} {record.name}: "
        line = head + printable(record.getMessage()) + (f" [{ids}]" if ids else "")
        if not record.exc_info:
            return line
        trace = self.formatException(record.exc_info).split("\n")
        return "\n".join([line, *(f"  {printable(each)}" for each in trace)])


class _JsonLine(Formatter):
    """An object of JSON."""

    def format(self, record: LogRecord) -> str:
        shown = {"time": _time_of(record), "level": record.levelname, "logger": record.name}
        shown |= {"message": record.getMessage(), **_ids_of(record)}
        if record.exc_info:
            shown["traceback"] = self.formatException(record.exc_info)
        return json.dumps(shown, default=str)


NO_FIELDS: dict[str, Any] = dict.fromkeys(
    ("thread_id", "run_id", "graph", "node", "step", "attempt", "user")
)


def fields_of(task: Any) -> dict[str, Any]:
    """The fields of a record about a task."""
    return {
        **NO_FIELDS,
        "thread_id": task.run.thread.thread_id,
        "run_id": task.run.thread.run_id,
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
