"""A GraphModel and its SVG → one web page to look at: moved and zoomed by mouse, finger or keys,
with a legend of what occurs. It loads nothing from anywhere, and its script knows nothing but the
picture.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Final, cast

from .labels import EDGE_KINDS, NODE_KINDS, traits
from .layout.geometry import Box, GraphLayout, Route
from .layout.measure import node_size
from .model import EdgeKind, GraphEdge, GraphModel, GraphNode, NodeKind
from .svg import draw_svg
from .theme import DARK, LIGHT, Theme


def draw_html(model: GraphModel, svg: str, theme: Theme = "auto") -> str:
    """The page.

    Args:
        svg: the drawing of the model, in the same theme.
    """
    name = escape(model.name)
    legend = "".join(
        f"<li>{sample}<span>{escape(text)}</span></li>" for sample, text in _legend(model, theme)
    )
    chosen = "" if theme == "auto" else f' data-theme="{theme}"'
    switch = '<button id="theme" title="light or dark">theme</button>' if theme == "auto" else ""
    return f"""<!doctype html>
<html lang="en"{chosen}>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{name}</title>
<style>{_colours()}{_STYLE}</style>
</head>
<body>
<header><h1>{name}</h1><p>{_counts(model)}</p>
<nav><button id="out" title="smaller (-)">&minus;</button><button id="fit"
 title="show all (0)">fit</button><button id="in"
 title="larger (+)">+</button>{switch}</nav></header>
<main id="view">
{svg}</main>
<aside><ul>{legend}</ul></aside>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _counts(model: GraphModel) -> str:
    nodes = sum(node.kind in ("node", "subgraph") for node in model.nodes)
    counts = [(nodes, "node"), (len(model.edges), "edge"), (len(model.clusters), "nested graph")]
    return ", ".join(f"{count} {what}{'s' * (count != 1)}" for count, what in counts if count)


# -- the legend ------------------------------------------------------------------------------------


def _legend(model: GraphModel, theme: Theme) -> Iterator[tuple[str, str]]:
    """A sample and a sentence for each kind of node and edge that occurs and does not speak for
    itself."""
    found = {trait for node in model.nodes for trait in traits(node)} - {"start", "end"}
    for trait, text in NODE_KINDS.items():
        if trait in found:
            yield _sample_node(trait, theme), text
    kinds = {edge.kind for edge in model.edges}
    for kind, text in EDGE_KINDS.items():
        if kind in kinds and kind != "join":  # drawn like a plain one
            yield _sample_edge(cast(EdgeKind, kind), theme), text


_WIDE, _HIGH = 70.0, 40.0


def _sample_node(trait: str, theme: Theme) -> str:
    kind: NodeKind = "node"
    if trait in ("subgraph", "join", "unknown"):
        kind = cast(NodeKind, trait)
    label = {"join": "all", "unknown": "any"}.get(trait, "")
    node = GraphNode(
        "",
        label,
        kind,
        deferred=trait == "deferred",
        handler=trait == "handler",
        before=trait == "breakpoint",
        reached=trait != "unreached",
    )
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
    """A small drawing; the large one has brought the style sheet."""
    svg = draw_svg(model, layout, theme=theme)
    svg = re.sub(r"<style>.*?</style>|<title>.*?</title>", "", svg, flags=re.DOTALL)
    return svg.replace('role="img" aria-label="graph"', 'aria-hidden="true"')


# -- the page --------------------------------------------------------------------------------------


def _colours() -> str:
    """The colours of the drawing, for the page around it."""
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


_STYLE: Final = """
*{box-sizing:border-box}
body{margin:0;height:100vh;display:flex;flex-direction:column;
 background:var(--page);color:var(--ink);
 font:14px/1.4 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
header{display:flex;align-items:baseline;gap:1em;padding:.7em 1em;
 border-bottom:1px solid var(--cluster-line)}
h1{font-size:1.1em;margin:0;overflow-wrap:anywhere}
p{margin:0;color:var(--soft);flex:1}
button{font:inherit;min-width:2.2em;margin-left:.3em;padding:.2em .5em;
 border-radius:6px;cursor:pointer;
 color:var(--ink);background:var(--cluster);border:1px solid var(--cluster-line)}
main{flex:1;min-height:0;overflow:auto;text-align:center}
main.alive{overflow:hidden;cursor:grab;touch-action:none}
main.alive:active{cursor:grabbing}
main.alive>svg{width:100%;height:100%;max-width:none!important;display:block}
aside{border-top:1px solid var(--cluster-line)}
aside:has(ul:empty){display:none}
ul{list-style:none;margin:0;padding:.4em 1em;display:flex;flex-wrap:wrap;
 gap:.1em 1.6em;color:var(--soft)}
li{display:flex;align-items:center;gap:.5em}
.node,.edge,.cluster{transition:opacity .12s}
.node{outline:none}
.asked .node:not(.lit),.asked .edge:not(.lit){opacity:.18}
.asked .edge.lit .line{stroke-width:2.6}
@media print{nav{display:none}body{height:auto}}
"""

