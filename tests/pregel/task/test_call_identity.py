"""A `@task` call is identified by its function, its arguments and how many equal calls came before, never by its
position.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
import types
from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.drive import Drive, each_durability, run_threads
from kit.graphs import CONFIG, EMPTY, Log, graph_of

from stategraph import (
    InMemorySaver,
    RetryPolicy,
    SqliteSaver,
    entrypoint,
    get_runtime,
    interrupt,
    task,
)

PRICES = {"tea": 4, "gold": 4000}
AGAIN = RetryPolicy(initial_interval=0, jitter=False, max_attempts=3, retry_on=ConnectionError)


def answers(result):
    return [question.value for question in result["__interrupt__"]]


class Orders:
    """The order in which things are done in each run of a body, told in advance; and what ran."""

    def __init__(self, *orders: Sequence[Any]):
        self.left = [list(order) for order in orders]
        self.ran = Counter()
        self.keys = {}

    def next(self):
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]

    def note(self, what):
        self.ran[what] += 1
        self.keys.setdefault(what, set()).add(get_runtime().idempotency_key)


def shop(drive: Drive, orders: Orders, saver):
    """Prices for the names in the order that comes next, each by a call; then a question."""

    @task
    def price(name):
        orders.note(name)
        return PRICES[name]

    @task
    async def aprice(name):
        orders.note(name)
        return PRICES[name]

    def flow(_):
        calls = {name: price(name) for name in orders.next()}
        return {name: call.result() for name, call in calls.items()} | {"go": interrupt("go on?")}

    async def aflow(_):
        names = orders.next()
        found = await asyncio.gather(*(aprice(name) for name in names))
        return dict(zip(names, found, strict=True)) | {"go": interrupt("go on?")}

    return entrypoint(checkpointer=saver)(aflow if drive.is_async else flow)


def swapped(drive, calls, orders):
    """What calls give, by name, that are made in another order on the resume."""

    @entrypoint(checkpointer=InMemorySaver())
    def flow(_):
        made = {name: calls[name]() for name in orders.next()}
        return {name: call.result() for name, call in made.items()} | {"go": interrupt("?")}

    thread = drive.on(flow)
    thread.invoke(1)
    return thread.resume(1)


# -- calls that change places ---------------------------------------------------------------------------------


@each_durability
def test_calls_keep_their_results_in_a_file_and_in_another_process(drive, tmp_path, durability):
    """What is stored is found by an app that was built anew, as after a kill."""
    orders = Orders(["tea", "gold"], ["gold", "tea"])
    path = str(tmp_path / "threads.db")
    with SqliteSaver.from_conn_string(path) as saver:
        drive.invoke(shop(drive, orders, saver), 1, CONFIG, durability=durability)
    with SqliteSaver.from_conn_string(path) as saver:
        thread = drive.on(shop(drive, orders, saver))
        assert thread.resume("yes", durability=durability) == {**PRICES, "go": "yes"}
    assert orders.ran == {"tea": 1, "gold": 1}


def test_calls_from_threads_in_another_order_keep_their_results(drive):
    """Each thread calls when it is its turn, and the turns are others on the resume."""
    turns = Orders(["tea", "gold"], ["gold", "tea"])

    @task
    def price(name):
        turns.note(name)
        return PRICES[name]

    @entrypoint(checkpointer=InMemorySaver())
    def flow(_):
        import contextvars

        found = {}
        order = turns.next()
        gates = [threading.Event() for _ in range(len(order) + 1)]
        gates[0].set()

        def work(name):
            gates[order.index(name)].wait(5)
            call = price(name)
            gates[order.index(name) + 1].set()
            found[name] = call.result()

        threads = [threading.Thread(target=contextvars.copy_context().run, args=(work, name)) for name in PRICES]
        run_threads(threads)
        return found | {"go": interrupt("go on?")}

    run = drive.on(flow)
    run.invoke(1)
    assert run.resume("yes") == {**PRICES, "go": "yes"}
    assert turns.ran == {"tea": 1, "gold": 1}


def test_a_new_call_gets_no_other_calls_result(drive):
    orders = Orders(["gold"], ["tea", "gold"])
    thread = drive.on(shop(drive, orders, InMemorySaver()))
    thread.invoke(1)
    assert thread.resume("yes") == {**PRICES, "go": "yes"}
    assert orders.ran == {"tea": 1, "gold": 1}


def test_equal_calls_are_identified_by_their_count(drive):
    log = []

    @task
    def draw(kind):
        log.append(1)
        return len(log)

    orders = Orders(["a", "a", "b", "a"], ["b", "a", "a", "a"])

    @entrypoint(checkpointer=InMemorySaver())
    def flow(_):
        drawn = [(kind, draw(kind).result()) for kind in orders.next()]
        interrupt("?")
        return drawn

    thread = drive.on(flow)
    thread.invoke(1)
    assert thread.resume(1) == [("b", 3), ("a", 1), ("a", 2), ("a", 4)]
    assert len(log) == 4


def test_functions_of_one_name_from_two_modules(drive):
    ran = Counter()

    def price_of(module):
        found = types.ModuleType(module)
        found.ran = ran  # type: ignore[attr-defined]
        source = "def price(name):\n    ran[__name__] += 1\n    return __name__ + ' ' + name"
        exec(source, vars(found))
        return task(found.price)

    calls = {module: partial(price_of(module), "tea") for module in ("shop", "bank")}
    assert swapped(drive, calls, Orders(["shop", "bank"], ["bank", "shop"])) == {"shop": "shop tea", "bank": "bank tea", "go": 1}
    assert ran == {"shop": 1, "bank": 1}


def test_one_function_under_two_names(drive):
    """`name=` is part of what a call is: by it two functions of one factory are told apart."""

    def times(factor):
        @task(name=f"times {factor}")
        def multiply(x):
            return factor * x

        return multiply

    calls = {factor: partial(times(factor), 10) for factor in (2, 3)}
    assert swapped(drive, calls, Orders([2, 3], [3, 2])) == {2: 20, 3: 30, "go": 1}


class Client:
    """Has no canonical form: it holds a lock."""

    def __init__(self, factor=1):
        self.factor = factor
        self.lock = threading.Lock()

    @task
    def price(self, name):
        return self.factor * PRICES[name]


class Rate:
    """Its state can be seen."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return self.factor * x

    def of(self, x):
        return self.factor * x


