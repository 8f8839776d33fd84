"""Turns a GraphModel into a drawing in plain characters, for terminals and logs. Reads nothing from
a graph."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from itertools import pairwise
from shutil import get_terminal_size
from textwrap import wrap
from typing import NamedTuple

from .fold import fold
from .group import group
from .labels import MANY, edge_text, label_lines, list_stops, traits
from .layout.cells import CellSizes, TooWideError, arrange_cells
from .layout.geometry import Box, Point, Route
from .layout.measure import Size, one_line
from .model import GraphEdge, GraphModel, GraphNode
from .nesting import lift_edges

WIDEST = 100
"""The default number of columns."""
NARROWEST = 20
LONGEST_LABEL = 24
LONGEST_NAME = 50

N, E, S, W, DASHED = 1, 2, 4, 8, 16
TIPS = (N, S, W, E)
"""The directions of `Pen.arrows`."""
UNFRAMED = ("start", "end", "join", "unknown")


class Pen(NamedTuple):
    """The characters to draw with.

    Attributes:
        lines: the characters, by the sum of a line's directions in a cell (N, E, S, W) and DASHED.
        border: the border of a box: its four corners, horizontal, vertical. `bold` is the border of
            a graph as a node, `dashed` that of a deferred node.
        arrows: arrowheads: up, down, left, right.
    """

    lines: dict[int, str]
    border: str
    bold: str
    dashed: str
    arrows: str
    many: str


def _pen(corners: str, solid: str, broken: str, **rest: str) -> Pen:
    bends = {N + E: corners[2], N + W: corners[3], S + E: corners[0], S + W: corners[1]}
    bends |= {key + DASHED: mark for key, mark in bends.items()}
    lines: dict[int, str] = {}
    for marks, extra in ((solid, 0), (broken, DASHED)):
        lines |= {E + W + extra: marks[0], N + S + extra: marks[1], N + E + S + W + extra: marks[2]}
    return Pen(bends | lines, **rest)


ASCII = _pen(
    "++++", "-||", ".::", border="++++-|", bold="####=#", dashed="++++.:", arrows="^v<>", many="xn"
)
UNICODE = _pen(
    "┌┐└┘", "─│┼", "┄┆┼", border="┌┐└┘─│", bold="╔╗╚╝═║", dashed="┌┐└┘┄┆", arrows="▲▼◀▶", many=MANY
)


def terminal_width() -> int:
    """Return the number of columns of the terminal; 100 if there is none."""
    return max(get_terminal_size((WIDEST, 24)).columns, NARROWEST)


def draw_ascii(model: GraphModel, *, unicode: bool = False, width: int = WIDEST) -> str:
    """Return the drawing in plain characters; equal models give the same text.

    Lines of `|` and `-` are always taken, those of `:` and `.` if something decides so; "xn" marks
    a `Send`, of which there may be many. A graph that is too wide is folded; if that is not enough,
    it is drawn as a list of arrows.

    Args:
        unicode: draw with line characters instead of ASCII ones.
        width: the maximum number of columns.

    Raises:
        ValueError: the width is less than 20.
    """
    if width < NARROWEST:
        raise ValueError(f"width must be an integer >= {NARROWEST}, got {width!r}")
    pen = UNICODE if unicode else ASCII
    lines = _try_drawing(model, pen, width)
    if lines is None:
        model, homes = fold(model)
        lines = _try_drawing(model, pen, width) if homes else None
    if lines is None:
        lines = [part for line in _list_arrows(model, pen) for part in _wrap(line, width)]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _try_drawing(model: GraphModel, pen: Pen, width: int) -> list[str] | None:
    try:
        return ["".join(row) for row in draw_rows(model, pen, width)]
    except TooWideError:
        return None


Row = list[str]
"""A list of cells; a wide character takes two cells, the second of them empty."""


def draw_rows(model: GraphModel, pen: Pen, widest: int) -> list[Row]:
    """Return the drawing as rows of cells.

    Raises:
        TooWideError: it is wider than `widest`.
    """
    lifted = _merge_loops(dict.fromkeys(lift_edges(model)), pen)
    model = GraphModel(model.name, model.node_records, lifted, model.clusters)
    labels = [_split_cells(_cut(_label(edge, pen), LONGEST_LABEL)) for edge in model.edge_records]
    texts = {
        node.id: [_split_cells(line) for line in (*_names(node), *_list_remarks(node))]
        for node in model.node_records
    }
    sizes = {node.id: _measure(node, texts[node.id]) for node in model.node_records}
    titles = {node.id: _split_cells(f" {_names(node)[0]} ") for node in model.clusters}
    sizes |= {key: Size(len(title) + 4, 2) for key, title in titles.items()}
    layout = arrange_cells(model, CellSizes(sizes, [len(label) for label in labels]), widest)
    canvas = _Canvas(pen)
    for cluster in model.clusters:
        canvas.draw_frame(layout.clusters[cluster.id], _border(cluster, pen), titles[cluster.id])
    for node in model.node_records:
        canvas.draw_node(node, layout.boxes[node.id], texts[node.id])
    for route, label in zip(layout.routes, labels, strict=True):
        canvas.draw_route(route, label)
    return canvas.rows()


# -- contents and sizes ----------------------------------------------------------------------------


def _merge_loops(edges: Iterable[GraphEdge], pen: Pen) -> Iterator[GraphEdge]:
    """Merge all edges from a node to itself into one, with all their labels; it is certain if one
    of them is."""
    edges = list(edges)
    yield from (edge for edge in edges if edge.source != edge.target)
    loops = group((edge.source, edge) for edge in edges if edge.source == edge.target)
    for node, mine in loops.items():
        label = " / ".join(filter(None, (_cut(_label(edge, pen), LONGEST_LABEL) for edge in mine)))
        certain = any(edge.certain for edge in mine)
        yield GraphEdge(node, node, "plain" if certain else "conditional", label)


def _label(edge: GraphEdge, pen: Pen) -> str:
    return one_line(edge_text(edge, pen.many))


def _names(node: GraphNode) -> list[str]:
    return [_cut(one_line(line), LONGEST_NAME) for line in label_lines(node)]


def _list_remarks(node: GraphNode) -> list[str]:
    """Return what a plain drawing says about a node below its name."""
    found = [trait for trait in traits(node) if trait in ("deferred", "unreached")]
    if node.handler:
        found.append("error handler")
    return found + list_stops(node)


def _measure(node: GraphNode, text: list[Row]) -> Size:
    """Return a node's size: ends and joins take one row, all others have a frame around their
    text."""
    width = max(map(len, text)) + 4
    return Size(width, 1 if node.kind in UNFRAMED else len(text) + 2)


def _border(node: GraphNode, pen: Pen) -> str:
    if node.kind == "subgraph":
        return pen.bold
    return pen.dashed if node.deferred else pen.border


# -- as a list -------------------------------------------------------------------------------------


def _list_arrows(
    model: GraphModel, pen: Pen, holder: str | None = None, indent: str = ""
) -> Iterator[str]:
    """Yield the drawing as a list: each node with its outgoing arrows and the graph inside it."""
    lines = {node.id: label_lines(node) for node in model.parts}
    names = {
        id: one_line(": ".join(filter(None, (first, " ".join(rest)))))
        for id, (first, *rest) in lines.items()
    }
    edges = dict.fromkeys(lift_edges(model))
    for node in model.levels.get(holder, ()):
        if node.kind == "end":
            continue
        remarks = ", ".join(_list_remarks(node))
        yield f"{indent}{names[node.id]}" + (f"  ({remarks})" if remarks else "")
        for edge in edges:
            if edge.source == node.id:
                level = pen.lines[E + W + (0 if edge.certain else DASHED)]
                label = _label(edge, pen)
                arrow = f"{level * 2}{pen.arrows[3]} {names[edge.target]}"
                yield f"{indent}  {arrow}" + (f"  ({label})" if label else "")
        if node.kind == "cluster":
            yield f"{indent}  inside:"
            yield from _list_arrows(model, pen, node.id, indent + "    ")


def _wrap(line: str, width: int) -> list[str]:
    """Wrap a line to this many columns, with later lines indented further."""
    row = _split_cells(line)
    if len(row) <= width:
        return [line]
    indent = " " * min(len(line) - len(line.lstrip()) + 4, width // 2)
    # If some characters take two columns, assume that all do.
    columns = width if len(row) == len(line) else width // 2
    return wrap(indent[4:] + line.lstrip(), columns, subsequent_indent=indent)


# -- painting --------------------------------------------------------------------------------------


class _Canvas:
    """Characters on a grid of cells: texts, and lines that cross without touching."""

    def __init__(self, pen: Pen) -> None:
        self.pen = pen
        self.cells: dict[tuple[int, int], str] = {}
        self.lines: dict[tuple[int, int], int] = {}

    def put(self, x: float, y: float, row: Row) -> None:
        """Write a line of text."""
        self.cells |= {(int(x) + place, int(y)): cell for place, cell in enumerate(row)}

    def draw_frame(self, box: Box, border: str, title: Row) -> None:
        """Draw a border, with a title in its upper line."""
        inner = int(box.width) - 2
        level, upright = border[4], border[5]
        self.put(box.x, box.y, [border[0], *title, *level * (inner - len(title)), border[1]])
        for y in range(int(box.y) + 1, int(box.bottom) - 1):
            self.put(box.x, y, [upright])
            self.put(box.right - 1, y, [upright])
        self.put(box.x, box.bottom - 1, [border[2], *level * inner, border[3]])

    def draw_node(self, node: GraphNode, box: Box, text: list[Row]) -> None:
        """Draw a node's text, in brackets or in a frame."""
        inner = int(box.width) - 2
        if node.kind in UNFRAMED:
            marks = "<>" if node.kind == "unknown" else "()"
            self.put(box.x, box.y, [marks[0], *_centre(text[0], inner), marks[1]])
            return
        self.draw_frame(box, _border(node, self.pen), [])
        for place, row in enumerate(text, 1):
            self.put(box.x + 1, box.y + place, _centre(row, inner))

    def draw_route(self, route: Route, label: Row) -> None:
        """Draw a line with its arrowhead and its label."""
        style = 0 if route.edge.certain else DASHED
        path = _list_cells(route.points)
        for before, here, after in zip(path, path[1:], path[2:], strict=False):
            self._add(here, _direction(here, before) | _direction(here, after), style)
        way = _direction(path[-2], path[-1])
        self._add(path[0], _direction(path[1], path[0]) | _direction(path[0], path[1]), style)
        self.put(*path[-1], [self.pen.arrows[TIPS.index(way)]])
        if route.label_at:
            self.put(*route.label_at, label)

    def _add(self, place: tuple[int, int], way: int, style: int) -> None:
        # Where lines cross, the vertical one decides the style.
        known = self.lines.get(place, 0)
        if known & N and way & ~(N + S):
            style = known & DASHED
        self.lines[place] = (known | way) & ~DASHED | style

    def rows(self) -> list[Row]:
        """Return all cells, in rows of equal length."""
        drawn = {place: self.pen.lines[way] for place, way in self.lines.items()} | self.cells
        width, height = (max((p[axis] for p in drawn), default=-1) + 1 for axis in (0, 1))
        return [[drawn.get((x, y), " ") for x in range(width)] for y in range(height)]


