"""A Shape → Mermaid text. Nothing is read from a graph, nothing is fetched.

Only the drawing's text is made here; turning it into a picture is for whoever shows it.
"""

from __future__ import annotations

from collections.abc import Iterator

from .shape import Edge, Node, Shape
from .words import edge_text, notes, plain_ids, traits

_FORMS = {
    "start": '(["{}"])',
    "end": '(["{}"])',
    "node": '["{}"]',
    "subgraph": '[["{}"]]',
    "join": '(("{}"))',
    "unknown": '{{"{}"}}',
}
# Mostly borders, which look right on light and dark pages alike.
_STYLES = {
    "start": "font-weight:bold",
    "end": "font-weight:bold",
    "deferred": "stroke-dasharray:5 5",
    "handler": "stroke:#d33",
    "breakpoint": "stroke:#e80,stroke-width:3px",
    "unreached": "opacity:0.5",
}


def draw_mermaid(shape: Shape) -> str:
    """The drawing as Mermaid text; equal shapes give the same text.

    Solid arrows are always taken, dashed ones if a router or a `Command` says so; "n times" marks a `Send`, of which
    there may be many. A router that does not say where it goes leads to "any node". A join is a small circle that waits
    for all who lead to it. Deferred nodes have a dashed border, error handlers a red one, breakpoints a thick one. In
    a raw `Pregel` an arrow bears the name of its channel.

    >>> from stategraph import START, StateGraph
    >>> graph = StateGraph(int).add_node("twice", lambda n: 2 * n).add_edge(START, "twice")
    >>> print(graph.compile().get_graph().draw_mermaid(), end="")
    graph TD
        __start__(["START"])
        twice["twice"]
        __end__(["END"])
        __start__ --> twice
        twice --> __end__
        classDef first font-weight:bold
        class __start__ first
        classDef last font-weight:bold
        class __end__ last
    """
    ids = plain_ids(node.id for node in (*shape.nodes, *shape.clusters))
    lines = ["graph TD", *_held(shape, ids, None)]
    lines += [f"    {_arrow(edge, ids)}" for edge in shape.edges]
    for style, css in _STYLES.items():
        names = [ids[node.id] for node in shape.nodes if style in traits(node)]
        if names:
            lines += [f"    classDef {_class(style)} {css}", f"    class {','.join(names)} {_class(style)}"]
    return "\n".join(lines) + "\n"


def _held(shape: Shape, ids: dict[str, str], holder: str | None) -> Iterator[str]:
    """The lines of the nodes and clusters that a cluster holds, or of those at the top."""
    for node in shape.nodes:
        if node.inside == holder:
            yield f"    {ids[node.id]}{_FORMS[node.kind].format(_text(node))}"
    for cluster in shape.clusters:
        if cluster.inside == holder:
            yield f'    subgraph {ids[cluster.id]}["{_text(cluster)}"]'
            yield from (f"    {line}" for line in _held(shape, ids, cluster.id))
            yield "    end"


def _class(style: str) -> str:
    return {"start": "first", "end": "last"}.get(style, style)  # `end` is a word of Mermaid's


def _text(node: Node) -> str:
    """The label; below it, small, what else is known of the node."""
    return (_escaped(node.label) or " ") + "".join(f"<br/><small>{_escaped(note)}</small>" for note in notes(node))


def _arrow(edge: Edge, ids: dict[str, str]) -> str:
    label = edge_text(edge)
    arrow = ("-->" if edge.certain else "-.->") + (f'|"{_escaped(label)}"|' if label else "")
    return f"{ids[edge.source]} {arrow} {ids[edge.target]}"


def _escaped(text: str) -> str:
    """Text that can stand in double quotes in Mermaid, where Markdown, icons and formulas have a meaning."""
    return "".join(_ENTITIES.get(character, character) for character in text)


_ENTITIES = {"\n": "<br/>", "&": "#amp;", '"': "#quot;", "<": "#lt;", ">": "#gt;"}
_ENTITIES |= {mark: f"#{ord(mark)};" for mark in "#\\*`$:%"}
