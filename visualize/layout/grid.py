"""The grid of a layered drawing: rows of cells. A cell represents a node, the label of an edge, or
the place where a long edge passes a row, so every edge leads from one row to the next.

The layers, and the edges to draw upwards, are also chosen here: cycles are cut, then edges are
shortened. Order and columns are computed elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import networkx

from ..model import GraphEdge
from .measure import Size

SOFT = ("conditional", "goto", "send")
"""Kinds of edges that are likely to lead back to the start of a loop."""


@dataclass(slots=True)
class GridItem:
    """The content of one place in a layer: a node, a node with its error handler, or a whole
    cluster.

    Attributes:
        left, right: its extent from its axis, which the grid aligns to a column.
        below: the distance from the axis to where edges leave.
    """

    left: float
    right: float
    height: float
    below: float = 0.0


@dataclass(slots=True)
class GridLink:
    """An edge between two items. `upper` and `lower` are its ends by layer: swapped if it is
    `back`.

    Attributes:
        label: the size of its label, if that takes a row of its own.
        span: how many layers it spans; labels have rows, but no layers.
        cells: the cells that it passes, from the upper to the lower end, inclusive.
        label_cell: the cell of its label, if it has one.
    """

    edge: GraphEdge
    upper: int
    lower: int
    label: Size
    back: bool = False
    span: int = 0
    cells: list[int] = field(default_factory=list)
    label_cell: int | None = None

    def turn_back(self) -> None:
        """Make it lead upwards."""
        self.upper, self.lower, self.back = self.lower, self.upper, True

    def item(self, upper: bool) -> int:
        """Return the item at its upper or lower end."""
        return self.upper if upper else self.lower

    def node(self, upper: bool) -> str:
        """Return the id of the node there."""
        return self.edge.source if upper != self.back else self.edge.target

    def first_cell(self, upper: bool) -> int:
        """Return the cell where it begins there: that of its item, or where it turns."""
        return self.cells[0 if upper else -1]

    def next_cell(self, upper: bool) -> int:
        """Return the next cell from there."""
        return self.cells[1 if upper else -2]


@dataclass(slots=True)
class Grid:
    """Cells by number: first one for each item, in order, then those of labels and long edges.

    Attributes:
        row: the row of each cell.
        rows: the cells of each row, from left to right.
        above, below: the cells of the adjacent rows that edges lead to, once for each edge.
    """

    items: list[GridItem]
    row: list[int]
    rows: list[list[int]]
    above: list[list[int]]
    below: list[list[int]]

    def add(self, item: GridItem, row: int) -> int:
        """Add a cell at the end of its row."""
        return self.insert(item, row, len(self.rows[row]))

    def insert(self, item: GridItem, row: int, place: int) -> int:
        """Insert a cell at this place in its row."""
        self.rows[row].insert(place, len(self.row))
        self.items.append(item)
        self.row.append(row)
        self.above.append([])
        self.below.append([])
        return len(self.row) - 1


def places(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return the position of each cell in its row."""
    found = [0] * sum(map(len, rows))
    for row in rows:
        for number, cell in enumerate(row):
            found[cell] = number
    return found


def turn_links(
    count: int, links: Sequence[GridLink], first: int | None = None, last: int | None = None
) -> None:
    """Turn links upwards until no cycles are left, except links from an item to itself.

    Args:
        count: the number of items.
        first, last: items that have the first and the last row to themselves.
    """
    for link in links:
        if link.upper != link.lower and (link.lower == first or link.upper == last):
            link.turn_back()
    pairs = [(link.upper, link.lower) for link in links]
    order = list(range(count))
    returns: set[int] = set()
    if first is not None:
        order.insert(0, order.pop(first))
        returns = find_returns(first, count, pairs)
    # A cycle that can be cut in several places is cut at an edge that decides to go back.
    soft = {number for number in returns if links[number].edge.kind in SOFT}
    for number in find_loops(count, pairs, order, soft):
        links[number].turn_back()


def build_grid(
    items: list[GridItem], links: Sequence[GridLink], first: int | None, last: int | None
) -> Grid:
    """Return the grid of these items; every link gets its direction and its cells. A link from an
    item to itself has no cells.

    Args:
        first, last: items that have the first and the last row to themselves.
    """
    turn_links(len(items), links, first, last)
    between = [link for link in links if link.upper != link.lower]
    pairs = [(link.upper, link.lower) for link in between]
    layer = assign_layers(len(items), pairs, first, last)
    rows = _number_rows(layer, between)
    grid = Grid([], [], [[] for _ in range(max(rows, default=0) + 1)], [], [])
    for item, place in zip(items, layer, strict=True):
        grid.add(item, rows[place])
    for link in between:
        link.span = layer[link.lower] - layer[link.upper]
        _add_cells(grid, link)
    return grid


def _number_rows(layer: list[int], links: Iterable[GridLink]) -> list[int]:
    """Return the row of each layer: a layer whose edges have labels is followed by a row for
    these."""
    # Labels are near the source, where the decision is made.
    labelled = {
        layer[link.lower] - 1 if link.back else layer[link.upper]
        for link in links
        if link.label.width
    }
    rows, row = [], 0
    for number in range(max(layer, default=0) + 1):
        rows.append(row)
        row += 2 if number in labelled else 1
    return rows


