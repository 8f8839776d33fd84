"""The layout algorithm that all our drawings share, after Sugiyama: layers from top to bottom.

Each nested graph is laid out separately, inner ones first; in the enclosing graph it is a single
large node. The nodes of a graph fall into connected components; each gets a grid of rows (`grid`,
`layers`), an order in each row (`order_rows`) and columns (`assign_columns`). Sizes and the paths
of edges differ between px (`pixels`) and character cells (`cells`), which subclass `Arranger`. The
same model always gives the same layout.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import pairwise
from statistics import fmean
from typing import ClassVar

import networkx

from ..group import group
from ..model import GraphEdge, GraphModel, GraphNode
from .geometry import Box, GraphLayout, Route
from .grid import Grid, GridItem, GridLink, build_grid, list_next, places
from .measure import Size


@dataclass(slots=True)
class Piece:
    """A part of the drawing with its layout, relative to its own top left corner: the boxes of
    nodes and clusters, outer ones first, and routes by edge number."""

    width: float = 0.0
    height: float = 0.0
    boxes: dict[str, Box] = field(default_factory=dict)
    routes: dict[int, Route] = field(default_factory=dict)

    def move(self, dx: float, dy: float) -> Piece:
        """Return the same piece, further right and down."""
        boxes = {key: box.move(dx, dy) for key, box in self.boxes.items()}
        routes = {number: route.move(dx, dy) for number, route in self.routes.items()}
        return Piece(self.width, self.height, boxes, routes)

    def add(self, other: Piece) -> None:
        """Add the contents of another piece; the size stays."""
        self.boxes.update(other.boxes)
        self.routes.update(other.routes)


@dataclass(slots=True)
class Component:
    """Connected items of one level.

    Attributes:
        pieces: what is in each item, around its axis.
        numbers: the number of each link's edge.
        x: the x of each cell's axis, once the columns are known.
    """

    grid: Grid
    links: list[GridLink]
    pieces: list[Piece]
    numbers: list[int]
    x: list[float] = field(default_factory=list)

    def place(self, tops: Sequence[float]) -> Piece:
        """Return all items in their columns; `tops` is the y of each."""
        whole = Piece()
        for piece, x, y in zip(self.pieces, self.x, tops, strict=False):
            whole.add(piece.move(x, y))
        return whole


class Arranger(ABC):
    """Computes the layout of a model; subclasses know the sizes and the paths of edges.

    Attributes:
        margin: the space around the drawing.
        between: the distance between components.
        widest: the width beyond which components begin a new line.

    Raises:
        ValueError: an end of an edge is not a node of the model.
    """

    margin: ClassVar[float]
    between: ClassVar[float]
    widest: float

    def __init__(self, model: GraphModel) -> None:
        self.model = model
        self.edges: tuple[GraphEdge, ...] = model.edge_records
        self.nodes: dict[str, GraphNode] = {node.id: node for node in model.parts}
        for edge in self.edges:
            if missing := {edge.source, edge.target} - self.nodes.keys():
                raise ValueError(
                    f"the edge {edge.source!r} -> {edge.target!r} needs a node {min(missing)!r} "
                    "in the model"
                )
        holders = {node.id: node.inside for node in self.nodes.values()}
        self.level_edges: dict[str | None, list[int]] = group(
            (_find_common_holder(edge, holders), number) for number, edge in enumerate(self.edges)
        )

    # -- implemented by subclasses -----------------------------------------------------------------

    @abstractmethod
    def build_items(self, nodes: Iterable[GraphNode]) -> Iterable[tuple[GridItem, Piece]]:
        """Return the items for the nodes and clusters of one level, each with its contents."""

    @abstractmethod
    def measure_label(self, edge: GraphEdge) -> Size:
        """Return the size of an edge's label if it takes a row of its own, or else zero."""

    @abstractmethod
    def finish(self, component: Component) -> Piece:
        """Return a component, whose rows are in order, with its columns, routes and height."""

    def count_flaws(self, component: Component) -> int:
        """Return how many flaws other than crossings the order of the rows has."""
        return 0

    # -- shared by subclasses ----------------------------------------------------------------------

    def arrange(self) -> GraphLayout:
        """Return the layout of all nodes, clusters and edges."""
        piece = self.arrange_level(None)
        moved = piece.move(self.margin, self.margin)
        return GraphLayout(
            piece.width + 2 * self.margin,
            piece.height + 2 * self.margin,
            {node.id: moved.boxes[node.id] for node in self.model.node_records},
            {cluster.id: moved.boxes[cluster.id] for cluster in self.model.clusters},
            tuple(moved.routes[number] for number in range(len(self.edges))),
        )

    def arrange_level(self, cluster: str | None) -> Piece:
        """Return the layout of the contents of a cluster, or of the top level."""
        # The start comes first, so that nothing is left of it.
        parts = sorted(self.model.levels.get(cluster, ()), key=lambda node: node.kind != "start")
        built = list(self.build_items(parts))
        home = {id: number for number, (_, piece) in enumerate(built) for id in piece.boxes}
        routed = {number for _, piece in built for number in piece.routes}
        ends = {
            number: (home[self.edges[number].source], home[self.edges[number].target])
            for number in self.level_edges.get(cluster, ())
            if number not in routed
        }
        pieces = [
            self._arrange_component(self._build_component(built, members, ends))
            for members in _find_connected(len(built), ends.values())
        ]
        widest = float("inf")
        if cluster is None:
            widest = max([self.widest, *(piece.width for piece in pieces)])
        return self._pack(pieces, widest)

    def _build_component(
        self,
        built: Sequence[tuple[GridItem, Piece]],
        members: list[int],
        ends: Mapping[int, tuple[int, int]],
    ) -> Component:
        """Return the grid of connected items; `ends` has the items of each edge, by number."""
        local = {item: number for number, item in enumerate(members)}
        mine = [number for number, (source, _) in ends.items() if source in local]
        links = []
        for number in mine:
            edge, (source, target) = self.edges[number], ends[number]
            links.append(GridLink(edge, local[source], local[target], self.measure_label(edge)))
        pieces = [built[item][1] for item in members]
        first, last = self._find_alone(pieces, "start"), self._find_alone(pieces, "end")
        grid = build_grid([built[item][0] for item in members], links, first, last)
        return Component(grid, links, pieces, mine)

    def _arrange_component(self, component: Component) -> Piece:
        grid = component.grid
        order_rows(grid, lambda: self.count_flaws(component))
        piece = self.finish(component)
        extents = list(zip(component.x, grid.items, strict=True))
        left = min(x - item.left for x, item in extents)
        piece.width = max(x + item.right for x, item in extents) - left
        return piece.move(-left, 0)

    def _find_alone(self, pieces: Iterable[Piece], kind: str) -> int | None:
        """Return the item that is the start, or the end."""
        kinds = [[self.nodes[id].kind for id in piece.boxes] for piece in pieces]
        return next((number for number, found in enumerate(kinds) if found == [kind]), None)

    def _pack(self, pieces: Sequence[Piece], widest: float) -> Piece:
        """Place pieces from left to right, in lines."""
        whole = Piece()
        x = y = line = 0.0
        for piece in pieces:
            if x and x + piece.width > widest:
                x, y, line = 0.0, y + line + self.between, 0.0
            whole.add(piece.move(x, y))
            line = max(line, piece.height)
            whole.width = max(whole.width, x + piece.width)
            whole.height = max(whole.height, y + piece.height)
            x += piece.width + self.between
        return whole


