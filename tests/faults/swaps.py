"""R27: an answer reaches its question, a result its call, in whatever order they come when their caller runs again."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import warnings
from collections import Counter
from contextlib import contextmanager
from contextvars import copy_context
from typing import NamedTuple, TypedDict

from kit.drive import run_threads
from kit.graphs import chain_of

from stategraph import (
    START,
    Command,
    GraphInterrupt,
    InMemorySaver,
    RetryPolicy,
    StateGraph,
    entrypoint,
    get_runtime,
    interrupt,
    task,
)
from stategraph.checkpoint.errors import StorageError
from stategraph.testing import CheckFailed, assert_same

from .campaign import trial
from .faults import Trap
from .stages import config, sqlite

AGAIN = RetryPolicy(initial_interval=0, max_attempts=4, jitter=False, retry_on=ConnectionError)
SHUFFLED = 4
"""So many resumes come in another order each; a question without a key is only answered where it stays in its place."""

KINDS = ("keyed", "worded", "pay", "ask", "ask_keyed")


class Party(NamedTuple):
    """One of those that run side by side: a question of the body's own, or a call that pays, or one that asks twice."""

    kind: str
    name: str


class Program:
    """Parties, the order in which they come in each run, and what they saw."""

    def __init__(self, random, is_async):
        self.random = random
        self.is_async = is_async
        count = random.randrange(2, 6)
        self.parties = [Party(random.choice(KINDS), f"p{number}") for number in range(count)]
        for extra in (each for each in [*self.parties] if each.kind in ("pay", "ask") and random.random() < 0.3):
            self.parties.append(extra)  # an equal call
        self.failing = random.random() < 0.5
        self.retried = random.random() < 0.7
        self.ran = Counter()
        self.keys = {}
        self.runs = 0

    def order(self):
        """The parties of one run of the body."""
        self.runs += 1
        shuffled = self.runs <= SHUFFLED
        return self.random.sample(self.parties, len(self.parties)) if shuffled else [*self.parties]

    def fail(self):
        """Fail now and then, while the order changes."""
        if self.failing and self.runs <= SHUFFLED and self.random.random() < 0.5:
            raise ConnectionError("bad luck")

    def note(self, party: Party):
        """A call has begun."""
        self.ran[party] += 1
        self.keys.setdefault(party, set()).add(get_runtime().idempotency_key)

    # -- what a party does ----------------------------------------------------------------------------------

    def begin(self, party: Party):
        """Ask, or call; a call is given back to be waited for."""
        if party.kind == "keyed":
            return own(party, interrupt({"name": party.name, "run": self.runs}, key=party.name))
        if party.kind == "worded":
            return own(party, interrupt({"name": party.name}))
        return self.calls[party.kind](party.name)

    @property
    def calls(self):
        """The tasks, as this run's world needs them."""
        made = {}
        for kind in KINDS[2:]:
            function = self._called(kind)
            made[kind] = task(name=kind)(_coroutine(function) if self.is_async else function)
        return made

    def _called(self, kind):
        def call(name):
            party = Party(kind, name)
            self.note(party)
            if kind == "pay":
                return (name,)
            keys = (None, None) if kind == "ask" else ("first", "second")
            return (name, *(own(party, interrupt({"name": name, "part": key}, key=key)) for key in keys))

        return call

    # -- the body -------------------------------------------------------------------------------------------

    def body(self, _):
        """All parties side by side, each on a thread; they begin in this run's order."""
        order = self.order()
        turns = [threading.Event() for _ in (*order, None)]
        turns[0].set()
        ends = [None] * len(order)

        def work(place):
            turns[place].wait()
            try:
                begun = self.begin(order[place])
                turns[place + 1].set()
                ends[place] = begun if isinstance(begun, tuple) else begun.result()
            except BaseException as error:
                ends[place] = error
            finally:
                turns[place + 1].set()

        threads = [threading.Thread(target=copy_context().run, args=(work, n)) for n in range(len(order))]
        run_threads(threads)
        return self.ended(order, ends)

    async def abody(self, _):
        """All parties side by side, gathered in this run's order."""
        order = self.order()

        async def work(party: Party):
            begun = self.begin(party)
            return begun if isinstance(begun, tuple) else await begun

        return self.ended(order, await asyncio.gather(*map(work, order), return_exceptions=True))

    def ended(self, order: list[Party], ends):
        """What the body returns, or raises."""
        self.fail()
        for end in sorted((end for end in ends if isinstance(end, BaseException)), key=_is_signal):
            raise end
        for party, end in zip(order, ends, strict=True):
            if end[0] != party.name:
                raise CheckFailed(f"{party} has the result {end}")
        return {"done": sorted(end[0] for end in ends)}


