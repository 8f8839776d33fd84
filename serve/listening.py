"""The process of `stategraph serve`: its sockets, uvicorn, and what signals do."""

from __future__ import annotations

import errno
import gc
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette

_COLLECTOR: Final = (10_000, 5, 50)
"""The thresholds of the garbage collector; Python's own are (700, 10, 10). The second is low, so
that what open streams and runs hold moves soon to the oldest generation: these objects are alive,
so a look at them finds little and takes long."""
_BACKLOG: Final = 2048
_ABSENT: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Listen on each address of a host. Clients that connect before `listen` are made to wait.

    Raises:
        OSError: the host has no address on this machine, or the port cannot be used.
    """
    found = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    opened: list[socket.socket] = []
    absent: OSError | None = None
    for family, address in dict.fromkeys((each[0], each[4]) for each in found):
        if opened:  # if any free port will do, it is the same for all addresses
            address = (address[0], opened[0].getsockname()[1], *address[2:])
        try:
            opened.append(socket.create_server(address, family=family, backlog=_BACKLOG))
        except OSError as error:
            if error.errno not in _ABSENT:
                for each in opened:
                    each.close()
                raise
            absent = error  # such as ::1 of localhost on a machine without IPv6
    if not opened and absent is not None:
        raise absent
    return opened


def listen(
    app: Starlette,
    sockets: list[socket.socket],
    *,
    announce: Callable[[str], None],
    drain_seconds: float,
    access_log: bool,
) -> None:
    """Serve until SIGTERM or SIGINT. Runs then pause at once, without waiting for the last client
    to close its stream. A second signal ends the server without waiting for the runs.

    Args:
        announce: called with the server's URL once requests are answered.

    Raises:
        Exception: what the app's lifespan raises.
    """
    config = uvicorn.Config(
        app,
        lifespan="off",  # `_Server` runs it: uvicorn logs a traceback for each error
        log_level="info",
        log_config=None,  # its lines are written like ours
        access_log=access_log,
        timeout_graceful_shutdown=int(drain_seconds) + 5,
    )
    with suppress(KeyboardInterrupt):
        _Server(config, app, announce).run(sockets)


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, app: Starlette, announce: Callable[[str], None]
    ) -> None:
        super().__init__(config)
        self._app = app
        self._announce = announce
        self._lifespan = app.router.lifespan_context(app)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._app.state.begin_to_stop()
        if self.should_exit:
            self.force_exit = True
            super().handle_exit(sig, frame)  # uvicorn re-raises it, which ends the process
        else:
            self.should_exit = True  # a clean exit, once everything is closed

    async def startup(self, sockets: Any = None) -> None:
        await self._lifespan.__aenter__()
        await super().startup(sockets)
        _calm_collector()
        host, port = sockets[0].getsockname()[:2]
        self._announce(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    async def shutdown(self, sockets: Any = None) -> None:
        await super().shutdown(sockets)
        if not self.force_exit:
            await self._lifespan.__aexit__(None, None, None)


def _calm_collector() -> None:
    """Make the garbage collector run less often and skip all objects that exist now: each
    collection stops all requests, and these objects live until the server ends."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTOR)
