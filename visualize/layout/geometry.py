"""The geometry of a drawing, as plain records: x to the right, y downwards.

A layout is measured in px (see `pixels`) or in character cells (see `cells`). Nothing is computed
from a graph here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

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
        label_at = self.label_at and (self.label_at[0] + dx, self.label_at[1] + dy)
        return Route(self.edge, tuple((x + dx, y + dy) for x, y in self.points), label_at)

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
            tuple(
                Route(
                    route.edge,
                    tuple((y, x) for x, y in route.points),
                    route.label_at and (route.label_at[1], route.label_at[0]),
                )
                for route in self.routes
            ),
            not self.across,
        )


def _interpolate(t: float, start: float, a: float, b: float, end: float) -> float:
    s = 1 - t
    return s * s * s * start + 3 * s * s * t * a + 3 * s * t * t * b + t * t * t * end
