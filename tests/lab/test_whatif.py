"""Stored threads run again with one thing changed: what is different is said, and nothing has an effect."""

from __future__ import annotations

import hashlib
import operator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, TypedDict

import pytest
from kit.drive import each_schedule
from kit.graphs import CONFIG, Log, chain_of, graph_of, thread_config

from stategraph import (
    END,
    START,
    Budget,
    Command,
    GraphDrained,
    GraphInterrupt,
    GraphRecursionError,
    InMemorySaver,
    RunControl,
    Runtime,
    Send,
    StateGraph,
    entrypoint,
    interrupt,
    task,
)
from stategraph.checkpoint import DamagedError, UnknownTypeError
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.lab import Trials, awhatif, find_threads, whatif, why_not
from stategraph.pregel.clock import CLOCK
from stategraph.testing import OPEN, CheckFailed
from stategraph.upgrade import Migration


class World:
    """What agents do outside: each effect is counted."""

    def __init__(self):
        self.effects = []

    def do(self, what):
        self.effects.append(what)
        return f"did {what}"


@pytest.fixture
def world():
    return World()


class Talk(TypedDict, total=False):
    n: int
    log: Annotated[list[str], operator.add]
    total: int


def tools(world: World, saver):
    """A model that calls a tool until it has enough."""
    def model(state: Talk):
        return {"n": state.get("n", 0) + 1, "log": [f"ask {state.get('n', 0)}"]}

    def tool(state: Talk):
        return {"log": [world.do(f"search {state['n']}")]}

    def route(state: Talk):
        return "tool" if state["n"] < 3 else END

    graph = graph_of(Talk, "S>model", model=model, tool=tool)
    graph.add_conditional_edges("model", route, ["tool", END])
    graph.add_edge("tool", "model")
    return graph.compile(saver, name="tools")


def map_reduce(world: World, saver):
    def plan(state: Talk) -> Command:
        return Command(update={"n": 3}, goto=[Send("work", {"n": i}) for i in range(3)])

    def work(state: Talk):
        return {"log": [world.do(f"work {state['n']}")]}

    def reduce(state: Talk):
        return {"total": len(state["log"])}

    graph = StateGraph(Talk)
    graph.add_node("plan", plan, destinations=("work",))
    graph.add_node("work", work)
    graph.add_node("reduce", reduce)
    graph.add_edge(START, "plan")
    graph.add_edge("work", "reduce")
    return graph.compile(saver, name="map_reduce")


def asking(world: World, saver):
    def ask(state: Talk):
        return {"log": [f"{interrupt('how many?')}"]}

    def pay(state: Talk):
        return {"log": [world.do(f"pay {state['log'][-1]}")], "total": int(state["log"][-1])}

    graph = chain_of(Talk, ask=ask, pay=pay)
    return graph.compile(saver, name="asking")


def nested(world: World, saver):
    graph = chain_of(Talk, inner=tools(world, None), end=lambda state: {"total": len(state["log"])})
    return graph.compile(saver, name="nested")


def joining(world: World, saver):
    """Two branches, one of which fails at first and is tried again by another call."""
    def left(state: Talk):
        return {"log": [world.do("left")]}

    def right(state: Talk):
        if len(world.effects) % 2:
            world.do("failed")
            raise OSError("no network")
        return {"log": [world.do("right")]}

    graph = graph_of(
        Talk, "S>left S>right [left,right]>end", left=left, right=right, end=lambda state: {"total": len(state["log"])}
    )
    return graph.compile(saver, name="joining")


AGENTS = [tools, map_reduce, asking, nested, joining]


def run_all(app, threads):
    for number in range(threads):
        config = {"configurable": {"thread_id": f"t{number}"}, "metadata": {"even": number % 2 == 0}}
        given = {"n": 0, "log": []}
        for _ in range(4):
            try:
                done = app.invoke(given, config)
            except OSError:
                given = None
                continue
            given = Command(resume=number)
            if "__interrupt__" not in done:
                break


