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
    """The statements of the queue, on connections of a pool. Any thread may use it."""

    def __init__(self, conn: Target, *, pool_size: int, timeout: float) -> None:
        self._server = Server(conn, "workers", MIGRATIONS, pool_size=pool_size, timeout=timeout)

    def setup(self) -> None:
        """Make the tables, or bring them up to date."""
        self._server.setup()

    def close(self) -> None:
        """Close the connections, unless they were handed in."""
        self._server.close()

    @property
    def pool(self) -> Target:
        """Where the connections come from; open once `setup` was called."""
        return self._server.pool

    def statements(self) -> AbstractContextManager[Wire]:
        """Several statements on one connection, each a transaction of its own."""
        return self._server.statements()

    def rows(self, statement: str, *values: Any) -> list[Any]:
        """All rows of one of `STATEMENTS`."""
        with self.statements() as wire:
            return wire.rows(STATEMENTS[statement], *values)

    def run(self, statement: str, *values: Any) -> int:
        """Execute one of `STATEMENTS`; how many rows it touched."""
        with self.statements() as wire:
            return wire.run(STATEMENTS[statement], *values)

    def retry_once(self, work: Callable[..., Found], *args: Any) -> Found:
        """Do what may be done twice; once more if the connection broke on the way."""
        try:
            return work(*args)
        except ConnectionLostError as lost:
            if lost.late:
                raise
            try:
                return work(*args)
            except StorageError as error:
                raise lost from error  # what the first try did is not known

    def look_up(self, statement: str, *values: Any) -> list[Any]:
        """`rows`, once more if the connection broke on the way."""
        return self.retry_once(self.rows, statement, *values)
