"""Calls at an old checkpoint (replay, branch, resume): which stored writes count, and what stays unchanged."""

from functools import partial

import pytest
from kit.drive import each_case, each_durability
from kit.graphs import CONFIG, thread_config
from kit.pausing_graphs import (
    Ran,
    State,
    answer,
    asked,
    asks,
    at,
    fails,
    graph,
    ids,
    rows,
    says,
    seen,
)

from stategraph import START, Command, InMemorySaver, Send, StateGraph
from stategraph.channels import LastValue
from stategraph.pregel import NodeBuilder, Pregel


def chain(ran=None, **compiled):
    """START -> x -> y -> z: steps -1 (input), 0 (x is next), 1, 2, 3 (done)."""
    return graph("S>x>y>z x~x|y|z", **{n: says(n, ran) for n in "xyz"}, **compiled)


def paused(ran=None):
    """p finishes and q asks, in one superstep; then z."""
    return graph("S>p S>q>z", p=says("p", ran), q=asks("q", ran), z=says("z", ran))


def branch(thread, call, *, goes_on=False):
    """The rows that a call adds to a thread; all before stay exactly as they were, unless the call goes on from the
    head, whose tasks then get results."""
    before = thread.history()
    call()
    after = thread.history()
    added = len(after) - len(before)
    assert seen(after[added + goes_on :]) == seen(before[goes_on:])
    return rows(after[:added])


# -- steps of a chain -----------------------------------------------------------------------------------------

REPLAYS = {
    -1: [("fork", 0, [], ("__start__",)), ("loop", 1, ["i"], ("x",)), ("loop", 2, ["i", "x"], ("y",)),
         ("loop", 3, ["i", "x", "y"], ("z",)), ("loop", 4, ["i", "x", "y", "z"], ())],
    0: [("fork", 1, ["i"], ("x",)), ("loop", 2, ["i", "x"], ("y",)), ("loop", 3, ["i", "x", "y"], ("z",)),
        ("loop", 4, ["i", "x", "y", "z"], ())],
    1: [("fork", 2, ["i", "x"], ("y",)), ("loop", 3, ["i", "x", "y"], ("z",)), ("loop", 4, ["i", "x", "y", "z"], ())],
    2: [("fork", 3, ["i", "x", "y"], ("z",)), ("loop", 4, ["i", "x", "y", "z"], ())],
    3: [],
}  # fmt: skip


@each_case("step, added", REPLAYS.items())
def test_none_at_a_checkpoint_runs_the_following_nodes_on_a_branch(drive, step, added):
    """Nodes before it never run again; at a finished checkpoint there is nothing to do and nothing is stored."""
    ran = Ran()
    thread = drive.on(chain(ran))
    thread.invoke({"log": ["i"]})
    then = at(thread, step, "input" if step < 0 else "loop")
    ran.clear()
    assert branch(thread, lambda: thread.invoke(None, then)) == added
    made = thread.history()[: len(added)]
    assert [each.parent_config for each in made] == [*(each.config for each in made[1:]), *[then] * bool(made)]
    assert "".join(ran) == "xyz"[max(step, 0) :]


def test_the_newest_branch_is_the_head_and_the_old_one_stays_within_reach(drive):
    thread = drive.on(chain())
    thread.invoke({"log": ["i"]})
    end, then = thread.state.config, at(thread, 1)
    thread.invoke({"log": ["j"]}, then)
    assert thread.log == ["i", "x", "j", "x", "y", "z"]
    assert thread.get_state(end).values["log"] == ["i", "x", "y", "z"]
    assert thread.invoke(None, end)["log"] == ["i", "x", "y", "z"]


