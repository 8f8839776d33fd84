"""schedule="ready": a task that was running before an edit, a fork or a superstep resumes at once, whatever leads to
it.
"""

from __future__ import annotations

import pytest
from kit.drive import each_schedule
from kit.graphs import CONFIG, EMPTY
from kit.ready_graphs import build, ends_in, ready, sends
from kit.ready_random import Died, MortalSaver

from stategraph import (
    Command,
    GraphWarning,
    InMemorySaver,
    InvalidUpdateError,
    Overwrite,
    Runtime,
    Send,
    interrupt,
    task,
)


def ask(state):
    return {"log": [f"x={interrupt('?')}@{len(state['log'])}"]}


def go_on(state):
    """x alone; after an edit p as well, which leads to x."""
    return ["p", "x"] if "edit" in state["log"] else ["x"]


def app_of(saver):
    return ready("S>a r:a=p|x p>x", {"a": go_on}, {"x": ask}, saver=saver)


def test_after_an_edit_a_task_sees_the_edited_state_and_takes_its_answer(drive):
    thread = drive.on(app_of(InMemorySaver()))
    thread.invoke(EMPTY)
    (asked,) = thread.state.interrupts
    thread.update({"log": ["edit"]}, "a")
    state = thread.state
    assert (state.next, [each.id for each in state.interrupts]) == (("p", "x"), [asked.id])
    result = thread.resume({asked.id: 1})
    # p leads to x once more, as it does in supersteps.
    assert sorted(result["log"]) == ["a", "edit", "p", "x=1@2"]
    assert thread.state.next == ("x",)


def test_after_two_edits_too(drive):
    thread = drive.on(app_of(InMemorySaver()))
    thread.invoke(EMPTY)
    (asked,) = thread.state.interrupts
    thread.update({"log": ["edit"]}, "a")
    thread.update({"log": ["again"]}, "a")
    result = thread.resume({asked.id: 1})
    assert "x=1@3" in result["log"]


def test_a_task_that_had_not_started_waits_again_after_an_edit(drive):
    nodes = {name: lambda state, name=name: {"log": [interrupt(name)]} for name in "pqr"}
    thread = drive.on(ready("S>p>d S>q>d S>r>d", nodes=nodes))
    thread.invoke(EMPTY)
    thread.update({"log": ["p by hand"]}, "p")
    thread.update({"log": ["q by hand"]}, "q")
    assert thread.state.next == ("d", "r")
    assert thread.resume("r")["log"][-2:] == ["r", "d"]


@pytest.mark.parametrize("killed", [False, True])
def test_after_a_fork(drive, killed):
    """Also where nothing but the fork was stored: it has no records that could tell who had started."""
    seen = []

    def look(state):
        seen.append(len(state["log"]))
        return ask(state)

    graph = build("S>a r:a=p|x|z p>x", {"a": lambda state: [*go_on(state), "z"]}, {"x": look})
    saver = MortalSaver()
    thread = drive.on(ready(graph, saver=saver))
    thread.invoke(EMPTY)
    thread.update({"log": ["edit"]}, "a")
    with ends_in("z", "p", "x"):
        thread.invoke(None)
        old = next(each for each in thread.history() if each.values["log"][-2:] == ["edit", "z"])
        assert old.next == ("p", "x")
        if killed:
            saver.left = 1
            with pytest.raises(Died):
                thread.invoke(None, old.config)
            saver.left = -1
        seen.clear()
        thread.invoke(None, CONFIG if killed else old.config)
    assert seen == [len(old.values["log"])]


def test_what_is_triggered_again_while_it_asks_starts_again_after_its_end(drive):
    thread = drive.on(ready("S>u>x S>v [u,v]>x", nodes={"x": ask}))
    with ends_in("u", "x", "v"):
        thread.invoke(EMPTY)
        assert thread.resume(1)["log"] == ["u", "v", "x=1@1"]
    (asked,) = thread.state.interrupts
    assert thread.resume({asked.id: 2})["log"] == ["u", "v", "x=1@1", "x=2@3"]


@pytest.mark.filterwarnings("ignore::stategraph.GraphWarning")
def test_after_a_superstep_of_which_it_was_part(drive):
    """p has finished there, too: its end is applied, and x takes the answer to what it has asked."""
    saver, ran = InMemorySaver(), []

    def count(state):
        ran.append(1)
        return {"log": ["p"]}

    graph = build("S>x S>p>x", nodes={"x": ask, "p": count})
    drive.invoke(graph.compile(saver), EMPTY, CONFIG)
    thread = drive.on(ready(graph, saver=saver))
    (asked,) = thread.state.interrupts
    result = thread.resume({asked.id: 1})
    assert ("x=1@0" in result["log"], len(ran)) == (True, 1)


