"""The contract of a store: memory that outlives threads.

This module defines what a store holds (`Item`), the operations on it (the ops) and `BaseStore`,
each of whose methods is one op in a batch. Storage, matching and ranking must not live here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, Required, cast

from typing_extensions import TypedDict

from ..channels.base import MISSING, Missing, StateGraphError
from ..checkpoint.threads import Closable

Namespace = tuple[str, ...]
"""Where an item lies: a tuple of segments. Nothing in a segment is special, `.` and NUL
included."""

Value = dict[str, Any]
"""What is stored: a JSON object. Named here because `Item.dict` hides the builtin inside the
class."""


class InvalidNamespaceError(StateGraphError, ValueError):
    """A namespace that is not a non-empty tuple of non-empty strings."""


class ItemChangedError(StateGraphError):
    """An item has changed since it was read, so nothing of the batch was written; see
    `UnchangedOp`.

    Attributes:
        namespace: the item's namespace.
        key: the item's key.
    """

    def __init__(self, namespace: Namespace, key: str) -> None:
        super().__init__(
            f"the item {key!r} in {namespace} was changed since it was read, so nothing was "
            "written: read it again"
        )
        self.namespace: Namespace = namespace
        self.key: str = key


class TTLConfig(TypedDict, total=False):
    """How long items live. Every key is optional; all times are minutes.

    `default_ttl` applies to puts without a `ttl` (absent or None: for ever). If `refresh_on_read`
    is true (the default), a read that does not say otherwise restarts an item's time. With
    `sweep_interval_minutes`, a put that long after the last sweep also removes expired items;
    without it, call `sweep_ttl`. Expired items are never returned, swept or not, whatever
    `omit_expired` says.
    """

    default_ttl: float | None
    omit_expired: bool
    refresh_on_read: bool
    sweep_interval_minutes: float | None


Embedded = Sequence[Sequence[float]]
EmbedFunction = Callable[[Sequence[str]], Embedded | Awaitable[Embedded]]
"""Texts to vectors, one each and in order; plain or async."""


class IndexConfig(TypedDict, total=False):
    """How a store finds items by meaning.

    `dims` is the length of a vector. `embed` is a function from texts to vectors, sync or async,
    or an object with `embed_documents` and `embed_query`. `fields` are the paths whose texts are
    embedded unless a put says otherwise; default `["$"]`, the whole value as JSON. See
    `stategraph.store.paths` for the grammar. `text_fields` is another name for `fields`.
    `distance_type` defines the score: the cosine of two vectors ("cosine", the default), their
    product ("inner_product"), or minus their distance ("l2"). A higher score is always nearer.
    """

    dims: Required[int]
    embed: Required[EmbedFunction | Any]
    fields: list[str] | None
    text_fields: list[str] | None
    distance_type: Literal["cosine", "inner_product", "l2"]


@dataclass(slots=True, kw_only=True)
class Item:
    """One stored value. It is a copy: changing it does not change the store. Times are in UTC."""

    namespace: Namespace
    key: str
    value: Value
    created_at: datetime
    updated_at: datetime

    def dict(self) -> Value:
        """The item as plain JSON data; times in ISO 8601, the namespace as a list."""
        return {
            "namespace": list(self.namespace),
            "key": self.key,
            "value": self.value,
            "created_at": self.created_at.isoformat(),
            "updated_at": self.updated_at.isoformat(),
        }


@dataclass(slots=True)
class SearchItem(Item):
    """An item that a search found. `score` is its cosine similarity to the query, at best 1.0; None
    if the search had no query or the item has no vector."""

    # Again, as these are taken by position, too.
    namespace: Namespace
    key: str
    value: Value
    created_at: datetime
    updated_at: datetime
    score: float | None = None

    def dict(self) -> Value:
        """Like `Item.dict`, with the score."""
        return {**Item.dict(self), "score": self.score}


class MatchCondition(NamedTuple):
    """What a listed namespace must begin or end with. `"*"` in `path` stands for any one
    segment."""

    match_type: Literal["prefix", "suffix"]
    path: Namespace


class GetOp(NamedTuple):
    """Read one item. `refresh_ttl` None means as the store's `TTLConfig` says."""

    namespace: Namespace
    key: str
    refresh_ttl: bool | None = None


class SearchOp(NamedTuple):
    """Find items below a namespace. See `BaseStore.search`."""

    namespace_prefix: Namespace
    filter: Mapping[str, Any] | None = None
    limit: int = 10
    offset: int = 0
    query: str | None = None
    refresh_ttl: bool | None = None


class PutOp(NamedTuple):
    """Store one item, or delete it if `value` is None. See `BaseStore.put`."""

    namespace: Namespace
    key: str
    value: Mapping[str, Any] | None
    index: Literal[False] | list[str] | None = None  # type: ignore[assignment]  # hides tuple.index
    ttl: float | Missing | None = MISSING


class UnchangedOp(NamedTuple):
    """A condition for the writes of a batch: an item still has this value or, with None, still does
    not exist. Otherwise nothing is written and the batch raises `ItemChangedError`. So an update
    based on an earlier read never overwrites the write of another process."""

    namespace: Namespace
    key: str
    value: Mapping[str, Any] | None


class ListNamespacesOp(NamedTuple):
    """List the namespaces that hold items. See `BaseStore.list_namespaces`."""

    match_conditions: tuple[MatchCondition, ...] | None = None
    max_depth: int | None = None
    limit: int = 100
    offset: int = 0


Op = GetOp | SearchOp | PutOp | UnchangedOp | ListNamespacesOp
Result = Item | list[SearchItem] | list[Namespace] | None


