"""Branches of unequal length: which nodes will run more than once, seen before anything runs.

*Sure* edges are plain edges and joins that wait for all; where a router, a Command, a Send or
another join leads, only a run tells. After a node from which two or more sure edges start, each
node is reached a sure number of supersteps later. A node that is reached after two different
numbers runs twice.

networkx, which finds the structure of drawings, has these algorithms too. Importing it takes longer
than compiling hundreds of graphs, so compiling does without.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from graphlib import TopologicalSorter
from math import inf

from ..pregel.names import END, START
from ..pregel.program.flow import walk
from .spec import GraphSpec

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
