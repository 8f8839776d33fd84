"""Edges of nested drawings as those of their levels, and which of them close a cycle there."""

from __future__ import annotations

from stategraph.visualize.model import GraphEdge, GraphModel, GraphNode
from stategraph.visualize.nesting import find_reversed, lift_edges


def nested(*edges: GraphEdge):
    """a, and the clusters c and c:d, each with a start, an end and a node n; c:d lies in c."""
    nodes = [GraphNode("a", "a")]
    for holder in ("c", "c:d"):
        nodes += [GraphNode(f"{holder}:{name}", name, kind, holder) for name, kind in (("s", "start"), ("n", "node"), ("e", "end"))]  # type: ignore[arg-type]
    return GraphModel("", tuple(nodes), edges, (GraphNode("c", "c", "cluster"), GraphNode("c:d", "d", "cluster", "c")))


def ends(*edges: GraphEdge):
    return [edge[:2] for edge in lift_edges(nested(*edges))]  # type: ignore[misc]


def test_what_leads_to_the_start_inside_leads_to_the_cluster():
    assert ends(GraphEdge("a", "c:s"), GraphEdge("c:e", "a"), GraphEdge("c:n", "c:d:s"), GraphEdge("c:d:e", "c:e")) == [
        ("a", "c"), ("c", "a"), ("c:n", "c:d"), ("c:d", "c:e"),
    ]  # fmt: skip


def test_edges_inside_stay_inside():
    assert ends(GraphEdge("c:s", "c:n"), GraphEdge("c:d:n", "c:d:e")) == [("c:s", "c:n"), ("c:d:n", "c:d:e")]


def test_a_cluster_may_lead_to_itself():
    assert ends(GraphEdge("c:e", "c:s")) == [("c", "c")]


def test_an_edge_across_levels_is_one_of_the_outer_level():
    assert ends(GraphEdge("a", "c:d:n"), GraphEdge("c:d:n", "c:n")) == [("a", "c"), ("c:d", "c:n")]


def test_the_way_back_from_a_cluster_is_known():
    there, back = GraphEdge("a", "c:s"), GraphEdge("c:e", "a")
    assert find_reversed(nested(there, back)) == {back}
    assert find_reversed(nested(back, there)) == {back}
    assert find_reversed(nested(there)) == set()
    assert find_reversed(nested(GraphEdge("c:n", "c:n"), GraphEdge("a", "a"))) == set()
