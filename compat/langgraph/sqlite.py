"""The peer's asynchronous saver and store on Sqlite: ours, whose `setup` is awaited."""

from __future__ import annotations

from ...checkpoint.sqlite import SqliteSaver
from ...store.sqlite import SqliteStore


class AsyncSqliteSaver(SqliteSaver):
    """`SqliteSaver` under the peer's name: our savers have both faces."""

    async def setup(self) -> None:  # type: ignore[override]
        """Nothing to do: the tables are made when it opens."""


class AsyncSqliteStore(SqliteStore):
    """`SqliteStore` under the peer's name: our stores have both faces."""

    async def setup(self) -> None:  # type: ignore[override]
        """Nothing to do: the tables are made when it opens."""
