"""From a value to the tasks that made it; since when something holds; two threads side by side."""

from __future__ import annotations

import math
import operator
import random
from typing import Annotated, TypedDict

import pytest
from kit.graphs import chain_of, graph_of, thread_config
from kit.lab_agents import World, question_agent, tools_agent

from stategraph import END, START, Command, InMemorySaver, Send, StateGraph, interrupt
from stategraph.lab import compare, since, why, why_not
from stategraph.testing.thread_reader import ThreadError

THREAD = thread_config("1")


class State(TypedDict, total=False):
    n: int
    items: Annotated[list[int], operator.add]
    total: int
    note: dict[str, str]


def make(bad_at=-1, steps=5, name="count"):
    """a counts and collects, at one step a wrong number; b sums up."""
    def a(state: State):
        n = state["n"]
        return {"n": n + 1, "items": [-100 if n == bad_at else n], "note": {"by": "a", "at": str(n)}}

    def b(state: State):
        return {"total": sum(state["items"])}

    graph = graph_of(State, "S>a", a=a, b=b)
    graph.add_conditional_edges("a", lambda state: "a" if state["n"] < steps else "b", ["a", "b"])
    graph.add_edge("b", END)
    return graph.compile(InMemorySaver(), name=name)


def start(app, config=THREAD):
    app.invoke({"n": 0, "items": []}, config)
    return app


@pytest.mark.parametrize("bad_at", range(5))
def test_a_wrong_item_leads_to_the_step_that_made_it(bad_at):
    app = start(make(bad_at))
    items = app.get_state(THREAD).values["items"]
    cause = why(app, THREAD, f"items.{items.index(-100)}").cause
    assert (cause.step, cause.source, cause.by, cause.value) == (bad_at + 1, "loop", "a", "-100")
    assert [task.name for task in cause.tasks] == ["a"]


def test_a_sum_leads_to_what_it_was_made_of():
    cause = why(start(make()), THREAD, "total").cause
    assert (cause.by, cause.step, cause.value) == ("b", 6, "10")
    read = {each.path: each for each in cause.read}
    assert read["items"].by == "a" and read["items"].step == 5
    assert {each.path for each in read["items"].read} >= {"n", "items"}


def test_reads_are_followed_to_the_input_and_no_deeper_than_asked():
    app = start(make(steps=1))
    told = why(app, THREAD, "total")
    deepest = next(each for each in told.cause.read if each.path == "n").read
    assert {each.path: each.by for each in deepest} == {"n": "the input", "items": "the input"}
    assert not why(app, THREAD, "total", depth=0).cause.read


def test_the_path_goes_into_values_and_counts_from_the_end():
    app = start(make())
    assert why(app, THREAD, "note.at").cause.step == 5
    assert why(app, THREAD, "note.by").cause.step == 1, "it has not changed since"
    assert why(app, THREAD, "items.-1").cause.value == "4"


def test_an_earlier_state_and_an_edit_have_causes_too():
    app = start(make())
    third = next(each for each in app.get_state_history(THREAD) if each.values.get("n") == 3)
    assert why(app, third.config, "n").cause.step == 3
    app.update_state(THREAD, {"total": 99}, as_node="b")
    cause = why(app, THREAD, "total").cause
    assert (cause.source, cause.by, cause.before) == ("update", "an update", "10")


def test_a_value_from_before_the_kept_checkpoints_says_so():
    app = start(make())
    app.checkpointer.prune(["1"], keep_last=1)
    cause = why(app, THREAD, "n").cause
    assert cause.step is None and "before the first checkpoint that is kept" in cause.headline


def test_a_missing_value_names_the_nearest():
    app = start(make())
    with pytest.raises(ValueError, match="the state has no 'totl': no 'totl'; did you mean 'total'"):
        why(app, THREAD, "totl")
    with pytest.raises(ValueError, match="the state has no 'note.bye': no 'bye'; did you mean 'by'"):
        why(app, THREAD, "note.bye")
    with pytest.raises(ValueError, match="nothing is stored"):
        why(app, thread_config("2"), "n")


def test_the_tree_is_drawn():
    told = why(start(make(steps=1)), THREAD, "total")
    assert str(told).splitlines()[:2] == ["total = 0: step 2, b", "  b: {'n': 1, 'items': [0], 'note': {'by': 'a', 'at': '0'}} → {'total': 0}"]
    assert repr(told).startswith("total = 0: step 2, b")