def _add_cells(grid: Grid, link: GridLink) -> None:
    """Give a link its cells, from row to row."""
    start, end = grid.row[link.upper], grid.row[link.lower]
    label_row = None
    if link.label.width:
        label_row = end - 1 if link.back else start + 1
    link.cells = [link.upper]
    for row in range(start + 1, end):
        if row == label_row:
            half = link.label.width / 2
            link.label_cell = grid.add(GridItem(half, half, link.label.height), row)
            link.cells.append(link.label_cell)
        else:
            link.cells.append(grid.add(GridItem(0, 0, 0), row))
    link.cells.append(link.lower)
    for upper, lower in pairwise(link.cells):
        grid.below[upper].append(lower)
        grid.above[lower].append(upper)


Pair = tuple[int, int]


def list_next(count: int, pairs: Iterable[Pair]) -> list[list[int]]:
    """Return, for each number below `count`, the second items of the pairs that begin with it."""
    found: list[list[int]] = [[] for _ in range(count)]
    for one, other in pairs:
        found[one].append(other)
    return found


def find_loops(
    count: int,
    edges: Sequence[Pair],
    order: Iterable[int] | None = None,
    soft: Collection[int] = (),
) -> set[int]:
    """Return the numbers of the edges that lead back to a node that led there; without these, no
    cycle is left.

    Args:
        order: where to start following edges; nodes without incoming edges always come first.
        soft: edges to cut in preference to others.
    """
    firm = [number for number in range(len(edges)) if number not in soft]
    starts = range(count) if order is None else order
    closing = _find_closing(count, [edges[number] for number in firm], starts)
    found = {firm[place] for place in closing}
    onward: networkx.DiGraph[int] = networkx.DiGraph()
    onward.add_nodes_from(range(count))
    onward.add_edges_from(edges[number] for number in firm if number not in found)
    for number in sorted(soft):
        source, target = edges[number]
        if networkx.has_path(onward, target, source):
            found.add(number)
        else:
            onward.add_edge(source, target)
    return found


def find_returns(first: int, count: int, edges: Sequence[Pair]) -> set[int]:
    """Return the numbers of the edges whose target is fewer steps away from the first node than
    their source."""
    graph: networkx.DiGraph[int] = networkx.DiGraph()
    graph.add_edges_from([(first, first), *edges])
    steps = networkx.single_source_shortest_path_length(graph, first)
    return {number for number, (a, b) in enumerate(edges) if a in steps and steps[b] < steps[a]}


def _find_closing(count: int, edges: Sequence[Pair], starts: Iterable[int]) -> set[int]:
    """Search depth first from everywhere: return the numbers of the edges that lead to a node that
    is still open, and so close a cycle."""
    entered = {target for source, target in edges if source != target}
    graph: networkx.DiGraph[int] = networkx.DiGraph()
    graph.add_nodes_from(sorted(starts, key=entered.__contains__))  # it begins there, in order
    graph.add_edges_from(edges)
    open_: set[int] = set()
    closing: set[Pair] = set()
    for source, target, step in networkx.dfs_labeled_edges(graph):
        if step == "forward":
            open_.add(target)
        elif step == "reverse":
            open_.remove(target)
        elif target in open_:
            closing.add((source, target))
    return {number for number, edge in enumerate(edges) if edge in closing}


def assign_layers(
    count: int, edges: Sequence[Pair], first: int | None = None, last: int | None = None
) -> list[int]:
    """Return the layer of each node, from 0: every edge leads to a higher one.

    Args:
        edges: edges without cycles.
        first, last: nodes that have the first and the last layer to themselves.
    """
    after = list_next(count, edges)
    before = list_next(count, ((target, source) for source, target in edges))
    graph: networkx.DiGraph[int] = networkx.DiGraph()
    graph.add_edges_from(edges)
    graph.add_nodes_from(range(count))
    if first is not None:
        graph.add_edges_from((first, node) for node in range(count) if node != first)
    order, found = [], [0] * count
    for layer, nodes in enumerate(networkx.topological_generations(graph)):
        for node in nodes:
            order.append(node)
            found[node] = layer
    _shorten(found, order, before, after, first)
    if last is not None:
        lowest = max((layer for node, layer in enumerate(found) if node != last), default=-1)
        found[last] = max(found[last], lowest + 1)
    top = min(found, default=0)
    return [layer - top for layer in found]


def _shorten(
    found: list[int],
    order: list[int],
    before: list[list[int]],
    after: list[list[int]],
    first: int | None,
) -> None:
    """Move nodes, one at a time, as long as the edges get shorter."""
    for _ in range(8):
        moved = False
        for node in reversed(order):
            pull = len(after[node]) - len(before[node])
            if node == first or not pull:
                continue
            place = found[node]
            if pull > 0:
                found[node] = min(found[n] for n in after[node]) - 1
            else:
                found[node] = max(found[n] for n in before[node]) + 1
            moved |= place != found[node]
        if not moved:
            return
