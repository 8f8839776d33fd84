"""The other side: `serve` calls a node's function where an executor has brought it, and packs how that ended."""

from __future__ import annotations

import os
import re
import sys
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from types import NoneType
from typing import Any, NoReturn

from ..pregel.errors import GraphInterrupt, ShippingError
from ..pregel.program.callables import GETTERS
from ..pregel.runtime import RUNNING
from ..pregel.superstep.interrupts import questions_of, unwrap_signals
from .parcel import Blob, Ending, Part, Work
from .pickling import culprit, dumps, loads, pack_error
from .stand_ins import RemoteTask, Tell

KNOWN_FUNCTIONS = 64
"""So many functions stay unpacked in a worker, by their hash: calls of one node come again and again."""


def serve(payload: bytes, parts: Sequence[bytes] = (), tell: Tell | None = None) -> bytes:
    """Call the function that a payload brings, and pack how that ended. It does not raise, and returns only in the
    process that called it: a child that the function forks, and that comes back from it, ends there.

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
        task = RemoteTask(work.node, lent, _bytes(work.shared, parts), _from_here(node, tell or _nobody))
    except Exception as error:
        ending.error = pack_error(_not_loaded(node, error))
        return dumps(ending)
    try:
        copy_context().run(_run, task, function, work, value, ending)
    except BaseException as raised:
        cause = unwrap_signals(task, raised)
        if isinstance(cause, GraphInterrupt):
            ending.paused, ending.raised = True, questions_of(task, cause)
            ending.error = None if cause.error is None else pack_error(cause.error)
        else:
            ending.error = pack_error(_not_there(node, cause) if _only_in_main(cause) else cause)
    finally:
        task.end()
    ending.writes, ending.asked, ending.questions = task.writes, task.asked, task.questions
    ending.known, ending.taken = task.known, task.run.answers.taken
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
        with _child_ends():
            ending.result = function(value, **given)


async def _awaited(function: Callable[..., Any], value: Any, given: dict[str, Any]) -> Any:
    with _child_ends():  # before it comes to the loop, which it shares with its parent
        return await function(value, **given)


@contextmanager
def _child_ends() -> Iterator[None]:
    """A child that the function has forked ends where it leaves the function. It must go no further: what it returned
    would be the answer of the call, and it would take the next calls, in place of its parent. Its exit code is that of
    a script that ends so."""
    here = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != here:
            _end_child(error)
        raise
    if os.getpid() != here:
        os._exit(0)


def _end_child(error: BaseException) -> NoReturn:
    code = 1
    try:
        if not isinstance(error, SystemExit):
            traceback.print_exception(error)
        elif isinstance(error.code, int | NoneType):
            code = error.code or 0
        else:
            print(error.code, file=sys.stderr)
    finally:  # whatever becomes of that
        os._exit(code)


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


def _from_here(node: str, tell: Tell) -> Tell:
    """Takes events from this process only: those of a child would come amid those of its parent."""
    here = os.getpid()

    def tell_from_here(event: bytes) -> None:
        if os.getpid() != here:
            why = "cannot send events, writes or signs of life: have it return them to the node, and send them there"
            raise RuntimeError(f"process {os.getpid()}, forked by node {node!r} in process {here}, {why}")
        tell(event)

    return tell_from_here


def _nobody(_: bytes) -> None:
    """Nobody listens."""
