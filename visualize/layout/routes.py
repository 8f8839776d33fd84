"""Draws the path of each edge through the grid as smooth curves: straight down through the rows,
and sideways only in the free space between two rows, where all curves have the same shape. So an
edge touches no box but its own, and two edges cross only if their order changes.

Edges meet their nodes at the top and bottom, a little apart from each other; loops at the sides.
Sides are chosen before the columns, since a loop takes space beside a node; the exact positions are
chosen after that."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import accumulate, pairwise
from math import sqrt
from typing import NamedTuple

from ..group import group
from ..model import GraphNode
from .arrange import Component
from .geometry import Box, Point, Route
from .grid import Grid, GridItem, GridLink, places

LEFT = -1
RIGHT = 1

APART = 16.0  # between two edges at one border
APART_SEND = 28.0  # the same for edges with a mark there
LOOP = 24.0  # how far out an edge from a node to itself goes
NESTED = 15.0  # between two of these
FAN = 3  # a node that leads to this many nodes gets straight edges back


class Port(NamedTuple):
    """One end of an edge.

    Attributes:
        x: the x of the vertical line that leads there.
        y: the y at which it meets the node.
        edge_x: the x of the border that it meets; the same as `x` at the top or bottom.
    """

    x: float
    y: float
    edge_x: float


End = tuple[int, bool]
"""The number of a link, and whether its upper end is meant."""
Sides = dict[End, int]
"""The side at which a loop meets its node; ends that are not in it meet the top or bottom."""


class _Surroundings:
    """What is around the ends of loops.

    Attributes:
        place: the position of each cell in its row.
        spots: for each item, the boxes of the nodes and clusters in it, relative to its axis.
        forward: the positions that edges other than loops lead to, from the bottom or top of each
            item.
    """

    def __init__(self, component: Component) -> None:
        self.place = places(component.grid.rows)
        self.spots = [piece.boxes for piece in component.pieces]
        self.forward = group(
            ((link.item(upper), upper), self.place[link.next_cell(upper)])
            for link in component.links
            if link.cells and not link.back
            for upper in (True, False)
        )

    def open_sides(self, link: GridLink, upper: bool) -> list[int]:
        """Return the sides where a loop meets its node without crossing another edge there, the
        better one first."""
        here = self.place[link.next_cell(upper)]
        others = self.forward.get((link.item(upper), upper), ())
        free = self.free_sides(link, upper)
        return [side for side in free if not any(side * (other - here) > 0 for other in others)]

    def hidden(self, link: GridLink, upper: bool) -> bool:
        """Return whether other nodes of the same item are between this end and the border, as in a
        cluster."""
        spots = self.spots[link.item(upper)]
        own = spots[link.node(upper)]
        return any(b.y > own.bottom if upper else b.bottom < own.y for b in spots.values())

    def sides(self, link: GridLink, upper: bool) -> list[int]:
        """Return the sides where a loop may meet its node, if any."""
        found = self.open_sides(link, upper)
        if not found and self.hidden(link, upper):
            found = self.free_sides(link, upper)
        return found

    def loop_sides(self, link: GridLink, upper: bool) -> list[int]:
        """Return the sides where an edge that leads back meets its node, best first; if none, it
        meets the top or bottom."""
        own, other = self.sides(link, upper), self.sides(link, not upper)
        both = [side for side in own if side in other]
        hidden = self.hidden(link, True) or self.hidden(link, False)
        if both and (hidden or not self.fans_out(link)):
            return both
        return own if link.span > 1 or hidden else []

    def fans_out(self, link: GridLink) -> bool:
        """Return whether it leads straight back to a node that leads to many."""
        return link.span == 1 and len(set(self.forward.get((link.upper, True), ()))) >= FAN

    def free_sides(self, link: GridLink, upper: bool) -> list[int]:
        """Return the sides of a link's node that are not blocked by the rest of its item."""
        spots = self.spots[link.item(upper)]
        box = spots[link.node(upper)]
        level = [b for b in spots.values() if b.y < box.bottom and box.y < b.bottom]
        free = []
        if all(b.x < box.right for b in level):
            free.append(RIGHT)
        if all(b.right > box.x for b in level):
            free.append(LEFT)
        return free


