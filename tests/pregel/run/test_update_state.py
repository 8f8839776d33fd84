"""`update_state`: which node an update is from, what stays pending, END, __input__, __copy__, bulk updates, nested
threads.
"""

from functools import partial

import pytest
from kit.drive import each_case
from kit.graphs import CONFIG, graph_of
from kit.pausing_graphs import (
    Ran,
    State,
    answer,
    asked,
    asks,
    at,
    fails,
    graph,
    rows,
    says,
    seen,
)

from stategraph import (
    END,
    START,
    Command,
    GraphWarning,
    InMemorySaver,
    InvalidUpdateError,
    Send,
    StateGraph,
    StateUpdate,
)
from stategraph.channels import LastValue
from stategraph.pregel import NodeBuilder, Pregel


def parallel(ran=None, b=None, c=None, **compiled):
    """b and c in one superstep, then d joins them."""
    bodies = {"b": b or says("b", ran), "c": c or says("c", ran), "d": says("d", ran)}
    return graph("S>b S>c [b,c]>d", **bodies, **compiled)


def held(ran=None):
    return parallel(ran, interrupt_before=["b"])


def chain(ran=None, **compiled):
    return graph("S>x>y>z", **{n: says(n, ran) for n in "xyz"}, **compiled)


# -- as a node ------------------------------------------------------------------------------------------------


def test_an_update_makes_a_checkpoint_and_returns_its_config(drive):
    thread = drive.on(chain(interrupt_before=["y"]))
    thread.invoke({})
    before = thread.state
    made = thread.update({"log": ["u"]})
    state = thread.state
    assert (state.config, state.parent_config, state.values["log"]) == (made, before.config, ["x", "u"])
    assert (state.metadata["source"], state.metadata["step"]) == ("update", 2)


def test_the_body_does_not_run_and_the_edges_do(drive):
    ran = Ran()
    thread = drive.on(chain(ran))
    thread.update({"log": ["as x"]}, as_node="x")
    assert ran == [] and thread.state.next == ("y",)
    assert thread.invoke(None)["log"] == ["as x", "y", "z"]


def test_none_writes_no_keys_and_still_follows_the_edges(drive):
    thread = drive.on(chain())
    thread.update(None, as_node="x")
    assert (thread.state.values.get("log", []), thread.state.next) == ([], ("y",))


def test_an_update_calls_the_router_of_its_node(drive):
    builder = graph_of(State, "S>x", x=says("x"), y=says("y"), z=says("z"))
    builder.add_conditional_edges("x", lambda s: "yz"[s["a"]], ["y", "z"])
    thread = drive.on(builder.compile(InMemorySaver()))
    thread.update({"a": 1}, as_node="x")
    assert thread.state.next == ("z",)


def test_a_command_updates_and_goes(drive):
    thread = drive.on(chain())
    thread.update(Command(update={"log": ["u"]}, goto="z"), as_node="y")
    assert (thread.log, thread.state.next) == (["u"], ("z",))


UNKNOWN = {
    "node": ({"a": 1}, "yy", "node 'yy' does not exist; did you mean 'y'"),
    "hidden": ({"a": 1}, "__nope__", "does not exist; known: 'x', 'y', 'z'"),
    "key": ({"aa": 1}, "x", "unknown key 'aa'; did you mean 'a'"),
    "value": (3, "x", "int: 3"),
    "goto": (Command(goto="w"), "x", "goes to the unknown node 'w'"),
    "END with values": ({"a": 1}, END, "values must be None"),
    "input of nothing": (None, "__input__", "needs a value"),
    "wrong input": (3, "__input__", "dict of state keys"),
}  # fmt: skip


@each_case("values, as_node, text", UNKNOWN.values())
def test_an_update_with_unknown_names_is_refused_and_stores_nothing(drive, values, as_node, text):
    thread = drive.on(chain(interrupt_before=["y"]))
    thread.invoke({})
    before = thread.history()
    with pytest.raises(InvalidUpdateError, match=text):
        thread.update(values, as_node=as_node)
    assert thread.history() == before


