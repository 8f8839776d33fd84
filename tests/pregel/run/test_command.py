"""A Command given as input: what update, goto and resume mean on fresh, paused, failed and finished threads."""

from __future__ import annotations

from operator import add
from typing import Annotated, TypedDict

import pytest
from kit.drive import each_case, each_schedule
from kit.graphs import CONFIG, chain_of, graph_of
from kit.pausing_graphs import Ran, State, asked, asks, fails, graph, rows, says

from stategraph import (
    END,
    START,
    Command,
    EmptyInputError,
    GraphChangedError,
    InMemorySaver,
    InvalidRouteError,
    InvalidUpdateError,
    Overwrite,
    Send,
    StateGraph,
    UnknownInterruptError,
    interrupt,
)
from stategraph.channels import LastValue
from stategraph.pregel import NodeBuilder, Pregel


def chain(ran=None, **nodes):
    """START -> x -> n (asks) -> z; o and p stand aside."""
    bodies = {name: says(name, ran) for name in "xzop"}
    return graph("S>x>n>z x~o|p", **{"n": asks("n", ran), **bodies, **nodes})


# The thread each command meets: what must be done before, and its log then.
FRESH = []
PAUSED = [{"log": ["i"]}]
FINISHED = [{"log": ["i"]}, Command(resume="A")]
DONE = ["i", "x", ("n", "A"), "z"]

CASES = {
    "update, fresh": (FRESH, Command(update={"log": ["u"]}), ["u"], ()),
    "goto, fresh": (FRESH, Command(goto="o"), ["o"], ()),
    "update and goto, fresh": (FRESH, Command(update={"log": ["u"]}, goto="o"), ["u", "o"], ()),
    "goto several, fresh": (FRESH, Command(goto=["p", "o"]), ["o", "p"], ()),
    "Send, fresh": (FRESH, Command(goto=Send("o", {})), ["o"], ()),
    "END, fresh": (FRESH, Command(update={"log": ["u"]}, goto=END), ["u"], ()),
    "update, paused": (PAUSED, Command(update={"log": ["u"]}), ["i", "x", "u"], ("n",)),
    "goto, paused": (PAUSED, Command(goto="o"), ["i", "x", "o"], ("n",)),
    "goto END, paused": (PAUSED, Command(goto=END, update={"log": ["u"]}), ["i", "x", "u"], ("n",)),
    "resume, paused": (PAUSED, Command(resume="A"), DONE, ()),
    "resume and update, paused": (PAUSED, Command(resume="A", update={"log": ["u"]}), ["i", "x", "u", ("n", "A"), "z"], ()),
    "all three, paused": (
        PAUSED, Command(resume="A", update={"log": ["u"]}, goto="o"), ["i", "x", "u", ("n", "A"), "o", "z"], ()
    ),
    "update, finished": (FINISHED, Command(update={"log": ["u"]}), [*DONE, "u"], ()),
    "goto, finished": (FINISHED, Command(goto="o"), [*DONE, "o"], ()),
    "goto list with Send, finished": (FINISHED, Command(goto=["o", Send("p", {})]), [*DONE, "o", "p"], ()),
    "update and goto, finished": (FINISHED, Command(update=[("log", ["u"]), ("log", ["v"])], goto=["z"]), [*DONE, "u", "v", "z"], ()),
}  # fmt: skip


@each_case("before, command, log, following", CASES.values())
def test_what_a_command_does(drive, before, command, log, following):
    thread = drive.on(chain())
    for given in before:
        thread.invoke(given)
    result = thread.invoke(command)
    state = thread.state
    assert (result["log"], state.values["log"], state.next) == (log, log, following)
    assert asked(result) == ["n?"] if following else "__interrupt__" not in result


def test_a_command_without_a_checkpointer_starts_with_it(drive):
    app = graph("S>x x~o", checkpointer=None)
    assert drive.invoke(app, Command(update={"log": ["u"]}, goto="o"))["log"] == ["u", "o"]


