"""The content of a drawing as a networkx graph: nodes, edges and the boxes around nested graphs.

This module reads no graph and renders nothing: `extract` makes a GraphModel, the renderers take
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import networkx

from .group import group

if TYPE_CHECKING:
    _MultiDiGraph = networkx.MultiDiGraph[str]
else:
    _MultiDiGraph = networkx.MultiDiGraph

Direction = Literal["TB", "LR"]
"""Where edges lead: from top to bottom, or from left to right."""

NodeKind = Literal[
    "start", "end", "node", "subgraph", "join", "unknown", "cluster", "folded", "steps"
]
"""`join` waits for all that lead to it; `unknown` represents the possible targets of a router
without declared ends; `cluster` is a node whose graph is shown inside it; `folded` represents
several nodes, in drawings only; `steps` represents consecutive checkpoints, in drawings of a
thread's branches."""

Role = Literal["model", "tool", "person"]
"""What a node is for: asking a model, calling tools, asking a person."""

EdgeKind = Literal["plain", "join", "conditional", "goto", "send", "error"]
"""`plain`: always taken. `join`: to or from a join. `conditional`: a router decides. `goto`: a
`Command` decides. `send`: a router sends any number of tasks. `error`: taken when the node
fails."""


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
        ends: whether an edge to END is drawn as a mark on the node, in drawings only.
        roles: what it is for, as far as that is known.
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
    ends: bool = False
    roles: tuple[Role, ...] = ()
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


class GraphModel(_MultiDiGraph):
    """A graph as drawn: a `networkx.MultiDiGraph`, so that all algorithms of networkx work on it.
    Equal graphs give equal models: everything is in order of declaration.

    The fields of `GraphNode` and `GraphEdge` are attributes. An edge's key is its kind (another if
    two of a kind join two nodes); `place` is its number in the order of all edges.
    `graph["name"]` is the name, `graph["clusters"]` the clusters by id, as dicts: nodes whose
    graphs are drawn inside them, outer ones first. Edges of a cluster lead to the start and leave
    from the end inside it; only the edge to an error handler leaves from the cluster itself, which
    then is a node, too.

    A model is frozen, and keeps the records that were read from it. `Drawing.nx` is a copy to
    change.
    """

    def __init__(
        self,
        name: str = "",
        nodes: Iterable[GraphNode] = (),
        edges: Iterable[GraphEdge] = (),
        clusters: Iterable[GraphNode] = (),
    ) -> None:
        super().__init__(name=name, clusters={id: _fields(rest) for id, *rest in clusters})
        self.add_nodes_from((id, _fields(rest)) for id, *rest in nodes)
        self.add_edges_from(_with_keys(edges))
        for id, fields in self.graph["clusters"].items():
            if id in self:
                self.nodes[id].update(fields)
        if len(self):  # networkx fills an empty one when it copies
            networkx.freeze(self)

    @cached_property
    def node_records(self) -> tuple[GraphNode, ...]:
        """The nodes without clusters."""
        nodes, clusters = self.nodes.items(), self.graph["clusters"]
        return tuple(GraphNode(id, **each) for id, each in nodes if each and id not in clusters)

    @cached_property
    def edge_records(self) -> tuple[GraphEdge, ...]:
        """The edges, in the order of declaration."""
        edges = sorted(self.edges(data=True), key=lambda edge: edge[2]["place"])
        return tuple(GraphEdge(a, b, each["kind"], each["label"]) for a, b, each in edges)

    @cached_property
    def clusters(self) -> tuple[GraphNode, ...]:
        """The clusters, outer ones first."""
        return tuple(GraphNode(id, **each) for id, each in self.graph["clusters"].items())

    @cached_property
    def parts(self) -> tuple[GraphNode, ...]:
        """The nodes, then the clusters."""
        return (*self.node_records, *self.clusters)

    @cached_property
    def levels(self) -> dict[str | None, list[GraphNode]]:
        """The parts, by the cluster that contains them; None for the top."""
        return group((part.inside, part) for part in self.parts)

    def __eq__(self, other: object) -> bool:
        """Return whether both are drawn the same way, whatever objects they represent."""
        return isinstance(other, GraphModel) and self._drawn == other._drawn

    @property
    def _drawn(self) -> tuple[object, ...]:
        return self.name, self.node_records, self.edge_records, self.clusters


_FIELDS = GraphNode._fields[1:]


def _fields(rest: Iterable[Any]) -> dict[str, Any]:
    return dict(zip(_FIELDS, rest, strict=True))


def _with_keys(edges: Iterable[GraphEdge]) -> Iterator[Any]:
    """Yield the edges as `add_edges_from` takes them. Its type leaves keys out."""
    known = set()
    for place, (source, target, kind, label) in enumerate(edges):
        key = place if (source, target, kind) in known else kind
        known.add((source, target, kind))
        yield source, target, key, {"kind": kind, "label": label, "place": place}
