"""Where everything in a drawing stands: plain records, in px, x to the right and y downwards from the top left corner.

Whoever lays a graph out makes a Layout; whoever paints takes one. Nothing is computed from a graph here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from ..shape import Edge

Point = tuple[float, float]


class Box(NamedTuple):
    """The room of a node or cluster; `x` and `y` are its top left corner."""

    id: str
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> Point:
        """Its centre."""
        return self.x + self.width / 2, self.y + self.height / 2


class Route(NamedTuple):
    """The way of an edge, from the border of its source to the border of its target, where the tip of its arrow is.

    Attributes:
        points: cubic Bézier curves end to end: the first point, then three for each curve (two controls and its end).
        label_at: the middle of its label; None without one.
    """

    edge: Edge
    points: tuple[Point, ...]
    label_at: Point | None = None

    def line(self, steps: int = 12) -> list[Point]:
        """The same way as short straight lines, so many for each curve."""
        found = [self.points[0]]
        for start, a, b, end in self.curves():
            for step in range(1, steps + 1):
                t = step / steps
                found.append((_at(t, start[0], a[0], b[0], end[0]), _at(t, start[1], a[1], b[1], end[1])))
        return found

    def curves(self) -> Iterator[tuple[Point, Point, Point, Point]]:
        """Each curve with its start, two controls and end."""
        ends = self.points[::3]
        for number, (start, end) in enumerate(pairwise(ends)):
            yield start, self.points[3 * number + 1], self.points[3 * number + 2], end


class Layout(NamedTuple):
    """A drawing's size, and the place of each part.

    Attributes:
        boxes: by the ids of the nodes.
        clusters: by their ids, outer ones first.
        routes: one for each edge, in the order of the edges.
    """

    width: float
    height: float
    boxes: dict[str, Box]
    clusters: dict[str, Box]
    routes: tuple[Route, ...]


def _at(t: float, start: float, a: float, b: float, end: float) -> float:
    s = 1 - t
    return s * s * s * start + 3 * s * s * t * a + 3 * s * t * t * b + t * t * t * end
