"""interrupt() and resume: several interrupts per node, per superstep, in routers, calls and subgraphs; any answer;
invalid answers.
"""

from __future__ import annotations

import asyncio
import threading
from contextvars import copy_context
from dataclasses import dataclass

import pytest
from kit.drive import each_case, each_durability
from kit.executor_graphs import asks_in_a_group
from kit.graphs import CONFIG, EMPTY, chain_of, graph_of
from kit.pausing_graphs import Ran, State, answer, asked, asks, at, fails, graph, ids, says
from pydantic import BaseModel, ValidationError

from stategraph import (
    END,
    START,
    Command,
    GraphInterrupt,
    InMemorySaver,
    Interrupt,
    RetryPolicy,
    StateGraph,
    UnknownInterruptError,
    entrypoint,
    interrupt,
    task,
)
from stategraph.channels import LastValue
from stategraph.checkpoint import UnserializableError
from stategraph.pregel import NodeBuilder, Pregel

# -- one node -------------------------------------------------------------------------------------------------


def test_a_question_pauses_and_its_answer_is_what_interrupt_returns(drive):
    thread = drive.on(graph("S>n>z", n=asks("n")))
    first = thread.invoke({"a": 1})
    assert (first["a"], asked(first), thread.state.next) == (1, ["n?"], ("n",))
    assert thread.resume("yes")["log"] == [("n", "yes"), "z"]
    assert thread.state.next == ()


def test_a_paused_node_runs_again_from_its_start_for_each_answer(drive):
    ran = Ran()
    thread = drive.on(graph("S>n", n=asks("n", ran, count=2)))
    first = thread.invoke({})
    second = thread.resume("A")
    assert (asked(first), asked(second)) == (["n?"], ["n1?"])
    assert ids(first)["n?"] != ids(second)["n1?"]
    assert thread.resume("B")["log"] == [("n", "A", "B")]
    assert ran == ["n", "n", "n"]


@each_case("value", [None, False, 0, "", {}, [], (), {"k": 1}, {"a" * 31: 1}, ["x"], ("p", "P")])
def test_any_value_is_an_answer_and_is_returned_unchanged(drive, value):
    thread = drive.on(graph("S>n", n=asks("n")))
    thread.invoke({})
    [(_, got)] = thread.resume(value)["log"]
    assert got == value and type(got) is type(value)


def test_ids_are_32_hex_digits_and_differ_between_rounds_of_a_loop(drive):
    thread = drive.on(
        chain_of(State, n=asks("n"))
        .add_conditional_edges("n", lambda state: END if len(state["log"]) == 3 else "n")
        .compile(InMemorySaver())
    )
    found = []
    result = thread.invoke({})
    for number in range(3):
        found.append(result["__interrupt__"][0].id)
        result = thread.resume(number)
    assert result["log"] == [("n", 0), ("n", 1), ("n", 2)]
    assert len(set(found)) == 3 and all(len(i) == 32 and set(i) <= set("0123456789abcdef") for i in found)


def test_except_exception_cannot_swallow_a_question(drive):
    """D1: signals are no Exceptions."""

    def node(state):
        try:
            return {"log": [interrupt("sure?")]}
        except Exception:
            return {"log": ["swallowed"]}

    thread = drive.on(graph("S>n", n=node))
    assert asked(thread.invoke({})) == ["sure?"]
    assert thread.resume(1)["log"] == [1]


def test_what_a_node_cleans_up_does_not_stop_its_question(drive):
    closed = []

    def node(state):
        try:
            return {"log": [interrupt("?")]}
        finally:
            closed.append(1)

    thread = drive.on(graph("S>n", n=node))
    thread.invoke({})
    assert thread.resume(1)["log"] == [1] and closed == [1, 1]


def test_a_question_without_a_checkpointer_is_an_error_that_says_what_to_do(drive):
    app = graph("S>n", n=asks("n"), checkpointer=None)
    with pytest.raises(RuntimeError, match=r"node 'n' called interrupt\(\), but the graph has no checkpointer"):
        drive.invoke(app, {})


