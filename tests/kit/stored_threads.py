"""Stored threads for tests of reports, traces and timelines: run by real graphs with a real saver, without waiting.

Each function gives the graph and the config of its thread. Only what several tests share lives here.
"""

from __future__ import annotations

from operator import add
from typing import Annotated, Any, TypedDict

from kit.graphs import CONFIG, EMPTY, chain_of, graph_of
from stategraph import (
    END,
    START,
    Command,
    InMemorySaver,
    RetryPolicy,
    Send,
    StateGraph,
    interrupt,
    task,
)
from stategraph.graph.compile import CompiledStateGraph

StoredThread = tuple[CompiledStateGraph, Any]
AT_ONCE = RetryPolicy(initial_interval=0.0, jitter=False)


class Log(TypedDict, total=False):
    log: Annotated[list[Any], add]
    count: int


def note(text):
    return lambda state: {"log": [text]}


def compiled(graph: StateGraph[Any], name, **kwargs):
    return graph.compile(InMemorySaver(), name=name, **kwargs)


def map_reduce(pages=9, failing=(3, 3, 7)):
    """A fan-out whose tasks fail and are tried again, and a reduce."""
    left = list(failing)

    def fetch(state):
        if state["page"] in left:
            left.remove(state["page"])
            raise ConnectionError("lost")
        return {"log": [f"page {state['page']}"]}

    graph = StateGraph(Log)
    graph.add_node("plan", note("plan"))
    graph.add_node("fetch", fetch, retry_policy=AT_ONCE)
    graph.add_node("gather", lambda state: {"count": len(state["log"])})
    graph.add_edge(START, "plan").add_edge("fetch", "gather").add_edge("gather", END)
    graph.add_conditional_edges("plan", lambda state: [Send("fetch", {"page": n}) for n in range(pages)], ["fetch"])
    app = compiled(graph, "map and reduce")
    app.invoke(EMPTY, CONFIG)
    return app, CONFIG


def asking():
    graph = graph_of(
        Log, "S>draft>ask draft>check [ask,check]>publish",
        draft=note("draft"),
        ask=lambda state: {"log": [interrupt({"publish?": state["log"][-1]})]},
        check=note("checked"),
        publish=note("published"),
    )
    return compiled(graph, "approval")


def asked(answer=None):
    """A question beside another task; with an answer, the run after it as well."""
    app = asking()
    app.invoke(EMPTY, CONFIG)
    if answer is not None:
        app.invoke(Command(resume=answer), CONFIG)
    return app, CONFIG


def failed():
    """Two tasks side by side: one is done, the other fails for good."""

    def bad(state):
        error = ValueError("</script><b>boom</b>")
        error.add_note("a note")
        raise error from KeyError("the cause")

    graph = graph_of(Log, "S>aside S>bad [aside,bad]>last", aside=note("aside"), bad=bad, last=note("last"))
    app = compiled(graph, "failing")
    try:
        app.invoke(EMPTY, CONFIG)
    except ValueError:
        pass
    return app, CONFIG


def renamed(node, after="pay"):
    """A thread that stopped in the node `charge`, with the same graph in which this node has another name."""
    saver = InMemorySaver()

    def build(name):
        return chain_of(Log, a=note("a")).add_node(name, node).add_edge("a", name).compile(saver)

    try:
        build("charge").invoke(EMPTY, CONFIG)
    except ValueError:
        pass
    return build(after), CONFIG


def declined(state):
    raise ValueError("card declined")


def confirmed(state):
    return {"log": [interrupt("charge it?")]}


def rescue(state):
    return {"log": ["rescued"]}


def rescued():
    """A node failed, and its error handler took over."""
    graph = StateGraph(Log).add_node("risky", declined, error_handler=rescue).add_edge(START, "risky")
    app = compiled(graph, "rescued")
    app.invoke(EMPTY, CONFIG)
    return app, CONFIG


def looping(fails, runs):
    """One node that runs so many times, its task being fanned out; so many of them fail for good, in the first step."""

    def work(state):
        if state.get("count", 0) < fails:
            raise ValueError("lost")
        return {"log": ["ok"]}

    graph = StateGraph(Log).add_node("work", work)
    graph.add_conditional_edges(START, lambda state: [Send("work", {"count": n}) for n in range(runs)], ["work"])
    app = compiled(graph, "looping")
    try:
        app.invoke(EMPTY, CONFIG)
    except ValueError:
        pass
    return app, CONFIG


def forked():
    """Answered one way, then changed before the question and answered another way."""
    app, thread = asked("yes")
    before = next(s for s in app.get_state_history(thread) if "ask" in s.next)
    fork = app.update_state(before.config, {"log": ["a new draft"]}, as_node="draft")
    app.invoke(None, fork)
    app.invoke(Command(resume="no"), thread)
    return app, thread


def nested():
    """A graph as a node, with a graph as a node in it, which asks and is answered."""
    deep = chain_of(Log, ask=lambda state: {"log": [interrupt("deep?")]})
    inner = chain_of(Log, first=note("first"), deep=deep.compile())
    app = compiled(chain_of(Log, outer=note("outer"), holder=inner.compile()), "nested")
    app.invoke(EMPTY, CONFIG)
    app.invoke(Command(resume="yes"), CONFIG)
    return app, CONFIG


@task
def fetch(page):
    if page == 3:
        raise ValueError(f"page {page} is missing")
    return f"page {page}"


def calling():
    """A node that calls functions with @task, the last of which fails."""

    def read(state):
        return {"log": [fetch(page).result() for page in range(4)]}

    app = compiled(graph_of(Log, "S>read", read=read), "calling")
    try:
        app.invoke({"log": []}, CONFIG)
    except ValueError:
        pass
    return app, CONFIG


def long(steps=2000, growing=True):
    """A loop, whose list grows by one in each step."""
    app = compiled(
        chain_of(
            Log, tick=lambda s: {"log": [f"tick {s['count']}"] if growing else [], "count": s["count"] + 1}
        ).add_conditional_edges("tick", lambda state: "tick" if state["count"] < steps else END, ["tick", END]),
        "loop",
    )
    app.invoke({"count": 0}, CONFIG)
    return app, CONFIG


def questions(app: CompiledStateGraph):
    return app.get_state(CONFIG).interrupts


class Timeless(InMemorySaver):
    """What another saver holds, without times."""

    def __init__(self, other):
        super().__init__()
        self.other = other

    def get_tuple(self, config):
        found = self.other.get_tuple(config)
        return found and found._replace(spans={})

    def list(self, config, **kwargs):
        return (found._replace(spans={}) for found in self.other.list(config, **kwargs))
