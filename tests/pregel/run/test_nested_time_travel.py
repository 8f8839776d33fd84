"""Going back to a checkpoint inside a nested graph: what follows it runs once from there, at every level and whatever
`checkpointer` each graph has; what was there stays as it was."""

from __future__ import annotations

from operator import add
from typing import Annotated, Any, TypedDict

import pytest
from kit.drive import each_durability, each_schedule
from kit.graphs import CONFIG, EMPTY, chain_of, thread_config
from kit.nested_travel import CALLS, KEEPS, Nest, travel
from kit.pausing_graphs import Ran, State, asks, graph, ids, says
from kit.savers import local_saver

import stategraph.pregel.run.load as load
from stategraph import (
    END,
    START,
    Command,
    InMemorySaver,
    Send,
    StateGraph,
    StateUpdate,
)


@pytest.mark.trial
@pytest.mark.parametrize("inmost", KEEPS)
@pytest.mark.parametrize("mid", KEEPS)
def test_every_checkpoint_of_three_graphs(drive, mid, inmost):
    """Each by one of the three calls; `make chaos` makes all of them."""
    nest = Nest(drive, mid, inmost)
    for number, stop in enumerate(nest.stops):
        if stop.turn == 1:
            travel(nest, stop, CALLS[(number + KEEPS.index(mid) + KEEPS.index(inmost)) % 3])


# -- which graph of which task ------------------------------------------------------------------------------------


def two_questions(ran: Ran, checkpointer=None):
    nodes = {"s": says("s", ran), "i": asks("i", ran, 2), "t": says("t", ran)}
    return graph("S>s>i>t", **nodes, checkpointer=checkpointer)


def nested(drive, app, following):
    """The snapshots of nested graphs in which this node runs next, the oldest first."""
    found = [
        snapshot
        for above in drive.history(app, CONFIG)
        for task in above.tasks
        if task.state is not None
        for snapshot in drive.history(app, task.state)
        if snapshot.next == (following,)
    ]
    return sorted(found, key=lambda snapshot: snapshot.created_at)


def test_of_several_sends_the_one_that_contains_the_checkpoint_resumes(drive):
    ran = Ran()
    child = graph("S>s>t", s=says("s", ran), t=says("t", ran), checkpointer=None)
    builder = StateGraph(State).add_node("sub", child)
    builder.add_conditional_edges(START, lambda state: [Send("sub", {"log": [n]}) for n in range(3)], ["sub"])
    app = builder.compile(InMemorySaver())
    drive.invoke(app, {}, CONFIG)
    (second,) = [found for found in nested(drive, app, "t") if found.values["log"][0] == 1]
    ran.clear()
    drive.invoke(app, None, second.config)
    assert ran.count("s") == 2 and ran.count("t") == 3


@pytest.mark.parametrize("checkpointer", [None, True])
def test_a_graph_that_the_same_node_ran_before_is_not_run_again(drive, checkpointer):
    ran = Ran()
    first, second = two_questions(ran, checkpointer), two_questions(ran, checkpointer)
    thread = drive.on(graph("S>n", n=lambda state: {"log": first.invoke({})["log"] + second.invoke({})["log"]}))
    thread.invoke({})
    for answer in "abcd":
        found = thread.resume(answer)
    at_end = [each for each in nested_of_second(drive, thread.app, checkpointer) if each.next == ("t",)][-1]
    ran.clear()
    assert thread.invoke(None, at_end.config) == found
    assert ran == ["t"]


def nested_of_second(drive, app, checkpointer):
    (task,) = [task for above in drive.history(app, CONFIG) for task in above.tasks if task.name == "n"]
    where = task.state["configurable"]["checkpoint_ns"] + "|1"
    return drive.history(app, thread_config(checkpoint_ns=where))