def test_a_kept_trial_that_waits_is_answered_there(world):
    app = asking(world, InMemorySaver())
    app.invoke({"n": 0, "log": []}, CONFIG)
    kept = InMemorySaver()
    [trial] = whatif(app, ["t"], saver=kept, live="*")
    thread = thread_config(trial.kept_as)
    assert app.copy({"checkpointer": kept}).invoke(Command(resume=7), thread)["total"] == 7
    assert [each.value for each in app.get_state(CONFIG).interrupts] == ["how many?"]


@pytest.fixture(params=AGENTS, ids=lambda make: make.__name__)
def make(request):
    return request.param


def test_the_baseline_is_identical_and_has_no_effect(make, world):
    app = make(world, InMemorySaver())
    run_all(app, 10)
    world.effects.clear()
    trials = whatif(app, 10)
    assert [each.same for each in trials] == [True] * 10, trials.draw_text()
    assert not world.effects
    trials.check(different=0)
    assert trials.remarks == ("10 threads: 10 the same, 0 different",)


async def test_coroutines_get_the_same(make, world):
    app = make(world, InMemorySaver())
    run_all(app, 5)
    world.effects.clear()
    trials = await awhatif(app, 5)
    assert all(each.same for each in trials)
    assert not world.effects


def test_a_database_is_byte_identical_afterwards(make, world, tmp_path):
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
        run_all(make(world, saver), 3)
    files = sorted(tmp_path.iterdir())
    before = [hashlib.sha256(file.read_bytes()).digest() for file in files]
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db"), read_only=True) as saver:
        assert len(whatif(make(world, saver), 3)) == 3
    assert [hashlib.sha256(file.read_bytes()).digest() for file in sorted(tmp_path.iterdir())] == before


# -- changes --------------------------------------------------------------------------------------------------


def louder(state: Talk):
    return {"n": state.get("n", 0) + 1, "log": [f"ASK {state.get('n', 0)}"]}


def test_a_replaced_node_runs_and_the_first_difference_is_its_own(world):
    app = tools(world, InMemorySaver())
    run_all(app, 3)
    world.effects.clear()
    trials = whatif(app, 3, variant={"model": louder})
    assert not world.effects
    for each in trials:
        assert each.difference.where == "step 1, node 'model'" and each.difference.what == "write to 'log'"
        # The tool has never been asked with such a log: nothing of it is recorded.
        assert each.end == "refused" and each.refused.startswith("tool({'n': 1, 'log': ['ASK 0']")
    assert trials.groups == {"node 'model': write to 'log'": 3}


def test_what_is_new_to_a_node_may_be_simulated(world):
    app = tools(world, InMemorySaver())
    run_all(app, 3)
    world.effects.clear()
    seen = []

    def simulated(state: Talk):
        seen.append(state["n"])
        return {"log": ["simulated"]}

    trials = whatif(app, 3, variant={"model": louder}, effects={"tool": simulated})
    assert not world.effects and seen == [1, 2] * 3
    assert {each.end for each in trials} == {"done"} and all(not each.refused for each in trials)
    assert all("simulated" in str(each.changes) for each in trials)


def test_a_changed_threshold_goes_to_the_end_where_the_record_knows_the_rest(world):
    app = tools(world, InMemorySaver())
    run_all(app, 2)
    world.effects.clear()

    def sooner(state: Talk):  # the second answer is the last
        n = state.get("n", 0)
        return {"n": 3 if n == 1 else n + 1, "log": [f"ask {n}"]}

    trials = whatif(app, 2, variant={"model": sooner})
    assert not world.effects
    for each in trials:
        assert each.end == "done" and (each.steps_before, each.steps) == (5, 3)
        assert each.difference.where == "step 3, node 'model'" and each.difference.what == "write to 'n'"


