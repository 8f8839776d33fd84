"""`runtime.sleep`: a task goes on at a time of its own.

Theory of operation: the time is recorded first, as `runtime.once` records what an effect returned:
under an id made of the task's and of the sleep's key or place. So a retry, a resume and another
process find the same time, an edit takes it along with its task, and a fork or a new input starts
without it. What is left of a short sleep is waited for in place. For a long one the task pauses as
with a question, but with a time for an answer: its node runs again from the top when that has come,
finds the record, and the sleep returns at once.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

from ...channels.base import check_kind
from ..clock import CLOCK, read_seconds
from ..control import TimedControl
from ..errors import DrainSignal, GraphAbandoned
from ..run.run import Run
from ..running import ONCE, SleepRequest
from ..steps import Steps, Waits
from ..task.interrupts import asking
from ..task.task import Task
from .side_effects import record_of

SECONDS_TO_LOOK = 0.05
"""Between two looks of a sleep in place at whether its run is to stop."""


def sleep(
    run: Run, results: dict[str, Any], task: Task, request: SleepRequest, waits: Waits
) -> Steps[None]:
    """Record when a sleep is over, and wait until then.

    Args:
        results: what is recorded of the effects and sleeps of this run.

    Raises:
        GraphInterrupt: it is long, so the task pauses.
        DrainSignal: its run is to stop. The time is recorded.
        GraphAbandoned: nobody waits for it any longer.
        TypeError: the request has both or none of a duration and a time, or one of another type.
        ValueError: a duration is negative, a time has no zone, or the attempt has slept under this
            key before.
    """
    wake_at = _read_time(task, request)
    durable_after = read_seconds("durable_after of runtime.sleep", request.durable_after, zero=True)
    name = _identify(task, request.key)
    _refuse_stopped(task)
    # A graph that stores nothing forgets where its tasks were, so they must not leave.
    can_pause = run.thread.saver is not None and task.find_answers() is not None
    record = record_of(run, results, task, ONCE, name)
    saved: Any = None
    if record.known:
        wake_at = record.known[0]
    else:
        saved = record.save(wake_at)
    at = wake_at.timestamp()
    pauses = can_pause and at - CLOCK.time() > durable_after
    if pauses:
        asking(task, (), (0,), wake_at)  # noted before others get a turn that pause the task, too
    yield saved
    while (left := at - CLOCK.time()) > 0:
        if pauses:
            raise asking(task, (), (0,), wake_at)
        _refuse_stopped(task)
        control = task.run.settings.control
        if CLOCK.virtual is None:
            left = min(left, SECONDS_TO_LOOK)
        elif isinstance(control, TimedControl):
            left = min(left, control.deadline.timestamp() - CLOCK.time())
        yield waits.sleep(left)


def _read_time(task: Task, request: SleepRequest) -> datetime:
    """When the sleep is over, in UTC."""
    until = request.until
    if (request.seconds is None) == (until is None):
        raise TypeError(
            f"node {task.name!r}: runtime.sleep takes either a duration or until=, got "
            f"{'none' if until is None else 'both'} of them"
        )
    if until is None:
        seconds = read_seconds("the duration of runtime.sleep", request.seconds, zero=True)
        try:
            return datetime.fromtimestamp(CLOCK.time(), UTC) + timedelta(seconds=seconds)
        except OverflowError:
            raise ValueError(
                f"node {task.name!r}: runtime.sleep({request.seconds!r}) ends after the year 9999"
            ) from None
    check_kind("until of runtime.sleep", until, datetime, "a datetime")
    if until.utcoffset() is None:
        raise ValueError(
            "until of runtime.sleep must have a time zone, such as datetime(..., tzinfo=UTC), got "
            f"{until!r}"
        )
    return until.astimezone(UTC)


def _identify(task: Task, key: str | None) -> str:
    """The key of a sleep's record, by its own or by its place: no effect can have the same."""
    with _numbering:
        current = task.current
        if key is None:
            return f"\0sleep\0{current.count('sleep') + 1}"
        if not isinstance(key, str) or not key:
            raise TypeError(f"the key of runtime.sleep must be a non-empty string, got {key!r}")
        if key in current.sleep_keys:
            raise ValueError(
                f"node {task.name!r} has come to runtime.sleep(key={key!r}) twice: give each sleep "
                "a key of its own, for example one that contains the item it is about"
            )
        current.sleep_keys = (*current.sleep_keys, key)
        return f"\0sleep by key\0{key}"


_numbering = threading.Lock()


def _refuse_stopped(task: Task) -> None:
    """Let no task wait whose run is to stop, or for which nobody waits."""
    if task.abandoned or task.is_cut_short():
        raise GraphAbandoned
    reason = task.run.settings.control.drain_reason  # also if the deadline of the run has come
    if reason is not None:
        raise DrainSignal(reason)
