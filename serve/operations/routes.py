"""The routes for operators: metrics, the description of the API, the import of a thread, and the
erasure of a user: all that a server stores of one, with a receipt that lists it.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable
from html import escape
from inspect import cleandoc, isroutine, unwrap
from typing import Any, Final, get_type_hints

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from ...pregel.drivers.spending import read_shared
from ...store.base import PutOp
from ..errors import Refused
from ..handlers import Handlers, User, route
from ..records import ALL, Kind, Record, now, select
from ..routes.store import NOBODYS
from ..routes.threads import Threads
from ..service import Service, config_of, refusing, version
from ..transfer import ThreadFile, import_thread

_HEADERS: Final = {"Content-Security-Policy": "default-src 'none'; base-uri 'none'"}


class Operations(Handlers):
    """The handlers of `/metrics`, `/openapi.json`, `/docs` and `/users`.

    Args:
        operators: the ids of the users who may see the metrics and erase others.
        metrics: the `ServerMetrics`; None if nothing is measured.
    """

    asks_auth = False

    def __init__(self, service: Service, operators: Collection[str], metrics: Any) -> None:
        super().__init__(service)
        self._operators, self._metrics = frozenset(operators), metrics

    def routes(self) -> list[BaseRoute]:
        """Return the routes; without metrics, not theirs."""
        return super().routes()[0 if self._metrics else 1 :]

    @route("GET /metrics")
    async def metrics(self, owner: User) -> Response:
        """Send the server's metrics as Prometheus reads them. Only operators may."""
        self._refuse_users(owner, "read its metrics")
        from .metrics import CONTENT_TYPE

        budgets = await read_shared(self._service.graphs, self._service.store)
        return Response(self._metrics.text(budgets), media_type=CONTENT_TYPE)

    @route("GET /openapi.json")
    async def openapi(self, request: Request) -> Record:
        """Send the description of this API."""
        return describe_api(request.app.routes, version())

    @route("GET /docs")
    async def docs(self, request: Request) -> Response:
        """Send the description of this API as a page."""
        return HTMLResponse(draw_api(await self.openapi(request)), headers=_HEADERS)

    @route("POST /threads/import")
    async def import_thread(self, owner: User, body: ThreadFile) -> Record:
        """Store a thread that was exported, under its id and for its user, and send its record.
        Only operators may: a file says what was done and approved, and nobody can check that."""
        self._refuse_users(owner, "import threads")
        id = body.thread.thread_id
        record = body.thread.model_dump(exclude_unset=True)

        async def create() -> None:
            known = await self._records.find("threads", id)
            if known or await self._service.saver.aget_tuple(config_of(id)):
                raise Refused(409, f"there is a thread {id!r} already: delete it first")
            await refusing(import_thread(self._service.saver, id, body))
            await self._records.replace("threads", id, None, record)

        await self._records.change("threads", id, create)
        return select(record, None)

    def _refuse_users(self, owner: User, deed: str) -> None:
        """Refuse users who are no operators."""
        if owner is not None and owner not in self._operators:
            raise Refused(403, f"only the server's operators may {deed}")

    @route("DELETE /users/{user_id}")
    async def erase(self, owner: User, user_id: str) -> Record:
        """Erase a user: threads, runs, schedules, assistants, items of the store. Users may erase
        themselves, operators anybody. Sends a receipt."""
        if owner is None:
            raise Refused(409, "this server has no users: it was started without auth=")
        if owner != user_id and owner not in self._operators:
            raise Refused(403, f"only the server's operators may erase others, got {user_id!r}")
        return await erase_user(self._service, user_id)


ROUNDS: Final = 5
"""How often all is looked for again: runs that were under way may have begun others."""
LINGERS: Final = {
    "SqliteStore": (
        "the database file's free pages and its -wal file hold old bytes until, with the server "
        "stopped: PRAGMA wal_checkpoint(TRUNCATE); VACUUM;"
    ),
    "PostgresStore": (
        "dead rows hold old bytes until VACUUM FULL; the write-ahead log, replicas and archives "
        "until they are recycled"
    ),
}
_JOBS: Final = (
    "jobs of runs without a thread stay in the queue until: stategraph queue --forget 0"
)
_SPENT: Final = (
    "what the user has spent of a Budget(per=\"user\") stays in the store: erasing would refill it"
)
ELSEWHERE: Final = (
    "backups, exports, logs, traces and the receivers of webhooks keep what they were sent before"
)


async def erase_user(service: Service, user: str) -> Record:
    """Remove what belongs to a user: schedules, runs (those under way are stopped), threads with
    their checkpoints and events, assistants, undelivered webhooks, and the items of the store below
    the user's id.

    Returns:
        The receipt: the ids of what was removed, by kind, and where old bytes may linger.

    Raises:
        Refused: the user makes new threads all the while.
    """
    removed: dict[str, list[Any]] = defaultdict(list)
    for _ in range(ROUNDS):
        found = [each async for each in _remove(service, user)]
        for kind, id in found:
            removed[kind].append(id)
        if not found:
            break
    else:
        way_out = "let auth refuse the user, then try again"
        raise Refused(409, f"{user!r} goes on storing: {way_out}")
    spent = await read_shared(service.graphs, service.store, user)
    lingers = (
        _JOBS if service.runs.queue is not None else None,
        _SPENT if spent else None,
        LINGERS.get(type(service.store).__name__),
        ELSEWHERE,
    )
    return {
        "user": user,
        "erased_at": now(),
        "removed": dict(removed),
        "may_linger": [each for each in lingers if each is not None],
    }


