"""Budgets: what models and `runtime.spend` spend is reserved before, settled after, stored with the step; empty ones stop."""

from __future__ import annotations

import asyncio
import contextvars
import re
import threading

import pytest
from kit.crash_points import Death, Died, dying
from kit.drive import Drive, each_schedule
from kit.graphs import EMPTY, Log, chain_of, graph_of, thread_config

from stategraph import (
    END,
    START,
    Budget,
    BudgetExceededError,
    Command,
    GraphWarning,
    InMemorySaver,
    RetryPolicy,
    Runtime,
    Send,
    StateGraph,
    interrupt,
    task,
)
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.graph import acall_model, call_model
from stategraph.pregel.drivers.side_effects import StoredEffect
from stategraph.pregel.errors import InvalidGraphError
from stategraph.pregel.run.commits import CommitBuilder

CONFIG = thread_config("1")
PRICES = {"small": (100_000.0, 200_000.0), "large": (1_000_000.0, 2_000_000.0)}


class Model:
    """A model that counts its calls; each takes 3 tokens of input and 2 of output."""

    def __init__(self, name="small", fails=0, work=None):
        self.model, self.calls, self.fails, self.work = name, 0, fails, work
        self.meeting = None

    def invoke(self, messages, **options):
        self.calls += 1
        if self.work is not None:
            self.work()
        if self.fails:
            self.fails -= 1
            raise ConnectionError
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        return {"role": "assistant", "content": self.model, "usage": usage}

    async def ainvoke(self, messages, **options):
        if self.meeting is not None:
            await self.meeting.wait()
        return self.invoke(messages)


def asking(drive, model: Model, calls=1):
    """A node that calls the model."""

    def ask(state):
        return {"log": [call_model(model, [])["content"] for _ in range(calls)]}

    async def aask(state):
        return {"log": [(await acall_model(model, []))["content"] for _ in range(calls)]}

    return aask if drive.is_async else ask


def chain(nodes, saver, *budgets: Budget, **options):
    graph = StateGraph(Log)
    for number, node in enumerate(nodes):
        graph.add_node(f"n{number}", node, retry_policy=RetryPolicy(initial_interval=0))
        graph.add_edge(START if number == 0 else f"n{number - 1}", f"n{number}")
    return graph.compile(saver, budget=budgets, **options)


def test_models_spend_by_their_usage_and_the_table_of_prices(drive, saver):
    model = Model()
    app = chain([asking(drive, model)] * 2, saver, Budget(usd=100, prices=PRICES))
    drive.invoke(app, EMPTY, CONFIG)
    spent = drive.call(app, "get_spent", CONFIG)
    assert spent.pop("seconds") >= 0
    assert spent == {"usd": pytest.approx(1.4), "tokens": 10, "calls": 2}


@pytest.mark.parametrize("limit, calls", [({"calls": 3}, 3), ({"tokens": 11}, 3), ({"tokens": 10}, 2), ({"usd": 0.1}, 1)])
def test_an_empty_budget_stops_the_thread_which_goes_on_with_more(drive, saver, limit, calls):
    model = Model()
    nodes = [asking(drive, model)] * 5
    app = chain(nodes, saver, Budget(**limit, prices=PRICES))
    with pytest.raises(BudgetExceededError, match="the budget is empty") as caught:
        drive.invoke(app, EMPTY, CONFIG)
    assert [caught.value.unit] == [*limit] and model.calls == calls
    with pytest.raises(BudgetExceededError):
        drive.invoke(app, None, CONFIG)  # the total is the thread's
    app = chain(nodes, saver, Budget(calls=100))
    assert len(drive.invoke(app, None, CONFIG)["log"]) == 5
    assert model.calls == 5 == drive.call(app, "get_spent", CONFIG)["calls"]


