"""Turns a GraphModel and its GraphLayout into one self-contained SVG text. The layout is decided
elsewhere, the colours in `theme`.

Other pages may restyle it: each node is `<g class="node …" data-node="ID">`, each cluster `<g
class="cluster" data-node="ID">`, each edge `<g class="edge KIND" data-source="ID" data-target="ID"
data-kind="KIND">`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Literal, NamedTuple, get_args

from .fold import fit
from .group import group
from .labels import ANY_NODE, MANY, drop_illegal, notes, tell_edge, tell_trait, traits, visible
from .layout.geometry import Box, GraphLayout, Point, Route
from .layout.measure import (
    FONT,
    LABEL_LINE,
    LINE_HEIGHT,
    LONGEST_LABEL,
    MARK,
    SMALL,
    fit_lines,
    fit_text,
    label_size,
    text_width,
    wrap_text,
)
from .model import GraphModel, GraphNode
from .theme import FONTS, LIGHT, Theme, style_sheet

State = Literal["waiting", "running", "done", "failed", "paused"]

ANYWHERE = (
    "any node, or END: the router does not say; give it a path map or a Literal return annotation"
)
MISSING = "there is no such node yet"
UNREACHED = "nothing declared leads here: it runs only if a Command or a Send names it"

LONGEST_BADGE = 80.0
BOLD = 1.08  # how much wider bold text is


class Mark(NamedTuple):
    """The state of a node in a run.

    Attributes:
        state: its colour.
        text: a short note at its corner, such as "3/200".
    """

    state: State
    text: str = ""


URGENT: tuple[State, ...] = ("failed", "paused", "running", "done", "waiting")
"""The states in order of priority, for nodes that are drawn as one."""


def fold_marks(marks: Mapping[str, Mark], homes: Mapping[str, str]) -> dict[str, Mark]:
    """Return the marks of nodes that are drawn as one (see `fold`): the most urgent state, and how
    many nodes are in it or done."""
    members = group((home, marks[id]) for id, home in homes.items() if id in marks)
    sizes = Counter(homes.values())
    found = {id: mark for id, mark in marks.items() if id not in homes}
    for home, mine in members.items():
        states = Counter(mark.state for mark in mine)
        worst = min(states, key=URGENT.index)
        text = f"{states['done']:,}/{sizes[home]:,}"
        if worst in ("failed", "paused"):
            text = count_of(states[worst], sizes[home], worst)
        found[home] = Mark(worst, text if worst != "waiting" else "")
    return found


def count_of(count: int, all_of_them: int, state: str) -> str:
    """Return how many are in a state, in words that fit a badge."""
    words = f"{count:,} of {all_of_them:,} {state}"
    return words if text_width(words, SMALL) <= LONGEST_BADGE else f"{count:,} {state}"


def draw_svg(
    model: GraphModel,
    layout: GraphLayout | None = None,
    *,
    theme: Theme = "auto",
    marks: Mapping[str, Mark] | None = None,
) -> str:
    """Return the drawing as one SVG text; equal arguments give the same text.

    Args:
        layout: the layout. If it is None, it is computed, and a graph that is too wide is folded.
        theme: `light`, `dark`, or `auto`, which follows the page that shows it.
        marks: the states of nodes and clusters in a run, by id. Ids that are not drawn are ignored.

    Raises:
        ValueError: there is no such theme, or no such state of a mark.
    """
    marks = marks or {}
    if layout is None:
        model, layout, homes = fit(model)
        marks = fold_marks(marks, homes)
    for id, mark in marks.items():
        if mark.state not in get_args(State):
            states = ", ".join(get_args(State))
            raise ValueError(f"the state of {id!r} must be one of {states}, got {mark.state!r}")
    nodes = {part.id: part for part in model.parts}
    style = style_sheet(theme)
    width, height = _number(layout.width), _number(layout.height)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="stategraph {style.name}" role="img" '
        f'aria-label="{_text(model.name or "graph")}" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" style="max-width:100%;height:auto" '
        f'font-family="{FONTS}" font-size="{_number(FONT)}" text-anchor="middle">',
        f"<style>\n{style.css}</style>",
        f'<rect class="page" width="{width}" height="{height}" rx="8" {_fill("page")}/>',
    ]
    boxes = {**layout.clusters, **layout.boxes}
    drawn = {id: _node(node, boxes[id], marks.get(id)) for id, node in nodes.items()}
    parts += [drawn[cluster.id] for cluster in model.clusters]
    parts += [_edge(route, layout, nodes) for route in layout.routes]
    parts += [drawn[node.id] for node in model.node_records]
    return "\n".join([*parts, "</svg>"]) + "\n"


# -- nodes -----------------------------------------------------------------------------------------


def _node(node: GraphNode, box: Box, mark: Mark | None) -> str:
    """Return a node, or the frame of a cluster with its title."""
    x, y = box.middle
    if node.kind == "cluster":
        kinds = ["cluster", *traits(node)]
        sign, place = (box.x + 16, box.y + 15), (box.x + 12, box.y + 15)
        size, style = SMALL + 1, 'class="name" text-anchor="start"'
    else:
        kinds = ["node", *(trait for trait in traits(node) if trait != "breakpoint")]
        sign, place = (box.x + 18, y), (x, y)
        ends = node.kind in ("start", "end")
        size = SMALL if ends or node.kind == "join" else FONT
        style = f'class="name" fill="{LIGHT["pill-ink" if ends else "ink"]}"'
    signs = [*(["deferred"] if node.deferred else []), *node.roles]
    move = MARK * len(signs) / (1 if node.kind == "cluster" else 2)
    place = place[0] + move, place[1]
    if mark:
        kinds.append(f"is-{mark.state}")
    return "".join(
        [
            f'<g class="{" ".join(kinds)}" data-node="{_text(node.id)}">',
            _title(_tooltip(node, mark)),
            *_outline(node, box),
            *(_sign(name, (sign[0] + MARK * n, sign[1])) for n, name in enumerate(signs)),
            *_lines(fit_lines(node), place, LINE_HEIGHT, size, style),
            *_stops(node, box),
            *_end_mark(node, box),
            *_badge(box, mark),
            "</g>",
        ]
    )


def _outline(node: GraphNode, box: Box) -> Iterator[str]:
    if node.kind == "cluster":
        fill, line = LIGHT["cluster"], LIGHT["cluster-line"]
        yield f'<rect class="shape" {_rect(box)} rx="10" fill="{fill}" stroke="{line}"/>'
        return
    kinds = {"start": "pill", "end": "pill", "subgraph": "sub", "unknown": "doubt"}
    colour = kinds.get(node.kind, "node")
    line = "error" if node.handler else f"{colour}-line"
    dashes = ' stroke-dasharray="5 3"' if node.deferred else ""
    paint = f'class="shape" {_fill(colour)} stroke="{LIGHT.get(line, LIGHT["line"])}"{dashes}'
    x, y = box.middle
    if node.kind == "join":
        yield f'<circle cx="{_number(x)}" cy="{_number(y)}" r="{_number(box.width / 2)}" {paint}/>'
    elif node.kind == "unknown":
        left, right = box.x + 11, box.right - 11
        xs = box.x, left, right, box.right, right, left
        ys = y, box.y, box.y, y, box.bottom, box.bottom
        corners = list(zip(xs, ys, strict=True))
        yield f'<path d="{_close(corners)}" stroke-linejoin="round" {paint}/>'
    else:
        radius = box.height / 2 if node.kind in ("start", "end") else 8
        yield f'<rect {_rect(box)} rx="{_number(radius)}" {paint}/>'
    if node.kind == "folded":  # a second sheet behind it
        corner = f"M{_point((box.right + 4, box.y + 8))}V{_number(box.bottom + 4)}"
        stroke = f'fill="none" stroke="{LIGHT[line]}"'
        yield f'<path class="stack" d="{corner}H{_number(box.x + 8)}" {stroke}/>'
    if node.kind == "subgraph":
        inner = Box("", box.x + 3.5, box.y + 3.5, box.width - 7, box.height - 7)
        yield (
            f'<rect {_rect(inner)} rx="5" class="inner" fill="none" stroke="{LIGHT["sub-line"]}"/>'
        )


def _tooltip(node: GraphNode, mark: Mark | None) -> str:
    """Return everything that is known about a node, one fact per line."""
    said = {"unknown": ANYWHERE if node.label == ANY_NODE else MISSING, "unreached": UNREACHED}
    plain = {"start", "end", "breakpoint", *node.roles}
    kinds = [said.get(each) or tell_trait(node, each) for each in traits(node) if each not in plain]
    whole = [] if node.kind in ("start", "end", "join", "unknown") else [node.label]
    stands = [" ".join(filter(None, mark))] if mark else []
    return "\n".join([*whole, *stands, *kinds, *notes(node)])


def _stops(node: GraphNode, box: Box) -> Iterator[str]:
    """Yield a pause sign at the upper corner for a breakpoint before the node, at the lower one for
    one after it."""
    for on, y in ((node.before, box.y + 2), (node.after, box.bottom - 2)):
        if on:
            x = box.x + 2
            bars = (
                f"M{_number(x - 2.2)} {_number(y - 2.8)}v5.6M{_number(x + 2.2)} "
                f"{_number(y - 2.8)}v5.6"
            )
            yield (
                f'<g class="stop"><circle cx="{_number(x)}" cy="{_number(y)}" r="7.5" '
                f"{_fill('paused')} "
                f'stroke="{LIGHT["paused-line"]}"/><path d="{bars}" '
                f'stroke="{LIGHT["paused-line"]}"/></g>'
            )


def _end_mark(node: GraphNode, box: Box) -> Iterator[str]:
    """Yield a ring with a dot at the lower right corner: an edge leads from here to END."""
    if node.ends:
        x, y = _number(box.right - 3), _number(box.bottom - 1)
        yield (
            f'<g class="to-end"><title>leads to END</title><circle cx="{x}" cy="{y}" r="6.5" '
            f'{_fill("page")} stroke="{LIGHT["pill"]}" stroke-width="1.5"/>'
            f'<circle cx="{x}" cy="{y}" r="3" {_fill("pill")}/></g>'
        )


_SIGNS = {  # an hour-glass, a spark, a wrench, a head with shoulders
    "deferred": "m-3.5-5.5h7l-7 11h7z",
    "model": "m0-6q.6 5.4 6 6q-5.4.6-6 6q-.6-5.4-6-6q5.4-.6 6-6z",
    "tool": "m5.5-3-2.5 1.5-1.5-1.5 1.5-2.5a3.5 3.5 0 0 0-4.5 4.5l-4 4a1.4 1.4 0 0 0 2 2l4-4"
    "a3.5 3.5 0 0 0 5-4z",
    "person": "m-2.4-2.8a2.4 2.4 0 1 0 4.8 0a2.4 2.4 0 1 0-4.8 0zm-2.6 8.3a5 4.5 0 0 1 10 0z",
}


def _sign(name: str, middle: Point) -> str:
    """Return the mark of a deferred node or of a role."""
    path = f"M{_point(middle)}{_SIGNS[name]}"
    return f'<path class="sign" d="{path}" fill="none" stroke="{LIGHT["soft"]}"/>'


def _badge(box: Box, mark: Mark | None) -> Iterator[str]:
    text = fit_text(mark.text, LONGEST_BADGE, SMALL) if mark else ""
    if text:
        width = max(16.0, round(text_width(text, SMALL) * BOLD) + 12)
        end = box.right - width
        x = min(
            end + 26, max(box.middle[0] + 10, end + 8)
        )  # beside the incoming arrow, but not on a neighbour
        y = box.y if x > box.middle[0] + 3 else box.bottom  # never on the arrow's tip
        place = Box("", x, y - 8, width, 16)
        yield (
            f'<g class="badge"><rect {_rect(place)} rx="8" {_fill("soft")}/>'
            f"{_words(text, place.middle, SMALL, _fill('page'))}</g>"
        )


# -- edges -----------------------------------------------------------------------------------------


def _edge(route: Route, layout: GraphLayout, nodes: Mapping[str, GraphNode]) -> str:
    edge, (x, y) = route.edge, route.label_at or route.points[0]
    holders = layout.clusters.values()
    nested = any(b.x <= x <= b.right and b.y <= y <= b.bottom for b in holders)
    unreached = edge.source in nodes and not nodes[edge.source].reached
    classes = " ".join(
        ["edge", edge.kind, *["nested"] * nested, *["unreached"] * unreached]
    )
    colour = LIGHT.get(edge.kind, LIGHT["line"])
    # Readable names for ends whose ids are internal.
    ends = [nodes[end] for end in edge[:2] if end in nodes]
    told = {
        node.id: node.label for node in ends if node.handler or node.kind in ("unknown", "join")
    }
    source, target = (told.get(end, visible(end.strip("_"))) for end in edge[:2])
    what = " ".join(filter(None, (f"{source} → {target}", edge.label and f"[{edge.label}]")))
    means = tell_edge(edge, told.get(edge.target) or told.get(edge.source, ""))
    tips, points = _tips(route)
    dash = {"conditional": "5 4", "goto": "5 4", "error": ".1 4.5"}.get(edge.kind)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    paint = f'fill="none" stroke="{colour}"' if edge.kind == "goto" else f'fill="{colour}"'
    return "".join(
        [
            f'<g class="{classes}" data-source="{_text(edge.source)}" '
            f'data-target="{_text(edge.target)}" '
            f'data-kind="{edge.kind}">{_title(f"{what}: {means}")}',
            f'<path class="line" d="{_curves(points)}" fill="none" stroke="{colour}"',
            f' stroke-width="1.5" stroke-linecap="round"{dashes}/>',
            *(f'<path class="tip" d="{tip}" {paint}/>' for tip in tips),
            *_start_mark(route, colour, layout.across),
            *_label(route),
            "</g>",
        ]
    )


def _tips(route: Route) -> tuple[list[str], Sequence[Point]]:
    """Return an edge's arrowheads, and its path up to them."""
    end, (dx, dy) = route.points[-1], _direction(route.points)
    kind = route.edge.kind

    def at(back: float, aside: float, start: Point = end) -> Point:
        return start[0] - dx * back - dy * aside, start[1] - dy * back + dx * aside

    if kind == "goto":
        wings = f"M{_point(at(7, -4))}L{_point(end)}L{_point(at(7, 4))}"
        return [wings], _trim(route.points, 1.5)
    heads = (0, 5.5, 11) if kind == "send" and route.edge.source != route.edge.target else (0,)
    tips = [
        _close([at(back, 0), at(back + 8, -4), at(back + 6, 0), at(back + 8, 4)]) for back in heads
    ]
    return tips, _trim(route.points, 6.0 + heads[-1])


