"""LangGraph's `RemoteGraph`: a graph that a server runs, called like one of this process. Needs the
package `langgraph-sdk`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import wraps
from importlib import import_module
from typing import Any

from langchain_core.runnables import Runnable

from ...pregel.errors import StateGraphError
from ...pregel.running import RUNNING
from ...pregel.types import Command, Interrupt, PregelTask, Send, StateSnapshot

_PASSED = ("interrupt_before", "interrupt_after", "headers", "params", "context", "durability")
_NO_QUESTIONS = (
    "the remote graph {name!r} has asked {questions}; its questions are not passed on by a graph "
    "around it: call it from a function that asks them with interrupt()"
)


class RemoteException(StateGraphError):
    """A run of a remote graph has failed; the argument is what its server says."""


class RemoteGraph(Runnable[Any, Any]):
    """A graph behind a server that speaks LangGraph's API: `stategraph serve`, or LangGraph's.

    It is called and looked at like a compiled graph, and can be a node of one. What it returns is
    plain JSON.

    Args:
        assistant_id: the name of the graph, or the id of an assistant.
        url, api_key, headers: where the server is, and what is sent along.
        client, sync_client: official clients to use instead.
        config: part of the config of each call.
        name: its name as a node; the assistant by default.
    """

    def __init__(
        self,
        assistant_id: str,
        /,
        *,
        url: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        client: Any = None,
        sync_client: Any = None,
        config: Any = None,
        name: str | None = None,
        **_: Any,
    ) -> None:
        if client is None and sync_client is None:
            sdk = import_module("langgraph_sdk")
            given: Any = {"url": url, "api_key": api_key, "headers": headers}
            client, sync_client = sdk.get_client(**given), sdk.get_sync_client(**given)
        self.assistant_id: str = assistant_id
        self.name: str | Any = name or assistant_id
        self.config: Any = config or {}
        self.client: Any = client
        self.sync_client: Any = sync_client

    def with_config(self, config: Any = None, **more: Any) -> RemoteGraph:
        """The same graph with more in the config of each call."""
        return self.copy({"config": _merge(self.config, {**(config or {}), **more})})

    def copy(self, update: Mapping[str, Any] | None = None) -> RemoteGraph:
        """The same graph with some of its attributes replaced."""
        names = ("client", "sync_client", "config", "name")
        given = {name: getattr(self, name) for name in names} | dict(update or {})
        return RemoteGraph(given.pop("assistant_id", self.assistant_id), **given)

    # -- calls -------------------------------------------------------------------------------------

    def invoke(self, input: Any, config: Any = None, **options: Any) -> Any:
        """Run it; the state at the end.

        Raises:
            RemoteException: the run has failed, or has asked something inside another graph.
        """
        last = None
        for state in self.stream(input, config, **{**options, "stream_mode": "values"}):
            last = state
        return self._result(last)

    async def ainvoke(self, input: Any, config: Any = None, **options: Any) -> Any:
        """`invoke` for coroutines."""
        last = None
        async for state in self.astream(input, config, **{**options, "stream_mode": "values"}):
            last = state
        return self._result(last)

    def _result(self, last: Any) -> Any:
        if RUNNING.get() is not None and isinstance(last, dict) and last.get("__interrupt__"):
            questions = [each["value"] for each in last["__interrupt__"]]
            raise RemoteException(_NO_QUESTIONS.format(name=self.name, questions=questions))
        return last

    def stream(
        self,
        input: Any,
        config: Any = None,
        *,
        stream_mode: str | Sequence[str] | None = None,
        subgraphs: bool = False,
        **options: Any,
    ) -> Iterator[Any]:
        """Run it; what it sends, in the shape of a compiled graph's `stream`.

        Raises:
            RemoteException: the run has failed.
        """
        shape = _Shape(stream_mode, subgraphs)
        place, call = self._call(input, config, shape, options)
        for part in self._need(self.sync_client).runs.stream(place, self.assistant_id, **call):
            yield from shape.of(part)

    async def astream(
        self,
        input: Any,
        config: Any = None,
        *,
        stream_mode: str | Sequence[str] | None = None,
        subgraphs: bool = False,
        **options: Any,
    ) -> AsyncIterator[Any]:
        """`stream` for coroutines."""
        shape = _Shape(stream_mode, subgraphs)
        place, call = self._call(input, config, shape, options)
        async for part in self._need(self.client).runs.stream(place, self.assistant_id, **call):
            for each in shape.of(part):
                yield each

    def _call(
        self, input: Any, config: Any, shape: _Shape, options: dict[str, Any]
    ) -> tuple[str | None, dict[str, Any]]:
        sent = _merge(self.config, config)
        free = {key: each for key, each in sent["configurable"].items() if _is_sent(key, each)}
        thread_id = free.pop("thread_id", None)
        settings = {k: sent[k] for k in ("tags", "recursion_limit") if sent.get(k)}
        call: dict[str, Any] = {
            "config": {**settings, "configurable": free},
            "stream_mode": shape.modes,
            "stream_subgraphs": shape.subgraphs,
            **{key: options[key] for key in _PASSED if options.get(key) is not None},
        }
        if thread_id is not None:
            call["if_not_exists"] = "create"
        if isinstance(input, Command):
            call["command"] = _command(input)
        else:
            call["input"] = input
        return thread_id, call

    def _need(self, client: Any) -> Any:
        if client is None:
            raise ValueError("this call needs the other client: give client= and sync_client=")
        return client

    # -- threads -----------------------------------------------------------------------------------

    # `sent` is what the client's methods take: `headers` and `params` of the request.

    def get_state(
        self, config: Any, *, subgraphs: bool = False, **sent: Any
    ) -> StateSnapshot[Any]:
        """The state of a thread."""
        thread_id, checkpoint = self._place(config)
        threads = self._need(self.sync_client).threads
        return _snapshot(
            threads.get_state(thread_id, checkpoint=checkpoint, subgraphs=subgraphs, **sent)
        )

    def get_state_history(
        self,
        config: Any,
        *,
        filter: dict[str, Any] | None = None,
        before: Any = None,
        limit: int | None = None,
        **sent: Any,
    ) -> Iterator[StateSnapshot[Any]]:
        """The steps of a thread, the newest first."""
        thread_id, checkpoint = self._place(config)
        found = self._need(self.sync_client).threads.get_history(
            thread_id,
            limit=limit or 10,
            before=None if before is None else self._place(before)[1],
            metadata=filter,
            checkpoint=checkpoint,
            **sent,
        )
        yield from map(_snapshot, found)

    async def aget_state_history(
        self, config: Any, **options: Any
    ) -> AsyncIterator[StateSnapshot[Any]]:
        """`get_state_history` for coroutines."""
        for each in await asyncio.to_thread(lambda: [*self.get_state_history(config, **options)]):
            yield each

    def update_state(
        self, config: Any, values: Any, as_node: str | None = None, **sent: Any
    ) -> Any:
        """Edit the state of a thread; the config of the new checkpoint."""
        thread_id, checkpoint = self._place(config)
        made = self._need(self.sync_client).threads.update_state(
            thread_id, values, as_node=as_node, checkpoint=checkpoint, **sent
        )
        return {"configurable": made["checkpoint"]}

    def bulk_update_state(self, config: Any, updates: Any) -> Any:
        """Not offered by servers.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("a remote graph has no bulk_update_state: use update_state")

    def get_graph(self, config: Any = None, *, xray: int | bool = False, **sent: Any) -> Any:
        """Its drawing."""
        return _drawing(
            self.name,
            self._need(self.sync_client).assistants.get_graph(
                self.assistant_id, xray=xray, **sent
            ),
        )

    def _place(self, config: Any) -> tuple[str, dict[str, Any] | None]:
        place = _merge(self.config, config)["configurable"]
        if "thread_id" not in place:
            raise ValueError("config must name a thread: {'configurable': {'thread_id': ...}}")
        names = ("checkpoint_ns", "checkpoint_id", "checkpoint_map")
        checkpoint = {name: place[name] for name in names if place.get(name)}
        return str(place["thread_id"]), checkpoint or None


