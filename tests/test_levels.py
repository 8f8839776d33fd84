"""Edges of nested drawings as those of their levels, and which of them close a circle there."""

from __future__ import annotations

from stategraph.visualize.levels import lifted, turned_at_clusters
from stategraph.visualize.shape import Edge, Node, Shape


def nested(*edges: Edge) -> Shape:
    """a, and the clusters c and c:d, each with a start, an end and a node n; c:d lies in c."""
    nodes = [Node("a", "a")]
    for holder in ("c", "c:d"):
        nodes += [Node(f"{holder}:{name}", name, kind, holder) for name, kind in (("s", "start"), ("n", "node"), ("e", "end"))]  # type: ignore[arg-type]
    return Shape("", tuple(nodes), edges, (Node("c", "c", "cluster"), Node("c:d", "d", "cluster", "c")))


def ends(*edges: Edge) -> list[tuple[str, str]]:
    return [edge[:2] for edge in lifted(nested(*edges))]  # type: ignore[misc]


def test_what_leads_to_the_start_inside_leads_to_the_cluster() -> None:
    assert ends(Edge("a", "c:s"), Edge("c:e", "a"), Edge("c:n", "c:d:s"), Edge("c:d:e", "c:e")) == [
        ("a", "c"), ("c", "a"), ("c:n", "c:d"), ("c:d", "c:e"),
    ]  # fmt: skip


def test_edges_inside_stay_inside() -> None:
    assert ends(Edge("c:s", "c:n"), Edge("c:d:n", "c:d:e")) == [("c:s", "c:n"), ("c:d:n", "c:d:e")]


def test_a_cluster_may_lead_to_itself() -> None:
    assert ends(Edge("c:e", "c:s")) == [("c", "c")]


def test_an_edge_across_levels_is_one_of_the_outer_level() -> None:
    assert ends(Edge("a", "c:d:n"), Edge("c:d:n", "c:n")) == [("a", "c"), ("c:d", "c:n")]


def test_the_way_back_from_a_cluster_is_known() -> None:
    there, back = Edge("a", "c:s"), Edge("c:e", "a")
    assert turned_at_clusters(nested(there, back)) == {back}
    assert turned_at_clusters(nested(back, there)) == {back}
    assert turned_at_clusters(nested(there)) == set()
    assert turned_at_clusters(nested(Edge("c:n", "c:n"), Edge("a", "a"))) == set()