def _direction(points: Sequence[Point]) -> Point:
    """Return the direction of the path's end, as a step of length 1."""
    end = points[-1]
    for point in reversed(points[:-1]):
        dx, dy = end[0] - point[0], end[1] - point[1]
        length = (dx * dx + dy * dy) ** 0.5
        if length > 0.01:
            return dx / length, dy / length
    return 0.0, 1.0


def _trim(points: Sequence[Point], length: float) -> Sequence[Point]:
    """Return the path without its last part of this length."""
    kept = list(points)
    dx, dy = _direction(points)
    while len(kept) > 4:
        last = ((kept[-1][0] - kept[-4][0]) ** 2 + (kept[-1][1] - kept[-4][1]) ** 2) ** 0.5
        if last > length:
            break
        length -= last
        del kept[-3:]
    kept[-2:] = [(x - dx * length, y - dy * length) for x, y in kept[-2:]]
    return kept


def _start_mark(route: Route, colour: str, across: bool) -> Iterator[str]:
    """Yield a dot where a Command decides, or a badge for the number of copies of a Send."""
    x, y = route.points[0]
    dx, dy = _direction(route.points[3::-1])
    if route.edge.kind == "goto":
        yield (
            f'<circle class="dot" cx="{_number(x - dx * 2.5)}" cy="{_number(y - dy * 2.5)}" '
            f'r="3" fill="{colour}"/>'
        )
    elif route.edge.kind == "send":
        onward = abs(dy if across else dx) < 0.5
        middle = (x - dx * 16, y - dy * 11) if onward else _beyond_corner(route)
        place = Box("", middle[0] - 11, middle[1] - 6.5, 22, 13)
        yield (
            f'<g class="many"><rect {_rect(place)} rx="6.5" {_fill("page")} stroke="{colour}"/>'
            f"{_words(MANY, middle, 9.5, _fill('send'))}</g>"
        )


