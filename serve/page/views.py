"""The routes of the page's views of one thread: graph, steps, timeline, branches. They only read.

A thread is read in pieces and off the event loop: the cost of a request depends on what it shows,
not on the length of the thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Final

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from ...pregel.app import Pregel
from ...visualize.trace.index import NotThereError, ThreadIndex
from ..bodies import LogQuery
from ..errors import Refused
from ..handlers import Handlers, route
from ..records import Record
from ..service import Service, answer, config_of
from .files import POLICY

if TYPE_CHECKING:  # they need networkx, a fifth of a server's start: the first view loads them
    from ...visualize.fold import FittedGraph
    from ...visualize.render.thread_pages import ThreadPages

MOST_INDEXES: Final = 32
"""For how many threads the server caches the list of their checkpoints."""
THREADS: Final = 2
"""How many requests are handled at once: the other threads are left to the runs."""

NEWEST: Final = 150
"""How many checkpoints are read when a client asks for the newest of a thread that is not cached,
so that it need not wait for all of them."""

VIEWS: Final = (
    "steps",
    "find",
    "run",
    "usage",
    "became",
    "step",
    "tasks",
    "task",
    "value",
    "timeline",
    "branches",
    "tree",
    "compare",
)
"""The methods of `ThreadPages` that are views."""


class _Known:
    """The cached index of a thread. Used by one reader at a time."""

    def __init__(self, thread_id: str, app: Pregel) -> None:
        from ...visualize.render.thread_pages import ThreadPages

        self.index: ThreadIndex = ThreadIndex(thread_id)
        self.pages: ThreadPages = ThreadPages(app, self.index)
        self.lock: threading.Lock = threading.Lock()


class Views(Handlers):
    """The handlers of `/page/threads/{thread_id}/…`."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._known = lru_cache(MOST_INDEXES)(_Known)
        self._pool = ThreadPoolExecutor(THREADS, "stategraph-views")
        self._graphs: dict[str, tuple[str, dict[str, Any]]] = {}

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        one = "/page/threads/{thread_id}"
        shown = [
            Route(path, self.serve(path, self._view(name)))
            for name in VIEWS
            if (path := f"{one}/{name}")
        ]
        return [*super().routes(), *shown]

    @route("GET /page/threads/{thread_id}/graph")
    async def graph(self, thread: Record) -> Response:
        """Send the graph of a thread as SVG."""
        return _drawing((await self._graph(thread))[0])

    @route("GET /page/threads/{thread_id}/report")
    async def report(self, thread: Record) -> Response:
        """Send the report of a thread, as a file to save."""
        app, config = self._app(thread), config_of(thread["thread_id"])

        def draw() -> str:
            from ...visualize.render.report import draw_report

            return draw_report(app, config)

        page = await self._work(draw)
        return HTMLResponse(page, headers={"Content-Disposition": "attachment"})

    @route("GET /page/threads/{thread_id}/logs")
    async def log_lines(self, thread: Record, query: LogQuery) -> list[dict[str, Any]]:
        """Send what nodes have logged on a thread."""
        return self._service.logs.lines(thread["thread_id"], query.after)

    @route("GET /page/threads/{thread_id}/test")
    async def test(self, thread: Record) -> Response:
        """Send a test that replays a thread, and its recording, in a ZIP file."""
        from ...testing.saved_test import zip_test

        app, config = self._app(thread), config_of(thread["thread_id"])
        name = thread["metadata"]["graph_id"]
        target = self._service.targets.get(name)
        if target is None:
            why = f"create_app({{{name!r}: ...}}, targets={{{name!r}: 'module:graph'}})"
            raise Refused(409, f"the test must import the graph {name!r}: name its place by {why}")
        file = await self._work(lambda: zip_test(app, config, target))
        return Response(file, media_type="application/zip")

    @route("GET /page/threads/{thread_id}/nodes")
    async def nodes(self, thread: Record) -> Record:
        """Send the name under which the graph is served, and, for nodes that its drawing folds, the
        ids of the nodes that represent them."""
        return (await self._graph(thread))[1]

    async def _graph(self, thread: Record) -> tuple[str, dict[str, Any]]:
        app = self._app(thread)
        name = thread["metadata"]["graph_id"]

        def draw() -> tuple[str, FittedGraph]:
            from ...visualize.render.thread_pages import draw_graph

            return draw_graph(app)

        if name not in self._graphs:
            svg, fitted = await self._work(draw)
            self._graphs[name] = svg, {"name": name, "homes": fitted.homes}
        return self._graphs[name]

    def _view(self, name: str) -> Callable[..., Any]:
        """Return the handler of a view that reads the thread."""

        async def handle(request: Request, thread: Record) -> Response:
            id, app = thread["thread_id"], self._app(thread)
            since = await self._busy_since(id)
            query = request.query_params
            found = await self._work(lambda: _read(self._known(id, app), name, query, since))
            return _drawing(found) if isinstance(found, str) else answer(found)

        return handle

    def _app(self, thread: Record) -> Pregel:
        """Return the graph that ran last on a thread.

        Raises:
            Refused: nothing has run on it.
        """
        app = self._service.graph_of_thread(thread)
        if app is None:
            raise Refused(404, "no graph has run on this thread yet")
        return app

    async def _busy_since(self, id: str) -> float | None:
        """Return when the run of a thread that is in progress began, in seconds since the epoch;
        None if the thread is not busy."""
        if not await self._runs.is_busy(id):
            return None
        pointers = await self._records.unfinished(id)
        begins = [datetime.fromisoformat(each["begins_at"]).timestamp() for each in pointers]
        return min(begins, default=None)

    async def _work(self, function: Callable[[], Any]) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, function)
        except NotImplementedError as error:
            why = f"the views need a checkpointer with sync methods: {error}"
            raise Refused(501, why) from error
        except (NotThereError, ValueError) as error:  # also: deleted while it was read
            raise Refused(404, str(error)) from error


def _read(known: _Known, name: str, query: QueryParams, busy_since: float | None) -> Any:
    """Return what a method of `ThreadPages` returns for the arguments in a query."""
    app, pages = known.pages.app, type(known.pages)
    view = getattr(pages, name)
    parameters = [*signature(view).parameters.values()][1:]
    given = {each.name: _argument(query, each) for each in parameters}
    said = {key: value for key, value in given.items() if value is not None}
    if not known.index.is_whole and query.get("newest") == "1":
        newest = ThreadIndex(known.index.thread_id)
        newest.refresh(app, NEWEST)
        with suppress(NotThereError):  # it is older
            return view(pages(app, newest, busy_since), **said)
    with known.lock:
        known.index.refresh(app)
        known.pages.busy_since = busy_since
        return view(known.pages, **said)


def _drawing(svg: str) -> Response:
    headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
    return Response(svg, media_type="image/svg+xml", headers=headers)


def _argument(query: QueryParams, parameter: Parameter) -> Any:
    """Return an argument in the query; None if it is missing.

    Raises:
        Refused: it is not a number.
    """
    name, kind = parameter.name, parameter.annotation
    text = query.get(name, "")
    if kind == "str":
        return text
    if not text:
        return None
    if kind == "bool":
        return text == "1"
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise Refused(422, f"{name} must be a whole number from 0, got {text[:40]!r}")
    return int(text)
