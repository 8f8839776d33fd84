"""When everything in a thread ran: bars, calls and gaps, computed from the stored times of a trace.

Draws only a few lines of text itself; `timeline_svg` draws the picture.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from ...pregel.app import Pregel
from ...pregel.names import NS_END, START
from ...pregel.types import AnyConfig
from ..fold import fold_rows
from ..group import group
from ..image import as_image
from ..model import join_id
from ..text import terminal_width
from ..theme import Theme
from . import timeline_svg, timeline_text
from .timeline_model import (
    Bar,
    CallSource,
    Gap,
    GapKind,
    ThreadCall,
    TimelineModel,
    list_spans,
    merge_spans,
)
from .trace import Trace, TraceStep
from .trace_reader import read_trace

IDLE = 1.0
"""Seconds between two supersteps after which they are attributed to two calls; the stored data do
not say so."""

MOST_ROWS = 30
"""If there are more rows than this, those that ran in the same steps are folded into one."""

LATE = 0.5
"""Seconds by which a retry may come later than its policy says."""


@dataclass(frozen=True)
class Timeline(TimelineModel):
    """A thread's runs over time, which can be drawn; see `TimelineModel`."""

    def draw_svg(self, *, theme: Theme = "auto", width: int | None = None) -> str:
        """Return the picture as SVG.

        Args:
            theme: "light", "dark", or "auto", which follows the page that shows it.
            width: in pixels; by default it grows with the number of steps, up to the width of a
                notebook's cell.
        """
        return timeline_svg.draw_svg(self, theme=theme, width=width)

    def draw_text(self, width: int = 100) -> str:
        """Return the picture in characters, at most about `width` wide."""
        return timeline_text.draw_text(self, width)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        svg, text = self.draw_svg(), self.draw_text()
        return {"text/html": as_image(svg, repr(self)), "image/svg+xml": svg, "text/plain": text}

    def __str__(self) -> str:
        return self.draw_text(terminal_width())

    def __repr__(self) -> str:
        return f"<Timeline of {self.name!r}, thread {self.thread!r}: {self.summary}>"


def timeline(app: Pregel, config: AnyConfig) -> Timeline:
    """Return when everything in a thread ran, from what its saver has stored.

    The times of the attempts show retries and the waits between them. The reason for a gap is not
    stored but inferred: a task with a question waited for its answer; between the attempts of a
    task with a retry policy it waited as the policy says; a second or more between two supersteps
    means that another call continued. A coroutine that was cancelled because a sibling failed has
    stored nothing: it has no bar until it runs again.

    Args:
        config: the thread. A `checkpoint_id` selects the line that leads to that checkpoint; by
            default, it leads to the newest.

    Raises:
        TypeError, ValueError: as `read_trace` does.
    """
    return build_timeline(read_trace(app, config))


def build_timeline(trace: Trace) -> Timeline:
    """Return the timeline of a thread that has already been read."""
    timed = any(task.spans for step in trace.steps for task in step.tasks)
    gaps, calls = _Clock(timed).measure(trace.steps)
    bars = [
        bar
        for place, step in enumerate(trace.steps)
        for bar in _list_bars(place, step, gaps, timed)
    ]
    rows = _list_rows(trace.steps)
    homes: dict[str, str] = {}
    if len(rows) > MOST_ROWS:
        homes = fold_rows(
            rows,
            {
                row: frozenset(b.step for b in mine)
                for row, mine in group((b.row, b) for b in bars).items()
            },
        )
        rows = tuple(dict.fromkeys(homes.get(row, row) for row in rows))
        bars = [bar._replace(row=homes.get(bar.row, bar.row)) for bar in bars]
    tasks = (task for step in trace.steps for task in step.all_tasks())
    return Timeline(
        trace.name, trace.thread, trace.state, trace.steps, rows, tuple(bars),
        gaps, calls,
        trace.branches, timed, trace.remarks,
        {task.node: task.name for task in tasks if not task.node.endswith(task.name)},
        homes,
    )  # fmt: skip


# -- bars ------------------------------------------------------------------------------------------


