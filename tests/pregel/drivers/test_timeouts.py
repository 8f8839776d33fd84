"""Timeouts: of an attempt, of idleness, of a superstep. For sync nodes too; late writes and events are dropped.

The clocks of threads are fake: time passes when a node says so, and the drivers, which wait a few real milliseconds at
a time, then find the limit hit. Coroutines alone meet real limits of that length.
"""

from __future__ import annotations

import asyncio
import gc
import operator
import threading
from datetime import timedelta
from typing import Annotated, Any

import pytest
from kit.graphs import CONFIG, chain_of, graph_of, parallel_of
from typing_extensions import TypedDict

from stategraph import (
    START,
    InMemorySaver,
    NodeTimeoutError,
    RetryPolicy,
    Send,
    StateGraph,
    TimeoutPolicy,
    entrypoint,
    get_runtime,
    get_stream_writer,
    interrupt,
)
from stategraph.channels import BinaryOperatorAggregate, LastValue
from stategraph.graph import stream_text
from stategraph.pregel import NodeBuilder, Pregel, StepTimeoutError
from stategraph.pregel.clock import CLOCK
from stategraph.pregel.drivers import attempt
from stategraph.pregel.errors import GraphAbandoned
from stategraph.pregel.task.deadline import ChildDeadline, Deadline

SHORT = 0.01
WAIT = 5.0
"""Seconds after which a test that hangs gives up."""


class State(TypedDict, total=False):
    n: int
    log: Annotated[list, operator.add]


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


Known = tuple[list[Deadline], Clock]


@pytest.fixture
def known(monkeypatch):
    """All watches that runs make, and the clock by which they and the limits of supersteps go."""
    clock, made = Clock(), []

    class OfThisTest(Deadline):
        def __init__(self, policy: TimeoutPolicy, above: Deadline | None = None):
            super().__init__(policy, above, clock)
            made.append(self)

    monkeypatch.setattr(attempt, "Deadline", OfThisTest)
    monkeypatch.setattr(CLOCK, "monotonic", clock)
    return made, clock


class Gate:
    """What slow nodes wait for, a second at least. Opened at the end of the test, so that no thread is left behind."""

    def __init__(self, clock: Clock):
        self.clock = clock
        self.event = threading.Event()
        self.entered = threading.Event()
        self.ended = threading.Event()

    def wait(self):
        self.entered.set()
        self.clock.now += 1
        self.event.wait(WAIT)

    def open(self):
        self.event.set()


@pytest.fixture
def gate(known):
    gate = Gate(known[1])
    yield gate
    gate.open()


class Recorder(InMemorySaver):
    """Not quick, as far as the engine knows: what ends early is recorded at once. `recorded` tells when."""

    in_memory = False

    def __init__(self):
        super().__init__()
        self.recorded = threading.Event()

    def record(self, *args):
        revision = super().record(*args)
        self.recorded.set()
        return revision

    async def arecord(self, *args):
        revision = await super().arecord(*args)
        self.recorded.set()
        return revision


def app_of(node, saver=None, **policies):
    return parallel_of(State, {"node": node}, **policies).compile(saver)


# -- the watch ------------------------------------------------------------------------------------------------


def watch(above: Deadline | None = None, **limits):
    clock = Clock()
    return Deadline(TimeoutPolicy(**limits), above, clock), clock


def test_the_run_limit_is_never_put_off():
    dog, clock = watch(run_timeout=10)
    clock.now += 4
    dog.touch()
    dog.touch(heartbeat=True)
    assert dog.remaining() == 6
    clock.now += 6
    assert dog.remaining() <= 0
    error = dog.error("node")
    assert (error.node, error.kind, error.timeout, error.elapsed) == ("node", "run", 10, 10)
    assert "run timeout of 10 s" in str(error)


def test_the_idle_limit_restarts_with_each_heartbeat():
    dog, clock = watch(idle_timeout=10)
    for _ in range(3):
        clock.now += 9
        dog.touch()
    assert dog.remaining() == 10
    clock.now += 10
    assert dog.remaining() <= 0
    error = dog.error("node")
    assert (error.kind, error.timeout, error.elapsed) == ("idle", 10, 37)


def test_only_heartbeats_count_if_the_policy_says_so():
    dog, clock = watch(idle_timeout=10, refresh_on="heartbeat")
    clock.now += 6
    dog.touch()
    assert dog.remaining() == 4
    dog.touch(heartbeat=True)
    assert dog.remaining() == 10


