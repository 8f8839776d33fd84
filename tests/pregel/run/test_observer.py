"""Observers receive what runs do, and wrap the code of nodes; they cannot change a run."""

from __future__ import annotations

import asyncio
import operator
import sys
from contextvars import ContextVar
from typing import Annotated

import pytest
from kit.graphs import chain_of, thread_config
from kit.recording_view import Log
from kit.savers import local_saver
from typing_extensions import TypedDict

from stategraph import (
    START,
    CachePolicy,
    CheckpointConflictError,
    InMemoryCache,
    Observer,
    ProcessExecutor,
    RetryPolicy,
    Send,
    StateGraph,
    add_observer,
    entrypoint,
    interrupt,
    task,
)
from stategraph.prebuilt import Tool, create_agent
from stategraph.testing import ScriptedModel, tool_call

SEEN = ContextVar("seen", default=None)
THREAD = thread_config("1")
QUICK = RetryPolicy(initial_interval=0.001, jitter=False)


class State(TypedDict, total=False):
    x: Annotated[list, operator.add]


class Around(Observer):
    """Sets a context variable around nodes."""

    def __init__(self, name="around"):
        self.name = name

    def around(self, task, call):
        token = SEEN.set((*(SEEN.get() or ()), f"{self.name} {task.node} {task.attempt}"))
        try:
            return call()
        finally:
            SEEN.reset(token)

    async def aaround(self, task, call):
        token = SEEN.set((*(SEEN.get() or ()), f"a{self.name} {task.node} {task.attempt}"))
        try:
            return await call()
        finally:
            SEEN.reset(token)


def look(state):
    return {"x": [SEEN.get()]}


async def alook(state):
    await asyncio.sleep(0)
    return {"x": [SEEN.get()]}


def chain(**nodes):
    return chain_of(State, **nodes)


def one(function, **options):
    return StateGraph(State).add_node("a", function, **options).add_edge(START, "a")


saver = local_saver


# -- events ---------------------------------------------------------------------------------------


def test_runs_steps_tasks_and_commits_are_observed(drive, saver):
    log = Log()
    app = chain(a=lambda state: {"x": [1]}, b=lambda state: {"x": [2]}).compile(saver, observer=log)
    assert drive.invoke(app, {"x": []}, THREAD) == {"x": [1, 2]}
    told = [event for event in log.events if event[0] != "committed"]
    assert told == [
        ("run", "StateGraph"),
        ("step", 1, ("a",)),
        ("task", "a"),
        ("task ended", "a", "finished", 1),
        ("step ended", 1),
        ("step", 2, ("b",)),
        ("task", "b"),
        ("task ended", "b", "finished", 1),
        ("step ended", 2),
        ("run ended", "finished", "NoneType"),
    ]
    assert [event[1] for event in log.events if event[0] == "committed"] == [-1, 0, 1, 2]


def test_failed_and_repeated_attempts_are_observed(drive):
    tries = []

    def flaky(state):
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError
        return {"x": [1]}

    log = Log()
    drive.invoke(one(flaky, retry_policy=QUICK).compile(), {"x": []}, observer=log)
    assert [event for event in log.events if "a" in event] == [
        ("task", "a"),
        ("failed", "a", 1, "ConnectionError"),
        ("retried", "a", 1, 0.001),
        ("failed", "a", 2, "ConnectionError"),
        ("retried", "a", 2, 0.002),
        ("task ended", "a", "finished", 3),
    ]


@pytest.mark.parametrize("timeout", [None, 60])
def test_a_failed_run_is_observed_with_its_error(drive, timeout):
    async def fail(state):
        raise OSError("disk")

    def fail_here(state):
        raise OSError("disk")

    log = Log()
    with pytest.raises(OSError, match="disk"):
        drive.invoke(one(fail if drive.is_async else fail_here, timeout=timeout).compile(), {"x": []}, observer=log)
    assert log.events[-4:] == [
        ("failed", "a", 1, "OSError"),
        ("task ended", "a", "failed", 1),
        ("step ended", 1),
        ("run ended", "failed", "OSError"),
    ]


