"""What graphs load to draw themselves. Draws a builder as far as possible, and lists its
mistakes."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from ..graph.compile import compile_graph
from ..graph.spec import GraphSpec, NodeSpec
from ..graph.validate import ANYWHERE, check_graph, find_successors
from ..pregel.errors import InvalidGraphError
from ..pregel.names import END, START
from ..pregel.program.callables import read_callable
from .drawing import Drawing as Drawing
from .drawing import bundle as bundle
from .extract import extract
from .model import GraphModel


def draw(app: Any, xray: bool | int = False) -> Drawing:
    """Return the drawing of a compiled graph.

    Args:
        xray: as in `app.get_graph`.
    """
    return Drawing(extract(app, xray))


def find_mistakes(spec: GraphSpec) -> tuple[str, ...]:
    """Return what is wrong with the graph as a whole, in sentences."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings belong to compile()
            check_graph(spec, ())
    except InvalidGraphError as error:
        return error.mistakes
    return ()


def make_draft(spec: GraphSpec, xray: bool | int = False) -> Drawing:
    """Return its drawing. Names in edges that are not nodes are drawn as unknown, with a question
    mark.

    Args:
        xray: as in `app.get_graph`.

    Raises:
        InvalidGraphError: nothing can be drawn.
    """
    leads = find_successors(spec)
    named = {*leads, *(end for ends in leads.values() for end in ends)} - {START, END, ANYWHERE}
    missing = sorted(named - spec.nodes.keys() - spec.handlers.keys())
    blank = NodeSpec(read_callable(lambda state: None, "unknown"), spec.schemas[spec.state_schema])
    filled = replace(spec, nodes={**spec.nodes, **dict.fromkeys(missing, blank)})
    model = extract(compile_graph(filled, name="StateGraph"), xray)
    # In a drawing, a node without edges leads to END; here it may still get some.
    open_ends = {*missing, START} - {source for source, ends in leads.items() if END in ends}
    edges = [e for e in model.edge_records if e.source not in open_ends or e.target != END]
    targets = {edge.target for edge in edges}
    nodes = []
    for node in model.node_records:
        if node.id in missing:
            nodes.append(node._replace(kind="unknown", label=f"{node.label}?"))
        elif node.kind != "end" or node.id in targets:
            nodes.append(node)
    return Drawing(GraphModel(model.name, nodes, edges, model.clusters))


def show(
    spec: GraphSpec,
    include: Collection[str] | None = None,
    exclude: Collection[str] | None = None,
) -> dict[str, str]:
    """Return what notebooks show: the drawing, below its mistakes if it has any. Never raises."""
    wrong = find_mistakes(spec)
    remark = "\n".join(
        ["This graph cannot be compiled yet:", *(f"  - {sentence}" for sentence in wrong)]
    )
    return bundle(lambda: make_draft(spec), include, exclude, remark if wrong else "")
