"""From a builder to a Program: state keys, edges and joins become channels; nodes get their triggers and writers.

The names of the channels are part of what is stored, so they must not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..channels import EphemeralValue, LastValueAfterFinish
from ..checkpoint.base import INTERRUPT, BaseCheckpointSaver
from ..pregel.app import Pregel
from ..pregel.errors import InvalidUpdateError, nearest, warn
from ..pregel.names import (
    DEFAULT_HANDLER,
    END,
    ROOT,
    START,
    TAG_HIDDEN,
    handler_name,
    trigger_name,
)
from ..pregel.program.node import PregelNode
from ..pregel.program.results import NO_UPDATES, advice, find_lookalike, is_record, record_fields, refuse_lookalike
from ..pregel.program.writes import StateWriter, Writer, WriteScope
from ..pregel.runtime import RUNNING
from ..pregel.types import RunnableConfig
from .arguments import destinations_of
from .branch import Branch
from .declared import Declared, NodeSpec
from .json_schema import context_json_schema, json_schema
from .messages import message_types
from .schema import Channel, Schema


class Exits(NamedTuple):
    """What wakes nobody and so is not in the Program, as it was at compile; for drawings.

    Attributes:
        to_end: the nodes with an edge to END.
        destinations: where the `Command` of a node, or of an error handler, may go, with labels.
    """

    to_end: frozenset[str]
    destinations: Mapping[str, Mapping[str, str]]


class CompiledStateGraph(Pregel):
    """A compiled `StateGraph`: a `Pregel` that remembers its builder.

    Attributes:
        builder: the StateGraph it was compiled from.
        exits: what was declared and wakes nobody.
    """

    builder: Declared
    exits: Exits

    def coerce_output(self, value: Any, *, whole: bool = True) -> Any:
        """The output as an instance of the output schema, where that is a pydantic model or dataclass.

        Args:
            whole: all keys of the output should be there; else a dict that makes no instance is returned as it is.
        """
        coerce = self.builder.schemas[self.builder.output_schema].coerce
        if coerce is None or not isinstance(value, dict):
            return value
        try:
            return coerce(value)
        except Exception:
            if whole:
                raise
            return value

    def get_input_jsonschema(self, config: RunnableConfig | None = None) -> dict[str, Any]:
        """The JSON schema of what `invoke` takes. `config` is not looked at."""
        return json_schema(self.builder.schemas[self.builder.input_schema])

    def get_output_jsonschema(self, config: RunnableConfig | None = None) -> dict[str, Any]:
        """The JSON schema of what `invoke` returns."""
        return json_schema(self.builder.schemas[self.builder.output_schema])

    def get_context_jsonschema(self) -> dict[str, Any] | None:
        """The JSON schema of `context=`; None if the graph has no context schema."""
        return context_json_schema(self.context_schema)


def handler_of(graph: Declared, node: str) -> str | None:
    """The name of the node that handles another's errors: its own, or the one for all that have none."""
    if graph.nodes[node].policies.handler is not None:
        return handler_name(node)
    return DEFAULT_HANDLER if graph.defaults.handler is not None else None


def handler_ends(graph: Declared) -> dict[str, Mapping[str, str]]:
    """Of each error handler, by the name of its node: where its `Command` may go, as its annotation says."""
    bodies = {name: spec.policies.handler for name, spec in graph.nodes.items()}
    own = {handler_name(name): body for name, body in bodies.items() if body is not None}
    if graph.defaults.handler is not None:
        own[DEFAULT_HANDLER] = graph.defaults.handler
    return {name: destinations_of(name, None, body) for name, body in own.items()}


