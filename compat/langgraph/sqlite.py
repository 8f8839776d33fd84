"""LangGraph's checkpointers and stores on SQLite: ours, with its arguments; of the asynchronous
ones `setup` is awaited."""

from __future__ import annotations

from typing import Any

from ...checkpoint.sqlite import SqliteSaver as _SqliteSaver
from ...store.sqlite import SqliteStore as _SqliteStore
from .savers import AsyncStore, PeerSaver, PeerStore


class SqliteSaver(PeerSaver, _SqliteSaver):
    """`SqliteSaver` with LangGraph's arguments."""


class SqliteStore(PeerStore, _SqliteStore):
    """`SqliteStore` with LangGraph's arguments."""


class AsyncSqliteSaver(SqliteSaver):
    """`SqliteSaver` under LangGraph's name: our checkpointers have both faces.

    Raises:
        TypeError: it is given a connection of aiosqlite.
    """

    def __init__(self, conn: Any, **options: Any) -> None:
        super().__init__(_refuse_aiosqlite(type(self).__name__, conn), **options)

    async def setup(self) -> None:  # type: ignore[override]
        """Nothing to do: the tables are made when it opens."""


class AsyncSqliteStore(AsyncStore, _SqliteStore):  # type: ignore[misc]
    """`SqliteStore` under LangGraph's name: our stores have both faces.

    Raises:
        TypeError: it is given a connection of aiosqlite.
    """

    def __init__(self, conn: Any, **options: Any) -> None:
        super().__init__(_refuse_aiosqlite(type(self).__name__, conn), **options)


def _refuse_aiosqlite(name: str, conn: Any) -> Any:
    if type(conn).__module__.partition(".")[0] != "aiosqlite":
        return conn
    raise TypeError(
        f"{name} must be given a path or a sqlite3.Connection, got a connection of aiosqlite, "
        "which nobody else can use: stategraph calls SQLite on a thread of its own. Write "
        f"`{name}(path)`, or `async with {name}.from_conn_string(path)`"
    )
