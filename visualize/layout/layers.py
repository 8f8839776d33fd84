"""Assigns the nodes of a layered drawing to layers: first cycles are cut, then edges are shortened.
Numbers only: nodes are 0, 1, …, edges are pairs of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import networkx

Pair = tuple[int, int]


def list_next(count: int, pairs: Iterable[Pair]) -> list[list[int]]:
    """Return, for each number below `count`, the second items of the pairs that begin with it."""
    found: list[list[int]] = [[] for _ in range(count)]
    for one, other in pairs:
        found[one].append(other)
    return found


def find_loops(
    count: int,
    edges: Sequence[Pair],
    order: Iterable[int] | None = None,
    soft: Collection[int] = (),
) -> set[int]:
    """Return the numbers of the edges that lead back to a node that led there; without these, no
    cycle is left.

    Args:
        order: where to start following edges; nodes without incoming edges always come first.
        soft: edges to cut in preference to others.
    """
    firm = [number for number in range(len(edges)) if number not in soft]
    starts = range(count) if order is None else order
    closing = _find_closing(count, [edges[number] for number in firm], starts)
    found = {firm[place] for place in closing}
    onward: networkx.DiGraph[int] = networkx.DiGraph()
    onward.add_nodes_from(range(count))
    onward.add_edges_from(edges[number] for number in firm if number not in found)
    for number in sorted(soft):
        source, target = edges[number]
        if networkx.has_path(onward, target, source):
            found.add(number)
        else:
            onward.add_edge(source, target)
    return found


def find_returns(first: int, count: int, edges: Sequence[Pair]) -> set[int]:
    """Return the numbers of the edges whose target is fewer steps away from the first node than
    their source."""
    graph: networkx.DiGraph[int] = networkx.DiGraph()
    graph.add_edges_from([(first, first), *edges])
    steps = networkx.single_source_shortest_path_length(graph, first)
    return {number for number, (a, b) in enumerate(edges) if a in steps and steps[b] < steps[a]}


def _find_closing(count: int, edges: Sequence[Pair], starts: Iterable[int]) -> set[int]:
    """Search depth first from everywhere: return the numbers of the edges that lead to a node that
    is still open, and so close a cycle."""
    entered = {target for source, target in edges if source != target}
    graph: networkx.DiGraph[int] = networkx.DiGraph()
    graph.add_nodes_from(sorted(starts, key=entered.__contains__))  # it begins there, in order
    graph.add_edges_from(edges)
    open_: set[int] = set()
    closing: set[Pair] = set()
    for source, target, step in networkx.dfs_labeled_edges(graph):
        if step == "forward":
            open_.add(target)
        elif step == "reverse":
            open_.remove(target)
        elif target in open_:
            closing.add((source, target))
    return {number for number, edge in enumerate(edges) if edge in closing}


def assign_layers(
    count: int, edges: Sequence[Pair], first: int | None = None, last: int | None = None
) -> list[int]:
    """Return the layer of each node, from 0: every edge leads to a higher one.

    Args:
        edges: edges without cycles.
        first, last: nodes that have the first and the last layer to themselves.
    """
    after = list_next(count, edges)
    before = list_next(count, ((target, source) for source, target in edges))
    graph: networkx.DiGraph[int] = networkx.DiGraph()
    graph.add_edges_from(edges)
    graph.add_nodes_from(range(count))
    if first is not None:
        graph.add_edges_from((first, node) for node in range(count) if node != first)
    order, found = [], [0] * count
    for layer, nodes in enumerate(networkx.topological_generations(graph)):
        for node in nodes:
            order.append(node)
            found[node] = layer
    _shorten(found, order, before, after, first)
    if last is not None:
        lowest = max((layer for node, layer in enumerate(found) if node != last), default=-1)
        found[last] = max(found[last], lowest + 1)
    top = min(found, default=0)
    return [layer - top for layer in found]


def _shorten(
    found: list[int],
    order: list[int],
    before: list[list[int]],
    after: list[list[int]],
    first: int | None,
) -> None:
    """Move nodes, one at a time, as long as the edges get shorter."""
    for _ in range(8):
        moved = False
        for node in reversed(order):
            pull = len(after[node]) - len(before[node])
            if node == first or not pull:
                continue
            place = found[node]
            if pull > 0:
                found[node] = min(found[n] for n in after[node]) - 1
            else:
                found[node] = max(found[n] for n in before[node]) + 1
            moved |= place != found[node]
        if not moved:
            return
