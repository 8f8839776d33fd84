"""A Shape → a drawing in plain characters, for terminals and logs. Nothing is read from a graph here."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Final, NamedTuple

from .layout.grid import SOFT
from .layout.measure import one_line
from .levels import lifted
from .shape import Edge, Node, Shape
from .text_grid import Bend, Grid, Key, Link, TooWideError, arrange_text, bends
from .words import MANY, edge_text, traits

WIDEST: Final = 100
"""Columns. What is wider is told as a list of arrows instead."""
LONGEST_LABEL: Final = 24
LONGEST_NAME: Final = 50

N, E, S, W, DASHED = 1, 2, 4, 8, 16


class Pen(NamedTuple):
    """The characters to draw with.

    Attributes:
        lines: by the directions that a line goes to from a cell, N + E + S + W, and DASHED.
        border: of a box: the four corners, level, upright. `bold` that of a graph as a node, `dashed` of a deferred.
        arrows: tips: up, down, left, right.
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


ASCII: Final = _pen(
    "++++", "-||", ".::", border="++++-|", bold="####=#", dashed="++++.:", arrows="^v<>", many="xn"
)
UNICODE: Final = _pen(
    "┌┐└┘", "─│┼", "┄┆┼", border="┌┐└┘─│", bold="╔╗╚╝═║", dashed="┌┐└┘┄┆", arrows="▲▼◀▶", many=MANY
)


def draw_ascii(shape: Shape, *, unicode: bool = False) -> str:
    """The drawing in plain characters; equal shapes give the same text.

    Lines of `|` and `-` are always taken, those of `:` and `.` if something decides so; "xn" marks a `Send`, of which
    there may be many. A graph that is wider than 100 columns is told as a list of arrows.

    Args:
        unicode: draw with line characters instead of ASCII ones.
    """
    pen = UNICODE if unicode else ASCII
    picture = _Picture(shape, pen)
    try:
        lines = ["".join(row) for row in picture.rows(None)]
    except TooWideError:
        lines = list(picture.listed(None))
    return "".join(f"{line.rstrip()}\n" for line in lines)


Row = list[str]
"""One cell each; a wide character takes two cells, the second of them empty."""


