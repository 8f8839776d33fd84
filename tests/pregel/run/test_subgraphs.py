"""Nested graphs: as nodes and inside nodes, which keys they share, where they keep their state, how they pause, and
how to read their state.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from threading import Event
from typing import Annotated, Any

import pytest
from kit.drive import each_schedule
from kit.graphs import CONFIG, EMPTY, chain_of, thread_config
from kit.pausing_graphs import Ran, State, asked, asks, at, fails, graph, ids, says
from typing_extensions import TypedDict

from stategraph import (
    START,
    Command,
    GraphWarning,
    InMemorySaver,
    InvalidUpdateError,
    RetryPolicy,
    Send,
    StateGraph,
    entrypoint,
    interrupt,
    task,
)


def inner(ran=None, checkpointer=None, **more):
    """s, then i asks."""
    bodies = {"s": says("s", ran), "i": asks("i", ran), **more}
    return graph("S>s>i", **bodies, checkpointer=checkpointer)


def plain(ran=None, checkpointer=None):
    return graph("S>s", s=says("s", ran), checkpointer=checkpointer)


def calls(child, ran=None, times=1):
    """A node that runs the child so many times, in both worlds, and logs what it logged."""

    def node(state):
        if ran is not None:
            ran.append("holder")
        return {"log": [child.invoke({})["log"] for _ in range(times)]}

    return node


def namespaces(chunks):
    """The inner namespaces that a stream shows, in order, without task ids."""
    shown = [":".join(level.split(":")[0] for level in ns) for ns, _ in chunks if ns]
    return list(dict.fromkeys(shown))


# -- what goes in and comes out -------------------------------------------------------------------------------


def test_a_graph_as_a_node_takes_the_shared_keys_and_writes_its_whole_output(drive):
    """A reducer of the parent folds what the child returns, all of it."""
    app = graph("S>before>sub", sub=plain())
    assert drive.invoke(app, {"log": ["in"]}, CONFIG)["log"] == ["in", "before", "in", "before", "s"]


@pytest.mark.filterwarnings("ignore:.* shares no key with the graph around it:stategraph.GraphWarning")
def test_a_graph_that_shares_no_key_sees_nothing_and_changes_nothing(drive):
    class Other(TypedDict, total=False):
        b: list[Any]

    seen = []
    child = chain_of(Other, s=lambda state: seen.append(dict(state)) or {"b": [1]}).compile()
    app = graph("S>sub>z", sub=child)
    assert drive.invoke(app, {"a": 1}, CONFIG) == {"a": 1, "log": ["z"]} and seen == [{}]


def test_a_function_may_change_what_goes_in_and_out(drive):
    class Other(TypedDict):
        n: Annotated[int, operator.add]

    child = chain_of(Other, s=lambda s: {"n": 5}).compile()
    app = graph("S>sub", sub=lambda state: {"a": child.invoke({"n": state["a"]})["n"]})
    assert drive.invoke(app, {"a": 2}, CONFIG)["a"] == 7


# -- namespaces -----------------------------------------------------------------------------------------------


def test_different_graphs_in_one_task_share_the_numbers(drive):
    one, two = plain(), graph("S>t", checkpointer=None)
    app = graph("S>n", n=lambda s: {"log": [one.invoke({})["log"], two.invoke({})["log"]]})
    assert namespaces(drive.stream(app, {}, CONFIG, subgraphs=True)) == ["n", "n:1"]


def test_graphs_three_deep_join_their_namespaces(drive):
    saver = InMemorySaver()
    middle = graph("S>m", m=plain(), checkpointer=None)
    app = graph("S>top", top=middle, checkpointer=saver)
    assert namespaces(drive.stream(app, {}, CONFIG, subgraphs=True)) == ["top:m", "top"]
    known = {found.config["configurable"]["checkpoint_ns"] for found in saver.list(CONFIG)}
    deepest = max(known, key=len)
    assert {len(ns.split("|")) if ns else 0 for ns in known} == {0, 1, 2}
    assert deepest.split("|")[0] in known and all(":" in level for level in deepest.split("|"))


def test_each_loop_iteration_and_each_send_starts_the_graph_from_scratch(drive):
    builder = StateGraph(State).add_node("w", lambda n: {"log": [(n, child.invoke({})["log"])]})
    child = plain()
    builder.add_conditional_edges(START, lambda s: [Send("w", n) for n in range(3)], ["w"])
    app = builder.compile(InMemorySaver())
    assert drive.invoke(app, {}, CONFIG)["log"] == [(n, ["s"]) for n in range(3)]


def test_parents_are_kept_with_every_nested_checkpoint(drive):
    saver = InMemorySaver()
    thread = drive.on(graph("S>sub", sub=inner(), checkpointer=saver))
    thread.invoke({})
    root = thread.state
    nested = [f for f in saver.list(CONFIG) if f.config["configurable"]["checkpoint_ns"]]
    assert [f.metadata["step"] for f in nested] == [1, 0, -1]
    assert {f.metadata["parents"][""] for f in nested} == {root.config["configurable"]["checkpoint_id"]}


# -- what a graph keeps ---------------------------------------------------------------------------------------


def test_a_graph_keeps_nothing_between_runs_of_its_parent(drive):
    thread = drive.on(graph("S>n", n=calls(plain())))
    thread.invoke({})
    assert thread.invoke({})["log"] == [["s"], ["s"]]


def test_a_graph_with_memory_continues_in_the_next_run(drive):
    """checkpointer=True: the namespace has no ids, and steps count on."""
    app = graph("S>n", n=calls(plain(checkpointer=True)))
    for turn in range(1, 4):
        assert drive.invoke(app, {}, CONFIG)["log"][-1] == ["s"] * turn
    own = thread_config(checkpoint_ns="n")
    assert [s.metadata["step"] for s in drive.history(app, own)] == [7, 6, 5, 4, 3, 2, 1, 0, -1]


def test_two_memories_of_one_node_are_numbered(drive):
    one, two = plain(checkpointer=True), graph("S>t", checkpointer=True)
    thread = drive.on(graph("S>n", n=lambda s: {"log": [one.invoke({})["log"], two.invoke({})["log"]]}))
    thread.invoke({})
    assert thread.invoke({})["log"][2:] == [["s", "s"], ["t", "t"]]
    for ns, log in (("n", ["s", "s"]), ("n|1", ["t", "t"])):
        where = thread_config(checkpoint_ns=ns)
        assert thread.get_state(where).values["log"] == log


def test_one_history_for_two_tasks_of_a_superstep_is_an_error(drive):
    """Each would take the other's steps for its own. The peer lets the last one win."""
    child = plain(checkpointer=True)
    builder = StateGraph(State).add_node("w", lambda n: {"log": child.invoke({})["log"]})
    builder.add_conditional_edges(START, lambda s: [Send("w", n) for n in range(2)], ["w"])
    with pytest.raises(RuntimeError, match="two tasks that run at the same time run the graph of 'w'"):
        drive.invoke(builder.compile(InMemorySaver()), {}, CONFIG)