def test_interrupts_and_answers_are_observed(drive, saver):
    log = Log()
    thread = drive.on(one(lambda state: {"x": [interrupt("sure?")]}).compile(saver, observer=log), THREAD)
    thread.invoke({"x": []})
    asked = [event for event in log.events if event[0] not in ("committed", "step", "step ended")]
    assert asked == [
        ("run", "StateGraph"),
        ("task", "a"),
        ("asked", "a", "sure?"),
        ("task ended", "a", "paused", 1),
        ("run ended", "paused", "NoneType"),
    ]
    del log.events[:]
    assert thread.resume("yes") == {"x": ["yes"]}
    answered = [event for event in log.events if event[0] not in ("committed", "step", "step ended")]
    assert answered == [
        ("run", "StateGraph"),
        ("loaded", 0),
        ("task", "a"),
        ("answered", "a"),
        ("task ended", "a", "finished", 1),
        ("run ended", "finished", "NoneType"),
    ]


def test_restored_and_cached_tasks_are_observed(drive, saver):
    broken = [True]

    def fail(state):
        if broken:
            raise OSError
        return {"x": [2]}

    graph = one(lambda state: {"x": [1]})
    graph.add_node("b", fail).add_edge(START, "b")
    log = Log()
    app = graph.compile(saver, observer=log)
    with pytest.raises(OSError):
        drive.invoke(app, {"x": []}, {**THREAD, "max_concurrency": 1})
    broken.clear()
    del log.events[:]
    assert drive.invoke(app, None, THREAD) == {"x": [1, 2]}
    assert ("restored", "a", "finished") in log.events and ("task", "a") not in log.events
    cached = one(look, cache_policy=CachePolicy()).compile(cache=InMemoryCache(), observer=log)
    drive.invoke(cached, {"x": []})
    del log.events[:]
    drive.invoke(cached, {"x": []})
    assert [event for event in log.events if "a" in event] == [
        ("task", "a"),
        ("cached", "a"),
        ("task ended", "a", "finished", 1),
    ]


def test_breakpoints_are_observed(drive):
    for option in ({"interrupt_before": ["b"]}, {"interrupt_after": ["a"]}):
        log = Log()
        drive.invoke(chain(a=look, b=look).compile(), {"x": []}, observer=log, **option)
        assert log.events[-1] == ("run ended", "paused", "NoneType")
        assert ("breakpoint", ("b",)) in log.events


def test_a_conflict_is_observed(drive, saver):
    log = Log()
    other = chain(a=look).compile(saver)

    def intrude(state):
        if not intruded:
            intruded.append(1)
            other.invoke({"x": [7]}, THREAD)
        return {"x": [1]}

    intruded = []
    app = chain(a=look, b=intrude).compile(saver, observer=log)
    with pytest.raises(CheckpointConflictError):
        drive.invoke(app, {"x": []}, THREAD)
    assert ("conflict", "CheckpointConflictError") in log.events
    assert log.events[-1][:2] == ("run ended", "failed")


def test_nested_graphs_task_calls_and_handlers_are_observed(drive):
    parents = []

    class Parents(Log):
        def run_started(self, run):
            parents.append(run.parent and (run.parent.node, run.parent.run.graph))

    @task
    def double(n):
        return 2 * n

    async def acall(state):
        return {"x": [await double(4)]}

    def call(state):
        return {"x": [double(4).result()]}

    inner = chain(call=acall if drive.is_async else call).compile(name="inner")
    graph = chain(sub=inner)
    graph.add_node("fail", lambda state: 1 / 0, error_handler=lambda state, error: {"x": [0]})
    graph.add_edge("sub", "fail")
    log = Parents()
    assert drive.invoke(graph.compile(observer=log, name="outer"), {"x": []}) == {"x": [8, 0]}
    assert parents == [None, ("sub", "outer")]
    assert [event[1] for event in log.events if event[0] == "task"] == ["sub", "call", "double", "fail", "__error_handler__fail"]
    assert [event[1:3] for event in log.events if event[0] == "task ended"] == [
        ("double", "finished"),
        ("call", "finished"),
        ("sub", "finished"),
        ("fail", "failed"),
        ("__error_handler__fail", "finished"),
    ]


def test_events_of_one_task_are_equal_and_those_of_others_are_not(drive):
    open_ = set()
    most = []

    class Balance(Observer):
        def task_started(self, task):
            assert task not in open_
            open_.add(task)
            most.append(len(open_))

        def task_ended(self, task, status, seconds, error):
            open_.remove(task)

    graph = StateGraph(State).add_node("each", look)
    graph.add_conditional_edges(START, lambda state: [Send("each", {}) for _ in range(20)], ["each"])
    drive.invoke(graph.compile(), {"x": []}, observer=Balance())
    assert not open_ and len(most) == 20


