"""Translates the events of a run's log into AG-UI events. Pure.

Texts and tool calls come from the tokens, steps from the tasks, state and conversation from the
values after each superstep. The conversation is the state's key `messages`; it is sent as messages
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

from ...checkpoint.base import INTERRUPT, SLEEP
from ..json_messages import CallPiece, calls_of, role_of, text_of
from ..questions import prompt_of
from .json_patch import diff
from .messages import from_graph

MESSAGES: Final = "messages"
"""The key of a state that is the conversation."""
_UNKNOWN: Final = object()


@dataclass
class _Call:
    """A tool call that has been told."""

    id: str
    name: str
    message_id: str


class AgUiEvents:
    """Tells one run.

    Args:
        sent: the messages that the client has sent, which it need not be told.
    """

    def __init__(self, thread_id: str, run_id: str, sent: Sequence[Message] = ()) -> None:
        self._place: dict[str, Any] = {"thread_id": thread_id, "run_id": run_id}
        self._held = {each.id for each in sent}  # ids of the messages that the client has
        # The ids under which it has results, by their calls: a result that a node returns without
        # an id gets one of its own in the state.
        self._results: defaultdict[str, list[str]] = defaultdict(list)
        for each in sent:
            if isinstance(each, ToolMessage):
                self._results[each.tool_call_id].append(each.id)
        self._state: Any = _UNKNOWN
        self._messages: list[Any] | None = None
        self._questions: dict[str, Any] = {}
        self._steps: Counter[str] = Counter()
        self._texts: dict[str, str] = {}  # open texts by message: the task that sends them
        self._calls: dict[tuple[str, int], _Call] = {}  # the latest call by message and index
        self._open_calls: dict[str, str] = {}  # open calls: the task that sends them
        self._pending: dict[str, None] = {}  # calls without a result

    def start(self) -> BaseEvent:
        """The run begins."""
        return RunStartedEvent(**self._place, protocol_version=PROTOCOL_VERSION)

    def of(self, event: str, data: Any) -> Iterator[BaseEvent]:
        """What one event of the run's log is told as."""
        if event == "values":
            yield from self._values(data)
        elif event == "messages":
            yield from self._message(*data)
        elif event == "tasks":
            yield from self._task(data)
        elif event == "custom":
            yield _custom(data)

    def end(self, status: str) -> Iterator[BaseEvent]:
        """The run has come to its end, and has not failed.

        Args:
            status: as the server stores it.
        """
        yield from self._close(None)
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
        elif delta := [*diff(self._state, state)]:
            yield StateDeltaEvent.model_validate({"delta": delta})
        self._state = state

    def _correct(self) -> Iterator[BaseEvent]:
        """The conversation, if the client holds another: a message that a node returns without an
        id gets one after it was sent, and what was said aside does not get into the state. At once:
        what the client does not hold yet comes behind all that it holds."""
        shown = self._conversation()
        ids = {message.id for message in shown}
        if ids != self._held and not self._texts and not self._open_calls:
            self._held = ids
            yield MessagesSnapshotEvent(messages=shown)

    def _conversation(self) -> list[Message]:
        results = {call: iter(ids) for call, ids in self._results.items()}  # calls' ids may recur
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
        """A task begins or ends. Tasks of one node that run at once are one step."""
        name = task["name"]
        if "result" not in task:
            self._steps[name] += 1
            if self._steps[name] == 1:
                yield StepStartedEvent(step_name=name)
            return
        yield from self._close(task["id"])
        if self._steps[name] > 1:
            self._steps[name] -= 1
        elif self._steps.pop(name, 0):  # a task that an earlier run has finished did not begin here
            yield StepFinishedEvent(step_name=name)

    # -- tokens ------------------------------------------------------------------------------------

    def _message(self, message: Any, metadata: Mapping[str, Any]) -> Iterator[BaseEvent]:
        """A message, or a piece of one."""
        task = next((str(v) for k, v in metadata.items() if k.endswith("checkpoint_ns")), "")
        role: Any = role_of(message)
        id = str(message.get("id") or task)
        content = message.get("content")
        if role == "tool":
            call_id = str(message.get("tool_call_id"))
            yield from self._close_call(call_id)
            self._pending.pop(call_id, None)
            self._held.add(id)
            self._results[call_id].append(id)
            yield ToolCallResultEvent(message_id=id, tool_call_id=call_id, content=text_of(content))
            return
        if role not in ("user", "assistant", "system", "developer"):
            return
        self._held.add(id)
        if text := text_of(content):
            if id not in self._texts:
                self._texts[id] = task
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
        if call.id not in self._open_calls:
            self._open_calls[call.id] = task
            yield ToolCallStartEvent(
                tool_call_id=call.id, tool_call_name=call.name, parent_message_id=call.message_id
            )
        if piece.arguments:
            yield ToolCallArgsEvent(tool_call_id=call.id, delta=piece.arguments)

    def _close(self, task_id: str | None) -> Iterator[BaseEvent]:
        """End what a task has left open; None for all tasks."""
        for id, task in [*self._texts.items()]:
            if task_id is None or task_id in task:
                yield from self._close_text(id)
        for id, task in [*self._open_calls.items()]:
            if task_id is None or task_id in task:
                yield from self._close_call(id)

    def _close_message(self, id: str) -> Iterator[BaseEvent]:
        yield from self._close_text(id)
        for call in self._calls.values():
            if call.message_id == id:
                yield from self._close_call(call.id)

    def _close_text(self, id: str) -> Iterator[BaseEvent]:
        if self._texts.pop(id, None) is not None:
            yield TextMessageEndEvent(message_id=id)

    def _close_call(self, id: str) -> Iterator[BaseEvent]:
        if self._open_calls.pop(id, None) is not None:
            yield ToolCallEndEvent(tool_call_id=id)


def _custom(data: Any) -> BaseEvent:
    """What a node has sent with the stream writer. `{"name": ..., "value": ...}` names itself."""
    if isinstance(data, dict) and data.keys() == {"name", "value"}:
        return CustomEvent(name=str(data["name"]), value=data["value"])
    return CustomEvent(name="custom", value=data)


def _question(asked: Mapping[str, Any]) -> Interrupt:
    """A question of a node, with its value as metadata."""
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


def failure(data: Mapping[str, Any]) -> BaseEvent:
    """The run has failed."""
    return RunErrorEvent(message=str(data.get("message")), code=str(data.get("error")))