def _list_cells(corners: Iterable[Point]) -> list[tuple[int, int]]:
    """Return every cell of a line, from one end to the other."""
    points = [(int(x), int(y)) for x, y in corners]
    cells = points[:1]
    for (x, y), (to_x, to_y) in pairwise(points):
        length = max(abs(to_x - x), abs(to_y - y))
        dx, dy = (to_x > x) - (to_x < x), (to_y > y) - (to_y < y)
        cells += [(x + dx * step, y + dy * step) for step in range(1, length + 1)]
    return cells


def _direction(here: tuple[int, int], there: tuple[int, int]) -> int:
    """Return the direction of a neighbouring cell."""
    if there[1] != here[1]:
        return S if there[1] > here[1] else N
    return E if there[0] > here[0] else W


# -- text ------------------------------------------------------------------------------------------


def _split_cells(text: str) -> Row:
    """Split text into terminal cells: wide characters take two, combining marks none of their
    own."""
    row: Row = []
    for character in text:
        if unicodedata.combining(character) and row:
            row[-1] += character
        else:
            row += (
                [character, ""] if unicodedata.east_asian_width(character) in "WF" else [character]
            )
    return row


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 2] + ".."


def _centre(row: Row, width: int) -> Row:
    left = (width - len(row)) // 2
    return [*" " * left, *row, *" " * (width - len(row) - left)]
