"""Features that work with schedule="ready" as they do in supersteps."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from kit import cluster
from kit.graphs import CONFIG, EMPTY, thread_config
from kit.ready_graphs import (
    ask,
    beside_a_chain,
    build,
    by_order,
    ends_by,
    ends_in,
    ready,
    sends,
    show,
    writer,
)

from stategraph import (
    START,
    Command,
    GraphDrained,
    InMemorySaver,
    NodeTimeoutError,
    RetryPolicy,
    RunControl,
    Runtime,
    StateGraph,
    interrupt,
    task,
)
from stategraph.checkpoint import Retention
from stategraph.testing import virtual_time

postgres = cluster.emptied
pytestmark = pytest.mark.trial
CALLED = []


@task
def double(number):
    CALLED.append(number)
    return number * 2


CHAIN_FIRST = by_order("a", "b", "c", "long")
HOW = pytest.mark.parametrize("how", [{}, {"durability": "exit"}])


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_calls_of_a_task_are_found_at_its_origin(drive, saver, durability):
    CALLED.clear()
    effects = []
    failing = [True]

    def long(state, runtime: Runtime[Any]):
        first = double(1).result()
        runtime.once("effect", effects.append, "had")
        if failing.pop() if failing else False:
            raise RuntimeError("after the effect")
        answer = interrupt("?")
        return {"log": [f"{first}{double(2).result()}{answer}{len(state['log'])}"]}

    def app():
        return beside_a_chain(saver, long, on_failure="finish")

    with ends_by(CHAIN_FIRST):
        with pytest.raises(RuntimeError):
            drive.invoke(app(), EMPTY, CONFIG, durability=durability)
        assert drive.get_state(app(), CONFIG).next == ("d", "long")
        drive.invoke(app(), None, CONFIG, durability=durability)
        result = drive.invoke(app(), Command(resume="!"), CONFIG, durability=durability)
    assert result["log"] == ["a", "b", "c", "24!0", "d"]
    assert (CALLED, effects) == ([1, 2], ["had"])


@HOW
@pytest.mark.parametrize("inner", ["supersteps", "ready"])
@pytest.mark.parametrize("outer", ["supersteps", "ready"])
@pytest.mark.filterwarnings("ignore::stategraph.GraphWarning")
def test_a_nested_graph_resumes_where_it_stopped(drive, saver, inner, outer, how):
    ran = []

    def first(state):
        ran.append(1)
        return {"log": ["first"]}

    nodes = {"first": first, "ask": ask}
    nested = build("S>first>ask>last", nodes=nodes).compile(schedule=inner)

    def app():
        return build("S>a>b>c S>long>d", nodes={"long": nested}).compile(saver, schedule=outer)

    drive.invoke(app(), EMPTY, CONFIG, **how)
    state = drive.get_state(app(), CONFIG, subgraphs=True)
    inside = next(each.state for each in state.tasks if each.name == "long")
    assert (inside.values["log"], inside.next) == (["first"], ("ask",))
    result = drive.invoke(app(), Command(resume="yes"), CONFIG, **how)
    assert {"first", "yes", "last", "c", "d"} <= set(result["log"])
    assert len(ran) == 1 and drive.get_state(app(), CONFIG).next == ()


@HOW
def test_a_long_sleep_lets_the_other_branches_continue(drive, saver, how):
    def long(state, runtime: Runtime[Any]):
        runtime.sleep(3600)
        return {"log": ["long"]}

    with virtual_time() as clock:
        thread = drive.on(beside_a_chain(saver, long))
        assert "__sleep__" in thread.invoke(EMPTY, **how)
        state = thread.state
        assert (state.values["log"], state.wake_at is not None) == (["a", "b", "c"], True)
        assert "__sleep__" in thread.invoke(None, **how)
        clock.advance(3600)
        assert thread.invoke(None, **how)["log"] == ["a", "b", "c", "long", "d"]


def test_origins_of_running_tasks_are_not_pruned(drive, saver):
    thread = drive.on(beside_a_chain(saver, lambda state: {"log": [interrupt("?") + str(len(state["log"]))]}))
    thread.invoke(EMPTY)
    saver.prune(["t"])
    assert [each.metadata["step"] for each in thread.history()] == [3, 0]
    assert thread.resume("yes")["log"][-2:] == ["yes0", "d"]
    saver.prune(["t"])
    assert [each.metadata["step"] for each in thread.history()] == [5]


def test_origins_stay_when_a_long_thread_is_pruned(drive, saver, monkeypatch):
    monkeypatch.setattr("stategraph.checkpoint.sql.pruning.LONG", 2)
    thread = drive.on(beside_a_chain(saver, lambda state: {"log": [interrupt("?") + str(len(state["log"]))]}))
    thread.invoke(EMPTY)
    saver.prune(["t"], keep_last=2)
    assert [each.metadata["step"] for each in thread.history()] == [3, 2, 0]
    assert thread.resume("yes")["log"][-2:] == ["yes0", "d"]


def test_origins_stay_under_a_retention(drive):
    saver = InMemorySaver(retention=Retention(keep_last=1))
    thread = drive.on(beside_a_chain(saver, lambda state: {"log": [interrupt("?") + str(len(state["log"]))]}))
    thread.invoke(EMPTY)
    assert thread.resume("yes")["log"][-2:] == ["yes0", "d"]


def test_a_copied_thread_resumes(drive, saver):
    app = beside_a_chain(saver, ask)
    drive.invoke(app, EMPTY, CONFIG)
    saver.copy_thread("t", "u")
    other = thread_config("u")
    assert drive.invoke(app, Command(resume="yes"), other)["log"][-2:] == ["yes", "d"]


def test_answers_to_several_questions_survive_a_crash(drive, saver):
    """The first task takes its answer and ends a step; then the process dies."""

    class Died(BaseException):
        pass

    dies = [True]

    def late(state):
        answer = interrupt("late?")
        if dies and dies.pop():
            raise Died
        return {"log": [f"late {answer}"]}

    def app():
        nodes = {"soon": lambda state: {"log": ["soon " + interrupt("soon?")]}, "late": late}
        return ready("S>soon>x S>late", nodes=nodes, saver=saver)

    drive.invoke(app(), EMPTY, CONFIG)
    ids = {each.value: each.id for each in drive.get_state(app(), CONFIG).interrupts}
    dies[:] = [True]
    answers = {ids["soon?"]: "one", ids["late?"]: "two"}
    with ends_in("soon", "x", "late"), pytest.raises(Died):
        drive.invoke(app(), Command(resume=answers), CONFIG)
    assert drive.get_state(app(), CONFIG).values["log"] == ["soon one", "x"]
    assert drive.invoke(app(), None, CONFIG)["log"] == ["soon one", "x", "late two"]


# -- while it runs -------------------------------------------------------------------------------------------------


def test_coroutines_run_at_the_same_time():
    begun = asyncio.Event()

    async def late(state):
        await asyncio.wait_for(begun.wait(), 10)
        return {"log": ["late"]}

    async def last(state):
        begun.set()
        return {"log": ["last"]}

    app = ready("S>a>b>last S>late", nodes={"late": late, "last": last})
    assert asyncio.run(app.ainvoke(EMPTY, CONFIG))["log"] == ["a", "b", "last", "late"]
    assert show([*app.get_state_history(CONFIG)]) == "a / b / last / late"


def test_a_reader_sees_what_is_stored(drive, saver):
    app = beside_a_chain(saver, writer("long"))
    seen = []
    with ends_by(CHAIN_FIRST):
        drive.stream(
            app, EMPTY, CONFIG, each=lambda chunk: seen.append((*chunk, app.get_state(CONFIG).values["log"][-1]))
        )
    assert seen == [(name, name) for name in ("a", "b", "c", "long", "d")]


def test_each_mode_shows_a_step_for_what_has_ended(drive):
    app = beside_a_chain(InMemorySaver(), writer("long"))
    modes = ["values", "updates", "tasks", "checkpoints", "debug"]
    with ends_by(CHAIN_FIRST):
        chunks = drive.stream(app, EMPTY, CONFIG, stream_mode=modes)
    by_mode = {mode: [data for kind, data in chunks if kind == mode] for mode in modes}
    assert [len(each["log"]) for each in by_mode["values"]] == [0, 1, 2, 3, 4, 5]
    assert [[*each] for each in by_mode["updates"]] == [["a"], ["b"], ["c"], ["long"], ["d"]]
    tasks = [(each["name"], "result" in each) for each in by_mode["tasks"]]
    assert tasks[:4] == [("a", False), ("long", False), ("a", True), ("b", False)]
    assert len(tasks) == 10
    assert [each["next"] for each in by_mode["checkpoints"]][2:4] == [["b", "long"], ["c", "long"]]


def test_a_reader_that_leaves_keeps_what_has_ended(drive, saver):
    thread = drive.on(beside_a_chain(saver, writer("long")))
    with ends_by(CHAIN_FIRST):
        thread.stream(EMPTY, stream_mode="updates", take=2)
        assert thread.log[:2] == ["a", "b"]
        assert thread.invoke(None)["log"] == ["a", "b", "c", "long", "d"]


def test_a_drained_run_can_be_resumed(drive, saver):
    control = RunControl()

    def stop(state):
        control.request_drain("deploy")
        return {"log": ["long"]}

    thread = drive.on(beside_a_chain(saver, stop))
    with ends_in("a", "long", "b"):
        with pytest.raises(GraphDrained):
            thread.invoke(EMPTY, control=control)
        # b was at work, and has ended; nothing has started since.
        assert thread.log == ["a", "long", "b"]
        assert thread.invoke(None)["log"] == ["a", "long", "b", "c", "d"]


# -- policies ------------------------------------------------------------------------------------------------------


def test_retries_and_timeouts_are_as_ever(drive):
    tried = []

    def flaky(state):
        tried.append(1)
        if len(tried) < 3:
            raise ConnectionError
        return {"log": ["flaky"]}

    graph = build("S>a>b")
    graph.add_node("flaky", flaky, retry_policy=RetryPolicy(initial_interval=0.001, max_attempts=3))
    graph.add_edge(START, "flaky")
    assert sorted(drive.invoke(graph.compile(schedule="ready"), EMPTY)["log"]) == ["a", "b", "flaky"]
    leave = threading.Event()
    graph = build("S>a>b")
    graph.add_node("stuck", lambda state: leave.wait(10), timeout=0.05)
    graph.add_edge(START, "stuck")
    thread = drive.on(ready(graph, on_failure="finish"))
    with pytest.raises(NodeTimeoutError):
        thread.invoke(EMPTY)
    leave.set()
    assert thread.log == ["a", "b"]


def elsewhere(state):
    return {"log": ["elsewhere"]}


def test_nodes_run_on_executors(drive):
    graph = build("S>a>b")
    graph.add_node("p", elsewhere, executor="processes").add_edge(START, "p")
    assert sorted(drive.invoke(graph.compile(schedule="ready"), EMPTY)["log"]) == ["a", "b", "elsewhere"]


# -- looked at -----------------------------------------------------------------------------------------------------


__all__ = ["StateGraph"]


def test_equal_sends_and_many_of_them_each_run_once(drive):
    """Also where a breakpoint holds them: what is kept is told by its place, not by what it says."""
    thread = drive.on(ready("r:S=w w>sum", {"S": sends("w", *[1] * 300)}))
    assert thread.invoke(EMPTY, interrupt_before=["w"])["log"] == []
    assert thread.state.next == ("w",) * 300
    assert thread.invoke(None)["log"] == ["w1"] * 300 + ["sum"]
