"""Cases of states that are contracts: what `validate=` costs where it is off, at each place where
it is on, and what a pydantic state costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter, process_time
from typing import Any

import sizes
from cases import Engine, chain, limit, loop
from timing import best, more


def stepping(e: Engine, **options: Any) -> Callable[[], Any]:
    """The supersteps of P1; options are the graph's."""
    e = e._replace(StateGraph=partial(e.StateGraph, **options))
    app = loop(e, sizes.STEPS).compile()
    config = limit(sizes.STEPS)
    return lambda: app.invoke({"n": 0}, config)


def in_turn(first: Callable[[], Any], second: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of processor time of the quickest round of both, which take turns: what is compared
    is less than a busy machine adds to either."""
    rounds: list[float] = []
    times: list[tuple[float, float]] = []
    began = perf_counter()
    while more(rounds, began):
        start = process_time()
        first()
        between = process_time()
        second()
        times.append((between - start, process_time() - between))
        rounds.append(sum(times[-1]))
    return min(a for a, _ in times), min(b for _, b in times)


def off(e: Engine) -> float:
    """A superstep with `validate=()` ÷ one of a graph that was not told."""
    plain, validating = in_turn(stepping(e), stepping(e, validate=()))
    return validating / plain


def added(e: Engine, place: str) -> float:
    """Seconds that validating there adds to a superstep of a node and a router."""
    plain, validating = in_turn(stepping(e), stepping(e, validate=place))
    return (validating - plain) / sizes.STEPS


def given(e: Engine) -> float:
    """Seconds that validating its input adds to a call."""

    def calling(**options: Any) -> Callable[[], Any]:
        app = chain(e._replace(StateGraph=partial(e.StateGraph, **options))).compile()
        return lambda: [app.invoke({"n": 0}) for _ in range(sizes.INVOKES)]

    plain, validating = in_turn(calling(), calling(validate="input"))
    return (validating - plain) / sizes.INVOKES


def model(e: Engine) -> float:
    """Seconds of a superstep whose state is a pydantic model."""
    from pydantic import BaseModel

    class Counted(BaseModel):
        n: int

    def route(state: Any) -> str:
        return "tick" if state.n < sizes.STEPS else "end"

    graph = e.StateGraph(Counted)
    graph.add_node("tick", lambda state: {"n": state.n + 1}).add_edge(e.START, "tick")
    graph.add_conditional_edges("tick", route, {"tick": "tick", "end": e.END})
    app, config = graph.compile(), limit(sizes.STEPS)
    return best(lambda: app.invoke({"n": 0}, config), sizes.STEPS)
