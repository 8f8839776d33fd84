"""Functions of nodes as Ray tasks: the extra `ray`.

A task of Ray's can be ended for real. A call is a generator: its items are its events and requests,
the last one its end. Large parts are put into Ray's object store once.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError, TaskCancelledError

from .base import Executor, Lost, OnEvent, RemoteCall
from .worker import serve

EVENT, REQUEST, END = b"e", b"q", b"."
ID_BYTES = 16
SECONDS_FOR_ACTOR = 60.0
"""How long a worker waits for the actor that has its reply: the driver starts it with the first
request."""
SHUT_DOWN = "Ray was shut down"


class RayExecutor(Executor):
    """A Ray cluster; the one that `ray.init` has connected to, or that Ray starts with the first
    call.

    A call whose time is up ends with its worker process. A worker that dies costs its call a try.

    Args:
        options: for every task, as `ray.remote(...)` takes them: `num_cpus`, `num_gpus`,
            `resources`, ...
    """

    def __init__(self, **options: Any) -> None:
        self.given = ray
        self.name = "Ray"
        self._options = options
        self._function: Any = None
        self._replies: tuple[Any, Any] = (None, None)  # the actor, and the job it belongs to
        self._replies_name = f"stategraph-replies-{uuid4().hex}"
        self._lock = Lock()

    def submit(self, call: RemoteCall, on_event: OnEvent) -> _RayHandle:
        """Start a task of Ray's."""
        if self._function is None:
            # The engine counts the tries itself.
            options = {"max_retries": 0, **self._options, "num_returns": "streaming"}
            self._function = ray.remote(**options)(run_call)
        name = self._replies_name if call.sends_requests else None
        items = self._function.options(name=call.node).remote(call.payload, name, *call.parts)
        return _RayHandle(items, on_event, self._deliver)

    def share(self, blob: bytes) -> Any:
        """Put a large part into the object store."""
        return ray.put(blob)

    def _deliver(self, id: bytes, reply: bytes | None) -> None:
        """Bring a reply to the worker that waits for it, by way of an actor: nothing else reaches a
        task that runs."""
        job = ray.get_runtime_context().get_job_id()
        with self._lock:
            if self._replies[1] != job:
                actor = ray.remote(num_cpus=0)(Replies)
                self._replies = (actor.options(name=self._replies_name).remote(), job)
            self._replies[0].put.remote(id, reply)


@dataclass(eq=False)
class _RayHandle:
    _items: Any
    _on_event: OnEvent
    _deliver: Callable[[bytes, bytes | None], None]
    _next: Any = None

    def result(self, timeout: float | None = None) -> bytes:
        while True:
            if self._next is None:
                with _detect_shutdown():
                    ready, _ = ray.wait([self._items], timeout=timeout, fetch_local=False)
                if not ready:
                    raise TimeoutError
                try:
                    with _detect_shutdown():
                        self._next = next(self._items)
                except StopIteration:
                    raise Lost("its worker stopped during the call") from None
            item = _get(self._next, timeout)  # after a timeout it is asked for again
            self._next = None
            if item[:1] == END:
                return item[1:]
            if item[:1] == REQUEST:
                request, id = item[1 + ID_BYTES :], item[1 : 1 + ID_BYTES]
                reply = self._on_event(request)
                with _detect_shutdown():
                    self._deliver(id, reply)
            else:
                self._on_event(item[1:])

    def cancel(self) -> None:
        try:
            if ray.is_initialized():
                ray.cancel(self._items, force=True)
        except Exception:  # it has ended, or the cluster is gone
            pass


def _get(ref: Any, timeout: float | None) -> bytes:
    try:
        with _detect_shutdown():
            return ray.get(ref, timeout=timeout)  # type: ignore[no-any-return]
    except GetTimeoutError:
        raise TimeoutError from None
    except RayTaskError:
        # The worker could not even begin: it lacks this package, or its environment cannot be made.
        raise
    except TaskCancelledError as cancelled:
        raise Lost("Ray cancelled it", final=True) from cancelled
    except RayError as error:
        name = type(error).__name__
        raise Lost((str(error).strip() or name).splitlines()[0]) from error


@contextmanager
def _detect_shutdown() -> Iterator[None]:
    """Raise `Lost` once Ray was shut down. Ray itself raises one of several errors then, or
    SystemExit; or the question starts a new cluster, which does not have the call."""
    if not ray.is_initialized():
        raise Lost(SHUT_DOWN, final=True)
    try:
        yield
    except (GetTimeoutError, StopIteration):
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) or not ray.is_initialized():
            raise Lost(SHUT_DOWN, final=True) from error
        raise


# -- the worker's side -----------------------------------------------------------------------------


def run_call(payload: bytes, replies: str | None, *parts: bytes) -> Any:
    """Serve a call in a worker, on a thread of its own. Yields its events and requests as they
    come, then how it ended.

    Args:
        replies: the name of the actor that has the replies; None if the function sends no requests.
    """
    items: SimpleQueue[bytes] = SimpleQueue()

    def send_event(event: bytes) -> None:
        items.put(EVENT + event)

    def send_request(request: bytes) -> bytes:
        assert replies is not None
        id = os.urandom(ID_BYTES)
        items.put(REQUEST + id + request)
        return _take_reply(replies, id)

    def run() -> None:
        answer = serve(payload, parts, send_event, None if replies is None else send_request)
        items.put(END + answer)

    Thread(target=copy_context().run, args=(run,), name="stategraph-call", daemon=True).start()
    while True:
        item = items.get()
        yield item
        if item[:1] == END:
            return


class Replies:
    """An actor that has the driver's replies until they are taken."""

    def __init__(self) -> None:
        self._replies: dict[bytes, asyncio.Future[bytes | None]] = {}

    async def put(self, id: bytes, reply: bytes | None) -> None:
        """Take a reply from the driver."""
        self._find(id).set_result(reply)

    async def take(self, id: bytes) -> bytes | None:
        """The reply to this request, once it is there."""
        try:
            return await self._find(id)
        finally:
            del self._replies[id]

    def _find(self, id: bytes) -> asyncio.Future[bytes | None]:
        if id not in self._replies:
            self._replies[id] = asyncio.get_running_loop().create_future()
        return self._replies[id]


def _take_reply(name: str, id: bytes) -> bytes:
    """The reply to a request.

    Raises:
        RuntimeError: the driver does not answer.
    """
    due = time.monotonic() + SECONDS_FOR_ACTOR
    while True:
        try:
            actor = ray.get_actor(name)
            break
        except ValueError as missing:
            if time.monotonic() > due:
                raise RuntimeError("the driver of this node does not answer") from missing
            time.sleep(0.02)
    reply: bytes | None = ray.get(actor.take.remote(id))
    if reply is None:
        raise RuntimeError("the driver waits for the call of this node no longer")
    return reply
