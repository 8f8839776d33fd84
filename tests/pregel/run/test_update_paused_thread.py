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
from kit.graphs import chain_of, graph_of
from kit.pausing_graphs import CFG, Ran, State, asked, asks, graph, says
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
    return graph(nodes, (START, "a"), ("a", "ask"), ("a", "charge"), ("charge", "receipt"), checkpointer=saver)


def question(drive, app):
    (found,) = drive.get_state(app, CFG).interrupts
    return found


def test_a_finished_sibling_counts_once(drive, saver):
    ran = Ran()
    app = shop(ran, saver)
    drive.invoke(app, {}, CFG)
    before = question(drive, app)
    drive.update_state(app, CFG, {"log": ["edited"]})
    state = drive.get_state(app, CFG)
    assert state.next == ("ask",)
    assert state.values["log"] == ["a", "edited", "charged"]
    assert question(drive, app) == before
    assert drive.invoke(app, Command(resume={before.id: "yes"}), CFG)["log"] == [
        "a", "edited", ("ask", "yes"), "charged", "receipt",
    ]  # fmt: skip
    assert ran.take() == ["a", "ask", "ask", "charged", "receipt"]


def test_two_edits_in_a_row_keep_pending_tasks(drive, saver):
    ran = Ran()
    app = shop(ran, saver)
    drive.invoke(app, {}, CFG)
    drive.update_state(app, CFG, {"log": ["one"]})
    drive.call(app, "bulk_update_state", CFG, [[StateUpdate({"log": ["two"]}, "a")], [StateUpdate({"log": ["three"]}, "a")]])
    assert drive.invoke(app, Command(resume="yes"), CFG)["log"] == [
        "a", "one", "two", "three", ("ask", "yes"), "charged", "receipt",
    ]  # fmt: skip
    assert ran.take() == ["a", "ask", "ask", "charged", "receipt"]


def test_an_edit_of_a_graph_of_one_node_closes_no_question(drive, saver):
    app = graph({"ask": asks("ask")}, (START, "ask"), checkpointer=saver)
    drive.invoke(app, {}, CFG)
    before = question(drive, app)
    drive.update_state(app, CFG, {"log": ["edited"]})
    assert drive.get_state(app, CFG).next == ("ask",)
    assert question(drive, app).id == before.id
    assert drive.invoke(app, Command(resume="yes"), CFG)["log"] == ["edited", ("ask", "yes")]


def test_an_edit_around_a_paused_subgraph_of_the_only_node(drive, saver):
    ran = Ran()
    inner = graph({"s": says("s", ran), "ask": asks("ask", ran)}, (START, "s"), ("s", "ask"), checkpointer=None)
    app = graph({"sub": inner}, (START, "sub"), checkpointer=saver)
    drive.invoke(app, {}, CFG)
    before = question(drive, app)
    drive.update_state(app, CFG, {"log": ["edited"]})
    assert question(drive, app).id == before.id
    assert drive.get_state(app, CFG, subgraphs=True).tasks[0].state.next == ("ask",)
    log = drive.invoke(app, Command(resume={before.id: "yes"}), CFG)["log"]
    assert ran.take() == ["ask", "ask", "s"]
    assert log.count(("ask", "yes")) == 1


def test_calls_of_a_paused_task_do_not_run_again_after_an_edit(drive, saver):
    charges = []

    @task
    def charge() -> str:
        charges.append("charge")
        return "charged"

    def pay(state):
        return {"log": [charge().result(), interrupt("sure?")]}

    app = graph({"a": says("a"), "pay": pay}, (START, "a"), ("a", "pay"), checkpointer=saver)
    drive.invoke(app, {}, CFG)
    drive.update_state(app, CFG, {"log": ["edited"]})
    assert drive.invoke(app, Command(resume="yes"), CFG)["log"] == ["a", "edited", "charged", "yes"]
    assert charges == ["charge"]


