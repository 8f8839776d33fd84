"""The other side: `serve` calls a node's function where an executor has brought it, and packs how that ended.

Here nothing is decided: what the function asks of its run is answered from what came along, noted for the driver, or
told to it at once. What cannot be had here says so.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from ..pregel.callable import GETTERS
from ..pregel.errors import GraphInterrupt, ShippingError
from ..pregel.runtime import RUNNING, ExecutionInfo, RunControl, Runtime
from ..pregel.types import RunnableConfig, StreamMode, StreamWriter
from .pickling import PackedError, culprit, dumps, loads, pack_error

Tell = Callable[[bytes], None]

KNOWN_FUNCTIONS = 64
"""So many functions stay unpacked in a worker, by their hash: calls of one node come again and again."""


class Blob(NamedTuple):
    """A value, pickled."""

    data: bytes


class Part(NamedTuple):
    """A value that travels apart: its place in the call's parts."""

    place: int


class Kept(NamedTuple):
    """A value that could not travel, and why."""

    why: str


class Lent(NamedTuple):
    """What one task may hold, as plain data.

    Attributes:
        ns: the task's namespace; `attempt` which try it is.
        config: as `get_config` gives it, or why it cannot.
        has_store: the graph has a store, which stays with the driver.
        saves: answers can come: a saver keeps the thread.
        known: the answers that the task has been given before; `at_hand` those that have come for its questions now.
        listens: the stream modes that somebody reads; `limited` if a time limit wants signs of life.
    """

    ns: str
    attempt: int
    config: RunnableConfig | Kept
    info: ExecutionInfo | None
    has_store: bool
    drain_reason: str | None
    saves: bool
    known: dict[str, Any]
    at_hand: dict[str, Any]
    listens: frozenset[StreamMode]
    limited: bool


class Work(NamedTuple):
    """The payload of a call.

    Attributes:
        function: its hash, and the function pickled.
        is_async: to be awaited.
        inject: the names of further parameters, and what they get.
        input: a value; a dict is taken apart, key by key.
        shared: the context of the run and what an entrypoint saved, pickled.
        lent: pickled.
    """

    node: str
    key: str
    function: Blob | Part
    is_async: bool
    inject: tuple[tuple[str, str], ...]
    input: Any
    shared: Blob | Part
    lent: bytes


@dataclass(slots=True)
class Ending:
    """How a call ended, and what it noted on the way.

    Attributes:
        result: what the function returned; None if it raised.
        error: what it raised; of an interrupt, why the answer was rejected.
        writes: what it wrote besides its result (`push_message`).
        paused: it asked and has no answer.
        asked: how many questions it came to; `questions` are those without an answer, with their places.
        known: the answers it had; `taken` the ids of those it used for the first time.
        drain_reason: it asked the run to stop.
    """

    result: Any = None
    error: PackedError | None = None
    writes: list[tuple[str, Any]] = field(default_factory=list)
    paused: bool = False
    asked: int = 0
    questions: list[Any] = field(default_factory=list)
    raised: tuple[Any, ...] = ()
    known: dict[str, Any] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)
    drain_reason: str | None = None


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
        ending.paused, ending.raised = True, signal.interrupts
        rejected = getattr(signal, "error", None)
        ending.error = None if rejected is None else pack_error(rejected)
    except BaseException as error:
        ending.error = pack_error(error)
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
    why = f"cannot be loaded by the worker: {type(error).__name__}: {error}"
    shipping = ShippingError(node, "its function or input", why)
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


# -- what the function may hold ---------------------------------------------------------------------------------


