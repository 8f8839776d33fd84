"""schedule="ready" with durability="exit": one checkpoint at the end of the call, from which running tasks start
again: they keep their interrupts, answers and results.
"""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.graphs import CONFIG, EMPTY, graph_of
from kit.ready_graphs import State, beside_a_chain, build, by_order, ends_by, ends_in, ready, writer
from kit.ready_random import by_chance, make_graph

from stategraph import (
    START,
    Command,
    GraphDrained,
    GraphRecursionError,
    InMemorySaver,
    RunControl,
    Send,
    StateGraph,
    interrupt,
    task,
)

pytestmark = pytest.mark.filterwarnings("ignore::stategraph.GraphWarning")
EXIT = {"durability": "exit"}
CHAIN_FIRST = by_order("a", "b", "c", "long")
CALLED = []


@pytest.fixture
def saver(local_saver):
    CALLED.clear()
    return local_saver


@task
def call(name):
    CALLED.append(name)
    return name


def ask(state):
    return {"log": [f"{interrupt('?')}{len(state['log'])}"]}


def steps(thread):
    return [(each.metadata["source"], each.metadata["step"]) for each in thread.history()][::-1]


def test_a_call_that_ends_stores_one_checkpoint(drive, saver):
    thread = drive.on(beside_a_chain(saver))
    with ends_by(CHAIN_FIRST):
        assert thread.invoke(EMPTY, **EXIT)["log"] == ["a", "b", "c", "long", "d"]
    assert steps(thread) == [("loop", 5)]
    state = thread.state
    assert (state.values["log"], state.next) == (["a", "b", "c", "long", "d"], ())
    thread.invoke(EMPTY, **EXIT)
    assert len(steps(thread)) == 2


def test_a_running_task_starts_again_in_the_exit_checkpoint(drive, saver):
    """It sees the state of the checkpoint, and takes its answer."""
    thread = drive.on(beside_a_chain(saver, ask))
    thread.invoke(EMPTY, **EXIT)
    assert steps(thread) == [("loop", 3)]
    state = thread.state
    assert (state.values["log"], state.next, len(state.interrupts)) == (["a", "b", "c"], ("d", "long"), 1)
    assert not saver.get_tuple(CONFIG).metadata.get("stategraph_under_way")
    result = thread.resume("!", **EXIT)
    assert result["log"] == ["a", "b", "c", "!3", "d"]
    assert thread.state.next == ()


@pytest.mark.trial
@pytest.mark.parametrize("then", ["sync", "exit", "supersteps"])
@pytest.mark.parametrize("first", ["sync", "exit"])
def test_finished_work_is_not_repeated(drive, saver, first, then):
    """Called and answered in one call, asked again in the next, answered in a third, in any durability."""

    def long(state):
        one = call("one").result()
        first = interrupt("first?")
        two = call("two").result()
        return {"log": [f"{one}{first}{two}{interrupt('second?')}"]}

    def app(schedule="ready"):
        graph = build("S>a>b>c>d S>long>d S>other>x", nodes={"long": long, "other": ask})
        return graph.compile(saver, schedule=schedule)

    drive.invoke(app(), EMPTY, CONFIG, durability=first)
    questions = {each.value: each.id for each in drive.get_state(app(), CONFIG).interrupts}
    assert set(questions) == {"first?", "?"}
    turn = {"durability": "exit"} if then == "exit" else {}
    schedule = "supersteps" if then == "supersteps" else "ready"
    drive.invoke(app(), Command(resume={questions["first?"]: 1}), CONFIG, **EXIT)
    questions = {each.value: each.id for each in drive.get_state(app(), CONFIG).interrupts}
    assert set(questions) == {"second?", "?"}
    drive.invoke(app(schedule), Command(resume={questions["?"]: "o"}), CONFIG, **turn)
    left = drive.get_state(app(), CONFIG).interrupts
    assert [each.value for each in left] == ["second?"]
    result = drive.invoke(app(), Command(resume={left[0].id: 2}), CONFIG, **EXIT)
    assert "one1two2" in result["log"] and sorted(CALLED) == ["one", "two"]
    assert drive.get_state(app(), CONFIG).next == ()


