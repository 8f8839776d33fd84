"""StateGraph: declare a typed state, nodes and edges, then compile. Nothing here runs.

What cannot work is refused at the line that says it; what only shows in the whole is left to `validate`.
"""

from __future__ import annotations

import typing
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, Self

from ..channels import LastValue
from ..checkpoint.base import BaseCheckpointSaver
from ..pregel.callable import Body, infer_name, read_callable
from ..pregel.errors import InvalidGraphError
from ..pregel.types import END, NS_END, NS_SEP, START, All, Command, RetryPolicy
from ..pregel.writes import is_reserved
from .branch import BranchSpec, literals, read_ends
from .compile import CompiledStateGraph, compile_graph
from .schema import Channel, Schema, is_schema, read_schema
from .validate import check


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node as declared.

    Attributes:
        schema: which keys it reads, and as what.
        ends: where a `Command` of its may go, with labels; only for checks and drawings.
    """

    body: Body
    schema: Schema
    defer: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    retry_policy: tuple[RetryPolicy, ...] = ()
    ends: Mapping[str, str] = field(default_factory=dict)


class StateGraph:
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
        self.waiting_edges: list[tuple[tuple[str, ...], str]] = []
        self.branches: dict[str, dict[str, BranchSpec]] = {}
        self.channels: dict[str, Channel] = {}
        self.managed: dict[str, Any] = {}
        self.schemas: dict[Any, Schema] = {}
        self.extra_keys = extra_keys
        self.context_schema = context_schema
        self.state_schema = state_schema
        self.input_schema = state_schema if input_schema is None else input_schema
        self.output_schema = state_schema if output_schema is None else output_schema
        self.compiled = False
        self._retry_default: tuple[RetryPolicy, ...] = ()
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
        destinations: Mapping[str, str] | Sequence[str] | None = None,
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
            destinations: names that a `Command` of its may go to (with labels, if a dict); for checks and drawings.

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
        body = read_callable(action, name)
        schema = self._node_schema(body, input_schema)
        self.nodes[name] = NodeSpec(
            body=body,
            schema=schema,
            defer=defer,
            metadata=dict(metadata or {}),
            retry_policy=_policies(retry_policy),
            ends=_destinations(destinations, body),
        )
        self._warn_if_compiled("node")
        return self

    def _check_new(self, name: str) -> None:
        if name in self.nodes:
            raise InvalidGraphError(f"node {name!r} is already there")
        if name in (START, END) or is_reserved(name):
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

    def set_node_defaults(self, *, retry_policy: RetryPolicy | Sequence[RetryPolicy] | None = None) -> Self:
        """Policies for nodes without their own; they are filled in at compile."""
        if retry_policy is not None:
            self._retry_default = _policies(retry_policy)
        return self

    def add_sequence(self, nodes: Sequence[Any]) -> Self:
        """Add nodes and chain them with edges.

        Args:
            nodes: actions, or (name, action) pairs.

        Raises:
            InvalidGraphError: there are none, or a name is taken.
        """
        if not nodes:
            raise InvalidGraphError("add_sequence needs at least one node")
        named = [n if isinstance(n, tuple) else (infer_name(n), n) for n in nodes]
        names = [name for name, _ in named]
        for name in names:
            if name in self.nodes or names.count(name) > 1:
                raise InvalidGraphError(f"add_sequence: node {name!r} is already there; give (name, action) pairs")
        for name, action in named:
            self.add_node(name, action)
        for start, end in pairwise(names):
            self.add_edge(start, end)
        return self

    # -- edges ----------------------------------------------------------------------------------------------

    def add_edge(self, start_key: str | Iterable[str], end_key: str) -> Self:
        """Run `end_key` after `start_key`. Given several starts, run it once all of them have run (a join).

        Raises:
            InvalidGraphError: it starts at END or ends at START, or a start of a join is not a node yet.
        """
        if end_key == START:
            raise InvalidGraphError("an edge cannot end at START")
        if isinstance(start_key, str):
            if start_key == END:
                raise InvalidGraphError("an edge cannot start at END")
            self.edges.add((start_key, end_key))
        else:
            # A set has no order of its own, and the order is part of the join's name in checkpoints.
            is_set = isinstance(start_key, (set, frozenset))
            starts = tuple(sorted(start_key)) if is_set else tuple(dict.fromkeys(start_key))
            self._check_join(starts, end_key)
            self.waiting_edges.append((starts, end_key))
        self._warn_if_compiled("edge")
        return self

    def _check_join(self, starts: tuple[str, ...], end: str) -> None:
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
            InvalidGraphError: `source` has a router of the same name already.
        """
        body = read_callable(path)
        name = _branch_name(path)
        mine = self.branches.setdefault(source, {})
        if name == "condition":
            name = _numbered(name, mine)
        if name in mine:
            raise InvalidGraphError(f"node {source!r} has a router named {name!r} already; give this one another name")
        schema = None
        if body.schema is not None and is_schema(body.schema):
            self._add_schema(body.schema)
            schema = body.schema
        mine[name] = BranchSpec(body, read_ends(path_map, body), schema)
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
        check(self, interrupt or ())
        return self

    def compile(
        self,
        checkpointer: BaseCheckpointSaver | bool | None = None,
        *,
        store: Any = None,
        interrupt_before: All | Sequence[str] | None = None,
        interrupt_after: All | Sequence[str] | None = None,
        name: str | None = None,
    ) -> CompiledStateGraph:
        """Check the graph and make it runnable. The builder stays as it is and may be compiled again.

        Args:
            checkpointer: a saver, to keep threads; None to use the enclosing graph's; True for a history of its own
                inside the enclosing graph; False for none.
            store: lent to nodes that ask for it.
            interrupt_before, interrupt_after: nodes to stop at, or "*" for all.
            name: in drawings and errors; "StateGraph" by default.

        Raises:
            InvalidGraphError: with a sentence for every mistake.
            TypeError: `checkpointer` is none of the kinds above.
        """
        before, after = interrupt_before or (), interrupt_after or ()
        self.validate("*" if before == "*" else before).validate("*" if after == "*" else after)
        app = compile_graph(self, checkpointer, name or "StateGraph", (before, after))
        app.store = store
        self.compiled = True
        return app

    def specs(self) -> dict[str, NodeSpec]:
        """The nodes with the defaults filled in."""
        default = self._retry_default
        return {
            name: replace(spec, retry_policy=default) if default and not spec.retry_policy else spec
            for name, spec in self.nodes.items()
        }

    def _add_schema(self, schema: Any) -> Schema:
        """Read a schema and merge its keys with those known.

        Raises:
            InvalidGraphError: a key is declared in two ways that cannot both hold.
        """
        known = self.schemas.get(schema)
        if known is not None:
            return known
        read = read_schema(schema)
        for key, channel in read.channels.items():
            mine = self.channels.get(key)
            if key in self.managed:
                raise InvalidGraphError(f"key {key!r} is a managed value in one schema and plain in another")
            if mine is None:
                self.channels[key] = channel
            elif mine != channel and not isinstance(channel, LastValue):
                raise InvalidGraphError(f"key {key!r} is declared as {mine!r} and, by {schema!r}, as {channel!r}")
        for key, managed in read.managed.items():
            if key in self.channels or self.managed.get(key, managed) is not managed:
                raise InvalidGraphError(f"key {key!r} is declared as {managed.name} and as something else")
            self.managed[key] = managed
        self.schemas[schema] = read
        return read

    def _warn_if_compiled(self, what: str) -> None:
        if self.compiled:
            warnings.warn(
                f"adding a {what} to a graph that was compiled already: compile again to see it", stacklevel=3
            )


def _policies(policy: RetryPolicy | Sequence[RetryPolicy] | None) -> tuple[RetryPolicy, ...]:
    if policy is None:
        return ()
    return (policy,) if isinstance(policy, RetryPolicy) else tuple(policy)


def _destinations(given: Mapping[str, str] | Sequence[str] | None, body: Body) -> dict[str, str]:
    """Node name → label: as given, else from a `Command[Literal[...]]` return annotation."""
    if isinstance(given, Mapping):
        return dict(given)
    if given is not None:
        return dict.fromkeys((given,) if isinstance(given, str) else given, "")
    return dict.fromkeys(_command_targets(body.returns), "")


def _command_targets(hint: Any) -> list[str]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Command:
        return literals(args[0])
    return [name for arg in args for name in _command_targets(arg)] if origin is not None else []


def _branch_name(path: Any) -> str:
    name = getattr(path, "__name__", None) or getattr(path, "name", None)
    return name if isinstance(name, str) and name != "<lambda>" else "condition"


def _numbered(name: str, taken: Mapping[str, Any]) -> str:
    """The name, or the name with the first free number."""
    count = 1
    found = name
    while found in taken:
        count += 1
        found = f"{name}_{count}"
    return found