def test_answers_given_before_an_edit_are_kept(drive, saver):
    app = graph({"a": says("a"), "ask": asks("ask", count=2)}, (START, "a"), ("a", "ask"), checkpointer=saver)
    drive.invoke(app, {}, CFG)
    assert asked(drive.invoke(app, Command(resume=1), CFG)) == ["ask1?"]
    drive.update_state(app, CFG, {"log": ["edited"]})
    assert drive.invoke(app, Command(resume=2), CFG)["log"] == ["a", "edited", ("ask", 1, 2)]


class Draft(TypedDict, total=False):
    text: str
    log: Annotated[list[Any], operator.add]


def test_an_answer_to_the_old_id_after_an_edit_applies_to_the_edited_state(drive, saver):
    def review(state: Draft):
        return {"log": [(state["text"], interrupt(f"send {state['text']!r}?"))]}

    app = chain_of(Draft, write=lambda s: {"text": "draft"}, review=review).compile(checkpointer=saver)
    drive.invoke(app, {}, CFG)
    before = question(drive, app)
    drive.update_state(app, CFG, {"text": "final"})
    assert drive.invoke(app, Command(resume={before.id: True}), CFG)["log"] == [("final", True)]


def test_after_an_edit_an_answer_reaches_only_the_interrupt_with_its_key(drive, saver):
    def shop(state):
        return {"log": [(item, interrupt(f"buy {item}?", key=item)) for item in ("tea", "gold")]}

    app = graph({"a": says("a"), "shop": shop}, (START, "a"), ("a", "shop"), checkpointer=saver)
    drive.invoke(app, {}, CFG)
    drive.invoke(app, Command(resume="tea yes"), CFG)
    drive.update_state(app, CFG, {"log": ["edited"]})
    assert [each.value for each in drive.get_state(app, CFG).interrupts] == ["buy gold?"]
    done = drive.invoke(app, Command(resume="gold no"), CFG)
    assert done["log"][-2:] == [("tea", "tea yes"), ("gold", "gold no")]


def test_an_interrupt_raised_again_after_an_edit_has_the_new_value(drive, saver):
    def review(state: Draft):
        return {"log": [(state["text"], interrupt(f"send {state['text']!r}?"))]}

    app = chain_of(Draft, write=lambda s: {"text": "draft"}, review=review).compile(checkpointer=saver)
    drive.invoke(app, {}, CFG)
    drive.update_state(app, CFG, {"text": "final"})
    assert asked(drive.invoke(app, None, CFG)) == ["send 'final'?"]
    assert drive.invoke(app, Command(resume=True), CFG)["log"] == [("final", True)]


def test_sends_repeated_by_the_edited_nodes_router_resume(drive, saver):
    ran = Ran()

    def work(n):
        ran.append(f"work {n}")
        return {"log": [(n, interrupt("?") if n == 2 else "done")]}

    builder = graph_of(Draft, "S>a", a=says("a"), work=work)
    builder.add_conditional_edges("a", lambda s: [Send("work", n) for n in (1, 2, 3)], ["work"])
    app = builder.compile(checkpointer=saver)
    drive.invoke(app, {}, CFG)
    ran.clear()
    drive.update_state(app, CFG, {"log": ["edited"]}, as_node="a")
    assert drive.invoke(app, Command(resume="yes"), CFG)["log"] == ["a", "edited", (1, "done"), (2, "yes"), (3, "done")]
    assert ran == ["work 2"]


def test_of_equal_sends_the_open_one_resumes_and_the_finished_one_does_not(drive, saver):
    builder = StateGraph(State).add_node("w", asks("w")).add_node("n", asks("n"))
    builder.add_conditional_edges(START, lambda _: [Send("w", {"log": []}), Send("w", {"log": []}), "n"], ["w", "n"])
    app = builder.compile(saver)
    drive.invoke(app, {}, CFG)
    first, second = [each.interrupts[0].id for each in drive.get_state(app, CFG).tasks if each.name == "w"]
    drive.invoke(app, Command(resume={first: 1}), CFG)
    drive.update_state(app, CFG, {"log": ["n by hand"]}, "n")
    assert question(drive, app).id == second
    drive.invoke(app, Command(resume=2), CFG)
    assert drive.get_state(app, CFG).values["log"] == ["n by hand", ("w", 1), ("w", 2)]


