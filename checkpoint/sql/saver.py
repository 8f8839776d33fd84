"""How checkpointers on SQL databases write. Each database has its own statements and connections.
All user data is bound; user text never becomes SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Self

from ..diff import complete_commit, diff_checkpoint
from ..errors import CheckpointConflictError
from ..overrides import check_head
from ..records import (
    Checkpoint,
    CheckpointMetadata,
    Commit,
    Expected,
    Place,
    Post,
    RunnableConfig,
    TaskWrites,
    Transacted,
    TransactionPlace,
    address,
    check_checkpoint,
    check_names,
    coordinates,
)
from ..retention import EVERY
from ..serde import Blob
from ..threads import Opening, Result
from .pruning import SqlPruner, ids_without, read_rows, set_head
from .queries import SqlSession, find_row, lock_namespaces
from .read_rows import read_batches
from .rows import (
    SELF,
    ChannelValue,
    CheckpointRow,
    MaterializedState,
    NamespaceRow,
    ThreadKey,
    ValueRow,
    pack_body,
    pack_writes,
    unpack_body,
)
from .write_rows import CommitRows, apply_commit, build_rows

FORGET = ("forget_values", "forget_writes", "forget_rows", "forget_labels", "drop_namespace")
"""The statements that delete a namespace."""


def is_due(state: MaterializedState) -> bool:
    """Return whether it is time to prune, once every `EVERY` commits."""
    return state.size % EVERY == 0


class SqlSaver(SqlPruner):
    """A checkpointer on rows. Subclasses provide the connection."""

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Any) -> Opening[Self]:
        """Open a checkpointer for the length of a `with` or `async with` block, then close it;
        options as for the class."""
        return Opening(cls, conn_string, **options)

    # -- supersteps ---------------------------------------------------------------------------

    def commit(self, commits: Sequence[Commit]) -> None:
        """Store supersteps of one thread in one transaction; see `BaseCheckpointSaver.commit`.

        Raises:
            CheckpointConflictError: a head is not the one that a commit names or requires.
            StorageError: the database refused; nothing is stored.
        """
        self._write(self._commit, commits)

    def _write(self, function: Callable[..., Result], *args: Any) -> Result:
        """Make a write. A subclass may make several at once."""
        return function(*args)

    def _commit(self, commits: Sequence[Commit]) -> None:
        # The fast path of almost every superstep. If the head has moved, the code below finds out
        # why.
        if len(commits) == 1 and (state := self._known_state(commits[0])) is not None:
            (commit,) = commits
            metadata = self._dumps("metadata", commit.metadata)
            rows = build_rows(state, commit, metadata, self._loads_for_labels)
            seq = self._append(state, rows, commit.requires)
            if seq is not None:
                apply_commit(state, commit, rows, seq)
                if rows.long_values and self._recent is not None:
                    self._recent.keep(state.namespace_id, rows.values)
                if self._retention is not None and is_due(state):
                    self._prune_by_retention(state.key.thread_id)
                return
        self._commit_slowly(commits)

    def _commit_slowly(self, commits: Sequence[Commit]) -> None:
        """Store commits after a look at what is there."""
        thread_id, must_prune = commits[0].thread_id, False
        states: dict[str, MaterializedState] = {}
        moved: dict[str, NamespaceRow] = {}
        with self._session(write=True) as session:
            spaces = self._lock_heads(session, commits)
            for commit in commits:
                ns = commit.checkpoint_ns
                # Compare-and-swap: all are locked, so no head can move after this check.
                for name, expected in (*commit.requires, (ns, commit.head)):
                    found = spaces[name]
                    head = found.head_id if found is not None else None
                    if head != expected:
                        raise CheckpointConflictError(thread_id, name, expected, head)
                namespace = spaces[ns]
                assert namespace is not None
                state = states.get(ns)
                if state is None or state.id != commit.parent_id:
                    state = self._loaded_state(session, namespace, commit)
                whole = commit
                if commit.parent_id is not None and not state.id:
                    # The parent was pruned: the changes since it are not enough, so this one must
                    # hold everything.
                    whole = complete_commit(commit, self._dumps)
                rows = self._build_rows(state, whole)
                seq = self._insert(session, namespace.id, rows)
                namespace.head_id, namespace.revision = commit.id, 0
                namespace.head, namespace.size = seq, namespace.size + 1
                if commit.carried:
                    self._add_writes(session, namespace, commit.id, commit.carried)
                if commit.taken:
                    take_posts(session, thread_id, commit)
                # If the transaction fails, the state has the id of a checkpoint that is not stored,
                # so that no other commit is taken to build on it.
                states[ns] = apply_commit(state, whole, rows, seq)
                namespace.revision, moved[ns] = state.revision, namespace
                must_prune |= is_due(state)
            for namespace in moved.values():  # once for all its commits (benchmark P23)
                self._move_head(session, namespace)
        for commit in commits:
            commit.saver_state = state = states[commit.checkpoint_ns]
            if self._recent is not None:
                self._recent.keep(state.namespace_id, state.values)
        if self._retention is not None and must_prune:
            self._prune_by_retention(thread_id)

    def _lock_heads(
        self, session: SqlSession, commits: Sequence[Commit]
    ) -> dict[str, NamespaceRow | None]:
        """Lock the namespaces of commits and those that they require, always in the same order:
        otherwise two transactions could deadlock."""
        thread_id = commits[0].thread_id
        own = {commit.checkpoint_ns for commit in commits}
        required = {name for commit in commits for name, _ in commit.requires}
        spaces: dict[str, NamespaceRow | None] = {}
        for name in sorted(own | required):
            if name in own:
                spaces[name] = self._lock_namespace(session, self._key(thread_id, name))
            else:
                rows = session.rows("required", thread_id, name)
                spaces[name] = NamespaceRow(*rows[0]) if rows else None
        return spaces

    def _build_rows(self, state: MaterializedState, commit: Commit) -> CommitRows:
        metadata = self._dumps("metadata", commit.metadata)
        return build_rows(state, commit, metadata, self._loads_for_labels)

    def _known_state(self, commit: Commit) -> MaterializedState | None:
        """Return the state of the head on which a commit builds, if the run provides it."""
        if (
            commit.parent_id != commit.head
            or commit.carried
            or commit.taken
            or len(commit.requires) > 1
            or (known := self._given_state(commit)) is None
        ):
            return None
        if commit.revision is not None:
            known.revision = commit.revision
        return known

    def _given_state(self, commit: Commit) -> MaterializedState | None:
        """Return the state of the checkpoint on which a commit builds, if the run provides it."""
        state = commit.saver_state
        if (
            state.__class__ is MaterializedState
            and state.id == commit.parent_id
            # Else it is from another saver or of another thread: the commit was forwarded.
            and state.key.integrity is self._integrity
            and state.key.thread_id == commit.thread_id
            and state.key.checkpoint_ns == commit.checkpoint_ns
        ):
            return state
        return None

    def _loaded_state(
        self, session: SqlSession, namespace: NamespaceRow, commit: Commit
    ) -> MaterializedState:
        """Return the state at a commit's parent: as the run has read it, if it is still so."""
        state = self._given_state(commit)
        if state is not None and state.id:
            row = find_row(session, namespace, state.id, state.key)
            ((records,),) = session.rows("count_writes", namespace.id, state.id)
            if row is not None and (row.seq, records) == (state.seq, state.revision):
                state.size = namespace.size
                return state
        return self._read_state(session, namespace, commit.parent_id)

    def _read_state(
        self, session: SqlSession, namespace: NamespaceRow, parent_id: str | None
    ) -> MaterializedState:
        """Return the state at a commit's parent; an empty one if there is none."""
        if parent_id is not None:
            where = namespace.thread_id, namespace.checkpoint_ns
            found = self._find_in(session, *where, parent_id)
            if found is not None:
                return found.state
        return MaterializedState(namespace.key(self._integrity), namespace.id, size=namespace.size)

    def _append(
        self,
        state: MaterializedState,
        rows: CommitRows,
        requires: Sequence[tuple[str, str | None]],
    ) -> int | None:
        """Store a commit's rows in their own transaction, if the head has not moved and those
        required are as they should be; return their sequence, or None. Every superstep does this,
        so each database does it in as few steps as it can."""
        raise NotImplementedError

    def _insert(self, session: SqlSession, namespace_id: int, rows: CommitRows) -> int:
        """Store a commit's rows, without moving the head; return their sequence."""
        if rows.writes is not None:
            session.run("add_writes", namespace_id, rows.parent_id, rows.writes)
        names = (rows.checkpoint_id, rows.parent_id)
        seq = session.add("add_row", namespace_id, *names, rows.link, rows.run_id, rows.body)
        for channel, base, data in rows.long_values:
            session.run("add_value", namespace_id, seq, channel, base, data)
        if rows.labels:
            session.run("add_labels", namespace_id, rows.labels)
        return seq

    def _move_head(self, session: SqlSession, to: NamespaceRow) -> None:
        """Store the head of a namespace to which rows were added."""
        session.run("next_head", to.head, to.head_id, to.revision, to.size, to.id)

    # -- beside a checkpoint ------------------------------------------------------------------

    def _record(
        self, where: Place, expected: Expected | None, writes: Mapping[str, Sequence[TaskWrites]]
    ) -> int:
        return self._write(self._store_records, where, expected, writes)

    def _store_records(
        self, where: Place, expected: Expected | None, writes: Mapping[str, Sequence[TaskWrites]]
    ) -> int:
        with self._session(write=True) as session:
            namespace = self._lock_namespace(session, self._key(*where))
            if expected is not None:
                head = namespace.head_id
                if head != expected.head or expected.revision not in (None, namespace.revision):
                    raise CheckpointConflictError(*where, expected.head, head)
            return self._add_records(session, namespace, writes, counts=expected is not None)

    def _add_writes(
        self,
        session: SqlSession,
        namespace: NamespaceRow,
        checkpoint_id: str,
        writes: Sequence[TaskWrites],
    ) -> int:
        """Add a record beside a checkpoint; return how many there are now."""
        is_head = namespace.head_id == checkpoint_id
        position: int = namespace.revision
        # Only the head's count is in the namespace's row; for others the rows are counted.
        if not is_head:
            ((position,),) = session.rows("count_writes", namespace.id, checkpoint_id)
        data = pack_writes(namespace.key(self._integrity), checkpoint_id, position, writes)
        session.run("add_writes", namespace.id, checkpoint_id, data)
        if is_head:
            session.run("set_revision", position + 1, namespace.id)
        return position + 1

    def _add_records(
        self,
        session: SqlSession,
        namespace: NamespaceRow,
        records: Mapping[str, Sequence[TaskWrites]],
        *,
        counts: bool = True,
    ) -> int:
        """Add records beside checkpoints; return how many are beside the head now.

        Args:
            counts: whether they count beside the head, wherever they stand.
        """
        head = namespace.head_id
        if counts and head is not None:
            records = {head: (), **records}  # a revision is the number of rows: add an empty one
        for checkpoint_id, writes in records.items():
            self._add_writes(session, namespace, checkpoint_id, writes)
        return namespace.revision + (head in records)

    _transacts = False
    """Whether a transaction has ever been requested. Only then can a caller be inside one."""

    def transact(
        self, place: TransactionPlace, function: Callable[[Any], TaskWrites]
    ) -> Transacted:
        """Call a function in a transaction on this database, and record its result in it; see
        `BaseCheckpointSaver.transact`.

        Raises:
            TypeError: a subclass overrides a method that stores records.
            ValueError: the database has no such isolation level.
        """
        self._refuse_inside()
        self._transacts = True
        return self._transact(place, function)

    def _transact(
        self, place: TransactionPlace, function: Callable[[Any], TaskWrites]
    ) -> Transacted:
        raise NotImplementedError

    def _refuse_inside(self) -> None:
        """Refuse to be used by the function of one of its own transactions."""
        if self._transacts:
            from .transaction import refuse_inside

            refuse_inside(self)

    def store_post(self, thread_id: str, writes: Sequence[tuple[str, Blob]]) -> None:
        """Store what was posted to a thread; see `BaseCheckpointSaver.store_post`."""
        data = pack_post(self._key(thread_id, ""), writes)
        with self._session(write=True) as session:
            session.run("add_post", thread_id, data)

    def read_posts(self, thread_id: str) -> Sequence[Post]:
        """Return what was posted to a thread and not taken by a commit, in the order of ids."""
        with self._session(write=False) as session:
            return find_posts(session, self._key(thread_id, ""))

    def _lock_namespace(self, session: SqlSession, key: ThreadKey) -> NamespaceRow:
        """Lock and return the namespace with these names, and create it if necessary; nobody else
        can change it before this transaction ends."""
        names = key.thread_id, key.checkpoint_ns
        rows = session.rows("lock_namespace", *names)
        if rows:
            return NamespaceRow(*rows[0])
        return NamespaceRow(session.add("add_namespace", *names), *names, None, None, 0, 0)

    # -- a complete checkpoint ----------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: Mapping[str, int],
    ) -> RunnableConfig:
        """Store a checkpoint as the new head, whoever has moved the head last.

        A value is stored if it is in `new_versions` or the parent has none; otherwise the parent's
        is kept.

        Raises:
            UnserializableError: a value cannot be stored; names the channel and the place in it.
            StorageError: the database refused; nothing is stored.
        """
        where = thread_id, checkpoint_ns, parent_id = coordinates(config)
        check_checkpoint(checkpoint, metadata)
        id = checkpoint["id"]
        encoded = self._dumps("metadata", dict(metadata))
        with self._session(write=True) as session:
            namespace = self._lock_namespace(session, self._key(thread_id, checkpoint_ns))
            check_head(config, namespace.head_id)
            # A checkpoint that replaces itself builds on nothing.
            state = self._read_state(session, namespace, None if parent_id == id else parent_id)
            parent = state if state.id else None
            commit, builds_on = diff_checkpoint(
                where, parent, checkpoint, metadata, new_versions, self._dumps
            )
            # It holds everything, so its rows build on an empty state.
            if not builds_on:
                state = MaterializedState(state.key, namespace.id)
            rows = build_rows(state, commit, encoded, self._loads_for_labels)
            if session.rows("by_id", namespace.id, id):
                others = partial(ids_without, gone={id})
                self._keep_only(session, namespace, others, replaced=id)
                # So that a run on the replaced head, whose sequence may be given again, notices.
                self._add_writes(session, replace(namespace, head_id=None), id, ())
            seq = self._insert(session, namespace.id, rows)
            set_head(session, namespace.id, seq, id)  # writes may have been recorded before it
        if self._retention is not None and (namespace.size + 1) % EVERY == 0:
            self._prune_by_retention(thread_id)
        return address(thread_id, checkpoint_ns, id)

    # -- forget and copy ----------------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all its namespaces; an unknown thread is no error."""
        check_names(thread_id)
        with self._session(write=True) as session:
            for namespace in lock_namespaces(session, str(thread_id)):
                for forget in FORGET:
                    session.run(forget, namespace.id)
            session.run("forget_posts", str(thread_id))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a whole thread: all namespaces, checkpoints with their ids and order, and writes.

        Raises:
            ValueError: there is no such thread, or the target already exists.
        """
        check_names(source_thread_id, target_thread_id)
        with self._session(write=True) as session:
            namespaces = lock_namespaces(session, source_thread_id)
            if not namespaces:
                raise ValueError(f"there is no thread {source_thread_id!r} to copy")
            exists = bool(session.rows("namespaces", target_thread_id))
            pairs = []
            for each in namespaces:
                to = self._key(target_thread_id, each.checkpoint_ns)
                copy = self._lock_namespace(session, to)
                exists |= copy.head_id is not None  # another transaction has made it meanwhile
                pairs.append((each.key(self._integrity), each.id, to, copy.id))
            if exists:
                raise ValueError(
                    f"thread {target_thread_id!r} already exists: delete it first, or copy to "
                    "another name"
                )
            copy_namespaces(session, pairs)
            to = self._key(target_thread_id, "")
            for post in find_posts(session, self._key(source_thread_id, "")):
                session.run("add_post", target_thread_id, pack_post(to, post.writes))


def pack_post(key: ThreadKey, writes: Sequence[tuple[str, Blob]]) -> bytes:
    """Return a post as the bytes of its row."""
    return key.pack("post", [key.thread_id], [(name, *blob) for name, blob in writes])


def find_posts(session: SqlSession, key: ThreadKey) -> list[Post]:
    """Return the waiting posts, in the order of ids.

    Raises:
        DamagedError: one is damaged.
    """
    found = []
    for id, data in session.rows("posts", key.thread_id):
        content = key.unpack("post", [key.thread_id], data)
        found.append(Post(id, [(name, (form, payload)) for name, form, payload in content]))
    return found


def take_posts(session: SqlSession, thread_id: str, commit: Commit) -> None:
    """Delete the posts that a commit takes, in its transaction.

    Raises:
        CheckpointConflictError: some are already gone, and would be in two supersteps.
    """
    if session.run("take_posts", thread_id, [*commit.taken]) != len(commit.taken):
        raise CheckpointConflictError(thread_id, commit.checkpoint_ns, commit.head, commit.head)


# -- copying ---------------------------------------------------------------------------------------
# Copies a thread, row by row. Copies get new sequences, so every row that refers to one is
# rewritten.

Copies = Sequence[tuple[ThreadKey, int, ThreadKey, int]]
"""The (key, id) of each namespace, followed by those of its target, which is empty."""


def copy_namespaces(session: SqlSession, pairs: Copies) -> None:
    """Copy whole namespaces, including the order among all their checkpoints."""
    copies = [_NamespaceCopy(session, *pair) for pair in pairs]
    work = [(owner, copy) for copy in copies for owner in copy.owners]
    # In a copy, values whose checkpoint is gone have owners below zero, the oldest the highest.
    # They come first, since others build on them.
    for owner, copy in sorted(work, key=lambda each: (each[0] > 0, abs(each[0]))):
        copy.move(owner)
    for copy in copies:
        copy.finish()


class _NamespaceCopy:
    """The copy of one namespace, while it is made.

    Attributes:
        owners: the checkpoints, and the owners of values whose checkpoints are gone, each with the
            channels whose long values it has written.
    """

    def __init__(
        self, session: SqlSession, key: ThreadKey, source: int, to: ThreadKey, target: int
    ) -> None:
        self._session, self._key, self._source = session, key, source
        self._to, self._target = to, target
        self._rows = {row.seq: row for row in read_rows(session, key, source)}
        self.owners: dict[int, list[str]] = {seq: [] for seq in self._rows}
        for owner, channel, _ in session.rows("all_values", source):
            self.owners.setdefault(owner, []).append(channel)
        # Values can outlive the checkpoints that wrote them; such owners get numbers that no
        # checkpoint has.
        self._lost = count(min([0, *self.owners]) - 1, -1)
        self._moved: dict[tuple[int, str], tuple[int, bytes]] = {}  # → owner and digest in the copy
        self._seqs: dict[int, int] = {}

    def move(self, owner: int) -> None:
        """Copy one checkpoint with the values it wrote; everything that they build on has already
        been copied."""
        values = [self._copy_value(owner, channel) for channel in self.owners[owner]]
        row = self._rows.get(owner)
        seq = next(self._lost) if row is None else self._copy_checkpoint(row)
        for _, channel, base, data in values:
            self._session.run("add_value", self._target, seq, channel, base, data)
            self._moved[owner, channel] = (seq, self._to.digest(data))
        self._seqs[owner] = seq

    def _copy_value(self, owner: int, channel: str) -> ValueRow:
        rows = self._session.rows("one_value", self._source, owner, channel)
        if not rows:
            raise self._key.damage_error(f"the value of {channel!r} is missing")
        content = self._key.unpack("value", [channel], ValueRow(*rows[0]).data)
        form, base, digest, payload = content
        if base is not None:
            base, digest = self._find_moved(base, channel)
        data = self._to.pack("value", [channel], [form, base, digest, payload])
        self._moved[owner, channel] = (SELF, self._to.digest(data))
        return ValueRow(SELF, channel, base, data)

    def _copy_checkpoint(self, row: CheckpointRow) -> int:
        body = unpack_body(self._key, row)
        values: dict[str, ChannelValue | None] = {}
        for name, value in body.values.items():
            if value is not None and value.owner is not None:
                value = ChannelValue(None, *self._find_moved(value.owner, name))
            values[name] = value
        if row.link is not None and row.link not in self._seqs:
            raise self._key.damage_error(
                f"checkpoint {row.parent_id!r} is missing, and others depend on it"
            )
        link = None if row.link is None else self._seqs[row.link]
        body = body._replace(values=values)
        data = pack_body(self._to, row.checkpoint_id, row.parent_id, body, link is None)
        names = (row.checkpoint_id, row.parent_id)
        return self._session.add("add_row", self._target, *names, link, row.run_id, data)

    def _find_moved(self, owner: int, channel: str) -> tuple[int, bytes]:
        """Return the owner and digest of a copied value."""
        if (owner, channel) not in self._moved:
            raise self._key.damage_error(f"the value of {channel!r} is missing")
        return self._moved[owner, channel]

    def finish(self) -> None:
        """Copy the task writes, and set the head."""
        session = self._session
        written: dict[str, list[bytes]] = {}
        for checkpoint_id, data in session.rows("all_writes", self._source):
            written.setdefault(checkpoint_id, []).append(data)
        for checkpoint_id, batches in written.items():
            tasks_of = read_batches(self._key, checkpoint_id, batches)
            for position, tasks in enumerate(tasks_of):
                data = pack_writes(self._to, checkpoint_id, position, tasks)
                session.run("add_writes", self._target, checkpoint_id, data)
        session.run("copy_labels", self._source, self._target)
        session.run("copy_mark", self._source, self._target)
        if self._rows:
            last = max(self._rows)
            set_head(session, self._target, self._seqs[last], self._rows[last].checkpoint_id)