def test_an_unused_answer_is_kept(drive, saver):
    """Two are answered; one at a time, the first fails, so the second has not begun."""
    fails = [True]

    def first(state):
        answer = interrupt("first?")
        if fails and fails.pop():
            raise ValueError
        return {"log": [f"first {answer}"]}

    graph = build("S>first>x S>second>y S>q", nodes={"first": first, "second": lambda state: {"log": [interrupt("second?")]}})
    thread = drive.on(ready(graph, saver=saver))
    one_by_one = {**CONFIG, "max_concurrency": 1}
    thread.invoke(EMPTY, one_by_one, **EXIT)
    answers = {each.id: each.value for each in thread.state.interrupts}
    with pytest.raises(ValueError):
        thread.invoke(Command(resume=answers), one_by_one, **EXIT)
    assert thread.invoke(None, **EXIT)["log"][:1] == ["q"]
    log = thread.log
    assert sorted(log) == ["first first?", "q", "second?", "x", "y"]


def test_a_finished_nested_graph_does_not_run_again(drive, saver):
    ran = []

    def step(state):
        ran.append(1)
        return {"log": ["inside"]}

    nested = build("S>step", nodes={"step": step}).compile(schedule="ready")

    def long(state):
        return {"log": [nested.invoke(EMPTY)["log"][0] + interrupt("?")]}

    thread = drive.on(beside_a_chain(saver, long))
    if drive.is_async:
        pytest.skip("a sync graph inside")
    thread.invoke(EMPTY, **EXIT)
    thread.invoke(None, **EXIT)
    assert thread.resume("!", **EXIT)["log"][-2:] == ["inside!", "d"]
    assert len(ran) == 1


@pytest.mark.parametrize("handled", [True, False])
def test_a_failure_keeps_finished_work(drive, saver, handled):
    mended = [False]

    def fail(state):
        call("fail").result()
        if handled or not mended[0]:
            raise ArithmeticError("no")
        return {"log": ["long"]}

    def mend(state):
        if not mended[0]:
            raise LookupError("not mended")
        return {"log": ["mended"]}

    graph = build("S>a>b>c")
    graph.add_node("long", fail, error_handler=mend if handled else None).add_edge(START, "long")
    thread = drive.on(ready(graph, saver=saver, on_failure="finish"))
    with pytest.raises(LookupError if handled else ArithmeticError):
        thread.invoke(EMPTY, **EXIT)
    assert steps(thread) == [("loop", 3)]
    state = thread.state
    assert [type(each.error) for each in state.tasks] == ([ArithmeticError, LookupError] if handled else [ArithmeticError])
    mended[0] = True
    assert thread.invoke(None, **EXIT)["log"] == ["a", "b", "c", "mended" if handled else "long"]
    assert CALLED == ["fail"], "neither the node nor its call is repeated where a handler has taken over"


def test_a_call_in_which_no_step_ends_records_at_the_origins(drive, saver):
    def long(state):
        return {"log": [call("one").result() + interrupt("first?") + call("two").result() + interrupt("second?")]}

    thread = drive.on(beside_a_chain(saver, long))
    thread.invoke(EMPTY, durability="sync")
    thread.resume("1", **EXIT)
    assert len(steps(thread)) == 5
    (second,) = thread.state.interrupts
    assert thread.resume({second.id: "2"})["log"][-2:] == ["one1two2", "d"]
    assert CALLED == ["one", "two"]