def test_a_node_pending_by_a_send_and_by_an_edge_needs_two_updates(drive, saver):
    ran = Ran()
    app = (
        chain_of(Draft, a=says("a", ran), two=says("two", ran))
        .add_conditional_edges("a", lambda s: [Send("two", {})], ["two"])
        .compile(checkpointer=saver, interrupt_before=["two"])
    )
    drive.invoke(app, {}, CFG)
    assert drive.get_state(app, CFG).next == ("two", "two")
    both = [StateUpdate({"log": ["A"]}, "two"), StateUpdate({"log": ["B"]}, "two")]
    drive.call(app, "bulk_update_state", CFG, [both])
    assert drive.get_state(app, CFG).next == ()
    assert drive.get_state(app, CFG).values["log"] == ["a", "A", "B"]


def test_a_copy_can_update_a_node_pending_by_a_send_and_by_an_edge(drive, saver):
    app = (
        chain_of(Draft, a=says("a"), two=says("two"))
        .add_conditional_edges("a", lambda s: [Send("two", {})], ["two"])
        .compile(checkpointer=saver, interrupt_before=["two"])
    )
    drive.invoke(app, {}, CFG)
    pairs = [({"log": ["A"]}, "two"), ({"log": ["B"]}, "two")]
    drive.update_state(app, CFG, pairs, as_node="__copy__")
    assert drive.get_state(app, CFG).next == ()


def test_a_pending_sibling_keeps_its_interrupt(drive, saver):
    nodes = {"a": says("a"), "p": asks("p"), "q": asks("q"), "z": says("z")}
    app = graph(nodes, (START, "a"), ("a", "p"), ("a", "q"), ("p", "z"), ("q", END), checkpointer=saver)
    drive.invoke(app, {}, CFG)
    ids = {each.value: each.id for each in drive.get_state(app, CFG).interrupts}
    drive.update_state(app, CFG, {"log": ["as p"]}, as_node="p")
    (left,) = drive.get_state(app, CFG).interrupts
    assert (left.value, left.id) == ("q?", ids["q?"])
    assert drive.invoke(app, Command(resume="yes"), CFG)["log"] == ["a", "as p", ("q", "yes"), "z"]


def test_a_deferred_node_waits_for_an_interrupt_behind_a_join(drive, saver):
    """What a join holds pending is work, too, though the edit has not moved it."""
    builder = graph_of(State, "S>a>b a>last [a,b]>ask", a=says("a"), b=says("b"), ask=asks("ask"))
    builder.add_node("last", lambda state: {"log": [("saw", *state["log"])]}, defer=True)
    app = builder.compile(checkpointer=saver)
    drive.invoke(app, {}, CFG)
    drive.update_state(app, CFG, {"log": ["edited"]})
    assert drive.get_state(app, CFG).next == ("ask",)
    done = ["a", "b", "edited", ("ask", "yes")]
    assert drive.invoke(app, Command(resume="yes"), CFG)["log"] == [*done, ("saw", *done)]


def test_a_deferred_node_that_has_started_keeps_its_interrupt(drive, saver):
    """Also if the edit leads to it once more, while another deferred node is done."""
    builder = graph_of(State, "S>a>b a>done a>ask b>ask", a=says("a"), b=says("b"))
    builder.add_node("done", says("done"), defer=True).add_node("ask", asks("ask"), defer=True)
    app = builder.compile(checkpointer=saver)
    drive.invoke(app, {}, CFG)
    before = question(drive, app)
    drive.update_state(app, CFG, {"log": ["edited"]})
    assert drive.get_state(app, CFG).next == ("ask",)
    assert question(drive, app) == before
    log = drive.invoke(app, Command(resume={before.id: "yes"}), CFG)["log"]
    assert sorted(log, key=str) == sorted(["a", "b", "edited", ("ask", "yes"), "done"], key=str)


