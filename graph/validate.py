"""Pure checks of a graph as a whole; each mistake becomes a sentence. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..pregel.errors import InvalidGraphError, nearest, warn
from ..pregel.names import END, ROOT, ROUTING, START, is_reserved, is_routing
from ..pregel.program.flow import walk
from ..pregel.program.program import Program
from ..pregel.types import All
from .branch import sends_anywhere
from .spec import GraphSpec

ANYWHERE = "*"
"""Stands for the nodes that a router without a path map may go to."""


def check_graph(
    graph: GraphSpec,
    interrupt: All | Sequence[str],
    *,
    advise: bool = True,
    in_supersteps: bool = True,
) -> None:
    """Refuse a graph that cannot work, and warn of one that looks wrong.

    Args:
        advise: whether to warn.
        in_supersteps: it runs in these, so that branches of unequal length do not meet.

    Raises:
        InvalidGraphError: with a sentence for every mistake.
    """
    mistakes = [
        *_check_entry(graph),
        *_check_sources(graph),
        *_check_targets(graph),
        *_check_keys(graph),
        *_check_breakpoints(graph, interrupt),
    ]
    if mistakes:
        raise InvalidGraphError(mistakes)
    for advice in _find_advice(graph, in_supersteps) if advise else ():
        warn(advice)


def _find_advice(graph: GraphSpec, in_supersteps: bool) -> list[str]:
    """A sentence for everything that only looks wrong."""
    found = [*find_unreachable(graph), *find_starving(graph), *find_strangers(graph)]
    ends = [end for _, end in graph.edges if end != END]
    ends += [join.target for join in graph.joins if join.kind == "all" and join.target != END]
    # In most graphs no two edges lead to one node, and no more has to be looked at.
    if in_supersteps and len(set(ends)) < len(ends):
        from .paths import find_uneven

        found += find_uneven(graph)
    return found


def _check_entry(graph: GraphSpec) -> Iterator[str]:
    if START not in {start for start, _ in graph.edges} and not graph.branches.get(START):
        yield (
            "the graph has no entry point: "
            "add_edge(START, ...) or add_conditional_edges(START, ...)"
        )


def _check_sources(graph: GraphSpec) -> Iterator[str]:
    known = {START, *graph.nodes, *graph.handlers}
    for start, end in sorted(graph.edges):
        if start not in known:
            near = nearest(start, graph.nodes)
            yield f"the edge {start!r} -> {end!r} starts at an unknown node; {near}"
    for source in graph.branches:
        if source not in known:
            near = nearest(source, graph.nodes)
            yield f"a conditional edge starts at unknown node {source!r}; {near}"


def _check_targets(graph: GraphSpec) -> Iterator[str]:
    """All edges lead to nodes or END: plain ones, those of routers, and those of commands."""
    known = {*graph.nodes, END}
    for start, end in sorted(graph.edges):
        if end not in known:
            near = nearest(end, graph.nodes)
            yield f"the edge {start!r} -> {end!r} leads to an unknown node; {near}"
    for source, name, end in _router_ends(graph):
        if end not in known:
            near = nearest(end, graph.nodes)
            yield f"node {source!r}: its router {name!r} leads to unknown node {end!r}; {near}"
    handlers = graph.handlers
    for name, ends in graph.command_ends().items():
        kind = "error handler" if name in handlers else "node"
        for end in ends:
            if end not in known:
                near = nearest(end, graph.nodes)
                yield f"{kind} {name!r} declares the unknown destination {end!r}; {near}"


def _router_ends(graph: GraphSpec) -> Iterator[tuple[str, str, str]]:
    """(source, router, destination) of each destination that a router declares."""
    for source, branches in graph.branches.items():
        for name, branch in branches.items():
            for end in (branch.ends or {}).values():
                yield source, name, end


def _check_keys(graph: GraphSpec) -> Iterator[str]:
    for key in (*graph.channels, *graph.managed):
        if key in (START, END) or is_reserved(key):
            yield f"state key {key!r}: the name is reserved"
        elif is_routing(key):
            own = " or ".join(map(repr, ROUTING))
            yield f"state key {key!r}: names that begin with {own} are the engine's own"


def _check_breakpoints(graph: GraphSpec, interrupt: All | Sequence[str]) -> Iterator[str]:
    if interrupt == "*":
        return
    for name in (interrupt,) if isinstance(interrupt, str) else interrupt:
        if name not in graph.nodes:
            yield f"a breakpoint names the unknown node {name!r}; {nearest(name, graph.nodes)}"


# -- what only looks wrong ------------------------------------------------------------------------


def find_successors(graph: GraphSpec) -> dict[str, set[str]]:
    """For each node and START, what it is declared to lead to; `ANYWHERE` among it if its router
    may go anywhere."""
    found = {name: set(ends) for name, ends in graph.command_ends().items()}
    for start, end in graph.edges:
        found.setdefault(start, set()).add(end)
    for join in graph.joins:
        for source in join.sources:
            found.setdefault(source, set()).add(join.target)
    for source, branches in graph.branches.items():
        ends = found.setdefault(source, set())
        for branch in branches.values():
            if branch.ends is None or sends_anywhere(branch.ends, branch.body.returns):
                ends.add(ANYWHERE)
            ends.update((branch.ends or {}).values())
    return found


def complete_successors(graph: GraphSpec) -> dict[str, set[str]]:
    """`find_successors` with nodes in the place of `ANYWHERE`; from a node it also leads to the
    handler of its errors."""
    found = find_successors(graph)
    for ends in found.values():
        if ANYWHERE in ends:
            ends.discard(ANYWHERE)
            ends.update(graph.nodes)
    for name in graph.nodes:
        handler = graph.find_handler(name)
        if handler is not None:
            found.setdefault(name, set()).add(handler)
    return found


def find_unreachable(graph: GraphSpec) -> Iterator[str]:
    """A sentence for every node that nothing is declared to lead to."""
    # An error handler is reached by a failure, not by an edge.
    reached = walk([START, *graph.handlers], find_successors(graph))
    if ANYWHERE in reached:
        return  # this router may reach every node
    for name in graph.nodes:
        if name not in reached:
            yield (
                f"node {name!r} cannot be reached by any edge or declared destination. If a node "
                f'goes there by Command or Send, declare it: -> Command[Literal["{name}"]], '
                f'add_node(..., destinations=["{name}"]), or a path_map'
            )


def find_strangers(graph: GraphSpec) -> Iterator[str]:
    """A sentence for every graph that is a node, and neither reads nor writes a key of the graph
    around it. One to which no edge leads may get all that it needs by `Send`s."""
    by_edges = {end for _, end in graph.edges} | {join.target for join in graph.joins}
    for name, node in graph.nodes.items():
        if name not in by_edges:
            continue
        program = getattr(node.body.source, "program", None)
        # An entrypoint takes and returns a bare value.
        if not isinstance(program, Program) or isinstance(program.outputs, str):
            continue
        keys = program.scope.keys
        if ROOT not in keys and keys.isdisjoint(graph.channels):
            shown = ", ".join(map(repr, sorted(keys)))
            yield (
                f"node {name!r} is a graph that shares no key with the graph around it, so nothing "
                f"goes in or comes out; its keys: {shown}. Give a key the same name in both, or "
                "call it in a function and return what is new"
            )


def find_starving(graph: GraphSpec) -> Iterator[str]:
    """A sentence for every join that waits for all, of which a router may not choose one."""
    joins = [join for join in graph.joins if join.kind == "all"]
    if not joins:
        return
    # A node with a plain edge or a join into it also runs when no router chooses it.
    certain = {end for _, end in graph.edges} | {join.target for join in graph.joins}
    perhaps = _chosen_nodes(graph) - certain
    for join in joins:
        end = join.target
        for source in join.sources:
            if source in perhaps:
                yield (
                    f"the join of {', '.join(join.sources)} into {end!r} waits for {source!r}, "
                    "which runs only if a router chooses it; when it does not, "
                    f"{end!r} never runs. Give the join wait='reachable', or use defer=True on "
                    f"{end!r} with plain edges instead"
                )


def _chosen_nodes(graph: GraphSpec) -> set[str]:
    """The nodes that a router may choose, or not."""
    found: set[str] = set()
    for branches in graph.branches.values():
        for branch in branches.values():
            ends = set((branch.ends or {}).values())
            # A router with one destination always chooses it.
            if len(ends) > 1:
                found |= ends
    return found