def test_a_budget_for_each_call(drive, saver):
    model = Model()
    app = chain([asking(drive, model)] * 2, saver, Budget(calls=2, per="call"), Budget(calls=5))
    drive.invoke(app, EMPTY, CONFIG)
    drive.invoke(app, EMPTY, CONFIG)
    with pytest.raises(BudgetExceededError, match="5 of 5 calls"):
        drive.invoke(app, EMPTY, CONFIG)
    assert model.calls == 5


def test_a_person_is_asked_how_much_more(drive, saver):
    model = Model()
    app = chain([asking(drive, model)] * 4, saver, Budget(calls=1, on_empty="ask"))
    [question] = drive.invoke(app, EMPTY, CONFIG)["__interrupt__"]
    assert question.value["question"] == "1 of 1 calls are spent: how much more?"
    [question] = drive.invoke(app, Command(resume=2), CONFIG)["__interrupt__"]
    assert question.value["spent"] == 3 == model.calls
    with pytest.raises(BudgetExceededError):
        drive.invoke(app, Command(resume=0), CONFIG)


def spending(drive, times=1, **amounts):
    def spend(state, runtime: Runtime):
        for _ in range(times):
            runtime.spend(**amounts)

    async def aspend(state, runtime: Runtime):
        for _ in range(times):
            await runtime.aspend(**amounts)

    return aspend if drive.is_async else spend


def test_large_limits_are_told_apart_and_written_out(drive, saver):
    app = chain([spending(drive, times=3, tokens=5_000_001)], saver, Budget(tokens=5_000_000, on_empty="ask"))
    [question] = drive.invoke(app, EMPTY, CONFIG)["__interrupt__"]
    assert question.value["question"] == "5000001 of 5000000 tokens are spent: how much more?"
    for limit in 5_000_002, 5_000_004:  # one that is given more by a part that no short number shows
        [question] = drive.invoke(app, Command(resume=2), CONFIG)["__interrupt__"]
        assert question.value["limit"] == limit
    with pytest.raises(BudgetExceededError, match="10000002 of 5000004 tokens are spent"):
        drive.invoke(app, Command(resume=0), CONFIG)


def test_an_answer_raises_no_budget_that_does_not_ask(drive, saver):
    app = chain([spending(drive, calls=1)] * 3, saver, Budget(calls=1, on_empty="ask"), Budget(calls=2))
    assert "__interrupt__" in drive.invoke(app, EMPTY, CONFIG)
    with pytest.raises(BudgetExceededError, match="2 of 2 calls"):
        drive.invoke(app, Command(resume=5), CONFIG)


def test_what_an_answer_adds_to_the_budget_of_a_call_is_for_that_call(drive, saver):
    budgets = Budget(calls=1, per="call", on_empty="ask"), Budget(calls=7, on_empty="ask")
    app = chain([spending(drive, times=2, calls=1)], saver, *budgets)
    for _ in range(2):
        [question] = drive.invoke(app, EMPTY, CONFIG)["__interrupt__"]
        assert question.value["limit"] == 1
        assert "__interrupt__" not in drive.invoke(app, Command(resume=5), CONFIG)
    [question] = drive.invoke(app, EMPTY, CONFIG)["__interrupt__"]
    assert question.value["limit"] == 1
    [question] = drive.invoke(app, Command(resume=5), CONFIG)["__interrupt__"]
    assert (question.value["spent"], question.value["limit"]) == (7, 7)


def test_a_cheaper_model_is_called(drive, saver):
    large, small = Model("large"), Model()
    cheaper = [small, None]
    app = chain([asking(drive, large)] * 4, saver, Budget(calls=2, on_empty=lambda model: cheaper.pop(0)))
    with pytest.raises(BudgetExceededError):
        drive.invoke(app, EMPTY, CONFIG)
    assert (large.calls, small.calls) == (2, 1)


def test_a_call_that_fails_counts_as_spent(drive, saver):
    """Its model may have answered. Its tokens are estimated by the largest call before."""
    model = Model(fails=0)
    first = asking(drive, model)
    failing = Model(fails=2)
    app = chain([first, asking(drive, failing)], saver, Budget(calls=10))
    drive.invoke(app, EMPTY, CONFIG)
    spent = drive.call(app, "get_spent", CONFIG)
    assert (spent["calls"], spent["tokens"]) == (4, 20)


