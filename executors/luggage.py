"""What the tasks of one run take along to an executor, packed once where several take the same.

The values of a superstep are frozen until its end, so a large one that many tasks read is pickled once a superstep, and
shared where the executor can.
"""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from ..pregel.errors import ShippingError
from ..pregel.run.stream import LIVE
from ..pregel.superstep.context import TaskContext
from ..pregel.superstep.interrupts import lent_answers
from ..pregel.superstep.task import Task
from ..pregel.types import StreamMode
from .call import Call, Executor
from .parcel import Blob, Kept, Lent, Part, Work
from .pickling import PROTOCOL, culprit, dumps
from .stores import recipe_of, store_parameter

if TYPE_CHECKING:
    from .remote import Remote

SHARED_FROM = 64 * 1024
"""Bytes from which a value travels apart, if the executor can share it."""
REMEMBERED_FROM = 4 * 1024
"""Bytes from which a pickled value is kept for the other tasks of its superstep."""
REMEMBERED = 32
"""How many of them: tasks that read the state read the same few values; those of Sends are mostly their own."""

ATOMS = frozenset((type(None), bool, int, float))

Held = tuple[Any, bytes, Any]
"""A value, pickled, and its handle if it is shared. Holding the value keeps its id from being used anew."""


class Luggage:
    """The packer of one run and one executor."""

    def __init__(self, run: TaskContext[Task], executor: Executor) -> None:
        self._run = run
        self._executor = executor
        self._lock = threading.Lock()
        self._step = -1
        self._held: OrderedDict[int, Held] = OrderedDict()
        self._shared: Held | None = None
        self._functions: dict[str, Held] = {}
        self._store: bytes | Kept | None = None

    def pack(self, remote: Remote, task: Task, value: Any) -> Call:
        """A call of a task's function.

        Raises:
            ShippingError: its input cannot be pickled, or the store that it takes cannot be opened there; names which.
        """
        parts: list[Any] = []
        lent = lend(task)
        with self._lock:  # of tasks that read the same, one packs it
            function = _placed(self._function(remote), parts)
            input = self._input(task, value, parts)
            shared = _placed(self._of_run(), parts)
        if isinstance(self._store, Kept) and (name := store_parameter(remote.inject)):
            raise ShippingError(task.name, f"its parameter {name!r}", self._store.why)
        lent_bytes = _dump_lent(task, lent)
        work = Work(task.name, remote.key, function, remote.is_async, remote.inject, input, shared, lent_bytes)
        return Call(task.name, pickle.dumps(work, PROTOCOL), tuple(parts), bool(lent.listens) or lent.limited)

    def _input(self, task: Task, value: Any, parts: list[Any]) -> Any:
        step = self._run.machine.step
        if step != self._step:
            self._step = step
            self._held = OrderedDict()
        root = "arguments" if task.path[-1] is True else "input" if task.send is not None else "state"
        if type(value) is not dict:
            return _placed(self._hold(task.name, value, root), parts)
        packed: dict[Any, Any] = {}
        for key, item in value.items():
            if type(item) in ATOMS:
                packed[key] = item
            else:
                packed[key] = _placed(self._hold(task.name, item, f'{root}["{key}"]'), parts)
        return packed

    def _hold(self, node: str, value: Any, path: str) -> Held:
        known = self._held.get(id(value))
        if known is not None:
            return known
        try:
            data = dumps(value)
        except Exception:
            raise ShippingError(node, *culprit(value, path)) from None
        held = (value, data, self._share(data))
        if len(data) >= REMEMBERED_FROM:
            self._held[id(value)] = held
            if len(self._held) > REMEMBERED:
                self._held.popitem(last=False)
        return held

    def _share(self, data: bytes) -> Any:
        return self._executor.share(data) if len(data) >= SHARED_FROM else None

    def _of_run(self) -> Held:
        """What is the same for all tasks: the context, what an entrypoint saved, and how the store is opened."""
        if self._shared is None:
            run = self._run
            values = tuple(_or_kept(v, name) for v, name in ((run.context, "context"), (run.previous(), "previous")))
            self._store = recipe_of(run.store, self._executor)
            data = pickle.dumps((dumps(values), self._store), PROTOCOL)
            self._shared = (None, data, self._share(data))
        return self._shared

    def _function(self, remote: Remote) -> Held:
        held = self._functions.get(remote.key)
        if held is None:
            held = self._functions[remote.key] = (None, remote.blob, self._share(remote.blob))
        return held


def _placed(held: Held, parts: list[Any]) -> Blob | Part:
    _, data, handle = held
    if handle is None:
        return Blob(data)
    parts.append(handle)
    return Part(len(parts) - 1)


def _or_kept(value: Any, name: str) -> Any:
    try:
        dumps(value)
    except Exception:
        return Kept(": ".join(culprit(value, name)))
    return value


def lend(task: Task) -> Lent:
    """What a task may hold on the other side."""
    run = task.run
    saves, known, at_hand = lent_answers(task)
    listens: set[StreamMode] = {mode for stream in run.streams for mode in stream.modes if mode in LIVE}
    return Lent(
        ns=task.ns,
        attempt=task.attempt,
        config=task.config,
        info=task.runtime.execution_info,
        drain_reason=run.control.drain_reason,
        saves=saves,
        edited=task.edited,
        known=known,
        at_hand=at_hand,
        listens=frozenset(listens),
        limited=task.nearest_deadline is not None,
    )


def _dump_lent(task: Task, lent: Lent) -> bytes:
    try:
        return dumps(lent)
    except Exception:
        kept = _or_kept(lent.config, "config")
        if not isinstance(kept, Kept):
            raise ShippingError(task.name, *culprit(lent.known | lent.at_hand, "answers")) from None
        return dumps(lent._replace(config=kept))
