"""Joins: a node that waits for several others. The builder makes the records; everybody reads them.

Only this file makes and parses the name of a join's channel, with what `names` has for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ...channels.base import Channel
from ...channels.named_barrier import NamedBarrierValue, NamedBarrierValueAfterFinish
from ..names import join_name, split_join

Barrier = Callable[[Any, Iterable[str]], Channel]
"""Makes the channel in which a join gathers the names of the nodes that have run."""


class JoinKind(NamedTuple):
    """What a kind of join waits for.

    Attributes:
        separator: stands between the sources in the channel's name, which is stored in checkpoints.
        barrier: makes its channel.
        deferred_barrier: the same where the target is deferred.
    """

    separator: str
    barrier: Barrier
    deferred_barrier: Barrier


JOIN_KINDS: Final[Mapping[str, JoinKind]] = {
    "all": JoinKind("+", NamedBarrierValue, NamedBarrierValueAfterFinish),
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

    >>> Join(("a", "b"), "c").channel
    'join:a+b:c'
    """

    sources: tuple[str, ...]
    target: str
    deferred: bool = False
    kind: str = "all"

    @property
    def channel(self) -> str:
        """The name of its channel."""
        return join_name(self.sources, JOIN_KINDS[self.kind].separator, self.target)

    def make_channel(self) -> Channel:
        """A channel that gathers the names of the sources that have run."""
        kind = JOIN_KINDS[self.kind]
        barrier = kind.deferred_barrier if self.deferred else kind.barrier
        return barrier(str, set(self.sources))


def parse_join(channel: str) -> Join | None:
    """The join whose channel has this name, as far as the name tells; None if it is no join's.

    For joins of other graphs, which a stored thread may name: those of a graph are in its Program.

    >>> parse_join("join:a+b:c")
    Join(sources=('a', 'b'), target='c', deferred=False, kind='all')
    """
    parts = split_join(channel)
    if parts is None:
        return None
    sources, target = parts
    for name, kind in JOIN_KINDS.items():
        if kind.separator in sources:
            return Join(tuple(sources.split(kind.separator)), target, kind=name)
    return Join((sources,), target)
