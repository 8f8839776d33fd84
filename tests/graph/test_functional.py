"""The functional API: what an entrypoint is and accepts, what a task is, what a resume repeats and what it does not."""

from __future__ import annotations

import asyncio
import operator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import pytest
from kit.drive import each_case, each_durability
from kit.graphs import CONFIG, chain_of, parallel_of, thread_config
from typing_extensions import TypedDict

from stategraph import (
    Command,
    InMemorySaver,
    InMemoryStore,
    InvalidGraphError,
    Pregel,
    Runtime,
    entrypoint,
    interrupt,
    task,
)
from stategraph.pregel import EmptyInputError


class State(TypedDict, total=False):
    n: int
    log: Annotated[list, operator.add]


def answers(result):
    """The questions in a result, by value."""
    return [question.value for question in result["__interrupt__"]]


# -- what an entrypoint is ------------------------------------------------------------------------------------


def test_it_is_a_pregel_of_one_node_and_three_channels():
    @entrypoint()
    def flow(x: int) -> str:
        return str(x)

    assert isinstance(flow, Pregel)
    assert list(flow.nodes) == ["flow"]
    assert set(flow.channels) == {"__start__", "__end__", "__previous__", "__pregel_tasks"}
    assert flow.channels["__start__"].ValueType is int
    assert flow.channels["__end__"].ValueType is str
    assert (flow.input_channels, flow.output_channels) == ("__start__", "__end__")


def test_it_is_named_after_what_it_was_made_of():
    def flow(x: int) -> int:
        return x

    class Flow:
        def __call__(self, x: int) -> int:
            return x + 1

    assert entrypoint()(flow).name == "flow"
    assert entrypoint()(Flow()).name == "Flow"
    assert entrypoint()(Flow()).invoke(1) == 2
    assert entrypoint()(partial(lambda y, x: x + y, 1)).invoke(1) == 2


def test_what_cannot_be_an_entrypoint():
    def no_input(): ...

    def gives(x: int):
        yield x

    async def gives_async(x: int):
        yield x

    def two(x: int, y: int): ...

    with pytest.raises(InvalidGraphError, match="first parameter"):
        entrypoint()(no_input)
    for generator in (gives, gives_async):
        with pytest.raises(NotImplementedError, match="generator"):
            entrypoint()(generator)
    with pytest.raises(TypeError, match="'y'"):
        entrypoint()(two)


@each_case("value", [0, "", False, [], {}, ()])
def test_a_falsy_input_is_an_input(drive, value):
    assert drive.invoke(entrypoint()(lambda x: [x]), value) == [value]


def test_none_is_no_input(drive):
    with pytest.raises(EmptyInputError):
        drive.invoke(entrypoint()(lambda x: x), None)


@each_case("value", [None, 0, [1], (1, 2), "x", Command(goto="nowhere"), object()])
def test_any_value_can_be_returned(drive, value):
    """A Command is a value like any other: there is nowhere to go."""
    assert drive.invoke(entrypoint()(lambda x: value), 1) is value


def test_what_it_may_take(drive):
    store = InMemoryStore()
    seen = {}

    @entrypoint(store=store)
    def flow(x: int, config: Any, runtime: Runtime, writer: Any, store: Any, previous: Any) -> None:
        seen.update(config=config, runtime=runtime, store=store, previous=previous)
        writer("hello")

    assert drive.stream(flow, 1, stream_mode="custom") == ["hello"]
    assert seen["store"] is store and seen["runtime"].store is store
    assert seen["config"]["metadata"]["stategraph_node"] == "flow"
    assert seen["previous"] is None


def test_an_async_one_needs_the_async_api():
    @entrypoint()
    async def flow(x: int) -> int:
        return x

    with pytest.raises(TypeError, match="ainvoke"):
        flow.invoke(1)
    assert asyncio.run(flow.ainvoke(1)) == 1


# -- previous and final ---------------------------------------------------------------------------------------


def test_previous_is_what_the_last_run_of_the_thread_returned(drive):
    @entrypoint(checkpointer=InMemorySaver())
    def total(x: int, *, previous: int | None) -> int:
        return x + (previous or 0)

    assert [drive.invoke(total, x, CONFIG) for x in (1, 2, 5)] == [1, 3, 8]
    assert drive.invoke(total, 1, thread_config("2")) == 1


