"""`runtime.once` and `runtime.transaction`: effects that a task has once, which any repetition of the task finds, and
nothing else.
"""

from __future__ import annotations

import asyncio

import pytest
from kit.bank import asking, failing, one_node
from kit.bank import effects as effects
from kit.graphs import CONFIG, Log, chain_of

from stategraph import END, Command, RetryPolicy, Runtime, get_runtime, interrupt
from stategraph.checkpoint.base import RETURN
from stategraph.checkpoint.errors import UnserializableError

AGAIN = RetryPolicy(max_attempts=3, initial_interval=0, retry_on=ConnectionError)


def app_of(drive, effects, body, **policies):
    return one_node(drive, body, effects.saver, effects.method, **policies)


# -- found again --------------------------------------------------------------------------------------------------


def test_a_retry_finds_it(drive, effects):
    attempts = []

    def body(state):
        receipt = yield "pay", effects.pay
        attempts.append(receipt)
        if len(attempts) < 3:
            raise ConnectionError
        return {"log": [receipt]}

    app = app_of(drive, effects, body, retry_policy=AGAIN)
    assert drive.invoke(app, {}, CONFIG) == {"log": ["receipt 1"]}
    assert attempts == ["receipt 1"] * 3 and effects.calls == effects.rows() == ["book"]


@pytest.mark.trial
@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_resume_by_a_freshly_compiled_graph_finds_it(drive, effects, durability, is_nested):
    def body(state):
        receipt = yield "pay", effects.pay
        return {"log": [receipt, interrupt("content?")]}

    def app():
        if not is_nested:
            return app_of(drive, effects, body)
        return chain_of(Log, inner=one_node(drive, body, None, effects.method)).compile(effects.saver)

    asked = drive.invoke(app(), {}, CONFIG, durability=durability)
    assert asked["__interrupt__"][0].value == "content?"
    answered = drive.invoke(app(), Command(resume="yes"), CONFIG, durability=durability)
    assert answered == {"log": ["receipt 1", "yes"]}
    assert effects.calls == effects.rows() == ["book"]


def test_a_call_after_a_failure_finds_it(drive, effects):
    fails = [True]

    def body(state):
        receipt = yield "pay", effects.pay
        if fails:
            fails.clear()
            raise ConnectionError
        return {"log": [receipt]}

    thread = drive.on(app_of(drive, effects, body))
    with pytest.raises(ConnectionError):
        thread.invoke({})
    assert thread.state.next == ("pay",), "the record is no output of the task"
    assert thread.invoke(None) == {"log": ["receipt 1"]}
    assert effects.calls == effects.rows() == ["book"]


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_its_result_is_stored_before_the_call_returns(drive, effects, durability):
    seen = []

    def body(state):
        yield "pay", effects.pay
        found = effects.saver.get_tuple(CONFIG)
        seen.append([value for _, channel, value in found.pending_writes if channel == RETURN])
        seen.append([*effects.rows()])
        return {}

    drive.invoke(app_of(drive, effects, body), {}, CONFIG, durability=durability)
    assert seen == [["receipt 1"], ["book"]]


def test_an_exception_is_not_recorded_and_rolls_back(drive, effects):
    effects.fails = [ConnectionError("first"), ConnectionError("second")]

    def body(state):
        return {"log": [(yield "pay", effects.pay)]}

    app = app_of(drive, effects, body, retry_policy=AGAIN)
    assert drive.invoke(app, {}, CONFIG) == {"log": ["receipt 3"]}
    assert len(effects.calls) == 3 and effects.rows() == ["book"]


def test_a_plain_function_of_an_async_run(effects):
    """On a worker thread: the loop stores, the thread waits."""

    def node(state, runtime: Runtime):
        return {"log": [getattr(runtime, effects.method)("pay", effects.pay), interrupt("content?")]}

    app = chain_of(Log, pay=node).compile(effects.saver)
    asyncio.run(app.ainvoke({}, CONFIG))
    assert asyncio.run(app.ainvoke(Command(resume="yes"), CONFIG)) == {"log": ["receipt 1", "yes"]}
    assert effects.calls == effects.rows() == ["book"]


# -- edits, forks, turns, new input -------------------------------------------------------------------------------


