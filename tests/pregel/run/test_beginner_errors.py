"""Mistakes of beginners: each gets an error at once, which says the way out."""

from __future__ import annotations

import asyncio
import copy
import pickle
from datetime import UTC, datetime
from functools import partial
from operator import add
from typing import Annotated, Any, TypedDict

import pydantic
import pytest
from kit.drive import each_case, each_schedule
from kit.graphs import chain_of, thread_config

from stategraph import (
    END,
    START,
    Command,
    GraphBubbleUp,
    GraphDrained,
    InMemorySaver,
    Limit,
    MessagesState,
    Observer,
    ParentCommand,
    RunControl,
    Runtime,
    Send,
    StateGraph,
    TimeoutPolicy,
    add_messages,
    entrypoint,
    interrupt,
    task,
)
from stategraph.channels import BinaryOperatorAggregate
from stategraph.prebuilt import Tool, ToolNode, create_agent
from stategraph.pregel.drivers import aio
from stategraph.pregel.errors import (
    CheckpointConflictError,
    GraphWarning,
    InvalidGraphError,
    InvalidUpdateError,
    UnknownInterruptError,
)
from stategraph.testing import record, run_node

THREAD = thread_config("t-1")


class State(TypedDict, total=False):
    n: int
    log: Annotated[list[str], add]


def one(node, **options):
    return StateGraph(State, **options).add_node("a", node).add_edge(START, "a")


def told(error: BaseException):
    return "\n".join((str(error), *getattr(error, "__notes__", ())))


def test_a_write_that_the_reducer_cannot_take_names_reducer_and_types(drive):
    with pytest.raises(TypeError) as caught:
        drive.invoke(one(lambda state: {"log": "abc"}).compile(), {"n": 1})
    assert "key 'log', written by a" in told(caught.value)
    assert "Its reducer add folds writes into a list, and got str." in told(caught.value)


@pytest.mark.parametrize("wrong", ["30s", True, [30]])
def test_a_timeout_that_is_no_time(wrong):
    text = "must be a number of seconds or a timedelta, got"
    with pytest.raises(TypeError, match=text):
        StateGraph(State).add_node("a", lambda state: {}, timeout=wrong)
    with pytest.raises(TypeError, match=text):
        TimeoutPolicy(idle_timeout=wrong)


def test_a_function_in_place_of_the_name_of_its_node():
    def write(state: State):
        return {}

    with pytest.raises(InvalidGraphError, match="did you mean 'write'"):
        StateGraph(State).add_node(write).add_edge(START, write)


def test_a_context_that_was_not_given(drive):
    class User(TypedDict):
        name: str

    def greet(state: State, runtime: Runtime[User]):
        return {"n": len(runtime.context["name"])}

    app = one(greet, context_schema=User).compile()
    with pytest.raises(TypeError, match="NoneType") as caught:
        drive.invoke(app, {"n": 1})
    assert "runtime.context is None: the call passed no context= (context_schema: User)" in told(caught.value)
    assert drive.invoke(app, {"n": 1}, context={"name": "ann"})["n"] == 3


def test_a_bare_except_around_a_question(drive):
    def node(state: State):
        try:
            return {"n": interrupt("?")}
        except:  # noqa: E722 - the mistake
            return {"n": -1}

    with pytest.warns(GraphWarning, match="node 'a' asked '\\?' but returned normally"):
        assert drive.invoke(one(node).compile(InMemorySaver()), {"n": 1}, THREAD)["n"] == -1


class Order(pydantic.BaseModel):
    item: str = "tea"


@pytest.mark.parametrize(("schema", "node", "advice"), [
    (State, lambda state: {"log": [state["lgo"]]}, "The state has no key 'lgo'; did you mean 'log'?"),
    (Order, lambda state: {"item": state["item"]}, "The node's input is of type 'Order': read its attributes, such as .item"),
    (State, lambda state: {"n": state.n}, "The node's input is of type 'dict': read ['n']"),
])  # fmt: skip
def test_a_key_that_is_misread(schema, node, advice, drive):
    app = StateGraph(schema).add_node("a", node).add_edge(START, "a").compile()
    with pytest.raises((KeyError, TypeError, AttributeError)) as caught:
        drive.invoke(app, {"log": []} if schema is State else {})
    assert advice in told(caught.value)


