"""A process that resumes an interrupt dies between any two storing calls: what the next call finds. The table "When
the process dies" of docs/explanation/architecture.md, row by row.
"""

import threading

import pytest
from kit.graphs import CONFIG, EMPTY
from kit.pausing_graphs import Ran, graph

from stategraph import Command, UnknownInterruptError, interrupt
from stategraph.checkpoint.sqlite import SqliteSaver


class Died(Exception):
    """Nothing of this process is stored any more."""


class Mortal(SqliteSaver):
    """Dies at one of its storing calls, before or after it has stored; then it stores nothing more."""

    dies_at = ""
    stores_first = False
    dead = False
    claimed = False

    def _store(self, name, store, *given):
        result = None
        if not self.dead and (name != self.dies_at or self.stores_first):
            result = store(*given)
        self.dead = self.dead or name == self.dies_at
        if self.dead:
            raise Died
        return result

    def commit(self, commits):
        self._store("commit", super().commit, commits)

    def record(self, *given):
        name, self.claimed = "record" if self.claimed else "claim", True
        return self._store(name, super().record, *given)


class Thread:
    """A thread on which questions are open, and the processes that come to it one after the other."""

    def __init__(self, drive, path, nodes):
        self.drive, self.path, self.nodes = drive, path, nodes
        with self._open(SqliteSaver) as saver:
            drive.invoke(self._graph(saver), EMPTY, CONFIG)

    def _open(self, kind):
        return kind.from_conn_string(str(self.path), synchronous="off")

    def _graph(self, saver):
        return graph(" ".join(f"S>{name}" for name in self.nodes), **self.nodes, checkpointer=saver)

    def dies(self, dies_at, *, stores_first):
        """A process answers all that is open, and dies."""
        with self._open(Mortal) as saver:
            app = self._graph(saver)
            answers = {question.id: f"to {question.value}" for question in app.get_state(CONFIG).interrupts}
            saver.dies_at, saver.stores_first = dies_at, stores_first
            with pytest.raises(Died):
                self.drive.invoke(app, Command(resume=answers), CONFIG)

    def call(self, given):
        """Another process."""
        with self._open(SqliteSaver) as saver:
            return self.drive.invoke(self._graph(saver), given, CONFIG)

    def shows(self):
        """What comes next, and what is open."""
        with self._open(SqliteSaver) as saver:
            state = self._graph(saver).get_state(CONFIG)
            return state.next, [question.value for question in state.interrupts]

    def refuses(self, given):
        with pytest.raises(UnknownInterruptError) as refused:
            self.call(given)
        return refused.value.reason


@pytest.fixture
def ran():
    return Ran()


@pytest.fixture
def thread(drive, tmp_path, ran):
    def node(name, questions):
        def body(state):
            ran.append(name)
            return {"log": [interrupt(f"{name}{number}") for number in range(questions)]}

        return body

    def opened(**questions):
        found = Thread(drive, tmp_path / "threads.db", {name: node(name, count) for name, count in questions.items()})
        ran.clear()
        return found

    return opened


def test_before_the_claim_is_stored_the_question_is_open(thread, ran):
    one = thread(a=1)
    one.dies("claim", stores_first=False)
    assert not ran
    assert one.shows() == (("a",), ["a0"])
    assert one.call(Command(resume="new"))["log"] == ["new"]


@pytest.mark.parametrize(("dies_at", "stores_first"), [("claim", True), ("commit", False)])
def test_after_the_claim_a_call_resumes_with_the_answer(thread, dies_at, stores_first):
    one = thread(a=1)
    one.dies(dies_at, stores_first=stores_first)
    assert one.shows() == (("a",), [])
    assert one.refuses(Command(resume="new")) == "answered"
    assert one.call(None)["log"] == ["to a0"]


def test_a_task_that_was_recorded_does_not_run_again(drive, tmp_path, ran):
    recorded = threading.Event()

    def quick(state):
        ran.append("quick")
        return {"log": [interrupt("quick")]}

    def slow(state):
        ran.append("slow")
        answer = interrupt("slow")
        assert recorded.wait(10)
        return {"log": [answer]}

    class Tells(Mortal):
        def record(self, where, expected, writes):
            revision = super().record(where, expected, writes)
            if any(task.task_path for tasks in writes.values() for task in tasks):
                recorded.set()
            return revision

    one = Thread(drive, tmp_path / "threads.db", {"quick": quick, "slow": slow})
    ran.clear()
    with one._open(Tells) as saver:
        app = one._graph(saver)
        answers = {question.id: f"to {question.value}" for question in app.get_state(CONFIG).interrupts}
        saver.dies_at = "commit"
        with pytest.raises(Died):
            drive.invoke(app, Command(resume=answers), CONFIG)
    assert one.shows() == (("slow",), [])
    ran.clear()
    assert one.call(None)["log"] == ["to quick", "to slow"]
    assert ran == ["slow"]


def test_after_the_next_question_is_stored_that_takes_an_answer(thread):
    one = thread(a=2)
    one.dies("record", stores_first=True)
    assert one.shows() == (("a",), ["a1"])
    assert one.call(Command(resume="new"))["log"] == ["to a0", "new"]


def test_after_the_commit_the_answer_is_applied(thread, ran):
    one = thread(a=1)
    one.dies("commit", stores_first=True)
    assert one.shows() == ((), [])
    assert one.refuses(Command(resume="new")) == "not_pending"
    ran.clear()
    assert one.call(None)["log"] == ["to a0"]
    assert not ran
