"""A node as declared: what it subscribes to, what it reads, what it calls, what it writes.

Declarations only: `program` turns them into the table that runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, Self

from ..errors import InvalidGraphError
from ..names import TAG_HIDDEN
from ..policies import NodePolicies
from ..types import CachePolicy, RetryPolicy, Selection, TimeoutPolicy
from .callables import NodeBody, read_callable
from .writes import ChannelWrite, ChannelWriteEntry, ChannelWriteTupleEntry, Writer


# Its fields are Final, which type checkers hold. `frozen` would set each by a call, for every node
# of a graph (benchmark P11).
@dataclass(slots=True, kw_only=True, eq=False)
class PregelNode:
    """One node of a graph.

    Args:
        channels: what it reads: a name (its input is that channel's value) or several (its input is
            a dict of those that hold a value).
        triggers: the channels whose change makes it run.
        bound: what it calls: one thing or several in a row, each given the result of the one
            before; empty passes the input on to the writers.
        writers: what makes writes of the result; more may be appended until the node goes into a
            `Pregel`.
        mapper: applied to the input before the call; must be pure.
        tags, metadata: added to the config of its tasks.
        policies: when its tasks are retried, reused and limited; the graph's own are used where
            these are empty.
        error_handler: the node that takes over, in the same superstep, when the last attempt has
            failed.
        executor: where it runs; None leaves that to the run.
        defer: whether it waits until nothing else can run (for drawings; its trigger channels make
            it so).
    """

    channels: Final[Selection]
    triggers: Final[Sequence[str]]
    bound: Final[Any] = ()
    writers: Final[Sequence[Writer]] = field(default_factory=list)
    mapper: Final[Callable[[Any], Any] | None] = None
    tags: Final[Sequence[str]] = ()
    metadata: Final[Mapping[str, Any]] = field(default_factory=dict)
    policies: Final[NodePolicies] = field(default_factory=NodePolicies)
    defer: Final[bool] = False
    error_handler: Final[str | None] = None
    executor: Final[Any] = None

    @property
    def hidden(self) -> bool:
        """Whether it is left out of streams and of the "*" breakpoint."""
        return TAG_HIDDEN in self.tags

    def bodies(self, name: str) -> tuple[NodeBody, ...]:
        """What it calls, read. `name` is its name in the graph, for error texts."""
        bound = self.bound if isinstance(self.bound, (list, tuple)) else (self.bound,)
        return tuple(b if isinstance(b, NodeBody) else read_callable(b, name) for b in bound)


class NodeBuilder:
    """Builds a `PregelNode` step by step; every method returns the builder.

    >>> node = NodeBuilder().subscribe_only("a").do(lambda x: x + x).write_to("b").build()
    >>> node.channels, node.triggers
    ('a', ('a',))
    """

    def __init__(self) -> None:
        self._only: str | None = None
        self._reads: list[str] = []
        self._triggers: list[str] = []
        self._bound: list[Any] = []
        self._writes: list[ChannelWriteEntry | ChannelWriteTupleEntry] = []
        self._tags: list[str] = []
        self._metadata: dict[str, Any] = {}
        self._policies = NodePolicies()
        self._executor: Any = None

    def subscribe_only(self, channel: str) -> Self:
        """Run when `channel` changes; its bare value is the input.

        Raises:
            ValueError: the node already reads channels.
        """
        if self._only is not None or self._reads:
            raise InvalidGraphError(
                f"subscribe_only({channel!r}): the node already reads {self._only or self._reads}; "
                "use subscribe_to for several channels"
            )
        self._only = channel
        self._add_trigger(channel)
        return self

    def subscribe_to(self, *channels: str, read: bool = True) -> Self:
        """Run when any of `channels` changes; with `read` they are keys of the input.

        Raises:
            ValueError: `subscribe_only` was called before.
        """
        if self._only is not None and read:
            raise InvalidGraphError(
                f"subscribe_to: the node already reads {self._only!r} alone (subscribe_only)"
            )
        for channel in channels:
            self._add_trigger(channel)
            if read and channel not in self._reads:
                self._reads.append(channel)
        return self

    def read_from(self, *channels: str) -> Self:
        """Add keys to the input that do not make the node run.

        Raises:
            ValueError: `subscribe_only` was called before.
        """
        if self._only is not None:
            raise InvalidGraphError(
                f"read_from: the node already reads {self._only!r} alone (subscribe_only)"
            )
        self._reads.extend(c for c in channels if c not in self._reads)
        return self

    def do(self, node: Any) -> Self:
        """What to call: a function, or anything with `invoke`/`ainvoke`. Further calls chain."""
        self._bound.append(node)
        return self

    def write_to(
        self, *channels: str | ChannelWriteEntry | ChannelWriteTupleEntry, **mappers: Any
    ) -> Self:
        """Write the result to `channels`; a keyword names a channel and gives a function of the
        result, or a constant."""
        for channel in channels:
            self._writes.append(ChannelWriteEntry(channel) if isinstance(channel, str) else channel)
        for name, value in mappers.items():
            if callable(value):
                self._writes.append(ChannelWriteEntry(name, mapper=value))
            else:
                self._writes.append(ChannelWriteEntry(name, value))
        return self

    def meta(self, *tags: str, **metadata: Any) -> Self:
        """Tags and metadata for the config of the node's tasks."""
        self._tags.extend(tags)
        self._metadata.update(metadata)
        return self

    def add_retry_policies(self, *policies: RetryPolicy) -> Self:
        """Policies tried in order; the first whose `retry_on` fits the error counts."""
        self._policies = self._policies._replace(retry=(*self._policies.retry, *policies))
        return self

    def add_cache_policy(self, policy: CachePolicy) -> Self:
        """Reuse results for equal inputs."""
        self._policies = self._policies._replace(cache=policy)
        return self

    def set_timeout(self, timeout: float | timedelta | TimeoutPolicy | None) -> Self:
        """Limit the time of one attempt."""
        self._policies = self._policies._replace(timeout=TimeoutPolicy.coerce(timeout))
        return self

    def set_executor(self, executor: Any) -> Self:
        """Where it runs; see `StateGraph.compile`."""
        self._executor = executor
        return self

    def build(self) -> PregelNode:
        """The node as described so far; later calls on the builder do not change it."""
        return PregelNode(
            channels=self._only if self._only is not None else tuple(self._reads),
            triggers=tuple(self._triggers),
            bound=tuple(self._bound),
            writers=[ChannelWrite(tuple(self._writes))] if self._writes else [],
            tags=tuple(self._tags),
            metadata=dict(self._metadata),
            policies=self._policies,
            executor=self._executor,
        )

    def _add_trigger(self, channel: str) -> None:
        if channel not in self._triggers:
            self._triggers.append(channel)


