"""Where on its nodes an edge begins and ends: at the top and bottom, a little apart from each other; loops at the sides.

Sides are chosen before the columns are, since a loop takes room beside a node; the exact places after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from .grid import Grid, Link
from .places import Box
from .shape import Node

LEFT: Final = -1
RIGHT: Final = 1

APART: Final = 16.0  # between two edges at one border
OUT: Final = 16.0  # from a node's side to the first loop beside it
LOOP: Final = 26.0  # how far an edge from a node to itself goes out
NESTED: Final = 11.0  # between loops beside a node


class Port(NamedTuple):
    """One end of an edge.

    Attributes:
        x: of the vertical line that leads there.
        y: where it meets the node; at a side, the height at which it does.
        edge_x: of the border that is met; as `x` at the top or bottom.
    """

    x: float
    y: float
    edge_x: float


End = tuple[int, bool]
"""The number of a link, and whether its upper end is meant."""
Sides = dict[End, int]
"""At which side a loop meets its node; what is not in it is met at the top or bottom."""


def node_of(link: Link, upper: bool) -> str:
    """The id of the node at this end of the link."""
    return link.edge.source if upper != link.back else link.edge.target


def choose_sides(grid: Grid, links: Sequence[Link], spots: Sequence[Mapping[str, Box]]) -> Sides:
    """Where loops meet their nodes, so that they cross none of the other edges there.

    Args:
        spots: for each item the boxes of the nodes in it, around its axis.
    """
    place = {cell: number for row in grid.rows for number, cell in enumerate(row)}
    beside: dict[tuple[int, bool], list[int]] = {}
    for link in links:
        if not link.back and link.cells:
            beside.setdefault((link.upper, True), []).append(place[link.cells[1]])
            beside.setdefault((link.lower, False), []).append(place[link.cells[-2]])
    found: Sides = {}
    for number, link in enumerate(links):
        if link.upper == link.lower:
            found[number, True] = found[number, False] = RIGHT
        elif link.back:
            here, there = place[link.cells[1]], place[link.cells[-2]]
            top = _open_sides(here, beside.get((link.upper, True), ()), spots[link.upper], node_of(link, True))
            low = _open_sides(there, beside.get((link.lower, False), ()), spots[link.lower], node_of(link, False))
            both = [side for side in top if side in low]
            if both:
                found[number, True] = found[number, False] = both[0]
            elif len(link.cells) > 2:
                found.update({(number, True): side for side in top[:1]})
                found.update({(number, False): side for side in low[:1]})
    return found


def _open_sides(place: int, others: Iterable[int], spots: Mapping[str, Box], node: str) -> list[int]:
    """The sides of a node where a loop that comes from this place crosses none of the others; the better one first."""
    others = list(others)
    box = spots[node]
    level = [b for b in spots.values() if b.y < box.y + box.height and box.y < b.y + b.height]
    found = []
    if not any(other > place for other in others) and all(b.x <= box.x for b in level):
        found.append(RIGHT)
    if not any(other < place for other in others) and all(b.x >= box.x for b in level):
        found.append(LEFT)
    return found


class Beside(NamedTuple):
    """The loops at one side of a node, nearest first: those that lead downwards from there, upwards, and to itself."""

    down: list[int]
    up: list[int]
    own: list[int]

    def room(self, links: Sequence[Link]) -> float:
        """How far they reach out, in px."""
        own = self.own_room(links)
        nested = max(len(self.down), len(self.up))
        return own + (OUT + (nested - 1) * NESTED if nested else 0)

    def own_room(self, links: Sequence[Link]) -> float:
        """How far the edges to itself reach out, with their labels."""
        labels = max((links[number].label.width for number in self.own), default=0)
        return (LOOP + (len(self.own) - 1) * NESTED + labels + (4 if labels else 0)) if self.own else 0


def gather(grid: Grid, links: Sequence[Link], sides: Sides) -> dict[tuple[str, int], Beside]:
    """The loops beside each node, by its id and the side."""
    place = {cell: number for row in grid.rows for number, cell in enumerate(row)}
    found: dict[tuple[str, int], Beside] = {}
    for (number, upper), side in sides.items():
        link = links[number]
        beside = found.setdefault((node_of(link, upper), side), Beside([], [], []))
        if link.upper != link.lower:
            (beside.down if upper else beside.up).append(number)
        elif upper:
            beside.own.append(number)
    for (_, side), beside in found.items():
        beside.down.sort(key=lambda number: side * place[links[number].cells[1]])
        beside.up.sort(key=lambda number: side * place[links[number].cells[-2]])
    return found


def side_ports(box: Box, side: int, beside: Beside, links: Sequence[Link]) -> dict[End, Port]:
    """The ports of the loops at one side of a node; of two that lead the same way the outer one goes around the inner."""
    _, middle = box.middle
    border = box.x + (box.width if side == RIGHT else 0)
    start = border + side * (beside.own_room(links) + OUT)
    first = 11.0 if beside.own else 5.0 if beside.down and beside.up else 0.0
    found = {}
    for numbers, upper, sign in ((beside.down, True, 1), (beside.up, False, -1)):
        step = min(8.0, (box.height / 2 - 4 - first) / max(1, len(numbers) - (0 if first else 1)))
        for nested, number in enumerate(numbers):
            out = len(numbers) - 1 - nested
            y = middle + sign * (first + step * out)
            found[number, upper] = Port(start + side * nested * NESTED, y, border)
    return found


# -- at the top and bottom ------------------------------------------------------------------------------------


def flat(node: Node, box: Box) -> float:
    """How far from the middle of its top or bottom an edge may meet a node."""
    if node.kind == "join":
        return box.width * 0.3
    if node.kind in ("start", "end"):
        return (box.width - box.height) / 2
    return max(4.0, box.width / 2 - 14)


def border_y(node: Node, box: Box, x: float, top: bool) -> float:
    """Where a vertical line at x meets the top or bottom of a node."""
    if node.kind == "join":
        radius = box.width / 2
        rise = (radius**2 - min(radius, abs(x - box.middle[0])) ** 2) ** 0.5
        return box.middle[1] + (-rise if top else rise)
    return box.y if top else box.y + box.height


def spread(wanted: Sequence[float], half: float) -> list[float]:
    """Places near the wanted ones, in the same order and apart from each other, not farther than half from 0.

    What is wanted beyond half is led to from afar: it takes what is left.
    """
    count = len(wanted)
    apart = min(APART, 2 * half / (count - 1)) if count > 1 else 0.0
    groups: list[tuple[float, float, int]] = []  # weight, mean, how many: equal means are a group (pool adjacent)
    for number, x in enumerate(wanted):
        near = abs(x) <= half
        group = (1.0, x - number * apart, 1) if near else (0.001, -(count - 1) / 2 * apart, 1)
        while groups and groups[-1][1] >= group[1]:
            weight, mean, size = groups.pop()
            total = weight + group[0]
            group = (total, (weight * mean + group[0] * group[1]) / total, size + group[2])
        groups.append(group)
    means = [mean for _, mean, size in groups for _ in range(size)]
    return [min(max(mean, -half), half - (count - 1) * apart) + number * apart for number, mean in enumerate(means)]