def choose_sides(component: Component) -> Sides:
    """Choose the sides where loops meet their nodes, so that they cross no other edges there."""
    around = _Surroundings(component)
    found: Sides = {}
    for number, link in enumerate(component.links):
        for upper in (True, False):
            if link.upper == link.lower:  # at a free side of its source
                found[number, upper] = next(iter(around.free_sides(link, not link.back)), RIGHT)
            elif link.back and (sides := around.loop_sides(link, upper)):
                found[number, upper] = sides[0]
    return found


def count_enclosed(component: Component) -> int:
    """Return how many ends of loops cannot be at a side, because other edges are around them."""
    around = _Surroundings(component)
    loops = [link for link in component.links if link.back and link.cells]
    ends = [(link, upper) for link in loops if not around.fans_out(link) for upper in (True, False)]
    return sum(not around.open_sides(link, upper) for link, upper in ends)


class Beside(NamedTuple):
    """The loops at one side of a node, nearest first: those that lead downwards from there, those
    that lead upwards, and those to the node itself."""

    down: list[int]
    up: list[int]
    own: list[int]

    def turning(self) -> tuple[tuple[list[int], bool], tuple[list[int], bool]]:
        """Return the loops to other nodes, each list with whether its upper ends are here."""
        return (self.down, True), (self.up, False)


def gather_loops(component: Component, sides: Sides) -> dict[tuple[str, int], Beside]:
    """Return the loops beside each node, by its id and the side."""
    place, links = places(component.grid.rows), component.links
    found: dict[tuple[str, int], Beside] = {}
    for (number, upper), side in sides.items():
        link = links[number]
        beside = found.setdefault((link.node(upper), side), Beside([], [], []))
        if link.upper != link.lower:
            (beside.down if upper else beside.up).append(number)
        elif upper:
            beside.own.append(number)
    for (_, side), beside in found.items():
        for numbers, upper in beside.turning():
            nearest = {number: side * place[links[number].next_cell(upper)] for number in numbers}
            numbers.sort(key=nearest.__getitem__)
    return found


def own_room(beside: Beside, links: Sequence[GridLink]) -> float:
    """Return how far the edges from a node to itself reach out, with their labels."""
    own = [links[number] for number in beside.own]
    loops = LOOP + (len(own) - 1) * NESTED if own else 0.0
    marks = [link.label.width + (APART_SEND if link.edge.kind == "send" else 0) for link in own]
    return loops + sum(marks)


def make_turns(component: Component, besides: Mapping[tuple[str, int], Beside]) -> None:
    """Give each loop a cell beside its node, where it turns; a loop begins and ends with these
    cells instead of its nodes."""
    grid, links = component.grid, component.links
    for (_, side), beside in besides.items():
        for numbers, upper in beside.turning():
            for nested, number in enumerate(numbers):
                item = links[number].item(upper)
                row = grid.row[item]
                at = grid.rows[row].index(item) + (nested + 1 if side == RIGHT else -nested)
                turn = grid.insert(GridItem(0, 0, 0), row, at)
                links[number].cells[0 if upper else -1] = turn
        if beside.own:
            item_beside, room = grid.items[links[beside.own[0]].upper], own_room(beside, links)
            if side == RIGHT:
                item_beside.right += room
            else:
                item_beside.left += room


def side_ports(box: Box, side: int, beside: Beside, component: Component) -> dict[End, Port]:
    """Return the ports of the loops at one side of a node; of two that lead the same way, the outer
    one goes around the inner one."""
    border = box.right if side == RIGHT else box.x
    # The distance of the innermost one from the middle, which an edge to the node itself may
    # occupy.
    first = 0.0
    if beside.own:
        first = 11.0
    elif beside.down and beside.up:
        first = 5.0
    found = {}
    for numbers, upper in beside.turning():
        step = min(8.0, (box.height / 2 - 4 - first) / max(1, len(numbers) - (0 if first else 1)))
        for nested, number in enumerate(numbers):
            aside = first + step * (len(numbers) - 1 - nested)
            x = component.x[component.links[number].first_cell(upper)]
            y = box.middle[1] + (aside if upper else -aside)
            found[number, upper] = Port(x, y, border)
    return found


# -- at the top and bottom -------------------------------------------------------------------------