@pytest.mark.parametrize("given", [None, {"log": []}], ids=["resumed", "new input"])
def test_a_task_that_fails_has_spent_what_its_calls_have_cost(drive, saver, given):
    """Not what was reserved for them: what comes next counts their tokens, too."""

    def fails(state):
        raise ValueError("no")

    ask = asking(drive, Model())
    if drive.is_async:

        async def node(state):
            await ask(state)
            fails(state)
    else:

        def node(state):
            ask(state)
            fails(state)

    app = chain([node], saver, Budget(tokens=100))
    for calls in (1, 2, 3):
        with pytest.raises(ValueError, match="no"):
            drive.invoke(app, {"log": []} if calls == 1 else given, CONFIG)
        spent = drive.call(app, "get_spent", CONFIG)
        assert (spent["calls"], spent["tokens"]) == (calls, 5 * calls)


def test_what_a_finished_call_has_spent_counts_though_a_resume_does_not_make_it_again(drive, saver):
    @task
    def pay(runtime: Runtime):
        runtime.spend(usd=1)

    @task
    async def apay(runtime: Runtime):
        await runtime.aspend(usd=1)

    failures = [ValueError("no")]

    def node(state):
        pay().result()
        if failures:
            raise failures.pop()

    async def anode(state):
        await apay()
        if failures:
            raise failures.pop()

    app = chain([anode if drive.is_async else node], saver, Budget(usd=9))
    with pytest.raises(ValueError, match="no"):
        drive.invoke(app, EMPTY, CONFIG)
    drive.invoke(app, None, CONFIG)
    assert drive.call(app, "get_spent", CONFIG)["usd"] == 1


@pytest.mark.trial
@pytest.mark.parametrize("stores_first", [False, True])
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_what_is_spent_survives_a_death_at_each_storing_call(drive, local_saver, stores_first, durability):
    """Each call that began counts, and besides those only one whose reservation was stored before the process died."""
    at = 0
    while True:
        at += 1
        model, thread = Model(), thread_config(f"{at}")
        app = chain([asking(drive, model, 2)] * 2, local_saver, Budget(calls=100))
        death = Death(at, stores_first=stores_first)
        with dying(local_saver, death):
            try:
                drive.invoke(app, EMPTY, thread, durability=durability)
            except Died:
                pass
        if not death.dead:
            break
        before = drive.call(app, "get_spent", thread).get("calls", 0)
        assert model.calls <= before + (durability == "async") and before <= model.calls + 1, at
        found = drive.invoke(app, None if drive.call(app, "get_state", thread).next else {"log": []}, thread)
        spent = drive.call(app, "get_spent", thread)
        assert len(found["log"]) >= 4
        assert model.calls - (durability == "async") * 2 <= spent["calls"] <= model.calls + 1, at
    assert at > 6


def test_eight_branches_side_by_side_overshoot_by_at_most_one_call_each(drive, saver):
    barrier = threading.Barrier(8)
    model = Model()
    if drive.is_async:
        model.meeting = asyncio.Barrier(8)
    else:
        model.work = lambda: barrier.wait(10)
    node = asking(drive, model)
    graph = StateGraph(Log).add_node("ask", node)
    graph.add_conditional_edges(START, lambda state: [Send("ask", {})] * 8, ["ask"])
    app = graph.compile(saver, budget=Budget(tokens=5, calls=9))
    drive.invoke(app, EMPTY, CONFIG)
    spent = drive.call(app, "get_spent", CONFIG)
    assert (spent["calls"], spent["tokens"]) == (8, 40)  # reserved = settled
    with pytest.raises(BudgetExceededError):
        drive.invoke(app, EMPTY, CONFIG)
    assert model.calls <= 8 + 8


