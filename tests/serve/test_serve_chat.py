"""A graph in our own style keeps messages as dicts with a `role`. Clients of LangGraph's server read and send them with a
`type`: the server converts at its door, on every way in and out."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Annotated, Any

import httpx
import pytest
from kit.graphs import graph_of
from serving import opened, serving
from typing_extensions import TypedDict

from stategraph import add_messages
from stategraph.graph.messages import stream_text
from stategraph.serve import create_app
from stategraph.serve.json_messages import for_clients, from_clients

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
SENT = {"type": "human", "content": "hi", "id": "h1"}
TYPES = {"user": "human", "assistant": "ai", "system": "system", "tool": "tool"}


class Chat(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    last: dict[str, Any]
    log: list[str]


def make_chat():
    """Each node reads messages by their roles, as graphs in our own style do."""

    def model(state: Chat):
        assert state["messages"] == [{"role": "user", "content": "hi", "id": "h1"}]
        return {"messages": [{"role": "assistant", "content": "", "id": "a1", "tool_calls": [CALL]}]}

    def tools(state: Chat):
        assert [m["tool_calls"] for m in state["messages"] if "tool_calls" in m] == [[CALL]]
        assert not any("type" in message for message in state["messages"])
        found = {"role": "tool", "content": "sunny", "id": "t1", "tool_call_id": "c1"}
        return [{"messages": [found]}, {"messages": [{"role": "system", "content": "be brief", "id": "s1"}]}]

    def answer(state: Chat):
        said = stream_text(["it is ", "sunny"], id="a2")
        return {"messages": said, "last": said, "log": ["done"]}

    return graph_of(Chat, "S>model>tools>answer", model=model, tools=tools, answer=answer).compile(name="chat")


@pytest.fixture(params=["memory", "postgres"])
def client(request):
    with ExitStack() as stack:
        place = {}
        if request.param == "postgres":
            place = stack.enter_context(opened("postgres", request.getfixturevalue("postgres"))) | {"workers": 1}
        url = stack.enter_context(serving(create_app({"chat": make_chat()}, **place)))
        yield stack.enter_context(httpx.Client(base_url=url, timeout=20))


def messages_in(value):
    """Each message in a JSON value, wherever it stands."""
    if isinstance(value, dict):
        if "content" in value and "role" in value:
            yield value
        for each in value.values():
            yield from messages_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from messages_in(each)


def check(value, *ids: str):
    found = [*messages_in(value)]
    for message in found:
        assert message["type"] == TYPES[message["role"]] and message["id"], message
        for call in message.get("tool_calls", ()):
            assert (call["name"], call["args"], call["id"]) == ("weather", {"city": "Rome"}, "c1")
    assert {*ids} <= {each["id"] for each in found}


def test_dict_messages_are_sent_with_a_type_and_received_with_a_role(client):
    modes = ["values", "updates", "messages-tuple", "messages", "tasks", "checkpoints"]
    sent = {"assistant_id": "chat", "input": {"messages": [SENT]}, "stream_mode": modes}
    thread = client.post("/threads", json={}).json()["thread_id"]
    lines = client.post(f"/threads/{thread}/runs/stream", json=sent).text.splitlines()
    heads = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    events = [*zip(heads, (json.loads(line[6:]) for line in lines if line.startswith("data: ")), strict=True)]
    assert "error" not in heads, events[-1]
    known = {"values": {"h1", "a1", "t1", "s1", "a2"}, "updates": {"a1", "t1", "a2"}, "checkpoints": {"h1", "a2"}}
    known |= {"messages": {"a1", "t1", "a2"}, "tasks": {"h1", "a1", "a2"}}
    for name, ids in known.items():
        check([data for head, data in events if head == name], *ids)
    whole = [data[0] for head, data in events if head == "messages/partial"]
    assert whole[-1]["content"] == "it is sunny" and whole[-1]["type"] == "ai"

    every = ("h1", "a1", "t1", "s1", "a2")
    check(client.get(f"/threads/{thread}").json()["values"], *every)
    check(client.get(f"/threads/{thread}/state").json(), *every)
    check(client.post(f"/threads/{thread}/history", json={}).json(), *every)
    check(client.post("/threads/search", json={}).json(), *every)
    check(client.post(f"/threads/{thread}/runs/wait", json={"assistant_id": "chat", "input": None}).json(), *every)

    # What a client has read it may send back: the graph keeps its own form.
    shown = client.get(f"/threads/{thread}/state").json()["values"]["messages"]
    at = {"values": {"messages": shown}, "as_node": "model"}
    assert client.post(f"/threads/{thread}/state", json=at).is_success
    again = client.post(f"/threads/{thread}/runs/wait", json={"assistant_id": "chat", "input": None}).json()
    assert "__error__" not in again
    check(again, *every)


def test_what_a_client_has_read_it_may_send_back():
    channels = make_chat().channels
    kept = [
        {"role": "user", "content": "hi", "id": "1"},
        {"role": "assistant", "content": [{"type": "text", "text": "x"}], "id": "2", "tool_calls": [CALL]},
        {"role": "tool", "content": "y", "id": "3", "tool_call_id": "c1"},
    ]
    state = {"messages": kept, "log": ["done"]}
    shown = for_clients(state)
    check(shown, "1", "2", "3")
    assert from_clients(shown, channels) == state == {"messages": kept, "log": ["done"]}
    assert for_clients(for_clients(state)) == shown


@pytest.mark.parametrize(
    "state",
    [
        {"messages": []},
        {"docs": [{"content": "text", "type": "page"}], "role": "admin"},
        [{"content": "no role"}, 1, None],
        {"messages": [{"role": "wizard", "content": ""}, {"role": ["user"], "content": ""}]},
        "text",
        None,
    ],
)
def test_what_is_no_message_stays_as_it_is(state):
    assert for_clients(state) == state and from_clients(state, {}) == state


def test_a_key_without_a_reducer_of_messages_gets_a_role_besides_the_type():
    assert from_clients({"last": SENT, "log": ["x"]}, make_chat().channels) == {
        "last": {**SENT, "role": "user"},
        "log": ["x"],
    }
