"""Decides which checkpoints of a thread stay when it is pruned. Pure; the same for every
checkpointer."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ..channels.base import check_kind
from .records import CONTINUES, SLOT, UNDER_WAY, UNDOING, check_names, has_task_ids

Made = tuple[str, float | str, int]
"""The id of a checkpoint, when it was made, and its sequence among all of the checkpointer."""

EVERY = 32
"""A checkpointer with a `Retention` prunes a thread at every so many commits to it."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What a checkpointer deletes automatically as runs go on. Up to `EVERY` extra checkpoints may
    exist at a time.

    Args:
        keep_last: the number of newest checkpoints to keep per namespace; None for no such limit.
        older_than: delete older ones, except for the newest of each namespace; None for no such
            limit.

    Raises:
        ValueError: neither is given, or `keep_last` is less than 1.
        TypeError: `older_than` is not a timedelta.
    """

    keep_last: int | None = None
    older_than: timedelta | None = None

    def __post_init__(self) -> None:
        if self.keep_last is None and self.older_than is None:
            raise ValueError("Retention needs keep_last, older_than, or both")
        RetentionLimits(self.keep_last, self.older_than)
        if self.keep_last is not None and self.keep_last < 1:
            raise ValueError(
                f"Retention: keep_last must be an integer >= 1, got {self.keep_last}: a run goes "
                "on from the newest checkpoint"
            )


@dataclass(frozen=True, slots=True, eq=False)
class RetentionLimits:
    """How much of a thread to keep; both None keeps the newest checkpoint of each namespace.

    Args:
        keep_last: that many checkpoints of each namespace, the newest; 0 keeps none.
        older_than: what is older goes, but the newest of each namespace stays.

    Raises:
        ValueError: `keep_last` is negative.
        TypeError: `older_than` is not a timedelta.
    """

    keep_last: int | None = None
    older_than: timedelta | None = None

    def __post_init__(self) -> None:
        check_kind("keep_last", self.keep_last, int | None, "an integer >= 0")
        if self.keep_last is not None and self.keep_last < 0:
            raise ValueError(f"keep_last must be an integer >= 0, got {self.keep_last}")
        check_kind("older_than", self.older_than, timedelta | None, "a timedelta")

    @property
    def least_kept(self) -> int:
        """A namespace with so many checkpoints, or fewer, loses none, unless it is of a nested
        graph."""
        # By age one of two may go, whatever their number.
        if self.keep_last is None or self.older_than is not None:
            return 0 if self.keep_last == 0 else 1
        return self.keep_last

    def choose_kept(
        self,
        checkpoint_ns: str,
        made: Sequence[Made],
        kept: dict[str, Mapping[str, int]],
        metadata_of: Callable[[str], Mapping[str, Any]],
        origins_of: Callable[[str], Iterable[str]],
    ) -> Collection[str]:
        """The ids of the checkpoints that stay in a namespace.

        Args:
            made: all of them, oldest first.
            kept: namespace → the checkpoints for which graphs inside them stay, with their
                sequences. Namespaces around this one come first; this one is added.
            metadata_of: of a checkpoint.
            origins_of: of a checkpoint; see `find_origins`.
        """
        # The newest decides: a nested graph is deleted with the last checkpoint in which it ran.
        newest = metadata_of(made[-1][0]) if made else {}
        parents = newest.get("parents", {})
        chosen = {*self._choose(checkpoint_ns, made, parents, kept)}
        if chosen and UNDOING in newest:  # that reads what it undoes, and goes back
            chosen.update(id for id, *_ in made)
        if not has_task_ids(checkpoint_ns):
            chosen |= _find_memories(made, [kept.get(ns, {}) for ns in parents])
        # A resume reads the state at which tasks under way have started.
        marked = [id for id in chosen if UNDER_WAY in metadata_of(id)]
        origins = {origin for id in marked for origin in origins_of(id)}
        staying = {id: sequence for id, _, sequence in made if id in chosen or id in origins}
        # What graphs inside tasks that go on in a later checkpoint (`CONTINUES`) have stored names
        # the checkpoint in which these tasks began.
        begun = (earlier for id in staying for earlier in metadata_of(id).get(CONTINUES, ()))
        kept[checkpoint_ns] = {**dict.fromkeys(begun, 0), **staying}
        return staying

    def _choose(
        self,
        checkpoint_ns: str,
        made: Sequence[Made],
        parents: Mapping[str, str],
        kept: Mapping[str, Mapping[str, int]],
    ) -> Collection[str]:
        """Those that the limits leave."""
        # A graph that one task ran is part of the run around it: without the checkpoint in which
        # that task ran nobody can come back to it. One with a namespace of its own outlives it.
        # One that is newer than all around it is at work, perhaps in a checkpoint that is stored
        # later (durability="async").
        if has_task_ids(checkpoint_ns) and any(
            id not in kept[ns] and made[-1][2] < max(kept[ns].values(), default=sys.maxsize)
            for ns, id in parents.items()
            if ns in kept
        ):
            return ()
        most = 1 if self.keep_last is None and self.older_than is None else self.keep_last
        left = made if most is None else made[max(len(made) - most, 0) :]
        if self.older_than is not None:
            # The newest stays however old it is: the thread goes on from there.
            edge = datetime.now(UTC) - self.older_than
            left = [each for each in left[:-1] if _when(each[1]) >= edge] + [*left[-1:]]
        return [id for id, *_ in left]


def _find_memories(made: Sequence[Made], around: Iterable[Mapping[str, int]]) -> set[str]:
    """What a memory was at each of the checkpoints around it that stay: who goes back to one of
    these finds it."""
    sequences = [sequence for *_, sequence in made]
    before = (bisect_left(sequences, each) for kept in around for each in kept.values())
    return {made[place - 1][0] for place in before if place}


def find_origins(tables: Iterable[Mapping[str, Mapping[str, int]]]) -> set[str]:
    """The checkpoints at which the tasks have started that are under way in one.

    Args:
        tables: its `versions_seen`, as it changed from checkpoint to checkpoint, newest first.
    """
    slots: dict[str, Mapping[str, int]] = {}
    for table in tables:
        for name, seen in table.items():
            if name.startswith(SLOT):
                slots.setdefault(name, seen)
    return {origin for seen in slots.values() for origin in seen}


def nearest_kept(
    parents: Mapping[str, str | None], id: str, kept: Collection[str | None]
) -> str | None:
    """The nearest ancestor of a checkpoint that is kept.

    Args:
        parents: id → id of the parent. Parents stored by `put` may form a cycle.
    """
    # A parent that nobody knows was forgotten before: the chain of ancestors ends there.
    parent, passed = parents.get(id), {id}
    while parent is not None and parent not in kept:
        passed.add(parent)
        parent = parents.get(parent)
        # A cycle: no ancestor is kept.
        if parent in passed:
            return None
    return parent


def _when(ts: float | str) -> datetime:
    when = datetime.fromisoformat(ts) if isinstance(ts, str) else datetime.fromtimestamp(ts, UTC)
    return when if when.tzinfo is not None else when.replace(tzinfo=UTC)


def check_several(names: Collection[str], what: str) -> frozenset[str]:
    """A collection of names.

    Raises:
        TypeError: it is a single string.
        ValueError: one of them is not a string.
    """
    if isinstance(names, str):
        raise TypeError(f"{what} must be a list, got a string: pass [{names!r}]")
    check_names(*names)
    return frozenset(names)
