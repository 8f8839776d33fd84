"""The layout in character cells for text drawings: all coordinates are integers, lines are
horizontal and vertical, and labels are beside the arrowheads. Between two rows, the horizontal
segments of lines have tracks of their own.

Edges end at the borders of clusters: the model has no edges across levels (see `nesting`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf
from typing import ClassVar, NamedTuple

from ..model import GraphEdge, GraphModel, GraphNode
from .arrange import Arranger, Component, Piece, align
from .geometry import Box, GraphLayout, Point, Route
from .grid import GridItem, GridLink
from .measure import Size
from .routes import End, list_ends, spread_between

GAP = 2  # free cells between neighbours
PORT_GAP = 3  # between lines at the same border
LOOP = 5  # width of an edge from a node to itself, with a space before its label
TIPS = 2  # rows of a gap besides the tracks: for arrowheads up, and for those down


class TooWideError(Exception):
    """The drawing does not fit the width."""


@dataclass(frozen=True, slots=True)
class CellSizes:
    """The sizes of the parts of a text drawing, in cells.

    Attributes:
        nodes: the size of each node, by id; for a cluster, the least size for its title.
        labels: the length of each edge's label, in the order of the edges.
    """

    nodes: dict[str, Size]
    labels: Sequence[int]


def arrange_cells(model: GraphModel, sizes: CellSizes, widest: int) -> GraphLayout:
    """Return the layout of a model in character cells.

    Raises:
        TooWideError: it needs more than `widest` columns.
    """
    layout = CellArranger(model, sizes, widest).arrange()
    if layout.width > widest:
        raise TooWideError
    return layout


class CellArranger(Arranger):
    """Computes a layout in character cells. A node has at most one edge to itself."""

    margin: ClassVar[float] = 0
    between: ClassVar[float] = 4

    def __init__(self, model: GraphModel, sizes: CellSizes, widest: int) -> None:
        super().__init__(model)
        self.sizes = sizes
        self.widest: float = widest

    # -- items -------------------------------------------------------------------------------------

    def build_items(self, nodes: Iterable[GraphNode]) -> Iterator[tuple[GridItem, Piece]]:
        """Yield an item for each node or cluster, around the column in its middle."""
        loops = {
            edge.source: LOOP + length
            for edge, length in zip(self.edges, self.sizes.labels, strict=True)
            if edge.source == edge.target
        }
        for node in nodes:
            width, height = self.sizes.nodes[node.id]
            piece = Piece()
            if node.kind == "cluster":
                inner = self.arrange_level(node.id)
                width, height = max(width, inner.width + 4), inner.height + 2
                left = (width - 1) // 2
                piece = inner.move((width - inner.width) // 2 - left, 1)
            left = (width - 1) // 2
            piece.boxes = {node.id: Box(node.id, -left, 0, width, height), **piece.boxes}
            yield GridItem(left, width - left + loops.get(node.id, 0), height), piece

    def measure_label(self, edge: GraphEdge) -> Size:
        """Return zero: labels are beside arrowheads, where `_make_room` reserves space for them."""
        return Size(0, 0)

    # -- columns, rows and routes ------------------------------------------------------------------

    def finish(self, component: Component) -> Piece:
        """Compute integer columns, as many tracks between two rows as the lines need, and the
        lines."""
        grid = component.grid
        for item in grid.items[len(component.pieces) :]:
            item.right = 1  # a line takes a cell
        for row in grid.rows:
            cells = sum(grid.items[cell].left + grid.items[cell].right + GAP for cell in row)
            if cells - GAP > self.widest:
                raise TooWideError  # before the expensive part
        self._make_room(component)
        component.x = [_round(x) for x in align(component, lambda left, right: GAP)]
        return _Router(self, component).route()

    def _make_room(self, component: Component) -> None:
        """Widen nodes for the lines and labels at their borders."""
        grid = component.grid
        for upper in (True, False):
            for ends in list_ends(component, upper).values():
                number = component.links[ends[0]].item(upper)
                gaps = self.list_port_gaps(component, ends, upper)
                _widen(grid.items[number], component.pieces[number], sum(gaps) + PORT_GAP)
                # The label of the last line may extend beyond the node.
                over = self.label_room(component, ends[-1], upper)
                item = grid.items[number]
                item.right = max(item.right, ceil(sum(gaps) / 2) + 1 + over)

    def list_port_gaps(self, component: Component, ends: Sequence[int], upper: bool) -> list[int]:
        """Return the distance of each line at a border from the next one: labels are between
        them."""
        rooms = [self.label_room(component, number, upper) for number in ends[:-1]]
        return [PORT_GAP + room - 1 if room else PORT_GAP for room in rooms]

    def label_room(self, component: Component, number: int, upper: bool) -> int:
        """Return the cells for the label of a link at its upper or lower end, with a space before
        it."""
        length = self.sizes.labels[component.numbers[number]]
        at_tip = component.links[number].back == upper
        return length + 1 if at_tip and length else 0


def _widen(item: GridItem, piece: Piece, width: float) -> None:
    """Widen an item's box to at least this width, equally on both sides."""
    own = next(iter(piece.boxes.values()))
    more = max(0, ceil((width - own.width) / 2))
    piece.boxes[own.id] = own._replace(x=own.x - more, width=own.width + 2 * more)
    item.left, item.right = item.left + more, item.right + more


