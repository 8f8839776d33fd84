"""Which node follows which: edges, joins and routers, as they are declared; and the drawing of
that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from ..pregel.errors import InvalidGraphError, warn
from ..pregel.names import END, START
from ..pregel.program.callables import read_callable
from ..pregel.program.flow import Join
from .arguments import (
    check_join,
    infer_router_name,
    known_keywords,
    number_name,
    plain_name,
    read_wait,
)
from .branch import BranchSpec, read_ends
from .schema import StateKeys, is_schema
from .spec import GraphSpec, NodeSpec

if TYPE_CHECKING:
    from ..visualize.drawing import Drawing

Wait: TypeAlias = Literal["all", "any", "reachable"] | int
"""For which of its starts a join waits."""


class Drawable:
    """The methods of a builder that show it."""

    def snapshot(self) -> GraphSpec:
        """What has been declared so far."""
        raise NotImplementedError

    def get_graph(self, *, xray: bool | int = False) -> Drawing:
        """Its drawing so far. Names in edges that are not nodes yet get a question mark.

        Args:
            xray: show the graphs inside nodes: True for all, a number for so many levels.

        Raises:
            InvalidGraphError: it is so wrong that nothing can be drawn.
        """
        from ..visualize.draft import make_draft

        return make_draft(self.snapshot(), xray)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """How Jupyter shows it: as its drawing, with the mistakes that it still has."""
        from ..visualize.draft import show

        return show(self.snapshot(), include, exclude)


class Edges:
    """The part of a `StateGraph` that says which node follows which.

    Attributes:
        edges: (start, end) of the plain edges.
        joins: edges that wait for several nodes.
        branches: node → its routers by name.
    """

    nodes: dict[str, NodeSpec]
    edges: set[tuple[str, str]]
    joins: list[Join]
    branches: dict[str, dict[str, BranchSpec]]
    compiled: bool
    _state: StateKeys

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
