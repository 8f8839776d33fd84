"""R25: nothing that this engine has stored is ever read as damage, however slow the commits are and whenever the process
dies: nodes and entrypoints that call `@task`s, ask several questions and run graphs inside themselves."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from contextlib import contextmanager
from random import Random
from typing import Any, NamedTuple

from kit.graphs import EMPTY

from stategraph import (
    START,
    Command,
    InMemorySaver,
    StateGraph,
    UnknownInterruptError,
    entrypoint,
    get_runtime,
    interrupt,
)
from stategraph import task as task_of
from stategraph.testing import CheckFailed, Ledger, assert_same
from stategraph.testing.harness import Mode

from .campaign import trial
from .killer import WRITING, Kill, Killer
from .kills import recorded, repeats
from .stages import State, Storage, config, postgres, sqlite

Steps = list[list[Any]]
"""What a body does, in order: ["ask", a question], ["call", [steps of each of the calls side by side]],
["run", [steps of each node of a nested graph]]"""


class Play(NamedTuple):
    """One program, and how it is run.

    Attributes:
        seed: what the program is drawn from.
        flow: whether it is an entrypoint, not a graph.
        coroutines: whether its functions are.
        slowest: the longest that a storing call takes, in seconds.
    """

    seed: int
    flow: bool
    world: str
    coroutines: bool
    durability: str
    slowest: float


NEVER = Kill("", 0)
IN_FLIGHT = 27
"""So many `@task` calls are under way at most: three nodes side by side, three calls each, three calls in each of those."""


# -- programs ---------------------------------------------------------------------------------------------------


def drawn_steps(random, depth, name):
    """What a body does. Some of its calls are equal to each other."""
    steps = []
    for number in range(random.randrange(1, 3)):
        here = f"{name}.{number}"
        kind = random.choice(["ask", "call", "call", "run"] if depth else ["ask"])
        if kind == "ask":
            steps.append(["ask", here])
        elif kind == "call":
            calls = [drawn_steps(random, depth - 1, f"{here}{lane}") for lane in "abc"[: random.choice([1, 2, 2, 3])]]
            if random.random() < 0.5:
                calls = [[] if random.random() < 0.5 else call for call in calls]
            steps.append(["call", calls])
        else:
            inside = [drawn_steps(random, depth - 1, f"{here}{node}") for node in "uv"[: random.randrange(1, 3)]]
            steps.append(["run", inside])
    return steps


def ask(question):
    """Ask; look whether the answer is one to this question."""
    answer = interrupt(question)
    if answer != f"to {question}":
        raise CheckFailed(f"{question!r} was given the answer {answer!r}")
    return str(answer)


class Program:
    """A graph or an entrypoint, drawn by chance. Each `@task` notes its id when it has done its work."""

    def __init__(self, play: Play, ledger):
        self.play, self.ledger = play, ledger
        self.work = task_of(self._body(self._task), name="work")

    def build(self, saver):
        random = Random(self.play.seed)
        if self.play.flow:
            steps = drawn_steps(random, 2, "flow")
            return entrypoint(checkpointer=saver)(self._body(lambda _: (yield from self.perform(steps)), "flow"))
        graph, before = StateGraph(State), [START]
        for number in range(random.randrange(1, 3)):
            names = [f"n{number}{lane}" for lane in "xyz"[: random.choice([1, 1, 2, 3])]]
            for name in names:
                steps = drawn_steps(random, random.randrange(3), name)
                graph.add_node(name, self.nested([steps]) if random.random() < 0.2 else self.node(steps))
                for each in before if random.random() < 0.5 else before[:1]:
                    graph.add_edge(each, name)
            before = names
        return graph.compile(saver)

    def node(self, steps: Steps):
        def node(_):
            return {"log": [(yield from self.perform(steps))]}

        return self._body(node)

    def nested(self, inside: list[Steps]):
        graph, before = StateGraph(State), START
        for number, steps in enumerate(inside):
            graph.add_node(str(number), self.node(steps)).add_edge(before, str(number))
            before = str(number)
        return graph.compile()

    def perform(self, steps: Steps):
        """A body as a generator of what is to be waited for."""
        found = []
        for kind, what in steps:
            if kind == "ask":
                found.append(ask(what))
            elif kind == "call":
                for future in [self.work(each) for each in what]:
                    found.append((yield "result", future))
            else:
                found.append((yield "invoke", self.nested(what)))
        return found

    def _task(self, steps: Steps):
        found = yield from self.perform(steps)
        self.ledger.note(get_runtime().idempotency_key, str(steps))
        return found

    def _body(self, perform, name="body"):
        """The function that performs what a generator says, a coroutine or not."""

        def body(given):
            going, sent = perform(given), None
            while True:
                try:
                    kind, waited = going.send(sent)
                except StopIteration as end:
                    return end.value
                sent = waited.result() if kind == "result" else waited.invoke(EMPTY)["log"]

        async def abody(given):
            going, sent = perform(given), None
            while True:
                try:
                    kind, waited = going.send(sent)
                except StopIteration as end:
                    return end.value
                sent = await waited if kind == "result" else (await waited.ainvoke(EMPTY))["log"]

        chosen = abody if self.play.coroutines else body
        chosen.__name__ = name
        return chosen


# -- a client and its process -----------------------------------------------------------------------------------


class Outbox:
    """A file in which a client keeps the call that it has made and not heard of."""

    def __init__(self, path):
        self.path = path

    def read(self):
        return json.loads(self.path.read_text()) if self.path.exists() else None

    def write(self, call):
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps(call))
        beside.replace(self.path)

    def clear(self):
        self.path.unlink(missing_ok=True)


def client(app, play: Play, world, outbox: Outbox, random):
    """Begin, answer some or all of what is asked, go on, until nothing is left. What an earlier process of this client
    had called and not heard of is delivered again under its run id, or the state of the thread is asked first."""

    def call(run_id, answers, begins):
        given = {"log": []} if begins else Command(resume=answers) if answers else None
        world.call(app, "invoke", given, config(run_id=run_id), durability=play.durability)
        outbox.clear()

    calls = 0
    left = outbox.read()
    if left is not None and random.random() < 0.6:
        calls += 1
        call(*left)
    while True:
        calls += 1
        if calls > 300:
            raise CheckFailed("300 calls, and the thread has not come to its end")
        state = world.call(app, "get_state", config())
        begins = not state.created_at
        if not begins and not state.next:
            return calls
        answers = {each.id: f"to {each.value}" for each in state.interrupts if random.random() < 0.8}
        run_id = "first" if begins else f"run {random.getrandbits(64)}"
        outbox.write([run_id, answers, begins])
        try:
            call(run_id, answers, begins)
        except UnknownInterruptError:  # a run that was killed has taken the answer
            call(f"on {random.getrandbits(64)}", None, False)


@contextmanager
def slowed(saver, play: Play, random, passing):
    """Inside, every storing call of a saver takes a while, and is counted."""
    lock = threading.Lock()

    def wait():
        with lock:
            return play.slowest * random.random() ** 2

    def around(method):
        def call(*args):
            passing("before")
            time.sleep(wait())
            result = method(*args)
            passing("after")
            return result

        async def acall(*args):
            passing("before")
            await asyncio.sleep(wait())
            result = await method(*args)
            passing("after")
            return result

        return acall if asyncio.iscoroutinefunction(method) else call

    names = WRITING if not saver.in_memory else (*WRITING, *(f"a{name}" for name in WRITING))
    for name in names:
        setattr(saver, name, around(getattr(saver, name)))
    yield
    for name in names:
        delattr(saver, name)


def live(storage, play: Play, ledger, outbox, plan: Kill, seed):
    """What the process does that may be killed; how often each of the places was passed."""
    with storage.open() as saver:
        return carried(saver, play, ledger, outbox, plan, seed)[0]


def carried(saver, play: Play, ledger, outbox, plan: Kill, seed):
    """A client's calls on a saver, to the end; what it ends with."""
    killer = Killer(plan)

    class Noting(Ledger):
        def note(self, *words):
            super().note(*words)
            killer.passing("effect")

    killer.start()
    random = Random(seed)
    with Mode(play.world) as world, slowed(saver, play, random, killer.passing):
        app = Program(play, Noting(ledger)).build(saver)
        calls = client(app, play, world, Outbox(outbox), random)
        return {**killer.passed, "calls": calls}, world.call(app, "get_state", config()).values