def test_an_update_to_another_branch_closes_the_interrupts_it_replaces(drive, saver):
    builder = graph_of(Draft, "S>a", a=says("a"), p=asks("p"), q=says("q"))
    builder.add_conditional_edges("a", lambda s: "q" if s.get("text") else "p", ["p", "q"])
    app = builder.compile(checkpointer=saver)
    drive.invoke(app, {}, CFG)
    with pytest.warns(GraphWarning, match="as 'a' does not lead to 'p', and so closes the questions .* act as the node .*as_node='p'"):
        drive.update_state(app, CFG, {"text": "now"}, as_node="a")
    assert drive.get_state(app, CFG).next == ("q",) and not drive.get_state(app, CFG).interrupts
    assert drive.invoke(app, None, CFG)["log"] == ["a", "q"]


def test_an_update_that_closes_the_interrupt_of_an_error_handler_warns(drive, saver):
    """Its node runs again, for the update may have mended what it failed of."""

    def fails(state):
        raise OSError("it is down")

    builder = StateGraph(State).add_node("a", fails, error_handler=asks("mend")).add_node("b", asks("b"))
    app = builder.add_edge(START, "a").add_edge(START, "b").compile(checkpointer=saver)
    drive.invoke(app, {}, CFG)
    with pytest.warns(GraphWarning, match="closes the question that the error handler of 'a' asks; .* as_node='a'"):
        drive.update_state(app, CFG, {"log": ["by hand"]}, as_node="b")
    assert drive.get_state(app, CFG).next == ("a",)
    drive.update_state(app, CFG, {"log": ["a by hand"]}, as_node="a")  # says nothing: it is answered by that
    assert drive.get_state(app, CFG).values["log"] == ["by hand", "a by hand"]


@pytest.mark.parametrize("spoken", [1, 2, 3])
def test_updates_for_sends_keep_the_task_started_by_an_edge_of_the_same_node(spoken, drive, saver):
    ran = Ran()
    app = (
        chain_of(State, a=says("a", ran), w=says("w", ran))
        .add_conditional_edges("a", lambda state: [Send("w", {"log": [n]}) for n in (1, 2)], ["w"])
        .compile(checkpointer=saver, interrupt_before=["w"])
    )
    drive.invoke(app, {}, CFG)
    drive.call(app, "bulk_update_state", CFG, [[StateUpdate({"log": [f"e{n}"]}, "w") for n in range(spoken)]])
    assert drive.get_state(app, CFG).next == ("w",) * (3 - spoken)
    if spoken < 3:
        drive.invoke(app, None, CFG)
    assert ran == ["a", *["w"] * (3 - spoken)]


def test_a_replay_from_before_the_edit_interrupts_again(drive, saver):
    ran = Ran()
    app = shop(ran, saver)
    drive.invoke(app, {}, CFG)
    before = drive.get_state(app, CFG).config
    drive.update_state(app, CFG, {"log": ["edited"]})
    drive.invoke(app, Command(resume="yes"), CFG)
    ran.clear()
    assert asked(drive.invoke(app, None, before)) == ["ask?"]
    assert ran.take() == ["ask", "charged"]
    assert drive.invoke(app, Command(resume="no"), CFG)["log"] == ["a", ("ask", "no"), "charged", "receipt"]


def test_a_pruned_thread_resumes_after_an_edit(drive, saver):
    ran = Ran()
    inner = graph({"s": says("s", ran), "ask": asks("ask", ran)}, (START, "s"), ("s", "ask"), checkpointer=None)
    app = graph({"sub": inner}, (START, "sub"), checkpointer=saver)
    drive.invoke(app, {}, CFG)
    drive.update_state(app, CFG, {"log": ["edited"]})
    saver.prune()
    ran.clear()
    drive.invoke(app, Command(resume="yes"), CFG)
    assert ran.take() == ["ask"]


@pytest.mark.filterwarnings("ignore:node 'm' will run")
def test_after_an_edit_a_new_task_runs_its_subgraph_with_memory_again(drive, saver):
    """The task before it, which has ended, had run beside a checkpoint whose other tasks go on."""
    ran = Ran()
    memory = graph({"turn": says("turn", ran)}, (START, "turn"), checkpointer=True)
    nodes = {"m": memory, "a": asks("a", ran), "c": asks("c", ran), "b": asks("b", ran)}
    edges = [(START, "m"), (START, "a"), ("a", "c"), ("c", "m"), (START, "b")]
    app = graph(nodes, *edges, checkpointer=saver)
    drive.invoke(app, {}, CFG)
    drive.update_state(app, CFG, {"log": ["edit"]}, "a")
    drive.update_state(app, CFG, {"log": ["edit"]}, "c")
    drive.invoke(app, None, CFG)
    assert ran.count("turn") == 2


