"""Assigns the nodes of a layered drawing to layers: first cycles are cut, then edges are shortened.
Numbers only: nodes are 0, 1, …, edges are pairs of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from graphlib import TopologicalSorter
from typing import TypeVar

T = TypeVar("T")
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
    onward = list_next(count, (edges[number] for number in firm if number not in found))
    for number in sorted(soft):
        source, target = edges[number]
        if source in find_reached(target, onward.__getitem__):
            found.add(number)
        else:
            onward[source].append(target)
    return found


def find_returns(first: int, count: int, edges: Sequence[Pair]) -> set[int]:
    """Return the numbers of the edges whose target is fewer steps away from the first node than
    their source."""
    onward = list_next(count, edges)
    steps, border = {first: 0}, [first]
    for node in border:
        for target in onward[node]:
            if target not in steps:
                steps[target] = steps[node] + 1
                border.append(target)
    return {number for number, (a, b) in enumerate(edges) if a in steps and steps[b] < steps[a]}


def find_reached(start: T, onward: Callable[[T], Iterable[T]]) -> set[T]:
    """Return what can be reached from the start, including the start; `onward` returns the
    successors."""
    seen, waiting = {start}, [start]
    while waiting:
        fresh = {target for target in onward(waiting.pop()) if target not in seen}
        seen |= fresh
        waiting.extend(fresh)
    return seen


def _find_closing(count: int, edges: Sequence[Pair], starts: Iterable[int]) -> set[int]:
    """Search depth first from everywhere: return the numbers of the edges that lead to a node that
    is still open, and so close a cycle."""
    onward = list_next(count, ((source, number) for number, (source, _) in enumerate(edges)))
    entered = {target for source, target in edges if source != target}
    found: set[int] = set()
    open_: set[int] = set()
    done: set[int] = set()
    for start in sorted(starts, key=entered.__contains__):
        trail = [] if start in done else [(start, iter(onward[start]))]
        open_.update(node for node, _ in trail)
        while trail:
            node, rest = trail[-1]
            number = next(rest, None)
            if number is None:
                open_.remove(node)
                done.add(node)
                trail.pop()
                continue
            target = edges[number][1]
            if target in open_:
                found.add(number)
            elif target not in done:
                open_.add(target)
                trail.append((target, iter(onward[target])))
    return found


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
    sorter = TopologicalSorter(dict.fromkeys(range(count), ()))
    for source, target in edges:
        sorter.add(target, source)
    order = list(sorter.static_order())
    found = [0] * count
    for node in order:
        least = 0 if first is None or node == first else 1
        found[node] = max((found[n] + 1 for n in before[node]), default=least)
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