def test_calls_are_reserved_before_they_begin(saver):
    """The limit of calls is never passed, whatever runs side by side."""
    model = Model()
    graph = StateGraph(Log).add_node("ask", lambda state: {"log": [call_model(model, [])]})
    graph.add_conditional_edges(START, lambda state: [Send("ask", {})] * 8, ["ask"])
    app = graph.compile(saver, budget=Budget(calls=5), on_failure="finish")
    with pytest.raises(BudgetExceededError):
        app.invoke(EMPTY, CONFIG)
    assert model.calls == 5
    app = graph.compile(saver, budget=Budget(calls=8))
    assert len(app.invoke(None, CONFIG)["log"]) == 8 == model.calls


def test_nested_graphs_and_tasks_draw_on_the_budgets_around_them(drive, saver):
    model = Model()
    inner = chain([asking(drive, model)] * 2, None, Budget(calls=2, per="call"))

    @task
    def ask_task():
        return call_model(model, [])

    def outer(state):
        ask_task().result()
        return inner.invoke(EMPTY)

    graph = StateGraph(Log).add_node("outer", outer).add_node("inner", inner)
    app = graph.add_edge(START, "outer").add_edge("outer", "inner").compile(saver, budget=Budget(calls=9))
    if drive.is_async:
        graph = graph_of(Log, "S>a", a=inner, inner=inner)
        app = graph.add_edge("a", "inner").compile(saver, budget=Budget(calls=9))
    drive.invoke(app, EMPTY, CONFIG)
    assert drive.call(app, "get_spent", CONFIG)["calls"] == model.calls == (4 if drive.is_async else 5)


def test_nothing_is_recorded_beside_a_checkpoint_that_is_not_stored_yet(tmp_path):
    """With schedule="ready" tasks spend while a step is being stored: read then, the thread would be damaged."""
    ask = asking(Drive(is_async=True), Model(), calls=2)
    graph = graph_of(Log, "S>s s>a s>b a>c b>d", s=lambda state: None, a=ask, b=asking(Drive(is_async=True), Model()), c=ask, d=ask)
    with SqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
        known, early, commit, record = set(), [], saver.commit, saver.record

        def committing(commits):
            commit(commits)
            known.update(each.id for each in commits)

        def recording(where, expected, records):
            early.extend(records.keys() - known)
            return record(where, expected, records)

        saver.commit, saver.record = committing, recording
        app = graph.compile(saver, schedule="ready", budget=Budget(calls=100))
        asyncio.run(app.ainvoke(EMPTY, CONFIG, durability="async"))
    assert known
    assert not early


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("while_built", [False, True])
def test_what_is_spent_while_a_step_ends_is_counted_after_a_crash(tmp_path, monkeypatch, durability, while_built):
    """A call of a model on another thread comes between the end of a task and the storing of its step."""
    asks, asked, dies = threading.Event(), threading.Event(), threading.Event()
    build, commit_of = CommitBuilder.build, SqliteSaver.commit

    def building(self, machine, source, writes, *rest):
        commit = None if while_built else build(self, machine, source, writes, *rest)
        if begun.is_set() and not asks.is_set():  # the step that a has ended
            asks.set()
            assert asked.wait(10)
            dies.set()
        return commit or build(self, machine, source, writes, *rest)

    model = Model(work=asked.set)
    begun = threading.Event()

    def a(state):
        assert begun.wait(10)
        return {"log": ["a"]}

    def b(state):
        begun.set()
        assert asks.wait(10)
        return asking(Drive(is_async=False), model)(state)

    app_of = graph_of(Log, "S>a>c S>b", a=a, b=b).compile
    path, budget = str(tmp_path / "threads.db"), Budget(calls=100)

    def committing(self, commits):
        commit_of(self, commits)
        if dies.is_set():
            saver.commit = saver.record = gone
            raise Died

    def gone(*given):
        raise Died

    with SqliteSaver.from_conn_string(path) as saver, monkeypatch.context() as patch:
        patch.setattr(CommitBuilder, "build", building)
        patch.setattr(SqliteSaver, "commit", committing)
        with pytest.raises(Died):
            app_of(checkpointer=saver, schedule="ready", budget=budget).invoke(EMPTY, CONFIG, durability=durability)
    assert dies.is_set()
    with SqliteSaver.from_conn_string(path) as saver:
        app = app_of(checkpointer=saver, schedule="ready", budget=budget)
        assert app.get_spent(CONFIG)["calls"] == model.calls == 1
        assert sorted(app.invoke(None, CONFIG)["log"]) == ["a", "c", "small"]
        assert app.get_spent(CONFIG)["calls"] == model.calls == 2


