"""The AG-UI route, with which chat pages and other frontends run a graph and follow it. The request
body and the events are those of the protocol.

Needs the extra `ag-ui`; loaded on the first request.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Final

from ag_ui.core import BaseEvent, RunAgentInput, ToolMessage, UserMessage
from ag_ui.core.events import RunErrorEvent
from ag_ui.encoder import EventEncoder
from starlette.requests import Request
from starlette.responses import Response

from ....channels.aggregate import BinaryOperatorAggregate, Overwrite
from ....pregel.app import Pregel
from ...bodies import RunBody
from ...encode import decode, encode
from ...errors import Refused
from ...events import stream
from ...handlers import User
from ...records import Record, seconds_until
from ...runs.new_runs import begin_run
from ...runs.thread_runs import UNFINISHED
from ...service import Service, config_of
from .events import MESSAGES, AgUiEvents
from .messages import from_graph, to_graph

PATIENCE: Final = 1.0
"""How many seconds a new run waits for its thread to become free before it is refused."""
_MODES: Any = ["values", "tasks", "messages-tuple", "custom"]
_ENCODER = EventEncoder()


@dataclass(frozen=True, slots=True)
class _Thread:
    """A thread before a run.

    Attributes:
        values: its state, as JSON.
        questions: the ids of its open questions.
        is_paused: whether its last run has work left.
    """

    values: dict[str, Any]
    questions: tuple[str, ...] = ()
    is_paused: bool = False


async def run_agent(service: Service, request: Request, name: str, owner: User) -> Response:
    """Run a graph on an AG-UI input, and stream AG-UI events.

    Raises:
        Refused: the input is invalid, there is no such graph, or the thread is another user's or
            busy.
    """
    given = await service.body(request, RunAgentInput)
    if not given.thread_id:
        raise Refused(422, "threadId must not be empty: make one up, such as a UUID")
    app, assistant = await service.graph_of(name, owner)
    await service.thread(given.thread_id, owner)
    await _wait_until_free(service, given.thread_id)
    found = await service.thread(given.thread_id, owner)
    thread = _Thread({}) if found is None else await _look(app, given.thread_id)
    told = AgUiEvents(given.thread_id, given.run_id, given.messages)
    call = _call(app, given, thread)
    if isinstance(call, BaseEvent):
        return stream(map(_ENCODER.encode, [call]))
    if call is None:
        as_it_is = [told.start(), *told.of("values", thread.values), *told.end("success")]
        return stream(map(_ENCODER.encode, as_it_is))
    settings = {
        "tools": [each.model_dump(by_alias=True) for each in given.tools or ()],
        "context": [each.model_dump(by_alias=True) for each in given.context or ()],
        "forwarded_props": given.forwarded_props,
    }
    body = RunBody(
        assistant_id=assistant["assistant_id"],
        stream_mode=_MODES,
        if_not_exists="create",
        multitask_strategy="reject",
        config={"configurable": {"ag_ui": settings}},
        metadata={"ag_ui_run_id": given.run_id},
        **call,
    )
    record = await begin_run(service, body, given.thread_id, owner)
    return stream(_tell(service, record, told))


async def _wait_until_free(service: Service, thread_id: str) -> None:
    """Wait briefly for a thread's runs to end: a client stops a run by disconnecting, and may be
    back before it has ended."""
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            for each in await service.records.unfinished(thread_id):
                if seconds_until(each["begins_at"]) <= 0:
                    await service.runs.answer(each)


async def _look(app: Pregel, thread_id: str) -> _Thread:
    state = await app.aget_state(config_of(thread_id))
    values = decode(encode(state.values))
    questions = tuple(each.id for each in state.interrupts)
    return _Thread(values if isinstance(values, dict) else {}, questions, bool(state.next))


# -- the call ----------------------------------------------------------------------------------


def _call(app: Pregel, given: RunAgentInput, thread: _Thread) -> dict[str, Any] | BaseEvent | None:
    """Return what an input means for its thread: an input, or a command with answers. None if the
    thread already has everything in it; an error event if it answers none of the thread's
    questions."""
    new = _changes(app, given, thread)
    entries = {each.interrupt_id: each for each in given.resume or ()}
    answers = {
        id: entries[id].payload if entries[id].status == "resolved" else None
        for id in thread.questions
        if id in entries
    }
    if answers:
        return {"command": {"resume": answers, "update": new or None}}
    if thread.questions:
        ids = ", ".join(thread.questions)
        return RunErrorEvent(
            code="interrupt_open",
            message=f"the thread waits for answers: send `resume` with the interrupts {ids}",
        )
    if entries and MESSAGES not in new:  # a repeated answer: the state already has its effect
        return None
    if thread.is_paused and not new:
        return {"input": None}
    empty: dict[str, Any] = {MESSAGES: []} if MESSAGES in _inputs(app) else {}
    return {"input": new or empty}


@lru_cache(maxsize=256)  # schemas of LangChain's messages take 20 ms
def _inputs(app: Pregel) -> frozenset[str]:
    """Return the keys of a graph's input."""
    return frozenset(app.get_input_jsonschema().get("properties", ()))


