"""`update_state` on a paused thread keeps finished work: finished siblings count once, open interrupts stay open,
calls do not run again. On each saver, sync and async.
"""

from __future__ import annotations

import operator
from random import Random
from typing import Annotated, Any, Literal

import pytest
from faults.edits import FANS, edit_beside_sends
from kit.drive import each_schedule
from kit.graphs import CONFIG, EMPTY, chain_of, graph_of, thread_config
from kit.pausing_graphs import Ran, State, asked, asks, graph, says
from kit.ready_graphs import build, ends_by, sends
from kit.savers import local_saver
from typing_extensions import TypedDict

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
    entrypoint,
    get_runtime,
    interrupt,
    task,
)
from stategraph.pregel.names import TASKS
from stategraph.testing.harness import Mode

saver = local_saver


def shop(ran: Ran, saver):
    """a leads to a question and a charge; a receipt follows the charge."""
    nodes = {"a": says("a", ran), "ask": asks("ask", ran), "charge": says("charged", ran), "receipt": says("receipt", ran)}
    return graph("S>a>ask a>charge>receipt", **nodes, checkpointer=saver)


def question(thread):
    (found,) = thread.state.interrupts
    return found


def test_a_finished_sibling_counts_once(drive, saver):
    ran = Ran()
    thread = drive.on(shop(ran, saver))
    thread.invoke({})
    before = question(thread)
    thread.update({"log": ["edited"]})
    state = thread.state
    assert state.next == ("ask",)
    assert state.values["log"] == ["a", "edited", "charged"]
    assert question(thread) == before
    assert thread.resume({before.id: "yes"})["log"] == [
        "a", "edited", ("ask", "yes"), "charged", "receipt",
    ]  # fmt: skip
    assert ran.take() == ["a", "ask", "ask", "charged", "receipt"]


def test_two_edits_in_a_row_keep_pending_tasks(drive, saver):
    ran = Ran()
    thread = drive.on(shop(ran, saver))
    thread.invoke({})
    thread.update({"log": ["one"]})
    thread.call("bulk_update_state", [[StateUpdate({"log": ["two"]}, "a")], [StateUpdate({"log": ["three"]}, "a")]])
    assert thread.resume("yes")["log"] == [
        "a", "one", "two", "three", ("ask", "yes"), "charged", "receipt",
    ]  # fmt: skip
    assert ran.take() == ["a", "ask", "ask", "charged", "receipt"]


def test_an_edit_of_a_graph_of_one_node_closes_no_question(drive, saver):
    thread = drive.on(graph("S>ask", ask=asks("ask"), checkpointer=saver))
    thread.invoke({})
    before = question(thread)
    thread.update({"log": ["edited"]})
    assert thread.state.next == ("ask",)
    assert question(thread).id == before.id
    assert thread.resume("yes")["log"] == ["edited", ("ask", "yes")]


@pytest.mark.parametrize("pruned", [False, True], ids=["kept", "pruned"])
def test_an_edit_around_a_paused_subgraph_of_the_only_node(drive, saver, pruned):
    ran = Ran()
    inner = graph("S>s>ask", s=says("s", ran), ask=asks("ask", ran), checkpointer=None)
    thread = drive.on(graph("S>sub", sub=inner, checkpointer=saver))
    thread.invoke({})
    before = question(thread)
    thread.update({"log": ["edited"]})
    assert question(thread).id == before.id
    if pruned:
        saver.prune()
    assert thread.get_state(subgraphs=True).tasks[0].state.next == ("ask",)
    log = thread.resume({before.id: "yes"})["log"]
    assert ran.take() == ["ask", "ask", "s"]
    assert log.count(("ask", "yes")) == 1


def test_calls_of_a_paused_task_do_not_run_again_after_an_edit(drive, saver):
    charges = []

    @task
    def charge():
        charges.append("charge")
        return "charged"

    def pay(state):
        return {"log": [charge().result(), interrupt("sure?")]}

    thread = drive.on(graph("S>a>pay", pay=pay, checkpointer=saver))
    thread.invoke({})
    thread.update({"log": ["edited"]})
    assert thread.resume("yes")["log"] == ["a", "edited", "charged", "yes"]
    assert charges == ["charge"]


