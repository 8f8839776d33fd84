"""`runtime.sleep`: a task resumes at a recorded time, in whichever process runs it then."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from kit import cluster
from kit.drive import Drive, cancel, each_durability
from kit.graphs import CONFIG, Log, chain_of, graph_of, parallel_of

from stategraph import (
    START,
    Command,
    GraphDrained,
    InMemorySaver,
    RetryPolicy,
    RunControl,
    Runtime,
    Send,
    StateGraph,
    entrypoint,
    get_runtime,
    interrupt,
    task,
)
from stategraph.checkpoint.command import describe_standing
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.pregel.clock import CLOCK
from stategraph.pregel.errors import NodeTimeoutError, UnknownInterruptError
from stategraph.testing import virtual_time
from stategraph.visualize.trace.reader import read_trace

postgres = cluster.emptied
HOUR = 3600.0
BEGIN = datetime(2030, 1, 1, tzinfo=UTC)


class Hands:
    """A clock that stands still until it is moved."""

    def __init__(self):
        self.now = BEGIN.timestamp()

    def move(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    hands = Hands()
    monkeypatch.setattr(CLOCK, "time", lambda: hands.now)
    return hands


def after(seconds):
    return BEGIN + timedelta(seconds=seconds)


def sleeper(drive, body):
    """A node. `body` is a generator that yields how long to sleep, as positional and keyword arguments."""

    def node(state, runtime: Runtime):
        steps = body(state)
        try:
            while True:
                args, kwargs = next(steps)
                runtime.sleep(*args, **kwargs)
        except StopIteration as end:
            return end.value

    async def anode(state, runtime: Runtime):
        steps = body(state)
        try:
            while True:
                args, kwargs = next(steps)
                await runtime.asleep(*args, **kwargs)
        except StopIteration as end:
            return end.value

    return anode if drive.is_async else node


def span(*args, **kwargs):
    return args, kwargs


def naps(drive, *spans):
    """A node that sleeps for each of these, and wakes."""

    def body(state):
        yield from spans
        return {"log": ["woke"]}

    return sleeper(drive, body)


def an_hour(drive, ran):
    """A node that notes each of its runs, and sleeps an hour."""

    def body(state):
        ran.append("sleeper")
        yield span(HOUR)
        return {"log": ["woke"]}

    return sleeper(drive, body)


def graph(nodes, saver=None, **policies):
    return parallel_of(Log, nodes, **policies).compile(saver)


# -- it pauses ----------------------------------------------------------------------------------------------------


@each_durability
def test_a_long_sleep_pauses_until_its_time(drive, saver, clock, durability):
    """Each call by a freshly compiled graph, as after a restart."""
    ran = []

    def app():
        return graph({"sleeper": an_hour(drive, ran)}, saver)

    for _ in range(3):
        input = None if ran else {}
        assert drive.invoke(app(), input, CONFIG, durability=durability) == {
            "log": [],
            "__sleep__": after(HOUR),
        }
        assert ran == ["sleeper"], "no task that sleeps is started before its time"
        state = drive.get_state(app(), CONFIG)
        assert state.wake_at == state.tasks[0].wake_at == after(HOUR)
        assert state.next == ("sleeper",) and state.interrupts == ()
        clock.move(1000)
    clock.move(HOUR - 3000)
    assert drive.invoke(app(), None, CONFIG, durability=durability) == {"log": ["woke"]}
    assert ran == ["sleeper"] * 2, "it has run again from its top, once"
    state = drive.get_state(app(), CONFIG)
    assert state.next == () and state.wake_at is None


def test_until_names_the_time(drive, saver, clock):
    thread = drive.on(graph({"sleeper": naps(drive, span(until=after(HOUR).astimezone(None)))}, saver))
    assert thread.invoke({})["__sleep__"] == after(HOUR)
    clock.move(HOUR)
    assert thread.invoke(None) == {"log": ["woke"]}


def test_of_several_sleeping_tasks_only_those_that_are_due_run(drive, saver, clock):
    ran = []

    def one(name, hours):
        def body(state):
            ran.append(name)
            yield span(timedelta(hours=hours))
            return {"log": [name]}

        return sleeper(drive, body)

    thread = drive.on(graph({"a": one("a", 3), "b": one("b", 1), "c": one("c", 2)}, saver))
    assert thread.invoke({})["__sleep__"] == after(HOUR)
    ran.clear()
    clock.move(HOUR)
    assert thread.invoke(None) == {"log": ["b"], "__sleep__": after(2 * HOUR)}
    assert thread.state.next == ("a", "c")
    assert ran == ["b"]
    clock.move(2 * HOUR)
    assert thread.invoke(None) == {"log": ["a", "b", "c"]}
    assert sorted(ran) == ["a", "b", "c"]


def test_one_sleep_after_the_other_each_is_slept_once(drive, saver, clock):
    done = []

    def body(state):
        for number in range(3):
            yield span(HOUR)
            if number not in done:
                done.append(number)
        return {"log": ["woke"]}

    thread = drive.on(graph({"sleeper": sleeper(drive, body)}, saver))
    for number in range(3):
        assert thread.invoke(None if number else {})["__sleep__"] == after(
            HOUR * (number + 1)
        )
        assert done == [*range(number)]
        clock.move(HOUR)
    assert thread.invoke(None) == {"log": ["woke"]}


def test_keys_identify_sleeps_reached_in_another_order(drive, saver, clock):
    order = ["a", "b"]
    hours = {"a": 1, "b": 5}

    def body(state):
        for key in [*order]:
            yield span(HOUR * hours[key], key=key)
        return {"log": ["woke"]}

    thread = drive.on(graph({"sleeper": sleeper(drive, body)}, saver))
    thread.invoke({})
    clock.move(HOUR)
    order.reverse()
    assert thread.invoke(None)["__sleep__"] == after(6 * HOUR)
    order.reverse()
    clock.move(5 * HOUR)
    assert thread.invoke(None) == {"log": ["woke"]}, "both were slept"


def test_a_retry_finds_the_time(drive, saver, clock):
    fails = [True]

    def body(state):
        yield span(HOUR)
        if fails:
            fails.clear()
            raise ConnectionError
        return {"log": ["woke"]}

    again = RetryPolicy(initial_interval=0, retry_on=ConnectionError)
    thread = drive.on(graph({"sleeper": sleeper(drive, body)}, saver, retry_policy=again))
    thread.invoke({})
    clock.move(HOUR)
    assert thread.invoke(None) == {"log": ["woke"]}


def test_a_failure_behind_it_leaves_no_time(drive, saver, clock):
    fails = [True]

    def body(state):
        yield span(HOUR)
        if fails:
            raise ConnectionError
        return {"log": ["woke"]}

    thread = drive.on(graph({"sleeper": sleeper(drive, body)}, saver))
    thread.invoke({})
    clock.move(HOUR)
    with pytest.raises(ConnectionError):
        thread.invoke(None)
    assert thread.state.wake_at is None
    fails.clear()
    assert thread.invoke(None) == {"log": ["woke"]}


class Stopped(Exception):
    """The process has ended here."""


def stop_at(saver, number, *, stored):
    """Let the n-th write of a saver fail, before it is stored or when it is. All that follow fail as well."""
    calls = 0

    def watch(name):
        real = getattr(saver, name)

        def write(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls > number or (calls == number and not stored):
                raise Stopped
            result = real(*args, **kwargs)
            if calls == number and not name.startswith("a"):
                raise Stopped
            return result

        async def awrite(*args, **kwargs):
            result = await write(*args, **kwargs)
            if calls == number:
                raise Stopped
            return result

        setattr(saver, name, awrite if name.startswith("a") else write)

    for name in ("commit", "record", "acommit", "arecord"):
        watch(name)


@pytest.mark.trial
@pytest.mark.parametrize("stored", [False, True])
def test_stopped_at_any_write_it_wakes_once_at_the_time_that_was_recorded(drive, clock, tmp_path, stored):
    ran = []

    def app(saver):
        return graph_of(Log, "S>first>sleeper", sleeper=an_hour(drive, ran)).compile(
            checkpointer=saver
        )

    times = set()
    for number in range(1, 12):
        path, begin = str(tmp_path / f"{number}.db"), clock.now
        with SqliteSaver.from_conn_string(path, synchronous="off") as saver:
            stop_at(saver, number, stored=stored)
            try:
                drive.invoke(app(saver), {}, CONFIG)
                ended = True
            except Stopped:
                ended = False
        clock.move(100)
        with SqliteSaver.from_conn_string(path, synchronous="off") as saver:
            begun = drive.get_state(app(saver), CONFIG).created_at
            asleep = drive.invoke(app(saver), None if begun else {}, CONFIG)
            times.add(asleep["__sleep__"].timestamp() - begin)
            assert drive.invoke(app(saver), None, CONFIG) == asleep
            clock.move(HOUR)
            ran.clear()
            assert drive.invoke(app(saver), None, CONFIG) == {"log": ["first", "woke"]}
            assert ran == ["sleeper"]
        if ended:
            break
    assert ended and times == {HOUR, HOUR + 100}, "before it was recorded it sleeps anew, afterwards never"


# -- beside questions ---------------------------------------------------------------------------------------------


def test_an_interrupt_and_a_sleep_of_siblings_are_waited_for_independently(drive, saver, clock):
    ran = []

    def ask(state):
        ran.append("ask")
        return {"log": [interrupt("content?")]}

    thread = drive.on(graph({"ask": ask, "sleeper": an_hour(drive, ran)}, saver))
    paused = thread.invoke({})
    assert paused["__sleep__"] == after(HOUR)
    assert [question.value for question in paused["__interrupt__"]] == ["content?"]
    state = thread.state
    assert [question.value for question in state.interrupts] == [
        "content?"
    ] and state.wake_at == after(HOUR)
    ran.clear()
    assert thread.resume("yes") == {
        "log": ["yes"],
        "__sleep__": after(HOUR),
    }
    assert ran == ["ask"], "the answer wakes nobody"
    clock.move(HOUR)
    assert thread.invoke(None) == {"log": ["yes", "woke"]}
    assert ran == ["ask", "sleeper"]


def test_an_answer_is_for_questions_only(drive, saver, clock):
    ran = []
    thread = drive.on(graph({"quick": lambda state: {"log": ["quick"]}, "sleeper": an_hour(drive, ran)}, saver))
    thread.invoke({})
    with pytest.raises(UnknownInterruptError, match="it sleeps") as refused:
        thread.resume("up!")
    assert refused.value.reason == "asleep" and ran == ["sleeper"]
    clock.move(HOUR)
    assert thread.invoke(None) == {"log": ["quick", "woke"]}


def test_a_question_behind_a_sleep(drive, saver, clock):
    def body(state):
        yield span(HOUR)
        answer = interrupt("content?")
        yield span(HOUR)
        return {"log": [answer]}

    thread = drive.on(graph({"sleeper": sleeper(drive, body)}, saver))
    thread.invoke({})
    clock.move(HOUR)
    asked = thread.invoke(None)
    assert asked["__interrupt__"][0].value == "content?" and "__sleep__" not in asked
    assert thread.state.wake_at is None
    asleep = thread.resume("yes")
    assert asleep == {"log": [], "__sleep__": after(2 * HOUR)}
    assert thread.state.interrupts == ()
    assert thread.invoke(None) == asleep
    clock.move(HOUR)
    assert thread.invoke(None) == {"log": ["yes"]}


async def test_side_by_side_in_one_node_the_first_of_answer_and_time_runs_it_again(saver, clock):
    async def both(state, runtime: Runtime):
        async def ask():
            return interrupt("content?", key="content")

        answer, _ = await asyncio.gather(ask(), runtime.asleep(HOUR, key="later"))
        return {"log": [answer]}

    app = graph({"both": both}, saver)
    paused = await app.ainvoke({}, CONFIG)
    assert paused["__sleep__"] == after(HOUR) and len(paused["__interrupt__"]) == 1
    clock.move(HOUR)
    paused = await app.ainvoke(None, CONFIG)
    assert "__sleep__" not in paused and len(paused["__interrupt__"]) == 1
    assert await app.ainvoke(Command(resume="yes"), CONFIG) == {"log": ["yes"]}


# -- edits, forks, new input --------------------------------------------------------------------------------------


def test_an_edit_keeps_the_time(drive, saver, clock):
    ran = []
    thread = drive.on(graph_of(Log, "S>first>sleeper", sleeper=an_hour(drive, ran)).compile(saver))
    thread.invoke({})
    clock.move(1000)
    thread.call("update_state", {"log": ["edited"]}, as_node="first")
    assert thread.state.wake_at == after(HOUR)
    assert thread.invoke(None)["__sleep__"] == after(HOUR)
    assert ran == ["sleeper"], "the edit wakes nobody"
    clock.move(HOUR - 1000)
    assert thread.invoke(None) == {"log": ["first", "edited", "woke"]}


def test_a_new_input_and_a_fork_sleep_again(drive, saver, clock):
    ran = []
    thread = drive.on(graph({"sleeper": an_hour(drive, ran)}, saver))
    thread.invoke({})
    clock.move(1000)
    assert thread.invoke({"log": ["new"]})["__sleep__"] == after(1000 + HOUR)
    before = thread.state.config
    clock.move(1000)
    assert thread.invoke(None, before)["__sleep__"] == after(2000 + HOUR)
    assert ran == ["sleeper"] * 3


# -- wherever a task runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointer", [None, True])
def test_in_a_subgraph(drive, saver, clock, checkpointer):
    ran = []
    inner = (
        chain_of(Log, first=lambda state: ran.append("first"))
    )
    inner.add_node("sleeper", an_hour(drive, ran)).add_edge("first", "sleeper")

    def app():
        return graph({"inner": inner.compile(checkpointer=checkpointer)}, saver)

    assert drive.invoke(app(), {}, CONFIG)["__sleep__"] == after(HOUR)
    state = drive.get_state(app(), CONFIG, subgraphs=True)
    assert state.wake_at == state.tasks[0].state.wake_at == after(HOUR)
    assert drive.invoke(app(), None, CONFIG)["__sleep__"] == after(HOUR)
    assert ran == ["first", "sleeper"]
    clock.move(HOUR)
    assert drive.invoke(app(), None, CONFIG) == {"log": ["woke"]}
    assert ran == ["first", "sleeper", "sleeper"]


def test_in_tasks_that_are_called(drive, saver, clock):
    ran = []

    if drive.is_async:

        @task
        async def nap(hours):
            ran.append(hours)
            await get_runtime().asleep(HOUR * hours)
            return hours

        @entrypoint(checkpointer=saver)
        async def flow(hours):
            return [*await asyncio.gather(*map(nap, hours))]
    else:

        @task
        def nap(hours):
            ran.append(hours)
            get_runtime().sleep(HOUR * hours)
            return hours

        @entrypoint(checkpointer=saver)
        def flow(hours):
            return [call.result() for call in [nap(each) for each in hours]]

    assert drive.invoke(flow, [1, 2], CONFIG)["__sleep__"] == after(HOUR)
    clock.move(HOUR)
    ran.clear()
    assert drive.invoke(flow, None, CONFIG)["__sleep__"] == after(2 * HOUR)
    assert ran == [1], "the other call goes on sleeping without being started"
    clock.move(HOUR)
    assert drive.invoke(flow, None, CONFIG) == [1, 2]
    assert ran == [1, 2]


def test_with_sends(drive, saver, clock):
    ran = []

    def body(hours):
        ran.append(hours)
        yield span(HOUR * hours)
        return {"log": [str(hours)]}

    builder = StateGraph(Log).add_node("nap", sleeper(drive, body))
    builder.add_conditional_edges(
        START, lambda state: [Send("nap", hours) for hours in (2, 1, 0)], ["nap"]
    )
    thread = drive.on(builder.compile(saver))
    assert thread.invoke({}) == {"log": ["0"], "__sleep__": after(HOUR)}
    ran.clear()
    clock.move(2 * HOUR)
    assert thread.invoke(None) == {"log": ["2", "1", "0"]}
    assert sorted(ran) == [1, 2]


def test_what_a_stream_shows(drive, saver, clock):
    thread = drive.on(graph({"sleeper": an_hour(drive, [])}, saver))
    assert thread.stream({}, stream_mode="updates") == [{"__sleep__": after(HOUR)}]
    asleep = {"log": [], "__sleep__": after(HOUR)}
    assert asleep in thread.stream(None, stream_mode="values")
    ended = thread.stream(None, stream_mode="tasks")[-1]
    assert (ended["name"], ended["wake_at"], ended["interrupts"]) == ("sleeper", after(HOUR), [])
    parts = thread.stream(None, stream_mode="values", version="v2")
    assert [part.get("wake_at") for part in parts][-1] == after(HOUR)
    output = thread.invoke(None, version="v2")
    assert output.wake_at == after(HOUR) and output.interrupts == () and output.value == {"log": []}


def test_explain_says_so(drive, saver, clock):
    thread = drive.on(graph({"sleeper": an_hour(drive, [])}, saver))
    thread.invoke({})
    assert (
        thread.call("explain")["sleeper"].why == "it sleeps until 2030-01-01 01:00:00 UTC"
    )


def test_pictures_and_the_command_line_show_a_sleeper(clock, tmp_path, capsys):
    path = tmp_path / "threads.db"
    with SqliteSaver.from_conn_string(str(path)) as opened:
        app = graph({"sleeper": an_hour(Drive(False), [])}, opened)
        app.invoke({}, CONFIG)
        assert read_trace(app, CONFIG).steps[-1].tasks[0].state == "paused"
        assert describe_standing(opened.get_tuple(CONFIG)) == "next: sleeper; sleeps until 2030-01-01 01:00:00 UTC"


def test_on_an_executor_in_another_process_it_is_refused(clock):
    app = graph({"node": nap_elsewhere}, InMemorySaver(), executor="processes")
    with pytest.raises(RuntimeError, match=r"runtime.sleep\(\) stays with the driver: give the node executor"):
        app.invoke({}, CONFIG)


def nap_elsewhere(state, runtime: Runtime):
    """At the top of a module, so that workers find it by name."""
    runtime.sleep(1)


# -- it waits in place --------------------------------------------------------------------------------------------


class Waited:
    """Notes how long the engine has waited; no time passes but by its waits."""

    def __init__(self, hands: Hands, monkeypatch):
        self.hands = hands
        self.seconds = 0.0
        monkeypatch.setattr(CLOCK, "sleep", self.wait)
        monkeypatch.setattr(asyncio, "sleep", self.wait_async)

    def wait(self, seconds):
        self.seconds += seconds
        self.hands.move(seconds)

    async def wait_async(self, seconds):
        self.wait(seconds)


@pytest.fixture
def waited(clock, monkeypatch):
    return Waited(clock, monkeypatch)


def test_a_short_sleep_waits_in_place(drive, saver, waited):
    ran = []

    def body(state):
        ran.append("sleeper")
        yield span(2)
        yield span(60, durable_after=timedelta(minutes=1))
        return {"log": ["woke"]}

    assert drive.invoke(graph({"sleeper": sleeper(drive, body)}, saver), {}, CONFIG) == {
        "log": ["woke"]
    }
    assert ran == ["sleeper"] and waited.seconds == pytest.approx(62)


def test_without_a_checkpointer_a_sleep_waits_in_place_however_long_it_takes(drive, waited):
    assert drive.invoke(graph({"sleeper": an_hour(drive, [])}), {}) == {"log": ["woke"]}
    assert waited.seconds == pytest.approx(HOUR)


@pytest.mark.trial
def test_in_a_subgraph_that_stores_nothing_it_waits_in_place(drive, saver, waited):
    app = graph({"inner": chain_of(Log, sleeper=an_hour(drive, [])).compile(checkpointer=False)}, saver)
    assert drive.invoke(app, {}, CONFIG) == {"log": ["woke"]}
    assert waited.seconds == pytest.approx(HOUR)


def test_a_resumed_run_sleeps_the_rest_of_a_short_sleep(drive, saver, waited):
    """The time is recorded before the first wait."""
    stop = [True]
    wait = waited.wait

    def killed(seconds):
        wait(3)
        stop.clear()
        raise ConnectionError

    async def killed_async(seconds):
        if seconds:  # not where somebody gives way
            killed(seconds)

    app = graph({"sleeper": naps(drive, span(5))}, saver)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ConnectionError):
        patch.setattr(CLOCK, "sleep", killed)
        patch.setattr(asyncio, "sleep", killed_async)
        drive.invoke(app, {}, CONFIG)
    assert drive.invoke(graph({"sleeper": naps(drive, span(5))}, saver), None, CONFIG) == {
        "log": ["woke"]
    }
    assert not stop and waited.seconds == pytest.approx(5)


def test_a_drain_ends_a_sleep_in_place(drive, saver, waited):
    control = RunControl()
    wait = waited.wait

    def asked(seconds):
        wait(seconds)
        control.request_drain("deploy")

    async def asked_async(seconds):
        if seconds:
            asked(seconds)

    thread = drive.on(graph({"sleeper": naps(drive, span(9))}, saver))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(GraphDrained, match="deploy"):
        patch.setattr(CLOCK, "sleep", asked)
        patch.setattr(asyncio, "sleep", asked_async)
        thread.invoke({}, control=control)
    assert waited.seconds < 1
    assert thread.invoke(None) == {"log": ["woke"]}
    assert waited.seconds == pytest.approx(9)


def test_the_deadline_of_the_run_ends_it(drive, saver, waited):
    app = graph({"sleeper": naps(drive, span(9))}, saver)
    with pytest.raises(GraphDrained):
        drive.invoke(app, {}, {**CONFIG, "deadline": after(4)})
    assert waited.seconds == pytest.approx(4, abs=0.1)
    assert drive.invoke(app, None, CONFIG) == {"log": ["woke"]}


def test_a_timeout_of_the_node_ends_it_and_the_next_attempt_sleeps_the_rest(drive, saver):
    """In real time: a thread is given up while it sleeps, and ends by itself."""

    again = RetryPolicy(max_attempts=20, initial_interval=0, retry_on=NodeTimeoutError)
    app = graph({"sleeper": naps(drive, span(0.6))}, saver, timeout=0.3, retry_policy=again)
    assert drive.invoke(app, {}, CONFIG) == {"log": ["woke"]}


async def test_a_cancelled_run_does_not_sleep_on(saver):
    app = graph(
        {"sleeper": naps(Drive(True), span(9))},
        saver,
    )
    call = asyncio.create_task(app.ainvoke({}, CONFIG))
    began = time.monotonic()
    while not (await app.aget_state(CONFIG)).next:
        await asyncio.sleep(0.01)
    await cancel(call)
    assert (time.monotonic() - began) < 9


# -- refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        (span(), TypeError, "either a duration or until=, got none"),
        (span(1, until=BEGIN), TypeError, "got both"),
        (span(-1), ValueError, "0 seconds or more, and finite, got -1"),
        (span(float("nan")), ValueError, "finite"),
        (span(1e15), ValueError, "after the year 9999"),
        (span("1"), TypeError, "seconds or a timedelta, got '1'"),
        (span(until="tomorrow"), TypeError, "must be a datetime"),
        (span(until=datetime(2030, 1, 1)), ValueError, "time zone"),
        (span(1, key=""), TypeError, "non-empty string"),
        (span(1, durable_after=-1), ValueError, "durable_after"),
    ],
)
def test_what_it_is_given_is_checked(drive, clock, asked, error, text):
    with pytest.raises(error, match=text):
        drive.invoke(graph({"sleeper": naps(drive, asked)}, InMemorySaver()), {}, CONFIG)


def test_one_key_twice_in_an_attempt_is_refused(drive, clock):
    with pytest.raises(ValueError, match="key='a'\\) twice"):
        drive.invoke(graph({"sleeper": naps(drive, span(0, key="a"), span(0, key="a"))}, InMemorySaver()), {}, CONFIG)


def test_no_sleep_inside_of_an_effect(clock):
    def node(state, runtime: Runtime):
        runtime.once("pay", runtime.sleep, 1)

    with pytest.raises(
        RuntimeError, match=r"runtime.sleep\(\) cannot be used inside of runtime.once\('pay'\)"
    ):
        graph({"node": node}, InMemorySaver()).invoke({}, CONFIG)


def test_sleep_in_a_coroutine_says_what_to_await(clock):
    async def node(state, runtime: Runtime):
        runtime.sleep(HOUR)

    with pytest.raises(RuntimeError, match="await runtime.asleep"):
        asyncio.run(graph({"node": node}, InMemorySaver()).ainvoke({}, CONFIG))


@pytest.mark.parametrize("saver", [None, InMemorySaver()], ids=["unsaved", "saved"])
async def test_a_sync_run_sleeps_where_an_event_loop_runs_as_in_a_notebook(saver):
    def node(state, runtime: Runtime):
        runtime.sleep(60)
        return {"log": ["woke"]}

    with virtual_time() as clock:
        app, config = graph({"node": node}, saver), CONFIG if saver else None
        if saver:
            assert "__sleep__" in app.invoke({}, config)
            clock.advance(60)
        assert app.invoke(None if saver else {}, config) == {"log": ["woke"]}


def test_outside_of_a_node_it_says_so():
    with pytest.raises(RuntimeError, match="inside a running node"):
        Runtime().sleep(1)


# -- races --------------------------------------------------------------------------------------------------------


def race(drive, hours, ran, saver):
    def body(each):
        ran.append(each)
        if each:
            yield span(HOUR * each)
        return {"log": [str(each)]}

    builder = StateGraph(Log).add_node("nap", sleeper(drive, body))
    builder.add_conditional_edges(START, lambda state: [Send("nap", each, race="r") for each in hours], ["nap"])
    return builder.compile(saver)


def test_a_sleeper_does_not_win_a_race(drive, saver, clock):
    ran = []
    assert drive.invoke(race(drive, [1, 0], ran, saver), {}, CONFIG) == {"log": ["0"]}
    assert drive.get_state(race(drive, [1, 0], ran, saver), CONFIG).wake_at is None


def test_a_race_of_sleepers_pauses_and_the_first_to_wake_wins(drive, saver, clock):
    ran = []
    thread = drive.on(race(drive, [2, 1], ran, saver))
    assert thread.invoke({})["__sleep__"] == after(HOUR)
    clock.move(HOUR)
    assert thread.invoke(None) == {"log": ["1"]}
    assert sorted(ran) == [1, 1, 2]
    assert thread.state.next == ()
