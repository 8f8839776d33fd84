"""schedule="ready": a task starts when its own inputs are available, and each task that ends is a step of its own."""

from __future__ import annotations

import operator
import warnings
from functools import partial
from typing import Annotated, Literal

import pytest
from kit.drive import each_case, each_durability
from kit.graphs import CONFIG, EMPTY, chain_of, graph_of, parallel_of, thread_config
from kit.ready_graphs import State, build, ends_in, ready, sends, show, times
from typing_extensions import TypedDict

from stategraph import (
    END,
    START,
    Command,
    ConcurrentUpdateError,
    GraphRecursionError,
    GraphWarning,
    InMemorySaver,
    InvalidGraphError,
    InvalidUpdateError,
    NodeError,
    Overwrite,
    StateGraph,
    interrupt,
)
from stategraph.channels import LastValue, UntrackedValue

EXAMPLES = {
    "diamond": ("S>a>b>d a>c>d", {}, ["b", "c"], "a / b / c / d"),
    "diamond, the other way": ("S>a>b>d a>c>d", {}, ["c", "b"], "a / c / b / d"),
    "map-reduce": ("r:S=w w>sum", {"S": sends("w", 3, 1, 2)}, [], "w3 / w1 / w2 / sum"),
    "supervisor": ("S>s r:s=a|c|E a>b>s c>s", {"s": times(2, "a", "c", node="s")}, ["a", "b", "c"], "s / a / b / c / s"),
    "unequal branches in a loop": (
        "S>s r:s=a|b|E a>a2>s b>s",
        {"s": times(2, "a", "b", node="s")},
        ["a", "a2", "b"],
        "s / a / a2 / b / s",
    ),
    "unequal branches": ("S>a>b>d S>c>d", {}, ["c", "a", "b"], "c / a / b / d"),
    "a join": ("S>a>b S>c [b,c]>d", {}, ["c", "a", "b"], "c / a / b / d"),
    "a join that is left half open": ("S>a>b r:a=b|c [b,c]>d", {"a": lambda _: "b"}, [], "a / b"),
    "a join and an edge": ("S>a>d S>b>x [b,x]>d", {}, ["a", "d"], "a / d / b / x / d"),
    "an edge behind a join": ("S>a S>b [a,b]>c>e S>x>e", {}, ["x", "a", "b"], "x / a / b / c / e"),
    "a router that skips": ("S>a r:a=b|d b>d S>c>d", {"a": lambda _: "d"}, ["a", "c"], "a / c / d"),
    "waiting for who leads elsewhere": ("S>a>d S>c r:c=d|E", {"c": lambda _: END}, ["a", "c"], "a / c / d"),
    "a loop on itself": ("S>a r:a=a|E S>b>b2", {"a": times(3, "a", node="a")}, ["a", "b"], "a / a / a / b / b2"),
    "waiting for each other": ("r:S=b|c r:b=c|E r:c=b|E", {"b": lambda _: END, "c": lambda _: END}, ["c"], "c / b"),
}


@pytest.mark.filterwarnings("ignore:the join of b, c")
@each_case("graph, routes, order, steps", EXAMPLES.values())
def test_a_task_starts_when_its_inputs_are_there(drive, graph, routes, order, steps):
    thread = drive.on(ready(graph, routes))
    with ends_in(*order):
        thread.invoke(EMPTY)
    assert show(thread.history()) == steps


def test_waiting_and_running_tasks_are_next(drive):
    thread = drive.on(ready("S>a>d S>b>d"))
    with ends_in("a", "b"):
        thread.invoke(EMPTY)
    assert [each.next for each in reversed(thread.history())] == [
        ("__start__",),
        ("a", "b"),
        ("b", "d"),
        ("d",),
        (),
    ]


def test_a_trigger_while_a_node_runs_starts_it_again_afterwards(drive):
    thread = drive.on(ready("S>x r:S=w w>x", {"S": sends("w", 1)}))
    # x waits for nobody but w; the edge into it and w lead to one run.
    thread.invoke(EMPTY)
    assert show(thread.history()) == "w1 / x"