def test_an_unserializable_interrupt_or_answer_names_its_node(drive):
    app = graph("S>n", n=lambda s: {"log": [interrupt({"q": print})]})
    with pytest.raises(UnserializableError) as caught:
        drive.invoke(app, {}, CONFIG)
    assert caught.value.__notes__ == ["while storing what interrupt() asks of task 'n' of thread 't'"]
    app = graph("S>n", n=asks("n"))
    drive.invoke(app, {}, CONFIG)
    with pytest.raises(UnserializableError) as caught:
        drive.invoke(app, Command(resume=print), CONFIG)
    assert caught.value.__notes__ == ["while storing the answer in Command(resume=...) to thread 't'"]
    assert drive.get_state(app, CONFIG).interrupts != ()


def test_a_question_outside_of_a_node_is_an_error():
    with pytest.raises(RuntimeError, match=r"interrupt\(\)"):
        interrupt("?")


def test_a_graph_interrupt_raised_by_a_node_pauses_without_a_value(drive):
    def node(state):
        if state.get("a") == 1:
            raise GraphInterrupt()
        return {"log": ["n"]}

    thread = drive.on(graph("S>n", n=node))
    assert "__interrupt__" not in (thread.invoke({"a": 1}) or {})
    assert thread.state.next == ("n",)
    assert thread.invoke(Command(update={"a": 2}))["log"] == ["n"]


@pytest.mark.parametrize("timeout", [None, 30], ids=["plain", "timed"])
def test_a_value_in_a_raised_graph_interrupt_is_one_interrupt_after_the_answered_ones(timeout, drive):
    """No answer comes back to it: the node runs again, and decides anew."""

    def node(state):
        first = interrupt("first")
        if state.get("a") == 1:
            raise GraphInterrupt("manual interrupt")
        return {"log": [first]}

    graph_ = StateGraph(State).add_node("n", node, timeout=timeout).add_edge(START, "n")
    thread = drive.on(graph_.compile(InMemorySaver()))
    first = thread.invoke({"a": 1})["__interrupt__"]
    second = thread.resume("yes")["__interrupt__"]
    assert [question.value for question in (*first, *second)] == ["first", "manual interrupt"]
    assert first[0].id != second[0].id and len(second[0].id) == 32
    assert thread.state.interrupts == tuple(second)
    assert thread.resume("again")["__interrupt__"] == second, "it decided alike"
    assert thread.invoke(Command(resume="again", update={"a": 2}))["log"] == ["yes"]


def test_a_single_value_in_a_raised_graph_interrupt_keeps_its_id(drive):
    def node(state):
        raise GraphInterrupt(Interrupt("?", "an id"))

    app = graph("S>n", n=node)
    assert drive.invoke(app, {"a": 1}, CONFIG)["__interrupt__"] == [Interrupt("?", "an id")]


def test_a_value_raised_in_a_task_or_a_nested_graph_reaches_the_caller(drive):
    def asks(state):
        raise GraphInterrupt("deep")

    @task
    def call():
        raise GraphInterrupt("from a task")

    inner = chain_of(State, asks=asks).compile()
    nested = graph("S>n", n=inner)
    assert drive.invoke(nested, {"a": 1}, CONFIG)["__interrupt__"][0].value == "deep"
    if not drive.is_async:
        calling = graph("S>n", n=lambda state: call().result())
        assert drive.invoke(calling, {"a": 1}, CONFIG)["__interrupt__"][0].value == "from a task"


def test_a_raw_pregel_asks_too(drive):
    node = NodeBuilder().subscribe_only("a").do(lambda value: value + interrupt("?")).write_to("o")
    thread = drive.on(Pregel(nodes={"n": node}, channels={"a": LastValue(int), "o": LastValue(int)}, input_channels="a",
                 output_channels="o", checkpointer=InMemorySaver()))  # fmt: skip
    assert asked(thread.invoke(1)) == ["?"]
    assert thread.resume(2) == 3


# -- several at once ------------------------------------------------------------------------------------------


def three(ran=None, **nodes):
    """p and q ask, ok does not; z runs after all."""
    bodies = {"q": asks("q", ran), "p": asks("p", ran), "ok": says("ok", ran), "z": says("z"), **nodes}
    return graph("S>p S>q S>ok [p,q,ok]>z", **bodies)


def test_interrupts_of_parallel_nodes_are_returned_in_path_order(drive):
    thread = drive.on(three())
    paused = thread.invoke({})
    state = thread.state
    assert paused["log"] == ["ok"] and asked(paused) == ["p?", "q?"]
    assert (state.next, [q.value for q in state.interrupts], state.values["log"]) == (("p", "q"), ["p?", "q?"], ["ok"])