def align(component: Component, gap: Callable[[int, int], float]) -> list[float]:
    """Return the x of each cell; straightening an edge to the next layer takes precedence over a
    long edge.

    Args:
        gap: returns the minimum distance of two neighbouring cells.
    """
    grid = component.grid
    short = [link for link in component.links if link.span == 1]
    leads, led_to = {link.cells[0] for link in short}, {link.cells[-1] for link in short}
    steps: list[tuple[int, int]] = []
    for link in component.links:
        cells = link.cells
        if link.span > 1:
            cells = cells[cells[0] in leads : len(cells) - (cells[-1] in led_to)]
        steps += pairwise(cells)
    below = list_next(len(grid.row), steps)
    above = list_next(len(grid.row), ((lower, upper) for upper, lower in steps))
    return assign_columns(grid, above, below, len(component.pieces), gap)


def _find_common_holder(edge: GraphEdge, holders: Mapping[str, str | None]) -> str | None:
    """Return the innermost cluster that contains both ends of an edge."""
    around: set[str | None] = {None}
    holder = holders[edge.source]
    while holder is not None:
        around.add(holder)
        holder = holders[holder]
    holder = holders[edge.target]
    while holder not in around:
        holder = holders[holder or ""]
    return holder


def _find_connected(count: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return the connected components, in order of their first numbers."""
    graph: networkx.Graph[int] = networkx.Graph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(pairs)
    return [sorted(members) for members in networkx.connected_components(graph)]


# -- columns ---------------------------------------------------------------------------------------
# The x of every cell, after Brandes and Köpf, "Fast and Simple Horizontal Coordinate Assignment"
# (2001). Cells are aligned with the median of their neighbours into straight columns, once for each
# corner of the drawing; the mean of the two middle results is taken. Long edges stay straight.
# Unlike in the paper, edges may end off a cell's axis.

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


# -- order -----------------------------------------------------------------------------------------
# The order of the cells in each row, with few crossings. Deterministic; among equally good orders,
# the declared one is kept.

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
