"""Assigns the horizontal segments of lines between two rows of a text drawing to tracks (rows of
cells): channel routing with doglegs, as for wires on a chip."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class LevelRun(NamedTuple):
    """A horizontal segment of a line, from one column to another; `part` counts the segments of one
    line."""

    x: int
    to: int
    line: int
    part: int = 0

    def must_be_above(self, other: LevelRun) -> bool:
        """Return whether the other comes down in the column where this one begins, or is a later
        part."""
        if self.line == other.line:
            return self.part < other.part
        return self.x == other.to

    def touches(self, other: LevelRun) -> bool:
        """Return whether they would overlap in one track."""
        left, right = sorted((self.x, self.to))
        other_left, other_right = sorted((other.x, other.to))
        return left <= other_right + 1 and other_left <= right + 1

    def runs_alike(self, other: LevelRun) -> bool:
        """Return whether both lead to the right, or both to the left."""
        return (self.to > self.x) == (other.to > other.x)


def assign_tracks(ends: Mapping[int, tuple[int, int]]) -> dict[LevelRun, int]:
    """Return the horizontal segments of lines that cross a gap, each with its track, from 0
    downwards.

    No two lines overlap; they only cross. A straight line has no segment.

    Args:
        ends: for each line, the columns where it enters and leaves the gap.
    """
    tracks: dict[LevelRun, int] = {}
    waiting = sorted(LevelRun(x, to, line) for line, (x, to) in ends.items() if x != to)
    used = {column for pair in ends.values() for column in pair}
    while waiting:
        free = [run for run in waiting if not any(o.must_be_above(run) for o in waiting)]
        if free:
            # Of runs to the right, the rightmost turns first; of runs to the left, the leftmost: so
            # they do not cross.
            run = min(free, key=lambda run: (-run.x, 0) if run.to > run.x else (run.x, 1))
            waiting.remove(run)
            tracks[run] = _find_track(run, tracks)
        else:
            # Two lines need each other's column: one of them makes a detour.
            waiting = _add_dogleg(waiting, used)
    return tracks


def _find_track(run: LevelRun, tracks: Mapping[LevelRun, int]) -> int:
    """Return the first track below all that must be above the run where it touches nothing."""
    above = [
        track
        for other, track in tracks.items()
        if other.must_be_above(run) or (other.touches(run) and other.runs_alike(run))
    ]
    track = max(above, default=-1) + 1
    while any(taken == track and other.touches(run) for other, taken in tracks.items()):
        track += 1
    return track


def _add_dogleg(waiting: Iterable[LevelRun], used: set[int]) -> list[LevelRun]:
    """Split one run in two, which meet in a column that no other line uses."""
    run = next(run for run in waiting if not run.part)
    column = min(run.x, run.to) + 1
    while column in used:
        column += 1
    used.add(column)
    rest = [other for other in waiting if other != run]
    return [*rest, run._replace(to=column), run._replace(x=column, part=1)]