def test_a_node_without_writers_cannot_update(drive):
    nodes = {"n": NodeBuilder().subscribe_only("a").do(lambda v: None), "m": NodeBuilder().subscribe_only("a").write_to("o")}
    app = Pregel(nodes=nodes, channels={k: LastValue(int) for k in "ao"}, input_channels="a", output_channels="o",
                 checkpointer=InMemorySaver())  # fmt: skip
    with pytest.raises(InvalidUpdateError, match="'n' has no writers"):
        drive.update_state(app, CONFIG, 1, as_node="n")


# -- who it is from if nobody says ----------------------------------------------------------------------------


def test_without_as_node_it_is_from_the_node_that_ran_last(drive):
    thread = drive.on(chain(interrupt_before=["z"]))
    thread.invoke({})
    thread.update({"log": ["u"]})
    assert thread.state.next == ("z",)


def test_without_as_node_on_a_fresh_thread_it_is_input(drive):
    thread = drive.on(chain())
    thread.update({"log": ["i"]})
    assert thread.state.next == ("x",)
    assert thread.invoke(None)["log"] == ["i", "x", "y", "z"]
    assert rows(thread.history())[0] == ("update", 0, ["i"], ("x",))


def test_the_only_node_needs_no_name(drive):
    thread = drive.on(graph("S>n"))
    thread.update({"log": ["u"]})
    assert (thread.log, thread.state.next) == (["u"], ())


def test_two_that_ran_last_together_are_ambiguous_and_named(drive):
    thread = drive.on(parallel(interrupt_before=["d"]))
    thread.invoke({})
    with pytest.raises(InvalidUpdateError, match="specify as_node: b, c ran last together"):
        thread.update({"a": 1})
    thread.invoke(None)
    thread.update({"a": 1})
    assert thread.state.values["a"] == 1


def test_an_update_to_a_raw_graph_that_never_ran_needs_as_node(drive):
    nodes = {n: NodeBuilder().subscribe_only("a").write_to("o") for n in "nm"}
    app = Pregel(nodes=nodes, channels={k: LastValue(int) for k in "ao"}, input_channels="a", output_channels="o",
                 checkpointer=InMemorySaver())  # fmt: skip
    with pytest.raises(InvalidUpdateError, match="no node has run on this thread yet: specify as_node"):
        drive.update_state(app, CONFIG, 1)


# -- what stays pending ---------------------------------------------------------------------------------------


def test_acting_for_one_of_several_pending_nodes_leaves_the_others(drive):
    """The peer drops c, and the join never completes."""
    ran = Ran()
    thread = drive.on(held(ran))
    thread.invoke({})
    thread.update({"log": ["as b"]}, as_node="b")
    assert thread.state.next == ("c",)
    assert thread.invoke(None)["log"] == ["as b", "c", "d"] and ran == ["c", "d"]


BULKS = {
    "twice for one of several pending nodes": (held, "bb", ("c",)),
    "for all pending nodes": (held, "cb", ("d",)),
    "for nodes of which none is pending": (chain, "xy", ("y", "z")),
    "for a pending node and for others": (partial(chain, interrupt_before=["x"]), "xyz", ("y", "z")),
}


@each_case("make, names, following", BULKS.values())
def test_updates_of_one_step_apply_together_in_the_order_given(drive, make, names, following):
    thread = drive.on(make())
    if make is not chain:
        thread.invoke({})
    thread.call("bulk_update_state", [[StateUpdate({"log": [n]}, n) for n in names]])
    assert (thread.log, thread.state.next) == ([*names], following)


def test_acting_for_a_pending_node_with_lasting_triggers_does_not_run_it_again(drive):
    """The peer runs n1 although it was just acted for, and n2 twice."""
    nodes = {"n1": NodeBuilder().subscribe_only("a").do(lambda v: ["n1"]).write_to("b"),
             "n2": NodeBuilder().subscribe_only("b").do(lambda v: [*v, "n2"]).write_to("o")}  # fmt: skip
    thread = drive.on(Pregel(nodes=nodes, channels={k: LastValue(list) for k in "abo"}, input_channels="a", output_channels="o",
                 checkpointer=InMemorySaver(), interrupt_before_nodes=["n1"]))  # fmt: skip
    thread.invoke([])
    thread.update(["by hand"], as_node="n1")
    assert thread.state.next == ("n2",)
    assert thread.invoke(None) == ["by hand", "n2"]


