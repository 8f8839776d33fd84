"""`stream_events(version="v3")`: a run whose projections are read one by one or interleaved.
Reading drives the run; there is no thread."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from inspect import iscoroutinefunction
from itertools import count, tee
from typing import Any, ClassVar, Final

from langchain_core.language_models.chat_model_stream import AsyncChatModelStream, ChatModelStream
from langchain_core.runnables.config import merge_configs
from langchain_core.tracers._streaming import _V2StreamingCallbackHandler

from ..langchain.tokens import TokenSender
from .ignored import take_ignored

_PROJECTIONS: Final = ("values", "messages", "lifecycle", "subgraphs")
_STAMPS: Final = count()


class BlockSender(TokenSender, _V2StreamingCallbackHandler):
    """Sends what models say as events of content blocks. Its class makes models report those."""

    def on_llm_new_token(self, token: Any, **_: Any) -> Any:
        """A part has come, of which events tell, too."""

    def on_stream_event(self, event: Any, *, run_id: Any, **_: Any) -> Any:
        """A model has reported an event."""
        metadata = self._metadata.get(run_id)
        if metadata is not None:
            self._streamed.add(run_id)
            self._emit(event, {**metadata, "run_id": str(run_id)})


class Projection:
    """What is shown of one kind, for one reader.

    Args:
        pump: lets the run go on for one part; false at its end.
    """

    def __init__(self, pump: Any) -> None:
        self.items: deque[tuple[int, Any]] = deque()
        self.is_read = False
        self._pump = pump

    def push(self, item: Any) -> None:
        """Add an item, if anybody reads."""
        if self.is_read:
            self.items.append((next(_STAMPS), item))

    def subscribe(self) -> None:
        """Keep items from now on.

        Raises:
            RuntimeError: the projection has a reader.
        """
        if self.is_read:
            raise RuntimeError("a projection has one reader; tee(n) makes several of it")
        self.is_read = True

    def __iter__(self) -> Iterator[Any]:
        if iscoroutinefunction(self._pump):
            raise TypeError("the run is read on an event loop: use `async for`")
        self.subscribe()
        return self._take()

    def _take(self) -> Iterator[Any]:
        while self.items or self._pump() or self.items:  # another reader may have driven it
            while self.items:
                yield self.items.popleft()[1]

    def __aiter__(self) -> AsyncIterator[Any]:
        self.subscribe()
        return self._atake()

    async def _atake(self) -> AsyncIterator[Any]:
        while self.items or await self._pump() or self.items:
            while self.items:
                yield self.items.popleft()[1]

    def tee(self, n: int = 2) -> tuple[Iterator[Any], ...]:
        """Return several iterators over the items."""
        return tee(self, n)


class GraphRunStream:
    """A run of a graph, or what it shows of a graph inside of it.

    Attributes:
        path: the namespace of the graph.
        extensions: the projections by name; each is an attribute, too.
        error: by what it has ended.
    """

    child_class: ClassVar[Any]
    message_class: ClassVar[Any] = ChatModelStream
    message_pump: ClassVar[str] = "set_request_more"

    def __init__(self, parts: Any, path: tuple[str, ...] = ()) -> None:
        self.path = path
        self.graph_name, _, self.trigger_call_id = path[-1].partition(":") if path else ("", "", "")
        self.status = "started"
        self.error: Any = None
        self._root: GraphRunStream = parts if path else self
        self._parts = parts
        self.extensions = {name: Projection(self._root.pump) for name in _PROJECTIONS}
        vars(self).update(self.extensions)
        self._events = Projection(self._root.pump)
        self._seq = count(1)
        self._open: dict[tuple[str, ...], GraphRunStream | None] = {}
        self._messages: dict[Any, Any] = {}
        self._last: Any = None
        self._asked: Sequence[Any] = ()

    def pump(self) -> Any:
        """Let the run go on for one part; false at its end.

        Raises:
            Exception: by what the run has ended.
        """
        if self.status != "started":
            return self._over()
        try:
            part = next(self._parts)
        except Exception as error:
            self._end(error)
        else:
            self._show(part)
        return True

    def _over(self) -> bool:
        if self.error is not None:
            raise self.error
        return False

    def _end(self, error: Exception) -> None:
        if isinstance(error, StopIteration | StopAsyncIteration):
            self.status = "completed"
            return
        self.status, self.error = "failed", error
        for ns in [*self._open]:
            self._close(ns, {"event": "failed", "error": str(error)})

    # -- what parts of the run become --------------------------------------------------------------

    def _show(self, part: Mapping[str, Any]) -> None:
        kind, ns, data = part["type"], part["ns"], part["data"]
        if kind == "tasks":
            self._task(ns, data)
        else:
            more = {"interrupts": part["interrupts"]} if kind == "values" else {}
            self._event(kind, ns, data, **more)
        if ns == self.path and kind == "messages":
            self._message(*data)
        elif ns == self.path and kind == "values":
            self._last, self._asked = data, part["interrupts"]
            self.extensions["values"].push(data)
        child = self._open.get(ns[: len(self.path) + 1])
        if child is not None:
            child._show(part)

    def _event(self, method: str, ns: tuple[str, ...], data: Any, **more: Any) -> None:
        params = {"namespace": [*ns], "timestamp": time.time_ns() // 1_000_000, "data": data}
        seq = next(self._seq)
        self._events.push(
            {"type": "event", "method": method, "params": {**params, **more}, "seq": seq}
        )

    def _task(self, ns: tuple[str, ...], task: Mapping[str, Any]) -> None:
        """A graph below has begun if it runs a task, and has ended if its own task has."""
        for depth in range(len(self.path) + 1, len(ns) + 1):
            inner = ns[:depth]
            if inner not in self._open:
                name, _, call = inner[-1].partition(":")
                self._lifecycle("started", inner, graph_name=name, trigger_call_id=call)
                self._open[inner] = None
                if depth == len(self.path) + 1:
                    child = self._open[inner] = self.child_class(self._root, inner)
                    self.extensions["subgraphs"].push(child)
        inner = (*ns, f"{task['name']}:{task['id']}")
        if "result" in task and inner in self._open:
            failed = {"event": "failed", "error": str(task["error"])}
            became = {"event": "interrupted" if task["interrupts"] else "completed"}
            self._close(inner, failed if task["error"] else became)

    def _close(self, ns: tuple[str, ...], became: dict[str, str]) -> None:
        child = self._open.pop(ns)
        if child is not None:
            child.status, child.error = became["event"], became.get("error")
        self._lifecycle(ns=ns, **became)

    def _lifecycle(self, event: str, ns: tuple[str, ...], **more: str) -> None:
        payload = {"event": event, "namespace": [*ns], **more}
        self.extensions["lifecycle"].push(payload)
        self._event("lifecycle", self.path, payload)

    def _message(self, event: Any, metadata: Mapping[str, Any]) -> None:
        """Events of content blocks, or a whole message."""
        if not isinstance(event, dict):
            metadata = {**metadata, "run_id": event.id}
            for each in _events_of(event):
                self._message(each, metadata)
            return
        if event["event"] == "message-start":
            node, id = metadata.get("langgraph_node"), event.get("id")
            made = self.message_class(namespace=[*self.path], node=node, message_id=id)
            getattr(made, self.message_pump)(self._root.pump)
            self._messages[metadata["run_id"]] = made
            self.extensions["messages"].push(made)
        self._messages[metadata["run_id"]].dispatch(event)

    # -- for its reader ----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        return iter(self._events)

    def interleave(self, *names: str) -> Iterator[tuple[str, Any]]:
        """Yield the items of several projections with their names, in the order of arrival.

        Raises:
            KeyError: there is no such projection.
            RuntimeError: one of them has a reader.
        """
        shown = {name: self.extensions[name] for name in names}
        for each in shown.values():
            each.subscribe()
        try:
            while True:
                ready = [name for name, each in shown.items() if each.items]
                if ready:
                    name = min(ready, key=lambda name: shown[name].items[0][0])
                    yield name, shown[name].items.popleft()[1]
                elif not self._root.pump():
                    return
        finally:
            for each in shown.values():
                each.is_read = False

    def _run(self) -> None:
        while self._root.pump():
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
        self._root.status = "completed"
        self._root._parts.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


class AsyncGraphRunStream(GraphRunStream):
    """A run that is read on an event loop."""

    message_class = AsyncChatModelStream
    message_pump = "set_arequest_more"

    def __init__(self, parts: Any, path: tuple[str, ...] = ()) -> None:
        super().__init__(parts, path)
        self._lock = asyncio.Lock()

    async def pump(self) -> bool:
        """Let the run go on for one part; false at its end."""
        async with self._lock:
            if self.status != "started":
                return self._over()
            try:
                part = await anext(self._parts)
            except Exception as error:
                self._end(error)
            else:
                self._show(part)
            return True

    def __aiter__(self) -> AsyncIterator[Any]:
        return aiter(self._events)

    async def output(self) -> Any:
        """Return the state at the end of the run, which is driven to it."""
        while await self._root.pump():
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
        self._root.status = "completed"
        await self._root._parts.aclose()

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.abort()


class SubgraphRunStream(GraphRunStream):
    """What a run shows of a graph inside of it."""


class AsyncSubgraphRunStream(AsyncGraphRunStream):
    """What a run on an event loop shows of a graph inside of it."""


GraphRunStream.child_class = SubgraphRunStream
AsyncGraphRunStream.child_class = AsyncSubgraphRunStream


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
    config = merge_configs(config, {"callbacks": [BlockSender(None)]})
    modes = ["values", "messages", "tasks"]
    options = take_ignored("stream_events()", options)
    return made(stream(input, config, version="v2", stream_mode=modes, subgraphs=True, **options))