def test_another_graph_runs_the_nodes_that_are_not_the_same(world):
    app = asking(world, InMemorySaver())
    run_all(app, 4)
    world.effects.clear()

    def twice(state: Talk):
        return {"log": ["twice"], "total": 2 * int(state["log"][-1])}

    graph = chain_of(Talk, ask=app.program.nodes["ask"].source, pay=twice)
    trials = whatif(app, ["t0", "t3"], variant=graph.compile())
    assert not world.effects and trials.ran == ("pay",)
    assert [each.thread for each in trials] == ["t0", "t3"]
    assert [from_state(each.now)["total"] for each in trials] == [0, 6]
    assert {each.difference.where for each in trials} == {"step 2, node 'pay'"}


def test_a_graph_of_the_same_code_runs_nothing_whatever_clients_its_nodes_hold(make, world):
    """Built again, each node has other objects in its closure."""
    app = make(world, InMemorySaver())
    run_all(app, 2)
    world.effects.clear()
    trials = whatif(app, 2, variant=make(World(), None))
    assert trials.ran == () and all(each.same for each in trials)


def test_a_plain_value_that_a_function_holds_makes_it_another():
    def build(most, saver=None):
        graph = chain_of(Talk, cap=lambda state: {"total": min(most, state["n"])})
        return graph.compile(saver)

    app = build(5, InMemorySaver())
    app.invoke({"n": 9}, CONFIG)
    assert whatif(app, 1, variant=build(5)).ran == ()
    trials = whatif(app, 1, variant=build(6))
    assert trials.ran == ("cap",) and from_state(trials[0].now)["total"] == 6


def from_state(recording):
    return recording.runs[-1].state


def test_a_node_of_a_nested_graph_can_be_replaced(world):
    app = nested(world, InMemorySaver())
    run_all(app, 2)
    world.effects.clear()
    trials = whatif(app, 2, variant={"inner:model": louder}, effects={"inner:tool": lambda state: {"log": ["?"]}, "end": lambda state: {"total": 0}})
    assert not world.effects
    assert {each.difference.where for each in trials} == {"step 1, node 'inner', step 1, node 'inner:model'"}


def test_the_input_of_a_node_that_refuses_is_no_error_that_handlers_take(world):
    taken = []
    graph = StateGraph(Talk)
    graph.add_node("first", lambda state: {"n": 1})
    graph.add_node("second", lambda state: {"total": state["n"]}, error_handler=lambda state: taken.append(state))
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    app = graph.compile(InMemorySaver())
    run_all(app, 1)
    (trial,) = whatif(app, 1, variant={"first": {"n": 2}})
    assert trial.end == "refused" and not taken


def test_a_question_that_was_not_asked_before_is_an_open_end(world):
    app = asking(world, InMemorySaver())
    run_all(app, 1)
    (trial,) = whatif(app, 1, variant={"ask": lambda state: {"log": [interrupt("how much?")]}})
    assert (trial.end_before, trial.end) == ("done", "paused")
    assert trial.difference.what == "question"


def test_a_run_that_failed_after_its_answer_is_followed_by_the_next_input(world):
    app = asking(world, InMemorySaver())
    thread = thread_config("t0")
    app.invoke({"n": 0, "log": []}, thread)
    with pytest.raises(ValueError, match="invalid literal"):
        app.invoke(Command(resume="many"), thread)
    app.invoke({"n": 1, "log": []}, thread)
    app.invoke(Command(resume="2"), thread)
    [trial] = whatif(app, 1)
    assert trial.same, trial.difference
    assert [each.end for each in trial.now.runs] == ["failed", "done"]


@each_schedule
@pytest.mark.parametrize("one_by_one", [False, True])
def test_questions_that_a_nested_graph_asks_together_are_asked_together_again(schedule, one_by_one):
    """Though the graph itself does not run."""

    def asking(*questions):
        return lambda state: {"log": [interrupt(question) for question in questions]}

    nodes = {"first": asking("1"), "a": asking("a?"), "b": asking("b?", "b again?"), "c": asking("a?")}
    inner = graph_of(Log, "S>first first>a first>b first>c", **nodes).compile()
    app = graph_of(Log, "S>n", n=inner).compile(InMemorySaver(), schedule=schedule)
    found = app.invoke({"log": []}, CONFIG)
    while questions := found.get("__interrupt__"):
        answers = {each.id: f"to {each.value}" for each in questions[: 1 if one_by_one else None]}
        found = app.invoke(Command(resume=answers), CONFIG)
    for live in ((), ("n:b",), "*"):
        [trial] = whatif(app, 1, live=live)
        assert trial.same, trial.difference


