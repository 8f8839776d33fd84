"""Middleware before all routes: refuses requests from other sites and those beyond the limits."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import Refused
from .limits import OpenRequests
from .service import answer


class OriginCheck:
    """Refuses what a page of another site makes a browser send: requests whose Host is not a name
    of the server (DNS rebinding), and requests from another origin.

    Args:
        hosts: the server's names, without ports; None for any.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wrong = None if scope["type"] == "lifespan" else self._wrong(Headers(scope=scope))
        if wrong is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await answer({"detail": wrong}, 403)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": wrong})

    def _wrong(self, headers: Headers) -> str | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._hosts is not None and _name(host) not in self._hosts:
            way_out = "its operator can add the name by --name or hosts="
            return f"this server does not answer under the name {_name(host) or host!r}; {way_out}"
        if origin is not None and origin.partition("://")[2] != host:
            way_out = "a proxy before the server must pass the Host header on"
            return f"requests from {origin} are not allowed: this is {host!r}; {way_out}"
        # Following a link from another site is allowed; other requests that its pages make are not.
        foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if origin is None and foreign and headers.get("sec-fetch-mode") != "navigate":
            return "requests from other sites are not allowed"
        return None


def _name(host: str) -> str | None:
    """Return the name in a Host header without the port; None if there is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


class Limited:
    """Counts each request from its arrival until its last byte is sent."""

    def __init__(self, app: ASGIApp, requests: OpenRequests) -> None:
        self._app, self._requests = app, requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._requests.enter()
        except Refused as refused:
            response = answer({"detail": refused.detail}, refused.status)
            await response(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._requests.leave(scope)
