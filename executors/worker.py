"""The other side: `serve` calls a node's function where an executor has brought it, and packs how that ended."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any

from ..pregel.callable import GETTERS
from ..pregel.errors import GraphInterrupt, ShippingError
from ..pregel.interrupts import raised
from ..pregel.runtime import RUNNING
from .parcel import Blob, Ending, Part, Work
from .pickling import culprit, dumps, loads, pack_error
from .stand_ins import RemoteTask, Tell

KNOWN_FUNCTIONS = 64
"""So many functions stay unpacked in a worker, by their hash: calls of one node come again and again."""


def serve(payload: bytes, parts: Sequence[bytes] = (), tell: Tell | None = None) -> bytes:
    """Call the function that a payload brings, and pack how that ended. It does not raise.

    Args:
        parts: the bytes of the call's parts.
        tell: takes each event that the function sends while it runs, on whatever thread that happens.
    """
    ending = Ending()
    node = "?"
    try:
        work = loads(payload)
        node = work.node
        lent = loads(work.lent)
        function = _function(work, parts)
        value = _input(work.input, parts)
        task = RemoteTask(work.node, lent, _bytes(work.shared, parts), tell or _nobody)
    except Exception as error:
        ending.error = pack_error(_not_loaded(node, error))
        return dumps(ending)
    try:
        copy_context().run(_run, task, function, work, value, ending)
    except GraphInterrupt as signal:
        ending.paused, ending.raised = True, raised(task, signal)
        rejected = getattr(signal, "error", None)
        ending.error = None if rejected is None else pack_error(rejected)
    except BaseException as error:
        ending.error = pack_error(_not_there(node, error) if _only_in_main(error) else error)
    finally:
        task.end()
    ending.writes, ending.asked, ending.questions = task.writes, task.asked, task.questions
    ending.known, ending.taken = task.known, task.run.taken
    ending.drain_reason = task.control.drain_reason
    return _packed(node, ending)


def _run(task: RemoteTask, function: Callable[..., Any], work: Work, value: Any, ending: Ending) -> None:
    RUNNING.set(task)
    task.begin()
    given = {name: GETTERS[kind](task) for name, kind in work.inject}
    if work.is_async:
        import asyncio

        ending.result = asyncio.run(_awaited(function, value, given))
    else:
        ending.result = function(value, **given)


async def _awaited(function: Callable[..., Any], value: Any, given: dict[str, Any]) -> Any:
    return await function(value, **given)


def _packed(node: str, ending: Ending) -> bytes:
    try:
        return dumps(ending)
    except Exception:
        pass
    for name in ("result", "writes", "questions", "known"):
        try:
            dumps(getattr(ending, name))
        except Exception:
            path, why = culprit(getattr(ending, name), name)
            return dumps(Ending(error=pack_error(ShippingError(node, path, why))))
    raise AssertionError("a part of an ending that cannot be packed")


def _not_loaded(node: str, error: Exception) -> Exception:
    way_out = _PROCESSES if _only_in_main(error) else ""
    if isinstance(error, AttributeError) and "__main__" in str(error):
        way_out = "; it has to go by name, so define it in a module that workers can import"
    why = f"cannot be loaded by the worker: {type(error).__name__}: {error}{way_out}"
    shipping = ShippingError(node, "its function or input", why)
    shipping.__cause__ = error
    return shipping


def _only_in_main(error: BaseException) -> bool:
    """Whether sub-interpreters have no such thing: an extension module, a daemon thread, a fork. The words differ."""
    return isinstance(error, (ImportError, RuntimeError)) and _SAID.search(str(error)) is not None


_SAID = re.compile(r"sub\)?-?interpreter|one interpreter per process")
_PROCESSES = '; use executor="processes" for this node'


def _not_there(node: str, error: BaseException) -> Exception:
    shipping = ShippingError(node, "what it uses", f"{type(error).__name__}: {error}{_PROCESSES}")
    shipping.__cause__ = error
    return shipping


def _bytes(held: Blob | Part, parts: Sequence[bytes]) -> bytes:
    return held.data if isinstance(held, Blob) else parts[held.place]


def _input(value: Any, parts: Sequence[bytes]) -> Any:
    if type(value) is dict:
        return {k: loads(_bytes(v, parts)) if isinstance(v, (Blob, Part)) else v for k, v in value.items()}
    return loads(_bytes(value, parts))


_functions: OrderedDict[str, Callable[..., Any]] = OrderedDict()
_functions_lock = threading.Lock()


def _function(work: Work, parts: Sequence[bytes]) -> Callable[..., Any]:
    with _functions_lock:
        known = _functions.get(work.key)
        if known is not None:
            _functions.move_to_end(work.key)
            return known
    fresh: Callable[..., Any] = loads(_bytes(work.function, parts))
    with _functions_lock:
        _functions[work.key] = fresh
        while len(_functions) > KNOWN_FUNCTIONS:
            _functions.popitem(last=False)
    return fresh


def _nobody(_: bytes) -> None:
    """Nobody listens."""
