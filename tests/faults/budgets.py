"""R58: budgets of threads and of users, in processes, workers and servers that are killed, counted where the calls arrive."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
from kit import cluster, fleet, spenders
from kit.spenders import BRANCHES, CALLS, LIMIT, TOKENS

from stategraph import Budget, BudgetExceededError, Command
from stategraph.pregel.drivers.spending import BUDGETS
from stategraph.pregel.names import SPENT
from stategraph.store.postgres import PostgresStore
from stategraph.store.sqlite import SqliteStore
from stategraph.testing import CheckFailed, Ledger, assert_same
from stategraph.testing.harness import Mode
from stategraph.workers import Queue

from .campaign import trial
from .fleets import WORKERS, until_all_ended
from .killer import NEVER, WRITING, Kill, Killer, Kills
from .stages import Storage, Synced, config, postgres, sqlite

MORE = 10
"""How many tokens are added where the budget of a thread is empty, and calls where that of a user is."""


class Play(NamedTuple):
    """How a thread is run."""

    world: str


@contextmanager
def opened(storage: Storage):
    """A saver, and the store beside it."""
    with storage.open() as saver:
        more = {"saver": saver} if storage.kind == "sqlite" else {}
        kind = SqliteStore if more else PostgresStore
        with kind.from_conn_string(storage.address, **more) as store:
            yield saver, store


def check_between(least, found, most, where):
    if not least <= found <= most:
        raise CheckFailed(f"{where}: {found} is not from {least} to {most}")


def run(storage: Storage, play: Play, path, thread, plan: Kill):
    """Let a thread spend to its end: with more where it is stopped or asks. How often each place was passed."""
    killer, notes = Killer(plan), Synced(path)
    at = config(thread)
    at["configurable"]["user"] = "ann"

    def received(*words):
        notes.note(*words)
        killer.passing("effect")

    with opened(storage) as (saver, store), Mode(play.world) as world:
        killer.watch(saver, WRITING)
        killer.start()
        tokens, given = MORE, {"log": []}
        while True:
            budgets = [Budget(tokens=tokens), Budget(calls=LIMIT // 10, per="user", on_empty="ask")]
            options = {"checkpointer": saver, "store": store}
            app = spenders.spender(received, play.world == "async", budget=budgets, **options)
            state = world.call(app, "get_state", at)
            if state.created_at and not state.next:
                return killer.passed
            if state.next:
                given = Command(resume={each.id: MORE for each in state.interrupts}) if state.interrupts else None
            try:
                world.call(app, "invoke", given, at)
            except BudgetExceededError as error:
                assert_same(error.unit, "tokens", "the budget that stops")
                tokens += MORE
                notes.note("limit", tokens)


def judge(storage: Storage, path, kills):
    """What is spent is what has arrived, and besides that what killed calls had reserved."""
    notes = Ledger(path).read()
    arrived = Counter(thread for kind, thread in notes if kind == "call")
    limit = max([MORE, *(each for kind, each in notes if kind == "limit")])
    lost = {"t": kills * BRANCHES, "u": 0}
    with opened(storage) as (saver, store):
        app = spenders.spender(lambda *_: None, checkpointer=saver, store=store, budget=[Budget(tokens=1_000)])
        for thread, most in lost.items():
            spent = app.get_spent(config(thread))
            check_between(arrived[thread], spent["calls"], arrived[thread] + most, f"calls of {thread}")
            least = TOKENS * (arrived[thread] - most)
            check_between(least, spent["tokens"], min(TOKENS * spent["calls"], limit + BRANCHES * TOKENS), f"tokens of {thread}")
            fork(app, config(thread))
        total = store.get((BUDGETS, "user"), "ann").value
    check_between(arrived.total(), total["calls"], arrived.total() + kills * BRANCHES, "calls of the user")
    check_between(0, total["calls"], LIMIT // 10 + total["more calls"], "calls of the user within the limit")


def fork(app, at):
    """A fork has spent what was spent until then, and what it spends itself."""
    [before] = [each for each in app.get_state_history(at) if each.next == ("side",) * BRANCHES]
    until = app.checkpointer.get_tuple(before.config).checkpoint["channel_values"][SPENT]["calls"]
    app.invoke(None, before.config)
    assert_same(app.get_spent(at)["calls"], until + BRANCHES + 1, "calls of a fork")


@trial("R58", quick=3, full=500, on_postgres=(1, 100))
def killed_budgets(round, storage: Storage):
    """A thread calls a model 11 times, 8 of them side by side, and is killed one to four times: inside the saver, around
    its writes, within a call, at a random moment; another thread of the same user runs beside it. The budget of a thread
    stops it again and again, that of the user asks. All calls that arrived are counted, killed ones at most once more;
    no limit of calls is passed, one of tokens by a call per branch; a fork does not count twice."""
    play = Play(round.random.choice(["sync", "async"]))
    path, dry = round.folder / "notes", round.folder / "dry"
    kills = Kills(round, play, (run, storage, play, path, "t"), (run, sqlite(round, "dry"), play, dry, "t"))
    for _ in range(round.random.choice([1, 2, 3, 4])):
        how = round.random.choice(["saver", "before", "after", "effect", "moment"])
        kills.kill(how, 300, (run, storage, play, path, "u", NEVER))
    kills.end()
    judge(storage, path, kills.number)
    round.count("kills", kills.number)
    round.count("calls", len(Ledger(path).read()))


THREADS = 16
"""Of each of two users, who may call less than that needs."""
NAMES = [f"{user}-{number}" for user in ("ann", "bob") for number in range(THREADS)]


def judge_users(round, storage: Storage, stopped):
    """Each user has spent what has arrived and what killed calls had reserved, at most the limit.

    Args:
        stopped: the threads that their users' budgets have stopped; the others have ended.
    """
    arrived = Counter(thread for _, thread in Ledger(round.folder / "notes").read())
    round.count("calls", arrived.total())
    with opened(storage) as (saver, store):
        app = spenders.spender(checkpointer=saver, store=store, budget=spenders.BUDGETS)
        for user in ("ann", "bob"):
            own = [name for name in NAMES if name.startswith(user)]
            calls = sum(arrived[name] for name in own)
            spent = sum(app.get_spent(config(name)).get("calls", 0) for name in own)
            total = store.get((BUDGETS, "user"), user).value["calls"]
            check_between(calls, spent, total, f"calls of {user}'s threads")
            check_between(spent, total, LIMIT, f"calls of {user}")
            assert_same(total, LIMIT, f"{user} is stopped by the limit, but not before")
        for name in NAMES:
            done = len(app.get_state(config(name)).values.get("log", []))
            assert_same(done == CALLS, name not in stopped, f"{name} has ended")


@trial("R58", quick=1, full=20)
def budgets_of_killed_workers(round):
    """Threads of two users are run by three workers, of which one is killed again and again. Each user may call 100 times,
    fewer than the threads need: calls that arrive are counted, no user passes the limit, and it is not reached before."""
    storage = postgres(round)
    with (
        Queue.from_conn_string(storage.address, spenders.served) as queue,
        fleet.Fleet(storage.address, round.folder, round.bench.bug, concurrency=4, graph="spending", tries=99) as workers,
    ):
        queue.setup()
        for _ in range(WORKERS):
            workers.start()
        for name in NAMES:
            queue.submit(name, {"log": []}, config={"configurable": {"user": name.partition("-")[0]}})

        def disturb():
            time.sleep(round.random.uniform(0.3, 1.0))
            workers.kill(round.random.choice(workers.processes))
            workers.start()
            round.count("kills")

        until_all_ended(queue, disturb)
        ends = {name: queue.result(name, wait=60) for name in NAMES}
        stopped = {name for name, end in ends.items() if end.error is not None}
        wrong = [end.error for end in ends.values() if not isinstance(end.error, BudgetExceededError | None)]
        assert_same(wrong, [], "other errors")
    judge_users(round, storage, stopped)


@contextmanager
def server(storage: Storage, folder: Path, port):
    """`stategraph serve` in a process of its own, killed at the end."""
    graph = Path(spenders.__file__)
    command = [sys.executable, "-P", "-m", "stategraph", "serve", f"{graph}:served", "--db", storage.address, "--port", str(port)]
    env = {**os.environ, fleet.NOTES: str(folder / "notes"), "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    with (folder / "log").open("ab") as log:
        running = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)
    try:
        yield running
    finally:
        running.kill()
        running.wait()


@contextmanager
def client_of(port):
    """A client of a server that is starting."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:

        def answers():
            try:
                return client.get("/ok").is_success
            except httpx.TransportError:
                return False

        fleet.until(answers)
        yield client


