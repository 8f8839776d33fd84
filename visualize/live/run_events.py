"""Turns what a run reports while it executes into events for its progress."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from ...pregel.names import NS_SEP, node_levels
from ...pregel.observer import EndStatus, Observer, RunInfo, TaskInfo
from ...pregel.types import Interrupt
from ..layout.measure import one_line
from ..trace.values import format_value, sanitize
from .tally import BreakpointHit, Event, TaskEnded, TaskRetried, TaskStarted

LONGEST = 240
"""How many characters of a question or an error are shown."""


class RunEvents(Observer):
    """Makes an event of each task that starts or ends, at any level.

    Args:
        put: takes the event; may be called from any thread.
        clock: returns seconds.
    """

    def __init__(
        self, put: Callable[[Event], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.put: Callable[[Event], None] = put
        self.clock: Callable[[], float] = clock
        self._root: str | None = None  # the namespace of the graph that is watched
        # (run, node) → how many of its tasks were reported with their superstep and have not
        # started.
        self._waiting: Counter[tuple[str, str]] = Counter()
        self._cached: set[TaskInfo] = set()
        self._asked: dict[TaskInfo, list[tuple[str, str]]] = {}

    def run_started(self, run: RunInfo) -> None:
        """Note the first run, which is that of the watched graph."""
        if self._root is None:
            self._root = run.ns

    def place_of(self, run: RunInfo) -> tuple[str, ...]:
        """Return the nodes around the run's tasks, outermost first."""
        return self.place_below(self._root or "", run)

    def place_below(self, root: str, run: RunInfo) -> tuple[str, ...]:
        """Return the nodes around the run's tasks, in the graph with this namespace."""
        inside = run.ns.removeprefix(root).removeprefix(NS_SEP)
        return place_of(tuple(inside.split(NS_SEP)) if inside else ())

    def step_started(self, run: RunInfo, step: int, nodes: tuple[str, ...]) -> None:
        """Report the tasks of a superstep, which are about to run or wait for a free worker."""
        place = self.place_of(run)
        for node in nodes:
            self._waiting[run.id, node] += 1
            self.put(TaskStarted(self.clock(), place, node, step))

    def task_started(self, task: TaskInfo) -> None:
        """Report a task that was not reported with its superstep, such as a handler or a call."""
        shown = (task.run.id, task.node)
        if self._waiting[shown]:
            self._waiting[shown] -= 1
        else:
            self.put(TaskStarted(self.clock(), self.place_of(task.run), task.node, task.step))

    def task_retried(self, task: TaskInfo, error: BaseException, delay: float) -> None:
        """Report that a task has failed and is retried."""
        self.put(TaskRetried(self.clock(), self.place_of(task.run), task.node))

    def task_cached(self, task: TaskInfo) -> None:
        """Note that a task which is about to end was not run."""
        self._cached.add(task)

    def question_asked(self, task: TaskInfo, question: Interrupt) -> None:
        """Note a question of a task that is about to end."""
        self._asked.setdefault(task, []).append((question.id, format_question(question.value)))

    def task_restored(
        self, task: TaskInfo, status: EndStatus, error: BaseException | None
    ) -> None:
        """Report a task that was not run."""
        self.put(TaskStarted(self.clock(), self.place_of(task.run), task.node, task.step))
        self._cached.add(task)
        self.task_ended(task, status, 0.0, error)

    def task_ended(
        self, task: TaskInfo, status: EndStatus, seconds: float, error: BaseException | None
    ) -> None:
        """Report that a task has finished, failed, or paused."""
        failure = format_failure(status, error)
        kept = task in self._cached and not failure
        self._cached.discard(task)
        asked = tuple(self._asked.pop(task, ()))
        paused = status == "paused"
        self.put(
            TaskEnded(
                self.clock(), self.place_of(task.run), task.node, failure, paused, asked,
                kept=kept,
            )
        )  # fmt: skip

    def breakpoint_reached(self, run: RunInfo, nodes: tuple[str, ...]) -> None:
        """Report that the run stops before these nodes."""
        self.put(BreakpointHit(self.clock(), self.place_of(run), nodes))


def place_of(ns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the nodes that a graph's namespace names; the second graph that a node runs is
    `node|1`.

    >>> place_of(("agents:1d44", "call:46e4", "1"))
    ('agents', 'call|1')
    """
    return tuple(NS_SEP.join(level) for level in node_levels(ns))


def format_question(value: Any) -> str:
    """Return a question in one line, shortened."""
    return one_line(
        sanitize(value, LONGEST) if isinstance(value, str) else format_value(value, LONGEST)
    )


def format_error(error: BaseException) -> str:
    """Return an error in one line, shortened: "Type: message"."""
    try:
        text = one_line(sanitize(str(error), LONGEST))
    except Exception:  # an error whose __str__ fails must still be reported
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def format_failure(status: EndStatus, error: BaseException | None) -> str:
    """Return the final error of a task or a run; empty if there is none."""
    return "" if error is None or status == "finished" else format_error(error)
