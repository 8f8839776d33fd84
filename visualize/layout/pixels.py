"""The layout in px for SVG drawings: edges are smooth curves, loops go around at the sides, an
error handler is beside the only node that it handles, and labels have their own rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

from ...pregel.names import NS_END
from ..group import group
from ..model import Direction, GraphEdge, GraphModel, GraphNode
from .arrange import Arranger, Component, Piece, align
from .geometry import Box, GraphLayout, Route, wrap_columns
from .grid import GridItem
from .measure import Size, label_size, node_size, title_size
from .routes import (
    APART,
    APART_SEND,
    Sheet,
    choose_sides,
    count_enclosed,
    draw_loops,
    draw_route,
    gather_loops,
    make_turns,
    place_ports,
    place_rows,
)

ASIDE = 36.0  # from a node to its error handler
TALL = 60.0  # taller items are at the top of their row, others in the middle
INSET = 16.0  # from a cluster's border to its content
TITLE = 30.0  # the same at its top
MOST_ROOM = 280.0  # the most that a node is widened to for its edges
GAPS = (12.0, 18.0, 32.0)  # between neighbours in a row: two edges, edge and node, two nodes


def arrange(model: GraphModel, direction: Direction = "TB") -> GraphLayout:
    """Return the layout of a model, in px.

    Raises:
        ValueError: an end of an edge is not a node of the model.
    """
    arranger = PixelArranger(model, direction)
    layout = wrap_columns(arranger.arrange())
    return layout.turn() if arranger.across else layout


class PixelArranger(Arranger):
    """Computes a layout in px. For edges that lead to the right, all sizes have width and height
    exchanged, and so has the result."""

    margin: ClassVar[float] = 16.0
    between: ClassVar[float] = 40.0
    widest: float = 1200.0

    def __init__(self, model: GraphModel, direction: Direction = "TB") -> None:
        self.across: bool = direction == "LR"
        super().__init__(model)
        self.handlers: dict[str, str] = self._find_handlers()
        self.room: dict[str, float] = self._measure_ports()

    # -- items -------------------------------------------------------------------------------------

    def build_items(self, nodes: Iterable[GraphNode]) -> Iterator[tuple[GridItem, Piece]]:
        """Yield an item for each node or cluster, together with an error handler beside it."""
        aside = set(self.handlers.values())
        for node in nodes:
            if node.id not in aside:
                build = self._build_cluster if node.kind == "cluster" else self._build_node
                item, piece = build(node)
                if node.id in self.handlers:
                    item, piece = self._add_handler(item, piece, self.handlers[node.id])
                yield item, piece

    def _find_handlers(self) -> dict[str, str]:
        """Return the nodes that have an error handler of their own beside them: node → handler."""
        incoming = group((edge.target, edge) for edge in self.edges)
        outgoing = group((edge.source, edge.target) for edge in self.edges)
        found: dict[str, str] = {}
        for node in self.nodes.values():
            edges = incoming.get(node.id, [])
            if len(edges) != 1 or edges[0].kind != "error":
                continue
            host = self.nodes[edges[0].source]
            # A handler that leads back would cross the edge that leads to it.
            ends = outgoing.get(node.id, ())
            leads_back = any(f"{end}{NS_END}".startswith(host.id + NS_END) for end in ends)
            free = {host.id, node.id}.isdisjoint({*found, *found.values()})
            on_one_level = host.kind in ("node", "cluster") and host.inside == node.inside
            if host != node and on_one_level and free and not leads_back:
                found[host.id] = node.id
        return found

    def _measure_ports(self) -> dict[str, float]:
        """Return the width that each node needs for the edges at its top or bottom."""
        found: dict[tuple[str, bool], float] = {}
        pairs = {edge[:2] for edge in self.edges}
        for edge in self.edges:
            # Edges there and back meet each node on the same side.
            both = (edge.target, edge.source) in pairs
            begin = APART_SEND if edge.kind == "send" else APART
            for node, at_top, width in ((edge.target, True, APART), (edge.source, False, begin)):
                for top in (True, False) if both else (at_top,):
                    found[node, top] = min(MOST_ROOM, found.get((node, top), 0.0) + width)
        return {
            node: max(found.get((node, True), 0.0), found.get((node, False), 0.0))
            for node in self.nodes
        }

    def _measure_node(self, node: GraphNode) -> Size:
        width, height = self._turn(node_size(node))
        if node.kind in ("start", "end", "node", "subgraph"):
            width = max(width, self.room[node.id] + 16)
        return Size(width, height)

    def measure_label(self, edge: GraphEdge) -> Size:
        """Return the size of its text."""
        return self._turn(label_size(edge.label))

    def _turn(self, size: Size) -> Size:
        return Size(size.height, size.width) if self.across else size

    def _build_node(self, node: GraphNode) -> tuple[GridItem, Piece]:
        width, height = self._measure_node(node)
        piece = Piece(width, height, {node.id: Box(node.id, -width / 2, 0, width, height)})
        return GridItem(width / 2, width / 2, height), piece

    def _add_handler(self, item: GridItem, piece: Piece, handler: str) -> tuple[GridItem, Piece]:
        """Place a handler to the right of its node or cluster."""
        size = self._measure_node(self.nodes[handler])
        height = max(item.height, size.height)
        number = next(n for n, edge in enumerate(self.edges) if edge.target == handler)
        edge = self.edges[number]
        label = self.measure_label(edge)
        start, end = item.right, item.right + ASIDE + label.width
        piece = piece.move(0, (height - item.height) / 2)
        piece.boxes[handler] = Box(handler, end, (height - size.height) / 2, *size)
        third = (end - start) / 3
        points = tuple((x, height / 2) for x in (start, start + third, end - third, end))
        label_at = ((start + end) / 2 - 4, height / 2) if label.width else None
        piece.routes[number] = Route(edge, points, label_at)
        return replace(item, right=end + size.width, height=height), piece

    def _build_cluster(self, cluster: GraphNode) -> tuple[GridItem, Piece]:
        """Return a nested graph with its border and title: one item whose axis goes through its
        start."""
        inner = self.arrange_level(cluster.id)
        starts = self._find_gates(cluster, inner, "start")
        ends = self._find_gates(cluster, inner, "end")
        title = title_size(cluster).width
        entry = min((box.middle[0] for box in starts), default=title + INSET)
        if self.across:
            inner.height = max(inner.height, title)
            top, indent, title = INSET, TITLE, 0.0
        else:
            # No edge leads through the title.
            top, indent = TITLE, max(INSET, title + INSET + 10 - entry)
        axis = indent + entry
        width = max(indent + inner.width, title + INSET) + INSET
        if indent > INSET and not self.across:
            width = max(width, 2 * axis)  # the same on the other side
        height = inner.height + top + INSET
        piece = inner.move(indent - axis, top)
        piece.boxes = {cluster.id: Box(cluster.id, -axis, 0, width, height), **piece.boxes}
        below = indent + ends[0].middle[0] - axis if ends else 0.0
        return GridItem(axis, width - axis, height, below), piece

    def _find_gates(self, cluster: GraphNode, inner: Piece, kind: str) -> list[Box]:
        """Return the boxes where edges enter, or leave."""
        found = [key for key in inner.boxes if self.nodes[key].kind == kind]
        own = [key for key in found if self.nodes[key].inside == cluster.id]
        return [inner.boxes[key] for key in own or found]

    # -- columns, rows and routes ------------------------------------------------------------------

    def count_flaws(self, component: Component) -> int:
        """Return how many ends of loops cannot meet their nodes at a side."""
        return count_enclosed(component)

    def finish(self, component: Component) -> Piece:
        """Give loops cells where they turn; then place the rows, further apart the further the
        edges between them go sideways."""
        grid, real = component.grid, len(component.pieces)
        besides = gather_loops(component, choose_sides(component))
        make_turns(component, besides)
        component.x = align(component, lambda left, right: GAPS[(left < real) + (right < real)])
        boxes = component.place([0.0] * real).boxes
        sheet = Sheet(component, self.nodes, boxes, besides)
        rows = place_rows(sheet, place_ports(sheet))
        tops = []
        for row, item in zip(grid.row, grid.items[:real], strict=False):
            slack = rows.bottom[row] - rows.top[row] - item.height
            tops.append(rows.top[row] + (slack / 2 if item.height <= TALL else 0.0))
        piece = component.place(tops)
        piece.height = rows.bottom[-1]
        sheet.boxes.update(piece.boxes)
        ports = place_ports(sheet)
        loops = draw_loops(sheet)
        for place, number in enumerate(component.numbers):
            piece.routes[number] = loops.get(place) or draw_route(sheet, place, ports, rows)
        return piece
