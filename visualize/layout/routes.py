"""Draws the path of each edge through the grid as smooth curves: straight down through the rows,
and sideways only in the free space between two rows, where all curves have the same shape. So an
edge touches no box but its own, and two edges cross only if their order changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..model import GraphNode
from .arrange import Component
from .geometry import Box, Point, Route
from .grid import Grid, GridLink
from .ports import (
    APART,
    APART_SEND,
    LOOP,
    NESTED,
    RIGHT,
    Beside,
    End,
    Port,
    border_y,
    flat_half,
    list_ends,
    own_room,
    side_ports,
    spread,
)

ROW_GAP = 44.0  # between two rows of nodes
SEND_MARK = 16.0  # more for the marks of a Send
LABEL_GAP = 20.0  # between nodes and a row of labels
NEAR = 32.0  # an edge that goes less far sideways is drawn straight if possible
FAR = 1e6


class Rows(NamedTuple):
    """The top and bottom of each row."""

    top: list[float]
    bottom: list[float]


class Sheet(NamedTuple):
    """What is needed to draw routes.

    Attributes:
        nodes: the nodes by id.
        boxes: the boxes of all nodes; y counts from the top of their row's first item.
        besides: the loops beside each node.
    """

    component: Component
    nodes: Mapping[str, GraphNode]
    boxes: dict[str, Box]
    besides: Mapping[tuple[str, int], Beside]

    @property
    def grid(self) -> Grid:
        """The cells."""
        return self.component.grid

    @property
    def links(self) -> Sequence[GridLink]:
        """The edges."""
        return self.component.links


def place_ports(sheet: Sheet) -> dict[End, Port]:
    """Return where each end of each link meets its node."""
    found: dict[End, Port] = {}
    for (node, side), beside in sheet.besides.items():
        found |= side_ports(sheet.boxes[node], side, beside, sheet.component)
    for upper in (True, False):
        for id, numbers in list_ends(sheet.component, upper, found).items():
            met, box = sheet.nodes[id], sheet.boxes[id]
            middle = box.middle[0]
            wanted = [_wish(sheet, number, upper, found) - middle for number in numbers]
            widths = [_port_width(sheet.links[number], upper) for number in numbers]
            for number, x in zip(numbers, spread(wanted, widths, flat_half(met, box)), strict=True):
                y = border_y(met, box, middle + x, top=not upper)
                found[number, upper] = Port(middle + x, y, middle + x)
    return found


def _port_width(link: GridLink, upper: bool) -> float:
    """Return the room of an edge where it meets its node; more where it begins with the mark of a
    Send."""
    marked = upper != link.back and link.edge.kind == "send"
    return APART_SEND if marked else APART


def _wish(sheet: Sheet, number: int, upper: bool, known: Mapping[End, Port]) -> float:
    """Return the x at which the edge would be straight here, if that is not far to the side."""
    link = sheet.links[number]
    if len(link.cells) > 2:
        return sheet.component.x[link.next_cell(upper)]
    if (number, not upper) in known:
        return known[number, not upper].x
    here, there = (sheet.boxes[link.node(end)].middle[0] for end in (upper, not upper))
    return (here + there) / 2 if abs(here - there) < NEAR else FAR


def place_rows(sheet: Sheet, found: Mapping[End, Port]) -> Rows:
    """Return the position of each row: rows are further apart the further the edges between them go
    sideways."""
    grid = sheet.grid
    wide = [0.0] * len(grid.rows)
    for number, link in enumerate(sheet.links):
        xs = _columns(sheet, number, found) if link.cells else []
        for row, (x, next_x) in enumerate(pairwise(xs), grid.row[link.upper]):
            wide[row] = max(wide[row], abs(next_x - x))
    top, bottom, y = [], [], 0.0
    for cells, gap, aside in zip(grid.rows, _gaps(grid, sheet.links), wide, strict=True):
        top.append(y)
        bottom.append(y + max((grid.items[cell].height for cell in cells), default=0))
        y = bottom[-1] + gap + min(60.0, aside / 9)
    return Rows(top, bottom)


def _gaps(grid: Grid, links: Sequence[GridLink]) -> list[float]:
    """Return the space below each row, for edges that go straight down."""
    found = [ROW_GAP] * len(grid.rows)
    for link in links:
        if link.label_cell is not None:
            row = grid.row[link.label_cell]
            found[row - 1] = found[row] = LABEL_GAP
    marked = [0.0] * len(found)
    for link in links:
        if link.edge.kind == "send" and link.cells:
            upper, lower = grid.row[link.upper], grid.row[link.lower] - 1
            marked[upper] = max(marked[upper], SEND_MARK)
            marked[lower] = max(marked[lower], SEND_MARK if upper != lower else SEND_MARK * 1.5)
    return [gap + more for gap, more in zip(found, marked, strict=True)]


def _columns(sheet: Sheet, number: int, found: Mapping[End, Port]) -> list[float]:
    inner = [sheet.component.x[cell] for cell in sheet.links[number].cells[1:-1]]
    return [found[number, True].x, *inner, found[number, False].x]


def draw_route(sheet: Sheet, number: int, found: Mapping[End, Port], rows: Rows) -> Route:
    """Return the path of one link between two items."""
    link, grid = sheet.links[number], sheet.grid
    start, end = found[number, True], found[number, False]
    path = _Path((start.edge_x, start.y))
    if start.edge_x != start.x:
        path.corner((start.x, start.y), _radius(start, rows.bottom[grid.row[link.upper]]))
    xs = _columns(sheet, number, found)
    for row, (x, next_x) in enumerate(pairwise(xs), grid.row[link.upper]):
        path.down((x, rows.bottom[row]))
        path.aside((next_x, rows.top[row + 1]))
    if end.edge_x == end.x:
        path.down((end.x, end.y))
    else:
        radius = _radius(end, rows.top[grid.row[link.lower]])
        path.down((end.x, end.y - radius))
        path.corner_in((end.edge_x, end.y), radius)
    points = path.points[::-1] if link.back else path.points
    label_at = None
    if link.label_cell is not None:
        row = grid.row[link.label_cell]
        label_at = (sheet.component.x[link.label_cell], (rows.top[row] + rows.bottom[row]) / 2)
    return Route(link.edge, tuple(points), label_at)


def draw_loops(sheet: Sheet) -> dict[int, Route]:
    """Return the paths of the edges from a node to itself, by the numbers of their links."""
    found = {}
    for (node, side), beside in sheet.besides.items():
        box = sheet.boxes[node]
        (x, y), half = box.middle, box.width / 2
        label_x = half + own_room(beside, sheet.links)
        for nested, number in enumerate(beside.own):
            is_send = sheet.links[number].edge.kind == "send"
            out = side * (half + (LOOP + (SEND_MARK if is_send else -4) + nested * NESTED) / 0.75)
            rise = 7 + 3 * nested
            start, end = x + side * half, x + out
            points = (
                (start, y - rise),
                (end, y - rise - 12),
                (end, y + rise + 12),
                (start, y + rise),
            )
            label = sheet.links[number].label
            label_at = (x + side * (label_x - label.width / 2), y) if label.width else None
            label_x -= label.width
            found[number] = Route(sheet.links[number].edge, points, label_at)
    return found


def _radius(port: Port, border: float) -> float:
    """Return the radius of the corner where a loop turns, such that it ends within the row."""
    return min(12.0, abs(port.x - port.edge_x), abs(border - port.y))


class _Path:
    """Curves end to end; collinear straight segments become one."""

    def __init__(self, start: Point) -> None:
        self.points = [start]
        self._straight = False

    def _line(self, end: Point) -> None:
        x, y = self.points[-1]
        if abs(end[0] - x) + abs(end[1] - y) < 0.01:
            return
        if self._straight and abs(self.points[-4][0] - end[0]) < 0.01 and abs(x - end[0]) < 0.01:
            del self.points[-3:]
            x, y = self.points[-1]
        third = ((end[0] - x) / 3, (end[1] - y) / 3)
        self.points += [(x + third[0], y + third[1]), (end[0] - third[0], end[1] - third[1]), end]
        self._straight = True

    def _curve(self, a: Point, b: Point, end: Point) -> None:
        self.points += [a, b, end]
        self._straight = False

    def down(self, end: Point) -> None:
        """Go straight down to a point."""
        self._line(end)

    def aside(self, end: Point) -> None:
        """Go to a point below and to the side, vertical at both ends."""
        x, y = self.points[-1]
        if abs(end[0] - x) < 0.5:
            self._line(end)
            return
        half = (end[1] - y) / 2
        self._curve((x, y + half), (end[0], end[1] - half), end)

    def corner(self, turn: Point, radius: float) -> None:
        """Go sideways to a point, then turn down."""
        x, y = self.points[-1]
        side = RIGHT if turn[0] > x else -RIGHT
        self._line((turn[0] - side * radius, y))
        half = radius / 2
        self._curve((turn[0] - side * half, y), (turn[0], y + half), (turn[0], y + radius))

    def corner_in(self, end: Point, radius: float) -> None:
        """Turn from above, then go sideways to the end."""
        x, y = self.points[-1]
        side = RIGHT if end[0] > x else -RIGHT
        half = radius / 2
        self._curve((x, y + half), (x + side * half, end[1]), (x + side * radius, end[1]))
        self._line(end)
