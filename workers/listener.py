"""One connection on which Postgres notifies a process of jobs that ended or whose streams have
grown. All waiters of the process share it.

Nothing relies on it, since a notice may be lost with its connection: waiters also poll.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from psycopg import Error
from psycopg.conninfo import conninfo_to_dict

from ..checkpoint.sql.postgres_wire import ALIVE, Patient, shares_sessions
from .tables import STATEMENTS

SECONDS_TO_RETRY = 1.0
"""How long to wait before a lost connection is opened again."""

LOG = logging.getLogger("stategraph.workers")

PATIENCE = 5
"""Seconds to wait for a connection, and then for its first answer. `close` may have to wait as
long."""


class Listener:
    """Receives notices of jobs that have ended or whose streams have grown. Its thread and its
    connection are opened when somebody first waits, and live until `close`.

    Args:
        conninfo: where to connect; with None, no notices arrive.
    """

    def __init__(self, conninfo: str | None) -> None:
        given = None if conninfo is None else conninfo_to_dict(conninfo)
        own = {"autocommit": True, "connect_timeout": PATIENCE}
        self._options: Any = given and {**ALIVE, **given, **own}
        self._lock = threading.Lock()
        self._waiters: dict[int, list[Callable[[], object]]] = {}  # by job
        self._thread: threading.Thread | None = None

    @contextmanager
    def notify(self, id: int, wake: Callable[[], object]) -> Iterator[None]:
        """Inside the block, call `wake` on another thread when the job with this id ends or its
        stream has grown."""
        with self._lock:
            self._waiters.setdefault(id, []).append(wake)
            if self._thread is None and self._options:
                self._stop, self._stopped = socket.socketpair()
                self._thread = threading.Thread(
                    target=self._run, name="stategraph-listener", daemon=True
                )
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._waiters[id].remove(wake)
                if not self._waiters[id]:
                    del self._waiters[id]

    def close(self) -> None:
        """End the thread and its connection."""
        if self._thread is not None:
            self._stop.close()
            self._thread.join()
            self._stopped.close()
            self._thread = None

    def _run(self) -> None:
        while True:
            try:
                with self._connect() as connection:
                    if shares_sessions(connection, self._connect):
                        LOG.info(
                            "a pooler that shares sessions does not pass on notifications: "
                            "whoever waits for a job polls instead"
                        )
                        return
                    # psycopg's own handler would decode what any role may send.
                    connection.pgconn.notify_handler = None
                    connection.execute(STATEMENTS["listen_for_ends"])
                    connection.execute(STATEMENTS["listen_for_chunks"])
                    self._wake_all()  # a job may have ended before LISTEN took effect
                    self._listen(connection)
                    return
            except Error:
                with selectors.DefaultSelector() as selector:
                    selector.register(self._stopped, selectors.EVENT_READ)
                    if selector.select(SECONDS_TO_RETRY):
                        return

    def _connect(self) -> Patient:
        connection = Patient.connect(**self._options)
        connection.patience = PATIENCE
        return connection

    def _listen(self, connection: Patient) -> None:
        """Pass on notices until `close`."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stopped, selectors.EVENT_READ)
            selector.register(connection.fileno(), selectors.EVENT_READ)
            while True:
                # Also those that came with the last answer: no socket reports them.
                while (notice := connection.pgconn.notifies()) is not None:
                    self._on_notice(notice.extra)
                if any(key.fileobj is self._stopped for key, _ in selector.select()):
                    return
                connection.pgconn.consume_input()

    def _on_notice(self, payload: bytes) -> None:
        try:
            id = int(payload)
        except ValueError:  # any role may send anything
            LOG.warning(
                "a notification on stategraph's channel did not come from a worker: ignored"
            )
            return
        with self._lock:
            wakes = [*self._waiters.get(id, ())]
        _call_all(wakes)

    def _wake_all(self) -> None:
        with self._lock:
            wakes = [wake for each in self._waiters.values() for wake in each]
        _call_all(wakes)


def _call_all(wakes: Iterable[Callable[[], object]]) -> None:
    for wake in wakes:
        try:
            wake()
        except RuntimeError:
            pass  # its event loop has been closed
