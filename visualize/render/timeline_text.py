"""A timeline in characters: a line per node, a column per superstep. Only draws the records."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from ...pregel.names import NS_END
from ..group import group
from ..labels import TIMES
from ..trace.values import display_name, duration, sanitize
from .timeline_model import Bar, TimelineModel
from .timeline_scale import Scale, ScaleRoom, build_scale

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
    labels = {row: _label(timeline, row) for row in timeline.rows}
    left = max(map(len, labels.values()), default=0)
    left = max(left, 4) + 2
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


def _label(timeline: TimelineModel, row: str) -> str:
    name = timeline.labels.get(row) or display_name(row)
    return "  " * row.count(NS_END) + name[:24]


def _draw_head(timeline: TimelineModel, scale: Scale, left: int) -> Iterator[str]:
    """Yield the lines with the calls and with the numbers of the steps."""
    columns = int(scale.width) + 2
    calls, steps = [" "] * columns, [" "] * columns
    for call in timeline.calls:
        at = max(scale.place(call.step, call.began), scale.span(call.step)[0])
        name = _CALLS[call.source]
        if int(at) + len(name) < columns:
            _write(calls, int(at), f"┌{name}")
        else:
            _write(calls, int(at) - len(name), f"{name}┐")
    for place, step in enumerate(timeline.steps):
        _write(steps, int(scale.span(place)[0]), f"{step.number}")
    yield "call".ljust(left) + "".join(calls)
    yield "step".ljust(left) + "".join(steps)


def _write(cells: list[str], at: int, text: str) -> None:
    """Write text into cells, if there is room."""
    wanted = cells[at : at + len(text)]
    if (
        len(wanted) == len(text)
        and not "".join(wanted).strip()
        and (at == 0 or cells[at - 1] == " ")
    ):
        cells[at : at + len(text)] = text


def _draw_row(bars: list[Bar], scale: Scale) -> list[str]:
    """Return the cells of a row. A mark at the end of an attempt says how it ended; failures and
    questions take precedence over what ran at the same time."""
    cells = [" "] * (int(scale.width) + 2)
    for piece in (piece for step in scale.steps for piece in step if piece.gap is not None):
        cells[int(piece.x + piece.width / 2)] = "┊"
    ends: dict[str, int] = {}
    for bar in sorted(bars, key=lambda bar: (bar.task, bar.began)):
        first, last = _find_columns(bar, scale)
        if bar.attempt > 1:
            _fill(cells, ends[bar.task], first, "─", over=" ")
        _fill(cells, first, last, "░" if bar.state in ("waiting", "lost") else "█")
        _fill(cells, last - 1, last, _MARKS[bar.state])
        ends[bar.task] = last
    return cells


def _find_columns(bar: Bar, scale: Scale) -> tuple[int, int]:
    """Return the first column of a bar, and the one after its last."""
    if bar.attempts == 0 and bar.took == 0:
        first = int(scale.span(bar.step)[0])
        return first, first + 1
    first, last = int(scale.place(bar.step, bar.began)), int(scale.place(bar.step, bar.ended))
    return first, max(last, first + 1)


def _fill(cells: list[str], first: int, last: int, mark: str, over: str = "") -> None:
    """Write a mark into columns, never over a failure or a question; with `over`, only over that
    mark."""
    for column in range(first, last):
        if cells[column] == over if over else cells[column] not in "✗?":
            cells[column] = mark
