"""Translates the events of one run's log into events of the protocol, by channel. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from ....checkpoint.base import INTERRUPT, SLEEP
from ...events import Namespace, RunEvent
from ...json_messages import CallPiece, calls_of, role_of

MODES: Final = ("values", "updates", "messages-tuple", "custom", "tasks", "checkpoints")
"""The stream modes of a run that a session starts: the channels are made from these."""
CHANNELS: Final = (
    "values",
    "updates",
    "messages",
    "tools",
    "lifecycle",
    "input",
    "checkpoints",
    "tasks",
    "custom",
)
CUSTOM: Final = "custom:"
"""The prefix of a channel that carries the custom events of one name."""
_NEEDED_BY: Final[Mapping[str, frozenset[str]]] = {
    "messages": frozenset({"messages"}),
    "checkpoints": frozenset({"checkpoints"}),
    "tasks": frozenset({"tasks", "lifecycle"}),
    "updates": frozenset({"updates", "tools", "input", "lifecycle"}),
}
"""The channels that need the log events of a mode; other channels skip these events unparsed."""


class Event(NamedTuple):
    """An event of the protocol.

    Attributes:
        method: its type; usually the name of its channel.
    """

    method: str
    namespace: Namespace
    data: Any

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels that carry it."""
        if self.method == "input.requested":
            return ("input",)
        if self.method == "custom" and "name" in self.data:
            return ("custom", CUSTOM + self.data["name"])
        return (self.method,)


class Translator:
    """Translates the log of one run, from its first event on.

    Args:
        channels: the channels that the reader asks for.
    """

    def __init__(self, run_id: str, graph: str, channels: Sequence[str]) -> None:
        self._run_id, self._graph = run_id, graph
        self._channels = {"custom" if each.startswith(CUSTOM) else each for each in channels}
        self._open: dict[Namespace, str] = {}  # running nested graphs and their names
        self._messages: defaultdict[Namespace, Messages] = defaultdict(Messages)
        self._asked: dict[str, tuple[Namespace, Mapping[str, Any]]] = {}
        self._error: str | None = None
        self._is_paused = False
        self.has_begun: bool = False

    def of(self, event: RunEvent) -> Iterator[Event]:
        """Translate one event of the run's log."""
        self.has_begun = True
        ns = event.ns
        yield from self._enter(ns)
        if not _NEEDED_BY.get(event.kind, self._channels) & self._channels:
            return
        match event.kind:
            case "metadata":
                yield self._lifecycle("running", (), run_id=self._run_id)
            case "values":
                yield from self._values(ns, event.value)
            case "updates":
                yield from self._updates(ns, event.value)
            case "messages":
                piece, metadata = event.value
                task = str(metadata.get("checkpoint_ns") or metadata.get("langgraph_checkpoint_ns"))
                for each in self._messages[ns].add(piece, task):
                    yield Event("messages", ns, each)
            case "tasks":
                yield from self._task(ns, event.value)
            case "checkpoints":
                yield Event("checkpoints", ns, _checkpoint(event.value))
            case "custom":
                yield Event("custom", ns, _custom(event.value))
            case "error":
                self._error = str(event.value["message"])

    def end(self, status: str, is_paused: bool) -> Iterator[Event]:
        """Translate the end of the run.

        Args:
            status: the status in its record.
            is_paused: whether its thread waits; used if nothing of the log was read.
        """
        if status == "success":
            paused = self._is_paused or (is_paused and not self.has_begun)
            became, error = ("interrupted" if paused else "completed"), None
        else:
            stopped = "the run was cancelled" if status == "interrupted" else "the run has failed"
            became, error = "failed", self._error or stopped
        for ns in [*self._messages]:
            yield from self._finish_messages(ns)
        for ns in sorted(self._open, key=len, reverse=True):
            yield from self._leave(ns, became)
        if became == "interrupted":
            yield from self._questions()
        more = {} if error is None else {"error": error}
        yield self._lifecycle(became, (), run_id=self._run_id, **more)

    # -- state -------------------------------------------------------------------------------------

    def _values(self, ns: Namespace, values: Any) -> Iterator[Event]:
        yield from self._finish_messages(ns)
        asked: Any = ()
        if isinstance(values, dict):
            asked = values.pop(INTERRUPT, None)
            values.pop(SLEEP, None)
            if not ns:
                self._is_paused = asked is not None
        yield Event("values", ns, values)
        self._hold(ns, asked or ())

    def _updates(self, ns: Namespace, updates: Any) -> Iterator[Event]:
        if not isinstance(updates, dict):
            return
        for node, update in updates.items():
            if node == INTERRUPT:
                self._is_paused = self._is_paused or not ns
                self._hold(ns, update or ())
            else:
                yield Event("updates", ns, {"node": node, "values": update})
                yield from self._tools(ns, update)

    def _hold(self, ns: Namespace, asked: Sequence[Mapping[str, Any]]) -> None:
        """Hold questions back until the run has ended, because the thread takes no answers earlier.
        The graph that asks a question is the first whose namespace reports it."""
        for each in asked:
            self._asked.setdefault(each["id"], (ns, each))

    def _questions(self) -> Iterator[Event]:
        for id, (ns, asked) in self._asked.items():
            # The protocol says `payload`; the official client for Python reads `value`.
            value = {"payload": asked["value"], "value": asked["value"]}
            schema = asked.get("response_schema")
            more = {} if schema is None else {"response_schema": schema}
            yield Event("input.requested", ns, {"interrupt_id": id, **value, **more})

    # -- nested graphs -----------------------------------------------------------------------------

    def _enter(self, ns: Namespace) -> Iterator[Event]:
        for depth in range(1, len(ns) + 1):
            inner = ns[:depth]
            if inner not in self._open:
                name, _, task = inner[-1].partition(":")
                self._open[inner] = name
                yield self._lifecycle("started", inner, trigger_call_id=task)

    def _leave(self, ns: Namespace, became: str) -> Iterator[Event]:
        yield from self._finish_messages(ns)
        yield self._lifecycle(became, ns)
        del self._open[ns]

    def _task(self, ns: Namespace, task: Mapping[str, Any]) -> Iterator[Event]:
        yield Event("tasks", ns, task)
        inner = (*ns, f"{task['name']}:{task['id']}")
        if "result" not in task or inner not in self._open:
            return
        failed = "failed" if task.get("error") else None
        became = "interrupted" if task.get("interrupts") else failed or "completed"
        yield from self._leave(inner, became)

    def _lifecycle(self, event: str, ns: Namespace, **more: Any) -> Event:
        name = self._open[ns] if ns else self._graph
        return Event("lifecycle", ns, {"event": event, "graph_name": name, **more})

    # -- messages and tools ------------------------------------------------------------------------

    def _finish_messages(self, ns: Namespace) -> Iterator[Event]:
        if ns in self._messages:
            for each in self._messages[ns].finish_all():
                yield Event("messages", ns, each)

    def _tools(self, ns: Namespace, update: Any) -> Iterator[Event]:
        """Report a tool call as started with the message that asks for it, and as finished with the
        message that holds its result."""
        found = update.get("messages") if isinstance(update, dict) else None
        for message in found if isinstance(found, list) else [found]:
            if not isinstance(message, dict):
                continue
            if role_of(message) == "tool":
                yield Event("tools", ns, _tool_result(message))
            else:
                for call in calls_of(message):
                    named = {"tool_call_id": call.id, "tool_name": call.name}
                    given = _as_json(call.arguments)
                    yield Event("tools", ns, {"event": "tool-started", **named, "input": given})


