"""When everything in a thread ran: bars, calls and gaps, computed from the stored times of a trace.

Draws only a few lines of text itself; `timeline_svg` draws the picture.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from ..trace.records import Trace, TraceStep
from . import timeline_svg, timeline_text
from .timeline_attempts import gather_attempts
from .timeline_calls import find_calls
from .timeline_model import Bar, TimelineModel

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
    gaps, calls = find_calls(steps, timed)
    answers = sorted(gap.ended for gap in gaps if gap.kind == "answer")
    bars = [
        bar for place, step in enumerate(steps) for bar in _list_bars(place, step, answers, timed)
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
