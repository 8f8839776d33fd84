"""Memory that outlives threads, and the task-result cache.

A store keeps JSON objects under a namespace and a key (`base` is the contract, `filters` says what
a search finds); a cache keeps finished tasks' results (`cache`). Nothing here knows the engine.
`stategraph.store.sqlite` is imported by itself.
"""

from importlib import import_module as _load
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base import (
        BaseStore,
        EmbedFunction,
        GetOp,
        IndexConfig,
        InvalidNamespaceError,
        Item,
        ItemChangedError,
        ListNamespacesOp,
        MatchCondition,
        Op,
        PutOp,
        Result,
        SearchItem,
        SearchOp,
        TTLConfig,
        UnchangedOp,
    )
    from .cache import BaseCache, InMemoryCache, SqliteCache, canonical_key, function_identity
    from .filters import matches
    from .memory import InMemoryStore
    from .paths import escape

__all__ = [
    # the contract
    "BaseStore",
    "Item",
    "SearchItem",
    "IndexConfig",
    "TTLConfig",
    "EmbedFunction",
    "InvalidNamespaceError",
    "ItemChangedError",
    # what a batch takes and gives
    "GetOp",
    "PutOp",
    "UnchangedOp",
    "SearchOp",
    "ListNamespacesOp",
    "MatchCondition",
    "Op",
    "Result",
    # stores; SqliteStore is in stategraph.store.sqlite
    "InMemoryStore",
    # filters
    "matches",
    "escape",
    # the task-result cache
    "BaseCache",
    "InMemoryCache",
    "SqliteCache",
    "canonical_key",
    "function_identity",
]

_ROOMS = {
    "cache": ("BaseCache", "InMemoryCache", "SqliteCache", "canonical_key", "function_identity"),
    "filters": ("matches",),
    "memory": ("InMemoryStore",),
    "paths": ("escape",),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a room when one of its names is first asked for: most programs keep no store and no
    cache."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_load(f".{_ROOM_OF.get(name, 'base')}", __name__), name)
