"""The stream mode `events`: LangChain callback events of a served run, as the official client reads them."""

from __future__ import annotations

import operator
from typing import Annotated, TypedDict

import pytest
from javascript import run_program
from kit.graphs import EMPTY, chain_of
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph_sdk import get_sync_client
from langgraph_sdk.errors import UnprocessableEntityError
from serving import Gates, make_flow, new_thread, opened, serving

from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.compat.langchain.events import astream_with_events
from stategraph.serve import create_app
from stategraph.serve.runs import new_runs
from stategraph.store.sqlite import SqliteStore


class Said(TypedDict, total=False):
    said: Annotated[list[str], operator.add]


async def answer(state: Said):
    model = GenericFakeChatModel(messages=iter([AIMessage("it is three")]))
    return {"said": [str((await model.ainvoke("1+2?")).content)]}


def make_graphs(gates):
    flow = make_flow(gates)
    chat = chain_of(Said, answer=answer).compile(name="chat")
    outer = chain_of(Said, chat=chat).compile(name="outer")
    return {"flow": flow, "chat": chat, "outer": outer}


@pytest.fixture
def gates():
    return Gates()


@pytest.fixture
def url(gates):
    with serving(create_app(make_graphs(gates))) as url:
        yield url


@pytest.fixture
def client(url):
    with get_sync_client(url=url) as client:
        yield client


def told(parts):
    """Of events what happened and to whom, of other parts their names."""
    return [(p.data["event"], p.data["name"]) if p.event == "events" else p.event for p in parts]


NODES = [(f"on_chain_{what}", name) for name in "ab" for what in ("start", "stream", "end")]


def test_events_of_a_run_are_those_of_astream_events(client):
    thread = new_thread(client)
    parts = [*client.runs.stream(thread, "flow", input={"log": ["x"]}, stream_mode="events")]
    assert told(parts) == ["metadata", ("on_chain_start", "flow"), *NODES, ("on_chain_end", "flow")]
    first, last = parts[1].data, parts[-1].data
    assert first["data"] == {"input": {"log": ["x"]}} and last["data"] == {"output": {"log": ["x", "a", "b"]}}
    assert first["run_id"] == last["run_id"] == parts[0].data["run_id"]
    assert first["parent_ids"] == [] and parts[2].data["parent_ids"] == [first["run_id"]]
    assert parts[2].data["metadata"]["thread_id"] == thread
    [run] = client.runs.list(thread)
    assert run["status"] == "success"
    assert client.threads.get_state(thread)["values"] == {"log": ["x", "a", "b"]}


def test_events_are_interleaved_with_chunks_of_other_modes(client):
    modes = ["events", "updates", "custom"]
    parts = told(client.runs.stream(new_thread(client), "flow", input=EMPTY, stream_mode=modes))
    assert parts.index("custom") < parts.index(("on_chain_end", "a")) < parts.index("updates")
    assert parts.index("updates") < parts.index(("on_chain_start", "b"))
    assert len(parts) == 12


def test_events_have_the_tokens_of_models_also_in_nested_graphs(client):
    parts = [*client.runs.stream(new_thread(client), "outer", input={}, stream_mode="events")]
    said = [p.data["data"]["chunk"]["content"] for p in parts[1:] if p.data["event"] == "on_chat_model_stream"]
    assert "".join(said) == "it is three" and len(said) > 3
    names = [name for event, name in told(parts)[1:] if event == "on_chain_start"]
    assert names == ["outer", "chat", "chat", "answer"]


def test_a_question_and_a_failure_end_the_events(client):
    thread = new_thread(client)
    modes = ["events", "values"]
    parts = [*client.runs.stream(thread, "flow", input={"topic": "ask"}, stream_mode=modes)]
    assert parts[-1].event == "events" and parts[-1].data["data"]["output"]["log"] == ["a"]
    assert client.threads.get(thread)["status"] == "interrupted"
    parts = [*client.runs.stream(thread, "flow", command={"resume": "Ann"}, stream_mode=modes)]
    assert parts[-1].data["data"]["output"]["log"] == ["a", "Ann"]
    parts = [*client.runs.stream(thread, "flow", input={"topic": "fail"}, stream_mode="events")]
    assert parts[-1].data == {"error": "ValueError", "message": "boom"}
    assert client.threads.get(thread)["status"] == "error"