def test_one_history_inside_two_tasks_of_a_superstep_is_an_error_too(drive):
    """The graph that keeps it stands in one that does not, so that both find the same history."""
    child = plain(checkpointer=True)
    middle = graph("S>own", own=child, checkpointer=None)
    builder = StateGraph(State).add_node("mid", middle)
    builder.add_conditional_edges(START, lambda s: [Send("mid", {"log": [n]}) for n in range(2)], ["mid"])
    with pytest.raises(RuntimeError, match="keeps one history"):
        drive.invoke(builder.compile(InMemorySaver()), {}, {**CONFIG, "max_concurrency": 1})


def test_a_history_of_its_own_needs_a_saver_above_to_be_kept(drive):
    app = graph("S>n", n=calls(plain(checkpointer=True)), checkpointer=None)
    assert drive.invoke(app, {})["log"] == drive.invoke(app, {})["log"] == [["s"]]
    with pytest.raises(RuntimeError, match="checkpointer=True means"):
        drive.invoke(plain(checkpointer=True), {}, CONFIG)


@each_schedule
def test_a_graph_without_checkpoints_starts_over_on_resume(drive, schedule):
    ran = Ran()
    thread = drive.on(graph("S>n", n=calls(inner(ran, checkpointer=False, schedule=schedule), ran)))
    question = ids(thread.invoke({}))["i?"]
    assert thread.state.tasks[0].state is None
    assert thread.resume({question: "A"})["log"] == [["s", ("i", "A")]]
    assert ran == ["holder", "s", "i", "holder", "s", "i"]


