"""Any pool with `submit(function, *arguments) -> future`: ProcessPoolExecutor, loky, MPI, ...

Such a pool has no way for events while a call runs, so a worker opens one: a connection to a
mailbox of the driver's.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Client,
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
from typing import Any

from .base import Executor, Lost, OnEvent, RemoteCall
from .worker import serve

SECONDS_FOR_KEY = 10.0
"""How long a client of the mailbox may take to show that it has the key."""

SECONDS_TO_RETRY = 0.1
"""How long the mailbox waits before it tries again to accept a connection."""

SECONDS_FOR_EVENTS = 10.0
"""How long events that a call has sent may be on their way after its end."""

LOG = logging.getLogger("stategraph.executors")


class ThreadExecutor(Executor):
    """A thread pool of the user's. Nothing is sent there: functions run as they are, with all that
    the run has."""

    name = "a thread pool"

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.given = pool


class PoolExecutor(Executor):
    """A pool of the user's.

    A call that runs there cannot be ended: at its time limit it is abandoned, and its worker stays
    busy. If a worker dies, a `ProcessPoolExecutor` is broken for good; `ProcessExecutor` replaces
    its workers instead.

    Args:
        pool: has `submit`; whatever crosses is bytes.
    """

    def __init__(self, pool: Any) -> None:
        self.given = pool
        self.name: str = type(pool).__name__

    def submit(self, call: RemoteCall, on_event: OnEvent) -> _PoolHandle:
        """Hand the call to the pool."""
        inbox, address, id = None, None, ""
        if call.sends_events or call.sends_requests:
            mailbox = open_mailbox()
            inbox, address = mailbox.add_inbox(on_event), (mailbox.address, mailbox.key)
            id = inbox.id
        try:
            future = self._send(call.payload, call.parts, address, id, call.sends_requests)
        except BrokenExecutor as broken:
            raise self.explain_broken(broken) from broken
        return _PoolHandle(self, future, inbox)

    def share(self, blob: bytes) -> bytes:
        """Itself: it goes beside the payload, where it is not pickled a second time."""
        return blob

    def _send(self, *arguments: Any) -> Future[Any]:
        """Have the pool call `run_call`."""
        return self.given.submit(run_call, *arguments)  # type: ignore[no-any-return]

    def explain_broken(self, error: BaseException) -> Lost:
        """What to raise for a call when the pool is broken."""
        why = (
            f"{error} A broken {self.name} cannot be repaired: make a new pool, or use "
            "stategraph.executors.ProcessExecutor, which replaces workers that die"
        )
        return Lost(why, final=True)


@dataclass(eq=False)
class _PoolHandle:
    _executor: PoolExecutor
    _future: Future[Any]
    _inbox: EventInbox | None

    def result(self, timeout: float | None = None) -> bytes:
        try:
            answer, sent = self._future.result(timeout)
        except BrokenExecutor as broken:
            self.cancel()
            raise self._executor.explain_broken(broken) from broken
        except CancelledError as cancelled:
            self.cancel()
            why = "the pool was shut down before it began this call"
            raise Lost(why, final=True) from cancelled
        if self._inbox is not None:
            self._inbox.finish(sent)
        return answer  # type: ignore[no-any-return]

    def cancel(self) -> None:
        self._future.cancel()
        if self._inbox is not None:
            self._inbox.close()


# -- events ----------------------------------------------------------------------------------------


class EventInbox:
    """The events of one call, passed on as they come.

    A cluster may start a call several times. So events are counted by start, and the call is over
    when all events of the start that has returned are here.

    Args:
        inboxes: where it is found by its id until nothing more is expected.
    """

    def __init__(self, on_event: OnEvent, inboxes: dict[str, EventInbox]) -> None:
        self.id: str = uuid.uuid4().hex
        self._on_event = on_event
        self._inboxes = inboxes
        self._received: Counter[str] = Counter()
        self._error: Exception | None = None
        self._news = threading.Condition()
        inboxes[self.id] = self

    def receive(self, start: str, event: bytes) -> None:
        """Take one event of one start of the call."""
        try:
            self._on_event(event)
        except Exception as error:  # for the thread that waits, not for the one that reads
            self._error = error
        with self._news:
            self._received[start] += 1
            self._news.notify_all()

    def reply(self, request: bytes) -> bytes | None:
        """Answer a request of the call. It needs no count: the call waits for the reply."""
        return self._on_event(request)

    def finish(self, sent: tuple[str, int]) -> None:
        """Wait until as many events have come as the start that has returned sent. No more are
        taken then.

        Raises:
            RuntimeError: they do not come.
        """
        start, count = sent
        with self._news:
            if not self._news.wait_for(
                lambda: self._received[start] >= count, SECONDS_FOR_EVENTS
            ):
                raise RuntimeError(
                    f"of {count} events that a node has sent from its worker "
                    f"only {self._received[start]} have come"
                )
        if self._error is not None:
            raise self._error
        self.close()

    @property
    def has_begun(self) -> bool:
        """Whether any event has come. The first of a call with a limit says that it has begun."""
        return bool(self._received)

    def close(self) -> None:
        """Drop what still comes."""
        self._inboxes.pop(self.id, None)


class Mailbox:
    """Where workers on this machine connect to send events. Its threads end with the process."""

    def __init__(self) -> None:
        self.key: bytes = uuid.uuid4().bytes
        # Not given the key: then `accept` itself would ask for it, and a client that says nothing
        # would block all.
        self._listener = Listener(backlog=64)
        self.address: Any = self._listener.address
        self._inboxes: dict[str, EventInbox] = {}
        threading.Thread(target=self._accept, name="stategraph-mailbox", daemon=True).start()

    def add_inbox(self, on_event: OnEvent) -> EventInbox:
        """A new inbox for a call."""
        return EventInbox(on_event, self._inboxes)

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:  # the client has gone again, or there are no file descriptors for now
                time.sleep(SECONDS_TO_RETRY)
                continue
            reader = threading.Thread(
                target=self._read, args=(connection,), name="stategraph-mail", daemon=True
            )
            reader.start()

    def _read(self, connection: Connection[Any, Any]) -> None:
        with connection:
            try:
                # The challenges use nothing of a connection but what this has.
                client: Any = _TimedClient(connection)
                deliver_challenge(client, self.key)
                answer_challenge(client, self.key)
            except (AuthenticationError, AssertionError, EOFError, OSError) as error:
                LOG.warning(
                    "a connection to the mailbox of a pool's workers was dropped: "
                    "it has no key (%s)",
                    error,
                )
                return
            try:
                while True:
                    id, start, event = connection.recv()
                    inbox = self._inboxes.get(id)
                    if start is None:
                        connection.send(None if inbox is None else inbox.reply(event))
                    elif inbox is not None:
                        inbox.receive(start, event)
            except Exception:
                # It has ended, or has sent what is no event. Then its next one fails, because this
                # end is closed.
                pass


class _TimedClient:
    """A connection whose other side is asked for the key, and has only so long to answer."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self.send_bytes = connection.send_bytes

    def recv_bytes(self, most: int) -> bytes:
        if not self._connection.poll(SECONDS_FOR_KEY):
            raise AuthenticationError(f"no answer within {SECONDS_FOR_KEY:g} s")
        return self._connection.recv_bytes(most)