def test_a_single_answer_to_several_questions_is_refused_and_names_them(drive):
    thread = drive.on(three())
    paused = thread.invoke({})
    with pytest.raises(UnknownInterruptError, match="several questions") as caught:
        thread.resume("x")
    assert isinstance(caught.value, RuntimeError)
    assert (caught.value.reason, caught.value.pending_ids) == ("ambiguous", tuple(ids(paused).values()))
    assert all(i in str(caught.value) for i in ids(paused).values())
    assert thread.state.next == ("p", "q")


def test_a_map_answers_some_and_the_others_stay(drive):
    ran = Ran()
    thread = drive.on(three(ran))
    paused = thread.invoke({})
    ran.clear()
    again = thread.invoke(answer(q="Q")(paused))
    assert (asked(again), again["log"], ran.take()) == (["p?"], ["ok", ("q", "Q")], ["q"])
    assert ids(again)["p?"] == ids(paused)["p?"]
    assert thread.resume("P")["log"] == ["ok", ("p", "P"), ("q", "Q"), "z"]
    assert ran.take() == ["p"]


STALE = "0" * 32


def test_a_map_with_an_unknown_id_is_refused_and_nothing_of_it_is_kept(drive):
    thread = drive.on(three())
    paused = thread.invoke({})
    wrong = Command(resume={ids(paused)["p?"]: 1, STALE: 2})
    with pytest.raises(UnknownInterruptError, match=f"no question is pending under {STALE}; pending: ") as caught:
        thread.invoke(wrong)
    assert (caught.value.reason, caught.value.interrupt_ids) == ("not_pending", (STALE,))
    assert caught.value.pending_ids == tuple(ids(paused).values())
    assert thread.invoke(None)["__interrupt__"] == paused["__interrupt__"]


def test_the_id_of_an_answered_question_does_not_answer_the_next(drive):
    thread = drive.on(graph("S>n", n=asks("n", count=2)))
    first = thread.invoke({})
    thread.resume("A")
    with pytest.raises(UnknownInterruptError, match="no question is pending"):
        thread.resume({ids(first)["n?"]: "B"})
    assert [q.value for q in thread.state.interrupts] == ["n1?"]


@pytest.mark.parametrize("wrong", ["x", None, {STALE: 1}], ids=repr)
def test_an_answer_to_a_finished_thread_is_an_error(drive, wrong):
    thread = drive.on(graph("S>n"))
    thread.invoke({})
    with pytest.raises(UnknownInterruptError, match="no open question|no question is pending"):
        thread.resume(wrong)


def test_an_unused_answer_is_not_kept_for_a_later_run(drive):
    """D9: the peer lets the next input's first question have it."""
    thread = drive.on(graph("S>x>n", n=asks("n")))
    thread.invoke({}, interrupt_before=["x"])
    thread.resume("STALE", interrupt_after=["x"])
    assert asked(thread.invoke(None)) == ["n?"]
    assert asked(thread.invoke({})) == ["n?"]


def test_an_answer_passes_a_breakpoint(drive):
    thread = drive.on(graph("S>n", n=asks("n"), interrupt_before=["n"]))
    thread.invoke({})
    assert thread.resume("early")["log"] == [("n", "early")]


def test_a_siblings_error_is_raised_and_the_question_stays(drive):
    thread = drive.on(three(ok=fails("ok", 1)))
    with pytest.raises(ValueError, match="ok failed"):
        thread.invoke({})
    state = thread.state
    assert set(state.next) == {"ok", "p", "q"}
    paused = thread.invoke(None)
    assert asked(paused) == ["p?", "q?"] and paused["log"] == ["ok"]


def test_new_input_on_a_paused_thread_starts_over(drive):
    thread = drive.on(three())
    first = thread.invoke({})
    second = thread.invoke({"log": ["again"]})
    assert second["log"] == ["again", "ok"] and set(ids(first).values()).isdisjoint(ids(second).values())
    with pytest.raises(UnknownInterruptError):
        thread.invoke(answer(p=1)(first))