@pytest.mark.parametrize("checkpointer", [None, True])
def test_an_iteration_of_a_loop_resumes_from_the_state_of_the_one_before(drive, checkpointer):
    ran = Ran()
    child = graph("S>s>t", s=says("s", ran), t=says("t", ran), checkpointer=checkpointer)

    def holder(state):
        return {"log": [tuple(child.invoke({})["log"])]}

    app = (
        chain_of(State, n=holder)
        .add_conditional_edges("n", lambda state: "n" if len(state["log"]) < 4 else END, ["n", END])
        .compile(InMemorySaver())
    )
    whole = drive.invoke(app, {}, CONFIG)
    stops = {each.config["configurable"]["checkpoint_id"]: each for each in nested(drive, app, "t")}
    for number, found in enumerate(stops.values()):
        ran.clear()
        assert drive.invoke(app, None, found.config) == whole
        assert ran == ["t", *["s", "t"] * (3 - number)]


# -- a history of its own -------------------------------------------------------------------------------------------


saver = local_saver


def remembers(saver, schedule):
    """A node that shows what its graph remembers; that asks in between."""
    child = graph("S>p>i", i=asks("i"), checkpointer=True, schedule=schedule)
    bodies = {"m": lambda state: {"log": [[each[-1] for each in child.invoke({})["log"]]]}, "b": asks("b")}
    return graph("S>m S>b", **bodies, checkpointer=saver, schedule=schedule)


def answer_m(drive, app, answer):
    asked = ids(drive.get_state(app, CONFIG))
    return drive.invoke(app, Command(resume={asked["i?"]: answer}), CONFIG, durability="sync")["log"]


@pytest.mark.trial
@each_schedule
@each_durability
def test_a_memory_forgets_on_a_branch_what_a_repeated_task_had_stored(drive, saver, durability, schedule):
    thread = drive.on(remembers(saver, schedule))
    for turn in range(2):
        thread.invoke({}, durability=durability)
        asked = thread.state
        if not turn:
            thread.resume({each.id: "one" for each in asked.interrupts}, durability=durability)
    for answer in ("two", "three", "four"):  # each branch is one of the branch before
        thread.invoke(None, asked.config, durability=durability)
        asked = thread.state
        if answer != "three":
            thread.resume({ids(asked)["i?"]: answer}, durability=durability)
    log = thread.log
    assert log[-1] == ["p", "one", "p", "four"]


@each_schedule
def test_a_memory_is_kept_where_no_task_runs_again(drive, saver, schedule):
    """Also when the config of the edit is named."""
    thread = drive.on(remembers(saver, schedule))
    thread.invoke({})
    thread.invoke(None, thread.update(EMPTY, "b"))
    assert answer_m(drive, thread.app, "one") == [["p", "one"]]


# -- answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointer", [None, True])
@each_schedule
def test_an_answer_for_a_graph_inside_reaches_no_other_node_that_asks(drive, schedule, checkpointer):
    """The graph starts over on the branch, and comes to its question after its sibling."""
    child = graph("S>t>i", i=asks("i"), checkpointer=checkpointer)
    bodies = {"n": lambda state: {"log": child.invoke({})["log"][-1:]}, "a": asks("a")}
    thread = drive.on(graph("S>n S>a", **bodies, schedule=schedule))
    thread.invoke({})
    asked = thread.state
    thread.invoke(None, asked.config)  # it is not the head any more
    thread.invoke(Command(resume={ids(asked)["i?"]: "I"}), asked.config)
    (left,) = thread.state.interrupts
    assert left.value == "a?"
    assert sorted(thread.resume("A")["log"]) == [("a", "A"), ("i", "I")]


def test_an_answer_by_id_for_a_graph_inside_reaches_no_earlier_question_of_it(drive):
    """The graph starts over on the branch, and asks its first question again."""
    thread = drive.on(graph("S>n", n=two_questions(Ran())))
    thread.invoke({})
    thread.resume("first")
    asked = thread.state
    thread.invoke(None, asked.config)
    thread.invoke(Command(resume={ids(asked)["i1?"]: "second"}), asked.config)
    (again,) = thread.state.interrupts
    assert again.value == "i?"


@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize("checkpointer", [None, True])
def test_an_answer_inside_reaches_the_question_shown_there_and_earlier_ones_stay(drive, checkpointer, by_id):
    ran = Ran()
    thread = drive.on(graph("S>sub", sub=two_questions(ran, checkpointer)))
    thread.invoke({})
    thread.resume("A")
    shown = thread.get_state(subgraphs=True).tasks[0].state
    thread.resume("B")
    ran.clear()
    (question,) = thread.get_state(shown.config).interrupts
    answer = {question.id: "C"} if by_id else "C"
    assert thread.invoke(Command(resume=answer), shown.config)["log"] == ["s", ("i", "A", "C"), "t"]
    assert ran == ["i", "t"]


