"""LangGraph's channel for values that grow. Here every such value is stored as a delta anyway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, get_args

from ...channels.aggregate import (
    BinaryOperatorAggregate,
    concrete_type,
    is_overwrite,
    own_copy,
    sole_overwrite,
)
from ...channels.base import MISSING


class DeltaChannel(BinaryOperatorAggregate[Any]):
    """Folds all writes of a superstep at once: `value = reducer(value, writes)`.

    Args:
        reducer: takes the value and a list of writes.
        typ: the type of the value; of a key of a state, its annotation says it.
        snapshot_frequency: sets nothing: how often a value is stored whole, the checkpointer
            decides.

    Raises:
        ValueError: `snapshot_frequency` is below 1.
    """

    __slots__ = ("snapshot_frequency",)

    def __init__(
        self,
        reducer: Callable[[Any, Sequence[Any]], Any],
        typ: Any = None,
        *,
        snapshot_frequency: int = 100,
    ) -> None:
        if snapshot_frequency < 1:
            raise ValueError(f"snapshot_frequency must be at least 1, got {snapshot_frequency!r}")
        super().__init__(list if typ is None else typ, reducer)
        self.snapshot_frequency: int = snapshot_frequency

    def declare(self, key: str, hint: Any) -> Self:
        """A copy whose values are of the annotated type."""
        mine = super().declare(key, hint)
        mine.typ = get_args(hint)[0]
        mine.make = concrete_type(mine.typ)
        mine.value = mine.make() if mine.make is not None else MISSING
        return mine

    def update(self, values: Sequence[Any]) -> bool:
        """Fold `values`, or take the one `Overwrite` among them.

        Raises:
            InvalidUpdateError: two overwrites in one superstep.
            Exception: whatever the reducer raises.
        """
        self.dropped: int = 0
        if not values:
            return False
        overwrites = [write for write in values if is_overwrite(write)]
        if overwrites:
            value = sole_overwrite(self, overwrites)
            self.value = self.make() if value is None and self.make else value
            self.dropped = len(values) - 1
        else:
            self.value = self.operator(own_copy(self.value), list(values))
        return True