@each_schedule
@pytest.mark.parametrize("memory", [None, True])
def test_a_node_that_leaves_its_graph_by_a_command_has_its_calls_in_the_record(world, tmp_path, schedule, memory):
    @task
    def buy(what):
        return world.do(what)

    def leave(state: Talk, runtime: Runtime) -> Command:
        log = [buy("a").result(), runtime.once("b", lambda: world.do("b"))]
        return Command(goto="end", update={"log": log}, graph=Command.PARENT)

    nodes = {"leave": leave, "beside": lambda state: {"log": ["not taken"]}}
    inner = graph_of(Talk, "S>leave S>beside", **nodes).compile(memory)
    graph = StateGraph(Talk).add_node("inner", inner, destinations=["end"]).add_edge(START, "inner")
    graph.add_node("end", lambda state: {"log": [world.do("c")]})
    app = graph.compile(InMemorySaver(), schedule=schedule)
    app.invoke({"n": 1}, CONFIG)
    stored = [*app.checkpointer.list(None)]
    file = tmp_path / "cohort.json"
    whatif(app, 1).save(file)
    for threads in (1, file):
        for live in ((), ("inner:leave",)):
            [trial] = whatif(app, threads, live=live)
            assert trial.same, (trial.difference, trial.refused)
            assert [call.came for call in trial.calls] == ["record"] * len(live) * 2
    assert world.effects == ["a", "b", "c"]
    assert [*app.checkpointer.list(None)] == stored


@pytest.mark.filterwarnings("ignore:node 'b' has ended without asking")
@each_schedule
def test_a_question_without_which_a_task_went_on_is_not_asked(schedule):
    """Of several branches whose budget is empty one is told how much more; a signal raised by hand gets no answer."""
    signals = [GraphInterrupt("look")]

    def spend(state: Talk, runtime: Runtime):
        runtime.spend(usd=1)
        return {"log": ["spent"]}

    def by_hand(state: Talk):
        if signals:
            raise signals.pop()
        return {"log": ["seen"]}

    def begin(state: Talk, runtime: Runtime):
        return spend(state, runtime)

    graph = graph_of(Talk, "S>begin begin>a begin>b begin>c", begin=begin, a=spend, b=spend, c=by_hand)
    app = graph.compile(InMemorySaver(), schedule=schedule, budget=Budget(usd=1, on_empty="ask"))
    found = app.invoke({"n": 1}, CONFIG)
    [first, _] = [each for each in found["__interrupt__"] if isinstance(each.value, dict)]
    app.invoke(Command(resume={first.id: 9}), CONFIG)
    assert app.invoke(None, CONFIG)["log"].count("spent") == 3
    [trial] = whatif(app, 1)
    assert trial.same, trial.difference


@pytest.mark.filterwarnings("ignore:node '[ab]' has ended without asking")
@each_schedule
def test_a_nested_graph_may_have_gone_on_without_its_last_question(schedule):
    """Another branch was told how much more may be spent, and its own question was answered before that of the budget."""

    def a(state: Talk, runtime: Runtime):
        runtime.spend(usd=1)
        return {"log": [interrupt("a?")]}

    def b(state: Talk, runtime: Runtime):
        answer = interrupt("b?")
        runtime.spend(usd=1)
        return {"log": [answer]}

    inner = graph_of(Talk, "S>begin begin>a begin>b", begin=lambda state, runtime: runtime.spend(usd=1), a=a, b=b).compile()
    app = graph_of(Talk, "S>n", n=inner).compile(
        checkpointer=InMemorySaver(), schedule=schedule, budget=Budget(usd=1, on_empty="ask")
    )
    found = app.invoke({"n": 1}, CONFIG)
    for place in (-1, 0, 0, 0):
        asked = found["__interrupt__"][place]
        found = app.invoke(Command(resume={asked.id: 9 if isinstance(asked.value, dict) else "yes"}), CONFIG)
    assert "__interrupt__" not in found
    [trial] = whatif(app, 1)
    assert trial.same, trial.difference