# The view is the SVG's viewBox: `at` is its corner, `scale` how many px of the screen one unit
# takes.
_SCRIPT: Final = """
"use strict";
(() => {
  const main = document.getElementById("view"), svg = main.querySelector("svg");
  const whole = svg.viewBox.baseVal, wide = whole.width, high = whole.height;
  let x, y, scale;
  main.classList.add("alive");
  svg.setAttribute("preserveAspectRatio", "xMinYMin meet");
  const show = () => svg.setAttribute("viewBox",
    [x, y, main.clientWidth / scale, main.clientHeight / scale].join(" "));
  const fit = () => {
    scale = Math.min(1.5, main.clientWidth / wide, main.clientHeight / high);
    x = (wide - main.clientWidth / scale) / 2;
    y = (high - main.clientHeight / scale) / 2;
    show();
  };
  const zoom = (by, px = main.clientWidth / 2, py = main.clientHeight / 2) => {
    const next = Math.min(8, Math.max(0.05, scale * by));
    x += px / scale - px / next;
    y += py / scale - py / next;
    scale = next;
    show();
  };
  const place = e => {
    const box = main.getBoundingClientRect();
    return [e.clientX - box.left, e.clientY - box.top];
  };
  const fingers = new Map();
  main.addEventListener("wheel", e => {
    e.preventDefault();
    zoom(Math.exp(-e.deltaY * (e.deltaMode ? 0.05 : 0.0015)), ...place(e));
  }, {passive: false});
  main.addEventListener("pointerdown", e => {
    fingers.set(e.pointerId, place(e));
    main.setPointerCapture(e.pointerId);
  });
  main.addEventListener("pointermove", e => {
    if (!fingers.has(e.pointerId)) return light(e.target);
    const old = fingers.get(e.pointerId), now = place(e);
    const other = [...fingers].filter(([id]) => id !== e.pointerId).map(([, at]) => at)[0];
    fingers.set(e.pointerId, now);
    if (other) {
      const far = at => Math.hypot(at[0] - other[0], at[1] - other[1]) || 1;
      zoom(far(now) / far(old), other[0], other[1]);
    } else {
      x -= (now[0] - old[0]) / scale;
      y -= (now[1] - old[1]) / scale;
      show();
    }
  });
  for (const over of ["pointerup", "pointercancel"])
    main.addEventListener(over, e => fingers.delete(e.pointerId));
  main.addEventListener("dblclick", fit);
  addEventListener("resize", fit);
  addEventListener("keydown", e => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const step = 60 / scale;
    const keys = {
      "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8), "0": fit,
      ArrowLeft: () => { x -= step; show(); }, ArrowRight: () => { x += step; show(); },
      ArrowUp: () => { y -= step; show(); }, ArrowDown: () => { y += step; show(); },
    };
    if (keys[e.key]) { e.preventDefault(); keys[e.key](); }
  });
  document.getElementById("in").onclick = () => zoom(1.25);
  document.getElementById("out").onclick = () => zoom(0.8);
  document.getElementById("fit").onclick = fit;
  const theme = document.getElementById("theme"), root = document.documentElement;
  if (theme) theme.onclick = () => {
    const system = matchMedia("(prefers-color-scheme:dark)").matches ? "dark" : "light";
    const dark = (root.dataset.theme || system) === "dark";
    root.dataset.theme = dark ? "light" : "dark";
  };
  // What is pointed at keeps its colour, with the edges and nodes beside it; the rest fades.
  const edges = [...svg.querySelectorAll(".edge")];
  const light = target => {
    const part = target.closest && target.closest(".node,.edge");
    svg.classList.toggle("asked", Boolean(part));
    const ends = new Set(part ? [part.dataset.node] : []), lit = new Set([part]);
    if (part) for (const edge of edges)
      if (edge === part || [edge.dataset.source, edge.dataset.target].includes(part.dataset.node)) {
        lit.add(edge);
        ends.add(edge.dataset.source).add(edge.dataset.target);
      }
    for (const one of svg.querySelectorAll(".node,.edge"))
      one.classList.toggle("lit", lit.has(one) || ends.has(one.dataset.node));
  };
  main.addEventListener("pointerleave", () => light(main));
  for (const node of svg.querySelectorAll(".node")) {
    node.setAttribute("tabindex", "0");
    node.addEventListener("focus", () => light(node));
    node.addEventListener("blur", () => light(main));
  }
  fit();
})();
"""
