"""Whether a list of checkpoints is whole: what is there is held against what the rest knows of it. No SQL texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ..seal import Seal
from .reading import NEWEST, Found, Space
from .rows import CheckpointRow
from .upkeep import Session


class Listing:
    """The checkpoints of some spaces as they are listed, newest first.

    Args:
        spaces: as they were before the first checkpoint was read.
        edge: the sequence below which it begins.
    """

    def __init__(self, spaces: Mapping[int, Space], edge: int) -> None:
        self._spaces = spaces
        self._whole = edge == NEWEST
        self._count: Counter[int] = Counter()
        # (space, id) of what must come → how often something must be recorded beside it, and a child of it or "".
        self._owed: dict[tuple[int, str], tuple[int, str]] = {
            (space.id, space.head_id or ""): (space.stamp, "")
            for space in spaces.values()
            if self._whole and space.head_id is not None
        }

    def take(self, found: Iterable[Found]) -> None:
        """Look at the next checkpoints.

        Raises:
            DamagedError: something that was recorded beside one is missing.
        """
        for each in found:
            row = each.row
            self._count[row.space] += 1
            if each.image.stamp < self._owed.pop((row.space, row.checkpoint_id), (0, ""))[0]:
                raise each.place.damaged(
                    f"something that was recorded beside checkpoint {row.checkpoint_id!r} is missing"
                )
            if each.body.beside is not None and row.parent_id is not None:
                key = row.space, row.parent_id
                self._owed[key] = max(self._owed.get(key, (0, "")), (each.body.beside, row.checkpoint_id))

    def end(self, session: Session, seal: Seal) -> None:
        """Look for what has not come. Others may have forgotten it meanwhile; that is no damage.

        Raises:
            DamagedError: a checkpoint is missing.
        """
        for (owner, checkpoint_id), (_, child) in self._owed.items():
            now = session.rows("by_id", owner, child) if child else []
            follows = bool(now) and CheckpointRow(*now[0]).parent_id == checkpoint_id
            if follows and not session.rows("by_id", owner, checkpoint_id):
                where = self._spaces[owner].place(seal)
                raise where.damaged(f"checkpoint {checkpoint_id!r} is missing, which {child!r} follows")
        for space in self._spaces.values():
            if self._whole and self._count[space.id] < space.size:
                for size, count in session.rows("count", space.id):
                    if count < size:
                        raise space.place(seal).damaged(f"{size - count} of its checkpoints are missing")
