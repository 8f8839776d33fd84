"""A thread's runs over time, as records: what ran when, and what it waited for; and where each time
is on a line.

Distances on the line are to scale within a step, but not between steps, so that a step of a
microsecond is visible beside one of a minute. Draws nothing."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from ...checkpoint.base import UNDER_WAY
from ..group import group
from ..trace.records import TaskState, TraceBranch, TraceStep, TraceTask
from ..trace.values import count_noun, display_name, duration

GapKind = Literal["answer", "idle", "stopped", "retry"]
"""Why nothing ran: `answer`: a question waited for its answer; `idle`: no call ran the thread;
`stopped`: the run ended in the middle of the step, as when its process is killed, until another
call continued; `retry`: all remaining tasks waited for their next attempt."""

CallSource = Literal["input", "resume", "update", "fork"]


class Bar(NamedTuple):
    """One attempt of a task.

    Attributes:
        row: the node's id.
        step: the index of its step in `Timeline.steps`.
        began: seconds since the epoch; in a timeline without times, the index of its step.
        took: seconds.
        attempt, attempts: the first is 1; 0 of 0 if no time is known, as for a task that has not
            begun, or is running.
        task: the task's id.
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
    """A time in which nothing ran. `step` is the index of the step that continues after it."""

    step: int
    began: float
    ended: float
    kind: GapKind

    @property
    def took(self) -> float:
        """Its duration in seconds."""
        return self.ended - self.began


class ThreadCall(NamedTuple):
    """A call that started or continued the thread: at this step, or within it at the time an answer
    came."""

    source: CallSource
    step: int
    began: float


@dataclass(frozen=True)
class TimelineModel:
    """A thread's runs over time.

    Attributes:
        rows: the ids of the nodes, in the order in which they first ran; below a node those of its
            nested graph.
        timed: whether times are stored; if not, every step is one unit wide.
        branches: the branches that are not on the line shown.
        labels: the labels of rows whose names differ from their ids: error handlers.
        homes: for each node in a folded row, the id of that row.
        remarks: what a reader must know first, such as that another graph has made the thread.
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
    homes: Mapping[str, str] = field(default_factory=dict)

    @property
    def ran(self) -> float:
        """The seconds in which something ran, or waited for a retry."""
        blocks = merge_spans((bar.began, bar.ended) for bar in self.bars if bar.attempts)
        return sum(stop - start for start, stop in blocks) + self._sum("retry")

    @property
    def waited(self) -> float:
        """The seconds spent waiting for answers."""
        return self._sum("answer")

    def label(self, row: str) -> str:
        """Return the name of a row."""
        return self.labels.get(row) or display_name(row)

    def _sum(self, kind: GapKind) -> float:
        return sum(gap.took for gap in self.gaps if gap.kind == kind)

    def took(self, step: int) -> float | None:
        """Return the seconds that the step at an index in `steps` took; None if that is unknown, if
        it stopped midway, or if it is running.

        With schedule="ready", tasks may run across steps: then a step takes from the end of the one
        before to its own end."""
        if _count_running(self.steps[step]):
            return None
        if self.timed and self.may_overlap(step):
            began, ended = self.windows[step]
            stops = [gap for gap in self._stops.get(step, ()) if gap.began < ended]
            if any(gap.began > began for gap in stops):
                return None
            return ended - max([began, *(gap.ended for gap in stops)]) or None
        if step in self._stopped:
            return None
        spans = list_spans(self.steps[step].tasks)
        return max(stop for _, stop in spans) - min(spans)[0] if spans else None

    def may_overlap(self, step: int) -> bool:
        """Return whether tasks may run across the beginning or the end of a step."""
        return step in self.joined or UNDER_WAY in self.steps[step].metadata

    @cached_property
    def joined(self) -> frozenset[int]:
        """The indexes of the steps that begin where the previous one has ended, whenever their
        tasks have started."""
        later = range(1, len(self.steps) if self.timed else 0)
        return frozenset(place for place in later if self.steps[place].since is not None)

    @cached_property
    def windows(self) -> tuple[tuple[float, float], ...]:
        """When each step began and ended; a step without times is placed at the end of the
        previous one."""
        bars = group((b.step, b) for b in self.bars if b.attempts or not self.timed)
        found: list[tuple[float, float]] = []
        last = 0.0
        for place, step in enumerate(self.steps):
            mine = bars.get(place, [])
            began = last if self.timed else float(place)
            if mine and place not in self.joined:
                began = min(bar.began for bar in mine)
            if not place and step.since is not None:
                began = max(began, step.since)
            # What is still pending is no end of a step across whose end tasks run.
            over = self.timed and UNDER_WAY in step.metadata
            ends = [bar.ended for bar in mine if not (over and bar.state not in ("done", "lost"))]
            last = max([began, *ends]) if self.may_overlap(place) or not ends else max(ends)
            found.append((began, last))
        return tuple(found)

    @cached_property
    def _stops(self) -> dict[int, list[Gap]]:
        """The gaps between calls, by the index of their step."""
        return group((gap.step, gap) for gap in self.gaps if gap.kind != "retry")

    @cached_property
    def _stopped(self) -> frozenset[int]:
        """The indexes of the steps that stopped midway and continued in another call."""
        return frozenset(
            step
            for step, gaps in self._stops.items()
            for gap in gaps
            if any(began <= gap.began for began, _ in list_spans(self.steps[step].tasks))
        )

    @property
    def summary(self) -> str:
        """The runs in one line."""
        running = sum(map(_count_running, self.steps))
        told = {
            count_noun(len(self.steps), "step"): True,
            count_noun(len(self.calls), "call"): True,
            f"ran {duration(self.ran)}{' so far' if running else ''}": (
                self.timed and (self.ran or not running)
            ),
            f"waited {duration(self.waited)} for answers": self.waited,
            "times not stored: every step is drawn equally wide": not self.timed and self.bars,
            f"{count_noun(running, 'task')} running": running,
            f"{count_noun(len(self.branches), 'other branch', 'other branches')} not shown": (
                self.branches
            ),
        }
        return " · ".join(words for words, holds in told.items() if holds)


def _count_running(step: TraceStep) -> int:
    return sum(task.state == "running" for task in step.tasks)


def list_spans(tasks: Iterable[TraceTask]) -> list[tuple[float, float]]:
    return [(began, began + took) for task in tasks for began, took in task.spans]


def merge_spans(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the times in which something ran, as (began, ended), merged where they meet."""
    found: list[tuple[float, float]] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        else:
            found.append((start, stop))
    return found