@pytest.mark.parametrize("checkpointer", [None, True])
def test_a_nested_graph_resumes_where_it_paused(drive, checkpointer):
    ran = Ran()
    thread = drive.on(graph("S>n", n=calls(inner(ran, checkpointer), ran)))
    assert asked(thread.invoke({})) == ["i?"]
    assert thread.resume("A")["log"] == [["s", ("i", "A")]]
    assert ran == ["holder", "s", "i", "holder", "i"]


def test_a_thread_of_its_own_is_a_lineage_of_its_own(drive):
    child = plain(checkpointer=InMemorySaver())
    own = thread_config("other")
    thread = drive.on(graph("S>n", n=lambda s: {"log": child.invoke({}, own)["log"]}))
    chunks = thread.stream({}, subgraphs=True)
    assert [ns for ns, _ in chunks] == [()]
    assert thread.invoke({})["log"] == ["s", "s", "s"]
    assert drive.get_state(child, own).values["log"] == ["s", "s"]
    assert drive.get_state(child, own).config["configurable"]["checkpoint_ns"] == ""


def test_a_node_may_pass_on_the_config_it_was_given(drive):
    """It says no more than the context does, so the graph stays nested: it is lent the saver, and pauses."""
    child = inner()

    def node(state, config):
        return {"log": child.invoke({}, {**config, "tags": ["mine"]})["log"]}

    thread = drive.on(graph("S>n", n=node))
    assert asked(thread.invoke({})) == ["i?"]
    assert namespaces(thread.stream(None, subgraphs=True)) == ["n"]
    assert thread.resume("A")["log"] == ["s", ("i", "A")]


def test_a_saver_below_a_root_without_one_cannot_pause(drive):
    """Nobody could answer: the run could not be resumed."""
    app = graph("S>n", n=calls(inner(checkpointer=InMemorySaver())), checkpointer=None)
    with pytest.raises(RuntimeError, match="the graph has no checkpointer"):
        drive.invoke(app, {}, CONFIG)


# -- questions ------------------------------------------------------------------------------------------------


def test_a_nested_question_has_one_id_at_every_level(drive):
    middle = graph("S>m", m=inner(), checkpointer=None)
    thread = drive.on(graph("S>top>z", top=middle))
    paused = thread.invoke({})
    state = thread.get_state(subgraphs=True)
    below = state.tasks[0].state
    lowest = below.tasks[0].state
    assert {s.interrupts[0].id for s in (state, below, lowest)} == set(ids(paused).values())
    assert (state.next, below.next, lowest.next) == (("top",), ("m",), ("i",))
    assert thread.resume("A")["log"][-1] == "z"
    assert thread.get_state(subgraphs=True).tasks == ()


def test_questions_of_a_node_and_of_its_graph_keep_lists_of_their_own(drive):
    child = inner()

    def node(state):
        return {"log": [interrupt("before?"), child.invoke({})["log"], interrupt("after?")]}

    thread = drive.on(graph("S>n", n=node))
    questions = []
    result = thread.invoke({})
    for reply in "ABC":
        questions += asked(result)
        result = thread.resume(reply)
    assert questions == ["before?", "i?", "after?"] and result["log"] == ["A", ["s", ("i", "B")], "C"]


