"""A timeline in characters: a line per node, a column per superstep. Only draws the records."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from ...pregel.names import NS_END
from ..group import group
from ..labels import TIMES
from ..trace.values import duration, sanitize
from .timeline_model import Bar, Scale, ScaleRoom, TimelineModel, build_scale

_MARKS = {"done": "█", "failed": "✗", "paused": "?", "running": "▶", "waiting": "░", "lost": "x"}
_WORDS = {
    "█": "ran",
    "✗": "failed",
    "?": "asked",
    "▶": "running",
    "░": "not run yet",
    "x": "lost its race",
    "─": "waits",
    "┊": "nothing ran",
}
_CALLS = {"input": "input", "resume": "resumed", "update": "update", "fork": "fork"}
_GAPS = {
    "answer": "┊ waited for an answer:",
    "idle": "┊ not running:",
    "stopped": "┊ stopped in mid-step, continued after",
}

MOST_GAPS = 8
"""How many gaps are listed."""


def draw_text(timeline: TimelineModel, width: int) -> str:
    """Return the picture; see `TimelineModel.draw_text`."""
    labels = {row: "  " * row.count(NS_END) + timeline.label(row)[:24] for row in timeline.rows}
    left = max([4, *map(len, labels.values())]) + 2
    bars = group((bar.row, bar) for bar in timeline.bars)
    tasks = {row: len({bar.task for bar in mine}) for row, mine in bars.items()}
    counts = {row: f"  {TIMES}{count:,}" for row, count in tasks.items() if count > 1}
    right = max(map(len, counts.values()), default=0)
    scale = build_scale(timeline, ScaleRoom(max(width - left - right, 20), 4.0, 3.0))
    lines = [line for remark in timeline.remarks for line in wrap(sanitize(remark), max(width, 40))]
    name, thread = sanitize(timeline.name, 60), sanitize(timeline.thread, 60)
    lines += [f"{name} · thread {thread} · {timeline.summary}", *_draw_head(timeline, scale, left)]
    used: set[str] = set()
    for row in timeline.rows:
        mine = bars.get(row, [])
        cells = _draw_row(mine, scale)
        used.update(cells)
        lines.append(labels[row].ljust(left) + "".join(cells).rstrip() + counts.get(row, ""))
    gaps = [gap for gap in timeline.gaps if gap.kind != "retry"]
    lines += [f"{_GAPS[gap.kind]} {duration(gap.took)}" for gap in gaps[:MOST_GAPS]]
    lines.append("  ".join(f"{mark} {word}" for mark, word in _WORDS.items() if mark in used))
    return "\n".join(line.rstrip() for line in lines)


def _draw_head(timeline: TimelineModel, scale: Scale, left: int) -> Iterator[str]:
    """Yield the lines with the calls and with the numbers of the steps."""
    columns = int(scale.width) + 2
    calls, steps = [" "] * columns, [" "] * columns
    for call in timeline.calls:
        at, name = int(scale.place_call(call)), _CALLS[call.source]
        if at + len(name) < columns:
            _write(calls, at, f"┌{name}")
        else:
            _write(calls, at - len(name), f"{name}┐")
    for place, step in enumerate(timeline.steps):
        _write(steps, int(scale.span(place)[0]), f"{step.number}")
    yield "call".ljust(left) + "".join(calls)
    yield "step".ljust(left) + "".join(steps)


def _write(cells: list[str], at: int, text: str) -> None:
    """Write text into cells, if there is room."""
    wanted = slice(at, at + len(text))
    if cells[wanted] == [" "] * len(text) and (at == 0 or cells[at - 1] == " "):
        cells[wanted] = text


def _draw_row(bars: list[Bar], scale: Scale) -> list[str]:
    """Return the cells of a row. A mark at the end of an attempt says how it ended; failures and
    questions take precedence over what ran at the same time."""
    cells = [" "] * (int(scale.width) + 2)
    for piece in (piece for step in scale.steps for piece in step if piece.gap is not None):
        cells[int(piece.x + piece.width / 2)] = "┊"
    ends: dict[str, int] = {}
    for bar in sorted(bars, key=lambda bar: (bar.task, bar.began)):
        if bar.attempts == 0 and bar.took == 0:
            first = last = int(scale.span(bar.step)[0])
        else:
            first, last = (int(scale.place(bar.step, at)) for at in (bar.began, bar.ended))
        last = max(last, first + 1)
        if bar.attempt > 1:
            _fill(cells, ends[bar.task], first, "─", over=" ")
        _fill(cells, first, last, "░" if bar.state in ("waiting", "lost") else "█")
        _fill(cells, last - 1, last, _MARKS[bar.state])
        ends[bar.task] = last
    return cells


def _fill(cells: list[str], first: int, last: int, mark: str, over: str = "") -> None:
    """Write a mark into columns, never over a failure or a question; with `over`, only over that
    mark."""
    for column in range(first, last):
        if cells[column] == over if over else cells[column] not in "✗?":
            cells[column] = mark