def test_pending_sends_stay_when_another_task_is_acted_for(drive):
    builder = StateGraph(State).add_node("w", lambda n: {"log": [n]}).add_node("b", says("b"))
    builder.add_conditional_edges(START, lambda s: [Send("w", 1), Send("w", 2), "b"], ["w", "b"])
    thread = drive.on(builder.compile(InMemorySaver(), interrupt_before=["b"]))
    thread.invoke({})
    thread.update({"log": ["as b"]}, as_node="b")
    assert thread.state.next == ("w", "w")
    assert thread.invoke(None)["log"] == ["as b", 1, 2]


def test_what_finished_siblings_wrote_is_kept(drive):
    """D11: get_state showed it."""
    ran = Ran()
    thread = drive.on(parallel(ran, c=asks("c", ran)))
    thread.invoke({})
    assert thread.log == ["b"]
    thread.update({"log": ["C"]}, as_node="c")
    state = thread.state
    assert (state.values["log"], state.next, state.interrupts) == (["b", "C"], ("d",), ())
    ran.clear()
    assert thread.invoke(None)["log"] == ["b", "C", "d"] and ran == ["d"]


def test_writes_of_a_finished_sibling_survive_an_update_as_another_node(drive):
    thread = drive.on(parallel(c=asks("c")))
    thread.invoke({})
    with pytest.warns(GraphWarning, match="the update as 'd' does not lead to 'c', and so closes the questions"):
        thread.update({"a": 1}, as_node="d")
    assert thread.state.values == {"a": 1, "log": ["b"]}


def test_an_update_as_a_finished_sibling_adds_to_what_it_wrote(drive):
    ran = Ran()
    thread = drive.on(parallel(ran, c=asks("c")))
    thread.invoke({})
    thread.update({"log": ["more of b"]}, as_node="b")
    assert thread.state.next == ("c",) and len(thread.state.interrupts) == 1
    assert thread.resume("yes")["log"] == ["b", "more of b", ("c", "yes"), "d"]
    assert ran == ["b", "d"]


def test_the_update_of_a_command_that_waits_is_kept(drive):
    thread = drive.on(parallel(c=asks("c")))
    thread.invoke({})
    thread.invoke(Command(update={"a": 5}))
    thread.update({"log": ["C"]}, as_node="c")
    assert thread.state.values == {"a": 5, "log": ["b", "C"]}


def test_an_update_as_the_paused_node_becomes_its_result(drive):
    thread = drive.on(graph("S>n>z", n=asks("n")))
    thread.invoke({})
    then = thread.state.config
    thread.update({"log": ["skipped"]}, as_node="n")
    [old] = thread.get_state(then).tasks
    assert (old.result, old.interrupts[0].value) == ({"log": ["skipped"]}, "n?")
    assert thread.invoke(None)["log"] == ["skipped", "z"]


def test_an_update_as_a_failed_node_lets_the_run_resume(drive):
    thread = drive.on(graph("S>n>z", n=fails("n", 9)))
    with pytest.raises(ValueError):
        thread.invoke({})
    thread.update({"log": ["by hand"]}, as_node="n")
    assert thread.invoke(None)["log"] == ["by hand", "z"]


def test_an_update_that_cannot_be_applied_leaves_everything_as_it_was(drive):
    thread = drive.on(held())
    thread.invoke({})
    before = thread.history()
    with pytest.raises(InvalidUpdateError, match="'a'"):
        thread.call("bulk_update_state", [[StateUpdate({"a": 1}, "b"), StateUpdate({"a": 2}, "c")]])
    assert thread.history() == before


def test_a_task_id_keeps_the_update_under_that_id(drive):
    thread = drive.on(graph("S>n", n=asks("n")))
    thread.invoke({})
    then = thread.state
    thread.update({"log": ["u"]}, as_node="n", task_id=then.tasks[0].id)
    assert thread.get_state(then.config).tasks[0].result == {"log": ["u"]}


