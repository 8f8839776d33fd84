"""Agents with the models of an endpoint and with a scripted one: messages, tokens, handlers."""

import asyncio

from deepagents import create_deep_agent
from endpoint import chat
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, create_react_agent, tools_condition
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from langgraph_supervisor import create_supervisor
from langgraph_swarm import create_handoff_tool, create_swarm
from langmem import create_manage_memory_tool
from program_cases import Names, Talking, add, case, collect, run_cases
from pydantic import BaseModel
from trustcall import create_extractor

ADDING = ({"calls": [("add", {"a": 1, "b": 2})]}, "three it is")
GIVEN = {"messages": [HumanMessage("1+2?", id="q")]}


def scripted(*answers):
    return Talking(answers=list(answers))


def observe(note, make, given=GIVEN, config=None, outside=True):
    """Run an agent in four ways, each time a new one.

    Args:
        outside: whether to read the messages of the outermost graph alone, too.
    """

    def show(message):
        calls = [(call["name"], call["args"]) for call in getattr(message, "tool_calls", ())]
        note(type(message).__name__, message.name, repr(message.content), calls or "")

    for message in make().invoke(given, config)["messages"]:
        show(message)
    chunks = list(make().stream(given, config, stream_mode="messages")) if outside else []
    note(len(chunks), "chunks")
    for message, metadata in chunks:
        parts = [each["args"] for each in getattr(message, "tool_call_chunks", ())]
        note(metadata["langgraph_node"], type(message).__name__, repr(message.content), parts or "")
    achunks = asyncio.run(collect(make().astream(given, config, stream_mode=["messages", "updates"], subgraphs=True)))
    note(len(achunks), [len(ns) for ns, _, _ in achunks], [mode for _, mode, _ in achunks])
    make().invoke(given, {**(config or {}), "callbacks": [Names(note)]})
    note("async")
    asyncio.run(make().ainvoke(given, {**(config or {}), "callbacks": [Names(note)]}))


@case
def a_graph_of_ones_own(note):
    def make(model):
        bound = model.bind_tools([add])
        graph = StateGraph(MessagesState)
        graph.add_node("llm", lambda state: {"messages": bound.invoke(state["messages"])})
        graph.add_node("tools", ToolNode([add]))
        graph.add_edge(START, "llm").add_conditional_edges("llm", tools_condition).add_edge("tools", "llm")
        return graph.compile()

    observe(note, lambda: make(chat(*ADDING)))
    observe(note, lambda: make(chat(*ADDING, streaming=True)))


@case
def react_agents(note):
    observe(note, lambda: create_react_agent(chat(*ADDING), [add], prompt="Be brief"))
    observe(note, lambda: create_react_agent(scripted(*ADDING), [add]))


@case
def agents(note):
    observe(note, lambda: create_agent(chat(*ADDING), [add], system_prompt="Be brief"))
    observe(note, lambda: create_agent(scripted(*ADDING), [add]))


@case
def agents_with_two_calls_at_once(note):
    both = ({"calls": [("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4})]}, "three and seven")
    for message in create_agent(chat(*both), [add]).invoke(GIVEN)["messages"]:
        note(type(message).__name__, message.content)
    chunks = asyncio.run(collect(create_agent(chat(*both), [add]).astream(GIVEN, stream_mode="messages")))
    note(len(chunks))


@case
def structured_answers(note):
    class Answer(BaseModel):
        n: int

    model = chat({"calls": [("Answer", {"n": 3})]})
    note(model.with_structured_output(Answer, method="function_calling").invoke("1+2?"))
    app = create_agent(chat({"calls": [("Answer", {"n": 3})]}), [], response_format=Answer)
    note(app.invoke(GIVEN)["structured_response"])


@case
def a_human_in_the_loop(note):
    ask = HumanInTheLoopMiddleware(interrupt_on={"add": True})
    app = create_agent(chat(*ADDING), [add], middleware=[ask], checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}, "callbacks": [Names(note)]}
    note([question.value for question in app.invoke(GIVEN, config)["__interrupt__"]])
    edit = {"type": "edit", "edited_action": {"name": "add", "args": {"a": 5, "b": 5}}}
    for message in app.invoke(Command(resume={"decisions": [edit]}), config)["messages"]:
        note(type(message).__name__, message.content)


@case
def supervisors(note):
    def make(model):
        math = create_react_agent(model(*ADDING), [add], name="math")
        boss = model({"calls": [("transfer_to_math", {})]}, "done")
        return create_supervisor([math], model=boss).compile()

    observe(note, lambda: make(chat), outside=False)
    observe(note, lambda: make(scripted), outside=False)


@case
def swarms(note):
    def make(model):
        hand = create_handoff_tool(agent_name="bob")
        alice = create_agent(model({"calls": [("transfer_to_bob", {})]}), [hand], name="alice")
        bob = create_agent(model("ahoy there"), [], name="bob")
        return create_swarm([alice, bob], default_active_agent="alice").compile()

    observe(note, lambda: make(chat))
    observe(note, lambda: make(scripted))


@case
def deep_agents(note):
    todo = {"calls": [("write_todos", {"todos": [{"content": "add", "status": "pending"}]})]}
    observe(note, lambda: create_deep_agent(model=scripted(todo, *ADDING), tools=[add]))
    observe(note, lambda: create_deep_agent(model=chat(todo, *ADDING), tools=[add]))


@case
def extractors(note):
    class Person(BaseModel):
        name: str

    def make(model):
        return create_extractor(model({"calls": [("Person", {"name": "Al"})]}), tools=[Person], tool_choice="Person")

    for model in (chat, scripted):
        note(make(model).invoke(GIVEN)["responses"])
        note(asyncio.run(make(model).ainvoke(GIVEN, {"callbacks": [Names(note)]}))["responses"])


@case
def memories(note):
    store = InMemoryStore()
    manage = {"calls": [("manage_memory", {"content": "likes tea", "action": "create"})]}
    observe(note, lambda: create_agent(chat(manage, "ok then"), [create_manage_memory_tool(namespace=("m",))], store=store))
    note({item.value["content"] for item in store.search(("m",))})


@case
def a_model_in_a_tool(note):
    @tool
    def ask_expert(question: str) -> str:
        """Ask an expert."""
        return chat("it is blue").invoke(question).content

    def make():
        return create_agent(chat({"calls": [("ask_expert", {"question": "sky?"})]}, "blue it is"), [ask_expert])

    observe(note, make)


if __name__ == "__main__":
    run_cases()