def fan():
    """plan sends two works, which add to the list; b reads it."""
    graph = graph_of(
        State, "S>plan",
        plan=lambda state: {"n": state["n"] + 1, "items": [0]},
        work=lambda sent: {"items": [sent["place"]]},
        b=lambda state: {"total": sum(state["items"])},
    )
    graph.add_conditional_edges("plan", lambda state: [Send("work", {"place": each}) for each in (5, 6)], ["work"])
    graph.add_edge("work", "b")
    return graph.compile(InMemorySaver())


def test_what_was_sent_leads_to_who_has_sent_it_and_not_to_the_state():
    cause = why(start(fan()), THREAD, "items.1", depth=2).cause
    assert (cause.by, cause.step, cause.value, len(cause.tasks)) == ("work", 2, "5", 1)
    [sent] = cause.read
    assert (sent.path, sent.value, sent.by, sent.step) == ("Send to work", "{'place': 5}", "plan", 1)
    assert {each.path: each.by for each in sent.read} == {"n": "the input", "items": "the input"}


def test_a_task_that_has_started_before_its_step_has_read_the_state_there():
    """ask starts with fast, and ends after it: it has not read what fast wrote."""
    graph = graph_of(
        State, "S>ask S>fast",
        ask=lambda state: {"n": interrupt("how many?") + state["n"]},
        fast=lambda state: {"items": [1]},
    )
    app = graph.compile(InMemorySaver(), schedule="ready")
    start(app)
    app.invoke(Command(resume=7), THREAD)
    cause = why(app, THREAD, "n").cause
    assert (cause.value, cause.by, cause.answers) == ("7", "ask", (("'how many?'", "7"),))
    assert {each.path: (each.value, each.by) for each in cause.read} == {"n": ("0", "the input"), "items": ("[]", "the input")}


def test_what_a_reducer_adds_to_has_a_cause_too():
    cause = why(start(fan()), THREAD, "items").cause
    assert [each.by for each in cause.read] == ["plan", "plan"]
    assert [(each.path, each.value) for each in cause.read] == [("Send to work", "{'place': 5}, {'place': 6}"), ("items", "[0]")]


# -- since ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad_at", range(5))
def test_since_finds_the_step(bad_at):
    app = start(make(bad_at))
    found = since(app, THREAD, lambda values: -100 in values.get("items", ()))
    assert (found.step, found.source, [task.name for task in found.tasks]) == (bad_at + 1, "loop", ["a"])
    assert any("-100" in str(each) for each in found.changes)
    assert str(found) == f"since step {bad_at + 1} (loop: a)"


def test_since_says_which_state_its_predicate_could_not_read():
    app = chain_of(Wide, a=lambda state: {"n": 1}, b=lambda state: {"total": 2}).compile(InMemorySaver())
    app.invoke({"n": 0}, THREAD)
    with pytest.raises(KeyError) as caught:
        since(app, THREAD, lambda values: values["total"] > 1)
    assert caught.value.__notes__ == ["in the state of step 1, which has the keys 'n', 'items'"]


def test_since_is_none_where_it_does_not_hold():
    assert since(start(make()), THREAD, lambda values: False) is None


def test_since_is_without_a_break():
    app = start(make())
    app.update_state(THREAD, {"n": 0}, as_node="b")
    app.update_state(THREAD, {"n": 7}, as_node="b")
    assert since(app, THREAD, lambda values: values.get("n", 0) > 2).source == "update"


class Counting(InMemorySaver):
    """Counts the checkpoints that are read."""

    reads = 0

    def get_tuple(self, config):
        self.reads += 1
        return super().get_tuple(config)

    def list(self, config, **options):
        for each in super().list(config, **options):
            self.reads += 1
            yield each


@pytest.mark.trial
@pytest.mark.parametrize("bad_at", [0, 1, 500, 777, 999])
def test_since_reads_a_logarithm_of_the_steps(bad_at):
    app = make(bad_at, steps=1_000).copy({"checkpointer": (saver := Counting())})
    app.invoke({"n": 0, "items": []}, {**THREAD, "recursion_limit": 2_000})
    saver.reads = 0
    asked = []
    assert since(app, THREAD, lambda values: asked.append(0) or -100 in values["items"]).step == bad_at + 1
    assert len(asked) <= math.log2(1_000) + 4
    assert saver.reads <= len(asked) + 4


