"""An answer is applied once: of several runs that bring one, one claims it and the others are refused before any node
runs. A run delivered twice is one run.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from kit.drive import run_threads
from kit.graphs import CONFIG, EMPTY, thread_config
from kit.pausing_graphs import Ran, answer, asked, asks, fails, graph, says
from kit.savers import local_saver

from stategraph import (
    CheckpointConflictError,
    Command,
    UnknownInterruptError,
    interrupt,
)
from stategraph.pregel.run.ledger import FIRST, Ledger

saver = local_saver


class Body:
    """A node that asks, and then waits inside until it is let go."""

    def __init__(self):
        self.fired = 0
        self.inside, self.go_on = threading.Event(), threading.Event()

    def __call__(self, state):
        answer = interrupt("q?")
        self.fired += 1
        self.inside.set()
        assert self.go_on.wait(10)
        return {"log": [answer]}


def one(body, saver, **more):
    return graph("S>q>z", q=body, checkpointer=saver, **more)


def test_a_second_answer_is_refused_while_the_first_runs(drive, saver):
    body = Body()
    app = one(body, saver)
    thread = drive.on(app)
    thread.invoke(EMPTY)
    first = threading.Thread(target=lambda: app.invoke(Command(resume="first"), CONFIG))
    first.start()
    assert body.inside.wait(10)
    with pytest.raises(UnknownInterruptError, match="already has an answer"):
        thread.resume("second")
    body.go_on.set()
    first.join()
    assert body.fired == 1
    assert app.get_state(CONFIG).values["log"] == ["first", "z"]


def test_of_many_concurrent_answers_one_runs(saver):
    fired = []

    def body(state):
        answer = interrupt("q?")
        fired.append(answer)
        return {"log": [answer]}

    app = one(body, saver)
    for round in range(20):
        thread = thread_config(str(round))
        app.invoke(EMPTY, thread)
        start = threading.Barrier(4)
        told = []

        def resume(number, thread=thread, start=start, told=told):
            start.wait()
            try:
                app.invoke(Command(resume=number), thread)
                told.append("done")
            except (CheckpointConflictError, UnknownInterruptError) as error:
                told.append(type(error).__name__)

        fired.clear()
        threads = [threading.Thread(target=resume, args=(n,)) for n in range(4)]
        run_threads(threads)
        assert len(fired) == 1 and told.count("done") == 1
        assert app.get_state(thread).values["log"] == [fired[0], "z"]


class Killed(BaseException):
    """The process ends here; nothing that would be stored on the way out is."""


def dies_once():
    """A node that asks, and whose process dies once when it has the answer."""
    left = [Killed()]

    def body(state):
        answer = interrupt("q?")
        if left:
            raise left.pop()
        return {"log": [answer]}

    return body


def kill_in(app, call, config, monkeypatch):
    """A call in whose node the process dies: whatever it tries to store afterwards is lost."""
    record, claims = app.checkpointer.record, [True]

    def record_claim(*given):
        return record(*given) if claims and claims.pop() else None

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(app.checkpointer, "commit", lambda *_: None)
        patch.setattr(app.checkpointer, "record", record_claim)
        app.invoke(call, config)


def test_an_answer_survives_the_crash_of_the_process_that_claimed_it(drive, saver, monkeypatch):
    thread = drive.on(one(dies_once(), saver))
    thread.invoke(EMPTY)
    kill_in(thread.app, Command(resume="yes"), CONFIG, monkeypatch)
    with pytest.raises(UnknownInterruptError, match="invoke\\(None, config\\) goes on"):
        thread.resume("again")
    assert thread.invoke(None)["log"] == ["yes", "z"]


# -- the same run again -----------------------------------------------------------------------------------------


def run(id):
    return {**CONFIG, "run_id": id}


@pytest.mark.parametrize("run", [run, lambda id: {**CONFIG, "metadata": {"run_id": id}}], ids=["of its own", "in metadata"])
def test_a_run_delivered_twice_is_applied_once(drive, saver, run):
    ran = Ran()
    thread = drive.on(graph("S>x", x=says("x", ran), checkpointer=saver))
    first = thread.invoke({"log": ["a"]}, run("r1"))
    assert thread.invoke({"log": ["a"]}, run("r1")) == first
    thread.invoke({"log": ["b"]}, run("r2"))
    before = thread.history()
    assert thread.invoke({"log": ["a"]}, run("r1")) == first  # also after another
    assert thread.history() == before
    assert ran == ["x", "x"]


def test_an_answer_redelivered_after_a_crash_resumes_the_run(drive, saver, monkeypatch):
    app = one(dies_once(), saver)
    drive.invoke(app, EMPTY, run("r1"))
    kill_in(app, Command(resume="yes"), run("r2"), monkeypatch)
    assert drive.invoke(app, Command(resume="yes"), run("r2"))["log"] == ["yes", "z"]


@pytest.mark.parametrize(
    "words, nodes, log",
    [("S>q>z", {"q": asks("q", count=2)}, [("q", 1, 2), "z"]), ("S>a>b", {"a": asks("a"), "b": asks("b")}, [("a", 1), ("b", 2)])],
    ids=["of its node", "of the next node"],
)
def test_an_answer_delivered_twice_does_not_answer_the_next_question(drive, saver, words, nodes, log):
    app = graph(words, **nodes, checkpointer=saver)
    drive.invoke(app, EMPTY, run("r1"))
    paused = drive.invoke(app, Command(resume=1), run("r2"))
    assert drive.invoke(app, Command(resume=1), run("r2")) == paused
    assert drive.invoke(app, Command(resume=2), run("r3"))["log"] == log


def test_an_update_delivered_twice_is_applied_once(drive, saver):
    nodes = {"ask": asks("ask"), "y": asks("y")}
    thread = drive.on(graph("S>ask>x>y", **nodes, x=fails("x", 1), checkpointer=saver))
    thread.invoke(EMPTY)
    with pytest.raises(ValueError, match="x failed"):
        thread.resume(1)
    update = Command(update={"log": ["u"]})
    nodes_that_fail = graph("S>ask>x>y", **nodes, x=fails("x", 1), checkpointer=saver)
    with pytest.raises(ValueError, match="x failed"):
        drive.invoke(nodes_that_fail, update, run("r2"))
    for _ in range(3):  # no superstep of it is stored yet; one is; it is the newest again
        paused = thread.invoke(update, run("r2"))
        assert paused["log"] == [("ask", 1), "u", "x"]
        assert [question.value for question in paused["__interrupt__"]] == ["y?"]


def test_an_update_delivered_again_after_an_edit_is_applied_once(drive, saver):
    """The run that brought it had stored no superstep when the thread was edited."""
    app = graph("S>x>y", y=fails("y", 1), checkpointer=saver)
    with pytest.raises(ValueError, match="y failed"):
        drive.invoke(app, EMPTY, CONFIG)
    thread = drive.on(graph("S>x>y", y=fails("y", 1), checkpointer=saver))
    update = Command(update={"log": ["u"]})
    with pytest.raises(ValueError, match="y failed"):
        thread.invoke(update, run("r2"))
    thread.update({"log": ["edit"]}, as_node="x")
    done = thread.invoke(update, run("r2"))
    assert done["log"] == ["x", "u", "edit", "y"]


def test_update_state_is_applied_each_time_whatever_run_id_its_config_names(drive, saver):
    app = one(asks("q"), saver)
    drive.invoke(app, EMPTY, run("r1"))
    for edit in ("first", "second", "second"):  # a config is often kept and used again, for other values too
        drive.update_state(app, run("r2"), {"log": [edit]}, as_node="q")
    assert drive.get_state(app, CONFIG).values["log"] == ["first", "second", "second"]


def test_commands_without_a_run_id_are_all_applied(drive, saver):
    thread = drive.on(one(asks("q", count=2), saver))
    thread.invoke(EMPTY)
    thread.resume(1)
    assert thread.resume(1)["log"] == [("q", 1, 1), "z"]


def test_an_answer_of_a_failed_call_reaches_no_interrupt_of_a_nested_graph(drive, saver):
    broken = [False]

    def r(state):
        if broken[0]:
            raise ValueError("r failed")
        return {"log": [("r", interrupt("r?"))]}

    inner = graph("S>p", p=asks("p", count=2), checkpointer=None)
    thread = drive.on(graph("S>nested S>r", nested=inner, r=r, checkpointer=saver))
    paused = thread.invoke(EMPTY)
    broken[0] = True
    with pytest.raises(ValueError, match="r failed"):
        thread.invoke(answer(r="for r")(paused))
    broken[0] = False
    paused = thread.resume("for p")
    assert asked(paused) == ["p1?"]
    assert thread.resume("for p1")["log"] == [("p", "for p", "for p1"), ("r", "for r")]


TASK = SimpleNamespace(id="t")


class Brought(dict):
    """Answers that another thread reads, or takes, in the middle of what is done with them here."""

    meanwhile: Any = None

    def __iter__(self):  # so that a copy of this is made by `keys`
        return super().__iter__()

    def keys(self):
        if self.meanwhile is not None:
            self.meanwhile()
        return super().keys()

    def pop(self, *key):
        found = super().pop(*key)
        if self.meanwhile is not None:
            self.meanwhile()
        return found


def test_an_answer_that_is_taken_while_the_claim_is_read_is_in_the_claim():
    ledger = Ledger()
    ledger.bring({"q": "yes"})
    ledger.brought = Brought(ledger.brought)
    ledger.brought.meanwhile = lambda: ledger.take("q", by=TASK)
    assert ledger.claimed == {"q": "yes"}


def test_an_answer_without_an_id_is_in_the_claim_while_a_question_takes_it():
    ledger, claims = Ledger(), []
    ledger.bring({FIRST: "yes"})
    ledger.brought = Brought(ledger.brought)
    reader = threading.Thread(target=lambda: claims.append(ledger.claimed))

    def read():
        ledger.brought.meanwhile = None
        reader.start()
        reader.join(0.05)

    ledger.brought.meanwhile = read
    assert ledger.take("q", by=TASK) == ("yes",)
    reader.join()
    assert claims == [{"q": "yes"}]
