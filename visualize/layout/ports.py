"""Where on its nodes an edge begins and ends: at the top and bottom, a little apart from each other; loops at the
sides. Sides are chosen before the columns are, since a loop takes room beside a node; the exact places after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import sqrt
from typing import Final, NamedTuple

from ..shape import Node
from .grid import Grid, Item, Link
from .places import Box

LEFT: Final = -1
RIGHT: Final = 1

APART: Final = 16.0  # between two edges at one border
APART_SEND: Final = 28.0  # the same for those that bear a mark there
LOOP: Final = 24.0  # how far an edge from a node to itself goes out
NESTED: Final = 15.0  # between two of these
FAN: Final = 3  # who leads to so many nodes is led back to in pairs of straight edges


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
Spots = Sequence[Mapping[str, Box]]
"""For each item the boxes of the nodes and clusters in it, around its axis."""


def node_of(link: Link, upper: bool) -> str:
    """The id of the node at this end of the link."""
    return link.edge.source if upper != link.back else link.edge.target


class _Around(NamedTuple):
    """What lies around the ends of loops.

    Attributes:
        forward: the places that edges other than loops lead to, from the bottom or top of each item.
    """

    place: list[int]
    forward: dict[tuple[int, bool], list[int]]
    spots: Spots

    def open_sides(self, link: Link, upper: bool) -> list[int]:
        """The sides where a loop meets its node without crossing any other edge there; the better one first."""
        item, cell = (link.upper, link.cells[1]) if upper else (link.lower, link.cells[-2])
        others = [other - self.place[cell] for other in self.forward.get((item, upper), ())]
        free = self.free_sides(item, node_of(link, upper))
        return [side for side in free if not any(side * other > 0 for other in others)]

    def hidden(self, link: Link, upper: bool) -> bool:
        """Whether other nodes of the same item stand between this end and the border, as in a cluster."""
        spots = self.spots[link.upper if upper else link.lower]
        own = spots[node_of(link, upper)]
        return any(b.y > own.y + own.height if upper else b.y + b.height < own.y for b in spots.values())

    def sides(self, link: Link, upper: bool) -> list[int]:
        """The sides where a loop may meet its node, if any."""
        found = self.open_sides(link, upper)
        if not found and self.hidden(link, upper):
            found = self.free_sides(link.upper if upper else link.lower, node_of(link, upper))
        return found

    def fans_out(self, link: Link) -> bool:
        """Whether it leads straight back to one that leads to many."""
        return link.span == 1 and len(set(self.forward.get((link.upper, True), ()))) >= FAN

    def free_sides(self, item: int, node: str) -> list[int]:
        """The sides where nothing else of the same item stands."""
        box = self.spots[item][node]
        end = box.x + box.width
        level = [b for b in self.spots[item].values() if b.y < box.y + box.height and box.y < b.y + b.height]
        right, left = all(b.x < end for b in level), all(b.x + b.width > box.x for b in level)
        return [side for side, free in ((RIGHT, right), (LEFT, left)) if free]


def _around(grid: Grid, links: Iterable[Link], spots: Spots) -> _Around:
    found = _Around(grid.places(), {}, spots)
    for link in links:
        if link.cells and not link.back:
            found.forward.setdefault((link.upper, True), []).append(found.place[link.cells[1]])
            found.forward.setdefault((link.lower, False), []).append(found.place[link.cells[-2]])
    return found


def choose_sides(grid: Grid, links: Sequence[Link], spots: Spots) -> Sides:
    """Where loops meet their nodes, so that they cross none of the other edges there."""
    around = _around(grid, links, spots)
    found: Sides = {}
    for number, link in enumerate(links):
        if link.upper == link.lower:
            free = around.free_sides(link.upper, link.edge.source)
            found[number, True] = found[number, False] = (free or [RIGHT])[0]
        elif link.back:
            top, low = around.sides(link, True), around.sides(link, False)
            both = [side for side in top if side in low]
            hidden = around.hidden(link, True) or around.hidden(link, False)
            if both and (hidden or not around.fans_out(link)):
                top = low = both
            elif link.span == 1 and not hidden:
                continue
            if top:
                found[number, True] = top[0]
            if low:
                found[number, False] = low[0]
    return found


def enclosed(grid: Grid, links: Sequence[Link], spots: Spots) -> int:
    """How many ends of loops cannot be at a side, for other edges lie around them."""
    around = _around(grid, links, spots)
    loops = [link for link in links if link.back and link.cells and not around.fans_out(link)]
    return sum(not around.open_sides(link, upper) for link in loops for upper in (True, False))


class Beside(NamedTuple):
    """The loops at one side of a node, nearest first: those that lead downwards from there, upwards, and to itself."""

    down: list[int]
    up: list[int]
    own: list[int]


def gather(grid: Grid, links: Sequence[Link], sides: Sides) -> dict[tuple[str, int], Beside]:
    """The loops beside each node, by its id and the side."""
    place = grid.places()
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


def own_room(beside: Beside, links: Sequence[Link]) -> float:
    """How far the edges from a node to itself reach out, with their labels."""
    loops = LOOP + (len(beside.own) - 1) * NESTED if beside.own else 0.0
    marks = [
        links[number].label.width + (APART_SEND if links[number].edge.kind == "send" else 0) for number in beside.own
    ]
    return loops + sum(marks)


def make_turns(grid: Grid, links: Sequence[Link], besides: Mapping[tuple[str, int], Beside]) -> None:
    """Give each loop a cell beside its node, where it turns; a loop begins and ends with these instead of its nodes."""
    for (_, side), beside in besides.items():
        for numbers, upper in ((beside.down, True), (beside.up, False)):
            for nested, number in enumerate(numbers):
                link = links[number]
                item = link.upper if upper else link.lower
                at = grid.rows[grid.row[item]].index(item) + (nested + 1 if side == RIGHT else -nested)
                link.cells[0 if upper else -1] = grid.insert(Item(0, 0, 0), grid.row[item], at)
        if beside.own:
            cell, room = links[beside.own[0]].upper, own_room(beside, links)
            old = grid.items[cell]
            wider = replace(old, right=old.right + room) if side == RIGHT else replace(old, left=old.left + room)
            grid.items[cell] = wider


def side_ports(box: Box, side: int, beside: Beside, at: Mapping[End, float]) -> dict[End, Port]:
    """The ports of the loops at one side of a node; of two that lead the same way the outer one goes around the inner.

    Args:
        at: the x at which they turn.
    """
    _, middle = box.middle
    border = box.x + (box.width if side == RIGHT else 0)
    first = 11.0 if beside.own else 5.0 if beside.down and beside.up else 0.0
    found = {}
    for numbers, upper, sign in ((beside.down, True, 1), (beside.up, False, -1)):
        step = min(8.0, (box.height / 2 - 4 - first) / max(1, len(numbers) - (0 if first else 1)))
        for nested, number in enumerate(numbers):
            out = len(numbers) - 1 - nested
            found[number, upper] = Port(at[number, upper], middle + sign * (first + step * out), border)
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
        rise = sqrt(radius**2 - min(radius, abs(x - box.middle[0])) ** 2)
        return box.middle[1] + (-rise if top else rise)
    return box.y if top else box.y + box.height


def spread(wanted: Sequence[float], widths: Sequence[float], half: float) -> list[float]:
    """Places near the wanted ones, in the same order, not farther than half from 0, with so much room for each.

    What is wanted beyond half is led to from afar: it takes what is left.
    """
    if not wanted:
        return []
    slots = [0.0]
    for one, other in pairwise(widths):
        slots.append(slots[-1] + (one + other) / 2)
    scale = min(1.0, 2 * half / slots[-1]) if slots[-1] else 1.0
    slots = [slot * scale for slot in slots]
    groups: list[tuple[float, float, int]] = []  # weight, mean, how many: equal means are a group (pool adjacent)
    for x, slot in zip(wanted, slots, strict=True):
        group = (1.0, x - slot, 1) if abs(x) <= half else (0.001, -slots[-1] / 2, 1)
        while groups and groups[-1][1] >= group[1]:
            weight, mean, size = groups.pop()
            total = weight + group[0]
            group = (total, (weight * mean + group[0] * group[1]) / total, size + group[2])
        groups.append(group)
    means = [mean for _, mean, size in groups for _ in range(size)]
    return [min(max(mean, -half), half - slots[-1]) + slot for mean, slot in zip(means, slots, strict=True)]
