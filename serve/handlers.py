"""What all handlers share, and the decorator that names the routes of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

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

    def routes(self) -> list[BaseRoute]:
        """Return the routes, in the order of their handlers."""
        return [
            Route(path, getattr(self, name), methods=methods.split(","))
            for name, handler in vars(type(self)).items()
            for methods, path in map(str.split, getattr(handler, _PLACES, ()))
        ]