CALLS = {
    "input: no fork, the input hangs on it, what was pending is dropped": (
        lambda app, then: [{"log": ["j"]}, then],
        [("input", 2, ["i", "x"], ("__start__",)), ("loop", 3, ["i", "x", "j"], ("x",)),
         ("loop", 4, ["i", "x", "j", "x"], ("y",)), ("loop", 5, ["i", "x", "j", "x", "y"], ("z",)),
         ("loop", 6, ["i", "x", "j", "x", "y", "z"], ())],
    ),
    "an update: the fork contains it": (
        lambda app, then: [Command(update={"log": ["u"]}), then],
        [("fork", 2, ["i", "x", "u"], ("y",)), ("loop", 3, ["i", "x", "u", "y"], ("z",)),
         ("loop", 4, ["i", "x", "u", "y", "z"], ())],
    ),
    "a goto: the fork contains it": (
        lambda app, then: [Command(goto="z"), then],
        [("fork", 2, ["i", "x"], ("y", "z")), ("loop", 3, ["i", "x", "y", "z"], ("z",)),
         ("loop", 4, ["i", "x", "y", "z", "z"], ())],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "added"), CALLS.values(), ids=CALLS.keys())
def test_a_call_at_an_old_checkpoint(drive, given, added):
    app = chain()
    thread = drive.on(app)
    thread.invoke({"log": ["i"]})
    then = at(thread, 1)
    assert branch(thread, lambda: drive.invoke(app, *given(app, then))) == added


def test_an_update_at_a_finished_old_checkpoint_makes_a_branch_too(drive):
    thread = drive.on(chain())
    thread.invoke({})
    end = thread.state.config
    thread.invoke({})
    assert branch(thread, lambda: thread.invoke(Command(update={"a": 7}), end)) == [
        ("fork", 4, ["x", "y", "z"], ())
    ]
    assert thread.state.values["a"] == 7


def test_an_update_then_none_continues_the_branch_without_a_further_fork(drive):
    """The second time the update is no longer the head, and its replay gets a fork."""
    thread = drive.on(chain())
    thread.invoke({})
    then = at(thread, 1)
    made = drive.update_state(thread.app, then, {"log": ["u"]}, as_node="x")
    ends = [("loop", 3, ["x", "u", "y"], ("z",)), ("loop", 4, ["x", "u", "y", "z"], ())]
    assert branch(thread, lambda: thread.invoke(None, made), goes_on=True) == ends
    again = [("fork", 3, ["x", "u"], ("y",)), ("loop", 4, ["x", "u", "y"], ("z",)), ("loop", 5, ["x", "u", "y", "z"], ())]
    assert branch(thread, lambda: thread.invoke(None, made)) == again


def test_a_head_that_was_made_by_an_update_and_then_ran_is_left_alone_by_a_replay(drive):
    """It is no longer untouched: p's output hangs on it. So the replay gets a fork."""
    thread = drive.on(paused())
    thread.invoke({"log": ["i"]})
    made = thread.update(None, as_node="__copy__")
    thread.invoke(None)
    assert branch(thread, lambda: thread.invoke(None, made))[0] == ("fork", 2, ["i"], ("p", "q"))


@pytest.mark.parametrize("given", [{"log": ["j"]}, None, Command(goto="x"), Command(resume=1)], ids=repr)
def test_an_unknown_checkpoint_is_an_error_that_names_it(drive, given):
    """D15: the peer starts from an empty state."""
    app = chain()
    drive.invoke(app, {}, CONFIG)
    for thread in ("t", "empty"):
        unknown = thread_config(thread, checkpoint_id="nope")
        update = partial(drive.update_state, app, values={"a": 1}, as_node="x")
        for call in (partial(drive.invoke, app, given), partial(drive.get_state, app), update):
            with pytest.raises(ValueError, match=f"thread '{thread}' has no checkpoint 'nope'"):
                call(unknown)
    assert len(drive.history(app, CONFIG)) == 5


def test_none_on_a_finished_thread_returns_its_output_and_stores_nothing(drive):
    thread = drive.on(chain())
    done = thread.invoke({})
    assert branch(thread, lambda: thread.invoke(None)) == []
    assert thread.invoke(None) == done


