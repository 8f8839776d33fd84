"""A Shape → DOT text, and what Graphviz makes of it where it is installed: a layout, a PNG.

Graphviz runs as a program of its own, `dot` or the one that pygraphviz brings, so it can be slow, broken or killed
without harm to us. Nothing is read from a graph here.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, Final

from ..pregel.errors import StateGraphError
from .layout.grid import SOFT
from .layout.layers import back_from, loops
from .layout.measure import label_size, node_size, title_size
from .layout.places import Box, Layout, Point, Route
from .levels import turned_at_clusters
from .shape import Edge, Node, Shape
from .words import edge_text, notes, plain_ids, traits

TIMEOUT: Final = 20.0
"""Seconds that Graphviz may take where it was asked for."""
QUICK: Final = 5.0
"""Seconds that it may take where we can do without."""
_slow: set[str] = set()  # programs that took longer, so that nobody waits for them twice
MARGIN: Final = 16.0
"""Around a layout, in px."""

_NODES: Final[dict[str, dict[str, str]]] = {
    "start": {"shape": "box", "style": "rounded,filled,bold"},
    "end": {"shape": "box", "style": "rounded,filled,bold"},
    "subgraph": {"peripheries": "2"},
    "join": {"shape": "circle", "margin": "0.02"},
    "unknown": {"shape": "diamond", "style": "dashed"},
    "deferred": {"style": "rounded,filled,dashed"},
    "handler": {"color": "#cc3333"},
    "breakpoint": {"color": "#e08000", "penwidth": "2.5"},
    "unreached": {"color": "#999999", "fontcolor": "#999999"},
}
_EDGES: Final[dict[str, dict[str, str]]] = {
    "conditional": {"style": "dashed"},
    "goto": {"style": "dashed", "arrowhead": "vee"},
    "send": {"style": "dashed", "arrowhead": "normalnormal"},
    "error": {"style": "dashed", "color": "#cc3333", "fontcolor": "#cc3333"},
}


class GraphvizMissingError(StateGraphError, RuntimeError):
    """There is no Graphviz, and what was asked for needs it."""

    def __init__(self, what: str) -> None:
        state = "gives no result (see the warning)" if any(_programs()) else "is not installed"
        super().__init__(
            f"{what} needs Graphviz, which {state}: `apt install graphviz` (or https://graphviz.org/download), or "
            "`pip install stategraph[graphviz]`. draw_svg() and draw_html() do without"
        )


class GraphvizWarning(UserWarning):
    """Graphviz is installed, and does not work or takes too long."""


def draw_dot(shape: Shape) -> str:
    """The drawing as DOT text; equal shapes give the same text. No `dot` program is needed."""
    return str(_digraph(shape).source)


def draw_png(shape: Shape, dpi: int = 96, *flags: str) -> bytes:
    """The drawing as a PNG picture, made by Graphviz.

    Args:
        flags: what its command line takes besides, such as "-Gbgcolor=white".

    Raises:
        GraphvizMissingError: no Graphviz is installed, or none works.
    """
    picture = run_graphviz(draw_dot(shape), "png", f"-Gdpi={int(dpi)}", *flags)
    if picture is None:
        raise GraphvizMissingError("a PNG")
    return picture


def arrange_with_graphviz(shape: Shape, *, quick: bool = False) -> Layout | None:
    """Where everything stands if Graphviz decides; None if there is no Graphviz, or none that works in time.

    Args:
        quick: give it a few seconds only, and none if it once took longer in this process.
    """
    plan = run_graphviz(_sized(shape), "json", quick=quick)
    if plan is None:
        return None
    try:
        return _layout(shape, json.loads(plan))
    except (ValueError, LookupError, TypeError) as error:
        warnings.warn(f"what Graphviz says cannot be read: {error!r}", GraphvizWarning, stacklevel=3)
        return None


# -- the program ----------------------------------------------------------------------------------------------

_PYGRAPHVIZ = """
import sys, pygraphviz
graph = pygraphviz.AGraph(string=sys.stdin.buffer.read().decode())
for option in sys.argv[2:]:
    graph.graph_attr[option[2:].partition("=")[0]] = option.partition("=")[2]
