"""What a function finds in a worker: proxies for its task and for the answers and the store of its
run.

What it asks is answered from what came with the call, noted for the driver, or sent to it at once.
What stays with the driver says so when it is used.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, NoReturn

from ..pregel.control import RunControl
from ..pregel.errors import GraphAbandoned, ShippingError, StateGraphError
from ..pregel.running import ONCE, EffectRecord, SleepRequest, TaskPlace
from ..pregel.runtime import Runtime, find_server_info
from ..pregel.task.attempt_state import AttemptState
from ..pregel.task.spans import RemoteSpan
from ..pregel.types import RunnableConfig, StreamMode, StreamWriter
from .pickling import PackedError, dumps, find_culprit, loads, pack_error, unpack_error
from .protocol import DriverTask, Resources, Unsendable
from .stores import OPEN

SendEvent = Callable[[bytes], None]
"""Takes one event for the driver: a pickled pair of its kind and what it brings."""
SendRequest = Callable[[bytes], bytes]
"""Takes one request for the driver, pickled as an event is; waits, and returns the reply. Raises
RuntimeError if the driver cannot be reached, or waits for this call no longer."""


class TaskProxy:
    """Stands for the task: a `Running`, for `interrupt`, `get_config`, `push_message` and the
    others."""

    def __init__(
        self,
        name: str,
        resources: Resources,
        shared: bytes,
        send_event: SendEvent,
        send_request: SendRequest | None = None,
    ) -> None:
        self.name = name
        self.ns: str = resources.ns
        self.attempt: int = resources.attempt
        self.edited: bool = resources.edited
        self.place: TaskPlace = resources.place
        self.current: AttemptState = AttemptState()
        self.writes: list[tuple[str, Any]] = []
        self.answers: AnswersProxy = AnswersProxy(
            resources.given, resources.brought, resources.asked
        )
        self.control: RunControl = RunControl()
        self.control.drain_reason = resources.drain_reason
        self._resources = resources
        self._send_event = send_event
        self._send_request = send_request
        self._shared = shared  # unpickled when somebody asks for what is in it
        self._unpickled: tuple[bytes, bytes | Unsendable | None] | None = None
        self._runtime: Runtime[Any] | None = None

    def find_answers(self) -> AnswersProxy | None:
        """The answers that came with the call; None if none can ever come."""
        if not self._resources.can_ask:
            return None
        return self.answers

    def known_channels(self) -> AnyName:
        """The driver knows them: it checks the writes when the call has ended."""
        return AnyName()

    @property
    def config(self) -> RunnableConfig:
        """The task's config.

        Raises:
            ShippingError: it could not be sent.
        """
        config = self._resources.config
        if isinstance(config, Unsendable):
            raise ShippingError(self.name, config.path, config.why)
        return config

    @property
    def writer(self) -> StreamWriter:
        """Sends a custom event to whoever reads the run."""
        if not self.listens("custom") and not self._resources.limited:
            return _discard
        return self._send_custom

    @property
    def store(self) -> Any:
        """The graph's store, opened in this process; None if there is none, or what says that it is
        not here."""
        opener = self._unpickle_shared()[1]
        if opener is None:
            return None
        if isinstance(opener, Unsendable):
            return MissingResource(_say_where(self.name, str(opener)))
        try:
            return OPEN.take(opener, self)
        except StateGraphError as error:
            error.add_note(
                f"while node {self.name!r} opened the graph's store in process {os.getpid()}"
            )
            raise
        except Exception as error:
            why = f"cannot be opened in process {os.getpid()}: {type(error).__name__}: {error}"
            raise ShippingError(self.name, "the store", why) from error

    @property
    def runtime(self) -> Runtime[Any]:
        """All of it in one object."""
        if self._runtime is None:
            context, previous = map(self._or_missing, loads(self._unpickle_shared()[0]))
            info, config = self._resources.execution_info, self._resources.config
            self._runtime = LazyRuntime(
                context=context,
                stream_writer=self.writer,
                previous=previous,
                control=self.control,
                heartbeat=self.heartbeat,
                idempotency_key=info.task_id if info else "",
                execution_info=info,  # type: ignore[arg-type] # None outside of a task
                joined=self._resources.joined,
                server_info=None if isinstance(config, Unsendable) else find_server_info(config),
            )
            # The class is frozen. Without this attribute `LazyRuntime` is asked for it, which opens
            # the store.
            object.__delattr__(self._runtime, "store")
            object.__setattr__(self._runtime, "_task", self)
        return self._runtime

    @property
    def previous(self) -> Any:
        """What the last run of an entrypoint saved on this thread."""
        return self.runtime.previous

    @property
    def node_error(self) -> None:
        """Error handlers stay with the driver."""
        return

    def _unpickle_shared(self) -> tuple[bytes, bytes | Unsendable | None]:
        if self._unpickled is None:
            self._unpickled = loads(self._shared)
        return self._unpickled

    def _or_missing(self, value: Any) -> Any:
        if isinstance(value, Unsendable):
            return MissingResource(_say_it_stays(self.name, str(value)))
        return value

    # -- events for the driver ---------------------------------------------------------------------

    def listens(self, mode: StreamMode) -> bool:
        """Whether somebody reads this stream mode."""
        return mode in self._resources.modes

    def emit(self, mode: StreamMode, data: Any) -> None:
        """Send one chunk to those who read this stream mode."""
        if self.listens(mode):
            self._send_event(dumps((mode, data)))

    def _send_custom(self, data: Any) -> None:
        try:
            event = dumps(("custom", data))
        except Exception:
            raise ShippingError(self.name, *find_culprit(data, "event")) from None
        self._send_event(event)

    def begin(self) -> None:
        """Say that the function begins: its limit counts from now on, not from when the call was
        sent."""
        if self._resources.limited:
            self._send_event(dumps(("began", None)))

    def enter_span(self) -> None:
        """Surround the function, in this context, with what the run's listener has sent along."""
        data = self._resources.span
        if data is None:
            return
        try:
            span: RemoteSpan = loads(data)
        except ImportError:
            return  # the listener's library is not here, so the function does not use it either
        span.enter(lambda sent: self._send_event(dumps(("span", sent))))

    def surround(self, function: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
        """The function inside what observers have put around it."""
        data = self._resources.observed
        if data is None:
            return function
        from ..pregel.task.observers import load_attempt

        observed = self.current.observed = load_attempt(data, loads)
        return lambda *args, **given: observed.call(
            partial(function, *args, **given), awaits=is_async
        )

    def heartbeat(self) -> None:
        """Tell an idle timeout that the node is alive."""
        if self._resources.limited:
            self._send_event(dumps(("alive", None)))

    def begin_effect(self, kind: str, key: str, *, awaits: bool) -> EffectRecord:
        """The record of an effect, which the driver keeps.

        Raises:
            RuntimeError: this executor cannot bring an answer back to a call that runs.
            Exception: the driver refuses the effect.
        """
        if kind != ONCE:
            raise RuntimeError(_say_it_stays(self.name, f"{kind}({key!r})"))
        send = self._send_request
        if send is None:
            raise RuntimeError(_say_no_answers(self.name, key))
        return RequestedOnce(
            self.name, key, lambda data: send(dumps(("once", data))), awaits=awaits
        )

    def end(self) -> None:
        """Give back what the function has used: it has ended."""
        OPEN.give_back(self)

    # -- what stays with the driver ----------------------------------------------------------------

    @property
    def executor(self) -> NoReturn:
        """Asked for by a `@task` that is called inside a node."""
        raise RuntimeError(_say_it_stays(self.name, "a call of a @task"))

    def call(self, node: Any, arguments: Any) -> NoReturn:
        """Start a `@task` call: only the driver can."""
        raise RuntimeError(_say_it_stays(self.name, "a call of a @task"))

    def sleep(self, request: SleepRequest, *, awaits: bool) -> NoReturn:
        """Sleep: only the driver can record until when."""
        raise RuntimeError(_say_it_stays(self.name, "runtime.sleep()"))

    @property
    def nearest_deadline(self) -> NoReturn:
        """Asked for by a graph that is called inside a node."""
        raise RuntimeError(_say_it_stays(self.name, "a graph inside a node"))


class LazyRuntime(Runtime[Any]):
    """Has no store until somebody asks for it: most functions do not, and to open it takes a
    connection."""

    __slots__ = ("_task",)
    _task: TaskProxy

    def __getattr__(self, name: str) -> Any:
        if name != "store":
            raise AttributeError(f"Runtime has no {name!r}")
        object.__setattr__(self, name, self._task.store)
        return self.store


@dataclass(eq=False)
class AnswersProxy:
    """The answers that came with the call: an `AnswerLookup`.

    Attributes:
        given: the answers that the task was given, by interrupt id.
        asked: the ids of the questions that it is recorded to have asked last.
        taken: the ids of those that it used for the first time.
    """

    given: dict[str, Any]
    _brought: dict[str, Any]
    asked: Sequence[str]
    taken: list[str] = field(default_factory=list)

    def take(self, question: str) -> tuple[Any, ...]:
        """The answer to this question as a one-item tuple, empty if there is none."""
        if question not in self._brought:
            return ()
        self.taken.append(question)
        return (self._brought.pop(question),)

    def brought(self) -> dict[str, Any]:
        """The answers that the call brings for the questions of the task."""
        return self._brought

    def reject(self, question: str) -> None:
        """The driver rejects the answer, when it sees that the question is open."""


class AnyName:
    """The channels of a graph that is not here: any name may be one."""

    def __contains__(self, name: object) -> bool:
        return True


class MissingResource:
    """Stands where something is that stays with the driver; says so when it is used."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # what Python itself looks for, in `copy` or `pickle`
            raise AttributeError(name)
        raise RuntimeError(self._why)

    def __getitem__(self, key: Any) -> NoReturn:
        raise RuntimeError(self._why)


def _say_where(node: str, why: str) -> str:
    return f"node {node!r} runs on an executor (process {os.getpid()}): {why}"


def _say_no_answers(node: str, key: str) -> str:
    return _say_where(
        node,
        f"runtime.once({key!r}) needs an answer from the driver, for which a node on this executor "
        "must have a parameter `runtime: Runtime`; an executor of your own must give serve() a "
        '`send_request`. Else give the node executor="processes" or "threads"',
    )


def _say_it_stays(node: str, what: str) -> str:
    way_out = 'give the node executor="threads", or move that part into a node of its own'
    return _say_where(node, f"{what} stays with the driver: {way_out}")


def _discard(_: Any) -> None:
    """The writer of a run without a reader of custom events."""


# -- `runtime.once` in a worker --------------------------------------------------------------------
# Before the effect the driver is asked what is recorded of it; after it the driver records the
# result, before `once` returns.

class OnceRequest(NamedTuple):
    """What a worker asks of the driver.

    Attributes:
        kind: "begin": may the effect be had, and what is recorded of it? "save": record it.
        result: what it returned.
    """

    kind: Literal["begin", "save"]
    key: str
    result: Any = None


class OnceReply(NamedTuple):
    """What the driver answers.

    Attributes:
        known: what the effect returned earlier, as a one-item tuple; empty if it is still to be
            had.
        error: why it must not be had, or could not be recorded.
    """

    known: tuple[Any, ...] = ()
    error: PackedError | None = None


class RequestedOnce:
    """An `EffectRecord` that the driver keeps.

    Args:
        request: sends a pickled `OnceRequest` and waits for the pickled `OnceReply`.
        awaits: `save` returns what is to be awaited.

    Raises:
        Exception: the driver refuses the effect.
    """

    def __init__(
        self, node: str, key: str, request: Callable[[bytes], bytes], *, awaits: bool
    ) -> None:
        self._node, self._key = node, key
        self._request, self._awaits = request, awaits
        self.known: tuple[Any, ...] = self._send(dumps(OnceRequest("begin", key)))

    def save(self, result: Any) -> Any:
        """Have it recorded.

        Raises:
            ShippingError: the result cannot be pickled. The effect was had.
            Exception: the driver could not record it. The effect was had.
        """
        try:
            data = dumps(OnceRequest("save", self._key, result))
        except Exception:
            error = ShippingError(self._node, *find_culprit(result, "result"))
            error.add_note(
                f"the result of runtime.once({self._key!r}), which has been called: let it return "
                "what can be pickled and stored, such as an id"
            )
            raise error from None
        if self._awaits:  # the function's other coroutines go on meanwhile
            return asyncio.to_thread(self._send, data)
        self._send(data)
        return None

    def _send(self, data: bytes) -> tuple[Any, ...]:
        reply: OnceReply = loads(self._request(data))
        if reply.error is not None:
            raise unpack_error(reply.error)
        return reply.known


@dataclass(eq=False)
class OnceKeeper:
    """The driver's side: keeps the effects of one attempt of a task.

    A call that is started again within the attempt (its worker has died) comes to its keys again.

    Args:
        is_over: whether the attempt is: it must have no further effects.
    """

    _task: DriverTask
    _is_over: Callable[[], bool]
    _records: dict[str, EffectRecord] = field(default_factory=dict)

    def reply(self, data: bytes) -> bytes:
        """Answer a request. Does not raise an `Exception`: the worker is told of it."""
        try:
            return dumps(OnceReply(self._carry_out(loads(data))))
        except (Exception, GraphAbandoned) as error:
            return dumps(OnceReply(error=pack_error(error)))

    def _carry_out(self, request: OnceRequest) -> tuple[Any, ...]:
        if request.kind == "save":  # even of an attempt that is over: the effect was had
            self._records[request.key].save(request.result)
            return ()
        if self._is_over():
            raise GraphAbandoned
        record = self._task.begin_effect(ONCE, request.key, awaits=False)
        self._records[request.key] = record
        return record.known