def _tool_result(message: Mapping[str, Any]) -> dict[str, Any]:
    id = message.get("tool_call_id")
    if message.get("status") == "error":
        return {"event": "tool-error", "tool_call_id": id, "message": str(message.get("content"))}
    return {"event": "tool-finished", "tool_call_id": id, "output": message}


def _as_json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _checkpoint(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a checkpoint that is needed to fork from it."""
    metadata = payload.get("metadata") or {}
    parent = _id_of(payload.get("parent_config"))
    return {
        "id": _id_of(payload.get("config")),
        **({} if parent is None else {"parent_id": parent}),
        "step": metadata.get("step"),
        "source": metadata.get("source"),
    }


def _id_of(config: Any) -> Any:
    return ((config or {}).get("configurable") or {}).get("checkpoint_id")


def _custom(data: Any) -> dict[str, Any]:
    """Return the custom event for what a stream writer sent; `{"name": ..., "payload": ...}` names
    it."""
    is_named = isinstance(data, dict) and isinstance(data.get("name"), str)
    if is_named and {*data} <= {"name", "payload", "value"} and len(data) == 2:
        return {"name": data["name"], "payload": data.get("payload", data.get("value"))}
    return {"payload": data}


# -- blocks ----------------------------------------------------------------------------------------
# The channel `messages`: messages as blocks of content that begin, grow and end. Pure. The events
# of a message do not name it, so messages of one graph that grow at the same time are sent one
# after the other.

Data = dict[str, Any]

_ROLES: Final = {"assistant": "ai", "user": "human", "system": "system", "developer": "system"}
_TEXTS: Final = {"text": "text", "reasoning": "reasoning", "thinking": "reasoning"}
"""The types of texts in what models send, and in events. The key of the text has the same name."""
_DATA: Final = ("image", "audio", "video", "file", "non_standard")


def _read_call(chunk: Data) -> Data:
    """Return a tool call whose arguments are complete."""
    named = {"id": chunk["id"], "name": chunk["name"]}
    try:
        arguments = json.loads(chunk["args"] or "{}")
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        return {"type": "tool_call", **named, "args": arguments}
    why = "the arguments are not a JSON object"
    return {"type": "invalid_tool_call", **named, "args": chunk["args"], "error": why}


class Growing:
    """A message that arrives in chunks. One of its blocks is open at a time."""

    def __init__(self, id: str, role: str) -> None:
        self.id: str = id
        self._role = role
        self._blocks = 0
        self._key: tuple[str, int] | None = None  # of the open block
        self._content: Data = {}  # of the open block
        self._usage: Any = None

    def start(self) -> Data:
        """Return the event for its start."""
        return {"event": "message-start", "role": self._role, "id": self.id}

    def add(self, piece: Mapping[str, Any]) -> Iterator[Data]:
        """Add a chunk, or the whole message."""
        content = piece.get("content")
        for part in content if isinstance(content, list) else [content]:
            yield from self._part(part)
        for call in calls_of(piece):
            yield from self._call(call)
        self._usage = piece.get("usage_metadata") or self._usage

    def finish(self) -> Iterator[Data]:
        """End the open block and the message."""
        yield from self._close()
        yield {"event": "message-finish", **({"usage": self._usage} if self._usage else {})}

    def _part(self, part: Any) -> Iterator[Data]:
        if isinstance(part, str):
            part = {"type": "text", "text": part}
        if not isinstance(part, Mapping):
            return
        kind = part.get("type")
        if kind in _TEXTS and isinstance(text := part.get(kind), str):
            field = _TEXTS[kind]
            if text and self._key != (field, 0):
                yield from self._open((field, 0), {"type": field, field: ""})
            yield from self._grow(field, text, f"{field}-delta")
        elif kind not in ("text", "tool_use", "tool_call", "tool_call_chunk", "input_json_delta"):
            whole = dict(part) if kind in _DATA else {"type": "non_standard", "value": dict(part)}
            yield from self._open(("part", self._blocks), whole)
            yield from self._close()

    def _call(self, call: CallPiece) -> Iterator[Data]:
        key = ("call", call.index)
        if self._key != key or call.id not in (None, self._content.get("id")):
            named = {"id": call.id, "name": call.name}
            yield from self._open(key, {"type": "tool_call_chunk", **named, "args": ""})
        yield from self._grow("args", call.arguments, "tool-call-delta")

    def _open(self, key: tuple[str, int], content: Data) -> Iterator[Data]:
        yield from self._close()
        self._key, self._content = key, content
        yield {"event": "content-block-start", "index": self._blocks, "content": {**content}}
        self._blocks += 1

    def _grow(self, field: str, more: str, kind: str) -> Iterator[Data]:
        """Add to a text in the open block."""
        if more:
            self._content[field] += more
            delta = {"type": kind, field: more}
            yield {"event": "content-block-delta", "index": self._blocks - 1, "delta": delta}

    def _close(self) -> Iterator[Data]:
        if self._key is not None:
            self._key, content = None, self._content
            if content["type"] == "tool_call_chunk":
                content = _read_call(content)
            yield {"event": "content-block-finish", "index": self._blocks - 1, "content": content}


class Messages:
    """The messages of one graph. One is sent at a time; others that begin meanwhile wait."""

    def __init__(self) -> None:
        self._current: Growing | None = None
        self._waiting: dict[str, list[Mapping[str, Any]]] = {}

    def add(self, piece: Mapping[str, Any], task: str) -> Iterator[Data]:
        """Add a chunk of a message, or a whole one.

        Args:
            task: stands for the message's id if it has none.
        """
        role = _ROLES.get(role_of(piece))
        if role is None:  # tool results have a channel of their own
            return
        id = str(piece.get("id") or task)
        if self._current is None:
            self._current = Growing(id, role)
            yield self._current.start()
        elif self._current.id != id:
            self._waiting.setdefault(id, []).append(piece)
            return
        yield from self._current.add(piece)
        is_piece = str(piece.get("type") or "").endswith("Chunk")
        if not is_piece or piece.get("chunk_position") == "last":
            yield from self.finish()

    def finish(self) -> Iterator[Data]:
        """End the current message, then send those that wait."""
        if self._current is not None:
            growing, self._current = self._current, None
            yield from growing.finish()
        while self._current is None and self._waiting:
            id = next(iter(self._waiting))
            for piece in self._waiting.pop(id):
                yield from self.add(piece, id)

    def finish_all(self) -> Iterator[Data]:
        """End all messages, because a superstep has ended."""
        while self._current is not None:
            yield from self.finish()