def compile_graph(
    graph: Declared,
    checkpointer: BaseCheckpointSaver | bool | None,
    name: str,
    breakpoints: tuple[Any, Any],
    **options: Any,
) -> CompiledStateGraph:
    """Make a Pregel of a valid builder.

    Args:
        breakpoints: before which nodes, and after which.
        options: what a `Pregel` takes besides: `store`, `cache`, `debug`, `executor`.
    """
    specs = graph.specs()
    layout = Layout(graph, specs)
    state, output = graph.schemas[graph.state_schema], graph.schemas[graph.output_schema]
    root = ROOT in graph.channels
    app = CompiledStateGraph(
        nodes=layout.nodes(),
        channels={**graph.channels, **graph.managed, **layout.channels()},
        input_channels=START,
        output_channels=ROOT if root else tuple(output.channels),
        stream_channels=ROOT if root else tuple(graph.channels),
        interrupt_before_nodes=breakpoints[0],
        interrupt_after_nodes=breakpoints[1],
        stream_mode="updates",
        checkpointer=checkpointer,
        context_schema=graph.context_schema,
        name=name,
        _scope=layout.scope,
        _joins=graph.joins,
        _check_input=refuse_lookalike if state.root else layout.input_check(),
        **options,
    )
    app.builder = graph
    app.exits = Exits(
        frozenset(start for start, end in graph.edges if end == END),
        {name: spec.ends for name, spec in specs.items()} | handler_ends(graph),
    )
    app.register_types(*graph.schemas, message_types(graph.channels.values()))
    return app


@dataclass(frozen=True, slots=True)
class InputCheck:
    """Looks at an input before anything is stored.

    Attributes:
        keys: those of the input schema, which are taken.
        state: the state's other keys → why they are not taken from an input.
        loose: other keys may be meant: a router at START is shown them, or `extra_keys="ignore"` says so.
    """

    keys: frozenset[str]
    state: Mapping[str, str]
    loose: bool

    def __call__(self, value: Any) -> None:
        """Refuse an input that no key can be read from; warn of keys that are dropped.

        A graph inside another is shown the keys of both by design, so nothing is said of them there.

        Raises:
            InvalidUpdateError: it is neither a dict nor a schema instance, or has no key of the input schema.
        """
        if isinstance(value, Mapping):
            given: Any = value
        elif is_record(value) and not isinstance(value, NO_UPDATES) and find_lookalike(value) is None:
            given = record_fields(type(value))
        else:
            raise InvalidUpdateError(
                "the input of this graph is a dict of state keys or a schema instance, "
                f"not {type(value).__name__}: {value!r}{advice(value)}"
            )
        if self.keys.issuperset(given) or self.loose or _is_node(RUNNING.get()):
            return
        others = [key for key in given if key not in self.keys and key != INTERRUPT]
        if not others:
            return  # only what the output of a call says besides
        text = f"the input has {_dropped(others, self.keys, self.state)}"
        if self.keys.isdisjoint(given):
            raise InvalidUpdateError(f"{text}; and none of the input's keys, which are {_named(self.keys)}")
        if isinstance(value, Mapping) and RUNNING.get() is None:
            warn(f"{text}; dropped")


def _is_node(task: Any) -> bool:
    """Whether the graph around this one runs it as a node, and so hands over its whole state."""
    return task is not None and getattr(task.node.source, "is_stategraph", False) is True


def _dropped(others: Sequence[Any], keys: frozenset[str], state: Mapping[str, str]) -> str:
    """Each key that an input cannot bring, and why."""
    told = []
    for key in others[:5]:
        if key in state:
            told.append(f"{key!r}, {state[key]}")
        else:
            told.append(f"the unknown key {key!r} ({nearest(key, keys)})")
    return ", ".join(told) + (", ..." if len(others) > 5 else "")


def _named(keys: frozenset[str]) -> str:
    names = sorted(keys)
    return ", ".join(map(repr, names[:10])) + (", ..." if len(names) > 10 else "")


