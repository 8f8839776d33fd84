"""Finds out which calls a thread's steps belong to, and when nothing ran, from the times of the
attempts. Draws nothing."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from ..trace.records import TraceStep, TraceTask
from .timeline_attempts import list_parts
from .timeline_model import CallSource, Gap, GapKind, ThreadCall, list_spans, merge_spans

IDLE = 1.0
"""Seconds between two supersteps after which they are attributed to two calls; the stored data do
not say so."""

LATE = 0.5
"""Seconds by which a retry may come later than its policy says."""


def find_calls(
    steps: Sequence[TraceStep], timed: bool
) -> tuple[tuple[Gap, ...], tuple[ThreadCall, ...]]:
    """Return the gaps in which nothing ran, and the calls.

    Args:
        steps: as `gather_attempts` returns them.
        timed: whether times are stored.
    """
    clock = _Clock(steps, timed)
    for part in list_parts(steps):
        clock.measure(part)
    return tuple(clock.gaps), tuple(clock.calls)


class _Clock:
    """Walks through the steps and finds where calls began and where nothing ran."""

    def __init__(self, steps: Sequence[TraceStep], timed: bool) -> None:
        self.steps = steps
        self.timed = timed
        self.gaps: list[Gap] = []
        self.calls: list[ThreadCall] = []
        self.ended: float | None = None  # when the last thing ended
        self.run_id: Any = None

    def measure(self, part: range) -> None:
        """Add the gaps and calls of steps that overlap, or of one superstep."""
        first = self.steps[part[0]]
        tasks = [task for place in part for task in self.steps[place].tasks]
        blocks = merge_spans(list_spans(tasks)) if self.timed else []
        began = first.at if self.timed else None
        if blocks:
            began = blocks[0][0]
        self._enter(part[0], first, began)
        self._find_gaps(part, tasks, blocks)
        if blocks:
            self.ended = blocks[-1][1]
        elif began is not None:
            self.ended = max(began, self.ended or began)

    def _find_gaps(
        self, part: range, tasks: Sequence[TraceTask], blocks: list[tuple[float, float]]
    ) -> None:
        """Find the times within these steps in which nothing ran, and the calls that ended them."""
        later = _list_later_attempts(tasks)
        ends = self._list_ends(part)
        resumed = self._list_resumed(part, [start for start, _ in blocks])
        for (_, stop), (start, end) in pairwise(blocks):
            first = bisect_left(later, start, key=lambda attempt: attempt.began)
            last = bisect_right(later, end, key=lambda attempt: attempt.began)
            kind = _explain_gap(later[first:last], stop)
            if kind is None and (start - stop > IDLE or start in resumed):
                # An attempt that died with its process has stored no time.
                kind = "stopped" if len(part) == 1 else "idle"
            place = part[min(bisect_left(ends, start), len(part) - 1)]
            if kind is not None:
                self.gaps.append(Gap(place, stop, start, kind))
            if kind in ("answer", "idle", "stopped"):
                self.calls.append(ThreadCall("resume", place, start))
        for place in part:
            answered = any(t.questions and t.state == "done" for t in self.steps[place].tasks)
            if answered and not self.timed:
                self.calls.append(ThreadCall("resume", place, float(place)))

    def _list_ends(self, part: range) -> list[float]:
        """Return when the last thing has ended by each of these steps."""
        spans = (list_spans(self.steps[place].tasks) for place in part)
        latest = (max((ended for _, ended in mine), default=0.0) for mine in spans)
        return [*accumulate(latest, max)]

    def _list_resumed(self, part: range, starts: Sequence[float]) -> set[float]:
        """Return those of the times at which something started again that belong to a new call,
        because a step behind the first says so."""
        found = set()
        for place in part[1:]:
            step, known = self.steps[place], self.run_id
            self.run_id = step.metadata.get("run_id", known)
            spans = list_spans(step.tasks)
            if spans and (step.stopped or self.run_id != known):
                found.add(starts[bisect_right(starts, max(spans)[0]) - 1])
        return found

    def _enter(self, place: int, step: TraceStep, began: float | None) -> None:
        """Record the start of a step: a new call if it came from outside, or after a stop."""
        known = self.run_id
        self.run_id = step.metadata.get("run_id", known)
        quiet = 0.0
        if began is not None and self.ended is not None:
            quiet = began - self.ended
        if step.source in ("input", "update", "fork"):
            source: CallSource = step.source
        else:
            other_run = known is not None and self.run_id != known
            if other_run:  # unless that run has continued and ended a step of the run before
                later = _list_later_attempts(step.tasks)
                other_run = not any(attempt.asked or attempt.late for attempt in later)
            goes_on = self.calls and not (step.stopped or quiet > IDLE or other_run)
            if step.source == "dropped" or goes_on:
                return
            source = "resume"
        if began is not None and self.ended is not None and quiet > 0:
            self.gaps.append(Gap(place, self.ended, began, "idle"))
        when = float(place)
        if self.timed:
            when = began if began is not None else self.ended or 0.0
        self.calls.append(ThreadCall(source, place, when))


class _LaterAttempt(NamedTuple):
    """An attempt other than a task's first.

    Attributes:
        before: when the previous attempt ended.
        asked: whether its task has asked a question.
        late: whether it came later than a retry would.
    """

    began: float
    before: float
    asked: bool
    late: bool


def _list_later_attempts(tasks: Iterable[TraceTask]) -> list[_LaterAttempt]:
    """Return the attempts at tasks after the first ones, in the order in which they began."""
    found = []
    for task in tasks:
        for (start, took), (began, _), wait in zip(
            task.spans, task.spans[1:], task.waits, strict=False
        ):
            ended = start + took
            late = began - ended > wait + LATE
            found.append(_LaterAttempt(began, ended, bool(task.questions), late))
    return sorted(found)


def _explain_gap(attempts: Iterable[_LaterAttempt], stopped: float) -> GapKind | None:
    """Return why nothing ran before these attempts, judged by those whose previous attempt had
    ended by then."""
    ended = [attempt for attempt in attempts if attempt.before <= stopped]
    if any(attempt.asked for attempt in ended):
        return "answer"
    if any(attempt.late for attempt in ended):
        return "idle"
    return "retry" if ended else None
