"""Assembles the server: an ASGI app that serves graphs over HTTP."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..checkpoint.base import BaseCheckpointSaver
from ..checkpoint.errors import StorageError
from ..checkpoint.integrity import Integrity
from ..checkpoint.memory import InMemorySaver
from ..pregel.app import Pregel
from ..pregel.errors import warn
from ..store.base import BaseStore
from ..store.memory import InMemoryStore
from .authorize import LangGraphAuth
from .errors import LOG, Refused
from .guards import (
    DatabaseCheck,
    DatabaseGuard,
    Gate,
    check_origins,
    unavailable,
)
from .limits import Limits, OpenRequests, OpenRuns
from .operations.routes import Operations
from .operations.watch import Watched
from .page.files import PageFiles
from .page.lists import PageLists
from .page.logs import NodeLogs
from .page.views import Views
from .protocols.a2a import A2a
from .protocols.routes import Protocols
from .protocols.sessions.routes import Sessions
from .records import Records
from .routes.assistants import Assistants
from .routes.runs import RunRoutes
from .routes.schedules import Schedules
from .routes.store import StoreRoutes
from .routes.thread_streams import ThreadStreams
from .routes.threads import Threads
from .runs.in_process import Runs
from .runs.runner import Runner
from .service import Auth, Priority, Service, answer, version
from .stores import lock_store
from .webhooks import Allowed, Webhooks

_CORS: Final[dict[str, Any]] = {
    "allow_methods": ["*"],
    "allow_headers": ["*"],
    "allow_credentials": True,
    "expose_headers": ["Content-Location", "Location", "Mcp-Session-Id", "Retry-After"],
}
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def create_app(
    graphs: Mapping[str, Pregel],
    *,
    checkpointer: BaseCheckpointSaver | None = None,
    store: BaseStore | None = None,
    auth: Auth | None = None,
    hosts: Collection[str] | None = LOOPBACK,
    limits: Limits | None = None,
    drain_seconds: float = 10.0,
    queue: str | None = None,
    workers: int = 4,
    integrity: Integrity | None = None,
    webhooks: Sequence[str] = (),
    origins: Sequence[str] = (),
    operators: Collection[str] = (),
    metrics: bool = False,
    serves: Collection[str] = (),
    targets: Mapping[str, str] | None = None,
    priority: Priority | None = None,
) -> Starlette:
    """Return an ASGI app that serves graphs over HTTP to the official clients of LangGraph's
    server. Run it with uvicorn, or mount it in another app.

    Runs execute in the event loop of the app. Each is stored before it begins: after a crash, the
    next app on the same database continues those that had not ended.

    Args:
        graphs: the graphs, by the names that clients use.
        checkpointer: the checkpointer of the threads, shared by all graphs; in memory by default.
        store: holds assistants, threads and runs, and is what nodes find as `runtime.store`; in
            memory by default.
        auth: identifies the sender of a request: it takes the request and returns the user's id, or
            None to refuse it; anything else is an error, and nobody gets in. It may be a coroutine
            function. Each user sees its own threads only. LangGraph's `Auth` object is taken, too:
            its `@auth.on` handlers are asked before each request.
        hosts: the host names that requests may use; others get 403, which keeps pages of other
            sites away from a server on loopback. None allows any name, and requires `auth`.
        limits: how many requests, runs and bytes are accepted; see `Limits` for the defaults.
        drain_seconds: how long a stopping server waits for its runs to reach their next step. An
            ASGI server ends the lifespan only after all connections have closed, and some may be
            streams that never end: call `app.state.begin_to_stop()`, from any thread, when the
            process gets the signal.

        queue: the address of a Postgres database. Runs become jobs in its queue, which this and
            other processes execute; several servers may share the database. `checkpointer` and
            `store` must use the same database.
        workers: with a queue, how many runs of each graph this process executes at once; 0 leaves
            all runs to other processes (`stategraph work MODULE:GRAPH --as NAME`).
        integrity: guards the rows of the queue; encrypts what users and nodes say in the server's
            own records. The checkpointer, all workers and all servers need the same.
        webhooks: prefixes of the addresses that runs may name as webhooks, such as
            "https://example.com/hooks/"; none by default.
        origins: the origins of other sites whose pages may use the server, such as
            "https://chat.example.com"; none by default. They must match exactly.
        operators: the ids of the users, as `auth` returns them, who may read `/metrics` and erase
            others (`DELETE /users/{user_id}`). Without `auth` everybody may read the metrics.
        metrics: measure requests, runs and the queue, and serve that at `/metrics` as Prometheus
            reads it. Needs the extra `metrics`.
        serves: further versions of the graphs (`compile(version=...)`) whose paused threads the
            server continues. A thread that waits for any other version is refused with 409, or with
            a queue left to its workers.
        targets: where graphs are found by `module:name` or `path/to/file.py:name`, by their names:
            a thread of theirs can be saved as a test.
        priority: with a queue, returns the priority of a run, given the id of its user (None
            without `auth`) and the body of its request: higher ones go first. Among runs of one
            priority users take turns.

    Raises:
        ValueError: there is no graph, the name of one has a slash, a webhook prefix is not a plain
            URL, an origin is none, `hosts` is None without `auth`, `priority` comes without a
            queue, or `limits` limits stored bytes, which the checkpointer does not tell.
        TypeError: `auth` is no function, `priority` is a coroutine function, or `hosts` is one
            string.
        ModuleNotFoundError: the extra `metrics` is missing.
    """
    if not graphs:
        raise ValueError("graphs must name at least one graph")
    if hosts is None and auth is None:
        raise ValueError("hosts=None needs auth=: without it everybody could use the server")
    if isinstance(hosts, str):
        raise TypeError(f"hosts must be a collection of names, got {hosts!r}")
    if inspect.iscoroutinefunction(priority):
        raise TypeError("priority must be a plain function, got a coroutine function")
    if priority is not None and queue is None:
        raise ValueError("priority= needs queue=: without it every run begins at once")
    if hasattr(auth, "_authenticate_handler"):
        auth = LangGraphAuth(auth)
    if auth is not None and not callable(auth):
        raise TypeError(f"auth must be a function that takes a request, got {auth!r}")
    allowed = check_origins(origins)
    saver = checkpointer or InMemorySaver()
    memory = store or InMemoryStore()
    limits = limits or Limits()
    tells = type(saver).stored_bytes is not BaseCheckpointSaver.stored_bytes
    if limits.stored_bytes_per_user is not None and not tells:
        name = type(saver).__name__
        wanted = "a checkpointer with stored_bytes"
        raise ValueError(f"stored_bytes_per_user needs {wanted}, got {name}")
    for name, graph in graphs.items():
        check_name(name)
        _warn_of_replaced(name, graph, saver, memory)
    bound = {
        name: graph.copy({"checkpointer": saver, "store": memory}) for name, graph in graphs.items()
    }
    records = Records(memory, integrity)
    open_runs = OpenRuns(limits)
    requests = OpenRequests(limits)
    if queue is None:
        runs: Runner = Runs(bound, records, open_runs, serves)
    else:
        from .runs.fleet import FleetRuns

        runs = FleetRuns(
            bound,
            records,
            queue,
            open_runs,
            workers=workers,
            integrity=integrity,
            serves=serves,
        )
    service = Service(
        bound,
        memory,
        records,
        runs,
        auth,
        limits,
        requests,
        targets or {},
        Allowed(webhooks),
        NodeLogs(saver),
        priority,
    )
    schedules, protocols, threads = Schedules(service), Protocols(service), Threads(service)

    measured: Any = None
    if metrics:
        from .operations.metrics import ServerMetrics

        measured = ServerMetrics(requests, open_runs, runs.queue)
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        with service.logs.attached(), lock_store(memory) if queue is None else nullcontext():
            await service.open()
            endless = (schedules.fire_for_ever(), threads.expire_for_ever())
            background = [asyncio.create_task(each) for each in endless]
            if webhooks:
                sender = Webhooks(service.webhooks, records)
                background.append(asyncio.create_task(sender.send_for_ever()))
            if measured is not None:
                measured.open()
            try:
                yield
            finally:
                if measured is not None:
                    measured.close()
                for task in background:
                    task.cancel()
                await service.runs.close(drain_seconds)
                await protocols.close()

    database = DatabaseCheck(memory)

    async def ok(request: Request) -> Response:
        """Send whether the server can be used; with `check_db=1`, the database as well."""
        asked = request.query_params.get("check_db", "0").lower() not in ("0", "false")
        fault = await database.fault(writes=True) if asked else None
        return answer({"ok": True}) if fault is None else unavailable(fault)

    async def info(_: Request) -> Response:
        """Send the version of the server, and those of its graphs that have one."""
        flags = {"assistants": True, "crons": True}
        graphs = {name: each.program.version for name, each in bound.items()}
        known = {name: own for name, own in graphs.items() if own is not None}
        told = {"version": version(), "engine": "stategraph", "flags": flags}
        return answer({**told, "graphs": known} if known else told)

    # Routes are tried in order: the most frequently used come first.
    rooms: list[Any] = [
        *(
            room(service)
            for room in (
                RunRoutes,
                ThreadStreams,
                Sessions,
                A2a,
                Assistants,
                StoreRoutes,
                PageLists,
                Views,
                PageFiles,
            )
        ),
        threads,
        schedules,
        protocols,
        Operations(service, operators, measured),
    ]
    routes = [route for room in rooms for route in room.routes()]
    handlers: Any = {
        Refused: _refuse,
        HTTPException: _refuse,
        StorageError: _refuse_later,
        Exception: _fail,
    }
    app = Starlette(
        routes=[Route("/ok", ok), Route("/info", info), *routes],
        lifespan=lifespan,
        middleware=[
            *([Middleware(CORSMiddleware, allow_origins=[*allowed], **_CORS)] if allowed else []),
            Middleware(Watched, measures=measured),
            Middleware(Gate, requests=requests, hosts=hosts, origins=allowed),
            Middleware(DatabaseGuard, database=database),
        ],
        exception_handlers=handlers,
    )
    app.state.begin_to_stop = service.runs.begin_to_stop
    return app


def check_name(name: str) -> None:
    """Check that the name of a graph can be one segment of a URL path.

    Raises:
        ValueError: it cannot.
    """
    if not name or "/" in name or name in (".", ".."):
        wanted = "not be empty, '.' or '..', nor hold a slash"
        raise ValueError(f"the name of a graph must {wanted}, got {name!r}")


def _warn_of_replaced(
    name: str, graph: Pregel, saver: BaseCheckpointSaver, store: BaseStore
) -> None:
    """Warn of a checkpointer or a store of the graph that the server does not use."""
    replaced = {"checkpointer": (graph.checkpointer, saver), "store": (graph.store, store)}
    for option, (own, shared) in replaced.items():
        if own is None or isinstance(own, bool) or own is shared:
            continue
        warn(
            f"the graph {name!r} was compiled with {option}={type(own).__name__}, but is served "
            f"with the server's {type(shared).__name__}: compile it without one, and give the "
            f"server its database by --db or create_app({option}=...)"
        )


async def _refuse(_: Request, error: Refused | HTTPException) -> Response:
    status = error.status if isinstance(error, Refused) else error.status_code
    return answer({"detail": error.detail}, status)


async def _refuse_later(request: Request, error: Exception) -> Response:
    """Answer a request that the database has refused, such as one that is down or full."""
    LOG.error("%s %s has failed: %s", request.method, request.url.path, error)
    return unavailable("the database cannot be used")


async def _fail(_: Request, error: Exception) -> Response:
    """Answer a request whose handler failed. The log has the error; the client learns no details,
    since they might hold secrets."""
    return answer({"detail": "the server has failed; its log says why"}, 500)