def test_the_resumed_node_sees_the_update_of_the_command(drive):
    thread = drive.on(chain(n=lambda state: {"log": [state["a"], *asks("n")(state)["log"]]}))
    thread.invoke({"a": 1})
    done = thread.invoke(Command(update={"a": 9}, resume="R", goto="o"))
    assert (done["a"], done["log"]) == (9, ["x", 9, ("n", "R"), "o", "z"])


def test_updates_to_a_thread_that_keeps_failing_accumulate(drive):
    thread = drive.on(graph("S>n", n=fails("n", 3)))
    with pytest.raises(ValueError):
        thread.invoke({"log": [0]})
    for number in (1, 2):
        with pytest.raises(ValueError):
            thread.invoke(Command(update={"log": [number]}))
        assert thread.log == list(range(number + 1))
    assert thread.invoke(None)["log"] == [0, 1, 2, "n"]


def test_an_update_adds_no_checkpoint_and_is_stored_with_the_next_superstep(drive):
    thread = drive.on(chain())
    thread.invoke({})
    before = len(thread.history())
    thread.invoke(Command(update={"log": ["u"]}))
    assert len(thread.history()) == before
    thread.resume("A")
    assert rows(thread.history())[-2:] == [
        ("loop", 2, ["x", "u", ("n", "A")], ("z",)),
        ("loop", 3, ["x", "u", ("n", "A"), "z"], ()),
    ]


def test_a_goto_runs_in_the_superstep_of_pending_tasks(drive):
    ran = Ran()
    thread = drive.on(chain(ran))
    thread.invoke({}, interrupt_before=["n"])
    ran.clear()
    thread.invoke(Command(goto="o"))
    assert ran.take() == ["n", "o"]


def test_a_goto_that_had_run_when_the_thread_paused_again_does_not_run_again(drive):
    ran = Ran()
    thread = drive.on(chain(ran))
    thread.invoke({})
    thread.invoke(Command(goto="o"))
    ran.clear()
    assert thread.resume("A")["log"] == ["x", ("n", "A"), "o", "z"]
    assert ran.take() == ["n", "z"]


@pytest.mark.parametrize("command", [Command(), Command(goto=()), Command(goto=[])], ids=repr)
@pytest.mark.parametrize("before", [FRESH, PAUSED, FINISHED], ids=["fresh", "paused", "finished"])
def test_an_empty_command_is_an_error(drive, before, command):
    thread = drive.on(chain())
    for given in before:
        thread.invoke(given)
    known = len(thread.history())
    with pytest.raises(EmptyInputError, match="the Command given as input is empty"):
        thread.invoke(command)
    assert len(thread.history()) == known


WRONG = {
    "goto": (Command(goto="zz"), InvalidRouteError, "goes to the unknown node 'zz'"),
    "goto START": (Command(goto=START), InvalidRouteError, "neither START nor END can be run"),
    "one of several": (Command(goto=["o", "zz"]), InvalidRouteError, "goes to the unknown node 'zz'"),
    "near miss": (Command(goto=["x_"]), InvalidRouteError, "did you mean 'x'"),
    "Send": (Command(goto=Send("zz", 1)), InvalidRouteError, "'zz'"),
    "Send to END": (Command(goto=Send(END, 1)), InvalidRouteError, "neither START nor END can be run"),
    "key": (Command(update={"lgo": ["u"]}), InvalidUpdateError, "unknown key 'lgo'; did you mean 'log'"),
    "pair": (Command(update=[("lgo", 1)]), InvalidUpdateError, "'lgo'"),
    "shape": (Command(update="abc"), InvalidUpdateError, "'abc'"),
    "a number": (Command(update=3), InvalidUpdateError, "int: 3"),
    "parent": (Command(graph=Command.PARENT, update={"a": 1}), InvalidUpdateError, "no parent graph"),
    "bad goto beside a good answer": (Command(resume="A", goto="zz"), InvalidRouteError, "'zz'"),
    "good goto beside a bad answer": (Command(resume={"0" * 32: 1}, goto="o"), UnknownInterruptError, "pending"),
}  # fmt: skip


