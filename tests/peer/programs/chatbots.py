"""Chat bots as tutorials write them: memory, tools, shortened histories, reflection, plans."""

import asyncio
import json
from typing import Annotated, Literal

from langchain_core.messages import (
    AIMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    trim_messages,
)
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver, MemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, AnyMessage, add_messages
from langgraph.prebuilt import ToolNode, create_react_agent, tools_condition
from program_cases import (
    add,
    calling,
    case,
    collect,
    conversation,
    in_both_worlds,
    run_cases,
    saying,
    thread,
)
from typing_extensions import TypedDict


class Chat(TypedDict):
    messages: Annotated[list, add_messages]


def bot(model, **options):
    def chatbot(state: Chat):
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(Chat)
    graph.add_node("chatbot", chatbot)
    graph.add_edge(START, "chatbot")
    graph.add_edge("chatbot", END)
    return graph.compile(**options)


def with_tools(model, tools, **options):
    bound = model.bind_tools(tools)

    def chatbot(state: Chat):
        return {"messages": [bound.invoke(state["messages"])]}

    graph = StateGraph(Chat)
    graph.add_node("chatbot", chatbot)
    graph.add_node("tools", ToolNode(tools=tools))
    graph.add_conditional_edges("chatbot", tools_condition)
    graph.add_edge("tools", "chatbot")
    graph.set_entry_point("chatbot")
    return graph.compile(**options)


@case
def basic_chatbot(note):
    for event in bot(saying("hello")).stream({"messages": [("user", "hi")]}):
        for value in event.values():
            note("Assistant:", value["messages"][-1].content)
    note(conversation(bot(saying("hello")).invoke({"messages": [{"role": "user", "content": "hi"}]})))


@case
def chatbot_with_tools(note):
    app = with_tools(calling("add", {"a": 1, "b": 2}, "three"), [add])
    for event in app.stream({"messages": [{"role": "user", "content": "1+2?"}]}, stream_mode="values"):
        note(event["messages"][-1].pretty_repr())


@case
def chatbot_with_tools_on_a_loop(note):
    async def main():
        app = with_tools(calling("add", {"a": 1, "b": 2}, "three"), [add])
        async for event in app.astream({"messages": [("user", "1+2?")]}, stream_mode="updates"):
            note(event)

    asyncio.run(main())


@case
def chatbot_with_memory(note):
    app = bot(saying("hello Al", "Al", "who?"), checkpointer=MemorySaver())
    for text, name in [("I am Al", "1"), ("my name?", "1"), ("my name?", "2")]:
        note(conversation(app.invoke({"messages": [("user", text)]}, thread(name))))
    snapshot = app.get_state(thread("1"))
    note(snapshot.next, snapshot.metadata["step"], conversation(snapshot.values))


