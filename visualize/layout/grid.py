"""The grid of a layered drawing: rows of cells. A cell stands for a node, for the label of an edge, or for the place
where a long edge goes through a row; so every edge leads from row to row. All decisions about it are made elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ..shape import Edge
from .layers import back_from, layers, loops
from .measure import Size

SOFT = ("conditional", "goto", "send")
"""Kinds of edges that may lead back to where something begins again."""


@dataclass(slots=True)
class Item:
    """What has one place in a layer: a node, a node with its error handler, or a cluster with all that is in it.

    Attributes:
        left, right: its extent from its axis, which the grid puts into a column.
        above, below: from the axis to where edges come in and go out.
    """

    left: float
    right: float
    height: float
    above: float = 0.0
    below: float = 0.0


@dataclass(slots=True)
class Link:
    """An edge between two items. `upper` and `lower` are its ends by layer, so they are swapped if it goes `back`.

    Attributes:
        label: the room of its label.
        span: how many layers it leads on; labels have rows, but no layers.
        cells: what it goes through, from the upper to the lower end, both included.
        label_cell: the cell of its label, if it has one.
    """

    edge: Edge
    upper: int
    lower: int
    label: Size
    back: bool = False
    span: int = 0
    cells: list[int] = field(default_factory=list)
    label_cell: int | None = None

    def turn_back(self) -> None:
        """Let it lead upwards."""
        self.upper, self.lower, self.back = self.lower, self.upper, True


@dataclass(slots=True)
class Grid:
    """Cells by number: first one for each item, in their order, then those of labels and long edges.

    Attributes:
        row: of each cell.
        rows: the cells of each row, from left to right.
        above, below: the cells of the next rows that edges lead to, once for each edge.
    """

    items: list[Item]
    row: list[int]
    rows: list[list[int]]
    above: list[list[int]]
    below: list[list[int]]

    def add(self, item: Item, row: int) -> int:
        """A new cell, at the end of its row."""
        return self.insert(item, row, len(self.rows[row]))

    def insert(self, item: Item, row: int, place: int) -> int:
        """A new cell, at this place in its row."""
        self.rows[row].insert(place, len(self.row))
        self.items.append(item)
        self.row.append(row)
        self.above.append([])
        self.below.append([])
        return len(self.row) - 1

    def places(self) -> list[int]:
        """The place of each cell in its row."""
        return places(self.rows)


def places(rows: Sequence[Sequence[int]]) -> list[int]:
    """The place of each cell in its row."""
    found = [0] * sum(map(len, rows))
    for row in rows:
        for number, cell in enumerate(row):
            found[cell] = number
    return found


def build(items: list[Item], links: Sequence[Link], first: int | None, last: int | None) -> Grid:
    """The grid of these items; every link gets its direction and its cells. Links from an item to itself have none.

    Args:
        first, last: items that have the first and the last row to themselves.
    """
    for link in links:
        if link.upper != link.lower and (link.lower == first or link.upper == last):
            link.turn_back()
    pairs = [(link.upper, link.lower) for link in links]
    order = range(len(items)) if first is None else [first, *(n for n in range(len(items)) if n != first)]
    back = set() if first is None else back_from(first, len(items), pairs)
    # Where a circle can be cut in several places: where something decides to go back.
    soft = {number for number in back if links[number].edge.kind in SOFT}
    for number in loops(len(items), pairs, order, soft):
        links[number].turn_back()
    between = [link for link in links if link.upper != link.lower]
    layer = layers(len(items), [(link.upper, link.lower) for link in between], first, last)
    rows = _rows_of_layers(layer, between)
    grid = Grid([], [], [[] for _ in range(max(rows, default=0) + 1)], [], [])
    for item, place in zip(items, layer, strict=True):
        grid.add(item, rows[place])
    for link in between:
        link.span = layer[link.lower] - layer[link.upper]
        _lead(grid, link)
    return grid


def _rows_of_layers(layer: list[int], links: Iterable[Link]) -> list[int]:
    """The row of each layer: below a layer whose edges have labels there is a row for these."""
    labelled = {_layer_before_label(link, layer) for link in links if link.label.width}
    rows, row = [], 0
    for number in range(max(layer, default=0) + 1):
        rows.append(row)
        row += 2 if number in labelled else 1
    return rows


def _layer_before_label(link: Link, layer: list[int]) -> int:
    """Labels stand near the source, where it is decided."""
    return layer[link.lower] - 1 if link.back else layer[link.upper]


def _lead(grid: Grid, link: Link) -> None:
    """Give a link its cells, from row to row."""
    start, end = grid.row[link.upper], grid.row[link.lower]
    label_row = (end - 1 if link.back else start + 1) if link.label.width else None
    link.cells = [link.upper]
    for row in range(start + 1, end):
        if row == label_row:
            half = link.label.width / 2
            link.label_cell = grid.add(Item(half, half, link.label.height), row)
            link.cells.append(link.label_cell)
        else:
            link.cells.append(grid.add(Item(0, 0, 0), row))
    link.cells.append(link.lower)
    for upper, lower in pairwise(link.cells):
        grid.below[upper].append(lower)
        grid.above[lower].append(upper)
