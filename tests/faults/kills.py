"""R1, R2: the process is killed anywhere, again and again; what is resumed ends as if it never stopped, and no work
that was recorded is done twice."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import NamedTuple

from kit.crash_points import Death, Died, dying

from stategraph import START, InMemorySaver, Send, StateGraph
from stategraph.checkpoint.base import CONTROL_WRITES, NULL_TASK_ID
from stategraph.testing import CheckFailed, Ledger, assert_same
from stategraph.testing.graphs import shown
from stategraph.testing.harness import Mode

from .campaign import trial
from .killer import Kill, Killer, Kills, carry
from .stages import (
    LANES,
    State,
    Storage,
    Synced,
    carry_through,
    config,
    effects,
    journey,
    sqlite,
)

IN_FLIGHT = {"sync": LANES, "async": 2 * LANES, "exit": None}
"""How many tasks may be repeated after a kill; None: any number, since nothing is stored before the end."""


class Play(NamedTuple):
    """One journey: how long, where it asks, how it is stored."""

    rounds: int
    ask_at: int
    durability: str
    world: str


def travel(storage, play: Play, ledger, plan: Kill):
    """What the process does that may be killed; how often each of the places was passed."""

    def make(saver, killer: Killer):
        class Noting(Synced):
            def note(self, *words):
                super().note(*words)
                killer.passing("effect")

        return journey(saver, Noting(ledger), play.ask_at)

    return carry(storage, play, {"left": play.rounds, "log": []}, plan, make)


def recorded(storage):
    """The tasks that are stored as done."""
    return {task for task, channel, _ in storage.writes() if channel not in CONTROL_WRITES and task != NULL_TASK_ID}


def unbroken(play: Play, folder):
    """What a journey ends with that nobody disturbs."""
    app = journey(InMemorySaver(), Ledger(folder / "unbroken"), play.ask_at)
    with Mode("sync") as world:
        carry_through(app, {"left": play.rounds, "log": []}, config(), world, "sync")
    return ending(app, play)


def ending(app, play: Play):
    """The state in the end, and the history if every step was to be stored."""
    rows = shown([*app.get_state_history(config())])
    return app.get_state(config()).values, None if play.durability == "exit" else rows


def repeats(notes):
    """How many effects were had more than once."""
    return len(notes) - len({str(each) for each in notes})


@trial("R1", quick=5, full=8_000, on_postgres=(2, 2_000))
def killed_on_sqlite(round, storage: Storage):
    """A run of 50 steps (8 at first) of three tasks, with nested graphs and a question, is killed one to three times:
    inside the saver, around its writes, after an effect, at a random moment. Then state and history are those of an
    unbroken run, no more was repeated than was in flight, and nothing that was recorded as done."""
    random, steps = round.random, 8 if round.number < 12 else 50
    play = Play(
        steps // 2, random.randrange(1, steps // 2), random.choice(["sync", "sync", "async", "exit"]),
        random.choice(["sync", "sync", "async"]),
    )  # fmt: skip
    ledger = round.folder / "ledger"
    dry = travel, sqlite(round, "dry"), play, round.folder / "dry"
    key = storage.kind, steps, play.durability, play.world
    kills = Kills(round, play, (travel, storage, play, ledger), dry, key)
    done = set()
    counts = Counter()
    for _ in range(random.choice([1, 1, 2, 3])):
        how = random.choice(["saver", "saver", "before", "after", "effect", "moment"])
        before = repeats(Ledger(ledger).read())
        where = kills.kill(how, 40 * steps)
        _repeated(ledger, before, IN_FLIGHT[play.durability], where)
        noted = Counter(str(key) for key, *_ in Ledger(ledger).read())
        _unmoved(done, counts, noted, where)
        done, counts = recorded(storage), noted
    before = repeats(Ledger(ledger).read())
    with storage.open() as saver, Mode(play.world) as world:
        app = journey(saver, Synced(ledger), play.ask_at)
        carry_through(app, {"left": play.rounds, "log": []}, config(), world, play.durability)
        assert_same(ending(app, play), unbroken(play, round.folder), f"{play}, killed {kills.number} times: state and history")
    _repeated(ledger, before, IN_FLIGHT[play.durability], f"{play}, after {kills.number} kills")
    notes = Ledger(ledger).read()
    _unmoved(done, counts, Counter(str(key) for key, *_ in notes), f"{play}")
    _one_key_each(notes, play)
    round.count("runs")
    round.count("kills", kills.number)
    round.count("effects repeated, all in flight", repeats(notes))


def _repeated(ledger, before, most, where):
    """One resume repeats no more than was in flight."""
    more = repeats(Ledger(ledger).read()) - before
    if most is not None and more > most:
        raise CheckFailed(f"{where}: {more} effects were repeated, {most} tasks may have been in flight")


def _unmoved(done, before, after, where):
    """A task that is stored as done is not done again."""
    again = [key for key in done if after[key] > before[key]]
    if again:
        raise CheckFailed(f"{where}: {len(again)} tasks were done again that were recorded as done")


def _one_key_each(notes, play: Play):
    """Every effect was had, and what was repeated can be told by its key, but for "exit": there is no checkpoint then
    that it could come from."""
    keys = {}
    for key, *words in notes:
        keys.setdefault(tuple(words), set()).add(key)
    assert_same(set(keys), effects(play.rounds, play.ask_at), f"{play}: effects")
    several = {words: found for words, found in keys.items() if len(found) > 1}
    if several and play.durability != "exit":
        raise CheckFailed(f"{play}: effects under several keys, so that a receiver cannot tell repeats: {several}")


@trial("R2", quick=10, full=5_000)
def failed_siblings(round):
    """Of five tasks side by side some fail, by chance, again and again: a task that ended well is not done again."""
    random = round.random
    ended = Counter()

    def work(given):
        if random.random() < 0.4:
            raise ValueError("bad luck")
        ended[given["lane"]] += 1
        return {"log": [given["lane"]]}

    async def awork(given):
        await asyncio.sleep(0)
        return work(given)

    kind = random.choice(["sync", "async"])
    graph = StateGraph(State).add_node("work", work if kind == "sync" else awork)
    graph.add_conditional_edges(START, lambda state: [Send("work", {"lane": n}) for n in range(5)], ["work"])
    with sqlite(round).open() as saver, Mode(kind) as world:
        given = {"log": []}
        durability = random.choice(["sync", "async"])
        for _ in range(100):
            app = graph.compile(saver)
            try:
                result = world.call(app, "invoke", given, config(), durability=durability)
                break
            except ValueError:
                given = None
        assert_same(result["log"], [*range(5)], f"{kind}, {durability}: log")
        assert_same(dict(sorted(ended.items())), dict.fromkeys(range(5), 1), f"{kind}, {durability}: how often each task ended")
    round.count("tasks", 5)


@trial("R26", quick=5, full=10_000)
def deaths_amid_races(round):
    """A process dies at one of its storing calls, between a win and the end of the losers among others: `next` is empty
    only if the next call does nothing, and names what that call runs."""
    random, ran, release = round.random, list[str](), threading.Event()
    schedule = random.choice(["supersteps", "ready"])

    def act(name):
        def run(state):
            ran.append(name)
            if state.get("what") == "hang":
                release.wait(20)
            if state.get("what") == "fail":
                raise ValueError
            return {"log": [name]}

        return run

    handler = random.choice([None, lambda state: {"log": ["mended"]}])
    acts = ["win", "hang", random.choice(["hang", "win", "fail"])]
    random.shuffle(acts)
    graph = StateGraph(State).add_node("run", act("run"), error_handler=handler).add_node("after", act("after"))
    graph.add_node("first", act("first")).add_node("beside", act("beside")).add_edge(START, "first")
    graph.add_conditional_edges("first", lambda state: [Send("run", {"what": each}, race="r") for each in acts], ["run"])
    if random.random() < 0.7:
        graph.add_edge("run", "after")
    else:
        graph.add_edge("beside", "after")
    graph.add_edge("first", "beside")
    durability = random.choice(["sync", "sync", "async"])
    with sqlite(round).open() as saver:
        app = graph.compile(saver, schedule=schedule)
        for at in range(1, 12):
            release.clear()
            thread = config(f"{at}")
            death = Death(at, stores_first=random.random() < 0.3, meanwhile=release.set)
            with dying(saver, death):
                try:
                    app.invoke({"log": []}, thread, durability=durability)
                except Died:
                    round.count("deaths")
            release.set()
            before = app.get_state(thread)
            if before.created_at is None:
                continue
            ran.clear()
            app.invoke(None, thread)
            after = app.get_state(thread)
            where = f"{schedule}, {durability}, {acts}, died at {at}: next was {before.next}, then {ran} ran"
            named = {name for name in before.next if name != START}
            if (before.next == ()) != (before.config == after.config) or after.next:
                raise CheckFailed(where)
            if ran and not (before.next and named <= {*ran}):
                raise CheckFailed(where)
