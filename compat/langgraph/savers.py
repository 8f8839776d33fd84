"""The peer's savers, stores and caches: ours, with its arguments."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Self

from ...checkpoint import InMemorySaver as _InMemorySaver
from ...checkpoint import Serializer
from ...store import BaseCache as _BaseCache
from ...store import InMemoryCache as _InMemoryCache
from ...store import SqliteCache as _SqliteCache
from .ignored import take_ignored


def check_serde(where: str, serde: Any) -> Serializer | None:
    """The serializer itself.

    Raises:
        TypeError: it is none of ours.
    """
    if serde is None or isinstance(serde, Serializer):
        return serde
    raise TypeError(
        f"{where}: serde must be a JsonPlusSerializer, got {type(serde).__name__}: values are "
        "stored by the serializer of stategraph. stategraph.register(YourClass, ...) says how a "
        "class is stored; integrity=stategraph.Encryption(key) of a saver on a database encrypts"
    )


class PeerSaver:
    """Laid over a saver of ours."""

    def __init__(self, *args: Any, serde: Any = None, **options: Any) -> None:
        name = type(self).__name__
        super().__init__(  # type: ignore[call-arg]
            *args, serde=check_serde(name, serde), **take_ignored(name, options)
        )

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread whole; see `BaseCheckpointSaver.copy_thread`."""
        super().copy_thread(source_thread_id, target_thread_id)  # type: ignore[misc]

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`copy_thread` for coroutines."""
        await super().acopy_thread(source_thread_id, target_thread_id)  # type: ignore[misc]

    def prune(
        self,
        thread_ids: Collection[str] | None = None,
        *,
        strategy: str = "keep_latest",
        **options: Any,
    ) -> None:
        """Forget old checkpoints; see `BaseCheckpointSaver.prune`.

        Args:
            strategy: "keep_latest", or "delete" to delete the threads.

        Raises:
            ValueError: there is no such strategy.
        """
        for thread_id in _to_delete(thread_ids, strategy):
            self.delete_thread(thread_id)  # type: ignore[attr-defined]
        if strategy != "delete":
            super().prune(thread_ids, **options)  # type: ignore[misc]

    async def aprune(
        self,
        thread_ids: Collection[str] | None = None,
        *,
        strategy: str = "keep_latest",
        **options: Any,
    ) -> None:
        """`prune` for coroutines."""
        for thread_id in _to_delete(thread_ids, strategy):
            await self.adelete_thread(thread_id)  # type: ignore[attr-defined]
        if strategy != "delete":
            await super().aprune(thread_ids, **options)  # type: ignore[misc]

    def with_allowlist(self, extra_allowlist: Collection[Any]) -> Self:
        """The saver itself: which classes are stored is said by `stategraph.register`."""
        take_ignored("with_allowlist()", {"extra_allowlist": extra_allowlist})
        return self


def _to_delete(thread_ids: Collection[str] | None, strategy: str) -> Collection[str]:
    if strategy not in ("keep_latest", "delete"):
        raise ValueError(f'strategy must be "keep_latest" or "delete", got {strategy!r}')
    return (thread_ids or ()) if strategy == "delete" else ()


class InMemorySaver(PeerSaver, _InMemorySaver):
    """`InMemorySaver` with the peer's arguments."""


MemorySaver = InMemorySaver


class PeerStore:
    """Laid over a store of ours."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **take_ignored(type(self).__name__, options))


class BaseCache(_BaseCache):
    """`BaseCache` with the peer's arguments."""

    def __init__(self, *args: Any, serde: Any = None, **options: Any) -> None:
        check_serde(type(self).__name__, serde)
        super().__init__(*args, **options)


class InMemoryCache(BaseCache, _InMemoryCache):
    """`InMemoryCache` with the peer's arguments."""


class SqliteCache(BaseCache, _SqliteCache):
    """`SqliteCache` with the peer's arguments."""
