"""Declared effects of LangChain's tools, in LangChain's agents under the drop-in, counted at a receiver."""

import os
import subprocess
import sys

import pytest
from side_by_side import ROOT

PROGRAM = """
import stategraph.compat.langgraph
import asyncio, sys, warnings
warnings.simplefilter("ignore")
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent
from langgraph.types import Command
from stategraph import effect

received = []

def act(key):
    "Acts, and then fails twice: the response was lost."
    received.append(key)
    if received.count(key) < 3:
        raise TimeoutError("lost")
    return "receipt"

@tool
@effect("keyed")
def mail(order: int, idempotency_key: str) -> str:
    "Mail."
    return act(idempotency_key)

@tool
@effect("irreversible")
def charge(order: int) -> str:
    "Charge."
    return act(order)

@tool
@effect("irreversible")
async def acharge(order: int) -> str:
    "Charge."
    return act(order)

@tool
def undeclared(order: int) -> str:
    "Charge."
    return act(order)

class Model(GenericFakeChatModel):
    def bind_tools(self, tools, **options):
        return self

def make(agent, name, order):
    call = {"id": f"call {order}", "name": name, "args": {"order": order}}
    model = Model(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("done")]))
    tools = [mail, charge, acharge, undeclared, effect("irreversible")(undeclared).model_copy(update={"name": "copied"})]
    if agent == "create_agent":
        retries = ToolRetryMiddleware(max_retries=3, initial_delay=0)
        return create_agent(model, tools, checkpointer=InMemorySaver(), middleware=[retries])
    version = "v1" if agent == "create_react_agent v1" else "v2"
    return create_react_agent(model, tools, checkpointer=InMemorySaver(), version=version)

def call(app, given, thread, is_async):
    return asyncio.run(app.ainvoke(given, thread)) if is_async else app.invoke(given, thread)

for agent in ("create_agent", "create_react_agent v1", "create_react_agent v2"):
    for name in ("undeclared", "mail", "charge", "acharge", "copied"):
        received.clear()
        asked = 0
        for order in range(ORDERS):
            app, thread = make(agent, name, order), {"configurable": {"thread_id": str(order)}}
            given = {"messages": [("user", "pay")]}
            while True:
                try:
                    found = call(app, given, thread, name == "acharge")
                except TimeoutError:
                    given = None  # resume
                    continue
                if "__interrupt__" not in found:
                    break
                asked += len(found["__interrupt__"])
                given = Command(resume={"decision": "done", "result": "receipt"})
            assert [m.content for m in found["messages"]][-2:] == ["receipt", "done"], found
        repeats = len(received) - ORDERS if name == "undeclared" else len({*received}) - ORDERS
        print(agent, name, "repeats", repeats, "calls", len(received), "asked", asked, sep=";")
"""


@pytest.mark.parametrize("orders", [30])
def test_tools_that_fail_after_they_have_acted_have_no_effect_twice(orders):
    """In the agents of LangChain each of them is called three times when it declares nothing."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / ".types")}
    program = PROGRAM.replace("ORDERS", str(orders))
    done = subprocess.run([sys.executable, "-P", "-c", program], env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    expected = []
    for agent in ("create_agent", "create_react_agent v1", "create_react_agent v2"):
        expected += [
            f"{agent};undeclared;repeats;{2 * orders};calls;{3 * orders};asked;0",
            f"{agent};mail;repeats;0;calls;{3 * orders};asked;0",
            *(f"{agent};{name};repeats;0;calls;{orders};asked;{orders}" for name in ("charge", "acharge", "copied")),
        ]
    assert done.stdout.splitlines() == expected
