"""`update_state`: which node an update is from, what stays pending, END, __input__, __copy__, bulk updates, nested
threads.
"""

import pytest
from kit.drive import each_case
from kit.graphs import graph_of
from kit.pausing_graphs import (
    CFG,
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
    builder = StateGraph(State)
    for name, body in {"b": b or says("b", ran), "c": c or says("c", ran), "d": says("d", ran)}.items():
        builder.add_node(name, body)
    builder.add_edge(START, "b").add_edge(START, "c").add_edge(["b", "c"], "d")
    return builder.compile(**{"checkpointer": InMemorySaver(), **compiled})


def held(ran=None):
    return parallel(ran, interrupt_before=["b"])


def chain(ran=None, **compiled):
    return graph({n: says(n, ran) for n in "xyz"}, (START, "x"), ("x", "y"), ("y", "z"), **compiled)


# -- as a node ------------------------------------------------------------------------------------------------


def test_an_update_makes_a_checkpoint_and_returns_its_config(drive):
    app = chain(interrupt_before=["y"])
    drive.invoke(app, {}, CFG)
    before = drive.get_state(app, CFG)
    made = drive.update_state(app, CFG, {"log": ["u"]})
    state = drive.get_state(app, CFG)
    assert (state.config, state.parent_config, state.values["log"]) == (made, before.config, ["x", "u"])
    assert (state.metadata["source"], state.metadata["step"]) == ("update", 2)


def test_the_body_does_not_run_and_the_edges_do(drive):
    ran = Ran()
    app = chain(ran)
    drive.update_state(app, CFG, {"log": ["as x"]}, as_node="x")
    assert ran == [] and drive.get_state(app, CFG).next == ("y",)
    assert drive.invoke(app, None, CFG)["log"] == ["as x", "y", "z"]


def test_none_writes_no_keys_and_still_follows_the_edges(drive):
    app = chain()
    drive.update_state(app, CFG, None, as_node="x")
    assert (drive.get_state(app, CFG).values.get("log", []), drive.get_state(app, CFG).next) == ([], ("y",))


def test_an_update_calls_the_router_of_its_node(drive):
    builder = graph_of(State, "S>x", x=says("x"), y=says("y"), z=says("z"))
    builder.add_conditional_edges("x", lambda s: "yz"[s["a"]], ["y", "z"])
    app = builder.compile(checkpointer=InMemorySaver())
    drive.update_state(app, CFG, {"a": 1}, as_node="x")
    assert drive.get_state(app, CFG).next == ("z",)


def test_a_command_updates_and_goes(drive):
    app = chain()
    drive.update_state(app, CFG, Command(update={"log": ["u"]}, goto="z"), as_node="y")
    assert (drive.get_state(app, CFG).values["log"], drive.get_state(app, CFG).next) == (["u"], ("z",))


UNKNOWN = {
    "node": ({"a": 1}, "yy", "node 'yy' does not exist; did you mean 'y'"),
    "hidden": ({"a": 1}, "__nope__", "does not exist; known: 'x', 'y', 'z'"),
    "key": ({"aa": 1}, "x", "unknown key 'aa'; did you mean 'a'"),
    "value": (3, "x", "int: 3"),
    "goto": (Command(goto="w"), "x", "goes to the unknown node 'w'"),
    "END with values": ({"a": 1}, END, "values must be None"),
    "input": ({"b": 1}, "__input__", ""),
    "input of nothing": (None, "__input__", "needs a value"),
    "wrong input": (3, "__input__", "dict of state keys"),
}  # fmt: skip


@pytest.mark.parametrize(("values", "as_node", "text"), [v for k, v in UNKNOWN.items() if k != "input"],
                         ids=[k for k in UNKNOWN if k != "input"])  # fmt: skip
def test_an_update_with_unknown_names_is_refused_and_stores_nothing(drive, values, as_node, text):
    app = chain(interrupt_before=["y"])
    drive.invoke(app, {}, CFG)
    before = drive.history(app, CFG)
    with pytest.raises(InvalidUpdateError, match=text):
        drive.update_state(app, CFG, values, as_node=as_node)
    assert drive.history(app, CFG) == before


def test_a_node_without_writers_cannot_update(drive):
    nodes = {"n": NodeBuilder().subscribe_only("a").do(lambda v: None), "m": NodeBuilder().subscribe_only("a").write_to("o")}
    app = Pregel(nodes=nodes, channels={k: LastValue(int) for k in "ao"}, input_channels="a", output_channels="o",
                 checkpointer=InMemorySaver())  # fmt: skip
    with pytest.raises(InvalidUpdateError, match="'n' has no writers"):
        drive.update_state(app, CFG, 1, as_node="n")


# -- who it is from if nobody says ----------------------------------------------------------------------------


def test_without_as_node_it_is_from_the_node_that_ran_last(drive):
    app = chain(interrupt_before=["z"])
    drive.invoke(app, {}, CFG)
    drive.update_state(app, CFG, {"log": ["u"]})
    assert drive.get_state(app, CFG).next == ("z",)


def test_without_as_node_on_a_fresh_thread_it_is_input(drive):
    app = chain()
    drive.update_state(app, CFG, {"log": ["i"]})
    assert drive.get_state(app, CFG).next == ("x",)
    assert drive.invoke(app, None, CFG)["log"] == ["i", "x", "y", "z"]
    assert rows(drive.history(app, CFG))[0] == ("update", 0, ["i"], ("x",))


def test_the_only_node_needs_no_name(drive):
    app = graph({"n": says("n")}, (START, "n"))
    drive.update_state(app, CFG, {"log": ["u"]})
    assert (drive.get_state(app, CFG).values["log"], drive.get_state(app, CFG).next) == (["u"], ())


def test_two_that_ran_last_together_are_ambiguous_and_named(drive):
    app = parallel(interrupt_before=["d"])
    drive.invoke(app, {}, CFG)
    with pytest.raises(InvalidUpdateError, match="specify as_node: b, c ran last together"):
        drive.update_state(app, CFG, {"a": 1})
    drive.invoke(app, None, CFG)
    drive.update_state(app, CFG, {"a": 1})
    assert drive.get_state(app, CFG).values["a"] == 1


def test_an_update_to_a_raw_graph_that_never_ran_needs_as_node(drive):
    nodes = {n: NodeBuilder().subscribe_only("a").write_to("o") for n in "nm"}
    app = Pregel(nodes=nodes, channels={k: LastValue(int) for k in "ao"}, input_channels="a", output_channels="o",
                 checkpointer=InMemorySaver())  # fmt: skip
    with pytest.raises(InvalidUpdateError, match="no node has run on this thread yet: specify as_node"):
        drive.update_state(app, CFG, 1)


# -- what stays pending ---------------------------------------------------------------------------------------


def test_acting_for_one_of_several_pending_nodes_leaves_the_others(drive):
    """The peer drops c, and the join never completes."""
    ran = Ran()
    app = held(ran)
    drive.invoke(app, {}, CFG)
    drive.update_state(app, CFG, {"log": ["as b"]}, as_node="b")
    assert drive.get_state(app, CFG).next == ("c",)
    assert drive.invoke(app, None, CFG)["log"] == ["as b", "c", "d"] and ran == ["c", "d"]


def test_acting_twice_for_one_of_several_pending_nodes_leaves_the_others_too(drive):
    app = held()
    drive.invoke(app, {}, CFG)
    drive.call(app, "bulk_update_state", CFG, [[StateUpdate({"log": [n]}, "b") for n in (1, 2)]])
    assert (drive.get_state(app, CFG).values["log"], drive.get_state(app, CFG).next) == ([1, 2], ("c",))


def test_acting_for_all_pending_nodes_at_once_moves_on(drive):
    app = held()
    drive.invoke(app, {}, CFG)
    both = [StateUpdate({"log": [n]}, n) for n in ("c", "b")]
    drive.call(app, "bulk_update_state", CFG, [both])
    assert (drive.get_state(app, CFG).values["log"], drive.get_state(app, CFG).next) == (["c", "b"], ("d",))


def test_acting_for_a_pending_node_with_lasting_triggers_does_not_run_it_again(drive):
    """The peer runs n1 although it was just acted for, and n2 twice."""
    nodes = {"n1": NodeBuilder().subscribe_only("a").do(lambda v: ["n1"]).write_to("b"),
             "n2": NodeBuilder().subscribe_only("b").do(lambda v: [*v, "n2"]).write_to("o")}  # fmt: skip
    app = Pregel(nodes=nodes, channels={k: LastValue(list) for k in "abo"}, input_channels="a", output_channels="o",
                 checkpointer=InMemorySaver(), interrupt_before_nodes=["n1"])  # fmt: skip
    drive.invoke(app, [], CFG)
    drive.update_state(app, CFG, ["by hand"], as_node="n1")
    assert drive.get_state(app, CFG).next == ("n2",)
    assert drive.invoke(app, None, CFG) == ["by hand", "n2"]


def test_pending_sends_stay_when_another_task_is_acted_for(drive):
    builder = StateGraph(State).add_node("w", lambda n: {"log": [n]}).add_node("b", says("b"))
    builder.add_conditional_edges(START, lambda s: [Send("w", 1), Send("w", 2), "b"], ["w", "b"])
    app = builder.compile(checkpointer=InMemorySaver(), interrupt_before=["b"])
    drive.invoke(app, {}, CFG)
    drive.update_state(app, CFG, {"log": ["as b"]}, as_node="b")
    assert drive.get_state(app, CFG).next == ("w", "w")
    assert drive.invoke(app, None, CFG)["log"] == ["as b", 1, 2]


def test_what_finished_siblings_wrote_is_kept(drive):
    """D11: get_state showed it."""
    ran = Ran()
    app = parallel(ran, c=asks("c", ran))
    drive.invoke(app, {}, CFG)
    assert drive.get_state(app, CFG).values["log"] == ["b"]
    drive.update_state(app, CFG, {"log": ["C"]}, as_node="c")
    state = drive.get_state(app, CFG)
    assert (state.values["log"], state.next, state.interrupts) == (["b", "C"], ("d",), ())
    ran.clear()
    assert drive.invoke(app, None, CFG)["log"] == ["b", "C", "d"] and ran == ["d"]


def test_writes_of_a_finished_sibling_survive_an_update_as_another_node(drive):
    app = parallel(c=asks("c"))
    drive.invoke(app, {}, CFG)
    with pytest.warns(GraphWarning, match="the update as 'd' does not lead to 'c', and so closes the questions"):
        drive.update_state(app, CFG, {"a": 1}, as_node="d")
    assert drive.get_state(app, CFG).values == {"a": 1, "log": ["b"]}


def test_an_update_as_a_finished_sibling_adds_to_what_it_wrote(drive):
    ran = Ran()
    app = parallel(ran, c=asks("c"))
    drive.invoke(app, {}, CFG)
    drive.update_state(app, CFG, {"log": ["more of b"]}, as_node="b")
    assert drive.get_state(app, CFG).next == ("c",) and len(drive.get_state(app, CFG).interrupts) == 1
    assert drive.invoke(app, Command(resume="yes"), CFG)["log"] == ["b", "more of b", ("c", "yes"), "d"]
    assert ran == ["b", "d"]


def test_the_update_of_a_command_that_waits_is_kept(drive):
    app = parallel(c=asks("c"))
    drive.invoke(app, {}, CFG)
    drive.invoke(app, Command(update={"a": 5}), CFG)
    drive.update_state(app, CFG, {"log": ["C"]}, as_node="c")
    assert drive.get_state(app, CFG).values == {"a": 5, "log": ["b", "C"]}


def test_an_update_as_the_paused_node_becomes_its_result(drive):
    app = graph({"n": asks("n"), "z": says("z")}, (START, "n"), ("n", "z"))
    drive.invoke(app, {}, CFG)
    then = drive.get_state(app, CFG).config
    drive.update_state(app, CFG, {"log": ["skipped"]}, as_node="n")
    [old] = drive.get_state(app, then).tasks
    assert (old.result, old.interrupts[0].value) == ({"log": ["skipped"]}, "n?")
    assert drive.invoke(app, None, CFG)["log"] == ["skipped", "z"]


def test_an_update_as_a_failed_node_lets_the_run_resume(drive):
    app = graph({"n": fails("n", 9), "z": says("z")}, (START, "n"), ("n", "z"))
    with pytest.raises(ValueError):
        drive.invoke(app, {}, CFG)
    drive.update_state(app, CFG, {"log": ["by hand"]}, as_node="n")
    assert drive.invoke(app, None, CFG)["log"] == ["by hand", "z"]


def test_an_update_that_cannot_be_applied_leaves_everything_as_it_was(drive):
    app = held()
    drive.invoke(app, {}, CFG)
    before = drive.history(app, CFG)
    with pytest.raises(InvalidUpdateError, match="'a'"):
        drive.call(app, "bulk_update_state", CFG, [[StateUpdate({"a": 1}, "b"), StateUpdate({"a": 2}, "c")]])
    assert drive.history(app, CFG) == before


def test_a_task_id_keeps_the_update_under_that_id(drive):
    app = graph({"n": asks("n")}, (START, "n"))
    drive.invoke(app, {}, CFG)
    then = drive.get_state(app, CFG)
    drive.update_state(app, CFG, {"log": ["u"]}, as_node="n", task_id=then.tasks[0].id)
    assert drive.get_state(app, then.config).tasks[0].result == {"log": ["u"]}


def test_metadata_of_the_config_goes_into_the_checkpoint(drive):
    app = chain()
    drive.update_state(app, {**CFG, "metadata": {"who": "me"}}, {"a": 1}, as_node="x")
    assert drive.get_state(app, CFG).metadata["who"] == "me"


# -- END, __input__, __copy__ ---------------------------------------------------------------------------------


def test_end_drops_what_is_pending_and_keeps_what_is_done(drive):
    app = parallel(c=asks("c"))
    drive.invoke(app, {}, CFG)
    drive.invoke(app, Command(update={"a": 5}), CFG)
    drive.update_state(app, CFG, None, as_node=END)
    state = drive.get_state(app, CFG)
    assert (state.values, state.next, state.interrupts) == ({"a": 5, "log": ["b"]}, (), ())
    assert (state.metadata["source"], state.metadata["step"]) == ("update", 1)


def test_end_drops_what_finished_siblings_would_have_started(drive):
    """The peer leaves their successors pending."""
    app = graph({"p": says("p"), "q": asks("q"), "r": says("r")}, (START, "p"), (START, "q"), ("p", "r"))
    drive.invoke(app, {}, CFG)
    drive.update_state(app, CFG, None, as_node=END)
    assert (drive.get_state(app, CFG).values["log"], drive.get_state(app, CFG).next) == (["p"], ())


def test_end_on_a_fresh_thread_makes_an_empty_checkpoint(drive):
    app = chain()
    drive.update_state(app, CFG, None, as_node=END)
    assert rows(drive.history(app, CFG)) == [("update", 0, [], ())]


def test_after_end_the_thread_takes_new_input(drive):
    app = graph({"n": asks("n")}, (START, "n"))
    drive.invoke(app, {}, CFG)
    drive.update_state(app, CFG, None, as_node=END)
    with pytest.raises(RuntimeError, match="no open question"):
        drive.invoke(app, Command(resume="late"), CFG)
    assert asked(drive.invoke(app, {}, CFG)) == ["n?"]


def test_an_update_as_input_is_input(drive):
    app = chain()
    drive.update_state(app, CFG, {"log": ["i"]}, as_node="__input__")
    assert rows(drive.history(app, CFG)) == [("input", -1, [], ("__start__",))]
    assert drive.invoke(app, None, CFG)["log"] == ["i", "x", "y", "z"]


def test_an_update_as_input_drops_pending_tasks_as_real_input_does(drive):
    """The peer leaves old tasks beside the new ones."""
    app = parallel(c=asks("c"))
    drive.invoke(app, {}, CFG)
    drive.update_state(app, CFG, {"log": ["i"]}, as_node="__input__")
    assert drive.get_state(app, CFG).next == ("__start__",)


def test_a_copy_is_a_sibling(drive):
    app = chain(interrupt_before=["y"])
    drive.invoke(app, {}, CFG)
    old = drive.get_state(app, CFG)
    drive.update_state(app, CFG, None, as_node="__copy__")
    new = drive.get_state(app, CFG)
    assert (new.values, new.next, new.parent_config) == (old.values, old.next, old.parent_config)
    assert (new.metadata["source"], new.metadata["step"]) == ("fork", 2) and new.config != old.config
    assert drive.invoke(app, None, CFG)["log"] == ["x", "y", "z"]


def test_a_copy_of_an_old_checkpoint_and_its_first_step_in_one_go(drive):
    app = chain()
    drive.invoke(app, {}, CFG)
    then = at(drive, app, 1)
    drive.update_state(app, then, [({"log": ["as y"]}, "y")], as_node="__copy__")
    assert rows(drive.history(app, CFG)[:2]) == [("fork", 2, ["x"], ("y",)), ("update", 3, ["x", "as y"], ("z",))]
    fork = drive.history(app, CFG)[1]
    assert fork.tasks[0].result == {"log": ["as y"]}


def test_a_copy_of_a_paused_head_interrupts_again_and_keeps_finished_tasks(drive):
    """D11."""
    ran = Ran()
    app = parallel(ran, c=asks("c", ran))
    first = drive.invoke(app, {}, CFG)
    drive.update_state(app, CFG, None, as_node="__copy__")
    state = drive.get_state(app, CFG)
    assert (state.values["log"], state.next, state.interrupts) == (["b"], ("c",), ())
    ran.clear()
    again = drive.invoke(app, None, CFG)
    assert asked(again) == ["c?"] and again["__interrupt__"] != first["__interrupt__"] and ran == ["c"]
    assert drive.invoke(app, Command(resume="C"), CFG)["log"] == ["b", ("c", "C"), "d"]


def test_a_copy_with_a_step_keeps_what_is_done(drive):
    app = parallel(c=asks("c"))
    drive.invoke(app, {}, CFG)
    drive.update_state(app, CFG, [({"log": ["C"]}, "c")], as_node="__copy__")
    assert (drive.get_state(app, CFG).values["log"], drive.get_state(app, CFG).next) == (["b", "C"], ("d",))


def test_there_is_nothing_to_copy_on_a_fresh_thread(drive):
    with pytest.raises(InvalidUpdateError, match="no checkpoint to copy"):
        drive.update_state(chain(), CFG, None, as_node="__copy__")


# -- bulk -----------------------------------------------------------------------------------------------------


def test_each_list_of_a_bulk_update_makes_a_checkpoint(drive):
    app = chain()
    steps = [[StateUpdate({"log": ["i"]}, "__input__")], [StateUpdate({"log": ["X"]}, "x")], [({"log": ["Y"]}, "y")]]
    made = drive.call(app, "bulk_update_state", CFG, steps)
    assert [(s, n) for s, n, _, _ in rows(drive.history(app, CFG))] == [("input", -1), ("update", 0), ("update", 1)]
    assert drive.get_state(app, CFG).config == made
    assert drive.invoke(app, None, CFG)["log"][-1] == "z"


def test_updates_of_one_step_apply_together(drive):
    app = chain()
    drive.call(app, "bulk_update_state", CFG, [[StateUpdate({"log": [n]}, n) for n in "xy"]])
    assert (drive.get_state(app, CFG).values["log"], drive.get_state(app, CFG).next) == (["x", "y"], ("y", "z"))


def test_updates_of_one_step_apply_in_the_order_given_pending_nodes_or_not(drive):
    app = chain(interrupt_before=["x"])
    drive.invoke(app, {}, CFG)
    drive.call(app, "bulk_update_state", CFG, [[StateUpdate({"log": [n]}, n) for n in "xyz"]])
    assert drive.get_state(app, CFG).values["log"] == ["x", "y", "z"]


def test_a_bulk_update_after_clearing_starts_clean(drive):
    app = held()
    drive.invoke(app, {}, CFG)
    drive.call(app, "bulk_update_state", CFG, [[StateUpdate(None, END)], [StateUpdate({"log": ["i"]}, "__input__")]])
    assert drive.get_state(app, CFG).next == ("__start__",)


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
    app = chain()
    with pytest.raises(error, match=text):
        drive.call(app, "bulk_update_state", CFG, steps)
    assert drive.history(app, CFG) == []


def test_a_bulk_update_keeps_on_a_new_thread_too_what_its_first_step_has_led_to(drive):
    ran = []
    builder = StateGraph(State)
    for name in "abcd":
        builder.add_node(name, says(name, ran))
    for name in "bc":
        builder.add_edge("a", name)
    builder.add_edge(START, "a").add_edge("b", "d")
    app = builder.compile(checkpointer=InMemorySaver())
    first, second = [StateUpdate({"log": ["A"]}, "a")], [StateUpdate({"log": ["B"]}, "b")]
    drive.call(app, "bulk_update_state", CFG, [first, second])
    assert drive.get_state(app, CFG).next == ("c", "d")
    assert drive.invoke(app, None, CFG)["log"] == ["A", "B", "c", "d"] and sorted(ran) == ["c", "d"]


def test_a_bulk_update_that_fails_in_its_second_step_stores_nothing(drive):
    """Nothing is half applied."""
    app = chain()
    with pytest.raises(InvalidUpdateError, match="does not exist"):
        drive.call(app, "bulk_update_state", CFG, [[({"a": 1}, "x")], [({"a": 2}, "nope")]])
    assert drive.history(app, CFG) == []


# -- the past -------------------------------------------------------------------------------------------------


def test_an_update_of_an_old_checkpoint_grows_a_branch_and_leaves_that_as_it_was(drive):
    app = parallel(c=asks("c"))
    paused = drive.invoke(app, {}, CFG)
    drive.invoke(app, answer(c=1)(paused), CFG)
    then, before = at(drive, app, 0), drive.history(app, CFG)
    drive.update_state(app, then, {"log": ["B"]}, as_node="b")
    after = drive.history(app, CFG)
    assert seen(after[1:]) == seen(before)
    assert after[0].parent_config == then and rows(after[:1]) == [("update", 1, ["B"], ("c",))]


def test_a_state_method_without_a_checkpointer_is_an_error(drive):
    with pytest.raises(ValueError, match="no checkpointer set"):
        drive.update_state(chain(checkpointer=None), CFG, {"a": 1})


def test_an_update_of_an_unknown_checkpoint_is_an_error(drive):
    app = chain()
    drive.invoke(app, {}, CFG)
    with pytest.raises(ValueError, match="has no checkpoint 'nope'"):
        drive.update_state(app, {"configurable": {"thread_id": "1", "checkpoint_id": "nope"}}, {"a": 1}, as_node="x")
