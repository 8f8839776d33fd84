"""Undoing from inside a run, in nested graphs, Sends, forks, tasks and tools, in both worlds."""

from __future__ import annotations

import asyncio

import pytest
from kit.drive import each_schedule
from kit.graphs import CONFIG, EMPTY, Log, chain_of, graph_of, thread_config

from stategraph import (
    START,
    Command,
    InMemorySaver,
    MessagesState,
    RetryPolicy,
    Runtime,
    Send,
    StateGraph,
    ThreadUndoingError,
    Undo,
    effect,
    entrypoint,
    interrupt,
    task,
)
from stategraph.checkpoint.errors import CheckpointConflictError
from stategraph.prebuilt import ToolNode
from stategraph.pregel.drivers import undoing as undoings
from stategraph.pregel.drivers.awaits import AWAITS
from stategraph.pregel.drivers.waits import WAITS
from stategraph.visualize import timeline

DONE = []


@effect("keyed")
def cancel(item: str):
    DONE.append(f"cancel {item}")


@effect("keyed", undo=cancel)
def buy(item: str) -> str:
    "Buy an item."
    DONE.append(f"buy {item}")
    return f"receipt {item}"


@effect("keyed")
async def acancel(item: str):
    DONE.append(f"cancel {item}")


@effect("keyed", undo=acancel)
async def abuy(item: str) -> str:
    DONE.append(f"buy {item}")
    return f"receipt {item}"


@pytest.fixture(autouse=True)
def nothing_done():
    DONE.clear()


def buying(*items):
    def step(state):
        for item in items:
            buy(item)
        return {"log": [*items]}

    return step


@effect("keyed")
def refuse(item: str):
    raise ValueError("closed")


def buying_what_stays(item):
    """A node whose call cannot be undone, so that a question asks."""

    def step(state, runtime: Runtime):
        runtime.once(item, buy.__wrapped__, item, undo=refuse)
        return {"log": [item]}

    return step


def undoing(state: Log):
    raise Undo("too dear")


def failing(state: Log):
    raise ValueError("no")


def test_a_node_undoes_its_run(drive):
    app = chain_of(Log, a=buying("a", "b"), c=undoing).compile(InMemorySaver())
    assert drive.invoke(app, {"log": ["given"]}, CONFIG) == {"log": []}
    assert DONE == ["buy a", "buy b", "cancel b", "cancel a"]
    state = app.get_state(CONFIG)
    assert (state.next, state.metadata["stategraph_undone"]["reason"]) == ((), "too dear")


def test_a_failure_undoes_its_run_and_is_raised(drive):
    app = chain_of(Log, a=buying("a"), c=failing).compile(InMemorySaver(), on_failure="undo")
    with pytest.raises(ValueError, match="no"):
        drive.invoke(app, EMPTY, CONFIG)
    assert DONE == ["buy a", "cancel a"]
    assert app.get_state(CONFIG).next == ()


def read_slowly(monkeypatch, drive, app, *answers):
    """After an undo has read what is to be undone, and before it stops the thread, another process answers."""
    read_back, waiting = undoings._read_back, [*answers]

    def read(*args):
        found = yield from read_back(*args)
        while waiting:
            yield (AWAITS if drive.is_async else WAITS).ask(app, "invoke", Command(resume=waiting.pop(0)), CONFIG)
        return found

    monkeypatch.setattr(undoings, "_read_back", read)


@pytest.fixture
def asking_buyer(local_saver):
    def step(state):
        for item in "abc":
            buy(item)
            if item != "c":
                interrupt(item)
        return {"log": ["bought"]}

    return chain_of(Log, step=step).compile(local_saver)


def test_what_is_done_until_the_undo_stops_the_thread_is_undone_too(drive, asking_buyer, monkeypatch):
    drive.invoke(asking_buyer, EMPTY, CONFIG)
    read_slowly(monkeypatch, drive, asking_buyer, 1)
    drive.call(asking_buyer, "undo", CONFIG)
    assert DONE == ["buy a", "buy b", "cancel b", "cancel a"]


def test_an_undo_of_a_thread_that_has_moved_on_meanwhile_conflicts(drive, asking_buyer, monkeypatch):
    drive.invoke(asking_buyer, EMPTY, CONFIG)
    read_slowly(monkeypatch, drive, asking_buyer, 1, 2)
    with pytest.raises(CheckpointConflictError, match="another run committed"):
        drive.call(asking_buyer, "undo", CONFIG)
    assert DONE == ["buy a", "buy b", "buy c"]
    drive.call(asking_buyer, "undo", CONFIG)
    assert DONE[3:] == ["cancel c", "cancel b", "cancel a"]


