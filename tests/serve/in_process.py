"""A server in the event loop of a test, spoken to without a socket: what overlaps is decided by the test."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette
from starlette.routing import Mount, Route, WebSocketRoute

from stategraph.store import BaseStore, InMemoryStore, UnchangedOp

WEBSOCKETS = {"/threads/{thread_id}/stream/events"}
"""Asked with a client of their own: test_serve_sessions.py tells their users apart."""


class YieldingStore(InMemoryStore):
    """Lets other tasks run before and behind each of its calls, as a database does."""

    async def abatch(self, ops):
        await asyncio.sleep(0)
        found = await super().abatch(ops)
        await asyncio.sleep(0)
        return found


class OwnStore(BaseStore):
    """A store of a user's own, which has no conditions for its writes."""

    def __init__(self):
        self._inner = YieldingStore()

    async def abatch(self, ops):
        ops = [*ops]
        assert not any(isinstance(op, UnchangedOp) for op in ops)
        return await self._inner.abatch(ops)


@asynccontextmanager
async def asking(app: Starlette, **options):
    """A client of an app, whose lifespan is that of the `async with` block."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost", **options) as client,
    ):
        yield client


async def new_thread(client, **options):
    return (await client.post("/threads", json={}, **options)).json()["thread_id"]


def routes_of(routes, before=""):
    """Each method and path of an app."""
    for route in routes:
        if isinstance(route, Mount) and not route.routes:  # another app, to which all is sent
            yield "POST", before + route.path
        elif isinstance(route, Mount):
            yield from routes_of([*route.routes], before + route.path)
        elif isinstance(route, WebSocketRoute):
            assert before + route.path in WEBSOCKETS, f"{route!r} needs a test of its own"
        else:
            assert isinstance(route, Route), f"{route!r} needs a test of its own"
            for method in sorted((route.methods or {"GET", "POST"}) - {"HEAD"}):
                yield method, before + route.path