class Layout:
    """Which channels a graph needs besides its state, and who writes them."""

    def __init__(self, graph: Declared, specs: Mapping[str, NodeSpec]) -> None:
        self.graph = graph
        self.specs = specs
        strict = graph.extra_keys == "error"
        triggers = {name: trigger_name(name) for name in specs}
        hints = {key: channel.typ for key, channel in graph.channels.items()}
        self.scope = WriteScope(frozenset(graph.channels), triggers, strict, hints=hints)
        # Joins that wake a node; one that leads to END has nobody to wake.
        self.joins = [join for join in graph.joins if join.target != END]
        self.edges: dict[str, list[str]] = {}
        self.joins_from: dict[str, list[str]] = {}
        self.joins_to: dict[str, list[str]] = {}
        for start, end in sorted(graph.edges):
            if end != END:
                self.edges.setdefault(start, []).append(end)
        for join in self.joins:
            self.joins_to.setdefault(join.target, []).append(join.channel)
            for source in join.sources:
                self.joins_from.setdefault(source, []).append(join.channel)

    def channels(self) -> dict[str, Channel]:
        """The input, a trigger per node, a barrier per join."""
        found: dict[str, Channel] = {START: EphemeralValue(self.graph.input_schema)}
        for name, spec in self.specs.items():
            deferred = spec.defer
            found[trigger_name(name)] = LastValueAfterFinish(Any) if deferred else EphemeralValue(Any, guard=False)
        for join in self.joins:
            found[join.channel] = join.make_channel()
        return found

    def input_check(self) -> InputCheck:
        """What an input may hold."""
        graph = self.graph
        taken = frozenset(graph.schemas[graph.input_schema].channels)
        shown = any(spec.schema is None for spec in graph.branches.get(START, {}).values())
        others = dict.fromkeys(graph.channels.keys() - taken, "a key of the state but not of the input schema")
        others |= dict.fromkeys(graph.managed, "which is computed")
        return InputCheck(taken, others, shown or not self.scope.strict)

    def nodes(self) -> dict[str, PregelNode]:
        """`__start__`, which spreads the input, and the user's nodes."""
        found = {START: self._start()}
        for name, spec in self.specs.items():
            schema = spec.schema
            joins = self.joins_to.get(name, ())
            found[name] = PregelNode(
                channels=ROOT if schema.root else schema.keys,
                triggers=(trigger_name(name), *joins),
                bound=(spec.body,),
                writers=self._writers(name, self._scope_of(spec), schema),
                mapper=schema.coerce,
                metadata=spec.metadata,
                defer=spec.defer,
                retry_policy=spec.policies.retry,
                cache_policy=spec.policies.cache,
                timeout=spec.policies.timeout,
                error_handler=handler_of(self.graph, name),
                executor=spec.executor,
            )
            handler = handler_of(self.graph, name)
            if handler is not None and handler not in found:
                found[handler] = self._handler(handler, spec)
        return found

    def _handler(self, name: str, spec: NodeSpec) -> PregelNode:
        """A node that nothing triggers: it takes the place of a failed task."""
        defaults = self.graph.defaults
        assert spec.policies.handler is not None
        return PregelNode(
            channels=(),
            triggers=(),
            bound=(spec.policies.handler,),
            writers=self._writers(name, self.scope, spec.schema),
            retry_policy=defaults.retry,
            timeout=defaults.timeout,
        )

    def _start(self) -> PregelNode:
        schema = self.graph.schemas[self.graph.input_schema]
        scope = replace(self.scope, keys=frozenset(schema.channels), strict=False)
        state = self.graph.schemas[self.graph.state_schema]
        return PregelNode(
            channels=START, triggers=(START,), writers=self._writers(START, scope, state), tags=(TAG_HIDDEN,)
        )

    def _scope_of(self, spec: NodeSpec) -> WriteScope:
        """What a node may write. A graph as a node gives its whole output; keys of its own stay there."""
        if getattr(spec.body.source, "is_stategraph", False) is True:
            return replace(self.scope, nested=True)
        return self.scope

    def _writers(self, name: str, scope: WriteScope, schema: Schema) -> tuple[Writer, ...]:
        """State and fixed edges first, then the routers."""
        graph = self.graph
        fixed: list[tuple[str, Any]] = [(trigger_name(end), None) for end in self.edges.get(name, ())]
        fixed += [(barrier, name) for barrier in self.joins_from.get(name, ())]
        writers: list[Writer] = [StateWriter(scope, fixed)]
        loose = name == START or not self.scope.strict
        for label, spec in graph.branches.get(name, {}).items():
            reads = graph.schemas[spec.schema] if spec.schema is not None else schema
            passthrough = loose and spec.schema is None
            writers.append(Branch(label, spec, (reads.keys, reads.coerce), self.scope, passthrough))
        return tuple(writers)
