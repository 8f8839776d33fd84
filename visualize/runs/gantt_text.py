"""A timeline in characters: a line per node, a column per superstep. Only draws what the records say."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from .scale import Room, Scale, arrange
from .values import TIMES, duration, plain, spoken

if TYPE_CHECKING:
    from .timeline import Bar, Timeline

_MARKS = {"done": "█", "failed": "✗", "paused": "?", "waiting": "░"}
_WORDS = {"█": "ran", "✗": "failed", "?": "asked", "░": "not run yet", "─": "waits", "┊": "nothing ran"}
_CALLS = {"input": "input", "resume": "resumed", "update": "update", "fork": "fork"}


def draw_text(timeline: Timeline, width: int) -> str:
    """The picture; see `Timeline.draw_text`."""
    labels = {row: "  " * row.count(":") + (timeline.labels.get(row) or spoken(row))[:24] for row in timeline.rows}
    left = max([len(label) for label in labels.values()] + [4]) + 2
    scale = arrange(timeline, Room(max(width - left, 20), 4.0, 3.0))
    lines = [line for remark in timeline.remarks for line in wrap(plain(remark), max(width, 40))]
    lines += [f"{plain(timeline.name, 60)} · thread {plain(timeline.thread, 60)} · {timeline.summary}"]
    columns = int(scale.width) + 2
    calls = [" "] * columns
    steps = [" "] * columns
    for call in timeline.calls:
        at = max(scale.place(call.step, call.began), scale.span(call.step)[0])
        _write(calls, int(at), f"┌{_CALLS[call.source]}")
    for place, step in enumerate(timeline.steps):
        _write(steps, int(scale.span(place)[0]), f"{step.number}")
    lines += ["call".ljust(left) + "".join(calls), "step".ljust(left) + "".join(steps)]
    silent = _silent(scale)
    bars: dict[str, list[Bar]] = {}
    for bar in timeline.bars:
        bars.setdefault(bar.row, []).append(bar)
    used: set[str] = set()
    for row in timeline.rows:
        cells = ["┊" if column in silent else " " for column in range(columns)]
        tasks = len({bar.task for bar in bars[row]})
        _fill(cells, bars[row], scale)
        used.update(cells)
        lines.append(labels[row].ljust(left) + "".join(cells).rstrip() + (f"  {TIMES}{tasks:,}" if tasks > 1 else ""))
    lines += [f"{_GAPS[gap.kind]} {duration(gap.took)}" for gap in timeline.gaps if gap.kind != "retry"][:8]
    lines.append("  ".join(f"{mark} {word}" for mark, word in _WORDS.items() if mark in used))
    return "\n".join(line.rstrip() for line in lines)


_GAPS = {"answer": "┊ waited for an answer:", "idle": "┊ nobody ran it:"}


def _write(cells: list[str], at: int, text: str) -> None:
    """Where there is room only."""
    wanted = cells[at : at + len(text)]
    if len(wanted) == len(text) and not "".join(wanted).strip() and (at == 0 or cells[at - 1] == " "):
        cells[at : at + len(text)] = text


def _silent(scale: Scale) -> set[int]:
    """The columns in the middle of the silences."""
    return {int(piece.x + piece.width / 2) for step in scale.steps for piece in step if piece.gap is not None}


def _fill(cells: list[str], bars: list[Bar], scale: Scale) -> None:
    """A mark at the end of an attempt says how it ended; failures and questions stand above what ran beside them."""
    ends: dict[str, int] = {}
    for bar in sorted(bars, key=lambda bar: (bar.task, bar.began)):
        start, stop = scale.place(bar.step, bar.began), scale.place(bar.step, bar.ended)
        first, last = int(start), max(int(stop), int(start) + 1)
        if bar.attempts == 0 and bar.took == 0:
            first = int(scale.span(bar.step)[0])
            last = first + 1
        if bar.attempt > 1:
            for column in range(ends[bar.task], first):
                cells[column] = "─" if cells[column] == " " else cells[column]
        for column in range(first, last):
            if cells[column] not in "✗?":
                cells[column] = "░" if bar.state == "waiting" else "█"
        cells[last - 1] = _MARKS[bar.state] if cells[last - 1] not in "✗?" else cells[last - 1]
        ends[bar.task] = last
