"""The peer's `RemoteGraph`, unchanged, against our server: a graph that runs in another process."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from langgraph_sdk import get_sync_client
from typing_extensions import TypedDict

from stategraph import START, StateGraph
from stategraph.compat.langgraph.remote import RemoteException, RemoteGraph


class Talk(TypedDict):
    messages: list[Any]


CALLS = Path(__file__).with_name("remote_calls.py")
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
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
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


@pytest.mark.parametrize("caller", [[], ["-m", "stategraph", "langgraph"]], ids=["peer", "stategraph"])
def test_graphs_are_called_from_afar(url, caller):
    """By the peer's class, and by ours under its name."""
    command = [sys.executable, *caller, str(CALLS), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    talk = ["hi", "hello big world"]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "called": talk,
        "streamed": [["talk"]],
        "drawn": ["__start__", "talk", "__end__"],
        "asked": {"ok": "hello big world"},
        "next": ["confirm"],
        "answered": [*talk, "yes"],
        "edited": [*talk, "yes", "more"],
        "first": ["__start__"],
        "inside": talk,
        "tokens": ["hello", " ", "big", " ", "world"],
    }


@pytest.fixture
def client(url):
    with get_sync_client(url=url) as client:
        yield client


def test_a_graph_of_ours_calls_a_remote_one(client):
    builder = StateGraph(Talk)
    builder.add_node(RemoteGraph("chat", sync_client=client))
    builder.add_edge(START, "chat")
    result = builder.compile().invoke({"messages": [{"type": "human", "content": "hi"}]})
    assert [message["content"] for message in result["messages"]] == ["hi", "hello big world"]


def test_an_interrupt_of_a_remote_graph_is_not_lost_inside_another(client):
    far = RemoteGraph("asks", sync_client=client)
    outer = StateGraph(Talk).add_node("far", far).add_edge(START, "far").compile()
    with pytest.raises(RemoteException, match="'asks' has asked .*hello big world"):
        outer.invoke({"messages": [{"type": "human", "content": "hi"}]})


def test_a_failure_of_a_remote_graph_is_raised(client):
    with pytest.raises(RemoteException, match="unknown key"):
        RemoteGraph("chat", sync_client=client).invoke({"mesages": []})
