"""Calls of graphs with schedule="ready": copies, repeats, time travel, deadlines, commands, changed graphs, cancelling."""

from __future__ import annotations

import asyncio
import pickle
from datetime import timedelta
from typing import TypedDict

import pytest
from kit.drive import each_schedule
from kit.graphs import CONFIG, EMPTY, graph_of
from kit.ready_graphs import (
    State,
    beside_a_chain,
    build,
    by_order,
    ends_by,
    ends_in,
    ends_together,
    ready,
    sends,
    show,
)

from stategraph import (
    END,
    START,
    Command,
    ConcurrentUpdateError,
    GraphDrained,
    InMemorySaver,
    Send,
    StateGraph,
    interrupt,
    task,
)
from stategraph.checkpoint import UnserializableError
from stategraph.pregel import GraphChangedError
from stategraph.pregel.errors import COMMAND
from stategraph.pregel.schedule.slots import find_under_way
from stategraph.testing import virtual_time

CHAIN_FIRST = by_order("a", "b", "c", "long")


def log_a(state: State):
    return {"log": ["a"]}


def log_b(state: State):
    return {"log": ["b"]}


def ask(state):
    return {"log": [f"{interrupt('?')}{len(state['log'])}"]}


def test_a_pickled_graph_is_the_same(drive):
    app = graph_of(State, "S>a>b", a=log_a, b=log_b).compile(schedule="ready")
    again = pickle.loads(pickle.dumps(app))
    assert again.program.starts_ready
    assert drive.invoke(again, EMPTY)["log"] == drive.invoke(app, EMPTY)["log"] == ["a", "b"]


def test_a_call_that_is_delivered_twice_runs_once(drive):
    thread = drive.on(beside_a_chain(InMemorySaver(), ask))
    given = {**CONFIG, "run_id": "r"}
    with ends_by(CHAIN_FIRST):
        thread.invoke(EMPTY, given)
        thread.invoke(EMPTY, given)
    assert show(thread.history()) == "a / b / c"
    given_answer = {**CONFIG, "run_id": "s"}
    for _ in range(2):
        assert thread.invoke(Command(resume="!"), given_answer)["log"] == ["a", "b", "c", "!0", "d"]
    assert show(thread.history()) == "a / b / c / !0 / d"


def test_tasks_running_at_an_old_checkpoint_start_again_from_there(drive):
    thread = drive.on(beside_a_chain(InMemorySaver(), ask))
    with ends_by(CHAIN_FIRST):
        thread.invoke(EMPTY)
        thread.resume("one")
        after_b = next(each for each in thread.history() if each.values["log"] == ["a", "b"])
        assert sorted(after_b.next) == ["c", "long"]
        thread.invoke(None, after_b.config)
        assert thread.resume("two")["log"] == ["a", "b", "c", "two2", "d"]


def test_time_travel_into_a_graph_inside(drive):
    inner = build("S>x>ask>z", nodes={"ask": ask}).compile(schedule="ready", name="inner")
    thread = drive.on(beside_a_chain(InMemorySaver(), inner))
    with ends_in("a", "b", "c", "x", "ask", "z", "long"):
        thread.invoke(EMPTY)
        paused = thread.get_state(subgraphs=True)
        inside = next(each.state for each in paused.tasks if each.name == "long")
        assert inside.values["log"] == ["x"]
        thread.resume("one")
        thread.invoke(Command(resume="two"), inside.config)
        assert [each for each in thread.log if each.startswith("two")] == ["two1"]


def test_nothing_starts_after_the_deadline(drive):
    with virtual_time() as clock:
        nodes = {"a": lambda state: (clock.advance(3600), {"log": ["a"]})[1]}
        thread = drive.on(ready("S>a>b S>c", nodes=nodes))
        deadline = clock.now + timedelta(minutes=1)
        with ends_in("c", "a"), pytest.raises(GraphDrained):
            thread.invoke(EMPTY, {**CONFIG, "deadline": deadline})
        assert thread.log == ["c", "a"]
        assert thread.invoke(None)["log"] == ["c", "a", "b"]


