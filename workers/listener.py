"""One connection on which a process hears which jobs ended, for all who wait in it. It only tells; nobody relies on it,
since a notice may be lost with its connection: who waits looks again after a while."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from psycopg import Error
from psycopg.conninfo import conninfo_to_dict

from ..checkpoint.sql.postgres_wire import ALIVE, Patient, shares_sessions
from .tables import STATEMENTS

AGAIN = 1.0
"""Seconds until a lost connection is tried again."""

LOG = logging.getLogger("stategraph.workers")

PATIENCE = 5
"""Seconds to wait for a connection, and then for its first answer: `close` may have to wait as long."""


class Listener:
    """Hears of jobs that ended. Its thread and its connection live while somebody waits for the first time, until it is
    closed.

    Args:
        conninfo: where to connect; None: nothing is ever heard.
    """

    def __init__(self, conninfo: str | None) -> None:
        given = None if conninfo is None else conninfo_to_dict(conninfo)
        self._options: Any = given and {**ALIVE, **given, "autocommit": True, "connect_timeout": PATIENCE}
        self._lock = threading.Lock()
        self._waiting: dict[int, list[Callable[[], object]]] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def told(self, id: int, wake: Callable[[], object]) -> Iterator[None]:
        """Inside, `wake` is called when the job of this id ends; on another thread."""
        with self._lock:
            self._waiting.setdefault(id, []).append(wake)
            if self._thread is None and self._options:
                self._stop, self._stopped = socket.socketpair()
                self._thread = threading.Thread(target=self._listen, name="stategraph-listener", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._waiting[id].remove(wake)
                if not self._waiting[id]:
                    del self._waiting[id]

    def close(self) -> None:
        """Hear no more."""
        if self._thread is not None:
            self._stop.close()
            self._thread.join()
            self._stopped.close()
            self._thread = None

    def _listen(self) -> None:
        while True:
            try:
                with self._connected() as connection:
                    if shares_sessions(connection, self._connected):
                        LOG.info("a pooler that shares sessions hears no notices: who waits looks again and again")
                        return
                    connection.pgconn.notify_handler = None  # psycopg's own decodes what any role may have sent
                    connection.execute(STATEMENTS["listen_for_ends"])
                    self._wake(None)  # what ended before was not heard
                    self._hear(connection)
                    return
            except Error:
                with selectors.DefaultSelector() as selector:
                    selector.register(self._stopped, selectors.EVENT_READ)
                    if selector.select(AGAIN):
                        return

    def _connected(self) -> Patient:
        connection = Patient.connect(**self._options)
        connection.patience = PATIENCE
        return connection

    def _hear(self, connection: Patient) -> None:
        """Until it is closed."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stopped, selectors.EVENT_READ)
            selector.register(connection.fileno(), selectors.EVENT_READ)
            while True:
                if any(key.fileobj is self._stopped for key, _ in selector.select()):
                    return
                connection.pgconn.consume_input()
                while (notice := connection.pgconn.notifies()) is not None:
                    try:
                        id = int(notice.extra)
                    except ValueError:  # any role may send anything
                        LOG.warning("a notice on the channel of stategraph is not one of a worker; it is ignored")
                    else:
                        self._wake(id)

    def _wake(self, id: int | None) -> None:
        with self._lock:
            waiting = self._waiting.values() if id is None else [self._waiting.get(id, [])]
            found = [wake for each in waiting for wake in each]
        for wake in found:
            try:
                wake()
            except RuntimeError:
                pass  # its event loop was closed meanwhile