@pytest.mark.trial
@pytest.mark.parametrize("seed", range(20))
def test_since_follows_the_line_of_a_branch(seed):
    """Inputs, edits and forks from any checkpoint; the parents of each checkpoint are the oracle."""
    rng, app = random.Random(seed), start(make(steps=4))
    for number in range(8):
        places = [each for each in app.get_state_history(THREAD) if "n" in each.values]
        place = rng.choice(places)
        kind = rng.choice(["fork", "edit", "input"])
        if kind == "edit":
            place = place._replace(config=app.update_state(place.config, {"items": [100 + number]}, as_node="a"))
        app.invoke({"n": rng.randrange(4)} if kind == "input" else None, place.config)
    states = {each.config["configurable"]["checkpoint_id"]: each for each in app.get_state_history(THREAD)}
    for tip in states.values():
        line = [tip]
        while (parent := line[-1].parent_config) is not None:
            line.append(states[parent["configurable"]["checkpoint_id"]])
        for each in line[:-1]:
            size = len(each.values.get("items", ()))
            held = [one for one in line[:-1] if len(one.values.get("items", ())) >= size]
            found = since(app, tip.config, lambda values, size=size: len(values.get("items", ())) >= size)
            assert found.checkpoint == held[-1].config["configurable"]["checkpoint_id"]


def test_since_passes_steps_that_are_not_kept():
    app = make(steps=20)
    for number in range(6):
        app.invoke({"n": 15 + number, "items": []}, THREAD, durability="exit" if number % 2 else "sync")
    found = since(app, THREAD, lambda values: len(values["items"]) > 13)
    assert (found.step, found.source, [each.before for each in found.changes]) == (24, "loop", ["12", "209"])


# -- compare --------------------------------------------------------------------------------------------------


def test_the_same_run_twice_is_the_same():
    app = start(make())
    start(app, thread_config("2"))
    told = compare(app, THREAD, thread_config("2"))
    assert told.same and told.draw_text() == "both did the same"


def test_a_step_more_does_not_make_all_that_follow_different():
    app, longer = start(make(steps=3)), start(make(steps=4))
    told = compare(app, THREAD, THREAD, other_app=longer)
    assert [(each.number, each.other_number) for each in told.pairs] == [(1, 1), (2, 2), (3, 3), (None, 4), (4, 5)]
    assert [bool(each.changes) for each in told.pairs] == [False, False, True, True, True]
    assert "only the second, step 4: a" in told.draw_text()
    assert not told.same


def test_a_thread_that_was_edited_is_refused():
    app = start(make())
    start(app, thread_config("2"))
    app.update_state(THREAD, {"total": 99}, as_node="b")
    with pytest.raises(ThreadError, match="update_state"):
        compare(app, THREAD, thread_config("2"))


# -- the guilty task among many ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(50))
def test_a_planted_wrong_value_leads_to_the_task_that_wrote_it(seed):
    """In a random place: a task of a fan-out, a turn of a loop, or an answer of a person."""
    chance = random.Random(seed)
    turns, wide = chance.randint(1, 6), chance.randint(2, 8)
    guilty = (chance.randrange(turns), chance.randrange(wide))
    asking = {(turn, place) for turn in range(turns) for place in range(wide) if chance.random() < 0.2}

    class Work(TypedDict, total=False):
        turn: int
        place: int
        found: Annotated[list[int], operator.add]

    def work(state: Work):
        place = state["turn"], state["place"]
        number = interrupt(f"number of {place}?") if place in asking else place[0] * 100 + place[1]
        return {"found": [-1 if place == guilty else number]}

    def plan(state: Work) -> Command:
        turn = state.get("turn", -1) + 1
        if turn == turns:
            return Command(goto=END)
        return Command(update={"turn": turn}, goto=[Send("work", {"turn": turn, "place": each}) for each in range(wide)])

    graph = StateGraph(Work).add_node("plan", plan, destinations=("work", END)).add_node(work)
    app = graph.add_edge(START, "plan").add_edge("work", "plan").compile(InMemorySaver())
    done = app.invoke({"found": []}, THREAD, version="v2")
    while done.interrupts:
        answers = {each.id: 10_000 + number for number, each in enumerate(done.interrupts)}
        done = app.invoke(Command(resume=answers), THREAD, version="v2")
    items = app.get_state(THREAD).values["found"]
    cause = why(app, THREAD, f"found.{items.index(-1)}").cause
    assert [task.input for task in cause.tasks] == [f"{{'turn': {guilty[0]}, 'place': {guilty[1]}}}"]


