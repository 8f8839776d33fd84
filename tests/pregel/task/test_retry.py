"""Retries: when a failed attempt is repeated, after how long, and what it starts with."""

from __future__ import annotations

import asyncio
import operator
import time
from datetime import timedelta
from typing import Annotated

import pytest
from kit.drive import cancel, each_case
from kit.graphs import CONFIG, chain_of, graph_of, parallel_of
from typing_extensions import TypedDict

from stategraph import (
    START,
    InMemorySaver,
    InvalidGraphError,
    NodeBuilder,
    NodeCancelledError,
    NodeTimeoutError,
    Pregel,
    RetryPolicy,
    Send,
    StateGraph,
    interrupt,
    task,
)
from stategraph.channels import LastValue
from stategraph.pregel.clock import CLOCK
from stategraph.pregel.task.outcome import interval, wait_before_retry
from stategraph.pregel.types import default_retry_on

AT_ONCE = RetryPolicy(initial_interval=0)


class State(TypedDict, total=False):
    n: int
    log: Annotated[list, operator.add]


class Oops(Exception):
    pass


def app_of(node, saver=None, **policies):
    return parallel_of(State, {"node": node}, **policies).compile(saver)


class Fails:
    """A node that raises these errors, one per attempt, and then returns.

    Attributes:
        calls: how often it was called.
    """

    def __init__(self, *errors):
        self.errors = list(errors)
        self.calls = 0

    def __call__(self, state):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return {"log": [self.calls]}


# -- the decision ---------------------------------------------------------------------------------------------


def test_waits_grow_by_the_factor_up_to_the_maximum():
    policy = RetryPolicy(initial_interval=0.05, backoff_factor=2, max_interval=0.3, jitter=False)
    assert [interval(policy, n) for n in (1, 2, 3, 4, 5)] == [0.05, 0.1, 0.2, 0.3, 0.3]


def test_waits_stay_at_the_maximum_however_often_it_fails():
    assert interval(RetryPolicy(max_interval=3, jitter=False), 5_000) == 3
    assert interval(RetryPolicy(initial_interval=0, jitter=False), 5_000) == 0


@pytest.mark.parametrize("given", [
    {"initial_interval": timedelta(seconds=1)}, {"max_interval": None}, {"backoff_factor": float("nan")}, {"max_attempts": 0},
])  # fmt: skip
def test_a_policy_whose_times_are_no_numbers_is_refused_before_anything_runs(given):
    policy = RetryPolicy(**given)
    with pytest.raises(InvalidGraphError, match="node 'a': a RetryPolicy must have max_attempts >= 1, and seconds and"):
        StateGraph(dict).add_node("a", lambda state: state, retry_policy=policy)


@pytest.mark.parametrize("initial", [0.001, 1.0, 1000.0])
def test_jitter_shortens_a_wait_by_half_at_most(initial):
    """In proportion: it neither dwarfs a short wait nor exceeds the maximum."""
    policy = RetryPolicy(initial_interval=initial, max_interval=10, jitter=True)
    full = interval(policy._replace(jitter=False), 1)
    waits = [interval(policy, 1) for _ in range(50)]
    assert all(full / 2 <= wait <= full for wait in waits)
    assert len(set(waits)) > 1


def test_the_first_attempt_counts():
    def tries(policy: RetryPolicy):
        failures = {}
        count = 1
        while wait_before_retry([policy], failures, Oops()) is not None:
            count += 1
        return count

    assert [tries(RetryPolicy(max_attempts=n)) for n in (1, 2, 3)] == [1, 2, 3]


def test_the_first_policy_that_fits_decides():
    policies = [RetryPolicy(retry_on=KeyError, initial_interval=1, jitter=False),
                RetryPolicy(retry_on=LookupError, initial_interval=2, jitter=False)]  # fmt: skip
    assert wait_before_retry(policies, {}, KeyError()) == 1
    assert wait_before_retry(policies, {}, IndexError()) == 2
    assert wait_before_retry(policies, {}, ValueError()) is None


