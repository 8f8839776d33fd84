"""Folds a graph that is too wide to be read: nodes with the same edges are drawn as one node, with
their count and their names.

This module only makes records; it draws nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from textwrap import wrap
from typing import NamedTuple

import networkx

from ..pregel.names import NS_END, join_id
from .group import group
from .labels import label_lines, natural_key
from .layout.geometry import GraphLayout
from .layout.measure import one_line
from .layout.pixels import arrange
from .model import Direction, GraphEdge, GraphModel, GraphNode

WIDEST = 1080.0
"""The widest drawing that is not folded, in pixels. A notebook cell has about 900; wider drawings
become too small to read."""
FOLDABLE = ("node", "subgraph", "steps")
MOST_ENDS = 8
"""How many edges lead to an END before they become marks."""
FEWEST = 6
"""Fewer nodes than this are never folded."""
LINE, LINES = 44, 6
"""Characters per line of names, and the maximum number of lines."""


class FittedGraph(NamedTuple):
    """A graph as it is drawn where there is little room.

    Attributes:
        homes: for each folded node, the id of the node that represents it.
    """

    model: GraphModel
    layout: GraphLayout
    homes: Mapping[str, str]


def fit(model: GraphModel, direction: Direction = "TB") -> FittedGraph:
    """Return the graph with its layout, folded if it is wider than `WIDEST`, or as high if edges
    lead to the right."""
    model = mark_ends(model)
    layout = arrange(model, direction)
    if (layout.height if direction == "LR" else layout.width) > WIDEST:
        folded, homes = fold(model)
        if homes:
            return FittedGraph(folded, arrange(folded, direction), homes)
    return FittedGraph(model, layout, {})


def mark_ends(model: GraphModel) -> GraphModel:
    """Return the graph with a mark on each node that leads to an END, instead of an edge, where
    `MOST_ENDS` or more nodes lead there and have other edges, too."""
    leads = group((edge.source, edge.target) for edge in model.edge_records)
    ends = {node.id for node in model.node_records if node.kind == "end"}
    kinds = {part.id: part.kind for part in model.parts}
    marked = {
        edge
        for edge in model.edge_records
        if edge.target in ends
        and len(set(leads[edge.source])) > 1
        and kinds[edge.source] in ("node", "subgraph")
    }
    sources = {edge.source for edge in marked}
    if len(sources) < MOST_ENDS:
        return model
    edges = [edge for edge in model.edge_records if edge not in marked]
    kept = {end for edge in edges for end in edge[:2]}
    nodes = [
        node._replace(ends=node.id in sources)
        for node in model.node_records
        if node.id not in ends or node.id in kept
    ]
    return GraphModel(model.name, nodes, edges, model.clusters)


def fold(model: GraphModel) -> tuple[GraphModel, dict[str, str]]:
    """Return the graph with all groups of `FEWEST` or more equivalent nodes folded into one node
    each, and the id of that node for each of them.

    Nodes are equivalent if their edges lead to and from equivalent nodes: so 200 branches of two
    nodes each become two nodes. A label is left out if not all merged edges have it.
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
    nodes = dict.fromkeys(homes.get(node.id, node.id) for node in model.node_records)
    whole = {node.id: node for node in model.node_records} | drawn
    labels = group(
        ((homes.get(e.source, e.source), homes.get(e.target, e.target), e.kind), e.label)
        for e in model.edge_records
    )
    edges = (
        GraphEdge(*ends, found[0] if len(set(found)) == 1 else "") for ends, found in labels.items()
    )
    folded = GraphModel(model.name, [whole[id] for id in nodes], edges, model.clusters)
    return folded, homes


def fold_rows(rows: Sequence[str], steps: Mapping[str, Hashable]) -> dict[str, str]:
    """Fold the rows of a table, by id: those on one level that took part in the same steps.

    Args:
        steps: the steps of each row, as any hashable value.
    """
    holders = {row.rpartition(NS_END)[0] for row in rows}
    alike = group(
        ((row.rpartition(NS_END)[0], steps.get(row)), row) for row in rows if row not in holders
    )
    return {row: name_group(mine) for mine in alike.values() if len(mine) >= FEWEST for row in mine}


def name_group(ids: Sequence[str]) -> str:
    """Return the id of a node that represents several: from the first to the last of them."""
    inside, _, first = ids[0].rpartition(NS_END)
    return join_id(inside, f"{first} … {ids[-1].rpartition(NS_END)[2]}")


def _find_alike(model: GraphModel) -> Iterable[list[GraphNode]]:
    """Return groups of equivalent nodes: partition the nodes by their appearance, and refine by the
    edges until nothing changes."""
    steps = _count_steps(model)
    colours = _number(
        {
            # Metadata, label and data are ignored; parts that cannot be folded stay alone.
            part.id: (steps.get(part.id), *part[2:-2], part.kind in FOLDABLE or part.id)
            for part in model.parts
        }
    )
    while True:
        ends = group(
            pair
            for edge in model.edge_records
            for pair in (
                (edge.source, ("to", edge.kind, colours[edge.target])),
                (edge.target, ("from", edge.kind, colours[edge.source])),
            )
        )
        finer = _number({id: (colour, *sorted(ends.get(id, ()))) for id, colour in colours.items()})
        if len(set(finer.values())) == len(set(colours.values())):
            break
        colours = finer
    alike = group((colours[node.id], node) for node in model.node_records)
    return [nodes for nodes in alike.values() if len(nodes) >= FEWEST]


def _count_steps(model: GraphModel) -> dict[str, int]:
    """Return the least number of edges from the start to each node. Without these, each round of
    refinement would tell only one more node of a long chain apart."""
    found: dict[str, int] = {}
    for node in model.node_records:
        if node.kind == "start" and node.inside is None:
            found |= networkx.single_source_shortest_path_length(model, node.id)
    return found


def _number(values: Mapping[str, Hashable]) -> dict[str, int]:
    """Replace each value by a number; equal values get the same."""
    known: dict[Hashable, int] = {}
    return {key: known.setdefault(value, len(known)) for key, value in values.items()}


def _list_names(nodes: Sequence[GraphNode]) -> str:
    """Return the number of nodes and, below it, their names; of many, the first ones and the
    last."""
    names = [one_line(label_lines(node)[0]) for node in nodes]
    lines = wrap(", ".join(names), LINE, break_on_hyphens=False)
    if len(lines) > LINES:
        lines = [*lines[: LINES - 1], f"... {names[-1]}"]
    what = "branches" if nodes[0].kind == "steps" else "nodes"
    return "\n".join([f"{len(nodes):,} {what}", *lines])