def test_several_graphs_of_one_task_are_each_answered(drive):
    ran = Ran()
    thread = drive.on(graph("S>n", n=calls(inner(ran), times=2)))
    thread.invoke({})
    assert asked(thread.resume("A")) == ["i?"]
    assert thread.resume("B")["log"] == [["s", ("i", "A")], ["s", ("i", "B")]]
    assert sorted(ran) == ["i", "i", "i", "i", "s", "s"]


def test_sends_to_an_asking_graph_are_answered_in_one_resume(drive):
    child = graph("S>i", i=lambda state: {"log": [interrupt(state["a"])]}, checkpointer=None)
    builder = StateGraph(State).add_node("w", lambda n: {"log": child.invoke({"a": n})["log"]})
    builder.add_conditional_edges(START, lambda s: [Send("w", n) for n in range(3)], ["w"])
    thread = drive.on(builder.compile(InMemorySaver()))
    paused = thread.invoke({})
    assert asked(paused) == [0, 1, 2]
    assert thread.resume({i: n * 2 for n, i in ids(paused).items()})["log"] == [0, 2, 4]


def test_a_retried_node_finds_its_finished_graph(drive):
    """D10: the peer runs the graph again, in a namespace with another number."""
    ran, left = Ran(), [1]
    child = plain(ran)

    def node(state):
        log = child.invoke({})["log"]
        if left[0]:
            left[0] -= 1
            raise ConnectionError
        return {"log": log}

    retry = RetryPolicy(initial_interval=0.0, jitter=False)
    app = StateGraph(State).add_node("n", node, retry_policy=retry).add_edge(START, "n").compile(InMemorySaver())
    assert namespaces(drive.stream(app, {}, CONFIG, subgraphs=True)) == ["n"]
    assert ran == ["s"]


def test_a_nested_graph_resumes_at_the_node_that_failed(drive):
    ran = Ran()
    child = graph("S>s>f", s=says("s", ran), f=fails("f", 1, ran), checkpointer=None)
    thread = drive.on(graph("S>sub", sub=child))
    with pytest.raises(ValueError, match="f failed"):
        thread.invoke({})
    assert thread.invoke(None)["log"] == ["s", "f"] and ran == ["s", "f", "f"]


def test_a_breakpoint_inside_pauses_all(drive):
    child = graph("S>s>t", checkpointer=None, interrupt_before=["t"])
    thread = drive.on(graph("S>sub>z", sub=child))
    assert thread.stream({}, stream_mode="updates") == [{"__interrupt__": ()}]
    state = thread.get_state(subgraphs=True)
    assert (state.next, state.interrupts, state.tasks[0].state.next) == (("sub",), (), ("t",))
    assert thread.invoke(None)["log"] == ["s", "t", "z"]


def test_a_graph_run_by_a_task_call_pauses_and_resumes(drive):
    child = inner()

    @task
    def work(n):
        return child.invoke({})["log"]

    @entrypoint(checkpointer=InMemorySaver())
    def flow(n):
        return work(n).result()

    thread = drive.on(flow)
    assert asked(thread.invoke(1)) == ["i?"]
    assert thread.resume("A") == ["s", ("i", "A")]


# -- commands to the parent -----------------------------------------------------------------------------------


def commanding(command):
    child = graph("S>c", c=lambda state: command, checkpointer=None)
    return graph("S>sub>x sub~x|y", sub=child)


def test_a_command_to_the_parent_is_done_by_the_holder(drive):
    """The holder's own edges still fire."""
    thread = drive.on(commanding(Command(graph=Command.PARENT, update={"log": ["up"]}, goto="y")))
    assert thread.invoke({})["log"] == ["up", "x", "y"]
    chunks = thread.stream({})
    assert chunks[0] == {"sub": {"log": ["up"]}}


def test_several_commands_to_the_parent_are_done_as_one(drive):
    parts = [Command(graph=Command.PARENT, update={"log": [n]}, goto=n) for n in "xy"]
    assert drive.invoke(commanding(parts), {}, CONFIG)["log"] == ["x", "y", "x", "y"]