class _Picture:
    """Draws the graphs of a Shape, inner ones first, each as a block of rows."""

    def __init__(self, shape: Shape, pen: Pen, widest: int = WIDEST) -> None:
        self.pen = pen
        self.widest = widest
        self.nodes = {node.id: node for node in (*shape.nodes, *shape.clusters)}
        self.edges = list(dict.fromkeys(lifted(shape)))

    def rows(self, holder: str | None) -> list[Row]:
        """The graph inside a cluster, or the one at the top.

        Raises:
            TooWideError: it is wider than `widest`.
        """
        nodes = [node for node in self.nodes.values() if node.inside == holder]
        names = {node.id for node in nodes}
        edges = [edge for edge in self.edges if edge.source in names and edge.target in names]
        labels = [_cut(one_line(edge_text(edge, self.pen.many)), LONGEST_LABEL) for edge in edges]
        inner = {node.id: self._inner(node) for node in nodes}
        pairs = zip(edges, labels, strict=True)
        links = [Link(e.source, e.target, len(_cells(text)), e.kind in SOFT) for e, text in pairs]
        last = next((node.id for node in nodes if node.kind == "end"), None)
        widths = {node.id: len(self._block(node, inner[node.id])[0]) for node in nodes}
        loops = _loops(edges, labels)
        hang = {name: len(_cells(label)) + 5 for name, (_, label) in loops.items()}
        grid = arrange_text(widths, links, hang, last, self.widest)
        blocks = {node.id: self._block(node, inner[node.id], grid.widths[node.id]) for node in nodes}
        rows = _painted(grid, blocks, list(zip(edges, labels, strict=True)), loops, self.pen)
        if any(len(row) > self.widest for row in rows):
            raise TooWideError
        return rows

    def _inner(self, node: Node) -> list[Row]:
        """What stands inside a node's frame."""
        if node.kind == "cluster":
            return self.rows(node.id)
        return [_cells(text) for text in (_cut(one_line(node.label), LONGEST_NAME), *_remarks(node))]

    def _block(self, node: Node, inner: list[Row], width: int = 0) -> list[Row]:
        """A node as rows of equal length, at least `width`: one for ends and joins, a frame around all others."""
        if node.kind in ("start", "end", "join", "unknown"):
            marks = "<>" if node.kind == "unknown" else "()"
            return [[marks[0], *_centred(inner[0], max(width - 2, len(inner[0]) + 2)), marks[1]]]
        pen = self.pen
        border = pen.bold if node.kind == "subgraph" else pen.dashed if node.deferred else pen.border
        title = _cells(f" {_cut(one_line(node.label), LONGEST_NAME)} ") if node.kind == "cluster" else []
        wide = max(width - 2, len(title) + 2, *(len(row) + 2 for row in inner))
        rows = [[border[5], *_centred(row, wide), border[5]] for row in inner]
        head = [*title, *border[4] * (wide - len(title))]
        return [[border[0], *head, border[1]], *rows, [border[2], *border[4] * wide, border[3]]]

    def listed(self, holder: str | None, indent: str = "") -> Iterator[str]:
        """The same as a list: each node with the arrows that leave it, and with the graph inside it."""
        for node in self.nodes.values():
            if node.inside == holder and node.kind != "end":
                remarks = ", ".join(_remarks(node))
                yield f"{indent}{one_line(node.label)}{f'  ({remarks})' if remarks else ''}"
                yield from (f"{indent}  {self._arrow(edge)}" for edge in self.edges if edge.source == node.id)
                if node.kind == "cluster":
                    yield f"{indent}  inside:"
                    yield from self.listed(node.id, indent + "    ")

    def _arrow(self, edge: Edge) -> str:
        level = self.pen.lines[E + W + (0 if edge.certain else DASHED)]
        label = one_line(edge_text(edge, self.pen.many))
        end = one_line(self.nodes[edge.target].label)
        return f"{level * 2}{self.pen.arrows[3]} {end}{f'  ({label})' if label else ''}"


def _remarks(node: Node) -> list[str]:
    """What a plain drawing says of a node below its name."""
    found = [trait for trait in traits(node) if trait in ("deferred", "unreached")]
    stops = " and ".join(word for word, on in (("before", node.before), ("after", node.after)) if on)
    return [*found, *(["error handler"] if node.handler else ()), *([f"stops {stops}"] if stops else ())]


def _loops(edges: list[Edge], labels: list[str]) -> dict[str, tuple[bool, str]]:
    """Of each node that leads to itself: whether it always does, and the labels."""
    found: dict[str, tuple[bool, str]] = {}
    for edge, label in zip(edges, labels, strict=True):
        if edge.source == edge.target:
            certain, known = found.get(edge.source, (False, ""))
            found[edge.source] = certain or edge.certain, " / ".join(filter(None, (known, label)))
    return found


# -- painting -------------------------------------------------------------------------------------------------


def _painted(
    grid: Grid,
    blocks: dict[str, list[Row]],
    edges: list[tuple[Edge, str]],
    loops: dict[str, tuple[bool, str]],
    pen: Pen,
) -> list[Row]:
    """The blocks and lines of one level, each where the grid says."""
    canvas = _Canvas(pen)
    y = 0
    for layer, steps in zip(grid.layers, grid.gaps, strict=True):
        ways, gap = bends(grid, steps)
        feet: dict[Key, int] = {key: y + len(blocks[key]) for key in layer if isinstance(key, str)}
        below = max(feet.values(), default=y + 1)
        for key in layer:
            if isinstance(key, str):
                canvas.put(grid.at[key], y, blocks[key])
                if key in loops:
                    canvas.loop((grid.at[key] + grid.widths[key], y), len(blocks[key]), *loops[key])
            else:
                canvas.line(grid.at[key], y, below, edges[key[0]][0].certain)
        for bend in ways:
            edge, label = edges[bend.link]
            canvas.bend(bend, (feet.get(bend.upper, below), below, below + gap), edge.certain)
            canvas.tip(bend, (feet.get(bend.upper, below), below + gap - 1), label)
        y = below + gap
    return canvas.rows()


