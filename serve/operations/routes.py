"""The routes for operators: metrics, the description of the API, the erasure of a user."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute

from ...pregel.drivers.spending import read_shared
from ..errors import Refused
from ..handlers import Handlers, User, route
from ..records import Record, select
from ..service import Service, config_of, refusing, version
from ..transfer import ThreadFile, import_thread
from .erasure import erase_user
from .openapi import describe_api, draw_api

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
            await self._records.put(("threads", id, record), seen=[("threads", id, None)])

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
