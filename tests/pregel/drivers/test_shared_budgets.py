"""Budgets of a node, of one call, and of all threads of a user."""

from __future__ import annotations

import pickle
import threading

import pytest
from kit import cluster
from kit.drive import run_threads
from kit.fleet import working
from kit.graphs import CONFIG, EMPTY, Log, chain_of, thread_config

from stategraph import (
    START,
    Budget,
    BudgetExceededError,
    Command,
    InMemorySaver,
    Runtime,
    Send,
    StateGraph,
    task,
)
from stategraph.store import InMemoryStore
from stategraph.store.postgres import PostgresStore
from stategraph.store.sqlite import SqliteStore
from stategraph.upgrade import Migration, prove
from stategraph.upgrade.proof import apply_migration
from stategraph.workers import Queue

postgres = cluster.emptied


def spending(drive, usd):
    if drive.is_async:

        async def aspend(state, runtime: Runtime):
            await runtime.aspend(usd=usd, calls=1)
            return {"log": ["spent"]}

        return aspend

    def spend(state, runtime: Runtime):
        runtime.spend(usd=usd, calls=1)
        return {"log": ["spent"]}

    return spend


def user(name, thread):
    return thread_config(thread, user=name)


def test_a_budget_of_a_node_counts_what_its_tasks_spend(drive, local_saver):
    app = chain_of(Log, a=spending(drive, 5), b=spending(drive, 1)).compile(
        checkpointer=local_saver, budget=Budget(usd=2, node="b")
    )
    for _ in range(2):
        drive.invoke(app, EMPTY, CONFIG)
    with pytest.raises(BudgetExceededError, match=r"2 of 2 usd of b are spent.* larger Budget\(usd=\.\.\.\)") as raised:
        drive.invoke(app, EMPTY, CONFIG)
    assert (raised.value.unit, raised.value.spent, raised.value.limit) == ("usd", 2, 2)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    assert drive.call(app, "get_spent", CONFIG)["usd"] == 17


def test_a_budget_of_a_node_counts_its_tasks_and_graphs_inside():
    @task
    def pay(runtime: Runtime):
        runtime.spend(usd=1)

    inner = chain_of(Log, x=lambda state: pay().result()).compile()
    app = chain_of(Log, a=lambda state: pay().result(), b=inner).compile(
        checkpointer=InMemorySaver(), budget=[Budget(usd=2, node="a"), Budget(usd=1, node="b")]
    )
    app.invoke(EMPTY, CONFIG)
    with pytest.raises(BudgetExceededError):
        app.invoke(EMPTY, CONFIG)
    assert app.get_spent(CONFIG)["usd"] == 3


@pytest.mark.parametrize("apply", [False, True])
def test_a_budget_of_a_node_goes_on_under_its_new_name(local_saver, apply):
    def graph(name, **options):
        def spend(state, runtime: Runtime):
            runtime.spend(usd=1)

        builder = chain_of(Log, **{name: spend}).add_edge(name, name)
        return builder.compile(local_saver, budget=Budget(usd=2, node=name), **options)

    with pytest.raises(BudgetExceededError):
        graph("a").invoke(EMPTY, CONFIG)
    new = graph("b", migrate=Migration().rename_node("a", "b"))
    if apply:
        assert apply_migration(new, prove(new).verdicts[0])
    with pytest.raises(BudgetExceededError):
        new.invoke(None, CONFIG)
    assert new.get_spent(CONFIG)["usd"] == 2


def test_a_call_may_have_a_budget(drive, local_saver):
    app = chain_of(Log, a=spending(drive, 1), b=spending(drive, 1)).compile(local_saver)
    drive.invoke(app, EMPTY, CONFIG, budget=Budget(usd=2))
    drive.invoke(app, EMPTY, CONFIG, budget=Budget(usd=2))  # each call has its own
    with pytest.raises(BudgetExceededError):
        drive.invoke(app, EMPTY, CONFIG, budget=Budget(usd=1))
    drive.invoke(app, None, CONFIG)


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    if request.param == "memory":
        yield InMemoryStore()
    else:
        with SqliteStore(str(tmp_path / "store.db")) as opened:
            yield opened