def test_a_node_that_raised_graph_interrupt_runs_again_after_an_edit(drive, saver):
    from stategraph import GraphInterrupt

    def short(state: Draft):
        if len(state["text"]) > 3:
            raise GraphInterrupt("too long")
        return {"log": [state["text"]]}

    app = chain_of(Draft, short=short).compile(checkpointer=saver)
    assert asked(drive.invoke(app, {"text": "long text"}, CFG)) == ["too long"]
    drive.update_state(app, CFG, {"text": "ok"})
    assert drive.invoke(app, None, CFG)["log"] == ["ok"]


@pytest.mark.parametrize("call", [None, Command(resume="yes")], ids=["none", "answer"])
def test_resume_from_the_config_of_the_edit_runs_finished_tasks_only_once(drive, saver, call):
    ran = Ran()
    app = shop(ran, saver)
    drive.invoke(app, {}, CFG)
    ran.clear()
    made = drive.update_state(app, CFG, {"log": ["edited"]})
    drive.invoke(app, call, made)
    if call is None:
        assert ran.take() == ["ask"]
        drive.invoke(app, Command(resume="yes"), CFG)
    assert ran.take() == ["ask", "receipt"]
    assert drive.get_state(app, CFG).values["log"] == ["a", "edited", ("ask", "yes"), "charged", "receipt"]


def test_an_edit_of_a_paused_entrypoint_needs_as_node(drive, saver):
    @entrypoint(checkpointer=saver)
    def flow(x: int) -> Any:
        return interrupt("ok?")

    drive.invoke(flow, 1, CFG)
    with pytest.raises(InvalidUpdateError, match="specify as_node='flow'"):
        drive.update_state(flow, CFG, None)
    assert drive.invoke(flow, Command(resume="yes"), CFG) == "yes"


def test_an_edit_in_a_loop_acts_as_the_run_that_ended(drive, saver):
    app = (
        chain_of(Draft, ask=asks("ask"))
        .add_conditional_edges("ask", lambda s: "ask" if len(s["log"]) < 4 else END, ["ask", END])
        .compile(checkpointer=saver)
    )
    drive.invoke(app, {}, CFG)
    drive.invoke(app, Command(resume=1), CFG)
    before = question(drive, app)
    drive.update_state(app, CFG, {"log": ["edited"]})
    assert question(drive, app).id == before.id


def test_an_update_without_as_node_closes_no_interrupt(drive, saver):
    """c and after_p are pending together, behind nodes that ran at different times: who ran last is a guess."""
    nodes = {"a": says("a"), "b": says("b"), "c": says("c"), "p": asks("p"), "after": asks("after")}
    builder = StateGraph(Draft)
    for name, body in nodes.items():
        builder.add_node(name, body)
    builder.add_edge(START, "a").add_edge("a", "b").add_edge("b", "c").add_edge(["a", "b"], "p").add_edge("p", "after")
    app = builder.compile(checkpointer=saver)
    drive.invoke(app, {}, CFG)
    drive.update_state(app, CFG, {"log": ["one"]}, as_node="b")
    drive.invoke(app, Command(resume="yes"), CFG)
    before = question(drive, app)
    try:
        drive.update_state(app, CFG, {"log": ["two"]})
    except InvalidUpdateError as error:
        assert "specify as_node" in str(error)
    assert question(drive, app) == before
    drive.update_state(app, CFG, {"log": ["two"]}, as_node="p")
    assert question(drive, app).id == before.id


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
    app = builder.compile(saver)
    drive.invoke(app, {}, {**CFG, "max_concurrency": 1})
    assert ran.take() == ["ask", "x1"] and drive.get_state(app, CFG).next == ("ask",)
    drive.update_state(app, CFG, {"log": ["edited"]}, by)
    assert drive.get_state(app, CFG).next == (() if by == "ask" else ("ask",))
    drive.invoke(app, None, CFG)
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
    app = build("S>a r:a=w w>c", {"a": sends("w", 0, 1)}, {"w": one_asks}).compile(saver, schedule=schedule)
    drive.invoke(app, {"log": []}, CFG)
    before = drive.get_state(app, CFG)
    for entry in ("e0", "e1"):
        drive.update_state(app, CFG, {"log": [entry]})
        state = drive.get_state(app, CFG)
        assert (state.next, state.interrupts) == (before.next, before.interrupts)
    log = drive.invoke(app, Command(resume="w1"), CFG)["log"]
    assert sorted(log) == ["a", "c", "e0", "e1", "w0", "w1"]