def test_each_policy_counts_its_own_failures():
    policies = [RetryPolicy(retry_on=KeyError, max_attempts=3), RetryPolicy(retry_on=ValueError, max_attempts=5)]
    failures = {}
    errors = [KeyError(), KeyError(), *(ValueError() for _ in range(4))]
    assert all(wait_before_retry(policies, failures, error) is not None for error in errors)
    assert wait_before_retry(policies, failures, KeyError()) is None
    failures = {}
    assert all(wait_before_retry(policies, failures, ValueError()) is not None for _ in range(4))
    assert wait_before_retry(policies, failures, KeyError()) is not None, "not used up by the ValueErrors"


@pytest.mark.parametrize(
    ("rule", "yes", "no"),
    [
        (KeyError, KeyError(), IndexError()),
        ((KeyError, IndexError), IndexError(), ValueError()),
        ([KeyError], KeyError(), ValueError()),
        (lambda error: "again" in str(error), ValueError("again"), ValueError("no")),
    ],
)
def test_what_retry_on_may_be(rule, yes, no):
    assert wait_before_retry([RetryPolicy(retry_on=rule)], {}, yes) is not None
    assert wait_before_retry([RetryPolicy(retry_on=rule)], {}, no) is None


@pytest.mark.parametrize("rule", [3, (3,), "KeyError"])
def test_retry_on_of_another_kind_is_an_error_where_it_is_given(rule):
    for given in (lambda p: app_of(Fails(Oops()), retry_policy=p), lambda p: task(retry_policy=p)(Fails(Oops()))):
        with pytest.raises(TypeError, match="retry_on must be an exception class, several of them, or a function of the error, got "):
            given(RetryPolicy(retry_on=rule))


def test_a_raw_graph_reports_a_wrong_retry_on_at_the_first_failure(drive):
    node = NodeBuilder().subscribe_only("a").do(lambda a: 1 / 0).add_retry_policies(RetryPolicy(retry_on=3))  # type: ignore[arg-type]
    app = Pregel(nodes={"n": node}, channels={"a": LastValue(int)}, input_channels="a", output_channels="a")
    with pytest.raises(TypeError, match="exception class, a sequence of them, or a function of the error, got int") as caught:
        drive.invoke(app, 1)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_predicate_that_fails_ends_the_run(drive):
    def broken(error: Exception):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        drive.invoke(app_of(Fails(Oops()), retry_policy=RetryPolicy(retry_on=broken)), {"n": 1})


class Answered(Exception):
    def __init__(self, status):
        self.response = type("Response", (), {"status_code": status, "__bool__": lambda self: status < 400})()


@each_case(
    "error",
    [Oops(), AssertionError(), ConnectionError(), ConnectionResetError(), Answered(500), Answered(503),
     NodeTimeoutError("n", 1, "run", 1), NodeCancelledError("n")],
)  # fmt: skip
def test_retried_by_default(error):
    assert default_retry_on(error)


@each_case(
    "error",
    [ValueError(), TypeError(), ZeroDivisionError(), ImportError(), KeyError(), NameError(), SyntaxError(),
     RuntimeError(), ReferenceError(), StopIteration(), StopAsyncIteration(), OSError(), TimeoutError(),
     Answered(404), Answered(429)],
)  # fmt: skip
def test_not_retried_by_default(error):
    assert not default_retry_on(error)


# -- attempts -------------------------------------------------------------------------------------------------


@pytest.fixture
def waits(monkeypatch):
    """The waits between attempts, noted instead of waited for."""
    noted = []
    sleep = asyncio.sleep

    async def wait(seconds, result=None):
        noted.append(seconds)
        return await sleep(0, result)

    monkeypatch.setattr(CLOCK, "sleep", noted.append)
    monkeypatch.setattr(asyncio, "sleep", wait)
    return noted


def test_a_node_is_tried_again(drive, waits):
    node = Fails(Oops(), ConnectionError())
    policy = RetryPolicy(initial_interval=0.05, jitter=False)
    assert drive.invoke(app_of(node, retry_policy=policy), {"n": 1})["log"] == [3]
    assert [wait for wait in waits if wait] == [0.05, 0.1]


def test_the_last_error_is_raised_with_a_note(drive):
    errors = [Oops(str(i)) for i in range(3)]
    with pytest.raises(Oops, match="2") as caught:
        drive.invoke(app_of(Fails(*errors), retry_policy=AT_ONCE), {"n": 1})
    assert caught.value is errors[2]
    assert "task with name 'node'" in caught.value.__notes__[0]


