"""Functions of nodes as Ray tasks: the extra `ray`.

A task of Ray's can be ended for real. A call that sends events while it runs is a generator: its
last item is its end. Large parts are put into Ray's object store once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from queue import SimpleQueue
from threading import Thread
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError, TaskCancelledError

from .base import Executor, Handle, Lost, OnEvent, RemoteCall
from .worker import serve

EVENT, END = b"e", b"."
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
        self._functions: dict[bool, Any] = {}

    def submit(self, call: RemoteCall, on_event: OnEvent) -> Handle:
        """Start a task of Ray's."""
        function = self._remote_function(streaming=call.sends_events)
        found = function.options(name=call.node).remote(call.payload, *call.parts)
        return _StreamHandle(found, on_event) if call.sends_events else _TaskHandle(found)

    def share(self, blob: bytes) -> Any:
        """Put a large part into the object store."""
        return ray.put(blob)

    def _remote_function(self, *, streaming: bool) -> Any:
        if streaming not in self._functions:
            # The engine counts the tries itself.
            options: dict[str, Any] = {"max_retries": 0, **self._options}
            if streaming:
                options["num_returns"] = "streaming"
            function = stream_call if streaming else run_call
            self._functions[streaming] = ray.remote(**options)(function)
        return self._functions[streaming]


class _TaskHandle:
    def __init__(self, ref: Any) -> None:
        self._ref = ref

    def result(self, timeout: float | None = None) -> bytes:
        return _get(self._ref, timeout)

    def cancel(self) -> None:
        _cancel(self._ref)


class _StreamHandle:
    def __init__(self, items: Any, on_event: OnEvent) -> None:
        self._items = items
        self._next: Any = None
        self._on_event = on_event

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
            self._on_event(item[1:])

    def cancel(self) -> None:
        _cancel(self._items)


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
        raise Lost(_first_line(error)) from error


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


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _cancel(found: Any) -> None:
    try:
        if ray.is_initialized():
            ray.cancel(found, force=True)
    except Exception:  # it has ended, or the cluster is gone
        pass


# -- the worker's side -----------------------------------------------------------------------------


def run_call(payload: bytes, *parts: bytes) -> bytes:
    """Serve a call in a worker."""
    return serve(payload, parts)


def stream_call(payload: bytes, *parts: bytes) -> Any:
    """Serve a call in a worker, on a thread of its own. Yields its events as they come, then how it
    ended."""
    items: SimpleQueue[bytes] = SimpleQueue()

    def run() -> None:
        items.put(END + serve(payload, parts, lambda event: items.put(EVENT + event)))

    Thread(target=copy_context().run, args=(run,), name="stategraph-call", daemon=True).start()
    while True:
        item = items.get()
        yield item
        if item[:1] == END:
            return
