"""The peer's `RemoteGraph`, unchanged, against a server of ours: a graph that runs in another process."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import Command
from langgraph_sdk import get_client, get_sync_client

SERVED = """
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from stategraph import START, MessagesState, StateGraph, interrupt

async def talk(state: MessagesState) -> MessagesState:
    model = GenericFakeChatModel(messages=iter([AIMessage("hello big world")]))
    return {"messages": [await model.ainvoke(state["messages"])]}

def confirm(state: MessagesState) -> MessagesState:
    return {"messages": [("human", interrupt({"ok": state["messages"][-1].content}))]}

chat = StateGraph(MessagesState).add_node("talk", talk).add_edge(START, "talk").compile()
asks = StateGraph(MessagesState).add_sequence([talk, confirm]).add_edge(START, "talk").compile()
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("served")
    (folder / "served.py").write_text(SERVED)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "stategraph", "serve", "served.py:chat", "served.py:asks", "--port", str(port)]
    server = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    for _ in range(600):
        assert server.poll() is None
        try:
            urlopen(f"{address}/ok").close()
            break
        except OSError:
            time.sleep(0.05)
    yield address
    server.terminate()
    server.wait(20)


@contextmanager
def remote(name: str, url: str) -> Iterator[RemoteGraph]:
    """A `RemoteGraph` whose connections are closed afterwards, which it does not do itself."""
    with get_sync_client(url=url) as sync_client:
        yield RemoteGraph(name, url=url, sync_client=sync_client)


def texts(state: Any) -> list[str]:
    return [each["content"] for each in state["messages"]]


def test_it_is_called_streamed_and_drawn(url: str) -> None:
    with remote("chat", url) as chat:
        assert texts(chat.invoke({"messages": [("human", "hi")]})) == ["hi", "hello big world"]
        updates = [*chat.stream({"messages": [("human", "hi")]}, stream_mode="updates")]
        assert [[*each] for each in updates] == [["talk"]]
        assert [*chat.get_graph().nodes] == ["__start__", "talk", "__end__"]


def test_it_streams_tokens_on_a_loop(url: str) -> None:
    async def pieces() -> list[str]:
        async with get_client(url=url) as client:
            found = RemoteGraph("chat", url=url, client=client).astream(
                {"messages": [("human", "hi")]}, stream_mode="messages"
            )
            return [message["content"] async for message, _ in found]

    assert asyncio.run(pieces()) == ["hello", " ", "big", " ", "world"]


def test_it_asks_is_answered_and_edited(url: str) -> None:
    with remote("asks", url) as asks:
        config: Any = {"configurable": {"thread_id": asks.sync_client.threads.create()["thread_id"]}}
        asked = asks.invoke({"messages": [("human", "hi")]}, config)
        assert asked["__interrupt__"][0]["value"] == {"ok": "hello big world"}
        assert asks.get_state(config).next == ("confirm",)
        assert texts(asks.invoke(Command(resume="yes"), config))[-1] == "yes"
        asks.update_state(config, {"messages": [("human", "more")]}, as_node="confirm")
        assert texts(asks.get_state(config).values)[-1] == "more"
        assert [step.next for step in asks.get_state_history(config)][-1] == ("__start__",)


def test_it_is_a_node_of_a_graph(url: str) -> None:
    with remote("chat", url) as chat:
        graph = StateGraph(MessagesState)
        graph.add_node("far", chat)
        graph.add_edge(START, "far")
        found = graph.compile().invoke({"messages": [("human", "hi")]})
    assert [message.content for message in found["messages"]] == ["hi", "hello big world"]
