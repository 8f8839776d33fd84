"""When everything in a thread ran: bars, calls and gaps, computed from the stored times of a trace.

Draws only a few lines of text itself; `timeline_svg` draws the picture.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from ...pregel.app import Pregel
from ...pregel.names import NS_END, START, join_id
from ...pregel.types import AnyConfig
from ..assets import write_file
from ..fold import fold_rows
from ..group import group
from ..image import as_image
from ..page import draw_page
from ..text import terminal_width
from ..theme import Theme
from ..trace.reader import read_trace
from ..trace.records import Trace, TraceStep, TraceTask
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

MOST_PIXELS = 20_000
"""How wide a timeline on a page of its own may be."""
MOST_ROWS = 30
"""If there are more rows than this, those that ran in the same steps are folded into one."""


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

    def draw_html(self, path: str | Path | None = None, *, theme: Theme = "auto") -> str:
        """Return the picture as a web page with pan and zoom, wide enough to show each step; also
        write it to `path`. The page works offline."""
        svg = self.draw_svg(theme=theme, width=min(max(60 * len(self.steps), 940), MOST_PIXELS))
        name = f"{self.name}, thread {self.thread}"
        return write_file(draw_page(name, self.summary, svg, theme), path)

    def draw_text(self, width: int = 100) -> str:
        """Return the picture in characters, at most about `width` wide."""
        return timeline_text.draw_text(self, width)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        svg, text = self.draw_svg(), self.draw_text()
        return {"text/html": as_image(svg, repr(self)), "image/svg+xml": svg, "text/plain": text}

    def _mime_(self) -> tuple[str, str]:
        """Return what marimo shows."""
        return "text/html", self._repr_mimebundle_()["text/html"]

    def __str__(self) -> str:
        return self.draw_text(terminal_width())

    def __repr__(self) -> str:
        return f"<Timeline of {self.name!r}, thread {self.thread!r}: {self.summary}>"


def timeline(app: Pregel, config: AnyConfig) -> Timeline:
    """Return when everything in a thread ran, from what its checkpointer has stored.

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
    steps = gather_attempts(trace.steps)
    clock = _Clock(steps, timed)
    answers = sorted(gap.ended for gap in clock.gaps if gap.kind == "answer")
    bars = [
        bar for place, step in enumerate(steps) for bar in _list_bars(place, step, answers, timed)
    ]
    tasks = [task for step in trace.steps for task in step.all_tasks()]
    rows = _list_rows(tasks)
    homes: dict[str, str] = {}
    if len(rows) > MOST_ROWS:
        took_part = group((bar.row, bar.step) for bar in bars)
        homes = fold_rows(rows, {row: frozenset(mine) for row, mine in took_part.items()})
        rows = tuple(dict.fromkeys(homes.get(row, row) for row in rows))
        bars = [bar._replace(row=homes.get(bar.row, bar.row)) for bar in bars]
    return Timeline(
        trace.name, trace.thread, trace.state, trace.steps, rows, tuple(bars),
        tuple(clock.gaps), tuple(clock.calls),
        trace.branches, timed, trace.remarks,
        {task.node: task.name for task in tasks if not task.node.endswith(task.name)},
        homes,
    )  # fmt: skip


# -- bars ------------------------------------------------------------------------------------------


def _list_bars(
    place: int, step: TraceStep, answers: Sequence[float], timed: bool
) -> Iterator[Bar]:
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
                next_answer = bisect_left(answers, began + took)
                answered = next_answer < len(answers) and answers[next_answer] <= following
                state = "paused" if task.questions and answered else "failed"
            elif is_running:  # this is how it stood before
                state = "paused" if task.error is None else "failed"
            yield Bar(task.node, place, began, max(took, 0.0), state, number, count, task.id)
        if is_running or not count:  # when it began is not known
            after = max((sum(span) for span in task.spans), default=float(place))
            took = 0.0 if timed or is_running else 1.0
            yield Bar(task.node, place, after, took, task.state, 0, 0, task.id)


def _list_rows(tasks: Sequence[TraceTask]) -> tuple[str, ...]:
    """Return nodes in the order in which they first appear, those of a nested graph below its
    node."""
    paths = {task.node: [*accumulate(task.node.split(NS_END), join_id)] for task in tasks}
    places: dict[str, int] = {}
    for each in chain.from_iterable(paths.values()):
        places.setdefault(each, len(places))
    ran = {task.node for task in tasks if task.name != START}
    return tuple(sorted(ran, key=lambda node: [places[each] for each in paths[node]]))


def list_parts(steps: Sequence[TraceStep]) -> list[range]:
    """Return the indexes of the steps, in parts across whose ends no task runs. A superstep is a
    part of its own."""
    starts = [
        place
        for place, step in enumerate(steps)
        if not place or step.since is None or step.source in ("input", "update", "fork")
    ]
    return [range(*ends) for ends in pairwise([*starts, len(steps)])]


def gather_attempts(steps: Sequence[TraceStep]) -> tuple[TraceStep, ...]:
    """Return the steps with each task only in the last of those that show it, with all its
    attempts: the step in which it has ended, or the open one."""
    return tuple(step for part in list_parts(steps) for step in _gather(steps, part))


def _gather(steps: Sequence[TraceStep], part: range) -> Iterator[TraceStep]:
    """Yield the steps of one part."""
    last = {task.id: place for place in part for task in steps[place].tasks}
    known: dict[str, TraceTask] = {}
    for place in part:
        tasks = []
        for after in steps[place].tasks:
            before = known.get(after.id, after)
            spans = tuple(sorted({*before.spans, *after.spans}))
            task = known[after.id] = replace(
                after,
                spans=spans,
                waits=(*before.waits, *after.waits)[: len(spans)],
                questions=after.questions or before.questions,
                steps=gather_attempts(after.steps) or before.steps,
            )
            if last[task.id] == place:
                tasks.append(task)
        yield replace(steps[place], tasks=tuple(tasks))


IDLE = 1.0
"""Seconds between two supersteps after which they are attributed to two calls; the stored data do
not say so."""

LATE = 0.5
"""Seconds by which a retry may come later than its policy says."""


class _Clock:
    """Walks through the steps and finds where calls began and where nothing ran.

    Args:
        steps: as `gather_attempts` returns them.
        timed: whether times are stored.
    """

    def __init__(self, steps: Sequence[TraceStep], timed: bool) -> None:
        self.steps = steps
        self.timed = timed
        self.gaps: list[Gap] = []
        self.calls: list[ThreadCall] = []
        self.ended: float | None = None  # when the last thing ended
        self.run_id: Any = None
        for part in list_parts(steps):
            self.measure(part)

    def measure(self, part: range) -> None:
        """Add the gaps and calls of steps that overlap, or of one superstep."""
        first = self.steps[part[0]]
        tasks = [task for place in part for task in self.steps[place].tasks]
        blocks = merge_spans(list_spans(tasks)) if self.timed else []
        began = blocks[0][0] if blocks else first.at if self.timed else None
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
        ended = began if self.ended is None else self.ended
        quiet = 0.0 if began is None or ended is None else began - ended
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
        if began is not None and ended is not None and quiet > 0:
            self.gaps.append(Gap(place, ended, began, "idle"))
        when = (ended if began is None else began) or 0.0
        self.calls.append(ThreadCall(source, place, when if self.timed else float(place)))


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