@case
def tools_by_hand(note):
    class BasicToolNode:
        def __init__(self, tools):
            self.tools_by_name = {each.name: each for each in tools}

        def __call__(self, inputs: dict):
            message = inputs["messages"][-1]
            found = [(call, self.tools_by_name[call["name"]].invoke(call["args"])) for call in message.tool_calls]
            return {
                "messages": [
                    ToolMessage(content=json.dumps(result), name=call["name"], tool_call_id=call["id"])
                    for call, result in found
                ]
            }

    model = calling("add", {"a": 2, "b": 2}, "four")

    def route_tools(state: Chat):
        return "tools" if state["messages"][-1].tool_calls else END

    graph = StateGraph(Chat)
    graph.add_node("chatbot", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", BasicToolNode([add]))
    graph.add_conditional_edges("chatbot", route_tools, {"tools": "tools", END: END})
    graph.add_edge("tools", "chatbot")
    graph.add_edge(START, "chatbot")
    note(conversation(graph.compile().invoke({"messages": [("user", "2+2")]})))


@case
def messages_are_trimmed(note):
    seen = []

    def call(state: MessagesState):
        kept = trim_messages(state["messages"], strategy="last", token_counter=len, max_tokens=3, start_on="human")
        seen.append([each.content for each in kept])
        return {"messages": AIMessage(f"answer {len(kept)}")}

    graph = StateGraph(MessagesState)
    graph.add_node(call)
    graph.add_edge(START, "call")
    app = graph.compile(checkpointer=InMemorySaver())
    for text in "abcd":
        note(conversation(app.invoke({"messages": text}, thread())))
    note(seen)


@case
def messages_are_deleted(note):
    def delete(state: MessagesState):
        if len(state["messages"]) > 2:
            return {"messages": [RemoveMessage(id=each.id) for each in state["messages"][:2]]}
        return {}

    graph = StateGraph(MessagesState)
    graph.add_sequence([("call", lambda state: {"messages": f"re {len(state['messages'])}"}), delete])
    graph.add_edge(START, "call")
    app = graph.compile(checkpointer=InMemorySaver())
    for text in "abc":
        for event in app.stream({"messages": [{"role": "user", "content": text}]}, thread(), stream_mode="values"):
            note(conversation(event))
    app.update_state(thread(), {"messages": RemoveMessage(id=REMOVE_ALL_MESSAGES)})
    note(app.get_state(thread()).values)


@case
def a_history_is_summarized(note):
    class State(MessagesState):
        summary: str

    model = saying("m0", "m1", "short", "m2", "short again")

    def call_model(state: State):
        summary = state.get("summary", "")
        head = [SystemMessage(f"Summary: {summary}")] if summary else []
        return {"messages": [model.invoke([*head, *state["messages"]])]}

    def should_continue(state) -> Literal["summarize", "__end__"]:
        return "summarize" if len(state["messages"]) > 3 else END

    def summarize(state: State):
        response = model.invoke([*state["messages"], HumanMessage("Create a summary")])
        return {"summary": response.content, "messages": [RemoveMessage(id=m.id) for m in state["messages"][:-2]]}

    graph = StateGraph(State)
    graph.add_node("conversation", call_model)
    graph.add_node(summarize)
    graph.add_edge(START, "conversation")
    graph.add_conditional_edges("conversation", should_continue)
    graph.add_edge("summarize", END)
    app = graph.compile(checkpointer=InMemorySaver())
    for text in "abc":
        for event in app.stream({"messages": [("human", text)]}, thread(), stream_mode="updates"):
            for node, update in event.items():
                note(node, [type(m).__name__ for m in update["messages"]], update.get("summary"))
    note(app.get_state(thread()).values["summary"], conversation(app.get_state(thread()).values))


@case
def a_reflecting_writer(note):
    prompt = ChatPromptTemplate.from_messages([("system", "Write."), MessagesPlaceholder("messages")])
    writer = prompt | saying("draft 1", "draft 2")
    critic = saying("longer!")

    async def generate(state: Chat) -> Chat:
        return {"messages": [await writer.ainvoke(state["messages"])]}

    async def reflect(state: Chat) -> Chat:
        swap = {"ai": HumanMessage, "human": AIMessage}
        turned = [state["messages"][0], *(swap[m.type](content=m.content) for m in state["messages"][1:])]
        response = await critic.ainvoke(turned)
        return {"messages": [HumanMessage(content=response.content)]}

    graph = StateGraph(Chat)
    graph.add_node("generate", generate)
    graph.add_node("reflect", reflect)
    graph.add_edge(START, "generate")
    graph.add_conditional_edges("generate", lambda state: END if len(state["messages"]) > 3 else "reflect")
    graph.add_edge("reflect", "generate")
    app = graph.compile(checkpointer=MemorySaver())

    async def main():
        async for event in app.astream({"messages": [HumanMessage("an essay")]}, thread()):
            note({node: conversation(update) for node, update in event.items()})
        state = await app.aget_state(thread())
        note(ChatPromptTemplate.from_messages(state.values["messages"]).pretty_repr())

    asyncio.run(main())


@case
def plan_and_execute(note):
    import operator

    class PlanExecute(TypedDict):
        input: str
        plan: list[str]
        past_steps: Annotated[list[tuple], operator.add]
        response: str

    agent = create_react_agent(saying("did one", "did two"), [add])

    async def execute_step(state: PlanExecute):
        task = state["plan"][0]
        found = await agent.ainvoke({"messages": [("user", task)]})
        return {"past_steps": [(task, found["messages"][-1].content)]}

    async def plan_step(state: PlanExecute):
        return {"plan": ["one", "two"]}

    async def replan_step(state: PlanExecute):
        left = state["plan"][1:]
        return {"plan": left} if left else {"response": f"done {len(state['past_steps'])}"}

    def should_end(state: PlanExecute):
        return END if state.get("response") else "agent"

    graph = StateGraph(PlanExecute)
    graph.add_node("planner", plan_step)
    graph.add_node("agent", execute_step)
    graph.add_node("replan", replan_step)
    graph.add_edge(START, "planner")
    graph.add_edge("planner", "agent")
    graph.add_edge("agent", "replan")
    graph.add_conditional_edges("replan", should_end, ["agent", END])
    app = graph.compile()

    async def main():
        async for event in app.astream({"input": "go"}, {"recursion_limit": 50}):
            note(event)

    asyncio.run(main())
    note(app.get_graph().draw_mermaid())


@case
def self_correcting_rag(note):
    class State(TypedDict):
        question: str
        documents: list[str]
        generation: str
        tries: int

    corpus = {"cats": ["cats purr", "cats sleep"], "dogs": []}

    def retrieve(state):
        return {"documents": corpus[state["question"]], "question": state["question"]}

    def grade(state):
        return {"documents": [each for each in state["documents"] if "purr" in each]}

    def transform(state):
        return {"question": "cats", "tries": state.get("tries", 0) + 1}

    def generate(state):
        return {"generation": " ".join(state["documents"])}

    graph = StateGraph(State)
    for node in (retrieve, grade, transform, generate):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "retrieve")
    graph.add_edge("retrieve", "grade")
    graph.add_conditional_edges(
        "grade",
        lambda state: "yes" if state["documents"] else "no",
        {"no": "transform", "yes": "generate"},
    )
    graph.add_edge("transform", "retrieve")
    graph.add_edge("generate", END)
    in_both_worlds(note, graph.compile, {"question": "cats"}, {"question": "dogs"})
    for output in graph.compile().stream({"question": "dogs"}):
        note(output)
    note(graph.compile().get_graph().draw_mermaid())