def test_answers_given_before_an_edit_are_kept(drive, saver):
    thread = drive.on(graph("S>a>ask", ask=asks("ask", count=2), checkpointer=saver))
    thread.invoke({})
    assert asked(thread.resume(1)) == ["ask1?"]
    thread.update({"log": ["edited"]})
    assert thread.resume(2)["log"] == ["a", "edited", ("ask", 1, 2)]


class Draft(TypedDict, total=False):
    text: str
    log: Annotated[list[Any], operator.add]


@pytest.mark.parametrize("asks_again", [False, True], ids=["by the old id", "asked again"])
def test_an_answer_after_an_edit_applies_to_the_edited_state(drive, saver, asks_again):
    """By the id that it had before the edit, or once the interrupt was raised again, which then has the new value."""

    def review(state: Draft):
        return {"log": [(state["text"], interrupt(f"send {state['text']!r}?"))]}

    thread = drive.on(chain_of(Draft, write=lambda s: {"text": "draft"}, review=review).compile(saver))
    thread.invoke({})
    before = question(thread)
    thread.update({"text": "final"})
    if asks_again:
        assert asked(thread.invoke(None)) == ["send 'final'?"]
    assert thread.resume(True if asks_again else {before.id: True})["log"] == [("final", True)]


def test_after_an_edit_an_answer_reaches_only_the_interrupt_with_its_key(drive, saver):
    def shop(state):
        return {"log": [(item, interrupt(f"buy {item}?", key=item)) for item in ("tea", "gold")]}

    thread = drive.on(graph("S>a>shop", shop=shop, checkpointer=saver))
    thread.invoke({})
    thread.resume("tea yes")
    thread.update({"log": ["edited"]})
    assert [each.value for each in thread.state.interrupts] == ["buy gold?"]
    done = thread.resume("gold no")
    assert done["log"][-2:] == [("tea", "tea yes"), ("gold", "gold no")]


def test_sends_repeated_by_the_edited_nodes_router_resume(drive, saver):
    ran = Ran()

    def work(n):
        ran.append(f"work {n}")
        return {"log": [(n, interrupt("?") if n == 2 else "done")]}

    builder = graph_of(Draft, "S>a", work=work)
    builder.add_conditional_edges("a", lambda s: [Send("work", n) for n in (1, 2, 3)], ["work"])
    thread = drive.on(builder.compile(saver))
    thread.invoke({})
    ran.clear()
    thread.update({"log": ["edited"]}, as_node="a")
    assert thread.resume("yes")["log"] == ["a", "edited", (1, "done"), (2, "yes"), (3, "done")]
    assert ran == ["work 2"]


def test_of_equal_sends_the_open_one_resumes_and_the_finished_one_does_not(drive, saver):
    builder = StateGraph(State).add_node("w", asks("w")).add_node("n", asks("n"))
    builder.add_conditional_edges(START, lambda _: [Send("w", EMPTY), Send("w", EMPTY), "n"], ["w", "n"])
    thread = drive.on(builder.compile(saver))
    thread.invoke({})
    first, second = [each.interrupts[0].id for each in thread.state.tasks if each.name == "w"]
    thread.resume({first: 1})
    thread.update({"log": ["n by hand"]}, "n")
    assert question(thread).id == second
    thread.resume(2)
    assert thread.log == ["n by hand", ("w", 1), ("w", 2)]


@pytest.mark.parametrize("by_copy", [False, True])
def test_a_node_pending_by_a_send_and_by_an_edge_needs_two_updates(drive, saver, by_copy):
    builder = graph_of(Draft, "S>a>two").add_conditional_edges("a", lambda s: [Send("two", {})], ["two"])
    thread = drive.on(builder.compile(saver, interrupt_before=["two"]))
    thread.invoke({})
    assert thread.state.next == ("two", "two")
    both = [StateUpdate({"log": ["A"]}, "two"), StateUpdate({"log": ["B"]}, "two")]
    if by_copy:
        thread.update(both, as_node="__copy__")
    else:
        thread.call("bulk_update_state", [both])
    assert thread.state.next == ()
    assert thread.log == ["a", "A", "B"]


def test_a_pending_sibling_keeps_its_interrupt(drive, saver):
    thread = drive.on(graph("S>a>p>z a>q>E", p=asks("p"), q=asks("q"), checkpointer=saver))
    thread.invoke({})
    ids = {each.value: each.id for each in thread.state.interrupts}
    thread.update({"log": ["as p"]}, as_node="p")
    (left,) = thread.state.interrupts
    assert (left.value, left.id) == ("q?", ids["q?"])
    assert thread.resume("yes")["log"] == ["a", "as p", ("q", "yes"), "z"]