def test_a_dict_that_is_no_state_gets_no_advice(drive):
    with pytest.raises(KeyError) as caught:
        drive.invoke(one(lambda state: {"n": {}["colour"]}).compile(), {"n": 1})
    assert "state" not in told(caught.value)


def test_what_a_generator_returns_is_dropped_with_a_warning(drive):
    def count(state: State):
        yield {"n": 2}
        return {"n": 3}

    with pytest.warns(GraphWarning, match="'count' yields its updates, so what it returns is dropped: {'n': 3}; yield it"):
        assert drive.invoke(one(count).compile(), {"n": 1})["n"] == 2


def test_a_command_for_a_parent_that_is_not_there_names_its_node(drive):
    with pytest.raises(InvalidUpdateError, match="node 'a' returned .*PARENT.*, but there is no parent graph"):
        drive.invoke(one(lambda state: Command(graph=Command.PARENT)).compile(), {"n": 1})


def test_an_answer_that_fits_no_question_names_the_thread_and_what_is_asked(drive):
    graph = one(lambda state: {"log": [interrupt("a?")]}).add_node("b", lambda state: {"log": [interrupt("b?")]})
    app = graph.add_edge(START, "b").compile(InMemorySaver())
    drive.invoke(app, {"n": 1}, THREAD)
    first, second = app.get_state(THREAD).interrupts
    for wrong in (1, {"0" * 32: 1}):
        with pytest.raises(UnknownInterruptError) as caught:
            drive.invoke(app, Command(resume=wrong), THREAD)
        assert f"Thread 't-1' asks: {first.id} 'a?'; {second.id} 'b?'" in told(caught.value)
    drive.invoke(app, Command(resume={first.id: "A", second.id: "B"}), THREAD)
    with pytest.raises(UnknownInterruptError) as caught:
        drive.invoke(app, Command(resume=1), THREAD)
    assert "Thread 't-1' asks nothing" in told(caught.value)


def test_an_answer_to_a_thread_on_which_nothing_has_run(drive):
    app = one(lambda state: {"n": interrupt("?")}).compile(InMemorySaver())
    with pytest.raises(UnknownInterruptError, match="no open question") as caught:
        drive.invoke(app, Command(resume=1), THREAD)
    assert "Nothing has run on thread 't-1' yet: is its thread_id right?" in told(caught.value)


def test_an_answer_that_is_given_as_an_input(drive):
    app = one(lambda state: {"n": interrupt("?")}).compile(InMemorySaver())
    with pytest.raises(InvalidUpdateError, match=r"needs at least one of the keys 'log', 'n'; .*Command\(resume=\.\.\.\)"):
        drive.invoke(app, {"resume": 1}, THREAD)


def test_the_path_of_a_file_in_place_of_a_saver():
    with pytest.raises(TypeError, match=r"with SqliteSaver\.from_conn_string\('threads\.db'\) as saver"):
        one(lambda state: {}).compile("threads.db")


# -- graphs and nodes ---------------------------------------------------------------------------------------------------


def test_a_graph_inside_that_shares_no_key_with_the_graph_around():
    class Other(TypedDict):
        question: str

    inner = chain_of(Other, ask=lambda state: {"question": "?"}).compile()
    with pytest.warns(GraphWarning, match="node 'sub' is a graph that shares no key .* its keys: 'question'.*call it in a function"):
        chain_of(State, sub=inner).compile()


def test_a_graph_inside_that_was_not_compiled():
    inner = chain_of(State, a=lambda state: {})
    with pytest.raises(TypeError, match="got StateGraph: .*; compile\\(\\) it first"):
        StateGraph(State).add_node("sub", inner)


def test_the_store_of_a_graph_without_one(drive):
    def remember(state: State, runtime: Runtime):
        runtime.store.put(("notes",), "1", {})  # type: ignore[union-attr]
        return {}

    with pytest.raises(AttributeError, match="'put'") as caught:
        drive.invoke(one(remember).compile(), {"n": 1})
    assert "The graph has no store: compile(store=...)" in told(caught.value)


