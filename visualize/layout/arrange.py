"""The layout algorithm that all our drawings share, after Sugiyama: layers from top to bottom.

Each nested graph is laid out separately, inner ones first; in the enclosing graph it is a single
large node. The nodes of a graph fall into connected components; each gets a grid of rows (`grid`,
`layers`), an order in each row (`order`) and columns (`columns`). Sizes and the paths of edges
differ between px (`pixels`) and character cells (`cells`), which subclass `Arranger`. The same
model always gives the same layout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

import networkx

from ..group import group
from ..model import GraphEdge, GraphModel, GraphNode
from .columns import assign_columns
from .geometry import Box, GraphLayout, Route
from .grid import Grid, GridItem, GridLink, build_grid, list_next
from .measure import Size
from .order import order_rows


@dataclass(slots=True)
class Piece:
    """A part of the drawing with its layout, relative to its own top left corner: the boxes of
    nodes and clusters, outer ones first, and routes by edge number."""

    width: float = 0.0
    height: float = 0.0
    boxes: dict[str, Box] = field(default_factory=dict)
    routes: dict[int, Route] = field(default_factory=dict)

    def move(self, dx: float, dy: float) -> Piece:
        """Return the same piece, further right and down."""
        boxes = {key: box.move(dx, dy) for key, box in self.boxes.items()}
        routes = {number: route.move(dx, dy) for number, route in self.routes.items()}
        return Piece(self.width, self.height, boxes, routes)

    def add(self, other: Piece) -> None:
        """Add the contents of another piece; the size stays."""
        self.boxes.update(other.boxes)
        self.routes.update(other.routes)


@dataclass(slots=True)
class Component:
    """Connected items of one level.

    Attributes:
        pieces: what is in each item, around its axis.
        numbers: the number of each link's edge.
        x: the x of each cell's axis, once the columns are known.
    """

    grid: Grid
    links: list[GridLink]
    pieces: list[Piece]
    numbers: list[int]
    x: list[float] = field(default_factory=list)

    def place(self, tops: Sequence[float]) -> Piece:
        """Return all items in their columns; `tops` is the y of each."""
        whole = Piece()
        for piece, x, y in zip(self.pieces, self.x, tops, strict=False):
            whole.add(piece.move(x, y))
        return whole


class Arranger(ABC):
    """Computes the layout of a model; subclasses know the sizes and the paths of edges.

    Attributes:
        margin: the space around the drawing.
        between: the distance between components.
        widest: the width beyond which components begin a new line.

    Raises:
        ValueError: an end of an edge is not a node of the model.
    """

    margin: ClassVar[float]
    between: ClassVar[float]
    widest: float

    def __init__(self, model: GraphModel) -> None:
        self.model = model
        self.edges: tuple[GraphEdge, ...] = model.edge_records
        self.nodes: dict[str, GraphNode] = {node.id: node for node in model.parts}
        for edge in self.edges:
            if missing := {edge.source, edge.target} - self.nodes.keys():
                raise ValueError(
                    f"the edge {edge.source!r} -> {edge.target!r} needs a node {min(missing)!r} "
                    "in the model"
                )
        holders = {node.id: node.inside for node in self.nodes.values()}
        self.level_edges: dict[str | None, list[int]] = group(
            (_find_common_holder(edge, holders), number) for number, edge in enumerate(self.edges)
        )

    # -- implemented by subclasses -----------------------------------------------------------------

    @abstractmethod
    def build_items(self, nodes: Iterable[GraphNode]) -> Iterable[tuple[GridItem, Piece]]:
        """Return the items for the nodes and clusters of one level, each with its contents."""

    @abstractmethod
    def measure_label(self, edge: GraphEdge) -> Size:
        """Return the size of an edge's label if it takes a row of its own, or else zero."""

    @abstractmethod
    def finish(self, component: Component) -> Piece:
        """Return a component, whose rows are in order, with its columns, routes and height."""

    def count_flaws(self, component: Component) -> int:
        """Return how many flaws other than crossings the order of the rows has."""
        return 0

    # -- shared by subclasses ----------------------------------------------------------------------

    def arrange(self) -> GraphLayout:
        """Return the layout of all nodes, clusters and edges."""
        piece = self.arrange_level(None)
        moved = piece.move(self.margin, self.margin)
        return GraphLayout(
            piece.width + 2 * self.margin,
            piece.height + 2 * self.margin,
            {node.id: moved.boxes[node.id] for node in self.model.node_records},
            {cluster.id: moved.boxes[cluster.id] for cluster in self.model.clusters},
            tuple(moved.routes[number] for number in range(len(self.edges))),
        )

    def arrange_level(self, cluster: str | None) -> Piece:
        """Return the layout of the contents of a cluster, or of the top level."""
        # The start comes first, so that nothing is left of it.
        parts = sorted(self.model.levels.get(cluster, ()), key=lambda node: node.kind != "start")
        built = list(self.build_items(parts))
        home = {id: number for number, (_, piece) in enumerate(built) for id in piece.boxes}
        routed = {number for _, piece in built for number in piece.routes}
        ends = {
            number: (home[self.edges[number].source], home[self.edges[number].target])
            for number in self.level_edges.get(cluster, ())
            if number not in routed
        }
        pieces = [
            self._arrange_component(self._build_component(built, members, ends))
            for members in _find_connected(len(built), ends.values())
        ]
        widest = float("inf")
        if cluster is None:
            widest = max([self.widest, *(piece.width for piece in pieces)])
        return self._pack(pieces, widest)

    def _build_component(
        self,
        built: Sequence[tuple[GridItem, Piece]],
        members: list[int],
        ends: Mapping[int, tuple[int, int]],
    ) -> Component:
        """Return the grid of connected items; `ends` has the items of each edge, by number."""
        local = {item: number for number, item in enumerate(members)}
        mine = [number for number, (source, _) in ends.items() if source in local]
        links = []
        for number in mine:
            edge, (source, target) = self.edges[number], ends[number]
            links.append(GridLink(edge, local[source], local[target], self.measure_label(edge)))
        pieces = [built[item][1] for item in members]
        first, last = self._find_alone(pieces, "start"), self._find_alone(pieces, "end")
        grid = build_grid([built[item][0] for item in members], links, first, last)
        return Component(grid, links, pieces, mine)

    def _arrange_component(self, component: Component) -> Piece:
        grid = component.grid
        order_rows(grid, lambda: self.count_flaws(component))
        piece = self.finish(component)
        extents = list(zip(component.x, grid.items, strict=True))
        left = min(x - item.left for x, item in extents)
        piece.width = max(x + item.right for x, item in extents) - left
        return piece.move(-left, 0)

    def _find_alone(self, pieces: Iterable[Piece], kind: str) -> int | None:
        """Return the item that is the start, or the end."""
        kinds = [[self.nodes[id].kind for id in piece.boxes] for piece in pieces]
        return next((number for number, found in enumerate(kinds) if found == [kind]), None)

    def _pack(self, pieces: Sequence[Piece], widest: float) -> Piece:
        """Place pieces from left to right, in lines."""
        whole = Piece()
        x = y = line = 0.0
        for piece in pieces:
            if x and x + piece.width > widest:
                x, y, line = 0.0, y + line + self.between, 0.0
            whole.add(piece.move(x, y))
            line = max(line, piece.height)
            whole.width = max(whole.width, x + piece.width)
            whole.height = max(whole.height, y + piece.height)
            x += piece.width + self.between
        return whole


