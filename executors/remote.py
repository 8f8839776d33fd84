"""A node's function that runs on an executor, seen from the driver: it stands where the function
stood.

It sends the call, passes its events on, waits, and ends as the function did: with a result, an
error or a question. A worker that dies costs a try. The rest (retry, cache, limits, answers) is the
engine's and stays as it is.
"""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from hashlib import blake2b
from typing import Any, NamedTuple

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
from ..pregel.run.stream import LIVE
from ..pregel.task.deadline import Deadline
from ..pregel.task.interrupts import AnswerRejected, asking, export_answers, import_answers
from ..pregel.types import RunnableConfig
from .base import Executor, Handle, Lost, OnEvent, RemoteCall
from .pickling import (
    PROTOCOL,
    dump_function,
    dumps,
    find_culprit,
    loads,
    needs_script,
    unpack_error,
)
from .protocol import CallRequest, CallResult, DriverTask, Inline, PartRef, Resources, Unsendable
from .proxies import OnceKeeper
from .stores import dump_opener, store_parameter

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
        if needs_script(data, executor.shares_main):
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


# -- payload ---------------------------------------------------------------------------------------
# The payload of a call: what a task sends to an executor, pickled once where several tasks of the
# run send the same. The values of a superstep are frozen until its end. So a large one that many
# tasks read is pickled once per superstep, and shared where the executor can.

SHARED_FROM = 64 * 1024
"""Bytes from which a value travels apart, if the executor can share it."""
CACHED_FROM = 4 * 1024
"""Bytes from which a pickled value is kept for the other tasks of its superstep."""
MOST_CACHED = 32
"""How many of them: tasks that read the state read the same few values; those of Sends are mostly
their own."""

ATOMS = frozenset((type(None), bool, int, float))
"""Types whose values go as they are: to pickle each by itself would cost more than it can save."""


class Function(NamedTuple):
    """The function of a node, ready to be sent; see `CallRequest`."""

    data: bytes
    key: str
    is_async: bool
    inject: tuple[tuple[str, str], ...]


class Pickled(NamedTuple):
    """A pickled value.

    Attributes:
        data: the value, pickled; bytes are themselves (benchmark P38).
        reference: what the executor returned when it shared or attached it, or None.
        value: the value itself, held so that its `id` is not used for another while it is a key of
            a cache.
        attached: it travels with one call, and is shared once another needs it.
    """

    data: bytes
    reference: Any
    value: Any = None
    attached: bool = False