def with_defaults(node: PregelNode, defaults: NodePolicies) -> PregelNode:
    """A node that takes the graph's policies where it has none."""
    if not isinstance(node, PregelNode) or defaults == NodePolicies():
        return node
    return replace(node, policies=node.policies.fill_from(defaults))


def chain(bodies: Sequence[NodeBody], node: str) -> NodeBody:
    """Several bodies as one: each is given the result of the one before. Injected parameters go to
    the first."""
    if not bodies:
        return NodeBody("pass", give_back, None, (), None, None, None)
    if len(bodies) == 1:
        return bodies[0]
    first, *rest = bodies
    if any(body.inject for body in rest):
        raise InvalidGraphError(
            f"node {node!r}: in a chain of do() calls only the first may take config, runtime, "
            "writer or store"
        )
    steps = tuple((b.sync, b.coro) for b in bodies)
    is_async = any(b.coro is not None and b.sync is None for b in bodies)
    if is_async:
        coro = partial(_acall_chain, steps)
        return NodeBody(first.name, None, coro, first.inject, None, None, bodies)
    sync = partial(_call_chain, steps)
    return NodeBody(first.name, sync, None, first.inject, None, None, bodies)


Steps = tuple[tuple[Callable[..., Any] | None, Callable[..., Awaitable[Any]] | None], ...]


def _call_chain(steps: Steps, value: Any, /, **given: Any) -> Any:
    for call, _ in steps:
        assert call is not None
        value, given = call(value, **given), {}
    return value


async def _acall_chain(steps: Steps, value: Any, /, **given: Any) -> Any:
    for call, acall in steps:
        if acall is not None:
            value = await acall(value, **given)
        else:
            assert call is not None
            value = call(value, **given)
        given = {}
    return value


def give_back(value: Any) -> Any:
    """Return the input: the body of a node that only writes."""
    return value
