"""From a GraphSpec to a Program: state keys, edges and joins become channels; nodes get their
triggers and writers.

The names of the channels are part of what is stored, so they must not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..channels import BinaryOperatorAggregate, EphemeralValue, LastValueAfterFinish
from ..pregel.app import Pregel
from ..pregel.budgets import Budget, later
from ..pregel.names import END, ROOT, SPENT, START, TAG_HIDDEN, trigger_name
from ..pregel.program.flow import Flow, Join, find_gathering, find_holders, make_flow
from ..pregel.program.node import PregelNode
from ..pregel.program.program import of_state_graph
from ..pregel.program.results import is_graph, refuse_lookalike
from ..pregel.program.writes import Writer, WriteScope, find_keyless
from ..pregel.run.checks import read_observers
from ..pregel.types import ContextT, InputT, OutputT, RunnableConfig, Schedule, StateT
from .branch import BranchWriter
from .fields import config_of
from .input_check import InputCheck
from .schema import Channel, Schema
from .spec import GraphSpec, NodeSpec
from .validate import complete_successors

if TYPE_CHECKING:  # loaded for graphs that use them
    from .validation import KeyValidators


class CompiledStateGraph(Pregel[StateT, ContextT, InputT, OutputT]):
    """A compiled `StateGraph`: a `Pregel` that remembers what it was compiled from.

    Attributes:
        builder: the `StateGraph`, which may have changed since.
        spec: what the builder had declared when it was compiled.
    """

    builder: Any  # the builder's module imports this one
    spec: GraphSpec

    def coerce_output(self, value: Any, *, whole: bool = True) -> Any:
        """The output as an instance of the output schema, if that is a pydantic model or dataclass.

        Args:
            whole: all keys of the output should be there. If False, a dict that makes no instance
                is returned as it is.
        """
        return self._schema(self.spec.output_schema).make(value, whole)

    def coerce_state(self, values: Any) -> Any:
        """The values of a state as an instance of the state's class, if one can be made of them."""
        return self._schema(self.spec.state_schema).make(values, whole=False)

    def get_input_jsonschema(self, config: RunnableConfig | None = None) -> dict[str, Any]:
        """The JSON schema of what `invoke` takes: of a model with aliases under those. `config` is
        ignored."""
        from .json_schema import json_schema

        return json_schema(self._schema(self.spec.input_schema), "in")

    def get_output_jsonschema(self, config: RunnableConfig | None = None) -> dict[str, Any]:
        """The JSON schema of the dict that `invoke` returns. `config` is ignored."""
        from .json_schema import json_schema

        return json_schema(self._schema(self.spec.output_schema), "out")

    def get_context_jsonschema(self) -> dict[str, Any] | None:
        """The JSON schema of `context=`; None if the graph has no context schema."""
        from .json_schema import context_json_schema

        return context_json_schema(self.context_schema)

    def _schema(self, declared: Any) -> Schema:
        return self.spec.schemas[declared]


