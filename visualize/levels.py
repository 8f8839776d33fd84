"""A Shape's edges as those of its levels: what leads to the start inside a cluster leads to the cluster, a level up."""

from __future__ import annotations

from .shape import Edge, Shape
from .text_grid import Link, rank


def lifted(shape: Shape) -> list[Edge]:
    """Each edge between two parts of one and the same level, in the order of the edges."""
    nodes = {node.id: node for node in (*shape.nodes, *shape.clusters)}

    def way(name: str) -> list[str]:
        inside = nodes[name].inside
        return [*(way(inside) if inside is not None else ()), name]

    def one(edge: Edge) -> Edge:
        source, target = nodes[edge.source], nodes[edge.target]
        begins = way(source.inside if source.kind == "end" and source.inside else source.id)
        ends = way(target.inside if target.kind == "start" and target.inside else target.id)
        common = sum(a == b for a, b in zip(begins, ends, strict=False))
        return edge._replace(
            source=begins[min(common, len(begins) - 1)], target=ends[min(common, len(ends) - 1)]
        )

    return [one(edge) for edge in shape.edges]


def turned_at_clusters(shape: Shape) -> set[Edge]:
    """The edges from or to a cluster that close a circle on their level."""
    parts, edges = (*shape.nodes, *shape.clusters), lifted(shape)
    clusters = {cluster.id for cluster in shape.clusters}
    found = set()
    for holder in {part.inside for part in parts}:
        names = {part.id: None for part in parts if part.inside == holder}
        mine = [number for number, edge in enumerate(edges) if edge.source in names]
        _, turned = rank(list(names), [Link(edges[number].source, edges[number].target) for number in mine], None)
        found |= {shape.edges[mine[place]] for place in turned if clusters.intersection(edges[mine[place]][:2])}
    return found
