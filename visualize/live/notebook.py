"""Shows a run in a notebook: the graph's picture below the cell, redrawn as the run advances.

Only draws a Progress as SVG and sends it to the frontend. The layout is computed once.
"""

from __future__ import annotations

from html import escape
from textwrap import wrap
from typing import Any

from ..fold import FittedGraph, fit
from ..image import as_image
from ..labels import drop_illegal
from ..layout.measure import FONT, SMALL, text_width
from ..svg import LONGEST_BADGE, Mark, draw_svg, fold_marks
from ..theme import FONTS, style_sheet
from .progress import STOPPED, Progress, join, split_mark

HEAD = 54.0
"""The height of the headline and the bar above the graph."""
LINE = 19.0
"""The height of a line of text below it."""
MARGIN = 16.0
LEAST = 420.0
"""The least width of the picture, for the headline, and the least width if there are notes below
it."""
LEAST_WITH_NOTES = 640.0
MOST_LINES = 3
"""The maximum number of lines of one note."""
COLOURS = {"stopped": "failed", "starting": "waiting"}
"""States of a run that are drawn in the colour of another."""


class Picture:
    """The output of one cell: an image from beginning to end, so that its appearance does not
    change when the run ends. Images are also shown in a notebook that was only opened. The saved
    notebook gets the SVG too."""

    def __init__(self) -> None:
        self._fitted: FittedGraph | None = None
        self._handle: Any = None

    def draw(self, progress: Progress, now: float) -> None:
        """Show it, or replace what was shown before."""
        if self._fitted is None:
            self._fitted = fit(progress.model)
        svg = draw_picture(progress, now, self._fitted)
        shown = {
            "text/html": as_image(svg, progress.headline(now)),
            "text/plain": describe_run(progress, now),
        }
        if progress.over:
            shown["image/svg+xml"] = svg
        if self._handle is None:
            from IPython import display

            self._handle = display.display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def draw_picture(progress: Progress, now: float, fitted: FittedGraph) -> str:
    """Return a run as one SVG text: headline and bar, the graph, and below it questions and
    errors."""
    layout = fitted.layout
    notes = [(note, "failed" if note == progress.error else "paused") for note in progress.notes()]
    width = max(
        layout.width + 2 * MARGIN, LEAST_WITH_NOTES if notes else LEAST
    )  # badges may extend beyond the graph
    lines = [
        (line, state, not n)
        for note, state in notes
        for n, line in enumerate(_wrap_note(note, width))
    ]
    height = HEAD + layout.height + (len(lines) * LINE + MARGIN if lines else 0.0)
    headline = progress.headline(now)
    marks = fold_marks(progress.marks(), fitted.homes)
    graph = draw_svg(
        fitted.model, layout, marks={id: fit_mark(mark) for id, mark in marks.items()}
    )
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" class="stategraph '
            f'{style_sheet("auto").name}" role="img" '
            f'aria-label="{escape(headline)}" viewBox="0 0 {width:g} {height:g}" '
            f'width="{width:g}" height="{height:g}" '
            f'style="max-width:100%;height:auto" font-family="{FONTS}" font-size="{FONT:g}" '
            'text-anchor="middle">',
            f'<rect class="page" width="{width:g}" height="{height:g}" rx="8" fill="#ffffff"/>',
            f'<g transform="translate({(width - layout.width) / 2:g} {HEAD:g})">',
            graph[graph.index(">") + 1 : graph.rindex("</svg>")].strip(),
            "</g>",
            _text(headline, MARGIN, 21),
            *_bar(progress, width - 2 * MARGIN, progress.pace(now)),
            *(_note(*line, HEAD + layout.height + n * LINE) for n, line in enumerate(lines)),
            "</svg>",
        ]
    )


def describe_run(progress: Progress, now: float) -> str:
    """Return the same as text, for where no picture can be shown."""
    rows = [
        f"{'  ' * row.depth}{row.label}: {' · '.join(filter(None, split_mark(row.mark)))}"
        for row in progress.rows(now)
    ]
    head = join(progress.headline(now), progress.pace(now))
    return "\n".join([head, *rows, *progress.notes()])


def fit_mark(mark: Mark) -> Mark:
    """Return the mark with as much of its text as fits its node: of several parts, the most
    important one."""
    parts = split_mark(mark)[1].split(" · ") if split_mark(mark)[0] != STOPPED else [STOPPED]
    urgent = [part for part in parts if part.endswith(" failed")] if mark.state == "failed" else []
    for text in (" · ".join(parts), *urgent, *reversed(parts)):
        if text_width(text, SMALL) <= LONGEST_BADGE:
            return mark._replace(text=text)
    return mark


def _bar(progress: Progress, width: float, pace: str) -> list[str]:
    text = ""
    if pace:
        room = text_width(pace) + MARGIN
        text = _text(pace, 2 * MARGIN + width - room, 39)
        width = max(0.0, width - room)
    state = COLOURS.get(progress.state, progress.state)
    place = f'x="{MARGIN:g}" y="36" height="6" rx="3"'
    done = f'<rect {place} width="{max(6.0, width * progress.share):.1f}" fill="#64748b"/>'
    return [
        f'<g class="cluster"><rect class="shape" {place} width="{width:g}" fill="#f8fafc" '
        'stroke="#cbd5e1"/></g>',
        f'<g class="is-{state}"><g class="badge">{done}</g></g>' if progress.share else "",
        text,
    ]


def _note(line: str, state: str, first: bool, y: float) -> str:
    dot = f'<rect x="{MARGIN:g}" y="{y + 6:g}" width="8" height="8" rx="4" fill="#64748b"/>'
    return (f'<g class="is-{state}"><g class="badge">{dot}</g></g>' if first else "") + _text(
        line, MARGIN + 16, y + 10
    )


def _text(text: str, x: float, y: float) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" dy=".35em" '
        f'text-anchor="start">{escape(drop_illegal(text))}</text>'
    )


def _wrap_note(note: str, width: float) -> list[str]:
    room = width - 2 * MARGIN - 16
    letters = max(20, int(len(note) * room / max(room, text_width(note))))
    return wrap(note, letters, max_lines=MOST_LINES, placeholder="…") or [""]