def _times(factor, x):
    return factor * x


@pytest.mark.parametrize(
    "of",
    [lambda n: partial(_times, n), lambda n: Rate(n).of, Rate, lambda n: partial(_times, factor=n)],
    ids=["partial", "method", "object", "keyword"],
)
def test_the_state_of_a_callable_is_part_of_its_identity(drive, of):
    made = {factor: task(name="times")(of(factor)) for factor in (2, 3)}
    calls = {n: partial(call, x=10) if "factor" in str(of(n)) else partial(call, 10) for n, call in made.items()}
    assert swapped(drive, calls, Orders([2, 3], [3, 2])) == {2: 20, 3: 30, "go": 1}


def test_an_incomparable_argument_leaves_the_others_to_identify_the_call(drive):
    client = Client()
    calls = {name: partial(client.price, name) for name in PRICES}
    assert swapped(drive, calls, Orders(["tea", "gold"], ["gold", "tea"])) == {**PRICES, "go": 1}


def test_calls_with_incomparable_arguments_are_identified_by_order(drive):
    ran = []

    @task
    def number(client: Client):
        ran.append(client.factor)
        return client.factor

    @entrypoint(checkpointer=InMemorySaver())
    def flow(_):
        found = [number(Client(factor)).result() for factor in (1, 2)]
        interrupt("?")
        return found

    thread = drive.on(flow)
    thread.invoke(1)
    assert thread.resume(1) == [1, 2]
    assert ran == [1, 2], "each ran once"


