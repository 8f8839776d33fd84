"""A test suite written for the peer, run by pytest on this engine."""

import os
import subprocess
import sys

from side_by_side import ROOT

CONFTEST = """
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

@pytest.fixture
def app():
    graph = StateGraph(MessagesState).add_node("a", lambda s: {"messages": ("ai", "hello")})
    return graph.add_edge(START, "a").compile(checkpointer=InMemorySaver())
"""

SUITE = """
import asyncio
import langgraph.graph
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import END, StateGraph

CONFIG = {"configurable": {"thread_id": "1"}}

def test_answers(app):
    assert isinstance(app.invoke({"messages": "hi"}, CONFIG)["messages"][-1], AIMessage)
    assert app.get_state(CONFIG).next == ()

def test_answers_on_a_loop(app):
    assert len(asyncio.run(app.ainvoke({"messages": "hi"}, CONFIG))["messages"]) == 2

def test_an_empty_graph_is_refused():
    with pytest.raises(ValueError):
        StateGraph(dict).compile()

def test_which_engine_runs():
    assert StateGraph.__module__ == "{module}"
"""


def run_pytest(folder, *options, module):
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_suite.py").write_text(SUITE.replace("{module}", module))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".types")}
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=120)


def test_a_suite_runs_on_this_engine_with_the_plugin(tmp_path):
    plugin = ("-v", "-p", "stategraph.compat.langgraph.pytest_plugin")
    done = run_pytest(tmp_path, *plugin, module="stategraph.compat.langgraph.graph")
    assert "4 passed" in done.stdout, done.stdout + done.stderr
    assert "langgraph: served by stategraph" in done.stdout


def test_the_same_suite_runs_on_the_peer_without_it(tmp_path):
    done = run_pytest(tmp_path, module="langgraph.graph.state")
    assert "4 passed" in done.stdout, done.stdout + done.stderr