def _round(x: float) -> int:
    """Round to the nearest integer, half up, so that integer distances are preserved."""
    return floor(round(x, 6) + 0.5)


class _Router:
    """Routes the lines of one component, whose columns are known, and places its rows."""

    def __init__(self, arranger: CellArranger, component: Component) -> None:
        self.arranger = arranger
        self.component = component
        self.grid = component.grid
        self.links = component.links
        self.boxes = component.place([0.0] * len(component.pieces)).boxes
        self.ports: dict[End, int] = {}
        for upper in (True, False):
            for ends in list_ends(component, upper).values():
                self._place_ports(ends, upper)

    def route(self) -> Piece:
        """Return the component with everything in its place."""
        grid, component = self.grid, self.component
        heights = [max((grid.items[cell].height for cell in row), default=0) for row in grid.rows]
        corners: dict[int, list[Point]] = {number: [] for number in range(len(self.links))}
        tops, y = [], 0.0
        for row, height in enumerate(heights):
            tops.append(y)
            y += height
            y += self._lead_lines(row, y, corners)
        piece = component.place([tops[row] for row in grid.row])
        piece.height = y
        self.boxes = piece.boxes
        for number, edge in enumerate(component.numbers):
            piece.routes[edge] = self._build_route(number, corners[number])
        return piece

    def _place_ports(self, ends: Sequence[int], upper: bool) -> None:
        """Choose the columns of some links at one border: as straight as possible, without
        overlap."""
        low, high = self._port_range(self.links[ends[0]], upper)
        number = self.links[ends[0]].item(upper)
        right = self.component.x[number] + self.grid.items[number].right
        over = self.arranger.label_room(self.component, ends[-1], upper)
        high = min(high, right - 1 - over)
        gaps = self.arranger.list_port_gaps(self.component, ends, upper)
        others = {self.links[end].item(not upper) for end in ends}
        if len(others) == 1 and high - low - sum(gaps) >= len(gaps):
            gaps = [gap + 1 for gap in gaps]  # edges there and back are equally far from the middle
        wanted = [self._wish(end, upper) for end in ends]
        found = spread_between(wanted, gaps, low, high)
        self.ports |= {(end, upper): _round(x) for end, x in zip(ends, found, strict=True)}

    def _port_range(self, link: GridLink, upper: bool) -> tuple[float, float]:
        """Return the first and the last column where a line may meet a node."""
        box = self.boxes[link.node(upper)]
        return box.x + 1, box.right - 2

    def _wish(self, number: int, upper: bool) -> float:
        """Return the column in which the line would be straight here; infinity if there is none."""
        link = self.links[number]
        if len(link.cells) > 2:
            return self.component.x[link.next_cell(upper)]
        if (number, not upper) in self.ports:
            return self.ports[number, not upper]
        ranges = self._port_range(link, True), self._port_range(link, False)
        low, high = max(low for low, _ in ranges), min(high for _, high in ranges)
        middle = floor(sum(map(sum, ranges)) / 4)
        return min(max(middle, low), high) if low <= high else inf

    def _lead_lines(self, row: int, y: float, corners: dict[int, list[Point]]) -> int:
        """Route lines through the gap below a row, which begins at `y`; return its height."""
        ends = {}
        for number, link in enumerate(self.links):
            place = row - self.grid.row[link.upper]
            if 0 <= place < len(link.cells) - 1:
                ends[number] = self._column(number, place), self._column(number, place + 1)
        tracks = assign_tracks(ends)
        for run in sorted(tracks, key=lambda run: run.part):
            level = y + 1 + tracks[run]
            corners[run.line] += [(run.x, level), (run.to, level)]
        return max(tracks.values(), default=-1) + 1 + TIPS if ends else 0

    def _column(self, number: int, place: int) -> int:
        """Return the column of a link in one of the rows that it passes."""
        link = self.links[number]
        if place in (0, len(link.cells) - 1):
            return self.ports[number, place == 0]
        return int(self.component.x[link.cells[place]])

    def _build_route(self, number: int, corners: list[Point]) -> Route:
        link, edge = self.links[number], self.links[number].edge
        labelled = self.arranger.sizes.labels[self.component.numbers[number]] > 0
        if not link.cells:
            box = self.boxes[edge.source]
            x, top, low = box.right, box.y, box.bottom - 1
            loop: list[Point] = [(x, low), (x + 2, low), (x + 2, top), (x, top)]
            if top == low:
                loop = loop[2:]
            return Route(edge, tuple(loop), (x + 4, min(top + 1, low)) if labelled else None)
        upper, lower = self.boxes[link.node(True)], self.boxes[link.node(False)]
        start = self.ports[number, True], upper.bottom
        end = self.ports[number, False], lower.y - 1
        points: list[Point] = [start, *corners, end]
        if link.back:
            points.reverse()
        x, y = points[-1]
        return Route(edge, tuple(points), (x + 2, y) if labelled else None)


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