def test_sends_and_joins_start_again(drive, saver):
    def work(state):
        return {"log": [state["n"] + (interrupt(state["n"]) if state["n"] > "a" else "")]}

    builder = graph_of(State, "S>beside [work,beside]>sum", work=work, sum=writer("sum"), beside=ask)
    builder.add_conditional_edges(START, lambda state: [Send("work", {"n": n}) for n in "abc"], ["work"])
    thread = drive.on(ready(builder, saver=saver))
    thread.invoke(EMPTY, **EXIT)
    while questions := thread.state.interrupts:
        result = thread.resume({questions[-1].id: "!"}, **EXIT)
    assert sorted(result["log"]) == ["!1", "a", "b!", "c!", "sum"] and steps(thread)[-1][0] == "loop"


def test_a_race_starts_again(drive, saver):
    def run(state):
        return {"log": [interrupt(state["name"])]}

    builder = StateGraph(State).add_node("run", run).add_node("beside", writer("beside"))
    sends = [Send("run", {"name": name}, race="r") for name in "xy"]
    builder.add_conditional_edges(START, lambda state: [*sends, "beside"], ["run", "beside"])
    thread = drive.on(ready(builder, saver=saver))
    thread.invoke(EMPTY, **EXIT)
    second = thread.state.interrupts[1]
    assert thread.resume({second.id: "y"}, **EXIT)["log"] == ["beside", "y"]
    state = thread.state
    assert (state.next, state.interrupts) == ((), ())


def test_a_stopped_run_resumes(drive, saver):
    """By its reader, by a drain, at the recursion limit, at a breakpoint."""
    order = ["a", "b", "c", "long", "d"]
    control = RunControl()

    def stop(state):
        control.request_drain("deploy")
        return {"log": ["b"]}

    graph = build("S>a>b>c>d S>long>d", nodes={"b": stop})
    app = ready(graph, saver=saver)
    with ends_in("a", "b", "c", "long"):
        with pytest.raises(GraphDrained):
            drive.invoke(app, EMPTY, CONFIG, control=control, **EXIT)
        assert sorted(drive.invoke(app, None, CONFIG, **EXIT)["log"]) == sorted(order)
        for number, stopped in enumerate(({"recursion_limit": 2}, {"interrupt_before": ["c"]}, {"take": 2})):
            config = {"configurable": {"thread_id": f"t{number}"}, "recursion_limit": stopped.pop("recursion_limit", 100)}
            app = beside_a_chain(saver)
            if "take" in stopped:
                drive.stream(app, EMPTY, config, stream_mode="updates", **stopped, **EXIT)
            elif config["recursion_limit"] == 2:
                with pytest.raises(GraphRecursionError):
                    drive.invoke(app, EMPTY, config, **EXIT)
            else:
                drive.invoke(app, EMPTY, config, **stopped, **EXIT)
            assert len(drive.history(app, config)) == 1
            again = {**config, "recursion_limit": 100}
            assert sorted(drive.invoke(app, None, again, **EXIT)["log"]) == sorted(order)


def test_a_run_that_dies_has_stored_nothing(drive, saver):
    class Died(BaseException):
        pass

    def die(state):
        raise Died

    thread = drive.on(beside_a_chain(saver, ask))
    thread.invoke(EMPTY, **EXIT)
    before = thread.state
    store, saver.commit = saver.commit, die
    store_async, saver.acommit = saver.acommit, die
    with pytest.raises(Died):
        thread.resume("!", **EXIT)
    saver.commit, saver.acommit = store, store_async
    assert thread.state.values == before.values
    assert thread.invoke(None, **EXIT)["log"] == ["a", "b", "c", "!3", "d"]


