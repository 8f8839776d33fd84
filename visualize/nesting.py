"""Lifts a model's edges to the levels of its clusters: an edge to the start inside a cluster
becomes one to the cluster. For drawings in which edges end at the borders of clusters."""

from __future__ import annotations

from .layout.grid import GridLink, turn_links
from .layout.measure import Size
from .model import GraphEdge, GraphModel, GraphNode


def lift_edges(model: GraphModel) -> list[GraphEdge]:
    """Return each edge as one between two parts of the same level, in the order of the edges."""
    nodes = {part.id: part for part in model.parts}

    def path(name: str) -> list[str]:
        inside = nodes[name].inside
        return [*(path(inside) if inside is not None else ()), name]

    def lift(edge: GraphEdge) -> GraphEdge:
        source, target = nodes[edge.source], nodes[edge.target]
        begins = path(source.inside if source.kind == "end" and source.inside else source.id)
        ends = path(target.inside if target.kind == "start" and target.inside else target.id)
        common = sum(a == b for a, b in zip(begins, ends, strict=False))
        return edge._replace(
            source=begins[min(common, len(begins) - 1)], target=ends[min(common, len(ends) - 1)]
        )

    return [lift(edge) for edge in model.edge_records]


def find_reversed(model: GraphModel) -> set[GraphEdge]:
    """Return the edges from or to a cluster that the built-in layout would draw upwards: they close
    a cycle on their level."""
    clusters = {cluster.id for cluster in model.clusters}
    lifted = list(zip(model.edge_records, lift_edges(model), strict=True))
    found = set()
    for level in model.levels.values():
        names = {part.id for part in level}
        mine = [pair for pair in lifted if names.issuperset(pair[1][:2])]
        back = _find_back_edges(level, [edge for _, edge in mine])
        found |= {
            edge
            for edge, lifted_edge in mine
            if lifted_edge in back and clusters.intersection(lifted_edge[:2])
        }
    return found


def _find_back_edges(level: list[GraphNode], edges: list[GraphEdge]) -> set[GraphEdge]:
    """Return the edges of one level that are drawn upwards."""
    place = {node.id: number for number, node in enumerate(level)}
    links = [GridLink(e, place[e.source], place[e.target], Size(0, 0)) for e in edges]
    first = next((place[node.id] for node in level if node.kind == "start"), None)
    turn_links(len(level), links, first)
    return {link.edge for link in links if link.back and link.upper != link.lower}
