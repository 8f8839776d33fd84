"""R51: what is posted to a thread while its run is killed: each post is in one step, behind which something ran."""

from __future__ import annotations

import operator
import time
from collections import Counter
from collections.abc import Collection
from typing import Annotated, Any, NamedTuple, TypedDict

from kit.graphs import chain_of, thread_config

from stategraph import END, interrupt
from stategraph.checkpoint import CheckpointConflictError
from stategraph.checkpoint.base import POST_TASK_ID
from stategraph.testing import CheckFailed, Ledger, assert_same
from stategraph.testing.harness import Mode

from .campaign import trial
from .killer import Kill, Kills, carry
from .stages import Storage, Synced, carry_through, config, postgres, sqlite

POSTERS, WORDS, TURNS = 2, 12, 6


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    left: int


class Play(NamedTuple):
    """One talk: in which world, how it is stored, when its nodes start."""

    world: str
    durability: str
    schedule: Any = "supersteps"


def talk(saver, pause=0.0, schedule="supersteps"):
    """Two nodes in turn, `left` times; one of the turns asks. Each node notes how many words it has seen."""

    def listen(state):
        time.sleep(pause)
        if state["left"] == 2:
            interrupt("go on?", key="go on")
        return {"log": [("saw", len(state["log"]))]}

    def count(state):
        return {"left": state["left"] - 1}

    return (
        chain_of(State, listen=listen, count=count)
        .add_conditional_edges("count", lambda state: "listen" if state["left"] else END, ["listen", END])
        .compile(saver, inbox=True, schedule=schedule)
    )


def speak(storage, world, name, ledger, pause):
    """Post words one after another; note each one as it is stored."""
    told = Synced(ledger)
    with storage.open() as saver, Mode(world) as mode:
        app = talk(saver)
        for number in range(WORDS):
            mode.call(app, "post", config(), {"log": [(name, number)]})
            told.note(name, number)
            time.sleep(pause)


def listen(storage, play: Play, pause, plan: Kill):
    """Carry a talk through, in a process that may be killed; how often each place was passed."""
    return carry(storage, play, {"left": TURNS, "log": []}, plan, lambda saver, _: talk(saver, pause, play.schedule))


def check_steps(saver, told, where):
    """Each word that was told is in one step and once in the state, in the order of whoever spoke; what took it was
    gone on from. How many there are."""
    app = talk(saver)
    log = app.get_state(config()).values["log"]
    spoken = [tuple(word) for word in log if word[0] != "saw"]
    assert_same(Counter(spoken).most_common(1)[0][1] if spoken else 1, 1, f"{where}: how often a word is in the state")
    assert_same(sorted(spoken), sorted(map(tuple, told)), f"{where}: the words in the state")
    for name in {name for name, _ in spoken}:
        words = [number for speaker, number in spoken if speaker == name]
        assert_same(words, sorted(words), f"{where}: the words of {name}, in order")
    return len(spoken)


def check_last_word(saver, where):
    """What is posted while the last node runs is not taken at the last barrier: it waits for the next call."""
    late = thread_config("late")

    def speak(state):
        if state["left"] == 2:
            app.post(late, {"log": ["late"]})
        return {"left": 1}

    app = chain_of(State, speak=speak).compile(saver, inbox=True)
    app.invoke({"left": 2, "log": []}, late)
    assert_same([post["log"] for post in app.get_state(late).posts], [["late"]], f"{where}: what waits for the next call")
    assert_same(app.invoke({"left": 1}, late)["log"], ["late"], f"{where}: the last word, in the next call")


