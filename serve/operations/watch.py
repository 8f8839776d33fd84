"""Middleware that watches requests: it measures them, writes the audit log, and lets a trace that a
client has begun go on in the runs of its request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from logging import INFO, getLogger
from sys import modules
from time import perf_counter
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers
from starlette.routing import Match, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..limits import user_of
from ..records import now

if TYPE_CHECKING:
    from .metrics import ServerMetrics

AUDIT: Final = getLogger("stategraph.serve.audit")
"""One line of JSON at level INFO for each request that may change something."""
_TRACES: Final = "opentelemetry.trace"
"""As long as nobody has loaded this module, no span can be the parent of another."""
_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_READS_BY_POST: Final = ("/search", "/count", "/history", "/namespaces", "/checkpoint", "/versions")
"""The ends of the paths at which a POST changes nothing."""


class Watched:
    """Watches each request from its arrival until its last byte is sent.

    Args:
        measures: takes the measurements; None if nobody reads them.
    """

    def __init__(self, app: ASGIApp, measures: ServerMetrics | None) -> None:
        self._app, self._measures = app, measures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watched = self._measures is not None or _TRACES in modules or AUDIT.isEnabledFor(INFO)
        if scope["type"] != "http" or not watched:
            await self._app(scope, receive, send)
            return
        began, status = perf_counter(), 500

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            with _trace_of(scope):
                await self._app(scope, receive, note)
        finally:
            if self._measures is not None:
                seconds = perf_counter() - began
                self._measures.note(scope["method"], route_of(scope), status, seconds)
            may_change = scope["method"] not in _READS
            may_change &= not scope["path"].endswith(_READS_BY_POST)
            if AUDIT.isEnabledFor(INFO) and may_change:
                AUDIT.info("%s", _line(scope, status))


@contextmanager
def _trace_of(scope: Scope) -> Iterator[None]:
    """Make the client's span the current one, if it names one and a tracer is loaded."""
    headers = Headers(scope=scope)
    if _TRACES not in modules or "traceparent" not in headers:
        yield
        return
    from opentelemetry.context import attach, detach
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    token = attach(TraceContextTextMapPropagator().extract(headers))
    try:
        yield
    finally:
        detach(token)


def route_of(scope: Scope) -> str:
    """Return the path of the route that has taken a request, such as `/threads/{thread_id}`; "" if
    there is none."""
    handler = scope.get("endpoint")
    for route in scope["app"].routes if handler is not None else ():
        if isinstance(route, Mount) and route.app is handler:
            return str(route.path)
        is_handler = isinstance(route, Route) and route.endpoint == handler
        if is_handler and route.matches(scope)[0] is not Match.NONE:
            return str(route.path)
    return ""


def _line(scope: Scope, status: int) -> str:
    told = {
        "at": now(),
        "user": user_of(scope),
        "method": scope["method"],
        "route": route_of(scope),
        **scope.get("path_params", {}),
        "status": status,
        "from": (scope.get("client") or [None])[0],
    }
    return json.dumps(told)
