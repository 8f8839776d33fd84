"""The routes of the other protocols, AG-UI and MCP, each loaded on its first request."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from ...extras import install_command
from ..errors import Refused
from ..handlers import Handlers, User, route


class Protocols(Handlers):
    """The MCP server, which is created on the first request, and the handler of `/ag-ui`."""

    _mcp: Any = None

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [*super().routes(), Route("/mcp", self)]

    @route("POST /ag-ui/{assistant_id}")
    async def run_agent(self, request: Request, assistant_id: str, owner: User) -> Response:
        """Run a graph and stream its events as AG-UI defines them."""
        module = await _load("ag_ui.routes")
        response: Response = await module.run_agent(self._service, request, assistant_id, owner)
        return response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._service.authorize(Request(scope), "/mcp", reads_body=False)
        module = await _load("mcp.server")
        if self._mcp is None:
            self._mcp = module.McpServer(self._service)
        await self._mcp(scope, receive, send)

    async def close(self) -> None:
        """Close the sessions of MCP."""
        if self._mcp is not None:
            await self._mcp.close()
            self._mcp = None


async def _load(name: str) -> Any:
    """Import a module of this package, and with it the package of the same name that it needs, in a
    thread since that takes long.

    Raises:
        Refused: the package is not installed.
    """
    try:
        return await asyncio.to_thread(import_module, f".{name}", __package__)
    except ModuleNotFoundError as error:
        needs = name.partition(".")[0]
        if (error.name or "").partition(".")[0] != needs:
            raise
        extra = needs.replace("_", "-")
        raise Refused(501, f"needs the extra {extra!r}: {install_command(extra)}") from None