def test_the_nearer_limit_is_the_one_that_is_hit():
    dog, clock = watch(run_timeout=30, idle_timeout=20)
    clock.now += 15
    dog.touch(heartbeat=True)
    clock.now += 15
    assert dog.remaining() <= 0
    assert dog.error("node").kind == "run"
    dog, clock = watch(run_timeout=30, idle_timeout=20)
    clock.now += 25
    assert dog.error("node").kind == "idle"


def test_rounding_does_not_change_the_kind():
    dog, clock = watch(run_timeout=0.05)
    for now in (100.05, 100.04999999999999, 100.05000000000001):
        clock.now = now
        error = dog.error("node")
        assert (error.kind, error.timeout) == ("run", 0.05)


def test_a_sign_of_life_is_one_for_the_attempts_around_it_too():
    outer, outer_clock = watch(idle_timeout=10)
    inner, _ = watch(outer, run_timeout=5)
    outer_clock.now += 9
    inner.touch()
    assert outer.remaining() == 10


def test_what_is_given_up_gives_up_what_is_inside():
    outer, _ = watch(run_timeout=10)
    inner, _ = watch(outer, run_timeout=5)
    call = ChildDeadline(above=outer)
    inner.check()
    outer.abandon()
    assert inner.abandoned and outer.abandoned and not call.abandoned
    with pytest.raises(GraphAbandoned):
        inner.check()
    call.check()
    assert not watch(run_timeout=1)[0].abandoned


# -- what a limit may be --------------------------------------------------------------------------------------


def test_seconds_and_timedeltas_mean_the_run_limit():
    assert TimeoutPolicy.coerce(2) == TimeoutPolicy(run_timeout=2)
    assert TimeoutPolicy.coerce(timedelta(seconds=2)) == TimeoutPolicy(run_timeout=2)
    assert TimeoutPolicy(idle_timeout=timedelta(minutes=1)).idle_timeout == 60  # type: ignore[arg-type]


def test_a_policy_without_limits_is_none():
    assert TimeoutPolicy.coerce(TimeoutPolicy()) is None
    assert TimeoutPolicy.coerce(None) is None


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), timedelta(0)])
def test_a_limit_is_more_than_nothing(seconds):
    for make in (
        lambda: TimeoutPolicy(run_timeout=seconds),
        lambda: TimeoutPolicy(idle_timeout=seconds),
        lambda: StateGraph(State).add_node("node", print, timeout=seconds),
        lambda: Send("node", 1, timeout=seconds),
        lambda: entrypoint(timeout=seconds),
    ):
        with pytest.raises(ValueError, match="greater than 0"):
            make()


def test_refresh_on_is_one_of_two():
    with pytest.raises(ValueError, match="refresh_on"):
        TimeoutPolicy(idle_timeout=1, refresh_on="writes")  # type: ignore[arg-type]


def test_sync_nodes_take_limits_at_every_place():
    graph = StateGraph(State).set_node_defaults(timeout=1).add_node("a", lambda s: None)
    graph.add_node("b", lambda s: None, timeout=2).add_edge(START, "a").add_edge(START, "b")
    nodes = graph.compile().program.nodes
    assert nodes["a"].policies.timeout == TimeoutPolicy(run_timeout=1)
    assert nodes["b"].policies.timeout == TimeoutPolicy(run_timeout=2)
    assert NodeBuilder().subscribe_only("a").set_timeout(3).build().policies.timeout == TimeoutPolicy(run_timeout=3)


# -- the run limit --------------------------------------------------------------------------------------------


def test_a_sync_node_is_abandoned_at_its_deadline(drive, gate):
    def node(state):
        gate.wait()
        return {"log": ["late"]}

    saver = InMemorySaver()
    app = app_of(node, saver, timeout=SHORT)
    with pytest.raises(NodeTimeoutError) as caught:
        drive.invoke(app, {"n": 1}, CONFIG)
    assert gate.entered.is_set() and not gate.event.is_set(), "nobody waited for it"
    error = caught.value
    assert (error.node, error.kind, error.timeout) == ("node", "run", SHORT)
    assert error.elapsed >= SHORT
    assert not isinstance(error, TimeoutError), "retried by default, unlike the builtin"


def test_a_coroutine_is_cancelled_at_its_deadline():
    log = []

    async def node(state):
        try:
            await asyncio.Event().wait()
        finally:
            log.append("cancelled")

    with pytest.raises(NodeTimeoutError, match="run timeout"):
        asyncio.run(app_of(node, timeout=SHORT).ainvoke({"n": 1}))
    assert log == ["cancelled"]


