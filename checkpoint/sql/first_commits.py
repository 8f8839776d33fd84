"""The first commits of a namespace, stored in one transaction. A saver on SQL that can hold back
the input until START has run derives from the class here."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import CheckpointConflictError
from ..records import Commit
from .rows import MaterializedState
from .saver import SqlSaver
from .write_rows import apply_commit


def are_first(commits: Sequence[Commit]) -> bool:
    """Whether these are the first of a namespace, for all that their run has seen."""
    first = commits[0]
    is_new = first.head is None and first.parent_id is None
    return is_new and all(commit.is_plain for commit in commits)


class SqlSaverOfFirsts(SqlSaver):
    """A saver that stores the first commits of a namespace together."""

    def commit_all(self, commits: Sequence[Commit]) -> None:
        """Store supersteps of one namespace that follow one another; the first of a new one in one
        transaction (benchmark P23).

        Raises:
            CheckpointConflictError: the head is not the one that the first commit names.
            StorageError: the database refused; of the first ones of a namespace nothing is stored.
        """
        if are_first(commits):
            self._write(self._store_first, commits)
        else:
            super().commit_all(commits)

    def _store_first(self, commits: Sequence[Commit]) -> None:
        first = commits[0]
        key = self._key(first.thread_id, first.checkpoint_ns)
        with self._session(write=True) as session:
            namespace = self._lock_namespace(session, key)
            # Compare-and-swap: the namespace is locked, so nobody moves the head after this look.
            if namespace.head_id is not None:
                raise CheckpointConflictError(
                    first.thread_id, first.checkpoint_ns, None, namespace.head_id
                )
            # Of this call alone: should the transaction fail, nobody has seen it.
            state = MaterializedState(key, namespace.id)
            for commit in commits:
                rows = self._build_rows(state, commit)
                seq = self._insert(session, namespace.id, rows)
                apply_commit(state, commit, rows, seq)
        commits[-1].saver_state = state
        self._watch_state(state)
