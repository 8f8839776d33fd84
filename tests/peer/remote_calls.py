"""Calls of the peer's `RemoteGraph`, unchanged, on a server of ours whose address is the first argument. In a process of
its own, where `langgraph` is the peer's. Prints one line of JSON: what each call has brought."""

import asyncio
import json
import sys

from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import Command

url = sys.argv[1]
found = {}
hi = {"messages": [("human", "hi")]}


def texts(state):
    return [each["content"] for each in state["messages"]]


chat = RemoteGraph("chat", url=url)
found["called"] = texts(chat.invoke(hi))
found["streamed"] = [[*each] for each in chat.stream(hi, stream_mode="updates")]
found["drawn"] = [*chat.get_graph().nodes]

asks = RemoteGraph("asks", url=url)
config = {"configurable": {"thread_id": asks.sync_client.threads.create()["thread_id"]}}
found["asked"] = asks.invoke(hi, config)["__interrupt__"][0]["value"]
found["next"] = asks.get_state(config).next
found["answered"] = texts(asks.invoke(Command(resume="yes"), config))
asks.update_state(config, {"messages": [("human", "more")]}, as_node="confirm")
found["edited"] = texts(asks.get_state(config).values)
found["first"] = [*asks.get_state_history(config)][-1].next

outer = StateGraph(MessagesState)
outer.add_node("far", chat)
outer.add_edge(START, "far")
found["inside"] = [message.content for message in outer.compile().invoke(hi)["messages"]]


async def pieces():
    far = RemoteGraph("chat", url=url)
    return [message["content"] async for message, _ in far.astream(hi, stream_mode="messages")]


found["tokens"] = asyncio.run(pieces())
print(json.dumps(found))