@each_schedule
def test_what_a_task_of_an_earlier_step_does_until_then_is_undone_too(schedule, local_saver, monkeypatch):
    """With schedule="ready" that is recorded beside the checkpoint at which the task has started."""

    def asks(state):
        buy("b")
        interrupt("b")
        buy("d")
        interrupt("d")

    app = graph_of(Log, "S>a>c S>asks", a=buying("a"), asks=asks).compile(local_saver, schedule=schedule)
    app.invoke(EMPTY, CONFIG)
    begin = undoings._begin

    def begin_late(*args):
        app.invoke(Command(resume=1), CONFIG)
        return begin(*args)

    monkeypatch.setattr(undoings, "_begin", begin_late)
    app.undo(CONFIG)
    bought, cancelled = ([each.split()[1] for each in DONE if each.startswith(word)] for word in ("buy", "cancel"))
    assert sorted(bought) == sorted(cancelled) == ["a", "b", "d"]


@each_schedule
@pytest.mark.parametrize("inside", [False, True])
def test_what_a_task_does_that_was_under_way_then_is_undone(drive, schedule, inside, local_saver):
    """It starts anew from there: with schedule="ready" it had started at an earlier checkpoint."""

    @task(undo=cancel)
    def order(item):
        DONE.append(f"buy {item}")
        return item

    def asks(state):
        buy("x")
        interrupt("go on?")
        order("y").result()
        return {"log": [buy("z")]}

    node = chain_of(Log, asks=asks).compile(schedule=schedule) if inside else asks
    app = graph_of(Log, "S>a>c S>node", a=buying("a"), c=buying("c"), node=node).compile(local_saver, schedule=schedule)
    drive.invoke(app, EMPTY, CONFIG)
    before = app.get_state(CONFIG)
    drive.invoke(app, Command(resume=1), CONFIG)
    drive.call(app, "undo", CONFIG, to=before.config)
    cancelled = [each for each in DONE if each.startswith("cancel")]
    stays = ["a", "c"] if schedule == "ready" else []
    assert app.get_state(CONFIG).values == {"log": stays}
    assert sorted(cancelled) == [f"cancel {item}" for item in "acxyz" if item not in stays]


@each_schedule
def test_no_branch_begins_beside_an_undo(drive, schedule, local_saver):
    """What the undo has done already would be undone once more with the branch."""
    app = chain_of(Log, a=buying("a"), b=buying_what_stays("b"), c=buying("c")).compile(local_saver, schedule=schedule)
    drive.invoke(app, EMPTY, CONFIG)
    [before] = [each.config for each in app.get_state_history(CONFIG) if each.next == ("c",)]
    assert drive.call(app, "undo", CONFIG).interrupts
    for branch in (
        lambda: drive.invoke(app, None, before),
        lambda: drive.invoke(app, EMPTY, before),
        lambda: drive.invoke(app, Command(resume={"decision": "done"}), before),
        lambda: drive.call(app, "update_state", before, EMPTY),
        lambda: drive.call(app, "update_state", before, None, "__copy__"),
    ):
        with pytest.raises(ThreadUndoingError, match="is being undone"):
            branch()
    drive.invoke(app, Command(resume={"decision": "done"}), app.get_state(CONFIG).config)
    assert DONE == ["buy a", "buy b", "buy c", "cancel c", "cancel a"]


def test_going_on_from_an_undo_that_has_ended_undoes_nothing(drive):
    app = chain_of(Log, a=buying("a")).compile(InMemorySaver())
    drive.invoke(app, EMPTY, CONFIG)
    drive.call(app, "undo", CONFIG)
    drive.invoke(app, {"log": ["again"]}, CONFIG)
    [undone] = [each.config for each in app.get_state_history(CONFIG) if each.next == ("__undo__",)]
    for given in (None, EMPTY, Command(resume=1)):
        with pytest.raises(ThreadUndoingError, match="is that of an undo, which has ended: name another"):
            drive.invoke(app, given, undone)
    assert DONE == ["buy a", "cancel a", "buy a"]
    assert app.get_state(CONFIG).values == {"log": ["again", "a"]}