def falls_asleep(name):
    def body(state):
        get_runtime().sleep(3600, durable_after=0)

    return body


@each_schedule
@pytest.mark.parametrize("stop", ["breakpoint", "sleep"])
def test_a_plain_edit_after_sends_and_a_sibling_is_ambiguous(drive, saver, schedule, stop):
    nodes = {name: falls_asleep(name) for name in "cq"} if stop == "sleep" else {}
    app = build("S>a r:a=w a>p w>c p>q", {"a": sends("w", 0, 1)}, nodes).compile(
        saver, schedule=schedule, interrupt_before=["c", "q"] if stop == "breakpoint" else []
    )
    drive.invoke(app, {"log": []}, CFG)
    before = drive.get_state(app, CFG)
    assert before.next == ("c", "q")
    with pytest.raises(InvalidUpdateError, match="ambiguous, specify as_node: p, w ran last together"):
        drive.update_state(app, CFG, {"log": ["edit"]})
    assert drive.get_state(app, CFG) == before


@each_schedule
@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_a_plain_edit_after_finished_sends_follows_their_edges(drive, saver, schedule, durability):
    app = build("S>a r:a=w w>c", {"a": sends("w", 0, 1)}).compile(saver, schedule=schedule, interrupt_before=["c"])
    drive.invoke(app, {"log": []}, CFG, durability=durability)
    for _ in range(2):
        drive.update_state(app, CFG, None)
        assert drive.get_state(app, CFG).next == ("c",)
    drive.update_state(app, CFG, None, "a")
    assert drive.get_state(app, CFG).next == ("w", "w")
    # After an update as a node that one has run last.
    drive.update_state(app, CFG, None)
    assert drive.get_state(app, CFG).next == ("w", "w")


@each_schedule
def test_a_plain_edit_of_a_checkpoint_after_sends_follows_their_edges(drive, saver, schedule):
    app = build("S>a r:a=w w>c", {"a": sends("w", 0, 1)}).compile(saver, schedule=schedule)
    with ends_by(lambda task: task.path):
        drive.invoke(app, {"log": []}, CFG)
    at = next(each for each in drive.history(app, CFG) if each.next == ("c",))
    drive.update_state(app, at.config, None)
    assert drive.invoke(app, None, CFG)["log"] == ["a", "w0", "w1", "c"]


@each_schedule
def test_an_edit_as_a_send_counts_as_its_run(drive, saver, schedule):
    app = build("S>a r:a=w w>c", {"a": sends("w", 1)}, {"w": one_asks}).compile(
        saver, schedule=schedule, interrupt_before=["c"]
    )
    drive.invoke(app, {"log": []}, CFG)
    for as_node in ("w", None):
        drive.update_state(app, CFG, {"log": ["edit"]}, as_node)
        assert drive.get_state(app, CFG).next == ("c",)


