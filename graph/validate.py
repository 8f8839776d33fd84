"""Checks a graph as a whole; each mistake becomes a sentence. Finds branches of unequal length,
whose ends run more than once. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

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
        in_supersteps: whether it runs in these, where branches of unequal length do not meet; else
            with schedule="ready".

    Raises:
        InvalidGraphError: with a sentence for every mistake.
    """
    mistakes = [*_find_mistakes(graph, interrupt)]
    if mistakes:
        raise InvalidGraphError(mistakes)
    for advice in _find_advice(graph, in_supersteps) if advise else ():
        warn(advice)


def _find_advice(graph: GraphSpec, in_supersteps: bool) -> list[str]:
    """A sentence for everything that only looks wrong."""
    found = [*find_unreachable(graph), *find_starving(graph), *find_strangers(graph)]
    ends = [end for _, end in graph.edges if end != END]
    ends += [join.target for join in graph.joins if join.kind == "all" and join.target != END]
    if not in_supersteps:
        successors = find_successors(graph)
        found += [*find_undeclared(successors), *find_side_branches(graph, successors)]
    # In most graphs no two edges lead to one node, and no more has to be looked at.
    elif len(set(ends)) < len(ends):
        found += find_uneven(graph)
    return found


def _find_mistakes(graph: GraphSpec, interrupt: All | Sequence[str]) -> Iterator[str]:
    """A sentence for every mistake."""
    edges, nodes, handlers = sorted(graph.edges), graph.nodes, graph.handlers
    if not any(start == START for start, _ in edges) and not graph.branches.get(START):
        yield (
            "the graph has no entry point: "
            "add_edge(START, ...) or add_conditional_edges(START, ...)"
        )
    known = {START, *nodes, *handlers}
    for start, end in edges:
        if start not in known:
            near = nearest(start, nodes)
            yield f"the edge {start!r} -> {end!r} starts at an unknown node; {near}"
    for source in graph.branches:
        if source not in known:
            near = nearest(source, nodes)
            yield f"a conditional edge starts at unknown node {source!r}; {near}"
    # All edges lead to nodes or END: plain ones, those of routers, and those of commands.
    ends = {*nodes, END}
    for start, end in edges:
        if end not in ends:
            near = nearest(end, nodes)
            yield f"the edge {start!r} -> {end!r} leads to an unknown node; {near}"
    for source, branches in graph.branches.items():
        for name, branch in branches.items():
            for end in (branch.ends or {}).values():
                if end not in ends:
                    text = f"node {source!r}: its router {name!r} leads to unknown node {end!r}"
                    yield f"{text}; {nearest(end, nodes)}"
    for name, declared in graph.command_ends().items():
        kind = "error handler" if name in handlers else "node"
        for end in declared:
            if end not in ends:
                near = nearest(end, nodes)
                yield f"{kind} {name!r} declares the unknown destination {end!r}; {near}"
    for key in (*graph.channels, *graph.managed):
        if key in (START, END) or is_reserved(key):
            yield f"state key {key!r}: the name is reserved"
        elif is_routing(key):
            own = " or ".join(map(repr, ROUTING))
            yield f"state key {key!r}: names that begin with {own} are the engine's own"
    stops = (interrupt,) if isinstance(interrupt, str) else interrupt
    for name in () if interrupt == "*" else stops:
        if name not in nodes:
            yield f"a breakpoint names the unknown node {name!r}; {nearest(name, nodes)}"


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


def find_undeclared(successors: Mapping[str, set[str]]) -> Iterator[str]:
    """With schedule="ready": a sentence for each node that holds all others back."""
    for name, ends in sorted(successors.items()):
        if ANYWHERE in ends and name != START:
            yield (
                f"node {name!r} has a router that does not say where it goes: with "
                "schedule='ready' no other node starts while it is under way, or what leads to it. "
                'Give its ends: a path_map, or -> Literal["a", "b"]'
            )


def find_side_branches(graph: GraphSpec, successors: Mapping[str, set[str]]) -> Iterator[str]:
    """With schedule="ready": a sentence for each node outside a loop that each turn starts."""
    for source, end in sorted(graph.edges):
        if end == END or graph.nodes[end].defer:
            continue
        in_loop = source in walk(successors.get(source, ()), successors)
        if in_loop and source not in walk([end], successors):
            yield (
                f"node {end!r} is started by each turn of a loop through {source!r} that it does "
                "not lead back to: with schedule='ready' the loop does not wait for it, so it may "
                "run less often than the loop turns. To run it in each turn, let it lead back into "
                "the loop, or use supersteps. To run it once, at the end, set defer=True"
            )


