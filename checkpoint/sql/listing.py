"""Checks that a list of checkpoints is complete, by comparing the listed rows with what other rows
say about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ..integrity import Integrity
from .queries import NEWEST, SqlSession, find_namespace, find_row, select_namespaces
from .rows import CheckpointBody, CheckpointRow, NamespaceRow, StoredCheckpoint, ThreadKey


class ListingCheck:
    """Checks the checkpoints of some namespaces as they are listed, newest first.

    Args:
        namespaces: the namespaces as they were when their first checkpoint was read, or before.
        everything: whether those of which no checkpoint is read are not among them.
        edge: the sequence below which the list begins.
    """

    def __init__(self, namespaces: Mapping[int, NamespaceRow], everything: bool, edge: int) -> None:
        self._namespaces, self._everything = namespaces, everything
        self._whole = edge == NEWEST
        self._last = edge
        self._due = 0
        self._count: Counter[int] = Counter()
        # (namespace, id) of a checkpoint that must follow → how many records it must have, and a
        # child of it.
        self._owed: dict[tuple[int, str], tuple[int, str]] = {}

    def add(self, row: CheckpointRow, body: CheckpointBody, key: ThreadKey) -> None:
        """Check the next checkpoint.

        Raises:
            DamagedError: it is out of order.
        """
        if row.seq >= self._last:
            raise key.damage_error(
                "the index lists checkpoints in another order than they were stored"
            )
        self._last = row.seq
        self._count[row.namespace_id] += 1
        self._due, _ = self._owed.pop((row.namespace_id, row.checkpoint_id), (0, ""))
        namespace = self._namespaces[row.namespace_id]
        if self._whole and namespace.head_id == row.checkpoint_id:
            self._due = namespace.revision
        revision = body.parent_revision
        if revision is not None and row.parent_id is not None:
            parent = row.namespace_id, row.parent_id
            self._owed[parent] = max(self._owed.get(parent, (0, "")), (revision, row.checkpoint_id))

    def add_recorded(self, found: StoredCheckpoint) -> None:
        """Check the records of the checkpoint that was added last.

        Raises:
            DamagedError: a record is missing.
        """
        if found.state.revision < self._due:
            raise found.state.key.damage_error(
                f"a write recorded after checkpoint {found.row.checkpoint_id!r} is missing"
            )

    def stop(self, session: SqlSession, integrity: Integrity) -> None:
        """Check for checkpoints that should have come before the last one. It is no damage if
        another session has deleted or replaced them meanwhile.

        Raises:
            DamagedError: a checkpoint is missing, or the index passes over one.
        """
        for (id, checkpoint_id), (_, child) in self._owed.items():
            namespace = self._namespaces[id]
            key = namespace.key(integrity)
            now = find_row(session, namespace, child, key)
            # The child has since been deleted or got another parent: then nothing is missing.
            if now is None or now.parent_id != checkpoint_id:
                continue
            parent = find_row(session, namespace, checkpoint_id, key)
            if parent is None:
                raise key.damage_error(
                    f"checkpoint {checkpoint_id!r} is missing, which {child!r} follows"
                )
            if self._last < parent.seq < now.seq:
                raise key.damage_error(
                    f"the index skips checkpoint {checkpoint_id!r}, which {child!r} follows"
                )

    def end(self, session: SqlSession, integrity: Integrity) -> None:
        """Check for checkpoints that are still missing at the end of the list; see `stop`.

        Raises:
            DamagedError: a checkpoint is missing, or the index passes over one.
        """
        self._last = 0
        self.stop(session, integrity)
        namespaces: Iterable[NamespaceRow] = self._namespaces.values() if self._whole else ()
        if self._whole and self._everything:
            namespaces = select_namespaces(session, None)
        for namespace in namespaces:
            count = self._count[namespace.id]
            if count < namespace.size:
                # Of all namespaces, some may have grown since the first page was read.
                missing = _count_missing(session, namespace, None if self._everything else count)
                if missing > 0:
                    key = namespace.key(integrity)
                    raise key.damage_error(f"{missing} of its checkpoints are missing")


def _count_missing(session: SqlSession, namespace: NamespaceRow, listed: int | None) -> int:
    """Return how many checkpoints are missing. If the namespace has changed since the list began,
    or may have, its current rows are counted.

    Args:
        listed: how many were listed; None if the namespace may have changed.
    """
    now = find_namespace(session, namespace.thread_id, namespace.checkpoint_ns)
    if listed is not None and now == namespace:
        return namespace.size - listed
    ((size, there),) = session.rows("count", namespace.id) if now else ((0, 0),)
    missing: int = size - there
    return missing
