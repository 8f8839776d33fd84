"""Declared effects of LangChain's tools in LangChain's agents under the drop-in, and in ours: counted at a receiver, in
this process, on workers and on a server."""

import os

import pytest
from kit import cluster
from kit.places import EVERYWHERE
from kit.programs import printed
from side_by_side import ROOT

PROGRAM = """
import stategraph.compat.langgraph
import sys, warnings
warnings.simplefilter("ignore")
from concurrent.futures import ThreadPoolExecutor
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.prebuilt import create_react_agent
from langgraph.types import Command
from kit.places import Failed, calling
from stategraph import effect, prebuilt

place, orders, url = sys.argv[1], int(sys.argv[2]), sys.argv[3]
received = []

def act(order, key):
    "Acts, and then fails twice: the response was lost."
    received.append(key)
    if received.count(key) < 3:
        raise TimeoutError("lost")
    return "receipt"

@tool
@effect("keyed")
def mail(order: int, idempotency_key: str) -> str:
    "Mail."
    return act(order, idempotency_key)

@tool
@effect("irreversible")
def charge(order: int) -> str:
    "Charge."
    return act(order, order)

@tool
@effect("irreversible")
async def acharge(order: int) -> str:
    "Charge."
    return act(order, order)

@tool
def undeclared(order: int) -> str:
    "Charge."
    return act(order, order)

class Model(BaseChatModel):
    "Calls the tool that the user names, once."
    _llm_type = "named"
    def bind_tools(self, tools, **options):
        return self
    def _generate(self, messages, stop=None, run_manager=None, **options):
        message = AIMessage("done")
        if messages[-1].type == "human":
            name, order = messages[-1].content.split()
            call = {"id": f"call {order}", "name": name, "args": {"order": int(order)}}
            message = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=message)])

def make(agent):
    tools = [mail, charge, acharge, undeclared, effect("irreversible")(undeclared).model_copy(update={"name": "copied"})]
    if agent == "native":
        return prebuilt.create_agent(Model(), tools)
    if agent == "create_agent":
        return create_agent(Model(), tools, middleware=[ToolRetryMiddleware(max_retries=3, initial_delay=0)])
    return create_react_agent(Model(), tools, version=agent.split()[1])

def buy(call, name, order):
    "How often it was asked what is known of a call."
    thread, given, asked = f"{name}-{order}", {"messages": [{"role": "user", "content": f"{name} {order}"}]}, 0
    while True:
        try:
            found = call(thread, given)
        except Failed:
            given = None  # resume
            continue
        if "__interrupt__" not in found:
            break
        asked += len(found["__interrupt__"])
        given = Command(resume={"decision": "done", "result": "receipt"})
    contents = [m["content"] if isinstance(m, dict) else m.content for m in found["messages"]]
    assert contents[-2:] == ["receipt", "done"], found
    return asked

for agent in ("native", "create_agent", "create_react_agent v1", "create_react_agent v2"):
    with calling(place, make(agent), url) as call, ThreadPoolExecutor(8) as pool:
        for name in ("undeclared", "mail", "charge", "copied", "acharge")[: 5 if place in ("async", "server") else 4]:
            received.clear()
            asked = sum(pool.map(lambda order: buy(call, name, order), range(orders)))
            repeats = len(received) - orders if name == "undeclared" else len({*received}) - orders
            print(agent, name, "repeats", repeats, "calls", len(received), "asked", asked, sep=";")
"""


postgres = cluster.emptied


@pytest.mark.parametrize("place", EVERYWHERE)
def test_tools_that_fail_after_they_have_acted_have_no_effect_twice(place, request):
    """Each of them is called three times when it declares nothing. The orders go on side by side."""
    orders = 5
    url = request.getfixturevalue("postgres") if place == "workers" else ""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / ".types", ROOT / "tests")))}
    shown = printed(PROGRAM, place, orders, url, env=env)
    expected = []
    for agent in ("native", "create_agent", "create_react_agent v1", "create_react_agent v2"):
        expected += [
            f"{agent};undeclared;repeats;{2 * orders};calls;{3 * orders};asked;0",
            f"{agent};mail;repeats;0;calls;{3 * orders};asked;0",
            *(f"{agent};{name};repeats;0;calls;{orders};asked;{orders}" for name in ("charge", "copied")),
        ]
        expected += [f"{agent};acharge;repeats;0;calls;{orders};asked;{orders}"] * (place in ("async", "server"))
    assert shown.splitlines() == expected