def test_an_undo_that_another_process_has_ended_leaves_what_followed(drive, local_saver, monkeypatch):
    app = chain_of(Log, a=buying("a")).compile(local_saver)
    drive.invoke(app, EMPTY, CONFIG)
    end = undoings._end

    def end_late(run, signal):
        monkeypatch.undo()
        app.undo(CONFIG)
        app.invoke({"log": ["again"]}, CONFIG)
        return end(run, signal)

    monkeypatch.setattr(undoings, "_end", end_late)
    state = drive.call(app, "undo", CONFIG)
    assert state.values == {"log": ["again", "a"]} and DONE == ["buy a", "cancel a", "buy a"]


@each_schedule
@pytest.mark.parametrize("keep_last", [1, 2])
def test_an_undo_goes_on_after_its_thread_was_pruned(schedule, keep_last, local_saver):
    app = chain_of(Log, a=buying("a"), b=buying_what_stays("b"), c=buying("c")).compile(local_saver, schedule=schedule)
    app.invoke(EMPTY, CONFIG)
    app.undo(CONFIG)
    local_saver.prune(["t"], keep_last=keep_last)
    assert app.invoke(Command(resume={"decision": "done"}), CONFIG) == {"log": []}
    assert DONE == ["buy a", "buy b", "buy c", "cancel c", "cancel a"]
    local_saver.prune(["t"], keep_last=1)
    assert len([*app.get_state_history(CONFIG)]) == 1


def test_a_stream_ends_with_the_undo():
    app = chain_of(Log, a=buying("a"), c=undoing).compile(InMemorySaver())
    assert list(app.stream(EMPTY, CONFIG, stream_mode="updates")) == [{"a": {"log": ["a"]}}]
    assert DONE == ["buy a", "cancel a"]

    async def read():
        return [chunk async for chunk in app.astream(EMPTY, CONFIG, stream_mode="updates")]

    assert asyncio.run(read()) == [{"a": {"log": ["a"]}}]
    assert DONE[2:] == ["buy a", "cancel a"]


def test_nested_graphs_and_sends_are_undone():
    inner = chain_of(Log, x=buying("x"), y=buying("y")).compile()
    graph = graph_of(Log, "S>a>inner", a=buying("a"), inner=inner, sent=lambda state: buying(state["item"])(state))
    graph.add_conditional_edges("inner", lambda _: [Send("sent", {"item": item}) for item in "mno"], ["sent"])
    app = graph.compile(InMemorySaver())
    app.invoke(EMPTY, CONFIG)
    app.undo(CONFIG)
    bought, cancelled = DONE[:6], DONE[6:]
    assert [each.split()[1] for each in bought] == [each.split()[1] for each in cancelled][::-1]
    assert bought[:3] == ["buy a", "buy x", "buy y"] and len({*bought}) == 6


def test_an_undo_raised_in_a_nested_graph_undoes_all():
    inner = chain_of(Log, x=buying("x"), y=undoing).compile()
    app = chain_of(Log, a=buying("a"), inner=inner).compile(InMemorySaver())
    app.invoke(EMPTY, CONFIG)
    assert DONE == ["buy a", "buy x", "cancel x", "cancel a"]


def test_tasks_and_tools_are_undone():
    @task(undo=cancel)
    def order(item):
        DONE.append(f"buy {item}")
        return item

    @entrypoint(checkpointer=InMemorySaver())
    def shop(items):
        return [order(item).result() for item in items]

    shop.invoke(["a", "b"], CONFIG)
    shop.undo(CONFIG)
    assert DONE == ["buy a", "buy b", "cancel b", "cancel a"]
    call = {"id": "1", "type": "function", "function": {"name": "buy", "arguments": '{"item": "t"}'}}
    app = chain_of(MessagesState, tools=ToolNode([buy])).compile(InMemorySaver())
    app.invoke({"messages": [{"role": "assistant", "content": "", "tool_calls": [call], "id": "m"}]}, CONFIG)
    app.undo(CONFIG)
    assert DONE[4:] == ["buy t", "cancel t"]


def test_coroutines_are_undone_by_aundo():
    async def step(state: Log, runtime: Runtime):
        await abuy("a")
        await runtime.aonce("b", abuy.__wrapped__, "b", undo=acancel)
        return {"log": ["a"]}

    app = chain_of(Log, a=step).compile(InMemorySaver())

    async def run():
        await app.ainvoke(EMPTY, CONFIG)
        return await app.aundo(CONFIG)

    state = asyncio.run(run())
    assert DONE == ["buy a", "buy b", "cancel b", "cancel a"] and state.next == ()