# -- trials -----------------------------------------------------------------------------------------------------

KINDS = [("sync", False), ("async", True), ("async", True), ("async", False)]
KINDS_OF_STORAGE = ("sqlite", "memory", "sqlite", "postgres")


def drawn(round, first):
    """A play, with slower commits once the first rounds are over."""
    random = round.random
    world, coroutines = random.choice(KINDS)
    durability = random.choice(["sync", "async", "async", "exit"])
    slowest = random.choice([0.0, 0.003, 0.02]) if round.number < first else random.choice([0.0, 0.02, 0.2])
    return Play(random.getrandbits(32), random.random() < 0.5, world, coroutines, durability, slowest)


def unbroken(round, play: Play):
    """What a play passes and ends with, and the effects it has, if its saver is quick and nobody disturbs."""
    ledger = round.folder / "unbroken"
    passed, values = carried(InMemorySaver(), play._replace(slowest=0.0), ledger, round.folder / "its outbox", NEVER, 0)
    return passed, values, Ledger(ledger).read()


def _compare(play: Play, values, wanted, notes, noted):
    assert_same(values, wanted, f"{play}: what it ends with")
    kinds = [{str(words) for _, *words in each} for each in (notes, noted)]
    assert_same(kinds[0], kinds[1], f"{play}: effects")