def test_the_state_where_a_send_brings_something_else(drive):
    graph = StateGraph(State).add_node("a", lambda task: {"n": task["n"]})
    graph.add_conditional_edges(START, lambda state: [Send("a", {"url": "x"})], ["a"])
    with pytest.raises(KeyError) as caught:
        drive.invoke(graph.compile(), {"n": 1})
    assert "The input of this task is what its Send carries, which has the keys 'url'" in told(caught.value)


@pytest.mark.parametrize("wrong", ["minute", True])
def test_a_limit_per_something_that_is_no_time(wrong):
    with pytest.raises(TypeError, match="Limit: per must be a number of seconds or a timedelta, got"):
        Limit(3, per=wrong)


# -- observers and the test kit -----------------------------------------------------------------------------------------


def test_a_misspelt_method_of_an_observer():
    with pytest.warns(GraphWarning, match="Timings.task_end is no event of an Observer; did you mean 'task_ended'"):

        class Timings(Observer):
            def task_end(self, task): ...

    class Helpers(Observer):
        def note(self, text): ...
        def _task_end(self): ...


def test_an_observers_class_in_place_of_an_instance():
    with pytest.raises(TypeError, match="pass an instance, not the class"):
        one(lambda state: {}).compile(observer=Observer)


def test_an_answer_to_a_question_that_was_never_asked():
    app = one(lambda state: {"n": interrupt("How many?")}).compile()
    with pytest.raises(ValueError, match="no question is 'Why\\?'; open: 'How many\\?'"):
        record(app, {"n": 1}, answers={"Why?": 1})
    with pytest.raises(ValueError, match="no question is 'Why\\?'"):
        run_node(app, "a", {}, answers={"Why?": 1})


# -- errors and texts that fail themselves -----------------------------------------------------------------


