"""Races with schedule="ready": the rules that `test_races` does not test for both schedules."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any

import pytest
from kit.graphs import CONFIG, EMPTY, chain_of, graph_of
from kit.ready_graphs import ask, ends_by, ends_together, ready
from kit.ready_random import Died, MortalSaver
from typing_extensions import TypedDict

from stategraph import (
    START,
    Command,
    InMemorySaver,
    Runtime,
    Send,
    StateGraph,
    interrupt,
    task,
)
from stategraph.pregel.errors import ConcurrentUpdateError
from stategraph.testing import record, replay, survives


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    plain: str


class Lost(Exception):
    """A racer that fails."""


RAN = []


@pytest.fixture(autouse=True)
def nothing_has_run():
    RAN.clear()


def act(state):
    """What a racer does is the first word of its name."""
    name = state["name"]
    RAN.append(name)
    what = name.split()[0]
    if what == "fail":
        raise Lost(name)
    answer = interrupt(name) if what == "ask" else ""
    return {"log": [name + answer], **({"plain": name} if what == "plain" else {})}


def writer(name):
    return lambda state: {"log": [name]}


def race(*names, node="run"):
    return [Send(node, {"name": name}, race="r") for name in names]


def make(
    sends, *, beside="", saver=None, schedule="ready", node=act, **policies
):
    """START races; `after` comes behind the race, `beside` > `behind` has nothing to do with it."""
    builder = StateGraph(State).add_node("run", node, **policies).add_node("after", writer("after"))
    builder.add_conditional_edges(START, lambda state: sends, ["run"])
    builder.add_edge("run", "after")
    if beside:
        builder.add_node(beside, writer(beside)).add_node("behind", writer("behind"))
        builder.add_edge(START, beside).add_edge(beside, "behind")
    return builder.compile(saver or InMemorySaver(), schedule=schedule)


def by_name(*names):
    """Racers and nodes end in this order."""

    def rank(task):
        racer = (task.cause or task).send
        return names.index(task.name if racer is None or task.cause else racer.arg["name"])

    return rank


# -- the step of the win -------------------------------------------------------------------------------------------


def test_losers_leave_with_the_end_of_the_winner(drive):
    thread = drive.on(make(race("x", "win", "y"), beside="beside"))
    with ends_by(by_name("beside", "win", "after", "behind", "x", "y")):
        assert thread.invoke(EMPTY)["log"] == ["beside", "win", "after", "behind"]
    steps = thread.history()[::-1][1:]
    assert [each.next for each in steps] == [
        ("run", "run", "run", "beside"), ("run", "run", "run", "behind"), ("after", "behind"), ("behind",), (),
    ]  # fmt: skip
    assert [[task.lost for task in each.tasks] for each in steps[:2]] == [[False] * 4, [True, False, True, False]]
    assert RAN == ["win"], "who has not begun does not begin"


def test_no_state_has_a_winner_and_a_loser(drive):
    """Stopped before each commit, and resumed by another order of ends: whoever wins first has won."""
    order = ("x", "beside", "win", "y", "behind", "after")
    for stop in range(7):
        saver = MortalSaver()
        saver.left = stop
        with pytest.raises(Died), ends_by(by_name(*order)):
            drive.invoke(make(race("x", "win", "y"), beside="beside", saver=saver), EMPTY, CONFIG)
            raise Died
        saver.left = -1
        thread = drive.on(make(race("x", "win", "y"), beside="beside", saver=saver))
        before = thread.state
        with ends_by(by_name("y", "win", "x", "behind", "beside", "after")):
            thread.invoke(None if before.metadata else EMPTY)
        log = thread.log
        won = set(before.values.get("log", ())) & {"x", "win", "y"} or {"y"}
        assert set(log) & {"x", "win", "y"} == won and sorted(log)[:3] == ["after", "behind", "beside"]


@pytest.mark.parametrize("turns", [("ready", "supersteps"), ("supersteps", "ready")])
def test_a_race_continues_in_the_other_schedule(drive, turns):
    for stop in range(1, 5):
        saver = MortalSaver()
        saver.left = stop
        with pytest.raises(Died), ends_by(by_name("beside", "x", "behind", "after", "y")):
            drive.invoke(make(race("x", "y"), beside="beside", saver=saver, schedule=turns[0]), EMPTY, CONFIG)
            raise Died
        saver.left = -1
        thread = drive.on(make(race("x", "y"), beside="beside", saver=saver, schedule=turns[1]))
        log = thread.state.values.get("log", [])
        thread.invoke(None)
        after = thread.log
        assert len(set(after) & {"x", "y"}) == 1 and set(log) <= set(after) and thread.state.next == ()


@pytest.mark.parametrize("turns", [("ready", "supersteps", "ready"), ("supersteps", "ready", "supersteps")])
def test_interrupts_of_a_race_continue_in_the_other_schedule(drive, turns):
    saver = InMemorySaver()
    drive.invoke(make(race("fail", "ask 1", "ask 2"), saver=saver, schedule=turns[0]), EMPTY, CONFIG)
    app = make(race("fail", "ask 1", "ask 2"), saver=saver, schedule=turns[1])
    assert len(drive.invoke(app, None, CONFIG)["__interrupt__"]) == 2
    (first, second) = drive.get_state(app, CONFIG).interrupts
    assert (first.value, second.value) == ("ask 1", "ask 2")
    app = make(race("fail", "ask 1", "ask 2"), saver=saver, schedule=turns[2])
    assert drive.invoke(app, Command(resume={second.id: "!"}), CONFIG)["log"] == ["ask 2!", "after"]
    assert drive.get_state(app, CONFIG).next == () and not drive.get_state(app, CONFIG).interrupts


# -- who wins ------------------------------------------------------------------------------------------------------


def test_found_together_the_first_in_path_order_wins():
    with ends_together():
        app = make(race("fail", "x", "y"))
        assert app.invoke(EMPTY, CONFIG)["log"] == ["x", "after"]


def test_one_that_cannot_be_applied_does_not_win():
    """Found together, the next in path order wins then; later, the next to end does."""
    def meddle(state):
        return {"plain": "meddled"}

    def app():
        builder = StateGraph(State).add_node("run", act).add_node("meddle", meddle)
        builder.add_conditional_edges(START, lambda state: [*race("plain", "x"), "meddle"], ["run", "meddle"])
        return ready(builder)

    with ends_by(by_name("meddle", "plain", "x")):
        assert app().invoke(EMPTY, CONFIG) == {"log": ["x"], "plain": "meddled"}
    with ends_together():
        assert app().invoke(EMPTY, CONFIG) == {"log": ["x"], "plain": "meddled"}


def test_where_none_can_be_applied_the_first_is_raised(drive):
    builder = StateGraph(State).add_node("run", act).add_node("meddle", lambda state: {"plain": "meddled"})
    builder.add_conditional_edges(START, lambda state: [*race("plain", "fail"), "meddle"], ["run", "meddle"])
    thread = drive.on(ready(builder))
    with ends_by(by_name("meddle", "fail", "plain")), pytest.raises(ConcurrentUpdateError):
        thread.invoke(EMPTY)
    assert thread.state.values == {"log": [], "plain": "meddled"}


def test_an_update_that_a_reducer_refuses_does_not_win(drive):
    def add(old, new):
        if new == ["refused"]:
            raise ArithmeticError("refused")
        return old + new

    class Picky(TypedDict):
        log: Annotated[list[str], add]

    builder = StateGraph(Picky).add_node("run", lambda state: {"log": [state["name"]]})
    builder.add_conditional_edges(START, lambda state: race("refused", "x"), ["run"])
    app = ready(builder)
    with ends_by(by_name("refused", "x")):
        assert drive.invoke(app, EMPTY, CONFIG)["log"] == ["x"]
    with ends_together():
        other = ready(builder)
        assert other.invoke(EMPTY, CONFIG)["log"] == ["x"]


def test_a_handler_runs_when_no_other_racer_can_win(drive):
    def mend(state):
        RAN.append("mend")
        return {"log": ["mended"]}

    def app(*names):
        return make(race(*names), error_handler=mend)

    with ends_by(by_name("fail", "win", "after", "run:on_error")):
        assert drive.invoke(app("fail", "win"), EMPTY, CONFIG)["log"] == ["win", "after"]
    assert "mend" not in RAN
    thread = drive.on(app("fail", "ask"))
    assert thread.invoke(EMPTY)["log"] == ["mended"]
    step = next(each for each in thread.history() if len(each.tasks) > 1)
    assert [(task.name.startswith("run"), task.lost) for task in step.tasks if task.lost] == [(True, True)]
    assert not thread.state.next


def test_a_command_for_the_graph_around_wins(drive):
    def leave(state):
        if state["name"] == "leave":
            return Command(graph=Command.PARENT, update={"log": ["left"]}, goto="end")
        return act(state)

    inner = StateGraph(State).add_node("run", leave, destinations=())
    inner.add_conditional_edges(START, lambda state: race("x", "leave"), ["run"])
    builder = StateGraph(State).add_node("inner", inner.compile(schedule="ready"), destinations=("end",))
    builder.add_node("end", writer("end")).add_edge(START, "inner")
    app = ready(builder)
    with ends_by(by_name("inner", "end", "leave", "x")):
        assert drive.invoke(app, EMPTY, CONFIG)["log"] == ["left", "end"]
    assert RAN == []


def test_a_race_whose_racers_all_failed_is_a_failure_and_with_finish_the_others_continue(drive):
    app = make(race("fail 1", "fail 2"), beside="beside")
    with ends_by(by_name("fail 2", "fail 1", "beside", "behind")), pytest.raises(Lost, match="fail 1") as failure:
        drive.invoke(app, EMPTY, CONFIG)
    assert any("fail 2" in note for note in failure.value.__notes__)
    assert drive.get_state(app, CONFIG).values["log"] == ["beside"], "nothing starts after the race has failed"
    app = make(race("fail 1", "fail 2"), beside="beside")
    with ends_by(by_name("fail 2", "fail 1", "beside", "behind")), pytest.raises(Lost, match="fail 1"):
        drive.invoke(app, EMPTY, CONFIG, on_failure="finish")
    assert drive.get_state(app, CONFIG).values["log"] == ["beside", "behind"]


def test_a_race_blocks_only_nodes_behind_it(drive):
    thread = drive.on(make(race("ask", "fail"), beside="beside"))
    assert thread.invoke(EMPTY)["log"] == ["beside", "behind"]
    assert thread.state.next == ("run", "run")
    assert thread.resume("!")["log"] == ["beside", "behind", "ask!", "after"]
    assert thread.state.next == ()


# -- one at a time, limits, breakpoints ----------------------------------------------------------------------------


def test_with_max_concurrency_two_a_waiting_racer_does_not_start_after_the_win(drive):
    names = [f"win {number}" for number in range(50)]
    result = drive.invoke(make(race(*names)), EMPTY, {**CONFIG, "max_concurrency": 2})
    assert len(RAN) < 10 and len(result["log"]) == 2


def test_a_breakpoint_stops_a_whole_race(drive):
    builder = StateGraph(State).add_node("a", act).add_node("b", act).add_node("c", act)
    sends = [*race("x", node="a"), *race("y", node="b"), Send("c", {"name": "z"})]
    builder.add_conditional_edges(START, lambda state: sends, ["a", "b", "c"])
    thread = drive.on(ready(builder, interrupt_before=["b"]))
    assert thread.invoke(EMPTY)["log"] == ["z"]
    assert thread.state.next == ("a", "b")
    with ends_by(by_name("y", "x")):
        assert thread.invoke(None)["log"] == ["z", "y"]
    assert thread.state.next == ()


# -- what waits for a race -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", ["any", "reachable"])
def test_losers_count_in_no_join_and_block_none(drive, wait):
    def joined(state, runtime: Runtime[Any]):
        return {"log": ["+".join(runtime.joined)]}

    builder = StateGraph(State).add_node("a", act).add_node("b", act).add_node("join", joined)
    sends = [*race("x", node="a"), *race("y", node="b")]
    builder.add_conditional_edges(START, lambda state: sends, ["a", "b"])
    builder.add_edge(["a", "b"], "join", wait)
    builder.add_node("beside", writer("beside")).add_edge(START, "beside")
    app = ready(builder)
    with ends_by(by_name("y", "join", "beside", "x")):
        assert drive.invoke(app, EMPTY, CONFIG)["log"] == ["y", "b", "beside"]


def test_a_deferred_node_does_not_wait_for_losers(drive):
    builder = graph_of(State, "run>last defer:last", run=act)
    builder.add_conditional_edges(START, lambda state: race("x", "win"), ["run"])
    app = ready(builder)
    with ends_by(by_name("win", "last", "x")):
        assert drive.invoke(app, EMPTY, CONFIG)["log"] == ["win", "last"]


def test_races_in_a_loop(drive):
    builder = graph_of(State, "S>a run>a", a=writer("a"), run=act)
    builder.add_conditional_edges(
        "a", lambda state: race("x", "y") if len(state["log"]) < 6 else [], ["run"]
    )
    app = ready(builder)
    with ends_by(by_name("a", "y", "x")):
        assert drive.invoke(app, EMPTY, CONFIG)["log"] == ["a", "y"] * 3 + ["a"]


# -- answers, calls, edits -----------------------------------------------------------------------------------------


def test_answers_to_losers_go_with_them(drive):
    thread = drive.on(make(race("ask 1", "ask 2"), beside="beside"))
    thread.invoke(EMPTY)
    answers = {each.id: each.value for each in thread.state.interrupts}
    assert thread.invoke(Command(resume=answers), {**CONFIG, "max_concurrency": 1})["log"][-2:] == ["ask 1ask 1", "after"]
    state = thread.state
    assert not state.next and not state.interrupts
    assert len(thread.invoke(EMPTY)["__interrupt__"]) == 2, "and nobody takes what was left of them"


def test_calls_of_a_racer_do_not_run_again(drive):
    called = []

    @task
    def call(name):
        called.append(name)
        return name

    def run(state):
        return {"log": [call(state["name"]).result() + interrupt(state["name"])]}

    thread = drive.on(make(race("x", "y"), node=run))
    thread.invoke(EMPTY)
    second = thread.state.interrupts[1]
    assert thread.resume({second.id: "!"})["log"] == ["y!", "after"]
    assert sorted(called) == ["x", "y"]


def test_after_an_edit_a_race_starts_again_and_keeps_its_interrupts(drive):
    thread = drive.on(make(race("ask 1", "ask 2"), beside="beside"))
    thread.invoke(EMPTY)
    before = [each.id for each in thread.state.interrupts]
    thread.update({"log": ["edited"]}, "run", task_id=None)
    state = thread.state
    assert state.next[:1] == ("run",) and [each.id for each in state.interrupts] == before[1:]
    assert thread.resume("!")["log"][-2:] == ["ask 2!", "after"]


def test_a_graph_inside_races(drive):
    inner = make(race("x", "win"), saver=True)
    builder = chain_of(State, inner=inner)
    for schedule in ("ready", "supersteps"):
        app = builder.compile(InMemorySaver(), schedule=schedule)
        with ends_by(by_name("inner", "win", "after", "x")):
            assert drive.invoke(app, EMPTY, CONFIG)["log"] == ["win", "after"]


def test_a_racer_may_be_a_graph(drive):
    inner = chain_of(State, ask=ask)
    builder = StateGraph(State).add_node("inner", inner.compile(schedule="ready")).add_node("run", act)
    sends = [Send("inner", EMPTY, race="r"), *race("fail")]
    builder.add_conditional_edges(START, lambda state: sends, ["inner", "run"])
    thread = drive.on(ready(builder))
    thread.invoke(EMPTY)
    assert thread.resume("!")["log"] == ["!"]


# -- looked at -----------------------------------------------------------------------------------------------------


def test_coroutines_that_lost_are_cancelled_and_awaited():
    cleaned = []

    async def run(state):
        if state["name"] == "win":
            return {"log": ["win"]}
        try:
            await asyncio.sleep(20)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(state["name"])

    app = make(race("x", "win", "y"), node=run)
    assert asyncio.run(app.ainvoke(EMPTY, CONFIG))["log"] == ["win", "after"]
    assert sorted(cleaned) == ["x", "y"]


def test_the_testing_package_supports_races():
    def app():
        return make(race("fail", "x", "win"), beside="beside")

    replay(record(app(), EMPTY), app())
    assert len(survives(app(), EMPTY).stored) == 6
