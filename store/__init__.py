"""Memory that outlives threads, and the task-result cache.

A store keeps JSON objects under a namespace and a key (`base` is the contract, `filters` says what a search
finds); a cache keeps finished tasks' results (`cache`). Nothing here knows the engine. `stategraph.store.sqlite`
is imported by itself.
"""

from .base import (
    BaseStore,
    EmbedFunction,
    GetOp,
    IndexConfig,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
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
    # what a batch takes and gives
    "GetOp",
    "PutOp",
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
