"""StateGraph: declare a typed state, nodes and edges, then compile. Nothing here runs.

Invalid declarations are refused at once. Mistakes that show only in the whole graph are left to
`validate`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeAlias, overload

from typing_extensions import TypeVar, Unpack

from ..channels.base import Channel, check_kind
from ..checkpoint.base import BaseCheckpointSaver, Checkpoint
from ..extras import load_part
from ..pregel.budgets import Budget, read_budgets
from ..pregel.errors import InvalidGraphError, warn
from ..pregel.names import END, START
from ..pregel.policies import NodePolicies
from ..pregel.program.callables import NodeBody, read_callable
from ..pregel.program.flow import Join
from ..pregel.run.checks import (
    check_choice,
    check_context_schema,
    read_observers,
    resolve_executor,
)
from ..pregel.types import (
    All,
    CachePolicy,
    ContextT,
    InputT,
    OnFailure,
    OutputT,
    RetryPolicy,
    Schedule,
    StateT,
    TimeoutPolicy,
    Validated,
)
from .arguments import (
    check_join,
    check_new_name,
    infer_router_name,
    known_keywords,
    name_action,
    number_name,
    plain_name,
    read_action,
    read_breakpoints,
    read_destinations,
    read_handler,
    read_places,
    read_policies,
    read_wait,
)
from .branch import BranchSpec, read_ends
from .compile import CompiledStateGraph, compile_graph
from .schema import Schema, StateKeys, is_schema
from .spec import GraphSpec, NodeSpec
from .validate import check_graph

if TYPE_CHECKING:
    from ..pregel.drivers.limit import Limit
    from ..pregel.observer import AnyObserver
    from ..visualize.drawing import Drawing
    from .signatures import Node, NodeOptions

NodeInputT = TypeVar("NodeInputT")
Wait: TypeAlias = Literal["all", "any", "reachable"] | int
"""For which of its starts a join waits."""


class StateGraph(Generic[StateT, ContextT, InputT, OutputT]):
    """A graph whose nodes read and write one shared, typed state.

    Every key of the schema is a channel: a plain annotation keeps the last value and refuses two
    in one step; an `Annotated[type, reducer]` folds updates with `reducer(value, update)`; an
    `Annotated[type, channel]` uses that channel.

    Args:
        state_schema: a TypedDict, dataclass, pydantic model or annotated class; any other type is
            a state without keys.
        context_schema: the class of `runtime.context`.
        input_schema, output_schema: what `invoke` takes and returns; the state by default.
        extra_keys: "error" refuses keys that the state does not have when a node writes them;
            "ignore" drops them.
        validate: where pydantic checks values and replaces them by what it returns: "input" (what
            `invoke` is given), "nodes" (what nodes and routers are given), "writes" (what nodes
            write), or several of these. Writes to a key with a reducer are checked against the
            annotation of the reducer's second parameter, or else the key's type.

    Raises:
        InvalidGraphError: a schema cannot be used, or two schemas declare one key differently.
        TypeError: the context schema is not a class.

    >>> from typing import Annotated, TypedDict
    >>> from operator import add
    >>> from stategraph import START
    >>> class State(TypedDict):
    ...     words: Annotated[list[str], add]
    >>> graph = StateGraph(State).add_node("hello", lambda state: {"words": ["hello"]})
    >>> graph.add_edge(START, "hello").compile().invoke({"words": ["oh,"]})
    {'words': ['oh,', 'hello']}
    """

    compiled_class: ClassVar[type[CompiledStateGraph[Any, Any, Any, Any]]] = CompiledStateGraph
    """The class of the graphs that `compile` returns."""
    first_values: ClassVar[bool] = True
    """Whether a key with a reducer starts with the default of its field."""
    unset_fields: ClassVar[bool] = False
    """Whether fields of a pydantic model count as written that were not set and are not None."""

    @overload
    def __init__(
        self,
        state_schema: type[StateT],
        context_schema: type[ContextT] | None = None,
        *,
        input_schema: type[InputT] | None = None,
        output_schema: type[OutputT] | None = None,
        extra_keys: Literal["error", "ignore"] = "error",
        validate: Validated | Sequence[Validated] = (),
    ) -> None: ...
    @overload  # a schema that is not a class, such as Annotated[list, add]
    def __init__(
        self: StateGraph[Any, Any, Any, Any],
        state_schema: Hashable,  # a dict of keys and types is no schema
        context_schema: Any = None,
        *,
        input_schema: Any = None,
        output_schema: Any = None,
        extra_keys: Literal["error", "ignore"] = "error",
        validate: Validated | Sequence[Validated] = (),
    ) -> None: ...
    @known_keywords()
    def __init__(
        self,
        state_schema: Any,
        context_schema: Any = None,
        *,
        input_schema: Any = None,
        output_schema: Any = None,
        extra_keys: Literal["error", "ignore"] = "error",
        validate: Validated | Sequence[Validated] = (),
    ) -> None:
        if extra_keys not in ("error", "ignore"):
            raise InvalidGraphError(f'extra_keys must be "error" or "ignore", got {extra_keys!r}')
        self.nodes: dict[str, NodeSpec] = {}
        self.edges: set[tuple[str, str]] = set()
        self.joins: list[Join] = []
        self.branches: dict[str, dict[str, BranchSpec]] = {}
        self._state = StateKeys(state_schema, self.first_values)
        self.channels: dict[str, Channel] = self._state.channels
        self.managed: dict[str, Any] = self._state.managed
        self.extra_keys = extra_keys
        self.validated: frozenset[str] = read_places(validate)
        self.context_schema: Any = check_context_schema(context_schema)
        self.state_schema = state_schema
        self.input_schema: Any = state_schema if input_schema is None else input_schema
        self.output_schema: Any = state_schema if output_schema is None else output_schema
        self.compiled: bool = False
        self.defaults: NodePolicies = NodePolicies()
        self.default_handler: NodeBody | None = None
        self._state.add(state_schema)
        for kind in ("input_schema", "output_schema"):
            schema = getattr(self, kind)
            if schema is not state_schema and self._state.add(schema).managed:
                raise InvalidGraphError(
                    f"{kind}: managed values can only be keys of the state schema"
                )

    # -- nodes --

    @overload
    def add_node(
        self,
        node: str | Node[StateT, ContextT],
        action: Node[StateT, ContextT] | None = None,
        *,
        input_schema: type[StateT] | None = None,
        **options: Unpack[NodeOptions],
    ) -> Self: ...
    @overload
    def add_node(
        self,
        node: str | Callable[[StateT], StateT | Awaitable[StateT]],
        action: Callable[[StateT], StateT | Awaitable[StateT]] | None = None,
        *,
        input_schema: Any = None,
        **options: Unpack[NodeOptions],
    ) -> Self: ...
    @overload
    def add_node(
        self,
        node: str | Node[NodeInputT, ContextT],
        action: Node[NodeInputT, ContextT] | None = None,
        *,
        input_schema: type[NodeInputT] | None = None,
        **options: Unpack[NodeOptions],
    ) -> Self: ...
    @known_keywords()
    def add_node(
        self,
        node: str | Callable[..., Any] | Any,
        action: Callable[..., Any] | Any = None,
        *,
        defer: bool = False,
        metadata: Mapping[str, Any] | None = None,
        input_schema: Any = None,
        retry_policy: RetryPolicy | Sequence[RetryPolicy] | None = None,
        cache_policy: CachePolicy | None = None,
        timeout: float | timedelta | TimeoutPolicy | None = None,
        error_handler: Callable[..., Any] | None = None,
        destinations: Mapping[str, str] | Sequence[str] | None = None,
        executor: Any = None,
        limit: Limit | Sequence[Limit] | None = None,
        observer: AnyObserver | Sequence[AnyObserver] | None = None,
    ) -> Self:
        """Add a node; return the builder.

        Args:
            node: its name, or the action itself, whose name is then used.
            action: a function of the state (sync, async, a generator that yields updates), or
                anything with `invoke` or `ainvoke`, a compiled graph included. Besides the state it
                may take `config`, `runtime`, `writer` and `store`. It returns a dict of updates,
                None, a schema instance, a `Command`, a `Send`, or a list of these.
            defer: wait until nothing else is left to run.
            metadata: added to the config of its tasks and to drawings.
            input_schema: the keys it reads; by default its first parameter's annotation, or all.
            retry_policy: when to retry.
            cache_policy: reuse results for equal inputs; needs a cache on the graph.
            timeout: seconds, a timedelta or a `TimeoutPolicy` for one attempt; sync nodes are
                abandoned on their thread.
            error_handler: takes over in the same superstep when the last attempt has failed. It is
                given the node's input and, if it has a parameter `error`, a `NodeError`; it returns
                what a node returns. The failed node's own edges are not followed.
            destinations: the names that its `Command`s may go to, or a dict of them with labels.
            executor: where it runs, whatever `compile` or the run say; "threads" keeps it here.
            limit: a `Limit`, or several; a task of the node needs a slot in each to start.
            observer: an `Observer` of its tasks, the name of one, or several; see `compile`.

        Raises:
            InvalidGraphError: the name is taken, reserved, or has ":" or "|" in it.
            TypeError: there is no action, or it cannot be called as a node.
        """
        name, action = read_action(node, action)
        check_new_name(name, self.nodes)
        check_kind(f"node {name!r}: metadata", metadata, Mapping | None, "a dict")
        body = read_callable(action, name)
        where = f"node {name!r}"
        policies = read_policies(where, retry_policy, cache_policy, timeout, limit)
        ends = read_destinations(name, destinations, body)
        self.nodes[name] = NodeSpec(
            body=body,
            schema=self._node_schema(body, input_schema),
            defer=bool(defer),
            metadata=dict(metadata or {}),
            policies=policies,
            handler=read_handler(error_handler, f"the error handler of {where}"),
            ends=ends,
            executor=resolve_executor(executor),
            observers=() if observer is None else read_observers(observer, name),
        )
        self._warn_if_compiled("node")
        return self

    def _node_schema(self, body: NodeBody, given: Any) -> Schema:
        if given is not None:
            return self._state.add(given)
        if body.schema is not None and is_schema(body.schema):
            return self._state.add(body.schema)
        return self._state.schemas[self.state_schema]

    def set_node_defaults(
        self,
        *,
        retry_policy: RetryPolicy | Sequence[RetryPolicy] | None = None,
        cache_policy: CachePolicy | None = None,
        timeout: float | timedelta | TimeoutPolicy | None = None,
        error_handler: Callable[..., Any] | None = None,
    ) -> Self:
        """Set policies for nodes without their own; see `add_node`.

        They are applied at compile; a later call replaces only the policies that it gives. Error
        handlers take the defaults for retry and timeout, not for cache and handler.
        """
        given = read_policies("set_node_defaults", retry_policy, cache_policy, timeout)
        handler = read_handler(error_handler, "the default error handler")
        self.defaults = given.fill_from(self.defaults)
        self.default_handler = handler or self.default_handler
        return self

    def add_sequence(self, nodes: Sequence[Any]) -> Self:
        """Add nodes and chain them with edges; all of them, or none if one cannot be added.

        Args:
            nodes: actions, or (name, action) pairs.

        Raises:
            InvalidGraphError: `nodes` is empty, or a name is taken.
            TypeError: an item is neither an action nor a pair.
        """
        if isinstance(nodes, str) or not isinstance(nodes, Iterable):
            raise TypeError(
                f"nodes must be a list of actions or (name, action) pairs, got {nodes!r}"
            )
        pairs = [name_action(item) for item in nodes]
        if not pairs:
            raise InvalidGraphError("add_sequence needs at least one node")
        names = [name for name, _ in pairs]
        for name in names:
            if name in self.nodes or names.count(name) > 1:
                raise InvalidGraphError(
                    f"add_sequence: node {name!r} already exists; pass (name, action) pairs"
                )
        before = dict(self.nodes)
        try:
            for name, action in pairs:
                self.add_node(name, action)
        except Exception:
            self.nodes = before
            raise
        for start, end in pairwise(names):
            self.add_edge(start, end)
        return self

    # -- edges --

    def add_edge(
        self, start_key: str | Iterable[str], end_key: str, wait: Wait = "all"
    ) -> Self:
        """Run `end_key` after `start_key`; or, given several starts, after these.

        Args:
            start_key: a node, or several: a join.
            wait: for which of several starts. "all"; "any", the first; a number, so many of them;
                or "reachable": whoever is still to come, that is until nothing that is under way
                leads to a start any more. `end_key` runs once for them. What has started by then
                and comes later is ignored, until `end_key` leads there again. `runtime.joined`
                says who came.

        Raises:
            InvalidGraphError: it starts at END or ends at START, a start of a join is not a node
                yet, a name is not a string, or the join cannot wait so.
        """
        end_key = plain_name("an edge leads to", end_key)
        if end_key == START:
            raise InvalidGraphError("an edge cannot end at START")
        if isinstance(start_key, str):
            if start_key == END:
                raise InvalidGraphError("an edge cannot start at END")
            if wait != "all":
                raise InvalidGraphError(
                    f"the edge {start_key!r} -> {end_key!r}: wait={wait!r} is for joins; to wait "
                    f"for one node, give a list: [{start_key!r}]"
                )
            self.edges.add((plain_name("an edge starts at", start_key), end_key))
        else:
            if not isinstance(start_key, Iterable):
                plain_name("an edge starts at", start_key)
            starts = [plain_name("a join waits for", start) for start in start_key]
            check_join(starts, end_key, self.nodes)
            # The order is part of the join's name in checkpoints, and a set has none of its own.
            if isinstance(start_key, (set, frozenset)):
                starts.sort()
            sources = tuple(dict.fromkeys(starts))
            kind, count = read_wait(wait, sources, end_key, self.nodes)
            deferred = end_key != END and self.nodes[end_key].defer
            self.joins.append(Join(sources, end_key, deferred, kind, count))
        self._warn_if_compiled("edge")
        return self

    @property
    def waiting_edges(self) -> set[tuple[tuple[str, ...], str]]:
        """The joins, each as (the nodes waited for, the node that waits)."""
        return {(join.sources, join.target) for join in self.joins}

    @known_keywords()
    def add_conditional_edges(
        self,
        source: str,
        path: Callable[..., Any] | Any,
        path_map: Mapping[Any, str] | Iterable[str] | None = None,
    ) -> Self:
        """After `source`, ask `path` where to go.

        Args:
            path: a function (sync or async) of the state as it is after `source`; returns a node
                name, END, a `Send`, or a list of these. It may take what a node may take.
            path_map: from its answers to node names, or the names it may return; for checks and
                drawings too. By default a `Literal` return annotation.

        Raises:
            InvalidGraphError: `source` has a router of the same name already, or a destination is
                not a string.
            TypeError: `path` cannot be called as a router.
        """
        source = plain_name("a conditional edge starts at", source)
        body = read_callable(path, what=f"the router of node {source!r}")
        name = infer_router_name(path)
        mine = self.branches.get(source, {})
        if name == "condition":
            name = number_name(name, mine)
        if name in mine:
            raise InvalidGraphError(
                f"node {source!r} already has a router named {name!r}; give this one another name"
            )
        schema = None
        if body.schema is not None and is_schema(body.schema):
            self._state.add(body.schema)
            schema = body.schema
        ends = read_ends(path_map, body, f"node {source!r}: the path_map of its router {name!r}")
        self.branches[source] = {**mine, name: BranchSpec(body, ends, schema)}
        self._warn_if_compiled("conditional edge")
        return self

    def set_entry_point(self, key: str) -> Self:
        """The same as `add_edge(START, key)`."""
        return self.add_edge(START, key)

    def set_conditional_entry_point(
        self, path: Callable[..., Any], path_map: Mapping[Any, str] | Iterable[str] | None = None
    ) -> Self:
        """The same as `add_conditional_edges(START, path, path_map)`."""
        return self.add_conditional_edges(START, path, path_map)

    def set_finish_point(self, key: str) -> Self:
        """The same as `add_edge(key, END)`."""
        return self.add_edge(key, END)

    def _warn_if_compiled(self, what: str) -> None:
        if self.compiled:
            warn(f"this {what} was added after compile(): compile again to run it")

    # -- the whole --

    def validate(self, interrupt: All | Sequence[str] | None = None) -> Self:
        """Check the graph as a whole.

        Raises:
            InvalidGraphError: with a sentence for every mistake.
        """
        check_graph(self.snapshot(), read_breakpoints("interrupt", interrupt))
        return self

    @known_keywords()
    def compile(
        self,
        checkpointer: BaseCheckpointSaver | bool | None = None,
        *,
        cache: Any = None,
        store: Any = None,
        interrupt_before: All | Sequence[str] | None = None,
        interrupt_after: All | Sequence[str] | None = None,
        debug: bool = False,
        name: str | None = None,
        migrate: Callable[[Checkpoint, Sequence[str]], Checkpoint] | None = None,
        executor: Any = None,
        on_failure: OnFailure | None = None,
        inbox: bool = False,
        observer: AnyObserver | Sequence[AnyObserver] | None = None,
        schedule: Schedule = "supersteps",
        budget: Budget | Sequence[Budget] | None = None,
        version: str | None = None,
    ) -> CompiledStateGraph[StateT, ContextT, InputT, OutputT]:
        """Check the graph and make it runnable. The builder may be changed and compiled again.

        Args:
            checkpointer: a checkpointer, to store threads; None to use the enclosing graph's; True
                for a separate history inside the enclosing graph; False for none.
            cache: stores results for nodes with a cache policy.
            store: given to nodes that ask for it; on executors it must be one that can be opened
                there (`BaseStore.reopen`).
            interrupt_before, interrupt_after: nodes to stop at, or "*" for all.
            debug: refuse nodes that change their input in place (`InPlaceEditError`); for tests,
                since it costs time.
            name: the name in drawings and errors; "StateGraph" by default.
            migrate: given a checkpoint of another version of the graph and what has changed since
                ("node 'a' is gone", "key 'n' has changed its kind", ...), returns it converted to
                this version; or a `stategraph.upgrade.Migration`. Without it, a thread with
                pending work that this version cannot run is refused.
            executor: where the functions of nodes run: "threads" (here, the default), "processes",
                a `stategraph.executors.ProcessExecutor`, any `concurrent.futures.Executor`, a
                `distributed.Client`, or the module `ray`. Everything else stays here. A call's
                `executor=` overrides this, and a node's overrides both.
            on_failure: what the failure of a task does to the others of its superstep. "stop" (the
                default): no further task starts, coroutines are cancelled, functions on threads run
                to completion. "finish": all tasks start and run to completion. Either way, the
                results of tasks that finish are kept for `invoke(None)`, and the first failure in
                path order is raised; `get_state(...).tasks` has all. Nested graphs inherit this
                setting unless they set their own.
            inbox: whether runs receive what is posted to their thread (`post`); one read per step.
            observer: an `Observer` of its runs, the name of one ("module:name"), or several.
            schedule: "supersteps" (the default): tasks start together when those before have ended;
                "ready": each starts when its own inputs are there, and each end is its own step.
            budget: what a thread, or a call, may spend: a `Budget`, or several.
            version: the name of this version, which the threads that it stores remember; see
                `stategraph.upgrade.Migration`.

        Raises:
            InvalidGraphError: with a sentence for every mistake.
            TypeError, ValueError: an argument is none of the kinds above.
        """
        check_kind("compile(name=...)", name, str | None, "a string")
        check_kind("compile(migrate=...)", migrate, Callable | None, "a function or a Migration")
        if version is not None and (not isinstance(version, str) or not version):
            raise TypeError(f"compile(version=...) must be a name, such as '2', got {version!r}")
        before = read_breakpoints("interrupt_before", interrupt_before)
        after = read_breakpoints("interrupt_after", interrupt_after)
        stops = [node for names in (before, after) if names != "*" for node in names]
        if schedule == "supersteps":
            self.validate(stops)
        else:
            check_choice("schedule", schedule, Schedule)
            check_graph(self.snapshot(), stops, in_supersteps=False)
        if debug:
            from .effects import warn_undeclared

            warn_undeclared((name, spec.body.source) for name, spec in self.nodes.items())
        app = compile_graph(
            self.snapshot(),
            self.compiled_class,
            schedule,
            read_budgets(budget, self.nodes),
            version,
            observer=observer,
            checkpointer=checkpointer,
            name=name or "StateGraph",
            interrupt_before_nodes=before,
            interrupt_after_nodes=after,
            context_schema=self.context_schema,
            store=store,
            cache=cache,
            debug=debug,
            executor=executor,
            on_failure=on_failure,
            inbox=inbox,
        )
        app.builder = self
        if check := getattr(migrate, "check", None):  # it is a Migration
            check(app.program.fingerprint)
        app.migrate = migrate
        self.compiled = True
        return app

    def snapshot(self) -> GraphSpec:
        """Return what has been declared so far, as a frozen record."""
        return GraphSpec(
            nodes=dict(self.nodes),
            edges=frozenset(self.edges),
            joins=tuple(self.joins),
            branches=dict(self.branches),
            channels=dict(self.channels),
            managed=dict(self.managed),
            schemas=dict(self._state.schemas),
            state_schema=self.state_schema,
            input_schema=self.input_schema,
            output_schema=self.output_schema,
            extra_keys=self.extra_keys,
            unset_fields=self.unset_fields,
            defaults=self.defaults,
            default_handler=self.default_handler,
            validate=self.validated,
        )

    def get_graph(self, *, xray: bool | int = False) -> Drawing:
        """Its drawing so far. Names in edges that are not nodes yet get a question mark.

        Args:
            xray: show the graphs inside nodes: True for all, a number for so many levels.

        Raises:
            InvalidGraphError: it is so wrong that nothing can be drawn.
        """
        drawing: Drawing = load_part("drawing").make_draft(self.snapshot(), xray)
        return drawing

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """How Jupyter shows it: as its drawing, with the mistakes that it still has."""
        shown: dict[str, str] = load_part("drawing").show(self.snapshot(), include, exclude)
        return shown

    if not TYPE_CHECKING:  # or type checkers would accept any name

        def __getattr__(self, name: str) -> Any:
            runs = hasattr(CompiledStateGraph, name)
            hint = f"; call it on the compiled graph: graph.compile().{name}(...)" if runs else ""
            text = f"{type(self).__name__!r} object has no attribute {name!r}{hint}"
            raise AttributeError(text, name=name, obj=self)
