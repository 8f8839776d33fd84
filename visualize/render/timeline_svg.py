"""A timeline as SVG: a row per node, a column per superstep, a bar per attempt. Only draws the
records."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, groupby
from textwrap import wrap
from typing import NamedTuple

from ...pregel.names import NS_END
from ..assets import read_asset
from ..group import group
from ..labels import TIMES
from ..layout.geometry import Box
from ..markup import Markup, as_markup, fill
from ..theme import Theme, style_sheet
from ..trace.values import count_noun, duration, sanitize
from .timeline_model import Bar, Gap, Scale, ScaleRoom, TimelineModel, build_scale

LANES = 6
"""How many tasks of one node are drawn below each other; more become one bar with their number."""

MOST_TASKS = 40
"""The same for tasks that ran one after another."""

WIDEST = 940.0
"""The default width in pixels, which fits a notebook cell."""

NARROW = 4.0
"""The width in pixels below which steps share a column."""

_HEAD, _ROW, _LANE, _GAP = 50.0, 26.0, 9.0, 54.0
RULES = "\n" + read_asset("render/timeline.css")
_CALLS = {"input": "input", "resume": "resumed", "update": "update_state", "fork": "fork"}
_WORDS = {
    "done": "ran",
    "failed": "failed",
    "paused": "asked, then waited for an answer",
    "running": "running",
    "waiting": "not run yet",
    "lost": "lost its race",
}
_GAPS = {
    "answer": "waited for an answer",
    "idle": "not running",
    "stopped": "stopped in mid-step (the process was killed, or the call cancelled)",
    "retry": "waited for a retry",
}
_CHAR = 6.7  # the width of a character of the labels, on average


class _Row(NamedTuple):
    """A node's row: its position and the lanes of its tasks; tasks beyond `LANES` have none."""

    y: float
    height: float
    lanes: dict[tuple[int, str], int]
    crowded: frozenset[int]


def draw_svg(timeline: TimelineModel, *, theme: Theme = "auto", width: int | None = None) -> str:
    """Return the picture; see `TimelineModel.draw_svg`.

    Raises:
        ValueError: there is no such theme.
    """
    style = style_sheet(theme, RULES)
    labels = {row: timeline.label(row) for row in timeline.rows}
    labels = {row: name if len(name) <= 28 else name[:27] + "…" for row, name in labels.items()}
    widths = [len(label) * _CHAR + 12 * row.count(NS_END) for row, label in labels.items()]
    left = min(max(widths, default=0), 190) + 24
    across = width - left if width else min(max(30.0 * len(timeline.steps), 640.0), WIDEST - left)
    scale = build_scale(timeline, ScaleRoom(max(across - 12, 120.0), 36.0, _GAP))
    rows = _rows(timeline)
    bottom = _HEAD + sum(row.height for row in rows.values()) + 6
    ends = [
        scale.place_call(call) + 30 + len(_CALLS[call.source]) * 6.2 for call in timeline.calls
    ]
    total = left + max(scale.width + 12, 432.0, *ends)
    most = max(int(total / 8.2), 40)  # characters of a remark in one line
    remarks = [line for remark in timeline.remarks for line in wrap(sanitize(remark), most)]
    head = [
        fill('<text class="remark" x="12" y="{}">{}</text>', 18 * number - 2, line)
        for number, line in enumerate(remarks, 1)
    ]
    down = 18.0 * len(remarks)
    height = bottom + 44 + down
    columns = _columns(scale)
    pieces = chain.from_iterable(scale.steps)
    body = [
        *_bands(timeline, scale, columns, bottom),
        *(_gap(piece.gap, piece.x, bottom) for piece in pieces if piece.gap),
        *_numbers(timeline, scale, columns),
        *_calls(timeline, scale),
        *(_name(row, labels[row], rows[row]) for row in timeline.rows),
        f"<g>{''.join(_bars(timeline, scale, columns, rows))}</g>",
        *_legend(timeline, bottom + 16, left),
    ]
    moved = [part.replace("<g>", f'<g transform="translate({left:.0f} 0)">', 1) for part in body]
    title = f"Timeline of {timeline.name}, thread {timeline.thread}: {timeline.summary}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{style.name}" role="img" '
        f'width="{total:.0f}" height="{height:.0f}" viewBox="0 0 {total:.0f} {height:.0f}">'
        f"<title>{as_markup(sanitize(title))}</title><style>{style.css}</style>"
        f'<defs><pattern id="sg-failed-{theme}" width="6" height="6" '
        'patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect class="solid" width="6" height="6"/><path class="hatch" d="M0 '
        '0V6"/></pattern></defs>'
        f'<rect class="band" width="100%" height="100%"/>{"".join(head)}'
        f'<g transform="translate(0 {down:.0f})">{"".join(moved)}</g></svg>'
    )


