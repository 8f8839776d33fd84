"""A thread that alternates between schedule="ready" and supersteps."""

from itertools import product

import pytest
from kit.drive import each_case
from kit.graphs import CONFIG, EMPTY
from kit.ready_graphs import build, by_order, ends_by

from stategraph import Command, InMemorySaver, Send, interrupt, task

R, S = "ready", "supersteps"


def ask(*questions):
    return lambda state: {"log": ["".join(interrupt(each) for each in questions)]}


def answer_all(drive, make, schedules, **options):
    """Call the graph with one schedule after the other, with an answer each time: what it asks, and the last state."""
    asked = []
    given = EMPTY
    for number, schedule in enumerate(schedules):
        thread = drive.on(make(schedule))
        thread.invoke(given, **options)
        state = thread.state
        asked += [question.value for question in state.interrupts]
        given = Command(resume=str(number))
    return asked, state


@pytest.mark.parametrize("durability", ["sync", "exit"])
@each_case("schedules", product((R, S), repeat=4))
def test_each_question_of_a_task_is_asked_once(drive, durability, schedules):
    saver = InMemorySaver()
    graph = build("S>q S>a>b", nodes={"q": ask("q1?", "q2?", "q3?")})
    asked, state = answer_all(drive, lambda schedule: graph.compile(saver, schedule=schedule), schedules, durability=durability)
    assert (asked, state.next) == (["q1?", "q2?", "q3?"], ())
    assert sorted(state.values["log"]) == ["012", "a", "b"]


@pytest.mark.trial
@pytest.mark.parametrize("memory", [None, True])
@each_case("schedules, inner", product(product((R, S), repeat=4), (R, S)))
def test_a_nested_graph_resumes_where_it_stopped(drive, memory, schedules, inner):
    saver, paid = InMemorySaver(), []
    nodes = {"pay": lambda state: paid.append(1), "q": ask("q1?"), "r": ask("q2?"), "s": ask("q3?")}

    def make(schedule):
        sub = build("S>pay>q>r>s", nodes=nodes).compile(memory, schedule=inner)  # type: ignore[call-overload]
        return build("S>sub S>a>b", nodes={"sub": sub}).compile(saver, schedule=schedule)

    asked, state = answer_all(drive, make, schedules)
    assert (asked, state.next, paid) == (["q1?", "q2?", "q3?"], (), [1])
    assert sorted(state.values["log"]) == ["0", "1", "2", "a", "b"]


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("memory", [None, True])
@pytest.mark.parametrize("last", [R, S])
def test_a_nested_graph_resumes_from_supersteps_though_the_head_has_moved_since(drive, memory, pruned, last):
    saver, paid = InMemorySaver(), []
    nodes = {"pay": lambda state: paid.append(1), "q": ask("q?")}

    def app(schedule):
        sub = build("S>pay>q", nodes=nodes).compile(memory)
        return build("S>sub S>a>b S>c", nodes={"sub": sub, "c": ask("c?")}).compile(saver, schedule=schedule)

    with ends_by(by_order("a", "b", "c", "sub")):
        drive.stream(app(R), EMPTY, CONFIG, stream_mode="updates", take=1)
    drive.invoke(app(S), None, CONFIG)
    drive.invoke(app(R), None, CONFIG)  # what has ended there is applied
    if pruned:
        drive.call(saver, "prune", ["t"])
    assert paid == [1]
    answers = {each.id: each.value for each in drive.get_state(app(last), CONFIG).interrupts}
    result = drive.invoke(app(last), Command(resume=answers), CONFIG)
    assert {"a", "b", "c?", "q?"} <= {*result["log"]} and paid == [1]


def test_a_call_that_failed_in_supersteps_and_returned_since_is_not_made_again(drive):
    saver, made = InMemorySaver(), []

    @task
    def call():
        made.append(1)
        if len(made) == 1:
            raise ConnectionError
        return "called "

    graph = build("S>a S>x>y", nodes={"x": lambda state: {"log": [call().result() + interrupt("?")]}})
    ready, steps = graph.compile(saver, schedule=R), graph.compile(saver)
    with ends_by(by_order("a", "x")):
        drive.stream(ready, EMPTY, CONFIG, stream_mode="updates", take=1)
    with pytest.raises(ConnectionError):
        drive.invoke(steps, None, CONFIG)
    for app in (ready, ready, steps, ready):
        drive.invoke(app, None, CONFIG)
    assert drive.invoke(ready, Command(resume="!"), CONFIG)["log"] == ["a", "called !", "y"]
    assert len(made) == 2


@each_case("schedules", product((R, S), repeat=3))
def test_sends_of_commands_are_the_same_tasks_in_both(drive, schedules):
    """Beside a Send that is under way: each runs once, and has its own result and question."""
    ran = []

    def m(state):
        ran.append(state["n"])
        answer = interrupt(state["n"]) if state["n"] == "asks" else ""
        return {"log": [state["n"] + answer]}

    graph = build("S>x r:S=w|m", {"S": lambda _: [Send("w", {})]}, {"w": lambda _: {"log": [interrupt("w")]}, "m": m})
    graph.add_conditional_edges("x", lambda _: [], ["m"])
    saver = InMemorySaver()
    drive.invoke(graph.compile(saver, schedule="ready"), EMPTY, CONFIG)
    for schedule, name in zip(schedules, ("one", "asks"), strict=False):
        drive.invoke(graph.compile(saver, schedule=schedule), Command(goto=Send("m", {"n": name})), CONFIG)
    thread = drive.on(graph.compile(saver, schedule=schedules[-1]))
    questions = {question.value: question.id for question in thread.state.interrupts}
    assert sorted(questions) == ["asks", "w"]
    result = thread.resume({questions["asks"]: "!", questions["w"]: "w!"})
    assert sorted(result["log"]) == ["asks!", "one", "w!", "x"] and ran == ["one", "asks", "asks"]
