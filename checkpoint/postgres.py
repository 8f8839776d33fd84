"""`PostgresSaver`: threads in a Postgres database. Only how its statements are used, in few round trips, and what to do
when the connection breaks; what a commit means is in `sql/`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self, TypeVar

from .base import CheckpointConflictError, CheckpointTuple, Commit, RunnableConfig, TaskWrites, coordinates
from .errors import DamagedError, StorageError
from .integrity import Integrity
from .opening import Opening
from .overrides import check_expected, expected_revision, expects, fulfil
from .retention import Retention
from .serde import Serializer
from .sql.postgres_server import POOL_SIZE, SECONDS, ConnectionLostError, Cursor, Server, Target, Wire
from .sql.postgres_tables import MIGRATIONS, NAMES, STATEMENTS
from .sql.pruning import Session
from .sql.reading import Found, Look, Space, found_in, space_of
from .sql.rows import CheckpointRow, NewRows, Place, amended, packed_writes, read_body, rows_of
from .sql.saver import Known, SqlSaver

__all__ = ["PostgresSaver"]

Result = TypeVar("Result")

MANY = 1000
"""Spaces that are not listed one by one."""


class PostgresSaver(SqlSaver):
    """Keeps threads in a Postgres database, shared by any number of machines.

    A superstep is one statement, one round trip. The tables are made on first use; several programs may start at once.
    The async methods wait on a worker thread. A step that was stored is as safe as the server's `synchronous_commit`
    says. A server that was restarted is found again.

    Args:
        conn: a connection string or URL; or an open psycopg `Connection`, which then serves this saver alone and is not
            opened again when it breaks; or a `ConnectionPool`. What is handed in stays open after `close`, and keeps
            its own limits of time. The address may lead to a PgBouncer, whatever its mode; connections that are handed
            in and go through one that shares sessions must be made with `prepare_threshold=None`.
        pool_size: connections that may be open at once.
        timeout: seconds to wait for a connection, for another session's lock, or for the answer to one statement.
        serde: turns values into bytes and back.
        integrity: guards the stored rows; a checksum by default. `Encryption` hides them as well.
        retention: which checkpoints to forget as runs go on; None keeps all.

    Raises:
        StorageError: the text is no connection string.
        TypeError: `conn` is none of these.
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

    @classmethod
    def from_conn_string(cls, conn_string: str, **options: Any) -> Opening[Self]:
        """Open a saver for the length of a `with` or `async with` block, then close it; options as for the class."""
        return Opening(cls, conn_string, **options)

    def setup(self) -> None:
        """Make the tables, or bring them up to date. The first use does so too; calling it again does nothing.

        Raises:
            StorageError: the server cannot be reached, refuses, or its tables were made by a later version.
        """
        self._server.setup()

    def close(self) -> None:
        """Close the connections, unless they were handed in."""
        self._server.close()

    @contextmanager
    def _session(self, *, write: bool) -> Iterator[_Session]:
        with self._server.transaction(write, _named_rows) as wire:
            yield _Session(wire)

    @contextmanager
    def _statements(self) -> Iterator[_Session]:
        """A session in which each statement is a transaction of its own."""
        with self._server.statements(_named_rows) as wire:
            yield _Session(wire)

    def _again(self, work: Callable[[], Result]) -> Result:
        """Do what may be done twice; once more if the connection broke on the way."""
        try:
            return work()
        except ConnectionLostError as lost:
            if lost.late:
                raise
            return work()

    # -- read ---------------------------------------------------------------------------------------------

    def _find(self, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None) -> Found | None:
        """Mostly one round trip, two where values are long. If somebody prunes between the two, all is read once more,
        as of one moment."""
        try:
            return self._again(partial(self._looked, thread_id, checkpoint_ns, checkpoint_id))
        except DamagedError:
            return super()._find(thread_id, checkpoint_ns, checkpoint_id)

    def _looked(self, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None) -> Found | None:
        with self._statements() as session:
            rows = session.rows("look", thread_id, checkpoint_ns, checkpoint_id)
            if not rows:
                return None
            space = Space(rows[0][0], thread_id, checkpoint_ns, *rows[0][1:5])
            chain = [CheckpointRow(*row[6:]) for row in rows if row[6] is not None]
            return found_in(session, Look(space, chain, rows[0][5] or []), checkpoint_id, self._integrity)

    def head(self, config: RunnableConfig) -> str | None:
        """The id of the newest checkpoint of the thread and namespace in `config`, or None."""
        thread_id, checkpoint_ns, _ = coordinates(config)
        space = self._again(partial(self._space, thread_id, checkpoint_ns))
        return space.head_id if space else None

    def _space(self, thread_id: str, checkpoint_ns: str) -> Space | None:
        with self._statements() as session:
            return space_of(session, thread_id, checkpoint_ns)

    def _listed(self, config: RunnableConfig | None, before: RunnableConfig | None) -> tuple[dict[int, Space], int]:
        return self._again(partial(super()._listed, config, before))

    def _page(self, spaces: Mapping[int, Space], edge: int) -> Sequence[Found]:
        return self._again(partial(super()._page, spaces, edge))

    def run_of(self, config: RunnableConfig, run_id: str) -> CheckpointTuple | None:
        """The newest checkpoint of the thread and namespace in `config` that a run of this id made, or None."""
        return self._again(partial(super().run_of, config, run_id))

    # -- write --------------------------------------------------------------------------------------------

    def commit(self, commit: Commit) -> None:
        """Store one superstep: the parent's writes, the checkpoint and the new head, whole or not at all.

        If the connection breaks on the way, the commit is sent again. It names the head it builds on, so it is stored
        once; and if it is refused because the first try had arrived, that is found out.

        Raises:
            CheckpointConflictError: the head is not the one the commit names.
            ConnectionLostError: the connection broke, and no other could be had: whether it is stored is not known.
            StorageError: the database refused; nothing of the step is stored.
        """
        try:
            self._commit(commit)
        except ConnectionLostError as lost:
            if lost.late:
                raise
            try:
                self._commit_again(commit)
            except StorageError as error:
                raise lost from error

    def _commit_again(self, commit: Commit) -> None:
        try:
            self._commit(commit)
        except CheckpointConflictError:
            with self._session(write=False) as session:
                space = space_of(session, commit.thread_id, commit.checkpoint_ns)
                rows = session.rows("by_id", space.id, commit.id) if space is not None else ()
                place = Place(commit.thread_id, commit.checkpoint_ns, self._integrity)
                # The id alone may be another run's that came from the same state to the same.
                if not any(read_body(place, CheckpointRow(*row)).ts == commit.ts for row in rows):
                    raise

    def _commit(self, commit: Commit) -> None:
        first = commit.head is None and commit.parent_id is None and not commit.carried
        if not first or not self._create(commit):
            super().commit(commit)

    def _create(self, commit: Commit) -> bool:
        """Store the first commit of a namespace that is not there yet; False if it is."""
        place = Place(commit.thread_id, commit.checkpoint_ns, self._integrity)
        new = rows_of(place, None, commit, self._dumps("metadata", commit.metadata))
        with self._statements() as session:
            made = session.rows("create", *_columns(new), place.thread_id, place.checkpoint_ns)
        for space, seq in made:
            self._stored(place, space, amended(new, commit, seq))
        return bool(made)

    def _append(self, known: Known, new: NewRows) -> int | None:
        with self._statements() as session:
            moved = session.rows("append", *_columns(new), known.space, known.image.seq, known.image.revision)
        return moved[0][1] if moved else None

    def _insert(self, session: Session, space: int, new: NewRows) -> int:
        seq: int = session.rows("insert", *_columns(new), space)[0][1]
        return seq

    def _record_beside(self, place: Place, checkpoint_id: str, writes: Sequence[TaskWrites]) -> None:
        thread_id, checkpoint_ns = place.thread_id, place.checkpoint_ns
        revision = expected_revision(self) if expects(self) else self._known_revision(place, checkpoint_id)
        data = packed_writes(place, checkpoint_id, revision or 0, writes)
        try:
            with self._statements() as session:
                values = (thread_id, checkpoint_ns, checkpoint_id, revision, data)
                if revision is not None and session.run("beside", *values):
                    self._note(place, checkpoint_id, revision + 1)
                    fulfil(self, "commit_writes")
                    return
        except ConnectionLostError as lost:
            if lost.late:
                raise
        with self._session(write=True) as session:
            space = self._own_space(session, place)
            if revision is not None and session.rows("same_writes", space.id, checkpoint_id, data):
                return  # they had arrived after all
            check_expected(self, "commit_writes", (thread_id, checkpoint_ns), space.head_id, space.revision)
            recorded = self._record(session, space, checkpoint_id, writes)
        self._note(place, checkpoint_id, recorded)

    def _own_space(self, session: Session, place: Place) -> Space:
        return Space(*session.rows("own_space", place.thread_id, place.checkpoint_ns)[0])


