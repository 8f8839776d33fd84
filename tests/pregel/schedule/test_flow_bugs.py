"""Bugs planted into joins and deferred nodes on purpose: the tables of `test_flow` notice each of them."""

import warnings

import pytest
from kit.flow_cases import CASES, Case, compiled
from kit.flow_graphs import show
from kit.graphs import EMPTY
from kit.planted import is_misfit

import stategraph.pregel.program.flow as flow
import stategraph.pregel.schedule.joins as joins
from stategraph import Command, InMemorySaver
from stategraph.channels.base import MISSING
from stategraph.channels.named_barrier import WaveBarrier
from stategraph.pregel.schedule.joins import BarrierTransition
from stategraph.pregel.schedule.machine import Machine

pytestmark = pytest.mark.trial

# With some of the bugs a loop would never end.
CONFIG = {"configurable": {"thread_id": "t"}, "recursion_limit": 40}
MORE = {
    "circle": Case("S>a S>b [a,q]reachable>p [b,p]reachable>q", "a b / p(a) q(b)"),
    "through": Case("S>a S>x>d [a,b]reachable>d r:d=b", "a x / d(a)"),
    "loop": Case("S>a S>x [a,b]reachable>d r:d=x x~b", "a x / b / d(a+b) / x / b / d(b)", {"x": ["b"], "d": ["x", []]}),
}


def steps(case, *, stopping):
    """The supersteps of a graph, straight or with a stop before each of them."""
    saver = InMemorySaver()
    given = EMPTY
    for _ in range(30):
        app = compiled(case, saver=saver, interrupt_before="*" if stopping else [])
        result = app.invoke(given, CONFIG)
        state = app.get_state(CONFIG)
        if not state.next:
            break
        given = Command(resume="yes") if any(task.interrupts for task in state.tasks) else None
    return show(result["log"])


def input_amid_a_wave():
    """A run in which only a comes, then one in which only b comes."""
    saver = InMemorySaver()
    compiled("S>a r:a=b [a,b]2>d", saver=saver).invoke(EMPTY, CONFIG)
    return show(compiled("S>b r:b=a [a,b]2>d", saver=saver).invoke(EMPTY, CONFIG)["log"])


def edit_beside_late_work():
    saver = InMemorySaver()
    app = compiled("S>a1>a S>b1>b [a,b]any>d", saver=saver, interrupt_before=["a"])
    app.invoke(EMPTY, CONFIG)
    app.update_state(CONFIG, EMPTY, as_node="a")
    return show(compiled("S>a1>a S>b1>b [a,b]any>d", saver=saver).invoke(None, CONFIG)["log"])


def symptoms():
    """What does not come out as the tables say, found as one asks for more."""
    for name, case in {**CASES, **MORE}.items():
        for stopping in (False, True):
            try:
                if steps(case, stopping=stopping) != case.steps:
                    yield f"{name}{' stopped' if stopping else ''}"
            except Exception as error:
                if not is_misfit(error):
                    yield f"{name}: {type(error).__name__}"
    if input_amid_a_wave() != "a / b":
        yield "input"
    if edit_beside_late_work() != "a1 b1 / b d(a)":
        yield "edit"


def late_is_not_stored(self):
    return (sorted(self.seen), self.opened, []) if self.seen else MISSING


def open_is_not_stored(self):
    return (sorted(self.seen), False, sorted(self.late, key=str)) if self.seen or self.late else MISSING


def ignores_deferred(machine, fresh, join, late):
    feeders = machine.program.flow.feeders[join.channel]
    return {
        node
        for name in joins.find_pending(machine, fresh)
        if name not in late and joins.find_channel(machine, fresh, name).is_available()
        for node in machine.program.triggers[name]
        if node in feeders
    }


def edits_keep_nothing(self, *args, keep=None, **about):
    if keep is None:
        update_joins(self, *args, **about)
    else:
        self._update(*args)


update_joins = Machine._update_joins
real_walk = flow.walk

BUGS = {
    "late is not stored": (WaveBarrier, "checkpoint", late_is_not_stored),
    "an open join is not stored": (WaveBarrier, "checkpoint", open_is_not_stored),
    "late arrivals count": (BarrierTransition, "drop_late", lambda self, writes: writes),
    "what late work leads to is not late": (BarrierTransition, "_find_late", lambda self, *_: frozenset()),
    "no Send is ever late": (BarrierTransition, "_find_late_sends", lambda self, *_: set()),
    "who is late by one trigger is late": (BarrierTransition, "_is_late", lambda self, task, late: bool(late)),
    "a wave never ends": (WaveBarrier, "consume", lambda self: False),
    "reachable waits for nobody": (joins, "find_blockers", lambda *_: set()),
    "deferred nodes and joins are not under way": (joins, "find_blockers", ignores_deferred),
    "a way through the target counts": (flow, "walk", lambda border, after, without=None: real_walk(border, after)),
    "circles stay closed": (joins, "_open_circles", lambda *_: None),
    "deferred nodes wake all at once": (flow, "find_first", lambda names, leads: list(names)),
    "new input keeps waves": (joins, "restart", lambda *_: None),
    "an edit is no part of the flow": (Machine, "_update_joins", edits_keep_nothing),
}


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_without_a_bug_there_are_no_symptoms():
    assert [*symptoms()] == []


@pytest.mark.parametrize("name", BUGS)
def test_every_planted_bug_is_noticed(monkeypatch, name):
    monkeypatch.setattr(*BUGS[name])
    assert next(symptoms(), None)