def test_metadata_of_the_config_goes_into_the_checkpoint(drive):
    app = chain()
    drive.update_state(app, {**CONFIG, "metadata": {"who": "me"}}, {"a": 1}, as_node="x")
    assert drive.get_state(app, CONFIG).metadata["who"] == "me"


# -- END, __input__, __copy__ ---------------------------------------------------------------------------------


def test_end_drops_what_is_pending_and_keeps_what_is_done(drive):
    thread = drive.on(parallel(c=asks("c")))
    thread.invoke({})
    thread.invoke(Command(update={"a": 5}))
    thread.update(None, as_node=END)
    state = thread.state
    assert (state.values, state.next, state.interrupts) == ({"a": 5, "log": ["b"]}, (), ())
    assert (state.metadata["source"], state.metadata["step"]) == ("update", 1)


def test_end_drops_what_finished_siblings_would_have_started(drive):
    """The peer leaves their successors pending."""
    thread = drive.on(graph("S>p>r S>q", q=asks("q")))
    thread.invoke({})
    thread.update(None, as_node=END)
    assert (thread.log, thread.state.next) == (["p"], ())


def test_end_on_a_fresh_thread_makes_an_empty_checkpoint(drive):
    thread = drive.on(chain())
    thread.update(None, as_node=END)
    assert rows(thread.history()) == [("update", 0, [], ())]


def test_after_end_the_thread_takes_new_input(drive):
    thread = drive.on(graph("S>n", n=asks("n")))
    thread.invoke({})
    thread.update(None, as_node=END)
    with pytest.raises(RuntimeError, match="no open question"):
        thread.resume("late")
    assert asked(thread.invoke({})) == ["n?"]


def test_an_update_as_input_is_input(drive):
    thread = drive.on(chain())
    thread.update({"log": ["i"]}, as_node="__input__")
    assert rows(thread.history()) == [("input", -1, [], ("__start__",))]
    assert thread.invoke(None)["log"] == ["i", "x", "y", "z"]


def test_an_update_as_input_drops_pending_tasks_as_real_input_does(drive):
    """The peer leaves old tasks beside the new ones."""
    thread = drive.on(parallel(c=asks("c")))
    thread.invoke({})
    thread.update({"log": ["i"]}, as_node="__input__")
    assert thread.state.next == ("__start__",)


def test_a_copy_is_a_sibling(drive):
    thread = drive.on(chain(interrupt_before=["y"]))
    thread.invoke({})
    old = thread.state
    thread.update(None, as_node="__copy__")
    new = thread.state
    assert (new.values, new.next, new.parent_config) == (old.values, old.next, old.parent_config)
    assert (new.metadata["source"], new.metadata["step"]) == ("fork", 2) and new.config != old.config
    assert thread.invoke(None)["log"] == ["x", "y", "z"]


def test_a_copy_of_an_old_checkpoint_and_its_first_step_in_one_go(drive):
    thread = drive.on(chain())
    thread.invoke({})
    then = at(thread, 1)
    drive.update_state(thread.app, then, [({"log": ["as y"]}, "y")], as_node="__copy__")
    assert rows(thread.history()[:2]) == [("fork", 2, ["x"], ("y",)), ("update", 3, ["x", "as y"], ("z",))]
    fork = thread.history()[1]
    assert fork.tasks[0].result == {"log": ["as y"]}


def test_a_copy_of_a_paused_head_interrupts_again_and_keeps_finished_tasks(drive):
    """D11."""
    ran = Ran()
    thread = drive.on(parallel(ran, c=asks("c", ran)))
    first = thread.invoke({})
    thread.update(None, as_node="__copy__")
    state = thread.state
    assert (state.values["log"], state.next, state.interrupts) == (["b"], ("c",), ())
    ran.clear()
    again = thread.invoke(None)
    assert asked(again) == ["c?"] and again["__interrupt__"] != first["__interrupt__"] and ran == ["c"]
    assert thread.resume("C")["log"] == ["b", ("c", "C"), "d"]


