"""LangGraph's deployment files, as the server takes them: `langgraph.json`, and the `Auth` object
of `langgraph_sdk` that it names. Nothing here knows the server."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

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


class Deployment(NamedTuple):
    """What a deployment file names.

    Attributes:
        graphs: as the command line names them.
        auth: the place of the `Auth` object, if there is one.
    """

    graphs: list[str]
    auth: str | None


def read_deployment(file: Path) -> Deployment:
    """Read a deployment file, set the variables of its `env` that are not set, and let the folders
    among its dependencies be imported.

    Raises:
        OSError, ValueError, KeyError, AttributeError: it cannot be read.
    """
    told, folder = json.loads(file.read_text()), file.parent.resolve()

    def place(path: str) -> str:
        return str(folder / path) if path.partition(":")[0].endswith(".py") else path

    for each in told.get("dependencies", ()):
        if each.startswith("."):
            sys.path.insert(0, str(folder / each))
    env = told.get("env", {})
    if isinstance(env, str):
        lines = (folder / env).read_text().splitlines()
        pairs = [each.split("=", 1) for each in lines if "=" in each and not each.startswith("#")]
        env = {name.strip(): text.strip().strip("'\"") for name, text in pairs}
    for name, text in env.items():
        os.environ.setdefault(name, text)
    graphs = []
    for name, graph in told.get("graphs", {}).items():
        graphs.append(f"{name}={place(graph if isinstance(graph, str) else graph['path'])}")
    auth = told.get("auth", {}).get("path")
    return Deployment(graphs, None if auth is None else place(auth))


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


class AuthHandlers:
    """The handlers of an `Auth` object. What one raises with a `status_code` refuses the request.

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

    async def identify(self, request: Any) -> dict[str, Any]:
        """Return what is known of the user who sends a request of Starlette; it has an `identity`
        if the user is known."""
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
        found = await _result(self._authenticate(**given))
        return {"identity": found} if isinstance(found, str) else _fields(found)

    async def decide(self, who: Mapping[str, Any], action: tuple[str, str], value: Any) -> Any:
        """Return what `@auth.on` says to a deed: False, a condition on the metadata, or nothing.

        Args:
            who: what is known of the user.
            action: the resource and the action.
            value: the names in the path and the body, which the handler may change.
        """
        kinds = [action, (action[0], "*"), ("*", action[1]), ("*", "*")]
        handlers = [each for kind in kinds for each in self._handlers.get(kind, ())]
        handler = handlers[0] if handlers else next(reversed(self._global), None)
        if handler is None:
            return None
        what = {"resource": action[0], "action": action[1], "permissions": who["permissions"]}
        return await _result(handler(SimpleNamespace(user=KnownUser(who), **what), value))


class KnownUser(dict[str, Any]):
    """A user, whose fields are also attributes."""

    def __getattr__(self, name: str) -> Any:
        """Return a field."""
        return self[name]


def _fields(found: Any) -> dict[str, Any]:
    """Return what a user object says, as a dict."""
    if found is None:
        return {}
    if isinstance(found, Mapping):
        return dict(found)
    names = ("identity", "display_name", "is_authenticated", "permissions")
    return {name: getattr(found, name) for name in names if hasattr(found, name)}


async def _result(found: Any) -> Any:
    return await found if inspect.isawaitable(found) else found