async def test_a_coroutine_that_ignores_its_cancellation_is_not_waited_for():
    go = asyncio.Event()

    async def node(state, writer):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await go.wait()
        writer("late")
        return {"log": ["late"]}

    chunks = []
    with pytest.raises(NodeTimeoutError):
        async for chunk in app_of(node, timeout=SHORT).astream({"n": 1}, stream_mode=["custom", "values"]):
            chunks.append(chunk)
    go.set()
    await asyncio.sleep(0)
    assert chunks == [("values", {"n": 1, "log": []})]


def test_a_node_in_time_is_not_disturbed(drive):
    assert drive.invoke(app_of(lambda s: {"log": [s["n"]]}, timeout=60), {"n": 1})["log"] == [1]


def test_a_coroutine_that_blocks_the_loop_and_then_returns_has_made_it():
    async def node(state):
        threading.Event().wait(0.25)
        return {"log": ["made it"]}

    # Not SHORT: the node has to have begun by then, on a busy machine too.
    assert asyncio.run(app_of(node, timeout=0.2).ainvoke({"n": 1}))["log"] == ["made it"]


@pytest.mark.trial
@pytest.mark.parametrize("how", ["invoke", "stream"])
async def test_a_graph_left_in_the_background_by_an_attempt_that_was_given_up_ends_as_cancelled(how):
    reported = []
    def never(state):
        raise AssertionError("nobody waits for it")

    inside, go_on, left = asyncio.Event(), asyncio.Event(), list[Any]()

    async def waits(state):
        inside.set()
        await go_on.wait()

    graph = chain_of(State, waits=waits, never=never).compile()

    async def read():
        if how == "invoke":
            await graph.ainvoke({"n": 1})
        else:
            async for _ in graph.astream({"n": 1}):
                pass

    async def node(state):
        left.append(asyncio.ensure_future(read()))
        await inside.wait()
        await asyncio.Event().wait()

    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    with pytest.raises(NodeTimeoutError):
        await app_of(node, timeout=SHORT * 5).ainvoke({"n": 1})
    go_on.set()
    await asyncio.wait(left)
    assert left[0].cancelled()
    left.clear()
    gc.collect()  # what nobody has looked at is reported when it goes
    assert reported == []


def test_a_timeout_error_of_the_nodes_own_passes_unchanged(drive):
    mine = TimeoutError("mine")

    def node(state):
        raise mine

    with pytest.raises(TimeoutError) as caught:
        drive.invoke(app_of(node, timeout=60), {"n": 1})
    assert caught.value is mine


def test_every_attempt_has_the_whole_time(drive, gate):
    attempts = []

    def node(state):
        attempts.append(1)
        if len(attempts) < 3:
            gate.wait()
        return {"log": [len(attempts)]}

    app = app_of(node, timeout=SHORT, retry_policy=RetryPolicy(initial_interval=0))
    assert drive.invoke(app, {"n": 1})["log"] == [3]


def test_an_error_handler_takes_over_at_the_deadline(drive, gate):
    app = app_of(
        lambda s: gate.wait(), timeout=SHORT, error_handler=lambda s, error: {"log": [(error.node, error.error.kind)]}
    )
    assert drive.invoke(app, {"n": 1})["log"] == [("node", "run")]


def test_a_question_asked_in_time_is_asked(drive):

    thread = drive.on(app_of(lambda s: {"log": [interrupt("?")]}, InMemorySaver(), timeout=60))
    assert "__interrupt__" in thread.invoke({"n": 1})
    assert thread.resume("A")["log"] == ["A"]


def test_a_send_brings_its_own_limit(drive, gate):
    """It overrides the node's, whichever is longer."""

    def work(wait):
        if wait:
            gate.wait()
        return {"log": [wait]}

    def app(send: Send, node_timeout):
        graph = StateGraph(State).add_node("work", work, timeout=node_timeout)
        return graph.add_conditional_edges(START, lambda s: [send]).compile()

    for node_timeout in (None, 60):
        with pytest.raises(NodeTimeoutError) as caught:
            drive.invoke(app(Send("work", True, timeout=SHORT), node_timeout), {"n": 1})
        assert caught.value.timeout == SHORT
    assert drive.invoke(app(Send("work", False, timeout=60), SHORT), {"n": 1})["log"] == [False]


