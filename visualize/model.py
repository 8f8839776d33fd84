"""The content of a drawing, as plain records: nodes, edges and the boxes around nested graphs.

This module reads no graph and renders nothing: `extract` makes a GraphModel, the renderers take
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..pregel.names import NS_END
from .group import group

if TYPE_CHECKING:
    import networkx

NodeKind = Literal[
    "start", "end", "node", "subgraph", "join", "unknown", "cluster", "folded", "steps"
]
"""`join` waits for all that lead to it; `unknown` represents the possible targets of a router
without declared ends; `cluster` is a node whose graph is shown inside it; `folded` represents
several nodes, in drawings only; `steps` represents consecutive checkpoints, in drawings of a
thread's branches."""

EdgeKind = Literal["plain", "join", "conditional", "goto", "send", "error"]
"""`plain`: always taken. `join`: to or from a join. `conditional`: a router decides. `goto`: a
`Command` decides. `send`: a router sends any number of tasks. `error`: taken when the node
fails."""


def join_id(inside: str, name: str) -> str:
    """Return the id of a node, given that of the enclosing node, which is empty at the top."""
    return f"{inside}{NS_END}{name}" if inside else name


class GraphNode(NamedTuple):
    """A node as drawn.

    Attributes:
        id: unique in the drawing; the name, below the ids of the nodes it is nested in:
            `holder:inner`.
        label: the text in it.
        inside: the id of the cluster that it is drawn in; None at the top.
        deferred: whether it waits until nothing else is left to run.
        handler: whether it takes over when another node fails.
        before, after: whether a static breakpoint stops the run there.
        reached: False if nothing declared leads here.
        metadata: as given to `add_node`.
        data: the user's object for the node; None if it is not known.
    """

    id: str
    label: str
    kind: NodeKind = "node"
    inside: str | None = None
    deferred: bool = False
    handler: bool = False
    before: bool = False
    after: bool = False
    reached: bool = True
    metadata: Mapping[str, Any] = {}
    data: Any = None

    def __eq__(self, other: object) -> bool:
        """Return whether both are drawn the same way, whatever objects they represent."""
        return isinstance(other, GraphNode) and self[:-1] == other[:-1]

    def __ne__(self, other: object) -> bool:
        return not self == other


class GraphEdge(NamedTuple):
    """An arrow, by the ids of its ends. `label` is what decides whether it is taken, or the channel
    in a raw `Pregel`."""

    source: str
    target: str
    kind: EdgeKind = "plain"
    label: str = ""

    @property
    def certain(self) -> bool:
        """Whether it is always taken."""
        return self.kind in ("plain", "join")

    @property
    def conditional(self) -> bool:
        """Whether something decides whether it is taken."""
        return not self.certain


@dataclass(frozen=True)
class GraphModel:
    """A graph as drawn. Equal graphs give equal shapes: everything is in order of declaration.

    Attributes:
        name: the name of the graph.
        nodes: the nodes without clusters. Edges of a cluster lead to the start and leave from the
            end inside it; only the edge to an error handler leaves from the cluster itself.
        clusters: nodes whose graphs are drawn inside them, outer ones first.
    """

    name: str
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    clusters: tuple[GraphNode, ...] = field(default=())

    @cached_property
    def parts(self) -> tuple[GraphNode, ...]:
        """The nodes, then the clusters."""
        return (*self.nodes, *self.clusters)

    @cached_property
    def levels(self) -> dict[str | None, list[GraphNode]]:
        """The parts, by the cluster that contains them; None for the top."""
        return group((part.inside, part) for part in self.parts)

    @cached_property
    def nx(self) -> networkx.MultiDiGraph[str]:
        """The graph as a `networkx.MultiDiGraph`: the fields of `GraphNode` and `GraphEdge` are
        attributes, an edge's key is its kind; `graph["name"]` is the name, `graph["clusters"]` the
        clusters by id, as dicts."""
        import networkx

        graph: networkx.MultiDiGraph[str] = networkx.MultiDiGraph(
            name=self.name, clusters={cluster.id: _fields(cluster) for cluster in self.clusters}
        )
        for node in self.nodes:
            graph.add_node(node.id, **_fields(node))
        sources = {edge.source for edge in self.edges}
        graph.add_nodes_from(
            (cluster.id, _fields(cluster)) for cluster in self.clusters if cluster.id in sources
        )
        for edge in self.edges:
            graph.add_edge(
                edge.source, edge.target, key=edge.kind, kind=edge.kind, label=edge.label
            )
        return graph


def _fields(node: GraphNode) -> dict[str, Any]:
    return {name: value for name, value in node._asdict().items() if name != "id"}