class _Canvas:
    """Characters on a grid of cells: texts, and lines that cross without touching."""

    def __init__(self, pen: Pen) -> None:
        self.pen = pen
        self.cells: dict[tuple[int, int], str] = {}
        self.lines: dict[tuple[int, int], int] = {}

    def put(self, x: int, y: int, rows: list[Row]) -> None:
        """A block of text."""
        self.cells |= {(x + right, y + down): c for down, row in enumerate(rows) for right, c in enumerate(row)}

    def line(self, x: int, top: int, end: int, solid: bool) -> None:
        """A line down a column, in rows `top` to `end` - 1."""
        for y in range(top, end):
            self._add(x, y, N + S, solid)

    def bend(self, bend: Bend, rows: tuple[int, int, int], solid: bool) -> None:
        """A line from a block's foot through a gap; `rows` are the foot, the gap's first row, and the row below it."""
        y, first, end = rows
        for x, to, row in bend.runs:
            self.line(x, y, first + row, solid)
            there, back = (E, W) if to > x else (W, E)
            self._add(x, first + row, N + there, solid)
            for between in range(min(x, to) + 1, max(x, to)):
                self._add(between, first + row, E + W, solid)
            self._add(to, first + row, back + S, solid)
            y = first + row + 1
        self.line(bend.to, y, end, solid)

    def tip(self, bend: Bend, rows: tuple[int, int], label: str) -> None:
        """The arrow's tip, if it is here, with the label beside it."""
        for here, x, y, mark in zip((bend.up, bend.down), (bend.x, bend.to), rows, self.pen.arrows, strict=False):
            if here:
                self.put(x, y, [[mark, *([" ", *_cells(label)] if label else ())]])

    def loop(self, corner: tuple[int, int], height: int, solid: bool, label: str) -> None:
        """A line from a block's foot to its head, at its right side; `corner` is the cell beside its head."""
        (x, y), style = corner, 0 if solid else DASHED
        upright, level, tip = self.pen.lines[N + S + style], self.pen.lines[E + W + style], self.pen.arrows[2]
        if height < 3:
            self.put(x, y, [[tip, level, level, " ", *_cells(label)]])
            return
        self.put(x, y, [[tip, level, self.pen.lines[S + W]]])
        for row in range(y + 1, y + height - 1):
            self.put(x + 2, row, [[upright]])
        self.put(x + 4, y + 1, [_cells(label)])
        self.put(x, y + height - 1, [[level, level, self.pen.lines[N + W]]])

    def _add(self, x: int, y: int, way: int, solid: bool) -> None:
        # Where lines cross the upright one decides the style.
        known = self.lines.get((x, y), 0)
        dashed = known & DASHED if known & N and way & ~(N + S) else 0 if solid else DASHED
        self.lines[x, y] = (known | way) & ~DASHED | dashed

    def rows(self) -> list[Row]:
        """All cells, in rows of equal length."""
        drawn = {place: self.pen.lines[way] for place, way in self.lines.items()} | self.cells
        wide, high = (max((place[axis] for place in drawn), default=-1) + 1 for axis in (0, 1))
        return [[drawn.get((x, y), " ") for x in range(wide)] for y in range(high)]


# -- text -----------------------------------------------------------------------------------------------------


def _cells(text: str) -> Row:
    """One item per cell of a terminal: wide characters take two, marks that combine none of their own."""
    row: Row = []
    for character in text:
        if unicodedata.combining(character) and row:
            row[-1] += character
        else:
            row += [character, ""] if unicodedata.east_asian_width(character) in "WF" else [character]
    return row


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 2] + ".."


def _centred(row: Row, width: int) -> Row:
    left = (width - len(row)) // 2
    return [*" " * left, *row, *" " * (width - len(row) - left)]
