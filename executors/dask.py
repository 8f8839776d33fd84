"""Functions of nodes on the workers of a Dask cluster: the extra `dask`.

Dask by itself restarts a call whose worker dies. Large parts are scattered once and go from worker
to worker.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from distributed import Client, KilledWorker, get_worker
from distributed.client import FutureCancelledError

from .base import Executor, Lost, OnEvent, RemoteCall
from .pools import EventInbox
from .worker import serve

SECONDS_FOR_REPLY = 120.0
"""How long a worker waits for a reply: longer than a checkpointer takes. Nothing tells it that the
driver has gone."""


class DaskExecutor(Executor):
    """A Dask cluster.

    A call that runs cannot be ended there: at its time limit it is abandoned, and its worker's
    thread stays busy. A worker that dies costs all its calls a try. Dask restarts them by itself,
    as often as its setting `distributed.scheduler.allowed-failures` (3) says. A call that still has
    not finished is retried alone, so that calls which merely shared its worker succeed. With 0 it
    is as on other executors: three tries.

    Args:
        client: connected, and not `asynchronous`.

    Raises:
        TypeError: the client is asynchronous.
    """

    def __init__(self, client: Client) -> None:
        if client.asynchronous:
            raise TypeError(
                "executor must be a synchronous distributed.Client, got an asynchronous one: "
                "make it outside of a coroutine"
            )
        self.given = client
        self.name = "Dask"
        self._topic = f"stategraph-{uuid.uuid4().hex}"
        self._inboxes: dict[str, EventInbox] = {}
        self._subscribed = False
        self._lock = threading.Lock()
        self._abandoned: set[Any] = set()
        self.quarantine: AbstractContextManager[Any] = threading.Lock()

    def submit(self, call: RemoteCall, on_event: OnEvent) -> _DaskHandle:
        """Hand the call to the scheduler.

        Raises:
            RuntimeError: the client is closed.
        """
        self._check_open()
        wants_inbox = call.sends_events or call.sends_requests
        inbox = self._add_inbox(on_event) if wants_inbox else None
        topic = None if inbox is None else (self._topic, inbox.id, call.sends_requests)
        key = f"{call.node}-{uuid.uuid4().hex}"  # never the same: equal calls are not to be merged
        future = self.given.submit(
            run_call, call.payload, list(call.parts), topic, key=key, pure=False
        )
        return _DaskHandle(self, call, future, inbox)

    def share(self, blob: bytes) -> Any:
        """Scatter a large part: to one worker, from which the others fetch it."""
        self._check_open()
        return self.given.scatter(blob, hash=False)

    def attach(self, blob: bytes) -> bytes:
        """Itself: it travels with its call, for to scatter it is a round trip of its own."""
        return blob

    def _check_open(self) -> None:
        if self.given.status in ("closing", "closed"):
            raise RuntimeError("executor must be connected, but this distributed.Client is closed")

    def hold_until_done(self, future: Any) -> None:
        """Hold an abandoned call until it ends: Dask cancels what nobody holds."""
        self._abandoned.add(future)
        future.add_done_callback(self._abandoned.discard)

    def _add_inbox(self, on_event: OnEvent) -> EventInbox:
        with self._lock:
            if not self._subscribed:
                self.given.subscribe_topic(self._topic, self._receive)
                self._subscribed = True
        return EventInbox(on_event, self._inboxes)

    def _receive(self, event: tuple[float, Any]) -> None:
        """Take one event, on the client's own thread."""
        id, sender, data = event[1]
        inbox = self._inboxes.get(id)
        if not isinstance(sender, str):  # a request: to answer it may take long
            Thread(target=self._reply, args=(inbox, data, *sender), daemon=True).start()
        elif inbox is not None:
            inbox.receive(sender, data)

    def _reply(self, inbox: EventInbox | None, request: bytes, worker: str, id: str) -> None:
        reply = None if inbox is None else inbox.reply(request)
        with suppress(Exception):  # the worker has gone, and nobody waits
            self.given.run(deliver, id, reply, workers=[worker])


class _DaskHandle:
    def __init__(
        self, executor: DaskExecutor, call: RemoteCall, future: Any, inbox: EventInbox | None
    ) -> None:
        self._executor = executor
        self._call = call  # holds the scattered parts: Dask drops what nobody holds
        self._future = future
        self._inbox = inbox
        self._ended = threading.Event()
        future.add_done_callback(lambda _: self._ended.set())

    def result(self, timeout: float | None = None) -> bytes:
        # Not Dask's own `result(timeout)`: at the limit it sometimes fails instead of raising
        # TimeoutError.
        if not self._ended.wait(timeout):
            raise TimeoutError
        try:
            answer, sent = self._future.result()
        except KilledWorker as killed:
            self.cancel()
            tries = killed.allowed_failures + 1
            raise Lost(f"Dask gave up on it: {killed}", tries=tries) from killed
        except FutureCancelledError as cancelled:
            raise Lost(f"Dask cancelled it: {cancelled}", final=True) from cancelled
        if self._inbox is not None:
            self._inbox.finish(sent)
        return answer  # type: ignore[no-any-return]

    def cancel(self) -> None:
        if self._inbox is not None:
            self._inbox.close()
            if self._inbox.has_begun:
                # To cancel it would not end it, and the scheduler would give its busy worker the
                # next call.
                self._executor.hold_until_done(self._future)
                return
        try:
            self._future.cancel()
        except Exception:  # the cluster is gone, and the call with it
            pass


# -- the worker's side -----------------------------------------------------------------------------

_replies: dict[str, SimpleQueue[bytes | None]] = {}
"""Where threads of this worker wait for replies, by the ids of their requests."""


def deliver(id: str, reply: bytes | None) -> None:
    """Take a reply from the driver."""
    waiting = _replies.get(id)
    if waiting is not None:
        waiting.put(reply)


def run_call(
    payload: bytes, parts: Sequence[bytes], topic: tuple[str, str, bool] | None
) -> tuple[bytes, tuple[str, int]]:
    """Serve a call in a worker.

    Args:
        topic: where to log events, the id of the call's inbox, and whether the function may send
            requests; None if no events are wanted.

    Returns:
        What `serve` returned; and the id of this start of the call, with the number of events it
        has sent.
    """
    start, count = uuid.uuid4().hex, 0
    if topic is None:
        return serve(payload, parts), (start, count)
    name, inbox, requests = topic
    lock = threading.Lock()
    worker = get_worker()

    def send_event(event: bytes) -> None:
        nonlocal count
        with lock:
            count += 1
            worker.log_event(name, (inbox, start, event))

    def send_request(request: bytes) -> bytes:
        id = uuid.uuid4().hex
        waiting = _replies[id] = SimpleQueue()
        try:
            worker.log_event(name, (inbox, (worker.address, id), request))
            reply = waiting.get(timeout=SECONDS_FOR_REPLY)
        except Empty:
            reply = None
        finally:
            del _replies[id]
        if reply is None:
            raise RuntimeError("the driver waits for the call of this node no longer")
        return reply

    return serve(payload, parts, send_event, send_request if requests else None), (start, count)
