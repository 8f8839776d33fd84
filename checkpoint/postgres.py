"""`PostgresSaver`: threads in a Postgres database. This module runs its statements in few round
trips and handles broken connections; what a commit means is in `sql/`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Self, TypeVar

from .errors import CheckpointConflictError, DamagedError, StorageError, UnserializableError
from .integrity import Integrity
from .opening import Opening
from .overrides import check_expected, expectation_of, stores_by_put
from .records import (
    CheckpointTuple,
    Commit,
    RunnableConfig,
    TaskWrites,
    Transacted,
    TransactionPlace,
    coordinates,
)
from .retention import Retention
from .serde import Serializer
from .sql.commit_pipeline import CommitPipeline
from .sql.first_commits import SqlSaverOfFirsts, are_first
from .sql.pages import Listed, Page
from .sql.postgres_server import (
    POOL_SIZE,
    SECONDS,
    ConnectionLostError,
    OutOfReachError,
    Server,
    Target,
)
from .sql.postgres_session import (
    PostgresSession,
    all_columns,
    append_together,
    bind_append,
    decode_names,
    store,
    store_first,
)
from .sql.postgres_tables import MIGRATIONS
from .sql.queries import LookUp, SqlSession, find_namespace, read_checkpoint
from .sql.rows import (
    CheckpointRow,
    MaterializedState,
    NamespaceRow,
    StoredCheckpoint,
    ThreadKey,
    pack_writes,
    unpack_body,
)
from .sql.write_rows import CommitRows, apply_commit

__all__ = ["ConnectionLostError", "OutOfReachError", "PostgresSaver"]

Result = TypeVar("Result")

LARGE = 65_536
"""Bytes of a commit that is sent by itself: others need not wait for it, nor be copied with it."""

NOT_DRAWN = -1
"""In place of a number that the database has not given yet."""


class PostgresSaver(SqlSaverOfFirsts):
    """Keeps threads in a Postgres database, shared by any number of machines.

    A superstep is one statement, one round trip. The tables are created on first use; several
    programs may start at once. The async methods wait on the saver's own threads, as many as there
    are connections. A stored step is as durable as the server's `synchronous_commit` says. The
    saver reconnects to a restarted server.

    Args:
        conn: a connection string or URL; or an open psycopg `Connection`, which then serves this
            saver alone and is not reopened when it breaks; or a `ConnectionPool`. A given
            connection or pool stays open after `close` and keeps its own timeouts. The address may
            be that of a PgBouncer, in any mode; given connections that go through one that shares
            sessions must be made with `prepare_threshold=None`.
        pool_size: connections that may be open at once.
        timeout: seconds to wait for a connection, for another session's lock, or for the answer to
            one statement.
        serde: turns values into bytes and back.
        integrity: guards the stored rows; a checksum by default. `Encryption` hides them as well.
        retention: which checkpoints to delete as runs go on; None keeps all.

    Raises:
        StorageError: the string is not a connection string.
        TypeError: `conn` has another type.
        ValueError: `pool_size` or `timeout` is not above 0.
    """

    def __init__(
        self,
        conn: Target,
        *,
        pool_size: int = POOL_SIZE,
        timeout: float = SECONDS,
        serde: Serializer | None = None,
        integrity: Integrity | None = None,
        retention: Retention | None = None,
    ) -> None:
        super().__init__(serde=serde, integrity=integrity, retention=retention)
        self._server = Server(conn, "threads", MIGRATIONS, pool_size=pool_size, timeout=timeout)
        self._pipeline = CommitPipeline(
            self._append_together, self._commit_after_loss, self._call_threads
        )
        # What a subclass does around a commit is done around each; pruning takes its time.
        own = type(self).commit is PostgresSaver.commit and not stores_by_put(self)
        self._pipelines = own and retention is None

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Any) -> Opening[Self]:
        """Open a saver for the length of a `with` or `async with` block, then close it; options as
        for the class."""
        return Opening(cls, conn_string, **options)

    def setup(self) -> None:
        """Create the tables or migrate them. The first use of the saver does so too; further calls
        do nothing.

        Raises:
            StorageError: the server cannot be reached, refuses, or its tables were made by a later
                version.
        """
        self._server.setup()

    def close(self) -> None:
        """Close the connections, unless they were handed in."""
        self._server.close()
        self._pipeline.close()
        self._end_threads()

    def _max_threads(self) -> int:
        return self._server.size

    async def _acall(self, function: Callable[..., Result], *args: Any) -> Result:
        if (
            self._pipelines
            and getattr(function, "__func__", None) is PostgresSaver.commit
            and self._server.can_pipeline
            and self._known_state(args[0]) is not None
        ):
            self._server.check_usable()
            return await self._pipeline.call(function, *args)
        return await super()._acall(function, *args)

    @contextmanager
    def _session(self, *, write: bool) -> Iterator[PostgresSession]:
        if self._transacts:
            self._refuse_inside()
        with self._server.transaction(write, decode_names) as wire:
            yield PostgresSession(wire)

    @contextmanager
    def _statements(self) -> Iterator[PostgresSession]:
        """A session in which each statement is a transaction of its own."""
        if self._transacts:
            self._refuse_inside()
        with self._server.statements(decode_names) as wire:
            yield PostgresSession(wire)

    def _again(self, work: Callable[[], Result]) -> Result:
        """Do what may be done twice; once more if the connection broke on the way."""
        try:
            return work()
        except ConnectionLostError as lost:
            if lost.late:
                raise
            return work()

    # -- read ---------------------------------------------------------------------------------

    def _find(
        self, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None
    ) -> StoredCheckpoint | None:
        """Mostly one round trip, two where values are long. If somebody prunes between the two, all
        is read once more, as of one moment."""
        try:
            return self._again(partial(self._find_at_once, thread_id, checkpoint_ns, checkpoint_id))
        except DamagedError:
            return super()._find(thread_id, checkpoint_ns, checkpoint_id)

    def _find_at_once(
        self, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None
    ) -> StoredCheckpoint | None:
        with self._statements() as session:
            found = self._look_up(session, thread_id, checkpoint_ns, checkpoint_id)
            if found is None:
                return None
            namespace, chain, writes = found
            return read_checkpoint(
                session, namespace, chain, checkpoint_id, self._integrity, writes
            )

    def _look_up(
        self, session: SqlSession, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None
    ) -> LookUp | None:
        rows = session.rows("look", thread_id, checkpoint_ns, checkpoint_id)
        if not rows:
            return None
        id, *head, writes = rows[0][:6]
        namespace = NamespaceRow(id, thread_id, checkpoint_ns, *head)
        chain = [CheckpointRow(*row[6:]) for row in rows if row[6] is not None]
        return namespace, chain, writes or []

    def head(self, config: RunnableConfig) -> str | None:
        """Return the id of the newest checkpoint of the thread and namespace in `config`, or
        None."""
        thread_id, checkpoint_ns, _ = coordinates(config)
        namespace = self._again(partial(self._find_namespace, thread_id, checkpoint_ns))
        return namespace.head_id if namespace else None

    def _find_namespace(self, thread_id: str, checkpoint_ns: str) -> NamespaceRow | None:
        with self._statements() as session:
            return find_namespace(session, thread_id, checkpoint_ns)

    def _begin_list(self, *options: Any) -> tuple[Listed, int]:
        return self._again(partial(super()._begin_list, *options))

    def _read_page(self, *options: Any) -> Page:
        return self._again(partial(super()._read_page, *options))

    def run_of(self, config: RunnableConfig, run_id: str) -> CheckpointTuple | None:
        """Return the newest checkpoint of the thread and namespace in `config` that the run with
        this id made, or None."""
        return self._again(partial(super().run_of, config, run_id))

    # -- write --------------------------------------------------------------------------------

    def commit(self, commit: Commit) -> None:
        """Store one superstep: the parent's writes, the checkpoint and the new head, whole or not
        at all.

        If the connection breaks on the way, the commit is sent again. It names the head it builds
        on, so it is stored only once; if it is refused because the first try had arrived, the saver
        detects that.

        Raises:
            CheckpointConflictError: the head is not the one the commit names, or that of another
                namespace is not the one it requires.
            ConnectionLostError: the connection broke and no other could be opened, so the step may
                or may not be stored.
            StorageError: the database refused; nothing of the step is stored.
        """
        self._commit_once(commit)

    def _commit_once(self, commit: Commit) -> None:
        try:
            self._commit(commit)
        except ConnectionLostError as lost:
            self._commit_after_loss(lost, commit)

    def _commit_after_loss(self, lost: ConnectionLostError, commit: Commit) -> None:
        if lost.late:
            raise lost
        try:
            self._store_again(partial(self._commit, commit), commit)
        except StorageError as error:
            raise lost from error

    def _store_again(self, store: Callable[[], None], last: Commit) -> None:
        """Store what may be stored already.

        Args:
            last: is stored if all is.
        """
        try:
            store()
        except CheckpointConflictError:
            if not self._is_stored(last):
                raise

    def _is_stored(self, commit: Commit) -> bool:
        """Whether this very commit is there. Its id alone may be another run's that came from the
        same state to the same."""
        key = self._key(commit.thread_id, commit.checkpoint_ns)
        with self._session(write=False) as session:
            namespace = find_namespace(session, commit.thread_id, commit.checkpoint_ns)
            rows = session.rows("by_id", namespace.id, commit.id) if namespace is not None else ()
            return any(unpack_body(key, CheckpointRow(*row)).ts == commit.ts for row in rows)

    def _commit(self, commit: Commit) -> None:
        first = commit.head is None and commit.parent_id is None and commit.is_plain
        if not first or not self._create(commit):
            super().commit(commit)

    def _create(self, commit: Commit) -> bool:
        """Store the first commit of a namespace that is not there yet; False if it is."""
        state = MaterializedState(self._key(commit.thread_id, commit.checkpoint_ns), 0)
        rows = self._build_rows(state, commit)
        names = commit.thread_id, commit.checkpoint_ns
        with self._statements() as session:
            made = store(session, "create", rows, names)
        for namespace_id, seq in made:
            state.namespace_id = namespace_id
            self._finish_commit(state, commit, rows, seq)
        return bool(made)

    def commit_all(self, commits: Sequence[Commit]) -> None:
        """Store several supersteps of one thread in one transaction (benchmarks P23, P28); see
        `BaseCheckpointSaver.commit_all`.

        Raises: what `commit` raises; nothing is stored then.
        """
        try:
            if not are_first(commits):
                self._store_all(commits)
            elif not self._create_first(commits):
                self._store_first(commits)
        except ConnectionLostError as lost:
            if lost.late:
                raise
            try:
                self._store_again(partial(self._store_all, commits), commits[-1])
            except StorageError as error:
                raise lost from error

    def _create_first(self, commits: Sequence[Commit]) -> bool:
        """Store the first commits of a namespace in one statement; False if it is there already, or
        one builds on a value whose number only the database will give."""
        state = MaterializedState(self._key(commits[0].thread_id, commits[0].checkpoint_ns), 0)
        all_rows: list[CommitRows] = []
        for commit in commits:
            rows = self._build_rows(state, commit)
            if any(base is not None for _, base, _ in rows.long_values):
                return False
            all_rows.append(rows)
            apply_commit(state, commit, rows, NOT_DRAWN)
        with self._statements() as session:
            made = store_first(session, all_rows, (state.key.thread_id, state.key.checkpoint_ns))
        for rows, (namespace_id, seq) in zip(all_rows, made, strict=False):
            for value in rows.values.values():
                if value is not None and value.owner is not None:
                    value.owner = seq
            state.namespace_id, state.seq = namespace_id, seq
        if made:
            commits[-1].saver_state = state
            self._watch_state(state)
        return bool(made)

    def _append(
        self,
        state: MaterializedState,
        rows: CommitRows,
        requires: Sequence[tuple[str, str | None]],
    ) -> int | None:
        with self._statements() as session:
            moved = session.rows(*bind_append(state, rows, requires))
        return moved[0][1] if moved else None

    def _append_together(self, commits: Sequence[Commit]) -> list[bool]:
        """Store commits as `_append` does, in one transaction and one round trip; which are stored.
        The others are left as they are."""
        known: list[tuple[int, Commit, MaterializedState, CommitRows]] = []
        for position, commit in enumerate(commits):
            state = self._known_state(commit)
            if state is not None:
                with suppress(UnserializableError):  # raised where it is stored alone
                    rows = self._build_rows(state, commit)
                    if rows.size() <= LARGE:
                        known.append((position, commit, state, rows))
        stored = [False] * len(commits)
        if not known:
            return stored
        with self._server.statements(decode_names) as wire:
            appended = [(state, rows, commit.requires) for _, commit, state, rows in known]
            moved = append_together(wire, appended)
        for (position, commit, state, rows), seq in zip(known, moved, strict=True):
            if seq is not None:
                apply_commit(state, commit, rows, seq)
                stored[position] = True
        return stored

    def _insert(self, session: SqlSession, namespace_id: int, rows: CommitRows) -> int:
        seq: int = session.rows("insert", *all_columns(rows), namespace_id)[0][1]
        return seq

    def _transact(
        self, place: TransactionPlace, function: Callable[[Any], TaskWrites]
    ) -> Transacted:
        from .sql.postgres_transaction import transact_on_postgres

        return transact_on_postgres(self, place, function)

    def _record(
        self, thread_id: str, checkpoint_ns: str, checkpoint_id: str, writes: Sequence[TaskWrites]
    ) -> None:
        where, key = (thread_id, checkpoint_ns), self._key(thread_id, checkpoint_ns)
        expected = expectation_of(self)
        if expected is not None:
            # What stands beside another checkpoint than the head is counted by its rows.
            revision = expected.revision if expected.head == checkpoint_id else None
        else:
            state = self._held_state(key, checkpoint_id)
            revision = None if state is None else state.revision
        data = pack_writes(key, checkpoint_id, revision or 0, writes)
        done: bool | None = False
        if revision is not None:
            done = self._record_at(key, checkpoint_id, revision, data)
        if done:
            if expected is not None:
                expected.fulfil("commit_writes")
            return
        with self._session(write=True) as session:
            namespace = self._lock_namespace(session, key)
            if done is None and session.rows("same_writes", namespace.id, checkpoint_id, data):
                return  # they had arrived after all
            check_expected(self, "commit_writes", where, namespace.head_id, namespace.revision)
            recorded = self._add_writes(session, namespace, checkpoint_id, writes)
        self._set_revision(key, checkpoint_id, recorded)

    def _record_at(
        self, key: ThreadKey, checkpoint_id: str, revision: int, data: bytes
    ) -> bool | None:
        """Record beside the head in one statement, if it has this revision; False if it has not,
        None if the connection broke."""
        names = key.thread_id, key.checkpoint_ns, checkpoint_id
        try:
            with self._statements() as session:
                done = session.run("beside", *names, revision, data)
        except ConnectionLostError as lost:
            if lost.late:
                raise
            return None
        if done:
            self._set_revision(key, checkpoint_id, revision + 1)
        return bool(done)

    def _lock_namespace(self, session: SqlSession, key: ThreadKey) -> NamespaceRow:
        names = key.thread_id, key.checkpoint_ns
        return NamespaceRow(*session.rows("lock_namespace", *names)[0])
