"""States, the config and the builder of most small graphs of tests."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from stategraph import START, StateGraph

CONFIG = {"configurable": {"thread_id": "t"}}


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class Count(TypedDict):
    n: int


def chain_of(state, /, **nodes) -> StateGraph[Any, Any, Any, Any]:
    """Return the builder of a graph whose nodes run one after the other."""
    return StateGraph(state).add_sequence([*nodes.items()]).add_edge(START, next(iter(nodes)))


def thread_config(thread: str):
    """Return the config of a thread."""
    return {"configurable": {"thread_id": thread}}