def test_a_command_leads_to_a_declared_node(drive):
    def choose(state):
        return Command(update={"log": ["chosen"]}, goto="b")

    graph = build("S>long b>x c>x")
    graph.add_node("choose", choose, destinations=("b", "c")).add_edge(START, "choose")
    app = ready(graph)
    with ends_in("choose", "b", "x", "long"):
        assert drive.invoke(app, EMPTY, CONFIG)["log"] == ["chosen", "b", "x", "long"]


def test_a_call_may_begin_with_a_command(drive):
    thread = drive.on(beside_a_chain(InMemorySaver()))
    with ends_by(CHAIN_FIRST):
        thread.invoke(EMPTY, interrupt_before=["c"])
        result = thread.invoke(Command(update={"log": ["told"]}, goto="c"))
    assert {"told", "c"} <= set(result["log"])


def test_a_task_does_not_write_over_what_a_command_has_written(drive):
    class Plain(State, total=False):
        last: str

    thread = drive.on(ready(graph_of(Plain, "S>ask S>a", ask=lambda _: {"last": interrupt("?")}, a=log_a)))
    thread.invoke(EMPTY)
    for call in (Command(resume="answer", update={"last": "command"}), None):
        with pytest.raises(ConcurrentUpdateError, match="'ask' started before a Command wrote it") as raised:
            thread.invoke(call)
        assert (raised.value.writer, "an edge" in str(raised.value)) == (COMMAND, False)
    state = thread.state
    assert (state.values["last"], state.next) == ("command", ("ask",))
    thread.update({"log": ["edit"]}, "a")
    assert thread.invoke(None)["last"] == "answer"


def test_a_node_may_be_named_command():
    class Plain(TypedDict, total=False):
        last: str

    builder = StateGraph(Plain).add_node("Command", lambda _: {"last": "a"}).add_node("b", lambda _: {"last": "b"})
    app = builder.add_edge(START, "Command").add_edge(START, "b").compile(schedule="ready")
    with ends_in("Command", "b"), pytest.raises(ConcurrentUpdateError, match="an edge from one") as raised:
        app.invoke({})
    assert raised.value.writer == "Command"


@each_schedule
@pytest.mark.parametrize("branches", [False, True])
def test_a_send_of_a_command_gets_no_answers_of_a_running_task(
    drive, branches, schedule
):
    def two_questions(state):
        return {"log": [f"{state['n']} {interrupt('first')} {interrupt('second')}"]}

    builder = StateGraph(State).add_node("w", two_questions).add_node("y", log_b)
    builder.add_node("p", lambda _: Command(goto=[Send("w", {"n": "A"})]), destinations=("w",))
    thread = drive.on(builder.add_edge(START, "p").add_edge("p", "y").compile(InMemorySaver(), schedule=schedule))
    thread.invoke(EMPTY)
    here = thread.state.config if branches else CONFIG
    thread.resume("a1")
    if branches:
        thread.resume("a2")
    result = thread.invoke(Command(resume="b2", goto=[Send("w", {"n": "B"})]), here)
    assert sorted(result["log"]) == ["A a1 b2", "b"] or schedule == "supersteps"
    assert [question.value for question in result["__interrupt__"]] == ["first"]  # B's


def test_a_changed_graph_continues_running_tasks(drive):
    saver = InMemorySaver()
    graph = build("S>a>b>c>d S>long>d", nodes={"long": ask})
    with ends_by(CHAIN_FIRST):
        drive.invoke(ready(graph, saver=saver), EMPTY, CONFIG)
    thread = drive.on(ready("S>a>b>c>d S>long>new>d", nodes={"long": ask}, saver=saver))
    result = thread.resume("!")
    assert [each for each in result["log"] if each in ("!0", "new")] == ["!0", "new"]


