"""Prunes a long namespace in several transactions, so that others can work in between.

The checkpoints to delete are chosen before the first transaction. That one makes the remaining
checkpoints independent of those to be deleted. Then the newest of those to be deleted go first: the
others build only on older ones, so the thread can be read and continued whenever this stops. What
others have stored meanwhile stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from ..labels import labels_of
from ..records import SLOT
from ..serde import Blob
from .pruning import drop, find_parent_left, record_beside, set_head, write_complete
from .queries import NEWEST, Row, SqlSession, read_chain
from .read_rows import materialize
from .rows import CheckpointRow, NamespaceRow, StoredCheckpoint, ThreadKey, unpack_body

LONG = 200
"""A namespace with more checkpoints than this is pruned in several transactions."""

AT_ONCE = 50
"""How many checkpoints are deleted in one transaction."""

PAGE = 256
"""How many rows are read at once to choose what to delete."""


def read_light(session: SqlSession, key: ThreadKey, namespace_id: int, edge: int) -> list[Row]:
    """Return a page of the checkpoints of a namespace below a sequence, newest first, without their
    values and tables, except what these say about running tasks.

    Raises:
        DamagedError: they are not what was written.
    """
    found = []
    for row in map(CheckpointRow._make, session.rows("page", [namespace_id], edge, PAGE)):
        if row.namespace_id != namespace_id or row.seq >= edge:
            raise key.damage_error("the index leads to checkpoints of another thread")
        body = unpack_body(key, row)
        slots = {name: seen for name, seen in body.seen.items() if name.startswith(SLOT)}
        light = body._replace(values={}, versions={}, seen=slots, parent_writes=())
        found.append((row._replace(body=b""), light))
    return found


class LongPruning:
    """Deletes checkpoints of one namespace, some in each step.

    Args:
        rows: all checkpoints when the choice was made, oldest first; see `read_light`.
        kept: the ids of those that stay, which include the newest.
        loads: decodes metadata, to delete labels that no checkpoint has any more; None if the saver
            keeps no labels.
    """

    def __init__(
        self,
        key: ThreadKey,
        namespace_id: int,
        rows: Sequence[Row],
        kept: Collection[str],
        loads: Callable[[Blob], Any] | None,
    ) -> None:
        self._key, self._namespace_id, self._loads = key, namespace_id, loads
        self._parents = {row.checkpoint_id: row.parent_id for row, _ in rows}
        self._staying = {row.seq for row, _ in rows if row.checkpoint_id in kept}
        self._kept = {*kept}
        self._going = [row for row, _ in rows if row.checkpoint_id not in kept]
        self._newest = rows[-1][0]
        self._last = self._newest.seq
        self._has_begun = False
        self._labels: set[int] = set()
        # Checkpoints that stay and may build on some that go.
        self._roots = [row for row, _ in rows if row.checkpoint_id in kept and self._is_root(row)]
        # The (owner, channel) of values that stay although their checkpoints go, since others build
        # on them.
        self._needed: set[tuple[int, str]] = set()
        for row, body in rows:
            if loads is not None and row.checkpoint_id in kept:
                self._labels |= labels_of(loads(body.metadata))

    @property
    def is_done(self) -> bool:
        """Whether everything to be deleted is deleted."""
        return not self._going

    def step(self, session: SqlSession, namespace: NamespaceRow) -> bool:
        """Delete some more. The namespace, as it is now, is locked.

        Returns:
            Whether rows that stay were rewritten.

        Raises:
            DamagedError: some checkpoints are missing.
        """
        # Another session has deleted what was to stay, and may have created the thread again,
        # reusing sequences.
        if _find(session, self._newest) is None:
            self._going.clear()
            return False
        if not self._has_begun:
            ((size, there),) = session.rows("count", namespace.id)
            if there < size:
                raise self._key.damage_error(f"{size - there} of its checkpoints are missing")
            self._has_begun = True
        self._add_new(session)
        roots, self._roots = self._roots, []
        for root in roots:
            self._free(session, root)
        block = self._going[-AT_ONCE:]
        del self._going[-AT_ONCE:]
        self._keep_parent_writes(session, block)
        self._drop(session, block)
        if self._loads is not None and self.is_done:
            session.run("keep_labels", namespace.id, sorted(self._labels))
        set_head(session, namespace.id, namespace.head, namespace.head_id)
        return bool(roots)

    def _is_root(self, row: CheckpointRow) -> bool:
        if row.parent_id not in self._kept:
            return True
        return row.link is not None and row.link not in self._staying

    def _add_new(self, session: SqlSession) -> None:
        """Read what others have stored since: it stays, and may build on what goes."""
        new: list[CheckpointRow] = []
        edge = NEWEST
        while edge > self._last:
            page = session.rows("page", [self._namespace_id], edge, PAGE)
            found = [row for row in map(CheckpointRow._make, page) if row.seq > self._last]
            new += found
            edge = found[-1].seq if len(found) == PAGE else 0
        for row in reversed(new):
            self._parents[row.checkpoint_id] = row.parent_id
            self._kept.add(row.checkpoint_id)
            self._staying.add(row.seq)
            self._last = row.seq
            if self._is_root(row):
                self._roots.append(row)
            if self._loads is not None:
                metadata = self._loads(unpack_body(self._key, row).metadata)
                self._labels |= labels_of(metadata)

    def _free(self, session: SqlSession, root: CheckpointRow) -> None:
        """Rewrite a row that stays, so that it builds on none that goes."""
        row = _find(session, root)
        if row is None:
            return  # another session has deleted it
        state, body = materialize(self._key, read_chain(session, row))
        owners = [(v.owner, name) for name, v in state.values.items() if v.owner is not None]
        # Statements do not take an empty list of pairs.
        if owners:
            self._needed.update(session.rows("value_chains", self._namespace_id, sorted(owners)))
        # Its parent still exists, but will be deleted later.
        if (
            body.parent_writes
            and row.parent_id in self._parents
            and row.parent_id not in self._kept
        ):
            record_beside(session, self._key, self._namespace_id, row.parent_id, body)
        loses_link = row.link is not None and row.link not in self._staying
        parent = find_parent_left(row, self._parents, self._kept)
        if loses_link or parent != row.parent_id:
            stored = StoredCheckpoint(row, body, state, [])
            is_left = row.parent_id in self._kept
            write_complete(session, self._key, stored, parent, has_parent_writes=is_left)

    def _keep_parent_writes(self, session: SqlSession, block: Sequence[CheckpointRow]) -> None:
        """Move the writes of parents' tasks that are stored in deleted rows to records beside those
        parents that are left."""
        gone = {row.checkpoint_id for row in block}
        for each in block:
            parent_id = each.parent_id
            if parent_id is None or parent_id in gone or parent_id not in self._parents:
                continue
            row = _find(session, each)
            if row is None or not session.rows("by_id", self._namespace_id, parent_id):
                continue
            body = unpack_body(self._key, row)
            if body.parent_writes:
                record_beside(session, self._key, self._namespace_id, parent_id, body)

    def _drop(self, session: SqlSession, block: Sequence[CheckpointRow]) -> None:
        owners = [row.seq for row in block]
        values = session.rows("values_of", self._namespace_id, owners)
        unneeded = [each for each in values if (each[0], each[1]) not in self._needed]
        drop(session, "drop_values", self._namespace_id, unneeded)
        drop(session, "drop_rows", self._namespace_id, owners)
        drop(session, "drop_writes", self._namespace_id, [row.checkpoint_id for row in block])


def _find(session: SqlSession, wanted: CheckpointRow) -> CheckpointRow | None:
    """Return a row as it is now; None if it is gone."""
    for row in map(
        CheckpointRow._make, session.rows("by_id", wanted.namespace_id, wanted.checkpoint_id)
    ):
        if row.seq == wanted.seq:
            return row
    return None