def test_a_deferred_node_waits_for_an_interrupt_behind_a_join(drive, saver):
    """What a join holds pending is work, too, though the edit has not moved it."""
    last = {"last": lambda state: {"log": [("saw", *state["log"])]}}
    thread = drive.on(graph("S>a>b a>last [a,b]>ask defer:last", ask=asks("ask"), **last, checkpointer=saver))
    thread.invoke({})
    thread.update({"log": ["edited"]})
    assert thread.state.next == ("ask",)
    done = ["a", "b", "edited", ("ask", "yes")]
    assert thread.resume("yes")["log"] == [*done, ("saw", *done)]


def test_a_deferred_node_that_has_started_keeps_its_interrupt(drive, saver):
    """Also if the edit leads to it once more, while another deferred node is done."""
    thread = drive.on(graph("S>a>b a>done a>ask b>ask defer:done,ask", ask=asks("ask"), checkpointer=saver))
    thread.invoke({})
    before = question(thread)
    thread.update({"log": ["edited"]})
    assert thread.state.next == ("ask",)
    assert question(thread) == before
    log = thread.resume({before.id: "yes"})["log"]
    assert sorted(log, key=str) == sorted(["a", "b", "edited", ("ask", "yes"), "done"], key=str)


def test_an_update_to_another_branch_closes_the_interrupts_it_replaces(drive, saver):
    builder = graph_of(Draft, "S>a", a=says("a"), p=asks("p"), q=says("q"))
    builder.add_conditional_edges("a", lambda s: "q" if s.get("text") else "p", ["p", "q"])
    thread = drive.on(builder.compile(saver))
    thread.invoke({})
    with pytest.warns(GraphWarning, match="as 'a' does not lead to 'p', and so closes the questions .* act as the node .*as_node='p'"):
        thread.update({"text": "now"}, as_node="a")
    assert thread.state.next == ("q",) and not thread.state.interrupts
    assert thread.invoke(None)["log"] == ["a", "q"]


def test_an_update_that_closes_the_interrupt_of_an_error_handler_warns(drive, saver):
    """Its node runs again, for the update may have mended what it failed of."""

    def fails(state):
        raise OSError("it is down")

    builder = StateGraph(State).add_node("a", fails, error_handler=asks("mend")).add_node("b", asks("b"))
    thread = drive.on(builder.add_edge(START, "a").add_edge(START, "b").compile(saver))
    thread.invoke({})
    with pytest.warns(GraphWarning, match="closes the question that the error handler of 'a' asks; .* as_node='a'"):
        thread.update({"log": ["by hand"]}, as_node="b")
    assert thread.state.next == ("a",)
    thread.update({"log": ["a by hand"]}, as_node="a")  # says nothing: it is answered by that
    assert thread.log == ["by hand", "a by hand"]


@pytest.mark.parametrize("spoken", [1, 2, 3])
def test_updates_for_sends_keep_the_task_started_by_an_edge_of_the_same_node(spoken, drive, saver):
    ran = Ran()
    thread = drive.on(
        chain_of(State, a=says("a", ran), w=says("w", ran))
        .add_conditional_edges("a", lambda state: [Send("w", {"log": [n]}) for n in (1, 2)], ["w"])
        .compile(saver, interrupt_before=["w"])
    )
    thread.invoke({})
    thread.call("bulk_update_state", [[StateUpdate({"log": [f"e{n}"]}, "w") for n in range(spoken)]])
    assert thread.state.next == ("w",) * (3 - spoken)
    if spoken < 3:
        thread.invoke(None)
    assert ran == ["a", *["w"] * (3 - spoken)]


def test_a_replay_from_before_the_edit_interrupts_again(drive, saver):
    ran = Ran()
    thread = drive.on(shop(ran, saver))
    thread.invoke({})
    before = thread.state.config
    thread.update({"log": ["edited"]})
    thread.resume("yes")
    ran.clear()
    assert asked(thread.invoke(None, before)) == ["ask?"]
    assert ran.take() == ["ask", "charged"]
    assert thread.resume("no")["log"] == ["a", ("ask", "no"), "charged", "receipt"]


