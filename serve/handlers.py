"""What all handlers share, and the decorator that names the routes of one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from .authorize import LangGraphAuth
from .records import Record
from .service import Service

_PLACES = "_places"
Handler = TypeVar("Handler", bound=Callable[..., Any])


def route(*places: str) -> Callable[[Handler], Handler]:
    """Make a method the handler of some routes, such as "GET /threads/{thread_id}"; several methods
    of HTTP are separated by commas."""

    def mark(handler: Handler) -> Handler:
        setattr(handler, _PLACES, places)
        return handler

    return mark


class Handlers:
    """The handlers of some routes."""

    def __init__(self, service: Service) -> None:
        self._service, self._records, self._runs = service, service.records, service.runs
        self._user, self._body, self._query = service.user, service.body, service.query

    async def _thread(self, request: Request) -> Record:
        """Return the thread that a request names.

        Raises:
            Refused: there is none, or it is another user's.
        """
        owner = await self._user(request)
        return await self._records.get("threads", request.path_params["thread_id"], owner=owner)

    def _checked(self, path: str, handler: Any) -> Any:
        """Return a handler that asks first whether the request is allowed."""

        @wraps(handler)
        async def check(request: Request) -> Response:
            await self._service.authorize(request, path)
            return cast("Response", await handler(request))

        return check if isinstance(self._service.auth, LangGraphAuth) else handler

    def routes(self) -> list[BaseRoute]:
        """Return the routes, in the order of their handlers."""
        return [
            Route(path, self._checked(path, getattr(self, name)), methods=methods.split(","))
            for name, handler in vars(type(self)).items()
            for methods, path in map(str.split, getattr(handler, _PLACES, ()))
        ]
