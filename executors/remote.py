"""A node's function that runs on an executor, seen from the driver: it stands where the function
stood.

It sends the call, passes its events on, waits, and ends as the function did: with a result, an
error or a question. A worker that dies costs a try. The rest (retry, cache, limits, answers) is the
engine's and stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from hashlib import blake2b
from typing import Any

from ..pregel.errors import (
    GraphAbandoned,
    InvalidUpdateError,
    ShippingError,
    WorkerLostError,
    nearest,
)
from ..pregel.log import log_lost_worker
from ..pregel.program.callables import GETTERS
from ..pregel.program.program import CompiledNode
from ..pregel.task.deadline import Deadline
from ..pregel.task.interrupts import AnswerRejected, asking, import_answers
from .base import Executor, Handle, Lost, OnEvent, RemoteCall
from .payload import Function, PayloadBuilder
from .pickling import dump_function, has_cloudpickle, loads, unpack_error
from .protocol import CallResult, DriverTask
from .proxies import OnceKeeper

TRIES = 3
"""How many workers a call may cost before it fails."""
NEAR, FAR = 0.005, 0.5
"""Seconds between two looks at whether anybody still waits for a call: near its limit, and far from
it."""

KINDS = {get: kind for kind, get in GETTERS.items()}


class RemoteFunction:
    """The function of one node, on one executor.

    Raises:
        Exception: the function cannot be pickled.
        ValueError: workers cannot find it.
    """

    is_remote = True  # observers surround it where it runs

    def __init__(self, node: CompiledNode, executor: Executor) -> None:
        is_async = node.call.sync_missing
        function: Any = node.call.coro if is_async else node.call.sync
        data = dump_function(function, shares_main=executor.shares_main)
        if b"__main__" in data and not executor.shares_main and not has_cloudpickle():
            raise ValueError("it is defined in the script itself, which workers cannot import")
        key = blake2b(data, digest_size=16).hexdigest()
        self.inject: tuple[tuple[str, str], ...] = tuple(
            (name, KINDS[get]) for name, get in node.call.inject or ()
        )
        self.executor = executor
        self._function = Function(data, key, is_async, self.inject)

    def __call__(self, value: Any, *, task: DriverTask) -> Any:
        """Call the function there and wait for it."""
        builder = task.payload_cache.get(self.executor)
        if builder is None:  # of several threads that come here at once, one wins
            builder = task.payload_cache.setdefault(self.executor, PayloadBuilder(self.executor))
        deaths = 0
        while True:
            if task.deadline is not None:
                task.deadline.queue()  # the executor may be busy: to wait for it does not count
            call = builder.build(self._function, task, value)
            is_over = watch_attempt(task)
            try:
                data = self._run(call, task, is_over, alone=deaths > 0)
            except Lost as loss:
                if is_over():
                    raise GraphAbandoned from None
                deaths = self._count_death(loss, deaths, task)
                continue
            result = _load_result(task, data)
            open_ = [question.id for question in result.raised]
            if not import_answers(task, result.taken, open_, result.given):
                return _finish(task, result)
            # It asked a question whose answer it was not told of: one that came without an id. Run
            # it again.

    def _run(
        self, call: RemoteCall, task: DriverTask, is_over: Callable[[], bool], *, alone: bool
    ) -> bytes:
        """Submit a call and wait for it. Whatever ends the wait ends the call too.

        Args:
            is_over: whether nobody waits for its attempt any longer.
            alone: no other call that is suspected of killing workers may run at the same time.
        """
        with self.executor.quarantine if alone else nullcontext():
            handle = self.executor.submit(call, event_handler(task, is_over))
            try:
                return _wait(handle, task.nearest_deadline, is_over)
            except Lost:
                raise
            except BaseException:
                handle.cancel()
                raise

    def _count_death(self, loss: Lost, deaths: int, task: DriverTask) -> int:
        """How many workers the call has cost by now.

        Raises:
            WorkerLostError: too many. Where one death hits several calls, the first may be another
                call's fault, so that only a death in quarantine ends a call.
        """
        was_alone = deaths > 0 or self.executor.quarantine is Executor.quarantine
        deaths += loss.tries
        log_lost_worker(task, loss, deaths)
        if task.current.observed is not None:
            task.current.observed.lose_worker(loss)
        if loss.final or (was_alone and deaths >= TRIES):
            raise WorkerLostError(task.name, self.executor.name, deaths, loss.reason) from loss
        return deaths


def watch_attempt(task: DriverTask) -> Callable[[], bool]:
    """What tells whether nobody waits for the current attempt any longer: it has failed, was
    abandoned, or its run was cut short."""
    attempt, deadline = task.attempt, task.nearest_deadline

    def is_over() -> bool:
        given_up = task.attempt != attempt or (deadline is not None and deadline.abandoned)
        return given_up or task.is_cut_short()

    return is_over


def _wait(handle: Handle, deadline: Deadline | None, is_over: Callable[[], bool]) -> bytes:
    """The result of a call.

    Raises:
        GraphAbandoned: nobody waits for it any longer.
    """
    while True:
        try:
            if deadline is None:
                return handle.result(FAR)
            return handle.result(min(max(deadline.remaining(), NEAR), FAR))
        except TimeoutError:
            if is_over():
                raise GraphAbandoned from None


def _load_result(task: DriverTask, data: bytes) -> CallResult:
    try:
        return loads(data)  # type: ignore[no-any-return]
    except Exception as error:
        raise ShippingError(task.name, "its result", _cannot_load(error)) from error


def _cannot_load(error: Exception) -> str:
    return f"cannot be loaded by the driver: {type(error).__name__}: {error}"


def _finish(task: DriverTask, result: CallResult) -> Any:
    """End as the function did."""
    task.current.asked, task.current.reached = result.asked, result.reached
    if result.drain_reason is not None and task.runtime.control is not None:
        task.runtime.control.request_drain(result.drain_reason)
    if result.paused:
        _ask(task, result)
    if result.error is not None:
        raise unpack_error(result.error)
    known = task.known_channels()
    for key, _ in result.writes:
        if key not in known:
            raise InvalidUpdateError(
                f"node {task.name!r} pushed a message to the unknown key {key!r}; "
                f"{nearest(key, known)}"
            )
    task.writes.extend(result.writes)
    return result.value


def _ask(task: DriverTask, result: CallResult) -> None:
    """Pause as the function did.

    Raises:
        GraphInterrupt: with its questions; if its answer did not fit the question, an
            `AnswerRejected`.
    """
    for place, question in result.questions:
        signal = asking(task, (question,), place)
    if not result.questions:  # the function raised a signal by hand
        signal = asking(task, result.raised, (0, result.asked))
        signal.by_hand = True
    if result.error is not None:
        raise AnswerRejected(result.raised, unpack_error(result.error))  # type: ignore[arg-type]
    raise signal


def event_handler(task: DriverTask, is_over: Callable[[], bool]) -> OnEvent:
    """What brings the events of the current attempt to those who read the run.

    Args:
        is_over: whether nobody waits for that attempt any longer.
    """
    write, span = task.writer, task.current.span
    keeper: OnceKeeper | None = None

    def on_event(event: bytes) -> bytes | None:
        nonlocal keeper
        try:
            kind, data = loads(event)
        except Exception as error:
            raise ShippingError(task.name, "an event", _cannot_load(error)) from error
        if kind == "once":
            keeper = keeper or OnceKeeper(task, is_over)
            return keeper.reply(data)
        if kind == "custom":
            write(data)  # it knows by itself whether its attempt still counts
        elif is_over():
            return None  # events of an attempt that failed or was abandoned are dropped
        elif kind == "span":
            if span is not None:
                span.receive(data)
        elif kind == "alive":
            task.heartbeat()
        elif kind == "began":
            if task.deadline is not None:
                task.deadline.start()
        else:
            task.emit(kind, data)
        return None

    return on_event
