"""Maps times to positions on a line: each step has its own stretch, and long idle times are
shortened. Draws nothing.

Distances are to scale within a step, but not between steps, so that a step of a microsecond is
visible beside one of a minute.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..group import group
from .timeline_model import Gap, TimelineModel


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
        pieces = [
            piece
            for piece in self.steps[step]
            if piece.gap is None or piece is not self.steps[step][0]
        ]
        return pieces[0].x, pieces[-1].x + pieces[-1].width

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
        return piece.x + piece.width * min(
            max((time - piece.began) / (piece.ended - piece.began), 0.0), 1.0
        )


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
