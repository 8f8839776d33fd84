"""Which tasks take turns with schedule="ready", as they share the memory of a nested graph
(`checkpointer=True`): each would take the other's steps for its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any, Literal

from ..names import numbered_ns
from .task import Task

Memory = tuple[str, str | None]
"""A node, and the key for which its graph keeps a history."""

Sharing = Literal["key", "node", None]
"""Whether tasks of a node share a memory: those with the same key, all, or none."""


class Memories:
    """The memories in use by tasks under way, and by tasks that start now.

    Args:
        nested: `Program.nested`.
        under_way: the tasks that are under way.
    """

    __slots__ = ("_nested", "_sharing", "_taken", "_under_way")

    def __init__(self, nested: Mapping[str, Any], under_way: Iterable[Task]) -> None:
        self._nested = nested
        self._under_way = under_way
        self._sharing: dict[str, Sharing] = {}
        self._taken: set[Memory] | None = None  # not looked for yet

    def take(self, *starts: tuple[str, Any]) -> bool:
        """Take the memories of tasks that would start together, given by their nodes and `Send`s.
        If one of them is in use, none is taken: otherwise a group could hold one memory while it
        waits for another.

        Returns:
            Whether these may start. Two of them may share a memory: such racers are refused when
            they run.
        """
        if not self._nested:
            return True
        mine = set(self._find(starts))
        if not mine:
            return True
        if self._taken is None:
            self._taken = set(self._find((task.name, task.send) for task in self._under_way))
        if not self._taken.isdisjoint(mine):
            return False
        self._taken |= mine
        return True

    def _find(self, starts: Iterable[tuple[str, Any]]) -> Iterator[Memory]:
        for node, send in starts:
            if node not in self._sharing:
                self._sharing[node] = _find_sharing(self._nested, node)
            sharing = self._sharing[node]
            if sharing is not None:
                yield node, send.key if sharing == "key" and send is not None else None


def _find_sharing(nested: Mapping[str, Any], node: str) -> Sharing:
    found: Sharing = None
    for number in count():
        graph = nested.get(numbered_ns(node, number))
        if graph is None:
            return found
        if graph.checkpointer is True:
            found = "key"
        elif _has_memory_inside(graph, set()):
            return "node"
    return None


def _has_memory_inside(graph: Any, known: set[int]) -> bool:
    """Whether a graph inside one keeps a memory, which then is the same in each task.

    Args:
        known: the ids of the graphs that have been looked at, as one may run itself.
    """
    if graph.checkpointer is False or id(graph) in known:
        return False
    known.add(id(graph))
    inside = list(graph.program.nested.values())  # at once: tasks add to it
    return any(each.checkpointer is True or _has_memory_inside(each, known) for each in inside)
