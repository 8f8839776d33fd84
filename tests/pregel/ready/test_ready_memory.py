"""schedule="ready": tasks that share the memory of a nested graph (`checkpointer=True`) run one at a time."""

from threading import Barrier, Event

import pytest
from kit.drive import each_durability
from kit.graphs import CONFIG, EMPTY
from kit.ready_graphs import ask, build, ends_by, ends_in, ends_together, ready, sends

from stategraph import InMemorySaver, Send


def agent_of(**nodes):
    """A graph with a memory: its log has what all before have said."""
    return build("S>q", nodes=nodes).compile(checkpointer=True, schedule="ready")


def route_to_m(name, **options):
    return lambda _: [Send("m", {"log": [name]}, **options)]


@pytest.mark.parametrize("together", [False, True])
def test_sends_of_two_branches_run_one_at_a_time_however_the_branches_end(together):
    routes = {name: route_to_m(f"{name}'s") for name in "ab"}
    app = ready("S>a S>b r:a=m r:b=m", routes, {"m": agent_of()})
    with ends_together() if together else ends_in("a", "b"):
        log = app.invoke(EMPTY, CONFIG)["log"]
    assert log == ["a", "b", "a's", "q", "a's", "q", "b's", "q"]


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_sends_of_one_router_run_one_at_a_time(drive, durability):
    routes = {"S": lambda _: [Send("m", {"log": [str(i)]}) for i in range(3)]}
    thread = drive.on(ready("r:S=m m>z", routes, {"m": agent_of()}))
    log = thread.invoke(EMPTY, durability=durability)["log"]
    one, two, three = ["0", "q"], ["1", "q"], ["2", "q"]
    assert log == [*one, *one, *two, *one, *two, *three, "z"]
    steps = [each.next.count("m") for each in thread.history() if "m" in each.next]
    assert durability == "exit" or steps == [1, 2, 3]


@pytest.mark.parametrize("together", [False, True])
def test_sends_to_a_graph_that_contains_a_memory_run_one_at_a_time(drive, together):
    """Also if they start in different steps, where it is no error to have the memory at once."""
    middle = build("S>own", nodes={"own": agent_of(q=ask)}).compile(schedule="ready")
    routes = {"S": lambda _: [Send("m", {"log": ["a"]}), "b"], "b": lambda _: [Send("m", {"log": ["b"]})]}
    if together:
        routes = {"S": lambda _: [Send("m", {"log": [name]}) for name in "ab"]}
    thread = drive.on(ready("r:S=m|b r:b=m", routes, {"m": middle}))
    with ends_in("b"):
        assert len(thread.invoke(EMPTY)["__interrupt__"]) == 1
    assert len(thread.resume("1")["__interrupt__"]) == 1
    log = thread.resume("2")["log"]
    assert log[-8:] == ["a", "a", "1", "b", "a", "1", "b", "2"]


def test_sends_with_different_keys_run_at_once(drive):
    routes = {"S": lambda _: [Send("m", EMPTY, key=key) for key in "xy"] + [Send("m", EMPTY)]}
    app = ready("r:S=m", routes, {"m": agent_of(q=ask)})
    assert len(drive.invoke(app, EMPTY, CONFIG)["__interrupt__"]) == 3


@each_durability
@pytest.mark.parametrize("edit", [False, True])
def test_a_node_and_a_send_to_it_run_one_at_a_time(drive, durability, edit):
    """The one that has paused in the memory goes on first, also where all starts again."""
    routes = {"a": lambda _: ["m", Send("m", {"log": ["sent"]})]}
    thread = drive.on(ready("S>a r:a=m S>b", routes, {"m": agent_of(q=ask)}))
    with ends_in("a", "b"):
        (first,) = thread.invoke(EMPTY, durability=durability)["__interrupt__"]
    assert thread.state.next == ("m", "m")
    if edit:
        thread.update({"log": ["edit"]}, "b")
    asked = thread.resume({first.id: "1"}, durability=durability)["__interrupt__"]
    assert [each.id for each in asked] != [first.id]
    log = thread.resume("2", durability=durability)["log"]
    assert log[2 + edit :] == ["sent", "1", "sent", "1", "a", "b", *["edit"] * edit, "sent", "1", "2"]
    assert thread.state.next == ()


@pytest.mark.parametrize("durability", ["sync", "exit"])
@pytest.mark.parametrize("edit", [False, True])
def test_a_paused_task_of_a_memory_resumes_before_waiting_sends(drive, durability, edit):
    """After an edit, and with durability "exit", its `Send` comes behind those that wait."""
    routes = {"S": lambda _: ["b", *[Send("m", {"log": [f"sent {i}"]}) for i in "12"]]}
    thread = drive.on(ready("r:S=m|b b>c", routes, {"m": agent_of(q=ask)}))
    with ends_in("b", "c", "m"):
        (first,) = thread.invoke(EMPTY, durability=durability)["__interrupt__"]
    if edit:
        thread.update({"log": ["edit"]}, "c")
    thread.invoke(None, durability=durability)
    assert [each.id for each in thread.state.interrupts] == [first.id]
    (second,) = thread.resume("1", durability=durability)["__interrupt__"]
    log = thread.resume({second.id: "2"}, durability=durability)["log"]
    assert log[-6:] == ["sent 1", "1", "sent 1", "1", "sent 2", "2"]
    assert thread.state.next == ()