def test_tasks_of_tasks(drive):
    """Two levels, both in another order on the resume; equal calls below different ones are not the same call."""
    orders = Orders(["tea", "gold"], ["gold", "tea"])
    inner = Orders([1, 2], [1, 2], [2, 1])

    @task
    def part(number):
        inner.note(number)
        return sum(inner.ran.values())

    @task
    def whole(name):
        orders.note(name)
        found = {number: part(number).result() for number in inner.next()}
        if name == "gold":
            interrupt("gold?")
        return found

    @entrypoint(checkpointer=InMemorySaver())
    def flow(_):
        return {name: _ended(whole(name)) for name in orders.next()}

    thread = drive.on(flow)
    paused = thread.invoke(1)
    assert answers(paused) == ["gold?"]
    assert thread.resume(1) == {"gold": {1: 3, 2: 4}, "tea": {1: 1, 2: 2}}
    assert orders.ran == {"tea": 1, "gold": 2}
    assert inner.ran == {1: 2, 2: 2}


def _ended(call):
    return call.result()


# -- attempts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_call", [False, True])
@pytest.mark.parametrize("saved", [True, False])
def test_a_retried_body_finds_its_calls_in_another_order(drive, saved, by_call):
    """Also a call that fails with its caller, and whose own calls had finished."""
    orders = Orders(["tea", "gold"], ["gold", "tea"])

    @task
    def price(name):
        orders.note(name)
        return PRICES[name]

    def basket():
        last = len(orders.left) == 1
        calls = {name: price(name) for name in orders.next()}
        found = {name: call.result() for name, call in calls.items()}
        if not last:
            raise ConnectionError
        return found

    call = task(basket)

    @entrypoint(checkpointer=InMemorySaver() if saved else None, retry_policy=AGAIN)
    def flow(_):
        return call().result() if by_call else basket()

    assert drive.invoke(flow, 1, CONFIG) == PRICES
    assert orders.ran == {"tea": 1, "gold": 1}
    assert all(len(keys) == 1 for keys in orders.keys.values())


def test_the_key_of_a_call_does_not_depend_on_its_position(drive):
    """Over attempts of its own, attempts of its caller, resumes and other orders; and each call has its own."""
    orders = Orders(["tea", "gold", "tea"], ["gold", "tea", "tea"], ["tea", "tea", "gold"])
    fails = iter([True, False, True, True])
    keys = {}

    @task(retry_policy=AGAIN)
    def buy(name, number):
        keys.setdefault((name, number), set()).add(get_runtime().idempotency_key)
        if next(fails, False):
            raise ConnectionError

    @entrypoint(checkpointer=InMemorySaver(), retry_policy=AGAIN)
    def flow(_):
        orders_now = orders.next()
        for call in [buy(name, orders_now[:place].count(name)) for place, name in enumerate(orders_now)]:
            call.result()
        interrupt("?")
        interrupt("and?")

    thread = drive.on(flow)
    thread.invoke(1)
    thread.resume(1)
    thread.resume(2)
    assert len(keys) == 3 and all(len(each) == 1 for each in keys.values())
    assert len({key for each in keys.values() for key in each}) == 3


def test_an_answer_consumed_by_a_call_survives_the_attempt_of_its_caller(drive):
    """The call was answered and then failed; its caller is tried again, and nobody is asked again."""
    fails = [True]

    @task
    def ask():
        answer = interrupt("?")
        if fails and fails.pop():
            raise ConnectionError
        return answer

    @entrypoint(checkpointer=InMemorySaver(), retry_policy=AGAIN)
    def flow(_):
        return ask().result()

    thread = drive.on(flow)
    thread.invoke(1)
    assert thread.resume("yes") == "yes"


# -- what was not answered is not run -------------------------------------------------------------------------


def asking(drive, orders: Orders, saver, note=None):
    """Each name is asked about by a call of its own."""

    @task
    def ask(name):
        orders.note(name)
        return f"{name}: {interrupt(name)}"

    @task
    async def aask(name):
        orders.note(name)
        return f"{name}: {interrupt(name)}"

    def flow(_):
        return sorted(call.result() for call in [ask(name) for name in orders.next()])

    async def aflow(_):
        return sorted(await asyncio.gather(*(aask(name) for name in orders.next())))

    return entrypoint(checkpointer=saver)(aflow if drive.is_async else flow)


