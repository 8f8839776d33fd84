"""The geometry of a drawing, as plain records: x to the right, y downwards.

A layout is measured in px (see `pixels`) or in character cells (see `cells`). One that is much
taller than a page is broken into columns. Nothing is computed from a graph here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, starmap
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # a timeline needs boxes, but not networkx
    from ..model import GraphEdge

Point = tuple[float, float]


class Box(NamedTuple):
    """The rectangle of a node or cluster; `x` and `y` are its top left corner."""

    id: str
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> Point:
        """Its centre."""
        return self.x + self.width / 2, self.y + self.height / 2

    @property
    def right(self) -> float:
        """The x of its right border."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """The y of its lower border."""
        return self.y + self.height

    def move(self, dx: float, dy: float) -> Box:
        """Return the same box, further right and down."""
        return self._replace(x=self.x + dx, y=self.y + dy)


class Route(NamedTuple):
    """The path of an edge, from its source to the arrowhead at the target.

    Attributes:
        points: in px: cubic Bézier curves end to end, that is the first point, then three for each
            curve (two controls and its end). In character cells: the corners of the line, of which
            the first and the last are the cells next to the nodes.
        label_at: in px: the middle of the label. In cells: its first cell. None without a label.
    """

    edge: GraphEdge
    points: tuple[Point, ...]
    label_at: Point | None = None

    def move(self, dx: float, dy: float) -> Route:
        """Return the same path, further right and down."""
        return self.map(lambda x, y: (x + dx, y + dy))

    def map(self, to: Callable[[float, float], Point]) -> Route:
        """Return the path with all its points elsewhere."""
        label_at = self.label_at and to(*self.label_at)
        return Route(self.edge, tuple(starmap(to, self.points)), label_at)

    def line(self, steps: int = 12) -> list[Point]:
        """Return the curves as short straight lines, this many for each curve."""
        found = [self.points[0]]
        for start, a, b, end in self.curves():
            for step in range(1, steps + 1):
                t = step / steps
                x = _interpolate(t, start[0], a[0], b[0], end[0])
                found.append((x, _interpolate(t, start[1], a[1], b[1], end[1])))
        return found

    def curves(self) -> Iterator[tuple[Point, Point, Point, Point]]:
        """Yield each curve with its start, two control points and end."""
        ends = self.points[::3]
        for number, (start, end) in enumerate(pairwise(ends)):
            yield start, self.points[3 * number + 1], self.points[3 * number + 2], end


class GraphLayout(NamedTuple):
    """A drawing's size, and the position of each part.

    Attributes:
        boxes: the boxes of the nodes, by id.
        clusters: the boxes of the clusters, by id, outer ones first.
        routes: one for each edge, in the order of the edges.
        across: whether edges lead to the right instead of downwards.
    """

    width: float
    height: float
    boxes: dict[str, Box]
    clusters: dict[str, Box]
    routes: tuple[Route, ...]
    across: bool = False

    def turn(self) -> GraphLayout:
        """Return the layout with x and y exchanged: what led downwards leads to the right."""

        def turned(box: Box) -> Box:
            return Box(box.id, box.y, box.x, box.height, box.width)

        return GraphLayout(
            self.height,
            self.width,
            {id: turned(box) for id, box in self.boxes.items()},
            {id: turned(box) for id, box in self.clusters.items()},
            tuple(route.map(lambda x, y: (y, x)) for route in self.routes),
            not self.across,
        )


def _interpolate(t: float, start: float, a: float, b: float, end: float) -> float:
    s = 1 - t
    return s * s * s * start + 3 * s * s * t * a + 3 * s * t * t * b + t * t * t * end


TALLEST = 1600.0
"""The tallest drawing that stays one column, in px."""
COLUMN = 900.0
"""About how tall each column becomes."""
BETWEEN, ABOVE, ROUND = 64.0, 24.0, 10.0


def wrap_columns(layout: GraphLayout) -> GraphLayout:
    """Return the layout in several columns, the next one to the right; the same layout if it is not
    too tall, or if there is no place to break it."""
    cuts = _find_cuts(layout) if layout.height > TALLEST else []
    if not cuts:
        return layout
    margin = min(box.y for box in (*layout.boxes.values(), *layout.clusters.values()))
    # A column begins where its first box does, as the first column does.
    firsts = [min(box.y for box in layout.boxes.values() if box.y >= cut) for cut in [0.0, *cuts]]
    step = layout.width + BETWEEN
    tops = [margin, *(margin + ABOVE for _ in cuts)]
    shifts = [(n * step, top - y) for n, (top, y) in enumerate(zip(tops, firsts, strict=True))]

    def column(y: float) -> int:
        return sum(y >= cut for cut in cuts)

    def move(box: Box) -> Box:
        return box.move(*shifts[column(box.y)])

    routes = []
    for route in layout.routes:
        first, last = column(route.points[0][1]), column(route.points[-1][1])
        if first == last:
            routes.append(route.move(*shifts[first]))
        else:
            routes.append(_lead_on(route, shifts[first], shifts[last], layout.width + BETWEEN / 2))
    boxes = {id: move(box) for id, box in layout.boxes.items()}
    clusters = {id: move(box) for id, box in layout.clusters.items()}
    bottoms = [box.bottom for box in (*boxes.values(), *clusters.values())]
    bottoms += [y for route in routes for _, y in route.points]
    width = layout.width + step * len(cuts)
    return GraphLayout(width, max(bottoms) + margin, boxes, clusters, tuple(routes))


def _find_cuts(layout: GraphLayout) -> list[float]:
    """Return the heights at which to break: between nodes, where one edge leads down."""
    boxes = [(box.y, box.bottom) for box in (*layout.boxes.values(), *layout.clusters.values())]
    spans = [(min(ys), max(ys), r) for r in layout.routes if (ys := [y for _, y in r.points])]
    cuts: list[float] = []
    last = 0.0
    for low in sorted({bottom for _, bottom in boxes}):
        place = low + 1.0
        if place - last < COLUMN - 100 or layout.height - place < COLUMN / 4:
            continue
        if any(top < place < bottom for top, bottom in boxes):
            continue
        crossing = [route for top, bottom, route in spans if top < place < bottom]
        if len(crossing) == 1 and crossing[0].points[0][1] < place:
            cuts.append(place)
            last = place
    return cuts


def _lead_on(route: Route, start: Point, end: Point, between: float) -> Route:
    """Return the edge from the end of a column to the top of the next one."""
    (x, y), (to_x, to_y) = route.points[0], route.points[-1]
    x, y, to_x, to_y = x + start[0], y + start[1], to_x + end[0], to_y + end[1]
    aside = start[0] + between
    low, high = y + ABOVE, to_y - ABOVE
    corners = [(x, y), (x, low), (aside, low), (aside, high), (to_x, high)]
    points = _round([*corners, (to_x, to_y)])
    label_at = (aside, (y + to_y) / 2) if route.label_at else None
    return Route(route.edge, tuple(points), label_at)


def _round(corners: Sequence[Point]) -> list[Point]:
    """Return curves through corners, each of which is rounded."""
    points = [corners[0]]
    for before, corner, after in zip(corners, corners[1:], corners[2:], strict=False):
        begin, end = _towards(corner, before), _towards(corner, after)
        points += [points[-1], begin, begin, corner, corner, end]
    return [*points, points[-1], corners[-1], corners[-1]]


def _towards(corner: Point, other: Point) -> Point:
    dx, dy = other[0] - corner[0], other[1] - corner[1]
    length = max(abs(dx) + abs(dy), 0.01)
    near = min(ROUND, length / 2)
    return corner[0] + dx / length * near, corner[1] + dy / length * near