def test_a_command_to_the_parent_ends_the_function_that_ran_the_graph(drive):
    after = []
    child = graph("S>c", c=lambda s: Command(graph=Command.PARENT, update={"log": ["up"]}), checkpointer=None)

    def node(state):
        child.invoke({})
        after.append("never")

    assert drive.invoke(graph("S>n", n=node), {}, CONFIG)["log"] == ["up"] and after == []


@pytest.mark.parametrize(
    ("command", "text"),
    [(Command(graph=Command.PARENT, goto="zz"), "goes to the unknown node 'zz'"), (Command(graph=Command.PARENT, update={"lgo": 1}), "unknown key 'lgo'")],
    ids=["node", "key"],
)
def test_a_command_to_the_parent_that_names_something_unknown_is_an_error_there(drive, command, text):
    child = graph("S>c", c=lambda state: command, checkpointer=None)
    for holder in (child, lambda state: child.invoke({})):
        with pytest.raises(InvalidUpdateError, match=text):
            drive.invoke(graph("S>n", n=holder), {}, CONFIG)


# -- looking in, and changing what is inside ------------------------------------------------------------------


def test_nested_state_is_a_config_or_with_subgraphs_a_snapshot(drive):
    thread = drive.on(graph("S>sub", sub=inner()))
    thread.invoke({"a": 3})
    [shallow] = thread.state.tasks
    where = thread_config(checkpoint_ns=f"sub:{shallow.id}")
    assert shallow.state == where
    [deep] = thread.get_state(subgraphs=True).tasks
    assert (deep.state.values, deep.state.next) == ({"a": 3, "log": ["s"]}, ("i",))
    assert thread.get_state(where) == deep.state
    assert [s.metadata["step"] for s in thread.history(where)] == [1, 0, -1]


def test_history_leads_into_graphs_that_have_finished(drive):
    thread = drive.on(graph("S>sub>ask", sub=inner(), ask=asks("ask")))
    thread.invoke({})
    thread.resume(1)
    assert [t.state for t in thread.get_state(subgraphs=True).tasks] == [None]
    [before] = [s for s in thread.history() if s.next == ("sub",)]
    inside = thread.history(before.tasks[0].state)
    assert [s.next for s in inside] == [(), ("i",), ("s",), ("__start__",)]
    assert thread.get_state(before.config, subgraphs=True).tasks[0].state.values == inside[0].values


def test_the_state_of_a_graph_that_finished_in_an_interrupted_superstep_can_be_read(drive):
    app = graph("S>sub S>ask", sub=plain(), ask=asks("ask"))
    chunks = drive.stream(app, {}, CONFIG, stream_mode="checkpoints")
    tasks = {t.name: t for t in drive.get_state(app, CONFIG, subgraphs=True).tasks}
    assert (tasks["sub"].state.values["log"], tasks["sub"].result, tasks["ask"].state) == (["s"], {"log": ["s"]}, None)
    shown = {t["name"]: t["state"] for t in chunks[-1]["tasks"]}
    assert shown == {"sub": thread_config(checkpoint_ns=f"sub:{tasks['sub'].id}"), "ask": None}


def test_the_graphs_inside_can_be_listed(drive):
    low = plain()
    middle = graph("S>low", low=low, checkpointer=None)
    app = graph("S>mid>n>off", mid=middle, off=plain(checkpointer=False), n=calls(low))
    assert dict(app.get_subgraphs()) == {"mid": middle}
    drive.invoke(app, {}, CONFIG)
    assert dict(app.get_subgraphs(recurse=True)) == {"mid": middle, "mid|low": low, "n": low}
    assert dict(app.get_subgraphs(namespace="mid|low")) == {"mid|low": low}
    with pytest.raises(ValueError, match="'md' .* did you mean 'mid'"):
        dict(app.get_subgraphs(namespace="md"))