def test_final_separates_the_returned_value_from_the_stored_one(drive):
    @entrypoint(checkpointer=InMemorySaver())
    def flow(x: int, previous: Any) -> entrypoint.final[int | None, int]:
        return entrypoint.final(value=previous, save=2 * x)

    assert [drive.invoke(flow, x, CONFIG) for x in (1, 2, 5)] == [None, 2, 4]
    assert flow.channels["__end__"].ValueType == int | None


def test_final_may_be_none_on_both_sides(drive):
    seen = []

    @entrypoint(checkpointer=InMemorySaver())
    def flow(x: int, previous: Any) -> Any:
        seen.append(previous)
        return entrypoint.final(value=None, save=None)

    assert [drive.invoke(flow, 1, CONFIG), drive.invoke(flow, 1, CONFIG)] == [None, None]
    assert seen == [None, None]
    with pytest.raises(TypeError):
        entrypoint.final[int]


def test_update_state_sets_the_next_previous_value(drive):
    @entrypoint(checkpointer=InMemorySaver())
    def total(x: int, previous: Any) -> int:
        return x + (previous or 0)

    thread = drive.on(total)
    thread.invoke(1)
    thread.update(10)
    assert thread.state.values == 10
    assert thread.invoke(5) == 15
    thread.update(entrypoint.final(value=0, save=100))
    assert thread.invoke(5) == 105


# -- streams --------------------------------------------------------------------------------------------------


def test_streams_show_each_task_and_then_the_whole(drive):
    @task
    def double(x: int) -> int:
        return 2 * x

    @entrypoint()
    def flow(xs: list[int]) -> list[int]:
        return [double(x).result() for x in xs]

    assert drive.stream(flow, [1, 2]) == [{"double": 2}, {"double": 4}, {"flow": [2, 4]}]
    assert drive.stream(flow, [1, 2], stream_mode="values") == [[2, 4]]


def test_tasks_mode_shows_start_and_end_of_calls(drive):
    @task(name="twice")
    def double(x: int) -> int:
        return 2 * x

    @entrypoint()
    def flow(x: int) -> int:
        return double(x).result()

    chunks = drive.stream(flow, 3, stream_mode="tasks")
    assert [(c["name"], "result" in c) for c in chunks] == [
        ("flow", False), ("twice", False), ("twice", True), ("flow", True),
    ]  # fmt: skip
    assert chunks[2]["result"] == {"__return__": 6}


# -- one in another -------------------------------------------------------------------------------------------


def test_two_calls_of_an_inner_one_have_namespaces_of_their_own(drive):
    spaces = []

    @entrypoint()
    def inner(x: int, writer: Any) -> int:
        writer(x)
        return x + 1

    @entrypoint()
    def outer(x: int) -> int:
        return inner.invoke(inner.invoke(x))

    if drive.is_async:

        async def outer_async(x: int) -> int:
            return await inner.ainvoke(await inner.ainvoke(x))

        outer_async.__name__ = "outer"
        outer = entrypoint()(outer_async)
    chunks = drive.stream(outer, 1, stream_mode="custom", subgraphs=True)
    spaces = [ns for ns, _ in chunks]
    name, _, task_id = spaces[0][0].partition(":")
    assert name == "outer"
    assert spaces == [(f"outer:{task_id}",), (f"outer:{task_id}", "1")]


def test_as_a_node_of_a_graph(drive):
    @entrypoint()
    def flow(state: State) -> State:
        return {"log": [state["n"]]}

    app = chain_of(State, flow=flow).compile()
    assert drive.invoke(app, {"n": 3}) == {"n": 3, "log": [3]}


def test_in_a_task_of_another_with_a_saver(drive):
    """Finished work of the inner one is not repeated when the outer one goes on."""
    log = []

    @task
    def step(x: int) -> int:
        log.append("step")
        return x + 1

    @entrypoint()
    def inner(x: int) -> int:
        got = step(x).result()
        return got * interrupt("factor?")

    if drive.is_async:

        @task
        async def call_inner(x: int) -> int:
            return await inner.ainvoke(x)

        @entrypoint(checkpointer=InMemorySaver())
        async def outer(x: int) -> int:
            return await call_inner(x)
    else:

        @task
        def call_inner(x: int) -> int:
            return inner.invoke(x)

        @entrypoint(checkpointer=InMemorySaver())
        def outer(x: int) -> int:
            return call_inner(x).result()

    assert answers(drive.invoke(outer, 1, CONFIG)) == ["factor?"]
    assert drive.invoke(outer, Command(resume=10), CONFIG) == 20
    assert log == ["step"]


# -- tasks ----------------------------------------------------------------------------------------------------


