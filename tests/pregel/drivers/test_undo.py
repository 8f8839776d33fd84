"""`app.undo`: what a thread has done is undone, the last first, each once; then its state goes back."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from itertools import count, groupby

import pytest
from kit.crash_points import Killed, killing
from kit.graphs import CONFIG, EMPTY, Log, chain_of

from stategraph import Command, InMemorySaver, Runtime, ThreadUndoingError, effect, task
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.pregel import undo
from stategraph.pregel.clock import CLOCK

DONE = []


@effect("keyed")
def cancel(item: str, result: str):
    DONE.append(f"cancel {item} {result}")


def do(item):
    DONE.append(f"do {item}")
    return f"receipt {item}"


@pytest.fixture(autouse=True)
def nothing_done():
    DONE.clear()


def doing(item):
    def step(state, runtime: Runtime):
        runtime.once("do", do, item, undo=cancel)
        return {"log": [item]}

    return step


def trip(saver, **options):
    return chain_of(Log, a=doing("a"), b=doing("b"), c=doing("c")).compile(saver, **options)


def test_undo_takes_back_all_since_the_input_last_first():
    app = trip(InMemorySaver())
    app.invoke({"log": ["given"]}, CONFIG)
    state = app.undo(CONFIG, reason="cancelled")
    assert DONE[3:] == ["cancel c receipt c", "cancel b receipt b", "cancel a receipt a"]
    assert (state.values, state.next) == ({"log": []}, ())
    undone = state.metadata["stategraph_undone"]
    assert [each["call"] for each in undone["effects"]] == ["do(item='c')", "do(item='b')", "do(item='a')"]
    assert undone["reason"] == "cancelled"


def test_undo_goes_back_to_a_checkpoint_from_which_a_run_does_it_anew():
    app = trip(InMemorySaver())
    app.invoke(EMPTY, CONFIG)
    before_b = next(each for each in app.get_state_history(CONFIG) if each.next == ("b",))
    state = app.undo(CONFIG, to=before_b.config)
    assert DONE[3:] == ["cancel c receipt c", "cancel b receipt b"]
    assert (state.values, state.next) == ({"log": ["a"]}, ("b",))
    assert app.invoke(None, CONFIG) == {"log": ["a", "b", "c"]}
    assert DONE[5:] == ["do b", "do c"]
    app.undo(CONFIG)
    assert DONE[7:] == ["cancel c receipt c", "cancel b receipt b", "cancel a receipt a"]


def test_undo_leaves_what_earlier_inputs_have_done():
    app = trip(InMemorySaver())
    app.invoke(EMPTY, CONFIG)
    app.invoke({"log": ["again"]}, CONFIG)
    state = app.undo(CONFIG)
    assert len(DONE) == 9
    assert (state.values, state.next) == ({"log": ["a", "b", "c"]}, ())
    assert app.undo(CONFIG).config == state.config and len(DONE) == 9  # it was asked for once more
    app.undo(CONFIG, to=next(each for each in app.get_state_history(CONFIG) if each.next == ("a",) and each.metadata["step"] == 0))
    assert DONE[9:] == ["cancel c receipt c", "cancel b receipt b", "cancel a receipt a"]


def test_undo_includes_what_a_task_has_done_that_failed():
    def fails(state, runtime: Runtime):
        runtime.once("do", do, "b", undo=cancel)
        raise ValueError("no")

    app = chain_of(Log, a=doing("a"), b=fails).compile(InMemorySaver())
    with pytest.raises(ValueError, match="no"):
        app.invoke(EMPTY, CONFIG)
    app.undo(CONFIG)
    assert DONE[2:] == ["cancel b receipt b", "cancel a receipt a"]


def test_a_call_that_raised_is_not_undone():
    def refuse(item):
        raise ValueError("sold out")

    def fails(state, runtime: Runtime):
        runtime.once("do", refuse, "b", undo=cancel)

    app = chain_of(Log, a=doing("a"), b=fails).compile(InMemorySaver())
    with pytest.raises(ValueError, match="sold out"):
        app.invoke(EMPTY, CONFIG)
    app.undo(CONFIG)
    assert DONE[1:] == ["cancel a receipt a"]


@effect("keyed")
def fail_to_cancel(item: str):
    DONE.append(f"try {item}")
    if DONE.count(f"try {item}") < 3:
        raise ValueError("closed")


@pytest.mark.parametrize("decisions", [["done"], ["again", "again"], ["again", "done"]])
def test_an_undo_that_fails_for_good_asks(decisions):
    def step(state, runtime: Runtime):
        runtime.once("do", do, "b", undo=fail_to_cancel)

    app = chain_of(Log, a=doing("a"), b=step).compile(InMemorySaver())
    app.invoke(EMPTY, CONFIG)
    state = app.undo(CONFIG)
    for decision in decisions:
        assert state.next == ("__undo__",)
        assert "undoing do(item='b') failed" in state.interrupts[0].value["question"]
        assert DONE[-1] == "try b"
        with pytest.raises(ThreadUndoingError):
            app.invoke(EMPTY, CONFIG)
        with pytest.raises(ThreadUndoingError):
            app.update_state(CONFIG, EMPTY)
        app.invoke(Command(resume={"decision": decision}), CONFIG)
        state = app.get_state(CONFIG)
    assert DONE[-1] == "cancel a receipt a"
    assert DONE.count("try b") == 1 + decisions.count("again")
    assert (state.values, state.next) == ({"log": []}, ())


@pytest.mark.trial
@pytest.mark.parametrize("stores_first", [False, True])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_death_at_each_storing_call_undoes_each_once(tmp_path, kind, stores_first):
    """Of doing and of undoing; what has happened without a record is asked, and answered with the truth."""
    for at in range(1, 100):
        DONE.clear()
        with ExitStack() as stack:
            saver = InMemorySaver() if kind == "memory" else stack.enter_context(SqliteSaver(str(tmp_path / f"{at}.db")))
            app = trip(saver)
            with killing(saver, at, stores_first=stores_first) as made, suppress(Killed):
                app.invoke(EMPTY, CONFIG)
                app.undo(CONFIG)
            if not app.get_state(CONFIG).created_at:
                assert not DONE
                continue
            state = app.undo(CONFIG)
            while state.interrupts:
                item = state.interrupts[0].value["effect"].partition("'")[2][0]
                happened = {"decision": "done", "result": f"receipt {item}"}
                app.invoke(Command(resume=happened if f"do {item}" in DONE else {"decision": "not done"}), CONFIG)
                state = app.get_state(CONFIG)
        assert (state.values, state.next) == ({"log": []}, ())
        done = [each.removeprefix("do ") for each in DONE if each.startswith("do")]
        # A keyed undo is repeated if its record is lost; it stands beside the first one then.
        undone = [item for item, _ in groupby(each.split()[1] for each in DONE if each.startswith("cancel"))]
        assert len(done) == len({*done}) and undone == done[::-1], DONE
        if len(made) < at:
            break
    assert at > 12


def test_the_order_of_undo_depends_on_no_clock(monkeypatch):
    """The clock steps back at each look, and a process that resumes the run after a death counts anew. What is done in
    a node, in `@task` calls and in graphs that these run is undone in the turned order all the same."""
    now = count(2_000_000_000, -3600)
    monkeypatch.setattr(CLOCK, "time", lambda: next(now))

    @effect("keyed")
    def unbuy(item: int):
        DONE.append(-item)

    @effect("keyed", undo=unbuy)
    def buy(item: int, idempotency_key: str) -> str:
        DONE.append(item)
        return "bought"

    def buying(*items: int):
        return lambda _: [buy(item) for item in items] and {}

    first = chain_of(Log, x=buying(2, 3), y=buying(4)).compile()
    second = chain_of(Log, x=buying(7), y=buying(8)).compile()
    third = chain_of(Log, x=buying(10)).compile()

    @task
    def order(item):
        buy(item)
        second.invoke(EMPTY)
        buy(9)

    def step(state):
        buy(1)
        first.invoke(EMPTY)
        buy(5)
        order(6).result()
        third.invoke(EMPTY)
        buy(11)

    for at in range(1, 100):
        DONE.clear()
        saver = InMemorySaver()
        app = chain_of(Log, a=buying(0), b=step).compile(saver)
        with killing(saver, at, stores_first=at % 2 == 0) as made, suppress(Killed):
            app.invoke(EMPTY, CONFIG)
        monkeypatch.setattr(undo, "_numbers", count())
        if saver.get_tuple(CONFIG) is None:
            continue
        app.invoke(None, CONFIG)
        done = [item for item, _ in groupby(DONE)]  # a keyed call is repeated if its record is lost
        assert done == [*range(12)]
        app.undo(CONFIG)
        assert DONE[-12:] == [-item for item in reversed(done)], at
        if len(made) < at:
            break
    assert at > 20


_do = effect("keyed", undo=cancel)(do)


class CountingSaver(InMemorySaver):
    """Counts the checkpoints that it gives."""

    read = 0

    def get_tuple(self, config):
        self.read += 1
        return super().get_tuple(config)

    def list(self, config, **options):
        for found in super().list(config, **options):
            self.read += 1
            yield found


def test_undo_reads_no_more_than_it_goes_back(drive):
    """However long the thread is, with whatever graphs inside."""

    def just(item):
        return lambda state: _do(item) and {}

    def read(inputs, back):
        saver = CountingSaver()
        inner = chain_of(Log, x=just("x"), y=just("y")).compile()
        app = chain_of(Log, a=just("a"), inner=inner).compile(saver)
        for _ in range(inputs):
            drive.invoke(app, EMPTY, CONFIG)
        starts = [each for each in app.get_state_history(CONFIG) if each.metadata["source"] == "input"]
        saver.read = 0
        DONE.clear()
        drive.call(app, "undo", CONFIG, to=starts[back - 1].config)
        expected = [f"cancel {item} receipt {item}" for item in "yxa" * back]
        assert DONE[:] == expected
        return saver.read

    assert read(3, 1) == read(20, 1) <= 24
    assert read(8, 6) == read(20, 6) <= 64


@pytest.mark.parametrize(
    ("name", "doing", "undoing"),
    [("pure", 0, 0), ("once", 1, 0), ("keyed", 1, 0), ("irreversible", 2, 0), ("once, undo", 2, 1), ("keyed, undo", 2, 1), ("irreversible, undo", 3, 1)],
)
def test_how_often_a_call_is_recorded(name, doing, undoing):
    """Docs: effects-once, *What it costs*."""
    kind, _, undoable = name.partition(", ")
    options = {"undo": cancel} if undoable else {}
    function = do if kind == "once" else effect(kind, **options)(do)

    def records(calls):
        def step(state, runtime: Runtime):
            for n in range(calls):
                runtime.once(f"{n}", do, f"{n}", **options) if kind == "once" else function(f"{n}")

        saver = InMemorySaver()
        app = chain_of(Log, a=step).compile(saver)
        with killing(saver, 10_000, stores_first=True) as made:
            app.invoke(EMPTY, CONFIG)
            done = len(made)
            app.undo(CONFIG)
        return done, len(made) - done

    few, many = records(2), records(7)
    assert (many[0] - few[0], many[1] - few[1]) == (5 * doing, 5 * undoing)
