"""Turns a drawing into a web page with pan and zoom by mouse, touch or keys; a graph gets a legend
of the symbols that occur. It loads nothing, and its script uses only the picture."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, cast, get_args

from .assets import read_asset
from .labels import EDGE_KINDS, NODE_KINDS, tell_join, traits
from .layout.geometry import Box, GraphLayout, Route
from .layout.measure import node_size
from .markup import Markup, fill
from .model import EdgeKind, GraphEdge, GraphModel, GraphNode, Role
from .svg import draw_svg
from .theme import DARK, LIGHT, Theme


def draw_html(model: GraphModel, svg: str, theme: Theme = "auto") -> str:
    """Return the page of a graph.

    Args:
        svg: the drawing of the model, in the same theme.
    """
    samples = [
        fill("<li>{}<span>{}</span></li>", Markup(sample), text)
        for sample, text in _legend(model, theme)
    ]
    return draw_page(model.name, _counts(model), svg, theme, samples)


def draw_page(
    name: str, facts: str, svg: str, theme: Theme, legend: Iterable[Markup] = ()
) -> Markup:
    """Return the page of any drawing, with its facts beside its name."""
    follows = theme == "auto"
    return fill(
        read_asset("page.html"),
        chosen=Markup("" if follows else f' data-theme="{theme}"'),
        name=name,
        style=Markup(f"{_colours()}\n{read_asset('page.css')}"),
        facts=facts,
        switch=_SWITCH if follows else "",
        svg=Markup(svg),
        legend=legend,
        script=Markup(read_asset("page.js")),
    )


_SWITCH = Markup('<button id="theme" title="light or dark">theme</button>')


def _counts(model: GraphModel) -> str:
    nodes = sum(node.kind in ("node", "subgraph") for node in model.node_records)
    edges, nested = model.number_of_edges(), len(model.clusters)
    counts = [(nodes, "node"), (edges, "edge"), (nested, "nested graph")]
    return ", ".join(f"{count} {what}{'s' * (count != 1)}" for count, what in counts if count)


# -- the legend ------------------------------------------------------------------------------------


def _legend(model: GraphModel, theme: Theme) -> Iterator[tuple[str, str]]:
    """Yield a sample and a sentence for each kind of node and edge that occurs and needs an
    explanation."""
    found = {trait for node in model.node_records for trait in traits(node)} - {"start", "end"}
    for trait, text in NODE_KINDS.items():
        if trait == "join":
            labels = dict.fromkeys(node.label for node in model.node_records if node.kind == "join")
            for label in labels:
                yield _sample_node(trait, theme, label), tell_join(label)
        elif trait in found:
            yield _sample_node(trait, theme), text
    kinds = {edge.kind for edge in model.edge_records}
    for kind, text in EDGE_KINDS.items():
        if kind in kinds and kind != "join":  # drawn like a plain edge
            yield _sample_edge(cast(EdgeKind, kind), theme), text


_WIDE, _HIGH = 70.0, 40.0


def _sample_node(trait: str, theme: Theme, label: str = "") -> str:
    shown: dict[str, Any] = {
        "subgraph": {"kind": "subgraph"},
        "join": {"kind": "join"},
        "unknown": {"kind": "unknown", "label": "any"},
        "breakpoint": {"before": True},
        "unreached": {"reached": False},
        **{role: {"roles": (role,)} for role in get_args(Role)},
    }
    more = shown.get(trait) or ({trait: True} if trait in GraphNode._fields else {})
    node = GraphNode("", label)._replace(**more)
    width, height = min(node_size(node).width, 52), min(node_size(node).height, 28)
    box = Box("", (_WIDE - width) / 2, (_HIGH - height) / 2, width, height)
    return _sample(GraphModel("", (node,), ()), GraphLayout(_WIDE, _HIGH, {"": box}, {}, ()), theme)


def _sample_edge(kind: EdgeKind, theme: Theme) -> str:
    middle = _HIGH / 2
    points = ((4.0, middle), (20.0, middle), (40.0, middle), (_WIDE - 4, middle))
    edge = GraphEdge("", "", kind)
    return _sample(
        GraphModel("", (), (edge,)),
        GraphLayout(_WIDE, _HIGH, {}, {}, (Route(edge, points),)),
        theme,
    )


def _sample(model: GraphModel, layout: GraphLayout, theme: Theme) -> str:
    """Return a small drawing, which uses the style sheet of the large one."""
    svg = draw_svg(model, layout, theme=theme)
    svg = re.sub(r"<style>.*?</style>|<title>.*?</title>", "", svg, flags=re.DOTALL)
    return svg.replace('role="img" aria-label="graph"', 'aria-hidden="true"')


# -- the page --------------------------------------------------------------------------------------


def _colours() -> str:
    """Return the colours of the drawing as CSS for the page around it."""
    light, dark = (
        "".join(
            f"--{name}:{some[name]};" for name in ("page", "ink", "soft", "cluster", "cluster-line")
        )
        for some in (LIGHT, DARK)
    )
    return (
        f":root{{{light}color-scheme:light}}"
        f"@media(prefers-color-scheme:dark){{:root{{{dark}color-scheme:dark}}}}"
        f':root[data-theme="light"]{{{light}color-scheme:light}}'
        f':root[data-theme="dark"]{{{dark}color-scheme:dark}}'
    )