def test_what_the_policy_does_not_name_is_not_tried_again(drive):
    node = Fails(ValueError())
    with pytest.raises(ValueError):
        drive.invoke(app_of(node, retry_policy=AT_ONCE), {"n": 1})
    assert node.calls == 1


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
def test_signals_are_never_tried_again(drive, signal):
    node = Fails(signal())
    policy = RetryPolicy(initial_interval=0, retry_on=lambda error: True)
    with pytest.raises(signal):
        drive.invoke(app_of(node, retry_policy=policy), {"n": 1})
    assert node.calls == 1


def test_questions_are_never_tried_again(drive):
    log = []

    def ask(state):
        log.append("ask")
        return {"log": [interrupt("?")]}

    thread = drive.on(app_of(ask, InMemorySaver(), retry_policy=RetryPolicy(initial_interval=0, retry_on=lambda error: True)))
    thread.invoke({"n": 1})
    assert log == ["ask"]
    assert thread.resume("A")["log"] == ["A"]


def test_an_answer_survives_a_failed_attempt(drive):
    fails = [True]

    def ask(state):
        got = [interrupt("a?"), interrupt("b?")]
        if fails.pop():
            fails.append(False)
            raise Oops
        return {"log": got}

    thread = drive.on(app_of(ask, InMemorySaver(), retry_policy=AT_ONCE))
    thread.invoke({"n": 1})
    thread.resume("A")
    assert thread.resume("B")["log"] == ["A", "B"]


def test_a_node_sees_its_attempt_number(drive):
    """Counted up from 1; the time of the first stays."""
    seen = []

    def node(state, runtime):
        info = runtime.execution_info
        seen.append((info.node_attempt, info.node_first_attempt_time))
        if len(seen) < 3:
            raise ConnectionError

    drive.invoke(app_of(node, retry_policy=AT_ONCE), {"n": 1})
    assert [attempt for attempt, _ in seen] == [1, 2, 3]
    assert len({first for _, first in seen}) == 1
    assert abs(seen[0][1] - time.time()) < 60


def test_a_node_that_raises_cancelled_by_itself_has_failed(drive):
    log = []

    async def node(state):
        log.append(1)
        if len(log) < 2:
            raise asyncio.CancelledError
        return {"log": log[:]}

    assert asyncio.run(app_of(node, retry_policy=AT_ONCE).ainvoke({"n": 1}))["log"] == [1, 1]
    log.clear()
    with pytest.raises(NodeCancelledError, match="'node'"):
        asyncio.run(app_of(node).ainvoke({"n": 1}))


def test_in_a_sync_node_too(drive):
    with pytest.raises(NodeCancelledError):
        drive.invoke(app_of(Fails(asyncio.CancelledError())), {"n": 1})


async def test_a_run_that_is_cancelled_waits_no_longer():
    node = Fails(Oops())
    running = asyncio.ensure_future(app_of(node, retry_policy=RetryPolicy(initial_interval=60)).ainvoke({"n": 1}))
    while not node.calls:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0)
    await cancel(running)
    assert node.calls == 1


# -- every attempt starts clean -------------------------------------------------------------------------------


def test_a_failing_router_runs_the_node_again_and_doubles_nothing(drive):
    """What the failed attempt wrote is dropped."""
    fails = [True]

    def route(state):
        if fails:
            fails.pop()
            raise Oops
        return "end"

    graph = StateGraph(State).add_node("node", lambda s: {"log": ["node"]}, retry_policy=AT_ONCE)
    graph.add_node("end", lambda s: {"log": ["end"]}).add_edge(START, "node")
    app = graph.add_conditional_edges("node", route, ["end"]).compile()
    assert drive.invoke(app, {"n": 1})["log"] == ["node", "end"]