def test_another_question_is_answered_by_a_function_and_goes_on(world):
    app = asking(world, InMemorySaver())
    run_all(app, 3)

    def ask(state: Talk):
        return {"log": [f"{interrupt('how few?')}"]}

    variant = {"ask": ask}
    assert [each.end for each in whatif(app, 3, variant=variant)] == ["paused"] * 3
    asked = []
    pay = {"pay": lambda state: {"total": int(state["log"][-1])}}
    trials = whatif(app, 3, variant=variant, effects=pay, answers=lambda question: asked.append(question.value) or 7)
    assert [(each.end, each.now.runs[-1].state["total"]) for each in trials] == [("done", 7)] * 3
    assert asked == ["how few?"] * 3
    assert {each.difference.what for each in trials} == {"question"}


@pytest.mark.parametrize("given", [{"how many?": 7}, lambda question: 7 if question.value == "how many?" else OPEN])
def test_another_answer_is_given(world, given):
    app = asking(world, InMemorySaver())
    run_all(app, 2)
    world.effects.clear()
    refused = whatif(app, 2, answers=given)
    assert [each.refused for each in refused] == ["ask: 'how many?' answered 7"] * 2
    paid = {"pay": lambda state: {"total": int(state["log"][-1])}}
    trials = whatif(app, 2, answers=given, live=["ask"], effects=paid)
    assert [from_state(each.now)["total"] for each in trials] == [7, 7] and not world.effects
    assert {each.difference.what for each in trials} == {"write to 'log'"}
    trials = whatif(app, 2, answers={"something else?": 1}, calls={"pay": "live", "*": "refuse"})
    assert all(each.same for each in trials) and "nothing asked or called: 'something else?', 'pay'" in trials.remarks


def test_nodes_that_are_named_run_for_real(world):
    app = tools(world, InMemorySaver())
    run_all(app, 1)
    world.effects.clear()
    (trial,) = whatif(app, 1, variant={"model": louder}, live=["tool"])
    assert world.effects == ["search 1", "search 2"] and trial.end == "done"
    world.effects.clear()
    (trial,) = whatif(app, 1, live="*")
    assert trial.same and len(world.effects) == 2


# -- cohorts --------------------------------------------------------------------------------------------------


def test_a_judge_scores_and_a_gate_fails(world):
    app = asking(world, InMemorySaver())
    run_all(app, 10)

    def cheaper(state: Talk):
        return {"log": [f"did pay {state['log'][-1]}"], "total": min(5, int(state["log"][-1]))}

    trials = whatif(app, 10, variant={"pay": cheaper}, judge=lambda before, now: now["total"] - before["total"])
    assert sorted(each.score for each in trials) == [-4, -3, -2, -1, 0, 0, 0, 0, 0, 0]
    assert len(trials.different) == 4 and len(trials.worse) == 4
    trials.check(different="40%", worse=4)
    with pytest.raises(CheckFailed, match=r"4 of 10 trials are different, at most 30% may be.*node 'pay'"):
        trials.check(different="30%")
    with pytest.raises(CheckFailed, match="4 of 10 trials are worse, at most 0 may be"):
        trials.check(worse=0)
    with pytest.raises(ValueError, match='a share such as "5%"'):
        trials.check(worse="few")
    assert whatif(app, 1, judge=lambda before, now: False)[0].score == -1


def test_a_cohort_runs_again_without_the_database(world, tmp_path):
    app = asking(world, InMemorySaver())
    run_all(app, 5)
    file = whatif(app, 5).save(tmp_path / "cohort.json")
    world.effects.clear()
    bare = asking(world, None)
    again = whatif(bare, file)
    assert len(again) == 5 and all(each.same for each in again) and not world.effects
    assert again[0].thread == "t4"
    assert not whatif(bare, file, variant={"pay": {"total": -1}})[0].same