# -- the frame -------------------------------------------------------------------------------------


def _name(row: str, label: str, place: _Row) -> str:
    form = """<g class="row" data-node="{}"><title>{}</title><text x="{}" y="{}">{}</text></g>"""
    indent, y = 12 + 12 * row.count(NS_END), f"{place.y + place.height / 2 + 4:.1f}"
    return fill(form, row, sanitize(row, 300), indent, y, label)


def _columns(scale: Scale) -> list[tuple[int, int]]:
    """Return the first and last step of each column; neighbours that are too narrow to be visible
    share one."""
    found: list[tuple[int, int]] = []
    for step in range(len(scale.steps)):
        stop = scale.span(step)[1]
        if found and stop - scale.span(found[-1][0])[0] < NARROW:
            found[-1] = found[-1][0], step
        else:
            found.append((step, step))
    return found


def _bands(
    timeline: TimelineModel, scale: Scale, columns: list[tuple[int, int]], bottom: float
) -> Iterator[str]:
    """Yield a column per step."""
    for shade, (first, last) in enumerate(columns):
        start, stop = scale.span(first)[0], scale.span(last)[1]
        title, shade_of = _step_title(timeline, first, last), "band" if shade % 2 else "odd"
        yield (
            f'<g><g class="step" data-step="{first}" '
            f'data-last="{last}"><title>{title}</title><rect class="{shade_of}" '
            f'x="{start:.1f}" y="22" width="{stop - start:.1f}" '
            f'height="{bottom - 22:.1f}"/></g></g>'
        )


def _numbers(
    timeline: TimelineModel, scale: Scale, columns: list[tuple[int, int]]
) -> Iterator[str]:
    """Yield the numbers of the steps and how long they took, above the columns, where there is
    room."""
    free = 0.0
    for first, last in columns:
        start, stop = scale.span(first)[0], scale.span(last)[1]
        if start < free:
            continue
        label = f"{timeline.steps[first].number}"
        took = _took(timeline, first) if first == last else ""
        yield f'<g><text class="dim" x="{start + 3:.1f}" y="36">{label}</text>'
        pieces = scale.steps[first]
        tail = stop - start - len(label) * 6
        if any(piece.gap for piece in pieces[1:]):
            tail = pieces[-1].width
        if took and tail > len(took) * 6 + 18:
            yield f'<text class="dim" x="{stop - 4:.1f}" y="36" text-anchor="end">{took}</text>'
        yield "</g>"
        free = start + len(label) * 6.5 + 10


def _step_title(timeline: TimelineModel, first: int, last: int) -> str:
    one, other = timeline.steps[first], timeline.steps[last]
    if first != last:
        return f"steps {one.number} to {other.number}"
    took = _took(timeline, first)
    return f"step {one.number}: {count_noun(len(one.tasks), 'task')}{', ' if took else ''}{took}"


def _took(timeline: TimelineModel, place: int) -> str:
    took = timeline.took(place)
    return "" if took is None else duration(took)


def _gap(gap: Gap, x: float, bottom: float) -> str:
    """Return a gap that is drawn shorter than it was."""
    middle, took = x + _GAP / 2, duration(gap.took)
    text = " ".join(took.split(" ")[:2])
    cut = f"M{x:.1f} 22V{bottom:.1f}M{x - 5:.1f} 39l10 10m0 -10l-10 10"
    return (
        f"<g><g><title>{_GAPS[gap.kind]}: nothing ran for {took}</title>"
        f'<rect class="silence" x="{x + 2:.1f}" y="22" width="{_GAP - 4:.1f}" '
        f'height="{bottom - 22:.1f}"/>'
        f'<text class="dim" x="{middle:.1f}" y="36" '
        f'text-anchor="middle">{text}</text>'
        + (f'<path class="cut" d="{cut}"/>' if gap.kind == "stopped" else "")
        + "</g></g>"
    )


def _calls(timeline: TimelineModel, scale: Scale) -> Iterator[str]:
    """Yield the calls, above the steps; names that would overlap are left out."""
    free = -1.0
    for number, call in enumerate(timeline.calls, 1):
        x, label = scale.place_call(call), f"{number} {_CALLS[call.source]}"
        yield (
            f'<g><path class="call" d="M{x:.1f} '
            f'22V10H{x + 6:.1f}"><title>call {label}</title></path>'
        )
        if x >= free:
            yield f'<text class="dim" x="{x + 9:.1f}" y="14">{label}</text>'
            free = x + 16 + len(label) * 6.2
        yield "</g>"


