"""What readers of the messages of a stream get."""

import asyncio

from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langgraph.graph import START, MessagesState, StateGraph
from program_cases import Scripted, add, case, run_cases, saying


def talking(**options):
    return Scripted(messages=iter([AIMessage("a b", id=f"i{n}") for n in range(20)]), **options)


def show(note, chunk, ns=()):
    message, metadata = chunk
    note([level.partition(":")[0] for level in ns], type(message).__name__, message.content, message.id)
    note(metadata.get("tags"), sorted((k, v) for k, v in metadata.items() if "checkpoint_ns" not in k))


def one_node(function):
    graph = StateGraph(MessagesState)
    graph.add_node("a", function)
    graph.add_edge(START, "a")
    return graph.compile()


@case
def a_model_is_invoked(note):
    model = talking()
    for chunk in one_node(lambda s: {"messages": model.invoke("q")}).stream({"messages": "hi"}, stream_mode="messages"):
        show(note, chunk)


@case
def in_a_chain_and_by_name_of_a_tag(note):
    chain = RunnableLambda(lambda s: s) | talking(tags=["mt"])
    app = one_node(lambda s: {"messages": chain.invoke("q")})
    for chunk in app.stream({"messages": "hi"}, {"tags": ["gt"], "metadata": {"u": 1}}, stream_mode="messages"):
        show(note, chunk)


@case
def awaited(note):
    model = talking()

    async def node(state):
        return {"messages": await model.ainvoke("q")}

    async def main():
        async for chunk in one_node(node).astream({"messages": "hi"}, stream_mode="messages"):
            show(note, chunk)

    asyncio.run(main())


def everywhere():
    model = talking(tags=["mt"])

    def route(state):
        model.invoke("r")
        return "last"

    quiet = model.with_config(tags=["nostream"])
    graph = StateGraph(MessagesState)
    graph.add_node("sub", one_node(lambda s: {"messages": model.invoke("q")}))
    graph.add_node("quiet", lambda s: {"messages": quiet.invoke("q")})
    graph.add_node("last", lambda s: {"messages": [model.invoke("z"), AIMessage("own", id="own")]})
    graph.add_edge(START, "sub")
    graph.add_edge("sub", "quiet")
    graph.add_conditional_edges("quiet", route, ["last"])
    return graph.compile()


@case
def in_routers_and_not_where_it_is_forbidden(note):
    for chunk in everywhere().stream({"messages": "hi"}, stream_mode="messages"):
        show(note, chunk)


@case
def in_graphs_inside(note):
    for ns, chunk in everywhere().stream({"messages": "hi"}, stream_mode="messages", subgraphs=True):
        show(note, chunk, ns)


@case
def beside_other_modes(note):
    model = talking()
    app = one_node(lambda s: {"messages": model.invoke("q")})
    for mode, data in app.stream({"messages": "hi"}, stream_mode=["messages", "updates"]):
        note(mode, type(data).__name__)


@case
def an_agent(note):
    agent = create_agent(saying("three it is"), [add])
    for chunk in agent.stream({"messages": "1+2?"}, stream_mode="messages"):
        show(note, chunk)


@case
def events_of_a_graph(note):
    model = talking()
    app = one_node(lambda s: {"messages": model.invoke("q")})

    async def main():
        async for event in app.astream_events({"messages": [{"role": "user", "content": "hi", "id": "1"}]}, version="v2"):
            note(event["event"], event["name"], event["tags"], len(event["parent_ids"]))

    asyncio.run(main())


if __name__ == "__main__":
    run_cases()