def test_streams_contain_every_interrupt_of_a_superstep(drive):
    """Updates and values show questions; a resume shows what finished siblings had written as restored."""
    thread = drive.on(three())
    chunks = thread.stream({}, stream_mode=["updates", "values", "tasks"])
    ended = [data["interrupts"] for mode, data in chunks if mode == "tasks" and "result" in data]
    assert sorted(question["value"] for found in ended for question in found) == ["p?", "q?"]
    updates = [data for mode, data in chunks if mode == "updates"]
    questions = [data["__interrupt__"] for data in updates if "__interrupt__" in data]
    assert {"ok": {"log": ["ok"]}} in updates
    assert sorted(q.value for found in questions for q in found) == ["p?", "q?"]
    last = [data for mode, data in chunks if mode == "values"][-1]
    assert last["log"] == ["ok"]
    resumed = thread.stream(answer(p=1, q=2)(thread.invoke(None)), stream_mode="updates")
    assert {"ok": {"log": ["ok"]}, "__metadata__": {"cached": True}} in resumed


def test_v2_returns_interrupts_next_to_the_value(drive):
    app = three()
    output = drive.invoke(app, {}, CONFIG, version="v2")
    assert (output.value, [q.value for q in output.interrupts]) == ({"log": ["ok"]}, ["p?", "q?"])


# -- several within one task ----------------------------------------------------------------------------------


async def test_questions_gathered_in_one_node_are_shown_together_and_answered_by_call_order():
    async def node(state):
        async def ask(name):
            return (name, interrupt(f"{name}?"))

        return {"log": list(await asyncio.gather(ask("p"), ask("q")))}

    app = graph("S>n", n=node)
    paused = await app.ainvoke({}, CONFIG)
    assert asked(paused) == ["p?", "q?"]
    assert asked(await app.ainvoke(answer(q="Q")(paused), CONFIG)) == ["p?"]
    assert (await app.ainvoke(Command(resume="P"), CONFIG))["log"] == [("p", "P"), ("q", "Q")]


def test_questions_from_threads_of_one_node_have_ids_of_their_own(drive):
    def node(state):
        found = {}

        def ask(name):
            try:
                found[name] = interrupt(f"{name}?")
            except GraphInterrupt as signal:
                found[name] = signal

        for name in "pq":  # one after the other, so that the order of calls is the same each time
            worker = threading.Thread(target=copy_context().run, args=(ask, name))
            worker.start()
            worker.join()
        signals = [signal for signal in found.values() if isinstance(signal, GraphInterrupt)]
        if signals:
            raise signals[0]
        return {"log": [found]}

    thread = drive.on(graph("S>n", n=node))
    paused = thread.invoke({})
    assert asked(paused) == ["p?", "q?"]
    assert thread.invoke(answer(p=1, q=2)(paused))["log"] == [{"p": 1, "q": 2}]


# -- routers and calls ----------------------------------------------------------------------------------------


def test_a_router_may_ask_and_its_node_runs_again(drive):
    ran = Ran()
    builder = graph_of(State, "S>x", x=says("x", ran), y=says("y"))
    builder.add_conditional_edges("x", lambda state: interrupt("where?"), ["y", END])
    thread = drive.on(builder.compile(InMemorySaver()))
    assert asked(thread.invoke({})) == ["where?"]
    assert thread.state.values.get("log", []) == []
    assert thread.resume("y")["log"] == ["x", "y"]
    assert ran == ["x", "x"]


def test_a_router_at_the_start_may_ask_and_the_call_shows_it(drive):
    builder = StateGraph(State).add_node("x", says("x")).add_node("y", says("y"))
    builder.add_conditional_edges(START, lambda state: interrupt("where?"), ["x", "y"])
    thread = drive.on(builder.compile(InMemorySaver()))
    assert asked(thread.invoke({})) == ["where?"]
    assert thread.resume("y")["log"] == ["y"]


def test_calls_of_one_task_ask_together_and_finished_ones_do_not_run_again(drive):
    ran = Ran()

    @task
    def ask(name):
        ran.append(name)
        return interrupt(f"{name}?") if name != "ok" else "ok"

    @entrypoint(checkpointer=InMemorySaver())
    def flow(names):
        return [call.result() for call in [ask(name) for name in names]]

    thread = drive.on(flow)
    paused = thread.invoke(["q", "ok", "p"])
    assert asked(paused) == ["q?", "p?"]
    ran.clear()
    assert asked(thread.invoke(answer(p="P")(paused))) == ["q?"]
    assert thread.resume("Q") == ["Q", "ok", "P"]
    assert "ok" not in ran


# -- what an answer must be -----------------------------------------------------------------------------------


