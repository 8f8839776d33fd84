"""The payload of a call: what a task sends to an executor, pickled once where several tasks of the
run send the same.

The values of a superstep are frozen until its end. So a large one that many tasks read is pickled
once per superstep, and shared where the executor can.
"""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict
from typing import Any, NamedTuple

from ..pregel.errors import ShippingError
from ..pregel.run.stream import LIVE
from ..pregel.task.interrupts import export_answers
from ..pregel.types import RunnableConfig
from .base import Executor, RemoteCall
from .pickling import PROTOCOL, dumps, find_culprit
from .protocol import CallRequest, DriverTask, Inline, PartRef, Resources, Unsendable
from .stores import dump_opener, store_parameter

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
