"""The graph that `serving.py` puts behind servers: three steps; the first may send for a while."""

from __future__ import annotations

import asyncio
import operator
import os
from typing import Annotated, Any

from typing_extensions import TypedDict

if os.environ.get("SERVED_BY") == "peer":
    from langgraph.config import get_stream_writer
    from langgraph.graph import START, StateGraph
else:
    from stategraph import START, StateGraph, get_stream_writer


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    ticks: int
    pause: float
    size: int


async def first(state: State) -> Any:
    write = get_stream_writer()
    for number in range(state.get("ticks", 0)):
        write({"tick": number, "text": "x" * state.get("size", 0)})
        await asyncio.sleep(state.get("pause", 1.0))
    return {"log": ["a"]}


async def second(state: State) -> Any:
    return {"log": ["b"]}


async def third(state: State) -> Any:
    return {"log": ["c"]}


graph = StateGraph(State)
graph.add_node("a", first)
graph.add_node("b", second)
graph.add_node("c", third)
graph.add_edge(START, "a")
graph.add_edge("a", "b")
graph.add_edge("b", "c")
flow = graph.compile()