@each_schedule
@pytest.mark.parametrize("at", ["before", "during", "while a step is stored"])
def test_what_is_spent_after_a_task_has_ended_is_counted(saver, monkeypatch, schedule, at):
    """A node has left a thread behind, which calls a model; the last node fails, so that none stores the total."""
    begun, called, ended, done = (threading.Event() for _ in range(4))
    build, encode = CommitBuilder.build, StoredEffect._encode

    def wait():
        called.set()
        assert ended.wait(10)

    def building(self, *given):
        if begun.is_set() and at == "while a step is stored":  # b has ended, and has written the total
            begun.clear()
            called.wait(10)
        return build(self, *given)

    def encoding(self, result):
        wait()
        return encode(self, result)

    model = Model(work=wait if at == "during" else None)

    def left_behind():
        if at == "before":
            wait()
        elif at == "while a step is stored":
            assert begun.wait(10)
            monkeypatch.setattr(StoredEffect, "_encode", encoding)
        call_model(model, [])
        done.set()

    def a(state):
        threading.Thread(target=contextvars.copy_context().run, args=[left_behind]).start()
        assert at != "during" or called.wait(10)

    def last(state):
        ended.set()
        assert done.wait(10)
        raise ValueError

    monkeypatch.setattr(CommitBuilder, "build", building)
    graph = graph_of(Log, "S>a>b>last", a=a, b=lambda state: begun.set(), last=last)
    app = graph.compile(saver, schedule=schedule, budget=Budget(calls=9))
    with pytest.raises(ValueError):
        app.invoke(EMPTY, CONFIG)
    spent = app.get_spent(CONFIG)
    assert (spent["calls"], spent["tokens"]) == (1, 5)
    with pytest.raises(ValueError):
        app.invoke(None, CONFIG)  # the saver takes what comes next, and the total stays
    assert app.get_spent(CONFIG)["calls"] == model.calls == 1


def test_a_fork_carries_what_was_spent_until_then(drive, saver):
    model = Model()
    app = chain([asking(drive, model)] * 3, saver, Budget(calls=100))
    drive.invoke(app, EMPTY, CONFIG)
    states = drive.history(app, CONFIG)
    [behind_one] = [state for state in states if state.next == ("n1",)]
    drive.invoke(app, None, behind_one.config)
    assert drive.call(app, "get_spent", CONFIG)["calls"] == 3  # 1 before the fork, and 2
    assert model.calls == 5


EDITS = {
    "update_state": lambda drive, app: drive.call(app, "update_state", CONFIG, None),
    "END": lambda drive, app: drive.call(app, "update_state", CONFIG, None, as_node=END),
    "undo": lambda drive, app: drive.call(app, "undo", CONFIG),
    "the end, undo": lambda drive, app: (drive.invoke(app, Command(resume=1), CONFIG), drive.call(app, "undo", CONFIG)),
    "undo, undo": lambda drive, app: [drive.call(app, "undo", CONFIG), drive.invoke(app, EMPTY, CONFIG), drive.call(app, "undo", CONFIG)],
}


