"""Translates the events of a run's log into AG-UI events. Pure.

Texts and tool calls come from the tokens, steps from the tasks, state and conversation from the
values after each superstep. The conversation is the state key `messages`; it is sent as messages
and left out of the state that is sent.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ag_ui.core import (
    BaseEvent,
    CustomEvent,
    Interrupt,
    Message,
    MessagesSnapshotEvent,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    StateDeltaEvent,
    StateSnapshotEvent,
    StepFinishedEvent,
    StepStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
    ToolMessage,
)
from ag_ui.core.version import PROTOCOL_VERSION

from ....checkpoint.base import INTERRUPT, SLEEP
from ...encode import encode
from ...json_messages import CallPiece, calls_of, prompt_of, role_of, text_of
from .messages import from_graph

MESSAGES: Final = "messages"
"""The state key that holds the conversation."""
_UNKNOWN: Final = object()


@dataclass
class _Call:
    """A tool call that has been sent."""

    id: str
    name: str
    message_id: str


class AgUiEvents:
    """Translates the log of one run.

    Args:
        sent: the messages that came from the client, which need not be sent to it.
    """

    def __init__(self, thread_id: str, run_id: str, sent: Sequence[Message] = ()) -> None:
        self._place: dict[str, Any] = {"thread_id": thread_id, "run_id": run_id}
        self._held = {each.id for each in sent}  # ids of the messages that the client has
        # The ids under which the client has tool results, by call: a result that a node returns
        # without an id gets another one in the state.
        self._results: defaultdict[str, list[str]] = defaultdict(list)
        for each in sent:
            if isinstance(each, ToolMessage):
                self._results[each.tool_call_id].append(each.id)
        self._state: Any = _UNKNOWN
        self._messages: list[Any] | None = None
        self._questions: dict[str, Any] = {}
        self._steps: Counter[str] = Counter()
        # Open texts and calls, by kind and id: the task that sends each, and the event at its end.
        self._open: dict[tuple[str, str], tuple[str, BaseEvent]] = {}
        self._calls: dict[tuple[str, int], _Call] = {}  # the latest call by message and index
        self._pending: dict[str, None] = {}  # calls without a result

    def start(self) -> BaseEvent:
        """Return the event for the start of the run."""
        return RunStartedEvent(**self._place, protocol_version=PROTOCOL_VERSION)

    def of(self, event: str, data: Any) -> Iterator[BaseEvent]:
        """Translate one event of the run's log."""
        if event == "values":
            yield from self._values(data)
        elif event == "messages":
            yield from self._message(*data)
        elif event == "tasks":
            yield from self._task(data)
        elif event == "custom":
            yield _custom(data)
        elif event == "error":
            yield RunErrorEvent(message=str(data.get("message")), code=str(data.get("error")))

    def end(self, status: str) -> Iterator[BaseEvent]:
        """Yield the events for the end of a run that has not failed.

        Args:
            status: the status in the run's record.
        """
        yield from self._close_task("")
        for name in self._steps:
            yield StepFinishedEvent(step_name=name)
        if self._messages is not None:
            yield MessagesSnapshotEvent(messages=self._conversation())
        yield RunFinishedEvent(**self._place, outcome=self._outcome(status))

    def _outcome(self, status: str) -> Any:
        if status == "interrupted":
            return RunFinishedCancelledOutcome()
        if self._questions:
            questions = [_question(each) for each in self._questions.values()]
            return RunFinishedInterruptOutcome(interrupts=questions)
        return RunFinishedSuccessOutcome(pending_tool_call_ids=[*self._pending] or None)

    # -- state and conversation --------------------------------------------------------------------

    def _values(self, values: Any) -> Iterator[BaseEvent]:
        if not isinstance(values, dict):
            yield StateSnapshotEvent(snapshot=values)
            return
        state = {key: value for key, value in values.items() if key not in (INTERRUPT, SLEEP)}
        self._questions = {each["id"]: each for each in values.get(INTERRUPT, ())}
        if isinstance(state.get(MESSAGES), list):
            self._messages = state.pop(MESSAGES)
            yield from self._correct()
        if self._state is _UNKNOWN:
            yield StateSnapshotEvent(snapshot=state)
        elif delta := [*_changes(self._state, state)]:
            yield StateDeltaEvent.model_validate({"delta": delta})
        self._state = state

    def _correct(self) -> Iterator[BaseEvent]:
        """Send the whole conversation if the client's differs from it: a message that a node
        returns without an id gets one after it was sent, and a message that was only streamed does
        not get into the state. This is sent at once, since the client puts every later message
        behind those that it has."""
        shown = self._conversation()
        ids = {message.id for message in shown}
        if ids != self._held and not self._open:
            self._held = ids
            yield MessagesSnapshotEvent(messages=shown)

    def _conversation(self) -> list[Message]:
        results = {call: iter(ids) for call, ids in self._results.items()}  # call ids may recur
        shown: list[Message] = []
        for place, each in enumerate(self._messages or ()):
            message = from_graph(each, place)
            if isinstance(message, ToolMessage):
                message.id = next(results.get(message.tool_call_id, iter(())), message.id)
            if message is not None:
                shown.append(message)
        return shown

    # -- steps -------------------------------------------------------------------------------------

    def _task(self, task: Mapping[str, Any]) -> Iterator[BaseEvent]:
        """Translate the start or end of a task. Tasks of one node that run at once are one step."""
        name = task["name"]
        if "result" not in task:
            self._steps[name] += 1
            if self._steps[name] == 1:
                yield StepStartedEvent(step_name=name)
            return
        yield from self._close_task(task["id"])
        if self._steps[name] > 1:
            self._steps[name] -= 1
        elif self._steps.pop(name, 0):  # false for tasks that an earlier run has finished
            yield StepFinishedEvent(step_name=name)

    # -- tokens ------------------------------------------------------------------------------------

    def _message(self, message: Any, metadata: Mapping[str, Any]) -> Iterator[BaseEvent]:
        """Translate a message, or a chunk of one."""
        task = next((str(v) for k, v in metadata.items() if k.endswith("checkpoint_ns")), "")
        role: Any = role_of(message)
        id = str(message.get("id") or task)
        content = message.get("content")
        if role == "tool":
            call_id = str(message.get("tool_call_id"))
            yield from self._close("call", call_id)
            self._pending.pop(call_id, None)
            self._held.add(id)
            self._results[call_id].append(id)
            yield ToolCallResultEvent(message_id=id, tool_call_id=call_id, content=text_of(content))
            return
        if role not in ("user", "assistant", "system", "developer"):
            return
        self._held.add(id)
        if text := text_of(content):
            if ("text", id) not in self._open:
                self._open["text", id] = task, TextMessageEndEvent(message_id=id)
                yield TextMessageStartEvent(message_id=id, role=role)
            yield TextMessageContentEvent(message_id=id, delta=text)
        for piece in calls_of(message):
            yield from self._call(id, piece, task)
        if message.get("chunk_position") == "last":
            yield from self._close_message(id)

    def _call(self, message_id: str, piece: CallPiece, task: str) -> Iterator[BaseEvent]:
        place = (message_id, piece.index)
        call = self._calls.get(place)
        if call is None or (piece.id and piece.id != call.id):
            yield from self._close_message(message_id)
            id = piece.id or f"{message_id}-{piece.index}"
            call = self._calls[place] = _Call(id, piece.name or "", message_id)
            self._pending[id] = None
        if ("call", call.id) not in self._open:
            self._open["call", call.id] = task, ToolCallEndEvent(tool_call_id=call.id)
            yield ToolCallStartEvent(
                tool_call_id=call.id, tool_call_name=call.name, parent_message_id=call.message_id
            )
        if piece.arguments:
            yield ToolCallArgsEvent(tool_call_id=call.id, delta=piece.arguments)

    def _close_task(self, task_id: str) -> Iterator[BaseEvent]:
        """End the texts and calls that a task has left open; "" for all tasks."""
        for place, (task, _) in [*self._open.items()]:
            if task_id in task:
                yield from self._close(*place)

    def _close_message(self, id: str) -> Iterator[BaseEvent]:
        yield from self._close("text", id)
        for call in self._calls.values():
            if call.message_id == id:
                yield from self._close("call", call.id)

    def _close(self, kind: str, id: str) -> Iterator[BaseEvent]:
        if (found := self._open.pop((kind, id), None)) is not None:
            yield found[1]


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the operations of a JSON Patch that turn one state into another. A key that has changed
    is sent whole: to look for the smallest patch takes long, and a client chooses the state."""
    paths = {key: "/" + key.replace("~", "~0").replace("/", "~1") for key in (*old, *new)}
    for key in old.keys() - new.keys():
        yield {"op": "remove", "path": paths[key]}
    for key, value in new.items():
        if key not in old or encode(old[key]) != encode(value):  # `==` takes true for 1
            yield {"op": "add", "path": paths[key], "value": value}


def _custom(data: Any) -> BaseEvent:
    """Translate what a node has sent with the stream writer. `{"name": ..., "value": ...}` sets the
    event's name."""
    if isinstance(data, dict) and data.keys() == {"name", "value"}:
        return CustomEvent(name=str(data["name"]), value=data["value"])
    return CustomEvent(name="custom", value=data)


def _question(asked: Mapping[str, Any]) -> Interrupt:
    """Return a question of a node as an AG-UI interrupt, with its value as metadata."""
    value, schema = asked["value"], asked["response_schema"]
    call_id = value.get("tool_call_id") if isinstance(value, dict) else None
    return Interrupt(
        id=asked["id"],
        reason="input_required" if call_id is None else "tool_call",
        message=prompt_of(value),
        tool_call_id=call_id,
        response_schema=schema if isinstance(schema, dict) else None,
        metadata={"value": value},
    )
