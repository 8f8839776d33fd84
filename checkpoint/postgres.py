"""`PostgresSaver`: threads in a Postgres database. This module runs its statements in few round
trips and handles broken connections; what a commit means is in `sql/`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from .errors import CheckpointConflictError, StorageError, UnserializableError
from .integrity import Integrity
from .overrides import stores_at_once
from .records import (
    CheckpointTuple,
    Commit,
    Expected,
    Place,
    RunnableConfig,
    TaskWrites,
    Transacted,
    TransactionPlace,
    coordinates,
)
from .retention import Retention
from .serde import Serializer
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
    NOT_DRAWN,
    CommitBatch,
    CommitPipeline,
    PostgresSession,
    bind_commits,
    commit_together,
    decode_names,
)
from .sql.postgres_tables import MIGRATIONS
from .sql.queries import NEAR, LookUp, SqlSession, find_namespace
from .sql.rows import (
    CheckpointRow,
    MaterializedState,
    NamespaceRow,
    StoredCheckpoint,
    pack_writes,
    unpack_body,
)
from .sql.saver import SqlSaver, is_due
from .sql.write_rows import CommitRows, apply_commit

__all__ = ["ConnectionLostError", "OutOfReachError", "PostgresSaver"]

Result = TypeVar("Result")

LARGE = 65_536
"""Bytes of a commit that is sent by itself: others need not wait for it, nor be copied with it."""


class PostgresSaver(SqlSaver):
    """Keeps threads in a Postgres database, shared by any number of machines.

    A superstep is one statement, one round trip. The tables are created on first use; several
    programs may start at once. The async methods wait on the checkpointer's own threads, as many as
    there are connections. A stored step is as durable as the server's `synchronous_commit` says.
    The checkpointer reconnects to a restarted server.

    Args:
        conn: a connection string or URL; or an open psycopg `Connection`, which then serves this
            checkpointer alone and is not reopened when it breaks; or a `ConnectionPool`. A given
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
            self._commit_together, self._commit_after_loss, self._call_threads
        )
        # What a subclass does around a commit is done around each; pruning takes its time.
        own = type(self).commit is PostgresSaver.commit and stores_at_once(self)
        self._pipelines = own and retention is None

    def setup(self) -> None:
        """Create the tables or migrate them. The first use of the checkpointer does so too; further
        calls do nothing.

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
            and len(args[0]) == 1
            and self._known_state(args[0][0]) is not None
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
        if self._transacts:
            self._refuse_inside()
        with self._server.statements(decode_names) as wire:
            yield PostgresSession(wire)

    def _again(self, work: Callable[[], Result]) -> Result:
        """Run an idempotent operation; retry it once if the connection broke on the way."""
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
        return self._again(partial(super()._find, thread_id, checkpoint_ns, checkpoint_id))

    def _look_up(
        self, session: SqlSession, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None
    ) -> LookUp | None:
        rows = session.rows("look", thread_id, checkpoint_ns, checkpoint_id, NEAR)
        if not rows:
            return None
        id, *head, writes = rows[0][:6]
        namespace = NamespaceRow(id, thread_id, checkpoint_ns, *head)
        values = {(row[7], row[8]): row[12] for row in rows if row[0] is row[6] is None}
        chain = [CheckpointRow(*row[6:]) for row in rows if row[6] is not None]
        after = chain.pop() if chain and rows[len(chain) - 1][0] is None else None
        return namespace, chain, writes or [], (after, values)

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

    def commit(self, commits: Sequence[Commit]) -> None:
        """Store supersteps of one thread in one transaction; see `BaseCheckpointSaver.commit`.

        If the connection breaks on the way, they are sent again. They name the head they build on,
        so they are stored only once; if they are refused because the first try had arrived, the
        checkpointer detects that.

        Raises:
            CheckpointConflictError: a head is not the one that a commit names or requires.
            ConnectionLostError: the connection broke and no other could be opened, so the steps may
                or may not be stored.
            StorageError: the database refused; nothing is stored.
        """
        try:
            self._commit(commits)
        except ConnectionLostError as lost:
            self._commit_after_loss(lost, commits)

    def _commit_after_loss(self, lost: ConnectionLostError, commits: Sequence[Commit]) -> None:
        """Store what may be stored already."""
        if lost.late:
            raise lost
        try:
            self._commit_slowly(commits)
        except CheckpointConflictError:
            if not self._is_stored(commits[-1]):
                raise
        except StorageError as error:
            raise lost from error

    def _is_stored(self, commit: Commit) -> bool:
        """Whether this very commit is there. Its id alone may be another run's that came from the
        same state to the same."""
        key = self._key(commit.thread_id, commit.checkpoint_ns)
        with self._session(write=False) as session:
            namespace = find_namespace(session, commit.thread_id, commit.checkpoint_ns)
            rows = session.rows("by_id", namespace.id, commit.id) if namespace is not None else ()
            return any(unpack_body(key, CheckpointRow(*row)).ts == commit.ts for row in rows)

    def _commit(self, commits: Sequence[Commit]) -> None:
        batch = self._make_batch(commits)
        if batch is not None:
            with self._statements() as session:
                stored = session.rows(*bind_commits(batch))
            if stored:
                self._finish(batch, stored)
                return
        self._commit_slowly(commits)

    def _make_batch(self, commits: Sequence[Commit]) -> CommitBatch | None:
        """Return commits as the values of one statement, if it can store them: one on the known
        state of its head, or the first ones of a namespace."""
        first, several = commits[0], len(commits) > 1
        state = self._known_state(first) if not several else None
        if state is None:
            ns = first.checkpoint_ns
            is_first = first.head is None and first.parent_id is None
            if not is_first or not all(
                each.is_plain and each.checkpoint_ns == ns for each in commits
            ):
                return None
            state = MaterializedState(self._key(first.thread_id, ns), 0)
        all_rows: list[CommitRows] = []
        for commit in commits:
            rows = self._build_rows(state, commit)
            all_rows.append(rows)
            if several:
                # On a value whose number only the database will give.
                if any(base is not None for _, base, _ in rows.long_values):
                    return None
                apply_commit(state, commit, rows, NOT_DRAWN)
        return CommitBatch(state, commits, all_rows)

    def _finish(self, batch: CommitBatch, stored: Sequence[tuple[int, int]]) -> None:
        """Bring the state of a run up to commits that were stored: (namespace id, sequence) of
        each."""
        state, last = batch.state, batch.commits[-1]
        for rows, (_, seq) in zip(batch.rows, stored, strict=True):
            for value in rows.values.values():
                if value is not None and value.owner is not None:
                    value.owner = seq
        state.namespace_id, seq = stored[-1]
        if len(stored) > 1:
            state.seq = seq
        else:
            apply_commit(state, last, batch.rows[0], seq)
        last.saver_state = state
        if self._retention is not None and is_due(state):
            self._prune_by_retention(state.key.thread_id)

    def _commit_together(self, groups: Sequence[Sequence[Commit]]) -> list[bool]:
        """Store commits of several threads in one transaction and one round trip; return which are
        stored. The others are left as they are."""
        batches: dict[int, CommitBatch] = {}
        for position, commits in enumerate(groups):
            with suppress(UnserializableError):  # raised where it is stored alone
                batch = self._make_batch(commits)
                if batch is not None and batch.size() <= LARGE:
                    batches[position] = batch
        if batches:
            with self._server.statements(decode_names) as wire:
                found = commit_together(wire, [*batches.values()])
            for (position, batch), stored in zip([*batches.items()], found, strict=True):
                if stored:
                    self._finish(batch, stored)
                else:
                    del batches[position]
        return [position in batches for position in range(len(groups))]

    def _insert(self, session: SqlSession, namespace_id: int, rows: CommitRows) -> int:
        state = MaterializedState(self._key("", ""), namespace_id)
        seq: int = session.rows(*bind_commits(CommitBatch(state, (), [rows])))[0][1]
        return seq

    def _move_head(self, session: SqlSession, to: NamespaceRow) -> None:
        """Do nothing: `_insert` has moved it."""

    def _transact(
        self, place: TransactionPlace, function: Callable[[Any], TaskWrites]
    ) -> Transacted:
        from .sql.postgres_transaction import transact_on_postgres

        return transact_on_postgres(self, place, function)

    def _store_records(
        self, where: Place, expected: Expected | None, writes: Mapping[str, Sequence[TaskWrites]]
    ) -> int:
        if expected is None or expected.revision is None or writes.keys() != {expected.head}:
            return super()._store_records(where, expected, writes)
        # One round trip for what stands beside the head alone.
        head, revision, key = expected.head or "", expected.revision, self._key(*where)
        data = pack_writes(key, head, revision, writes[head])
        lost = None
        try:
            with self._statements() as session:
                done = session.run("record", *where, head, revision, data)
        except ConnectionLostError as error:
            if error.late:
                raise
            lost = error
        if lost is not None:
            with self._session(write=True) as session:
                namespace = self._lock_namespace(session, key)
                done = len(session.rows("same_writes", namespace.id, head, data))
        if not done:
            return super()._store_records(where, expected, writes)
        return revision + 1
