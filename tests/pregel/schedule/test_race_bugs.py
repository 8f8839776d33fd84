"""Bugs planted into races and memories by key on purpose: each of them shows."""

from __future__ import annotations

import operator
import threading
from typing import Annotated, TypedDict

import pytest
from kit.graphs import CONFIG, chain_of, thread_config
from kit.planted import is_misfit

import stategraph.pregel.run.run as run_module
from stategraph import START, Command, InMemorySaver, Send, StateGraph, interrupt
from stategraph.pregel.drivers.racing import Racer
from stategraph.pregel.run.progress import LoopProgress
from stategraph.pregel.schedule import races
from stategraph.pregel.schedule.races import Races

pytestmark = pytest.mark.trial


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    news: str


def run_races():
    """What comes out of: a race with a failure in it; two tasks that race under one name; a race whose superstep waits
    for an answer, and its resume."""
    release = threading.Event()
    answered = threading.Event()

    def run(item):
        name = item["name"]
        if name == "fail":
            raise ValueError(name)
        if name == "slow" and not answered.is_set():
            release.wait(0.3)
        return {"log": [f"{name}{interrupt('?') if name == 'ask' else ''}"]}

    def make(*sends, saver):
        builder = StateGraph(State).add_node("run", run)
        for number, group in enumerate(sends):
            builder.add_node(f"s{number}", lambda state, group=group: group, destinations=("run",))
            builder.add_edge(START, f"s{number}")
        return builder.compile(saver)

    def racer(name) -> Send:
        return Send("run", {"name": name}, race="r")

    one_at_a_time = {**CONFIG, "max_concurrency": 1}
    failing = make([racer("fail"), racer("win")], saver=InMemorySaver())
    first = failing.invoke({}, one_at_a_time)["log"]
    two = make([racer("a"), racer("b")], [racer("c"), racer("d")], saver=InMemorySaver())
    second = two.invoke({}, one_at_a_time)["log"]
    saver = InMemorySaver()
    waiting = make([racer("slow"), racer("win"), Send("run", {"name": "ask"})], saver=saver)
    waiting.invoke({}, CONFIG)
    answered.set()
    release.set()
    third = waiting.invoke(Command(resume="!"), CONFIG)["log"]
    left = [name for app in (failing, two, waiting) for name in app.get_state(CONFIG).next]
    return [*first, *second, *third, *left]


def run_memories():
    agent = chain_of(State, hear=lambda state: {"log": [state["news"]]})
    builder = StateGraph(State).add_node("agent", agent.compile(checkpointer=True))
    builder.add_conditional_edges(START, lambda state: [Send("agent", {"news": state["news"]}, key=state["news"][0])], ["agent"])
    app = builder.compile(InMemorySaver())
    for news in ("a1", "b1", "a2"):
        app.invoke({"news": news}, CONFIG)
    memory = thread_config(checkpoint_ns="agent:=a")
    return list(app.get_state(memory).values.get("log", ()))


def show():
    try:
        return run_races(), run_memories()
    except Exception as error:
        return RIGHT if is_misfit(error) else repr(error)


RIGHT = (["win", "a", "c", "win", "ask!"], ["a1", "a2"])


def test_without_a_bug_it_is_as_it_should_be():
    assert show() == RIGHT


def _a_failure_stops_the_race(patch):
    patch.setattr(Races, "note_failure", lambda self, task: True)


def _races_of_two_tasks_are_one(patch):
    patch.setattr(races, "race_of", lambda task: ("", (task.cause or task).send.race) if (task.cause or task).send and (task.cause or task).send.race else None)


def _a_win_is_not_known_again(patch):
    patch.setattr(races, "_has_won", lambda task, records: False)
    patch.setattr(races, "wins", lambda task: task.finished and not task.restored)


def _the_last_in_path_order_wins(patch):
    patch.setattr(races, "_has_won", lambda task, records: races.index_of(task) == 0)


def _losers_are_waited_for(patch):
    patch.setattr(Racer, "abandon", lambda self: None)
    patch.setattr(LoopProgress, "find_losers", lambda *given: ())


def _keys_are_ignored(patch):
    real = run_module.child_ns
    patch.setattr(run_module, "child_ns", lambda *args, key=None, **named: real(*args, **named))


BUGS = [
    _a_failure_stops_the_race, _races_of_two_tasks_are_one, _a_win_is_not_known_again,
    _the_last_in_path_order_wins, _losers_are_waited_for, _keys_are_ignored,
]  # fmt: skip


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__.strip("_"))
def test_a_planted_bug_is_noticed(plant, monkeypatch):
    plant(monkeypatch)
    assert show() != RIGHT