@pytest.mark.parametrize("edit", EDITS)
@each_schedule
@pytest.mark.parametrize("nested", [False, True])
def test_no_edit_takes_back_what_was_spent(drive, saver, edit, schedule, nested):
    """Nor does an undo: what models were paid stays paid."""
    model = Model()
    ask = asking(drive, model)

    async def await_and_ask(state):
        await ask(state)
        interrupt("go on?")

    def ask_a_person(state):
        ask(state)
        interrupt("go on?")

    nodes = [ask, await_and_ask if drive.is_async else ask_a_person]
    nodes = [chain(nodes, None)] if nested else nodes
    app = chain(nodes, saver, Budget(calls=100), schedule=schedule)
    drive.invoke(app, EMPTY, CONFIG)
    EDITS[edit](drive, app)
    spent = drive.call(app, "get_spent", CONFIG)
    assert (spent["calls"], spent["tokens"]) == (model.calls, 5 * model.calls)
    drive.invoke(app, {"log": ["again"]}, CONFIG)
    assert drive.call(app, "get_spent", CONFIG)["calls"] == model.calls


def test_what_a_node_spends_besides(drive, saver):
    def search(state, runtime: Runtime):
        runtime.spend(usd=0.5)
        return {"log": ["found"]}

    async def asearch(state, runtime: Runtime):
        await runtime.aspend(usd=0.5)
        return {"log": ["found"]}

    app = chain([asearch if drive.is_async else search] * 3, saver, Budget(usd=1))
    with pytest.raises(BudgetExceededError, match="1 of 1 usd"):
        drive.invoke(app, EMPTY, CONFIG)
    assert drive.call(app, "get_spent", CONFIG)["usd"] == 1


@pytest.mark.parametrize("amount", [float("nan"), float("inf"), -1, "1", None])
def test_an_amount_that_no_budget_can_count_is_refused(drive, amount):
    app = chain([spending(drive, usd=amount)], InMemorySaver(), Budget(usd=1))
    with pytest.raises(ValueError, match=rf"runtime\.spend\(usd=...\) must be a number >= 0, got {amount!r}"):
        drive.invoke(app, EMPTY, CONFIG)
    assert drive.call(app, "get_spent", CONFIG) == {}


def test_without_a_budget_spending_does_nothing_and_stores_nothing(drive, saver):
    def node(state, runtime: Runtime):
        runtime.spend(usd=1)
        return {"log": [call_model(Model(), [])["content"]]}

    app = chain([node], saver)
    drive.invoke(app, EMPTY, CONFIG)
    assert drive.call(app, "get_spent", CONFIG) == {}
    assert "__spent__" not in app.channels


def test_a_budget_without_a_checkpointer_counts_one_call_of_the_graph(drive):
    model = Model()
    app = chain([asking(drive, model)] * 2, None, Budget(calls=2))
    for _ in range(2):
        drive.invoke(app, EMPTY)
    assert model.calls == 4


def test_with_exit_the_total_is_stored_at_the_end(drive, saver):
    model = Model()
    app = chain([asking(drive, model)] * 2, saver, Budget(calls=3))
    drive.invoke(app, EMPTY, CONFIG, durability="exit")
    assert drive.call(app, "get_spent", CONFIG)["calls"] == 2


def test_with_tasks_that_start_when_ready(drive, saver):
    model = Model()
    app = chain([asking(drive, model)] * 3, saver, Budget(calls=3), schedule="ready")
    drive.invoke(app, EMPTY, CONFIG)
    assert drive.call(app, "get_spent", CONFIG)["calls"] == 3
    with pytest.raises(BudgetExceededError):
        drive.invoke(app, EMPTY, CONFIG)


