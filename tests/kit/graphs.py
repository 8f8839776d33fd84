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


def parallel_of(state, /, nodes, **policies):
    """Return the builder of a graph whose nodes run side by side, all with these policies."""
    builder = StateGraph(state)
    for name, node in nodes.items():
        builder.add_node(name, node, **policies).add_edge(START, name)
    return builder


def read_words(words):
    """Read the language in which tests write graphs: a list of edges `(start or starts, end[, wait])`, and what else is
    said of nodes.

    Words are separated by spaces. `S>a>b` are edges, from START on; `a>E` ends. `[a,b]>c` is a join, `[a,b]any>c` one that
    waits for `any`, a number or `reachable`. `a` alone is a node. `r:a=b|c` gives `a` a router that may go to `b` or `c`, `r:a=*` one that
    does not say where. `x~b|e` declares where the Commands of `x` may go; `defer:x` makes `x` deferred; `handle:a` gives
    `a` an error handler.
    """
    edges = []
    said = {"routers": {}, "destinations": {}, "deferred": set(), "handled": set(), "names": {}}

    def name(found):
        if found not in _ENDS:
            said["names"][found] = None
        return _ENDS.get(found, found)

    for word in words.split():
        if word.startswith("defer:"):
            said["deferred"].update(word[6:].split(","))
        elif word.startswith("handle:"):
            said["handled"].update(word[7:].split(","))
        elif word.startswith("r:"):
            source, ends = word[2:].split("=")
            said["routers"][name(source)] = None if ends == "*" else [name(end) for end in ends.split("|")]
        elif "~" in word:
            source, ends = word.split("~")
            said["destinations"][name(source)] = [name(end) for end in ends.split("|")]
        elif ">" not in word:
            name(word)
        else:
            for start, end in pairwise(word.split(">")):
                sources, bracket, kind = start.strip("[").partition("]")
                if bracket:
                    edges.append(([name(source) for source in sources.split(",")], name(end), int(kind) if kind.isdigit() else kind or "all"))
                else:
                    edges.append((name(start), name(end)))
    return edges, said


def graph_of(state, words, /, **nodes):
    """Return the builder of a graph of words: `"S>a>b S>c [b,c]>d>E"`, see `read_words`. A node without a body logs its
    name. It makes no routers and no handlers: add those to the builder."""
    builder = StateGraph(state)
    edges, said = read_words(words)
    assert not said["routers"] and not said["handled"], f"graph_of makes no routers and handlers: {words}"
    assert said["deferred"] <= {*nodes, *said["names"]}, f"a node that is not there is deferred: {words}"
    for name in {**nodes, **said["names"]}:
        body = nodes.get(name) or says(name)
        builder.add_node(name, body, defer=name in said["deferred"], destinations=said["destinations"].get(name))
    for edge in edges:
        builder.add_edge(*edge)
    return builder


def says(name, ran=None):
    """A node that logs its name."""

    def node(state):
        if ran is not None:
            ran.append(name)
        return {"log": [name]}

    return node


_ENDS = {"S": START, "E": END, "END": END}


def thread_config(thread="t", **more):
    """Return the config of a thread, with more of it, as `checkpoint_ns=`."""
    return {"configurable": {"thread_id": thread, **more}}