def check_writes(saver, where, durabilities: Collection[str]):
    """In the history each word is a write of one step, after which something ran. Of a run that stores once, and of one
    that was resumed before its last step, the second half cannot be seen there."""
    stored = [*saver.list(config())]
    known = {each.checkpoint["id"]: each for each in stored}
    steps = {each.config["configurable"]["checkpoint_id"]: each for each in talk(saver).get_state_history(config())}
    found = Counter()
    for each in stored:
        before = each.parent_config and known.get(each.parent_config["configurable"]["checkpoint_id"])
        words = [
            tuple(word)
            for task, _, value in (before.pending_writes or () if before else ())
            if task == POST_TASK_ID
            for word in value
        ]
        found.update(words)
        if words and "exit" not in durabilities and not steps[each.checkpoint["id"]].next:
            raise CheckFailed(f"{where}: {words} came in at the last barrier: no node has seen them")
    twice = [word for word, times in found.items() if times > 1]
    assert_same(twice, [], f"{where}: words in two steps")


@trial("R51", quick=3, full=2_000, on_postgres=(1, 300))
def posts_to_killed_runs(round, storage: Storage):
    """Two processes post 12 words each to a thread whose run is killed up to three times: inside the saver, around its
    writes, at a random moment. Each word is in one step, once in the state, in order, and a node ran after it."""
    random = round.random
    play = Play(random.choice(["sync", "async"]), random.choice(["sync", "sync", "async", "exit"]))
    if random.random() < 0.4:
        play = play._replace(schedule="ready")
    ledger = round.folder / "ledger"
    kills = Kills(round, play, (listen, storage, play, 0.01), (listen, sqlite(round, "dry"), play, 0.0))
    with storage.open() as saver:
        talk(saver).post(config(), {"log": [("first", 0)]})
    for turn in range(random.choice([1, 2, 3])):
        speakers = [
            (speak, storage, random.choice(["sync", "async"]), f"s{n}", ledger, random.choice([0.0, 0.005]))
            for n in range(0 if turn else POSTERS)
        ]
        kills.kill(random.choice(["saver", "before", "after", "moment"]), 200, *speakers)
    with storage.open() as saver, Mode(play.world) as world:
        app, where = talk(saver, schedule=play.schedule), f"{play}, {kills.number} kills"
        carry_through(app, {"left": TURNS, "log": []}, config(), world, play.durability)
        world.call(app, "invoke", {"left": 1}, config(), durability=play.durability)  # takes what came too late
        told = [["first", 0], *Ledger(ledger).read()]
        round.count("posts", check_steps(saver, told, where))
        check_writes(saver, where, ["exit"] if kills.number else [play.durability])
        check_last_word(saver, where)
    round.count("kills", kills.number)


def compete(storage, play: Play):
    """Carry the talk through beside others that do so; how often this one came second."""
    lost = 0
    with storage.open() as saver, Mode(play.world) as world:
        while True:
            try:
                carry_through(talk(saver, 0.002), {"left": TURNS, "log": []}, config(), world, play.durability)
                return lost
            except CheckpointConflictError:
                lost += 1


@trial("R51", quick=2, full=500)
def posts_to_competing_runs(round):
    """Three processes run one thread at once, two post: whoever loses the head has taken nothing, and no word is lost or
    in two steps."""
    random, storage = round.random, sqlite(round)
    if random.random() < 0.3:
        storage = postgres(round)
    ledger = round.folder / "ledger"
    plays = [Play(random.choice(["sync", "async"]), random.choice(["sync", "async", "exit"])) for _ in range(3)]
    with storage.open() as saver:
        talk(saver).post(config(), {"log": [("first", 0)]})
    ended = round.bench.run(
        *((compete, storage, play) for play in plays),
        *((speak, storage, "sync", f"s{n}", ledger, 0.002) for n in range(POSTERS)),
    )
    assert_same([each.error for each in ended], [""] * len(ended), f"{plays}: errors")
    with storage.open() as saver:
        talk(saver).invoke({"left": 1}, config())
        told = [["first", 0], *Ledger(ledger).read()]
        round.count("posts", check_steps(saver, told, f"{plays}"))
        check_writes(saver, f"{plays}", [play.durability for play in plays])
    round.count("runs that came second", sum(each.result for each in ended[:3]))