def _legend(timeline: TimelineModel, y: float, left: float) -> Iterator[str]:
    found = {bar.state for bar in timeline.bars}
    x = 12.0
    words = _WORDS if timeline.timed else {**_WORDS, "done": "ran (times not stored)"}
    for state, word in words.items():
        if state in found:
            yield (
                f'<rect class="{state}" x="{x:.0f}" y="{y - 9:.0f}" width="14" height="10" rx="2"/>'
            )
            yield f'<text class="dim" x="{x + 19:.0f}" y="{y:.0f}">{word}</text>'
            x += 34 + len(word) * 6.1
    if any(gap.kind == "stopped" for gap in timeline.gaps):
        yield f'<path class="cut" d="M{x:.0f} {y - 9:.0f}l10 10m0 -10l-10 10"/>'
        yield f'<text class="dim" x="{x + 17:.0f}" y="{y:.0f}">stopped in mid-step</text>'
    yield f'<text class="dim" x="12" y="{y + 18:.0f}">{timeline.summary}</text>'


# -- the bars --------------------------------------------------------------------------------------


def _rows(timeline: TimelineModel) -> dict[str, _Row]:
    """Return each node's row, with a lane for every task that ran beside another."""
    lanes: dict[str, dict[tuple[int, str], int]] = {row: {} for row in timeline.rows}
    crowded: dict[str, set[int]] = {row: set() for row in timeline.rows}
    part = [*accumulate(place not in timeline.joined for place in range(len(timeline.steps)))]
    bars = sorted(timeline.bars, key=lambda b: (b.row, b.step))
    for (row, _), overlapping in groupby(bars, lambda b: (b.row, part[b.step])):
        near = list(overlapping)
        given = _lanes(near)
        for step, found in groupby(near, lambda b: b.step):
            own = _lanes(list(found))
            if max(own.values()) >= LANES or len(own) > MOST_TASKS:
                crowded[row].add(step)
            else:
                lanes[row].update({(step, task): given[task] % LANES for task in own})
    rows: dict[str, _Row] = {}
    y = _HEAD
    for row in timeline.rows:
        most = max(lanes[row].values(), default=0) + 1
        height = _ROW if most <= 2 else most * _LANE + 8
        rows[row] = _Row(y, height, lanes[row], frozenset(crowded[row]))
        y += height
    return rows


def _lanes(bars: list[Bar]) -> dict[str, int]:
    """Return the lane of each task: the first that is free when it begins."""
    tasks: dict[str, tuple[float, float]] = {}
    for bar in bars:
        start, stop = tasks.get(bar.task, (bar.began, bar.ended))
        tasks[bar.task] = min(start, bar.began), max(stop, bar.ended)
    ends: list[float] = []
    found: dict[str, int] = {}
    for task, (start, stop) in sorted(tasks.items(), key=lambda item: item[1]):
        lane = next((lane for lane, end in enumerate(ends) if end <= start), len(ends))
        ends[lane:] = [stop, *ends[lane + 1 :]]
        found[task] = lane
    return found


def _bars(
    timeline: TimelineModel, scale: Scale, columns: list[tuple[int, int]], rows: dict[str, _Row]
) -> Iterator[str]:
    titles = len(timeline.bars) <= 2000
    column = {
        step: place
        for place, (first, last) in enumerate(columns)
        for step in range(first, last + 1)
    }

    def where(bar: Bar) -> tuple[str, int]:
        return bar.row, column[bar.step]

    for (name, place), found in groupby(sorted(timeline.bars, key=where), where):
        row, bars, (first, last) = rows[name], list(found), columns[place]
        if first != last:
            drawn = _slivers(bars, scale, row)
        else:
            crowded = first in row.crowded
            drawn = _bundle(bars, scale, row) if crowded else _single(bars, scale, row, titles)
        form = '<g class="bar" data-node="{}" data-step="{}">{}</g>'
        yield fill(form, name, first, Markup("".join(drawn)))


def _slivers(bars: list[Bar], scale: Scale, row: _Row) -> Iterator[str]:
    """Yield the bars of many narrow steps: one for everything that ran and, on top of it, one for
    everything that did not end well."""
    for _, found in groupby(sorted(bars, key=_is_bad), _is_bad):
        mine = list(found)
        left, right = _extent(mine, scale)
        box = Box("", left, row.y + 6, max(right - left, 1.5), row.height - 12)
        yield _rect(mine[0].state, box)


def _is_bad(bar: Bar) -> bool:
    return bar.state != "done"


def _extent(bars: Iterable[Bar], scale: Scale) -> tuple[float, float]:
    """Return where the first of some bars begins, and the last ends."""
    starts, stops = zip(*(_ends(bar, scale) for bar in bars), strict=True)
    return min(starts), max(stops)


