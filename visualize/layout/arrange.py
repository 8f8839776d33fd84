"""Where the parts of a drawing go, without Graphviz: layers from top to bottom, after Sugiyama.

Each graph is arranged for itself, the nested ones first: to the graph around it such a one is a single large node. The
steps are in `grid`, `layers`, `order`, `columns`, `ports` and `routes`; here they are put together. The same shape
always gives the same layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from ...pregel.names import NS_END
from ..shape import Edge, Node, Shape
from .columns import columns
from .grid import Grid, Item, Link, build
from .measure import Size, label_size, node_size, title_size
from .order import arrange_rows
from .places import Box, Layout, Route
from .ports import APART as PORT
from .ports import APART_SEND as SEND_PORT
from .ports import choose_sides, enclosed, gather, make_turns
from .routes import Sheet, ports, route, row_tops, self_routes

MARGIN: Final = 16.0
APART: Final = 40.0  # between parts that nothing connects
ASIDE: Final = 36.0  # from a node to its error handler
WIDEST: Final = 1200.0  # parts that nothing connects begin a new line beyond
TALL: Final = 60.0  # what is higher stands at the top of its row, the rest in the middle
INSET: Final = 16.0  # from a cluster's border to what is in it
MOST_ROOM: Final = 280.0  # how far a node is widened for its edges
TITLE: Final = 30.0  # the same at its top


def arrange(shape: Shape) -> Layout:
    """Where each node, cluster and edge of a shape goes.

    Raises:
        ValueError: an edge leads to or from what is not a node of the shape.
    """
    drawing = _Drawing(shape)
    part = drawing.level(None)
    dx, dy = MARGIN, MARGIN
    width, height = part.width + 2 * MARGIN, part.height + 2 * MARGIN
    moved = part.moved(dx, dy)
    clusters = {cluster.id: moved.clusters[cluster.id] for cluster in shape.clusters}
    boxes = {node.id: moved.boxes[node.id] for node in shape.nodes}
    return Layout(width, height, boxes, clusters, tuple(moved.routes[number] for number in range(len(shape.edges))))


@dataclass(slots=True)
class _Part:
    """An arranged piece of the drawing, from its own top left corner; routes by the number of the edge."""

    width: float = 0.0
    height: float = 0.0
    boxes: dict[str, Box] = field(default_factory=dict)
    clusters: dict[str, Box] = field(default_factory=dict)
    routes: dict[int, Route] = field(default_factory=dict)

    def moved(self, dx: float, dy: float) -> _Part:
        """The same, further right and down."""
        boxes, clusters = (
            {key: box._replace(x=box.x + dx, y=box.y + dy) for key, box in some.items()}
            for some in (self.boxes, self.clusters)
        )
        routes = {number: _moved(way, dx, dy) for number, way in self.routes.items()}
        return _Part(self.width, self.height, boxes, clusters, routes)

    def take(self, other: _Part) -> None:
        """Put in what the other holds; the size stays."""
        self.boxes.update(other.boxes)
        self.clusters.update(other.clusters)
        self.routes.update(other.routes)


def _moved(way: Route, dx: float, dy: float) -> Route:
    label_at = way.label_at and (way.label_at[0] + dx, way.label_at[1] + dy)
    return Route(way.edge, tuple((x + dx, y + dy) for x, y in way.points), label_at)


def _beside(parts: Sequence[_Part], widest: float) -> _Part:
    """Parts from left to right, in lines."""
    whole = _Part()
    x = y = line = 0.0
    for part in parts:
        if x and x + part.width > widest:
            x, y, line = 0.0, y + line + APART, 0.0
        whole.take(part.moved(x, y))
        line = max(line, part.height)
        whole.width = max(whole.width, x + part.width)
        whole.height = max(whole.height, y + part.height)
        x += part.width + APART
    return whole


@dataclass(slots=True)
class _Things:
    """The items of one level by number, and in which of them each node is."""

    items: list[Item] = field(default_factory=list)
    parts: list[_Part] = field(default_factory=list)  # what is in each, around its axis
    number: dict[str, int] = field(default_factory=dict)

    def add(self, item: Item, part: _Part) -> None:
        self.number.update(dict.fromkeys((*part.boxes, *part.clusters), len(self.items)))
        self.items.append(item)
        self.parts.append(part)


class _Drawing:
    """A shape on its way to a layout: which node is in which cluster, which edge belongs to which level."""

    def __init__(self, shape: Shape) -> None:
        self.nodes = {node.id: node for node in (*shape.nodes, *shape.clusters)}
        self.edges = shape.edges
        self.inside: dict[str | None, list[Node]] = {}
        for node in (*shape.nodes, *shape.clusters):
            self.inside.setdefault(node.inside, []).append(node)
        above = {node.id: node.inside for node in (*shape.nodes, *shape.clusters)}
        for edge in shape.edges:
            if missing := {edge.source, edge.target} - self.nodes.keys():
                raise ValueError(
                    f"the edge {edge.source!r} -> {edge.target!r} needs a node {min(missing)!r} in the shape"
                )
        self.of_level: dict[str | None, list[int]] = {}
        for number, edge in enumerate(shape.edges):
            self.of_level.setdefault(_common(edge, above), []).append(number)
        self.hosts = self._hosts()
        self.room = self._room()

    def _room(self) -> dict[str, float]:
        """How wide each node has to be for the edges that meet it at its top or at its bottom."""
        found: dict[tuple[str, bool], float] = {}
        pairs = {edge[:2] for edge in self.edges}
        for edge in self.edges:
            both = (edge.target, edge.source) in pairs  # these edges meet each node on the same side
            begin = SEND_PORT if edge.kind == "send" else PORT
            for node, top, width in ((edge.target, True, PORT), (edge.source, False, begin)):
                for side in (True, False) if both else (top,):
                    found[node, side] = min(MOST_ROOM, found.get((node, side), 0.0) + width)
        return {node: max(found.get((node, True), 0.0), found.get((node, False), 0.0)) for node in self.nodes}

    def _size(self, node: Node) -> Size:
        width, height = node_size(node)
        return Size(
            max(width, self.room[node.id] + 16) if node.kind in ("start", "end", "node", "subgraph") else width, height
        )

    def _hosts(self) -> dict[str, str]:
        """Error handlers that stand beside the one node that they handle, and that node."""
        into: dict[str, list[Edge]] = {}
        out: dict[str, set[str]] = {}
        for edge in self.edges:
            into.setdefault(edge.target, []).append(edge)
            out.setdefault(edge.source, set()).add(edge.target)
        found: dict[str, str] = {}
        for node in self.nodes.values():
            edges = into.get(node.id, [])
            host = edges[0].source if len(edges) == 1 and edges[0].kind == "error" else node.id
            back = any(end == host or end.startswith(host + NS_END) for end in out.get(node.id, ()))
            free = not {host, node.id} & {*found, *found.values()} and host != node.id and not back
            beside = self.nodes[host].kind in ("node", "cluster") and self.nodes[host].inside == node.inside
            if free and beside:
                found[node.id] = host
        return found

    def level(self, cluster: str | None) -> _Part:
        """What is in a cluster, or in none, arranged."""
        things = self._things(cluster)
        numbers = [n for n in self.of_level.get(cluster, ()) if not self._is_aside(self.edges[n])]
        parts = []
        for group in _connected(len(things.items), [self._ends(n, things) for n in numbers]):
            within = set(group)
            parts.append(self._component(things, group, [n for n in numbers if self._ends(n, things)[0] in within]))
        return _beside(parts, max([WIDEST, *(part.width for part in parts)]) if cluster is None else float("inf"))

    def _is_aside(self, edge: Edge) -> bool:
        return self.hosts.get(edge.target) == edge.source

    def _ends(self, number: int, things: _Things) -> tuple[int, int]:
        edge = self.edges[number]
        return things.number[edge.source], things.number[edge.target]

    def _things(self, cluster: str | None) -> _Things:
        """The items of a level: those with the start first, so that nothing is left of it."""
        things = _Things()
        handlers = {host: handler for handler, host in self.hosts.items()}
        for node in sorted(self.inside.get(cluster, ()), key=lambda node: node.kind != "start"):
            if node.id not in self.hosts:
                item, part = self._cluster(node) if node.kind == "cluster" else self._single(node)
                if node.id in handlers:
                    item, part = self._with_handler(item, part, self.nodes[handlers[node.id]])
                things.add(item, part)
        return things

    def _single(self, node: Node) -> tuple[Item, _Part]:
        width, height = self._size(node)
        part = _Part(width, height, {node.id: Box(node.id, -width / 2, 0, width, height)})
        return Item(width / 2, width / 2, height), part

    def _with_handler(self, item: Item, part: _Part, handler: Node) -> tuple[Item, _Part]:
        """A node or cluster with its handler at its right."""
        other = self._size(handler)
        height = max(item.height, other.height)
        number = next(n for n, edge in enumerate(self.edges) if edge.target == handler.id)
        label = label_size(self.edges[number].label)
        start = item.right
        end = start + ASIDE + label.width
        part = part.moved(0, (height - item.height) / 2)
        part.boxes[handler.id] = Box(handler.id, end, (height - other.height) / 2, *other)
        xs = (start, start + (end - start) / 3, end - (end - start) / 3, end)
        label_at = ((start + end) / 2 - 4, height / 2) if label.width else None
        part.routes[number] = Route(self.edges[number], tuple((x, height / 2) for x in xs), label_at)
        return replace(item, right=end + other.width, height=height), part

    def _cluster(self, cluster: Node) -> tuple[Item, _Part]:
        """A nested graph with its border and title, as one item whose axis goes through its start."""
        inner = self.level(cluster.id)
        starts, ends = self._gates(cluster, inner, "start"), self._gates(cluster, inner, "end")
        title = title_size(cluster).width
        entry = min((box.middle[0] for box in starts), default=title + INSET)
        indent = max(INSET, title + INSET + 10 - entry)  # no edge leads through the title
        axis = indent + entry
        width = max(indent + inner.width, title + INSET) + INSET
        width = max(width, 2 * axis) if indent > INSET else width  # as much on the other side
        height = inner.height + TITLE + INSET
        part = inner.moved(indent - axis, TITLE)
        part.clusters = {cluster.id: Box(cluster.id, -axis, 0, width, height), **part.clusters}
        below = indent + ends[0].middle[0] - axis if ends else 0.0
        return Item(axis, width - axis, height, 0.0, below), part

    def _gates(self, cluster: Node, inner: _Part, kind: str) -> list[Box]:
        """Where edges come in, or go out."""
        found = [key for key in inner.boxes if self.nodes[key].kind == kind]
        own = [key for key in found if self.nodes[key].inside == cluster.id]
        return [inner.boxes[key] for key in own or found]

    def _component(self, things: _Things, group: list[int], numbers: list[int]) -> _Part:
        """Items that hang together, arranged."""
        links = self._links(things, group, numbers)
        parts = [things.parts[item] for item in group]
        first, last = self._alone(parts, "start"), self._alone(parts, "end")
        grid = build([things.items[item] for item in group], links, first, last)
        spots = [part.clusters | part.boxes for part in parts]
        arrange_rows(grid, lambda: enclosed(grid, links, spots))
        besides = gather(grid, links, choose_sides(grid, links, spots))
        make_turns(grid, links, besides)
        x = columns(grid, *_to_align(grid, links), len(group), _gap(len(group)))
        part = _Part()
        for item, piece in enumerate(parts):
            part.take(piece.moved(x[item], 0))
        sheet = Sheet(grid, links, x, self.nodes, part.boxes | part.clusters, besides)
        rows = row_tops(sheet, ports(sheet))
        for item, piece in enumerate(parts):
            row = grid.row[item]
            height = grid.items[item].height
            slack = 0.0 if height > TALL else rows.bottom[row] - rows.top[row] - height
            part.take(piece.moved(x[item], rows.top[row] + slack / 2))
        sheet.boxes.update(part.boxes | part.clusters)
        found = ports(sheet)
        loops = self_routes(sheet)
        for n, number in enumerate(numbers):
            part.routes[number] = loops[n] if n in loops else route(sheet, n, found, rows)
        left = min(x[cell] - grid.items[cell].left for cell in range(len(x)))
        part.width = max(x[cell] + grid.items[cell].right for cell in range(len(x))) - left
        part.height = rows.bottom[-1]
        return part.moved(-left, 0)

    def _links(self, things: _Things, group: list[int], numbers: list[int]) -> list[Link]:
        local = {item: n for n, item in enumerate(group)}
        found = []
        for number in numbers:
            edge, (source, target) = self.edges[number], self._ends(number, things)
            found.append(Link(edge, local[source], local[target], label_size(edge.label)))
        return found

    def _alone(self, parts: Iterable[_Part], kind: str) -> int | None:
        """The item that is the start, or the end."""
        for number, part in enumerate(parts):
            if not part.clusters and any(self.nodes[key].kind == kind for key in part.boxes):
                return number
        return None


def _common(edge: Edge, above: Mapping[str, str | None]) -> str | None:
    """The innermost cluster that both ends of an edge are in."""
    around: set[str | None] = set()
    place: str | None = above[edge.source]
    while place is not None:
        around.add(place)
        place = above[place]
    place = above[edge.target]
    while place is not None and place not in around:
        place = above[place]
    return place


def _connected(count: int, pairs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The numbers that hang together, in their order."""
    near: list[list[int]] = [[] for _ in range(count)]
    for one, other in pairs:
        near[one].append(other)
        near[other].append(one)
    found: list[list[int]] = []
    seen: set[int] = set()
    for number in range(count):
        if number in seen:
            continue
        seen.add(number)
        group = [number]
        for member in group:
            fresh = dict.fromkeys(other for other in near[member] if other not in seen)
            seen.update(fresh)
            group.extend(fresh)
        found.append(sorted(group))
    return found


def _to_align(grid: Grid, links: Sequence[Link]) -> tuple[list[list[int]], list[list[int]]]:
    """The neighbours of each cell that it is to stand in line with: the next node rather than a long edge."""
    above: list[list[int]] = [[] for _ in grid.row]
    below: list[list[int]] = [[] for _ in grid.row]
    short = [link for link in links if link.span == 1]
    leads, led_to = {link.cells[0] for link in short}, {link.cells[-1] for link in short}
    for link in links:
        start = 1 if link.span > 1 and link.cells[0] in leads else 0
        end = len(link.cells) - (1 if link.span > 1 and link.cells[-1] in led_to else 0)
        for upper, lower in pairwise(link.cells[start:end]):
            below[upper].append(lower)
            above[lower].append(upper)
    return above, below


def _gap(real: int) -> Callable[[int, int], float]:
    """How far apart two neighbours in a row are: more if they stand for nodes."""
    return lambda left, right: (12.0, 18.0, 32.0)[(left < real) + (right < real)]
