"""A model's edges as those of its levels: an edge to the start inside a cluster leads to the
cluster, a level up. For drawings in which edges end at the borders of clusters.
"""

from __future__ import annotations

from .layout.grid import GridLink, turn_links
from .layout.measure import Size
from .model import GraphEdge, GraphModel


def lift_edges(model: GraphModel) -> list[GraphEdge]:
    """Each edge between two parts of one and the same level, in the order of the edges."""
    nodes = {node.id: node for node in (*model.nodes, *model.clusters)}

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

    return [lift(edge) for edge in model.edges]


def find_reversed(model: GraphModel, *, at_clusters: bool = False) -> set[GraphEdge]:
    """The edges that the built-in layout would draw upwards: they close a circle on their level.

    Args:
        at_clusters: only those from or to a cluster.
    """
    parts = (*model.nodes, *model.clusters)
    lifted = list(zip(model.edges, lift_edges(model), strict=True))
    found = set()
    for holder in {part.inside for part in parts}:
        level = [part for part in parts if part.inside == holder]
        place = {part.id: number for number, part in enumerate(level)}
        mine = [pair for pair in lifted if pair[1].source in place and pair[1].target in place]
        links = [GridLink(e, place[e.source], place[e.target], Size(0, 0)) for _, e in mine]
        first = next((place[part.id] for part in level if part.kind == "start"), None)
        turn_links(len(level), links, first)
        back = {link.edge for link in links if link.back and link.upper != link.lower}
        found |= {edge for edge, lifted_edge in mine if lifted_edge in back}
    if at_clusters:
        clusters = {cluster.id for cluster in model.clusters}
        found &= {edge for edge, e in lifted if e.source in clusters or e.target in clusters}
    return found
