"""A task that failed after it was resumed takes another answer in place of the first one."""

from __future__ import annotations

from datetime import timedelta

import pytest
from kit.drive import each_schedule
from kit.graphs import chain_of, graph_of
from kit.pausing_graphs import Ran, State, asked, graph, ids, says

from stategraph import (
    Command,
    InMemorySaver,
    Runtime,
    UnknownInterruptError,
    entrypoint,
    interrupt,
    task,
)
from stategraph.checkpoint.sqlite import SqliteSaver


def ages(name, ran=None, count=1):
    """A node that asks for numbers, and fails with anything else."""

    def node(state):
        if ran is not None:
            ran.append(name)
        return {"log": [(name, *(int(interrupt(f"{name}{i or ''}?")) for i in range(count)))]}

    return node


def fail(thread, given):
    with pytest.raises(ValueError, match="invalid literal"):
        thread.invoke(given)


def test_a_new_answer_replaces_the_one_that_failed(drive):
    ran = Ran()
    thread = drive.on(graph("S>n>z", n=ages("n", ran)))
    thread.invoke({})
    fail(thread, Command(resume="ten"))
    fail(thread, None)  # the old one again
    fail(thread, Command(resume="nine"))
    assert thread.resume("8")["log"] == [("n", 8), "z"]
    assert ran == ["n"] * 5
    with pytest.raises(UnknownInterruptError):
        thread.resume("7")


def test_a_new_answer_may_name_its_interrupt(drive):
    thread = drive.on(graph("S>n", n=ages("n")))
    question = ids(thread.invoke({}))["n?"]
    fail(thread, Command(resume={question: "ten"}))
    assert thread.resume({question: "10"})["log"] == [("n", 10)]


def test_earlier_answers_are_kept(drive):
    thread = drive.on(graph("S>n", n=ages("n", count=2)))
    thread.invoke({})
    thread.resume("1")
    fail(thread, Command(resume="two"))
    assert thread.resume("2")["log"] == [("n", 1, 2)]


def test_results_and_interrupts_of_siblings_are_kept(drive):
    ran = Ran()
    thread = drive.on(graph("S>n S>m S>s", n=ages("n"), m=ages("m"), s=says("s", ran)))
    question = ids(thread.invoke({}))
    fail(thread, Command(resume={question["n?"]: "ten"}))
    # Without an id the answer is for the question that waits.
    fail(thread, Command(resume="5"))
    assert thread.resume("10")["log"] == [("m", 5), ("n", 10), "s"]
    assert ran == ["s"]


def test_with_two_failed_tasks_the_answer_must_name_its_interrupt(drive):
    thread = drive.on(graph("S>n S>m", n=ages("n"), m=ages("m")))
    question = ids(thread.invoke({}))
    fail(thread, Command(resume=dict.fromkeys(question.values(), "x")))
    with pytest.raises(UnknownInterruptError, match="answer by id"):
        thread.resume("1")
    again = Command(resume={question["n?"]: "1", question["m?"]: "2"})
    assert thread.invoke(again)["log"] == [("m", 2), ("n", 1)]


@pytest.mark.parametrize("how", ["node", "called", "alone", "task"])
def test_an_answer_is_replaced_in_a_nested_graph_or_a_call(how, drive):
    inner = graph("S>n", n=ages("n"), checkpointer=False if how == "alone" else None)

    @task
    def ask():
        return inner.invoke({})["log"]

    @entrypoint(checkpointer=InMemorySaver())
    def flow(_):
        return {"log": ask().result()}

    holder = inner if how == "node" else lambda state: {"log": inner.invoke({})["log"]}
    thread = drive.on(flow if how == "task" else graph("S>sub", sub=holder))
    assert asked(thread.invoke({"a": 1})) == ["n?"]
    fail(thread, Command(resume="ten"))
    assert thread.resume("10")["log"] == [("n", 10)]


@pytest.mark.parametrize("nested", [False, True])
def test_a_replaced_answer_survives_a_crash(nested, drive, tmp_path):
    """The new answer is stored before the node runs, and counts from then on."""
    dies = [True]

    def node(state):
        age = int(interrupt("age?"))
        if dies.pop() if dies else False:
            raise KeyboardInterrupt
        return {"log": [age]}

    with SqliteSaver.from_conn_string(tmp_path / "db") as saver:
        inner = chain_of(State, n=node).compile(checkpointer=None if nested else saver)
        thread = drive.on(graph("S>sub", sub=inner, checkpointer=saver) if nested else inner)
        thread.invoke({})
        fail(thread, Command(resume="ten"))
        with pytest.raises(KeyboardInterrupt):
            thread.resume("10")
        assert thread.invoke(None)["log"] == [10]


# -- after a failure --------------------------------------------------------------------------------------------------


@each_schedule
@pytest.mark.parametrize("durability", ["sync", "exit"])
@pytest.mark.parametrize("waits", [lambda runtime: interrupt("x?"), lambda runtime: runtime.sleep(timedelta(days=1))])
def test_a_task_that_failed_and_waits_now_waits_for_its_slot(drive, schedule, durability, waits):
    """Its failure is over: what another task is answered does not make it run."""
    ran = []

    def x(state, runtime: Runtime):
        ran.append(1)
        if len(ran) == 1:
            raise ConnectionError
        return waits(runtime)

    builder = graph_of(State, "S>a S>x", a=ages("a"), x=x)
    thread = drive.on(builder.compile(InMemorySaver(), schedule=schedule))
    with pytest.raises(ConnectionError):
        thread.invoke({}, durability=durability)
    thread.invoke(None, durability=durability)
    before = thread.state
    (a, x_now) = before.tasks
    assert (x_now.error, len(x_now.interrupts) or x_now.wake_at is not None) == (None, True)
    thread.resume({a.interrupts[0].id: "1"}, durability=durability)
    assert len(ran) == 2
    assert thread.state.wake_at == before.wake_at