def _on_thread(method: Any) -> Any:
    @wraps(method)
    async def call(*args: Any, **options: Any) -> Any:
        return await asyncio.to_thread(method, *args, **options)

    return call


for _name in ("get_state", "update_state", "bulk_update_state", "get_graph"):
    setattr(RemoteGraph, f"a{_name}", _on_thread(getattr(RemoteGraph, _name)))


class _Shape:
    """In which shape a caller wants what the server sends."""

    def __init__(self, modes: str | Sequence[str] | None, subgraphs: bool) -> None:
        self._is_one = modes is None or isinstance(modes, str)
        asked = [modes or "updates"] if modes is None or isinstance(modes, str) else [*modes]
        self.modes = ["messages-tuple" if mode == "messages" else mode for mode in asked]
        self._asked = frozenset(asked)
        self.subgraphs = subgraphs

    def of(self, part: Any) -> Iterator[Any]:
        """What a part of the stream is to the caller."""
        mode, *place = part.event.split("|")
        if mode == "error":
            raise RemoteException(part.data)
        if mode not in self._asked:
            return
        chunk = tuple(part.data) if mode == "messages" else part.data
        shown = ((tuple(place),) if self.subgraphs else ()) + (() if self._is_one else (mode,))
        yield (*shown, chunk) if shown else chunk


