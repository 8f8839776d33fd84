"""LangGraph's checkpointers and stores on Postgres: ours, with its arguments; of the asynchronous
ones `setup` is awaited."""

from __future__ import annotations

from asyncio import to_thread
from typing import Any

from typing_extensions import TypedDict

from ...checkpoint.postgres import PostgresSaver as _PostgresSaver
from ...store.postgres import PostgresStore as _PostgresStore
from .savers import AsyncStore, PeerSaver, PeerStore


class PostgresSaver(PeerSaver, _PostgresSaver):
    """`PostgresSaver` with LangGraph's arguments."""

    def __init__(self, conn: Any, pipe: Any = None, serde: Any = None, **options: Any) -> None:
        super().__init__(conn, serde=serde, pipe=pipe, **options)


class PoolConfig(TypedDict, total=False):
    """LangGraph's settings of a pool of connections."""

    min_size: int
    max_size: int | None
    kwargs: dict[str, Any]


class PostgresStore(PeerStore, _PostgresStore):
    """`PostgresStore` with LangGraph's arguments."""


class AsyncPostgresSaver(PostgresSaver):
    """`PostgresSaver` under LangGraph's name: our checkpointers have both faces."""

    async def setup(self) -> None:  # type: ignore[override]
        """Make the tables."""
        await to_thread(super().setup)


class AsyncPostgresStore(AsyncStore, _PostgresStore):  # type: ignore[misc]
    """`PostgresStore` under LangGraph's name: our stores have both faces."""
