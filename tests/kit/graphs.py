"""States, the config and the builder of most small graphs of tests."""

from __future__ import annotations

import operator
from itertools import pairwise
from typing import Annotated, TypedDict

from stategraph import END, START, StateGraph

CONFIG = {"configurable": {"thread_id": "t"}}


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


EMPTY = {"log": []}
"""The input of a graph with a log that has nothing in it."""


class Count(TypedDict):
    n: int


def chain_of(state, /, **nodes):
    """Return the builder of a graph whose nodes run one after the other."""
    return StateGraph(state).add_sequence([*nodes.items()]).add_edge(START, next(iter(nodes)))


def graph_of(state, edges, /, **nodes):
    """Return the builder of a graph with these edges: `"S>a>b S>c [b,c]>d>E"` has a join, S is START and E is END."""
    builder = StateGraph(state)
    for name, body in nodes.items():
        builder.add_node(name, body)
    for start, end in (pair for path in edges.split() for pair in pairwise(path.split(">"))):
        starts = [_ENDS.get(name, name) for name in start.strip("[]").split(",")]
        builder.add_edge(starts if start[0] == "[" else starts[0], _ENDS.get(end, end))
    return builder


_ENDS = {"S": START, "E": END}


def thread_config(thread="t", **more):
    """Return the config of a thread, with more of it, as `checkpoint_ns=`."""
    return {"configurable": {"thread_id": thread, **more}}