def own(party: Party, answer):
    """The answer, if it is this party's."""
    if answer != f"yes, {party.name}":
        raise CheckFailed(f"{party} was given the answer {answer!r}")
    return (party.name,)


def _is_signal(error: BaseException):
    return isinstance(error, GraphInterrupt)


def _coroutine(function):
    async def call(name):
        return function(name)

    call.__qualname__, call.__module__ = function.__qualname__, function.__module__
    return call


class State(TypedDict, total=False):
    done: list[str]


def built(program, shape, saver):
    """The body as an entrypoint, as a task of one, or as a node."""
    body = program.abody if program.is_async else program.body
    retry = AGAIN if program.retried else None
    if shape == "entrypoint":
        return entrypoint(checkpointer=saver, retry_policy=retry)(body)
    if shape == "node":
        return StateGraph(State).add_node("body", body, retry_policy=retry).add_edge(START, "body").compile(saver)
    called = task(name="body", retry_policy=retry)(body)

    async def aflow(given):
        return await called(1)

    def flow(given):
        return called(1).result()

    return entrypoint(checkpointer=saver)(aflow if program.is_async else flow)


@contextmanager
def _opened(round, kind, memory):
    """The saver; one on a file is opened anew for each call, as after a kill."""
    if kind == "memory":
        yield memory
        return
    with sqlite(round).open() as saver:
        yield saver


@trial("R27", quick=30, full=2_000)
def swapped_calls_and_questions(round):
    """A random program: questions with and without key, calls of tasks that pay and of tasks that ask twice, all side by
    side and in a random order in every run of their caller, which fails now and then. At each resume a random part of
    what is asked is answered. Each answer reaches the question that it was given to, each result its call; who has paid
    never pays again; a call asks nothing twice, and is not run while nothing is answered that it has asked."""
    random = round.random
    program = Program(random, random.random() < 0.5)
    shape, kind = random.choice(["entrypoint", "node", "task"]), random.choice(["memory", "memory", "sqlite"])
    durability, memory, given = random.choice(["sync", "async", "exit"]), InMemorySaver(), {"done": []}
    answered = Counter()
    of_calls = set()
    for _ in range(100):
        with _opened(round, kind, memory) as saver, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is told that an answer was not delivered
            app = built(program, shape, saver)
            result = _called(app, given, durability, program.is_async)
        if result is None:
            given = None
            continue
        if "__interrupt__" not in result:
            break
        shown = result["__interrupt__"]
        again = [question.value for question in shown if question.id in of_calls]
        if again:
            raise CheckFailed(f"calls ask again what was answered: {again}")
        part = random.sample(shown, random.randrange(1, len(shown) + 1)) if program.runs <= SHUFFLED else shown
        answered.update({question.value["name"] for question in part})
        of_calls.update(question.id for question in part if "part" in question.value)
        given = Command(resume={question.id: f"yes, {question.value['name']}" for question in part})
        round.count("answers", len(part))
    else:
        raise CheckFailed(f"{program.parties} never end")
    assert_same(result["done"], sorted(party.name for party in program.parties), "who has ended")
    _effects(program, answered)
    round.count("runs", program.runs)
    round.count("calls", sum(program.ran.values()))


def _called(app, given, durability, is_async):
    """One call's result; None if the body has failed."""
    try:
        if is_async:
            return asyncio.run(app.ainvoke(given, config(), durability=durability))
        return app.invoke(given, config(), durability=durability)
    except ConnectionError:
        return None


def _effects(program, answered):
    count = Counter(program.parties)
    for party, ran in program.ran.items():
        assert_same(len(program.keys[party]), count[party], f"keys of {party}")
        if party.kind == "pay":
            assert_same(ran, count[party], f"how often {party} has paid")
        elif not program.failing and ran > count[party] * (1 + answered[party.name]):
            raise CheckFailed(f"{party} ran {ran} times, and was answered {answered[party.name]} times")


# -- questions whose order changes ------------------------------------------------------------------------------

SHARED = "equal"
"""What all questions of the kind `equal` ask; which of them takes which answer does not matter."""