@trial("R25", quick=8, full=20_000)
def slow_commits(round):
    """A graph or an entrypoint drawn by chance, whose functions ask several questions, call `@task`s that ask and call in
    turn, and run graphs, on a saver whose storing calls take 0 to 200 ms (20 at first). A client answers some of the
    questions at a time. Nothing fails, the end is that of quick commits, each answer reaches its question, and no task
    is done twice."""
    play = drawn(round, 16)
    kind = round.random.choice(KINDS_OF_STORAGE[: 4 if round.number % 8 == 7 else 3])
    _, wanted, noted = unbroken(round, play)
    ledger, outbox, seed = round.folder / "ledger", round.folder / "outbox", round.random.getrandbits(32)
    if kind == "memory":
        passed, values = carried(InMemorySaver(), play, ledger, outbox, NEVER, seed)
    else:
        with (sqlite(round) if kind == "sqlite" else postgres(round)).open() as saver:
            passed, values = carried(saver, play, ledger, outbox, NEVER, seed)
    notes = Ledger(ledger).read()
    _compare(play, values, wanted, notes, noted)
    if repeats(notes):
        raise CheckFailed(f"{play} on {kind}: {repeats(notes)} tasks were done twice")
    for what in ("calls", "before"):
        round.count({"calls": "calls", "before": "storing calls"}[what], passed[what])


@trial("R25", quick=3, full=4_000, on_postgres=(2, 1_000))
def killed_calls_on_sqlite(round, storage: Storage):
    """The same, while the process is killed one to three times: around a storing call, after an effect, at a random
    moment. The client delivers the same call again, or looks at the thread. The end is that of an unbroken run, and no
    `@task` that was recorded is done again."""
    random, play = round.random, drawn(round, 8)
    most, wanted, noted = unbroken(round, play)
    ledger, outbox = round.folder / "ledger", round.folder / "outbox"
    done = set()
    counts = Counter()
    plans = [_drawn_kill(random, most) for _ in range(random.choice([1, 1, 2, 3]))]
    for plan in [*plans, NEVER]:
        where = f"{play}, {plan} of {plans} on {storage.kind}"
        before = repeats(Ledger(ledger).read())
        (ended,) = round.bench.run((live, storage, play, ledger, outbox, plan, random.getrandbits(32)))
        assert_same(ended.error, "", where)
        round.count("kills", ended.killed)
        notes = Ledger(ledger).read()
        after = Counter(str(key) for key, *_ in notes)
        again = [key for key in done if after[key] > counts[key]]
        if again:
            raise CheckFailed(f"{where}: {len(again)} tasks were done again that were recorded as done")
        if play.durability == "sync" and repeats(notes) - before > IN_FLIGHT:
            raise CheckFailed(
                f"{where}: {repeats(notes) - before} tasks were repeated, {IN_FLIGHT} may have been in flight"
            )
        done, counts = recorded(storage), after
    with storage.open() as saver, Mode(play.world) as world:
        app = Program(play, Ledger(ledger)).build(saver)
        values = world.call(app, "get_state", config()).values
    _compare(play, values, wanted, Ledger(ledger).read(), noted)
    round.count("tasks repeated, all in flight", repeats(Ledger(ledger).read()))


def _drawn_kill(random, most):
    how = random.choice(["before", "after", "effect", "moment"])
    return Kill(how, random.randrange(1, (most.get(how, 0) or 150) + 1))
