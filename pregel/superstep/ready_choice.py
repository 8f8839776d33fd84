"""What starts in a state, and what waits there: the choice of schedule="ready"."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from .race import race_of_send
from .ready_memories import Memories

MayStart = Callable[[str, int, bool], bool]
"""Whether a node may start: its name, the version of what starts it, and whether that is a Send."""


def never(*_: object) -> bool:
    """A `MayStart` by which nothing starts."""
    return False


def always(*_: object) -> bool:
    """A `MayStart` by which all starts that other work does not hold back."""
    return True


class Choice(NamedTuple):
    """What starts in a state, and what waits there.

    Attributes:
        nodes: the nodes that start, in name order.
        sends: the Sends that start, by their places.
        held: the nodes that are due and wait.
        waiting_sends: the Sends that wait, by their places.
    """

    nodes: list[str]
    sends: dict[int, Any]
    held: set[str]
    waiting_sends: dict[int, Any]


def choose_sends(
    pending: Sequence[Any],
    may_start: Mapping[str, bool],
    memories: Memories,
    begun: Collection[int],
) -> dict[int, Any]:
    """The `Send`s that start, by their places. Racers start together: where one has to wait, all
    do.

    Args:
        may_start: whether a node may.
        memories: those that are taken, to which those of these are added.
        begun: the places of those that have started before. They go first, and wait for no memory:
            what is recorded of them counts in this state only.
    """
    groups: dict[Any, list[int]] = {}
    for place, send in enumerate(pending):
        groups.setdefault(race_of_send(send) or place, []).append(place)
    started = set(begun)
    chosen: set[int] = set()
    for places in sorted(groups.values(), key=started.isdisjoint):
        sends = [pending[place] for place in places]
        if all(may_start[send.node] for send in sends):
            free = memories.take(*((send.node, send) for send in sends))
            if free or not started.isdisjoint(places):
                chosen.update(places)
    return {place: send for place, send in enumerate(pending) if place in chosen}