@pytest.mark.filterwarnings("ignore:node 'm' will run")
def test_after_an_edit_a_new_task_runs_its_subgraph_with_memory_again(drive, saver):
    """The task before it, which has ended, had run beside a checkpoint whose other tasks go on."""
    ran = Ran()
    memory = graph("S>turn", turn=says("turn", ran), checkpointer=True)
    thread = drive.on(graph("S>m S>a>c>m S>b", m=memory, **{n: asks(n, ran) for n in "acb"}, checkpointer=saver))
    thread.invoke({})
    thread.update({"log": ["edit"]}, "a")
    thread.update({"log": ["edit"]}, "c")
    thread.invoke(None)
    assert ran.count("turn") == 2


def test_a_node_that_raised_graph_interrupt_runs_again_after_an_edit(drive, saver):
    from stategraph import GraphInterrupt

    def short(state: Draft):
        if len(state["text"]) > 3:
            raise GraphInterrupt("too long")
        return {"log": [state["text"]]}

    thread = drive.on(chain_of(Draft, short=short).compile(saver))
    assert asked(thread.invoke({"text": "long text"})) == ["too long"]
    thread.update({"text": "ok"})
    assert thread.invoke(None)["log"] == ["ok"]


@pytest.mark.parametrize("call", [None, Command(resume="yes")], ids=["none", "answer"])
def test_resume_from_the_config_of_the_edit_runs_finished_tasks_only_once(drive, saver, call):
    ran = Ran()
    thread = drive.on(shop(ran, saver))
    thread.invoke({})
    ran.clear()
    made = thread.update({"log": ["edited"]})
    thread.invoke(call, made)
    if call is None:
        assert ran.take() == ["ask"]
        thread.resume("yes")
    assert ran.take() == ["ask", "receipt"]
    assert thread.log == ["a", "edited", ("ask", "yes"), "charged", "receipt"]


def test_an_edit_of_a_paused_entrypoint_needs_as_node(drive, saver):
    @entrypoint(checkpointer=saver)
    def flow(x):
        return interrupt("ok?")

    thread = drive.on(flow)
    thread.invoke(1)
    with pytest.raises(InvalidUpdateError, match="specify as_node='flow'"):
        thread.update(None)
    assert thread.resume("yes") == "yes"


def test_an_edit_in_a_loop_acts_as_the_run_that_ended(drive, saver):
    thread = drive.on(chain_of(Draft, ask=asks("ask"))
        .add_conditional_edges("ask", lambda s: "ask" if len(s["log"]) < 4 else END, ["ask", END])
        .compile(saver))
    thread.invoke({})
    thread.resume(1)
    before = question(thread)
    thread.update({"log": ["edited"]})
    assert question(thread).id == before.id


def test_an_update_without_as_node_closes_no_interrupt(drive, saver):
    """c and after_p are pending together, behind nodes that ran at different times: who ran last is a guess."""
    thread = drive.on(graph("S>a>b>c [a,b]>p>after", p=asks("p"), after=asks("after"), checkpointer=saver))
    thread.invoke({})
    thread.update({"log": ["one"]}, as_node="b")
    thread.resume("yes")
    before = question(thread)
    try:
        thread.update({"log": ["two"]})
    except InvalidUpdateError as error:
        assert "specify as_node" in str(error)
    assert question(thread) == before
    thread.update({"log": ["two"]}, as_node="p")
    assert question(thread).id == before.id


@pytest.mark.parametrize("by", ["ask", "x"])
def test_losers_of_a_race_do_not_run_after_an_edit(drive, by):
    """The race is over, beside it somebody asks: an edit as either does not bring the losers back."""
    ran = Ran()

    def x(state):
        ran.append(state["name"])
        return {"log": [state["name"]]}

    saver = InMemorySaver()
    builder = StateGraph(State).add_node("x", x).add_node("ask", asks("ask", ran))
    racers = [Send("x", {"name": name}, race="r") for name in ("x1", "x2")]
    builder.add_conditional_edges(START, lambda state: [*racers, "ask"], ["x", "ask"])
    thread = drive.on(builder.compile(saver))
    thread.invoke({}, {**CONFIG, "max_concurrency": 1})
    assert ran.take() == ["ask", "x1"] and thread.state.next == ("ask",)
    thread.update({"log": ["edited"]}, by)
    assert thread.state.next == (() if by == "ask" else ("ask",))
    thread.invoke(None)
    assert not {"x1", "x2"}.intersection(ran)


