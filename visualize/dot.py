"""Converts a model to DOT text, and on request runs Graphviz on it for a PNG picture.

Graphviz runs as a separate program, `dot` or the one that pygraphviz brings, so that its crash,
hang or termination does not harm this process. This module reads nothing from a graph.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from ..extras import install_command
from ..pregel.errors import StateGraphError
from .labels import edge_text, make_ids, notes, traits
from .model import Direction, GraphModel
from .nesting import find_reversed

TIMEOUT = 20.0
"""How many seconds Graphviz may take."""

_NODES: dict[str, dict[str, str]] = {
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
_EDGES: dict[str, dict[str, str]] = {
    "conditional": {"style": "dashed"},
    "goto": {"style": "dashed", "arrowhead": "vee"},
    "send": {"style": "dashed", "arrowhead": "normalnormal"},
    "error": {"style": "dashed", "color": "#cc3333", "fontcolor": "#cc3333"},
}


class GraphvizMissingError(StateGraphError, RuntimeError):
    """Graphviz was requested, but no working installation was found."""

    def __init__(self, what: str) -> None:
        state = "gives no result (see the warning)" if any(_programs()) else "is not installed"
        super().__init__(
            f"{what} needs Graphviz, which {state}: `apt install graphviz` (or "
            f"https://graphviz.org/download), or {install_command('graphviz')}. draw_svg() and "
            "draw_html() work without it"
        )


class GraphvizWarning(UserWarning):
    """Graphviz is installed, but does not work or takes too long."""


def draw_dot(model: GraphModel, direction: Direction = "TB") -> str:
    """Return the drawing as DOT text; equal shapes give the same text. No `dot` program is
    needed."""
    return str(_digraph(model, direction).source)


def draw_png(model: GraphModel, dpi: int = 96, *flags: str) -> bytes:
    """Return the drawing as a PNG picture, made by Graphviz.

    Args:
        flags: further command-line options of Graphviz, such as "-Gbgcolor=white".

    Raises:
        GraphvizMissingError: no Graphviz is installed, or none works.
    """
    picture = run_graphviz(draw_dot(model), "png", f"-Gdpi={int(dpi)}", *flags)
    if picture is None:
        raise GraphvizMissingError("a PNG")
    return picture


# -- the program -----------------------------------------------------------------------------------

_PYGRAPHVIZ = """
import sys, pygraphviz
graph = pygraphviz.AGraph(string=sys.stdin.buffer.read().decode())
for option in sys.argv[2:]:
    graph.graph_attr[option[2:].partition("=")[0]] = option.partition("=")[2]
sys.stdout.buffer.write(graph.draw(format=sys.argv[1], prog="dot"))
"""


def _programs() -> Iterator[Callable[[str], list[str]]]:
    """Yield the programs that can draw, the best first; each returns the command for a format."""
    dot = shutil.which("dot")
    if dot is not None:
        yield lambda form: [dot, f"-T{form}"]
    if find_spec("pygraphviz") is not None:
        yield lambda form: [sys.executable, "-c", _PYGRAPHVIZ, form]


def run_graphviz(source: str, form: str, *options: str) -> bytes | None:
    """Return Graphviz's output for DOT text; None if Graphviz is not installed or, after a warning,
    if it fails.

    Args:
        form: the format: "png", "json", ...
        options: options of the form "-Gname=value".
    """
    text = source.encode(errors="replace")
    for program in _programs():
        command = [*program(form), *options]
        try:
            done = subprocess.run(
                command, input=text, capture_output=True, timeout=TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired:
            # The next program is the same engine, and would take as long.
            reason = f"Graphviz ({command[0]}) timed out after {TIMEOUT:g} s"
            warnings.warn(reason, GraphvizWarning, stacklevel=4)
            return None
        except (OSError, subprocess.SubprocessError) as error:
            reason = str(error)
        else:
            if done.returncode == 0 and done.stdout:
                return done.stdout
            said = done.stderr.decode(errors="replace").strip()[-300:]
            reason = f"exit code {done.returncode}: {said}"
        warnings.warn(
            f"Graphviz does not work ({command[0]}): {reason}", GraphvizWarning, stacklevel=4
        )
    return None


# -- the text --------------------------------------------------------------------------------------


def _digraph(model: GraphModel, direction: Direction) -> Any:
    import graphviz  # type: ignore[import-untyped]  # it has no annotations

    graph = graphviz.Digraph(_escape(model.name))
    font = {"fontname": "Helvetica,Arial,sans-serif"}
    graph.attr(
        "graph",
        **font,
        rankdir=direction,
        fontsize="11",
        color="#999999",
        style="rounded",
        labeljust="l",
    )
    graph.attr(
        "node", **font, shape="box", style="rounded,filled", fillcolor="white", fontsize="12"
    )
    graph.attr("edge", **font, fontsize="10")
    ids = make_ids(node.id for node in model.parts)
    _add_nodes(graph, model, ids, None)
    # Graphviz would break a cycle at any edge, and place a cluster above nodes that lead to it.
    reverse = find_reversed(model)
    feet = _find_feet(model)
    if feet:
        graph.attr("graph", compound="true")
    for edge in model.edge_records:
        source, target = ids[feet.get(edge.source, edge.source)], ids[edge.target]
        style = dict(_EDGES.get(edge.kind, {}))
        if edge_text(edge):
            style["label"] = _escape(f" {edge_text(edge)} ")
        if edge.source in feet:
            style["lhead" if edge in reverse else "ltail"] = f"cluster_{ids[edge.source]}"
        if edge in reverse:
            style |= {"arrowtail": style.pop("arrowhead", "normal"), "dir": "back"}
            source, target = target, source
        graph.edge(source, target, **style)
    return graph


def _find_feet(model: GraphModel) -> dict[str, str]:
    """Return a node inside each cluster that an edge leaves from: DOT has no edges of clusters, but
    clips edges of such nodes at the cluster."""
    # The last part of each cluster, which is a node if it has any.
    inside = {part.inside: part.id for part in (*model.clusters, *model.node_records)}
    found = {}
    for source in {edge.source for edge in model.edge_records}.intersection(inside):
        foot = source
        while foot in inside:
            foot = inside[foot]
        found[source] = foot
    return found


def _add_nodes(graph: Any, model: GraphModel, ids: dict[str, str], holder: str | None) -> None:
    """Add the nodes and clusters that a cluster holds, or those at the top."""
    for part in model.levels.get(holder, ()):
        text = _escape("\n".join((part.label, *notes(part))))
        if part.kind == "cluster":
            with graph.subgraph(name=f"cluster_{ids[part.id]}") as inner:
                inner.attr(label=text)
                _add_nodes(inner, model, ids, part.id)
        else:
            style: dict[str, str] = {}
            for trait in traits(part):
                style |= _NODES.get(trait, {})
            graph.node(ids[part.id], text, **style)


def _escape(text: str) -> Any:
    """Escape text: DOT gives backslashes and angle brackets a meaning."""
    import graphviz

    return graphviz.nohtml(graphviz.escape(text).replace("\n", "\\n"))