def test_a_graph_without_a_node_that_is_running_is_refused(drive):
    saver = InMemorySaver()
    drive.invoke(beside_a_chain(saver, ask), EMPTY, CONFIG)
    changed = ready("S>a>b>c>d", saver=saver)
    with pytest.raises(GraphChangedError, match="node 'long'"):
        drive.invoke(changed, None, CONFIG)


@pytest.mark.parametrize("how", ["input", "update"])
@each_schedule
def test_new_input_or_an_update_as_end_drops_a_removed_node(drive, schedule, how):
    saver = InMemorySaver()
    first = build("S>a S>b>c S>gone r:S=gone", {"S": sends("gone", 1)}, {"gone": ask, "a": ask})
    drive.invoke(ready(first, saver=saver), EMPTY, CONFIG)
    assert under_way(saver) == ["a", "gone", "gone"]
    thread = drive.on(build("S>a S>b>c", nodes={"a": ask}).compile(saver, schedule=schedule))
    if how == "update":
        thread.update(None, END)
        assert under_way(saver) == []
        drive.call(saver, "prune", ["t"])
        assert len(thread.history()) == 1, "where it had started is not kept"
    thread.invoke(EMPTY)
    assert "gone" not in under_way(saver)
    thread.resume("!")
    assert thread.state.next == ()


def under_way(saver):
    """The nodes that are under way in the newest checkpoint."""
    return sorted(each["node"] for each in find_under_way(saver.get_tuple(CONFIG).checkpoint).values())


@pytest.mark.trial
def test_a_cancelled_call_keeps_what_has_ended():
    async def cancel():
        started, ran = asyncio.Event(), []

        async def long(state):
            ran.append("long")
            if len(ran) == 1:
                started.set()
                await asyncio.Event().wait()
            return {"log": ["long"]}

        app = ready("S>a>b S>long>d b>d", nodes={"long": long})
        call = asyncio.create_task(app.ainvoke(EMPTY, CONFIG))
        await started.wait()
        while (await app.aget_state(CONFIG)).values["log"] != ["a", "b"]:
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        state = await app.aget_state(CONFIG)
        assert (state.values["log"], state.next) == (["a", "b"], ("d", "long"))
        assert (await app.ainvoke(None, CONFIG))["log"] == ["a", "b", "long", "d"]

    asyncio.run(cancel())


@pytest.mark.trial
async def test_calls_of_every_task_end_when_the_call_is_cut_off():
    """Also those of a task that has started some steps before the newest state."""

    begun, ended = asyncio.Event(), []

    @task
    async def wait():
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("call")
            raise

    async def long(state):
        await wait()
        return {"log": ["long"]}

    app = ready("S>a>b S>long", nodes={"long": long})
    call = asyncio.create_task(app.ainvoke(EMPTY, CONFIG))
    await begun.wait()
    while (await app.aget_state(CONFIG)).values["log"] != ["a", "b"]:
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended == ["call"]


@pytest.mark.parametrize("way", ["edge", "sends", "race"])
def test_a_call_cancelled_while_a_step_is_stored_keeps_what_has_ended_meanwhile(way):
    """b ends while the step of a is being stored: it is not run again, and c, to which a leads, starts later. If b
    has lost a race by that step, nothing is applied of it."""

    class Slow(InMemorySaver):
        in_memory = False  # what it has begun to store is brought to its end
        storing: asyncio.Event
        go_on: asyncio.Event

        async def acommit(self, commits):
            commit = commits[-1]
            if commit.metadata["step"] == 1:
                self.storing.set()
                await self.go_on.wait()
            return super().commit(commits)

    async def cancel():
        saver, ran = Slow(), []
        saver.storing, saver.go_on = asyncio.Event(), asyncio.Event()

        async def b(state):
            ran.append("b")
            await saver.storing.wait()
            return {"log": ["b"]}

        routes = {"a": lambda _: [Send("c", {})], "S": lambda _: [Send("a", {}, race="r"), Send("b", {}, race="r")]}
        graph = {"edge": "S>a>c S>b", "sends": "S>a S>b r:a=c", "race": "a>c r:S=a|b"}[way]
        app = ready(graph, routes, nodes={"b": b}, saver=saver)
        call = asyncio.create_task(app.ainvoke(EMPTY, CONFIG))
        await saver.storing.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        call.cancel()
        saver.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        await app.ainvoke(None, CONFIG)
        assert sorted((await app.aget_state(CONFIG)).values["log"]) == (["a", "c"] if way == "race" else ["a", "b", "c"])
        assert ran == ["b"]

    asyncio.run(cancel())


