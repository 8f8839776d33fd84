"""Chat bots as tutorials write them: memory, tools, shortened histories."""

import json
from typing import Annotated, Literal

from langchain_core.messages import (
    AIMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.memory import InMemorySaver, MemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from program_cases import (
    add,
    calling,
    case,
    conversation,
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
    graph.set_entry_point("chatbot")
    for event in graph.compile().stream({"messages": [("user", "2+2")]}, stream_mode="values"):
        note(event["messages"][-1].pretty_repr())


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
