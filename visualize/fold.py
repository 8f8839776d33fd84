"""A graph that is too wide to be read → the same graph with the nodes that stand in the same place
of it drawn as one, with their count and their names.

Only records are made here, and nothing is painted.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from textwrap import wrap
from typing import NamedTuple

from ..pregel.names import NS_END
from .group import group
from .labels import label_lines, natural_key
from .layout.geometry import GraphLayout
from .layout.measure import one_line
from .layout.pixels import arrange
from .model import GraphEdge, GraphModel, GraphNode, join_id

WIDEST = 1080.0
"""Pixels. A cell of a notebook has about 900; what is wider than this gets too small to be read."""
FOLDABLE = ("node", "subgraph", "steps")
FEWEST = 6
"""Fewer nodes than this are never drawn as one."""
LINE, LINES = 44, 6
"""Characters of a line of names, and the most lines."""


class FittedGraph(NamedTuple):
    """A graph as it is drawn where there is little room.

    Attributes:
        homes: for each node that is not drawn by itself, the id of the one that stands for it.
    """

    model: GraphModel
    layout: GraphLayout
    homes: Mapping[str, str]


def fit(model: GraphModel) -> FittedGraph:
    """The graph with its layout; folded if it is wider than `WIDEST`."""
    layout = arrange(model)
    if layout.width > WIDEST:
        folded, homes = fold(model)
        if homes:
            return FittedGraph(folded, arrange(folded), homes)
    return FittedGraph(model, layout, {})


def fold(model: GraphModel) -> tuple[GraphModel, dict[str, str]]:
    """The graph with every `FEWEST` or more nodes that nothing but their names tells apart as one
    node, and for each of these its id.

    Nodes are alike if their edges lead to and from nodes that are alike: so 200 branches of two
    nodes each become two nodes. A label that not all of the edges have in common is left out.
    """
    homes: dict[str, str] = {}
    drawn: dict[str, GraphNode] = {}
    for alike in _find_alike(model):
        ordered = sorted(alike, key=lambda node: natural_key(node.label))
        home = name_group([node.id for node in ordered])
        homes |= {node.id: home for node in alike}
        drawn[home] = ordered[0]._replace(
            id=home, label=_list_names(ordered), kind="folded", metadata={}, data=None
        )
    nodes = dict.fromkeys(homes.get(node.id, node.id) for node in model.nodes)
    whole = {node.id: node for node in model.nodes} | drawn
    labels = group(
        ((homes.get(e.source, e.source), homes.get(e.target, e.target), e.kind), e.label)
        for e in model.edges
    )
    edges = (
        GraphEdge(*ends, found[0] if len(set(found)) == 1 else "") for ends, found in labels.items()
    )
    folded = GraphModel(model.name, tuple(whole[id] for id in nodes), tuple(edges), model.clusters)
    return folded, homes


def fold_rows(rows: Sequence[str], steps: Mapping[str, Hashable]) -> dict[str, str]:
    """The same for the rows of a table, by their ids: those on one level that took part in the same
    steps.

    Args:
        steps: of each row, in any form that can be compared.
    """
    holders = {row.rpartition(NS_END)[0] for row in rows}
    alike = group(
        ((row.rpartition(NS_END)[0], steps.get(row)), row) for row in rows if row not in holders
    )
    return {row: name_group(mine) for mine in alike.values() if len(mine) >= FEWEST for row in mine}


def name_group(ids: Sequence[str]) -> str:
    """The id of what stands for several nodes: from the first to the last of them."""
    inside, _, first = ids[0].rpartition(NS_END)
    return join_id(inside, f"{first} … {ids[-1].rpartition(NS_END)[2]}")


def _find_alike(model: GraphModel) -> Iterable[list[GraphNode]]:
    """Nodes that nothing tells apart: a partition by what is drawn of a node, refined by the edges
    until nothing changes any more."""
    steps = _count_steps(model)
    colours = _number(
        {
            # Metadata, label and data are no part of the place of a node; only nodes fold.
            part.id: (steps.get(part.id), *part[2:-2], part.kind in FOLDABLE or part.id)
            for part in model.parts
        }
    )
    while True:
        ends = group(
            pair
            for edge in model.edges
            for pair in (
                (edge.source, ("to", edge.kind, colours[edge.target])),
                (edge.target, ("from", edge.kind, colours[edge.source])),
            )
        )
        finer = _number({id: (colour, *sorted(ends.get(id, ()))) for id, colour in colours.items()})
        if len(set(finer.values())) == len(set(colours.values())):
            break
        colours = finer
    alike = group((colours[node.id], node) for node in model.nodes)
    return [nodes for nodes in alike.values() if len(nodes) >= FEWEST]


def _count_steps(model: GraphModel) -> dict[str, int]:
    """How many edges lead from a start to each node at least. Without them a long chain would be
    told apart only one node a round."""
    onward = group((edge.source, edge.target) for edge in model.edges)
    found = {node.id: 0 for node in model.nodes if node.kind == "start" and node.inside is None}
    border = list(found)
    for id in border:
        fresh = dict.fromkeys(target for target in onward.get(id, ()) if target not in found)
        found |= dict.fromkeys(fresh, found[id] + 1)
        border += fresh
    return found


def _number(values: Mapping[str, Hashable]) -> dict[str, int]:
    """A number for each value instead of it; equal ones have the same."""
    known: dict[Hashable, int] = {}
    return {key: known.setdefault(value, len(known)) for key, value in values.items()}


def _list_names(nodes: Sequence[GraphNode]) -> str:
    """How many they are, and below it their names; of many the first ones and the last."""
    names = [one_line(label_lines(node)[0]) for node in nodes]
    lines = wrap(", ".join(names), LINE, break_on_hyphens=False)
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], f"... {names[-1]}"]
    what = "branches" if nodes[0].kind == "steps" else "nodes"
    return "\n".join([f"{len(nodes):,} {what}", *lines])