def test_a_fork_refuses_to_undo_what_the_older_branch_owns():
    app = chain_of(Log, a=buying("a"), b=buying("b")).compile(InMemorySaver())
    app.invoke(EMPTY, CONFIG)
    tip = app.get_state(CONFIG).config["configurable"]["checkpoint_id"]
    before_b = next(each for each in app.get_state_history(CONFIG) if each.next == ("b",))
    app.invoke(None, before_b.config)
    assert DONE == ["buy a", "buy b", "buy b"]
    with pytest.raises(ValueError, match=f"branch that ends with checkpoint '{tip}'"):
        app.undo(CONFIG)
    fork = next(each for each in app.get_state_history(CONFIG) if each.next == ("b",))
    app.undo(CONFIG, to=fork.config)
    assert DONE[3:] == ["cancel b"]
    app.undo(thread_config("t", checkpoint_id=tip))
    assert DONE[4:] == ["cancel b", "cancel a"]


def test_an_undo_of_a_question_that_waits_drops_it():
    def asks(state: Log):
        buy("b")
        return {"log": [interrupt("go on?")]}

    app = chain_of(Log, a=buying("a"), b=asks).compile(InMemorySaver())
    app.invoke(EMPTY, CONFIG)
    state = app.undo(CONFIG)
    assert DONE[2:] == ["cancel b", "cancel a"] and not state.interrupts


def test_an_answer_through_invoke_ends_an_undo_of_its_own(drive):
    tried = []

    @effect("keyed")
    def refuse(item: str):
        tried.append(item)
        if len(tried) == 1:
            raise ValueError("closed")

    def step(state: Log, runtime: Runtime):
        runtime.once("x", str, "x", undo=refuse_all)
        raise Undo("no")

    @effect("keyed")
    def refuse_all():
        refuse("x")

    app = chain_of(Log, a=step).compile(InMemorySaver())
    found = drive.invoke(app, EMPTY, CONFIG)
    assert "undoing" in found["__interrupt__"][0].value["question"]
    assert drive.invoke(app, Command(resume={"decision": "again"}), CONFIG) == {"log": []}
    assert tried == ["x", "x"] and app.get_state(CONFIG).next == ()


def test_undo_with_tasks_that_start_when_ready():
    graph = chain_of(Log, a=buying("a"), b=buying("b"))
    app = graph.compile(InMemorySaver(), schedule="ready")
    app.invoke(EMPTY, CONFIG)
    state = app.undo(CONFIG)
    assert DONE[2:] == ["cancel b", "cancel a"] and state.next == ()


def test_the_result_of_a_node_is_not_taken_for_a_record_of_an_undo():
    """What a service has answered may hold anything; it calls no function."""

    def step(state: Log, runtime: Runtime):
        runtime.once("ask", lambda: {"__undo__": f"{__name__}.cancel", "task": "", "key": "", "arguments": {"item": "x"}})
        return {"log": ["a"]}

    app = chain_of(Log, a=step).compile(InMemorySaver())
    app.invoke(EMPTY, CONFIG)
    app.undo(CONFIG)
    assert DONE == []


QUICK = RetryPolicy(max_attempts=4, initial_interval=0.0, retry_on=ValueError)


@pytest.mark.parametrize("whose", ["node", "nested", "task", "nobody"])
@pytest.mark.parametrize("failures", [3, 4])
def test_an_undo_is_retried_by_the_policy_of_what_it_undoes(drive, whose, failures):
    """Each on its own: what one undo has used up is not missing to the next. Then a question asks."""

    @effect("keyed")
    def fail(item: str):
        DONE.append(f"try {item}")
        if DONE.count(f"try {item}") <= failures:
            raise ValueError("closed")

    @task(undo=fail, retry_policy=QUICK)
    def order(item): ...

    @effect("keyed", undo=fail)
    def buy(item: str): ...

    def step(state: Log):
        for item in "ab":
            order(item).result() if whose == "task" else buy(item)

    graph = StateGraph(Log).add_node("n", step, retry_policy=QUICK if whose in ("node", "nested") else None).add_edge(START, "n")
    app = graph.compile(InMemorySaver())
    if whose == "nested":
        app = chain_of(Log, inner=graph.compile()).compile(InMemorySaver())
    drive.invoke(app, EMPTY, CONFIG)
    state = drive.call(app, "undo", CONFIG)
    if whose == "nobody":  # a ValueError is nothing that `RetryPolicy()` retries
        assert DONE == ["try b"] and state.interrupts
    elif failures == 3:
        assert DONE == ["try b"] * 4 + ["try a"] * 4 and state.next == ()
    else:
        assert DONE == ["try b"] * 4 and state.interrupts
        drive.invoke(app, Command(resume={"decision": "again"}), CONFIG)
        assert DONE == ["try b"] * 5 + ["try a"] * 4


