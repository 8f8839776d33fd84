"""Joins: a node that waits for several others. The builder makes the records; everybody reads them.

Only this file makes and parses the name of a join's channel, with what `names` has for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ...channels.base import Channel
from ...channels.named_barrier import (
    NamedBarrierValue,
    NamedBarrierValueAfterFinish,
    WaveBarrier,
)
from ..names import KIND_SEP, join_name, split_join, split_kind

Barrier = Callable[[Any, Iterable[str]], Channel]
"""Makes the channel in which a join gathers the names of the nodes that have run."""


class JoinKind(NamedTuple):
    """What a kind of join waits for.

    Attributes:
        separator: stands between the sources in the channel's name, which is stored in checkpoints.
        barrier: makes its channel, unless it takes the number as well.
        deferred_barrier: the same where the target is deferred.
        waves: it starts over with each run of its target, and what is late then is ignored.
    """

    separator: str
    barrier: Barrier
    deferred_barrier: Barrier
    waves: bool = False


JOIN_KINDS: Final[Mapping[str, JoinKind]] = {
    "all": JoinKind("+", NamedBarrierValue, NamedBarrierValueAfterFinish),
    "count": JoinKind(KIND_SEP, WaveBarrier, WaveBarrier, waves=True),
    "reachable": JoinKind(KIND_SEP, WaveBarrier, WaveBarrier, waves=True),
}
"""Every kind of join; docs/reference/channels.md has a row for each."""


@dataclass(frozen=True, slots=True)
class Join:
    """An edge from several nodes into one.

    Attributes:
        sources: the nodes that are waited for. Their order is part of the channel's name.
        target: the node that waits, or END, which has nothing to run.
        deferred: the target also waits until nothing else can run.
        kind: what it waits for: a key of `JOIN_KINDS`.
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
        """Whether it starts over with each run of its target."""
        return JOIN_KINDS[self.kind].waves

    @property
    def label(self) -> str:
        """What it waits for, as a drawing shows it."""
        if self.kind != "count":
            return self.kind
        return "any" if self.count == 1 else f"{self.count} of {len(self.sources)}"

    @property
    def channel(self) -> str:
        """The name of its channel."""
        separator = JOIN_KINDS[self.kind].separator
        if not self.waves:
            return join_name(self.sources, separator, self.target)
        kind = str(self.count) if self.kind == "count" else self.kind
        return join_name((kind, *self.sources), separator, self.target)

    def make_channel(self) -> Channel:
        """A channel that gathers the names of the sources that have run."""
        kind, names = JOIN_KINDS[self.kind], set(self.sources)
        if self.kind == "count":
            return WaveBarrier(str, names, self.count)
        barrier = kind.deferred_barrier if self.deferred else kind.barrier
        return barrier(str, names)


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
    return Join(tuple(sources.split(JOIN_KINDS["all"].separator)), target)
