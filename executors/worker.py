"""The worker's side: `serve` calls a node's function in the worker of an executor and pickles the
outcome."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, TypeVar

from ..pregel.drivers.forks import end_child
from ..pregel.errors import GraphInterrupt, ShippingError
from ..pregel.program.callables import GETTERS
from ..pregel.running import RUNNING
from ..pregel.runtime import Running
from ..pregel.task.interrupts import questions_of, unwrap_signals
from .pickling import dumps, find_culprit, loads, pack_error
from .protocol import CallRequest, CallResult, Inline, PartRef
from .proxies import SendEvent, SendRequest, TaskProxy

SentT = TypeVar("SentT")

KNOWN_FUNCTIONS = 64
"""How many functions a worker keeps unpickled, by their hash: calls of one node come again and
again."""


def serve(
    payload: bytes,
    parts: Sequence[bytes] = (),
    send_event: SendEvent | None = None,
    send_request: SendRequest | None = None,
) -> bytes:
    """Call the function in a payload and return the pickled outcome.

    It does not raise. It returns only in the process that called it: a child that the function
    forks and that returns from it ends there.

    Args:
        parts: the bytes of the call's parts.
        send_event: called with each event that the function sends while it runs, on any thread.
        send_request: takes a request, waits, and returns the driver's reply; also on any thread.
            None if there can be no replies: then `runtime.once` is refused.
    """
    node = "?"
    try:
        request: CallRequest = loads(payload)
        node = request.node
        resources = loads(request.resources)
        function = _load_function(request, parts)
        value = _load_input(request.input, parts)
        task = TaskProxy(
            node,
            resources,
            _bytes_of(request.shared, parts),
            _only_from_this_process(node, send_event or _discard),
            None if send_request is None else _only_from_this_process(node, send_request),
        )
    except Exception as error:
        return dumps(CallResult(error=pack_error(_explain_load(node, error))))
    result = CallResult()
    try:
        result.value = copy_context().run(_call, task, function, request, value)
    except BaseException as raised:
        cause = unwrap_signals(task, raised)
        if isinstance(cause, GraphInterrupt):
            result.paused, result.raised = True, questions_of(task, cause)
            result.error = None if cause.error is None else pack_error(cause.error)
        else:
            result.error = pack_error(_explain_interpreter(node, cause))
    finally:
        task.end()
    result.writes, result.asked = task.writes, task.current.asked
    result.reached = task.current.reached
    result.questions = [*task.current.questions]
    result.given, result.taken = task.answers.given, task.answers.taken
    result.drain_reason = task.control.drain_reason
    return _dump_result(node, result)


def _call(task: TaskProxy, function: Callable[..., Any], request: CallRequest, value: Any) -> Any:
    """Call the function as its task. Runs in a context of its own, so that nothing it sets outlives
    the call."""
    running: Running = task
    RUNNING.set(running)
    task.enter_span()
    task.begin()
    injected = {name: GETTERS[kind](task) for name, kind in request.inject}
    function = task.surround(function, is_async=request.is_async)
    if not request.is_async:
        with _end_forked_child():
            return function(value, **injected)
    import asyncio

    return asyncio.run(_await(function, value, injected))


async def _await(function: Callable[..., Any], value: Any, injected: dict[str, Any]) -> Any:
    # Inside the coroutine: a child must end before it reaches the loop, which is its parent's too.
    with _end_forked_child():
        return await function(value, **injected)


@contextmanager
def _end_forked_child() -> Iterator[None]:
    """End a child that the function has forked where it leaves the function. It must go no further:
    what it returned would be the answer of the call, and it would take the next calls in place of
    its parent. Its exit code is that of a script that ends so."""
    here = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != here:
            end_child(error)
        raise
    if os.getpid() != here:
        end_child(None)


def _dump_result(node: str, result: CallResult) -> bytes:
    try:
        return dumps(result)
    except Exception:
        pass
    parts = {
        "result": result.value,
        "writes": result.writes,
        "questions": result.questions,
        "answers": result.given,
    }
    for name, part in parts.items():
        try:
            dumps(part)
        except Exception:
            error = ShippingError(node, *find_culprit(part, name))
            return dumps(CallResult(error=pack_error(error)))
    raise AssertionError("a part of a result that cannot be pickled")


# -- what goes wrong -------------------------------------------------------------------------------

_NO_SUBINTERPRETERS = re.compile(r"sub\)?-?interpreter|one interpreter per process")
"""What Python says of an extension module, a daemon thread or a fork that a sub-interpreter cannot
have."""
_USE_PROCESSES = '; use executor="processes" for this node'


def _explain_load(node: str, error: Exception) -> Exception:
    """What to raise for a call that this worker cannot load."""
    way_out = _USE_PROCESSES if _needs_main_interpreter(error) else ""
    if isinstance(error, AttributeError) and "__main__" in str(error):
        way_out = "; it is sent by name, so define it in a module that workers can import"
    why = f"cannot be loaded by the worker: {type(error).__name__}: {error}{way_out}"
    return _shipping_error(node, "its function or input", why, error)


def _explain_interpreter(node: str, error: BaseException) -> BaseException:
    """What the function raised, or the way out if it uses what a sub-interpreter cannot have."""
    if not _needs_main_interpreter(error):
        return error
    why = f"{type(error).__name__}: {error}{_USE_PROCESSES}"
    return _shipping_error(node, "what it uses", why, error)


def _needs_main_interpreter(error: BaseException) -> bool:
    is_kind = isinstance(error, (ImportError, RuntimeError))
    return is_kind and _NO_SUBINTERPRETERS.search(str(error)) is not None


def _shipping_error(node: str, path: str, why: str, cause: BaseException) -> ShippingError:
    error = ShippingError(node, path, why)
    error.__cause__ = cause
    return error


# -- what the call brings --------------------------------------------------------------------------


def _bytes_of(sent: Inline | PartRef, parts: Sequence[bytes]) -> bytes:
    return sent.data if isinstance(sent, Inline) else parts[sent.place]


def _load_input(value: Any, parts: Sequence[bytes]) -> Any:
    if type(value) is not dict:
        return _load_value(value, parts)
    return {key: _load_value(item, parts) for key, item in value.items()}


def _load_value(sent: Any, parts: Sequence[bytes]) -> Any:
    if isinstance(sent, Inline):
        return loads(sent.data)
    if isinstance(sent, PartRef):
        data = parts[sent.place]
        return loads(data) if sent.pickled else data
    return sent


_functions: OrderedDict[str, Callable[..., Any]] = OrderedDict()
_functions_lock = threading.Lock()


def _load_function(request: CallRequest, parts: Sequence[bytes]) -> Callable[..., Any]:
    with _functions_lock:
        known = _functions.get(request.key)
        if known is not None:
            _functions.move_to_end(request.key)
            return known
    # Not under the lock: to unpickle may import modules, and those may take long.
    loaded: Callable[..., Any] = loads(_bytes_of(request.function, parts))
    with _functions_lock:
        _functions[request.key] = loaded
        while len(_functions) > KNOWN_FUNCTIONS:
            _functions.popitem(last=False)
    return loaded


def _only_from_this_process(node: str, send: Callable[[bytes], SentT]) -> Callable[[bytes], SentT]:
    """Refuse the events and requests of a forked child: they would come amid those of its
    parent."""
    here = os.getpid()

    def send_from_here(event: bytes) -> SentT:
        if os.getpid() != here:
            raise RuntimeError(
                f"process {os.getpid()}, forked by node {node!r} in process {here}, cannot send "
                "events, writes, heartbeats or effects: return them to the node, and send them "
                "from there"
            )
        return send(event)

    return send_from_here


def _discard(_: bytes) -> None:
    """Nobody listens."""
