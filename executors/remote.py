"""A node's function that runs on an executor, seen from the driver: it stands where the function stood.

It sends the call, relays what it tells, waits, and ends as the function did: with a result, an error or a question.
A worker that dies costs a try; the rest (retry, cache, limits, answers) is the engine's and stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from hashlib import blake2b
from typing import Any

from ..pregel.errors import GraphAbandoned, InvalidUpdateError, ShippingError, WorkerLostError, nearest
from ..pregel.program.callables import GETTERS
from ..pregel.program.program import CompiledNode
from ..pregel.superstep.context import TaskContext
from ..pregel.superstep.interrupts import AnswerRejected, asking, take_answers
from ..pregel.superstep.task import Task
from .call import Executor, Flight, Hear, Lost
from .luggage import Luggage
from .parcel import Ending
from .pickling import dump_function, has_cloudpickle, loads, unpack_error

TRIES = 3
"""How many workers a call may cost before it is given up."""
NEAR, FAR = 0.005, 0.5
"""Seconds between two looks at whether anybody still waits for a call: near its limit, and far from it."""

KINDS = {get: kind for kind, get in GETTERS.items()}


class Remote:
    """The function of one node, on one executor.

    Attributes:
        blob: the function, pickled, and `key` its hash.
        inject: the names of its further parameters, and what they get.

    Raises:
        Exception: the function cannot be pickled.
        ValueError: it cannot be found by the workers.
    """

    def __init__(self, node: CompiledNode, executor: Executor) -> None:
        self.is_async = node.sync_missing
        function: Any = node.coro if self.is_async else node.sync
        self.blob = dump_function(function, shares_main=executor.shares_main)
        if b"__main__" in self.blob and not executor.shares_main and not has_cloudpickle():
            raise ValueError("it is defined in the script itself, which workers do not import")
        self.key = blake2b(self.blob, digest_size=16).hexdigest()
        self.inject = tuple((name, KINDS[get]) for name, get in node.inject or ())
        self.executor = executor

    def __call__(self, value: Any, *, task: Task) -> Any:
        """Call the function there and wait for it."""
        luggage = _luggage(task, self.executor)
        lost = 0
        while True:
            if task.deadline is not None:
                task.deadline.queue()  # the executor may be busy
            call = luggage.pack(self, task, value)
            try:
                with self.executor.quarantine if lost else nullcontext():
                    answer = _flown(self.executor.submit(call, relay(task)), task)
            except Lost as loss:
                alone, lost = lost > 0 or self.executor.quarantine is Executor.quarantine, lost + loss.tries
                if loss.final or (alone and lost >= TRIES):
                    raise WorkerLostError(task.name, self.executor.name, lost, loss.reason) from loss
                continue
            ending = _unpacked(task, answer)
            open_ = [question.id for question in ending.raised]
            if take_answers(task, ending.taken, open_, ending.known):
                continue  # an answer that it was not told of, for it was given without a question
            return _end(task, ending)


def _luggage(task: Task, executor: Executor) -> Luggage:
    run = task.run
    if run.luggage is None:
        run.luggage = {}
    return run.luggage.setdefault(executor, Luggage(run, executor))  # type: ignore[no-any-return]


def _end(task: Task, ending: Ending) -> Any:
    """End as the function did."""
    task.asked = ending.asked
    if ending.drain_reason is not None:
        task.run.control.request_drain(ending.drain_reason)
    if ending.paused:
        for place, question in ending.questions:
            signal = asking(task, (question,), place)
        if not ending.questions:  # raised by hand
            signal = asking(task, ending.raised, (0, ending.asked))
            signal.by_hand = True
        if ending.error is not None:
            raise AnswerRejected(ending.raised, unpack_error(ending.error))  # type: ignore[arg-type]
        raise signal
    if ending.error is not None:
        raise unpack_error(ending.error)
    for key, _ in ending.writes:
        if key not in task.known_channels():
            near = nearest(key, task.known_channels())
            raise InvalidUpdateError(f"node {task.name!r} pushed a message to the unknown key {key!r}; {near}")
    task.writes += ending.writes
    return ending.result


def _unpacked(task: Task, answer: bytes) -> Ending:
    try:
        return loads(answer)  # type: ignore[no-any-return]
    except Exception as error:
        raise ShippingError(task.name, "its result", _unloadable(error)) from error


def _unloadable(error: Exception) -> str:
    return f"cannot be loaded by the driver: {type(error).__name__}: {error}"


def _flown(flight: Flight, task: Task) -> bytes:
    try:
        return _wait(flight, task)
    except Lost:
        raise
    except BaseException:
        flight.cancel()
        raise


def _wait(flight: Flight, task: Task) -> bytes:
    """The flight's result, unless its attempt is given up first, or its run cut short.

    Raises:
        GraphAbandoned: nobody waits for it any longer.
    """
    deadline = task.nearest_deadline
    while True:
        try:
            if deadline is None:
                return flight.result(FAR)
            return flight.result(min(max(deadline.remaining(), NEAR), FAR))
        except TimeoutError:
            if (deadline is not None and deadline.abandoned) or _cut_short(task.run):
                raise GraphAbandoned from None


def _cut_short(run: TaskContext[Task] | None) -> bool:
    """Whether a run, or one around it, was."""
    while run is not None:
        if run.dropped:
            return True
        run = run.parent.run if run.parent is not None else None
    return False


def relay(task: Task) -> Hear:
    """What brings the events of an attempt to those who read the run."""
    attempt, deadline = task.attempt, task.nearest_deadline
    write: Callable[[Any], None] = task.writer

    def hear(event: bytes) -> None:
        try:
            kind, data = loads(event)
        except Exception as error:
            raise ShippingError(task.name, "an event", _unloadable(error)) from error
        if kind == "custom":
            write(data)
        elif task.attempt != attempt or (deadline is not None and deadline.abandoned):
            return  # a failed attempt speaks no more
        elif kind == "alive":
            task.heartbeat()
        elif kind == "began":
            if task.deadline is not None:
                task.deadline.start()
        else:
            for stream in task.run.streams:
                stream.emit(kind, data)

    return hear