def test_siblings_of_a_sync_node_that_is_abandoned_are_kept(drive, gate):
    log = []
    saver = Recorder()

    def slow(state):
        if not gate.event.is_set():
            saver.recorded.wait(WAIT)
            gate.wait()
        return {"log": ["slow"]}

    def quick(state):
        log.append("quick")
        return {"log": ["quick"]}

    graph = StateGraph(State).add_node(slow, timeout=SHORT).add_node(quick)
    thread = drive.on(graph.add_edge(START, "slow").add_edge(START, "quick").compile(saver))
    with pytest.raises(NodeTimeoutError):
        thread.invoke({"n": 1})
    gate.open()
    assert thread.invoke(None)["log"] == ["quick", "slow"]
    assert log == ["quick"]


# -- the idle limit -------------------------------------------------------------------------------------------


def signs(known: Known, *acts):
    """The seconds that the first watch has left, 50 s and a sign of life after the last."""
    left = []
    for act in acts:
        known[1].now += 50
        act()
        left.append(known[0][0].remaining())
    return left


@pytest.mark.parametrize("refresh_on", ["auto", "heartbeat"])
def test_what_counts_as_a_sign_of_life(drive, known, refresh_on):
    found = []

    def node(state, runtime):
        found.extend(signs(known, lambda: get_stream_writer()("event"), runtime.heartbeat, get_runtime().heartbeat))

    drive.invoke(app_of(node, timeout=TimeoutPolicy(idle_timeout=60, refresh_on=refresh_on)), {"n": 1})
    assert found == ([60, 60, 60] if refresh_on == "auto" else [10, 60, 60])


def test_a_streamed_token_is_a_sign_of_life(drive, known):
    found = []

    def node(state):
        found.extend(signs(known, lambda: stream_text(["word"])))

    app = app_of(node, timeout=TimeoutPolicy(idle_timeout=60))
    assert len(drive.stream(app, {"n": 1}, stream_mode="messages")) == 1
    assert found == [60]


@pytest.mark.parametrize("inside", [False, True], ids=["as a node", "called by a node"])
def test_a_nested_graph_that_lives_is_a_sign_of_life(drive, known, inside):
    """Its events, its heartbeats, and each of its supersteps."""
    found = []

    def first(state, writer, runtime):
        found.extend(signs(known, lambda: writer("event"), runtime.heartbeat))
        known[1].now += 50

    def second(state):
        found.append(known[0][0].remaining())

    child = graph_of(State, "S>first>second", first=first, second=second).compile()
    node = drive.node_of(child) if inside else child
    drive.invoke(app_of(node, timeout=TimeoutPolicy(idle_timeout=60)), {"n": 1})
    assert found == [60, 60, 60]


def test_the_idle_limit_ends_an_attempt(drive, gate):
    def node(state, writer):
        writer("one")
        gate.wait()

    with pytest.raises(NodeTimeoutError) as caught:
        drive.invoke(app_of(node, timeout=TimeoutPolicy(idle_timeout=SHORT)), {"n": 1})
    assert (caught.value.kind, caught.value.timeout) == ("idle", SHORT)


def test_a_heartbeat_without_a_limit_does_nothing(drive):
    def node(state, runtime):
        runtime.heartbeat()

    assert drive.invoke(app_of(node), {"n": 1}) == {"n": 1, "log": []}


# -- what comes late ------------------------------------------------------------------------------------------


def second_try(gate: Gate, late):
    """A node whose first attempt is abandoned and does `late` while the second runs; the second waits for it."""
    attempts = []

    def node(state):
        attempts.append(1)
        if len(attempts) == 1:
            gate.wait()
            try:
                late()
            finally:
                gate.ended.set()
            return {"log": ["late"]}
        gate.open()
        gate.ended.wait(WAIT)
        return {"log": ["in time"]}

    return node


def again(node, saver=None):
    """Time passes in the first attempt only."""
    policies = {"timeout": SHORT, "retry_policy": RetryPolicy(initial_interval=0)}
    return app_of(node, saver, **policies)


def test_late_writes_and_events_are_dropped(drive, gate):
    def late():
        get_stream_writer()("late")

    app = again(second_try(gate, late))
    chunks = drive.stream(app, {"n": 1}, stream_mode=["custom", "updates"])
    assert chunks == [("updates", {"node": {"log": ["in time"]}})]