async def _remove(service: Service, user: str) -> AsyncIterator[tuple[str, Any]]:
    """Remove what is found now. Schedules come first, since they begin runs."""
    records, threads = service.records, Threads(service)
    for schedule in await _owned(service, "crons", user):
        await records.delete("crons", schedule["cron_id"])
        yield "schedules", schedule["cron_id"]
    for thread in await _owned(service, "threads", user):
        id = thread["thread_id"]
        for run in await records.search("runs", id):
            await service.runs.cancel(run, "interrupt", wait=True)
            await records.put(("webhooks", run["run_id"], None))
            yield "runs", run["run_id"]
        await threads.remove(id, user)
        yield "threads", id
    for assistant in await _owned(service, "assistants", user):
        id = assistant["assistant_id"]
        await records.delete("assistants", id, "versions")
        yield "assistants", id
    store = service.store
    own = [] if user in NOBODYS else await store.alist_namespaces(prefix=(user,), limit=ALL)
    for namespace in own:
        found = await store.asearch(namespace, limit=ALL)
        await store.abatch([PutOp(item.namespace, item.key, None) for item in found])
        for item in found:
            yield "items", [*item.namespace, item.key]


async def _owned(service: Service, kind: Kind, user: str) -> list[Record]:
    return await service.records.search(kind, filter={"owner": user})


# -- openapi ---------------------------------------------------------------------------------------
# `/openapi.json`: a description of the server's API, and `/docs`, the same as a page. What a
# handler reads is found in the annotations of its parameters, by which it is called. So no table
# can differ from what is served.

REFS = "#/components/schemas/{model}"
_OF_PAGE = re.compile("/(page/|$)")


def describe_api(routes: Iterable[Any], version: str) -> dict[str, Any]:
    """Return the description of an API in OpenAPI 3.1.

    Args:
        routes: those of the server. Mounted apps and what only the page asks for are left out.
        version: that of the server.
    """
    api = [each for each in routes if isinstance(each, Route) and not _OF_PAGE.match(each.path)]
    found = [(each, _find_models(each.endpoint)) for each in api]
    models = {model for _, read in found for model in read.values()}
    named = sorted(models, key=lambda model: model.__name__)
    ordered: list[Any] = [(each, "validation") for each in named]
    names, schemas = models_json_schema(ordered, ref_template=REFS)
    paths: dict[str, dict[str, Any]] = {}
    for served, read in found:
        for method in sorted((served.methods or set()) - {"HEAD"}):
            refs = {how: names[model, "validation"] for how, model in read.items()}
            place = paths.setdefault(served.path_format, {})
            place[method.lower()] = _describe(served, method, refs, schemas["$defs"])
    return {
        "openapi": "3.1.0",
        "info": {"title": "stategraph", "version": version},
        "paths": paths,
        "components": {"schemas": schemas["$defs"]},
    }


def _describe(
    route: Route, method: str, refs: dict[str, Any], schemas: dict[str, Any]
) -> dict[str, Any]:
    about = cleandoc(route.endpoint.__doc__ or "")
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path_format)
    ]
    told: dict[str, Any] = {
        "summary": " ".join(about.split("\n\n")[0].split()),
        "operationId": f"{method.lower()}{re.sub(r'[^a-z_]+', '_', route.path_format)}",
        "responses": {"200": {"description": "done"}, "4XX": {"description": "refused: `detail`"}},
    }
    body, query = refs.get("body"), refs.get("query")
    if {"GET", "POST"} <= (route.methods or set()):  # the same, said in the query or in the body
        body, query = (None, query or body) if method == "GET" else (body, None)
    if query is not None:
        fields = schemas[query["$ref"].rpartition("/")[2]].get("properties", {})
        parameters += [{"name": n, "in": "query", "schema": each} for n, each in fields.items()]
    if body is not None:
        told["requestBody"] = {"content": {"application/json": {"schema": body}}}
    if parameters:
        told["parameters"] = parameters
    return told


def _find_models(handler: Any) -> dict[str, type[BaseModel]]:
    """Return the models of what a handler reads, by "body" and "query"."""
    wanted = get_type_hints(unwrap(handler)) if isroutine(handler) else {}
    return {how: wanted[how] for how in ("body", "query") if how in wanted}


def draw_api(described: dict[str, Any]) -> str:
    """Return the description as a page."""
    rows = []
    for path, methods in described["paths"].items():
        for method, told in methods.items():
            shown = escape(json.dumps(told, indent=2, ensure_ascii=False))
            head = f"<code>{method.upper()} {escape(path)}</code> {escape(told['summary'])}"
            rows.append(f"<details><summary>{head}</summary><pre>{shown}</pre></details>")
    schemas = escape(json.dumps(described["components"], indent=2, ensure_ascii=False))
    return (
        "<!doctype html><meta charset=utf-8><title>stategraph: the server's API</title>"
        '<meta name=viewport content="width=device-width">'
        "<h1>The server's API</h1><p>For programs: <a href=openapi.json>openapi.json</a></p>"
        f"{''.join(rows)}<h2>Schemas</h2><details><summary>all</summary><pre>{schemas}</pre></details>"
    )