def test_the_name_of_a_task():
    def plain(): ...

    class Callable_:
        def __call__(self): ...

    assert task(plain).name == "plain"
    assert task(Callable_()).name == "Callable_"
    assert task(name="other")(plain).name == "other"
    assert plain.__name__ == "plain", "the function itself is left as it is"


def test_what_the_caller_gives_wins_over_what_is_injected(drive):
    @task
    def look(x: int, *, store: Any = "none given", runtime: Any = None, config: Any = None) -> Any:
        return store, runtime, config is not None

    @entrypoint(store=InMemoryStore())
    def flow(x: int) -> Any:
        return [look(x, store="mine").result(), look(x, runtime="by name").result()]

    (store, runtime, has_config), (_, given, _) = drive.invoke(flow, 1)
    assert (store, given, has_config) == ("mine", "by name", True)
    assert runtime is not None


def test_positional_arguments_fill_injectable_names_too(drive):
    @task
    def look(config: Any, y: int = 0) -> Any:
        return config, y

    @entrypoint()
    def flow(x: int) -> Any:
        return look("mine", y=2).result()

    assert drive.invoke(flow, 1) == ("mine", 2)


def test_a_task_of_a_method_is_called_with_its_object(drive):
    class Shop:
        factor = 3

        @task
        def price(self, x: int) -> int:
            return self.factor * x

        @staticmethod
        @task
        def free(x: int) -> int:
            return 0 * x

    bound = task(Shop.price.function.__get__(Shop()))

    @entrypoint()
    def flow(x: int) -> Any:
        return [Shop().price(x).result(), Shop.free(x).result(), bound(x).result()]

    assert drive.invoke(flow, 2) == [6, 0, 6]


def test_tasks_are_made_of_functions_only():
    with pytest.raises(TypeError):
        task(3)  # type: ignore[call-overload]


def test_a_task_keeps_the_face_of_its_function():
    @task
    def price(x: int) -> int:
        """What it costs."""
        return x

    assert (price.__doc__, price.__name__, repr(price)) == ("What it costs.", "price", "<task 'price'>")


# -- replay ---------------------------------------------------------------------------------------------------


def in_steps(log, saver=None):
    """Task, question, task, question, task."""

    @task
    def step(n: int) -> int:
        log.append(n)
        return n

    @entrypoint(checkpointer=saver or InMemorySaver())
    def flow(x: int) -> Any:
        log.append("body")
        return [step(1).result(), interrupt("a?"), step(2).result(), interrupt("b?"), step(3).result()]

    return flow


@each_durability
def test_replay_in_every_durability(drive, durability):
    log = []
    thread = drive.on(in_steps(log))
    thread.invoke(1, durability=durability)
    thread.resume("A", durability=durability)
    thread.resume("B", durability=durability)
    assert log == ["body", 1, "body", 2, "body", 3]


VALUES = [None, False, 0, "", [], {}, (1, (2, 3)), {"a": (1,)}, {1, 2}, b"x", 2**80]


def test_stored_results_are_restored_equal_and_of_their_type(drive):
    log = []

    @task
    def give(i: int) -> Any:
        log.append(i)
        return VALUES[i]

    @entrypoint(checkpointer=InMemorySaver())
    def flow(x: int) -> Any:
        found = [give(i).result() for i in range(len(VALUES))]
        interrupt("go on?")
        return found

    thread = drive.on(flow)
    thread.invoke(1)
    found = thread.resume(1)
    assert found == VALUES
    assert [type(f) for f in found] == [type(v) for v in VALUES]
    assert log == list(range(len(VALUES))), "each ran once"


@dataclass
class Report:
    title: str


def test_types_that_a_task_says_it_returns_are_stored(drive):
    @task
    def write(title: str) -> list[Report] | None:
        return [Report(title)]

    @entrypoint(checkpointer=InMemorySaver())
    def flow(x: int) -> str:
        [report] = write("tea").result()
        return report.title + interrupt("go on?")

    thread = drive.on(flow)
    thread.invoke(1)
    assert thread.resume("!") == "tea!"


def test_a_failed_task_runs_again_and_finished_ones_do_not(drive):
    log = []
    broken = [True]

    @task
    def good() -> str:
        log.append("good")
        return "good"

    @task
    def bad() -> str:
        log.append("bad")
        if broken.pop():
            raise ValueError("no")
        return "bad"

    @entrypoint(checkpointer=InMemorySaver())
    def flow(x: int) -> Any:
        return good().result(), bad().result()

    with pytest.raises(ValueError, match="no"):
        drive.invoke(flow, 1, CONFIG)
    broken.append(False)
    assert drive.invoke(flow, None, CONFIG) == ("good", "bad")
    assert log == ["good", "bad", "bad"]