@each_schedule
def test_a_plain_edit_after_the_failure_of_a_send_was_handled_keeps_where_the_handler_went(drive, saver, schedule):
    def fail(given):
        raise ValueError

    def handle(state) -> Command[Literal["y"]]:
        return Command(update={"log": ["handled"]}, goto="y")

    builder = build("r:S=w w>c y", {"S": sends("w", 0)})
    builder.nodes.pop("w")
    builder.add_node("w", fail, error_handler=handle)
    app = builder.compile(saver, schedule=schedule, interrupt_before=["y"])
    drive.invoke(app, {"log": []}, CFG)
    assert drive.get_state(app, CFG).next == ("y",)
    drive.update_state(app, CFG, {"log": ["edit"]})
    # It acts as the node that has failed, as it does where no Send led to that.
    assert drive.get_state(app, CFG).next == ("c", "y")


@each_schedule
def test_in_a_nested_graph_too(drive, saver, schedule):
    inner = build("S>a r:a=w w>c", {"a": sends("w", 0, 1)}).compile(schedule=schedule, interrupt_before=["c"])
    app = build("S>n", nodes={"n": inner}).compile(saver, schedule=schedule)
    with ends_by(lambda task: task.path):
        drive.invoke(app, {"log": []}, CFG)
    inside = drive.get_state(app, CFG, subgraphs=True).tasks[0].state.config
    drive.update_state(app, inside, {"log": ["edit"]})
    assert drive.get_state(app, inside).next == ("c",)
    assert drive.invoke(app, None, CFG)["log"] == ["a", "w0", "w1", "edit", "c"]


def test_nodes_started_by_a_goto_count_as_last_run_with_their_siblings(drive, saver):
    """Its trigger is newer than theirs, though all ran in one superstep."""
    app = build("r:S=a|x a>b>bz x>xz", {"S": lambda _: "a"}).compile(saver, interrupt_before=["b", "bz", "xz"])
    drive.invoke(app, {"log": []}, CFG)
    drive.invoke(app, Command(goto="x"), CFG)
    assert drive.get_state(app, CFG).next == ("bz", "xz")
    with pytest.raises(InvalidUpdateError, match="specify as_node: b, x ran last together"):
        drive.update_state(app, CFG, {"log": ["edit"]})


def test_a_thread_that_stored_no_trace_of_its_sends_is_edited_as_before(drive):
    """As the last release stored it."""
    saver = InMemorySaver()
    app = build("S>a r:a=w w>c", {"a": sends("w", 0, 1)}).compile(saver, interrupt_before=["c"])
    drive.invoke(app, {"log": []}, CFG)
    stored = saver.get_tuple(CFG)
    assert stored is not None and stored.checkpoint["versions_seen"]["w"].pop(TASKS)
    old = {"configurable": {"thread_id": "old", "checkpoint_ns": ""}}
    saver.put(old, stored.checkpoint, stored.metadata, stored.checkpoint["channel_versions"])
    drive.update_state(app, old, {"log": ["edit"]}, "w")
    assert drive.get_state(app, old).next == ("c",)
    assert drive.invoke(app, None, old)["log"] == ["a", "w0", "w1", "edit", "c"]


# -- what came by a goto, or from another node ------------------------------------------------------------------------


@each_schedule
def test_an_edit_without_as_node_keeps_nodes_started_by_goto(drive, saver, schedule):
    app = went(going("x"), "a>y x", ("x", "y")).compile(saver, schedule=schedule, interrupt_before=["x", "y"])
    drive.invoke(app, {"log": []}, CFG)
    for _ in range(2):
        drive.update_state(app, CFG, {"log": ["edit"]})
        assert drive.get_state(app, CFG).next == ("x", "y")
    at = next(each for each in drive.history(app, CFG) if each.next == ("x", "y") and "edit" not in each.values["log"])
    fork = drive.update_state(app, at.config, {"log": ["fork"]})
    assert drive.get_state(app, fork).next == ("x", "y")


@each_schedule
def test_a_plain_edit_keeps_sends_of_a_goto_with_their_results_and_questions(drive, saver, schedule):
    app = went(going([Send("w", {"n": 0}), Send("w", {"n": 1})]), "w>c", ("w",), w=one_asks).compile(
        saver, schedule=schedule
    )
    drive.invoke(app, {"log": []}, CFG)
    (asked,) = drive.get_state(app, CFG).interrupts
    drive.update_state(app, CFG, {"log": ["edit"]})
    assert drive.get_state(app, CFG).interrupts == (asked,)
    log = drive.invoke(app, Command(resume={asked.id: "w1"}), CFG)["log"]
    assert sorted(log) == ["a", "c", "edit", "w0", "w1"]


