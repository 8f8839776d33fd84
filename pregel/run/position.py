"""Where a run stands in its thread: what it was loaded from, and the newest checkpoint it knows
of."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...checkpoint.base import CONTINUES, CheckpointTuple
from ..names import GRAPH
from ..schedule.machine import Machine


class Position:
    """Moved by loading, by each commit that is built, and by edits of the thread; read by
    everybody.

    Attributes:
        found: the checkpoint from which the run goes on, as this version of the graph sees it; None
            on a new thread.
        saved_id: the checkpoint on which the next one is built; None before the first.
        head: the newest checkpoint of this part of the thread that the run knows of.
        loaded_head: `found`, if it was the newest and the run builds on it. It stays when the run
            has moved on: what is stored later than it was built begins there.
        continued: the checkpoints, besides `found`, to which tasks belong that go on here.
        unqueued: the state before tasks that had been under way were made pending work of it, to be
            run in supersteps; None if there were none.
    """

    __slots__ = (
        "continued",
        "found",
        "head",
        "loaded_head",
        "saved_id",
        "unqueued",
    )

    def __init__(self) -> None:
        self.found: CheckpointTuple | None = None
        self.saved_id: str | None = None
        self.head: str | None = None
        self.loaded_head: CheckpointTuple | None = None
        self.continued: Collection[str] = ()
        self.unqueued: Machine | None = None

    @property
    def at_head(self) -> bool:
        """Whether nothing has been stored after the checkpoint on which the run builds."""
        return self.saved_id == self.head

    @property
    def is_converted(self) -> bool:
        """Whether what comes next is recorded beside a checkpoint that `migrate` has converted."""
        found = self.found and self.found.checkpoint
        return bool(
            found and found["id"] == self.saved_id and GRAPH not in found["versions_seen"]
        )

    def load(self, found: CheckpointTuple, head: str | None, *, in_place: bool) -> None:
        """Stand at a stored checkpoint.

        Args:
            in_place: it is of the run's own namespace. Else the run goes on in a namespace where
                nothing is stored.
        """
        self.found, self.head = found, head
        self.saved_id = found.checkpoint["id"] if in_place else None
        self.loaded_head = found if in_place and head == found.checkpoint["id"] else None
        continued: Any = found.metadata.get(CONTINUES, ())
        self.continued = continued

    def find_head(self, head: str | None) -> None:
        """Note the newest checkpoint, if there is one, where nothing is loaded."""
        self.head = head

    def advance(self, checkpoint_id: str) -> None:
        """Move to a checkpoint that was built: the next one builds on it."""
        self.head = self.saved_id = checkpoint_id

    def build_beside(self) -> None:
        """Build the next checkpoint on what the loaded one was built on: as its sibling."""
        assert self.found is not None
        self.loaded_head = None
        parent = self.found.parent_config
        self.saved_id = parent["configurable"]["checkpoint_id"] if parent is not None else None

    def pin_to(self, checkpoint_id: str | None, found: CheckpointTuple | None) -> Position:
        """The position of tasks that start from this checkpoint, while the run goes on.

        Args:
            found: it, if it is loaded.
        """
        other = Position()
        other.found = self.found if found is None else found
        other.head = other.saved_id = checkpoint_id
        return other

    def note_continued(self, checkpoints: Collection[str]) -> None:
        """Note that tasks of these checkpoints go on here, too."""
        self.continued = dict.fromkeys([*self.continued, *checkpoints])

    def note_unqueued(self, machine: Machine | None) -> None:
        """Note the state before what was under way was made pending work; None: it is used up."""
        self.unqueued = machine
