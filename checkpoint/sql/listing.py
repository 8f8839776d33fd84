"""Whether a list of checkpoints is whole: what is there is held against what the rest knows of it. No SQL texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ..integrity import Integrity
from .pruning import Session
from .reading import NEWEST, Found, Space, row_of, space_of


class Listing:
    """The checkpoints of some spaces as they are listed, newest first.

    Args:
        spaces: as they were before the first checkpoint was read.
        edge: the sequence below which it begins.
    """

    def __init__(self, spaces: Mapping[int, Space], edge: int) -> None:
        self._spaces = spaces
        self._whole = edge == NEWEST
        self._last = edge
        self._count: Counter[int] = Counter()
        # (space, id) of what must come → how often something must be recorded beside it, and a child of it or "".
        self._owed: dict[tuple[int, str], tuple[int, str]] = {
            (space.id, space.head_id or ""): (space.revision, "")
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
            if row.seq >= self._last:
                raise each.place.damaged("the index leads to checkpoints in another order than they were stored")
            self._last = row.seq
            self._count[row.space] += 1
            if each.image.revision < self._owed.pop((row.space, row.checkpoint_id), (0, ""))[0]:
                raise each.place.damaged(
                    f"something that was recorded beside checkpoint {row.checkpoint_id!r} is missing"
                )
            if each.body.beside is not None and row.parent_id is not None:
                key = row.space, row.parent_id
                self._owed[key] = max(self._owed.get(key, (0, "")), (each.body.beside, row.checkpoint_id))

    def stop(self, session: Session, integrity: Integrity) -> None:
        """Look for what should have come before the last one taken. Others may have forgotten it meanwhile, or stored
        it anew; that is no damage.

        Raises:
            DamagedError: a checkpoint is missing, or the index passes over one.
        """
        for (owner, checkpoint_id), (_, child) in self._owed.items():
            place = self._spaces[owner].place(integrity)
            now = row_of(session, self._spaces[owner], child, place) if child else None
            if now is None or now.parent_id != checkpoint_id:
                continue
            parent = row_of(session, self._spaces[owner], checkpoint_id, place)
            if parent is None:
                raise place.damaged(f"checkpoint {checkpoint_id!r} is missing, which {child!r} follows")
            if self._last < parent.seq < now.seq:
                raise place.damaged(f"the index passes over checkpoint {checkpoint_id!r}, which {child!r} follows")

    def end(self, session: Session, integrity: Integrity) -> None:
        """Look for what has not come by the end of the list; see `stop`.

        Raises:
            DamagedError: a checkpoint is missing, or the index passes over one.
        """
        self._last = 0
        self.stop(session, integrity)
        for space in self._spaces.values() if self._whole else ():
            if self._count[space.id] < space.size:
                now = space_of(session, space.thread_id, space.checkpoint_ns)
                ((size, count),) = session.rows("count", space.id) if now else ((0, 0),)
                missing = space.size - self._count[space.id] if now == space else size - count
                if missing > 0:
                    raise space.place(integrity).damaged(f"{missing} of its checkpoints are missing")
