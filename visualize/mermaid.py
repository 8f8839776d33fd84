"""Turns a GraphModel into Mermaid text. Reads nothing from a graph, and fetches nothing.

Viewers turn the text into a picture.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .labels import edge_text, make_ids, notes, traits
from .model import Direction, GraphEdge, GraphModel, GraphNode

_FORMS = {
    "start": '(["{}"])',
    "end": '(["{}"])',
    "node": '["{}"]',
    "subgraph": '[["{}"]]',
    "join": '(("{}"))',
    "unknown": '{{"{}"}}',
}
# Mostly borders, which suit both light and dark pages.
_STYLES = {
    "start": "font-weight:bold",
    "end": "font-weight:bold",
    "deferred": "stroke-dasharray:5 5",
    "handler": "stroke:#d33",
    "breakpoint": "stroke:#e80,stroke-width:3px",
    "unreached": "opacity:0.5",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MermaidStyle:
    """The style of the text.

    Args:
        with_styles: include the colours and borders of nodes.
        curve_style: the shape of edges: "linear", "basis", "stepAfter", ... or an enum of these;
            None for Mermaid's default.
        node_colors: CSS for "default", "first" and "last", as a mapping or as attributes.
        wrap_label_n_words: the maximum number of words on a line of an edge's label.
        frontmatter_config: Mermaid's front matter, such as `{"config": {"theme": "neutral"}}`.

    Raises:
        ValueError: `wrap_label_n_words` is less than 1.
    """

    with_styles: bool = True
    curve_style: Any = None
    node_colors: Any = None
    wrap_label_n_words: int = 9
    frontmatter_config: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.wrap_label_n_words < 1:
            raise ValueError(
                f"wrap_label_n_words must be an integer >= 1, got {self.wrap_label_n_words!r}"
            )

    def css(self) -> dict[str, str]:
        """Return the style of each kind of node; Mermaid applies `default` to all."""
        colors = self.node_colors
        if colors is None:
            return _STYLES
        if not isinstance(colors, Mapping):
            colors = {name: getattr(colors, name, None) for name in ("default", "first", "last")}
        names = {"default": "default", "start": "first", "end": "last"}
        given = {kind: colors[name] for kind, name in names.items() if colors.get(name)}
        return {**given, **{kind: css for kind, css in _STYLES.items() if kind not in given}}

    def frontmatter(self) -> list[str]:
        """Return the lines before the graph. Mermaid expects YAML, of which JSON is a subset."""
        said = dict(self.frontmatter_config or {})
        if self.curve_style is not None:
            config = dict(said.get("config") or {})
            curve = getattr(self.curve_style, "value", self.curve_style)
            said["config"] = {
                **config,
                "flowchart": {"curve": curve, **(config.get("flowchart") or {})},
            }
        return (
            ["---", *(f"{key}: {json.dumps(value)}" for key, value in said.items()), "---"]
            if said
            else []
        )


def draw_mermaid(
    model: GraphModel, style: MermaidStyle | None = None, direction: Direction = "TB"
) -> str:
    """Return the drawing as Mermaid text; equal shapes give the same text.

    Solid arrows are always taken, dashed ones if a router or a `Command` says so; "n times" marks a
    `Send`, of which there may be many. A router that does not declare its targets leads to "any
    node". A join is a small circle that waits for all that lead to it. Deferred nodes have a dashed
    border, error handlers a red one, breakpoints a thick one. In a raw `Pregel`, arrows are
    labelled with their channels.

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
    style = style or MermaidStyle()
    ids = make_ids(node.id for node in model.parts)
    graph = "graph TD" if direction == "TB" else f"graph {direction}"
    lines = [*style.frontmatter(), graph, *_write_nodes(model, ids, None)]
    lines += [f"    {_arrow(edge, ids, style.wrap_label_n_words)}" for edge in model.edge_records]
    if style.with_styles:
        lines += _write_styles(model, ids, style.css())
    return "\n".join(lines) + "\n"


def _write_styles(
    model: GraphModel, ids: dict[str, str], styles: Mapping[str, str]
) -> Iterator[str]:
    """Yield the lines that set the styles of nodes."""
    for style, css in styles.items():
        names = [ids[node.id] for node in model.node_records if style in traits(node)]
        if style == "default" or names:
            yield f"    classDef {_class(style)} {css}"
        if names:
            yield f"    class {','.join(names)} {_class(style)}"


def _write_nodes(model: GraphModel, ids: dict[str, str], holder: str | None) -> Iterator[str]:
    """Yield the lines of the nodes and clusters in a cluster, or at the top."""
    for part in model.levels.get(holder, ()):
        if part.kind == "cluster":
            yield f'    subgraph {ids[part.id]}["{_text(part)}"]'
            yield from (f"    {line}" for line in _write_nodes(model, ids, part.id))
            yield "    end"
        else:
            yield f"    {ids[part.id]}{_FORMS[part.kind].format(_text(part))}"


def _class(style: str) -> str:
    return {"start": "first", "end": "last"}.get(style, style)  # `end` is a Mermaid keyword


def _text(node: GraphNode) -> str:
    """Return the label and, below it in small type, the node's notes."""
    return (_escape(node.label) or " ") + "".join(
        f"<br/><small>{_escape(note)}</small>" for note in notes(node)
    )


def _arrow(edge: GraphEdge, ids: dict[str, str], most: int) -> str:
    words = edge_text(edge).split(" ")
    label = "\n".join(" ".join(words[at : at + most]) for at in range(0, len(words), most))
    arrow = ("-->" if edge.certain else "-.->") + (f'|"{_escape(label)}"|' if label else "")
    return f"{ids[edge.source]} {arrow} {ids[edge.target]}"


def _escape(text: str) -> str:
    """Escape text for double quotes in Mermaid, where Markdown, icons and formulas have a
    meaning."""
    return "".join(_ENTITIES.get(character, character) for character in text)


_ENTITIES = {"\n": "<br/>", "&": "#amp;", '"': "#quot;", "<": "#lt;", ">": "#gt;"}
_ENTITIES |= {mark: f"#{ord(mark)};" for mark in "#\\*`$:%"}
