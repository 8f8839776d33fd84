"""The routes of the store, which nodes find as `runtime.store`."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from ...pregel.drivers.spending import BUDGETS
from ...store.base import Namespace, SearchItem
from ..bodies import Body, Many, Slice
from ..errors import Refused
from ..handlers import Handlers, User, route
from ..records import ALL, ROOT, Record
from ..service import Service, answer, refusing

NOBODYS: Final = frozenset({ROOT, BUDGETS, "*"})
"""Users with these ids have no namespaces: they belong to the server and to the engine, and "*"
stands for all."""


class ItemBody(Body):
    """Stores an item."""

    namespace: list[str]
    key: str
    value: Many
    index: Literal[False] | list[str] | None = None
    ttl: float | None = None


class ItemPlace(Body):
    """Names an item."""

    namespace: list[str] = Field([])
    key: str


class ItemSearch(Slice):
    """Searches items."""

    namespace_prefix: list[str] = Field([])
    filter: Many | None = None
    query: str | None = None


class NamespaceSearch(Slice):
    """Searches namespaces."""

    prefix: list[str] | None = None
    suffix: list[str] | None = None
    max_depth: int | None = None
    limit: int = Field(100, ge=0, le=10_000)


class StoreRoutes(Handlers):
    """The handlers of `/store`. Each user sees only the namespaces that begin with the user's
    id."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._store = service.store

    @route("PUT /store/items")
    async def put(self, owner: User, body: ItemBody) -> None:
        """Store an item."""
        place = _place_of(owner, body.namespace)
        more: dict[str, Any] = {} if body.ttl is None else {"ttl": body.ttl}
        await refusing(self._store.aput(place, body.key, body.value, body.index, **more))

    @route("GET /store/items")
    async def get(self, request: Request, owner: User) -> Response:
        """Send an item."""
        asked = request.query_params
        place = _place_of(owner, _split(asked.get("namespace", ""), owner))
        item = await refusing(self._store.aget(place, asked.get("key", "")))
        return answer(None if item is None else item.dict())

    @route("DELETE /store/items")
    async def delete(self, owner: User, body: ItemPlace) -> None:
        """Delete an item."""
        await refusing(self._store.adelete(_place_of(owner, body.namespace), body.key))

    @route("POST /store/items/search")
    async def search(self, owner: User, body: ItemSearch) -> Record:
        """Send the items that match a filter, a query, or both."""
        prefix = _prefix_of(owner, body.namespace_prefix)
        end = body.offset + body.limit
        found: list[SearchItem] = []
        for place in await self._places(prefix):
            found += await refusing(
                self._store.asearch(place, query=body.query, filter=body.filter, limit=end)
            )
        # By the score for the query, then by the time of the last write.
        lowest = float("-inf")
        found.sort(
            key=lambda item: (lowest if item.score is None else item.score, item.updated_at),
            reverse=True,
        )
        return {"items": [item.dict() for item in found[body.offset : end]]}

    @route("POST /store/namespaces")
    async def namespaces(self, owner: User, body: NamespaceSearch) -> Record:
        """Send the namespaces that contain items."""
        prefix = _prefix_of(owner, body.prefix)
        end = body.offset + body.limit
        found: list[Namespace] = []
        for place in await self._places(prefix):
            found += await refusing(
                self._store.alist_namespaces(
                    prefix=place,
                    suffix=None if body.suffix is None else tuple(body.suffix),
                    max_depth=body.max_depth,
                    limit=end,
                )
            )
        return {"namespaces": [[*each] for each in sorted(found)[body.offset : end]]}

    async def _places(self, prefix: Namespace) -> list[Namespace]:
        """Return the prefixes to search for a requested one. They leave out the server's own
        records, which could otherwise fill a whole page."""
        if prefix and prefix[0] != "*":
            return [prefix]
        roots = await self._store.alist_namespaces(max_depth=1, limit=ALL)
        return [(*root, *prefix[1:]) for root in roots if root != (ROOT,)]


def _split(text: str, user: User) -> list[str]:
    """Split a namespace that is joined by dots. The user's id at its beginning may have dots of its
    own."""
    if user is not None and f"{text}.".startswith(f"{user}."):
        rest = text[len(user) + 1 :]
        return [user, *(rest.split(".") if rest else ())]
    return text.split(".")


def _place_of(user: User, namespace: list[str]) -> Namespace:
    """Return a namespace that a user may use.

    Raises:
        Refused: it is somebody else's.
    """
    if namespace[:1] == [ROOT]:
        raise Refused(403, f"the namespace {ROOT!r} is the server's own")
    if user is not None and (namespace[:1] != [user] or user in NOBODYS):
        raise Refused(403, f"the namespace must begin with {user!r}, got {namespace}")
    return tuple(namespace)


def _prefix_of(user: User, prefix: list[str] | None) -> Namespace:
    """Return the prefix of namespaces that a user may search; by default all of the user's own.

    Raises:
        Refused: it is somebody else's.
    """
    return _place_of(user, prefix or ([] if user is None else [user]))
