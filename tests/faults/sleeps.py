"""R52: tasks that sleep (`runtime.sleep`): killed anywhere, each wakes at the time that was recorded first, once."""

from __future__ import annotations

import operator
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

from stategraph import END, START, Runtime, Send, StateGraph
from stategraph.checkpoint.base import RETURN
from stategraph.testing import CheckFailed, Ledger, assert_same
from stategraph.testing.harness import Mode

from .campaign import trial
from .killer import Kill, Killer, Kills
from .stages import Storage, Synced, config, sqlite

TURNS, LANES = 2, 3
SECONDS = (0.2, 0.1)
"""Of the two sleeps of each task."""
MOST_PAUSES = TURNS * LANES * len(SECONDS)
"""A run that sleeps more often than this sleeps some sleep again."""


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    left: int


class Play(NamedTuple):
    """In which world, how it is stored, and whether tasks pause or wait in place."""

    world: str
    durability: str
    pauses: bool


def napping(saver, play: Play, ledger: Ledger):
    """`TURNS` times: three tasks side by side which sleep twice."""
    durable_after = 0 if play.pauses else 10

    def nap(task, runtime: Runtime):
        ledger.note("began", runtime.idempotency_key, time.time())
        for seconds in SECONDS:
            runtime.sleep(seconds, durable_after=durable_after)
        ledger.note("woke", runtime.idempotency_key, time.time())
        return {"log": [(task["turn"], task["lane"])]}

    async def anap(task, runtime: Runtime):
        ledger.note("began", runtime.idempotency_key, time.time())
        for seconds in SECONDS:
            await runtime.asleep(seconds, durable_after=durable_after)
        ledger.note("woke", runtime.idempotency_key, time.time())
        return {"log": [(task["turn"], task["lane"])]}

    def sends(state):
        return [Send("nap", {"turn": state["left"], "lane": n}) for n in range(LANES)] if state["left"] else END

    graph = StateGraph(State).add_node("nap", anap if play.world == "async" else nap)
    graph.add_node("close", lambda state: {"left": state["left"] - 1})
    graph.add_conditional_edges(START, sends, ["nap", END]).add_edge("nap", "close")
    return graph.add_conditional_edges("close", sends, ["nap", END]).compile(saver)


def sleep_through(storage, play: Play, path, plan: Kill):
    """Carry the graph through, in a process that may be killed; how often each place was passed."""
    killer = Killer(plan)

    with storage.open() as saver, Mode(play.world) as world:
        killer.watch(saver)
        killer.start()
        ledger = Synced(path)
        app = napping(saver, play, ledger)
        _carry_through(app, play, world, ledger)
    return killer.passed


def _carry_through(app, play: Play, world, ledger: Ledger):
    """Begin, or go on; call again when the time has come that was returned. In between call once too early."""
    begun = bool(world.call(app, "get_state", config()).created_at)
    given = None if begun else {"left": TURNS, "log": []}
    pauses = 0
    while given or world.call(app, "get_state", config()).next:
        output = world.call(app, "invoke", given, {**config(), "run_id": "first"}, durability=play.durability)
        given = None
        while (wake_at := output.get("__sleep__")) is not None:
            pauses += 1
            if pauses > MOST_PAUSES:
                raise CheckFailed("a sleep is slept again")
            notes = len(ledger.read())
            early = world.call(app, "invoke", None, config(), durability=play.durability)
            if time.time() < wake_at.timestamp() and (early, len(ledger.read())) != (output, notes):
                raise CheckFailed(f"a call before {wake_at} has started a task: {early}")
            time.sleep(max(wake_at.timestamp() - time.time(), 0) + 0.001)
            output = world.call(app, "invoke", None, config(), durability=play.durability)


def recorded(storage):
    """The times at which sleeps end, by the ids of their records."""
    return {
        record: value.timestamp()
        for record, channel, value in storage.writes()
        if channel == RETURN and isinstance(value, datetime)
    }


@trial("R52", quick=2, full=2_000, on_postgres=(1, 200))
def killed_sleeps(round, storage: Storage):
    """A run with 12 sleeps, three tasks side by side, in place or as pauses, is killed one to four times: inside the saver,
    around its writes, at a random moment. A time that was recorded never changes, no task wakes before it, a call before it
    starts no task, and every task wakes once."""
    random = round.random
    play = Play(random.choice(["sync", "async"]), random.choice(["sync", "async"]), random.random() < 0.7)
    path = round.folder / "ledger"
    dry = sleep_through, sqlite(round, "dry"), play, round.folder / "dry"
    kills = Kills(round, play, (sleep_through, storage, play, path), dry)
    before = {}
    for _ in range(random.choice([1, 2, 3, 4])):
        where = kills.kill(random.choice(["saver", "before", "after", "moment"]), 400)
        after = recorded(storage)
        moved = {record for record, at in before.items() if after.get(record) != at}
        if moved:
            raise CheckFailed(f"{where}: {len(moved)} times have changed that were recorded")
        before = after
    where = kills.end()
    _check_sleeps(storage, play, Ledger(path).read(), where)
    round.count("kills", kills.number)
    round.count("sleeps", TURNS * LANES * len(SECONDS))


def _check_sleeps(storage, play: Play, notes, where):
    times = recorded(storage)
    assert_same(len(times), TURNS * LANES * len(SECONDS), f"{where}: times recorded, one for each sleep")
    began = {}
    for kind, key, at in notes:
        if kind == "began":
            began.setdefault(key, at)
        elif at < began[key] + sum(SECONDS):
            raise CheckFailed(f"{where}: {key} woke {began[key] + sum(SECONDS) - at:.3f} s too early")
    assert_same(len(began), TURNS * LANES, f"{where}: tasks, each under one key")
    with storage.open() as saver:
        log = napping(saver, Play("sync", "sync", True), Ledger(Path("unused"))).get_state(config()).values["log"]
    assert_same(sorted(map(tuple, log)), sorted((t + 1, n) for t in range(TURNS) for n in range(LANES)), f"{where}: log")
