"""`JobDatabase`: runs the queue's statements on a Postgres database. `tables` explains the
statements."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from ..checkpoint.errors import StorageError
from ..checkpoint.sql.postgres_server import ConnectionLostError, Server, Target, Wire
from .tables import MIGRATIONS, STATEMENTS

Found = TypeVar("Found")


class JobDatabase:
    """Executes the queue's statements on connections of a pool. Any thread may use it."""

    def __init__(self, conn: Target, *, pool_size: int, timeout: float) -> None:
        self._server = Server(conn, "workers", MIGRATIONS, pool_size=pool_size, timeout=timeout)

    def setup(self) -> None:
        """Create the tables, or migrate them."""
        self._server.setup()

    def close(self) -> None:
        """Close the connections, unless the caller has provided them."""
        self._server.close()

    @property
    def pool(self) -> Target:
        """The connection pool, or the target given; open once `setup` was called."""
        return self._server.pool

    def statements(self) -> AbstractContextManager[Wire]:
        """Return a context for several statements on one connection, each its own transaction."""
        return self._server.statements()

    def rows(self, statement: str, *values: Any) -> list[Any]:
        """Execute one of `STATEMENTS`, and return its rows."""
        with self.statements() as wire:
            return wire.rows(STATEMENTS[statement], *values)

    def run(self, statement: str, *values: Any) -> int:
        """Execute one of `STATEMENTS`, and return how many rows it affected."""
        with self.statements() as wire:
            return wire.run(STATEMENTS[statement], *values)

    def retry_once(self, work: Callable[..., Found], *args: Any) -> Found:
        """Do idempotent work; do it once more if the connection breaks."""
        try:
            return work(*args)
        except ConnectionLostError as lost:
            if lost.late:
                raise
            try:
                return work(*args)
            except StorageError as error:
                raise lost from error  # whether the first attempt took effect is unknown

    def look_up(self, statement: str, *values: Any) -> list[Any]:
        """Do the same as `rows`, and once more if the connection breaks."""
        return self.retry_once(self.rows, statement, *values)
