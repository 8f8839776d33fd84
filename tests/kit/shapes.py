"""A graph whose threads stand in 40 shapes when they wait: what an upgrade meets in the field."""

from __future__ import annotations

import operator
from datetime import timedelta
from typing import Annotated, Any, TypedDict

from kit.graphs import Log as Inner
from kit.graphs import chain_of
from stategraph import START, Send, StateGraph, interrupt

SHAPES = {"chain": 8, "join": 6, "sends": 6, "nested": 4, "memory": 4, "sleep": 4, "race": 4, "post": 4}
"""Kind → how many shapes of it there are."""
POSTED = "a post"


class State(TypedDict, total=False):
    """A log of versions and answers; the kind of the thread, and how far it goes."""

    log: Annotated[list[Any], operator.add]
    kind: str
    number: int


def each_shape():
    """The inputs."""
    return [{"log": [], "kind": kind, "number": number} for kind, count in SHAPES.items() for number in range(count)]


def shaped(version, schedule="supersteps"):
    """The graph. Each node adds its version to the log, and each question its answer."""

    def tell(_):
        return {"log": [version]}

    def asks(place, when=operator.eq):
        def run(state):
            answer = [interrupt("go?", key=f"q{place}")] if when(state.get("number", place), place) else []
            return {"log": [version, *answer]}

        return run

    def nap(state, runtime):
        runtime.sleep(timedelta(seconds=0.2 * (1 + state["number"])))
        return {"log": [version]}

    def choose(state):
        if state["kind"] in ("sends", "race"):
            more = {"race": "first"} if state["kind"] == "race" else {}
            return [Send(state["kind"], {"log": [], "number": n}, **more) for n in range(state["number"] + 1)]
        if state["kind"] == "memory":
            return [Send("memory", {"log": []}, key=f"k{n}") for n in range(state["number"] + 1)]
        return state["kind"]

    def run_inside(graph):
        return lambda state: {"log": graph.invoke({"number": state["number"], "log": []})["log"]}

    inner = StateGraph(State).add_sequence([(f"in{n}", asks(n)) for n in range(4)]).add_edge(START, "in0").compile()
    memory = chain_of(Inner, hear=lambda _: {"log": [version]}, ask=asks(0)).compile(checkpointer=True)
    builder = StateGraph(State).add_sequence([(f"step{n}", asks(n)) for n in range(8)])
    builder.add_node("chain", tell).add_edge("chain", "step0").add_node("last", asks(-1, lambda *_: True))
    builder.add_node("join", tell).add_node("joined", tell).add_edge("joined", "last")
    for place in range(6):
        builder.add_node(f"side{place}", asks(place, operator.ge)).add_edge("join", f"side{place}")
    builder.add_edge([f"side{n}" for n in range(6)], "joined")
    builder.add_node("sends", asks(0)).add_node("race", tell).add_node("sleep", nap).add_node("post", asks(0, lambda *_: True))
    builder.add_node("nested", run_inside(inner)).add_node("memory", memory)
    for kind in ("sends", "race", "sleep", "nested", "memory", "post"):
        builder.add_edge(kind, "last")
    builder.add_conditional_edges(START, choose, [*SHAPES])
    return builder.compile(name=f"shapes {schedule}", version=version, schedule=schedule, inbox=True)