# -- a crash, and edits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointer", [None, True])
def test_a_fork_that_crashed_before_entering_the_nested_graph_enters_it_on_resume(drive, checkpointer, monkeypatch):
    ran = Ran()
    child = graph("S>s>t", s=says("s", ran), t=says("t", ran), checkpointer=checkpointer)
    thread = drive.on(graph("S>sub", sub=child))
    whole = thread.invoke({})
    (found, *_) = nested(drive, thread.app, "t")
    ran.clear()
    with monkeypatch.context() as patch:
        patch.setattr(load, "load_seed", lost)
        with pytest.raises(OSError, match="killed"):
            thread.invoke(None, found.config)
    assert thread.invoke(None) == whole and ran == ["t"]


def lost(run):
    raise OSError("killed")


@pytest.mark.parametrize("checkpointer", [None, True])
def test_an_edit_inside_is_found_on_resume_or_by_its_config(drive, checkpointer):
    for by_config in (False, True):
        ran = Ran()
        thread = drive.on(graph("S>sub", sub=two_questions(ran, checkpointer)))
        thread.invoke({})
        inside = thread.state.tasks[0].state
        made = drive.update_state(thread.app, inside, {"log": ["edited"]}, as_node="i")
        ran.clear()
        assert thread.invoke(None, made if by_config else CONFIG)["log"] == ["s", "edited", "t"]
        assert ran == ["t"]


# -- branches of branches ------------------------------------------------------------------------------------------


class Counted(TypedDict, total=False):
    n: int
    log: Annotated[list[Any], add]


def counting(drive, saver=None, **options):
    """x counts to 4; a graph with a history of its own remembers the numbers."""
    memory = chain_of(State, r=lambda _: {}).compile(checkpointer=True)

    def x(state: Counted):
        return {"n": state["n"] + 1, "log": [memory.invoke({"log": [state["n"]]})["log"]]}

    app = (
        chain_of(Counted, x=x)
        .add_conditional_edges("x", lambda s: "x" if s["n"] < 4 else END, ["x", END])
        .compile(saver or InMemorySaver())
    )
    assert drive.invoke(app, {"n": 1}, CONFIG, **options)["log"] == [[1], [1, 2], [1, 2, 3]]
    return app


def at(drive, app, n):
    """Where n comes next, the newest."""
    return next(each.config for each in drive.history(app, CONFIG) if each.values.get("n") == n and each.next == ("x",))


def begin_again(drive, app):
    """Run everything once more, on a branch from the input."""
    first = next(each for each in drive.history(app, CONFIG) if each.metadata["source"] == "input")
    return drive.invoke(app, None, first.config)["log"]


def test_a_branch_of_a_branch_has_the_history_of_its_own_past(drive):
    app = counting(drive)
    assert begin_again(drive, app) == [[1], [1, 2], [1, 2, 3]]
    for n in (3, 2, 1):
        assert drive.invoke(app, None, at(drive, app, n))["log"] == [[1], [1, 2], [1, 2, 3]]


def test_a_branch_has_what_a_call_of_its_past_made_that_stored_its_end_only(drive):
    """With durability "exit" the checkpoints under which such a graph ran are not stored."""
    app = counting(drive, durability="exit")
    whole = drive.invoke(app, {"n": 1}, CONFIG)["log"]
    assert whole[3:] == [[1, 2, 3, 1], [1, 2, 3, 1, 2], [1, 2, 3, 1, 2, 3]]
    assert begin_again(drive, app) == whole


def test_a_branch_has_no_state_of_nested_runs_stored_on_another_saver(drive):
    memory = chain_of(State, r=lambda _: {}).compile(checkpointer=True)
    inner = chain_of(Counted, m=lambda s: {"log": [memory.invoke({"log": [s["n"]]})["log"]]}).compile(InMemorySaver())
    app = (
        chain_of(Counted, x=lambda s: {"n": s["n"] + 1, "log": inner.invoke({"n": s["n"]})["log"]})
        .add_conditional_edges("x", lambda s: "x" if s["n"] < 4 else END, ["x", END])
        .compile(InMemorySaver())
    )
    whole = drive.invoke(app, {"n": 1}, CONFIG)["log"]
    assert begin_again(drive, app) == whole
    for n in (3, 2, 1):
        assert drive.invoke(app, None, at(drive, app, n))["log"] == whole