class Choice(BaseModel):
    yes: bool


@dataclass
class Size:
    wide: int


@each_case(
    "schema, given, got",
    [(int, "42", 42), (Choice, {"yes": True}, Choice(yes=True)), (Size, {"wide": 3}, Size(3)), (list[int], ["1"], [1]),
     ({"type": "object"}, "as it is", "as it is"), (None, "x", "x")],
)  # fmt: skip
def test_an_answer_is_made_to_fit_its_schema(drive, schema, given, got):
    answers = []

    def node(state):
        answers.append(interrupt("?", response_schema=schema))

    thread = drive.on(graph("S>n", n=node))
    [question] = thread.invoke({})["__interrupt__"]
    assert question.response_schema is None if schema is None else isinstance(question.response_schema, dict)
    thread.resume(given)
    assert answers == [got]


def test_an_answer_that_does_not_fit_is_refused_and_the_question_stays_open(drive):
    thread = drive.on(graph("S>n S>ok", n=asks("n", response_schema=int)))
    paused = thread.invoke({})
    for _ in range(2):
        with pytest.raises(ValidationError, match="valid integer") as caught:
            thread.resume("abc")
        notes = " ".join(caught.value.__notes__)
        assert "The answer 'abc' does not fit the response_schema of the question 'n?'" in notes and "still open" in notes
        assert thread.state.interrupts == tuple(paused["__interrupt__"])
    assert thread.resume("42")["log"] == [("n", 42), "ok"]


def test_a_refused_answer_keeps_the_others_of_its_map(drive):
    """What was answered well is not asked for again."""
    thread = drive.on(graph("S>p S>q", p=asks("p", response_schema=int), q=asks("q")))
    paused = thread.invoke({})
    with pytest.raises(ValidationError):
        thread.invoke(answer(p="abc", q="Q")(paused))
    assert [q.value for q in thread.state.interrupts] == ["p?"]
    assert thread.resume(1)["log"] == [("p", 1), ("q", "Q")]


# -- answers and the past -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_nested", [False, True])
def test_an_answer_at_an_answered_checkpoint_is_the_new_one(drive, is_nested):
    """D9: the peer takes the old answer again."""
    ran = Ran()
    node = asks("n", ran)
    inner = graph("S>n", n=node, checkpointer=None)
    thread = drive.on(graph("S>n>z", n=(lambda state: inner.invoke({})) if is_nested else node, z=says("z", ran)))
    thread.invoke({})
    thread.resume("old")
    then = at(thread, 0)
    ran.clear()
    assert thread.invoke(Command(resume="new"), then)["log"] == [("n", "new"), "z"]
    by_id = {thread.get_state(then).interrupts[0].id: "newest"}
    assert thread.invoke(Command(resume=by_id), then)["log"] == [("n", "newest"), "z"]
    assert ran == ["n", "z", "n", "z"]


def test_answers_before_the_open_question_of_an_old_checkpoint_stay(drive):
    thread = drive.on(graph("S>n", n=asks("n", count=2)))
    thread.invoke({})
    thread.resume("A")
    thread.resume("B")
    then = at(thread, 0)
    assert [q.value for q in thread.get_state(then).interrupts] == ["n1?"]
    assert thread.invoke(Command(resume="C"), then)["log"] == [("n", "A", "C")]


def test_part_of_the_answers_at_an_old_checkpoint_leaves_the_branch_paused(drive):
    thread = drive.on(three())
    paused = thread.invoke({})
    thread.invoke(answer(p=1, q=2)(paused))
    then = at(thread, 0)
    again = thread.invoke(answer(p=10)(paused), then)
    assert asked(again) == ["q?"] and ids(again)["q?"] != ids(paused)["q?"]
    assert thread.resume(20)["log"] == ["ok", ("p", 10), ("q", 20), "z"]


def test_several_answers_for_nested_questions_of_an_old_checkpoint_are_refused_with_a_way_out(drive):
    inner = graph("S>i", i=lambda state: {"log": [interrupt(state["a"])]}, checkpointer=None)
    holders = {n: lambda state, n=n: {"log": inner.invoke({"a": n})["log"]} for n in "pq"}
    thread = drive.on(graph("S>p S>q", **holders))
    paused = thread.invoke({})
    answers = Command(resume={i: n.upper() for n, i in ids(paused).items()})
    assert thread.invoke(answers)["log"] == ["P", "Q"]
    then = at(thread, 0)
    before = len(thread.history())
    with pytest.raises(UnknownInterruptError, match="then answer the new questions"):
        thread.invoke(answers, then)
    assert len(thread.history()) == before
    anew = thread.invoke(None, then)
    assert thread.resume(dict.fromkeys(ids(anew).values(), 1))["log"] == [1, 1]


