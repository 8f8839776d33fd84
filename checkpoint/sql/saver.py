"""How savers on SQL databases write. The texts, and how a connection is had, are each database's
own. All that is user data is bound; no text of a user's ever becomes SQL."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import Any

from ..diff import complete_commit, diff_checkpoint
from ..errors import CheckpointConflictError, DamagedError
from ..overrides import check_expected
from ..records import (
    NS_END,
    Checkpoint,
    CheckpointMetadata,
    Commit,
    RunnableConfig,
    TaskWrites,
    address,
    check_checkpoint,
    check_names,
    coordinates,
)
from ..retention import EVERY, RetentionLimits, check_several
from .copying import copy_namespaces
from .pruning import Choose, choose_by_limits, keep_only, set_head
from .queries import (
    SqlSession,
    find_checkpoint,
    find_namespace,
    lock_namespaces,
    namespaces_after,
)
from .reader import SqlReader
from .rows import MaterializedState, NamespaceRow, ThreadKey, pack_writes
from .write_rows import CommitRows, apply_commit, build_rows

STEP_SECONDS = 0.005
"""How long a transaction of `prune` goes on to take further threads."""

NAMESPACES_AT_ONCE = 1000
"""How many namespaces are read at once to find those that can be pruned."""


class SqlSaver(SqlReader):
    """A saver on rows. Subclasses give the connection."""

    # -- a superstep --------------------------------------------------------------------------

    def commit(self, commit: Commit) -> None:
        """Store one superstep in one transaction: the parent's writes, the checkpoint, the new
        head.

        Raises:
            CheckpointConflictError: the head is not the one the commit names.
            StorageError: the database refused; nothing of the step is stored.
        """
        self._write(self._write_commit, commit)

    def _write(self, function: Callable[..., None], *args: Any) -> None:
        """Make a write. A database may make several at once."""
        function(*args)

    def _write_commit(self, commit: Commit) -> None:
        thread_id, checkpoint_ns = commit.thread_id, commit.checkpoint_ns
        state = self._known_state(commit)
        metadata = self._dumps("metadata", commit.metadata)
        if state is not None:
            # What every superstep does. If the head is not where it is known to be, the way below
            # finds out why.
            rows = build_rows(state, commit, metadata)
            seq = self._append(state, rows)
            if seq is not None:
                apply_commit(state, commit, rows, seq)
                if self._retention is not None:
                    self._prune_if_due(state)
                return
        key = self._key(thread_id, checkpoint_ns) if state is None else state.key
        with self._session(write=True) as session:
            namespace = self._lock_namespace(session, key)
            # Compare-and-swap: the namespace is locked, so nobody moves the head after this look.
            if namespace.head_id != commit.head:
                raise CheckpointConflictError(
                    thread_id, checkpoint_ns, commit.head, namespace.head_id
                )
            state = self._read_state(session, namespace, commit.parent_id)
            if commit.parent_id is not None and not state.id:
                # Pruned meanwhile: what changed since is not enough, this one must hold everything.
                commit = complete_commit(commit, self._dumps)
            rows = build_rows(state, commit, metadata)
            seq = self._insert(session, namespace.id, rows)
            if commit.carried:
                head = replace(namespace, head_id=commit.id, revision=0)
                self._add_writes(session, head, commit.id, commit.carried)
        self._finish_commit(state, commit, rows, seq)

    def _known_state(self, commit: Commit) -> MaterializedState | None:
        """The state of the head on which a commit builds, if the run brings it."""
        state = commit.saver_state
        if (
            state.__class__ is not MaterializedState
            or not state.id == commit.parent_id == commit.head
            or commit.carried
            # Another saver's, or of another thread: the commit was passed on.
            or state.key.integrity is not self._integrity
            or state.key.thread_id != commit.thread_id
            or state.key.checkpoint_ns != commit.checkpoint_ns
        ):
            return None
        known: MaterializedState = state
        return known

    def _read_state(
        self, session: SqlSession, namespace: NamespaceRow, parent_id: str | None
    ) -> MaterializedState:
        """The state at a commit's parent; an empty one if there is none."""
        if parent_id is not None:
            found = find_checkpoint(session, namespace, parent_id, self._integrity)
            if found is not None:
                return found.state
        return MaterializedState(namespace.key(self._integrity), namespace.id)

    def _append(self, state: MaterializedState, rows: CommitRows) -> int | None:
        """Store a commit's rows in a transaction of their own, if the head is as it is known; their
        sequence, or None. What every superstep does: a database does it in as few steps as it
        can."""
        raise NotImplementedError

    def _insert(self, session: SqlSession, namespace_id: int, rows: CommitRows) -> int:
        """Store a commit's rows as the new head of a namespace; their sequence."""
        if rows.writes is not None:
            session.run("add_writes", namespace_id, rows.parent_id, rows.writes)
        names = (rows.checkpoint_id, rows.parent_id)
        seq = session.add("add_row", namespace_id, *names, rows.link, rows.run_id, rows.body)
        for channel, base, data in rows.long_values:
            session.run("add_value", namespace_id, seq, channel, base, data)
        session.run("set_head", seq, rows.checkpoint_id, 0, namespace_id)
        return seq

    def _finish_commit(
        self, state: MaterializedState, commit: Commit, rows: CommitRows, seq: int
    ) -> None:
        apply_commit(state, commit, rows, seq)
        if commit.saver_state is not state:
            commit.saver_state = state
            self._watch_state(state)
        if self._retention is not None:
            self._prune_if_due(state)

    def _prune_if_due(self, state: MaterializedState) -> None:
        # As far from a complete row as they get: once in so many commits.
        if state.distance == EVERY - 1:
            self._prune_by_retention(state.key.thread_id)

    def _retain(self, thread_id: str, checkpoint_ns: str) -> None:
        if self._retention is not None:
            with self._session(write=False) as session:
                namespace = find_namespace(session, thread_id, checkpoint_ns)
            if namespace is not None and namespace.size % EVERY == 0:
                self._prune_by_retention(thread_id)

    # -- beside a checkpoint ------------------------------------------------------------------

    def _record(
        self, thread_id: str, checkpoint_ns: str, checkpoint_id: str, writes: Sequence[TaskWrites]
    ) -> None:
        self._write(self._store_writes, thread_id, checkpoint_ns, checkpoint_id, writes)

    def _store_writes(
        self, thread_id: str, checkpoint_ns: str, checkpoint_id: str, writes: Sequence[TaskWrites]
    ) -> None:
        where, key = (thread_id, checkpoint_ns), self._key(thread_id, checkpoint_ns)
        with self._session(write=True) as session:
            namespace = self._lock_namespace(session, key)
            check_expected(self, "commit_writes", where, namespace.head_id, namespace.revision)
            revision = self._add_writes(session, namespace, checkpoint_id, writes)
        self._set_revision(key, checkpoint_id, revision)

    def _add_writes(
        self,
        session: SqlSession,
        namespace: NamespaceRow,
        checkpoint_id: str,
        writes: Sequence[TaskWrites],
    ) -> int:
        """Add to what is recorded beside a checkpoint; how often that has been done now."""
        is_head = namespace.head_id == checkpoint_id
        position: int = namespace.revision
        # Only the head's count stands in the namespace's row; for others the rows are counted.
        if not is_head:
            ((position,),) = session.rows("count_writes", namespace.id, checkpoint_id)
        data = pack_writes(namespace.key(self._integrity), checkpoint_id, position, writes)
        session.run("add_writes", namespace.id, checkpoint_id, data)
        if is_head:
            session.run("set_revision", position + 1, namespace.id)
        return position + 1

    def _set_revision(self, key: ThreadKey, checkpoint_id: str, revision: int) -> None:
        """Tell the run that holds this checkpoint's state what was recorded."""
        state = self._held_state(key, checkpoint_id)
        if state is not None:
            state.revision = revision

    def claim(
        self, config: RunnableConfig, revision: int | None, writes: Sequence[TaskWrites]
    ) -> None:
        """Record that a run is about to answer the head's questions; see
        `BaseCheckpointSaver.claim`."""
        self._write(self._claim, coordinates(config), revision, writes)

    def _claim(
        self,
        where: tuple[str, str, str | None],
        revision: int | None,
        writes: Sequence[TaskWrites],
    ) -> None:
        thread_id, checkpoint_ns, checkpoint_id = where
        key = self._key(thread_id, checkpoint_ns)
        with self._session(write=True) as session:
            namespace = self._lock_namespace(session, key)
            head = namespace.head_id
            if checkpoint_id is None or head != checkpoint_id or namespace.revision != revision:
                raise CheckpointConflictError(thread_id, checkpoint_ns, checkpoint_id, head)
            recorded = self._add_writes(session, namespace, checkpoint_id, writes)
        self._set_revision(key, checkpoint_id, recorded)

    def _lock_namespace(self, session: SqlSession, key: ThreadKey) -> NamespaceRow:
        """The namespace of these names, made if it is not there; nobody else changes it before this
        transaction ends."""
        names = key.thread_id, key.checkpoint_ns
        session.run("add_namespace", *names)
        return NamespaceRow(*session.rows("lock_namespace", *names)[0])

    # -- a complete checkpoint ----------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: Mapping[str, int],
    ) -> RunnableConfig:
        """Store a checkpoint as the new head, whoever moved it last.

        A value is stored if it is in `new_versions` or the parent has none; else the parent's is
        kept.

        Raises:
            UnserializableError: names the channel and the place in its value.
            StorageError: the database refused; nothing is stored.
        """
        where = thread_id, checkpoint_ns, parent_id = coordinates(config)
        check_checkpoint(checkpoint, metadata)
        id = checkpoint["id"]
        encoded = self._dumps("metadata", dict(metadata))
        with self._session(write=True) as session:
            namespace = self._lock_namespace(session, self._key(thread_id, checkpoint_ns))
            check_expected(self, "put", (thread_id, checkpoint_ns), namespace.head_id)
            # What replaces itself builds on nothing.
            state = self._read_state(session, namespace, None if parent_id == id else parent_id)
            parent = state if state.id else None
            commit, builds_on = diff_checkpoint(
                where, parent, checkpoint, metadata, new_versions, self._dumps
            )
            # It holds everything, so an empty state is the one that its rows build on.
            if not builds_on:
                state = MaterializedState(state.key, namespace.id)
            rows = build_rows(state, commit, encoded)
            if session.rows("by_id", namespace.id, id):
                self._drop_replaced(session, namespace, id)
            seq = self._insert(session, namespace.id, rows)
            set_head(session, namespace.id, seq, id)  # writes may have come before it
        # The head was moved from outside: the state that a run holds is no longer the head's.
        self._outdate_state(thread_id, checkpoint_ns)
        return address(thread_id, checkpoint_ns, id)

    def _drop_replaced(self, session: SqlSession, namespace: NamespaceRow, id: str) -> None:
        """Forget a checkpoint that comes back at once."""
        key = namespace.key(self._integrity)
        keep_only(
            session,
            key,
            namespace.id,
            lambda rows: [row.checkpoint_id for row, _ in rows if row.checkpoint_id != id],
            replaced=id,
        )

    # -- forget and copy ----------------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Forget a thread with all its namespaces; an unknown one is no error."""
        check_names(thread_id)
        with self._session(write=True) as session:
            for namespace in lock_namespaces(session, str(thread_id)):
                for forget in ("forget_values", "forget_writes", "forget_rows", "drop_namespace"):
                    session.run(forget, namespace.id)
                self._outdate_state(namespace.thread_id, namespace.checkpoint_ns)

    def delete_for_runs(self, run_ids: Collection[str]) -> None:
        """Forget the checkpoints of these runs, with their writes; see
        `BaseCheckpointSaver.delete_for_runs`."""
        runs = check_several(run_ids, "run_ids")
        with self._session(write=True) as session:
            for (thread_id,) in session.rows("threads_of_runs", sorted(runs)):
                for namespace in lock_namespaces(session, thread_id):
                    self._keep_only(
                        session,
                        namespace,
                        lambda rows: [
                            row.checkpoint_id for row, _ in rows if row.run_id not in runs
                        ],
                    )

    def prune(
        self,
        thread_ids: Collection[str] | None = None,
        *,
        keep_last: int | None = None,
        older_than: timedelta | None = None,
    ) -> None:
        """Forget old checkpoints, with their writes; see `BaseCheckpointSaver.prune`.

        Each thread is pruned whole or not at all, a few of them in each transaction: others work in
        between.
        """
        for seconds in self._prune_in_steps(thread_ids, RetentionLimits(keep_last, older_than)):
            time.sleep(seconds)

    async def aprune(
        self,
        thread_ids: Collection[str] | None = None,
        *,
        keep_last: int | None = None,
        older_than: timedelta | None = None,
    ) -> None:
        """`prune` for coroutines."""
        if type(self).prune is not SqlSaver.prune:  # what a subclass overrides is called
            await super().aprune(thread_ids, keep_last=keep_last, older_than=older_than)
            return
        import asyncio  # deferred: whoever awaits this has it already

        steps = self._prune_in_steps(thread_ids, RetentionLimits(keep_last, older_than))
        while (seconds := await self._acall(next, steps, None)) is not None:
            await asyncio.sleep(seconds)

    def _prune_in_steps(
        self, thread_ids: Collection[str] | None, limits: RetentionLimits
    ) -> Iterator[float]:
        """Prunes as it is gone through. Each step is a short transaction; then so many seconds are
        for others."""
        waiting: deque[str]
        if thread_ids is not None:
            waiting = deque(sorted(check_several(thread_ids, "thread_ids")))
        else:
            waiting = deque(sorted((yield from self._find_prunable(limits))))
        damaged: list[DamagedError] = []
        while waiting:
            began = monotonic()
            damaged += self._prune_some(waiting, limits)
            if waiting:
                yield self._seconds_for_others(monotonic() - began)
        if damaged:
            for other in damaged[1:]:
                damaged[0].add_note(f"also damaged: {other}")
            raise damaged[0]

    def _find_prunable(self, limits: RetentionLimits) -> Generator[float, None, set[str]]:
        """The threads of which something may go."""
        found: set[str] = set()
        after = 0
        while True:
            began = monotonic()
            with self._session(write=False) as session:
                page = namespaces_after(session, after, NAMESPACES_AT_ONCE)
            found.update(
                each.thread_id
                for each in page
                # A nested graph's history may go with the checkpoint around it.
                if each.size > limits.least_kept or NS_END in each.checkpoint_ns
            )
            if len(page) < NAMESPACES_AT_ONCE:
                return found
            after = page[-1].id
            yield self._seconds_for_others(monotonic() - began)

    def _prune_some(self, waiting: deque[str], limits: RetentionLimits) -> list[DamagedError]:
        """Prune the next threads in one transaction, until its time is over. If one is damaged,
        each in a transaction of its own: it stops no other."""
        some: list[str] = []
        deadline = monotonic() + STEP_SECONDS
        try:
            with self._session(write=True) as session:
                # At least one, or a slow database would never get anywhere.
                while waiting and (not some or monotonic() < deadline):
                    some.append(waiting.popleft())
                    self._prune_thread(session, some[-1], limits)
            return []
        except DamagedError:
            damaged = []
        for thread_id in some:
            try:
                with self._session(write=True) as session:
                    self._prune_thread(session, thread_id, limits)
            except DamagedError as error:
                damaged.append(error)
        return damaged

    def _seconds_for_others(self, seconds: float) -> float:
        """How long to let others work after so many seconds in which they had to wait."""
        return 0.0

    def _prune_thread(self, session: SqlSession, thread_id: str, limits: RetentionLimits) -> None:
        kept: dict[str, Collection[str]] = {}
        namespaces = lock_namespaces(session, thread_id)
        # Outer graphs first: what stays of a nested one depends on what stays around it.
        for namespace in sorted(namespaces, key=lambda each: len(each.checkpoint_ns)):
            name = namespace.checkpoint_ns
            choose = choose_by_limits(limits, kept, name, self.serde.loads)
            self._keep_only(session, namespace, choose)

    def copy_thread(self, source: str, target: str) -> None:
        """Copy a thread whole: all namespaces, checkpoints with their ids and order, and writes.

        Raises:
            ValueError: there is no such thread, or the target is one already.
        """
        check_names(source, target)
        with self._session(write=True) as session:
            namespaces = lock_namespaces(session, source)
            if not namespaces:
                raise ValueError(f"there is no thread {source!r} to copy")
            if session.rows("namespaces", target):
                raise ValueError(
                    f"thread {target!r} already exists: delete it first, or copy to another name"
                )
            pairs = []
            for each in namespaces:
                to = self._key(target, each.checkpoint_ns)
                copy = self._lock_namespace(session, to)
                pairs.append((each.key(self._integrity), each.id, to, copy.id))
            copy_namespaces(session, pairs)

    def _keep_only(self, session: SqlSession, namespace: NamespaceRow, choose: Choose) -> None:
        keep_only(session, namespace.key(self._integrity), namespace.id, choose)
        self._outdate_state(namespace.thread_id, namespace.checkpoint_ns)
