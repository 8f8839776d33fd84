"""Budgets of LangChain's agents under the drop-in, which call their models themselves."""


import side_by_side  # noqa: F401 - skips where its packages are missing
from kit.programs import OF_THE_PACKAGE, printed

PROGRAM = """
import stategraph.compat.langgraph
import asyncio, itertools, warnings
warnings.simplefilter("ignore")
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph.types import Command
from stategraph import Budget, BudgetExceededError
from stategraph.graph import acall_model, call_model

class Model(GenericFakeChatModel):
    def bind_tools(self, tools, **options):
        return self

asked = []

def answers():
    for number in itertools.count():
        asked.append(number)
        usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
        call = {"id": str(number), "name": "look", "args": {}}
        yield AIMessage("", tool_calls=[call], usage_metadata=usage, response_metadata={"model_name": "m"})

@tool
def look() -> str:
    "Look."
    return "nothing"

def call(app, given, thread, is_async):
    return asyncio.run(app.ainvoke(given, thread)) if is_async else app.invoke(given, thread)

def native():
    async def ask(state):
        return {"messages": [await acall_model(Model(messages=model), state["messages"])]}
    model = answers()
    graph = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask")
    return graph.add_conditional_edges("ask", lambda state: "ask", ["ask", END]).compile()

thread = {"configurable": {"thread_id": "1"}, "recursion_limit": 100}
make = {
    "create_agent": lambda: create_agent(Model(messages=answers()), [look]),
    "create_react_agent": lambda: create_react_agent(Model(messages=answers()), [look]),
    "acall_model": native,
}
for name, agent in make.items():
    for is_async in (False, True):
        if name == "acall_model" and not is_async:
            continue
        asked.clear()
        budget = Budget(tokens=20, usd=1, prices={"m": (1.0, 2.0)})
        app = agent().builder.compile(checkpointer=InMemorySaver(), budget=budget)
        try:
            call(app, {"messages": [("user", "hi")]}, thread, is_async)
        except BudgetExceededError as error:
            spent = app.get_spent(thread)
            print(name, is_async, len(asked), spent["calls"], spent["tokens"], round(spent["usd"] * 1e6), error.unit)
        asked.clear()
        app = agent().builder.compile(checkpointer=InMemorySaver(), budget=Budget(calls=2, on_empty="ask"))
        found = call(app, {"messages": [("user", "hi")]}, thread, is_async)
        found = call(app, Command(resume=1), thread, is_async)
        print(name, is_async, len(asked), found["__interrupt__"][0].value["question"])
"""


def test_agents_of_langchain_stop_at_their_budget_or_ask():
    assert printed(PROGRAM, env=OF_THE_PACKAGE).splitlines() == [
        line
        for name, is_async in (
            ("create_agent", False), ("create_agent", True), ("create_react_agent", False), ("create_react_agent", True),
            ("acall_model", True),
        )
        for line in (
            f"{name} {is_async} 4 4 20 28 tokens",
            f"{name} {is_async} 3 3 of 3 calls are spent: how much more?",
        )
    ]