# -- stored writes: which count when --------------------------------------------------------------------------

KEPT = {
    "resume": (lambda app, c: (Command(resume="R"), CONFIG), ["q", "z"], []),
    "resume at the head by its id": (lambda app, c: (Command(resume="R"), c), ["q", "z"], []),
    "none": (lambda app, c: (None, CONFIG), ["q"], ["q?"]),
    "none at the head by its id": (lambda app, c: (None, c), ["p", "q"], ["q?"]),
    "new input": (lambda app, c: ({"log": ["j"]}, CONFIG), ["p", "q"], ["q?"]),
}


@each_case("call, runs, asks_again", KEPT.values())
def test_writes_of_finished_siblings_count_unless_the_superstep_runs_again(drive, call, runs, asks_again):
    ran = Ran()
    app = paused(ran)
    drive.invoke(app, {}, CONFIG)
    head = drive.get_state(app, CONFIG).config
    ran.clear()
    result = drive.invoke(app, *call(app, head))
    assert (ran.take(), asked(result) if asks_again else []) == (runs, asks_again)


def test_a_replay_interrupts_under_new_ids_and_the_old_ones_are_closed(drive):
    thread = drive.on(paused())
    first = thread.invoke({})
    thread.resume("R")
    again = thread.invoke(None, at(thread, 0))
    assert asked(again) == ["q?"] and ids(again) != ids(first)
    with pytest.raises(RuntimeError, match="no question is pending"):
        thread.invoke(answer(q=1)(first))
    assert thread.resume("S")["log"] == ["p", ("q", "S"), "z"]


def test_a_replay_runs_a_failed_step_whole(drive):
    ran = Ran()
    thread = drive.on(graph("S>p S>q", p=says("p", ran), q=fails("q", 1, ran)))
    with pytest.raises(ValueError):
        thread.invoke({})
    head = thread.state.config
    ran.clear()
    assert thread.invoke(None, head)["log"] == ["p", "q"] and ran.take() == ["p", "q"]


def test_a_resume_at_an_old_checkpoint_runs_its_step_whole_on_a_branch(drive):
    """The old checkpoint keeps the old answer, result and all."""
    ran = Ran()
    thread = drive.on(paused(ran))
    thread.invoke({})
    thread.resume("old")
    then = at(thread, 0)
    ran.clear()
    added = branch(thread, lambda: thread.invoke(Command(resume="new"), then))
    assert added == [("fork", 1, [], ("p", "q")), ("loop", 2, ["p", ("q", "new")], ("z",)), ("loop", 3, ["p", ("q", "new"), "z"], ())]
    assert ran.take() == ["p", "q", "z"]


def test_a_resume_with_an_update_at_an_old_checkpoint_leaves_that_as_it_was(drive):
    thread = drive.on(paused())
    thread.invoke({})
    thread.resume("old")
    then = at(thread, 0)
    both = Command(resume="new", update={"a": 9})
    added = branch(thread, lambda: thread.invoke(both, then))
    assert added[0] == ("fork", 1, [], ("p", "q")) and thread.state.values["a"] == 9


@each_durability
def test_a_replay_that_pauses_can_be_resumed_in_every_durability(drive, durability):
    """With "exit" too the branch is there, though nothing but a question came of it."""
    thread = drive.on(paused())
    thread.invoke({"log": ["i"]})
    thread.resume("old")
    then = at(thread, 0)
    added = branch(thread, lambda: thread.invoke(None, then, durability=durability))
    assert added == [("fork", 1, ["i"], ("p", "q"))]
    assert thread.resume("new")["log"] == ["i", "p", ("q", "new"), "z"]