def test_readers_are_shown_what_was_stored(drive, saver):
    app = beside_a_chain(saver, ask)
    with ends_by(CHAIN_FIRST):
        chunks = drive.stream(app, EMPTY, CONFIG, stream_mode=["checkpoints", "updates"], **EXIT)
    shown = [data for mode, data in chunks if mode == "checkpoints"]
    assert [(each["values"]["log"], sorted(each["next"])) for each in shown] == [(["a", "b", "c"], ["d", "long"])]


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.booleans())
def test_alternating_durabilities_end_with_the_same_tasks(graph, order, races):
    """On graphs in which which tasks run does not depend on what they read."""
    dice = random.Random(order)
    found = []
    for mixed in (False, True):
        saver = InMemorySaver()
        given = EMPTY
        for _ in range(60):
            app = ready(make_graph(graph, even=True, races=races), saver=saver)
            with ends_by(by_chance(order)):
                app.invoke(given, CONFIG, durability=dice.choice(["sync", "async", "exit", "exit"]) if mixed else "sync")
            waiting = app.get_state(CONFIG).interrupts
            if not waiting:
                break
            given = Command(resume={dice.choice(waiting).id: "!"})
        state = app.get_state(CONFIG)
        assert state.next == ()
        found.append(sorted(each.partition("(")[0] for each in state.values["log"]))
    assert found[0] == found[1]


@pytest.mark.parametrize("last", ["ready", "supersteps"])
def test_a_run_resumes_from_a_checkpoint_of_a_nested_graph(drive, saver, last):
    """That was made while its task had started from a state that is not stored."""
    ran = []

    def first(state):
        ran.append(1)
        return {"log": ["first"]}

    nested = build("S>first>ask", nodes={"first": first, "ask": lambda state: {"log": [interrupt("?")]}}).compile()
    thread = drive.on(beside_a_chain(saver, nested))
    thread.invoke(EMPTY, **EXIT)
    (inside,) = [task.state for task in thread.state.tasks if task.name == "long"]
    stop = thread.get_state(inside).config
    thread.resume("one", **EXIT)
    result = drive.invoke(beside_a_chain(saver, nested, last), Command(resume="two"), stop)
    assert sorted(each for each in result["log"] if each not in "abcd") == ["first", "two"]
    assert len(ran) == 1


def test_a_graph_inside_outlives_calls_edits_and_pruning(drive, saver):
    """What it has stored names a checkpoint that was never stored, and the tasks that went on from there have gone on
    twice since."""
    ran = []

    def first(state):
        ran.append(1)
        return {"log": ["first"]}

    nested = build("S>first>ask", nodes={"first": first, "ask": lambda state: {"log": [interrupt("?") + interrupt("?")]}})
    thread = drive.on(beside_a_chain(saver, nested.compile(), interrupt_before=["c"]))
    thread.invoke(EMPTY, **EXIT)
    thread.resume("one")
    thread.update({"log": ["edit"]}, as_node="a")
    saver.prune(["t"])
    (inside,) = [each for each in thread.get_state(subgraphs=True).tasks if each.name == "long"]
    assert inside.state.values["log"] == ["first"]
    result = thread.resume("two")
    assert "onetwo" in result["log"] and len(ran) == 1


@pytest.mark.filterwarnings("ignore:node 'long'. question")
def test_an_interrupt_whose_value_changed_interrupts_again(drive, saver):
    """It goes on in the checkpoint of the end of the call as after an edit, but nobody has edited anything."""
    ran = []

    def long(state):
        ran.append(1)
        return {"log": [interrupt(f"delete file {len(ran)}?")]}

    thread = drive.on(beside_a_chain(saver, long))
    thread.invoke(EMPTY, **EXIT)
    for number in (2, 3):
        thread.resume("yes", **EXIT)
        assert [each.value for each in thread.state.interrupts] == [f"delete file {number}?"]


def test_only_answered_tasks_run(drive, saver):
    ran = []

    def asks(name):
        def node(state):
            ran.append(name)
            return {"log": [interrupt(name)]}

        return node

    thread = drive.on(ready("S>a S>b S>c", nodes={"b": asks("b"), "c": asks("c")}, saver=saver))
    thread.invoke(EMPTY, **EXIT)
    for name in "cb":
        ran.clear()
        asked = {each.value: each.id for each in thread.state.interrupts}
        thread.resume({asked[name]: "yes"}, **EXIT)
        assert ran == [name]