def test_races_that_need_one_memory_run_one_at_a_time(drive):
    """Each needs what the other one's first racer would take: none takes a part."""
    pairs = [("r", "x"), ("s", "y"), ("r", "y"), ("s", "x")]
    routes = {"S": lambda _: [Send("m", {"log": [race + key]}, race=race, key=key) for race, key in pairs]}
    thread = drive.on(ready("r:S=m", routes, {"m": agent_of()}))
    with ends_by(lambda task: task.path):
        assert thread.invoke(EMPTY)["log"] == ["rx", "q", "sy", "q"]
    assert thread.state.next == ()


@pytest.mark.parametrize("asks", [False, True])
def test_a_race_waits_for_a_memory(drive, asks):
    """Its racers share one, so that only one of them can run, whichever comes first."""
    routes = {"S": lambda _: [Send("m", {"log": ["solo"]}), *[Send("m", {"log": [i]}, race="r") for i in "12"]]}
    agent = agent_of(q=ask) if asks else agent_of()
    thread = drive.on(ready("r:S=m", routes, {"m": agent}))
    result = thread.invoke(EMPTY)
    if asks:
        assert len(result["__interrupt__"]) == 1 and thread.state.next == ("m", "m", "m")
        assert len(thread.resume("x")["__interrupt__"]) == 1
        result = thread.resume("x")
    said = "x" if asks else "q"
    assert result["log"] in ([*(2 * ["solo", said]), winner, said] for winner in "12")
    assert thread.state.next == ()


def test_each_task_of_a_memory_stops_at_the_breakpoint(drive):
    routes = {"S": lambda _: [*[Send("m", {"log": [i]}) for i in "12"], "m"]}
    builder = build("r:S=m", routes, {"m": agent_of()})
    thread = drive.on(ready(builder, interrupt_before=["m"]))
    lengths = [len(thread.invoke(given)["log"]) for given in (EMPTY, None, None, None)]
    assert lengths == [0, 2, 6, 17] and thread.state.next == ()


def test_a_task_finished_in_a_superstep_waits_for_no_memory(drive):
    """There the first `Send` was refused, as the second one had the memory."""
    ended, called = Event(), []

    def wait(state):
        assert state["log"] != ["1"] or ended.wait(10)
        return EMPTY

    def note(state):
        called.append(state["log"][0])
        ended.set()
        return EMPTY

    middle = build("S>wait>own>note", nodes={"wait": wait, "own": agent_of(), "note": note}).compile()
    builder = build("r:S=m", {"S": lambda _: [Send("m", {"log": [i]}) for i in "12"]}, {"m": middle})
    saver = InMemorySaver()
    with pytest.raises(RuntimeError, match="two tasks that run at the same time"):
        drive.invoke(builder.compile(saver), EMPTY, CONFIG)
    drive.invoke(ready(builder, saver=saver), None, CONFIG)
    assert called == ["2", "1"]


def test_a_function_that_runs_such_a_graph(drive):
    """That it does is known once it has."""
    agent = agent_of()
    builder = build("S>a r:a=m", {"a": sends("m", 1, 2)}, {"m": lambda state: agent.invoke(EMPTY)})
    thread = drive.on(ready(builder))
    with pytest.raises(RuntimeError, match="two tasks that run at the same time"):
        thread.invoke(EMPTY)
    assert thread.invoke(None)["log"] == ["a", "q", "q", "q"]
    assert thread.invoke(EMPTY)["log"].count("a") == 2


def test_functions_that_run_such_a_graph_and_have_started_at_different_steps(drive):
    begun, refused, both = Event(), Event(), Barrier(2)

    def work(state):
        assert refused.wait(10)
        return {"log": ["w"]}

    agent = build("S>work", nodes={"work": work}).compile(checkpointer=True)

    def m(state):
        begun.set()
        both.wait(10)  # that they share a memory is known once one has called
        try:
            return agent.invoke(EMPTY)
        except RuntimeError:
            refused.set()
            raise

    def b(state):
        assert begun.wait(10)
        return {"log": ["b"]}

    graph = build("S>a r:a=m S>b", {"a": sends("m", 1)}, {"m": m, "b": b})
    graph.add_conditional_edges("b", sends("m", 2), ["m"])
    app = ready(graph)
    with pytest.raises(RuntimeError, match="two tasks that run at the same time run the graph of 'm'"):
        drive.invoke(app, EMPTY, CONFIG)
