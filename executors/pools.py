"""Any pool with `submit(function, *arguments) -> future`: ProcessPoolExecutor, loky, MPI, ...

Such a pool has no way for events while a call runs, so a worker opens one: a connection to a mailbox of the driver's.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Future, ThreadPoolExecutor
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from typing import Any

from .call import Call, Executor, Hear, Lost
from .worker import serve

SECONDS_FOR_KEY = 10.0
"""How long who connects to the mailbox may take to show that it has the key."""

AGAIN = 0.1
"""Seconds until the mailbox tries again to accept a connection."""

LOG = logging.getLogger("stategraph.executors")

SECONDS_FOR_MAIL = 10.0
"""How long events that a call has sent may be on their way after its end."""


class Threads(Executor):
    """A thread pool of the user's: functions run there as they are, with all that a run lends."""

    name = "a thread pool"

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.given = pool


class PoolExecutor(Executor):
    """A pool of the user's.

    A call that is under way cannot be ended there: at its time limit it is abandoned and its worker stays busy. If a
    worker dies, a `ProcessPoolExecutor` is broken for good; `ProcessExecutor` replaces its workers instead.

    Args:
        pool: has `submit`; whatever crosses is bytes.
    """

    def __init__(self, pool: Any) -> None:
        self.given = pool
        self.name = type(pool).__name__

    def submit(self, call: Call, hear: Hear) -> _Flight:
        """Hand the call to the pool."""
        inbox = address = None
        if call.speaks:
            mailbox = the_mailbox()
            inbox, address = mailbox.inbox(hear), (mailbox.address, mailbox.key)
        try:
            future = self._sent(call.payload, address, "" if inbox is None else inbox.id)
        except BrokenExecutor as broken:
            raise self._broken(broken) from broken
        return _Flight(self, future, inbox)

    def _sent(self, *arguments: Any) -> Future[Any]:
        """Have the pool call `carry`."""
        return self.given.submit(carry, *arguments)  # type: ignore[no-any-return]

    def _broken(self, error: BaseException) -> Lost:
        way_out = "make a new pool, or use stategraph.executors.ProcessExecutor, which replaces workers that die"
        return Lost(f"{error} A broken {self.name} cannot be mended: {way_out}", final=True)


class _Flight:
    def __init__(self, executor: PoolExecutor, future: Future[Any], inbox: Inbox | None) -> None:
        self._executor = executor
        self._future = future
        self._inbox = inbox

    def result(self, timeout: float | None = None) -> bytes:
        try:
            answer, told = self._future.result(timeout)
        except BrokenExecutor as broken:
            self.cancel()
            raise self._executor._broken(broken) from broken
        except CancelledError as cancelled:
            self.cancel()
            raise Lost("the pool was shut down before it began this call", final=True) from cancelled
        if self._inbox is not None:
            self._inbox.wait(told)
            self._inbox.close()
        return answer  # type: ignore[no-any-return]

    def cancel(self) -> None:
        self._future.cancel()
        if self._inbox is not None:
            self._inbox.close()


# -- events -----------------------------------------------------------------------------------------------------


class Inbox:
    """The events of one call, however often an engine starts it. They are passed on in the order of their numbers.

    Args:
        gone: called when nothing more is expected.
    """

    def __init__(self, hear: Hear, gone: Callable[[str], Any]) -> None:
        self.id = uuid.uuid4().hex
        self._hear = hear
        self._gone = gone
        self._heard: dict[str, int] = {}
        self._error: Exception | None = None
        self._news = threading.Condition()

    def take(self, start: str, event: bytes) -> None:
        """An event has come. `start` tells one start of the call from another."""
        try:
            self._hear(event)
        except Exception as error:  # for the thread that waits, not for the one that reads
            self._error = error
        with self._news:
            self._heard[start] = self._heard.get(start, 0) + 1
            self._news.notify_all()

    def wait(self, told: tuple[str, int]) -> None:
        """Wait until all events of the start that has ended are here.

        Raises:
            RuntimeError: they do not come.
        """
        start, count = told
        with self._news:
            if not self._news.wait_for(lambda: self._heard.get(start, 0) >= count, SECONDS_FOR_MAIL):
                heard = self._heard.get(start, 0)
                raise RuntimeError(f"of {count} events that a node has sent from its worker only {heard} have come")
        if self._error is not None:
            raise self._error

    @property
    def begun(self) -> bool:
        """Whether anything was heard: the first that a limited call tells is that it has begun."""
        return bool(self._heard)

    def close(self) -> None:
        """Nobody listens any longer."""
        self._gone(self.id)