# -- who ran last: Sends leave a trace like others --------------------------------------------------------------------

def going(ways):
    """The body of a node that goes where a Command says."""
    return lambda state: Command(update={"log": ["a"]}, goto=ways)


def went(body, words, ends, **nodes):
    """A graph of words, whose node `a` goes to `ends` by Commands."""
    builder = build(words, nodes=nodes)
    builder.nodes.pop("a", None)
    return builder.add_node("a", body, destinations=ends).add_edge(START, "a")


def one_asks(given):
    return {"log": [f"w{given['n']}" if given["n"] == 0 else interrupt("?")]}


@each_schedule
def test_a_plain_edit_runs_no_finished_send_again(drive, saver, schedule):
    thread = drive.on(build("S>a r:a=w w>c", {"a": sends("w", 0, 1)}, {"w": one_asks}).compile(saver, schedule=schedule))
    thread.invoke(EMPTY)
    before = thread.state
    for entry in ("e0", "e1"):
        thread.update({"log": [entry]})
        state = thread.state
        assert (state.next, state.interrupts) == (before.next, before.interrupts)
    log = thread.resume("w1")["log"]
    assert sorted(log) == ["a", "c", "e0", "e1", "w0", "w1"]


def falls_asleep(name):
    def body(state):
        get_runtime().sleep(3600, durable_after=0)

    return body


@each_schedule
@pytest.mark.parametrize("stop", ["breakpoint", "sleep"])
def test_a_plain_edit_after_sends_and_a_sibling_is_ambiguous(drive, saver, schedule, stop):
    nodes = {name: falls_asleep(name) for name in "cq"} if stop == "sleep" else {}
    thread = drive.on(build("S>a r:a=w a>p w>c p>q", {"a": sends("w", 0, 1)}, nodes).compile(
        saver, schedule=schedule, interrupt_before=["c", "q"] if stop == "breakpoint" else []
    ))
    thread.invoke(EMPTY)
    before = thread.state
    assert before.next == ("c", "q")
    with pytest.raises(InvalidUpdateError, match="ambiguous, specify as_node: p, w ran last together"):
        thread.update({"log": ["edit"]})
    assert thread.state == before


@each_schedule
@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_a_plain_edit_after_finished_sends_follows_their_edges(drive, saver, schedule, durability):
    thread = drive.on(build("S>a r:a=w w>c", {"a": sends("w", 0, 1)}).compile(saver, schedule=schedule, interrupt_before=["c"]))
    thread.invoke(EMPTY, durability=durability)
    for _ in range(2):
        thread.update(None)
        assert thread.state.next == ("c",)
    thread.update(None, "a")
    assert thread.state.next == ("w", "w")
    # After an update as a node that one has run last.
    thread.update(None)
    assert thread.state.next == ("w", "w")


@each_schedule
def test_a_plain_edit_of_a_checkpoint_after_sends_follows_their_edges(drive, saver, schedule):
    thread = drive.on(build("S>a r:a=w w>c", {"a": sends("w", 0, 1)}).compile(saver, schedule=schedule))
    with ends_by(lambda task: task.path):
        thread.invoke(EMPTY)
    at = next(each for each in thread.history() if each.next == ("c",))
    drive.update_state(thread.app, at.config, None)
    assert thread.invoke(None)["log"] == ["a", "w0", "w1", "c"]


@each_schedule
def test_an_edit_as_a_send_counts_as_its_run(drive, saver, schedule):
    thread = drive.on(build("S>a r:a=w w>c", {"a": sends("w", 1)}, {"w": one_asks}).compile(
        saver, schedule=schedule, interrupt_before=["c"]
    ))
    thread.invoke(EMPTY)
    for as_node in ("w", None):
        thread.update({"log": ["edit"]}, as_node)
        assert thread.state.next == ("c",)


@each_schedule
def test_a_plain_edit_after_the_failure_of_a_send_was_handled_keeps_where_the_handler_went(drive, saver, schedule):
    def fail(given):
        raise ValueError

    def handle(state) -> Command[Literal["y"]]:
        return Command(update={"log": ["handled"]}, goto="y")

    builder = build("r:S=w w>c y", {"S": sends("w", 0)})
    builder.nodes.pop("w")
    builder.add_node("w", fail, error_handler=handle)
    thread = drive.on(builder.compile(saver, schedule=schedule, interrupt_before=["y"]))
    thread.invoke(EMPTY)
    assert thread.state.next == ("y",)
    thread.update({"log": ["edit"]})
    # It acts as the node that has failed, as it does where no Send led to that.
    assert thread.state.next == ("c", "y")