class InTurn(Program):
    """Parties that ask one after the other, in another order in every run of the node, which pauses once it has come to
    `width` questions without an answer. At most one of them is a graph inside: graphs are known by their order."""

    def __init__(self, random, is_async):
        super().__init__(random, is_async)
        kinds = ["keyed", "worded", "equal", "ask", "ask_keyed"]
        self.parties = [Party(random.choice(kinds), f"p{number}") for number in range(random.randrange(2, 6))]
        if random.random() < 0.5:
            self.parties.append(Party("inside", "inner"))
        self.checkpointer = random.choice([None, True, False])
        self.failing = random.random() < 0.3
        self.equal = []

    @property
    def questions(self):
        """How many there are."""
        return sum(2 if party.kind in ("ask", "ask_keyed") else 1 for party in self.parties)

    def order(self):
        """Another one in each run."""
        self.runs += 1
        return self.random.sample(self.parties, len(self.parties))

    def begin(self, party: Party):
        if party.kind == "equal":
            self.equal.append(interrupt({"name": SHARED}))
            return (party.name,)
        if party.kind == "inside":
            app = chain_of(State, inner=lambda _: {"done": [*own(party, interrupt({"name": party.name}))]}).compile(
                self.checkpointer
            )
            return app.ainvoke({"done": []}) if self.is_async else tuple(app.invoke({"done": []})["done"])
        return super().begin(party)

    def body(self, _):
        order, width = self.order(), self.random.randrange(1, 4)
        self.equal, ends, signals = [], [], list[GraphInterrupt]()
        for party in order:
            try:
                begun = self.begin(party)
                ends.append(begun if isinstance(begun, tuple) else begun.result())
            except GraphInterrupt as signal:
                signals.append(signal)
                if len(signals) == width:
                    break
        return self.closed(order, ends, signals)

    async def abody(self, _):
        order, width = self.order(), self.random.randrange(1, 4)
        self.equal, ends, signals = [], [], list[GraphInterrupt]()
        for party in order:
            try:
                begun = self.begin(party)
                if not isinstance(begun, tuple):
                    begun = await begun
                ends.append(tuple(begun["done"]) if isinstance(begun, dict) else begun)
            except GraphInterrupt as signal:
                signals.append(signal)
                if len(signals) == width:
                    break
        return self.closed(order, ends, signals)

    def closed(self, order, ends, signals):
        """What the body returns, or raises."""
        self.fail()
        if signals:
            raise signals[0]
        return self.ended(order, ends)


@trial("R27", quick=30, full=2_000)
def reordered_questions(round):
    """A node asks in another order each time it runs: questions with a key and in other words each time, with words of
    their own, with equal words, in `@task`s that ask twice, and in a graph inside, whatever its checkpointer is. It pauses
    after one to three of them; now and then it fails, or a statement of the database does. Each shown question is answered
    or left open at random, by id, or plainly if it is the only one. Each answer reaches its question; in all no more
    answers are given than there are questions, but for those of calls in which a statement failed."""
    random = round.random
    program = InTurn(random, random.random() < 0.5)
    kind, schedule = random.choice(["memory", "sqlite"]), random.choice(["supersteps", "ready"])
    durability, memory, given = random.choice(["sync", "async", "exit"]), InMemorySaver(), {"done": []}
    body, options = program.abody if program.is_async else program.body, {"retry_policy": AGAIN if program.retried else None}
    sent = doubtful = 0
    for _ in range(100):
        trap = Trap(spring=_break)
        with trap.set(), _opened(round, kind, memory) as saver, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is told that a question has changed
            trap.at = trap.passed + random.randrange(1, 30) if random.random() < 0.3 else 0
            graph = StateGraph(State).add_node("body", body, **options).add_edge(START, "body")
            app = graph.compile(saver, schedule=schedule)
            try:
                result = _called(app, given, durability, program.is_async)
            except (StorageError, sqlite3.Error):
                result, trap.at = None, 0
                doubtful += len(given.resume) if isinstance(given, Command) and isinstance(given.resume, dict) else 1
                round.count("failed statements")
            trap.at = 0
            state = app.get_state(config())
        if state.created_at is None:
            continue  # the input was not stored
        shown = [*state.interrupts]
        if result is not None and not state.next:
            break
        if not shown:
            given = None
            continue
        part = random.sample(shown, random.randrange(1, len(shown) + 1))
        sent += len(part)
        answers = {question.id: f"yes, {question.value['name']}" for question in part}
        for number, question in enumerate(part):
            if question.value["name"] == SHARED:
                answers[question.id] = f"yes, {sent}.{number}"
        plain = len(shown) == 1 and random.random() < 0.5
        given = Command(resume=next(iter(answers.values())) if plain else answers)
        round.count("answers", len(part))
        if sent > program.questions + doubtful:
            raise CheckFailed(f"{program.questions} questions took {sent} answers, {doubtful} of them in failed calls")
    else:
        raise CheckFailed(f"{program.parties} never end")
    assert_same(state.values["done"], sorted(party.name for party in program.parties), "who has ended")
    equal = sum(party.kind == "equal" for party in program.parties)
    assert_same(len(set(program.equal)), equal, "answers of equal questions")
    round.count("questions", program.questions)
    round.count("runs", program.runs)


def _break():
    raise sqlite3.OperationalError("disk I/O error")
