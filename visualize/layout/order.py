"""The order of the cells in each row, with few crossings. Deterministic; among equally good orders,
the declared one is kept."""

from __future__ import annotations

import random
from bisect import bisect_right, insort
from collections.abc import Callable
from statistics import fmean

from .grid import Grid, places

Rows = list[list[int]]
# Roughly the number of cells examined: small grids get many attempts of many sweeps, large ones
# few.
_EFFORT = 6000
_SWEEPS = 60_000
_PASSES = 60_000


def order_rows(grid: Grid, flaws: Callable[[], int]) -> None:
    """Order the rows of the grid.

    Args:
        flaws: returns the number of flaws other than crossings, for the current rows.
    """
    cells = len(grid.row)
    found: list[tuple[tuple[int, int], Rows]] = []
    for start in _list_starts(grid, max(1, min(16, _EFFORT // max(1, cells)))):
        grid.rows, number = _improve(grid, start, max(1, min(24, _SWEEPS // max(1, cells))))
        found.append(((number, flaws()), grid.rows))
        if found[-1][0] == (0, 0):
            break
    _, grid.rows = min(found, key=lambda one: one[0])


def count_crossings(grid: Grid, rows: Rows) -> int:
    """Return how many pairs of edges between neighbouring rows cross."""
    place = places(rows)
    return sum(_count_below(grid, row, place) for row in rows[:-1])


def _count_below(grid: Grid, row: list[int], place: list[int]) -> int:
    number = 0
    seen: list[int] = []
    for cell in row:
        ends = [place[n] for n in grid.below[cell]]
        for end in ends:
            number += len(seen) - bisect_right(seen, end)
        for end in ends:
            insort(seen, end)
    return number


def _list_starts(grid: Grid, tries: int) -> list[Rows]:
    """Return initial orders: as a walk from the top meets the cells, as one from the bottom does,
    and shuffled ones."""
    found = [_walk(grid, grid.below, range(len(grid.row)))]
    if tries > 1:
        upwards = sorted(range(len(grid.row)), key=lambda cell: -grid.row[cell])
        found.append(_walk(grid, grid.above, upwards))
        found.append([row[::-1] for row in found[0]])
    for number in range(3, tries):
        shuffled = [list(row) for row in found[0]]
        chance = random.Random(number)
        for row in shuffled:
            chance.shuffle(row)
        found.append(shuffled)
    return found


def _walk(grid: Grid, onward: list[list[int]], begin: range | list[int]) -> Rows:
    """Return the cells of each row in the order in which a depth-first walk meets them."""
    rows: Rows = [[] for _ in grid.rows]
    seen = [False] * len(grid.row)
    for start in begin:
        waiting = [start]
        while waiting:
            cell = waiting.pop()
            if not seen[cell]:
                seen[cell] = True
                rows[grid.row[cell]].append(cell)
                waiting.extend(reversed(onward[cell]))
    return rows


def _improve(grid: Grid, rows: Rows, rounds: int) -> tuple[Rows, int]:
    """Sweep down and up as long as that helps; return the best rows found, and their crossings."""
    rows = [list(row) for row in rows]
    place = places(rows)
    if rounds > 1:
        _transpose(grid, rows, place)
    best, fewest, idle = [list(row) for row in rows], count_crossings(grid, rows), 0
    for number in range(rounds):
        if not fewest or idle > 4:
            break
        key = _median if number % 4 < 2 else fmean
        _sweep(grid, rows, place, down=number % 2 == 0, key=key)
        _transpose(grid, rows, place)
        found = count_crossings(grid, rows)
        idle += 1
        if found < fewest:
            best, fewest, idle = [list(row) for row in rows], found, 0
    return best, fewest


def _sweep(
    grid: Grid, rows: Rows, place: list[int], *, down: bool, key: Callable[[list[int]], float]
) -> None:
    """Sort each row by the places of its cells' neighbours in the row before; cells without
    neighbours keep their places."""
    neighbours = grid.above if down else grid.below
    for row in rows[1:] if down else rows[-2::-1]:
        bound = [cell for cell in row if neighbours[cell]]
        keys = {cell: key(sorted([place[n] for n in neighbours[cell]])) for cell in bound}
        bound.sort(key=keys.__getitem__)
        following = iter(bound)
        row[:] = [next(following) if neighbours[cell] else cell for cell in row]
        for number, cell in enumerate(row):
            place[cell] = number


def _median(places: list[int]) -> float:
    """Return the middle number; if there are two, a weighted mean that is nearer to the denser
    side."""
    half = len(places) // 2
    if len(places) % 2:
        return places[half]
    if len(places) == 2:
        return (places[0] + places[1]) / 2
    left, right = places[half - 1] - places[0], places[-1] - places[half]
    if not left + right:
        return (places[half - 1] + places[half]) / 2
    return (places[half - 1] * right + places[half] * left) / (left + right)


def _transpose(grid: Grid, rows: Rows, place: list[int]) -> None:
    """Swap neighbours in a row as long as that saves crossings."""
    changed = set(range(len(rows)))
    for _ in range(max(1, min(6, _PASSES // max(1, len(place))))):
        near = {number + step for number in changed for step in (-1, 0, 1)}
        changed = {
            n for n, row in enumerate(rows) if n in near and _swap_neighbours(grid, row, place)
        }
        if not changed:
            return


def _swap_neighbours(grid: Grid, row: list[int], place: list[int]) -> bool:
    """Swap neighbours in a row where that saves crossings; return whether it did."""
    swapped = False
    for number in range(len(row) - 1):
        one, other = row[number], row[number + 1]
        if _count_saved(grid, one, other, place) > 0:
            row[number], row[number + 1] = other, one
            place[one], place[other] = number + 1, number
            swapped = True
    return swapped


def _count_saved(grid: Grid, one: int, other: int, place: list[int]) -> int:
    """Return how many crossings a swap of the two saves."""
    saved = 0
    for neighbours in (grid.above, grid.below):
        theirs = neighbours[other]
        for a in neighbours[one]:
            here = place[a]
            for b in theirs:
                there = place[b]
                if here > there:
                    saved += 1
                elif here < there:
                    saved -= 1
    return saved