def test_what_a_task_was_answered_is_part_of_the_cause():
    app = question_agent(World(faults=0)).copy({"checkpointer": InMemorySaver()})
    app.invoke({"price": 100}, THREAD)
    app.invoke(Command(resume="yes"), THREAD)
    app.invoke(Command(resume="no"), THREAD)
    assert "asked 'by card?', answered 'no'" in str(why(app, THREAD, "log.1"))


def test_a_message_leads_to_the_node_that_wrote_it():
    app = tools_agent(World(faults=0), without="mail").copy({"checkpointer": InMemorySaver()})
    app.invoke({"messages": [{"role": "user", "content": "weather?"}]}, THREAD)
    assert [why(app, THREAD, f"messages.{place}").cause.by for place in range(4)] == ["the input", "model", "tools", "model"]


def test_why_not_says_that_the_node_before_it_waits_for_an_answer():
    app = question_agent(World(faults=0)).copy({"checkpointer": InMemorySaver()})
    app.invoke({"price": 100}, THREAD)
    assert why_not(app, THREAD, "pay").splitlines()[1] == "step 2: approve asks, and waits for the answer"
    app.invoke(Command(resume="yes"), THREAD)
    app.invoke(Command(resume="no"), THREAD)
    assert why_not(app, THREAD, "pay").splitlines()[1] == "step 2: approve led to pay"


def test_why_not_says_where_the_nodes_before_it_led():
    app = question_agent(World(faults=0)).copy({"checkpointer": InMemorySaver()})
    app.invoke({"price": 10}, THREAD)
    told = why_not(app, THREAD, "approve").splitlines()
    assert told[0] == "step 1: offer led to pay"
    assert told[1].startswith("now: ")
    assert why_not(app, THREAD, "offer").splitlines()[0] == "step 1: it ran"
    with pytest.raises(ValueError, match="no node 'aprove'; did you mean 'approve'"):
        why_not(app, THREAD, "aprove")


class Wide(TypedDict, total=False):
    n: int
    total: int
    items: Annotated[list[int], operator.add]


def nest(depth=1, memory=None):
    """A graph with `make` in its node "sub", in another's "sub", and so on."""
    app = make(bad_at=2, steps=3).copy({"checkpointer": memory})
    for level in range(depth):
        graph = chain_of(Wide, sub=app, after=lambda state: {"n": 0})
        app = graph.compile(InMemorySaver() if level == depth - 1 else None, name=f"outer {level}")
    return app


def flat(cause):
    return [cause, *(each for read in cause.read for each in flat(read))]


@pytest.mark.parametrize("memory", [None, True])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_value_from_a_nested_graph_leads_to_the_task_inside(depth, memory):
    app = start(nest(depth, memory))
    causes = flat(why(app, THREAD, "total", depth=4).cause)
    assert [each.by for each in causes[: depth + 1]] == ["sub"] * depth + ["b"]
    assert causes[depth].path == "sub:total"
    wrong = next(each for each in causes[depth].read if each.path == "items")
    assert (wrong.by, wrong.value) == ("a", "[0, 1, -100]")


def test_why_reads_the_namespace_of_a_nested_graph():
    app = start(nest())
    [ns] = filter(None, app.checkpointer.namespaces("1"))
    found = why(app, thread_config("1", checkpoint_ns=ns), "items.2")
    assert (found.cause.by, found.cause.value, found.cause.step) == ("a", "-100", 3)


@pytest.mark.parametrize("memory", [None, True])
def test_why_not_says_what_held_a_nested_node_back(memory):
    app = start(nest(2, memory))
    told = why_not(app, THREAD, "sub:sub:b").splitlines()
    assert told[0] == "step 1, step 1, step 1: a led to a"
    assert told[3] == "step 1, step 1, step 4: it ran"
    assert told[4].startswith("now: ")
    with pytest.raises(ValueError, match="no node 'c'"):
        why_not(app, THREAD, "sub:sub:c")


def test_why_not_says_that_the_graph_around_a_node_did_not_run():
    app = nest().copy({"interrupt_before": ["sub"]})
    app.invoke({"n": 0}, THREAD)
    assert why_not(app, THREAD, "sub:b") == "now: sub has not run"