def flat_half(node: GraphNode, box: Box) -> float:
    """Return how far from the middle of its top or bottom an edge may meet a node."""
    if node.kind == "join":
        return box.width * 0.3
    if node.kind in ("start", "end"):
        return max(4.0, (box.width - box.height) / 2)
    return max(4.0, box.width / 2 - 14)


def border_y(node: GraphNode, box: Box, x: float, top: bool) -> float:
    """Return where a vertical line at x meets the top or bottom of a node."""
    if node.kind == "join":
        radius = box.width / 2
        rise = sqrt(radius**2 - min(radius, abs(x - box.middle[0])) ** 2)
        return box.middle[1] + (-rise if top else rise)
    return box.y if top else box.bottom


def list_ends(
    component: Component, upper: bool, sides: Container[End] = ()
) -> dict[str, list[int]]:
    """Return the links that meet each node at its bottom (their upper ends) or top, from left to
    right.

    Args:
        sides: ends that meet their nodes at a side, which are left out.
    """
    place, links = places(component.grid.rows), component.links
    found = group(
        (link.node(upper), number)
        for number, link in enumerate(links)
        if link.cells and (number, upper) not in sides
    )
    for numbers in found.values():
        # Of two that continue in the same cell, the one that leads down is on the left.
        numbers.sort(key=lambda n: (place[links[n].next_cell(upper)], links[n].back, n))
    return found


def spread(wanted: Sequence[float], widths: Sequence[float], half: float) -> list[float]:
    """Return positions near the wanted ones, in order, at most `half` away from 0, with this much
    room for each; see `spread_between`."""
    gaps = [(one + other) / 2 for one, other in pairwise(widths)]
    return spread_between(wanted, gaps, -half, half)


def spread_between(
    wanted: Sequence[float], gaps: Sequence[float], low: float, high: float
) -> list[float]:
    """Return positions near the wanted ones, in order, from low to high, with these gaps between
    them.

    A wanted position out of range belongs to a distant target: it takes what is left in the middle.
    If there is no room for the gaps, they shrink.
    """
    if not wanted:
        return []
    slots = [0.0, *accumulate(gaps)]
    scale = min(1.0, (high - low) / slots[-1]) if slots[-1] else 1.0
    slots = [slot * scale for slot in slots]
    last = slots[-1]
    # Pool adjacent violators: positions that would be out of order form a group with a common mean.
    groups: list[tuple[float, float, int]] = []  # weight, mean, how many
    for x, slot in zip(wanted, slots, strict=True):
        near = low <= x <= high
        group = (1.0, x - slot, 1) if near else (0.001, (low + high - last) / 2, 1)
        while groups and groups[-1][1] >= group[1]:
            weight, mean, size = groups.pop()
            total = weight + group[0]
            mean = (weight * mean + group[0] * group[1]) / total
            group = (total, mean, size + group[2])
        groups.append(group)
    means = [mean for _, mean, size in groups for _ in range(size)]
    return [
        min(max(mean, low), high - last) + slot for mean, slot in zip(means, slots, strict=True)
    ]


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
        path.line((x, rows.bottom[row]))
        path.aside((next_x, rows.top[row + 1]))
    if end.edge_x == end.x:
        path.line((end.x, end.y))
    else:
        radius = _radius(end, rows.top[grid.row[link.lower]])
        path.line((end.x, end.y - radius))
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

    def line(self, end: Point) -> None:
        """Go straight to a point."""
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

    def aside(self, end: Point) -> None:
        """Go to a point below and to the side, vertical at both ends."""
        x, y = self.points[-1]
        if abs(end[0] - x) < 0.5:
            self.line(end)
            return
        half = (end[1] - y) / 2
        self._curve((x, y + half), (end[0], end[1] - half), end)

    def corner(self, turn: Point, radius: float) -> None:
        """Go sideways to a point, then turn down."""
        x, y = self.points[-1]
        side = RIGHT if turn[0] > x else LEFT
        self.line((turn[0] - side * radius, y))
        half = radius / 2
        self._curve((turn[0] - side * half, y), (turn[0], y + half), (turn[0], y + radius))

    def corner_in(self, end: Point, radius: float) -> None:
        """Turn from above, then go sideways to the end."""
        x, y = self.points[-1]
        side = RIGHT if end[0] > x else LEFT
        half = radius / 2
        self._curve((x, y + half), (x + side * half, end[1]), (x + side * radius, end[1]))
        self.line(end)
