"""Released agents of the package index, with scripted models."""

import asyncio
import warnings

from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from langgraph_supervisor import create_supervisor
from langgraph_swarm import create_handoff_tool, create_swarm
from langmem import create_manage_memory_tool
from program_cases import UNSTABLE, Handler, Names, Scripted, add, calling, case, run_cases
from pydantic import BaseModel
from trustcall import create_extractor


def adding():
    return calling("add", {"a": 1, "b": 2}, "three it is")


def transferring(name, *texts):
    return calling(f"transfer_to_{name}", {}, *texts)


def show(note, result):
    for message in result["messages"]:
        note(type(message).__name__, repr(message.content), getattr(message, "tool_calls", None) or "")


@case
def react_agent(note):
    show(note, create_react_agent(adding(), [add]).invoke({"messages": [("user", "1+2?")]}))


@case
def agent(note):
    show(note, create_agent(adding(), [add]).invoke({"messages": [{"role": "user", "content": "1+2?"}]}))


@case
def handlers_of_a_model_in_an_agent(note):
    class Tags(Handler):
        def _started(self, kind, serialized, given, run_id, parent_run_id, tags, metadata, name):
            self.note(kind, name, parent_run_id is not None, tags, sorted({*(metadata or {})} - {*UNSTABLE}))

        def on_chain_end(self, outputs, **_):
            self.note("chain ends")

    def prompt(state):
        return [("system", "Add."), *state["messages"]]

    for given in ({}, {"callbacks": [Tags(note)], "run_name": "mine", "tags": ["t"]}):
        model = adding()
        model.callbacks = [Tags(note)]
        agent = create_react_agent(model, [add], prompt=prompt)
        show(note, asyncio.run(agent.ainvoke({"messages": "1+2?"}, given)))
        model.messages = adding().messages
        show(note, agent.invoke({"messages": "1+2?"}, given))


@case
def agent_with_a_handler(note):
    create_agent(adding(), [add]).invoke({"messages": "1+2?"}, {"callbacks": [Names(note)]})


@case
def human_in_the_loop(note):
    ask = HumanInTheLoopMiddleware(interrupt_on={"add": True})
    app = create_agent(adding(), [add], middleware=[ask], checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}}
    note([question.value for question in app.invoke({"messages": "1+2?"}, config)["__interrupt__"]])
    show(note, app.invoke(Command(resume={"decisions": [{"type": "approve"}]}), config))


@case
def supervisor(note):
    math = create_react_agent(adding(), [add], name="math")
    show(note, create_supervisor([math], model=transferring("math", "done")).compile().invoke({"messages": "1+2?"}))


@case
def swarm(note):
    alice = create_agent(transferring("bob"), [create_handoff_tool(agent_name="bob")], name="alice")
    bob = create_agent(Scripted(messages=iter([AIMessage("ahoy", id="s2")])), [], name="bob")
    show(note, create_swarm([alice, bob], default_active_agent="alice").compile().invoke({"messages": "hi"}))


@case
def deep_agent(note):
    show(note, create_deep_agent(model=adding(), tools=[add]).invoke({"messages": "1+2?"}))


@case
def extractor(note):
    class Person(BaseModel):
        name: str

    model = calling("Person", {"name": "Al"})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        create_extractor(model, tools=[Person], tool_choice="Person")
    note([each for each in told if "Deprecat" not in each.category.__name__])
    made = create_extractor(model, tools=[Person], tool_choice="Person").invoke({"messages": [("user", "Al")]})
    note(made["responses"])


@case
def memory(note):
    store = InMemoryStore()
    model = calling("manage_memory", {"content": "likes tea", "action": "create"}, "ok")
    show(note, create_agent(model, [create_manage_memory_tool(namespace=("m",))], store=store).invoke({"messages": "tea"}))
    note([item.value for item in store.search(("m",))])


if __name__ == "__main__":
    run_cases()