def _merge(one: Any, other: Any) -> dict[str, Any]:
    """Two configs as one, whose `configurable` is there."""
    one, other = one or {}, other or {}
    both = {**one, **other}
    both["configurable"] = {**one.get("configurable", {}), **other.get("configurable", {})}
    return both


def _is_sent(key: str, value: Any) -> bool:
    """Whether a key of `configurable` means something in another process."""
    is_plain = isinstance(value, str | int | float | bool | list | dict)
    return is_plain and not key.startswith(("__", "checkpoint_"))


def _command(command: Command[Any]) -> dict[str, Any]:
    ends = command.goto if isinstance(command.goto, list | tuple) else [command.goto]
    goto = [{"node": e.node, "input": e.arg} if isinstance(e, Send) else e for e in ends if e]
    parts = {"resume": command.resume, "update": command.update, "goto": goto or None}
    return {name: part for name, part in parts.items() if part is not None}


def _snapshot(state: Mapping[str, Any]) -> StateSnapshot[Any]:
    parent = state.get("parent_checkpoint")
    tasks = tuple(_task(task) for task in state.get("tasks") or ())
    return StateSnapshot(
        values=state["values"],
        next=tuple(state["next"]),
        config=_config(state["checkpoint"]),
        metadata=state["metadata"],
        created_at=state["created_at"],
        parent_config=None if parent is None else _config(parent),
        tasks=tasks,
        interrupts=tuple(question for task in tasks for question in task.interrupts),
    )


def _config(checkpoint: Any) -> Any:
    place = checkpoint or {}
    return {"configurable": {key: each for key, each in place.items() if each is not None}}


def _task(task: Mapping[str, Any]) -> PregelTask:
    error, state = task.get("error"), task.get("state")
    asked = task.get("interrupts") or ()
    return PregelTask(
        task["id"],
        task["name"],
        tuple(task.get("path") or ()),
        error=None if error is None else RemoteException(error),
        interrupts=tuple(Interrupt(value=each["value"], id=each["id"]) for each in asked),
        state=None if state is None else _snapshot(state),
        result=task.get("result"),
    )


def _drawing(name: str, found: Mapping[str, Any]) -> Any:
    from ...visualize.drawing import Drawing
    from ...visualize.model import GraphEdge, GraphModel, GraphNode

    ends: Any = {"__start__": "start", "__end__": "end"}
    nodes = [
        GraphNode(id, str(each.get("data", {}).get("name", id)), kind=ends.get(id, "node"))
        for each in found["nodes"]
        if (id := str(each["id"]))
    ]
    edges = [
        GraphEdge(
            str(each["source"]),
            str(each["target"]),
            kind="conditional" if each.get("conditional") else "plain",
        )
        for each in found["edges"]
    ]
    return Drawing(GraphModel(name, nodes, edges))