@pytest.mark.parametrize("limit", [20, 100])
def test_a_task_counts_with_those_that_start_while_it_runs(drive, saver, limit):
    """With schedule="ready" they start in other states, and draw on the same budget."""
    begun, followed = threading.Event(), threading.Event()

    def long(state, runtime: Runtime):
        runtime.spend(usd=5)
        begun.set()
        assert followed.wait(10)
        runtime.spend(usd=5)
        return {"log": ["long"]}

    def short(state, runtime: Runtime):
        assert begun.wait(10)
        runtime.spend(usd=2)

    def more(state, runtime: Runtime):
        runtime.spend(usd=13)

    def last(state):
        followed.set()

    graph = graph_of(Log, "S>long>E S>short>more>last>E", long=long, short=short, more=more, last=last)
    app = graph.compile(saver, schedule="ready", budget=Budget(usd=limit))
    if limit == 20:
        with pytest.raises(BudgetExceededError, match="'long'.* 20 of 20 usd"):
            drive.invoke(app, EMPTY, CONFIG)
    else:
        drive.invoke(app, EMPTY, CONFIG)
    assert drive.call(app, "get_spent", CONFIG)["usd"] == (20 if limit == 20 else 25)


def test_a_loop_of_an_agent_ends_at_its_budget(saver):
    model = Model()

    def ask(state):
        return {"log": [call_model(model, [])["content"]]}

    graph = chain_of(Log, ask=ask)
    graph.add_conditional_edges("ask", lambda state: "ask" if len(state["log"]) < 100 else END, ["ask", END])
    app = graph.compile(saver, budget=Budget(tokens=50))
    with pytest.raises(BudgetExceededError, match="50 of 50 tokens"):
        app.invoke(EMPTY, CONFIG)
    assert model.calls == 10


def test_a_model_without_a_price_costs_as_much_as_the_most_expensive():
    app = chain([lambda state: {"log": [call_model(Model("other"), [])]}], InMemorySaver(), Budget(usd=100, prices=PRICES))
    with pytest.warns(GraphWarning, match="model 'other' has no price"):
        app.invoke(EMPTY, CONFIG)
    assert app.get_spent(CONFIG)["usd"] == pytest.approx(7)


def test_spending_in_a_coroutine_says_what_to_await():
    async def node(state, runtime: Runtime):
        runtime.spend(usd=1)

    app = chain([node], InMemorySaver(), Budget(usd=2))
    with pytest.raises(RuntimeError, match="await runtime.aspend"):
        asyncio.run(app.ainvoke(EMPTY, CONFIG))


def test_a_budget_of_an_unknown_node_is_refused(drive):
    graph, budget = chain_of(Log, ask=lambda state: {}), Budget(calls=1, node="aks")
    words = "a Budget names the unknown node 'aks'; did you mean 'ask'?"
    with pytest.raises(InvalidGraphError, match=re.escape(words)):
        graph.compile(budget=budget)
    with pytest.raises(InvalidGraphError, match=re.escape(words)):
        drive.invoke(graph.compile(), EMPTY, budget=budget)


def test_a_budget_of_dollars_without_prices_warns_when_a_model_is_called(drive, saver):
    with pytest.warns(GraphWarning, match=r"Budget\(usd=2\) has no prices"):
        drive.invoke(chain([asking(drive, Model())], saver, Budget(usd=2)), EMPTY, CONFIG)


@pytest.mark.parametrize(
    "given, words",
    [
        ({}, "must limit one of usd, tokens, calls, seconds"),
        ({"usd": -1}, "must be a number >= 0, got -1"),
        ({"usd": 1, "per": 3}, "must be 'thread', 'call', or the name of a value"),
        ({"usd": 1, "on_empty": "stopp"}, "must be 'stop', 'ask' or a function"),
        ({"usd": 1, "prices": {"small": 5}}, "must be a pair of dollars for each model, got 5 for 'small'"),
        ({"usd": 1, "prices": {"small": ("1", "2")}}, r"a pair of dollars for each model, got \('1', '2'\) for 'small'"),
        ({"usd": 1, "prices": [1]}, r"must be a dict of a pair of dollars for each model, got \[1\]"),
    ],
)
def test_what_is_no_budget_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        Budget(**given)
    with pytest.raises(TypeError, match="budget must be a Budget or a list of them"):
        chain_of(Log, a=lambda state: {}).compile(budget=2)
