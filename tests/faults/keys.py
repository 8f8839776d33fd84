"""R3: a task has one key: the same on retry, on resume, and when its checkpoint runs again; a new one on a fork."""

from __future__ import annotations

import operator
import threading
from typing import Annotated, Any, TypedDict

from kit.crash_points import Death, Died, dying

from stategraph import (
    END,
    START,
    InMemorySaver,
    RetryPolicy,
    Runtime,
    Send,
    StateGraph,
    get_runtime,
)
from stategraph.testing import CheckFailed, assert_same

from .campaign import trial
from .stages import config, sqlite

AGAIN = RetryPolicy(initial_interval=0, max_attempts=3, jitter=False, retry_on=Exception)


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    left: int


class Unlucky:
    """Fails now and then, by chance; notes the key of every attempt under the place where it was made."""

    def __init__(self, random):
        self.random = random
        self.seen = {}
        self.luck = True

    def __call__(self, place, key):
        self.seen.setdefault(place, []).append(key)
        if self.luck and self.random.random() < 0.3:
            raise ValueError("bad luck")


def built(note: Unlucky, saver):
    """Sends, a nested graph, and nodes that are tried again."""

    def work(given, runtime: Runtime):
        note(("work", given["left"], given["lane"]), runtime.idempotency_key)
        return {"log": [given["lane"]]}

    def inner(state, runtime: Runtime):
        note(("inner", state["left"]), runtime.idempotency_key)
        return {"left": state["left"]}

    def gather(state, runtime: Runtime):
        note(("gather", state["left"]), runtime.idempotency_key)
        return {"left": state["left"] - 1}

    def spread(state):
        return [Send("work", {"left": state["left"], "lane": n}) for n in range(4)] if state["left"] else END

    class Only(TypedDict, total=False):
        left: int

    nested = StateGraph(State, output_schema=Only).add_node("inner", inner, retry_policy=AGAIN)
    nested.add_edge(START, "inner")
    graph = StateGraph(State).add_node("work", work, retry_policy=AGAIN).add_node("gather", gather)
    graph.add_node("nested", nested.compile())
    graph.add_conditional_edges(START, spread, ["work", END]).add_edge("work", "nested").add_edge("nested", "gather")
    graph.add_conditional_edges("gather", spread, ["work", END])
    return graph.compile(saver)


def carried(app, given, at):
    """Go on after each failure, until nothing is left."""
    while True:
        try:
            app.invoke(given, at)
            return
        except ValueError:
            given, at = None, config(at["configurable"]["thread_id"])


@trial("R3", quick=30, full=3_000)
def keys_are_stable(round):
    """Graphs whose nodes fail by chance, with retries, resumes and a fork: each place has one key on a branch, another
    one on the fork, and no key means two places."""
    random = round.random
    note = Unlucky(random)
    app = built(note, InMemorySaver())
    thread = f"{round.number}"
    carried(app, {"left": 3, "log": []}, config(thread))
    first, note.seen = note.seen, {}
    _single(first)
    past = random.choice([each for each in app.get_state_history(config(thread)) if each.next and each.values.get("left")])
    carried(app, None, {**past.config, "recursion_limit": 100})
    _single(note.seen)
    for place, keys in note.seen.items():
        if keys[0] in first.get(place, ()):
            raise CheckFailed(f"the key of {place} is the same on the fork from step {past.metadata['step']}")
    _unique(round, {("first", *place): keys[0] for place, keys in first.items()})
    _unique(round, {("fork", *place): keys[0] for place, keys in note.seen.items()})


def _single(seen):
    for place, keys in seen.items():
        assert_same(set(keys), {keys[0]}, f"keys of {place} over {len(keys)} attempts")


def _unique(round, keys):
    known = round.bench.once("keys", dict)
    for place, key in keys.items():
        owner = known.setdefault(key, (round.number, place))
        assert_same(owner, (round.number, place), f"what key {key} means")
    round.count("keys", len(keys))


class Noted:
    """The keys under which each place was passed; says when one is passed."""

    def __init__(self):
        self.keys = {}
        self.passed = threading.Event()

    def node(self, name):
        def run(state, runtime: Runtime):
            self.passed.set()
            self.keys.setdefault((name, state["left"]), set()).add(runtime.idempotency_key)
            return {"log": [name]}

        return run

    def wait(self):
        """The call that dies takes until another node has begun, if one can."""
        self.passed.clear()
        self.passed.wait(0.02)


def nested_in_a_loop(noted: Noted, saver, random):
    """Twice: a node, then one beside a graph of three, one of which is a graph, then one that joins them."""
    schedule = random.choice(["supersteps", "ready"])

    def graph(*names):
        builder = StateGraph(State)
        for name in names:
            builder.add_node(name, noted.node(name))
        return builder

    deep = graph("d1", "d2").add_edge(START, "d1").add_edge("d1", "d2").compile(schedule=schedule)
    inner = graph("i1", "i2").add_node("deep", deep).add_edge(START, "i1").add_edge("i1", "deep").add_edge("deep", "i2")
    below = inner.compile(schedule=schedule, checkpointer=random.choice([None, None, True]))

    def call(state):
        return {"log": below.invoke({"left": state["left"], "log": []})["log"]}

    def count(state):
        return {**noted.node("count")(state, get_runtime()), "left": state["left"] - 1}

    outer = graph("a", "b").add_node("inner", random.choice([below, call])).add_node("count", count)
    if schedule == "supersteps":  # "ready" starts by which of two ends first, and that is chance
        outer.add_edge("a", "b").add_edge(["b", "inner"], "count")
    else:
        outer.add_edge("inner", "b").add_edge("b", "count")
    outer.add_edge(START, "a").add_edge("a", "inner")
    outer.add_conditional_edges("count", lambda state: "a" if state["left"] else END, ["a", END])
    return outer.compile(saver, schedule=schedule)


@trial("R3", quick=20, full=50_000)
def keys_of_mixed_durabilities(round):
    """Nested graphs run in calls that die at a storing call while the next node begins, one to three of them, each with
    durability "sync" or "async": each place has one key."""
    random, noted = round.random, Noted()
    named = random.random() < 0.3
    at = config(run_id="r") if named else config()
    given = {"left": 2, "log": []}
    with sqlite(round).open() as saver:
        app = nested_in_a_loop(noted, saver, random)
        modes = []
        deaths = random.choice([1, 1, 2, 3])
        for last in [False] * deaths + [True]:
            if app.get_state(config()).created_at is None:
                call = given
                if not named:
                    noted.keys.clear()  # another run
            else:
                call = given if named and random.random() < 0.5 else None
            modes.append(random.choice(["sync", "async"]))
            death = Death(10**9 if last else random.randrange(1, 14), stores_first=random.random() < 0.3, meanwhile=noted.wait)
            with dying(saver, death):
                try:
                    app.invoke(call, at, durability=modes[-1])
                except Died:
                    round.count("deaths")
    several = {place: len(keys) for place, keys in noted.keys.items() if len(keys) > 1}
    assert_same(several, {}, f"{modes}: places with several keys")
    round.count("keys", len(noted.keys))
