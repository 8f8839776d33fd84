"""The frozen graph: the one table of nodes, channels and triggers that the machine runs and
drawings show.

Made once per compile. It holds no state of any run, so any number of runs may share it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...channels.base import BaseChannel, Channel, check_kind
from ...channels.topic import Topic
from ...checkpoint.keys import KeyWatch, canonical_key, function_identity
from ..errors import InvalidGraphError, nearest
from ..names import CACHED_WRITES, NS_END, NS_SEP, PULL, TASKS, is_reserved
from ..policies import NodePolicies
from ..runtime import ManagedValue
from ..types import CachePolicy, Selection, Send, names_of
from .callables import Injected
from .flow import Join
from .node import PregelNode, chain
from .results import is_graph
from .version import find_version, fingerprint
from .writes import StateWriter, Writer, WriteScope

if TYPE_CHECKING:  # loaded by graphs that have one
    from .flow import Flow


@dataclass(slots=True, eq=False)
class Reader:
    """A selection of channels that is read as a dict. Equal selections share one Reader, and so one
    read (benchmark P10).

    Attributes:
        keys: the channels, in declaration order.
        managed: keys computed per task.
    """

    keys: Final[tuple[str, ...]]
    managed: Final[tuple[tuple[str, type[ManagedValue]], ...]]


class NodeCache:
    """How the results of a node are cached.

    Attributes:
        policy: as it was declared.
        namespace: the part of a cache that belongs to the node.
        key_watch: notices if the key is another one at every call.

    Raises:
        TypeError: the function cannot be identified, and the policy has no `key_func`.
    """

    __slots__ = ("key_watch", "namespace", "policy")

    def __init__(
        self, policy: CachePolicy, name: str, function: Any, writers: Iterable[Writer]
    ) -> None:
        self.policy: CachePolicy = policy
        try:
            identity = function_identity(function)
        except TypeError as error:
            if policy.key_func is None and not policy.by_name:
                raise TypeError(f"node {name!r} has a cache_policy, but {error}") from None
            # Functions of the same name are told apart by the `key_func`, or not at all.
            named = function if hasattr(function, "__qualname__") else type(function)
            identity = f"{named.__module__}.{named.__qualname__}"
        following = canonical_key([each for writer in writers if (each := writer.identity())])
        self.namespace: tuple[str, ...] = (CACHED_WRITES, identity, name, following)
        self.key_watch: KeyWatch = KeyWatch(name)


# Its fields are Final, which type checkers hold. `frozen` would set each by a call, for every node
# of a graph (benchmark P11).
@dataclass(slots=True, eq=False)
class NodeCall:
    """How the function of a node is called.

    Attributes:
        sync: in a sync run; of one that is async only, what says so.
        coro: in an async run, if it is async there; its result is awaited.
        inject: further parameters and how to get them from the running task; None for none.
        inline: it is no code of the user's: an event loop may call it itself.
        sync_missing: it is async only.
    """

    sync: Final[Callable[..., Any]]
    coro: Final[Callable[..., Awaitable[Any]] | None] = None
    inject: Final[Injected | None] = None
    inline: Final[bool] = False
    sync_missing: Final[bool] = False


class CompiledNode:
    """A node as it runs: everything looked up that can be looked up before a run.

    Attributes:
        call: its function, as the drivers call it.
        source: what the user gave.
        policies: as declared.
        cache: how its results are cached, or None.
        debug: its input is watched for changes.
        guarded: a policy or `debug` surrounds each attempt; else, if nobody observes the run, an
            attempt costs the call alone (benchmarks P1, P3, P8).
        plain: nothing of the user's runs in it: it only writes down its input. So is the START of a
            `StateGraph`, unless it has a router.
        recorded: the results of its `@task` calls are stored as they end; not those of pure ones.
    """

    __slots__ = (
        "cache", "call", "consumes", "debug", "defer", "executor", "guarded", "handler", "hidden",
        "identity", "mapper", "metadata", "name", "path", "path_text", "plain", "policies", "reads",
        "recorded", "source", "tags", "triggers", "writers",
    )  # fmt: skip

    def __init__(
        self, name: str, declared: PregelNode, reads: str | Reader, consumes: tuple[str, ...]
    ) -> None:
        bodies = declared.bodies(name)
        body = chain(bodies, name)
        self.name: str = name
        self.path: tuple[str, ...] = (PULL, name)
        self.triggers: tuple[str, ...] = tuple(sorted(declared.triggers))
        # What tells its PULL tasks from other nodes' (of a `@task`: its function), and how their
        # path is stored.
        self.identity: str = "\0".join((PULL, *self.triggers))
        self.path_text: str = "~" + ", ".join(self.path)  # `path_text` of two texts (P11)
        self.reads: str | Reader = reads
        self.mapper: Callable[[Any], Any] | None = declared.mapper
        self.consumes: tuple[str, ...] = consumes
        sync, missing = body.sync, body.sync is None
        if sync is None:
            sync = partial(_async_only, name)
        self.call: NodeCall = NodeCall(sync, body.coro, body.inject or None, not bodies, missing)
        self.writers: tuple[Writer, ...] = tuple(declared.writers)
        self.source: Any = body.source
        self.handler: CompiledNode | None = None
        self.policies: NodePolicies = declared.policies
        _, cache, timeout, limits = self.policies
        self.cache: NodeCache | None = None
        if cache is not None:
            self.cache = NodeCache(cache, name, self.source, self.writers)
        self.debug: bool = False
        self.guarded: bool = bool(cache or timeout or limits)
        self.hidden: bool = declared.hidden
        only_writes = not bodies and self.mapper is None
        writers = self.writers
        self.plain: bool = only_writes and all(type(each) is StateWriter for each in writers)
        self.tags: tuple[str, ...] = tuple(declared.tags)
        self.metadata: Mapping[str, Any] = declared.metadata
        self.defer: bool = declared.defer
        self.executor: Any = declared.executor
        self.recorded: bool = True


class ChannelKinds(NamedTuple):
    """The channels of a program that need care, by what they need.

    Attributes:
        finishers: those that react when nothing is left to run.
        step_scoped: those that react to a superstep without writes.
        blank: templates that a run may use as they are while they are empty: the engine updates
            copies only.
        unshared: the others, of which each run makes its own.
        untracked: those that are never stored.
    """

    finishers: tuple[str, ...]
    step_scoped: frozenset[str]
    blank: Mapping[str, Channel]
    unshared: tuple[str, ...]
    untracked: frozenset[str]


# Final and not `frozen`: that makes classes slow to make, in every fresh process (benchmark P26).
@dataclass(slots=True, eq=False)
class Program:
    """What `Pregel` validated and froze.

    Attributes:
        channels: templates, by name, `__pregel_tasks` included.
        managed: state keys that are computed, by name.
        triggers: channel → names of the nodes it makes run, sorted.
        readers: channel → the selections it is part of.
        kinds: the channels that need care.
        consuming: some node's trigger wants to know when the node has run.
        handles_errors: some node has an error handler.
        inputs, outputs, stream: channel selections; a str means that channel's bare value.
        nested: the graphs that its nodes hold or have been seen to run, by node name; for drawings.
        eager: chunks may come while a node runs, whatever their mode.
        joins: of a `StateGraph`, those into END too.
        flow: what leads to what, if joins or deferred nodes depend on it; else None.
        output_set, outputs_settle: the outputs as a set, and `settles(outputs)`.
        scope: the keys and nodes that a `Command` given as input may name.
        fingerprint: what tells a `StateGraph` from others; empty for a raw `Pregel`.
        variants: executor → this program with its nodes there, and ("debug", bool) → with its
            nodes watched or not, once somebody has asked.
    """

    name: Final[str]
    nodes: Final[Mapping[str, CompiledNode]]
    channels: Final[Mapping[str, Channel]]
    managed: Final[Mapping[str, type[ManagedValue]]]
    triggers: Final[Mapping[str, tuple[str, ...]]]
    readers: Final[Mapping[str, tuple[Reader, ...]]]
    kinds: Final[ChannelKinds]
    consuming: Final[bool]
    inputs: Final[str | tuple[str, ...]]
    outputs: Final[str | tuple[str, ...]]
    stream: Final[str | tuple[str, ...]]
    scope: Final[WriteScope]
    fingerprint: Final[Mapping[str, int]]
    nested: Final[dict[str, Any]]
    output_set: Final[frozenset[str]]
    outputs_settle: Final[bool]
    joins: Final[tuple[Join, ...]] = ()
    flow: Final[Flow | None] = None
    eager: Final[bool] = False
    handles_errors: Final[bool] = False
    variants: Final[dict[Any, Program]] = field(default_factory=dict)

    @property
    def version(self) -> str | None:
        """The version that the user has named."""
        return find_version(self.fingerprint)

    @property
    def starts_ready(self) -> bool:
        """Whether tasks start when their own inputs are there, and not in supersteps."""
        return self.flow is not None and self.flow.holders is not None


def settles(channels: Mapping[str, Channel], keys: Selection) -> bool:
    """Whether these channels keep what was last shown of them until they are written again."""
    return not any(_volatile(channels[name]) for name in names_of(keys))


def _volatile(channel: Channel) -> bool:
    cls = type(channel)
    return (
        channel.step_scoped
        or cls.consume is not BaseChannel.consume
        or cls.finish is not BaseChannel.finish
    )


def freeze(
    name: str,
    nodes: Mapping[str, PregelNode],
    channels: Mapping[str, Channel | type[ManagedValue]],
    selections: tuple[Selection, Selection, Selection | None],
    eager: bool = False,
) -> Program:
    """Check a graph and make its table.

    Args:
        channels: by name; a `ManagedValue` class declares a computed key.
        selections: the input, output and stream channels; None for the last means all.
        eager: whether chunks may come while a node runs.

    Raises:
        InvalidGraphError: naming every mistake.
    """
    managed, own = _split_managed(channels)
    inputs, outputs, stream = selections
    # Sends are pending work, not state.
    if stream is None:
        stream = tuple(name for name in own if name != TASKS)
    mistakes = list(find_mistakes(nodes, own, managed, (inputs, outputs, stream)))
    if mistakes:
        raise InvalidGraphError(mistakes)
    templates = {name: _name_copy(channel, name) for name, channel in own.items()}
    templates[TASKS] = Topic(Send, key=TASKS)
    pool = ReaderPool(managed)
    table = {n: _node(n, declared, templates, pool) for n, declared in nodes.items()}
    _connect(table, nodes, pool)
    return Program(
        name=name,
        nodes=table,
        channels=templates,
        managed=managed,
        triggers=_index((t, n.name) for n in table.values() for t in n.triggers),
        readers=pool.by_channel(),
        nested=_held(table),
        scope=WriteScope(frozenset(own), {}),
        fingerprint={},
        eager=eager,
        consuming=any(node.consumes for node in table.values()),
        inputs=_selection(inputs),
        outputs=_selection(outputs),
        stream=_selection(stream),
        output_set=frozenset(names_of(outputs)),
        outputs_settle=settles(templates, outputs),
        kinds=_sort_channels(templates),
        handles_errors=any(node.handler is not None for node in table.values()),
    )


def _split_managed(
    channels: Mapping[str, Channel | type[ManagedValue]],
) -> tuple[dict[str, type[ManagedValue]], dict[str, Channel]]:
    """The keys that are computed, and those that are channels."""
    managed: dict[str, type[ManagedValue]] = {}
    own: dict[str, Any] = {}
    check_kind("channels", channels, Mapping, "a dict of channels")
    for name, channel in channels.items():
        if isinstance(channel, type) and issubclass(channel, ManagedValue):
            managed[name] = channel
        else:
            own[name] = channel
    return managed, own


def _sort_channels(templates: Mapping[str, Channel]) -> ChannelKinds:
    items = templates.items()
    return ChannelKinds(
        finishers=tuple(name for name, c in items if type(c).finish is not BaseChannel.finish),
        step_scoped=frozenset(name for name, channel in items if channel.step_scoped),
        blank={name: channel for name, channel in items if channel.shares_blank},
        unshared=tuple(name for name, channel in items if not channel.shares_blank),
        untracked=frozenset(name for name, channel in items if not channel.stored),
    )


def _connect(
    table: Mapping[str, CompiledNode], nodes: Mapping[str, PregelNode], pool: ReaderPool
) -> None:
    """Tell nodes who handles their errors, and writers with which others they share a read."""
    for node in table.values():
        handler = nodes[node.name].error_handler
        node.handler = None if handler is None else table[handler]
        for writer in node.writers:
            bind = getattr(writer, "bind", None)
            if bind is not None:
                bind(pool)


def of_state_graph(
    program: Program,
    scope: WriteScope,
    joins: Sequence[Join],
    flow: Flow | None,
    version: str | None = None,
) -> Program:
    """Return the program with what only a `StateGraph` declares."""
    known = fingerprint(program.nodes, program.channels, version)
    return replace(
        program, scope=scope, joins=tuple(joins), flow=flow, fingerprint=known, variants={}
    )


def without_variants(program: Program) -> Program:
    """The same program without what calls have found out: where it ran, and which graphs its
    functions ran."""
    return replace(program, variants={}, nested=_held(program.nodes))


def _held(nodes: Mapping[str, CompiledNode]) -> dict[str, Any]:
    """The graphs that nodes hold, by node name."""
    return {name: node.source for name, node in nodes.items() if is_graph(node.source)}


def with_debug(program: Program, debug: bool) -> Program:
    """The same program, whose nodes are watched for changes of their input, or are not."""
    known = program.variants.get(("debug", debug))
    if known is None:
        table = {name: copy(node) for name, node in program.nodes.items()}
        for node in table.values():
            node.debug, node.guarded = debug, node.guarded or debug
            # A handler must be the copy in this table: it is watched, too.
            node.handler = None if node.handler is None else table[node.handler.name]
        known = program.variants["debug", debug] = replace(program, nodes=table, variants={})
    return known


def is_async(program: Program) -> bool:
    """Whether a graph can only be run by `ainvoke`: a node of it, or of a graph inside, has no sync
    form."""
    for node in program.nodes.values():
        if node.call.sync_missing or any(writer.is_async for writer in node.writers):
            return True
    return any(is_async(each.program) for each in program.nested.values())


class ReaderPool:
    """Gives equal selections the same Reader."""

    def __init__(self, managed: Mapping[str, type[ManagedValue]]) -> None:
        self._managed = managed
        self._readers: dict[tuple[str, ...], Reader] = {}

    def reader(self, keys: Sequence[str]) -> Reader:
        """The Reader of these keys, managed ones included."""
        wanted = tuple(keys)
        if wanted not in self._readers:
            computed = tuple((k, self._managed[k]) for k in wanted if k in self._managed)
            stored = tuple(k for k in wanted if k not in self._managed)
            self._readers[wanted] = Reader(stored, computed)
        return self._readers[wanted]

    def by_channel(self) -> dict[str, tuple[Reader, ...]]:
        """channel → the Readers it is part of."""
        found: dict[str, list[Reader]] = {}
        for reader in self._readers.values():
            for key in reader.keys:
                found.setdefault(key, []).append(reader)
        return {key: tuple(readers) for key, readers in found.items()}


def _node(
    name: str,
    declared: PregelNode,
    channels: Mapping[str, Channel],
    pool: ReaderPool,
) -> CompiledNode:
    selected = declared.channels
    reads = selected if isinstance(selected, str) else pool.reader(selected)
    consumes = tuple(
        t for t in sorted(declared.triggers) if type(channels[t]).consume is not BaseChannel.consume
    )
    return CompiledNode(name, declared, reads, consumes)


def _async_only(name: str, /, *_: Any, **__: Any) -> Any:
    raise TypeError(f"node {name!r} is async: run the graph with ainvoke, astream or abatch")


def _name_copy(channel: Channel, name: str) -> Channel:
    """A copy with this name: the user's own object keeps its name."""
    mine = channel.copy()
    mine.key = name
    return mine