def test_sends_of_an_old_checkpoint_run_again(drive):
    builder = StateGraph(State).add_node("w", lambda n: {"log": [n]})
    builder.add_conditional_edges(START, lambda state: [Send("w", n) for n in range(3)], ["w"])
    thread = drive.on(builder.compile(InMemorySaver()))
    thread.invoke({})
    assert branch(thread, lambda: thread.invoke(None, at(thread, 0))) == [
        ("fork", 1, [], ("w", "w", "w")), ("loop", 2, [0, 1, 2], ())
    ]  # fmt: skip


def test_a_raw_graph_goes_back_too(drive):
    nodes = {"n1": NodeBuilder().subscribe_only("a").do(lambda v: v + 1).write_to("b"),
             "n2": NodeBuilder().subscribe_only("b").do(lambda v: v * 10).write_to("o")}  # fmt: skip
    thread = drive.on(Pregel(nodes=nodes, channels={k: LastValue(int) for k in "abo"}, input_channels="a", output_channels="o",
                 checkpointer=InMemorySaver()))  # fmt: skip
    assert thread.invoke(1) == 20
    then = at(thread, 0)
    assert thread.invoke(None, then) == 20
    assert thread.invoke(Command(update={"b": 7}), then) == 70
    assert [s.metadata["step"] for s in thread.history()] == [2, 1, 2, 1, 1, 0, -1]


def test_idempotency_keys_are_the_same_on_resume_and_new_in_a_branch(drive):
    """R3."""
    keys = []
    body = asks("q")

    def keep(state, runtime):
        keys.append(runtime.idempotency_key)
        return body(state)

    thread = drive.on(graph("S>q", q=keep))
    thread.invoke({})
    thread.resume(1)
    thread.invoke(Command(resume=2), at(thread, 0))
    assert keys[0] == keys[1] != keys[2]


def test_breakpoints_hold_on_a_branch(drive):
    thread = drive.on(chain())
    thread.invoke({})
    thread.invoke(None, at(thread, 0), interrupt_before=["y"])
    assert thread.state.next == ("y",)
    assert thread.invoke(None)["log"] == ["x", "y", "z"]


def test_a_checkpoint_id_of_none_means_the_head(drive):
    thread = drive.on(chain())
    thread.invoke({}, interrupt_before=["y"])
    head = thread_config(checkpoint_id=None)
    assert branch(thread, lambda: thread.invoke(None, head), goes_on=True)[0][:2] == ("loop", 2)


# -- history --------------------------------------------------------------------------------------------------


def test_history_lists_all_branches_newest_first_and_can_be_cut(drive):
    thread = drive.on(chain())
    thread.invoke({})
    then = at(thread, 1)
    thread.invoke(None, then)
    every = thread.history()
    assert [s.metadata["step"] for s in every] == [4, 3, 2, 3, 2, 1, 0, -1]
    assert thread.history(limit=2) == every[:2]
    assert thread.history(limit=0) == []
    assert thread.history(before=every[2].config) == every[3:]
    assert thread.history(filter={"source": "fork"}) == [every[2]]
    assert thread.history(filter={"step": 3}, limit=1) == [every[1]]
    assert thread.history(then) == [s for s in every if s.config == then]
    assert thread.history(thread_config("nobody")) == []


def test_the_head_is_shown_live_and_a_named_checkpoint_as_its_step_began(drive):
    thread = drive.on(paused())
    thread.invoke({})
    live = thread.state
    record = thread.get_state(live.config)
    assert (live.values["log"], live.next, len(live.interrupts)) == (["p"], ("q",), 1)
    assert (record.values.get("log", []), record.next, len(record.interrupts)) == ([], ("p", "q"), 1)
    thread.resume("R")
    after = thread.get_state(live.config)
    assert [t.result for t in after.tasks] == [{"log": ["p"]}, {"log": [("q", "R")]}] and len(after.interrupts) == 1


def test_a_thread_without_checkpoints_is_empty(drive):
    state = drive.get_state(chain(), CONFIG)
    assert (state.values, state.next, state.metadata, state.created_at, state.parent_config, state.tasks) == ({}, (), None, None, None, ())