def test_a_copy_with_a_step_keeps_what_is_done(drive):
    thread = drive.on(parallel(c=asks("c")))
    thread.invoke({})
    thread.update([({"log": ["C"]}, "c")], as_node="__copy__")
    assert (thread.log, thread.state.next) == (["b", "C"], ("d",))


def test_there_is_nothing_to_copy_on_a_fresh_thread(drive):
    with pytest.raises(InvalidUpdateError, match="no checkpoint to copy"):
        drive.update_state(chain(), CONFIG, None, as_node="__copy__")


# -- bulk -----------------------------------------------------------------------------------------------------


def test_each_list_of_a_bulk_update_makes_a_checkpoint(drive):
    thread = drive.on(chain())
    steps = [[StateUpdate({"log": ["i"]}, "__input__")], [StateUpdate({"log": ["X"]}, "x")], [({"log": ["Y"]}, "y")]]
    made = thread.call("bulk_update_state", steps)
    assert [(s, n) for s, n, _, _ in rows(thread.history())] == [("input", -1), ("update", 0), ("update", 1)]
    assert thread.state.config == made
    assert thread.invoke(None)["log"][-1] == "z"


def test_a_bulk_update_after_clearing_starts_clean(drive):
    thread = drive.on(held())
    thread.invoke({})
    thread.call("bulk_update_state", [[StateUpdate(None, END)], [StateUpdate({"log": ["i"]}, "__input__")]])
    assert thread.state.next == ("__start__",)


BULK = {
    "nothing": ([], ValueError, "supersteps must be a list"),
    "an empty step": ([[]], ValueError, "superstep 0 of the bulk update has no updates"),
    "no name among several": ([[({"a": 1}, "x"), ({"a": 2},)]], InvalidUpdateError, "as_node is required"),
    "END beside others": ([[(None, END), ({"a": 2}, "x")]], InvalidUpdateError, "must be alone"),
    "copy beside others": ([[({"a": 2}, "x"), (None, "__copy__")]], InvalidUpdateError, "must be alone"),
    "input beside others": ([[({"a": 2}, "__input__"), ({"a": 3}, "x")]], InvalidUpdateError, "must be alone"),
}


@each_case("steps, error, text", BULK.values())
def test_a_bulk_update_of_the_wrong_shape_is_refused(drive, steps, error, text):
    thread = drive.on(chain())
    with pytest.raises(error, match=text):
        thread.call("bulk_update_state", steps)
    assert thread.history() == []


def test_a_bulk_update_keeps_on_a_new_thread_too_what_its_first_step_has_led_to(drive):
    ran = []
    thread = drive.on(graph("S>a>b>d a>c", **{name: says(name, ran) for name in "abcd"}))
    first, second = [StateUpdate({"log": ["A"]}, "a")], [StateUpdate({"log": ["B"]}, "b")]
    thread.call("bulk_update_state", [first, second])
    assert thread.state.next == ("c", "d")
    assert thread.invoke(None)["log"] == ["A", "B", "c", "d"] and sorted(ran) == ["c", "d"]


def test_a_bulk_update_that_fails_in_its_second_step_stores_nothing(drive):
    """Nothing is half applied."""
    thread = drive.on(chain())
    with pytest.raises(InvalidUpdateError, match="does not exist"):
        thread.call("bulk_update_state", [[({"a": 1}, "x")], [({"a": 2}, "nope")]])
    assert thread.history() == []


# -- the past -------------------------------------------------------------------------------------------------


def test_an_update_of_an_old_checkpoint_grows_a_branch_and_leaves_that_as_it_was(drive):
    thread = drive.on(parallel(c=asks("c")))
    paused = thread.invoke({})
    thread.invoke(answer(c=1)(paused))
    then, before = at(thread, 0), thread.history()
    drive.update_state(thread.app, then, {"log": ["B"]}, as_node="b")
    after = thread.history()
    assert seen(after[1:]) == seen(before)
    assert after[0].parent_config == then and rows(after[:1]) == [("update", 1, ["B"], ("c",))]