def test_interrupts_are_equal_by_value():
    assert Interrupt("q", "id") == Interrupt("q", "id") != Interrupt("q", "other")


# -- only what was answered runs again ------------------------------------------------------------------------


@each_durability
def test_ten_interrupts_answered_one_by_one_start_the_body_twenty_times(drive, durability):
    ran = Ran()
    names = [f"n{i}" for i in range(10)]
    thread = drive.on(graph(" ".join(f"S>{n}" for n in names), **{n: asks(n, ran) for n in names}))
    thread.invoke({}, durability=durability)
    for left in range(10, 0, -1):
        open_ = thread.state.interrupts
        assert len(open_) == left
        thread.resume({open_[-1].id: "yes"}, durability=durability)
    assert len(ran) == 20
    assert thread.state.next == ()


def test_questions_of_a_nested_graph_answered_one_by_one(drive):
    ran = Ran()
    inner = graph("S>a S>b S>c", **{n: asks(n, ran) for n in "abc"}, checkpointer=None)
    thread = drive.on(graph("S>sub S>other", sub=inner, other=asks("other", ran)))
    thread.invoke({})
    for value in ("b?", "a?", "other?", "c?"):
        (question,) = [each for each in thread.state.interrupts if each.value == value]
        thread.resume({question.id: "yes"})
    assert thread.state.next == ()
    assert len(ran) == 8


# -- graphs and tasks side by side in one node ----------------------------------------------------------------


@each_durability
@pytest.mark.parametrize("schema", [None, int])
def test_graphs_that_a_node_runs_side_by_side_are_answered_one_by_one(durability, schema):
    """Who paused first ends the node; the others are waited for, so that what they have done with an answer is kept."""

    def body(state):
        return {"log": [(state["log"][0], interrupt(state["log"][0], response_schema=schema))]}

    inner = graph("S>i", i=body, checkpointer=None)

    async def node(state):
        found = await asyncio.gather(*(inner.ainvoke({"log": [each]}) for each in "xyz"))
        return {"log": sorted(pair for each in found for pair in each["log"][1:])}

    async def main():
        app = graph("S>n", n=node)
        await app.ainvoke(EMPTY, CONFIG, durability=durability)
        for number, wanted, left in ((1, "x", "xyz"), (3, "z", "yz"), (2, "y", "y")):
            open_ = (await app.aget_state(CONFIG)).interrupts
            assert sorted(each.value for each in open_) == sorted(left)
            (question,) = [each for each in open_ if each.value == wanted]
            await app.ainvoke(Command(resume={question.id: number}), CONFIG, durability=durability)
        return (await app.aget_state(CONFIG)).values["log"]

    assert asyncio.run(main()) == [("x", 1), ("y", 2), ("z", 3)]


@pytest.mark.parametrize("inside", ["task", "graph"])
async def test_a_rejected_answer_is_reported_wherever_interrupt_was_called(inside):
    @task
    async def call(name):
        return interrupt(name, response_schema=int)

    def body(state):
        return {"log": [interrupt(state["log"][0], response_schema=int)]}

    inner = graph("S>i", i=body, checkpointer=None)

    async def node(state):
        if inside == "task":
            found = await asyncio.gather(*(call(each) for each in "xy"))
        else:
            found = await asyncio.gather(*(inner.ainvoke({"log": [each]}) for each in "xy"))
        return {"log": [str(found)]}

    app = graph("S>n", n=node)
    await app.ainvoke(EMPTY, CONFIG)
    (question,) = [each for each in (await app.aget_state(CONFIG)).interrupts if each.value == "x"]
    with pytest.raises(ValueError, match="int"):
        await app.ainvoke(Command(resume={question.id: "no number"}), CONFIG)
    open_ = (await app.aget_state(CONFIG)).interrupts
    assert sorted(each.value for each in open_) == ["x", "y"]
    done = await app.ainvoke(Command(resume={each.id: 7 for each in open_}), CONFIG)
    assert "__interrupt__" not in done