def test_an_edit_takes_it_along(drive, effects):
    drive.invoke(asking(drive, effects), {}, CONFIG)
    drive.update_state(asking(drive, effects), CONFIG, {"log": ["edited"]}, as_node="a")
    answered = drive.invoke(asking(drive, effects), Command(resume="yes"), CONFIG)
    assert answered["log"] == ["a", "edited", "receipt 1", "charged", "yes"]
    assert effects.calls == ["book", "task"] and effects.rows() == ["book"]


def test_a_fork_has_it_again(drive, effects):
    thread = drive.on(asking(drive, effects))
    thread.invoke({})
    thread.resume("yes")
    (before_ask,) = [each for each in thread.history() if each.next == ("ask",)]
    thread.invoke(None, before_ask.config)
    assert effects.calls == ["book", "task"] * 2 and effects.rows() == ["book"] * 2


def test_a_new_input_has_it_again(drive, effects):
    thread = drive.on(asking(drive, effects))
    thread.invoke({})
    thread.invoke({})
    assert effects.calls == ["book", "task"] * 2 and effects.rows() == ["book"] * 2


def test_the_next_iteration_of_a_loop_has_it_again(drive, effects):
    def body(state):
        receipt = yield "pay", effects.pay
        return Command(update={"log": [receipt]}, goto="pay" if len(state.get("log", ())) < 2 else END)

    app = app_of(drive, effects, body, destinations=("pay", END))
    assert drive.invoke(app, {}, CONFIG)["log"] == ["receipt 1", "receipt 2", "receipt 3"]
    assert effects.rows() == ["book"] * 3


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.trial
@pytest.mark.parametrize(("calls", "error", "text"), [
    ([("k", lambda *_: 1), ("k", lambda *_: 2)], ValueError, "node 'pay' has come to runtime.{}('k') twice"),
    ([("", lambda *_: 1)], TypeError, "the key of runtime.{} must be a non-empty string, got ''"),
    ([(7, lambda *_: 1)], TypeError, "must be a non-empty string, got 7"),
    ([("k", lambda *_: interrupt("?"))], RuntimeError, "interrupt() cannot be used inside of runtime.{}('k')"),
    ([("k", lambda *_: get_runtime().once("l", str))], RuntimeError, "runtime.once() cannot be used inside of runtime.{}('k')"),
    ([("k", lambda *_: get_runtime().transaction("l", str))], RuntimeError, "runtime.transaction() cannot be used inside of runtime.{}('k')"),
])  # fmt: skip
def test_refused(drive, effects, calls, error, text):
    with pytest.raises(error) as caught:
        failing(drive, effects, *calls)
    assert text.format(effects.method) in str(caught.value)


def test_a_run_that_records_nothing_before_its_end_refuses_it(drive, effects):
    with pytest.raises(RuntimeError, match='durability="exit", which records nothing before its end'):
        failing(drive, effects, ("k", effects.pay), durability="exit")
    assert effects.calls == []


def test_a_result_that_cannot_be_stored_says_what_became_of_the_effect(drive, effects):
    def wrong(*given):
        effects.pay(*given)
        return open

    with pytest.raises(UnserializableError) as caught:
        failing(drive, effects, ("k", wrong))
    (note,) = [note for note in caught.value.__notes__ if f"runtime.{effects.method}('k')" in note]
    told, rows = ("has been called", ["book"]) if effects.method == "once" else ("was undone", [])
    assert f"which {told}: let it return what can be stored, such as an id" in note
    assert effects.calls == ["book"] and effects.rows() == rows


def test_in_a_coroutine_it_says_what_to_await(effects):
    async def node(state, runtime: Runtime):
        getattr(runtime, effects.method)("k", effects.pay)

    app = chain_of(Log, pay=node).compile(effects.saver)
    with pytest.raises(RuntimeError, match=rf"await runtime.a{effects.method}\(...\) there"):
        asyncio.run(app.ainvoke({}, CONFIG))
    assert effects.calls == []


@pytest.mark.parametrize("method", ["once", "transaction"])
def test_outside_of_a_node(method):
    with pytest.raises(RuntimeError, match=rf"runtime.{method}\(\) must be called inside a running node"):
        getattr(Runtime(), method)("k", str)