class Textless(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Nameless(Textless):
    __repr__ = Textless.__str__


@each_case("error", [Textless(), Nameless(), KeyError([1])])
@each_schedule
def test_an_error_whose_str_raises_is_raised_unchanged(drive, local_saver, schedule, error):
    if drive.is_async and isinstance(error, Nameless):
        return  # asyncio.run itself fails on it

    def fail(state: State):
        raise error

    app = one(fail).add_node("b", fail).add_edge(START, "b").compile(local_saver, schedule=schedule)
    thread = thread_config(type(error).__name__)
    for mode in ("values", "tasks", "debug"):
        with pytest.raises(type(error)) as caught:
            drive.stream(app, {"n": 1}, thread, stream_mode=mode)
        assert caught.value is error
        assert any("task with name 'a'" in note for note in error.__notes__)
        assert any("'b' failed as well" in note for note in error.__notes__)
    assert drive.get_state(app, thread).next == ("a", "b")


# -- reducers ----------------------------------------------------------------------------------------------


async def areduce(old, new):
    return old + new


def yield_all(old, new):
    yield from (old, new)


def extend(old, new):
    old.extend(new)


class AsyncReducer:
    async def __call__(self, old, new):
        return old + new


def reduced(hint, reducer, first, second):
    fields = {"x": Annotated[hint, reducer]}
    schema = TypedDict("schema", fields)
    app = chain_of(schema, a=lambda state: {"x": second}).compile()
    return app.invoke({"x": first})["x"]


@each_case(
    "reducer, text",
    [
        (areduce, "must not be an async function"),
        (partial(areduce), "must not be an async function"),
        (AsyncReducer(), "must not be an async function"),
        (yield_all, "must not be a generator function"),
        (list.extend, "changes the value in place and returns None"),
        (list.append, "changes the value in place and returns None"),
        (set.update, "changes the value in place and returns None"),
        (dict.update, "changes the value in place and returns None"),
    ],
)
def test_a_reducer_that_cannot_return_a_value_is_refused_where_it_is_declared(reducer, text):
    with pytest.raises(InvalidGraphError, match=f"key 'x': the reducer .* {text}"):
        reduced(list, reducer, [1], [2])
    with pytest.raises(TypeError, match=text):
        BinaryOperatorAggregate(list, reducer)


def test_a_reducer_that_works_in_place_and_returns_None_is_refused_at_the_first_fold():
    with pytest.raises(InvalidUpdateError, match="key 'x': the reducer extend changed the list in place and returned None; it must"):
        reduced(list, extend, [1], [2])
    with pytest.raises(InvalidUpdateError, match="changed the list in place"):
        reduced(list | None, lambda old, new: old.append(new), [1], 2)
    with pytest.raises(InvalidUpdateError, match="returned a coroutine"):
        reduced(list, lambda old, new: areduce(old, new), [1], [2])


def test_a_reducer_may_return_None_for_a_value_that_it_leaves_alone():
    assert reduced(list, lambda old, new: new, [1], None) is None
    for hint in (int, int | None, Any, object):
        assert reduced(hint, lambda old, new: None if new == 2 else new, 1, 2) is None


# -- what a node forgets, or should not do -----------------------------------------------------------------


@each_case("thread_id", [["a"], ("a",), {"a": 1}, 1.5, True, b"a"])
def test_a_thread_id_must_be_a_name(drive, thread_id):
    app, thread = one(lambda state: {"n": 1}).compile(InMemorySaver()), thread_config(thread_id)
    with pytest.raises(TypeError, match="thread_id must be a string, an integer or a UUID, got"):
        drive.invoke(app, {"n": 1}, thread)
    with pytest.raises(TypeError, match="thread_id must be"):
        drive.get_state(app, thread)
    with pytest.raises(TypeError, match="thread_id must be"):
        drive.update_state(app, thread, {"n": 1})


@each_case("method, arguments", [("aonce", ("key", print)), ("asleep", (1,)), ("atransaction", ("key", print))])
@each_schedule
def test_an_effect_that_is_not_awaited_fails_the_node(drive, schedule, method, arguments):
    def forget(state: State, runtime: Runtime):
        getattr(runtime, method)(*arguments)
        return {"n": 1}

    with pytest.raises(RuntimeError, match=rf"node 'a' called runtime.{method}\(...\) without await, so it was not done"):
        drive.invoke(one(forget).compile(schedule=schedule), {"n": 0})


def test_an_effect_that_is_awaited_does_not_fail_the_node():
    async def do(state: State, runtime: Runtime):
        await runtime.asleep(0)
        return {"n": await runtime.aonce("key", lambda: 7)}

    assert asyncio.run(one(do).compile().ainvoke({"n": 0}))["n"] == 7


@each_schedule
def test_a_node_that_writes_to_the_thread_of_its_own_run_gets_an_error(drive, local_saver, schedule):
    apps, thread = {}, thread_config("")

    def update(state: State):
        apps["update"].update_state(thread, {"n": 5}, as_node="a")

    def invoke(state: State):
        if state["n"] != 5:
            apps["invoke"].invoke({"n": 5}, thread)

    for node in (update, invoke):
        app = apps[node.__name__] = one(node).compile(local_saver, schedule=schedule)
        thread["configurable"]["thread_id"] = node.__name__
        with pytest.raises(CheckpointConflictError) as caught:
            drive.invoke(app, {"n": 1}, thread)
        assert "The other run was made by node 'a' of this one" in told(caught.value)


@each_schedule
def test_a_node_that_writes_a_key_twice_itself_is_named(drive, schedule):
    def twice(state: State):
        yield {"n": 1}
        yield {"n": 2}

    for node in (twice, lambda state: [{"n": 1}, {"n": 2}]):
        with pytest.raises(InvalidUpdateError) as caught:
            drive.invoke(one(node).compile(schedule=schedule), {"n": 0})
        assert "a alone wrote it 2 times: each update that a node yields, or returns in a list" in told(caught.value)


# -- slips of the pen --------------------------------------------------------------------------------------


@each_case(
    "call, text",
    [
        (lambda: StateGraph(State, context_shema=int), r"StateGraph\(\) has no argument 'context_shema'; did you mean 'context_schema'"),
        (lambda: one(print).add_node("b", print, retry=1), r"add_node\(\) has no argument 'retry'; did you mean 'retry_policy'"),
        (lambda: one(print).compile(checkpoint=1), r"compile\(\) has no argument 'checkpoint'; did you mean 'checkpointer'"),
        (lambda: one(print).add_conditional_edges("a", print, path_mapp={}), "did you mean 'path_map'"),
        (lambda: task(retry=1), r"task\(\) has no argument 'retry'; did you mean 'retry_policy'"),
        (lambda: entrypoint(checkpoint=1), r"entrypoint\(\) has no argument 'checkpoint'; did you mean 'checkpointer'"),
        (lambda: create_agent(None, sytem_prompt="x"), r"create_agent\(\) has no argument 'sytem_prompt'; did you mean 'system_prompt'"),
        (lambda: create_agent(None, checkpoint=1), "did you mean 'checkpointer'"),
        (lambda: ToolNode([], aprove=()), "did you mean 'approve'"),
        (lambda: Tool(print, descripton="x"), "did you mean 'description'"),
    ],
)
def test_an_unknown_argument_is_answered_with_the_nearest_one(call, text):
    with pytest.raises(TypeError, match=text):
        call()


@each_case(
    "message, role",
    [({"role": "usr", "content": "x"}, "user"), ({"role": "User", "content": "x"}, "user"), ({"type": "humn", "content": "x"}, "human")],
)
def test_a_message_with_a_misspelt_role_is_refused(drive, message, role):
    app = chain_of(MessagesState, a=lambda state: {"messages": [message]}).compile()
    with pytest.raises(ValueError, match=f"a message must have a known role, got dict: .*; did you mean '{role}'"):
        drive.invoke(app, {"messages": []})


def test_a_message_may_have_a_role_of_its_own_and_a_stored_one_stays():
    stored = {"role": "usr", "content": "x", "id": "1"}  # an earlier version took it
    assert add_messages([stored], [{"role": "customer", "content": "y", "id": "2"}])[0] == stored
    for role in ("customer", "tester", "planner", "assistant_1"):
        assert add_messages([], [{"role": role, "content": "y"}])[0]["role"] == role


def test_a_tool_without_a_description_is_refused_at_its_declaration():
    def double(x):
        return 2 * x

    for declare in (Tool, lambda function: ToolNode([function])):
        with pytest.warns(GraphWarning, match="tool 'double' has no description, by which a model chooses its tools"):
            declare(double)
    Tool(double, description="Twice x.")


# -- what leaves a call ------------------------------------------------------------------------------------


@each_case("signal", [GraphDrained("x"), GraphBubbleUp(), ParentCommand(Command(update={"n": 3}, graph=Command.PARENT))])
@each_schedule
def test_no_signal_leaves_the_outermost_call(drive, schedule, signal):
    def node(state: State):
        if isinstance(signal, ParentCommand):
            return signal.command
        raise signal

    def route(state: State):
        raise signal

    app = one(node).add_conditional_edges("a", route, [END]).compile(InMemorySaver(), schedule=schedule)
    calls = (
        lambda: drive.invoke(app, {"n": 0}, THREAD),
        lambda: drive.stream(app, {"n": 0}, THREAD),
        lambda: drive.batch(app, [{"n": 0}], THREAD),
        lambda: drive.update_state(app, thread_config("edited"), {"n": 1}, as_node="a"),
    )
    for call in calls:
        with pytest.raises(Exception) as caught:  # a signal is a BaseException
            call()
        assert isinstance(caught.value, GraphDrained if isinstance(signal, GraphDrained) else InvalidUpdateError)


@pytest.mark.parametrize("stop", ["drain", "deadline", "step"])
@each_schedule
def test_a_drain_is_an_exception_for_the_caller_and_none_for_a_node_around_it(drive, schedule, stop):
    control = RunControl()
    caught = []

    def stop_run(state: State):
        control.request_drain("deploy")

    inside = one(stop_run).add_node("b", lambda state: {"n": 2}).add_edge("a", "b").compile()

    def call(state: State):
        try:
            return inside.invoke(state)
        except Exception as error:
            caught.append(repr(error))
            return {"n": -1}

    async def acall(state: State):
        try:
            return await inside.ainvoke(state)
        except Exception as error:
            caught.append(repr(error))
            return {"n": -1}

    node = stop_run if stop == "step" else acall if drive.is_async else call
    app = one(node).add_node("c", lambda state: {"n": 3}).add_edge("a", "c").compile(InMemorySaver(), schedule=schedule)
    late = {**THREAD, "deadline": datetime(2000, 1, 1, tzinfo=UTC)} if stop == "deadline" else THREAD
    for call_app in (drive.invoke, drive.stream):
        try:
            call_app(app, {"n": 0}, late, control=control)
        except Exception as error:
            assert isinstance(error, GraphDrained)
            assert issubclass(type(error), Exception)
        else:
            raise AssertionError("not drained")
        assert not caught
        assert drive.get_state(app, THREAD).next


def test_a_drained_error_keeps_its_reason_in_a_copy_and_in_a_pickle():
    error = GraphDrained("deploy")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(again), again.reason) == (GraphDrained, "deploy")