@each_schedule
def test_an_update_that_says_where_to_go_replaces_an_earlier_goto(drive, saver, schedule):
    app = went(going("x"), "y x", ("x", "y")).compile(saver, schedule=schedule, interrupt_before=["x", "y"])
    drive.invoke(app, {"log": []}, CFG)
    drive.update_state(app, CFG, Command(update={"log": ["edit"]}, goto="y"))
    assert drive.get_state(app, CFG).next == ("y",)


@each_schedule
def test_a_router_that_decides_otherwise_after_a_plain_edit_is_followed(drive, saver, schedule):
    def route(state):
        return "y" if "edit" in state["log"] else "x"

    builder = went(going("z"), "z x y", ("z",)).add_conditional_edges("a", route, ["x", "y"])
    app = builder.compile(saver, schedule=schedule, interrupt_before=["x", "y", "z"])
    drive.invoke(app, {"log": []}, CFG)
    assert drive.get_state(app, CFG).next == ("x", "z")
    drive.update_state(app, CFG, {"log": ["edit"]})
    assert drive.get_state(app, CFG).next == ("y", "z")


@each_schedule
def test_a_plain_edit_keeps_what_an_edit_as_a_sibling_has_left_pending(drive, saver, schedule):
    app = build("S>a>p>pz a>q>qz").compile(saver, schedule=schedule, interrupt_before=["p", "q", "pz"])
    drive.invoke(app, {"log": []}, CFG)
    drive.update_state(app, CFG, {"log": ["p by hand"]}, "p")
    drive.update_state(app, CFG, {"log": ["edit"]})
    assert drive.get_state(app, CFG).next == ("pz", "q")
    drive.invoke(app, None, CFG)
    log = drive.get_state(app, CFG).values["log"]
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
    app = builder.compile(saver, schedule=schedule, interrupt_before=["a"])
    drive.invoke(app, {"log": []}, CFG)
    drive.invoke(app, None, CFG)
    for entry in ("e", "f"):
        drive.update_state(app, CFG, {"log": [entry]})
    # The router sees the edited state; a goto stays.
    assert drive.get_state(app, CFG).next == (("a",) if by == "goto" else ())
    if by == "goto":
        assert drive.invoke(app, None, CFG)["log"] == ["a", "e", "f", "a"]


# -- while the input waits --------------------------------------------------------------------------------------------


@each_schedule
@pytest.mark.parametrize("turns", [1, 2])
def test_an_edit_without_as_node_replaces_a_pending_input(drive, saver, schedule, turns):
    """And the next call goes on."""
    app = build("S>a>b").compile(saver, schedule=schedule)
    for turn in range(turns):
        drive.invoke(app, {"log": [f"i{turn}"]}, CFG)
    at = next(each for each in drive.history(app, CFG) if each.next == (START,))
    drive.update_state(app, at.config, {"log": ["edit"]})
    assert drive.get_state(app, CFG).next == ("a",)
    assert drive.invoke(app, None, CFG)["log"] == [*["i0", "a", "b"][: 3 * (turns - 1)], "edit", "a", "b"]
    assert drive.get_state(app, CFG).next == ()


# -- all of it, against a rule ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [30, pytest.param(1_500, marks=pytest.mark.trial)])
def test_an_edit_during_sends_is_refused_or_exact(drive, rounds):
    """See `edits_beside_sends`: as many of its shapes, drawn by lot."""
    random = Random(rounds)
    with Mode("async" if drive.is_async else "sync") as world:
        for fan in random.sample(FANS, rounds):
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
    app = builder.compile(saver, interrupt_before=["tool"], schedule=schedule)
    drive.invoke(app, {"log": []}, CFG)
    drive.update_state(app, CFG, {"log": ["right"]})
    assert drive.get_state(app, CFG).next == ("tool",)
    assert drive.invoke(app, None, CFG)["log"] == ["wrong", "right", "called right"]
