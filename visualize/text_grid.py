"""Where the parts of a text drawing stand: layers from top to bottom, in whole character cells.

Blocks are known by id and size only; what is in them, and how lines look, is for `text`.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from .layout.layers import back_from, loops

SWEEPS = 8
GAP = 2  # columns between neighbours

Key = str | tuple[int, int]
"""A block, or the place where a link passes a layer: (the link's number, layer)."""

Ports = dict[tuple[Key, int, bool], int]


class Link(NamedTuple):
    """A line to draw, from a block to another; `room` is how many cells its label takes; `soft`: it may lead back to
    where something begins again."""

    source: str
    target: str
    room: int = 0
    soft: bool = False


class Bend(NamedTuple):
    """A line's way through the gap below a layer.

    Attributes:
        link: its number.
        upper: where it comes from.
        x, to: the columns where it leaves the upper layer and meets the lower one.
        runs: (from column, to column, row in the gap) for each level run; none if it goes straight.
        up, down: the arrow's tip is at that end.
    """

    link: int
    upper: Key
    x: int
    to: int
    runs: tuple[tuple[int, int, int], ...]
    up: bool
    down: bool


@dataclass
class Grid:
    """Where everything stands.

    Attributes:
        layers: the keys of each layer, from left to right.
        at: the leftmost column of each key.
        widths: of the blocks, which may have grown to hold their ports.
        gaps: what leads through each gap, the one below the layer of that number.
        ports: (block, link, at its bottom) → the column inside the block where the line touches it.
    """

    layers: list[list[Key]]
    at: dict[Key, int]
    widths: dict[Key, int]
    gaps: list[list[Step]]
    ports: Ports = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Columns, labels not counted."""
        return max((self.at[key] + self.widths[key] for layer in self.layers for key in layer), default=0)


class Step(NamedTuple):
    """A link's part between two layers that follow each other; `up` and `down`: the arrow's tip is at that end, with
    a label that takes `room` cells."""

    upper: Key
    lower: Key
    link: int
    up: bool
    down: bool
    room: int

    def room_at(self, bottom: bool) -> int:
        """The cells for the label where it leaves the upper key, or where it meets the lower one."""
        return self.room if (self.up if bottom else self.down) else 0


class TooWideError(Exception):
    """The drawing does not fit."""


def arrange_text(
    widths: Mapping[str, int], links: Sequence[Link], hang: Mapping[str, int], last: str | None, widest: int
) -> Grid:
    """Give every block a layer and a column, and every link its way. Links from a block to itself are left out.

    Args:
        widths: by id, in the order of declaration.
        hang: cells to keep free to the right of a block.
        last: the block to stand below all others.
        widest: the room there is, in columns.

    Raises:
        TooWideError: it is not enough.
    """
    ranks, turned = rank(list(widths), links, last)
    layers: list[list[Key]] = [[] for _ in range(max(ranks.values(), default=-1) + 1)]
    for name in widths:
        layers[ranks[name]].append(name)
    steps = list(_steps(links, ranks, turned, layers))
    gaps: list[list[Step]] = [[] for _ in layers]
    for step in steps:
        gaps[_layer(step.upper, ranks)].append(step)
    taken = {key: widths[key] if isinstance(key, str) else 1 for layer in layers for key in layer}
    if any(sum(taken[key] + GAP for key in layer) - GAP > widest for layer in layers):
        raise TooWideError  # before the work that takes long
    _order(layers, gaps)
    grid = Grid(layers, {}, taken, gaps)
    grid.ports = _ports(grid)
    _place(grid, _rooms(grid, hang))
    if grid.width > widest:
        raise TooWideError
    return grid


def _layer(key: Key, ranks: Mapping[str, int]) -> int:
    return ranks[key] if isinstance(key, str) else key[1]


# -- layers ---------------------------------------------------------------------------------------------------


def rank(names: Sequence[str], links: Sequence[Link], last: str | None) -> tuple[dict[str, int], set[int]]:
    """The layer of each block, one below all that lead to it; and the links that go up, against the others."""
    again = _again(names, links)
    onward: dict[str, list[tuple[int, str]]] = {name: [] for name in names}
    for number, link in enumerate(links):
        if link.source != link.target and number not in again:
            onward[link.source].append((number, link.target))
    order, turned = _depth_first(names, onward)
    turned |= again
    ranks = dict.fromkeys(names, 0)
    back = [(link.target, link.source) for number, link in enumerate(links) if number in turned]
    for name in order:
        ends = [target for number, target in onward[name] if number not in turned]
        for end in ends + [lower for upper, lower in back if upper == name]:
            ranks[end] = max(ranks[end], ranks[name] + 1)
    if last in ranks:
        ranks[last] = max(max(ranks.values()), 1)
    return ranks, turned


def _again(names: Sequence[str], links: Sequence[Link]) -> set[int]:
    """The soft links that close a circle, and lead to a block nearer to the first."""
    place = {name: number for number, name in enumerate(names)}
    pairs = [(place[link.source], place[link.target]) for link in links]
    back = back_from(0, len(names), pairs) if names else set()
    soft = {number for number in back if links[number].soft}
    return loops(len(names), pairs, soft=soft) & soft


def _depth_first(names: Sequence[str], onward: Mapping[str, list[tuple[int, str]]]) -> tuple[list[str], set[int]]:
    """The blocks so that each comes before those it leads to, but for the links that close a circle."""
    finished: list[str] = []
    state: dict[str, bool] = {}  # False: on the way, True: done
    turned: set[int] = set()
    for root in names:
        if root in state:
            continue
        state[root] = False
        way = [(root, iter(onward[root]))]
        while way:
            name, ends = way[-1]
            for number, end in ends:
                if end not in state:
                    state[end] = False
                    way.append((end, iter(onward[end])))
                    break
                if not state[end]:
                    turned.add(number)
            else:
                state[name] = True
                finished.append(name)
                way.pop()
    return finished[::-1], turned


def _steps(
    links: Sequence[Link], ranks: Mapping[str, int], turned: set[int], layers: list[list[Key]]
) -> Iterator[Step]:
    """Every link cut at the layers it passes; adds to those layers the places where it does."""
    for number, link in enumerate(links):
        upper, lower = (link.target, link.source) if number in turned else (link.source, link.target)
        if link.source == link.target:
            continue
        way: list[Key] = [upper, *((number, layer) for layer in range(ranks[upper] + 1, ranks[lower])), lower]
        for key in way[1:-1]:
            layers[key[1]].append(key)  # type: ignore[index]
        for above, below in pairwise(way):
            up = number in turned and above == upper
            yield Step(above, below, number, up, number not in turned and below == lower, link.room)


def _order(layers: list[list[Key]], gaps: list[list[Step]]) -> None:
    """Sort each layer so that few lines cross: by the mean place of neighbours, down and up a few times."""
    best, fewest = [list(layer) for layer in layers], _crossings(layers, gaps)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for number in range(1, len(layers)) if down else range(len(layers) - 2, -1, -1):
            fixed = {key: place for place, key in enumerate(layers[number - 1 if down else number + 1])}
            near: dict[Key, list[int]] = {}
            for step in gaps[number - 1 if down else number]:
                mine, other = (step.lower, step.upper) if down else (step.upper, step.lower)
                near.setdefault(mine, []).append(fixed[other])
            places = {key: fmean(near[key]) if key in near else place for place, key in enumerate(layers[number])}
            layers[number].sort(key=places.__getitem__)
        crossings = _crossings(layers, gaps)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
    layers[:] = best


def _crossings(layers: list[list[Key]], gaps: list[list[Step]]) -> int:
    count = 0
    for upper, lower, gap in zip(layers, layers[1:], gaps, strict=False):
        above = {key: place for place, key in enumerate(upper)}
        below = {key: place for place, key in enumerate(lower)}
        before: list[int] = []
        for step in sorted(gap, key=lambda s: (above[s.upper], below[s.lower])):
            count += len(before) - bisect_right(before, below[step.lower])
            insort(before, below[step.lower])
    return count


# -- columns --------------------------------------------------------------------------------------------------

def _ports(grid: Grid) -> Ports:
    """Give each line a column of its own at each of its ends, in the order of the other ends; widens blocks."""
    places = {key: place for layer in grid.layers for place, key in enumerate(layer)}
    sides: dict[tuple[Key, bool], list[tuple[int, int, int]]] = {}
    for gap in grid.gaps:
        for step in gap:
            sides.setdefault((step.upper, True), []).append((places[step.lower], step.link, step.room_at(True)))
            sides.setdefault((step.lower, False), []).append((places[step.upper], step.link, step.room_at(False)))
    found: Ports = {}
    for lines in sides.values():
        lines.sort()
    for (key, _), lines in sides.items():
        if isinstance(key, str):
            more = sum(_wants(lines)) + 2 - grid.widths[key]
            grid.widths[key] += max(0, more + more % 2)  # by twos, so that its label stays in the middle
    for (key, bottom), lines in sides.items():
        wants = _wants(lines)
        spare = grid.widths[key] - sum(wants)
        stretch = spare // (len(lines) + 1) if len(lines) > 1 else 0
        column = (spare - stretch * (len(lines) - 1)) // 2
        for (_, link, _), want in zip(lines, wants, strict=True):
            found[key, link, bottom] = column
            column += want + stretch
    return found


def _wants(lines: list[tuple[int, int, int]]) -> list[int]:
    """How many columns each line needs, up to the next: itself, its label and a space. The last label may hang over."""
    return [*(room + 3 if room else 3 for _, _, room in lines[:-1]), 1]


def _place(grid: Grid, room: Mapping[Key, int]) -> None:
    """Give each key its column: near to those it is linked with, without overlap."""
    for layer in grid.layers:
        column = 0
        for key in layer:
            grid.at[key] = column
            column += room[key] + GAP
    for sweep in range(SWEEPS):
        down = sweep % 2 == 1
        numbers = range(1, len(grid.layers)) if down else range(len(grid.layers) - 2, -1, -1)
        for number in numbers:
            wishes: dict[Key, list[int]] = {}
            for step in grid.gaps[number - 1 if down else number]:
                mine, other = (step.lower, step.upper) if down else (step.upper, step.lower)
                wish = grid.at[other] + grid.ports[other, step.link, down] - grid.ports[mine, step.link, not down]
                wishes.setdefault(mine, []).append(wish)
            _settle(grid, grid.layers[number], wishes, room)
    leftmost = min(grid.at.values(), default=0)
    for key in grid.at:
        grid.at[key] -= leftmost


def _rooms(grid: Grid, hang: Mapping[str, int]) -> dict[Key, int]:
    """The columns that each key needs: its width, or more if a label hangs over."""
    room = {key: width + (hang.get(key, 0) if isinstance(key, str) else 0) for key, width in grid.widths.items()}
    for step in (step for gap in grid.gaps for step in gap):
        for key, bottom in ((step.upper, True), (step.lower, False)):
            if step.room_at(bottom):
                room[key] = max(room[key], grid.ports[key, step.link, bottom] + 2 + step.room)
    return room


def _settle(grid: Grid, layer: list[Key], wishes: Mapping[Key, list[int]], room: Mapping[Key, int]) -> None:
    """Move the keys of a layer as near to their wishes as their order and width allow (least squares)."""
    pools: list[tuple[float, float, list[tuple[Key, int]]]] = []  # mean, weight, the keys with their offsets
    offset = 0
    for key in layer:
        wish = fmean(wishes[key]) if key in wishes else grid.at[key]
        weight = (1.0 if isinstance(key, str) else 3.0) if key in wishes else 0.1
        pools.append((wish - offset, weight, [(key, offset)]))
        offset += room[key] + GAP
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, heavy, first), (b, light, second) = pools[-2:]
            pools[-2:] = [((a * heavy + b * light) / (heavy + light), heavy + light, first + second)]
    for mean, _, members in pools:
        for key, shift in members:
            grid.at[key] = round(mean) + shift


# -- the gaps -------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """A level part of a line; `part` counts those of one line."""

    x: int
    to: int
    link: int
    part: int = 0


def bends(grid: Grid, gap: list[Step]) -> tuple[list[Bend], int]:
    """The ways of the lines through a gap, and how many rows it takes: the level runs, one above and one below."""
    ends = {
        step.link: (grid.at[step.upper] + grid.ports[step.upper, step.link, True],
                    grid.at[step.lower] + grid.ports[step.lower, step.link, False])
        for step in gap
    }  # fmt: skip
    rows = _rows([Run(x, to, link) for link, (x, to) in ends.items() if x != to])
    found = []
    for step in gap:
        x, to = ends[step.link]
        mine = sorted((run.part, run.x, run.to, row) for run, row in rows.items() if run.link == step.link)
        found.append(Bend(step.link, step.upper, x, to, tuple(run[1:] for run in mine), step.up, step.down))
    return found, max(rows.values(), default=0) + 2 if gap else 0


def _rows(runs: list[Run]) -> dict[Run, int]:
    """A row for every level run, from 1, so that no two lines lie on each other."""
    rows: dict[Run, int] = {}
    waiting = sorted(runs, key=lambda run: (run.x, run.to))
    while waiting:
        free = [run for run in waiting if not any(_above(other, run) for other in waiting)]
        if not free:  # two lines want each other's column: one of them takes a detour
            waiting = _detour(waiting, runs)
            continue
        # Of runs to the right the rightmost turns first, of runs to the left the leftmost: so they don't cross.
        run = min(free, key=lambda run: (-run.x, 0) if run.to > run.x else (run.x, 1))
        waiting.remove(run)
        same = [rows[other] for other in rows if _touch(other, run) and (other.to > other.x) == (run.to > run.x)]
        row = 1 + max([0, *same, *(rows[other] for other in rows if _above(other, run))])
        while any(rows[other] == row and _touch(other, run) for other in rows):
            row += 1
        rows[run] = row
    return rows


def _above(one: Run, other: Run) -> bool:
    """Whether the first must be above the second: it comes down where that one goes on, or is its earlier part."""
    if one.link == other.link:
        return one.part < other.part
    return one.x == other.to


def _touch(one: Run, other: Run) -> bool:
    """Whether they would run into each other on one row."""
    return min(one.x, one.to) <= max(other.x, other.to) + 1 and min(other.x, other.to) <= max(one.x, one.to) + 1


def _detour(waiting: list[Run], runs: list[Run]) -> list[Run]:
    """The same with one run as two, that meet in a column nobody else uses."""
    run = next(run for run in waiting if not run.part)
    used = {column for other in (*runs, *waiting) for column in (other.x, other.to)}
    column = min(run.x, run.to) + 1
    while column in used:
        column += 1
    rest = [other for other in waiting if other != run]
    return [*rest, run._replace(to=column), run._replace(x=column, part=1)]
