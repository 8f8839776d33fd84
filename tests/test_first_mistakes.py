"""Mistakes of somebody who tries the engine for the first time: each gets a sentence with the way out, at once."""

from __future__ import annotations

from operator import add
from typing import Annotated, Any, TypedDict

import pytest
from conftest import each_case

from stategraph import (
    START,
    CachePolicy,
    Command,
    InMemoryCache,
    InMemorySaver,
    Limit,
    Observer,
    Runtime,
    Send,
    StateGraph,
    TimeoutPolicy,
    interrupt,
)
from stategraph.pregel.errors import (
    EmptyInputError,
    GraphWarning,
    InvalidGraphError,
    InvalidRouteError,
    InvalidUpdateError,
    UnknownInterruptError,
)
from stategraph.testing import record, run_node

THREAD = {"configurable": {"thread_id": "t-1"}}


class State(TypedDict, total=False):
    n: int
    log: Annotated[list[str], add]


def one(node: Any, **options: Any) -> StateGraph[Any]:
    return StateGraph(State, **options).add_node("a", node).add_edge(START, "a")


def told(error: BaseException) -> str:
    return "\n".join((str(error), *getattr(error, "__notes__", ())))


def test_a_write_that_the_reducer_cannot_take_names_reducer_and_types(drive: Any) -> None:
    with pytest.raises(TypeError) as caught:
        drive.invoke(one(lambda state: {"log": "abc"}).compile(), {"n": 1})
    assert "key 'log', written by a" in told(caught.value)
    assert "Its reducer add folds writes into a list, and got a str." in told(caught.value)


def test_an_answer_that_does_not_fit_names_question_and_says_that_it_is_still_open(drive: Any) -> None:
    app = one(lambda state: {"n": interrupt("How many?", response_schema=int)}).compile(InMemorySaver())
    drive.invoke(app, {"n": 1}, THREAD)
    with pytest.raises(ValueError, match="valid integer") as caught:
        drive.invoke(app, Command(resume="abc"), THREAD)
    assert "The answer 'abc' does not fit the response_schema of the question 'How many?'" in told(caught.value)
    assert "still open" in told(caught.value)
    assert drive.invoke(app, Command(resume=3), THREAD)["n"] == 3


@pytest.mark.parametrize("wrong", ["30s", True, [30]])
def test_a_timeout_that_is_no_time(wrong: Any) -> None:
    text = "must be a number of seconds or a timedelta, got"
    with pytest.raises(TypeError, match=text):
        StateGraph(State).add_node("a", lambda state: {}, timeout=wrong)
    with pytest.raises(TypeError, match=text):
        TimeoutPolicy(idle_timeout=wrong)


def test_a_router_that_misspells_a_key_of_its_path_map(drive: Any) -> None:
    graph = StateGraph(State).add_node("write", lambda state: {})
    graph.add_conditional_edges(START, lambda state: "wriet", ["write"])
    with pytest.raises(InvalidRouteError, match="got 'wriet'; did you mean 'write'"):
        drive.invoke(graph.compile(), {"n": 1})


def test_a_router_without_a_return(drive: Any) -> None:
    graph = StateGraph(State).add_node("write", lambda state: {})
    graph.add_conditional_edges(START, lambda state: None, ["write"])
    with pytest.raises(InvalidRouteError, match="got None; is a return missing"):
        drive.invoke(graph.compile(), {"n": 1})


def test_a_function_in_place_of_the_name_of_its_node() -> None:
    def write(state: State) -> State:
        return {}

    with pytest.raises(InvalidGraphError, match="did you mean 'write'"):
        StateGraph(State).add_node(write).add_edge(START, write)


def test_a_context_that_was_not_given(drive: Any) -> None:
    class User(TypedDict):
        name: str

    def greet(state: State, runtime: Runtime[User]) -> State:
        return {"n": len(runtime.context["name"])}

    app = one(greet, context_schema=User).compile()
    with pytest.raises(TypeError, match="NoneType") as caught:
        drive.invoke(app, {"n": 1})
    assert "runtime.context is None: the call passed no context= (context_schema: User)" in told(caught.value)
    assert drive.invoke(app, {"n": 1}, context={"name": "ann"})["n"] == 3


def test_a_bare_except_around_a_question(drive: Any) -> None:
    def node(state: State) -> State:
        try:
            return {"n": interrupt("?")}
        except:  # noqa: E722 - the mistake
            return {"n": -1}

    with pytest.warns(GraphWarning, match="node 'a' asked '\\?' and yet came to its end"):
        assert drive.invoke(one(node).compile(InMemorySaver()), {"n": 1}, THREAD)["n"] == -1


def test_an_answer_to_a_thread_on_which_nothing_has_run(drive: Any) -> None:
    app = one(lambda state: {"n": interrupt("?")}).compile(InMemorySaver())
    with pytest.raises(UnknownInterruptError, match="no open question") as caught:
        drive.invoke(app, Command(resume=1), THREAD)
    assert "Nothing has run on thread 't-1' yet: is its thread_id right?" in told(caught.value)


def test_an_answer_that_is_given_as_an_input(drive: Any) -> None:
    app = one(lambda state: {"n": interrupt("?")}).compile(InMemorySaver())
    with pytest.raises(InvalidUpdateError, match=r"needs at least one of the keys 'log', 'n'; .*Command\(resume=\.\.\.\)"):
        drive.invoke(app, {"resume": 1}, THREAD)