def edit_once(drive, app, old):
    return drive.update_state(app, old, {"n": 2}, as_node="x")


def edit_twice(drive, app, old):
    edit_once(drive, app, old)
    return drive.update_state(app, CONFIG, {"n": 2}, as_node="x")


def copy_and_edit(drive, app, old):
    return drive.update_state(app, old, [({"n": 2}, "x")], as_node="__copy__")


def edit_in_bulk(drive, app, old):
    return drive.call(app, "bulk_update_state", old, [[StateUpdate({"n": 2}, "x")], [StateUpdate({"n": 2}, "x")]])


@pytest.mark.parametrize("by_config", [False, True])
@pytest.mark.parametrize("edit", [edit_once, edit_twice, copy_and_edit, edit_in_bulk])
def test_after_edits_of_an_old_checkpoint_a_history_is_what_it_was_there(drive, edit, by_config):
    app = counting(drive)
    made = edit(drive, app, at(drive, app, 2))
    assert drive.invoke(app, None, made if by_config else CONFIG)["log"] == [[1], [1, 2], [1, 2, 3]]


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_thread_goes_on_whose_edited_checkpoint_is_pruned(drive, kept):
    """What its memory was there is gone as well: it goes on from what is kept of it."""
    app = counting(drive)
    edit_once(drive, app, at(drive, app, 2))
    app.checkpointer.prune(["t"], keep_last=kept)
    assert [each[-1] for each in drive.invoke(app, None, CONFIG)["log"]] == [1, 2, 3]


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
def test_at_a_checkpoint_that_stays_a_memory_is_what_it_was_there(drive, local_saver, kept):
    """Although each turn in the memory has as many checkpoints as stay."""
    app = counting(drive, local_saver)
    app.checkpointer.prune(["t"], keep_last=kept)
    assert len(drive.history(app, CONFIG)) == kept
    oldest = drive.history(app, CONFIG)[-1]
    assert drive.invoke(app, None, oldest.config)["log"] == [[1], [1, 2], [1, 2, 3]]
    assert drive.invoke(app, {"n": 3}, CONFIG)["log"][3:] == [[1, 2, 3, 3]]


# -- what does not hold yet -----------------------------------------------------------------------------------------


def two_turns(drive, ran: Ran, *answers):
    """q asks, then n runs a graph with a history of its own that asks; so many answers are given."""
    child = graph("S>s>i", s=says("s", ran), i=asks("i", ran), checkpointer=True)

    def holder(state):
        return {"log": [tuple(child.invoke({})["log"])]}

    thread = drive.on(graph("S>q>n", q=asks("q", ran), n=holder))
    for number, given in enumerate(answers):
        if number % 2 == 0:
            thread.invoke({})
        thread.resume(given)
    ran.clear()
    return thread.app


@pytest.mark.xfail(strict=True, reason="the newest checkpoint of the history is taken, whose it may be")
def test_an_edit_of_an_earlier_turn_inside_does_not_move_the_paused_run(drive):
    ran = Ran()
    thread = drive.on(two_turns(drive, ran, 1, "A", 2))
    history = thread_config(checkpoint_ns="n")
    earlier = [each for each in thread.history(history) if each.next == ("i",)][-1]
    drive.update_state(thread.app, earlier.config, {"log": ["edit"]}, as_node="s")
    thread.resume("B")
    assert ran == ["i"]


@pytest.mark.xfail(strict=True, reason="where a history goes back to is known to the call that made the branch only")
def test_a_history_that_is_entered_later_on_a_branch_is_what_it_was_there(drive):
    thread = drive.on(two_turns(drive, Ran(), 1, "A", 2, "B"))
    first = [each for each in thread.history() if each.next == ("q",)][-1]
    thread.invoke(None, first.config)
    thread.resume(3)
    assert thread.resume("C")["log"][-1] == ("s", ("i", "C"))