# -- around ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [None, 60])
@pytest.mark.parametrize("node", [look, alook])
def test_a_node_sees_the_context_variables_that_are_set_around_it(drive, node, timeout):
    if node is alook and not drive.is_async:
        pytest.skip("a coroutine needs an async run")
    app = one(node, timeout=timeout).compile(observer=Around("compiled"))
    a = "a" if node is alook else ""
    assert drive.invoke(app, {"x": []}, observer=Around("called")) == {"x": [(f"{a}compiled a 1", f"{a}called a 1")]}
    assert SEEN.get() is None


def test_subgraphs_and_calls_of_tasks_are_surrounded(drive):
    @task
    def seen(n):
        return SEEN.get()

    @entrypoint()
    def run(n):
        return seen(n).result()

    @entrypoint()
    async def arun(n):
        return await seen(n)

    found = drive.invoke(arun if drive.is_async else run, 1, observer=Around())
    assert found == ("aaround arun 1", "around seen 1") if drive.is_async else ("around run 1", "around seen 1")
    app = chain(sub=chain(leaf=look).compile()).compile(observer=Around())
    a = "a" if drive.is_async else ""
    assert drive.invoke(app, {"x": []}) == {"x": [(f"{a}around sub 1", "around leaf 1")]}


def test_what_around_returns_is_the_result(drive):
    class Fake(Observer):
        def around(self, task, call):
            return {"x": ["fake"]}

    assert drive.invoke(one(look).compile(), {"x": []}, observer=Fake()) == {"x": ["fake"]}


class Asked(Observer):
    """Notes what nodes ask of models and tools, and answers in the place of some."""

    def __init__(self, instead=None):
        self.log = []
        self.instead = instead

    def around_operation(self, task, operation, call):
        found = call() if self.instead is None else self.instead
        self.log.append((task.node, operation.kind, operation.name, operation.call_id, dict(operation.options)))
        return found

    async def aaround_operation(self, task, operation, call):
        found = await call() if self.instead is None else self.instead
        self.log.append((task.node, operation.kind, operation.name, operation.call_id, dict(operation.options)))
        return found


def test_what_a_node_asks_of_models_and_tools_is_surrounded(drive):
    def height(name):
        return {"Etna": "3369 m"}[name]

    async def aheight(name):
        return height(name)

    tool = Tool(aheight, name="height") if drive.is_async else height
    model = ScriptedModel([{"tool_calls": [tool_call("height", id="c1", name="Etna")]}, "high"])
    observer = Asked()
    app = create_agent(model, [tool])
    found = drive.invoke(app, {"messages": []}, observer=observer)
    assert [message["content"] for message in found["messages"]] == ["", "3369 m", "high"]
    asked = {"tools": model.requests[0][1]["tools"]}
    assert observer.log == [
        ("model", "chat", "", None, asked), ("height", "execute_tool", "height", "c1", {}), ("model", "chat", "", None, asked),
    ]  # fmt: skip


def test_an_observer_may_answer_in_the_place_of_a_model(drive):
    model = ScriptedModel([])
    fake = Asked(instead={"role": "assistant", "content": "from the cache"})
    found = drive.invoke(create_agent(model, []), {"messages": []}, observer=fake)
    assert found["messages"][-1]["content"] == "from the cache" and not model.requests


def test_an_observer_that_breaks_around_a_model_does_not_break_the_run(drive, caplog):
    class Broken(Observer):
        def around_operation(self, task, operation, call):
            raise LookupError("broken")

        async def aaround_operation(self, task, operation, call):
            await call()
            raise LookupError("broken")

    found = drive.invoke(create_agent(ScriptedModel(["hi"]), []), {"messages": []}, observer=Broken())
    assert found["messages"][-1]["content"] == "hi" and "broken" in caplog.text


def test_around_each_attempt(drive):
    seen = []

    def flaky(state):
        seen.append(SEEN.get())
        if len(seen) < 2:
            raise ConnectionError
        return {}

    drive.invoke(one(flaky, retry_policy=QUICK).compile(), {"x": []}, observer=Around())
    assert seen == [("around a 1",), ("around a 2",)]


def test_an_observer_cannot_swallow_an_interrupt(drive, saver):
    class Greedy(Observer):
        def around(self, task, call):
            try:
                return call()
            except BaseException:
                return {"x": ["swallowed"]}

    app = one(lambda state: {"x": [interrupt("sure?")]}).compile(saver, observer=Greedy())
    assert drive.invoke(app, {"x": []}, THREAD)["__interrupt__"][0].value == "sure?"