def test_a_writer_obtained_before_the_deadline_writes_nothing_after_it(drive, gate):
    writers = []
    inner = second_try(gate, lambda: writers[0]("late"))

    def node(state, writer):
        writers.append(writer)
        writer("early")
        return inner(state)

    assert drive.stream(again(node), {"n": 1}, stream_mode="custom") == ["early", "early"]


def test_a_graph_called_late_does_not_run(drive, gate):
    log = []
    child = app_of(lambda s: log.append("child"))
    again_app = again(second_try(gate, lambda: child.invoke({"n": 1})))
    assert drive.invoke(again_app, {"n": 1})["log"] == ["in time"]
    assert log == []


def test_a_graph_that_runs_at_the_deadline_stores_and_shows_no_more(drive, gate):
    """It ends with the superstep it is in; the next attempt's graph goes on where it was, undisturbed."""
    log = []
    saver = InMemorySaver()

    def slow(state, runtime):
        if not gate.entered.is_set():
            gate.wait()
            gate.ended.set()
            return {"log": ["late"]}
        return {"log": ["slow"]}

    def after(state, writer):
        log.append("after")
        gate.open()
        gate.ended.wait(WAIT)
        writer("after")
        return {"log": ["after"]}

    child = graph_of(State, "S>slow>after", slow=slow, after=after).compile()
    app = again(child, saver)
    chunks = drive.stream(app, {"n": 1}, CONFIG, stream_mode=["custom", "updates"], subgraphs=True)
    assert [(bool(ns), mode, data) for ns, mode, data in chunks] == [
        (True, "updates", {"slow": {"log": ["slow"]}}),
        (True, "custom", "after"),
        (True, "updates", {"after": {"log": ["after"]}}),
        (False, "updates", {"node": {"n": 1, "log": ["slow", "after"]}}),
    ]
    assert log == ["after"]


def test_nothing_late_reaches_the_saver_once_the_run_is_over(drive, gate):
    class Noting(InMemorySaver):
        def commit(self, *args, **kwargs):
            assert not over.is_set()
            return super().commit(*args, **kwargs)

        def record(self, *args, **kwargs):
            assert not over.is_set()
            return super().record(*args, **kwargs)

    over = threading.Event()
    failures = []

    def slow(state):
        gate.wait()
        return {"log": ["late"]}

    child = chain_of(State, slow=slow).compile()

    def node(state):
        try:
            return child.invoke({"n": 1})
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            gate.ended.set()

    saver = Noting()
    thread = drive.on(app_of(node, saver, timeout=SHORT))
    with pytest.raises(NodeTimeoutError):
        thread.invoke({"n": 1})
    over.set()
    gate.open()
    assert gate.ended.wait(WAIT)
    assert [type(f) for f in failures] == [GraphAbandoned]
    assert thread.state.values == {"n": 1, "log": []}


# -- graphs ---------------------------------------------------------------------------------------------------


def test_a_graph_as_a_node_is_limited_as_a_whole(drive, gate):
    child = chain_of(State, slow=lambda s: gate.wait()).compile()
    with pytest.raises(NodeTimeoutError) as caught:
        drive.invoke(app_of(child, timeout=SHORT), {"n": 1})
    assert caught.value.node == "node"


def test_the_inner_limit_is_hit_first(drive, gate):
    graph = StateGraph(State).add_node("slow", lambda s: gate.wait(), timeout=SHORT)
    child = graph.add_edge(START, "slow").compile()
    with pytest.raises(NodeTimeoutError) as caught:
        drive.invoke(app_of(child, timeout=60), {"n": 1})
    assert caught.value.node == "slow"


def test_an_entrypoint_has_a_limit(drive, gate):
    @entrypoint(timeout=SHORT)
    def flow(x):
        gate.wait()

    with pytest.raises(NodeTimeoutError, match="'flow'"):
        drive.invoke(flow, 1)


# -- the limit of a superstep ---------------------------------------------------------------------------------


def stepping(nodes, saver=None, timeout=SHORT, after=None):
    """Nodes that all start with "a" and write "log"; those of `after` start with "b"."""
    table = {name: NodeBuilder().subscribe_only("a").do(node).write_to("log") for name, node in nodes.items()}
    for name, node in (after or {}).items():
        table[name] = NodeBuilder().subscribe_only("b").do(node).write_to("log")
    return Pregel(
        nodes=table,
        channels={"a": LastValue(int), "b": LastValue(int), "log": BinaryOperatorAggregate(list, operator.add)},
        input_channels="a",
        output_channels="log",
        checkpointer=saver,
        step_timeout=timeout,
    )