@trial("R58", quick=1, full=20)
def budgets_of_a_killed_server(round):
    """The same on a server on SQLite or Postgres, which is killed and started again."""
    storage = (sqlite if round.number % 2 else postgres)(round)
    if storage.kind == "postgres":
        storage = storage._replace(address=cluster.as_url(storage.address))
    port = cluster.free_port()
    for turn in range(99):
        with server(storage, round.folder, port), client_of(port) as client:
            if not turn:
                for name in NAMES:
                    client.post("/threads", json={"thread_id": name})
                    run = {"assistant_id": "served", "input": {"log": []}, "config": {"configurable": {"user": name.partition("-")[0]}}}
                    client.post(f"/threads/{name}/runs", json=run).raise_for_status()
            time.sleep(round.random.uniform(0, 0.5 * (turn + 1)))  # ever longer, so that slow machines come to an end
            threads = client.post("/threads/search", json={"limit": 100, "status": "busy"}).json()
            if not threads:
                found = client.post("/threads/search", json={"limit": 100}).json()
                break
        round.count("kills")
    else:
        raise CheckFailed("after 99 kills runs have not ended")
    assert_same({each["status"] for each in found} - {"idle", "error"}, set(), "how threads stand")
    stopped = {each["thread_id"] for each in found if each["status"] == "error"}
    judge_users(round, storage, stopped)
