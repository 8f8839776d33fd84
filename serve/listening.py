"""The process of `stategraph serve`: its sockets, uvicorn, and what signals do."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.supervisors import ChangeReload

from .limits import MOST_HEAD

_COLLECTOR: Final = (10_000, 5, 50)
"""The thresholds of the garbage collector; Python's own are (700, 10, 10). The second is low, so
that what open streams and runs hold moves soon to the oldest generation: these objects are alive,
so a look at them finds little and takes long."""
HEAD_SECONDS: Final = 10.0
"""How many seconds the head of a request may take to arrive, and a new connection be silent."""
REQUEST_SECONDS: Final = 40.0
"""How many seconds the body may then take: longer than a route waits for it, so that it answers."""
MOST_MESSAGE: Final = 4 * 1024 * 1024
"""The maximum size of a message of a WebSocket, two of which may wait."""
_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n"
    b"content-length: 0\r\n\r\n"
)
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
        http=limit_requests(AutoHTTPProtocol),
        h11_max_incomplete_event_size=MOST_HEAD,
        ws_max_size=MOST_MESSAGE,
        ws_max_queue=2,
        timeout_graceful_shutdown=int(drain_seconds) + 5,
    )
    with suppress(KeyboardInterrupt):
        _Server(config, app, announce).run(sockets)


def listen_again(
    serve: Callable[..., Any], sockets: list[socket.socket], folders: Iterable[Path]
) -> None:
    """Serve in a process of its own until SIGTERM or SIGINT, and in a new one whenever a Python
    file in these folders has changed. Clients that connect meanwhile wait.

    Args:
        serve: called with `sockets=`; can be pickled.
    """
    config = uvicorn.Config("", log_config=None, reload=True, reload_dirs=[*map(str, folders)])
    ChangeReload(config, serve, sockets).run()


def limit_requests(protocol: Any) -> Any:
    """Return a class of HTTP connections like one of uvicorn's, which closes a connection whose
    request is too long or does not come in time. uvicorn's own never do that with httptools."""

    class Connection(protocol):  # type: ignore[misc]
        _timer: asyncio.TimerHandle | None = None
        _size = 0  # of the request's head, as far as it has come

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect(HEAD_SECONDS)

        def connection_lost(self, exc: Exception | None) -> None:
            self._expect(None)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            last, is_head = self.cycle, self._has_all
            if is_head:
                self._size += len(data)
                if self._timer is None:  # the first bytes of a further request
                    self._expect(HEAD_SECONDS)
            super().data_received(data)
            if self.cycle is not last:  # the head is complete
                self._size = 0
                self._expect(None if self._has_all else REQUEST_SECONDS)
            elif not is_head and self._has_all:
                self._expect(None)
            elif is_head and self._size > MOST_HEAD and not self.transport.is_closing():
                if last is None or last.response_complete:
                    self.transport.write(_TOO_LARGE)
                self.transport.close()

        def handle_websocket_upgrade(self, *args: Any) -> None:
            self._expect(None)
            super().handle_websocket_upgrade(*args)

        def on_message_complete(self) -> None:  # of httptools; not told if the response was faster
            super().on_message_complete()
            if self.cycle is not None:
                self.cycle.more_body = False

        @property
        def _has_all(self) -> bool:
            """Whether all requests have come to their ends, so that what comes begins another."""
            return self.cycle is None or not self.cycle.more_body

        def _expect(self, seconds: float | None) -> None:
            if self._timer is not None:
                self._timer.cancel()
            call_later = self.loop.call_later
            self._timer = None if seconds is None else call_later(seconds, self.transport.abort)

    return Connection


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
        # Less often, and without the objects that exist now, which live until the server ends: each
        # collection stops all requests.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_COLLECTOR)
        host, port = sockets[0].getsockname()[:2]
        self._announce(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    async def shutdown(self, sockets: Any = None) -> None:
        await super().shutdown(sockets)
        if not self.force_exit:
            await self._lifespan.__aexit__(None, None, None)
