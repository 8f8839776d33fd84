"""schedule="ready": several calls of one thread with durability="exit"."""

from __future__ import annotations

from typing import Literal

import pytest
from kit.drive import each_schedule
from kit.graphs import CONFIG, EMPTY
from kit.ready_graphs import ask, build, ends_in, ready

from stategraph import Command, InMemorySaver, Send, interrupt, task

EXIT = {"durability": "exit"}


class CutOff(BaseException):
    """As a cancellation."""


@pytest.mark.parametrize("durability", ["sync", "exit"])
@each_schedule
def test_tasks_started_by_a_fork_start_again_from_its_config(drive, schedule, durability):
    thread = drive.on(build("S>a>ask", nodes={"ask": ask}).compile(InMemorySaver(), schedule=schedule))
    thread.invoke(EMPTY)
    (stop,) = [each.config for each in thread.history() if each.next == ("ask",)]
    for forks in (1, 2):
        thread.invoke(None, stop, durability=durability)
        newest = thread.state
        found = [each for each in thread.history() if each.metadata["source"] == "fork"]
        assert (len(found), newest.metadata["source"], len(newest.interrupts)) == (forks, "fork", 1)
        stop = newest.config


def test_calls_do_not_carry_over_finished_tasks(drive):
    """Each call answers the only question, and another task asks the next one."""
    saver = InMemorySaver()
    thread = drive.on(ready("S>a>b>a", nodes={"a": ask}, saver=saver))
    thread.invoke(EMPTY, **EXIT)
    stored = []
    for _ in range(4):
        thread.resume("!", **EXIT)
        found = saver.get_tuple(CONFIG)
        stored.append((len(found.pending_writes), len(found.metadata["stategraph_continues"])))
    assert stored == [stored[0]] * 4


def fail_when_asked(state):
    raise ValueError(interrupt("?"))


def go_back(state) -> Command[Literal["b"]]:
    return Command(goto="b")


def race(state):
    return [Send("a", {}, race="r"), Send("a", {}, race="r")]


@pytest.mark.parametrize("ends", ["by itself", "with a handler", "in a race"])
def test_calls_carry_over_only_unfinished_tasks(drive, ends):
    """Another question stays open."""
    saver = InMemorySaver()
    graph = build("S>q S>b", nodes={"q": ask})
    if ends == "in a race":
        graph.add_node("a", ask).add_conditional_edges("b", race, ["a"]).add_edge("a", "b")
    elif ends == "with a handler":
        graph.add_node("a", fail_when_asked, error_handler=go_back).add_edge("b", "a")
    else:
        graph.add_node("a", ask).add_edge("b", "a").add_edge("a", "b")
    thread = drive.on(ready(graph, saver=saver))
    thread.invoke(EMPTY, **EXIT)
    stored = []
    for _ in range(4):
        asked = [each.interrupts[0].id for each in thread.state.tasks if each.name == "a"]
        thread.resume({asked[0]: "!"}, **EXIT)
        stored.append({task_id for task_id, *_ in saver.get_tuple(CONFIG).pending_writes})
    assert [len(ids) for ids in stored] == [len(stored[0])] * 4


def test_calls_of_a_cancelled_task_are_carried_over(drive):
    """It has left no record of its own by which one could tell that it goes on."""
    called = []

    @task
    def call():
        called.append(1)
        return "called"

    def long(state):
        found = call().result()
        if cut:
            raise cut.pop()
        return {"log": [found + interrupt("?")]}

    cut = [CutOff()]
    thread = drive.on(ready("S>a>b>c S>long", nodes={"long": long}))
    with ends_in("a", "long", "b", "c"):
        with pytest.raises(CutOff):
            thread.invoke(EMPTY)
        thread.invoke(None, **EXIT)
    assert thread.resume("!", **EXIT)["log"] == ["a", "b", "c", "called!"]
    assert called == [1]


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_graph_inside_outlives_calls_that_answer_others(drive, calls):
    """What it has stored names the checkpoint of the first call, in which it was not stored yet."""
    ran, saver = [], InMemorySaver()
    nested = build("S>first>t", nodes={"first": lambda state: ran.append(1), "t": ask}).compile()
    thread = drive.on(ready("S>sub S>a>b>a", nodes={"sub": nested, "a": ask}, saver=saver))
    thread.invoke(EMPTY, **EXIT)

    def answer(node):
        (asked,) = [each.interrupts[0].id for each in thread.state.tasks if each.name == node]
        return thread.resume({asked: node}, **EXIT)

    for _ in range(calls):
        answer("a")
    drive.call(saver, "prune", ["t"])
    assert answer("sub")["log"].count("sub") == 1
    assert ran == [1]


@pytest.mark.parametrize("then", ["sync", "exit"])
@each_schedule
def test_an_answer_is_kept_if_its_task_was_cancelled_before_using_it(drive, schedule, then):
    """Another task has ended meanwhile, so the answer goes along to the checkpoint of the cancelled call."""

    def second(state):
        if cut:
            raise cut.pop()
        return {"log": [interrupt("second?")]}

    cut = []
    graph, saver = build("S>first S>second", nodes={"first": ask, "second": second}), InMemorySaver()
    thread = drive.on(ready(graph, saver=saver))
    thread.invoke(EMPTY, **EXIT)
    answers = {each.id: each.value for each in thread.state.interrupts}
    cut.append(CutOff())
    with ends_in("first", "second"), pytest.raises(CutOff):
        thread.resume(answers, **EXIT)
    assert thread.log == ["?"]
    assert drive.invoke(graph.compile(saver, schedule=schedule), None, CONFIG, durability=then)["log"] == ["?", "second?"]
