"""Middleware before all routes: refuses requests from other sites, those beyond the limits, and
those that wait for a database that does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..store.base import BaseStore, GetOp, PutOp
from .errors import LOG, Refused
from .limits import MOST_HEAD, MOST_HEADERS, OpenRequests
from .records import ROOT, now
from .service import answer

SECONDS_TO_LOOK: Final = 1.0
"""After how many seconds without an answer a request finds out whether the database is there."""
SECONDS_TO_ANSWER: Final = 2.0
"""How many seconds the database has to answer a check."""
_PLACE: Final = (ROOT, "health")


class Gate:
    """Counts each request from its arrival until its last byte is sent. Refuses those beyond the
    limits, those with too many headers, since each look-up reads them all, and what a page of
    another site makes a browser send: requests whose Host is not a name of the server (DNS
    rebinding), and requests from another origin.

    Args:
        hosts: the server's names, without ports; None for any.
        origins: the origins of other sites whose pages may use the server.
    """

    def __init__(
        self,
        app: ASGIApp,
        requests: OpenRequests,
        hosts: Collection[str] | None,
        origins: frozenset[str],
    ) -> None:
        self._app, self._requests, self._hosts, self._origins = app, requests, hosts, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        counts = scope["type"] == "http"  # a WebSocket counts itself
        try:
            if scope["type"] != "lifespan":
                self._check(scope)
            if counts:
                self._requests.enter()
        except Refused as refused:
            if counts:
                await answer({"detail": refused.detail}, refused.status)(scope, receive, send)
            else:
                close = {"type": "websocket.close", "code": 1008, "reason": refused.detail}
                await send(close)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if counts:
                self._requests.leave(scope)

    def _check(self, scope: Scope) -> None:
        headers = scope["headers"]
        size = sum([len(name) + len(value) for name, value in headers])
        if len(headers) > MOST_HEADERS or size > MOST_HEAD:
            wrong = f"a request has at most {MOST_HEADERS} headers of {MOST_HEAD} bytes in all"
            raise Refused(431, wrong)
        if (foreign := self._wrong(Headers(scope=scope))) is not None:
            raise Refused(403, foreign)

    def _wrong(self, headers: Headers) -> str | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._hosts is not None and _name(host) not in self._hosts:
            way_out = "its operator can add the name by --name or hosts="
            return f"this server does not answer under the name {_name(host) or host!r}; {way_out}"
        if origin in self._origins:
            return None
        if origin is not None and origin.partition("://")[2] != host:
            way_out = "a proxy before the server must pass the Host header on, or its operator "
            way_out += "allows the origin by --origin or origins="
            return f"requests from {origin} are not allowed: this is {host!r}; {way_out}"
        # Following a link from another site is allowed; other requests that its pages make are not.
        foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if origin is None and foreign and headers.get("sec-fetch-mode") != "navigate":
            return "requests from other sites are not allowed"
        return None


def check_origins(origins: Sequence[str]) -> frozenset[str]:
    """Return origins as browsers send them.

    Raises:
        ValueError: one is not a scheme, a host and, if it is not the scheme's own, a port.
    """
    for origin in origins:
        scheme, _, host = origin.partition("://")
        is_plain = scheme in ("http", "https") and host and not set("/?#@* ") & {*host}
        if not is_plain or origin != origin.lower() or host.endswith((":80", ":443")):
            raise ValueError(f"an origin must be like https://chat.example.com, got {origin!r}")
    return frozenset(origins)


def _name(host: str) -> str | None:
    """Return the name in a Host header without the port; None if there is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


class DatabaseCheck:
    """Finds out whether the database answers. Those who ask at the same time share the answer; a
    look without a write is shared for a second."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self._asked: dict[bool, tuple[float, asyncio.Task[str | None]]] = {}

    async def fault(self, *, writes: bool = False) -> str | None:
        """Return what is wrong with the database, or None.

        Args:
            writes: whether it must be able to store something, too.
        """
        at, task = self._asked.get(writes, (0.0, None))
        moment = asyncio.get_running_loop().time()
        if task is None or (task.done() if writes else moment - at > SECONDS_TO_LOOK):
            task = asyncio.create_task(self._ask(writes))
            self._asked[writes] = moment, task
        return await asyncio.shield(task)

    async def _ask(self, writes: bool) -> str | None:
        op = PutOp(_PLACE, "ok", {"at": now()}) if writes else GetOp(_PLACE, "ok")
        try:
            async with asyncio.timeout(SECONDS_TO_ANSWER):
                await self._store.abatch([op])
        except TimeoutError:
            return f"the database has not answered within {SECONDS_TO_ANSWER:g} s"
        except Exception as error:
            LOG.error("the database cannot be used: %s", error)
            return "the database cannot be used; the log says why"
        return None


def unavailable(why: str) -> Response:
    """Return the response to a request that the database keeps from being answered."""
    return answer({"detail": f"{why}: try again later"}, 503, {"Retry-After": "5"})


class DatabaseGuard:
    """Answers 503 to requests that get no answer because the database gives none: otherwise each
    would wait until the database's own time limit."""

    def __init__(self, app: ASGIApp, database: DatabaseCheck) -> None:
        self._app, self._database = app, database

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        fault: str | None = None
        begun: list[Any] = []

        async def watch() -> None:
            nonlocal fault
            while (fault := await self._database.fault()) is None:
                await asyncio.sleep(SECONDS_TO_LOOK)
            limit.reschedule(loop.time())

        def begin() -> None:
            begun.append(loop.create_task(watch()))

        begun.append(loop.call_later(SECONDS_TO_LOOK, begin))

        def stop() -> None:  # the request is being answered
            for each in begun:
                each.cancel()

        async def note(message: Message) -> None:
            stop()
            await send(message)

        try:
            async with asyncio.timeout(None) as limit:
                await self._app(scope, receive, note)
        except TimeoutError:
            if fault is None:
                raise
            await unavailable(fault)(scope, receive, send)
        finally:
            stop()