@each_schedule
def test_in_a_nested_graph_too(drive, saver, schedule):
    inner = build("S>a r:a=w w>c", {"a": sends("w", 0, 1)}).compile(schedule=schedule, interrupt_before=["c"])
    thread = drive.on(build("S>n", nodes={"n": inner}).compile(saver, schedule=schedule))
    with ends_by(lambda task: task.path):
        thread.invoke(EMPTY)
    inside = thread.get_state(subgraphs=True).tasks[0].state.config
    drive.update_state(thread.app, inside, {"log": ["edit"]})
    assert thread.get_state(inside).next == ("c",)
    assert thread.invoke(None)["log"] == ["a", "w0", "w1", "edit", "c"]


def test_nodes_started_by_a_goto_count_as_last_run_with_their_siblings(drive, saver):
    """Its trigger is newer than theirs, though all ran in one superstep."""
    thread = drive.on(build("r:S=a|x a>b>bz x>xz", {"S": lambda _: "a"}).compile(saver, interrupt_before=["b", "bz", "xz"]))
    thread.invoke(EMPTY)
    thread.invoke(Command(goto="x"))
    assert thread.state.next == ("bz", "xz")
    with pytest.raises(InvalidUpdateError, match="specify as_node: b, x ran last together"):
        thread.update({"log": ["edit"]})


def test_a_thread_that_stored_no_trace_of_its_sends_is_edited_as_before(drive):
    """As the last release stored it."""
    saver = InMemorySaver()
    app = build("S>a r:a=w w>c", {"a": sends("w", 0, 1)}).compile(saver, interrupt_before=["c"])
    drive.invoke(app, EMPTY, CONFIG)
    stored = saver.get_tuple(CONFIG)
    assert stored is not None and stored.checkpoint["versions_seen"]["w"].pop(TASKS)
    old = thread_config("old", checkpoint_ns="")
    saver.put(old, stored.checkpoint, stored.metadata, stored.checkpoint["channel_versions"])
    drive.update_state(app, old, {"log": ["edit"]}, "w")
    assert drive.get_state(app, old).next == ("c",)
    assert drive.invoke(app, None, old)["log"] == ["a", "w0", "w1", "edit", "c"]


# -- what came by a goto, or from another node ------------------------------------------------------------------------


@each_schedule
def test_an_edit_without_as_node_keeps_nodes_started_by_goto(drive, saver, schedule):
    thread = drive.on(went(going("x"), "a>y x", ("x", "y")).compile(saver, schedule=schedule, interrupt_before=["x", "y"]))
    thread.invoke(EMPTY)
    for _ in range(2):
        thread.update({"log": ["edit"]})
        assert thread.state.next == ("x", "y")
    at = next(each for each in thread.history() if each.next == ("x", "y") and "edit" not in each.values["log"])
    fork = drive.update_state(thread.app, at.config, {"log": ["fork"]})
    assert thread.get_state(fork).next == ("x", "y")


@each_schedule
def test_a_plain_edit_keeps_sends_of_a_goto_with_their_results_and_questions(drive, saver, schedule):
    thread = drive.on(went(going([Send("w", {"n": 0}), Send("w", {"n": 1})]), "w>c", ("w",), w=one_asks).compile(
        saver, schedule=schedule
    ))
    thread.invoke(EMPTY)
    (asked,) = thread.state.interrupts
    thread.update({"log": ["edit"]})
    assert thread.state.interrupts == (asked,)
    log = thread.resume({asked.id: "w1"})["log"]
    assert sorted(log) == ["a", "c", "edit", "w0", "w1"]


@each_schedule
def test_an_update_that_says_where_to_go_replaces_an_earlier_goto(drive, saver, schedule):
    thread = drive.on(went(going("x"), "y x", ("x", "y")).compile(saver, schedule=schedule, interrupt_before=["x", "y"]))
    thread.invoke(EMPTY)
    thread.update(Command(update={"log": ["edit"]}, goto="y"))
    assert thread.state.next == ("y",)


