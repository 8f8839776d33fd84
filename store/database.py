"""One SQLite connection, for the store and the cache kept in it.

Opening, closing and transactions; no table is known here. No text of a user's ever becomes SQL: the modules that
use this hold their statements as constants and bind every value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    import sqlite3

Target = Union[str, Path, "sqlite3.Connection"]
"""A file name, `":memory:"`, a `file:` URI, or an open connection."""

BUSY_SECONDS = 30.0
"""How long to wait for another process that writes to the same file."""

_BEGIN = "BEGIN"
_BEGIN_WRITE = "BEGIN IMMEDIATE"
_COMMIT = "COMMIT"
_ROLLBACK = "ROLLBACK"
_WAL = "PRAGMA journal_mode=WAL"


class Database:
    """A connection with its tables made. Not locked: its owner lets one thread at a time use it.

    Args:
        target: what to open; a connection is used as it is, and left open by `close`.
        schema: the statements that make the tables, if they are not there.
    """

    def __init__(self, target: Target, schema: Sequence[str]) -> None:
        # Deferred: importing this package must not cost a database that nobody opens.
        import sqlite3

        self.owned = not isinstance(target, sqlite3.Connection)
        if isinstance(target, sqlite3.Connection):
            self.connection = target
        else:
            name = str(target)
            self.connection = sqlite3.connect(
                name,
                timeout=BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
                uri=name.startswith("file:"),
            )
        try:
            self._prepare(schema)
        except BaseException:
            self.close()
            raise

    def _prepare(self, schema: Sequence[str]) -> None:
        self.execute(_WAL).close()
        with self.transaction(write=True):
            for statement in schema:
                self.execute(statement)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Run one statement with its values bound."""
        return self.connection.execute(statement, values)

    @contextmanager
    def transaction(self, write: bool) -> Iterator[None]:
        """All that is done inside sees one state of the file and is kept whole, or not at all.

        A writer takes the file's write lock at once, so that it cannot find out too late that it lost it.
        """
        self.execute(_BEGIN_WRITE if write else _BEGIN)
        try:
            yield
            self.execute(_COMMIT)
        except BaseException:
            if self.connection.in_transaction:  # SQLite ends it by itself on some errors, such as a full disk
                self.execute(_ROLLBACK)
            raise

    def close(self) -> None:
        """Close the connection, if it was opened here."""
        if self.owned:
            self.connection.close()