_mailboxes: list[Mailbox] = []
_mailboxes_lock = threading.Lock()


def open_mailbox() -> Mailbox:
    """The mailbox of this process. One serves all pools, since pools come and go."""
    with _mailboxes_lock:
        if not _mailboxes:
            _mailboxes.append(Mailbox())
        return _mailboxes[0]


def _forget_mailbox() -> None:
    """In the child of a fork: the threads that read the parent's mailbox are not here."""
    global _mailboxes_lock
    _mailboxes_lock = threading.Lock()  # another thread of the parent may have held the old one
    _mailboxes.clear()


os.register_at_fork(after_in_child=_forget_mailbox)

# -- the worker's side -----------------------------------------------------------------------------

_connections: dict[Any, Connection[Any, Any]] = {}
_connections_lock = threading.Lock()
os.register_at_fork(after_in_child=_connections.clear)


def run_call(
    payload: bytes,
    parts: Sequence[bytes],
    address: tuple[Any, bytes] | None,
    id: str,
    requests: bool = False,
) -> tuple[bytes, tuple[str, int]]:
    """Serve a call in a worker.

    Args:
        parts: of the payload.
        address: of the mailbox, and its key; None if no events are wanted.
        id: of the call's inbox.
        requests: the function may send requests.

    Returns:
        What `serve` returned; and the id of this start of the call, with the number of events it
        has sent.
    """
    start, count = uuid.uuid4().hex, 0

    def send_event(event: bytes) -> None:
        nonlocal count
        with _connection_to(address) as connection:
            connection.send((id, start, event))
            count += 1

    def send_request(request: bytes) -> bytes:
        with _connection_to(address) as connection:
            connection.send((id, None, request))
            reply: bytes | None = connection.recv()
        if reply is None:
            raise RuntimeError("the driver waits for the call of this node no longer")
        return reply

    if address is None:
        return serve(payload, parts), (start, count)
    return serve(payload, parts, send_event, send_request if requests else None), (start, count)


@contextmanager
def _connection_to(address: Any) -> Iterator[Connection[Any, Any]]:
    """This process's connection to a mailbox; one thread uses it at a time.

    Raises:
        RuntimeError: the driver cannot be reached.
    """
    with _connections_lock:
        try:
            connection = _connections.get(address)
            if connection is None:
                connection = _connections[address] = Client(address[0], authkey=address[1])
            yield connection
        except (EOFError, OSError) as error:
            raise RuntimeError(
                f"a worker cannot reach its driver: {error}; writers, messages, time limits and "
                "effects of nodes on a pool need workers on the driver's machine"
            ) from error


# -- sub-interpreters ------------------------------------------------------------------------------
# Python 3.14's pool: workers in the driver's own process, each with a lock of its own. What differs
# is how a call arrives: an interpreter has the paths that Python starts with, not those that the
# driver has added.

class InterpreterExecutor(PoolExecutor):
    """An `InterpreterPoolExecutor` of the user's.

    Extension modules that do not load in sub-interpreters (pydantic's, NumPy's) cannot be used by
    its nodes, and a node that crashes ends the driver too.
    """

    shares_main = False

    def _send(self, *arguments: Any) -> Future[Any]:
        there = (tuple(sys.path), run_call.__module__)
        return self.given.submit(run_call_there, *there, *arguments)  # type: ignore[no-any-return]


def run_call_there(path: tuple[str, ...], module: str, /, *arguments: Any) -> Any:
    """Find `run_call`, and call it. Python sends a function that uses no globals as its code."""
    import sys
    from importlib import import_module

    if tuple(sys.path) != path:
        sys.path[:] = path
    return import_module(module).run_call(*arguments)