def test_a_task_that_resumes_after_an_edit_keeps_its_id_for_itself(drive):
    """Later Sends have the places that those had which the edit has kept; they are other tasks."""
    nodes = {"w": lambda state: {"log": [interrupt(state["n"])]}, "a": ask}
    graph = build("r:S=w|a a>b r:b=w", {"S": lambda _: [*sends("w", 1, 2)(_), "a"], "b": sends("w", 3, 4)}, nodes)
    thread = drive.on(ready(graph))
    thread.invoke(EMPTY)
    thread.update({"log": ["edit"]}, "a")
    thread.invoke(None)
    asked = 0
    while questions := thread.state.interrupts:
        assert len({each.id for each in questions}) == len(questions)
        asked += 1
        assert asked < 20, "the same is asked again and again"
        thread.resume({questions[0].id: questions[0].value})
    log = thread.log
    assert sorted(map(str, log)) == ["1", "2", "3", "4", "b", "edit"]


@pytest.mark.parametrize("more", [False, True])
def test_results_recorded_by_supersteps_for_a_running_task_are_found_by_it(drive, more):
    """They run what is under way beside the head. The other schedule moves the head on, and finds it again later: the
    question, and what was called before it."""
    saver, called = InMemorySaver(), []

    @task
    def call():
        called.append(1)
        return "called "

    def ask_late(state):
        return {"log": [(call().result() if more else "") + interrupt("c")]}

    def app_in(schedule):
        nodes = {"b": lambda state: {"log": [interrupt("b")]}, "c": ask_late}
        graph = build("S>a>d S>b>e S>c>f", nodes=nodes)
        return graph.compile(saver, schedule=schedule)

    with ends_in("a", "d", "b", "c"):
        # b and c have started, and nobody has recorded anything of them, as after a kill.
        drive.stream(app_in("ready"), EMPTY, CONFIG, stream_mode="updates", take=2)
    drive.invoke(app_in("supersteps"), None, CONFIG)
    first, second = drive.get_state(app_in("ready"), CONFIG).interrupts
    drive.invoke(app_in("ready"), Command(resume={first.id: "B"}), CONFIG)
    state = drive.get_state(app_in("ready"), CONFIG)
    assert (state.next, state.interrupts) == (("c",), (second,))
    result = drive.invoke(app_in("ready"), Command(resume="C"), CONFIG)
    assert result["log"] == ["a", "d", "B", "e", "called C" if more else "C", "f"] and len(called) == more


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_an_edit_without_as_node_is_not_from_a_running_node(drive, durability):
    def fail(state):
        raise ValueError

    thread = drive.on(ready("S>a>q>z S>b", nodes={"q": fail}))
    with ends_in("a", "b", "q"), pytest.raises(ValueError):
        thread.invoke(EMPTY, durability=durability)
    with pytest.raises(InvalidUpdateError, match="specify as_node: a, b"):
        thread.update({"log": ["edit"]})
    thread.update({"log": ["edit"]}, "a")
    assert thread.state.next == ("q",)


@pytest.mark.parametrize("node", ["graph", "send"])
def test_in_a_fork_a_memory_goes_back_to_where_its_task_had_started(drive, node):
    """Not to the forked checkpoint: the task had stored in its memory before that one."""
    agent = build("S>i>ask", nodes={"ask": lambda state: {"log": [interrupt("?")]}}).compile(checkpointer=True)
    way, routes = "S>agent S>a>b", {"S": lambda _: [Send("agent", EMPTY, key="k")]}
    graph = build(way if node == "graph" else "r:S=agent S>a>b", routes, {"agent": agent})
    thread = drive.on(ready(graph))
    logs = []
    for answer in ("1", "2"):
        with ends_in("i", "ask", "agent", "a", "b"):
            thread.invoke({"log": Overwrite([])})
        logs.append(thread.resume(answer)["log"])
    asked = next(each for each in thread.history() if "agent" in each.next)
    thread.invoke(None, asked.config)
    logs.append(thread.resume("3")["log"])
    inside = [[each for each in log if each not in "ab"] for log in logs]
    assert inside == [["i", "1"], ["i", "1", "i", "2"], ["i", "1", "i", "3"]]


@pytest.mark.parametrize("edits", [1, 2])
@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_a_failed_task_keeps_its_results_though_it_is_triggered_again(drive, durability, edits):
    """Its error is not carried over; that it had started is."""
    called, ends = [], iter(["down", "up", "up"])

    @task
    def call():
        called.append(1)

    def x(state):
        if "p" not in state["log"]:
            call().result()
        if next(ends) == "down":
            raise OSError("it is down")
        return {"log": [f"x@{len(state['log'])}"]}

    thread = drive.on(ready("S>a r:a=p|x p>x", {"a": go_on}, {"x": x}))
    with pytest.raises(OSError):
        thread.invoke(EMPTY, durability=durability)
    for _ in range(edits):
        thread.update({"log": ["edit"]}, "a")
    log = thread.invoke(None)["log"]
    assert f"x@{1 + edits}" in log and len(called) == 1


