"""A run is recorded and replayed: the first difference is named. Files of earlier versions stay readable."""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import dataclass
from operator import add
from pathlib import Path
from typing import Annotated, TypedDict

import pytest
from kit.graphs import EMPTY, Log, chain_of, graph_of, thread_config

from stategraph import (
    END,
    START,
    Command,
    InMemorySaver,
    MessagesState,
    NodeError,
    Send,
    StateGraph,
    entrypoint,
    interrupt,
    task,
)
from stategraph.testing import (
    CheckFailed,
    Recording,
    ReplayDiffers,
    ThreadError,
    arecord,
    areplay,
    read_thread,
    record,
    replace,
    replay,
    survives,
)

GOLDEN = Path(__file__).parent / "recordings" / "recording-1.json"
"""Of the first version. It is never written anew: what was recorded once must stay readable."""


@dataclass
class Order:
    item: str
    price: float


class State(TypedDict, total=False):
    item: str
    order: Order
    log: Annotated[list[str], add]


def price(state: State):
    return {"order": Order(state["item"], 9.5)}


def check(state: State):
    return {"log": [f"checked {state['order'].item}"]}


def approve(state: State) -> Command:
    answer = interrupt({"buy": state["order"].item})
    return Command(update={"log": [f"approved: {answer}"]}, goto=[Send("ship", ("a", 1)), Send("ship", ("b", 2))])


def ship(part):
    return {"log": [f"shipped {part}"]}


def route(state: State):
    return "approve" if state["order"].price < 100 else END


def build():
    desk = StateGraph(State).add_node(check).add_node(approve, destinations=["ship"]).add_node(ship)
    desk = desk.add_edge(START, "check").add_conditional_edges("check", route, ["approve", END]).compile()
    return chain_of(State, price=price, desk=desk).compile()


APP = build()
RUN = record(APP, {"item": "tea"}, {"item": "mate"}, answers=["yes", "no"])


class Player:
    """`record` and `replay`, or their async twins."""

    def __init__(self, drive):
        self.is_async = drive.is_async

    def record(self, app, *inputs, **options):
        return asyncio.run(arecord(app, *inputs, **options)) if self.is_async else record(app, *inputs, **options)

    def replay(self, recording, app, **options):
        if self.is_async:
            return asyncio.run(areplay(recording, app, **options))
        return replay(recording, app, **options)

    def differs(self, recording, app, **options):
        with pytest.raises(ReplayDiffers) as found:
            self.replay(recording, app, **options)
        return str(found.value)


@pytest.fixture
def player(drive):
    return Player(drive)


def test_a_run_is_recorded_step_by_step(player):
    recording = player.record(APP, {"item": "tea"}, answers=["yes"])
    [run] = recording.runs
    assert (run.input, run.end) == ({"item": "tea"}, "done")
    assert [[task.node for task in step] for step in run.steps] == [["price"], ["desk"]]
    inner = {path: found for path, found in run.tasks() if path.startswith("desk:") and found.node != "ship"}
    assert inner["desk:approve"].questions == ({"asks": {"buy": "tea"}, "answer": "yes"},)
    assert inner["desk:check"].goto == ("approve",)
    assert [each.node for each in run.steps[1][0].steps[2]] == ["ship", "ship"]


def test_sync_and_async_runs_are_recorded_identically(player):
    assert player.record(APP, {"item": "tea"}, {"item": "mate"}, answers=["yes", "no"]) == RUN


def test_a_file_can_be_read_back(tmp_path):
    path = RUN.save(tmp_path / "run.json")
    assert Recording.load(path) == RUN
    assert max(map(len, path.read_text().splitlines())) <= 120
    assert "run 2, done\n  1. price\n  2. desk" in str(RUN)


def test_the_same_graph_does_the_same(player, tmp_path):
    assert player.replay(RUN, APP) == RUN
    assert player.replay(RUN.save(tmp_path / "run.json"), APP) == RUN


def test_a_question_without_an_answer_ends_the_run(player):
    recording = player.record(APP, {"item": "tea"})
    assert (recording.runs[0].end, recording.runs[0].steps[-1][0].questions) == ("paused", ({"asks": {"buy": "tea"}},))
    assert player.replay(recording, APP) == recording