sys.stdout.buffer.write(graph.draw(format=sys.argv[1], prog="dot"))
"""


def _programs() -> Iterator[Callable[[str], list[str]]]:
    """Who could draw, the best first: each gives the command for a format."""
    dot = shutil.which("dot")
    if dot is not None:
        yield lambda form: [dot, f"-T{form}"]
    if find_spec("pygraphviz") is not None:
        yield lambda form: [sys.executable, "-c", _PYGRAPHVIZ, form]


def run_graphviz(source: str, form: str, *options: str, quick: bool = False) -> bytes | None:
    """What Graphviz makes of DOT text; None if it is not there, or does not work, of which it is warned.

    Args:
        form: the format: "png", "json", ...
        options: of the form "-Gname=value".
        quick: see `arrange_with_graphviz`.
    """
    text, timeout = source.encode(errors="replace"), QUICK if quick else TIMEOUT
    for program in _programs():
        command = [*program(form), *options]
        if quick and command[0] in _slow:
            return None
        try:
            done = subprocess.run(command, input=text, capture_output=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            # The next one is the same engine, and would take as long.
            _slow.add(command[0])
            warnings.warn(f"Graphviz ({command[0]}) timed out after {timeout:g} s", GraphvizWarning, stacklevel=4)
            return None
        except (OSError, subprocess.SubprocessError) as error:
            reason = str(error)
        else:
            if done.returncode == 0 and done.stdout:
                return done.stdout
            reason = f"exit code {done.returncode}: {done.stderr.decode(errors='replace').strip()[-300:]}"
        warnings.warn(f"Graphviz does not work ({command[0]}): {reason}", GraphvizWarning, stacklevel=4)
    return None


# -- the text -------------------------------------------------------------------------------------------------


def _digraph(shape: Shape) -> Any:
    import graphviz  # type: ignore[import-untyped]  # it has no annotations

    graph = graphviz.Digraph(_plain(shape.name))
    font = {"fontname": "Helvetica,Arial,sans-serif"}
    graph.attr("graph", **font, rankdir="TB", fontsize="11", color="#999999", style="rounded", labeljust="l")
    graph.attr("node", **font, shape="box", style="rounded,filled", fillcolor="white", fontsize="12")
    graph.attr("edge", **font, fontsize="10")
    ids = plain_ids(node.id for node in (*shape.nodes, *shape.clusters))
    _fill(graph, shape, ids, None)
    turned, feet = turned_at_clusters(shape), _feet(shape)
    if feet:
        graph.attr("graph", compound="true")
    for edge in shape.edges:
        source = ids[feet.get(edge.source, edge.source)]
        label = {"label": _plain(f" {edge_text(edge)} ")} if edge_text(edge) else {}
        style = label | _EDGES.get(edge.kind, {})
        if edge.source in feet:
            style["lhead" if edge in turned else "ltail"] = f"cluster_{ids[edge.source]}"
        if edge in turned:
            # Graphviz would cut the circle anywhere, and stand the cluster above what leads to it.
            tip = {"arrowtail": style.pop("arrowhead", "normal"), "dir": "back"}
            graph.edge(ids[edge.target], source, **style, **tip)
        else:
            graph.edge(source, ids[edge.target], **style)
    return graph


def _turned(shape: Shape) -> set[Edge]:
    """The edges that are to lead upwards: where Graphviz would cut circles is not where they begin again."""
    if shape.clusters:
        return turned_at_clusters(shape)
    number = {node.id: place for place, node in enumerate(shape.nodes)}
    pairs = [(number[edge.source], number[edge.target]) for edge in shape.edges]
    first = next((number[node.id] for node in shape.nodes if node.kind == "start"), 0)
    back = back_from(first, len(number), pairs)
    soft = {place for place in back if shape.edges[place].kind in SOFT}
    return {shape.edges[place] for place in loops(len(number), pairs, soft=soft) & soft}


def _feet(shape: Shape) -> dict[str, str]:
    """Of each cluster that an edge leaves from, a node inside: DOT has no edges of clusters, it cuts them off there."""
    inside = {part.inside: part.id for part in (*shape.clusters, *shape.nodes)}  # the last, mostly a node
    clusters, found = {cluster.id for cluster in shape.clusters}, {}
    for edge in shape.edges:
        foot = edge.source
        while foot in clusters:
            foot = inside[foot]
        if foot != edge.source:
            found[edge.source] = foot
    return found


def _fill(graph: Any, shape: Shape, ids: dict[str, str], holder: str | None) -> None:
    """Add the nodes and clusters that a cluster holds, or those at the top."""
    for node in shape.nodes:
        if node.inside == holder:
            style: dict[str, str] = {}
            for trait in traits(node):
                style |= _NODES.get(trait, {})
            graph.node(ids[node.id], _text(node), **style)
    for cluster in shape.clusters:
        if cluster.inside == holder:
            with graph.subgraph(name=f"cluster_{ids[cluster.id]}") as inner:
                inner.attr(label=_text(cluster))
                _fill(inner, shape, ids, cluster.id)


def _text(node: Node) -> Any:
    return _plain("\n".join((node.label, *notes(node))))


def _plain(text: str) -> Any:
    """Text that stands for itself: DOT gives backslashes and angle brackets a meaning."""
    import graphviz

    return graphviz.nohtml(graphviz.escape(text).replace("\n", "\\n"))


# -- the layout -----------------------------------------------------------------------------------------------


def _sized(shape: Shape) -> str:
    """DOT text of boxes without words, as large as our own renderer draws them; one point is one px."""
    lines = ["digraph {", "compound=true;", "graph [nodesep=0.45 ranksep=0.5];", "edge [arrowhead=none fontsize=1];"]
    lines.append('node [shape=box fixedsize=true label=""];')
    names = {part.id: f"n{number}" for number, part in enumerate((*shape.nodes, *shape.clusters))}
    lines += _sized_parts(shape, names, None)
    turned, feet = _turned(shape), _feet(shape)
    for number, edge in enumerate(shape.edges):
        label = f" label={_room(*label_size(edge.label))}" if edge.label else ""
        if edge.source in feet:
            label += f" {'lhead' if edge in turned else 'ltail'}=cluster_{names[edge.source]}"
        source = feet.get(edge.source, edge.source)
        upper, lower = (edge.target, source) if edge in turned else (source, edge.target)
        lines.append(f"{names[upper]} -> {names[lower]} [id=e{number}{label}];")
    return "\n".join([*lines, "}"])


def _sized_parts(shape: Shape, names: dict[str, str], holder: str | None) -> Iterator[str]:
    for node in shape.nodes:
        if node.inside == holder:
            width, height = node_size(node)
            round_ = " shape=ellipse" if node.kind == "join" else ""
            yield f"{names[node.id]} [width={width / 72:.4f} height={height / 72:.4f}{round_}];"
    for cluster in shape.clusters:
        if cluster.inside == holder:
            yield f"subgraph cluster_{names[cluster.id]} {{ margin=12; labeljust=l;"
            yield f"label={_room(*title_size(cluster))};"
            yield from _sized_parts(shape, names, cluster.id)
            yield "}"


def _room(width: float, height: float) -> str:
    """A label that takes so much room."""
    size = f'FIXEDSIZE="TRUE" WIDTH="{width:.0f}" HEIGHT="{height:.0f}"'
    return f'<<TABLE BORDER="0" CELLBORDER="0" CELLPADDING="0" CELLSPACING="0" {size}><TR><TD></TD></TR></TABLE>>'


def _layout(shape: Shape, plan: dict[str, Any]) -> Layout:
    """Graphviz's JSON as a Layout: its y goes upwards, ours downwards."""
    _, _, width, height = (number + 2 * MARGIN for number in _numbers(plan["bb"]))
    placed = {item["name"]: item for item in plan["objects"]}

    def flipped(text: str) -> Point:
        x, y = _numbers(text)
        return x + MARGIN, height - MARGIN - y

    names = {part.id: f"n{number}" for number, part in enumerate((*shape.nodes, *shape.clusters))}
    boxes, clusters = {}, {}
    for node in shape.nodes:
        (x, y), (wide, high) = flipped(placed[names[node.id]]["pos"]), node_size(node)
        boxes[node.id] = Box(node.id, x - wide / 2, y - high / 2, wide, high)
    for cluster in shape.clusters:
        left, low, right, top = _numbers(placed[f"cluster_{names[cluster.id]}"]["bb"])
        clusters[cluster.id] = Box(cluster.id, *flipped(f"{left},{top}"), right - left, top - low)
    drawn = {item["id"]: item for item in plan.get("edges", ())}
    routes, turned = [], _turned(shape)
    for number, edge in enumerate(shape.edges):
        item = drawn[f"e{number}"]
        points = tuple(flipped(point) for point in item["pos"].split())
        points = points[::-1] if edge in turned else points
        routes.append(Route(edge, points, flipped(item["lp"]) if "lp" in item else None))
    return Layout(width, height, boxes, clusters, tuple(routes))


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in text.split(","))