def test_the_path_of_a_file_in_place_of_a_saver() -> None:
    with pytest.raises(TypeError, match=r"with SqliteSaver\.from_conn_string\('threads\.db'\) as saver"):
        one(lambda state: {}).compile("threads.db")


def test_nothing_to_go_on_with_names_the_thread(drive: Any) -> None:
    with pytest.raises(EmptyInputError, match="thread 't-1' has no pending work"):
        drive.invoke(one(lambda state: {}).compile(InMemorySaver()), None, THREAD)


# -- graphs and nodes ---------------------------------------------------------------------------------------------------


def test_a_graph_inside_that_shares_no_key_with_the_graph_around() -> None:
    class Other(TypedDict):
        question: str

    inner = StateGraph(Other).add_node("ask", lambda state: {"question": "?"}).add_edge(START, "ask").compile()
    with pytest.warns(GraphWarning, match="node 'sub' is a graph that shares no key .* its keys: 'question'.*call it in a function"):
        StateGraph(State).add_node("sub", inner).add_edge(START, "sub").compile()


def test_a_graph_inside_that_was_not_compiled() -> None:
    inner = StateGraph(State).add_node("a", lambda state: {}).add_edge(START, "a")
    with pytest.raises(TypeError, match="got StateGraph: .*; compile\\(\\) it first"):
        StateGraph(State).add_node("sub", inner)


def test_the_store_of_a_graph_without_one(drive: Any) -> None:
    def remember(state: State, runtime: Runtime) -> State:
        runtime.store.put(("notes",), "1", {})  # type: ignore[union-attr]
        return {}

    with pytest.raises(AttributeError, match="'put'") as caught:
        drive.invoke(one(remember).compile(), {"n": 1})
    assert "The graph has no store: compile(store=...)" in told(caught.value)


def test_the_state_where_a_send_brings_something_else(drive: Any) -> None:
    graph = StateGraph(State).add_node("a", lambda task: {"n": task["n"]})
    graph.add_conditional_edges(START, lambda state: [Send("a", {"url": "x"})], ["a"])
    with pytest.raises(KeyError) as caught:
        drive.invoke(graph.compile(), {"n": 1})
    assert "The input of this task is what its Send carries, which has the keys 'url'" in told(caught.value)


def test_a_cache_policy_in_a_graph_without_a_cache(drive: Any) -> None:
    graph = StateGraph(State).add_node("a", lambda state: {"n": 1}, cache_policy=CachePolicy()).add_edge(START, "a")
    with pytest.warns(GraphWarning, match="node 'a' has a cache_policy, but the graph has no cache: compile\\(cache="):
        drive.invoke(graph.compile(), {"n": 1})
    outer = StateGraph(State).add_node("inner", graph.compile()).add_edge(START, "inner").compile(cache=InMemoryCache())
    assert drive.invoke(outer, {"n": 1})["n"] == 1, "a graph inside has the cache of the graph around it"


@pytest.mark.parametrize("wrong", ["minute", True])
def test_a_limit_per_something_that_is_no_time(wrong: Any) -> None:
    with pytest.raises(TypeError, match="Limit: per must be a number of seconds or a timedelta, got"):
        Limit(3, per=wrong)


# -- observers and the test kit -----------------------------------------------------------------------------------------


def test_a_misspelt_method_of_an_observer() -> None:
    with pytest.warns(GraphWarning, match="Timings.task_end is no event of an Observer; did you mean 'task_ended'"):

        class Timings(Observer):
            def task_end(self, task: Any) -> None: ...

    class Helpers(Observer):
        def note(self, text: str) -> None: ...
        def _task_end(self) -> None: ...


def test_an_observers_class_in_place_of_an_instance() -> None:
    with pytest.raises(TypeError, match="pass an instance, not the class"):
        one(lambda state: {}).compile(observer=Observer)


def test_an_answer_to_a_question_that_was_never_asked() -> None:
    app = one(lambda state: {"n": interrupt("How many?")}).compile()
    with pytest.raises(ValueError, match="no question is 'Why\\?'; open: 'How many\\?'"):
        record(app, {"n": 1}, answers={"Why?": 1})
    with pytest.raises(ValueError, match="no question is 'Why\\?'"):
        run_node(app, "a", {}, answers={"Why?": 1})


# -- errors and texts that fail themselves -----------------------------------------------------------------


class Textless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Nameless(Textless):
    __repr__ = Textless.__str__


@each_case("error", [Textless(), Nameless(), KeyError([1])])
@pytest.mark.parametrize("schedule", ["supersteps", "ready"])
def test_an_error_whose_text_fails_is_raised_as_it_is(drive: Any, local_saver: Any, schedule: Any, error: Exception) -> None:
    if drive.is_async and isinstance(error, Nameless):
        return  # asyncio.run itself fails on it

    def fail(state: State) -> None:
        raise error

    app = one(fail).add_node("b", fail).add_edge(START, "b").compile(local_saver, schedule=schedule)
    thread = {"configurable": {"thread_id": type(error).__name__}}
    for mode in ("values", "tasks", "debug"):
        with pytest.raises(type(error)) as caught:
            drive.stream(app, {"n": 1}, thread, stream_mode=mode)
        assert caught.value is error
        assert any("task with name 'a'" in note for note in error.__notes__)
        assert any("'b' failed as well" in note for note in error.__notes__)
    assert drive.get_state(app, thread).next == ("a", "b")
