"""Bugs planted into budgets: the rules of `test_spending` notice each of them."""

from __future__ import annotations

from itertools import product
from threading import Event

import pytest
from kit.crash_points import Death, Died, dying
from kit.graphs import graph_of, thread_config

import stategraph.pregel.drivers.spending as spending
from stategraph import START, Budget, InMemorySaver, Send
from stategraph.graph import call_model
from stategraph.graph.messages import MessagesState
from stategraph.pregel.drivers.spending import Meter, Reservation

pytestmark = pytest.mark.trial
CONFIG = thread_config("1")


def reserved_in_memory_only(patch):
    """A reservation is not stored before its call."""
    patch.setattr(Reservation, "save", lambda self: [])


def records_not_counted(patch):
    """What is recorded beside the checkpoint is not added to the channel."""
    patch.setattr(Meter, "_find_recorded", lambda self, total: [])


def never_settled(patch):
    """What was reserved stays, and what was spent is added."""
    settle = Meter.settle
    patch.setattr(Meter, "settle", lambda self, reserved, amounts, node: settle(self, {}, amounts, node))


def counted_twice(patch):
    """Records are added to a total that counts them already."""
    found = spending._find_records
    patch.setattr(spending, "_find_records", lambda total, records: found({}, records))


class Model:
    calls = 0

    def invoke(self, messages):
        self.calls += 1
        return {"role": "assistant", "content": "x", "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


def faults():
    """Where what is spent is not what was called, for each death; at most one call more is reserved when a process dies."""
    found = []
    for schedule, stores_first, at in product(("supersteps", "ready"), (False, True), range(1, 20)):
        model, saver = Model(), InMemorySaver()

        def ask(state, model: Model = model):
            return {"messages": [call_model(model, []), call_model(model, [])]}

        graph = graph_of(MessagesState, "a>b", a=ask, b=ask)
        graph.add_conditional_edges(START, lambda state: [Send("a", {})] * 2, ["a"])
        app = graph.compile(saver, budget=Budget(calls=100), schedule=schedule)
        with dying(saver, Death(at, stores_first=stores_first)):
            try:
                app.invoke({"messages": []}, CONFIG)
            except Died:
                pass
        if app.get_state(CONFIG).next:
            app.invoke(None, CONFIG)
        spent = app.get_spent(CONFIG)
        # Two tasks run side by side: each may have reserved a call when the process died.
        if not model.calls <= spent.get("calls", 0) <= model.calls + 2:
            found.append(f"{schedule} {stores_first} {at}: {spent} {model.calls}")
    return found + find_twice_counted()


def find_twice_counted():
    """What is spent by a task that goes on, beside one whose end is stored, is counted once."""
    model, saver, asked, ended = Model(), InMemorySaver(), Event(), Event()

    def quick(state):
        assert asked.wait(10)
        return {"messages": [call_model(model, [])]}

    def slow(state):
        call_model(model, [])
        asked.set()
        assert ended.wait(10)
        raise ValueError

    graph = graph_of(MessagesState, "S>quick>after S>slow", quick=quick, slow=slow, after=lambda state: ended.set())
    app = graph.compile(saver, budget=Budget(calls=100), schedule="ready")
    with pytest.raises(ValueError):
        app.invoke({"messages": []}, CONFIG)
    spent = app.get_spent(CONFIG)["calls"]
    with pytest.raises(ValueError):
        app.invoke(None, CONFIG)
    again = app.get_spent(CONFIG)["calls"]
    return [] if (spent, again) == (2, 3) else [f"{spent} and {again} calls of a task that goes on"]


@pytest.mark.parametrize("bug", [None, reserved_in_memory_only, records_not_counted, never_settled, counted_twice])
def test_a_planted_bug_is_noticed(monkeypatch, bug):
    if bug is not None:
        bug(monkeypatch)
    found = faults()
    assert bool(found) == (bug is not None), found