def test_threads_of_a_user_share_a_budget(drive, store):
    app = chain_of(Log, a=spending(drive, 1)).compile(
        checkpointer=InMemorySaver(), store=store, budget=Budget(usd=2, per="user")
    )
    for thread in "12":
        drive.invoke(app, EMPTY, user("ann", thread))
    with pytest.raises(BudgetExceededError):
        drive.invoke(app, EMPTY, user("ann", "3"))
    drive.invoke(app, EMPTY, user("bob", "4"))


def test_more_may_be_given_to_a_user(drive, store):
    app = chain_of(Log, a=spending(drive, 1)).compile(
        checkpointer=InMemorySaver(), store=store, budget=Budget(usd=1, per="user", on_empty="ask")
    )
    drive.invoke(app, EMPTY, user("ann", "1"))
    [question] = drive.invoke(app, EMPTY, user("ann", "2"))["__interrupt__"]
    assert question.value["question"] == "1 of 1 usd of user ann are spent: how much more?"
    assert "__interrupt__" not in drive.invoke(app, Command(resume=2.0), user("ann", "2"))
    drive.invoke(app, EMPTY, user("ann", "3"))
    assert "__interrupt__" in drive.invoke(app, EMPTY, user("ann", "4"))


@pytest.mark.filterwarnings("ignore:node 'a' has ended without asking:stategraph.GraphWarning")
@pytest.mark.parametrize("nested", [False, True])
def test_budgets_with_equal_limits_ask_one_after_the_other(drive, store, nested):
    """Of a graph and of the one inside it; of a user and of a team that are called the same."""
    graph = chain_of(Log, a=spending(drive, 1))
    if nested:
        graph, budgets = chain_of(Log, graph=graph.compile(budget=Budget(usd=0, on_empty="ask"))), Budget(usd=0, on_empty="ask")
    else:
        budgets = [Budget(usd=0, per=per, on_empty="ask") for per in ("user", "team")]
    app = graph.compile(InMemorySaver(), store=store, budget=budgets)
    config = thread_config(user="7", team="7")
    assert len(drive.invoke(app, EMPTY, config)["__interrupt__"]) == 1
    assert len(drive.invoke(app, Command(resume=2.0), config)["__interrupt__"]) == 1
    assert drive.invoke(app, Command(resume=2.0), config) == {"log": ["spent"]}


@pytest.mark.parametrize("nested", [False, True])
def test_several_budgets_of_a_user_count_each_call_once(drive, store, nested):
    first, second = Budget(usd=3, per="user", on_empty="ask"), Budget(usd=4, calls=9, per="user")
    graph = chain_of(Log, a=spending(drive, 1))
    if nested:
        graph = chain_of(Log, graph=graph.compile(budget=first))
    app = graph.compile(InMemorySaver(), store=store, budget=[second] if nested else [first, second])
    for thread in "123":
        assert "__interrupt__" not in drive.invoke(app, EMPTY, user("ann", thread))
    [question] = drive.invoke(app, EMPTY, user("ann", "4"))["__interrupt__"]
    assert (question.value["spent"], question.value["limit"]) == (3, 3)
    drive.invoke(app, Command(resume=5.0), user("ann", "4"))
    with pytest.raises(BudgetExceededError, match="4 of 4 usd"):  # which nobody was asked to raise
        drive.invoke(app, EMPTY, user("ann", "5"))


def test_a_budget_of_a_user_may_begin_with_nothing(drive, store):
    budget = Budget(calls=0, per="user", on_empty="ask")
    app = chain_of(Log, a=spending(drive, 1)).compile(InMemorySaver(), store=store, budget=budget)
    assert "__interrupt__" in drive.invoke(app, EMPTY, user("ann", "1"))
    for without_end in "inf", float("nan"):  # which no store could keep: the question stays open
        with pytest.raises(ValueError, match="Input should be a finite number"):
            drive.invoke(app, Command(resume=without_end), user("ann", "1"))
    assert "__interrupt__" not in drive.invoke(app, Command(resume=1), user("ann", "1"))
    assert "__interrupt__" in drive.invoke(app, EMPTY, user("ann", "2"))