def _columns(new: NewRows) -> Sequence[Any]:
    """The rows of a commit as the values of a statement."""
    channels, bases, data = zip(*new.blobs, strict=True) if new.blobs else ((), (), ())
    row = (new.checkpoint_id, new.parent_id, new.link, new.run_id, new.body)
    return (*row, [*channels], [*bases], [*data], new.writes)


def _named_rows(cursor: Cursor[Any]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Makes rows whose names are text again."""
    texts = [column.name in NAMES for column in cursor.description or ()]

    def row(values: Sequence[Any]) -> tuple[Any, ...]:
        try:
            return tuple(
                value.decode() if text and value is not None else value
                for text, value in zip(texts, values, strict=True)
            )
        except UnicodeDecodeError as error:
            raise DamagedError(
                f"a name is no UTF-8 text: {error.object!r}. Restore it from a backup, or delete what is damaged"
            ) from error

    return row


class _Session:
    """The statements of one transaction, or of several."""

    __slots__ = ("_wire",)

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def rows(self, statement: str, *values: Any) -> list[Any]:
        if statement == "page" and len(values[0]) > MANY:
            statement = "page_of_many"
        return self._wire.rows(STATEMENTS[statement], *values)

    def run(self, statement: str, *values: Any) -> int:
        return self._wire.run(STATEMENTS[statement], *values)

    def add(self, statement: str, *values: Any) -> int:
        seq: int = self.rows(statement, *values)[0][0]
        return seq