# -- event loops -------------------------------------------------------------------------------------------


WAITS = []
"""What to call when the node waits."""


async def time_out(work):
    """Await, under a timeout that is over as soon as the node waits."""
    async with asyncio.timeout(None) as limit:
        WAITS[:] = [lambda: limit.reschedule(0)]
        return await work


async def cancel(work):
    task = asyncio.ensure_future(work)
    WAITS[:] = [lambda: asyncio.get_running_loop().call_soon(task.cancel)]
    return await task


async def keep_cancellation(state: State):
    WAITS[0]()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return {"n": 1}
    raise AssertionError


async def read(app, thread):
    return [chunk async for chunk in app.astream({"n": 0}, thread)]


@each_case("end, error", [(time_out, TimeoutError), (cancel, asyncio.CancelledError)])
@each_schedule
@pytest.mark.parametrize("place", ["first", "last", "nested"])
def test_a_node_that_catches_a_cancellation_does_not_keep_it_from_the_caller(
    local_saver, schedule, place, end, error, monkeypatch
):
    monkeypatch.setattr(aio.AsyncDriver, "sees_cancels", True)  # no group is in the way here
    ran = []
    builder = one(keep_cancellation)
    if place != "last":
        builder.add_node("b", lambda state: ran.append("b")).add_edge("a", "b")
    if place == "nested":
        builder = one(builder.compile()).add_node("c", lambda state: ran.append("c")).add_edge("a", "c")
    app = builder.compile(local_saver, schedule=schedule)
    thread = thread_config(end.__name__)
    with pytest.raises(error):
        asyncio.run(end(app.ainvoke({"n": 0}, thread)))
    with pytest.raises(error):
        asyncio.run(end(read(app, thread)))
    assert not ran
    assert app.get_state(thread).next == {"first": ("b",), "last": (), "nested": ("a",)}[place]  # what was done is kept