def _selection(keys: Selection) -> str | tuple[str, ...]:
    return keys if isinstance(keys, str) else tuple(keys)


def _index(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = {}
    for channel, node in pairs:
        found.setdefault(channel, set()).add(node)
    return {channel: tuple(sorted(names)) for channel, names in found.items()}


# -- what is wrong with a graph, in sentences ------------------------------------------------------


def find_mistakes(
    nodes: Mapping[str, PregelNode],
    channels: Mapping[str, Any],
    managed: Mapping[str, Any],
    selections: tuple[Selection, Selection, Selection],
) -> Iterator[str]:
    """A sentence for every mistake of a graph.

    Args:
        selections: the input, output and stream channels.
    """
    for name, channel in channels.items():
        yield from _check_channel(name, channel)
    for name in managed:
        if is_reserved(name):
            yield f"managed value {name!r}: the name is reserved"
    known = {**channels, **managed, TASKS: None}
    for name, node in nodes.items():
        if isinstance(node, PregelNode):
            mistakes = (*_check_name(name), *_check_node(node, channels, known))
            yield from (f"node {name!r} {mistake}" for mistake in mistakes)
        else:
            got = type(node).__name__
            yield f"node {name!r} must be a PregelNode or NodeBuilder, got {got}"
    yield from _check_selections(nodes, channels, selections)


def _check_channel(name: str, channel: Any) -> Iterator[str]:
    if "\0" in name:
        yield f"channel {name!r} has a NUL character in its name, which no database can store"
    elif not isinstance(channel, BaseChannel):
        yield f"channel {name!r} must be a channel instance, got {type(channel).__name__}"
    elif name == TASKS:
        if not isinstance(channel, Topic):
            yield f"channel {TASKS!r} is the engine's own and must be a Topic of Send"
    elif is_reserved(name):
        yield f"channel {name!r}: the name is reserved"


def _check_name(name: str) -> Iterator[str]:
    if is_reserved(name):
        yield "has a reserved name"
    elif "\0" in name:
        yield "has a NUL character in its name, which no database can store"
    elif NS_SEP in name or NS_END in name:
        yield f"has {NS_SEP!r} or {NS_END!r} in its name; both are separators in namespaces"


def _check_node(
    node: PregelNode, channels: Mapping[str, Any], known: Mapping[str, Any]
) -> Iterator[str]:
    for key in node.triggers:
        if key not in channels:
            yield f"subscribes to unknown channel {key!r}; {nearest(key, channels)}"
    if isinstance(node.channels, str):
        # A node that nothing triggers takes the input of the task that it replaces.
        if node.triggers and node.channels not in channels:
            near = nearest(node.channels, channels)
            yield f"reads {node.channels!r}, which is not a channel; {near}"
    else:
        for key in node.channels:
            if key not in known:
                yield f"reads unknown channel {key!r}; {nearest(key, known)}"
    for writer in node.writers:
        if isinstance(writer, Writer):
            yield from writer.check(channels)
        else:
            got = type(writer).__name__
            yield f"must have only Writers, got {got}; put entries into a ChannelWrite([...])"


def _check_selections(
    nodes: Mapping[str, PregelNode],
    channels: Mapping[str, Any],
    selections: tuple[Selection, Selection, Selection],
) -> Iterator[str]:
    inputs, outputs, stream = map(names_of, selections)
    for key in inputs:
        if key not in channels:
            yield f"input channel {key!r} does not exist; {nearest(key, channels)}"
    subscribed = {t for n in nodes.values() if isinstance(n, PregelNode) for t in n.triggers}
    if subscribed.isdisjoint(inputs):
        yield f"no node subscribes to the input channels {list(inputs)}"
    for kind, keys in (("output", outputs), ("stream", stream)):
        for key in keys:
            if key not in channels and key != TASKS:
                yield f"{kind} channel {key!r} does not exist; {nearest(key, channels)}"
