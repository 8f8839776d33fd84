"""What all handlers share, and the decorator that names the routes of one.

The parameters of a handler say what it reads of a request, one after the other: `request` itself;
`owner`, the user who sends it (None without `auth`); `thread`, `cron`, `assistant` and `run`, the
records that the path names; `query` and `body`, validated by the models with which they are
annotated (a GET has its body in the query); any other name is a part of the path. What a handler
returns is sent as JSON, None as an empty response, and a `Response` as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, get_type_hints

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from .authorize import LangGraphAuth
from .bodies import Search
from .errors import Refused
from .records import Kind, Record, may_see, select
from .service import Service, answer

_PLACES = "_places"
Handler = TypeVar("Handler", bound=Callable[..., Any])
User = str | None
"""The id of the user who sends a request; None without `auth`."""


def route(*places: str) -> Callable[[Handler], Handler]:
    """Make a method the handler of some routes, such as "GET /threads/{thread_id}"; several methods
    of HTTP are separated by commas."""

    def mark(handler: Handler) -> Handler:
        setattr(handler, _PLACES, places)
        return handler

    return mark


class Handlers:
    """The handlers of some routes."""

    asks_auth = True
    """Whether the handlers of `@auth.on` decide about the requests."""

    def __init__(self, service: Service) -> None:
        self._service, self._records, self._runs = service, service.records, service.runs

    def serve(self, path: str, handler: Any) -> Any:
        """Return the endpoint of a route: it reads what the handler asks for, and sends what it
        returns."""
        wanted = get_type_hints(handler)
        wanted.pop("return", None)
        guards = self.asks_auth and isinstance(self._service.auth, LangGraphAuth)

        @wraps(handler)
        async def endpoint(request: Request) -> Response:
            if guards:
                await self._service.authorize(request, path)
            given = {name: await self._read(request, name, wanted[name]) for name in wanted}
            found = await handler(**given)
            if isinstance(found, Response):
                return found
            return Response(status_code=204) if found is None else answer(found)

        return endpoint

    async def _read(self, request: Request, name: str, kind: Any) -> Any:
        """Return an argument of a handler.

        Raises:
            Refused: the request lacks what is wanted, or it is another user's.
        """
        service = self._service
        match name:
            case "request":
                return request
            case "owner":
                return await service.user(request)
            case "thread" | "cron" | "assistant" | "run":
                id, owner = request.path_params[f"{name}_id"], await service.user(request)
                if name == "run":
                    return await self._find_run(id, request.path_params.get("thread_id"), owner)
                if name == "assistant":
                    return await service.assistant(id, owner)
                records: Any = f"{name}s"
                return await self._records.get(records, id, owner=owner)
            case "body" if request.method != "GET":
                return await service.body(request, kind)
            case "body" | "query":
                return service.query(request, kind)
        return request.path_params.get(name)

    async def _find_run(self, id: str, thread_id: str | None, owner: User) -> Record:
        """Return a run. Without its thread it is found until it has ended, and then for as long as
        it is in memory.

        Raises:
            Refused: there is none, or it is another user's.
        """
        of = "" if thread_id is None else f" of the thread {thread_id!r}"
        if thread_id is None:
            found = await self._records.search("unfinished", filter={"run_id": id}, limit=1)
            run = found[0] if found else self._runs.recall(id)
            thread_id = run["thread_id"] if run else None
        record = None if thread_id is None else await self._runs.find(id, thread_id)
        if record is None or not may_see(record, owner):
            raise Refused(404, f"there is no run {id!r}{of}")
        return record

    async def _search(self, kind: Kind, owner: User, body: Search) -> list[Record]:
        """Return what clients see of the records that match."""
        found = await self._records.search(kind, filter=body.filter, owner=owner, **body.page)
        return [select(each, body.select) for each in found]

    async def _thread(self, id: str, owner: User) -> Record:
        """Return a thread.

        Raises:
            Refused: there is none, or it is another user's.
        """
        return await self._records.get("threads", id, owner=owner)

    def routes(self) -> list[BaseRoute]:
        """Return the routes, in the order of their handlers."""
        return [
            Route(path, self.serve(path, getattr(self, name)), methods=methods.split(","))
            for name, handler in vars(type(self)).items()
            for methods, path in map(str.split, getattr(handler, _PLACES, ()))
        ]
