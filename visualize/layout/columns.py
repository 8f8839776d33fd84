"""The x of every cell, after Brandes and Köpf, "Fast and Simple Horizontal Coordinate Assignment"
(2001).

Cells are aligned with the median of their neighbours into straight columns, once for each corner of
the drawing; the mean of the two middle results is taken. Long edges stay straight. Unlike in the
paper, edges may end off a cell's axis.
"""

from __future__ import annotations

from collections.abc import Callable
from graphlib import TopologicalSorter
from itertools import pairwise
from statistics import fmean

from .grid import Grid, places

Neighbours = list[list[int]]
Gap = Callable[[int, int], float]
LARGE = 20_000
"""Grids of this many cells or more are aligned only from the two upper corners."""


def assign_columns(
    grid: Grid, above: Neighbours, below: Neighbours, real: int, gap: Gap
) -> list[float]:
    """Return the x of each cell's axis, so that neighbours in a row keep the distance `gap`.

    Args:
        above, below: the neighbours to align with.
        real: cells below this number represent nodes; straightness of the others has priority.
        gap: returns the minimum distance of two neighbouring cells.
    """
    crossed = _find_crossed(grid, above, real)
    rooms = [
        [_distance(grid, one, other, gap) for one, other in pairwise(row)] for row in grid.rows
    ]
    found = []
    for down in (True, False) if len(grid.row) < LARGE else (True,):
        for leftwards in (True, False):
            corner = (down, leftwards)
            found.append(_align_from(grid, above if down else below, crossed, corner, rooms))
    x = _average(found)
    for cell in range(real):
        # A cell where edges only end, or only begin, is centred on the others.
        if not (above[cell] and below[cell]):
            _centre(grid, x, cell, above[cell] or below[cell], gap)
    return x


def _average(found: list[list[float]]) -> list[float]:
    """Return the mean of the two middle results for each cell, after aligning all to the
    narrowest."""
    if not found[0]:
        return []
    narrowest = min(found, key=lambda xs: max(xs) - min(xs))
    for number, xs in enumerate(found):
        leftwards = number % 2 == 0
        shift = min(narrowest) - min(xs) if leftwards else max(narrowest) - max(xs)
        found[number] = [x + shift for x in xs]
    middle = len(found) // 2
    return [sum(sorted(some)[middle - 1 : middle + 1]) / 2 for some in zip(*found, strict=True)]


def _centre(grid: Grid, x: list[float], cell: int, others: list[int], gap: Gap) -> None:
    """Centre a cell on others, as far as there is room in its row."""
    if len(others) < 2:
        return
    row = grid.rows[grid.row[cell]]
    place = row.index(cell)
    low, high = float("-inf"), float("inf")
    if place:
        other = row[place - 1]
        low = x[other] + _distance(grid, other, cell, gap)
    if place < len(row) - 1:
        other = row[place + 1]
        high = x[other] - _distance(grid, cell, other, gap)
    x[cell] = max(low, min(high, fmean(x[n] for n in others)))


def _find_crossed(grid: Grid, above: Neighbours, real: int) -> set[tuple[int, int]]:
    """Return the edges, as (upper, lower), that cross a segment of a long edge: these give way.

    Between two such segments, consecutive in the lower row, an edge must lead to a place between
    their upper ends.
    """
    found = set()
    place = places(grid.rows)
    for upper_row, row in pairwise(grid.rows):
        start, scanned = 0, 0
        for number, cell in enumerate(row):
            inner = next((n for n in above[cell] if cell >= real and n >= real), None)
            if inner is None and number < len(row) - 1:
                continue
            end = len(upper_row) if inner is None else place[inner]
            found |= {
                (upper, lower)
                for lower in row[scanned : number + 1]
                for upper in above[lower]
                if not start <= place[upper] <= end and (upper < real or lower < real)
            }
            start, scanned = end if inner is not None else start, number + 1
    return found


def _distance(grid: Grid, left: int, right: int, gap: Gap) -> float:
    """Return the minimum distance of the axes of two neighbours in a row."""
    return grid.items[left].right + gap(left, right) + grid.items[right].left


def _align_from(
    grid: Grid,
    neighbours: Neighbours,
    crossed: set[tuple[int, int]],
    corner: tuple[bool, bool],
    rooms: list[list[float]],
) -> list[float]:
    """Return the coordinates of one of the four alignments."""
    down, leftwards = corner
    rows = [row if leftwards else row[::-1] for row in grid.rows]
    root, shift = _align(grid, rows if down else rows[::-1], neighbours, crossed, corner)
    sign = 1 if leftwards else -1
    apart: dict[int, dict[int, float]] = {}
    for row, between in zip(rows, rooms, strict=True):
        for one, other, width in zip(
            row, row[1:], between if leftwards else between[::-1], strict=False
        ):
            room = width + sign * (shift[one] - shift[other])
            known = apart.setdefault(root[one], {})
            known[root[other]] = max(known.get(root[other], room), room)
    x = _compact(root, apart)
    return [sign * x[root[cell]] + shift[cell] for cell in range(len(root))]


def _align(
    grid: Grid,
    rows: list[list[int]],
    neighbours: Neighbours,
    crossed: set[tuple[int, int]],
    corner: tuple[bool, bool],
) -> tuple[list[int], list[float]]:
    """Return, for each cell, the first cell of its column, and how far to the right of that cell's
    axis it is."""
    down = corner[0]
    root = list(range(len(grid.row)))
    shift = [0.0] * len(root)
    place = places(rows)
    for row in rows:
        reached = -1
        for cell in row:
            near = neighbours[cell]
            if len(near) > 1:
                near = sorted(near, key=place.__getitem__)
                near = near[(len(near) - 1) // 2 : len(near) // 2 + 1]
            for other in near:
                pair = (other, cell) if down else (cell, other)
                if root[cell] != cell or place[other] <= reached or pair in crossed:
                    continue
                root[cell] = root[other]
                # The next axis is this far to the right if the edge between them is straight.
                below = grid.items[pair[0]].below
                shift[cell] = shift[other] + (below if down else -below)
                reached = place[other]
    return root, shift


def _compact(root: list[int], apart: dict[int, dict[int, float]]) -> dict[int, float]:
    """Return the coordinate of each column: as small as possible, then moved close to the columns
    after it."""
    sorter = TopologicalSorter(dict.fromkeys(root, ()))
    for column, after in apart.items():
        for other in after:
            sorter.add(other, column)
    order = list(sorter.static_order())
    x = dict.fromkeys(order, 0.0)
    for column in order:
        for other, room in apart.get(column, {}).items():
            x[other] = max(x[other], x[column] + room)
    for column in reversed(order):
        if column in apart:
            x[column] = max(
                x[column], min(x[other] - room for other, room in apart[column].items())
            )
    return x