@pytest.mark.trial
def test_questions_that_a_node_asks_one_after_another_get_their_recorded_answers(player):
    def approve(state):
        return {"log": [interrupt({"price": 1}, key="price"), interrupt("by card?"), interrupt("now?")]}

    graph = chain_of(Log, approve=approve).compile()
    recording = player.record(graph, EMPTY, answers=["yes", "no", "later"])
    assert player.replay(recording, graph).runs[0].state == {"log": ["yes", "no", "later"]}
    survives(graph, {"log": []}, answers=["yes", "no", "later"])


def ask_twice(state: State):
    return {"log": [interrupt({"buy": "nothing"})]}


@pytest.mark.parametrize(
    ("fakes", "told"),
    [
        (
            {"price": lambda state: {"order": Order("coffee", 9.5)}},
            "run 1, step 1, node 'price': the write to 'order' differs at ['value']['item']\n"
            "  recorded: 'tea'\n  now:      'coffee'",
        ),
        ({"price": lambda state: {"order": Order(state["item"], 100.0)}}, "the write to 'order' differs"),
        ({"price": lambda state: {"log": []}}, "step 1, node 'price': the list of keys that it wrote differs"),
        ({"price": ValueError("no")}, "node 'price': the error differs\n  recorded: ''\n  now:      'ValueError: no'"),
        (
            {"desk:approve": ask_twice},
            "run 1, step 2, node 'desk', step 2, node 'desk:approve': the question differs at [0]['buy']",
        ),
        (
            {"desk:approve": lambda state: Command(update={"log": ["approved: yes"]}, goto=[])},
            "node 'desk:approve': the question differs at [0]",
        ),
        ({"desk:ship": {"log": ["lost"]}}, "step 3, node 'desk:ship', task 1: the write to 'log' differs at [0]"),
    ],
)
def test_the_first_difference_is_named(player, fakes, told):
    assert told in player.differs(RUN, replace(APP, fakes))


def test_another_route_is_a_difference_of_the_node_before(player):
    to = "check"
    graph = graph_of(State, "S>price", price=price, check=check)
    app = graph.add_conditional_edges("price", lambda state: to, ["check", END]).compile()
    recording = player.record(app, {"item": "tea"})
    to = END
    told = player.differs(recording, app)
    assert "step 1, node 'price': the route differs at [0]\n  recorded: 'check'\n  now:      '__end__'" in told


def test_recorded_nodes_do_not_run(player):
    broken = replace(APP, {name: AssertionError("it has run") for name in ("price", "desk:approve", "desk:ship")})
    assert player.replay(RUN, broken, recorded=["price", "desk:approve", "desk:ship"]) == RUN
    whole = player.replay(RUN, APP, recorded="*")
    assert [run.state for run in whole.runs] == [run.state for run in RUN.runs]


def test_a_node_that_runs_more_often_than_recorded_is_reported(player):
    left = 0
    app = (
        chain_of(State, price=price, check=check)
        .add_conditional_edges("check", lambda state: "price" if left else END, ["price", END])
        .compile()
    )
    recording = player.record(app, {"item": "tea"})
    left = 1
    with pytest.raises(ReplayDiffers, match="step 2, node 'check': the route differs") as found:
        player.replay(recording, app, recorded=["price"])
    assert "node 'price' runs more often than it is recorded to" in str(found.value.__cause__)


def test_a_failed_run_can_be_replayed(player):
    saver = InMemorySaver()
    app = replace(APP, price=ValueError("out of stock")).copy({"checkpointer": saver})
    thread = thread_config("failed")
    with pytest.raises(ValueError, match="out of stock"):
        app.invoke({"item": "tea"}, thread)
    recording = read_thread(app, thread)
    assert (recording.runs[0].end, recording.runs[0].steps[0][0].error) == ("failed", "ValueError: out of stock")
    assert player.replay(recording, app) == recording
    assert player.replay(recording, APP, recorded="*") == recording
    assert "recorded: 'ValueError: out of stock'" in player.differs(recording, APP)


def test_a_failure_with_a_handler_is_recorded(player):
    def handle(state: State, error: NodeError):
        return {"log": [str(error.error)]}

    def fail(state: State):
        raise ValueError("no")

    app = StateGraph(State).add_node("fail", fail, error_handler=handle).add_edge(START, "fail").compile()
    recording = player.record(app, {"item": "x"})
    assert recording.runs[0].end == "done"
    assert player.replay(recording, app) == recording