def _changes(app: Pregel, given: RunAgentInput, thread: _Thread) -> dict[str, Any]:
    """Return what an input adds to or changes in the thread: messages, state, tools."""
    keys = _inputs(app)
    state = given.state if isinstance(given.state, dict) else {}
    changes = {
        key: _replacing(app, key, value)
        for key, value in state.items()
        if key in keys and key not in (MESSAGES, "tools") and value != thread.values.get(key, {})
    }
    if "tools" in keys:
        tools = [each.model_dump(by_alias=True) for each in given.tools or ()]
        if tools != thread.values.get("tools", []):
            changes["tools"] = _replacing(app, "tools", tools)
    if MESSAGES in keys and (messages := [*_new_messages(given, thread)]):
        changes[MESSAGES] = messages
    return changes


def _replacing(app: Pregel, key: str, value: Any) -> Any:
    """Return an update that replaces the thread's value of a key by the client's, even if the key
    has a reducer."""
    has_reducer = isinstance(app.channels.get(key), BinaryOperatorAggregate)
    return asdict(Overwrite(value)) if has_reducer else value


def _new_messages(given: RunAgentInput, thread: _Thread) -> Iterator[dict[str, Any]]:
    """Yield the messages that the thread does not have, and the user's messages that have changed.
    Other known messages are skipped, since they come back without what AG-UI has no form for. A
    tool result with an unknown id is matched by its call: if a node returned it without an id,
    client and thread have different ids for it."""
    held = (from_graph(each, place) for place, each in enumerate(thread.values.get(MESSAGES, ())))
    known = {each.id: each for each in held if each is not None}
    sent = {each.id for each in given.messages}
    results = Counter(
        each.tool_call_id
        for each in known.values()
        if isinstance(each, ToolMessage) and each.id not in sent
    )
    for message in given.messages:
        before = known.get(message.id)
        if before is None and isinstance(message, ToolMessage) and results[message.tool_call_id]:
            results[message.tool_call_id] -= 1
            continue
        is_edited = isinstance(message, UserMessage) and message != before
        if (before is None or is_edited) and (made := to_graph(message)) is not None:
            yield made


# -- responses ---------------------------------------------------------------------------------


async def _tell(service: Service, record: Record, told: AgUiEvents) -> AsyncIterator[str]:
    """Stream the events of a run until its end. A client stops a run by disconnecting, since AG-UI
    has no other way."""
    has_failed = False
    try:
        yield _ENCODER.encode(told.start())
        async for some in service.runs.events(record, 0):
            for event in some:
                has_failed = has_failed or event.kind == "error"
                for each in told.of(event.kind, event.value):
                    yield _ENCODER.encode(each)
        if has_failed:
            return
        status = await service.status_of(record)
        if status in UNFINISHED:
            why = "the next server goes on with the run"
            yield _ENCODER.encode(RunErrorEvent(code="server_stopped", message=why))
            return
        for each in told.end(status):
            yield _ENCODER.encode(each)
    finally:
        service.runs.cancel_soon(record)