@pytest.mark.parametrize("second", ["send", "edge", "another key"])
def test_tasks_that_share_the_memory_of_a_graph_run_one_after_the_other(drive, second):
    """Also while the first one asks. With a key of its own the second one need not wait."""
    paid = []
    nodes = {"pay": lambda state: paid.append(len(paid) + 1), "ask": lambda state: {"log": [interrupt("?")]}}
    agent = build("S>pay>ask", nodes=nodes).compile(checkpointer=True)
    key = "b" if second == "another key" else None
    routes = {
        "p": lambda _: [Send("agent", EMPTY)],
        "r": lambda _: "agent" if second == "edge" else [Send("agent", EMPTY, key=key)],
    }
    graph = build("S>p S>q>r r:p=agent r:r=agent", routes, {"agent": agent})
    thread = drive.on(ready(graph))
    with ends_in("p", "pay", "ask", "agent", "q", "r"):
        thread.invoke(EMPTY)
        state = thread.state
        together = second == "another key"
        assert (state.next, len(paid)) == (("agent", "agent"), 2 if together else 1)
        if not together:
            thread.resume("yes")
            assert (thread.state.next, paid) == (("agent",), [1, 2])
        open_ = thread.state.interrupts
        result = thread.resume({question.id: "yes" for question in open_})
    assert (thread.state.next, paid) == ((), [1, 2])
    assert result["log"].count("yes") >= 2


FAULTS = {"cannot be applied": (1, "sync"), "nor with exit": (1, "exit"), "cannot be stored": ([object()], "sync")}


@pytest.mark.parametrize(("bad", "durability"), FAULTS.values(), ids=FAULTS)
def test_found_together_only_the_one_at_fault_fails(bad, durability):
    ran = []

    def innocent(state):
        ran.append("b")
        return {"log": ["b"]}

    graph = build("S>a S>b>c", nodes={"a": lambda state: {"log": bad}, "b": innocent})
    app = ready(graph)
    with ends_together(), pytest.raises((TypeError, UnserializableError)):
        app.invoke(EMPTY, CONFIG, durability=durability)
    state = app.get_state(CONFIG)
    assert (state.values["log"], state.next, ran) == (["b"], ("a", "c"), ["b"])
    assert [task.name for task in state.tasks if task.error is not None] == ["a"]


@pytest.mark.parametrize(("bad", "durability"), FAULTS.values(), ids=FAULTS)
def test_found_together_with_the_ends_of_races_only_the_one_at_fault_fails(bad, durability):
    """The winners are applied one after the other, and the losers of each leave."""
    sends = [Send(node, {"n": n}, race=node) for node in ("v", "w") for n in (1, 2)]
    graph = build("S>a S>b r:S=v|w", {"S": lambda _: sends}, {"a": lambda state: {"log": bad}})
    app = ready(graph)
    with ends_together(), pytest.raises((TypeError, UnserializableError)):
        app.invoke(EMPTY, CONFIG, durability=durability)
    state = app.get_state(CONFIG)
    assert (state.values["log"], state.next) == (["b", "v1", "w1"], ("a",))
    assert [task.name for task in state.tasks if task.error is not None] == ["a"]
