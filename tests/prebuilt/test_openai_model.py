"""Models behind OpenAI-like endpoints, by the official client, against a real server on this machine."""

from __future__ import annotations

import asyncio
import json
import pickle

import pytest
from kit.chat_server import events, server, whole

from stategraph.prebuilt import OpenAIModel, create_agent

CALL = {"id": "c1", "type": "function", "function": {"name": "height", "arguments": '{"name": "Etna"}'}}


def height(name: str) -> int:
    """Height in metres."""
    return {"Etna": 3369}[name]


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    pytest.importorskip("openai")  # here, not above: loading it takes longer than the tests
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_MODEL", "m")


def named(finish, content, *calls):
    """An answer as OpenAI's server gives it in one piece."""
    message = {"role": "assistant", "content": content, "refusal": None, **({"tool_calls": calls} if calls else {})}
    choice = {"index": 0, "finish_reason": finish, "message": message}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return "application/json", json.dumps(body).encode()


STREAMED = [
    events(
        [
            {"role": "assistant", "content": None},
            {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "height", "arguments": ""}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"name": '}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '"Etna"}'}}]},
        ]
    ),
    events([{"role": "assistant", "content": ""}, {"content": "3369 "}, {"content": "metres."}, {}]),
]
WHOLE = [named("tool_calls", None, CALL), named("stop", "3369 metres.")]


def check(requests, *, stream):
    """Both requests were of the protocol: nothing in them that is only ours."""
    assert {(path, key) for path, key, _ in requests} == {("/v1/chat/completions", "Bearer k")}
    first, second = [body for _, _, body in requests]
    assert (first["model"], first.get("stream", False)) == ("m", stream)
    assert first["tools"][0]["function"]["name"] == "height"
    question = {"role": "user", "content": "How high is Etna?"}
    asked = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    answer = {"role": "tool", "tool_call_id": "c1", "content": "3369"}
    assert first["messages"] == [question]
    assert second["messages"] == [question, asked, answer]


def test_an_agent_asks_a_server(drive, monkeypatch):
    with server(WHOLE) as (url, requests):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        state = drive.invoke(create_agent("m", [height]), {"messages": "How high is Etna?"})
    assert state["messages"][-1]["content"] == "3369 metres."
    check(requests, stream=False)


def test_tokens_arrive_as_the_server_streams_them(drive, monkeypatch):
    with server(STREAMED) as (url, requests):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        app = create_agent(OpenAIModel(), [height])
        chunks = drive.stream(app, {"messages": "How high is Etna?"}, stream_mode=["messages", "values"])
    parts = [part for mode, chunk in chunks if mode == "messages" for part in chunk[:1] if part["role"] == "assistant"]
    assert [part["content"] for part in parts if part["content"]] == ["3369 ", "metres."]
    assert len({part["id"] for part in parts}) == 2  # one per message, though the server names none
    [*_, state] = [chunk for mode, chunk in chunks if mode == "values"]
    assert state["messages"][-1]["content"] == "3369 metres."
    assert state["messages"][1]["tool_calls"] == [CALL]
    check(requests, stream=True)


def test_a_server_that_does_not_stream_is_understood(drive, monkeypatch):
    with server([whole({"content": "Hi."})]) as (url, _):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        chunks = drive.stream(create_agent(OpenAIModel()), {"messages": "hi"}, stream_mode="messages")
    assert [message["content"] for message, _ in chunks] == ["Hi."]


def test_the_usage_in_a_last_chunk_is_kept(monkeypatch):
    kind, body = events([{"content": "Hi."}])
    usage = json.dumps({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}})
    with server([(kind, body.replace(b"data: [DONE]", f"data: {usage}\n\ndata: [DONE]".encode()))]) as (url, requests):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        model = OpenAIModel(stream_options={"include_usage": True})
        chunks = list(create_agent(model).stream({"messages": "hi"}, stream_mode=["messages", "values"]))
    assert chunks[-1][1]["messages"][-1]["usage"]["total_tokens"] == 3
    assert requests[0][2]["stream_options"] == {"include_usage": True}


def test_a_custom_client_is_used():
    import openai

    with server([named("stop", "Hi."), named("stop", "Ho.")]) as (url, requests):
        client = openai.OpenAI(base_url=url, api_key="mine", max_retries=0)
        assert OpenAIModel("m", client=client).invoke([])["content"] == "Hi."

        async def ask():
            async with openai.AsyncOpenAI(base_url=url, api_key="mine", max_retries=0) as other:
                return await OpenAIModel("m", async_client=other).ainvoke([])

        assert asyncio.run(ask())["content"] == "Ho."
        client.close()
    assert {key for _, key, _ in requests} == {"Bearer mine"}


def test_a_model_serves_one_event_loop_after_another(monkeypatch):
    with server([named("stop", "Hi."), named("stop", "Ho.")]) as (url, _):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        model = OpenAIModel()
        assert [asyncio.run(model.ainvoke([]))["content"] for _ in range(2)] == ["Hi.", "Ho."]


def test_an_error_of_the_server_is_the_clients_own(drive):
    import openai

    with server([]) as (url, _):
        client = openai.OpenAI(base_url=url, max_retries=0)
        other = openai.AsyncOpenAI(base_url=url, max_retries=0)
        app = create_agent(OpenAIModel(client=client, async_client=other))
        with pytest.raises(openai.APIStatusError) as raised:
            drive.invoke(app, {"messages": "hi"})
        client.close()
    assert raised.value.status_code == 500


def test_a_model_must_be_named(monkeypatch):
    monkeypatch.delenv("OPENAI_MODEL")
    with pytest.raises(ValueError, match="OPENAI_MODEL"):
        OpenAIModel()


def test_a_model_is_pickled_without_its_connections(monkeypatch):
    with server([named("stop", "Hi."), named("stop", "Ho.")]) as (url, _):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        model = OpenAIModel(temperature=0)
        assert model.invoke([])["content"] == "Hi."
        again = pickle.loads(pickle.dumps(model))
        assert (again.invoke([])["content"], again.options) == ("Ho.", {"temperature": 0})
