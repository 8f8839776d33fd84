"""A thread's runs over time, as records: what ran when, and what it waited for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from ...checkpoint.base import UNDER_WAY
from ..group import group
from ..trace.records import TaskState, TraceBranch, TraceStep, TraceTask
from ..trace.values import count_noun, duration

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
        blocks = merge_spans(bar for bar in self.bars if bar.attempts)
        return sum(stop - start for start, stop in blocks) + self._sum("retry")

    @property
    def waited(self) -> float:
        """The seconds spent waiting for answers."""
        return self._sum("answer")

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
        if not self.timed:
            return frozenset()
        return frozenset(
            place for place, step in enumerate(self.steps) if place and step.since is not None
        )

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
        parts = [count_noun(len(self.steps), "step"), count_noun(len(self.calls), "call")]
        running = sum(map(_count_running, self.steps))
        if self.timed and (self.ran or not running):
            parts.append(f"ran {duration(self.ran)}{' so far' if running else ''}")
        if self.waited:
            parts.append(f"waited {duration(self.waited)} for answers")
        if not self.timed and self.bars:
            parts.append("times not stored: every step is drawn equally wide")
        if running:
            parts.append(f"{count_noun(running, 'task')} running")
        if self.branches:
            parts.append(
                f"{count_noun(len(self.branches), 'other branch', 'other branches')} not shown"
            )
        return " · ".join(parts)


def _count_running(step: TraceStep) -> int:
    return sum(task.state == "running" for task in step.tasks)


def list_spans(tasks: Iterable[TraceTask]) -> list[tuple[float, float]]:
    return [(began, began + took) for task in tasks for began, took in task.spans]


def merge_spans(spans: Iterable[Any]) -> list[tuple[float, float]]:
    """Return the times in which something ran, merged where they meet; takes bars or (began, ended)
    pairs."""
    pairs = sorted((s.began, s.ended) if isinstance(s, Bar) else s for s in spans)
    found: list[tuple[float, float]] = []
    for start, stop in pairs:
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        else:
            found.append((start, stop))
    return found