class PayloadBuilder:
    """Builds the calls of one run's tasks for one executor. May be used from several threads at
    once."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = threading.Lock()
        self._step = -1
        self._values: OrderedDict[int, Pickled] = OrderedDict()  # of superstep `_step`, by id
        self._shared: Pickled | None = None
        self._functions: dict[str, Pickled] = {}
        self._store: bytes | Unsendable | None = None

    def build(self, function: Function, task: DriverTask, value: Any) -> RemoteCall:
        """The call of a task's function.

        Raises:
            ShippingError: its input cannot be pickled, or the store that it takes cannot be opened
                in a worker; names which.
        """
        parts: list[Any] = []
        resources = collect_resources(task)
        with self._lock:  # of tasks that read the same value, one pickles it
            sent_function = _attach(self._pickle_function(function), parts)
            sent_input = self._pickle_input(task, value, parts)
            shared = _attach(self._pickle_shared(task), parts)
        if isinstance(self._store, Unsendable) and (name := store_parameter(function.inject)):
            raise ShippingError(task.name, f"its parameter {name!r}", self._store.why)
        request = CallRequest(
            node=task.name,
            key=function.key,
            function=sent_function,
            is_async=function.is_async,
            inject=function.inject,
            input=sent_input,
            shared=shared,
            resources=_dump_resources(task.name, resources),
        )
        sends_events = bool(resources.modes or resources.span) or resources.limited
        takes_runtime = any(kind == "runtime" for _, kind in function.inject)
        data = pickle.dumps(request, PROTOCOL)
        return RemoteCall(task.name, data, tuple(parts), sends_events, takes_runtime)

    def _pickle_function(self, function: Function) -> Pickled:
        known = self._functions.get(function.key)
        if known is None:
            known = self._functions[function.key] = self._share(function.data)
        return known

    def _pickle_input(self, task: DriverTask, value: Any, parts: list[Any]) -> Any:
        # By id only as long as the superstep lasts: after it, a reducer may have changed a value in
        # place.
        if task.step != self._step:
            self._step = task.step
            self._values.clear()
        kind = task.input_kind
        if type(value) is not dict:
            return _attach(self._pickle_value(task.name, value, kind, kind), parts)
        sent: dict[Any, Any] = {}
        for key, item in value.items():
            if type(item) in ATOMS:
                sent[key] = item
            else:
                path = f'{kind}["{key}"]'
                sent[key] = _attach(self._pickle_value(task.name, item, path, kind), parts)
        return sent

    def _pickle_value(self, node: str, value: Any, path: str, kind: str) -> Pickled:
        known = self._values.get(id(value))
        if known is not None:
            if known.attached:  # to one call; this is another
                known = self._values[id(value)] = self._share(known.data, value)
            return known
        try:
            data = value if type(value) is bytes else dumps(value)
        except Exception:
            raise ShippingError(node, *find_culprit(value, path)) from None
        pickled = self._share(data, value) if kind == "state" else self._attach_one(data, value)
        # Small ones are pickled again more quickly than they are looked up and held.
        if len(data) >= CACHED_FROM:
            self._values[id(value)] = pickled
            if len(self._values) > MOST_CACHED:
                self._values.popitem(last=False)
        return pickled

    def _pickle_shared(self, task: DriverTask) -> Pickled:
        """What is the same for all tasks of the run; see `CallRequest.shared`."""
        if self._shared is None:
            runtime = task.runtime
            values = (
                _or_unsendable(runtime.context, "context"),
                _or_unsendable(runtime.previous, "previous"),
            )
            self._store = dump_opener(task.store, self._executor)
            self._shared = self._share(pickle.dumps((dumps(values), self._store), PROTOCOL))
        return self._shared

    def _attach_one(self, data: bytes, value: Any) -> Pickled:
        reference = self._executor.attach(data) if len(data) >= SHARED_FROM else None
        return Pickled(data, reference, value, reference is not None)

    def _share(self, data: bytes, value: Any = None) -> Pickled:
        reference = self._executor.share(data) if len(data) >= SHARED_FROM else None
        return Pickled(data, reference, value)


def _attach(pickled: Pickled, parts: list[Any]) -> Any:
    """Put a value among the parts of a call if it is shared, else into its payload."""
    is_itself = pickled.value is pickled.data
    if pickled.reference is None:
        return pickled.data if is_itself else Inline(pickled.data)
    parts.append(pickled.reference)
    return PartRef(len(parts) - 1, not is_itself)


def _or_unsendable(value: Any, name: str) -> Any:
    """The value, or what stands for it if it cannot be pickled: an error only for a node that asks
    for it."""
    try:
        dumps(value)
    except Exception:
        path, why = find_culprit(value, name)
        return Unsendable(why, path)
    return value


def collect_resources(task: DriverTask) -> Resources:
    """What a task may hold in a worker."""
    can_ask, given, brought, asked = export_answers(task)
    return Resources(
        ns=task.ns,
        attempt=task.attempt,
        config=_without_handlers(task.config),
        execution_info=task.runtime.execution_info,
        joined=task.runtime.joined,
        drain_reason=task.runtime.drain_reason,
        can_ask=can_ask,
        edited=task.edited,
        given=given,
        brought=brought,
        asked=asked,
        modes=frozenset(mode for mode in LIVE if task.listens(mode)),
        limited=task.nearest_deadline is not None,
        span=_dump_span(task),
        observed=_dump_observed(task),
        place=task.place,
    )


def _without_handlers(config: RunnableConfig) -> RunnableConfig:
    """The config without LangChain's handlers: they stay with the driver, and are told from
    there."""
    if "callbacks" not in config:
        return config
    return {key: value for key, value in config.items() if key != "callbacks"}  # type: ignore[return-value]


def _dump_span(task: DriverTask) -> bytes | None:
    """What surrounds the attempt in the worker, pickled."""
    span = task.current.span
    remote = None if span is None else span.remote()
    return None if remote is None else dumps(remote)


def _dump_observed(task: DriverTask) -> bytes | None:
    """What observers have put around the function, pickled."""
    observed = task.current.observed
    return None if observed is None else observed.dump(dumps)


def _dump_resources(node: str, resources: Resources) -> bytes:
    try:
        return dumps(resources)
    except Exception:
        config = _or_unsendable(resources.config, "config")
        if not isinstance(config, Unsendable):  # then it is an answer that cannot be pickled
            culprit = find_culprit(resources.given | resources.brought, "answers")
            raise ShippingError(node, *culprit) from None
        return dumps(resources._replace(config=config))
