"""A graph as declared so far: plain records that the builder fills, and that `validate` and `compile` read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..pregel.program.callables import Body
from ..pregel.program.join import Join
from ..pregel.types import CachePolicy, RetryPolicy, TimeoutPolicy
from .branch import BranchSpec
from .schema import Channel, Schema


@dataclass(frozen=True, slots=True)
class Policies:
    """What happens when a node fails, takes long, or has seen its input before; None or empty for no say."""

    retry: tuple[RetryPolicy, ...] = ()
    cache: CachePolicy | None = None
    timeout: TimeoutPolicy | None = None
    handler: Body | None = None

    def over(self, default: Policies) -> Policies:
        """These, with the default's where they have no say."""
        return Policies(
            self.retry or default.retry,
            self.cache or default.cache,
            self.timeout or default.timeout,
            self.handler or default.handler,
        )


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node as declared.

    Attributes:
        schema: which keys it reads, and as what.
        ends: where a `Command` of its may go, with labels; only for checks and drawings.
        executor: where it runs; None leaves that to the run.
    """

    body: Body
    schema: Schema
    defer: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    policies: Policies = field(default_factory=lambda: Policies())
    ends: Mapping[str, str] = field(default_factory=dict)
    executor: Any = None


class Declared:
    """Everything a builder knows.

    Attributes:
        nodes: by name, in the order added.
        edges: plain edges; `joins` are those from several nodes into one.
        branches: source → router name → conditional edge.
        channels, managed: the state's keys, of all schemas together; `schemas` are the schemas as read.
        extra_keys: "error" or "ignore": what happens to keys that the state does not have.
        defaults: policies for nodes without their own.
    """

    nodes: dict[str, NodeSpec]
    edges: set[tuple[str, str]]
    joins: list[Join]
    branches: dict[str, dict[str, BranchSpec]]
    channels: dict[str, Channel]
    managed: dict[str, Any]
    schemas: dict[Any, Schema]
    state_schema: Any
    input_schema: Any
    output_schema: Any
    context_schema: Any
    extra_keys: str
    defaults: Policies

    def specs(self) -> dict[str, NodeSpec]:
        """The nodes with the defaults filled in."""
        if self.defaults == Policies():
            return dict(self.nodes)
        return {name: replace(spec, policies=spec.policies.over(self.defaults)) for name, spec in self.nodes.items()}