@pytest.mark.parametrize("wait", ["all", 2, "reachable"])
@pytest.mark.parametrize("way", ["nothing", "edit", "two edits", "exit", "fork", "supersteps", "there and back"])
def test_a_task_started_by_a_join_has_the_sources_that_arrived(drive, wait, way):
    """Also where the task starts anew, and what had led to it is used up."""

    def d(state, runtime: Runtime[None]):
        return {"log": ["+".join([*runtime.joined, interrupt("?")])]}

    builder = build("S>a S>b S>x S>y S>z", nodes={"d": d, "x": ask, "y": ask, "z": ask}).add_node("d", d)
    builder.add_edge(["a", "b"], "d", wait=wait)
    saver = InMemorySaver()
    soon, steps = ready(builder, saver=saver), builder.compile(saver)
    durability = "exit" if way == "exit" else "sync"
    drive.invoke(soon, EMPTY, CONFIG, durability=durability)
    (first,) = [each.interrupts[0].id for each in drive.get_state(soon, CONFIG).tasks if each.name == "z"]
    drive.invoke(soon, Command(resume={first: "!"}), CONFIG, durability=durability)
    for name in {"edit": "x", "two edits": "xy"}.get(way, ""):
        drive.update_state(soon, CONFIG, {"log": [f"{name} by hand"]}, name)
    if way == "there and back":
        drive.invoke(steps, None, CONFIG)
    if way == "fork":
        drive.invoke(soon, None, drive.get_state(soon, CONFIG).config)
    thread = drive.on(steps if way == "supersteps" else soon)
    (asked,) = [each.interrupts[0].id for each in thread.state.tasks if each.name == "d"]
    answers = {each.id: "!" for each in thread.state.interrupts}
    assert asked in answers
    assert "a+b+!" in thread.resume(answers, durability=durability)["log"]


@pytest.mark.parametrize(("by", "then"), [(None, ("video",)), ("parse", ("video",)), ("fetch", ("parse", "video"))])
@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_an_edit_as_a_node_of_one_branch_leaves_the_others_unchanged(drive, by, then, durability):
    """The last node that ran is `parse`: nothing there leads to `video`, which has failed."""
    ends = iter(["down", "up"])

    def video(state):
        if next(ends) == "down":
            raise OSError("it is down")
        return {"log": ["video"]}

    builder = build("S>fetch>parse S>video [parse,video]>report", nodes={"video": video})
    thread = drive.on(ready(builder))
    with pytest.raises(OSError):
        thread.invoke(EMPTY, on_failure="finish", durability=durability)
    thread.update({"log": ["edit"]}, by)
    assert thread.state.next == then
    log = thread.invoke(None)["log"]
    assert log[:3] == ["fetch", "parse", "edit"] and sorted(log[3:]) == sorted([*then, "report"])


def test_an_edit_as_a_node_replaces_what_that_node_had_led_to(drive):
    nodes = {"x": ask, "z": ask}
    thread = drive.on(build("S>a r:a=x|y S>z", {"a": lambda s: ["y" if "edit" in s["log"] else "x"]}, nodes).compile(
        InMemorySaver(), schedule="ready"
    ))
    thread.invoke(EMPTY)
    assert thread.state.next == ("x", "z")
    with pytest.warns(GraphWarning, match="as 'a' does not lead to 'x', and so closes the questions"):
        thread.update({"log": ["edit"]}, "a")
    assert thread.state.next == ("y", "z")
    assert [each.value for each in thread.state.interrupts] == ["?"]


def test_input_that_an_edit_left_pending_is_applied_before_any_task_starts(drive):
    """Also before Sends, which else start at once: one of them may end first, while START's router is at work."""
    builder = build("S>a>b r:b=c", {"b": lambda state: [Send("c", {"n": 1})]})
    thread = drive.on(ready(builder))
    thread.update({"log": ["input"]}, "__input__")
    thread.update({"log": ["edit"]}, "b")
    assert thread.state.next == ("c", "__start__")
    with ends_in("c", "__start__"):
        assert thread.invoke(None)["log"] == ["edit", "input", "c1", "a", "b", "c1"]


@pytest.mark.filterwarnings("ignore:.*nodes that have failed start over")
@each_schedule
@pytest.mark.parametrize("sent", [False, True])
def test_an_edit_as_an_interrupted_error_handler_is_its_result(drive, schedule, sent):
    ran = []

    def fail(state):
        ran.append(1)
        raise ValueError

    builder = build("r:S=x|y", {"S": sends("x", 1, 2) if sent else lambda _: ["x", "y"]}, {"y": ask})
    builder.nodes.pop("x")
    builder.add_node("x", fail, error_handler=lambda state: {"log": [interrupt("how?")]})
    thread = drive.on(builder.compile(InMemorySaver(), schedule=schedule))
    thread.invoke(EMPTY)
    before = thread.state
    thread.update({"log": ["edit"]}, before.next[0])
    state = thread.state
    assert state.values["log"] == ["edit"] and state.next == (("x",) if sent else ("y",))
    if not sent:
        assert state.interrupts == before.interrupts[1:]
        assert thread.resume("!")["log"] == ["edit", "x=!@1"] and len(ran) == 1
