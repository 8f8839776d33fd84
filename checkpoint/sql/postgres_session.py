"""The statements of `PostgresSaver` on one connection: converts the rows of commits to values, and
names in rows to text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import DamagedError
from .postgres_tables import NAMES, STATEMENTS
from .postgres_wire import Wire
from .rows import MaterializedState
from .write_rows import CommitRows

MANY = 1000
"""More namespaces than this are not searched one by one."""


def store(
    session: PostgresSession, statement: str, rows: CommitRows, where: Sequence[Any]
) -> list[Any]:
    """Store the rows of a commit by a statement, or by its variant for a single row."""
    return session.rows(*_bind_rows(statement, rows, where))


Required = Sequence[tuple[str, str | None]]
"""(namespace, head) that a commit requires; see `Commit.requires`."""


def bind_append(
    state: MaterializedState, rows: CommitRows, requires: Required
) -> tuple[Any, ...]:
    """Return the name of the statement that stores the rows of a commit on the state of its head,
    and its values.

    Args:
        requires: one head, or none.
    """
    # Compare-and-swap: nothing is added if the head, or what is recorded beside it, is not what
    # this commit was built on.
    head = state.namespace_id, state.seq, state.revision
    for name, head_id in requires:
        return _bind_rows("append_required", rows, (*head, state.key.thread_id, name, head_id))
    return _bind_rows("append", rows, head)


def append_together(
    wire: Wire, commits: Sequence[tuple[MaterializedState, CommitRows, Required]]
) -> list[int | None]:
    """Store the rows of commits, each on the state of its head, in one transaction and one round
    trip. Return their sequences; None where the head has moved."""
    # A short lock timeout: a commit that needs another session's lock waits for it later, alone.
    calls: list[tuple[Any, ...]] = [(STATEMENTS["limit_wait"],)]
    for commit in commits:
        statement, *values = bind_append(*commit)
        calls.append((STATEMENTS[statement], *values))
    _, *moved = wire.rows_together(*calls)
    return [found[0][1] if found else None for found in moved]


def _bind_rows(statement: str, rows: CommitRows, where: Sequence[Any]) -> tuple[Any, ...]:
    """Return the name of the statement that stores the rows of a commit, and its values."""
    if rows.long_values or rows.writes is not None or rows.labels:
        return (statement, *all_columns(rows), *where)
    return (f"{statement}_row", *_row_columns(rows), *where)


def store_first(
    session: PostgresSession, all_rows: Sequence[CommitRows], names: tuple[str, str]
) -> list[Any]:
    """Store the rows of the first commits of a namespace, made by one run."""
    bodies = [(rows.checkpoint_id, rows.body) for rows in all_rows]
    values = (*names, bodies, all_rows[0].run_id)
    long_values = [
        (number, channel, data)
        for number, rows in enumerate(all_rows, 1)
        for channel, _, data in rows.long_values
    ]
    writes = [(rows.parent_id, rows.writes) for rows in all_rows if rows.writes is not None]
    labels = sorted({label for rows in all_rows for label in rows.labels})
    if not long_values and not writes and not labels:
        return session.rows("create_first_rows", *values)
    columns = *_transpose(long_values, 3), *_transpose(writes, 2)
    return session.rows("create_first", *values, *columns, labels)


def _transpose(rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    """Return rows as this many columns, even if there are no rows."""
    return [[row[number] for row in rows] for number in range(width)]


def _row_columns(rows: CommitRows) -> Sequence[Any]:
    """Return the row of a checkpoint as the values of a statement."""
    return rows.checkpoint_id, rows.parent_id, rows.link, rows.run_id, rows.body


def all_columns(rows: CommitRows) -> Sequence[Any]:
    """Return the rows of a commit as the values of a statement."""
    return (*_row_columns(rows), *_transpose(rows.long_values, 3), rows.writes, rows.labels)


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