class RemoteTask:
    """Stands for the task, for `interrupt`, `get_config` and the others."""

    def __init__(self, name: str, lent: Lent, shared: bytes, tell: Tell) -> None:
        self.name = name
        self.ns = lent.ns
        self.attempt = lent.attempt
        self.known = lent.known
        self.asked = 0
        self.questions: list[Any] = []
        self.writes: list[tuple[str, Any]] = []
        self.control = RemoteControl(lent.drain_reason)
        self.run = RemoteRun(self, lent, tell)
        self._lent = lent
        self._tell = tell
        self._shared = shared
        self._runtime: Runtime[Any] | None = None

    def known_answers(self) -> dict[str, Any]:
        """The answers this task was given, by interrupt id."""
        return self.known

    def known_channels(self) -> AnyKey:
        """The driver will know when the writes are there."""
        return AnyKey()

    @property
    def config(self) -> RunnableConfig:
        """The task's config."""
        if isinstance(self._lent.config, Kept):
            raise ShippingError(self.name, *self._lent.config.why.split(": ", 1))
        return self._lent.config

    @property
    def writer(self) -> StreamWriter:
        """Sends a custom event to whoever reads the run."""
        lent = self._lent
        if "custom" not in lent.listens and not lent.limited:
            return _nobody_listens
        return self.run.teller("custom")

    @property
    def store(self) -> Any:
        """None, or what says that the store is not here."""
        return Absent(self.name, "the store") if self._lent.has_store else None

    @property
    def previous(self) -> Any:
        """What the last run of an entrypoint saved on this thread."""
        return self.runtime.previous

    @property
    def node_error(self) -> None:
        """Error handlers stay with the driver."""
        return

    def begin(self) -> None:
        """A limit counts from now on, not from when the call was sent."""
        if self._lent.limited:
            self._tell(dumps(("began", None)))

    def heartbeat(self) -> None:
        """Tell an idle timeout that the node is alive."""
        if self._lent.limited:
            self._tell(dumps(("alive", None)))

    @property
    def runtime(self) -> Runtime[Any]:
        """All of it in one object."""
        if self._runtime is None:
            context, previous = (Absent(self.name, v.why) if isinstance(v, Kept) else v for v in loads(self._shared))
            info = self._lent.info
            self._runtime = Runtime(
                context=context, store=self.store, stream_writer=self.writer, previous=previous, control=self.control,
                heartbeat=self.heartbeat, idempotency_key=info.task_id if info else "", execution_info=info,
            )  # fmt: skip
        return self._runtime

    @property
    def life(self) -> NoReturn:
        """Only a graph asks for this, when it starts inside a node."""
        raise RuntimeError(_stays(self.name, "a graph inside a node"))


class RemoteRun:
    """Stands for the run, for `interrupt` and for messages on their way to a stream."""

    parent = None

    def __init__(self, task: RemoteTask, lent: Lent, tell: Tell) -> None:
        self.saver: object | None = self if lent.saves else None
        self.taken: list[str] = []
        self._task = task
        self._at_hand = lent.at_hand
        self._tell = tell
        self.streams = (RemoteStream(lent.listens, tell),)

    def take_answer(self, interrupt_id: str, by: Any, inside: Any = ()) -> tuple[Any, ...]:
        """The answer to this question as a one-item tuple, empty if there is none."""
        if interrupt_id not in self._at_hand:
            return ()
        self.taken.append(interrupt_id)
        return (self._at_hand.pop(interrupt_id),)

    def teller(self, kind: str) -> Callable[[Any], None]:
        """What sends events of this kind."""
        task, tell = self._task, self._tell

        def write(data: Any) -> None:
            try:
                event = dumps((kind, data))
            except Exception:
                path, why = culprit(data, "event")
                raise ShippingError(task.name, path, why) from None
            tell(event)

        return write

    @property
    def executor(self) -> NoReturn:
        """Only a `@task` asks for this, when it is called inside a node."""
        raise RuntimeError(_stays(self._task.name, "a call of a @task"))


class RemoteStream:
    """Stands for the streams that somebody reads."""

    def __init__(self, listens: frozenset[StreamMode], tell: Tell) -> None:
        self._listens = listens
        self._tell = tell

    def wants(self, *modes: StreamMode) -> bool:
        """Whether a reader asked for one of these modes."""
        return not self._listens.isdisjoint(modes)

    def emit(self, mode: StreamMode, data: Any) -> None:
        """Send one chunk."""
        if mode in self._listens:
            self._tell(dumps((mode, data)))


class RemoteControl(RunControl):
    """Notes a wish to stop; the driver hears of it when the call ends, before the next superstep."""

    __slots__ = ()

    def __init__(self, drain_reason: str | None) -> None:
        super().__init__()
        self.drain_reason = drain_reason


class AnyKey:
    """The channels of a graph that is not here: any name may be one."""

    def __contains__(self, name: object) -> bool:
        return True


class Absent:
    """Stands where something is that stays with the driver; says so when it is used."""

    def __init__(self, node: str, what: str) -> None:
        self._node = node
        self._what = what

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(_stays(self._node, self._what))

    def __getitem__(self, key: Any) -> NoReturn:
        raise RuntimeError(_stays(self._node, self._what))


def _stays(node: str, what: str) -> str:
    return (
        f"node {node!r} runs on an executor (process {os.getpid()}), and {what} stays with the driver: "
        'give the node executor="threads", or move that part into a node of its own'
    )


def _nobody_listens(_: Any) -> None:
    """The writer of a run without a reader of custom events."""


