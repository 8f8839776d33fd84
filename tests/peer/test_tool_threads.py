"""The tool node of `langgraph.prebuilt` starts no thread for a single call under the drop-in."""


import side_by_side  # noqa: F401 - skips where its packages are missing
from kit.programs import OF_THE_PACKAGE, printed

PROGRAM = """
import threading
from contextvars import ContextVar
import stategraph.compat.langgraph
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

started, meeting, seen = [], threading.Barrier(3, timeout=30), ContextVar("seen", default="outer")
start = threading.Thread.start
threading.Thread.start = lambda self: (started.append(self.name), start(self))[1]

@tool
def meet(x: int) -> str:
    "Wait for the others."
    meeting.wait()
    before, _ = seen.get(), seen.set(f"inner {x}")
    return f"{x} {before}"

@tool
def fail(x: int) -> str:
    "Fail."
    raise LookupError(x)

@tool
def ask(x: int) -> str:
    "Ask."
    return interrupt(x)

@tool
def whoami(x: int) -> str:
    "Say which thread this is."
    return "main" if threading.current_thread() is threading.main_thread() else "other"

def run(*calls, config=None, given=None):
    graph = StateGraph(MessagesState).add_node("tools", ToolNode([meet, fail, ask, whoami], handle_tool_errors=False))
    app = graph.add_edge(START, "tools").compile(InMemorySaver())
    config = {"configurable": {"thread_id": "1"}, **(config or {})}
    message = AIMessage("", tool_calls=[{"name": n, "args": {"x": i}, "id": f"c{i}"} for i, n in enumerate(calls)])
    found = app.invoke({"messages": [message]}, config)
    if given is not None:
        found = app.invoke(Command(resume=given), config)
    return [each.content for each in found["messages"][1:]]

print(run("meet", "meet", "meet"), seen.get())
before = len(started)
for _ in range(5):
    run("whoami")
print("threads started later:", len(started) - before)
print(run("whoami"), run("ask", given="yes"), run("ask", "whoami", given="yes"))
try:
    run("whoami", "fail", "fail")
except LookupError as error:
    print("raised", error)
print(run("whoami", "whoami", config={"max_concurrency": 1}))
"""


def test_tools_of_one_message_meet_and_no_thread_is_started_for_a_single_call():
    assert printed(PROGRAM, env=OF_THE_PACKAGE).splitlines() == [
        "['0 outer', '1 outer', '2 outer'] outer",
        "threads started later: 0",
        "['main'] ['yes'] ['yes', 'other']",
        "raised 1",
        "['other', 'other']",
    ]