def test_a_graph_that_runs_itself_is_listed_once():
    def again(state):
        if not state.get("a"):
            app.invoke({"a": 1})

    app = graph("S>n", n=again)
    app.invoke({}, CONFIG)
    assert [name for name, _ in app.get_subgraphs(recurse=True)] == ["n"]


def test_every_kind_of_holder_shows_its_graph(drive):
    """Children are recorded as they run: through helpers, containers and defaults alike."""
    box = {"child": inner()}

    def helper():
        return box["child"].invoke({})

    def node(state, run=helper):
        return {"log": run()["log"]}

    app = graph("S>n", n=node)
    drive.invoke(app, {}, CONFIG)
    assert drive.get_state(app, CONFIG, subgraphs=True).tasks[0].state.next == ("i",)


def test_an_update_inside_is_seen_when_the_run_resumes(drive):
    thread = drive.on(graph("S>sub>z", sub=inner()))
    thread.invoke({})
    where = thread.state.tasks[0].state
    drive.update_state(thread.app, where, {"log": ["patched"]}, as_node="s")
    assert asked(thread.invoke(None)) == ["i?"]
    assert thread.resume("A")["log"] == ["s", "patched", ("i", "A"), "z"]


def test_an_answer_after_an_update_inside_reaches_the_repeated_interrupt(drive):
    thread = drive.on(graph("S>sub", sub=inner()))
    thread.invoke({})
    drive.update_state(thread.app, thread.state.tasks[0].state, {"a": 2}, as_node="s")
    assert thread.resume("A")["log"] == ["s", ("i", "A")]


@pytest.mark.parametrize("ns", ["sbu:1", "sbu", "sub:1|sbu:2", "|"])
def test_an_unknown_namespace_is_refused(drive, ns):
    thread = drive.on(graph("S>sub", sub=inner()))
    thread.invoke({})
    where = thread_config(checkpoint_ns=ns)
    for look in (thread.get_state, thread.history, lambda where: drive.update_state(thread.app, where, {"a": 1})):
        with pytest.raises(ValueError, match=f"unknown subgraph {'sbu' if 'sbu' in ns else ns!r}; "):
            look(where)
    with pytest.warns(GraphWarning, match="unknown subgraph .* The whole graph runs"):
        assert asked(thread.invoke(None, where)) == ["i?"]


def test_a_nested_thread_of_a_graph_that_is_not_known_cannot_be_shown(drive):
    """A graph that a function runs is known once it has run; another process must have run it too."""
    saver, child = InMemorySaver(), inner()
    drive.invoke(graph("S>n", n=calls(child), checkpointer=saver), {}, CONFIG)
    thread = drive.on(graph("S>n", n=calls(child), checkpointer=saver))
    task = thread.get_state(subgraphs=True).tasks[0]
    where = thread_config(checkpoint_ns=f"n:{task.id}")
    with pytest.raises(ValueError, match="unknown subgraph 'n'"):
        thread.get_state(where)
    assert asked(thread.invoke(None)) == ["i?"]
    assert thread.get_state(where).next == ("i",)


def test_an_update_inside_that_names_an_unknown_node_is_an_error(drive):
    app = graph("S>sub", sub=inner())
    drive.invoke(app, {}, CONFIG)
    with pytest.raises(InvalidUpdateError, match="'z' does not exist; known: 'i', 's'"):
        drive.update_state(app, drive.get_state(app, CONFIG).tasks[0].state, {"a": 1}, as_node="z")


# -- going back -----------------------------------------------------------------------------------------------


def test_new_input_at_an_old_checkpoint_takes_a_graph_with_a_history_back_as_well(drive):
    thread = drive.on(graph("S>n", n=calls(plain(checkpointer=True))))
    for _ in range(3):
        thread.invoke({})
    end_of_first = at(thread, 1)
    assert thread.invoke({}, end_of_first)["log"] == [["s"], ["s", "s"]]


