"""`get_state().next` is what the next call runs, wherever a process died."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from kit import cluster
from kit.crash_points import Death, Died, dying
from kit.drive import each_schedule
from kit.graphs import EMPTY, Log, thread_config

from stategraph import START, Send, StateGraph

postgres = cluster.emptied
WAIT = 20


class Bodies:
    """Makes nodes that note that they ran. One that was sent "hang" ends when it is let go, with "fail" it raises."""

    def __init__(self):
        self.ran = []
        self.release = threading.Event()

    def make(self, name, *, obeys=True):
        def run(state):
            self.ran.append(name)
            what = state.get("what") if obeys else None
            assert what != "hang" or self.release.wait(WAIT)
            if what == "fail":
                raise ValueError(name)
            return {"log": [name]}

        return run

    def graph(self, *names):
        builder = StateGraph(Log)
        for name in names:
            builder.add_node(name, self.make(name))
        return builder


@pytest.fixture
def bodies():
    made = Bodies()
    yield made
    made.release.set()


def race(*acts) -> Callable[[Any], list[Send]]:
    return lambda state: [Send("run", {"what": act}, race="r") for act in acts]


def alone(bodies: Bodies):
    return bodies.graph("run").add_conditional_edges(START, race("win", "hang"), ["run"])


def followed(bodies: Bodies):
    builder = bodies.graph("run", "after", "last").add_conditional_edges(START, race("hang", "win"), ["run"])
    return builder.add_edge("run", "after").add_edge("after", "last")


def handled(bodies: Bodies):
    """The handler of an error wins."""
    builder = bodies.graph("after")
    builder.add_node("run", bodies.make("run"), error_handler=bodies.make("mended", obeys=False))
    builder.add_conditional_edges(START, race("fail", "fail"), ["run"])
    return builder.add_edge("run", "after")


def beside_others(bodies: Bodies):
    """Two races, and a node that joins with them."""
    builder = bodies.graph("first", "run", "other", "after", "last")
    builder.add_conditional_edges("first", race("win", "hang"), ["run"]).add_edge(START, "first").add_edge("first", "other")
    builder.add_edge("run", "after").add_edge(["other", "after"], "last")
    return builder


def inside(bodies: Bodies):
    nested = followed(bodies).compile()
    return bodies.graph("end").add_node("nested", nested).add_edge(START, "nested").add_edge("nested", "end")


def without_races(bodies: Bodies):
    builder = bodies.graph("a", "b", "c", "after")
    builder.add_edge(START, "a").add_edge(START, "b").add_edge("b", "c")
    return builder.add_edge(["a", "c"], "after")


@pytest.mark.trial
@pytest.mark.parametrize("shape", [alone, followed, handled, beside_others, inside, without_races])
@each_schedule
def test_next_names_what_the_next_call_runs_wherever_a_process_dies(drive, saver, bodies, schedule, shape):
    app = shape(bodies).compile(saver, schedule=schedule)
    for at in count(1):
        config = thread_config(f"{at}")
        death = Death(at, meanwhile=bodies.release.set)
        bodies.release.clear()
        with dying(saver, death):
            try:
                drive.invoke(app, EMPTY, config)
            except Died:
                pass
        if not death.dead:
            break
        before = drive.get_state(app, config)
        if before.created_at is None:
            continue
        bodies.ran.clear()
        drive.invoke(app, None, config)
        after = drive.get_state(app, config)
        where = f"died at storing call {at}: next was {before.next}, then {bodies.ran} ran"
        named = [name for name in before.next if name in shape(Bodies()).nodes and name != "nested"]
        assert after.next == (), where
        assert (before.next == ()) == (before.config == after.config), where
        if bodies.ran:  # else the call only ended a superstep
            assert {*named} <= {*bodies.ran}, where
            assert before.next, where
    assert at > 2