def align(component: Component, gap: Callable[[int, int], float]) -> list[float]:
    """Return the x of each cell; straightening an edge to the next layer takes precedence over a
    long edge.

    Args:
        gap: returns the minimum distance of two neighbouring cells.
    """
    grid = component.grid
    short = [link for link in component.links if link.span == 1]
    leads, led_to = {link.cells[0] for link in short}, {link.cells[-1] for link in short}
    steps: list[tuple[int, int]] = []
    for link in component.links:
        cells = link.cells
        if link.span > 1:
            cells = cells[cells[0] in leads : len(cells) - (cells[-1] in led_to)]
        steps += pairwise(cells)
    below = list_next(len(grid.row), steps)
    above = list_next(len(grid.row), ((lower, upper) for upper, lower in steps))
    return assign_columns(grid, above, below, len(component.pieces), gap)


def _find_common_holder(edge: GraphEdge, holders: Mapping[str, str | None]) -> str | None:
    """Return the innermost cluster that contains both ends of an edge."""
    around: set[str | None] = {None}
    holder = holders[edge.source]
    while holder is not None:
        around.add(holder)
        holder = holders[holder]
    holder = holders[edge.target]
    while holder not in around:
        holder = holders[holder or ""]
    return holder


def _find_connected(count: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Return the connected components, in order of their first numbers."""
    graph: networkx.Graph[int] = networkx.Graph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(pairs)
    return [sorted(members) for members in networkx.connected_components(graph)]
