"""When everything in a thread ran, as plain records: bars, calls and the gaps between them; from
stored times alone.

Nothing is drawn here but a few lines of text; `timeline_svg` makes the picture.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from ...checkpoint.base import RunnableConfig
from ...pregel.app import Pregel
from ...pregel.names import NS_END, START
from ..image import as_image
from ..theme import Theme
from . import timeline_svg, timeline_text
from .trace import TaskState, Trace, TraceBranch, TraceStep, TraceTask
from .trace_reader import read_trace
from .values import count_noun, duration

GapKind = Literal["answer", "idle", "retry"]
"""Why nothing ran: it waited for an answer to a question; nobody ran it; all that was left waited
for its next try."""

CallSource = Literal["input", "resume", "update", "fork"]

IDLE = 1.0
"""Seconds between two supersteps after which they belong to two calls; nothing that is stored says
so."""

LATE = 0.5
"""Seconds by which a retry may come later than its policy says."""


class Bar(NamedTuple):
    """One attempt of a task.

    Attributes:
        row: the node's id.
        step: the place of its step in `Timeline.steps`.
        began: seconds since the epoch; in a timeline without times the place of its step.
        took: seconds.
        attempt, attempts: the first is 1; 0 of 0 if no time is known, as for a task that has not
            begun.
        task: its id.
    """

    row: str
    step: int
    began: float
    took: float
    state: TaskState
    attempt: int
    attempts: int
    task: str

    @property
    def ended(self) -> float:
        """When it ended."""
        return self.began + self.took


class Gap(NamedTuple):
    """A time in which nothing ran. `step` is the place of the step that goes on after it."""

    step: int
    began: float
    ended: float
    kind: GapKind

    @property
    def took(self) -> float:
        """Seconds."""
        return self.ended - self.began


class ThreadCall(NamedTuple):
    """What set the thread going: from this step on, or from the time within it at which an answer
    came."""

    source: CallSource
    step: int
    began: float


@dataclass(frozen=True)
class Timeline:
    """A thread's run through time.

    Attributes:
        rows: the ids of the nodes, in the order in which they first ran; below a node those of its
            nested graph.
        timed: whether times are stored; if not, every step is one unit wide.
        branches: what is beside the line that is shown.
        labels: of rows that are not called as their ids are: error handlers.
        remarks: what a reader must know first: that the graph is not the one that made the thread.
    """

    name: str
    thread: str
    state: str
    steps: tuple[TraceStep, ...]
    rows: tuple[str, ...]
    bars: tuple[Bar, ...]
    gaps: tuple[Gap, ...]
    calls: tuple[ThreadCall, ...]
    branches: tuple[TraceBranch, ...]
    timed: bool
    remarks: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def ran(self) -> float:
        """Seconds in which something ran, or waited for a retry."""
        blocks = _merge_spans(bar for bar in self.bars if bar.attempts)
        return sum(stop - start for start, stop in blocks) + self._sum("retry")

    @property
    def waited(self) -> float:
        """Seconds spent waiting for answers."""
        return self._sum("answer")

    def _sum(self, kind: GapKind) -> float:
        return sum(gap.took for gap in self.gaps if gap.kind == kind)

    def took(self, step: int) -> float | None:
        """Seconds that the step at a place in `steps` took; None if it is not known, or it stopped
        midway."""
        spans = _spans(self.steps[step].tasks)
        if not spans or step in self._stopped:
            return None
        return max(stop for _, stop in spans) - min(spans)[0]

    @cached_property
    def _stopped(self) -> frozenset[int]:
        """The places of the steps that stopped midway, to go on in another call."""
        return frozenset(
            gap.step
            for gap in self.gaps
            if gap.kind != "retry"
            and any(began <= gap.began for began, _ in _spans(self.steps[gap.step].tasks))
        )

    @property
    def summary(self) -> str:
        """The run in one line."""
        parts = [count_noun(len(self.steps), "step"), count_noun(len(self.calls), "call")]
        if self.timed:
            parts.append(f"ran {duration(self.ran)}")
        if self.waited:
            parts.append(f"waited {duration(self.waited)} for answers")
        if not self.timed and self.bars:
            parts.append("times not stored: every step is drawn equally wide")
        if self.branches:
            parts.append(
                f"{count_noun(len(self.branches), 'other branch', 'other branches')} not shown"
            )
        return " · ".join(parts)

    def draw_svg(self, *, theme: Theme = "auto", width: int | None = None) -> str:
        """The picture as SVG.

        Args:
            theme: "light", "dark", or "auto", which follows the page that shows it.
            width: in pixels; by default it grows with the number of steps.
        """
        return timeline_svg.draw_svg(self, theme=theme, width=width)

    def draw_text(self, width: int = 100) -> str:
        """The picture in characters, at most about `width` wide."""
        return timeline_text.draw_text(self, width)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        svg, text = self.draw_svg(), self.draw_text()
        return {"text/html": as_image(svg, repr(self)), "image/svg+xml": svg, "text/plain": text}

    def __repr__(self) -> str:
        return f"<Timeline of {self.name!r}, thread {self.thread!r}: {self.summary}>"


def timeline(app: Pregel, config: RunnableConfig) -> Timeline:
    """When everything in a thread ran, read from what its saver has stored.

    Retries and the waits between them are seen from the times of the attempts. Why nothing ran for
    a while is not stored; it is read off: a task with a question waited for its answer; between the
    attempts of a task that has a retry policy it waited as that says; a second or more between two
    supersteps means that another call went on.

    Args:
        config: the thread; with a `checkpoint_id` the line that leads to that checkpoint, else to
            the newest.

    Raises:
        TypeError, ValueError: as `read_trace` does.
    """
    return build_timeline(read_trace(app, config))


def build_timeline(trace: Trace) -> Timeline:
    """The timeline of a thread that has been read already."""
    timed = any(task.spans for step in trace.steps for task in step.tasks)
    gaps, calls = _Clock(timed).measure(trace.steps)
    bars = [
        bar
        for place, step in enumerate(trace.steps)
        for bar in _list_bars(place, step, gaps, timed)
    ]
    tasks = (task for step in trace.steps for task in step.all_tasks())
    return Timeline(
        trace.name, trace.thread, trace.state, trace.steps, _list_rows(trace.steps), tuple(bars),
        gaps, calls,
        trace.branches, timed, trace.remarks,
        {task.node: task.name for task in tasks if not task.node.endswith(task.name)},
    )  # fmt: skip


# -- bars ------------------------------------------------------------------------------------------


def _list_bars(place: int, step: TraceStep, gaps: Iterable[Gap], timed: bool) -> Iterator[Bar]:
    answers = [gap.ended for gap in gaps if gap.step == place and gap.kind == "answer"]
    for task in step.all_tasks():
        if task.name == START:
            continue
        count = len(task.spans)
        if not count:
            took = 0.0 if timed else 1.0
            yield Bar(task.node, place, float(place), took, task.state, 0, 0, task.id)
        for number, (began, took) in enumerate(task.spans, 1):
            state = task.state
            if number < count:
                # Between two attempts it either waited for an answer, or the first one had failed.
                following = task.spans[number][0]
                answered = any(began + took <= answer <= following for answer in answers)
                state = "paused" if task.questions and answered else "failed"
            yield Bar(task.node, place, began, max(took, 0.0), state, number, count, task.id)


def _list_rows(steps: Iterable[TraceStep]) -> tuple[str, ...]:
    """Nodes in the order in which they are first seen, those of a nested graph below its node."""
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
        path = f"{above}{NS_END}{name}" if above else name
        yield path
        yield from _list_paths(below, path)


# -- calls and gaps --------------------------------------------------------------------------------


class _Clock:
    """Walks through the steps and says where calls began and where nothing ran."""

    def __init__(self, timed: bool) -> None:
        self.timed = timed
        self.gaps: list[Gap] = []
        self.calls: list[ThreadCall] = []
        self.ended: float | None = None  # when the last thing ended
        self.run_id: Any = None

    def measure(self, steps: Iterable[TraceStep]) -> tuple[tuple[Gap, ...], tuple[ThreadCall, ...]]:
        """The gaps and calls of all steps."""
        for place, step in enumerate(steps):
            blocks = _merge_spans(_spans(step.tasks)) if self.timed else []
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
        """The times within a step in which nothing ran, and the calls that ended them."""
        later = _list_later_attempts(step)
        for (_, stop), (start, end) in pairwise(blocks):
            first = bisect_left(later, start, key=lambda attempt: attempt.began)
            last = bisect_right(later, end, key=lambda attempt: attempt.began)
            kind = _explain_gap(later[first:last], stop)
            if kind is None and start - stop > IDLE:
                kind = "idle"  # an attempt that died with its process has left no time
            if kind is not None:
                self.gaps.append(Gap(place, stop, start, kind))
            if kind in ("answer", "idle"):
                self.calls.append(ThreadCall("resume", place, start))
        answered = any(task.questions and task.state == "done" for task in step.tasks)
        if answered and not self.timed:
            self.calls.append(ThreadCall("resume", place, float(place)))

    def _enter(self, place: int, step: TraceStep, began: float | None) -> None:
        """A step begins: a call of its own if it came from outside, or after a stop."""
        known = self.run_id
        self.run_id = step.metadata.get("run_id", known)
        quiet = 0.0
        if began is not None and self.ended is not None:
            quiet = began - self.ended
        if step.source in ("input", "update", "fork"):
            source: CallSource = step.source
        else:
            other_run = known is not None and self.run_id != known
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


def _spans(tasks: Iterable[TraceTask]) -> list[tuple[float, float]]:
    return [(began, began + took) for task in tasks for began, took in task.spans]


def _merge_spans(spans: Iterable[Any]) -> list[tuple[float, float]]:
    """The times in which something ran, put together where they meet; bars or (began, ended)
    pairs."""
    pairs = sorted((s.began, s.ended) if isinstance(s, Bar) else s for s in spans)
    found: list[tuple[float, float]] = []
    for start, stop in pairs:
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        else:
            found.append((start, stop))
    return found


class _LaterAttempt(NamedTuple):
    """An attempt that was not a task's first.

    Attributes:
        before: when the attempt before it had ended.
        asked: whether its task has asked.
        late: whether it came later than a retry would.
    """

    began: float
    before: float
    asked: bool
    late: bool


def _list_later_attempts(step: TraceStep) -> list[_LaterAttempt]:
    """A step's attempts after the first ones, in the order in which they began."""
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
    """Why nothing ran before these attempts: by those of tasks that had ended by then, if any."""
    ended = [attempt for attempt in attempts if attempt.before <= stopped]
    if any(attempt.asked for attempt in ended):
        return "answer"
    if any(attempt.late for attempt in ended):
        return "idle"
    return "retry" if ended else None
