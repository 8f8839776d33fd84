"""R48: effects that a task has once (`runtime.once`): killed anywhere, each is had, and none again that was recorded."""

from __future__ import annotations

import time
from collections import Counter
from typing import NamedTuple

from kit import cluster, fleet

from stategraph.checkpoint.base import RETURN
from stategraph.pregel.running import ONCE
from stategraph.pregel.task.ids import effect_id
from stategraph.testing import CheckFailed, Ledger, assert_same
from stategraph.workers import Queue

from .campaign import trial
from .fleets import WORKERS, given, until_all_ended
from .killer import Kill, Killer, Kills, carry
from .stages import EFFECTS, LANES, TURNS, Storage, Synced, shop, sqlite


class Play(NamedTuple):
    """One shop: in which world, how it is stored."""

    world: str
    durability: str


class Till:
    """Has effects, and notes them: ("had", key, effect) within `once`, ("kept", key, effect) after it."""

    def __init__(self, ledger: Ledger):
        self.ledger = ledger

    def have(self, key, effect):
        self.ledger.note("had", key, effect)
        return f"{effect} {key}"

    async def ahave(self, key, effect):
        return self.have(key, effect)

    def fails(self, key):
        """Whether this attempt is to fail: the first one of every other task, after its effects."""
        if int(key[:8], 16) % 2 or ["failed", key] in self.ledger.read():
            return False
        self.ledger.note("failed", key)
        return True

    def keep(self, key, effect):
        self.ledger.note("kept", key, effect)


def selling(saver, till: Till, is_async):
    """A shop whose effects are had by `once`."""

    def do(runtime, turn, lane, what):
        key = runtime.idempotency_key
        runtime.once(what, till.have, key, what)
        till.keep(key, what)

    async def ado(runtime, turn, lane, what):
        key = runtime.idempotency_key
        await runtime.aonce(what, till.ahave, key, what)
        till.keep(key, what)

    return shop(saver, is_async, do, ado, lambda runtime, *_: till.fails(runtime.idempotency_key))


def sell(storage, play: Play, ledger, plan: Kill):
    """Carry a shop through, in a process that may be killed; how often each place was passed."""

    def make(saver, killer: Killer):
        class Watched(Till):
            def have(self, key, effect):
                found = super().have(key, effect)
                killer.passing("effect")
                return found

            def keep(self, key, effect):
                super().keep(key, effect)
                killer.passing("kept")

        return selling(saver, Watched(Synced(ledger)), play.world == "async")

    return carry(storage, play, {"left": TURNS, "log": []}, plan, make)


def recorded(storage):
    """The ids of the records of effects that are stored."""
    return {record for record, channel, _ in storage.writes() if channel == RETURN}


def had(notes):
    """How often each effect was had, by the id of its record."""
    return Counter(effect_id(key, ONCE, effect) for kind, key, *rest in notes if kind == "had" for effect in rest)


def check_kept(notes, where):
    """No effect was had after `once` had returned."""
    kept = set()
    for kind, key, *rest in notes:
        if kind == "kept":
            kept.add((key, rest[0]))
        elif kind == "had" and (key, rest[0]) in kept:
            raise CheckFailed(f"{where}: {rest[0]!r} of {key} was had again after `once` had returned")


@trial("R48", quick=4, full=4_000, on_postgres=(1, 500))
def killed_effects(round, storage: Storage):
    """A run with 21 effects by `once`, three tasks side by side, retries and a question, is killed one to four times: inside
    the saver, around its writes, within an effect, after `once`, at a random moment. Each effect is had, under one key; none
    is had again once its record is stored, or `once` has returned."""
    random = round.random
    play = Play(random.choice(["sync", "async"]), random.choice(["sync", "async"]))
    path = round.folder / "ledger"
    kills = Kills(round, play, (sell, storage, play, path), (sell, sqlite(round, "dry"), play, round.folder / "dry"))
    done = set()
    before = Counter()
    for _ in range(random.choice([1, 2, 3, 4])):
        how = random.choice(["saver", "before", "after", "effect", "kept", "moment"])
        _unmoved(done, before, had(Ledger(path).read()), kills.kill(how, 200))
        done, before = recorded(storage), had(Ledger(path).read())
    where = kills.end()
    notes = Ledger(path).read()
    counts = had(notes)
    _unmoved(done, before, counts, where)
    check_kept(notes, where)
    assert_same(len(counts), len(EFFECTS), f"{where}: effects, each under one key")
    repeated = counts.total() - len(EFFECTS)
    if repeated > LANES * kills.number:
        raise CheckFailed(f"{where} of {LANES} tasks at once: {repeated} effects were repeated")
    round.count("effects", len(EFFECTS))
    round.count("kills", kills.number)
    round.count("repeated between effect and record", repeated)


def _unmoved(done, before, after, where):
    again = [record for record in done if after[record] > before[record]]
    if again:
        raise CheckFailed(f"{where}: {len(again)} effects were had again that were recorded")


@trial("R48", quick=1, full=20)
def effects_of_killed_workers(round):
    """60 threads of five effects are submitted (8 at first); of three workers one is killed every 0.1 to 0.5 s and another
    started: each effect is had, under one key, and none after `once` has returned."""
    names = [f"t{number}" for number in range(60 if round.number else 8)]
    url = cluster.shared().schema()

    def disturb():
        time.sleep(round.random.uniform(0.1, 0.5))
        workers.kill(round.random.choice(workers.processes))
        workers.start()
        round.count("kills")

    with (
        Queue.from_conn_string(url, fleet.paying) as queue,
        fleet.Fleet(url, round.folder, round.bench.bug, graph="paying", concurrency=4) as workers,
    ):
        queue.setup()
        for _ in range(WORKERS):
            workers.start()
        # Short, so that no job loses three workers without a step between: it would be parked, as it should.
        queue.submit_many([(name, given(pause=round.random.choice([0, 0.01, 0.03]))) for name in names])
        until_all_ended(queue, disturb)
        for name in names:
            assert_same(queue.result(name, wait=60).unwrap()["log"], [*range(5)], f"log of {name}")
        notes = workers.notes.read()
    check_kept(notes, "a fleet")
    keys = {(key, effect) for kind, key, effect in notes if kind == "had"}
    assert_same(len(keys), 5 * len(names), "effects, each under one key")
    round.count("effects", len(keys))
    round.count("repeated between effect and record", sum(had(notes).values()) - len(keys))