@each_schedule
def test_a_router_that_decides_otherwise_after_a_plain_edit_is_followed(drive, saver, schedule):
    def route(state):
        return "y" if "edit" in state["log"] else "x"

    builder = went(going("z"), "z x y", ("z",)).add_conditional_edges("a", route, ["x", "y"])
    thread = drive.on(builder.compile(saver, schedule=schedule, interrupt_before=["x", "y", "z"]))
    thread.invoke(EMPTY)
    assert thread.state.next == ("x", "z")
    thread.update({"log": ["edit"]})
    assert thread.state.next == ("y", "z")


@each_schedule
def test_a_plain_edit_keeps_what_an_edit_as_a_sibling_has_left_pending(drive, saver, schedule):
    thread = drive.on(build("S>a>p>pz a>q>qz").compile(saver, schedule=schedule, interrupt_before=["p", "q", "pz"]))
    thread.invoke(EMPTY)
    thread.update({"log": ["p by hand"]}, "p")
    thread.update({"log": ["edit"]})
    assert thread.state.next == ("pz", "q")
    thread.invoke(None)
    log = thread.log
    assert sorted(log) == ["a", "edit", "p by hand", "pz", "q", "qz"]


@each_schedule
@pytest.mark.parametrize("by", ["router", "goto"])
def test_after_an_edit_without_as_node_a_self_loop_continues(drive, saver, schedule, by):
    def ends(state):
        return "a" if len(state["log"]) < 3 else END

    def a(state):
        goto = ends({"log": [*state["log"], "a"]}) if by == "goto" else []
        return Command(update={"log": ["a"]}, goto=goto)

    builder = went(a, "", ("a",))
    if by == "router":
        builder.add_conditional_edges("a", ends, ["a", END])
    thread = drive.on(builder.compile(saver, schedule=schedule, interrupt_before=["a"]))
    thread.invoke(EMPTY)
    thread.invoke(None)
    for entry in ("e", "f"):
        thread.update({"log": [entry]})
    # The router sees the edited state; a goto stays.
    assert thread.state.next == (("a",) if by == "goto" else ())
    if by == "goto":
        assert thread.invoke(None)["log"] == ["a", "e", "f", "a"]


# -- while the input waits --------------------------------------------------------------------------------------------


@each_schedule
@pytest.mark.parametrize("turns", [1, 2])
def test_an_edit_without_as_node_replaces_a_pending_input(drive, saver, schedule, turns):
    """And the next call goes on."""
    thread = drive.on(build("S>a>b").compile(saver, schedule=schedule))
    for turn in range(turns):
        thread.invoke({"log": [f"i{turn}"]})
    at = next(each for each in thread.history() if each.next == (START,))
    drive.update_state(thread.app, at.config, {"log": ["edit"]})
    assert thread.state.next == ("a",)
    assert thread.invoke(None)["log"] == [*["i0", "a", "b"][: 3 * (turns - 1)], "edit", "a", "b"]
    assert thread.state.next == ()


# -- all of it, against a rule ----------------------------------------------------------------------------------------


@pytest.mark.trial
def test_an_edit_during_sends_is_refused_or_exact(drive):
    """See `edits_beside_sends`: 200 of its shapes, drawn by lot; `make chaos` takes all."""
    random = Random(200)
    with Mode("async" if drive.is_async else "sync") as world:
        for fan in random.sample(FANS, 200):
            edit_beside_sends(fan, random, world.call, InMemorySaver())


@each_schedule
def test_an_edit_replaces_what_its_router_has_sent_whatever_else_the_sends_hold(drive, saver, schedule):
    """An agent sends its tool calls with the state and the steps that remain, which differ each time."""
    asked = []

    def route(state):
        asked.append(None)
        return [Send("tool", {"call": state["log"][-1], "asked": len(asked)})]

    builder = graph_of(
        State, "S>agent", agent=lambda _: {"log": ["wrong"]}, tool=lambda sent: {"log": [f"called {sent['call']}"]}
    )
    builder.add_conditional_edges("agent", route, ["tool"])
    thread = drive.on(builder.compile(saver, interrupt_before=["tool"], schedule=schedule))
    thread.invoke(EMPTY)
    thread.update({"log": ["right"]})
    assert thread.state.next == ("tool",)
    assert thread.invoke(None)["log"] == ["wrong", "right", "called right"]