def test_a_run_with_events_is_joined_behind_the_last_one_seen(client):
    thread = new_thread(client)
    run = client.runs.create(thread, "flow", input=EMPTY, stream_mode=["events"], stream_resumable=True)
    assert client.runs.join(thread, run["run_id"]) == {"log": ["a", "b"]}
    everything = [*client.runs.join_stream(thread, run["run_id"], last_event_id="-1")]
    rest = [*client.runs.join_stream(thread, run["run_id"], last_event_id=everything[4].id)]
    assert rest == everything[5:] and len(rest) == 4


def test_a_run_with_events_is_cancelled(client, gates):
    gates.close("wait")
    thread = new_thread(client)
    run = client.runs.create(thread, "flow", input={"topic": "wait"}, stream_mode=["events"])
    assert gates.reached["wait"].wait(10)
    client.runs.cancel(thread, run["run_id"], wait=True)
    assert client.runs.get(thread, run["run_id"])["status"] == "interrupted"
    assert client.threads.get_state(thread)["next"] == ["b"]
    gates.open("wait")
    parts = client.runs.stream(thread, "flow", input=None, stream_mode="events")
    assert ("on_chain_end", "b") in told(parts)


async def test_a_run_whose_id_is_no_uuid_has_events_and_all_chunks(gates):
    """Runs of schedules are named after their times."""
    graph = make_graphs(gates)["flow"]
    config = {"run_id": "cron@2026-01-01T00:00:00Z", "configurable": {}}

    parts = [part async for part in astream_with_events(graph, {"log": []}, config, stream_mode=["values"])]
    assert [chunk for mode, chunk in parts if mode == "values"][-1] == {"log": ["a", "b"]}
    assert len([mode for mode, _ in parts if mode == "events"]) == 8


def test_the_javascript_client_reads_events(url):
    program = """
import { Client } from "@langchain/langgraph-sdk";
const client = new Client({ apiUrl: process.argv[2] });
const { thread_id } = await client.threads.create();
const names = [];
for await (const part of client.runs.stream(thread_id, "flow", { input: { log: [] }, streamMode: "events" }))
  if (part.event === "events") names.push(`${part.data.event} ${part.data.name}`);
console.log(names.join(", "));
"""
    printed = run_program("events.mjs", program, url).strip()
    assert printed.startswith("on_chain_start flow, on_chain_start a") and printed.endswith("on_chain_end flow")


def test_without_langchain_events_are_refused(client, monkeypatch):
    monkeypatch.setattr(new_runs, "find_spec", lambda name: None)
    with pytest.raises(UnprocessableEntityError, match="'events' needs langchain-core where the server runs"):
        client.runs.create(new_thread(client), "flow", stream_mode="events")


def test_with_workers_events_are_refused(gates, postgres):
    with (
        opened("postgres", postgres) as place,
        serving(create_app(make_graphs(gates), **place)) as url,
        get_sync_client(url=url) as client,
        pytest.raises(UnprocessableEntityError, match="'events'.*jobs of workers"),
    ):
        client.runs.create(new_thread(client), "flow", stream_mode="events")


def test_a_stopped_server_leaves_a_run_with_events_to_the_next(gates, tmp_path):
    place = str(tmp_path / "served.db")
    gates.close("wait")
    with SqliteSaver.from_conn_string(place) as saver, SqliteStore.from_conn_string(place) as store:
        app = create_app(make_graphs(gates), checkpointer=saver, store=store)
        with serving(app) as url, get_sync_client(url=url) as client:
            thread = new_thread(client)
            run = client.runs.create(thread, "flow", input={"topic": "wait"}, stream_mode=["events"])
            assert gates.reached["wait"].wait(10)
            app.state.begin_to_stop()
            gates.open("wait")
        app = create_app(make_graphs(gates), checkpointer=saver, store=store)
        with serving(app) as url, get_sync_client(url=url) as client:
            assert client.runs.join(thread, run["run_id"])["log"] == ["a", "b"]
