"""A frontend that speaks AG-UI by the protocol's own Python types: what it has been told, applied as the protocol says.

The official JavaScript client is tested in test_serve_javascript.py; the Python package has none.
"""

from __future__ import annotations

import json
from uuid import uuid4

import httpx
import jsonpatch
from ag_ui.core import (
    Event,
    EventType,
    FunctionCall,
    Message,
    ResumeEntry,
    RunAgentInput,
    Tool,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from ag_ui.core.version import PROTOCOL_VERSION
from pydantic import TypeAdapter

EVENTS = TypeAdapter(Event)
MESSAGES = TypeAdapter(Message)
KINDS = {"TEXT_MESSAGE": "message_id", "TOOL_CALL": "tool_call_id", "STEP": "step_name"}


class Page:
    """One chat of one user.

    Attributes:
        events: those of the last run.
        messages, state: what the page holds, from which each run starts.
    """

    def __init__(self, url, graph="desk", thread=None, token=""):
        self.address = f"{url}/ag-ui/{graph}"
        self.thread = thread or str(uuid4())
        self.headers = {"authorization": token} if token else {}
        self.messages = []
        self.state = {}
        self.events = []

    def given(self, text=None, **options):
        if text is not None:
            self.messages.append(UserMessage(id=f"user-{len(self.messages)}", content=text))
        place = {"thread_id": self.thread, "run_id": str(uuid4()), "protocol_version": PROTOCOL_VERSION}
        return RunAgentInput(**place, messages=self.messages, state=self.state, **options)

    def run(self, text=None, **options):
        """What the run has ended with."""
        return self.send(self.given(text, **options))

    def send(self, given: RunAgentInput):
        self.events = []
        body = given.model_dump(by_alias=True)
        with httpx.stream("POST", self.address, json=body, headers=self.headers, timeout=60) as response:
            if response.status_code != 200:
                response.read()
                return response
            for line in response.iter_lines():
                if line.startswith("data: "):
                    self.take(EVENTS.validate_json(line[6:]))
        check_order(self.events)
        return self.events[-1]

    def take(self, event):
        self.events.append(event)
        if event.type is EventType.STATE_SNAPSHOT:
            self.state = event.snapshot
        elif event.type is EventType.STATE_DELTA:
            self.state = jsonpatch.apply_patch(self.state, [each.model_dump(by_alias=True, exclude_unset=True) for each in event.delta])
        elif event.type is EventType.MESSAGES_SNAPSHOT:
            shown = {each.id: each for each in event.messages}
            held = [shown.pop(each.id) for each in self.messages if each.id in shown]
            self.messages = [*held, *shown.values()]
        elif event.type is EventType.TEXT_MESSAGE_START:
            self.message(event.message_id, event.role or "assistant")
        elif event.type is EventType.TEXT_MESSAGE_CONTENT:
            message = self.message(event.message_id)
            message.content = (message.content or "") + event.delta
        elif event.type is EventType.TOOL_CALL_START:
            message = self.message(event.parent_message_id)
            function = FunctionCall(name=event.tool_call_name, arguments="")
            message.tool_calls = [*(message.tool_calls or ()), ToolCall(id=event.tool_call_id, function=function)]
        elif event.type is EventType.TOOL_CALL_ARGS:
            calls = [call for each in self.messages for call in getattr(each, "tool_calls", None) or ()]
            next(each for each in calls if each.id == event.tool_call_id).function.arguments += event.delta
        elif event.type is EventType.TOOL_CALL_RESULT:
            told = ToolMessage(id=event.message_id, tool_call_id=event.tool_call_id, content=event.content)
            self.messages.append(told)

    def message(self, id, role="assistant"):
        """A message that the page holds, or begins to hold."""
        for message in self.messages:
            if message.id == id:
                return message
        self.messages.append(MESSAGES.validate_python({"id": id, "role": role, "content": ""}))
        return self.messages[-1]

    def resume(self, *payloads, status="resolved"):
        """Answer the questions of the last run, in their order."""
        asked = self.events[-1].outcome.interrupts
        entries = [
            ResumeEntry(interrupt_id=each.id, status=status, payload=payload)
            for each, payload in zip(asked, payloads, strict=True)
        ]
        return self.run(resume=entries)

    def kinds(self):
        return [event.type.value for event in self.events]

    def of(self, kind):
        return [event for event in self.events if event.type.value == kind]

    def text(self):
        return "".join(each.delta for each in self.of("TEXT_MESSAGE_CONTENT"))

    def said(self):
        return [(each.role, each.content) for each in self.messages]


def check_order(events):
    """The rules of a run: it begins and ends, what is continued or closed is open, what was opened is closed."""
    kinds = [event.type.value for event in events]
    if kinds == ["RUN_ERROR"]:
        return
    assert kinds[0] == "RUN_STARTED" and kinds[-1] in ("RUN_FINISHED", "RUN_ERROR"), kinds
    opened = set()
    for event in events[1:-1]:
        kind, _, part = event.type.value.rpartition("_")
        if kind not in KINDS or part == "RESULT":
            continue
        key = (kind, getattr(event, KINDS[kind]))
        assert (part in ("START", "STARTED")) == (key not in opened), (key, part, kinds)
        if part in ("START", "STARTED"):
            opened.add(key)
        elif part in ("END", "FINISHED"):
            opened.remove(key)
    assert not opened or kinds[-1] == "RUN_ERROR", opened


def make_tool(name):
    return Tool(name=name, description="shows something", parameters={"type": "object"})


def arguments(events):
    """The arguments of the only tool call."""
    return json.loads("".join(each.delta for each in events))
