"""StateGraph: declare a typed state, nodes and edges, then compile. Nothing here runs.

What cannot work is refused at the line that says it; what only shows in the whole is left to `validate`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Self

from ..channels import LastValue
from ..checkpoint.base import BaseCheckpointSaver, Checkpoint
from ..pregel.errors import InvalidGraphError
from ..pregel.names import END, NS_END, NS_SEP, ROOT, START, is_handler, is_reserved
from ..pregel.program.callables import Body, infer_name, read_callable
from ..pregel.program.join import Join
from ..pregel.run.config import check_context_schema, read_executor
from ..pregel.types import All, CachePolicy, RetryPolicy, TimeoutPolicy
from .arguments import breakpoints_of, destinations_of, named, numbered, plain_name, policies_of, router_name
from .branch import BranchSpec, read_ends
from .compile import CompiledStateGraph, compile_graph
from .declared import Declared, NodeSpec, Policies
from .schema import Channel, Schema, described, is_schema, not_a_schema, read_schema
from .validate import check

if TYPE_CHECKING:
    from ..visualize.drawing import Drawing


class StateGraph(Declared):
    """A graph whose nodes read and write one shared, typed state.

    Every key of the schema is a channel: a plain annotation keeps the last value and refuses two in one step; an
    `Annotated[type, reducer]` folds updates with `reducer(value, update)`; an `Annotated[type, channel]` uses that
    channel.

    Args:
        state_schema: a TypedDict, dataclass, pydantic model or annotated class; any other type is a state without
            keys.
        context_schema: the class of `runtime.context`.
        input_schema, output_schema: what `invoke` takes and returns; the state by default.
        extra_keys: "error" refuses keys that the state does not have when a node writes them; "ignore" drops them.

    Raises:
        InvalidGraphError: a schema cannot be used, or two schemas declare one key differently.
        TypeError: the context schema is no class.

    >>> from typing import Annotated, TypedDict
    >>> from operator import add
    >>> class State(TypedDict):
    ...     words: Annotated[list[str], add]
    >>> graph = StateGraph(State).add_node("hello", lambda state: {"words": ["hello"]})
    >>> graph.add_edge(START, "hello").compile().invoke({"words": ["oh,"]})
    {'words': ['oh,', 'hello']}
    """

    def __init__(
        self,
        state_schema: Any,
        context_schema: Any = None,
        *,
        input_schema: Any = None,
        output_schema: Any = None,
        extra_keys: Literal["error", "ignore"] = "error",
    ) -> None:
        if extra_keys not in ("error", "ignore"):
            raise InvalidGraphError(f'extra_keys is "error" or "ignore", not {extra_keys!r}')
        self.nodes: dict[str, NodeSpec] = {}
        self.edges: set[tuple[str, str]] = set()
        self.joins: list[Join] = []
        self.branches: dict[str, dict[str, BranchSpec]] = {}
        self.channels: dict[str, Channel] = {}
        self.managed: dict[str, Any] = {}
        self.schemas: dict[Any, Schema] = {}
        self.extra_keys = extra_keys
        self.context_schema = check_context_schema(context_schema)
        self.state_schema = state_schema
        self.input_schema = state_schema if input_schema is None else input_schema
        self.output_schema = state_schema if output_schema is None else output_schema
        self.compiled = False
        self.defaults = Policies()
        self._add_schema(state_schema)
        for schema, kind in ((self.input_schema, "input_schema"), (self.output_schema, "output_schema")):
            if schema is not state_schema and self._add_schema(schema).managed:
                raise InvalidGraphError(f"{kind}: managed values can only be keys of the state schema")

    # -- nodes ----------------------------------------------------------------------------------------------

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
    ) -> Self:
        """Add a node; returns the builder.

        Args:
            node: its name, or the action itself, whose name is then used.
            action: a function of the state (sync, async, a generator that yields updates), or anything with `invoke`
                or `ainvoke`, a compiled graph included. Besides the state it may take `config`, `runtime`, `writer`
                and `store`. It returns a dict of updates, None, a schema instance, a `Command`, a `Send`, or a list.
            defer: wait until nothing else is left to run.
            metadata: added to the config of its tasks and to drawings.
            input_schema: the keys it reads; by default the annotation of its first parameter, else the state.
            retry_policy: when to try again.
            cache_policy: reuse results for equal inputs; needs a cache on the graph.
            timeout: seconds, timedelta or `TimeoutPolicy` for one attempt; sync nodes are abandoned on their thread.
            error_handler: takes over in the same superstep when the last attempt has failed. It is given the node's
                input and, if it has a parameter `error`, a `NodeError`; it returns what a node returns. The failed
                node's own edges are not followed.
            destinations: names that a `Command` of its may go to (with labels, if a dict); for checks and drawings.
            executor: where it runs, whatever `compile` and the run say; see `compile`. "threads" keeps it here.

        Raises:
            InvalidGraphError: the name is taken, reserved, or has ":" or "|" in it.
            TypeError: there is no action, or it cannot be called as a node.
        """
        if not isinstance(node, str):
            if action is not None:
                raise TypeError(f"add_node takes a name and an action, or an action alone; the name was {node!r}")
            if node is None:
                raise TypeError("add_node needs an action: a function, or anything with invoke() or ainvoke()")
            node, action = infer_name(node), node
        name = str.__str__(node)
        if action is None:
            raise TypeError(f"node {name!r} has no action: add_node(name, action)")
        self._check_new(name)
        if metadata is not None and not isinstance(metadata, Mapping):
            raise TypeError(f"node {name!r}: metadata is a dict, not {metadata!r}")
        body = read_callable(action, name)
        policies = Policies(
            policies_of(f"node {name!r}", retry_policy),
            cache_policy,
            TimeoutPolicy.coerce(timeout),
            None if error_handler is None else read_callable(error_handler, what=f"the error handler of node {name!r}"),
        )
        ends = destinations_of(name, destinations, body)
        self.nodes[name] = NodeSpec(
            body=body,
            schema=self._node_schema(body, input_schema),
            defer=bool(defer),
            metadata=dict(metadata or {}),
            policies=policies,
            ends=ends,
            executor=read_executor(executor),
        )
        self._warn_if_compiled("node")
        return self

    def _check_new(self, name: str) -> None:
        if name in self.nodes:
            raise InvalidGraphError(f"node {name!r} is already there")
        if name in (START, END) or is_reserved(name) or is_handler(name):
            raise InvalidGraphError(f"node {name!r}: the name is reserved")
        for mark in (NS_END, NS_SEP):
            if mark in name:
                raise InvalidGraphError(f"node {name!r}: {mark!r} separates namespaces and cannot be in a name")

    def _node_schema(self, body: Body, given: Any) -> Schema:
        if given is not None:
            return self._add_schema(given)
        if body.schema is not None and is_schema(body.schema):
            return self._add_schema(body.schema)
        return self.schemas[self.state_schema]

    def set_node_defaults(
        self,
        *,
        retry_policy: RetryPolicy | Sequence[RetryPolicy] | None = None,
        cache_policy: CachePolicy | None = None,
        timeout: float | timedelta | TimeoutPolicy | None = None,
        error_handler: Callable[..., Any] | None = None,
    ) -> Self:
        """Policies for nodes without their own; see `add_node`. They are filled in at compile; a later call replaces
        only what it gives. Error handlers take the defaults for retry and timeout, not for cache and handler."""
        handler = None if error_handler is None else read_callable(error_handler, what="the default error handler")
        given = Policies(
            policies_of("set_node_defaults", retry_policy), cache_policy, TimeoutPolicy.coerce(timeout), handler
        )
        self.defaults = given.over(self.defaults)
        return self

    def add_sequence(self, nodes: Sequence[Any]) -> Self:
        """Add nodes and chain them with edges; all of them, or none if one cannot be added.

        Args:
            nodes: actions, or (name, action) pairs.

        Raises:
            InvalidGraphError: there are none, or a name is taken.
            TypeError: an item is neither an action nor a pair.
        """
        if isinstance(nodes, str) or not isinstance(nodes, Iterable):
            raise TypeError(f"add_sequence takes a list of actions or (name, action) pairs, not {nodes!r}")
        pairs = [named(item) for item in nodes]
        if not pairs:
            raise InvalidGraphError("add_sequence needs at least one node")
        names = [name for name, _ in pairs]
        for name in names:
            if name in self.nodes or names.count(name) > 1:
                raise InvalidGraphError(f"add_sequence: node {name!r} is already there; give (name, action) pairs")
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

    # -- edges ----------------------------------------------------------------------------------------------

    def add_edge(self, start_key: str | Iterable[str], end_key: str) -> Self:
        """Run `end_key` after `start_key`. Given several starts, run it once all of them have run (a join).

        Raises:
            InvalidGraphError: it starts at END or ends at START, a start of a join is not a node yet, or what should
                be a name is none.
        """
        end_key = plain_name("an edge leads to", end_key)
        if end_key == START:
            raise InvalidGraphError("an edge cannot end at START")
        if isinstance(start_key, str):
            if start_key == END:
                raise InvalidGraphError("an edge cannot start at END")
            self.edges.add((plain_name("an edge starts at", start_key), end_key))
        else:
            if not isinstance(start_key, Iterable):
                plain_name("an edge starts at", start_key)
            starts = [plain_name("a join waits for", start) for start in start_key]
            self._check_join(starts, end_key)
            # A set has no order of its own, and the order is part of the join's name in checkpoints.
            ordered = sorted(starts) if isinstance(start_key, (set, frozenset)) else dict.fromkeys(starts)
            deferred = end_key != END and self.nodes[end_key].defer
            self.joins.append(Join(tuple(ordered), end_key, deferred))
        self._warn_if_compiled("edge")
        return self

    @property
    def waiting_edges(self) -> set[tuple[tuple[str, ...], str]]:
        """The joins, each as (the nodes waited for, the node that waits)."""
        return {(join.sources, join.target) for join in self.joins}

    def _check_join(self, starts: Sequence[str], end: str) -> None:
        if not starts:
            raise InvalidGraphError("a join needs at least one node to wait for")
        for start in starts:
            if start in (START, END):
                raise InvalidGraphError(f"a join cannot wait for {start}; use a plain edge")
            if start not in self.nodes:
                raise InvalidGraphError(f"a join waits for {start!r}: add that node first")
        if end != END and end not in self.nodes:
            raise InvalidGraphError(f"a join leads to {end!r}: add that node first")

    def add_conditional_edges(
        self,
        source: str,
        path: Callable[..., Any] | Any,
        path_map: Mapping[Any, str] | Iterable[str] | None = None,
    ) -> Self:
        """After `source`, ask `path` where to go.

        Args:
            path: a function (sync or async) of the state as it is after `source`; returns a node name, END, a
                `Send`, or a list of these. It may take what a node may take.
            path_map: from its answers to node names, or the names it may return; for checks and drawings too. By
                default a `Literal` return annotation.

        Raises:
            InvalidGraphError: `source` has a router of the same name already, or a destination is no name.
            TypeError: `path` cannot be called as a router.
        """
        source = plain_name("a conditional edge starts at", source)
        body = read_callable(path, what=f"the router of node {source!r}")
        name = router_name(path)
        mine = self.branches.get(source, {})
        if name == "condition":
            name = numbered(name, mine)
        if name in mine:
            raise InvalidGraphError(f"node {source!r} has a router named {name!r} already; give this one another name")
        schema = None
        if body.schema is not None and is_schema(body.schema):
            self._add_schema(body.schema)
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

    # -- the whole ------------------------------------------------------------------------------------------

    def validate(self, interrupt: All | Sequence[str] | None = None) -> Self:
        """Check the graph as a whole.

        Raises:
            InvalidGraphError: with a sentence for every mistake.
        """
        check(self, breakpoints_of("interrupt", interrupt))
        return self

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
    ) -> CompiledStateGraph:
        """Check the graph and make it runnable. The builder stays as it is and may be compiled again.

        Args:
            checkpointer: a saver, to keep threads; None to use the enclosing graph's; True for a history of its own
                inside the enclosing graph; False for none.
            cache: keeps results for nodes with a cache policy.
            store: lent to nodes that ask for it; on executors one that can be opened there (`BaseStore.elsewhere`).
            interrupt_before, interrupt_after: nodes to stop at, or "*" for all.
            debug: refuse nodes that change their input in place (`InPlaceEditError`); for tests, since it costs time.
            name: in drawings and errors; "StateGraph" by default.
            migrate: given a checkpoint that another version of the graph has cut, and what has changed since ("node 'a'
                is gone", "key 'n' has changed its kind", ...), returns it as this version would have it; see
                `stategraph.pregel.rename_node`. Without it a thread for whose work there is no place is refused.
            executor: where the functions of nodes run: "threads" (here, the default), "processes", a
                `stategraph.executors.ProcessExecutor`, any `concurrent.futures.Executor`, a `distributed.Client`, or
                the module `ray`. Everything else stays here. A call's own `executor=` wins, a node's wins over both.

        Raises:
            InvalidGraphError: with a sentence for every mistake.
            TypeError: an argument is none of the kinds above.
        """
        if name is not None and not isinstance(name, str):
            raise TypeError(f"compile(name=...) is a string, not {name!r}")
        before = breakpoints_of("interrupt_before", interrupt_before)
        after = breakpoints_of("interrupt_after", interrupt_after)
        self.validate([node for names in (before, after) if names != "*" for node in names])
        lent = {"store": store, "cache": cache, "debug": debug, "executor": executor}
        app = compile_graph(self, checkpointer, name or "StateGraph", (before, after), **lent)
        app.migrate = migrate
        self.compiled = True
        return app

    def get_graph(self, *, xray: bool | int = False) -> Drawing:
        """Its drawing so far; names that edges speak of and that are no nodes yet are drawn with a question mark.

        Args:
            xray: show the graphs inside nodes: True for all, a number for so many levels.

        Raises:
            InvalidGraphError: it is so wrong that nothing can be drawn.
        """
        from ..visualize.sketch import sketch

        return sketch(self, xray)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """How Jupyter shows it: as its drawing, with the mistakes that it still has."""
        from ..visualize.sketch import show

        return show(self, include, exclude)

    def _add_schema(self, schema: Any) -> Schema:
        """Read a schema and merge its keys with those known.

        Raises:
            InvalidGraphError: a key is declared in two ways that cannot both hold.
        """
        try:
            known = self.schemas.get(schema)
        except TypeError:
            raise InvalidGraphError(not_a_schema(schema)) from None
        if known is not None:
            return known
        read = read_schema(schema)
        if self.channels and read.channels and read.root != (ROOT in self.channels):
            raise InvalidGraphError(
                f"{schema!r} cannot go with {self.state_schema!r}: one is a state with keys, the other is one value"
            )
        for key, channel in read.channels.items():
            mine = self.channels.get(key, channel)
            if key in self.managed:
                raise InvalidGraphError(f"key {key!r} is a managed value in one schema and plain in another")
            if mine != channel and not isinstance(channel, LastValue):
                raise InvalidGraphError(
                    f"key {key!r} is declared as {described(mine)} and, by {schema!r}, as {described(channel)}"
                )
        for key, managed in read.managed.items():
            if key in self.channels or self.managed.get(key, managed) is not managed:
                raise InvalidGraphError(f"key {key!r} is declared as {managed.name} and as something else")
        for key, channel in read.channels.items():
            self.channels.setdefault(key, channel)
        self.managed.update(read.managed)
        self.schemas[schema] = read
        return read

    if not TYPE_CHECKING:  # or type checkers would take any name

        def __getattr__(self, name: str) -> Any:
            runs = hasattr(CompiledStateGraph, name)
            hint = f"; compile() returns what has: graph.compile().{name}(...)" if runs else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)

    def _warn_if_compiled(self, what: str) -> None:
        if self.compiled:
            warnings.warn(
                f"this {what} comes after compile(): compile again to see it", stacklevel=3
            )
