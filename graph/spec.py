"""What a builder declares, as records that nobody changes; `validate`, `compile` and drawings read
them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from ..pregel.names import DEFAULT_HANDLER, END, handler_name
from ..pregel.policies import NodePolicies
from ..pregel.program.callables import NodeBody
from ..pregel.program.flow import Join
from .arguments import read_destinations
from .branch import BranchSpec
from .schema import Channel, Schema


# Its fields are Final, which type checkers hold. `frozen` would set each by a call, for every node
# of a graph (benchmark P11), and make the class itself slow to make (P26).
@dataclass(slots=True, eq=False)
class NodeSpec:
    """A node as declared.

    Attributes:
        schema: which keys it reads, and as what.
        ends: where its `Command`s may go, with labels; only for checks and drawings.
        executor: where it runs; None leaves that to the run.
        handler: takes over when its last attempt has failed; None leaves it to the default.
        observers: of its tasks.
    """

    body: Final[NodeBody]
    schema: Final[Schema]
    defer: Final[bool] = False
    metadata: Final[Mapping[str, Any]] = field(default_factory=dict)
    policies: Final[NodePolicies] = field(default_factory=NodePolicies)
    handler: Final[NodeBody | None] = None
    ends: Final[Mapping[str, str]] = field(default_factory=dict)
    observers: Final[tuple[Any, ...]] = ()
    executor: Final[Any] = None


# Final and not `frozen`, as `NodeSpec`.
@dataclass(eq=False)
class GraphSpec:
    """A graph as declared, at one moment. Later calls on the builder do not change it.

    Attributes:
        nodes: by name, in the order added.
        edges: plain edges; `joins` are those from several nodes into one.
        branches: source → router name → conditional edge.
        channels, managed: the state's keys, of all schemas together.
        schemas: the schemas as read.
        extra_keys: "error" or "ignore": what happens to keys that the state does not have.
        unset_fields: whether defaults of a pydantic model that were not set count as written.
        defaults, default_handler: for nodes without their own.
        validate: where values are validated.
    """

    nodes: Final[Mapping[str, NodeSpec]]
    edges: Final[frozenset[tuple[str, str]]]
    joins: Final[tuple[Join, ...]]
    branches: Final[Mapping[str, Mapping[str, BranchSpec]]]
    channels: Final[Mapping[str, Channel]]
    managed: Final[Mapping[str, Any]]
    schemas: Final[Mapping[Any, Schema]]
    state_schema: Final[Any]
    input_schema: Final[Any]
    output_schema: Final[Any]
    extra_keys: Final[str]
    unset_fields: Final[bool]
    defaults: Final[NodePolicies]
    default_handler: Final[NodeBody | None]
    validate: Final[frozenset[str]] = frozenset()

    def node_observers(self) -> list[Any]:
        """The observers of single nodes."""
        return [observer for node in self.nodes.values() for observer in node.observers]

    def complete_nodes(self) -> dict[str, NodeSpec]:
        """The nodes with the default policies filled in."""
        handler = self.default_handler
        if self.defaults == NodePolicies() and handler is None:
            return dict(self.nodes)
        return {
            name: replace(
                node,
                policies=node.policies.fill_from(self.defaults),
                handler=node.handler or handler,
            )
            for name, node in self.nodes.items()
        }

    def find_handler(self, node: str) -> str | None:
        """The name of the node that handles this node's errors."""
        if self.nodes[node].handler is not None:
            return handler_name(node)
        return None if self.default_handler is None else DEFAULT_HANDLER

    @cached_property
    def handlers(self) -> dict[str, NodeBody]:
        """The functions that handle errors, by the names of their nodes."""
        bodies = {name: node.handler for name, node in self.nodes.items()}
        found = {handler_name(name): body for name, body in bodies.items() if body is not None}
        if self.default_handler is not None:
            found[DEFAULT_HANDLER] = self.default_handler
        return found

    def command_ends(self) -> dict[str, Mapping[str, str]]:
        """Of each node and error handler: where its `Command`s may go, with labels. What a handler
        says is in its annotation."""
        ends = {name: node.ends for name, node in self.nodes.items()}
        for name, body in self.handlers.items():
            ends[name] = read_destinations(name, None, body)
        return ends

    def ending_nodes(self) -> set[str]:
        """The nodes with an edge to END."""
        return {start for start, end in self.edges if end == END}