def test_a_step_timeout_is_seconds_or_a_timedelta():
    assert stepping({"a": len}, timeout=timedelta(minutes=1)).step_timeout == 60
    for wrong, error in (("30s", TypeError), (True, TypeError), (0, ValueError), (timedelta(-1), ValueError)):
        with pytest.raises(error, match="step_timeout must be"):
            stepping({"a": len}, timeout=wrong)


def test_a_superstep_ends_at_its_limit(drive, gate):
    """Sync nodes or not; the error names what had not ended. What had ended is kept, the late is not."""
    log = []
    saver = Recorder()

    def slow(x):
        saver.recorded.wait(WAIT)
        gate.wait()
        log.append("slow")
        gate.ended.set()
        return ["slow"]

    def quick(x):
        log.append("quick")
        return ["quick"]

    thread = drive.on(stepping({"slow": slow, "quick": quick}, saver))
    with pytest.raises(TimeoutError) as caught:
        thread.invoke(1)
    error = caught.value
    assert isinstance(error, StepTimeoutError)
    assert (error.unfinished, error.timeout) == (("slow",), SHORT)
    assert "slow" in str(error) and "quick" not in str(error)
    assert not gate.event.is_set(), "nobody waited for it"
    gate.open()
    assert gate.ended.wait(WAIT)
    gate.ended.clear()
    assert thread.state.next == ("slow",)
    thread.app.step_timeout = None
    assert thread.invoke(None) == ["quick", "slow"]
    assert sorted(log) == ["quick", "slow", "slow"]


def test_a_step_timeout_applies_to_a_single_sync_node(drive, gate):
    with pytest.raises(StepTimeoutError, match="slow had not ended"):
        drive.invoke(stepping({"slow": lambda x: gate.wait()}), 1)


def test_tasks_that_had_no_room_are_named_too(drive, gate):
    nodes = {name: lambda x: gate.wait() for name in ("one", "two")}
    with pytest.raises(StepTimeoutError) as caught:
        drive.invoke(stepping(nodes), 1, {"max_concurrency": 1})
    assert caught.value.unfinished == ("one", "two")


def test_coroutines_are_cancelled_at_it():
    log = []

    async def slow(x):
        try:
            await asyncio.Event().wait()
        finally:
            log.append("ended")

    with pytest.raises(StepTimeoutError):
        asyncio.run(stepping({"slow": slow}).ainvoke(1))
    assert log == ["ended"]


def test_a_step_timeout_applies_to_streams_and_late_events_are_dropped(drive, gate):
    def slow(x, writer):
        writer("early")
        gate.wait()
        writer("late")
        gate.ended.set()

    chunks = []
    with pytest.raises(StepTimeoutError):
        drive.stream(stepping({"slow": slow}), 1, stream_mode="custom", each=chunks.append)
    gate.open()
    assert gate.ended.wait(WAIT)
    assert chunks == ["early"]


def test_every_superstep_has_the_whole_limit(drive):
    app = stepping({"one": lambda x: ["one"]}, timeout=60)
    assert drive.invoke(app, 1) == ["one"]
    app = stepping({"one": lambda x: ["one"], "two": lambda x: ["two"]}, InMemorySaver(), timeout=60)
    assert drive.invoke(app, 1, CONFIG) == ["one", "two"]


def test_errors_and_questions_are_as_without_it(drive):

    def fail(x):
        raise KeyError("mine")

    def ask(x):
        return [interrupt("?")]

    with pytest.raises(KeyError, match="mine"):
        drive.invoke(stepping({"fail": fail, "fine": lambda x: ["fine"]}, timeout=60), 1)
    thread = drive.on(stepping({"ask": ask, "fine": lambda x: ["fine"]}, InMemorySaver(), timeout=60))
    assert "__interrupt__" in thread.invoke(1)
    assert thread.resume("A") == ["A", "fine"]


def test_a_nested_graph_that_is_late_stops(drive, gate):
    log = []
    nested = chain_of(State, slow=lambda s: gate.wait(), after=lambda s: log.append("after")).compile()

    def call(x):
        try:
            nested.invoke({"n": 1})
        finally:
            gate.ended.set()

    with pytest.raises(StepTimeoutError):
        drive.invoke(stepping({"call": call}), 1)
    gate.open()
    assert gate.ended.wait(WAIT)
    assert log == []


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_step_limit_is_more_than_nothing(seconds):
    with pytest.raises(ValueError, match="step_timeout"):
        stepping({"one": lambda x: None}, timeout=seconds)
