"""The sender of a request: what LangGraph's `Auth` object says of the user, and lets a user do and
see."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request

from ..store.paths import escape
from .errors import Refused


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request.

    Attributes:
        known: what `@auth.authenticate` has said of the user.
        filter: the condition on the metadata of what the user may see, from `@auth.on`.
    """

    known: Mapping[str, Any]
    filter: Mapping[str, Any]


CALLER: Final[ContextVar[Caller | None]] = ContextVar("stategraph.caller", default=None)
"""The sender of the current request, if LangGraph's `Auth` has identified it."""


def seen_by_caller() -> dict[str, Any]:
    """Return the condition on what the sender of the current request may see."""
    caller = CALLER.get()
    filter = {} if caller is None else caller.filter
    return {f"metadata.{escape(key)}": each for key, each in filter.items()}


def made_by_caller() -> dict[str, Any]:
    """Return the metadata of a thread that the sender of the current request makes, so that the
    sender may see it."""
    caller = CALLER.get()
    filter = {} if caller is None else caller.filter
    return {key: each for key, each in filter.items() if not isinstance(each, Mapping)}


class LangGraphAuth:
    """Asks an `Auth` object of `langgraph_sdk`.

    Raises:
        ValueError: it has no handler of `@auth.authenticate`.
    """

    def __init__(self, auth: Any) -> None:
        from ..compat import deployment

        self._handlers, self._action_of = deployment.AuthHandlers(auth), deployment.action_of

    async def __call__(self, request: Request) -> str | None:
        """Return the user who sends a request."""
        known = await _ask(self._handlers.identify(request))
        if not known.get("identity"):
            return None
        CALLER.set(Caller(known, {}))
        return str(known["identity"])

    async def check(self, user: str, method: str, path: str, value: dict[str, Any]) -> None:
        """Ask whether a user may do something.

        Args:
            path: the path of the route.
            value: the names in the path and the body, which the handler may change.

        Raises:
            Refused: the user may not.
        """
        caller, (resource, action) = CALLER.get(), self._action_of(method, path)
        if caller is None:
            return
        found = await _ask(self._handlers.decide(known_user(user), (resource, action), value))
        if found is False:
            raise Refused(403, f"auth does not let you {action} {resource}")
        CALLER.set(Caller(caller.known, found if isinstance(found, Mapping) else {}))


def known_user(user: str) -> dict[str, Any]:
    """Return what is known of a user: what auth has said, and the rest by default."""
    caller = CALLER.get()
    said = caller.known if caller is not None and caller.known["identity"] == user else {}
    told: dict[str, Any] = {"identity": user, "display_name": user}
    return {**told, "is_authenticated": True, "permissions": [], **said}


async def _ask(handler: Awaitable[Any]) -> Any:
    """Await a handler, and let its HTTPException refuse the request."""
    try:
        return await handler
    except Exception as error:
        status = getattr(error, "status_code", None)
        if not isinstance(status, int):
            raise
        raise Refused(status, str(getattr(error, "detail", None) or error)) from error
