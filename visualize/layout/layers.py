"""Which layer each node of a layered drawing goes to: loops are cut first, then edges are kept
short. Numbers only: nodes are 0, 1, …, edges are pairs of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

Pair = tuple[int, int]


def find_loops(
    count: int,
    edges: Sequence[Pair],
    order: Iterable[int] | None = None,
    soft: Collection[int] = (),
) -> set[int]:
    """The numbers of the edges that lead back to a node that led there; without these no circle is
    left.

    Args:
        order: where to start to follow edges; a node without edges towards it comes before others
            in any case.
        soft: edges that are cut rather than others.
    """
    firm = [number for number in range(len(edges)) if number not in soft]
    found = {
        firm[place] for place in _find_closing(count, [edges[number] for number in firm], order)
    }
    onward: list[list[int]] = [[] for _ in range(count)]
    for number in firm:
        if number not in found:
            onward[edges[number][0]].append(edges[number][1])
    for number in sorted(soft):
        source, target = edges[number]
        if _reaches(target, source, onward):
            found.add(number)
        else:
            onward[source].append(target)
    return found


def find_returns(first: int, count: int, edges: Sequence[Pair]) -> set[int]:
    """The numbers of the edges that lead to a node that fewer steps lead to from the first than to
    their own."""
    onward: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        onward[source].append(target)
    steps, border = {first: 0}, [first]
    for node in border:
        for target in onward[node]:
            if target not in steps:
                steps[target] = steps[node] + 1
                border.append(target)
    return {number for number, (a, b) in enumerate(edges) if a in steps and steps[b] < steps[a]}


def _reaches(start: int, end: int, onward: list[list[int]]) -> bool:
    """Whether the end can be reached from the start."""
    seen, waiting = {start}, [start]
    while waiting and end not in seen:
        fresh = {target for target in onward[waiting.pop()] if target not in seen}
        seen |= fresh
        waiting.extend(fresh)
    return end in seen


def _find_closing(count: int, edges: Sequence[Pair], order: Iterable[int] | None) -> set[int]:
    """Depth first from everywhere: the numbers of the edges that close a circle."""
    onward: list[list[int]] = [[] for _ in range(count)]
    entered = [False] * count
    for number, (source, target) in enumerate(edges):
        onward[source].append(number)
        entered[target] |= source != target
    found = {number for number, (source, target) in enumerate(edges) if source == target}
    open_, done = [False] * count, [False] * count
    starts = list(range(count) if order is None else order)
    for start in sorted(starts, key=entered.__getitem__):
        if not done[start]:
            found.update(_walk_back_edges(start, edges, onward, open_, done))
    return found


def _walk_back_edges(
    start: int, edges: Sequence[Pair], onward: list[list[int]], open_: list[bool], done: list[bool]
) -> Iterator[int]:
    """Depth first from one node: the edges to a node that is still open."""
    open_[start] = True
    trail = [(start, iter(onward[start]))]
    while trail:
        node, rest = trail[-1]
        number = next(rest, None)
        if number is None:
            open_[node], done[node] = False, True
            trail.pop()
            continue
        target = edges[number][1]
        if open_[target]:
            yield number
        elif not done[target]:
            open_[target] = True
            trail.append((target, iter(onward[target])))


def assign_layers(
    count: int, edges: Sequence[Pair], first: int | None = None, last: int | None = None
) -> list[int]:
    """The layer of each node, from 0: every edge leads to a higher one.

    Args:
        edges: without circles.
        first, last: nodes that have the first and the last layer to themselves.
    """
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        after[source].append(target)
        before[target].append(source)
    order = _sort(before, after)
    found = [0] * count
    for node in order:
        least = 0 if first is None or node == first else 1
        found[node] = max((found[n] + 1 for n in before[node]), default=least)
    _shorten(found, order, before, after, first)
    if last is not None:
        others = [layer for node, layer in enumerate(found) if node != last]
        lowest = max(others, default=-1)
        found[last] = max(found[last], lowest + 1)
    top = min(found, default=0)
    return [layer - top for layer in found]


def _sort(before: list[list[int]], after: list[list[int]]) -> list[int]:
    """Every node after those that lead to it."""
    missing = [len(some) for some in before]
    order = [node for node, number in enumerate(missing) if not number]
    for node in order:
        for target in after[node]:
            missing[target] -= 1
            if not missing[target]:
                order.append(target)
    return order


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
            place = (
                min(found[n] for n in after[node]) - 1
                if pull > 0
                else max(found[n] for n in before[node]) + 1
            )
            moved |= place != found[node]
            found[node] = place
        if not moved:
            return
