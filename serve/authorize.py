"""LangGraph's `Auth` object: who sends a request (`@auth.authenticate`), and what a user may do
(`@auth.on`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from starlette.requests import Request

from ..store.paths import escape
from .errors import Refused

_NO_BODY: Final = ("GET", "DELETE", "HEAD")
_BY_METHOD: Final = {
    "GET": "read",
    "POST": "create",
    "PUT": "put",
    "PATCH": "update",
    "DELETE": "delete",
}
_BY_END: Final = {
    "search": "search",
    "count": "search",
    "history": "read",
    "checkpoint": "read",
    "events": "read",
    "versions": "read",
    "prune": "delete",
    "cancel": "update",
    "latest": "update",
    "state": "update",
    "namespaces": "list_namespaces",
}
"""The actions of POST by the ends of paths."""


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


def action_of(method: str, path: str) -> tuple[str, str]:
    """Return what a request does, in the words of `@auth.on`: the resource and the action.

    >>> action_of("POST", "/threads/{thread_id}/runs/stream"), action_of("GET", "/assistants/{id}")
    (('threads', 'create_run'), ('assistants', 'read'))
    """
    parts = path.strip("/").split("/")
    first, last = parts[0], parts[-1]
    action = _BY_METHOD.get(method, "read")
    if method == "POST":
        action = _BY_END.get(last, action)
    if "/crons" in path:
        return "crons", action
    if first in ("assistants", "store"):
        return first, "get" if first == "store" and method == "GET" else action
    begins = "/runs" in path or first in ("a2a", "ag-ui", "mcp") or last == "commands"
    return "threads", "create_run" if begins and action == "create" else action


class LangGraphAuth:
    """Asks an `Auth` object of `langgraph_sdk`.

    Args:
        auth: the object, with its handlers.

    Raises:
        ValueError: it has no handler of `@auth.authenticate`.
    """

    def __init__(self, auth: Any) -> None:
        self._authenticate: Callable[..., Any] = auth._authenticate_handler
        if self._authenticate is None:
            raise ValueError("the Auth object needs a function with @auth.authenticate")
        self._wanted = inspect.signature(self._authenticate).parameters
        self._handlers: Mapping[tuple[str, str], Any] = auth._handlers
        self._global: list[Any] = auth._global_handlers

    async def __call__(self, request: Request) -> str | None:
        """Return the user who sends a request."""
        headers = {name.encode(): text.encode() for name, text in request.headers.items()}
        offered = {
            "request": request,
            "path": request.url.path,
            "method": request.method,
            "path_params": request.path_params,
            "query_params": dict(request.query_params),
            "headers": headers,
            "authorization": request.headers.get("authorization"),
            "scope": request.scope,
        }
        given = {name: offered[name] for name in self._wanted if name in offered}
        found = await _ask(self._authenticate, **given)
        known = {"identity": found} if isinstance(found, str) else _fields(found)
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
        resource, action = action_of(method, path)
        keys = [(resource, action), (resource, "*"), ("*", action), ("*", "*")]
        handlers = [each for key in keys for each in self._handlers.get(key, ())] or self._global
        caller = CALLER.get()
        if not handlers or caller is None:
            return
        who = KnownUser(known_user(user))
        what = {"resource": resource, "action": action}
        context = SimpleNamespace(user=who, permissions=who["permissions"], **what)
        found = await _ask(handlers[-1 if handlers is self._global else 0], context, value)
        if found is False:
            raise Refused(403, f"auth does not let you {action} {resource}")
        CALLER.set(Caller(caller.known, found if isinstance(found, Mapping) else {}))


class KnownUser(dict[str, Any]):
    """A user, whose fields are also attributes."""

    __getattr__ = dict.__getitem__


def known_user(user: str) -> dict[str, Any]:
    """Return what is known of a user: what auth has said, and the rest by default."""
    caller = CALLER.get()
    said = caller.known if caller is not None and caller.known["identity"] == user else {}
    told: dict[str, Any] = {"identity": user, "display_name": user}
    return {**told, "is_authenticated": True, "permissions": [], **said}


def _fields(found: Any) -> dict[str, Any]:
    """Return what a user object says, as a dict."""
    if found is None:
        return {}
    if isinstance(found, Mapping):
        return dict(found)
    names = ("identity", "display_name", "is_authenticated", "permissions")
    return {name: getattr(found, name) for name in names if hasattr(found, name)}


async def _ask(handler: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a handler, and let its HTTPException refuse the request."""
    try:
        found = handler(*args, **options)
        return await found if inspect.isawaitable(found) else found
    except Exception as error:
        status = getattr(error, "status_code", None)
        if not isinstance(status, int):
            raise
        raise Refused(status, str(getattr(error, "detail", None) or error)) from error