def test_threads_are_chosen_by_metadata_number_or_id(world):
    app = tools(world, InMemorySaver())
    run_all(app, 6)
    assert {each.thread for each in whatif(app, {"even": True})} == {"t0", "t2", "t4"}
    assert [each.thread for each in whatif(app, 2)] == ["t5", "t4"]
    assert [each.thread for each in whatif(app, "t1")] == ["t1"]


def test_threads_are_chosen_by_how_they_stand_and_by_time(world):
    app = asking(world, InMemorySaver())
    run_all(app, 3)
    app.invoke({"n": 0, "log": []}, thread_config("open"))
    for name, status in [("t3", "failed"), ("stopped", "stopped")]:
        breaks = {"interrupt_before": ["ask"]} if status == "stopped" else {}
        app.invoke({"n": 0, "log": []}, thread_config(name), **breaks)
    with pytest.raises(ValueError, match="invalid literal"):
        app.invoke(Command(resume="no number"), thread_config("t3"))
    assert find_threads(app, status="done") == ["t2", "t1", "t0"]
    assert find_threads(app, status="done", last=1) == ["t2"]
    assert [find_threads(app, status=each) for each in ("paused", "failed", "stopped")] == [["open"], ["t3"], ["stopped"]]
    when = datetime.fromisoformat(app.get_state(thread_config("t1")).created_at)
    assert find_threads(app, after=when, status="done") == ["t2", "t1"]
    assert find_threads(app, before=when) == ["t0"]
    assert find_threads(app, metadata={"even": True}, last=1) == ["t2"]
    assert len(whatif(app, find_threads(app, status="done"))) == 3
    with pytest.raises(ValueError, match="status must be one of done, paused, failed, stopped, got 'ended'"):
        find_threads(app, status="ended")


def test_calls_inside_of_memories_with_keys_are_known(world):
    @task
    def look(word):
        return world.do(word)

    def remember(state: Talk):
        return {"log": [look(f"look {state['n']} {len(state.get('log', []))}").result()]}

    talk = chain_of(Talk, remember=remember).compile(checkpointer=True)
    class Whole(TypedDict, total=False):
        total: int
        log: Annotated[list[str], operator.add]

    graph = StateGraph(Whole).add_node("talk", talk)
    graph.add_conditional_edges(START, lambda state: [Send("talk", {"n": n}, key=f"k{n}") for n in range(state["total"])], ["talk"])
    app = graph.compile(InMemorySaver())
    for turn in (2, 3):
        app.invoke({"total": turn}, thread_config("t0"))
    done = list(world.effects)
    [trial] = whatif(app, 1, live="*")
    assert trial.same, trial.difference or trial.refused
    assert world.effects == done and [call.came for call in trial.calls] == ["record"] * 5
    assert [task.steps[0][0].node for run in trial.before.runs for task in run.steps[0]] == ["remember"] * 5
    assert why_not(app, thread_config("t0"), "talk:remember").count("it ran") == 5


@each_schedule
def test_posts_come_where_they_were_taken(schedule, tmp_path):
    """Within a run, before an input, and while a question was open."""
    def count(state: Talk):
        if state["n"] % 3 == 1:
            post("within")
        return {"n": state["n"] + 1, "log": [str(state["n"])]}

    def ask(state: Talk):
        return {"log": [interrupt("well?")], "total": len(state["log"])}

    graph = graph_of(Talk, "S>count", count=count, ask=ask)
    graph.add_conditional_edges("count", lambda state: "count" if state["n"] % 3 else "ask", ["count", "ask"])
    app = graph.compile(InMemorySaver(), inbox=True, schedule=schedule)
    thread = thread_config("t0")

    def post(what):
        app.post(thread, {"log": [what]})

    for number in range(3):
        app.invoke({"n": 3 * number}, thread)
        post("while asked")
        app.invoke(Command(resume="yes"), thread)
        post("before")
    told = app.get_state(thread).values["log"]
    assert [told.count(each) for each in ("within", "while asked", "before")] == [3, 3 if schedule == "supersteps" else 2, 2]
    trials = whatif(app, 1)
    assert trials[0].same, trials[0].difference
    assert whatif(app, trials.save(tmp_path / "cohort.json"))[0].same
    if schedule == "supersteps":
        for step, found in enumerate(list(app.get_state_history(thread))[:-1]):
            assert whatif(app, 1, from_=found.config["configurable"]["checkpoint_id"])[0].same, step


