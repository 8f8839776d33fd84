"""Pure checks of a builder as a whole; each mistake becomes a sentence. Nothing is changed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

from ..pregel.errors import GraphWarning, InvalidGraphError, nearest
from ..pregel.names import DEFAULT_HANDLER, END, ROUTING, START, handler_name, is_reserved, is_routing
from ..pregel.types import All
from .branch import sends_anywhere
from .compile import handler_ends
from .declared import Declared


def check(graph: Declared, interrupt: All | Sequence[str]) -> None:
    """Refuse a graph that cannot work, and warn of one that looks wrong.

    Raises:
        InvalidGraphError: with a sentence for every mistake.
    """
    mistakes = [*_entries(graph), *_sources(graph), *_targets(graph), *_keys(graph), *_breakpoints(graph, interrupt)]
    if mistakes:
        raise InvalidGraphError(mistakes)
    for advice in (*unreachable(graph), *starving(graph)):
        warnings.warn(advice, GraphWarning, stacklevel=4)


def _entries(graph: Declared) -> Iterator[str]:
    if START not in {start for start, _ in graph.edges} and not graph.branches.get(START):
        yield "the graph has no entry point: add_edge(START, ...) or add_conditional_edges(START, ...)"


def handlers(graph: Declared) -> set[str]:
    """The names of error handlers, from which edges may start."""
    own = {handler_name(name) for name, spec in graph.nodes.items() if spec.policies.handler is not None}
    return own | ({DEFAULT_HANDLER} if graph.defaults.handler is not None else set())


def _sources(graph: Declared) -> Iterator[str]:
    known = {START, *graph.nodes, *handlers(graph)}
    for start, end in sorted(graph.edges):
        if start not in known:
            yield f"the edge {start!r} -> {end!r} starts at an unknown node; {nearest(start, graph.nodes)}"
    for source in graph.branches:
        if source not in known:
            yield f"a conditional edge starts at unknown node {source!r}; {nearest(source, graph.nodes)}"


def _targets(graph: Declared) -> Iterator[str]:
    known = {*graph.nodes, END}
    for start, end in sorted(graph.edges):
        if end not in known:
            yield f"the edge {start!r} -> {end!r} leads to an unknown node; {nearest(end, graph.nodes)}"
    for source, branches in graph.branches.items():
        for name, branch in branches.items():
            for end in (branch.ends or {}).values():
                if end not in known:
                    near = nearest(end, graph.nodes)
                    yield f"node {source!r}: its router {name!r} leads to unknown node {end!r}; {near}"
    declared = {f"node {name!r}": spec.ends for name, spec in graph.nodes.items()}
    declared |= {f"error handler {name!r}": ends for name, ends in handler_ends(graph).items()}
    for who, ends in declared.items():
        for end in ends:
            if end not in known:
                yield f"{who} declares the unknown destination {end!r}; {nearest(end, graph.nodes)}"


def _keys(graph: Declared) -> Iterator[str]:
    for key in (*graph.channels, *graph.managed):
        if key in (START, END) or is_reserved(key):
            yield f"state key {key!r}: the name is reserved"
        elif is_routing(key):
            own = " or ".join(map(repr, ROUTING))
            yield f"state key {key!r}: names that begin with {own} are the engine's own"


def _breakpoints(graph: Declared, interrupt: All | Sequence[str]) -> Iterator[str]:
    for name in () if interrupt == "*" else (interrupt,) if isinstance(interrupt, str) else interrupt:
        if name not in graph.nodes:
            yield f"interrupt at unknown node {name!r}; {nearest(name, graph.nodes)}"


# -- what only looks wrong ------------------------------------------------------------------------------------


def successors(graph: Declared) -> dict[str, set[str]]:
    """For each node and START, what it is declared to lead to; "*" if its router may go anywhere."""
    found: dict[str, set[str]] = {name: set(spec.ends) for name, spec in graph.nodes.items()}
    found |= {name: set(ends) for name, ends in handler_ends(graph).items()}
    for start, end in graph.edges:
        found.setdefault(start, set()).add(end)
    for join in graph.joins:
        for source in join.sources:
            found.setdefault(source, set()).add(join.target)
    for source, branches in graph.branches.items():
        for branch in branches.values():
            ends = found.setdefault(source, set())
            ends.update(("*",) if branch.ends is None else branch.ends.values())
            ends.update(("*",) if sends_anywhere(branch.ends, branch.body.returns) else ())
    return found


def unreachable(graph: Declared) -> Iterator[str]:
    """A sentence for every node that nothing is declared to lead to."""
    leads = successors(graph)
    reached: set[str] = set()
    border = [START, *handlers(graph)]
    while border:
        ends = leads.get(border.pop(), set())
        if "*" in ends:
            return  # a router without a map may go anywhere
        fresh = ends - reached
        reached |= fresh
        border.extend(fresh)
    for name in graph.nodes:
        if name not in reached:
            yield (
                f"node {name!r} cannot be reached by any edge or declared destination. If a node goes there by Command "
                f'or Send, say so: -> Command[Literal["{name}"]], add_node(..., destinations=["{name}"]), or a path_map'
            )


def starving(graph: Declared) -> Iterator[str]:
    """A sentence for every join that waits for a node which a router may pass by."""
    if not graph.joins:
        return
    certain = {end for _, end in graph.edges} | {join.target for join in graph.joins}
    choices = [set(b.ends.values()) for branches in graph.branches.values() for b in branches.values() if b.ends]
    chosen = {end for ends in choices if len(ends) > 1 for end in ends}
    for join in graph.joins:
        end = join.target
        for source in join.sources:
            if source in chosen and source not in certain:
                yield (
                    f"the join of {', '.join(join.sources)} into {end!r} waits for {source!r}, "
                    "which runs only if a router chooses it; when it does not, "
                    f"{end!r} never runs. Use defer=True on {end!r} with plain edges instead"
                )
