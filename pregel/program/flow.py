"""Joins, and what leads to what in a graph: the turn of joins and deferred nodes depends on it.

A Flow is made once per compile, and only for graphs that have such: all others pay nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ...channels.base import Channel
from ...channels.named_barrier import NamedBarrierValue, NamedBarrierValueAfterFinish, WaveBarrier
from ..errors import warn
from ..names import KIND_SEP, join_name, split_join, split_kind


class Gathering(NamedTuple):
    """A join that waits for all, with schedule="ready".

    Attributes:
        channel, target: of the join.
        holders: the nodes that hold the target back, too, while the join is open: they may still
            lead to one of its sources.
    """

    channel: str
    target: str
    holders: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """The ways through a graph, as far as its joins and deferred nodes need them.

    Attributes:
        joins: those that gather in waves, into nodes.
        leads: node → all nodes that it leads to, over any number of steps.
        feeders: channel of a "reachable" join → the nodes that lead to one of its sources by a way
            that does not pass through its target; the sources among them.
        lasting: the triggers that may be pending over several supersteps.
        warned: the channels of joins of which it was said that too few came.
        holders: with schedule="ready", node → the nodes that hold it back while they are under way;
            else None.
        gathering: with schedule="ready", the joins that wait for all.
        relay: for a replay: passes on the effects of a run, so that its tasks end in a recorded
            order.
        make_open: with schedule="ready", makes the record of a run's open tasks; else None.
    """

    joins: tuple[Join, ...]
    leads: Mapping[str, frozenset[str]]
    feeders: Mapping[str, frozenset[str]]
    lasting: tuple[str, ...]
    warned: set[str] = field(default_factory=set)
    holders: Mapping[str, frozenset[str]] | None = None
    gathering: tuple[Gathering, ...] = ()
    make_open: Any = None
    relay: Any = None

    def find_holders_in(self, channels: Mapping[str, Channel]) -> Mapping[str, frozenset[str]]:
        """`holders` in a state: what an open join may still gather holds its target back, too."""
        assert self.holders is not None
        opened = [each for each in self.gathering if channels[each.channel].is_available()]
        if not opened:
            return self.holders
        found = dict(self.holders)
        for each in opened:
            found[each.target] = found.get(each.target, frozenset()) | each.holders
        return found

    def choose_awake(self, deferred: Iterable[str]) -> list[str]:
        """The deferred nodes among these that wake first, as nothing else is left to run."""
        first = find_first(deferred, self.leads)
        # Only who would start: a node that is awake and held back does not go back to sleep.
        return first if self.holders is None else find_free(first, (), self.holders)

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
) -> Flow:
    """The Flow of a graph.

    Args:
        joins: all of them that lead to a node.
        successors: node → the nodes that it leads to at once, whatever decides.
        triggers: the channels that trigger its nodes, by name.
    """
    waves = tuple(join for join in joins if join.waves)
    sources = _turn_round(successors)
    return Flow(
        joins=waves,
        leads={name: frozenset(walk(ends, successors)) for name, ends in successors.items()},
        feeders={
            join.channel: frozenset(walk(join.sources, sources, without=join.target))
            for join in waves
            if join.kind == "reachable"
        },
        lasting=tuple(name for name, channel in triggers.items() if not channel.step_scoped),
    )


def _turn_round(successors: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Node → the nodes that lead to it at once."""
    sources: dict[str, list[str]] = {}
    for name, ends in successors.items():
        for end in sorted(ends):
            sources.setdefault(end, []).append(name)
    return sources


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
    """The names among these to which no other leads, except in a circle with them.

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


# -- schedule="ready" ------------------------------------------------------------------------------


def find_holders(
    successors: Mapping[str, Iterable[str]], plain: Mapping[str, Iterable[str]], start: str
) -> dict[str, frozenset[str]]:
    """Node → the nodes that lead to it in the same turn of a loop: those for which it waits.

    A way leads over any edges that close no loop, but its last one may close one, and is no join's:
    those say for themselves what they wait for.

    Args:
        successors: node → the nodes that it leads to at once, whatever decides.
        plain: the same without joins.
        start: where a graph begins.

    >>> edges = {"S": "s", "s": "ac", "a": "b", "b": "s", "c": "s"}
    >>> {name: "".join(sorted(held)) for name, held in find_holders(edges, edges, "S").items()}
    {'s': 'Sabc', 'a': 'Ss', 'c': 'Ss', 'b': 'Sas'}
    """
    sources = _turn_round(_without_loops(successors, start))
    last = _turn_round(plain)
    return {name: frozenset(walk(before, sources) - {name}) for name, before in last.items()}


def find_gathering(join: Join, successors: Mapping[str, Iterable[str]], start: str) -> Gathering:
    """What may lead to the sources of a join for all: these, as several tasks of one may be under
    way, and what leads to them in the same turn of a loop.

    >>> edges = {"S": "s", "s": "xy", "x": "w", "y": "w", "w": "sd"}
    >>> sorted(find_gathering(Join(("w",), "d"), edges, "S").holders)
    ['S', 'w', 'x', 'y']
    """
    onward = _without_loops(successors, start)
    found = walk(join.sources, _turn_round(onward), without=join.target)
    for name in walk(join.sources, onward):
        # The next turn begins with what the sources lead back to.
        found -= {*successors.get(name, ())}.difference(onward[name])
    return Gathering(join.channel, join.target, frozenset(found.union(join.sources)))


def _without_loops(successors: Mapping[str, Iterable[str]], start: str) -> dict[str, list[str]]:
    """The edges without those that close a loop: depth first from the start, in name order."""
    onward: dict[str, list[str]] = {}
    for first in (start, *sorted(successors)):
        if first in onward:
            continue
        onward[first] = []
        above = [first]  # the way from the start to here
        left = [iter(sorted(successors.get(first, ())))]
        while left:
            end = next(left[-1], None)
            if end is None:
                left.pop()
                above.pop()
            elif end not in above:
                onward[above[-1]].append(end)
                if end not in onward:
                    onward[end] = []
                    above.append(end)
                    left.append(iter(sorted(successors.get(end, ()))))
    return onward


def find_free(
    waiting: Iterable[str], running: Collection[str], holders: Mapping[str, Collection[str]]
) -> list[str]:
    """The waiting nodes that nothing holds back: neither what runs, nor another that
    waits, unless that waits for it in turn.

    >>> find_free("bc", "a", {"b": "a", "c": "b"}), find_free("bc", "", {"b": "c", "c": "b"})
    ([], ['b', 'c'])
    """
    known = list(waiting)
    active = {*known, *running}
    held = {name: active.intersection(holders.get(name, ())) for name in known}
    leads = {name: walk(ends, held) for name, ends in held.items()}
    return [
        name
        for name in known
        if all(other not in running and name in leads[other] for other in leads[name] - {name})
    ]


# -- joins -----------------------------------------------------------------------------------------
# The builder makes the records; everybody reads them. Only this section makes and parses the name
# of a join's channel, with what `names` has for it.

JOIN_KINDS: Final = ("all", "count", "reachable")
"""Every kind of join; docs/reference/channels.md has a row for each."""

_ALL_SEP: Final = "+"
"""In the name of the channel of a join for all, between its sources."""


@dataclass(frozen=True, slots=True)
class Join:
    """An edge from several nodes into one.

    Attributes:
        sources: the nodes that are waited for. Their order is part of the channel's name.
        target: the node that waits, or END, which has nothing to run.
        deferred: the target also waits until nothing else can run.
        kind: what it waits for: one of `JOIN_KINDS`.
        count: of the kind "count", how many sources open it.

    >>> Join(("a", "b"), "c").channel
    'join:a+b:c'
    >>> Join(("a", "b"), "c", kind="count", count=2).channel
    'join:2|a|b:c'
    """

    sources: tuple[str, ...]
    target: str
    deferred: bool = False
    kind: str = "all"
    count: int = 1

    @property
    def waves(self) -> bool:
        """Whether it starts over with each run of its target, and ignores what is late then."""
        return self.kind != "all"

    @property
    def label(self) -> str:
        """What it waits for, as a drawing shows it."""
        if self.kind != "count":
            return self.kind
        return "any" if self.count == 1 else f"{self.count} of {len(self.sources)}"

    @property
    def channel(self) -> str:
        """The name of its channel."""
        if not self.waves:
            return join_name(self.sources, _ALL_SEP, self.target)
        kind = str(self.count) if self.kind == "count" else self.kind
        return join_name((kind, *self.sources), KIND_SEP, self.target)

    def make_channel(self) -> Channel:
        """A channel that gathers the names of the sources that have run."""
        if self.waves:
            return WaveBarrier(str, self.sources, self.count if self.kind == "count" else None)
        barrier = NamedBarrierValueAfterFinish if self.deferred else NamedBarrierValue
        return barrier(str, self.sources)


def parse_join(channel: str) -> Join | None:
    """The join whose channel has this name, as far as the name tells; None if it is no join's.

    For joins of other graphs, which a stored thread may name: those of a graph are in its Program.

    >>> parse_join("join:a+b:c")
    Join(sources=('a', 'b'), target='c', deferred=False, kind='all', count=1)
    """
    parts = split_join(channel)
    if parts is None:
        return None
    sources, target = parts
    kind, names = split_kind(sources)
    if kind in JOIN_KINDS:
        return Join(names, target, kind=kind)
    if names:
        return Join(names, target, kind="count", count=int(kind))
    return Join(tuple(sources.split(_ALL_SEP)), target)
