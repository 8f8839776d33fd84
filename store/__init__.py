"""Memory that outlives threads, and the task-result cache.

A store keeps JSON objects under a namespace and a key (`base` is the contract, `filters` says what
a search finds); a cache keeps finished tasks' results (`cache`). Nothing here knows the engine.
`stategraph.store.sqlite` is imported by itself.
"""

from typing import TYPE_CHECKING

from ..extras import lazy_names as _lazy_names

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

# Most programs keep no store and no cache.
__getattr__ = _lazy_names(
    __name__,
    {
        **dict.fromkeys(__all__, ".base"),
        "BaseCache": ".cache",
        "InMemoryCache": ".cache",
        "SqliteCache": ".cache",
        "canonical_key": ".cache",
        "function_identity": ".cache",
        "matches": ".filters",
        "InMemoryStore": ".memory",
        "escape": ".paths",
    },
)