def test_a_graph_with_memory_that_paused_on_a_branch_resumes_there(drive):
    ran = Ran()
    thread = drive.on(graph("S>n", n=calls(inner(ran, checkpointer=True))))
    for turn in range(2):
        thread.invoke({})
        thread.resume(turn)
    thread.invoke(None, at(thread, 0))
    ran.clear()
    assert thread.resume("new")["log"] == [["s", ("i", "new")]] and ran == ["i"]


def test_a_nested_checkpoint_takes_no_new_input_and_must_exist(drive):
    thread = drive.on(graph("S>sub", sub=inner()))
    thread.invoke({})
    nested = thread.get_state(subgraphs=True).tasks[0].state
    before = thread.history()
    with pytest.raises(ValueError, match="takes no new"):
        thread.invoke({}, nested.config)
    unknown = {"configurable": {**nested.config["configurable"], "checkpoint_id": "nope"}}
    with pytest.raises(ValueError, match="has no checkpoint 'nope'"):
        thread.invoke(None, unknown)
    assert thread.history() == before


# -- types of nested graphs -----------------------------------------------------------------------------------


@dataclass
class Deep:
    n: int


class DeepState(TypedDict, total=False):
    deep: Deep
    log: Annotated[list[Any], operator.add]


def asks_deep(state):
    interrupt("?")
    return {"log": [state["deep"].n]}


def deep_graph():
    return chain_of(DeepState, make=lambda state: {"deep": Deep(7)}, ask=asks_deep).compile()


@pytest.mark.parametrize("by_function", [False, True])
def test_a_type_that_only_a_nested_graph_names_is_stored_by_the_saver_around_it(drive, by_function):
    inner = deep_graph()

    async def acall(state):
        return {"log": (await inner.ainvoke({}))["log"]}

    def call(state):
        return {"log": inner.invoke({})["log"]}

    node = inner if not by_function else acall if drive.is_async else call
    thread = drive.on(graph("S>sub", sub=node))
    thread.invoke(EMPTY)
    assert thread.resume(1)["log"] == [7]


def test_the_saver_of_another_process_knows_the_types_of_graphs_that_nodes_hold(drive):
    saver = InMemorySaver()
    drive.invoke(graph("S>sub", sub=deep_graph(), checkpointer=saver), EMPTY, CONFIG)
    fresh = InMemorySaver()
    fresh._threads = saver._threads
    found = drive.get_state(graph("S>sub", sub=deep_graph(), checkpointer=fresh), CONFIG, subgraphs=True)
    assert found.tasks[0].state.values["deep"] == Deep(7)


@each_schedule
@pytest.mark.parametrize("answers", [True, False])
def test_a_task_that_waits_in_a_history_keeps_it(drive, schedule, answers):
    """Also if another one that wants it comes first in a later call, or is the only one that runs there."""
    agent = graph("S>i", i=asks("i"), checkpointer=True, schedule=schedule)
    turn = []

    def work(name):
        if name == turn[0]:
            turn[1].wait(10)
        try:
            return {"log": [(name, agent.invoke({})["log"])]}
        finally:
            turn[1].set()

    builder = StateGraph(State).add_node("w", work)
    builder.add_conditional_edges(START, lambda s: [Send("w", name) for name in "ab"], ["w"])
    thread = drive.on(builder.compile(InMemorySaver(), schedule=schedule))
    turn[:] = "b", Event()
    with pytest.raises(RuntimeError, match="keeps one history"):
        thread.invoke({})
    (question,) = thread.state.interrupts
    turn[:] = "a", Event()
    with pytest.raises(RuntimeError, match="keeps one history"):
        thread.invoke(Command(resume="A") if answers else None)
    if not answers:
        assert thread.state.interrupts == (question,)
        with pytest.raises(RuntimeError, match="keeps one history"):
            thread.resume("A")
    assert len(thread.invoke(None)["__interrupt__"]) == 1
    assert thread.resume("B")["log"] == [
        ("a", [("i", "A")]),
        ("b", [("i", "A"), ("i", "B")]),
    ]