def _single(bars: list[Bar], scale: Scale, row: _Row, titles: bool) -> Iterator[str]:
    """Yield the attempts of a few tasks of one node and step, each task in its lane; slivers in the
    same place become one."""
    most = max(row.lanes.values()) + 1
    height = {1: 14.0, 2: 9.0}.get(most, _LANE - 1)
    top = row.y + (row.height - (most * (height + 1) - 1)) / 2
    drawn: dict[tuple[int, str], float] = {}
    before: dict[str, tuple[str, float]] = {}  # task → how its last attempt ended, and where
    asked = {bar.task for bar in bars if bar.state == "paused"}  # an answer is no further attempt
    for bar in sorted(bars, key=lambda bar: bar.began):
        lane = row.lanes[bar.step, bar.task]
        y = top + lane * (height + 1)
        start, stop = _ends(bar, scale)
        if bar.task in before:
            state, ended = before[bar.task]
            kind = "asked" if state == "paused" else "wait"
            yield f'<path class="{kind}" d="M{ended:.1f} {y + height / 2:.1f}H{start:.1f}"/>'
        before[bar.task] = bar.state, stop
        if stop > drawn.get((lane, bar.state), -1.0):
            drawn[lane, bar.state] = stop
            shown = bar._replace(attempts=min(bar.attempts, 1)) if bar.task in asked else bar
            yield from _attempt(shown, Box("", start, y, stop - start, height), titles)


def _ends(bar: Bar, scale: Scale) -> tuple[float, float]:
    """Return where a bar begins and ends; a bar that is too short to be visible is made a little
    longer, within its step. What is running is at the end of its step."""
    left, right = scale.span(bar.step)
    if bar.state == "running":
        last = scale.steps[bar.step][-1]
        return last.x + 4, last.x + last.width - 4
    if not bar.attempts and bar.took == 0:
        return (left + 4, min(left + 24, right - 4)) if right - left > 10 else (left, right)
    start, stop = scale.place(bar.step, bar.began), scale.place(bar.step, bar.ended)
    thin = min(2.5, right - left)
    if stop - start < thin:
        stop = min(start + thin, max(right, start + 0.3))
        start = stop - thin
    return start, stop


def _attempt(bar: Bar, box: Box, titles: bool) -> Iterator[str]:
    if not titles:
        yield _rect(bar.state, box)
        return
    took = duration(bar.took)
    title = f"{sanitize(bar.row, 80)}: {_WORDS[bar.state]}{f', {took}' if bar.attempts else ''}"
    title += f", attempt {bar.attempt} of {bar.attempts}" if bar.attempts > 1 else ""
    yield _rect(bar.state, box, title)
    if bar.state == "done" and bar.attempts and box.height > 12 and box.width > len(took) * 5.6 + 8:
        yield _inside(box, took)
    if bar.state == "paused" and box.height > 8:
        x, y = box.right + 3, box.bottom - 2
        yield f'<text x="{x:.1f}" y="{y:.1f}" class="mark">?</text>'


def _bundle(bars: list[Bar], scale: Scale, row: _Row) -> Iterator[str]:
    """Yield many tasks of one node and step as one bar with their number, or one for each call that
    ran some of them; marked where an attempt failed."""
    gaps = [piece.x for piece in scale.steps[bars[0].step] if piece.gap]
    for mine in group((bisect_right(gaps, _ends(bar, scale)[0]), bar) for bar in bars).values():
        yield from _bundle_part(mine, scale, row)


def _bundle_part(bars: list[Bar], scale: Scale, row: _Row) -> Iterator[str]:
    left, right = _extent(bars, scale)
    states = {bar.task: bar.state for bar in sorted(bars, key=lambda bar: bar.began)}
    counts: Counter[str] = Counter(states.values())
    words = ", ".join(f"{counts[state]:,} {_WORDS[state]}" for state in _WORDS if counts[state])
    box = Box("", left, row.y + 5, max(right - left, 2.5), row.height - 10)
    style = "waiting" if set(counts) == {"waiting"} and len(states) == 1 else "done"
    style = next((state for state in ("paused", "running") if counts[state]), style)
    yield _rect(style, box, f"{sanitize(bars[0].row, 80)}: {len(states):,} tasks: {words}")
    free = left
    for stop in sorted(_ends(bar, scale)[1] for bar in bars if bar.state == "failed"):
        if stop >= free:
            free = stop + 3
            yield _rect("solid", box._replace(x=stop - 1.25, width=2.5))
    if box.width > 34:
        yield _inside(box, f"{TIMES}{len(states):,}")


def _rect(style: str, box: Box, title: str = "") -> str:
    end = fill("><title>{}</title></rect>", title) if title else "/>"
    place = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
    return f'<rect class="{style}" {place} rx="{min(2, box.width / 2):.1f}"{end}'


def _inside(box: Box, text: str) -> str:
    x, y = box.middle
    return f'<text class="in" x="{x:.1f}" y="{y + 3.8:.1f}" text-anchor="middle">{text}</text>'