def test_without_a_policy_a_failed_router_runs_again_on_resume(drive):
    """The node's writes do not make it count as finished, and the path goes on."""
    fails, log = [True], []

    def node(state):
        log.append("node")
        return {"log": ["node"]}

    def route(state):
        log.append("route")
        if fails:
            fails.pop()
            raise Oops
        return "end"

    graph = graph_of(State, "S>node", node=node, end=lambda s: {"log": ["end"]})
    graph.add_conditional_edges("node", route, ["end"])
    thread = drive.on(graph.compile(InMemorySaver()))
    with pytest.raises(Oops) as caught:
        thread.invoke({"n": 1})
    assert "'node'" in caught.value.__notes__[0]
    assert (thread.state.values["log"], thread.state.next) == ([], ("node",))
    assert thread.invoke(None)["log"] == ["node", "end"]
    assert log == ["node", "route", "node", "route"]


@pytest.mark.parametrize("inside", [False, True], ids=["as a node", "called by a node"])
def test_a_nested_graph_resumes_where_it_failed(drive, inside):
    """With a saver: what had finished in it does not run again, and its namespace stays the same."""
    log = []
    spaces = set()

    def first(state, config):
        log.append("first")

    def second(state, runtime):
        log.append("second")
        spaces.add(runtime.execution_info.checkpoint_ns.rpartition("|")[0])
        if log.count("second") < 3:
            raise Oops
        return {"log": ["done"]}

    child = graph_of(State, "S>first>second", first=first, second=second).compile()
    app = app_of(drive.node_of(child) if inside else child, InMemorySaver(), retry_policy=AT_ONCE)
    assert drive.invoke(app, {"n": 1}, CONFIG)["log"] == ["done"]
    assert log == ["first", "second", "second", "second"]
    assert len(spaces) == 1


def test_a_question_of_a_retried_nested_graph_can_be_answered_by_its_id(drive):
    fails = [True]

    def ask(state):
        if fails:
            fails.pop()
            raise Oops
        return {"log": [interrupt("?")]}

    child = chain_of(State, ask=ask).compile()
    thread = drive.on(app_of(child, InMemorySaver(), retry_policy=AT_ONCE))
    (question,) = thread.invoke({"n": 1})["__interrupt__"]
    assert thread.resume({question.id: "A"})["log"] == ["A"]


# -- where a policy stands ------------------------------------------------------------------------------------


def test_several_policies_of_a_node(drive):
    node = Fails(ConnectionError(), KeyError(), ConnectionError(), KeyError())
    policies = [
        RetryPolicy(initial_interval=0, retry_on=ConnectionError),
        RetryPolicy(initial_interval=0, retry_on=KeyError),
    ]
    assert drive.invoke(app_of(node, retry_policy=policies), {"n": 1})["log"] == [5]


def test_defaults_are_for_nodes_without_their_own(drive):
    mine, other = Fails(Oops()), Fails(Oops())
    graph = StateGraph(State).set_node_defaults(retry_policy=RetryPolicy(max_attempts=1))
    graph.add_node("mine", mine, retry_policy=AT_ONCE).add_node("other", other)
    app = graph.add_edge(START, "mine").add_edge("mine", "other").compile()
    with pytest.raises(Oops):
        drive.invoke(app, {"n": 1})
    assert (mine.calls, other.calls) == (2, 1)


def test_each_send_has_attempts_of_its_own(drive):
    log = []

    def work(n):
        log.append(n)
        if log.count(n) < 2:
            raise Oops
        return {"log": [n]}

    graph = StateGraph(State).add_node("work", work, retry_policy=AT_ONCE)
    graph.add_conditional_edges(START, lambda state: [Send("work", i) for i in range(3)])
    assert drive.invoke(graph.compile(), {"n": 1})["log"] == [0, 1, 2]
    assert sorted(log) == [0, 0, 1, 1, 2, 2]


def test_siblings_are_not_touched_by_a_retry(drive):
    shaky, calm = Fails(Oops()), Fails()
    graph = StateGraph(State).add_node("shaky", shaky, retry_policy=AT_ONCE).add_node("calm", calm)
    app = graph.add_edge(START, "shaky").add_edge(START, "calm").compile()
    assert drive.invoke(app, {"n": 1})["log"] == [1, 2]
    assert calm.calls == 1


@pytest.mark.parametrize("policy", [RetryPolicy(max_attempts=0), RetryPolicy(max_attempts="3"), RetryPolicy(initial_interval=-1)])
def test_a_policy_that_cannot_be_followed_is_refused_where_it_is_given(policy):
    with pytest.raises(InvalidGraphError, match="node"):
        app_of(Fails(), retry_policy=policy)