def test_a_thread_that_cannot_be_run_again_says_why(world):
    app = tools(world, InMemorySaver())
    run_all(app, 2)
    app.update_state(thread_config("t0"), {"n": 9}, as_node="model")
    trials = whatif(app, 2)
    assert [bool(each.unreadable) for each in trials] == [True, False]
    assert "update_state" in trials[0].unreadable
    assert trials.remarks[0] == "2 threads: 1 the same, 0 different, 1 that cannot be run again"
    assert trials.remarks[1] == f"t0: {trials[0].unreadable}"
    with pytest.raises(CheckFailed, match="no thread could be read"):
        whatif(app, "t0").check(different=0)


@pytest.mark.parametrize("schedule", ["supersteps", "ready"])
@pytest.mark.parametrize("live", [(), "*"])
@pytest.mark.parametrize("how", ["a breakpoint", "the limit", "its process", "a deployment"])
def test_a_trial_ends_where_its_thread_has_stopped(how, live, schedule):
    ran, control = [], RunControl()

    def node(name):
        def run(state):
            ran.append(name)
            if name == "c" and how == "its process":
                raise KeyboardInterrupt
            if name == "b" and how == "a deployment":
                control.request_drain()
            return {"log": [name]}

        return run

    graph = graph_of(Log, "S>a>b>c>d b>e>f", **{name: node(name) for name in "abcdef"})
    app = graph.compile(InMemorySaver(), schedule=schedule)
    breaks = {"interrupt_before": ["c", "e"]} if how == "a breakpoint" else {}
    with suppress(GraphRecursionError, KeyboardInterrupt, GraphDrained):
        config = {**CONFIG, "recursion_limit": 2} if how == "the limit" else CONFIG
        app.invoke({"log": []}, config, control=control, **breaks)
    count = len(ran)
    [trial] = whatif(app, 1, live=live)
    log = trial.now.runs[-1].state["log"]
    assert (trial.same, trial.end, log[:2]) == (True, "stopped", ["a", "b"])
    assert ran[count:] == ([] if live == () else log)
    app.invoke({"log": ["again"]}, CONFIG, interrupt_before=["a"])  # this drops what was left to do
    assert [each.same for each in whatif(app, 1, live=live)] == [True]


@pytest.mark.parametrize("schedule", ["supersteps", "ready"])
@pytest.mark.parametrize("breaks", [{"interrupt_before": "*"}, {"interrupt_after": ["a", "b"]}])
def test_a_trial_goes_on_from_breakpoints_as_its_thread_did(breaks, schedule):
    app = graph_of(Log, "S>a>b>c").compile(InMemorySaver(), schedule=schedule, **breaks)
    app.invoke({"log": []}, CONFIG)
    while app.get_state(CONFIG).next:
        assert [each.same for live in ((), "*") for each in whatif(app, 1, live=live)] == [True, True]
        app.invoke(None, CONFIG)
    app.invoke({"log": []}, CONFIG)
    [trial] = whatif(app, 1, live="*")
    assert (trial.same, trial.now.runs[0].end, trial.end) == (True, "done", "stopped")


