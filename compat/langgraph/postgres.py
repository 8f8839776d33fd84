"""The peer's asynchronous saver and store on Postgres: ours, whose `setup` is awaited."""

from __future__ import annotations

from asyncio import to_thread

from ...checkpoint.postgres import PostgresSaver
from ...store.postgres import PostgresStore


class AsyncPostgresSaver(PostgresSaver):
    """`PostgresSaver` under the peer's name: our savers have both faces."""

    async def setup(self) -> None:  # type: ignore[override]
        """Make the tables."""
        await to_thread(super().setup)


class AsyncPostgresStore(PostgresStore):
    """`PostgresStore` under the peer's name: our stores have both faces."""

    async def setup(self) -> None:  # type: ignore[override]
        """Make the tables."""
        await to_thread(super().setup)
