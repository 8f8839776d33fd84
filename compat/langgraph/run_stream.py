"""`stream_events(version="v3")`: a run whose projections are read one by one or interleaved.
Reading drives the run; there is no thread.

Each graph of the run has a mux, which gives its events to transformers; these fill the projections.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, tee
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, Literal, TypeAlias, TypeVar, get_args

from langchain_core.language_models.chat_model_stream import AsyncChatModelStream, ChatModelStream
from langchain_core.messages import AIMessage
from langchain_core.runnables.config import merge_configs
from langchain_core.tracers._streaming import _V2StreamingCallbackHandler
from typing_extensions import TypedDict

from ...pregel.types import StreamMode
from ..langchain.tokens import TokenSender
from .ignored import take_ignored
from .tools import _tool_call_writer

T = TypeVar("T")
Namespace: TypeAlias = tuple[str, ...]
SubgraphStatus: TypeAlias = Literal["started", "completed", "failed", "interrupted"]
_STAMPS: Final = count()
_TOOLS: Final = "tools"
_LOG: Final = logging.getLogger("langgraph.stream")


class ProtocolEvent(TypedDict, total=False):
    """What a run tells: `params` has `namespace`, `timestamp` in ms, `data` and maybe
    `interrupts`; only events of the whole run have a `seq`."""

    type: str
    method: str
    params: dict[str, Any]
    seq: int
    event_id: str


class LifecyclePayload(TypedDict, total=False):
    """What has become of a graph inside the run."""

    event: SubgraphStatus
    namespace: list[str]
    graph_name: str
    trigger_call_id: str
    cause: dict[str, str]
    error: str


class BlockSender(TokenSender, _V2StreamingCallbackHandler):
    """Sends what models say as events of content blocks, and what tools do. Its class makes models
    report those."""

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        self._calls: dict[Any, Any] = {}

    def on_llm_new_token(self, token: Any, **_: Any) -> Any:
        """A part has come, of which events tell, too."""

    def on_stream_event(self, event: Any, *, run_id: Any, **_: Any) -> Any:
        """A model has reported an event."""
        metadata = self._metadata.get(run_id)
        if metadata is not None:
            self._streamed.add(run_id)
            self._emit(event, {**metadata, "run_id": str(run_id)})

    def on_tool_start(
        self, serialized: Any, input_str: str, *, run_id: Any, inputs: Any = None, **more: Any
    ) -> Any:
        """A tool is called."""
        self._calls[run_id] = more.get("tool_call_id")
        self._tell(run_id, "tool-started", tool_name=(serialized or {}).get("name"), input=inputs)
        _tool_call_writer.set(lambda delta: self._tell(run_id, "tool-output-delta", delta=delta))

    def on_tool_end(self, output: Any, *, run_id: Any, **_: Any) -> Any:
        """It has returned."""
        self._tell(run_id, "tool-finished", output=output)

    def on_tool_error(self, error: BaseException, *, run_id: Any, **_: Any) -> Any:
        """It has failed."""
        self._tell(run_id, "tool-error", message=str(error))

    def _tell(self, run_id: Any, event: str, **more: Any) -> None:
        call = self._calls.get(run_id)
        if call is not None:
            self._emit(_TOOLS, {"event": event, "tool_call_id": call, **more})


class StreamChannel(Generic[T]):
    """What is shown of one kind, for one reader.

    Args:
        name: its items are events of the run, too, called `custom:` and this name.
        maxlen: sets nothing: items are kept while somebody reads.
    """

    def __init__(self, name: str | None = None, *, maxlen: int | None = None) -> None:
        self.name = name
        self._items: deque[tuple[int, T]] = deque()
        self._is_read = self._closed = False
        self._error: BaseException | None = None
        self._is_async: bool | None = None
        self._request_more: Any
        self._arequest_more: Any
        self._forward: Any = None

    def _bind(self, *, is_async: bool) -> None:
        self._is_async = is_async

    def push(self, item: T) -> None:
        """Add an item, if anybody reads.

        Raises:
            RuntimeError: the channel is closed.
        """
        if self._closed:
            raise RuntimeError("a StreamChannel that is closed takes no items: its run has ended")
        if self._is_read:
            self._items.append((next(_STAMPS), item))
        if self._forward is not None:
            self._forward(item)

    def close(self, err: BaseException | None = None) -> None:
        """End it, maybe with an error, which its reader gets."""
        self._closed, self._error = True, err

    fail = close

    def _subscribe(self, is_async: bool) -> None:
        if self._is_async is not is_async:
            if self._is_async is None:
                raise TypeError("this StreamChannel is in no projection: return it by init()")
            wanted = "for" if is_async else "async for"
            raise TypeError(f"this run must be read by `{wanted}`")
        if self._is_read:
            raise RuntimeError("a projection has one reader; tee(n) makes several of it")
        self._is_read = True

    def _is_over(self) -> bool:
        if self._closed and self._error is not None:
            raise self._error
        return self._closed

    def __iter__(self) -> Iterator[T]:
        self._subscribe(is_async=False)
        return self._take()

    def _take(self) -> Iterator[T]:
        while True:
            while self._items:
                yield self._items.popleft()[1]
            if self._is_over() or not (self._request_more() or self._items):
                return

    def __aiter__(self) -> AsyncIterator[T]:
        self._subscribe(is_async=True)
        return self._atake()

    async def _atake(self) -> AsyncIterator[T]:
        while True:
            while self._items:
                yield self._items.popleft()[1]
            if self._is_over() or not (await self._arequest_more() or self._items):
                return

    def tee(self, n: int = 2) -> tuple[Iterator[T], ...]:
        """Return several iterators over the items."""
        return tee(self, n)

    def atee(self, n: int = 2) -> tuple[AsyncIterator[T], ...]:
        """Return several asynchronous iterators over the items."""
        source, lock = aiter(self), asyncio.Lock()
        buffers: list[deque[T]] = [deque() for _ in range(n)]

        async def read(mine: deque[T]) -> AsyncIterator[T]:
            while True:
                async with lock:
                    if not mine:
                        try:
                            item = await anext(source)
                        except StopAsyncIteration:
                            return
                        for each in buffers:
                            each.append(item)
                yield mine.popleft()

        return tuple(map(read, buffers))


class StreamTransformer(ABC):
    """Sees the events of a graph and of those inside of it, and fills projections.

    Args:
        scope: the namespace of the graph.

    Attributes:
        required_stream_modes: what has to be streamed for it.
        before_builtins: whether it sees, and may change, events before LangGraph's own.
        requires_async: whether it works on an event loop only, as it does with an `aprocess`.
        supports_sync: whether it does not although it has one.
    """

    required_stream_modes: ClassVar[tuple[str, ...]] = ()
    before_builtins: ClassVar[bool] = False
    requires_async: ClassVar[bool] = False
    supports_sync: ClassVar[bool] = False
    _native: ClassVar[bool] = False

    def __init__(self, scope: Namespace = ()) -> None:
        self.scope = scope

    @abstractmethod
    def init(self) -> dict[str, Any]:
        """Return the projections by name."""

    def process(self, event: ProtocolEvent) -> bool:
        """Look at an event; whether it is shown to who iterates over the run.

        Raises:
            NotImplementedError: the class has no method for events.
        """
        raise NotImplementedError(f"{type(self).__name__} must override process() or aprocess()")

    def finalize(self) -> None:  # noqa: B027
        """The graph has ended."""

    def fail(self, err: BaseException) -> None:  # noqa: B027
        """The graph has failed."""

    async def aprocess(self, event: ProtocolEvent) -> bool:
        """`process` on an event loop."""
        return self.process(event)

    async def afinalize(self) -> None:
        """`finalize` on an event loop."""
        self.finalize()

    async def afail(self, err: BaseException) -> None:
        """`fail` on an event loop."""
        self.fail(err)

    def schedule(
        self, coro: Coroutine[Any, Any, Any], *, on_error: Literal["log", "raise"] = "log"
    ) -> asyncio.Task[Any]:
        """Start a coroutine, for which the end of the graph waits.

        Args:
            on_error: "raise" to leave the error to who awaits the task.
        """
        task = asyncio.ensure_future(_logged(coro) if on_error == "log" else coro)
        self._scheduled_task_set().add(task)
        return task

    def _scheduled_task_set(self) -> set[asyncio.Task[Any]]:
        found: set[asyncio.Task[Any]] = vars(self).setdefault("_scheduled", set())
        return found

    def _on_register(self, mux: Any) -> None:  # noqa: B027
        """It has become part of a mux."""


async def _logged(coro: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coro
    except Exception:
        _LOG.exception("a coroutine of a StreamTransformer has failed")


class _ModeTransformer(StreamTransformer):
    """Shows one stream mode of its graph."""

    _native = True

    def init(self) -> dict[str, Any]:
        self._log: StreamChannel[Any] = StreamChannel()
        return {self.required_stream_modes[0]: self._log}

    def process(self, event: ProtocolEvent) -> bool:
        params = event["params"]
        mode = self.required_stream_modes[0]
        if event["method"] == mode and params["namespace"] == [*self.scope]:
            self.show(params["data"])
        return True

    def show(self, data: Any) -> None:
        """Add an item."""
        self._log.push(data)


def _shows(name: str, mode: StreamMode) -> type[_ModeTransformer]:
    """A transformer that shows a stream mode as it is."""
    return type(name, (_ModeTransformer,), {"required_stream_modes": (mode,)})


ValuesTransformer = _shows("ValuesTransformer", "values")
UpdatesTransformer = _shows("UpdatesTransformer", "updates")
CustomTransformer = _shows("CustomTransformer", "custom")
CheckpointsTransformer = _shows("CheckpointsTransformer", "checkpoints")
DebugTransformer = _shows("DebugTransformer", "debug")
TasksTransformer = _shows("TasksTransformer", "tasks")


class MessagesTransformer(_ModeTransformer):
    """Shows each call of a model as a stream of its own."""

    required_stream_modes: ClassVar[tuple[str, ...]] = ("messages",)

    def _on_register(self, mux: Any) -> None:
        self._mux, self._messages = mux, dict[Any, Any]()

    def show(self, data: Any) -> None:
        """Add events of content blocks, or a whole message."""
        event, metadata = data
        if isinstance(event, AIMessage):
            for each in _events_of(event):
                self._dispatch(each, {**metadata, "run_id": event.id})
        elif isinstance(event, dict):
            self._dispatch(event, metadata)

    def _dispatch(self, event: Any, metadata: Mapping[str, Any]) -> None:
        if event["event"] == "message-start" and event.get("role") != "tool":
            make = AsyncChatModelStream if self._mux.is_async else ChatModelStream
            node, id = metadata.get("langgraph_node"), event.get("id")
            made: Any = make(namespace=[*self.scope], node=node, message_id=id)
            getattr(made, self._mux.more)(self._mux.pump)
            self._messages[metadata["run_id"]] = made
            self._log.push(made)
        if metadata["run_id"] in self._messages:
            self._messages[metadata["run_id"]].dispatch(event)


class _TasksLifecycleBase(StreamTransformer):
    """Follows the graphs inside its own: a graph has begun if it runs a task, and has ended if its
    own task has."""

    required_stream_modes: ClassVar[tuple[str, ...]] = ("tasks",)
    supports_sync = True

    def __init__(self, scope: Namespace = ()) -> None:
        super().__init__(scope)
        self._open: set[Namespace] = set()
        self._lc_by_ns: dict[Namespace, str | None] = {}
        self._calls: dict[str, str] = {}
        self._pending_cause: dict[str, str] | None = None

    def _should_track(self, ns: Namespace) -> bool:
        return len(ns) > len(self.scope) and ns[: len(self.scope)] == self.scope

    def _on_started(self, ns: Namespace, graph_name: Any, trigger_call_id: Any) -> None:
        """A graph inside has begun."""

    def _on_terminal(self, ns: Namespace, status: SubgraphStatus, error: Any) -> None:
        """It has ended."""

    def process(self, event: ProtocolEvent) -> bool:
        if event["method"] != "tasks":
            return True
        ns, data = tuple(event["params"]["namespace"]), event["params"]["data"]
        if "result" in data:
            for each in self._pop_terminal_transitions(ns, data):
                self._on_terminal(*each)
        else:
            self._record_identity(ns, data)
            self._record_pending_tool_calls(data)
            self._handle_task_start(ns, data)
        return False

    def _record_identity(self, ns: Namespace, data: Mapping[str, Any]) -> None:
        """The name of the agent that the graph is."""
        self._lc_by_ns.setdefault(ns, (data.get("metadata") or {}).get("lc_agent_name"))

    def _record_pending_tool_calls(self, data: Mapping[str, Any]) -> None:
        """The tool that the task calls."""
        given = data.get("input")
        given = given if isinstance(given, list) else [given]
        calls = [each.get("tool_call", each) for each in given if isinstance(each, dict)]
        ids = [each["id"] for each in calls if each.get("id") and "args" in each]
        if len(ids) == 1:
            self._calls[data["id"]] = ids[0]

    def _handle_task_start(self, ns: Namespace, data: Mapping[str, Any]) -> None:
        if ns in self._open or not self._should_track(ns):
            return
        self._open.add(ns)
        name, _, task_id = ns[-1].partition(":")
        agent, call = self._lc_by_ns.get(ns), self._calls.get(task_id)
        is_other = agent is not None and agent != self._lc_by_ns.get(ns[:-1])
        caused = is_other and call is not None
        self._pending_cause = {"type": "toolCall", "tool_call_id": str(call)} if caused else None
        self._on_started(ns, agent or name, task_id)

    def _pop_terminal_transitions(self, ns: Namespace, data: Mapping[str, Any]) -> list[Any]:
        """What becomes of the graph whose own task has ended: its namespace, status and error."""
        inner = (*ns, f"{data['name']}:{data['id']}")
        if inner not in self._open:
            return []
        self._open.remove(inner)
        if data["error"]:
            return [(inner, "failed", str(data["error"]))]
        return [(inner, "interrupted" if data["interrupts"] else "completed", None)]

    def fail(self, err: BaseException) -> None:
        for ns in sorted(self._open, key=len, reverse=True):
            self._on_terminal(ns, "failed", str(err))


class LifecycleTransformer(_TasksLifecycleBase):
    """Shows what becomes of graphs inside its own, at any depth."""

    _native = True

    def init(self) -> dict[str, Any]:
        self._log: StreamChannel[Any] = StreamChannel("lifecycle")
        return {"lifecycle": self._log}

    def _on_started(self, ns: Namespace, graph_name: Any, trigger_call_id: Any) -> None:
        more = {"cause": self._pending_cause} if self._pending_cause else {}
        self._tell("started", ns, graph_name=graph_name, trigger_call_id=trigger_call_id, **more)

    def _on_terminal(self, ns: Namespace, status: SubgraphStatus, error: Any) -> None:
        self._tell(status, ns, **({"error": error} if error else {}))

    def _tell(self, event: SubgraphStatus, ns: Namespace, **more: Any) -> None:
        self._log.push({"event": event, "namespace": [*ns], **more})


class SubgraphTransformer(_TasksLifecycleBase):
    """Shows the graphs right inside its own, and gives them their events."""

    _native = True

    def init(self) -> dict[str, Any]:
        self._log: StreamChannel[Any] = StreamChannel()
        self._handles: dict[Namespace, Any] = {}
        self._ended: list[Any] = []
        return {"subgraphs": self._log}

    def _on_register(self, mux: Any) -> None:
        self._mux = mux

    def _should_track(self, ns: Namespace) -> bool:
        return super()._should_track(ns) and len(ns) == len(self.scope) + 1

    def _on_started(self, ns: Namespace, graph_name: Any, trigger_call_id: Any) -> None:
        make = AsyncSubgraphRunStream if self._mux.is_async else SubgraphRunStream
        where: Any = {"path": ns, "graph_name": graph_name, "trigger_call_id": trigger_call_id}
        self._handles[ns] = make(self._mux._make_child(ns), **where)
        self._log.push(self._handles[ns])

    def _on_terminal(self, ns: Namespace, status: SubgraphStatus, error: Any) -> None:
        handle = self._handles.pop(ns)
        handle.status, handle.error = status, error
        self._ended.append((handle._mux, RuntimeError(error) if error else None))

    def _pop_ended(self) -> list[Any]:
        ended, self._ended = self._ended, []
        return ended

    def process(self, event: ProtocolEvent) -> bool:
        keep, inner = super().process(event), self._inner(event)
        for mux, error in self._pop_ended():
            mux.close(error)
        if inner is not None:
            inner.push(event)
        return keep

    async def aprocess(self, event: ProtocolEvent) -> bool:
        keep, inner = super().process(event), self._inner(event)
        for mux, error in self._pop_ended():
            await mux.aclose(error)
        if inner is not None:
            await inner.apush(event)
        return keep

    def fail(self, err: BaseException) -> None:
        super().fail(err)
        for mux, error in self._pop_ended():
            mux.close(error)

    def _inner(self, event: ProtocolEvent) -> Any:
        handle = self._handles.get(tuple(event["params"]["namespace"][: len(self.scope) + 1]))
        if handle is None:
            return None
        handle._observe_event(event)
        return handle._mux


_BUILTIN: Final = (
    ValuesTransformer, MessagesTransformer, LifecycleTransformer, SubgraphTransformer
)  # fmt: skip


def make_event(method: str, ns: Sequence[str], data: Any, **more: Any) -> ProtocolEvent:
    """An event of now."""
    params = {"namespace": [*ns], "timestamp": time.time_ns() // 1_000_000, "data": data}
    return {"type": "event", "method": method, "params": {**params, **more}}


class StreamMux:
    """The transformers of a graph, and their projections.

    Args:
        factories: make transformers for a scope.
        scope: the namespace of the graph.

    Raises:
        TypeError: a factory is a transformer, `init` returns no dict.
        ValueError: two projections have one name.
        RuntimeError: a transformer works on an event loop only.
    """

    pump: Any
    scope: Namespace
    is_async: bool
    transformers: list[StreamTransformer]

    def __init__(
        self, factories: Sequence[Any], *, is_async: bool, scope: Namespace = ()
    ) -> None:
        self.scope, self.is_async = scope, is_async
        self.more = "set_arequest_more" if is_async else "set_request_more"
        self._factories, self._seq = factories, count(1)
        self._events: StreamChannel[ProtocolEvent] = StreamChannel()
        self._channels: list[StreamChannel[Any]] = [self._events]
        self.projections: dict[str, Any] = {}
        self.owners: dict[str, StreamTransformer] = {}
        made = [self._register(factory) for factory in (*_BUILTIN, *factories)]
        self.transformers = sorted(made, key=lambda each: not each.before_builtins)
        for each in made:
            each._on_register(self)

    def bind_pump(self, pump: Any) -> None:
        """Let readers drive the run.

        Args:
            pump: lets the run go on for one part; false at its end.
        """
        self.pump = pump
        for channel in self._channels:
            channel._bind(is_async=self.is_async)
            channel._request_more = channel._arequest_more = pump
        for each in self.transformers:
            bind = getattr(each, "_bind_apump" if self.is_async else "_bind_pump", None)
            if bind is not None:
                bind(pump)

    def _register(self, factory: Any) -> StreamTransformer:
        made = None if isinstance(factory, StreamTransformer) else factory(self.scope)
        if not isinstance(made, StreamTransformer):
            raise TypeError(
                "transformers must be classes that inherit from StreamTransformer, or functions "
                f"that make one for a scope, got {factory!r}: each graph of a run has its own"
            )
        kind, base = type(made), StreamTransformer
        own = ("aprocess", "afinalize", "afail")
        is_async = any(getattr(kind, name) is not getattr(base, name) for name in own)
        if not self.is_async and (made.requires_async or (is_async and not made.supports_sync)):
            raise RuntimeError(f"{kind.__name__} requires an async run: use astream_events()")
        shown = made.init()
        if not isinstance(shown, dict):
            got = type(shown).__name__
            raise TypeError(f"{kind.__name__}.init() must return a dict, got {got}")
        for name in shown.keys() & self.projections.keys():
            owner = type(self.owners[name]).__name__
            raise ValueError(f"{kind.__name__}: the projection {name!r} is that of {owner}")
        self.projections |= shown
        self.owners |= dict.fromkeys(shown, made)
        for channel in shown.values():
            if isinstance(channel, StreamChannel):
                self._channels.append(channel)
                if channel.name is not None:
                    method = channel.name if made._native else f"custom:{channel.name}"
                    channel._forward = partial(self._forward, method)
        return made

    def _make_child(self, scope: Namespace) -> StreamMux:
        made = StreamMux(self._factories, is_async=self.is_async, scope=scope)
        made.bind_pump(self.pump)
        return made

    def log(self, event: ProtocolEvent) -> None:
        """Show an event to who iterates over the run."""
        if not self.scope:
            event["seq"] = next(self._seq)
        self._events.push(event)

    def _forward(self, method: str, item: Any) -> None:
        self.log(make_event(method, self.scope, item))

    def push(self, event: ProtocolEvent) -> None:
        """Show an event to the transformers."""
        kept = [each.process(event) for each in self.transformers]
        if all(kept):
            self.log(event)

    async def apush(self, event: ProtocolEvent) -> None:
        """`push` on an event loop."""
        kept = [await each.aprocess(event) for each in self.transformers]
        if all(kept):
            self.log(event)

    def close(self, err: BaseException | None = None) -> None:
        """The graph has ended, maybe by an error."""
        for each in self.transformers:
            each.finalize() if err is None else each.fail(err)
        self._end(err)

    async def aclose(self, err: BaseException | None = None) -> None:
        """`close` on an event loop."""
        for each in self.transformers:
            await (each.afinalize() if err is None else each.afail(err))
        tasks = [task for each in self.transformers for task in each._scheduled_task_set()]
        await asyncio.gather(*tasks, return_exceptions=True)
        self._end(err)

    fail = close
    afail = aclose

    def _end(self, err: BaseException | None) -> None:
        for each in self._channels:
            each.close(err)


class GraphRunStream:
    """A run of a graph, or what it shows of a graph inside of it.

    Attributes:
        path: the namespace of the graph.
        extensions: the projections by name; LangGraph's own are attributes, too.
        error: by what it has ended.
    """

    _parts: Any
    path: Namespace
    graph_name: str | None
    trigger_call_id: str | None
    extensions: Mapping[str, Any]
    status: str

    def __init__(
        self,
        mux: StreamMux,
        *,
        path: Namespace = (),
        graph_name: str | None = None,
        trigger_call_id: str | None = None,
    ) -> None:
        self._mux, self.path = mux, path
        self.graph_name, self.trigger_call_id = graph_name, trigger_call_id
        self.extensions = MappingProxyType(mux.projections)
        for name, owner in mux.owners.items():
            if owner._native:
                setattr(self, name, mux.projections[name])
        self.status = "started"
        self.error: Any = None
        self._seen_terminal = False
        self._last: Any = None
        self._asked: Sequence[Any] = ()

    def _observe_event(self, event: ProtocolEvent) -> None:
        params = event["params"]
        if event["method"] == "values" and params["namespace"] == [*self.path]:
            self._last, self._asked = params["data"], params["interrupts"]

    def pump(self) -> Any:
        """Let the run go on for one part; false at its end.

        Raises:
            Exception: by what the run has ended.
        """
        if self.status != "started":
            return not self._mux._events._is_over()
        try:
            event = _event_of(next(self._parts))
            self._observe_event(event)
            self._mux.push(event)
        except StopIteration:
            self.status = "completed"
            self._mux.close()
        except Exception as error:
            self.status, self.error = "failed", error
            self._mux.close(error)
            self._parts.close()
        return True

    # -- for its reader ----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mux._events)

    def interleave(self, *names: str) -> Iterator[tuple[str, Any]]:
        """Yield the items of several projections with their names, in the order of arrival.

        Raises:
            KeyError: there is no such projection.
            TypeError: it is no channel.
            RuntimeError: one of them has a reader.
        """
        shown = {name: self.extensions[name] for name in names}
        for name, each in shown.items():
            if not isinstance(each, StreamChannel):
                got = type(each).__name__
                raise TypeError(f"interleave() takes channels, got {got} for {name!r}")
            each._subscribe(is_async=False)
        try:
            while True:
                ready = [name for name, each in shown.items() if each._items]
                if ready:
                    name = min(ready, key=lambda name: shown[name]._items[0][0])
                    yield name, shown[name]._items.popleft()[1]
                elif not self._mux.pump():
                    return
        finally:
            for each in shown.values():
                each._is_read = False

    def _run(self) -> None:
        while not self._mux._events._is_over() and self._mux.pump():
            pass

    @property
    def output(self) -> Any:
        """The state at the end of the run, which is driven to it."""
        self._run()
        return self._last

    @property
    def interrupted(self) -> Any:
        """Whether it has paused, at the end of the run."""
        return bool(self.interrupts)

    @property
    def interrupts(self) -> Any:
        """The questions that it has asked, at the end of the run."""
        self._run()
        return [*self._asked]

    def abort(self) -> Any:
        """Stop the run."""
        if self.status == "started":
            self.status = "completed"
            self._parts.close()
            self._mux.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


class AsyncGraphRunStream(GraphRunStream):
    """A run that is read on an event loop."""

    def __init__(self, mux: StreamMux, **where: Any) -> None:
        super().__init__(mux, **where)
        self._lock = asyncio.Lock()

    async def pump(self) -> bool:
        """Let the run go on for one part; false at its end."""
        async with self._lock:
            if self.status != "started":
                return not self._mux._events._is_over()
            try:
                event = _event_of(await anext(self._parts))
                self._observe_event(event)
                await self._mux.apush(event)
            except StopAsyncIteration:
                self.status = "completed"
                await self._mux.aclose()
            except Exception as error:
                self.status, self.error = "failed", error
                await self._mux.aclose(error)
                await self._parts.aclose()
            return True

    def __aiter__(self) -> AsyncIterator[Any]:
        return aiter(self._mux._events)

    async def output(self) -> Any:
        """Return the state at the end of the run, which is driven to it."""
        while not self._mux._events._is_over() and await self._mux.pump():
            pass
        return self._last

    async def interrupted(self) -> bool:
        """Return whether it has paused, at the end of the run."""
        return bool(await self.interrupts())

    async def interrupts(self) -> list[Any]:
        """Return the questions that it has asked, at the end of the run."""
        await self.output()
        return [*self._asked]

    async def abort(self) -> None:
        """Stop the run."""
        if self.status == "started":
            self.status = "completed"
            await self._parts.aclose()
            await self._mux.aclose()

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.abort()


class SubgraphRunStream(GraphRunStream):
    """What a run shows of a graph inside of it."""


class AsyncSubgraphRunStream(AsyncGraphRunStream):
    """What a run on an event loop shows of a graph inside of it."""


def _event_of(part: Mapping[str, Any]) -> ProtocolEvent:
    kind, data = part["type"], part["data"]
    if kind == "messages" and data[0] is _TOOLS:
        kind, data = data
    more = {"interrupts": part["interrupts"]} if kind == "values" else {}
    return make_event(kind, part["ns"], data, **more)


def _events_of(message: Any) -> Iterator[dict[str, Any]]:
    yield {"event": "message-start", "role": "ai", "id": message.id}
    for index, block in enumerate(message.content_blocks):
        yield {"event": "content-block-start", "index": index, "content": block}
        yield {"event": "content-block-finish", "index": index, "content": block}
    yield {"event": "message-finish"}


def open_run(stream: Any, made: Any, input: Any, config: Any, options: dict[str, Any]) -> Any:
    """Return a run stream.

    Args:
        stream: `stream` or `astream` of a graph.
        made: the class of the run stream.

    Raises:
        TypeError: an option is given that the protocol sets itself.
    """
    for name in ("stream_mode", "subgraphs"):
        if name in options:
            raise TypeError(f"version 'v3' does not accept {name}: it chooses what is streamed")
    own, given = stream.__self__.stream_transformers, options.pop("transformers", None) or ()
    mux = StreamMux((*own, *given), is_async=issubclass(made, AsyncGraphRunStream))
    wanted = {mode for each in mux.transformers for mode in each.required_stream_modes}
    modes = [mode for mode in get_args(StreamMode) if mode in wanted]
    config = merge_configs(config, {"callbacks": [BlockSender(None)]})
    options = take_ignored("stream_events()", options)
    run = made(mux)
    run._parts = stream(input, config, version="v2", stream_mode=modes, subgraphs=True, **options)
    mux.bind_pump(run.pump)
    return run
