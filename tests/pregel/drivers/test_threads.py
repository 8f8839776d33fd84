"""The sync driver: which thread runs what, how many at once, what happens to siblings, and that nothing hangs or
leaks.
"""

import asyncio
import operator
import threading
from contextvars import ContextVar

import pytest
from kit.drive import run_threads
from kit.graphs import CONFIG, thread_config

from stategraph.channels import BinaryOperatorAggregate, LastValue
from stategraph.checkpoint import InMemorySaver
from stategraph.checkpoint.errors import UnserializableError
from stategraph.pregel import (
    ChannelWriteEntry,
    ChannelWriteTupleEntry,
    InvalidUpdateError,
    NodeBuilder,
    Pregel,
    RetryPolicy,
)
from stategraph.pregel.drivers.pool import ThreadPool

WAIT = 5.0
"""Seconds after which a test gives up waiting for what must happen at once."""
VAR = ContextVar("VAR", default="unset")


def node(body, *writes):
    return NodeBuilder().subscribe_only("a").do(body).write_to(*(writes or ("log",)))


def graph(nodes, saver=None, **kwargs):
    channels = {k: LastValue(object) for k in "ab"}
    channels["log"] = BinaryOperatorAggregate(list, operator.add)
    return Pregel(
        nodes=nodes, channels=channels, input_channels="a", output_channels="log", checkpointer=saver, **kwargs
    )


def many(count, body, saver=None):
    return graph({f"n{i:03}": node(body) for i in range(count)}, saver)


# -- where and how many ---------------------------------------------------------------------------------------


def test_a_lone_task_runs_on_the_callers_thread():
    app = graph({"n": node(lambda _: [threading.current_thread()])})
    assert app.invoke(1) == [threading.current_thread()]


def test_tasks_that_wait_for_each_other_all_get_a_thread(drive):
    """64 tasks meet at one barrier, so 64 must run at once."""
    barrier = threading.Barrier(64)
    assert len(drive.invoke(many(64, lambda _: [barrier.wait(WAIT)]), 1)) == 64


def test_threads_are_kept_and_used_again():
    barrier = threading.Barrier(8)
    app = many(8, lambda _: [(barrier.wait(WAIT), threading.current_thread())[1]])
    first, second = app.invoke(1), app.invoke(1)
    assert all(
        thread.daemon and thread.name == "stategraph-worker"
        for thread in {*first, *second} - {threading.current_thread()}
    )


@pytest.mark.parametrize("limit", [1, 2, 5])
@pytest.mark.parametrize("mode", ["values", "custom", "updates"])
def test_max_concurrency_bounds_how_many_run_at_once(limit, mode):
    lock, running, most = threading.Lock(), [0], [0]
    gate = threading.Barrier(limit)

    def body(_, writer):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        writer("here")
        gate.wait(WAIT)  # as many as allowed must come together, or this breaks
        with lock:
            running[0] -= 1
        return [1]

    list(many(limit * 4, body).stream(1, {"max_concurrency": limit}, stream_mode=mode))
    assert most[0] == limit


@pytest.mark.parametrize("mode", ["values", "custom", "updates"])
def test_nested_graphs_in_parallel_nodes_end_with_one_thread_each(mode):
    app = many(3, lambda _: [1])
    for _ in range(3):
        inner = app
        app = graph({f"n{i}": node(lambda x, inner=inner: inner.invoke(x)) for i in range(3)})
    assert app.invoke(1, {"max_concurrency": 1}) == [1] * 81
    chunks = list(app.stream(1, {"max_concurrency": 1}, stream_mode=mode, subgraphs=True))
    assert mode == "custom" or chunks


# -- siblings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("fatal", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_exception_that_ends_the_process_reaches_the_caller(fatal, count):
    def body(_):
        raise fatal("now")

    app = graph({"bad": node(body), **{f"n{i}": node(lambda _: [1]) for i in range(count - 1)}}, InMemorySaver())
    with pytest.raises(fatal):
        app.invoke(1, CONFIG)
    snapshot = app.get_state(CONFIG)
    assert "bad" in snapshot.next
    assert all(task.error is None for task in snapshot.tasks)


def test_stop_iteration_from_a_node_names_the_node(drive):
    """Python turns it into a RuntimeError on its way through generators and coroutines."""
    for nodes in (
        {"n": node(lambda _: next(iter(())))},
        {"n": node(lambda _: next(iter(()))), "m": node(lambda _: [1])},
    ):
        with pytest.raises(RuntimeError, match="StopIteration") as caught:
            drive.invoke(graph(nodes), 1)
        error = caught.value
        assert any("'n'" in note for e in (error, error.__cause__) for note in getattr(e, "__notes__", ()))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (node(lambda _: [1], ChannelWriteEntry("log", mapper=lambda _: 1 / 0)), ZeroDivisionError),
        (node(lambda _: [1], ChannelWriteTupleEntry(lambda _: 5)), TypeError),
        (node(lambda _: [1], ChannelWriteTupleEntry(lambda _: [("log",)])), ValueError),
        (node(lambda _: [1], ChannelWriteTupleEntry(lambda _: [("nope", 1)])), InvalidUpdateError),
        (node(lambda _: 5), TypeError),
        (node(lambda _: [object()]), UnserializableError),
        (node(lambda _: [1], "log", "b", ChannelWriteEntry("b", 5)), InvalidUpdateError),
    ],
)
def test_errors_outside_the_body_name_node_or_key_and_leave_the_thread_as_it_was(drive, broken, error, count):
    thread = drive.on(graph({"bad": broken, **{f"n{i}": node(lambda _: ["ok"]) for i in range(count - 1)}}, InMemorySaver()))
    for given in (1, None):
        with pytest.raises(error) as caught:
            thread.invoke(given)
        text = " ".join([str(caught.value), *caught.value.__notes__])
        assert "bad" in text or "'log'" in text or "'b'" in text
        snapshot = thread.state
        assert "bad" in snapshot.next
        assert snapshot.metadata["step"] == -1
        assert set(snapshot.values["log"]) <= {"ok"}