def test_random_ids_may_differ_but_not_their_owners(player):
    def speak(state: MessagesState):
        return {"messages": [{"role": "assistant", "content": "Hello.", "id": str(uuid.uuid4())}]}

    def edit(state: MessagesState):
        return {"messages": [{"role": "assistant", "content": "Bye.", "id": state["messages"][place]["id"]}]}

    app, place = chain_of(MessagesState, speak=speak, edit=edit).compile(), 1
    recording = player.record(app, {"messages": "Hi"})
    player.replay(recording, app)
    place = 0
    assert "node 'edit': the write to 'messages' differs at [0]['id']" in player.differs(recording, app)


def test_keys_can_be_ignored(player):
    ticks = iter(range(1000))
    app = StateGraph(State).add_node("clock", lambda state: {"order": Order("tick", next(ticks))})
    app = app.add_edge(START, "clock").compile()
    recording = player.record(app, {})
    player.replay(recording, app, ignore=["price"])
    assert "at ['value']['price']" in player.differs(recording, app)


def test_functional_graphs_are_recorded(player):
    @task
    def double(n):
        return 2 * n

    @entrypoint()
    def flow(n):
        return double(n).result() + 1

    if not player.is_async:
        recording = record(flow, 4)
        assert recording.runs[0].state == 9
        assert replay(recording, flow) == recording


def test_context_and_config_reach_the_nodes(player):
    def look(state: State, config, runtime):
        return {"log": [config["configurable"]["tenant"], runtime.context]}

    app = chain_of(State, look=look).compile()
    given = {"config": {"configurable": {"tenant": "t"}}, "context": "c"}
    recording = player.record(app, {}, **given)
    assert recording.runs[0].state["log"] == ["t", "c"]
    player.replay(recording, app, **given)


def test_unrecordable_runs_are_errors():
    app = APP.copy({"checkpointer": InMemorySaver()})

    def thread(name):
        return thread_config(name)

    with pytest.raises(ThreadError, match="nothing is stored of thread 'none'"):
        read_thread(app, thread("none"))
    with pytest.raises(ThreadError, match="has no checkpointer"):
        read_thread(APP, thread("none"))
    app.invoke({"item": "tea"}, thread("edited"))
    app.update_state(thread("edited"), {"item": "mate"})
    with pytest.raises(ThreadError, match="changed by update_state at step 2"):
        read_thread(app, thread("edited"))
    app.undo(thread("edited"))
    with pytest.raises(ThreadError, match="was undone at step 1"):
        read_thread(app, thread("edited"))
    app.invoke({"item": "tea"}, thread("exit"), durability="exit")
    app.invoke(Command(resume="yes"), thread("exit"), durability="exit")
    with pytest.raises(ThreadError, match="are not stored"):
        read_thread(app, thread("exit"))
    with pytest.raises(ValueError, match="has no node 'pirce'"):
        replay(RUN, APP, recorded=["pirce"])
    with pytest.raises(ValueError, match="must be a list of nodes"):
        replay(RUN, APP, recorded="price")


@pytest.mark.trial
def test_a_run_that_interrupts_forever_ends():
    app = StateGraph(State).add_node("ask", lambda state: Command(goto="ask" if interrupt("?") else END))
    app = app.add_edge(START, "ask").compile()
    with pytest.raises(CheckFailed, match="still asks after 1000 answers"):
        record(app, {}, answers=lambda question: True, config={"recursion_limit": 5000})


# -- files -----------------------------------------------------------------------------------------


def test_a_file_of_the_first_version_is_read_and_replayed():
    assert json.loads(GOLDEN.read_text())["version"] == 1
    assert replay(GOLDEN, APP) == Recording.load(GOLDEN)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "run.json"
    for text, told in [
        ("[]", "is no recording"),
        ("{", "is no recording"),
        ('{"format": "other"}', "its format must be 'stategraph recording'"),
        ('{"format": "stategraph recording"}', "is no recording"),
        ('{"format": "stategraph recording", "version": 2}', "has version 2, and this version .* reads 1 to 1"),
    ]:
        path.write_text(text)
        with pytest.raises(ValueError, match=told):
            Recording.load(path)
    path.write_bytes(b"SQLite format 3\x00\xff")
    with pytest.raises(ValueError, match="is no recording"):
        Recording.load(path)
