"""Stores the first commits of a namespace in one transaction. The base class of SQL savers that can
hold back the input until START has run."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import CheckpointConflictError
from ..records import Commit
from .rows import MaterializedState
from .saver import SqlSaver
from .write_rows import apply_commit


def are_first(commits: Sequence[Commit]) -> bool:
    """Return whether these are the first commits of a namespace, as far as their run knows."""
    first = commits[0]
    is_new = first.head is None and first.parent_id is None
    ns = first.checkpoint_ns
    return is_new and all(commit.is_plain and commit.checkpoint_ns == ns for commit in commits)


class SqlSaverOfFirsts(SqlSaver):
    """A saver that stores the first commits of a namespace together."""

    def commit_all(self, commits: Sequence[Commit]) -> None:
        """Store several supersteps of one thread in one transaction (benchmark P23); see
        `BaseCheckpointSaver.commit_all`.

        Raises:
            CheckpointConflictError: a head is not the one that a commit names or requires.
            StorageError: the database refused; nothing is stored.
        """
        self._write(self._store_first if are_first(commits) else self._store_all, commits)

    def _store_first(self, commits: Sequence[Commit]) -> None:
        first = commits[0]
        key = self._key(first.thread_id, first.checkpoint_ns)
        with self._session(write=True) as session:
            namespace = self._lock_namespace(session, key)
            # Compare-and-swap: the namespace is locked, so the head cannot move after this check.
            if namespace.head_id is not None:
                raise CheckpointConflictError(
                    first.thread_id, first.checkpoint_ns, None, namespace.head_id
                )
            # Used by this call only: if the transaction fails, nobody has seen it.
            state = MaterializedState(key, namespace.id)
            for commit in commits:
                rows = self._build_rows(state, commit)
                seq = self._insert(session, namespace.id, rows)
                apply_commit(state, commit, rows, seq)
        commits[-1].saver_state = state
        self._watch_state(state)