class Unprintable(Exception):
    """Cannot be shown."""

    def __repr__(self):
        raise RuntimeError("no repr")


class Noteless(Exception):
    """Cannot take a note."""

    def add_note(self, note):
        raise RuntimeError("no notes")


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("error", [Unprintable, Noteless])
def test_no_error_however_odd_leaves_a_run_hanging(error, count):
    def body(_):
        raise error

    with pytest.raises((error, RuntimeError)):
        many(count, body).invoke(1)


def test_an_error_that_takes_no_notes_leaves_no_async_run_hanging():
    def body(_):
        raise Noteless

    with pytest.raises((Noteless, RuntimeError)):
        asyncio.run(many(3, body).ainvoke(1))


@pytest.mark.parametrize("count", [1, 3])
def test_a_retry_policy_that_fails_itself_ends_the_run(drive, count):
    def body(_):
        raise ConnectionError("down")

    policy = RetryPolicy(retry_on=lambda error: error.response.status == 500)  # type: ignore[attr-defined]
    app = graph({f"n{i}": node(body).add_retry_policies(policy) for i in range(count)})
    with pytest.raises(AttributeError, match="response"):
        drive.invoke(app, 1)


# -- context variables ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_tasks_see_the_callers_context_and_their_changes_never_leak(drive, count):
    def body(_):
        before = VAR.get()
        VAR.set("changed")
        return [before]

    token = VAR.set("callers")
    try:
        assert drive.invoke(many(count, body), 1) == ["callers"] * count
        assert VAR.get() == "callers"
        assert drive.batch(many(count, body), [1, 1]) == [["callers"] * count] * 2
    finally:
        VAR.reset(token)


def test_a_later_superstep_does_not_see_what_an_earlier_one_set(drive):
    def body(_):
        before = VAR.get()
        VAR.set("changed")
        return [before]

    nodes = {
        "n1": node(body, "log", ChannelWriteEntry("b", 1)),
        "n2": NodeBuilder().subscribe_only("b").do(body).write_to("log"),
    }
    assert drive.invoke(graph(nodes), 1) == ["unset", "unset"]


def test_nothing_of_a_run_is_left_in_the_callers_context():
    from stategraph import get_config

    source = many(1, lambda _: [1]).stream(1)
    next(source)
    with pytest.raises(RuntimeError, match="inside a running node"):
        get_config()
    source.close()


# -- batch ----------------------------------------------------------------------------------------------------


def test_batch_gives_results_in_the_order_of_inputs(drive):
    app = graph({"n": node(lambda x: [x])})
    assert drive.batch(app, list(range(20))) == [[i] for i in range(20)]
    assert drive.batch(app, []) == []


def test_batch_raises_the_first_error_in_order_once_all_have_ended(drive):
    ended = []

    def body(x):
        if x in (1, 3):
            raise ValueError(f"input {x}")
        ended.append(x)
        return [x]

    with pytest.raises(ValueError, match="input 1"):
        drive.batch(graph({"n": node(body)}), range(5))
    assert sorted(ended) == [0, 2, 4]


def test_batch_runs_side_by_side():
    barrier = threading.Barrier(6)
    assert graph({"n": node(lambda x: [barrier.wait(WAIT) * 0 + x])}).batch([1] * 6) == [[1]] * 6


# -- sharing --------------------------------------------------------------------------------------------------


def test_one_graph_serves_many_threads_and_event_loops_at_once(drive):
    app = graph({f"n{i}": node(lambda x, i=i: [(x, i)]) for i in range(4)}, InMemorySaver())
    results = {}

    def use(number):
        for _ in range(5):
            results[number] = drive.invoke(app, number, thread_config(str(number)))

    users = [threading.Thread(target=use, args=(n,)) for n in range(8)]
    run_threads(users)
    assert results == {n: [(n, i) for i in range(4)] * 5 for n in range(8)}


def test_two_hundred_tiny_runs_in_every_world_lose_nothing(drive):
    app = many(5, lambda x: [x])
    for i in range(200):
        mode = ("values", "updates", "custom")[i % 3]
        if i % 2:
            assert drive.invoke(app, i, {"max_concurrency": 1 + i % 3}) == [i] * 5
        else:
            assert len(drive.stream(app, i, stream_mode=mode)) == {"values": 2, "updates": 5, "custom": 0}[mode]


# -- the pool -------------------------------------------------------------------------------------------------


def test_a_pool_forgets_the_threads_of_the_process_it_was_forked_from():
    pool = ThreadPool()
    done = threading.Event()
    pool.submit(done.set)
    assert done.wait(WAIT)
    with pool._lock:
        pool._idle = 1  # as in a child: an idle thread is counted that does not exist
    pool.forget()
    again = threading.Event()
    pool.submit(again.set)
    assert again.wait(WAIT)