# -- where they are set ---------------------------------------------------------------------------


def test_an_observer_of_a_node_gets_only_its_tasks(drive):
    log = Log()
    graph = StateGraph(State).add_node("a", look, observer=[log, Around()]).add_node("b", look)
    app = graph.add_edge(START, "a").add_edge("a", "b").compile()
    assert drive.invoke(app, {"x": []}) == {"x": [("around a 1",), None]}
    assert log.events == [("task", "a"), ("task ended", "a", "finished", 1)]


def test_an_observer_of_the_process_gets_all_runs(drive):
    log = Log()
    app = one(look).compile()
    remove = add_observer(log)
    drive.invoke(app, {"x": []})
    remove()
    assert len(log.events) == 6
    drive.invoke(app, {"x": []})
    assert len(log.events) == 6

pytestmark = pytest.mark.filterwarnings("ignore:tool .* has no description:stategraph.GraphWarning")


NAMED = Around("named")


def test_an_observer_may_be_given_by_name(drive):
    app = one(look).compile(observer="test_observer:NAMED")
    assert drive.invoke(app, {"x": []}) == {"x": [("named a 1",)]}
    with pytest.raises(ValueError, match="observer 'test_observer:GONE' cannot be loaded"):
        one(look).compile(observer="test_observer:GONE")
    with pytest.raises(TypeError, match="observer must be an Observer"):
        drive.invoke(app, {"x": []}, observer=print)


@pytest.fixture(scope="module")
def processes():
    with ProcessExecutor(1) as executor:
        yield executor


class Unpicklable(Around):
    def __init__(self, name):
        super().__init__(name)
        self.lock = sys.stdout


@pytest.mark.parametrize("node", [look, alook])
def test_around_runs_in_the_process_of_the_node(drive, processes, node, caplog):
    log = Log()
    app = one(node).compile(executor=processes, observer=[Around(), log, "test_observer:NAMED", Unpicklable("lock")])
    a = "a" if node is alook else ""
    assert drive.invoke(app, {"x": []}) == {"x": [(f"{a}around a 1", f"{a}named a 1")]}
    assert [event[0] for event in log.events if "a" in event] == ["task", "task ended"]
    assert ["cannot be pickled" in record.message for record in caplog.records] == [True]


def die(state):
    import os

    os._exit(3)


@pytest.mark.trial
def test_a_lost_worker_is_observed(drive):
    log = Log()
    with ProcessExecutor(1) as executor, pytest.raises(Exception, match="worker"):
        drive.invoke(one(die).compile(executor=executor, observer=log), {"x": []})
    assert log.events.count(("lost", "a")) >= 1


# -- mistakes -------------------------------------------------------------------------------------


class Broken(Observer):
    """Raises wherever it is called."""


def _raise(*args):
    raise ValueError("a mistake")


async def _araise(*args):
    raise ValueError("a mistake")


for _name in [name for name in vars(Observer) if not name.startswith("_")]:
    setattr(Broken, _name, _araise if _name == "aaround" else _raise)


@pytest.mark.parametrize("node", [look, alook])
def test_an_observer_that_raises_warns_once_and_never_breaks_the_run(drive, saver, node, caplog):
    if node is alook and not drive.is_async:
        pytest.skip("a coroutine needs an async run")
    app = chain(a=node, b=node).compile(saver, observer=Broken())
    assert drive.invoke(app, {"x": []}, THREAD) == {"x": [None, None]}
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len(set(messages)) > 6
    assert "Broken.task_started() raised an error; the run is not affected" in messages


def test_an_observer_that_does_not_return_the_result_warns(drive, caplog):
    class Forgets(Observer):
        def around(self, task, call):
            call()

    assert drive.invoke(one(look).compile(), {"x": []}, observer=Forgets()) == {"x": [None]}
    (record,) = caplog.records
    assert "around() must return what call() returned, got None" in record.getMessage()


def test_an_observer_may_have_methods_that_are_named_as_the_engines_own(drive):
    class Named(Observer):
        ended = False

        def attempt_span(self, task):
            raise AssertionError("it is not the engine's")

        def task_ended(self, task, status, seconds, error):
            self.ended = True

    observer = Named()
    app = chain_of(State, a=lambda state: {"x": [1]}).compile(observer=observer)
    assert drive.invoke(app, {"x": []}) == {"x": [1]} and observer.ended