def test_only_the_call_that_was_answered_runs_again(drive):
    orders = Orders("abc", "cab", "bca")
    thread = drive.on(asking(drive, orders, InMemorySaver()))
    ids = {question.value: question.id for question in thread.invoke(1)["__interrupt__"]}
    assert sorted(ids) == ["a", "b", "c"]
    paused = thread.resume({ids["b"]: "B"})
    assert sorted(answers(paused)) == ["a", "c"], "what is still asked is shown from the record"
    assert {question.id for question in paused["__interrupt__"]} == {ids["a"], ids["c"]}
    assert {question.id for question in thread.state.interrupts} == {ids["a"], ids["c"]}
    assert orders.ran == {"a": 1, "b": 2, "c": 1}
    assert thread.resume({ids["a"]: "A", ids["c"]: "C"}) == ["a: A", "b: B", "c: C"]
    assert orders.ran == {"a": 2, "b": 2, "c": 2}


def test_without_an_answer_each_call_interrupts_again(drive):
    orders = Orders("ab")
    thread = drive.on(asking(drive, orders, InMemorySaver()))
    ids = [question.id for question in thread.invoke(1)["__interrupt__"]]
    assert [question.id for question in thread.invoke(None)["__interrupt__"]] == ids
    assert orders.ran == {"a": 2, "b": 2}


def test_a_waiting_call_below_a_call(drive):
    orders = Orders("ab")

    @task
    def ask(name):
        orders.note(name)
        return f"{name}: {interrupt(name)}"

    @task
    def both(names):
        return [call.result() for call in [ask(name) for name in names]]

    @entrypoint(checkpointer=InMemorySaver())
    def flow(_):
        return both("ab").result()

    thread = drive.on(flow)
    first, second = thread.invoke(1)["__interrupt__"]
    assert answers(thread.resume({second.id: "B"})) == ["a"]
    assert orders.ran == {"a": 1, "b": 2}
    assert thread.resume({first.id: "A"}) == ["a: A", "b: B"]


def test_an_error_of_a_body_with_an_interrupted_call_is_raised(drive):
    """The question that nobody has awaited complains nowhere, and is still open when the body has stopped failing."""
    fails = [False, True, False]

    @task
    def ask(name):
        return f"{name}: {interrupt(name)}"

    @entrypoint(checkpointer=InMemorySaver())
    def flow(_):
        calls = [ask("a"), ask("b")]
        if fails.pop(0):
            raise ValueError("no")
        return [call.result() for call in calls]

    thread = drive.on(flow)
    first, second = thread.invoke(1)["__interrupt__"]
    with pytest.raises(ValueError, match="no"):
        thread.resume({second.id: "B"})
    paused = thread.invoke(None)
    assert first.id in {question.id for question in paused["__interrupt__"]}


def test_a_node_runs_though_its_own_record_still_lists_the_answered_interrupt(drive):
    """Its run was stopped after the call had recorded its answer; the next call answers somebody else."""
    stops = [True]

    @task
    def ask():
        return str(interrupt("a"))

    def first(_):
        got = ask().result()
        if stops and stops.pop():
            raise KeyboardInterrupt
        return {"log": [got]}

    def second(_):
        return {"log": [interrupt("b")]}

    graph = graph_of(Log, "S>first S>second", first=first, second=second)
    thread = drive.on(graph.compile(InMemorySaver()))
    ids = {question.value: question.id for question in thread.invoke(EMPTY)["__interrupt__"]}
    with pytest.raises(KeyboardInterrupt):
        thread.resume({ids["a"]: "A"})
    done = thread.resume({ids["b"]: "B"})
    assert done == {"log": ["A", "B"]}


# -- which function it is -------------------------------------------------------------------------------------