def test_the_error_of_a_task_that_later_succeeds_is_forgotten(drive):
    broken = [True]

    @task
    def bad() -> str:
        if broken[0]:
            raise ValueError("no")
        return "fine"

    @entrypoint(checkpointer=InMemorySaver())
    def flow(x: int) -> Any:
        try:
            first = bad().result()
        except ValueError:
            first = "caught"
        return first, interrupt("go on?")

    thread = drive.on(flow)
    thread.invoke(1)
    broken[0] = False
    assert thread.resume("yes") == ("fine", "yes"), "a caught error is not kept as a result"


def test_new_input_repeats_everything(drive):
    log = []
    thread = drive.on(in_steps(log))
    thread.invoke(1)
    thread.invoke(1)
    assert log == ["body", 1, "body", 1]


def test_a_retried_body_finds_its_finished_tasks(drive):
    """Calls are numbered anew in every attempt, with a saver or without."""
    from stategraph import RetryPolicy

    log = []

    @task
    def child(name: str) -> str:
        log.append(name)
        return name

    def body(x: int):
        got = [child("a").result(), child("b").result()]
        log.append("body")
        if log.count("body") < 3:
            raise ConnectionError
        return got

    policy = RetryPolicy(initial_interval=0)
    for saver in (None, InMemorySaver()):
        log.clear()
        flow = entrypoint(checkpointer=saver, retry_policy=policy)(body)
        assert drive.invoke(flow, 1, CONFIG if saver else None) == ["a", "b"]
        assert log == ["a", "b", "body", "body", "body"]


# -- questions in tasks ---------------------------------------------------------------------------------------


def test_a_tasks_question_and_the_bodys_own_are_both_asked(drive):
    @task
    def ask() -> str:
        return interrupt("task?")

    @entrypoint(checkpointer=InMemorySaver())
    def flow(x: int) -> Any:
        future = ask()
        mine = interrupt("body?")
        return mine, future.result()

    thread = drive.on(flow)
    questions = thread.invoke(1)["__interrupt__"]
    assert sorted(q.value for q in questions) == ["body?", "task?"]
    given = {q.id: q.value.upper() for q in questions}
    assert thread.resume(given) == ("BODY?", "TASK?")


def test_a_tasks_question_shows_once_in_the_stream(drive):
    @task
    def ask() -> str:
        return interrupt("task?")

    @entrypoint(checkpointer=InMemorySaver())
    def flow(x: int) -> Any:
        return ask().result()

    chunks = drive.stream(flow, 1, CONFIG)
    assert [list(c) for c in chunks] == [["__interrupt__"]]
    assert drive.stream(flow, Command(resume="yes"), CONFIG) == [{"ask": "yes"}, {"flow": "yes"}]


def test_except_exception_cannot_swallow_a_tasks_question(drive):
    @task
    def ask() -> str:
        return interrupt("task?")

    @entrypoint(checkpointer=InMemorySaver())
    def flow(x: int) -> Any:
        try:
            return ask().result()
        except Exception:
            return "swallowed"

    assert answers(drive.invoke(flow, 1, CONFIG)) == ["task?"]


# -- tasks in the nodes of a graph ----------------------------------------------------------------------------


def graph_of(*nodes, saver=None):
    return parallel_of(State, {node.__name__: node for node in nodes}).compile(saver)


def test_a_nodes_tasks_stream_before_the_node(drive):
    @task
    def double(x: int) -> int:
        return 2 * x

    def node(state: State):
        return {"log": [double(state["n"]).result()]}

    assert drive.stream(graph_of(node), {"n": 2}) == [{"double": 4}, {"node": {"log": [4]}}]


def test_parallel_nodes_may_call_the_same_task(drive):
    """A call belongs to its caller: each gets its own result, and keeps it over a resume."""
    log = []

    @task
    def show(x: Any) -> Any:
        log.append(x)
        return x

    def a(state: State):
        return {"log": [show("a").result()]}

    def b(state: State):
        got = show("b").result()
        interrupt("b?")
        return {"log": [got]}

    thread = drive.on(graph_of(a, b, saver=InMemorySaver()))
    thread.invoke({"n": 1})
    assert thread.resume(1)["log"] == ["a", "b"]
    assert sorted(log) == ["a", "b"]