def _list_bars(place: int, step: TraceStep, gaps: Iterable[Gap], timed: bool) -> Iterator[Bar]:
    answers = [gap.ended for gap in gaps if gap.step == place and gap.kind == "answer"]
    for task in step.all_tasks():
        if task.name == START:
            continue
        count, is_running = len(task.spans), task.state == "running"
        for number, (began, took) in enumerate(task.spans, 1):
            state = task.state
            if number < count:
                # Between two attempts it waited for an answer, or else the first attempt had
                # failed.
                following = task.spans[number][0]
                answered = any(began + took <= answer <= following for answer in answers)
                state = "paused" if task.questions and answered else "failed"
            elif is_running:  # this is how it stood before
                state = "paused" if task.error is None else "failed"
            yield Bar(task.node, place, began, max(took, 0.0), state, number, count, task.id)
        if is_running or not count:  # when it began is not known
            after = max((sum(span) for span in task.spans), default=float(place))
            took = 0.0 if timed or is_running else 1.0
            yield Bar(task.node, place, after, took, task.state, 0, 0, task.id)


def _list_rows(steps: Iterable[TraceStep]) -> tuple[str, ...]:
    """Return nodes in the order in which they first appear, those of a nested graph below its
    node."""
    seen: dict[str, dict[str, Any]] = {}
    ran: set[str] = set()
    for step in steps:
        for task in step.all_tasks():
            level = seen
            for part in task.node.split(NS_END):
                level = level.setdefault(part, {})
            if task.name != START:
                ran.add(task.node)
    return tuple(row for row in _list_paths(seen, "") if row in ran)


def _list_paths(level: dict[str, dict[str, Any]], above: str) -> Iterator[str]:
    for name, below in level.items():
        path = join_id(above, name)
        yield path
        yield from _list_paths(below, path)


# -- calls and gaps --------------------------------------------------------------------------------


class _Clock:
    """Walks through the steps and finds where calls began and where nothing ran."""

    def __init__(self, timed: bool) -> None:
        self.timed = timed
        self.gaps: list[Gap] = []
        self.calls: list[ThreadCall] = []
        self.ended: float | None = None  # when the last thing ended
        self.run_id: Any = None

    def measure(self, steps: Iterable[TraceStep]) -> tuple[tuple[Gap, ...], tuple[ThreadCall, ...]]:
        """Return the gaps and calls of all steps."""
        for place, step in enumerate(steps):
            blocks = merge_spans(list_spans(step.tasks)) if self.timed else []
            began = step.at if self.timed else None
            if blocks:
                began = blocks[0][0]
            self._enter(place, step, began)
            self._find_gaps(place, step, blocks)
            if blocks:
                self.ended = blocks[-1][1]
            elif began is not None:
                self.ended = max(began, self.ended or began)
        return tuple(self.gaps), tuple(self.calls)

    def _find_gaps(self, place: int, step: TraceStep, blocks: list[tuple[float, float]]) -> None:
        """Find the times within a step in which nothing ran, and the calls that ended them."""
        later = _list_later_attempts(step)
        for (_, stop), (start, end) in pairwise(blocks):
            first = bisect_left(later, start, key=lambda attempt: attempt.began)
            last = bisect_right(later, end, key=lambda attempt: attempt.began)
            kind = _explain_gap(later[first:last], stop)
            if kind is None and start - stop > IDLE:
                kind = "idle"  # an attempt that died with its process has stored no time
            if kind is not None:
                self.gaps.append(Gap(place, stop, start, kind))
            if kind in ("answer", "idle"):
                self.calls.append(ThreadCall("resume", place, start))
        answered = any(task.questions and task.state == "done" for task in step.tasks)
        if answered and not self.timed:
            self.calls.append(ThreadCall("resume", place, float(place)))

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
                later = _list_later_attempts(step)
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


def _list_later_attempts(step: TraceStep) -> list[_LaterAttempt]:
    """Return a step's attempts after the first ones, in the order in which they began."""
    found = []
    for task in step.tasks:
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