# -- branches of unequal length: which nodes will run more than once -------------------------------
# *Sure* edges are plain edges and joins that wait for all; where a router, a Command, a Send or
# another join leads, only a run tells. After a node from which two or more sure edges start, each
# node is reached a sure number of supersteps later. A node that is reached after two different
# numbers runs twice.
#
# networkx, which finds the structure of drawings, has these algorithms too. Importing it takes
# longer than compiling hundreds of graphs, so compiling does without.

LARGEST = 1_000_000
"""With more forks times edges nothing is looked at: compiling a graph must not take seconds."""

Way = tuple[str, ...]
"""The nodes whose end makes a node run: one before an edge, several before a join."""


def find_uneven(graph: GraphSpec) -> Iterator[str]:
    """A sentence for every node that runs more than once after a node from which branches start."""
    ways = _list_ways(graph)
    order = _sort(ways)
    starts: dict[str, int] = {}
    for mine in ways.values():
        for source in {source for way in mine for source in way}:
            starts[source] = starts.get(source, 0) + 1
    # The last fork first: it is nearest to the node of which it reports.
    forks = [name for name in reversed(order) if starts.get(name, 0) > 1]
    if len(forks) * len(graph.edges) > LARGEST:
        return
    reported: set[str] = set()
    for fork in forks:
        yield from _look_from(fork, order, ways, graph, reported)


def _list_ways(graph: GraphSpec) -> dict[str, list[Way]]:
    """node → the sure ways into it, without those that are part of a circle."""
    found: dict[str, list[Way]] = {}
    for start, end in sorted(graph.edges):
        if end != END:
            found.setdefault(end, []).append((start,))
    for join in graph.joins:
        if join.kind == "all" and join.target != END:
            found.setdefault(join.target, []).append(join.sources)
    sources = {name: {source for way in ways for source in way} for name, ways in found.items()}
    for name in _find_circular(sources):
        before = walk(sources[name], sources)
        if name in before:
            # What leads to a source and comes from there again is in one circle with it.
            around = {other for other in before if name in walk(sources.get(other, ()), sources)}
            found[name] = [way for way in found[name] if around.isdisjoint(way)]
    return found


def _find_circular(sources: Mapping[str, Iterable[str]]) -> set[str]:
    """The nodes that may be part of a circle: what is left when all others are taken away."""
    left = {name: set(before) for name, before in sources.items()}
    while True:
        gone = [name for name, before in left.items() if left.keys().isdisjoint(before)]
        if not gone:
            return set(left)
        for name in gone:
            del left[name]


def _sort(ways: Mapping[str, Iterable[Way]]) -> list[str]:
    """All nodes, each behind those that lead to it."""
    from graphlib import TopologicalSorter  # deferred: few graphs have such branches (P26)

    sorter = TopologicalSorter({
        name: [source for way in mine for source in way] for name, mine in ways.items()
    })  # fmt: skip
    return list(sorter.static_order())


def _look_from(
    fork: str,
    order: Iterable[str],
    ways: Mapping[str, Iterable[Way]],
    graph: GraphSpec,
    reported: set[str],
) -> Iterator[str]:
    """A sentence for every node that branches of unequal length lead to after one node.

    Args:
        reported: those of which it was said; more are added.
    """
    # How many supersteps later a node runs first; `inf` for the end of the run.
    times: dict[str, float] = {fork: 0}
    for name in order:
        arrivals: dict[Way, float] = {}
        for way in ways.get(name, ()):
            if name != fork and all(source in times for source in way):
                arrivals[way] = max(times[source] for source in way) + 1
        if not arrivals:
            continue
        times[name] = min(arrivals.values())
        if graph.nodes[name].defer:
            times[name] = inf
        elif name not in reported and len(set(arrivals.values())) > 1:
            reported.add(name)
            yield _tell(name, fork, arrivals)


def _tell(name: str, fork: str, arrivals: Mapping[Way, float]) -> str:
    """The sentence about one node."""
    ordered = sorted(arrivals, key=lambda way: (arrivals[way], way))
    first, *others = (f"{_show(way)} ({_show_time(arrivals[way])})" for way in ordered)
    text = (
        f"node {name!r} will run more than once: after {_show((fork,))} it is led to by {first} "
        f"and again by {', '.join(others)}"
    )
    if ordered[0] == (START,):
        return f"{text}. For one run: drop the edge from START"
    sources = sorted({source for way in ordered for source in way})
    both = "both" if len(sources) == 2 else "all"
    return (
        f"{text}. For one run after {both}: add_edge({sources}, {name!r}); "
        "if one may be skipped: wait='reachable'"
    )


def _show(way: Way) -> str:
    if len(way) > 1:
        return f"the join of {', '.join(map(repr, way))}"
    return "START" if way[0] == START else repr(way[0])


def _show_time(time: float) -> str:
    if time == inf:
        return "at the end"
    return "1 step on" if time == 1 else f"{time:.0f} steps on"
