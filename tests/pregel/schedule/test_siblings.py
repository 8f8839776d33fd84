"""What the failure of a task does to its siblings, and what a deadline does to all tasks."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TypedDict

import pytest
from kit import cluster
from kit.drive import each_schedule
from kit.fleet import counting, working
from kit.graphs import CONFIG, Log, chain_of, graph_of
from kit.savers import local_saver

from stategraph import (
    START,
    Command,
    GraphDrained,
    InMemorySaver,
    RunControl,
    Send,
    StateGraph,
    entrypoint,
    interrupt,
    task,
)
from stategraph.pregel.clock import CLOCK
from stategraph.workers import JobDeadlineError, Queue

postgres = cluster.emptied


class Item(TypedDict):
    name: str


saver = local_saver


# -- on_failure ---------------------------------------------------------------------------------------------------


class Work:
    """Five Sends to one node. `b` and `d` fail as long as they are `broken`, and `e` asks."""

    def __init__(self, drive, saver, **options):
        self.ran = []
        self.broken = True
        builder = StateGraph(Log).add_node("work", self.awork if drive.is_async else self.work)
        builder.add_conditional_edges(START, lambda state: [Send("work", {"name": name}) for name in "abcde"], ["work"])
        self.app = builder.compile(saver, **options)

    def work(self, item: Item):
        name = item["name"]
        self.ran.append(name)
        if name in "bd" and self.broken:
            raise ConnectionError(name)
        return {"log": [interrupt("sure?") if name == "e" else name]}

    async def awork(self, item: Item):
        await asyncio.sleep(0)  # so that all have been started when one fails
        return self.work(item)


@pytest.mark.parametrize("limit", [None, 1])
def test_finish_lets_all_siblings_end(drive, saver, limit):
    config = CONFIG if limit is None else {**CONFIG, "max_concurrency": limit}
    work = Work(drive, saver, on_failure="finish")
    with pytest.raises(ConnectionError, match="b") as caught:
        drive.invoke(work.app, {}, config)
    assert "Task 'work' failed as well: ConnectionError('d')" in caught.value.__notes__
    assert sorted(work.ran) == [*"abcde"]
    tasks = drive.get_state(work.app, CONFIG).tasks
    assert [str(each.error) for each in tasks] == ["None", "b", "None", "d", "None"]
    assert [question.value for each in tasks for question in each.interrupts] == ["sure?"]

    work.ran.clear()
    work.broken = False
    asked = drive.invoke(work.app, None, CONFIG)
    assert sorted(work.ran) == ["b", "d", "e"], "those that had finished do not run again"
    assert len(asked["__interrupt__"]) == 1
    assert drive.invoke(work.app, Command(resume="e"), CONFIG)["log"] == [*"abcde"]


def test_stop_starts_no_further_one(drive, saver):
    work = Work(drive, saver)
    with pytest.raises(ConnectionError, match="b"):
        drive.invoke(work.app, {}, {**CONFIG, "max_concurrency": 1})
    assert work.ran == ["a", "b"]


def test_a_call_s_own_choice_wins(drive, saver):
    work = Work(drive, saver, on_failure="finish")
    with pytest.raises(ConnectionError, match="b"):
        drive.invoke(work.app, {}, {**CONFIG, "max_concurrency": 1}, on_failure="stop")
    assert work.ran == ["a", "b"]
    work = Work(drive, saver)
    with pytest.raises(ConnectionError, match="b"):
        drive.invoke(work.app, {}, {"configurable": {"thread_id": "u"}, "max_concurrency": 1}, on_failure="finish")
    assert work.ran == [*"abcde"]


@pytest.mark.parametrize(("own", "ran"), [(None, [*"abcde"]), ("stop", ["a", "b"])])
def test_a_graph_inside_does_as_the_one_around_unless_it_says_otherwise(drive, own, ran):
    work = Work(drive, None, on_failure=own)
    app = chain_of(Log, inner=work.app).compile(InMemorySaver(), on_failure="finish")
    with pytest.raises(ConnectionError, match="b"):
        drive.invoke(app, {}, {**CONFIG, "max_concurrency": 1})
    assert work.ran == ran


def test_coroutines_are_not_cancelled():
    ended = []

    async def fail(state):
        raise ConnectionError

    async def slow(state):
        await asyncio.sleep(0.01)
        ended.append("slow")
        return {}

    app = graph_of(Log, "S>fail S>slow", fail=fail, slow=slow).compile(on_failure="finish")
    with pytest.raises(ConnectionError):
        asyncio.run(app.ainvoke({}))
    assert ended == ["slow"]


def test_an_unknown_choice_is_refused():
    wrong = "go on"
    builder = chain_of(Log, a=lambda state: {})
    with pytest.raises(ValueError, match="on_failure must be 'stop', 'finish' or 'undo', got 'go on'"):
        builder.compile(on_failure=wrong)
    with pytest.raises(ValueError, match="on_failure must be 'stop', 'finish' or 'undo', got 'go on'"):
        builder.compile().invoke({}, on_failure=wrong)


# -- deadline -----------------------------------------------------------------------------------------------------


class Clock:
    """The time of day as runs with a deadline see it."""

    def __init__(self, patch):
        self.now = datetime(2030, 1, 1, tzinfo=UTC)
        patch.setattr(CLOCK, "time", lambda: self.now.timestamp())

    def pass_by(self, seconds):
        self.now += timedelta(seconds=seconds)

    def config(self, seconds, **more):
        return {**CONFIG, "deadline": self.now + timedelta(seconds=seconds), **more}


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def slow_steps(clock: Clock, saver):
    """Three steps that take a second each."""

    def step(name):
        def node(state):
            clock.pass_by(1)
            return {"log": [name]}

        return node

    builder = StateGraph(Log).add_sequence([(name, step(name)) for name in "abc"])
    return builder.add_edge(START, "a").compile(saver)


def test_no_superstep_starts_after_the_deadline(drive, saver, clock):
    thread = drive.on(slow_steps(clock, saver))
    with pytest.raises(GraphDrained, match="its deadline, 2030-01-01T00:00:02") as caught:
        thread.invoke({}, clock.config(2))
    assert "has come" in caught.value.reason
    state = thread.state
    assert state.next == ("c",) and state.values["log"] == ["a", "b"]
    assert thread.invoke(None, clock.config(10))["log"] == ["a", "b", "c"]


@each_schedule
def test_within_a_step_those_that_wait_do_not_start_and_the_others_are_kept(drive, saver, clock, schedule):
    ran = []

    def work(item: Item):
        ran.append(item["name"])
        clock.pass_by(1)
        return {"log": [item["name"]]}

    async def awork(item: Item):
        return work(item)

    builder = StateGraph(Log).add_node("work", awork if drive.is_async else work)
    builder.add_conditional_edges(START, lambda state: [Send("work", {"name": name}) for name in "abcde"], ["work"])
    thread = drive.on(builder.compile(saver, schedule=schedule))
    with pytest.raises(GraphDrained):
        thread.invoke({}, clock.config(2, max_concurrency=1))
    assert ran == ["a", "b"]
    kept = [True, True] if schedule == "supersteps" else []  # with "ready" they have been applied
    assert [bool(each.result) for each in thread.state.tasks] == [*kept, False, False, False]
    assert thread.invoke(None)["log"] == [*"abcde"]
    assert sorted(ran) == [*"abcde"]


@each_schedule
def test_no_error_handler_starts_after_the_deadline(drive, saver, clock, schedule):
    def fail(state):
        clock.pass_by(1)
        raise ValueError("no")

    builder = StateGraph(Log).add_node("fail", fail, error_handler=lambda state: {"log": ["handled"]})
    thread = drive.on(builder.add_edge(START, "fail").compile(saver, schedule=schedule))
    with pytest.raises(GraphDrained):
        thread.invoke({}, clock.config(1))
    assert thread.log == []
    assert thread.invoke(None)["log"] == ["handled"]


def test_no_further_task_call_starts(drive, saver, clock):
    ran = []

    @task
    def work(number):
        ran.append(number)
        clock.pass_by(1)
        return number

    @entrypoint(checkpointer=saver)
    def app(count):
        return [work(number).result() for number in range(count)]

    @entrypoint(checkpointer=saver)
    async def aapp(count):
        return [await work(number) for number in range(count)]

    chosen = aapp if drive.is_async else app
    with pytest.raises(GraphDrained):
        drive.invoke(chosen, 4, clock.config(2))
    assert ran == [0, 1]
    assert drive.invoke(chosen, None, CONFIG) == [0, 1, 2, 3]
    assert ran == [0, 1, 2, 3]


def test_a_graph_inside_takes_the_earlier_one(drive, saver, clock):
    inner = slow_steps(clock, None)
    for own, reached in ((timedelta(seconds=1), 1), (timedelta(days=1), 2)):
        began = clock.now
        app = chain_of(Log, inner=drive.node_of(inner, None, {"deadline": began + own})).compile(saver)
        with pytest.raises(GraphDrained):
            drive.invoke(app, {}, clock.config(2, configurable={"thread_id": str(reached)}))
        assert clock.now - began == timedelta(seconds=reached)


def test_a_control_of_the_caller_s_still_stops_the_run(drive, saver, clock):
    control = RunControl()
    control.request_drain("by hand")
    with pytest.raises(GraphDrained, match="by hand"):
        drive.invoke(slow_steps(clock, saver), {}, clock.config(10), control=control)


@pytest.mark.parametrize(("given", "error", "text"), [
    (datetime(2030, 1, 1), ValueError, "config: deadline must have a time zone, got datetime.datetime(2030, 1, 1, 0, 0)"),
    (5, TypeError, "config: deadline must be a datetime with a time zone, got 5"),
])  # fmt: skip
def test_what_is_no_deadline_is_refused(given, error, text):
    app = chain_of(Log, a=lambda state: {}).compile()
    with pytest.raises(error) as caught:
        app.invoke({}, {"deadline": given})
    assert str(caught.value) == text


def test_a_job_past_its_deadline_fails_once_and_can_be_resumed(postgres):
    passed = {"deadline": datetime.now(UTC) - timedelta(seconds=1)}
    with Queue.from_conn_string(postgres, counting) as queue, working(counting, postgres):
        queue.submit("t", {"log": [], "left": 2}, config=passed)
        ended = queue.result("t", wait=30)
        assert ended.status == "failed"
        with pytest.raises(JobDeadlineError, match="submit the input None with a later deadline"):
            ended.unwrap()
        queue.submit("t", None)
        assert queue.result("t", wait=30).unwrap()["log"] == [0, 1]