def _beyond_corner(route: Route) -> Point:
    """Return the point where a path that begins sideways turns up or down; its middle if it does
    not."""
    for _, _, before, (x, y) in route.curves():
        if abs(x - before[0]) < 0.01:
            return x, y + (9 if y > before[1] else -9)
    line = route.line()
    return line[len(line) // 2]


def _label(route: Route) -> Iterator[str]:
    if route.edge.label and route.label_at:
        (x, y), (width, height) = route.label_at, label_size(route.edge.label)
        place = Box("", x - width / 2 + 2, y - height / 2 + 1, width - 4, height - 2)
        lines = wrap_text(route.edge.label, LONGEST_LABEL, SMALL)
        words = "".join(_lines(lines, route.label_at, LABEL_LINE, SMALL, _fill("soft")))
        yield f'<g class="label"><rect {_rect(place)} rx="4" {_fill("page")}/>{words}</g>'


# -- text ------------------------------------------------------------------------------------------


def _lines(
    lines: Sequence[str], middle: Point, height: float, size: float, more: str
) -> Iterator[str]:
    """Yield the lines of a text, centred."""
    x, y = middle
    top = y - height * (len(lines) - 1) / 2
    for number, line in enumerate(lines):
        yield _words(line.rstrip(), (x, top + height * number), size, more)


def _words(text: str, middle: Point, size: float, more: str) -> str:
    x, y = middle
    return (
        f'<text x="{_number(x)}" y="{_number(y)}" dy=".35em" font-size="{_number(size)}" '
        f"{more}>{_text(text)}</text>"
    )


def _fill(colour: str) -> str:
    """Return a fill attribute, for viewers that ignore style sheets."""
    return f'fill="{LIGHT[colour]}"'


def _title(text: str) -> str:
    return f"<title>{_text(text)}</title>" if text else ""


_TURNING = re.compile(
    "[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)  # marks of reading direction, for ids


def _text(text: str) -> str:
    """Escape text for XML content or attributes; characters that XML cannot represent become �."""
    return _TURNING.sub(lambda found: f"&#{ord(found[0])};", escape(drop_illegal(text)))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _point(point: Point) -> str:
    return f"{_number(point[0])} {_number(point[1])}"


def _close(points: Sequence[Point]) -> str:
    return "M" + "L".join(map(_point, points)) + "Z"


def _curves(points: Sequence[Point]) -> str:
    return f"M{_point(points[0])}" + "".join(
        "C" + ",".join(map(_point, points[n : n + 3])) for n in range(1, len(points), 3)
    )


def _rect(box: Box) -> str:
    x, y, width, height = map(_number, box[1:])
    return f'x="{x}" y="{y}" width="{width}" height="{height}"'