@pytest.mark.parametrize(("command", "error", "text"), WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize("before", [FRESH, PAUSED, FINISHED], ids=["fresh", "paused", "finished"])
def test_an_invalid_command_stores_nothing(drive, before, command, error, text):
    thread = drive.on(chain())
    for given in before:
        thread.invoke(given)
    then = thread.history()
    fits = (error, UnknownInterruptError) if command.resume != Command().resume else error
    with pytest.raises(fits, match=text if before is PAUSED else None):
        thread.invoke(command)
    assert thread.history() == then
    if before is PAUSED:
        assert thread.resume("A")["log"] == DONE


def test_a_command_at_a_raw_graph_updates_channels_and_sends(drive):
    thread = drive.on(Pregel(
        nodes={"n": NodeBuilder().subscribe_only("a").do(lambda v: v + 1).write_to("o")},
        channels={"a": LastValue(int), "o": LastValue(int)}, input_channels="a", output_channels="o",
        checkpointer=InMemorySaver(),
    ))  # fmt: skip
    assert thread.invoke(1) == 2
    assert thread.invoke(Command(update={"a": 10})) == 11
    with pytest.raises(InvalidUpdateError, match="'b'"):
        thread.invoke(Command(update={"b": 1}))


def test_a_command_from_a_node_may_not_answer(drive):
    """`resume` means nothing there, so it is refused; None, which the peer has for no answer, is let pass."""

    def app_of(resume):
        leads = Command(update={"log": ["n"]}, resume=resume, goto="z")
        return graph("S>n n~z", n=lambda state: leads)

    with pytest.raises(InvalidUpdateError, match="node 'n' returned a Command with resume=str: '?'"):
        drive.invoke(app_of("?"), {}, CONFIG)
    assert drive.invoke(app_of(None), {}, CONFIG)["log"] == ["n", "z"]


# -- a graph that has changed since (R24) ---------------------------------------------------------------------


def two(second, saver, **nodes):
    return graph(f"S>x>{second}", **{second: asks(second), **nodes}, checkpointer=saver)


@pytest.mark.parametrize("given", [None, Command(resume="A"), Command(goto="x"), Command(update={"a": 1})], ids=repr)
def test_a_thread_that_waits_for_a_node_that_is_gone_says_so(drive, given):
    saver = InMemorySaver()
    drive.invoke(two("old", saver), {"a": 1}, CONFIG)
    thread = drive.on(two("new", saver))
    then = thread.history()
    with pytest.raises(GraphChangedError, match="thread 't' has pending work .* node 'old'") as caught:
        thread.invoke(given)
    assert caught.value.lost == ("node 'old'",)
    assert thread.history() == then
    assert asked(drive.invoke(two("old", saver), None, CONFIG)) == ["old?"]


def test_get_state_of_a_thread_of_another_graph_works(drive):
    saver = InMemorySaver()
    drive.invoke(two("old", saver), {"a": 1}, CONFIG)
    state = drive.get_state(two("new", saver), CONFIG)
    assert (state.values, state.next) == ({"a": 1, "log": ["x"]}, ())


def test_new_input_drops_pending_tasks_of_removed_nodes(drive):
    saver = InMemorySaver()
    drive.invoke(two("old", saver), {}, CONFIG)
    thread = drive.on(two("new", saver))
    assert asked(thread.invoke({})) == ["new?"]
    assert thread.resume(1)["log"] == ["x", "x", ("new", 1)]


def test_pending_tasks_of_removed_nodes_can_be_dropped_by_update_state(drive):
    saver = InMemorySaver()
    drive.invoke(two("old", saver), {}, CONFIG)
    thread = drive.on(two("new", saver))
    with pytest.raises(GraphChangedError, match="node 'old'"):
        thread.update({"a": 1}, as_node="x")
    thread.update(None, as_node=END)
    assert thread.invoke(Command(goto="new"))["log"] == ["x"]
    assert thread.state.next == ("new",)


def test_a_pending_send_to_a_removed_node_is_named(drive):
    saver = InMemorySaver()

    def fan(target):
        builder = StateGraph(State).add_node(target, says(target)).add_conditional_edges(START, lambda s: Send(target, s))
        return builder.compile(saver)

    drive.invoke(fan("old"), {}, CONFIG, interrupt_before=["old"])
    thread = drive.on(fan("new"))
    with pytest.raises(GraphChangedError, match="node 'old'"):
        thread.invoke(None)
    assert thread.state.next == ()
    assert thread.invoke({})["log"] == ["new"]


def test_a_partly_filled_join_that_was_removed_is_named(drive):
    saver = InMemorySaver()

    def joined(end):
        builder = graph_of(State, "S>a1 S>b>b2")
        builder.add_node(end, says(end))
        return builder.add_edge(["a1", "b2"], end).compile(saver)

    drive.invoke(joined("c"), {}, CONFIG, interrupt_before=["b2"])
    with pytest.raises(GraphChangedError, match="the join of 'a1' and 'b2' before 'c'"):
        drive.invoke(joined("d"), None, CONFIG)
    assert drive.invoke(joined("c"), None, CONFIG)["log"] == ["a1", "b", "b2", "c"]


def test_a_finished_siblings_write_for_a_removed_node_is_named(drive):
    saver = InMemorySaver()

    def split(after):
        return graph(f"S>p>{after} S>q", q=asks("q"), checkpointer=saver)

    drive.invoke(split("old"), {}, CONFIG)
    thread = drive.on(split("new"))
    assert thread.log == ["p"]
    with pytest.raises(GraphChangedError, match="node 'old'"):
        thread.resume(1)
    assert drive.invoke(split("old"), Command(resume=1), CONFIG)["log"] == ["p", ("q", 1), "old"]


def test_a_finished_thread_accepts_a_changed_graph(drive):
    saver = InMemorySaver()
    thread = drive.on(two("old", saver))
    thread.invoke({})
    thread.resume(1)
    run = drive.on(two("new", saver))
    assert run.invoke(None)["log"] == ["x", ("old", 1)]
    assert run.invoke(Command(goto="x"))["log"] == ["x", ("old", 1), "x"]


def test_a_raw_graph_without_the_channel_just_written_raises(drive):
    saver = InMemorySaver()

    def raw(middle):
        nodes = {"n1": NodeBuilder().subscribe_only("a").write_to(middle), "n2": NodeBuilder().subscribe_only(middle).write_to("o")}
        return Pregel(nodes=nodes, channels={k: LastValue(int) for k in ("a", middle, "o")}, input_channels="a",
                      output_channels="o", checkpointer=saver)  # fmt: skip

    drive.invoke(raw("b"), 1, CONFIG, interrupt_before=["n2"])
    with pytest.raises(GraphChangedError, match="channel 'b'"):
        drive.invoke(raw("c"), None, CONFIG)
    assert drive.invoke(raw("b"), None, CONFIG) == 1


@each_schedule
def test_commands_at_one_checkpoint_may_write_one_key_each(drive, schedule):
    """They are applied one after the other when the thread is loaded, too. Nobody could read it any more."""

    class Plain(TypedDict, total=False):
        last: str
        items: Annotated[list[str], add]
        out: list[str]

    thread = drive.on(chain_of(Plain, ask=lambda _: {"out": [interrupt(each) for each in "123"]}).compile(
        InMemorySaver(), schedule=schedule
    ))
    thread.invoke({"last": "0"})
    thread.invoke(Command(resume="a", update={"last": "1", "items": Overwrite(["1"])}))
    thread.invoke(Command(resume="b", update={"last": "2", "items": ["2"]}))
    assert thread.state.values == {"last": "2", "items": ["1", "2"]}
    result = thread.invoke(Command(resume="c", update={"items": Overwrite(["3"])}))
    assert result == {"last": "2", "items": ["3"], "out": ["a", "b", "c"]}
    assert thread.history()[0].values == result