def test_calls_of_a_user_are_never_more_than_the_limit(store):
    """Eight threads side by side, with four tasks each."""
    made = []

    def call(state, runtime: Runtime):
        runtime.spend(calls=1)
        made.append(1)

    graph = StateGraph(Log).add_node("call", call)
    graph.add_conditional_edges(START, lambda state: [Send("call", {})] * 4, ["call"])
    app = graph.compile(InMemorySaver(), store=store, budget=Budget(calls=20, per="user"), on_failure="finish")
    failed = []

    def run(thread):
        try:
            app.invoke(EMPTY, user("ann", str(thread)))
        except BudgetExceededError as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    run_threads(threads)
    assert len(made) == 20 and failed


def test_a_thread_counts_its_calls_beside_those_that_the_budget_of_a_user_has_refused(drive, store):
    graph = StateGraph(Log).add_node("call", spending(drive, 2))
    graph.add_conditional_edges(START, lambda state: [Send("call", {})] * 8, ["call"])
    saver, made = InMemorySaver(), 0
    for limit in (3, 5, 8):
        budget = [Budget(usd=100), Budget(calls=limit, per="user")]
        app = graph.compile(saver, store=store, budget=budget, on_failure="finish")
        try:
            drive.invoke(app, None if made else {"log": []}, user("ann", "1"))
        except BudgetExceededError:
            assert limit < 8
        made = limit
        spent = drive.call(app, "get_spent", user("ann", "1"))
        assert (spent["calls"], spent["usd"]) == (made, 2 * made)


def test_a_budget_of_a_user_needs_a_user_and_a_store():
    graph = chain_of(Log, a=lambda state, runtime: runtime.spend(usd=1))
    app = graph.compile(InMemorySaver(), store=InMemoryStore(), budget=Budget(usd=1, per="user"))
    with pytest.raises(ValueError, match=r"needs a value of 'user' in config\['configurable'\]"):
        app.invoke(EMPTY, CONFIG)
    app = graph.compile(InMemorySaver(), budget=Budget(usd=1, per="user"))
    with pytest.raises(ValueError, match="needs a store"):
        app.invoke(EMPTY, user("ann", "1"))
    with pytest.raises(ValueError, match="takes no node="):
        Budget(usd=1, per="user", node="a")


def test_workers_share_the_budget_of_a_user(postgres):
    made = []

    def call(state, runtime: Runtime):
        runtime.spend(calls=1)
        made.append("call")
        return {"log": ["called"]}

    with PostgresStore.from_conn_string(postgres) as store:
        app = chain_of(Log, a=call, b=call).compile(name="calling", store=store, budget=Budget(calls=7, per="user"))
        with Queue.from_conn_string(postgres, app) as queue, working(app, postgres, 3):
            for number in range(6):
                queue.submit(f"{number}", EMPTY, config={"configurable": {"user": "ann"}})
            queue.submit("other", EMPTY, config={"configurable": {"user": "bob"}})
            ends = [queue.result(f"{number}", wait=60) for number in range(6)]
            assert queue.result("other", wait=60).unwrap()["log"] == ["called", "called"]
    assert len(made) == 7 + 2
    assert 1 <= sum(end.error is not None for end in ends) <= 5


@pytest.mark.parametrize("said", ["bob", None])
def test_on_a_server_the_user_is_who_has_signed_in(said):
    """Not who the request names."""
    signed_in = {"langgraph_auth_user": {"identity": "ann"}, "graph_id": "g", "assistant_id": "a"}
    app = chain_of(Log, a=lambda state, runtime: runtime.spend(usd=1)).compile(
        checkpointer=InMemorySaver(), store=InMemoryStore(), budget=Budget(usd=1, per="user")
    )
    app.invoke(EMPTY, user("ann", "1"))
    with pytest.raises(BudgetExceededError):
        app.invoke(EMPTY, {"configurable": {"thread_id": "2", "user": said, **signed_in}})