class Stretch(NamedTuple):
    """A stretch of the line, from `x` to `x + width`; with a gap, one in which nothing ran."""

    began: float
    ended: float
    x: float
    width: float
    gap: Gap | None = None


class ScaleRoom(NamedTuple):
    """The space to divide.

    Attributes:
        width: the width of the whole line.
        least: the minimum width of a step; less if there are very many.
        gap: the width of a shortened gap.
    """

    width: float
    least: float
    gap: float


@dataclass(frozen=True, slots=True)
class Scale:
    """Where everything is on the line. `steps` holds the pieces of each step, in order; `joined`
    are the steps in which tasks continue that had started in an earlier step."""

    steps: tuple[tuple[Stretch, ...], ...]
    width: float
    joined: frozenset[int] = frozenset()

    def span(self, step: int) -> tuple[float, float]:
        """Return where a step begins and ends, without the gap before it."""
        pieces = self.steps[step]
        first, last = pieces[pieces[0].gap is not None], pieces[-1]
        return first.x, last.x + last.width

    def place_call(self, call: ThreadCall) -> float:
        """Return where a call begins."""
        return max(self.place(call.step, call.began), self.span(call.step)[0])

    def place(self, step: int, time: float) -> float:
        """Return the position of a time within a step, or outside of it, if tasks run across its
        beginning or end."""
        while step + 1 in self.joined and time > self.steps[step][-1].ended:
            step += 1
        while step in self.joined and time < self.steps[step][0].began:
            step -= 1
        pieces = self.steps[step]
        piece = pieces[max(bisect_right(pieces, time, key=lambda piece: piece.began) - 1, 0)]
        if piece.ended <= piece.began:
            return piece.x
        share = (time - piece.began) / (piece.ended - piece.began)
        return piece.x + piece.width * min(max(share, 0.0), 1.0)


def build_scale(timeline: TimelineModel, room: ScaleRoom) -> Scale:
    """Divide the space among the steps of a timeline, in proportion to the time they took."""
    windows = timeline.windows
    short = _find_shortened(timeline, windows)
    parts = [_cut_at_gaps(window, short.get(place, [])) for place, window in enumerate(windows)]
    running = {bar.step for bar in timeline.bars if bar.state == "running"}
    silences = sum(gap is not None for cut in parts for _, _, gap in cut) + len(running)
    busy = sum(stop - start for cut in parts for start, stop, gap in cut if gap is None)
    least = min(room.least, room.width * 0.6 / max(len(windows), 1))
    free = max(room.width - least * len(windows) - room.gap * silences, room.width * 0.2)
    rate = free / busy if busy else 0.0
    x = 0.0
    steps: list[tuple[Stretch, ...]] = []
    for place, cut in enumerate(parts):
        # A step's minimum width, divided among its pieces.
        share = least / max(sum(gap is None for _, _, gap in cut), 1)
        pieces: list[Stretch] = []
        for start, stop, gap in cut:
            width = share + (stop - start) * rate if gap is None else room.gap
            pieces.append(Stretch(start, stop, x, width, gap))
            x += width
        if place in running:  # for how long is not known: it is drawn after everything that ended
            pieces.append(Stretch(pieces[-1].ended, pieces[-1].ended, x, room.gap))
            x += room.gap
        steps.append(tuple(pieces))
    return Scale(tuple(steps), x, timeline.joined)


def _find_shortened(
    timeline: TimelineModel, windows: Sequence[tuple[float, float]]
) -> dict[int, list[Gap]]:
    """Return the gaps that are not drawn to scale, by step: all gaps between calls, and the longest
    of the others."""
    kept = [gap for gap in timeline.gaps if gap.kind != "retry"]
    total = sum(stop - start for start, stop in windows)
    total -= sum(gap.took for gap in kept if gap.began >= windows[gap.step][0])
    for gap in sorted((g for g in timeline.gaps if g.kind == "retry"), key=lambda g: -g.took):
        if gap.took > 0.4 * total:
            kept.append(gap)
            total -= gap.took
    return group((gap.step, gap) for gap in sorted(kept))


def _cut_at_gaps(
    window: tuple[float, float], gaps: Sequence[Gap]
) -> list[tuple[float, float, Gap | None]]:
    """Split a step at its gaps: (began, ended, None or the gap)."""
    start, stop = window
    found: list[tuple[float, float, Gap | None]] = []
    for gap in gaps:
        if gap.began > start:
            found.append((start, gap.began, None))
        found.append((gap.began, gap.ended, gap))
        start = max(start, gap.ended)
    found.append((start, max(start, stop), None))
    return found