def test_a_cancellation_that_the_node_takes_back_is_none():
    async def limit(state: State):
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            return {"n": 1}
        raise AssertionError

    assert asyncio.run(one(limit).compile().ainvoke({"n": 0}))["n"] == 1


def test_a_stream_cannot_continue_in_another_event_loop():
    async def take(stream):
        return await anext(stream)

    app = one(lambda state: {"n": 1}).compile(InMemorySaver())
    stream = app.astream({"n": 0}, THREAD, stream_mode="values")
    assert asyncio.run(take(stream))["n"] == 0
    with pytest.raises(RuntimeError, match="this stream began in another event loop"):
        asyncio.run(take(stream))


def test_a_stream_cannot_be_closed_in_another_event_loop():
    """There it would wait for a node that never goes on."""

    async def wait(state):
        await asyncio.Event().wait()

    async def use(method, *args):
        return await getattr(stream, method)(*args)

    stream = one(wait).compile().astream({"n": 0}, stream_mode=["values", "tasks"])
    with asyncio.Runner() as first:
        for _ in range(2):
            first.run(use("__anext__"))
        for way in ("aclose",), ("asend", None), ("athrow", ValueError()):
            with pytest.raises(RuntimeError, match="this stream began in another event loop"):
                asyncio.run(use(*way))
        first.run(use("aclose"))
    asyncio.run(use("aclose"))


def test_a_stream_that_has_ended_or_was_closed_is_at_its_end_in_any_event_loop():
    async def take(stream):
        return [chunk async for chunk in stream]

    async def close(stream):
        await anext(stream)
        await stream.aclose()

    app = one(lambda state: {"n": 1}).compile()
    for begin in (take, close):
        stream = app.astream({"n": 0})
        asyncio.run(begin(stream))
        assert asyncio.run(take(stream)) == []