def test_an_undo_is_retried_after_the_question_whether_its_call_has_happened(drive):
    """That is asked once, not again with each retry."""

    @effect("keyed")
    def refund(item: str, result: str):
        DONE.append(f"refund {result}")
        if len(DONE) < 4:
            raise ValueError("closed")

    @effect("irreversible", undo=refund)
    def pay(item: str):
        DONE.append("pay")
        raise KeyboardInterrupt

    def step(state: Log):
        pay("a")

    app = StateGraph(Log).add_node("n", step, retry_policy=QUICK).add_edge(START, "n").compile(InMemorySaver())
    with pytest.raises(KeyboardInterrupt):
        drive.invoke(app, EMPTY, CONFIG)
    assert drive.call(app, "undo", CONFIG).interrupts
    drive.invoke(app, Command(resume={"decision": "done", "result": "r"}), CONFIG)
    assert DONE == ["pay", "refund r", "refund r", "refund r"] and app.get_state(CONFIG).next == ()


@pytest.mark.parametrize("kind", ["keyed", "irreversible"])
def test_what_a_graph_has_done_that_stores_nothing_is_recorded_with_its_task(drive, kind):
    """It starts over after a death, and finds what it has done: nothing is done twice, and all is undone."""
    deaths = []

    @effect(kind, undo=cancel)
    def buy(item: str, idempotency_key: str) -> str:
        DONE.append(f"buy {item}")
        return idempotency_key

    def step(item):
        def body(state: Log, runtime: Runtime):
            key = buy(item)
            runtime.once("mail", DONE.append, f"mail {item}")
            if item == "y" and not deaths:
                deaths.append(key)
                raise KeyboardInterrupt
            return {"log": [key]}

        return body

    low = chain_of(Log, y=step("y")).compile()
    inner = chain_of(Log, x=step("x"), low=low, z=step("z")).compile(checkpointer=False)
    app = chain_of(Log, a=buying("a"), inner=inner).compile(InMemorySaver())
    with pytest.raises(KeyboardInterrupt):
        drive.invoke(app, EMPTY, CONFIG)
    assert deaths[0] in drive.invoke(app, None, CONFIG)["log"]
    assert DONE == ["buy a", "buy x", "mail x", "buy y", "mail y", "buy z", "mail z"]
    drive.call(app, "undo", CONFIG)
    assert DONE[7:] == ["cancel z", "cancel y", "cancel x", "cancel a"]


def test_a_timeline_shows_an_undo_and_knows_its_node():
    @effect("keyed")
    def fail(item: str):
        raise ValueError("closed")

    def step(state: Log, runtime: Runtime):
        runtime.once("a", str, "a", undo=fail)
        raise Undo("no")

    app = chain_of(Log, a=step).compile(InMemorySaver())
    app.invoke(EMPTY, CONFIG)
    shown = timeline(app, CONFIG)
    assert "__undo__" in shown.rows and "another version" not in shown.draw_text()


def test_an_effect_in_a_graph_that_stores_nothing_and_starts_tasks_when_ready_is_refused(drive):
    """When it starts over, its tasks have other ids: the effect would be repeated."""
    inner = chain_of(Log, x=buying("x")).compile(checkpointer=False, schedule="ready")
    app = chain_of(Log, a=buying("a"), inner=inner).compile(InMemorySaver())
    with pytest.raises(RuntimeError, match='checkpointer=False and schedule="ready"'):
        drive.invoke(app, EMPTY, CONFIG)
    assert DONE == ["buy a"]
    drive.invoke(chain_of(Log, inner=inner).compile(), EMPTY)  # nothing is stored, so nothing starts over
    assert DONE == ["buy a", "buy x"]
