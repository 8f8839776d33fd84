"""`runtime.once`: effects that a task has once, which any repetition of the task finds, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kit import cluster
from kit.graphs import CONFIG, Log

from stategraph import (
    END,
    START,
    Command,
    RetryPolicy,
    Runtime,
    StateGraph,
    entrypoint,
    get_runtime,
    interrupt,
    task,
)
from stategraph.checkpoint.base import RETURN
from stategraph.checkpoint.errors import UnserializableError

postgres = cluster.emptied
AGAIN = RetryPolicy(max_attempts=3, initial_interval=0, retry_on=ConnectionError)


class Shop:
    """Counts what it has charged."""

    def __init__(self) -> None:
        self.charged: list[str] = []

    def charge(self, what: str) -> str:
        self.charged.append(what)
        return f"receipt {len(self.charged)}"


def one_node(drive: Any, body: Any, saver: Any = None, **policies: Any) -> Any:
    """A graph of one node. `body` is a generator that yields what `once` is called with, and is sent what that returned."""

    def node(state: Log, runtime: Runtime) -> Any:
        steps = body(state)
        try:
            asked = next(steps)
            while True:
                asked = steps.send(runtime.once(*asked))
        except StopIteration as end:
            return end.value

    async def anode(state: Log, runtime: Runtime) -> Any:
        steps = body(state)
        try:
            asked = next(steps)
            while True:
                asked = steps.send(await runtime.aonce(*asked))
        except StopIteration as end:
            return end.value

    builder = StateGraph(Log).add_node("pay", anode if drive.is_async else node, **policies)
    return builder.add_edge(START, "pay").compile(checkpointer=saver)


# -- found again --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [True, False])
def test_a_retry_finds_it(drive: Any, saver: Any, stored: bool) -> None:
    shop, attempts = Shop(), []

    def body(state: Log) -> Any:
        receipt = yield "charge", shop.charge, "book"
        attempts.append(receipt)
        if len(attempts) < 3:
            raise ConnectionError
        return {"log": [receipt]}

    app = one_node(drive, body, saver if stored else None, retry_policy=AGAIN)
    assert drive.invoke(app, {}, CONFIG if stored else None) == {"log": ["receipt 1"]}
    assert attempts == ["receipt 1"] * 3 and shop.charged == ["book"]


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_resume_by_a_freshly_compiled_graph_finds_it(drive: Any, saver: Any, durability: Any) -> None:
    shop = Shop()

    def body(state: Log) -> Any:
        receipt = yield "charge", shop.charge, "book"
        return {"log": [receipt, interrupt("content?")]}

    asked = drive.invoke(one_node(drive, body, saver), {}, CONFIG, durability=durability)
    assert asked["__interrupt__"][0].value == "content?"
    answered = drive.invoke(one_node(drive, body, saver), Command(resume="yes"), CONFIG, durability=durability)
    assert answered == {"log": ["receipt 1", "yes"]}
    assert shop.charged == ["book"]


def test_a_call_after_a_failure_finds_it(drive: Any, saver: Any) -> None:
    shop, fails = Shop(), [True]

    def body(state: Log) -> Any:
        receipt = yield "charge", shop.charge, "book"
        if fails:
            fails.clear()
            raise ConnectionError
        return {"log": [receipt]}

    app = one_node(drive, body, saver)
    with pytest.raises(ConnectionError):
        drive.invoke(app, {}, CONFIG)
    assert drive.get_state(app, CONFIG).next == ("pay",), "the record is no output of the task"
    assert drive.invoke(app, None, CONFIG) == {"log": ["receipt 1"]}
    assert shop.charged == ["book"]


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_it_is_stored_before_the_call_returns(drive: Any, saver: Any, durability: Any) -> None:
    seen: list[Any] = []

    def body(state: Log) -> Any:
        yield "charge", Shop().charge, "book"
        found = saver.get_tuple(CONFIG)
        seen.extend(value for _, channel, value in found.pending_writes if channel == RETURN)
        return {}

    drive.invoke(one_node(drive, body, saver), {}, CONFIG, durability=durability)
    assert seen == ["receipt 1"]


def test_a_changed_result_is_as_it_was_recorded_when_the_task_runs_again(drive: Any, saver: Any) -> None:
    seen: list[Any] = []

    def body(state: Log) -> Any:
        items = yield "items", list, "ab"
        seen.append([*items])
        items.append("changed")
        if len(seen) < 3:
            raise ConnectionError
        return {"log": items}

    app = one_node(drive, body, saver, retry_policy=AGAIN)
    drive.invoke(app, {}, CONFIG)
    assert seen == [["a", "b"]] * 3


def test_an_attempt_that_was_given_up_has_no_further_effects(saver: Any) -> None:
    """And what it has had already, the next attempt finds."""
    import threading

    shop, given_up, ended = Shop(), threading.Event(), threading.Event()

    def slow(state: Log, runtime: Runtime) -> Any:
        runtime.once("first", shop.charge, "first")
        if not given_up.is_set():
            given_up.set()
            second.wait(10)
            try:
                runtime.once("late", shop.charge, "late")
            finally:
                ended.set()
        else:
            second.set()
            assert ended.wait(10)
        return {"log": [runtime.once("second", shop.charge, "second")]}

    second = threading.Event()
    again = RetryPolicy(max_attempts=2, initial_interval=0)
    builder = StateGraph(Log).add_node("pay", slow, timeout=0.2, retry_policy=again).add_edge(START, "pay")
    app = builder.compile(checkpointer=saver)
    try:
        app.invoke({}, CONFIG)
    except TimeoutError:
        pass  # the second attempt may be too slow, too; what it had is what counts
    assert "late" not in shop.charged and shop.charged[0] == "first" and shop.charged.count("first") == 1


def test_a_task_of_the_functional_api_has_effects_of_its_own(drive: Any, saver: Any) -> None:
    shop = Shop()

    def pay_body(what: str) -> Any:
        return get_runtime().once("charge", shop.charge, what)

    async def apay_body(what: str) -> Any:
        return await get_runtime().aonce("charge", shop.charge, what)

    pay: Any = task(name="pay")(apay_body if drive.is_async else pay_body)

    @entrypoint(checkpointer=saver)
    def buy(what: list[str]) -> list[str]:
        found = [pay(each).result() for each in what]
        return [*found, interrupt("content?")]

    @entrypoint(checkpointer=saver)
    async def abuy(what: list[str]) -> list[str]:
        found = [await pay(each) for each in what]
        return [*found, interrupt("content?")]

    app = abuy if drive.is_async else buy
    drive.invoke(app, ["book", "pen"], CONFIG)
    assert drive.invoke(app, Command(resume="yes"), CONFIG) == ["receipt 1", "receipt 2", "yes"]
    assert shop.charged == ["book", "pen"]


# -- edits, forks, turns, new input -------------------------------------------------------------------------------


def asking(drive: Any, shop: Shop, saver: Any) -> Any:
    """a, then a node that charges and asks; it is charged under a key, and by a @task."""

    def call(what: str) -> str:
        return shop.charge(what)

    charge = task(call)

    def ask(state: Log, runtime: Runtime) -> Any:
        receipts = [runtime.once("charge", shop.charge, "once"), charge("task").result()]
        return {"log": [*receipts, interrupt("content?")]}

    async def acall(what: str) -> str:
        return shop.charge(what)

    acharge = task(acall)

    async def aask(state: Log, runtime: Runtime) -> Any:
        receipts = [await runtime.aonce("charge", shop.charge, "once"), await acharge("task")]
        return {"log": [*receipts, interrupt("content?")]}

    builder = StateGraph(Log).add_node("a", lambda state: {"log": ["a"]})
    builder.add_node("ask", aask if drive.is_async else ask)
    return builder.add_edge(START, "a").add_edge("a", "ask").compile(checkpointer=saver)


def test_an_edit_takes_it_along(drive: Any, saver: Any) -> None:
    shop = Shop()
    app = asking(drive, shop, saver)
    drive.invoke(app, {}, CONFIG)
    drive.update_state(app, CONFIG, {"log": ["edited"]}, as_node="a")
    app = asking(drive, shop, saver)
    assert drive.invoke(app, Command(resume="yes"), CONFIG)["log"] == ["a", "edited", "receipt 1", "receipt 2", "yes"]
    assert shop.charged == ["once", "task"]


def test_a_fork_has_it_again(drive: Any, saver: Any) -> None:
    shop = Shop()
    app = asking(drive, shop, saver)
    drive.invoke(app, {}, CONFIG)
    drive.invoke(app, Command(resume="yes"), CONFIG)
    (before_ask,) = [each for each in drive.history(app, CONFIG) if each.next == ("ask",)]
    drive.invoke(app, None, before_ask.config)
    assert shop.charged == ["once", "task"] * 2


def test_a_new_input_has_it_again(drive: Any, saver: Any) -> None:
    shop = Shop()
    app = asking(drive, shop, saver)
    drive.invoke(app, {}, CONFIG)
    drive.invoke(app, {}, CONFIG)
    assert shop.charged == ["once", "task"] * 2


def test_the_next_iteration_of_a_loop_has_the_effect_again(drive: Any, saver: Any) -> None:
    shop = Shop()

    def body(state: Log) -> Any:
        receipt = yield "charge", shop.charge, "book"
        return Command(update={"log": [receipt]}, goto="pay" if len(state.get("log", ())) < 2 else END)

    app = one_node(drive, body, saver, destinations=("pay", END))
    assert drive.invoke(app, {}, CONFIG)["log"] == ["receipt 1", "receipt 2", "receipt 3"]


# -- what is refused ----------------------------------------------------------------------------------------------


def failing(drive: Any, saver: Any, *calls: Any, **options: Any) -> Any:
    def body(state: Log) -> Any:
        got = []
        for call in calls:
            got.append((yield call))
        return {"log": got}

    return drive.invoke(one_node(drive, body, saver), {}, CONFIG, **options)


@pytest.mark.parametrize(("calls", "error", "text"), [
    ([("k", str, 1), ("k", str, 2)], ValueError, "node 'pay' has come to runtime.once('k') twice"),
    ([("", str)], TypeError, "the key of runtime.once must be a non-empty string, got ''"),
    ([(7, str)], TypeError, "must be a non-empty string, got 7"),
    ([("k", lambda: interrupt("?"))], RuntimeError, "interrupt() cannot be used inside of runtime.once('k')"),
    ([("k", lambda: get_runtime().once("l", str))], RuntimeError, "runtime.once() cannot be used inside of runtime.once('k')"),
])  # fmt: skip
def test_refused(drive: Any, saver: Any, calls: Any, error: Any, text: str) -> None:
    with pytest.raises(error) as caught:
        failing(drive, saver, *calls)
    assert text in str(caught.value)


def test_a_run_that_records_nothing_before_its_end_refuses_it(drive: Any, saver: Any) -> None:
    shop = Shop()
    with pytest.raises(RuntimeError, match='durability="exit", which records nothing before its end'):
        failing(drive, saver, ("k", shop.charge, "book"), durability="exit")
    assert shop.charged == []


def test_an_exception_is_not_recorded(drive: Any, saver: Any) -> None:
    tries: list[int] = []

    def effect() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError
        return "done"

    def body(state: Log) -> Any:
        return {"log": [(yield "k", effect)]}

    app = one_node(drive, body, saver, retry_policy=AGAIN)
    assert drive.invoke(app, {}, CONFIG) == {"log": ["done"]}
    assert len(tries) == 3


def test_a_result_that_cannot_be_stored_says_that_the_effect_was_had(drive: Any, saver: Any) -> None:
    shop = Shop()

    def effect() -> Any:
        shop.charge("book")
        return open

    with pytest.raises(UnserializableError) as caught:
        failing(drive, saver, ("charge", effect))
    (note,) = [note for note in caught.value.__notes__ if "runtime.once('charge')" in note]
    assert "which has been called: let it return what can be stored, such as an id" in note
    assert shop.charged == ["book"]


def test_outside_of_a_node() -> None:
    with pytest.raises(RuntimeError, match=r"runtime.once\(\) must be called inside a running node"):
        Runtime().once("k", str)


def test_once_in_a_coroutine_says_what_to_await(saver: Any) -> None:
    shop = Shop()

    async def node(state: Log, runtime: Runtime) -> Any:
        runtime.once("k", shop.charge, "book")

    builder = StateGraph(Log).add_node("pay", node).add_edge(START, "pay")
    with pytest.raises(RuntimeError, match=r"await runtime.aonce\(...\) there"):
        asyncio.run(builder.compile(checkpointer=saver).ainvoke({}, CONFIG))
    assert shop.charged == []


def test_a_coroutine_function_in_a_thread_says_what_to_await() -> None:
    async def effect() -> None: ...

    def node(state: Log, runtime: Runtime) -> Any:
        runtime.once("k", effect)

    builder = StateGraph(Log).add_node("pay", node).add_edge(START, "pay")
    with pytest.raises(TypeError, match=r"await runtime.aonce\(...\)"):
        builder.compile().invoke({})


def test_side_by_side_in_one_node(saver: Any) -> None:
    shop, fails = Shop(), [True]

    async def slow(what: str) -> str:
        await asyncio.sleep(0)
        return shop.charge(what)

    async def node(state: Log, runtime: Runtime) -> Any:
        got = await asyncio.gather(*(runtime.aonce(what, slow, what) for what in "abc"))
        if fails:
            fails.clear()
            raise ConnectionError
        return {"log": got}

    builder = StateGraph(Log).add_node("pay", node, retry_policy=AGAIN).add_edge(START, "pay")
    got = asyncio.run(builder.compile(checkpointer=saver).ainvoke({}, CONFIG))
    assert got == {"log": ["receipt 1", "receipt 2", "receipt 3"]}
    assert shop.charged == ["a", "b", "c"]


def test_a_plain_function_of_an_async_run(saver: Any) -> None:
    """On a worker thread: the loop stores, the thread waits."""
    shop = Shop()

    def node(state: Log, runtime: Runtime) -> Any:
        return {"log": [runtime.once("k", shop.charge, "book"), interrupt("content?")]}

    app = StateGraph(Log).add_node("pay", node).add_edge(START, "pay").compile(checkpointer=saver)
    asyncio.run(app.ainvoke({}, CONFIG))
    assert asyncio.run(app.ainvoke(Command(resume="yes"), CONFIG)) == {"log": ["receipt 1", "yes"]}
    assert shop.charged == ["book"]