# -- what a task reads, and what it may write ----------------------------------------------------------------------


def test_a_task_reads_the_state_in_which_it_has_started(drive):
    seen = {}

    def look(state):
        seen["input"] = list(state["log"])
        return {"log": ["look"]}

    def route(state):
        seen["router"] = list(state["log"])
        return END

    app = build("S>a>b S>look r:look=z|E", {"look": route}, {"look": look}).compile(schedule="ready")
    with ends_in("a", "b", "look"):
        drive.invoke(app, EMPTY)
    assert seen == {"input": [], "router": ["look"]}


class Plain(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    last: str


def write_last(name):
    return lambda state: {"last": name, "log": [name]}


def plain_graph(**options):
    return parallel_of(Plain, {name: write_last(name) for name in "ab"}).compile(schedule="ready", **options)


def test_a_plain_key_that_has_changed_meanwhile_is_not_written(drive):
    thread = drive.on(plain_graph(checkpointer=InMemorySaver()))
    with ends_in("b", "a"), pytest.raises(ConcurrentUpdateError) as raised:
        thread.invoke(EMPTY)
    assert (raised.value.key, raised.value.task, raised.value.writer) == ("last", "a", "b")
    state = thread.state
    assert (state.values, state.next) == ({"last": "b", "log": ["b"]}, ("a",))
    assert isinstance(state.tasks[0].error, ConcurrentUpdateError)
    # Started again after an edit, it writes after what the other has written.
    thread.update({"last": "edit"}, START)
    with ends_in("a", "b"), pytest.raises(ConcurrentUpdateError):
        thread.invoke(None)
    assert thread.state.values["last"] == "a"


@each_durability
def test_a_refused_task_does_not_run_again_until_it_can_start_again(drive, durability):
    ran = []

    def mail(state: Plain):
        ran.append("mail")
        return {"last": "mail"}

    thread = drive.on(ready(graph_of(Plain, "S>a S>b", a=mail, b=write_last("b"))))
    with ends_in("b", "a"), pytest.raises(ConcurrentUpdateError, match="'a' started before 'b'") as raised:
        thread.invoke(EMPTY, durability=durability)
    assert "During task with name 'a'" in raised.value.__notes__[0]
    if durability == "exit":  # there each call starts it again, in the state as it is
        assert thread.invoke(None, durability=durability)["last"] == "mail"
        return
    for _ in range(2):
        with pytest.raises(ConcurrentUpdateError, match="'a' started before 'b'"):
            thread.invoke(None, durability=durability)
    assert ran == ["mail"]
    thread.update({"log": ["edit"]}, "b")
    assert thread.invoke(None)["last"] == "mail" and ran == ["mail", "mail"]


def test_a_task_refused_again_after_an_edit_does_not_run_again(drive):
    ran = []

    def slow(state: Plain):
        ran.append("slow")
        return {"last": "slow"}

    thread = drive.on(graph_of(Plain, "S>a>b S>slow", slow=slow, a=write_last("a"), b=write_last("b")).compile(
        InMemorySaver(), schedule="ready", interrupt_before=["b"]
    ))
    with ends_in("a", "slow"), pytest.raises(ConcurrentUpdateError):
        thread.invoke(EMPTY)
    thread.update({"log": ["edit"]}, "a")
    for _ in range(3):
        with ends_in("b", "slow"), pytest.raises(ConcurrentUpdateError, match="'slow' started before 'b'"):
            thread.invoke(None, interrupt_before=[])
    assert ran == ["slow", "slow"]


def test_a_refusal_in_a_nested_graph_is_resolved_there(drive):
    """The task around it was not refused: it goes on, and its graph with what the edit has let start again."""
    inside = graph_of(Plain, "S>a S>b", a=write_last("a"), b=write_last("b")).compile(schedule="ready")
    thread = drive.on(ready(chain_of(Plain, a=inside)))
    with ends_in("b", "a"):
        for _ in range(2):
            with pytest.raises(ConcurrentUpdateError):
                thread.invoke(EMPTY if not thread.history() else None)
        inner = thread.state.tasks[0].state
        drive.update_state(thread.app, inner, {"log": ["edit"]}, "b")
        assert thread.invoke(None)["last"] == "a"


def test_a_plain_key_of_the_parent_that_changed_meanwhile_is_not_written_by_an_edited_subgraph(drive):
    """The graph inside has a key of the same name."""
    builder = StateGraph(Plain, output_schema=State).add_node("a", write_last("a")).add_node("b", write_last("b"))
    inside = builder.add_edge(START, "a").add_edge(START, "b").compile(schedule="ready")
    thread = drive.on(ready(graph_of(Plain, "S>box S>o", box=inside, o=write_last("o"))))
    with ends_in("o", "b", "a", "box"):
        with pytest.raises(ConcurrentUpdateError, match="'a' started before 'b'"):
            thread.invoke(EMPTY)
        (box,) = thread.state.tasks
        drive.update_state(thread.app, box.state, {"log": ["edit"]}, "b")
        assert thread.invoke(None)["last"] == "o"


def test_an_error_handler_is_not_asked_about_a_write_that_is_refused(drive):
    """The node has not failed: a graph that lets two branches write one key has."""
    handled = []

    def handle(state: Plain):
        handled.append("handled")
        return {"log": ["handled"]}

    builder = StateGraph(Plain).add_node("a", write_last("a"), error_handler=handle).add_node("b", write_last("b"))
    thread = drive.on(ready(builder.add_edge(START, "a").add_edge(START, "b")))
    with ends_in("b", "a"), pytest.raises(ConcurrentUpdateError):
        thread.invoke(EMPTY)
    assert thread.state.next == ("a",) and not handled


class Kept(LastValue[str]):
    """A subclass of a plain key's channel."""


@pytest.mark.parametrize("channel", [Kept, UntrackedValue, partial(UntrackedValue, guard=False)], ids=repr)
def test_a_key_whose_channel_takes_one_write_is_not_overwritten(drive, channel):
    """Where the channel takes several, the last one counts."""
    schema = {"last": Annotated[str, channel(str)], "log": Annotated[list[str], operator.add]}
    builder = StateGraph(TypedDict("schema", schema)).add_node("a", write_last("a")).add_node("b", write_last("b"))
    thread = drive.on(ready(builder.add_edge(START, "a").add_edge(START, "b")))
    with ends_in("b", "a"):
        if channel(str).exclusive:
            with pytest.raises(ConcurrentUpdateError):
                thread.invoke(EMPTY)
        else:
            assert thread.invoke(EMPTY) == {"last": "a", "log": ["b", "a"]}


@pytest.mark.parametrize(
    "write", [Overwrite(["a"]), {"__overwrite__": ["a"]}, {"type": "__overwrite__", "value": ["a"]}], ids=repr
)
def test_a_write_that_bypasses_the_reducer_is_refused_in_any_form(drive, write):
    thread = drive.on(ready("S>a S>b", nodes={"a": lambda _: {"log": write}}))
    with ends_in("b", "a"), pytest.raises(ConcurrentUpdateError, match="add an edge") as raised:
        thread.invoke(EMPTY)
    assert "give the key a reducer" not in str(raised.value)
    assert thread.state.values == {"log": ["b"]}


def test_one_after_the_other_a_plain_key_may_be_written(drive):
    builder = StateGraph(Plain)
    for name in ("a", "b"):
        builder.add_node(name, write_last(name))
    builder.add_node("c", lambda state: {"log": ["c"]})
    builder.add_edge(START, "a").add_edge("a", "b").add_edge(START, "c")
    app = builder.compile(schedule="ready")
    with ends_in("a", "b", "c"):
        assert drive.invoke(app, EMPTY)["last"] == "b"


# -- limits --------------------------------------------------------------------------------------------------------


def test_the_recursion_limit_counts_generations(drive):
    app = ready("S>a>b>c S>x1>x2>x3")
    assert len(drive.invoke(app, EMPTY, {**CONFIG, "recursion_limit": 3})["log"]) == 6
    with ends_in("a", "b", "c"), pytest.raises(GraphRecursionError, match="2 generations"):
        drive.invoke(app, EMPTY, {"recursion_limit": 2, "configurable": {"thread_id": "u"}})
    state = drive.get_state(app, thread_config("u"))
    assert sorted(state.values["log"]) == ["a", "b", "x1"]  # what had begun has ended
    assert sorted(drive.invoke(app, None, thread_config("u"))["log"]) == sorted(
        ["a", "b", "c", "x1", "x2", "x3"]
    )


# -- failures ------------------------------------------------------------------------------------------------------


def fail(state):
    raise RuntimeError("no")


def test_after_a_failure_nothing_starts_and_what_runs_ends(drive):
    mended = []

    def bad(state):
        if not mended:
            raise RuntimeError("no")
        return {"log": ["bad"]}

    thread = drive.on(ready("S>a>b S>bad>d b>d", nodes={"bad": bad}))
    with ends_in("bad", "a", "b"), pytest.raises(RuntimeError):
        thread.invoke(EMPTY)
    state = thread.state
    assert (state.values["log"], state.next) == (["a"], ("b", "bad"))
    assert {task.name: repr(task.error) for task in state.tasks} == {"b": "None", "bad": "RuntimeError('no')"}
    mended.append(1)
    with ends_in("b", "bad"):
        thread.invoke(None)
    assert show(thread.history()) == "a / b / bad / d"


def test_with_finish_the_other_branches_continue(drive):
    thread = drive.on(build("S>a>b S>bad>d b>d", nodes={"bad": fail}).compile(
        InMemorySaver(), schedule="ready", on_failure="finish"
    ))
    with ends_in("bad", "a", "b"), pytest.raises(RuntimeError):
        thread.invoke(EMPTY)
    state = thread.state
    assert (state.values["log"], state.next) == (["a", "b"], ("bad", "d"))


def test_a_task_whose_writes_cannot_be_applied_has_failed(drive):
    thread = drive.on(ready("S>a>b S>bad", nodes={"bad": lambda state: {"log": 1}}))
    with ends_in("bad", "a"), pytest.raises(TypeError):
        thread.invoke(EMPTY)
    state = thread.state
    assert (state.values["log"], state.next) == (["a"], ("b", "bad"))


def handled(saver, handler):
    graph = build("S>a>b>d")
    graph.add_node("bad", fail, error_handler=handler, destinations=["d"]).add_edge(START, "bad")
    return ready(graph, saver=saver)


def test_an_error_handler_takes_the_place_of_a_failed_task(drive):
    def handle(state, error: NodeError) -> Command[Literal["d"]]:
        return Command(update={"log": [f"{error.node}: {error.error}@{len(state['log'])}"]}, goto="d")

    thread = drive.on(handled(InMemorySaver(), handle))
    with ends_in("a", "bad", "__error_handler__bad", "b"):
        thread.invoke(EMPTY)
    assert show(thread.history()) == "a / bad: no@0 / b / d"


def test_an_error_handler_may_interrupt(drive):
    saver = InMemorySaver()

    def handle(state, error: NodeError):
        return {"log": [interrupt("what now?")]}

    drive.invoke(handled(saver, handle), EMPTY, CONFIG)
    state = drive.get_state(handled(saver, handle), CONFIG)
    assert (state.next, [each.value for each in state.interrupts]) == (("__error_handler__bad", "d"), ["what now?"])
    result = drive.invoke(handled(saver, handle), Command(resume={state.interrupts[0].id: "go on"}), CONFIG)
    assert result["log"] == ["a", "b", "go on", "d"]


# -- breakpoints ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [{"interrupt_before": ["b"]}, {"interrupt_after": ["a"]}])
def test_a_breakpoint_stops_only_its_node(drive, where):
    thread = drive.on(ready("S>a>b>d S>x>y>d", **where))
    with ends_in("a", "x", "y"):
        assert thread.invoke(EMPTY)["log"] == ["a", "x", "y"]
    assert thread.state.next == ("b", "d")
    assert thread.invoke(None)["log"] == ["a", "x", "y", "b", "d"]


def test_a_breakpoint_applies_once_nothing_else_blocks_the_node(drive):
    def ask(state):
        return {"log": [interrupt("?")]}

    graph = build("S>a>c>d S>q r:q=c|E", {"q": lambda _: END}, {"q": ask})
    thread = drive.on(ready(graph, interrupt_before=["c", "d"]))
    thread.invoke(EMPTY)
    for given, log, after in (
        (None, ["a"], ("c", "q")),
        (Command(resume="yes"), ["a", "yes"], ("c",)),
        (None, ["a", "yes", "c"], ("d",)),
        (None, ["a", "yes", "c", "d"], ()),
    ):
        assert thread.invoke(given)["log"] == log
        assert thread.state.next == after


def test_a_breakpoint_stops_sends(drive):
    thread = drive.on(ready("r:S=w w>sum S>a>b", {"S": sends("w", 1, 2)}))
    assert thread.invoke(EMPTY, interrupt_before=["w"])["log"] == ["a", "b"]
    assert thread.state.next == ("w", "w")
    assert sorted(thread.invoke(None, interrupt_before=["w"])["log"]) == ["a", "b", "sum", "w1", "w2"]


# -- questions -----------------------------------------------------------------------------------------------------


def ask(name):
    return lambda state: {"log": [f"{name}={interrupt(name)}@{len(state['log'])}"]}


def asking(saver, **options):
    graph = build("S>a a>p>d a>q>d a>x>y>d", nodes={"p": ask("p"), "q": ask("q")})
    return graph.compile(saver, **{"schedule": "ready", **options})


@pytest.mark.parametrize("first", ["p", "q"])
def test_while_a_task_is_interrupted_the_other_branches_continue(drive, first):
    saver = InMemorySaver()
    result = drive.invoke(asking(saver), EMPTY, CONFIG)
    assert result["log"] == ["a", "x", "y"]
    state = drive.get_state(asking(saver), CONFIG)
    assert (state.next, [each.value for each in state.interrupts]) == (("d", "p", "q"), ["p", "q"])
    ids = {each.value: each.id for each in state.interrupts}
    result = drive.invoke(asking(saver), Command(resume={ids[first]: 1}), CONFIG)
    # It reads what it read when it asked.
    assert result["log"] == ["a", "x", "y", f"{first}=1@1"]
    other = "q" if first == "p" else "p"
    assert [each.value for each in result["__interrupt__"]] == [other]
    result = drive.invoke(asking(saver), Command(resume=2), CONFIG)
    assert result["log"] == ["a", "x", "y", f"{first}=1@1", f"{other}=2@1", "d"]


def test_the_other_schedule_runs_running_tasks_as_one_superstep(drive):
    saver = InMemorySaver()
    drive.invoke(asking(saver), EMPTY, CONFIG)
    with pytest.warns(GraphWarning):
        thread = drive.on(asking(saver, schedule="supersteps"))
    state = thread.state
    assert [each.value for each in state.interrupts] == ["p", "q"]
    answers = {each.id: each.value for each in state.interrupts}
    result = thread.resume(answers)
    assert result["log"] == ["a", "x", "y", "d", "p=p@3", "q=q@3", "d"]


def test_an_edit_as_another_branch_keeps_interrupts_of_nodes_it_triggers(drive):
    saver = InMemorySaver()
    thread = drive.on(asking(saver))
    thread.invoke(EMPTY)
    before = {each.value: each.id for each in thread.state.interrupts}
    thread.update({"log": ["edit"]}, "a")
    state = thread.state
    assert state.next == ("p", "q", "x")
    assert {each.value: each.id for each in state.interrupts} == before
    result = thread.resume({before["p"]: 1, before["q"]: 2})
    # They have started again, and see the edit.
    assert {"p=1@4", "q=2@4"} < set(result["log"]) and result["log"][-1] == "d"


def test_an_edit_as_a_running_task_ends_it(drive):
    thread = drive.on(asking(InMemorySaver()))
    thread.invoke(EMPTY)
    thread.update({"log": ["p by hand"]}, "p")
    state = thread.state
    assert (state.next, [each.value for each in state.interrupts]) == (("d", "q"), ["q"])
    result = thread.resume(1)
    assert result["log"] == ["a", "x", "y", "p by hand", "q=1@4", "d"]


def test_a_fork_restarts_running_tasks(drive):
    thread = drive.on(asking(InMemorySaver()))
    thread.invoke(EMPTY)
    old = next(each for each in thread.history() if each.values["log"] == ["a", "x"])
    assert thread.invoke(None, old.config)["log"] == ["a", "x", "y"]
    state = thread.state
    answers = {each.id: each.value for each in state.interrupts}
    result = thread.resume(answers)
    assert sorted(result["log"]) == sorted(["a", "x", "y", "p=p@2", "q=q@2", "d"])


def test_new_input_drops_running_tasks(drive):
    thread = drive.on(asking(InMemorySaver()))
    thread.invoke(EMPTY)
    result = thread.invoke({"log": ["again"]})
    assert result["log"] == ["a", "x", "y", "again", "a", "x", "y"]
    assert len(result["__interrupt__"]) == 2


# -- what does not go with it --------------------------------------------------------------------------------------


def test_what_is_not_supported_is_refused_when_compiled():
    graph = build("S>a>b")
    with pytest.raises(ValueError, match="schedule must be 'supersteps' or 'ready', got 'asap'"):
        graph.compile(schedule="asap")  # type: ignore[arg-type]
    with pytest.raises(InvalidGraphError, match="unknown node 'c'"):
        graph.compile(schedule="ready", interrupt_before=["c"])


def test_a_limit_of_time_for_steps_is_refused_when_called(drive):
    app = ready("S>a>b")
    app.step_timeout = 5
    with pytest.raises(ValueError, match="has no supersteps, so none can time out"):
        drive.invoke(app, EMPTY, CONFIG)
    assert drive.history(app, CONFIG) == []


def test_a_node_goes_only_where_it_says():
    graph = build("S>a S>b", nodes={"a": lambda state: Command(goto="b")})
    with pytest.raises(InvalidUpdateError, match="declare"):
        graph.compile(schedule="ready").invoke(EMPTY)


@each_case(
    "words, deferred, told",
    [
        ("S>a a>b a>note r:b=a note>mail", "", ["note"]),
        ("S>a S>b a>b a>c r:b=a", "", ["c"]),
        ("S>a a>b a>note r:b=a", ["note"], []),  # it runs at the end
        ("S>a a>b a>note note>b r:b=a", "", []),  # the loop waits for it
        ("S>a r:a=tools|final tools>a", "", []),  # a router leaves the loop, which ends
        ("S>a a>b a>c", "", []),
    ],
)
def test_an_edge_that_leaves_a_loop_is_reported_at_compile(words, deferred, told):
    """What it leads to runs less often than the loop turns, if it takes longer than a turn."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        build(words, dict.fromkeys("ab", lambda _: END), deferred=deferred).compile(schedule="ready")
    said = [str(each.message) for each in seen if issubclass(each.category, GraphWarning)]
    assert [sentence.split("'")[1] for sentence in said] == told
    assert all("less often than the loop turns" in sentence for sentence in said)


def test_a_router_without_ends_is_reported_at_compile():
    graph = build("S>a S>b")
    graph.add_conditional_edges("a", lambda state: END)
    with pytest.warns(GraphWarning, match="node 'a' has a router that does not say where it goes"):
        graph.compile(schedule="ready")