@case
def a_support_bot_with_assistants(note):
    @tool
    def escalate(reason: str) -> str:
        """Ask a human."""
        return f"escalated: {reason}"

    def update_stack(left: list, right):
        return left[:-1] if right == "pop" else [*left, right] if right else left

    class State(TypedDict):
        messages: Annotated[list[AnyMessage], add_messages]
        dialog_state: Annotated[list[str], update_stack]

    flights = calling("escalate", {"reason": "storm"}, "a human comes")

    def enter(state):
        return {"messages": [("assistant", "flights here")], "dialog_state": "flights"}

    def leave(state):
        return {"dialog_state": "pop", "messages": [("assistant", "back")]}

    graph = StateGraph(State)
    graph.add_node("enter", enter)
    graph.add_node("flights", lambda state: {"messages": flights.invoke(state["messages"])})
    graph.add_node("tools", ToolNode([escalate]))
    graph.add_node("leave", leave)
    graph.add_edge(START, "enter")
    graph.add_edge("enter", "flights")
    graph.add_conditional_edges("flights", tools_condition, {"tools": "tools", END: "leave"})
    graph.add_edge("tools", "flights")
    app = graph.compile(checkpointer=InMemorySaver())
    for chunk in app.stream({"messages": ("user", "my flight?")}, thread(), stream_mode="updates"):
        note(chunk)
    note(app.get_state(thread()).values["dialog_state"])


@case
def streamed_by_word(note):
    async def main():
        app = bot(saying("one two three"))
        chunks = await collect(app.astream({"messages": [("user", "count")]}, stream_mode="messages"))
        note("|".join(chunk.content for chunk, _ in chunks))
        note({metadata["langgraph_node"] for _, metadata in chunks})

    asyncio.run(main())
    app = bot(saying("one two three"))
    for message, metadata in app.stream({"messages": [("user", "count")]}, stream_mode="messages"):
        note(repr(message.content), metadata["langgraph_node"], metadata["langgraph_step"], metadata["langgraph_triggers"])


@case
def messages_are_merged(note):
    left = [HumanMessage("a", id="1"), AIMessage("b", id="2")]
    note(add_messages(left, [AIMessage("c", id="2")]))
    note(add_messages(left, RemoveMessage(id="1")))
    note(add_messages(left, [RemoveMessage(id=REMOVE_ALL_MESSAGES), HumanMessage("z", id="9")]))
    note(conversation(add_messages("x", [("ai", "y"), {"type": "human", "content": "z"}])))
    note(conversation(add_messages(left, HumanMessage([{"type": "text", "text": "t"}]), format="langchain-openai")))
    try:
        add_messages(left, RemoveMessage(id="7"))
    except ValueError as error:
        note("ValueError", "7" in str(error))


if __name__ == "__main__":
    run_cases()
