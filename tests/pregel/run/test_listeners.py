"""A listener's spans surround a run, its attempts and its routers, outside the loop: the same for sync and async."""

from __future__ import annotations

import asyncio
import operator
from contextvars import ContextVar
from typing import Annotated

import pytest
from kit.graphs import thread_config
from typing_extensions import TypedDict

from stategraph import START, Command, RetryPolicy, StateGraph, entrypoint, interrupt, task
from stategraph.checkpoint import InMemorySaver
from stategraph.pregel.task.observers import EngineObserver

SEEN = ContextVar("seen", default=None)


class State(TypedDict, total=False):
    x: Annotated[list, operator.add]


class Noting(EngineObserver):
    """A listener that notes what it surrounds, and sets a context variable in it."""

    def __init__(self):
        self.log = []

    def run_span(self, run):
        return Note(self, "run")

    def attempt_span(self, task):
        return Note(self if not task.node.hidden else Noting(), task.name)  # the input is a task, too

    def router_span(self, task, place, router, state):
        return Note(self, f"router {place} of {task.name}")

    def config_of(self, task):
        return {**task.own_config(), "seen_by": task.name}


class Note:
    def __init__(self, listener: Noting, name):
        self.listener, self.name = listener, name
        self.result = None

    def enter(self):
        self.listener.log.append(("enter", self.name))
        SEEN.set(self.name)

    def returned(self, result):
        self.result = result

    def leave(self, error: BaseException | None):
        self.listener.log.append(("leave", self.name, self.result if error is None else type(error).__name__))

    async def aenter(self):
        await asyncio.sleep(0)
        self.enter()

    async def aleave(self, error: BaseException | None):
        await asyncio.sleep(0)
        self.leave(error)


def listened(app):
    """The graph, with a listener to all its runs, and what that notes."""
    listener, run = Noting(), app._run

    def with_listener(*args):
        made = run(*args)
        made.listener = listener
        return made

    app._run = with_listener
    return app, listener.log


def one_node(function, **options):
    graph = StateGraph(State)
    graph.add_node("a", function, **options)
    graph.add_edge(START, "a")
    return graph


def test_it_surrounds_run_attempt_and_router(drive):
    def node(state, config):
        assert config["seen_by"] == "a"
        return {"x": [SEEN.get()]}

    def route(state):
        assert SEEN.get() == "router 3 of a"
        return "b"

    graph = one_node(node)
    graph.add_node("b", lambda state: {"x": [SEEN.get()]})
    graph.add_conditional_edges("a", route, ["b"])
    app, log = listened(graph.compile())
    assert drive.invoke(app, {"x": []}) == {"x": ["a", "b"]}
    assert log == [
        ("enter", "run"),
        ("enter", "a"),
        ("enter", "router 3 of a"),
        ("leave", "router 3 of a", "b"),
        ("leave", "a", {"x": ["a"]}),
        ("enter", "b"),
        ("leave", "b", {"x": ["b"]}),
        ("leave", "run", None),
    ]


@pytest.mark.parametrize("timeout", [None, 60])
def test_each_attempt_has_a_span_of_its_own(drive, timeout):
    tries = []

    def node(state):
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError
        return {"x": [SEEN.get()]}

    policy = RetryPolicy(initial_interval=0.001, jitter=False)
    app, log = listened(one_node(node, retry_policy=policy, timeout=timeout).compile())
    assert drive.invoke(app, {"x": []}) == {"x": ["a"]}
    assert log[1:-1] == [
        ("enter", "a"),
        ("leave", "a", "ConnectionError"),
        ("enter", "a"),
        ("leave", "a", {"x": ["a"]}),
    ]


def test_a_pause_is_passed_to_listeners_as_its_signal(drive):
    app, log = listened(one_node(lambda state: {"x": [interrupt("?")]}).compile(InMemorySaver()))
    config = thread_config("1")
    drive.invoke(app, {"x": []}, config)
    assert log[1:] == [("enter", "a"), ("leave", "a", "GraphInterrupt"), ("leave", "run", None)]
    del log[:]
    drive.invoke(app, Command(resume=5), config)
    assert log[1:-1] == [("enter", "a"), ("leave", "a", {"x": [5]})]


def test_a_run_that_fails_is_left_with_its_error(drive):
    app, log = listened(one_node(lambda state: 1 / 0).compile())
    with pytest.raises(ZeroDivisionError):
        drive.invoke(app, {"x": []})
    assert log[1:] == [("enter", "a"), ("leave", "a", "ZeroDivisionError"), ("leave", "run", "ZeroDivisionError")]


def test_a_reader_has_all_chunks_before_the_run_is_left():
    app, log = listened(one_node(lambda state: {"x": [1]}).compile())
    for _ in app.stream({"x": []}, stream_mode="updates"):
        log.append("chunk")
    assert log[-2:] == ["chunk", ("leave", "run", None)]


def test_calls_of_tasks_are_attempts_too():
    @task
    def double(n):
        return 2 * n

    @entrypoint()
    def run(n):
        return double(n).result()

    app, log = listened(run)
    assert app.invoke(2) == 4
    assert log == [
        ("enter", "run"),
        ("enter", "run"),
        ("enter", "double"),
        ("leave", "double", 4),
        ("leave", "run", 4),
        ("leave", "run", None),
    ]


def test_nested_runs_have_a_listener_of_their_own():
    inner, inside = listened(one_node(lambda state: {"x": [1]}).compile(name="inner"))
    app, outside = listened(one_node(inner).compile(name="outer"))
    app.invoke({"x": []})
    assert [entry[:2] for entry in inside] == [("enter", "run"), ("enter", "a"), ("leave", "a"), ("leave", "run")]
    assert [entry[:2] for entry in outside] == [("enter", "run"), ("enter", "a"), ("leave", "a"), ("leave", "run")]