class Mailbox:
    """Where workers on this machine connect to send events. Its threads end with the process."""

    def __init__(self) -> None:
        self.key = uuid.uuid4().bytes
        self._listener = Listener(backlog=64)  # without the key: who says nothing would keep all others waiting
        self.address = self._listener.address
        self._inboxes: dict[str, Inbox] = {}
        threading.Thread(target=self._accept, name="stategraph-mailbox", daemon=True).start()

    def inbox(self, hear: Hear) -> Inbox:
        """A new inbox for a call."""
        inbox = Inbox(hear, lambda id: self._inboxes.pop(id, None))
        self._inboxes[inbox.id] = inbox
        return inbox

    def _accept(self) -> None:
        while True:
            try:
                line = self._listener.accept()
            except OSError:  # gone again; or there are no more file descriptors, for now
                time.sleep(AGAIN)
                continue
            threading.Thread(target=self._read, args=(line,), name="stategraph-mail", daemon=True).start()

    def _read(self, line: Connection[Any, Any]) -> None:
        with line:
            try:
                asked: Any = _Asked(line)  # it sends and receives bytes: these two need no more
                deliver_challenge(asked, self.key)
                answer_challenge(asked, self.key)
            except (AuthenticationError, AssertionError, EOFError, OSError) as error:
                LOG.warning("a connection to the mailbox of a pool's workers was dropped: it has no key (%s)", error)
                return
            try:
                while True:
                    id, start, event = line.recv()
                    inbox = self._inboxes.get(id)
                    if inbox is not None:
                        inbox.take(start, event)
            except Exception:  # it has ended, or sends what is no mail: who sends on is told by a line that is closed
                pass


class _Asked:
    """A connection that is asked for the key, and has only so long to answer."""

    def __init__(self, line: Connection[Any, Any]) -> None:
        self._line = line
        self.send_bytes = line.send_bytes

    def recv_bytes(self, most: int) -> bytes:
        if not self._line.poll(SECONDS_FOR_KEY):
            raise AuthenticationError(f"no answer within {SECONDS_FOR_KEY:g} s")
        return self._line.recv_bytes(most)


_mailboxes: list[Mailbox] = []
_mailboxes_lock = threading.Lock()


def the_mailbox() -> Mailbox:
    """That of this process, for all pools: pools come and go."""
    with _mailboxes_lock:
        if not _mailboxes:
            _mailboxes.append(Mailbox())
        return _mailboxes[0]


def _leave_parents_mail() -> None:
    """In the child of a fork: nobody reads there for us."""
    global _mailboxes_lock
    _mailboxes_lock = threading.Lock()
    _mailboxes.clear()


os.register_at_fork(after_in_child=_leave_parents_mail)

# -- the other side ---------------------------------------------------------------------------------------------

NEAR = "writers, messages and time limits of nodes on a pool need workers on the driver's machine"
_lines: dict[Any, Connection[Any, Any]] = {}
_lines_lock = threading.Lock()
os.register_at_fork(after_in_child=_lines.clear)


def carry(payload: bytes, address: tuple[Any, bytes] | None, id: str) -> tuple[bytes, tuple[str, int]]:
    """Serve a call in a worker. What it returned, and how many events it has sent."""
    start, count = uuid.uuid4().hex, 0

    def tell(event: bytes) -> None:
        nonlocal count
        assert address is not None
        with _lines_lock:
            line = _lines.get(address)
            try:
                if line is None:
                    line = _lines[address] = Client(address[0], authkey=address[1])
                line.send((id, start, event))
            except OSError as error:
                raise RuntimeError(f"a worker cannot reach its driver: {error}; {NEAR}") from error
            count += 1

    answer = serve(payload, (), tell if address is not None else None)
    return answer, (start, count)