def compile_graph(
    spec: GraphSpec,
    compiled_class: type[CompiledStateGraph[Any, Any, Any, Any]] = CompiledStateGraph,
    schedule: Schedule = "supersteps",
    budgets: tuple[Budget, ...] = (),
    version: str | None = None,
    observer: Any = None,
    **options: Any,
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Make a Pregel of a valid graph.

    Args:
        compiled_class: what to make.
        schedule: when its tasks start.
        budgets: limits of what its threads spend.
        version: the name of this version.
        observer: of all its runs; see `StateGraph.compile`.
        options: what a `Pregel` takes besides.
    """
    compiler = ReadyCompiler(spec) if schedule == "ready" else Compiler(spec)
    output = spec.schemas[spec.output_schema]
    triggers = compiler.make_channels()
    nodes = compiler.make_nodes()
    if budgets:
        triggers[SPENT] = BinaryOperatorAggregate(dict, later)
        for each, node in nodes.items():
            if each != START:
                nodes[each] = replace(node, writers=(*node.writers, SpentWriter()))
    root = ROOT in spec.channels  # the state is one value, not a dict of keys
    app = compiled_class(
        nodes=nodes,
        channels={**spec.channels, **spec.managed, **triggers},
        input_channels=START,
        output_channels=ROOT if root else tuple(output.channels),
        stream_channels=ROOT if root else tuple(spec.channels),
        stream_mode="updates",
        observer=(*read_observers(observer), *spec.node_observers()),
        **options,
    )
    flow = compiler.make_flow(triggers)
    app.program = of_state_graph(app.program, compiler.scope, spec.joins, flow, version)
    app.check_input = compiler.make_input_check()
    app.spec = spec
    app.budgets = budgets
    app.output_names = output.names
    foldings = [getattr(channel, "folding", None) for channel in spec.channels.values()]
    held = [folding.stored_types() for folding in foldings if folding is not None]
    app.register_types(*spec.schemas, *held)
    return app


def _call_by_key(aliases: Mapping[str, str], given: Any) -> Any:
    """An input with the keys of the state in place of their aliases."""
    if not isinstance(given, dict):
        return given
    return {aliases.get(key, key): value for key, value in given.items()}


class Compiler:
    """Decides which channels a graph needs besides its state, and who writes them.

    Attributes:
        scope: what the graph's nodes may write.
        validators: of the state's keys, if anything is validated.
        targets: node → the nodes that its plain edges lead to.
        joins_of: node → the channels of the joins that wait for it.
        joins_into: node → the channels of the joins that make it run.
        declared: node → where it may go; None if it may go anywhere.
    """

    def __init__(self, spec: GraphSpec) -> None:
        self.spec = spec
        self.nodes: dict[str, NodeSpec] = spec.complete_nodes()
        self.scope: WriteScope = WriteScope(
            frozenset(spec.channels),
            {name: trigger_name(name) for name in self.nodes},
            spec.extra_keys == "error",
            hints={key: channel.typ for key, channel in spec.channels.items()},
            unset=spec.unset_fields,
            keyless=find_keyless({name: node.body.source for name, node in self.nodes.items()}),
        )
        # What leads to END makes nothing run, and needs no channel.
        self.joins: list[Join] = [join for join in spec.joins if join.target != END]
        # Where a join waits for whoever can still come, nodes go where they say they go.
        self.declared: dict[str, set[str]] | None = None
        if any(join.kind == "reachable" for join in self.joins):
            self.declared = complete_successors(spec)
        self.validators: KeyValidators | None = None
        if spec.validate:
            from .validation import KeyValidators

            self.validators = KeyValidators(spec.channels, spec.schemas.values())
            if "writes" in spec.validate:
                self.scope = replace(self.scope, make=self.validators.make_writer)
        self.targets: dict[str, list[str]] = {}
        self.joins_of: dict[str, list[str]] = {}
        self.joins_into: dict[str, list[str]] = {}
        # Sorted, so that the same graph always makes the same writes in the same order.
        for start, end in sorted(spec.edges):
            if end != END:
                self.targets.setdefault(start, []).append(end)
        for join in self.joins:
            self.joins_into.setdefault(join.target, []).append(join.channel)
            for source in join.sources:
                self.joins_of.setdefault(source, []).append(join.channel)

    def make_channels(self) -> dict[str, Channel]:
        """The input, a trigger for each node, a barrier for each join."""
        triggers = self.scope.triggers
        found: dict[str, Channel] = {START: EphemeralValue(self.spec.input_schema)}
        for name, node in self.nodes.items():
            if node.defer:
                found[triggers[name]] = LastValueAfterFinish(Any)
            else:
                # Several tasks may lead to a node in one superstep: it runs once, without an error.
                found[triggers[name]] = EphemeralValue(Any, guard=False)
        for join in self.joins:
            found[join.channel] = join.make_channel()
        return found

    def make_flow(self, triggers: Mapping[str, Channel]) -> Flow | None:
        """What leads to what; None if no node's turn depends on it."""
        deferred = sum(node.defer for node in self.nodes.values())
        if deferred < 2 and not any(join.waves for join in self.joins):
            return None
        return make_flow(self.joins, complete_successors(self.spec), triggers)

    def make_input_check(self) -> Callable[[Any], None]:
        """What an input may hold."""
        spec = self.spec
        if ROOT in spec.channels:
            if self.validators is None or "input" not in spec.validate:
                return refuse_lookalike
            return self.validators.check_value
        schema = spec.schemas[spec.input_schema]
        taken = frozenset((*schema.channels, *schema.aliases))
        shown = any(branch.schema is None for branch in spec.branches.get(START, {}).values())
        why = "a key of the state but not of the input schema"
        others = dict.fromkeys(spec.channels.keys() - taken, why)
        others |= dict.fromkeys(spec.managed, "which is computed")
        validate = None
        forbids = False
        if self.validators is not None and "input" in spec.validate:
            # An input of the state's own schema may bring a part of the state.
            whole = spec.input_schema is not spec.state_schema
            validate = partial(self.validators.check_input, schema, whole)
            forbids = config_of(schema.cls).get("extra") == "forbid"
        return InputCheck(taken, others, shown or not self.scope.strict, validate, forbids)

    def make_nodes(self) -> dict[str, PregelNode]:
        """`__start__`, which spreads the input, and the user's nodes."""
        found = {START: self._make_start()}
        for name, node in self.nodes.items():
            handler = self.spec.find_handler(name)
            found[name] = self._make_node(name, node, handler)
            # A default handler serves many nodes; it is made once.
            if handler is not None and handler not in found:
                found[handler] = self._make_handler(handler, node)
        return found

    def _make_node(self, name: str, node: NodeSpec, handler: str | None) -> PregelNode:
        schema = node.schema
        return PregelNode(
            channels=ROOT if schema.root else schema.keys,
            triggers=(self.scope.triggers[name], *self.joins_into.get(name, ())),
            bound=(node.body,),
            writers=self._make_writers(name, self._scope_of(name, node), schema),
            mapper=self._make_mapper(schema),
            metadata=node.metadata,
            defer=node.defer,
            policies=node.policies,
            error_handler=handler,
            executor=node.executor,
        )

    def _make_handler(self, name: str, node: NodeSpec) -> PregelNode:
        """A node that nothing triggers: it takes the place of a failed task."""
        assert node.handler is not None
        return PregelNode(
            channels=(),
            triggers=(),
            bound=(node.handler,),
            writers=self._make_writers(name, self._restrict(self.scope, name), node.schema),
            policies=self.spec.defaults._replace(cache=None),
        )

    def _make_start(self) -> PregelNode:
        """A hidden node that writes the input, less strictly: `InputCheck` has looked at it."""
        schema = self.spec.schemas[self.spec.input_schema]
        make = None
        if self.validators is not None and "input" in self.spec.validate:
            make = self.validators.make_writer
        keys = frozenset(schema.channels)
        scope = replace(self.scope, keys=keys, strict=False, first=schema.first, make=make)
        state = self.spec.schemas[self.spec.state_schema]
        return PregelNode(
            channels=START,
            triggers=(START,),
            mapper=partial(_call_by_key, schema.aliases) if schema.aliases else None,
            writers=self._make_writers(START, scope, state),
            tags=(TAG_HIDDEN,),
        )

    def _make_mapper(self, schema: Schema) -> Callable[[dict[str, Any]], Any] | None:
        """What makes a node's input of the values of its keys; None for a dict of them."""
        if self.validators is not None and "nodes" in self.spec.validate and not schema.root:
            return partial(self.validators.read, schema)
        return schema.coerce

    def _scope_of(self, name: str, node: NodeSpec) -> WriteScope:
        """What a node may write. A graph as a node returns its whole output, other keys too."""
        scope = replace(self.scope, nested=True) if is_graph(node.body.source) else self.scope
        return self._restrict(scope, name)

    def _restrict(self, scope: WriteScope, name: str) -> WriteScope:
        """The scope without the nodes that a node does not declare, where that counts."""
        if self.declared is None:
            return scope
        mine = self.declared.get(name, set())
        triggers = {node: channel for node, channel in scope.triggers.items() if node in mine}
        return replace(scope, triggers=triggers, undeclared=frozenset(scope.triggers) - mine)

    def _make_writers(self, name: str, scope: WriteScope, schema: Schema) -> tuple[Writer, ...]:
        """State and fixed edges first, then the routers, which read what was written."""
        spec = self.spec
        triggers = self.scope.triggers
        fixed: list[tuple[str, Any]] = [
            (triggers[target], None) for target in self.targets.get(name, ())
        ]
        fixed += [(channel, name) for channel in self.joins_of.get(name, ())]
        writers: list[Writer] = [scope.make_writer(fixed)]
        # Keys that the state lacks are errors in strict graphs, except in an input. Where they are
        # allowed, a router without a schema of its own sees them as well.
        lenient = name == START or not self.scope.strict
        for label, branch in spec.branches.get(name, {}).items():
            reads = schema if branch.schema is None else spec.schemas[branch.schema]
            passthrough = lenient and branch.schema is None
            selection = (reads.keys, self._make_mapper(reads))
            routed = self._restrict(self.scope, name)
            writers.append(BranchWriter(label, branch, selection, routed, passthrough))
        return tuple(writers)


class ReadyCompiler(Compiler):
    """A `Compiler` for schedule="ready": a node starts when its own inputs are there."""

    def __init__(self, spec: GraphSpec) -> None:
        super().__init__(spec)
        # What holds a node back is known from where others say they go.
        self.declared = complete_successors(spec)

    def make_flow(self, triggers: Mapping[str, Channel]) -> Flow | None:
        """What holds each node back."""
        from ..pregel.schedule.slots import OpenTasks  # for graphs that use it

        successors = complete_successors(self.spec)
        plain = complete_successors(replace(self.spec, joins=()))
        # Who waits at one that opens for any, or for some, does not wait for the rest.
        waiting = tuple(join for join in self.spec.joins if join.kind != "count")
        ways = complete_successors(replace(self.spec, joins=waiting))
        gathering = [join for join in self.joins if join.kind == "all"]
        return replace(
            make_flow(self.joins, successors, triggers),
            holders=find_holders(ways, plain, START),
            gathering=tuple(find_gathering(join, ways, START) for join in gathering),
            make_open=OpenTasks,
        )


class SpentWriter(Writer):
    """Writes what the thread has spent by the end of a task into its channel."""

    of_run = True

    def write(self, result: Any, task: Any) -> None:
        """Append one write, if the thread has spent anything."""
        if task.node.cache is not None:
            task.end_result(result)
        total = task.run.calls.find_meter().total
        if total:
            task.writes.append((SPENT, total))