@pytest.mark.parametrize("error", [DamagedError, UnknownTypeError])
def test_a_thread_that_cannot_be_loaded_does_not_stop_the_others(world, error):
    saver = InMemorySaver()
    app = tools(world, saver)
    run_all(app, 2)

    def load(real):
        def call(config, *more, **options):
            if config["configurable"]["thread_id"] == "t0":
                raise error("t0 is lost")
            return real(config, *more, **options)

        return call

    saver.list, saver.get_tuple = load(saver.list), load(saver.get_tuple)
    for threads in (["t1", "t0"], find_threads(app, status="done"), find_threads(app, before=datetime.now() + timedelta(1))):
        trials = whatif(app, threads)
        assert [(each.thread, "t0 is lost" in each.unreadable) for each in trials] == [("t1", False), ("t0", True)]


@each_schedule
def test_threads_of_an_earlier_version_are_read_as_their_graph_has_them(schedule):
    def graph(name):
        return graph_of(Talk, f"S>a>{name}>z", **{name: lambda state: {"log": [interrupt("go on?")]}})

    saver = InMemorySaver()
    old = graph("q").compile(saver, schedule=schedule)
    for thread in ("waits", "ended"):
        old.invoke({"log": []}, thread_config(thread))
    old.invoke(Command(resume="yes"), thread_config("ended"))
    new = graph("r").compile(saver, schedule=schedule, migrate=Migration().rename_node("q", "r"))
    for end in ("paused", "done"):  # it has gone on under the new version
        for live in ((), "*"):
            trials = whatif(new, ["waits", "ended"], live=live)
            assert [(each.same, each.end) for each in trials] == [(True, end), (True, "done")]
        assert "step 2: r led to z" in why_not(new, thread_config("ended"), "z")
        if end == "paused":
            new.invoke(Command(resume="yes"), thread_config("waits"))


def test_an_entrypoint_is_not_run_by_accident(world):
    @entrypoint(checkpointer=InMemorySaver())
    def flow(given):
        return world.do("all")

    flow.invoke(1, CONFIG)
    world.effects.clear()
    with pytest.raises(ValueError, match='live="\\*" runs it'):
        whatif(flow, "t")
    assert not world.effects


def test_the_clock_of_other_runs_in_the_process_is_left_alone(world):
    """A trial in a server must not wake the threads that sleep there."""
    app = tools(world, InMemorySaver())
    run_all(app, 1)
    clocks = []
    whatif(app, 1, variant={"model": lambda state: clocks.append(CLOCK.virtual) or louder(state)})
    assert clocks == [None]


def test_mistakes_are_named(world):
    app = tools(world, InMemorySaver())
    with pytest.raises(ValueError, match="has no node 'modl'; did you mean 'model'"):
        whatif(app, 1, variant={"modl": louder})
    with pytest.raises(ValueError, match="has no node 'tol'"):
        whatif(app, 1, effects={"tol": louder})
    with pytest.raises(ValueError, match="has no checkpointer"):
        whatif(tools(world, None), 1)
    with pytest.raises(TypeError, match="app must be a compiled graph.*compile\\(\\) it first"):
        whatif(StateGraph(Talk), 1)
    with pytest.raises(TypeError, match="app must be a compiled graph"):
        whatif(app, 1, variant=StateGraph(Talk))


def test_trials_are_drawn(world):
    app = tools(world, InMemorySaver())
    run_all(app, 2)
    trials = whatif(app, 2, variant={"model": louder})
    shown = trials.draw_text()
    assert shown.startswith("2 threads: 0 the same, 2 different (2 refused)\nran: model\nrefused: ")
    assert "\n2 threads: node 'model': write to 'log'\nthread t" in shown
    assert "refused: tool(" in shown
    html = Trials(trials.trials)._repr_mimebundle_()["text/html"]
    assert "<script" not in html and "thread t1" in html
    assert repr(trials) == "<Trials of 2 threads: 0 the same, 2 different (2 refused)>"


def test_files_of_recordings_are_read(world, tmp_path):
    app = tools(world, InMemorySaver())
    run_all(app, 1)
    (trial,) = whatif(app, 1)
    path = trial.before.save(tmp_path / "one.json")
    assert isinstance(path, Path)
    assert [each.thread for each in whatif(app, [path, trial.before])] == ["one.json", "tools"]