SCRIPT = """
import sys
from stategraph import Command, SqliteSaver, entrypoint, interrupt, task

@task
def price(name):
    print("ran", name)
    return len(name)

def open_flow(saver):
    @entrypoint(checkpointer=saver)
    def flow(_):
        return [price("gold").result(), interrupt("?")]
    return flow

if __name__ == "__main__":
    with SqliteSaver.from_conn_string(sys.argv[1]) as saver:
        open_flow(saver).invoke(1, {"configurable": {"thread_id": "1"}})
"""

WORKER = """
import sys
from stategraph import Command, SqliteSaver
from shop import open_flow

with SqliteSaver.from_conn_string(sys.argv[1]) as saver:
    print(open_flow(saver).invoke(Command(resume="yes"), {"configurable": {"thread_id": "1"}}))
"""


@pytest.mark.trial
@pytest.mark.parametrize("start", [["shop.py"], ["-m", "shop"]])
def test_a_thread_started_by_a_script_resumes_where_the_script_is_imported(tmp_path, start):
    (tmp_path / "shop.py").write_text(textwrap.dedent(SCRIPT))
    (tmp_path / "worker.py").write_text(textwrap.dedent(WORKER))
    assert _run(tmp_path, *start) == ["ran gold"]
    assert _run(tmp_path, "worker.py") == ["[4, 'yes']"], "the call is found, and not run again"


KILLED = """
import os, signal, sys
from stategraph import SqliteSaver, entrypoint, task

@task
def price(name):
    os.write(1, f"ran {name}\\n".encode())  # whole, whichever thread is faster
    return len(name)

with SqliteSaver.from_conn_string(sys.argv[2]) as saver:
    @entrypoint(checkpointer=saver)
    def flow(_):
        found = {name: call.result() for name, call in [(name, price(name)) for name in sys.argv[1].split()]}
        if "milk" not in found:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    thread = {"configurable": {"thread_id": "1"}}
    print(flow.invoke(None if "milk" in sys.argv[1] else 1, thread))
"""


def test_after_a_kill_calls_in_another_order_are_found(tmp_path):
    (tmp_path / "shop.py").write_text(textwrap.dedent(KILLED))
    assert sorted(_run(tmp_path, "shop.py", "tea gold", killed=True)) == ["ran gold", "ran tea"]
    assert _run(tmp_path, "shop.py", "milk gold tea") == ["ran milk", "{'milk': 4, 'gold': 4, 'tea': 3}"]


def _run(folder, *program, killed=False):
    done = subprocess.run(
        [sys.executable, *program, "threads.db"], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == (-signal.SIGKILL if killed else 0), done.stderr
    return done.stdout.splitlines()


# -- any program ----------------------------------------------------------------------------------------------


@given(
    names=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2)), min_size=1, max_size=6),
    pauses=st.integers(1, 3),
    random=st.integers(0, 2**32).map(Random),
)
def test_each_call_gets_its_own_result_in_any_order_over_several_resumes(drive, names, pauses, random):
    """Random calls of two functions, nested or not, in another order in every run of the body: what a call returns
    tells its function and arguments, and no call runs twice."""
    ran = Counter()

    @task
    def leaf(function, number):
        ran["leaf", function, number] += 1
        return ("leaf", function, number)

    @task
    def a(number):
        ran["a", number] += 1
        return ("a", number, leaf("a", number).result())

    @task
    def b(number):
        ran["b", number] += 1
        return ("b", number)

    functions = {"a": a, "b": b}

    @entrypoint(checkpointer=InMemorySaver())
    def flow(_):
        order = random.sample(names, len(names))
        calls = [(name, number, functions[name](number)) for name, number in order]
        for name, number, call in random.sample(calls, len(calls)):
            assert call.result()[:2] == (name, number)
        return [interrupt(f"question {n}") for n in range(pauses)]

    thread = drive.on(flow)
    thread.invoke(1)
    for n in range(pauses):
        done = thread.resume(n)
    assert done == list(range(pauses))
    expected = Counter(names)
    assert {key: count for key, count in ran.items() if key[0] != "leaf"} == expected
    assert {key[1:]: count for key, count in ran.items() if key[0] == "leaf"} == {
        each: count for each, count in expected.items() if each[0] == "a"
    }