class BaseStore(Closable):
    """Stores JSON objects under (namespace, key). Subclass it and define `batch` to store them
    elsewhere.

    A store is shared by all threads of a program and must be safe to call from each of them.
    """

    is_stategraph_store = True
    """By this the engine knows a parameter that takes the store, without loading this module."""

    supports_ttl = False
    """Whether items may expire."""
    ttl_config: TTLConfig | None = None
    index_config: IndexConfig | None = None

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Execute several ops at once and return their results in the same order.

        All reads see the store as it was before the batch. The writes follow atomically; of several
        writes to the same key the last one wins. A write's result is None.
        """
        raise NotImplementedError(f"{type(self).__name__} must define batch()")

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """`batch` for coroutines."""
        return await self._acall(self.batch, list(ops))

    def reopen(self) -> Callable[[], BaseStore] | None:
        """Return a function with which another process opens this store; None, the default, if that
        is impossible because the data is in this process.

        Nodes that run on an executor get the graph's store through it. It is called at compile and
        once in each run. Its result is pickled, and called in a worker when a function there first
        uses the store. The store that it returns serves all later calls in that process, on any of
        its threads; its `close`, if it has one, ends it.

        If the same names would lead to something else there, the call must raise and not create a
        new, empty store. Most stores need one line: `return partial(MyStore, self.url)`; one that
        wraps another, `inner = self.inner.reopen()` and `return inner and partial(open_around,
        inner)`.
        """
        return None

    # -- one thing at a time -----------------------------------------------------------------------

    def get(
        self, namespace: Namespace, key: str, *, refresh_ttl: bool | None = None
    ) -> Item | None:
        """Return the item, or None. Raises `InvalidNamespaceError`."""
        return cast("Item | None", self.batch([GetOp(namespace, str(key), refresh_ttl)])[0])

    def put(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any] | None,
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | Missing | None = MISSING,
    ) -> None:
        """Store a value, replacing an earlier one, whose `created_at` is kept.

        Args:
            key: anything; it is turned into a string.
            value: a JSON object; None deletes.
            index: which paths to embed; None for the store's own `fields`, False for none.
            ttl: minutes to live, from now; None for ever. Left out: the store's `default_ttl`.

        Raises:
            InvalidNamespaceError: `namespace` is not a non-empty tuple of non-empty strings.
            ValueError: something in `value` is not JSON (the text names the place), or another
                argument is off.
        """
        self.batch([PutOp(namespace, str(key), value, index, ttl)])

    def delete(self, namespace: Namespace, key: str) -> None:
        """Delete an item; a missing one is not an error."""
        self.batch([PutOp(namespace, str(key), None)])

    def search(
        self,
        namespace_prefix: Namespace,
        /,
        *,
        query: str | None = None,
        filter: Mapping[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
        refresh_ttl: bool | None = None,
    ) -> list[SearchItem]:
        """Return the items whose namespace begins with the segments of `namespace_prefix`; `()`
        matches all.

        With a query (and an index) the nearest in meaning come first, items without a vector last.
        Otherwise the item put last comes first, by the store's own count of puts, not by a clock.

        Args:
            query: the text to search for by meaning; None or "" lists.
            filter: conditions on the value, see `stategraph.store.filters`.
            limit, offset: the page, cut from the filtered and ordered list.

        Raises:
            ValueError: an unknown operator, a bad path, a negative limit.
        """
        op = SearchOp(namespace_prefix, filter, limit, offset, query, refresh_ttl)
        return cast("list[SearchItem]", self.batch([op])[0])

    def list_namespaces(
        self,
        *,
        prefix: Namespace | None = None,
        suffix: Namespace | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[Namespace]:
        """Return the namespaces that hold items, sorted.

        Args:
            prefix, suffix: what a namespace must begin or end with; `"*"` stands for any one
                segment.
            max_depth: cut longer namespaces to so many segments, and list each once.
        """
        op = _list_op(prefix, suffix, max_depth, limit, offset)
        return cast("list[Namespace]", self.batch([op])[0])

    # -- the same, async ---------------------------------------------------------------------------

    async def aget(
        self, namespace: Namespace, key: str, *, refresh_ttl: bool | None = None
    ) -> Item | None:
        """`get` for coroutines."""
        return cast(
            "Item | None", (await self.abatch([GetOp(namespace, str(key), refresh_ttl)]))[0]
        )

    async def aput(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any] | None,
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | Missing | None = MISSING,
    ) -> None:
        """`put` for coroutines."""
        await self.abatch([PutOp(namespace, str(key), value, index, ttl)])

    async def adelete(self, namespace: Namespace, key: str) -> None:
        """`delete` for coroutines."""
        await self.abatch([PutOp(namespace, str(key), None)])

    async def asearch(
        self,
        namespace_prefix: Namespace,
        /,
        *,
        query: str | None = None,
        filter: Mapping[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
        refresh_ttl: bool | None = None,
    ) -> list[SearchItem]:
        """`search` for coroutines."""
        op = SearchOp(namespace_prefix, filter, limit, offset, query, refresh_ttl)
        return cast("list[SearchItem]", (await self.abatch([op]))[0])

    async def alist_namespaces(
        self,
        *,
        prefix: Namespace | None = None,
        suffix: Namespace | None = None,
        max_depth: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[Namespace]:
        """`list_namespaces` for coroutines."""
        op = _list_op(prefix, suffix, max_depth, limit, offset)
        return cast("list[Namespace]", (await self.abatch([op]))[0])


def _list_op(
    prefix: Namespace | None,
    suffix: Namespace | None,
    max_depth: int | None,
    limit: int,
    offset: int,
) -> ListNamespacesOp:
    conditions = []
    if prefix:
        conditions.append(MatchCondition("prefix", prefix))
    if suffix:
        conditions.append(MatchCondition("suffix", suffix))
    return ListNamespacesOp(tuple(conditions), max_depth, limit, offset)
