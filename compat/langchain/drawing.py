"""A graph's drawing as LangChain's `Graph`, with pictures of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_core.runnables.graph import Edge, Graph, Node

from ...pregel.app import Pregel
from ...pregel.names import END


class GraphDrawing(Graph):
    """LangChain's nodes, edges and Mermaid texts. Pictures are drawn right here by our own
    renderers: nothing is sent over the network. What LangChain's has not (`draw_svg`, ...) is that
    of the native drawing.

    Args:
        native: the same drawing as graphs of ours return it.
    """

    def __init__(self, native: Any) -> None:
        super().__init__()
        self.native = native

    def __getattr__(self, name: str) -> Any:
        if name == "native":  # not set yet: a copy is being made
            raise AttributeError(name)
        return getattr(self.native, name)

    def draw_ascii(self) -> str:
        """The drawing as text."""
        return str(self.native.draw_ascii())

    def print_ascii(self) -> None:
        """Print the drawing as text."""
        self.native.print_ascii()

    def draw_png(
        self, output_file_path: str | None = None, fontname: Any = None, labels: Any = None
    ) -> Any:
        """The drawing as a PNG picture, also written to a file if one is given. Fonts and labels
        are those of our renderer.

        Raises:
            GraphvizMissingError: no Graphviz is installed.
        """
        return self.native.draw_png(output_file_path)

    def draw_mermaid_png(self, **options: Any) -> bytes:
        """`draw_png` with the arguments of Mermaid's server.

        Raises:
            GraphvizMissingError: no Graphviz is installed.
            TypeError: there is no such argument.
        """
        known: bytes = self.native.draw_mermaid_png(**options)
        return known


def draw(app: Any, xray: bool | int) -> GraphDrawing:
    """The drawing of a compiled graph.

    Args:
        xray: show the graphs inside nodes: True for all, a number for so many levels.
    """
    flat: Any = Pregel.get_graph(app).model
    drawing = GraphDrawing(Pregel.get_graph(app, xray=xray))
    for node in sorted(flat.node_records, key=lambda node: node.id == END):
        if node.kind not in ("join", "unknown"):
            name = node.id if node.kind in ("start", "end") else node.label
            drawing.nodes[node.id] = Node(node.id, name, node.data, _metadata(node))
    drawing.edges += _edges(flat)
    if xray:
        for name, inner in app.get_subgraphs():
            _unfold(drawing, name, draw(inner, xray if xray is True else xray - 1))
    return drawing


def _metadata(node: Any) -> dict[str, Any] | None:
    """What a drawing says about a node beside its name."""
    found = dict(node.metadata)
    if node.deferred:
        found["defer"] = True
    stops = [word for word, stop in (("before", node.before), ("after", node.after)) if stop]
    if stops:
        found["__interrupt"] = ",".join(stops)
    tools = getattr(node.data, "tools_by_name", None)
    if tools:
        found["__tools"] = list(tools)
    return found or None


def _edges(model: Any) -> Iterator[Edge]:
    """The edges in LangGraph's order: by their ends, but those that always lead to the end last.
    What passes a join or goes wherever a router may go is one edge."""
    between = {node.id for node in model.node_records if node.kind in ("join", "unknown")}
    onward: dict[str, list[str]] = {source: [] for source in between}
    for edge in model.edge_records:
        if edge.source in between:
            onward[edge.source].append(edge.target)
    found: dict[tuple[str, str], Edge] = {}
    for edge in model.edge_records:
        if edge.source in between:
            continue
        label = "" if edge.target in between else edge.label
        for target in onward.get(edge.target, [edge.target]):
            made = Edge(edge.source, target, label or None, edge.conditional)
            found.setdefault((edge.source, target), made)
    last = [edge for edge in found.values() if edge.target == END and not edge.conditional]
    others = [edge for edge in found.values() if edge not in last]
    yield from sorted(others, key=lambda edge: (edge.source, edge.target))
    yield from sorted(last, key=lambda edge: edge.source)


def _unfold(drawing: Graph, name: str, inner: Graph) -> None:
    """Draw the graph that a node is made of in place of the node."""
    inner.trim_first_node()
    inner.trim_last_node()
    first, last = inner.first_node(), inner.last_node()
    if name not in drawing.nodes or first is None or last is None:
        return
    del drawing.nodes[name]
    drawing.edges[:] = [
        edge._replace(
            source=f"{name}:{last.id}" if edge.source == name else edge.source,
            target=f"{name}:{first.id}" if edge.target == name else edge.target,
        )
        for edge in drawing.edges
    ]
    drawing.extend(inner, prefix=name)