def test_an_accepted_answer_that_no_longer_fits_interrupts_again(drive):
    """The schema became stricter while the thread was paused at a later question: the thread must not be stuck."""
    schemas = [str]

    def body(state):
        return {"log": [interrupt("first", response_schema=schemas[-1]), interrupt("second")]}

    thread = drive.on(graph("S>n", n=body))
    thread.invoke({})
    assert asked(thread.resume("one")) == ["second"]
    schemas.append(int)
    with pytest.raises(ValueError, match="int"):
        thread.resume("two")
    assert [each.value for each in thread.state.interrupts] == ["first"]
    assert thread.resume(1)["log"] == [1, "two"], "the second has its answer already"


@pytest.mark.parametrize("inside", ["interrupt", "graph", "task"])
async def test_a_task_group_whose_members_interrupt_pauses(inside):
    """`asyncio.TaskGroup` wraps what its members raise and cancels the others; those ask when their turn comes."""
    inner = graph("S>i", i=lambda s: {"log": [interrupt(s["log"][0])]}, checkpointer=None)

    @task
    async def call(name):
        return interrupt(name, key=name)

    async def ask(name):
        if inside == "graph":
            return (await inner.ainvoke({"log": [name]}))["log"][1]
        return await call(name) if inside == "task" else interrupt(name, key=name)

    async def node(state):
        async with asyncio.TaskGroup() as group:
            members = [group.create_task(ask(name)) for name in "xy"]
        return {"log": [member.result() for member in members]}

    app = graph("S>n", n=node)
    result = await app.ainvoke(EMPTY, CONFIG)
    for _ in range(4):
        if "__interrupt__" not in result:
            break
        answers = {each.id: each.value.upper() for each in result["__interrupt__"]}
        result = await app.ainvoke(Command(resume=answers), CONFIG)
    assert result == {"log": ["X", "Y"]}


def test_a_task_group_with_a_failure_fails():
    async def ask():
        return interrupt("x")

    async def fail():
        raise KeyError("lost")

    async def node(state):
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(ask())
        return {}

    with pytest.raises(BaseExceptionGroup) as caught:
        asyncio.run(graph("S>n", n=node).ainvoke(EMPTY, CONFIG))
    assert caught.value.subgroup(KeyError) is not None


def test_a_task_group_inside_a_plain_function_pauses_with_all_its_questions(drive):
    thread = drive.on(graph("S>n", n=asks_in_a_group))
    paused = thread.invoke(EMPTY)
    assert asked(paused) == ["one?", "two?"]
    answers = {each.id: each.value.upper() for each in paused["__interrupt__"]}
    assert thread.resume(answers)["log"] == ["ONE?", "TWO?"]


def test_a_group_with_a_failure_is_tried_again_without_its_questions(drive):
    """Without the signals in it a group is an `Exception`, as `RetryPolicy` and error handlers want it."""
    tries = []

    def node(state):
        tries.append(1)
        if len(tries) == 1:
            raise BaseExceptionGroup("both", [GraphInterrupt("x"), ExceptionGroup("in", [KeyError("lost")])])
        return {"log": ["done"]}

    policy = RetryPolicy(initial_interval=0.0, retry_on=ExceptionGroup)
    builder = StateGraph(State).add_node("n", node, retry_policy=policy)
    app = builder.add_edge(START, "n").compile(InMemorySaver())
    assert drive.invoke(app, {}, CONFIG)["log"] == ["done"]
    assert len(tries) == 2


def test_all_graph_interrupts_of_an_exception_group_become_interrupts(drive):
    def node(state):
        raise BaseExceptionGroup("both", [GraphInterrupt("x"), BaseExceptionGroup("in", [GraphInterrupt("y")])])

    assert asked(drive.invoke(graph("S>n", n=node), {}, CONFIG)) == ["x", "y"]


def test_a_command_for_the_parent_leaves_a_group(drive):
    def inside(state):
        return Command(graph=Command.PARENT, update={"log": ["from inside"]})

    inner = graph("S>i", i=inside, checkpointer=None)

    def node(state):
        try:
            inner.invoke(EMPTY)
        except BaseException as signal:
            raise BaseExceptionGroup("group", [signal]) from None

    assert drive.invoke(graph("S>n", n=node), {}, CONFIG)["log"] == ["from inside"]
