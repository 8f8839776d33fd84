"""The lab, from a shell, on a database that LangGraph has written for the same program. The messages have ids, as
LangGraph stores those without one now before, now after its reducer has given them one.
"""

import hashlib
import subprocess
import sys

import langchain_core  # noqa: F401 - what the program needs

PROGRAM = """
from operator import add
from typing import Annotated, TypedDict
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    euros: int
    agreed: bool
    parts: Annotated[list, add]

def greet(state):
    return {"messages": [AIMessage("hello", id="hello", response_metadata={"model": "m"})]}

def part(state):
    return {"parts": [2 * state["n"]]}

def ask(state):
    return {"agreed": interrupt("Buy?") if state["euros"] > 3 else True}

def pay(state):
    if state["euros"] == 7:
        raise RuntimeError("bank")
    return {"messages": [AIMessage("paid", id="paid")]}

graph = StateGraph(State)
for node in (greet, part, ask, pay):
    graph.add_node(node)
graph.add_edge(START, "greet")
graph.add_conditional_edges("greet", lambda state: [Send("part", {"n": n}) for n in range(3)], ["part"])
graph.add_edge("part", "ask").add_edge("ask", "pay")
app = graph.compile()

if __name__ == "__main__":
    from langgraph.checkpoint.sqlite import SqliteSaver
    with SqliteSaver.from_conn_string("threads.db") as saver:
        stored = graph.compile(checkpointer=saver)
        for euros in range(10):
            thread = {"configurable": {"thread_id": str(euros)}}
            try:
                stored.invoke({"euros": euros, "messages": [HumanMessage("hi", id="hi")]}, thread)
                if euros % 2 and euros > 3:
                    stored.invoke(Command(resume=euros != 5), thread)
            except RuntimeError:
                pass
"""


def test_threads_with_messages_are_the_same_when_all_nodes_run_again(tmp_path):
    (tmp_path / "agent.py").write_text(PROGRAM)

    def run(*words):
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def lab(command, *words):
        place = ("agent.py:app", *words, "--langgraph", "--db", "threads.db")
        return run("-m", "stategraph", "langgraph", "-m", "stategraph", "lab", command, *place)

    run("agent.py")
    before = hashlib.sha256((tmp_path / "threads.db").read_bytes()).digest()
    assert lab("run") == "10 threads: 10 the same, 0 different\n"
    assert lab("run", "--live", "*").startswith("10 threads: 10 the same, 0 different\n")
    assert "asked 'Buy?', answered False" in lab("why", "agreed", "--thread", "5")
    assert hashlib.sha256((tmp_path / "threads.db").read_bytes()).digest() == before
