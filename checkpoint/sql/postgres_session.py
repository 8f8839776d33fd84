"""The statements of `PostgresSaver` on one connection: converts the rows of commits to values, and
names in rows to text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import DamagedError
from ..records import Commit
from ..threads import CallThreads
from .group_commit import MOST, QueuedWrite, WriteQueue, answer
from .postgres_server import ConnectionLostError
from .postgres_tables import NAMES, STATEMENTS
from .postgres_wire import Wire
from .rows import MaterializedState
from .write_rows import CommitRows

MANY = 1000
"""More namespaces than this are not searched one by one."""


NOT_DRAWN = -1
"""In place of a sequence that the database has not drawn yet."""


@dataclass(slots=True)
class CommitBatch:
    """Commits of one namespace, each on the one before it, ready to be stored by one statement.

    Attributes:
        state: the state that the first builds on. If its namespace has the id 0, it is created; if
            it has no checkpoint, whatever stands in the namespace stays as it is.
        rows: the rows of each.
    """

    state: MaterializedState
    commits: Sequence[Commit]
    rows: Sequence[CommitRows]

    def size(self) -> int:
        """Return the number of bytes, without names."""
        return sum(rows.size() for rows in self.rows)


def bind_commits(batch: CommitBatch) -> tuple[Any, ...]:
    """Return the name of the statement that stores commits, and its values: all of them or, if the
    head has moved or one that is required is another, none."""
    state, all_rows = batch.state, batch.rows
    names = (state.key.thread_id, state.key.checkpoint_ns)
    long = any(rows.long_values or rows.writes is not None or rows.labels for rows in all_rows)
    if state.namespace_id:
        (one,) = all_rows
        # Below zero for none: None has another type, for which a statement is prepared again.
        link = -state.seq if one.link is None else one.link
        row = (one.checkpoint_id, one.parent_id, link, one.run_id, one.body)
        requires = batch.commits[0].requires if batch.commits else ()
        if batch.commits and not long and not requires:
            return ("commit_row", *row, state.namespace_id, state.seq, state.revision)
        more = (*_transpose(one.long_values, 3), one.writes, one.labels)
        # Without commits, the namespace is locked, and its head was compared.
        at = (state.namespace_id, state.seq if batch.commits else None, state.revision)
        required = (names[0], *requires[0]) if requires else (None, None, None)
        return ("commit", *row, *more, *at, *required)
    ids, bodies = _transpose([(rows.checkpoint_id, rows.body) for rows in all_rows], 2)
    values = (*names, ids, bodies, all_rows[0].run_id)
    if not long:
        return ("create_rows", *values)
    long_values = [
        (number, channel, data)
        for number, rows in enumerate(all_rows, 1)
        for channel, _, data in rows.long_values
    ]
    writes = [(rows.parent_id, rows.writes) for rows in all_rows if rows.writes is not None]
    labels = sorted({label for rows in all_rows for label in rows.labels})
    return ("create_all", *values, *_transpose(long_values, 3), *_transpose(writes, 2), labels)


def commit_together(wire: Wire, batches: Sequence[CommitBatch]) -> list[list[Any]]:
    """Store commits of several namespaces in one transaction and one round trip. Return the
    (namespace id, sequence) of each; none where the head has moved."""
    # A short lock timeout: a commit that needs another session's lock waits for it later, alone.
    calls: list[tuple[Any, ...]] = [(STATEMENTS["limit_wait"],)]
    for batch in batches:
        statement, *values = bind_commits(batch)
        calls.append((STATEMENTS[statement], *values))
    return wire.rows_together(*calls)[1:]


def _transpose(rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    """Return rows as this many columns, even if there are no rows."""
    return [[row[number] for row in rows] for number in range(width)]


def decode_names(columns: Sequence[str]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Return a function that makes rows in which names are text again."""
    texts = [column in NAMES for column in columns]
    if not any(texts):
        return tuple

    def row(values: Sequence[Any]) -> tuple[Any, ...]:
        try:
            return tuple(
                value.decode() if text and value is not None else value
                for text, value in zip(texts, values, strict=True)
            )
        except UnicodeDecodeError as error:
            raise DamagedError(
                f"a name is not UTF-8 text: {error.object!r}. Restore it from a backup, or delete "
                "the damaged rows"
            ) from error

    return row


class PostgresSession:
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


class CommitPipeline(WriteQueue):
    """Stores commits of coroutines that wait together: as one transaction in one round trip, so
    that the server flushes its log once for all of them, and neither side switches threads for
    each.

    Commits that cannot be stored together are stored one by one on the threads of the
    checkpointer's other calls, so that one that fails or waits for another session's lock holds up
    no other.

    Args:
        store: stores as many of these commits as it can, in one transaction; returns which ones.
        after_loss: stores one commit after the connection of its group was lost, when it may
            already be stored.
        threads: returns the threads of the checkpointer's other calls.
    """

    def __init__(
        self,
        store: Callable[[list[Sequence[Commit]]], list[bool]],
        after_loss: Callable[[ConnectionLostError, Sequence[Commit]], None],
        threads: Callable[[], CallThreads],
    ) -> None:
        super().__init__()
        self._store, self._after_loss, self._call_threads = store, after_loss, threads

    def _make_next(self) -> list[QueuedWrite]:
        writes = [write for write in self._take(MOST) if write.is_awaited]
        stored = [False] * len(writes)
        try:
            stored = self._store([write.args[0] for write in writes])
        except ConnectionLostError as lost:
            for write in writes:
                # A separate error for each, since each is raised elsewhere.
                own = ConnectionLostError(str(lost), lost.late)
                write.function = partial(self._after_loss, own)
        except BaseException:
            pass  # None is stored. Each is retried alone, so that a bad one cannot fail the others.
        ended = []
        for write, is_stored in zip(writes, stored, strict=True):
            if is_stored or not self._make_alone(write):
                ended.append(write)
        return ended

    def _make_alone(self, write: QueuedWrite) -> bool:
        """Make a write on a thread of its own; return whether there is one."""
        try:
            self._call_threads().submit(partial(_make, write))
        except RuntimeError as error:
            write.fail(error)
            return False
        return True


def _make(write: QueuedWrite) -> None:
    write.make()
    answer([write])
