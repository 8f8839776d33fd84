"""What leads to what in a graph, for the joins and deferred nodes whose turn depends on it.

Made once per compile, and only for graphs that have such: all others have no Flow and pay nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from ...channels.base import Channel
from ..errors import warn
from .join import Join


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """The ways through a graph, as far as its joins and deferred nodes need them.

    Attributes:
        joins: those that gather in waves, into nodes.
        leads: node → all nodes that it leads to, over any number of steps.
        feeders: channel of a "reachable" join → the nodes that lead to one of its sources by a way
            that does not pass through its target; the sources among them.
        lasting: the triggers that may be pending over several supersteps.
        machine: the class of machine that runs the graph. It is loaded with the Flow, so that other
            graphs do not load it.
        warned: the channels of joins of which it was said that too few came.
    """

    joins: tuple[Join, ...]
    leads: Mapping[str, frozenset[str]]
    feeders: Mapping[str, frozenset[str]]
    lasting: tuple[str, ...]
    machine: Any
    warned: set[str] = field(default_factory=set)

    @property
    def reachable(self) -> Iterator[Join]:
        """The joins that open when nobody else can come."""
        return (join for join in self.joins if join.channel in self.feeders)

    def warn_of_unmet(self, channels: Mapping[str, Channel]) -> None:
        """Say which joins have got fewer than the number they wait for, once per graph."""
        for join in self.joins:
            seen: Set[str] = getattr(channels[join.channel], "seen", frozenset())
            unmet = join.kind == "count" and 0 < len(seen) < join.count
            if unmet and join.channel not in self.warned:
                self.warned.add(join.channel)
                got = ", ".join(name for name in join.sources if name in seen)
                names = ", ".join(join.sources)
                warn(f"{join.target} got {got}, waits for {join.count} of {names}")


def make_flow(
    joins: Sequence[Join],
    successors: Mapping[str, Iterable[str]],
    triggers: Mapping[str, Channel],
    machine: Any,
) -> Flow:
    """The Flow of a graph.

    Args:
        joins: all of them that lead to a node.
        successors: node → the nodes that it leads to at once, whatever decides.
        triggers: the channels that trigger its nodes, by name.
        machine: the class of machine that runs it.
    """
    waves = tuple(join for join in joins if join.waves)
    sources: dict[str, set[str]] = {}
    for name, ends in successors.items():
        for end in ends:
            sources.setdefault(end, set()).add(name)
    return Flow(
        joins=waves,
        leads={name: frozenset(walk(ends, successors)) for name, ends in successors.items()},
        feeders={
            join.channel: frozenset(walk(join.sources, sources, without=join.target))
            for join in waves
            if join.kind == "reachable"
        },
        lasting=tuple(name for name, channel in triggers.items() if not channel.step_scoped),
        machine=machine,
    )


def walk(
    border: Iterable[str], successors: Mapping[str, Iterable[str]], without: str | None = None
) -> set[str]:
    """All that the names of a border lead to, themselves included.

    Args:
        without: is not entered, and so not passed through.
    """
    left, found = list(border), set()
    while left:
        name = left.pop()
        if name not in found and name != without:
            found.add(name)
            left.extend(successors.get(name, ()))
    return found


def find_first(names: Iterable[str], leads: Mapping[str, Iterable[str]]) -> list[str]:
    """Of these names those that no other leads to, except in a circle with them.

    Args:
        leads: name → all that it leads to, over any number of steps.

    >>> find_first("abc", {"a": "bc", "b": "c", "c": "b"})
    ['a']
    >>> find_first("bcd", {"b": "c", "c": "b"})
    ['b', 'c', 'd']
    """
    known = list(names)
    return [
        name
        for name in known
        if all(
            name not in leads.get(other, ()) or other in leads.get(name, ())
            for other in known
            if other != name
        )
    ]
