"""R28: an edit of a paused thread loses no question and doubles no effect. Every graph is held against a plain model."""

from __future__ import annotations

import operator
import warnings
from collections import Counter
from contextlib import ExitStack, suppress
from itertools import product
from typing import Annotated, NamedTuple, TypedDict

from kit.graphs import EMPTY, chain_of, graph_of

from stategraph import (
    START,
    CheckpointConflictError,
    Command,
    GraphWarning,
    InMemorySaver,
    InvalidUpdateError,
    Send,
    StateGraph,
    StateUpdate,
    get_runtime,
    interrupt,
)
from stategraph import task as task_of
from stategraph.pregel.clock import CLOCK
from stategraph.testing import CheckFailed, assert_same
from stategraph.testing.harness import Mode

from .campaign import patched, trial
from .stages import config, postgres, sqlite

KINDS = {"says": 0, "asks": 1, "twice": 2, "calls": 1, "nested": 1}
"""What a node does, and how often it asks."""


class Shape(NamedTuple):
    """Nodes side by side, what leads to them ("input" or "sends", an edge or a router of `a`), and what follows."""

    kinds: tuple[str, ...]
    lead: str
    tail: str

    @property
    def names(self):
        return [f"{'pqr'[place]}" for place in range(len(self.kinds))]


SHAPES = [
    Shape(kinds, lead, tail)
    for count in (1, 2, 3)
    for kinds in product(KINDS, repeat=count)
    for lead in ("input", "edge", "router", "sends")
    for tail in ("none", "join", "each")
    if set(kinds) != {"says"} and (lead, tail) not in (("sends", "join"), ("sends", "each"), ("router", "join"))
    if count + (lead != "input") + {"none": 0, "join": 1, "each": count}[tail] <= 5
]


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    done: Annotated[list[str], lambda old, new: sorted({*old, *new})]


def build(shape: Shape, effects, saver):
    """The graph of a shape; its bodies count what they have done."""

    @task_of
    def charge(name):
        effects[f"charge {name}"] += 1
        return name

    def ask(question):
        answer = interrupt(question)
        if answer != f"to {question}":
            raise CheckFailed(f"{question!r} was given {answer!r}")

    def act(name, kind):
        if kind == "calls":
            charge(name).result()
        for number in range(KINDS[kind]):
            ask(f"{name}{number}")
        effects[name] += 1
        return {"done": [name]} if kind == "nested" else {"log": [name], "done": [name]}

    def node(name, kind):
        return nested(name) if kind == "nested" else lambda _: act(name, kind)

    def nested(name):
        def first(_):
            effects[f"first {name}"] += 1
            return {"done": [name]}

        return chain_of(Inside, first=first, ask=lambda _: act(name, "nested")).compile()

    graph = StateGraph(State)
    if shape.lead != "input":
        graph.add_node("a", lambda _: act("a", "says")).add_edge(START, "a")
    if shape.lead == "sends":
        kinds = dict(zip(shape.names, shape.kinds, strict=True))
        inner = {name: nested(name) for name in shape.names}
        graph.add_node("w", lambda name: inner[name].invoke({}) if kinds[name] == "nested" else act(name, kinds[name]))
        graph.add_conditional_edges("a", lambda _: [Send("w", name) for name in shape.names], ["w"])
        return graph.compile(saver)
    for name, kind in zip(shape.names, shape.kinds, strict=True):
        graph.add_node(name, node(name, kind))
        if shape.lead != "router":
            graph.add_edge(START if shape.lead == "input" else "a", name)
        if shape.tail == "each":
            graph.add_node(f"{name}z", node(f"{name}z", "says")).add_edge(name, f"{name}z")
    if shape.lead == "router":
        graph.add_conditional_edges("a", lambda _: shape.names, shape.names)
    if shape.tail == "join":
        graph.add_node("z", node("z", "says")).add_edge(shape.names, "z")
    return graph.compile(saver)


class Inside(TypedDict, total=False):
    done: Annotated[list[str], operator.add]


class Model:
    """What a paused thread of a shape is: who is open with which question, who has finished, whom an edit speaks for."""

    def __init__(self, shape: Shape):
        self.shape = shape
        self.left = {name: KINDS[kind] for name, kind in zip(shape.names, shape.kinds, strict=True)}
        self.given = dict.fromkeys(shape.names, 0)
        self.spoken = []
        self.edits = []

    @property
    def open(self):
        return [name for name, left in self.left.items() if left and name not in self.spoken]

    def answer(self, question):
        self.left[question[:-1]] -= 1
        self.given[question[:-1]] += 1

    @property
    def next(self):
        if self.shape.lead == "sends":
            return ["w"] * len(self.open)
        after = []
        finished = [name for name, left in self.left.items() if not left and name not in self.spoken]
        if self.spoken and self.shape.tail == "each":
            after = [f"{name}z" for name in [*finished, *self.spoken]]
        if self.spoken and self.shape.tail == "join" and not self.open:
            after = ["z"]
        return sorted([*self.open, *after])

    @property
    def questions(self):
        return sorted(f"{name}{self.given[name]}" for name in self.open)

    def log(self):
        """In the end, sorted. A nested graph leaves no entry of its own."""
        own = [
            n
            for n, kind in zip(self.shape.names, self.shape.kinds, strict=True)
            if n not in self.spoken and kind != "nested"
        ]
        tails = {"none": [], "join": ["z"], "each": [f"{name}z" for name in self.shape.names]}[self.shape.tail]
        return sorted([*own, *tails, *self.edits, *(["a"] if self.shape.lead != "input" else [])])

    def effects(self):
        """In the end: everything once, but for bodies of those that an edit spoke for."""
        done = Counter({name: 1 for name in self.shape.names if name not in self.spoken})
        for name, kind in zip(self.shape.names, self.shape.kinds, strict=True):
            done.update([f"charge {name}"] if kind == "calls" else [f"first {name}"] if kind == "nested" else [])
        tails = {"none": [], "join": ["z"], "each": [f"{name}z" for name in self.shape.names]}[self.shape.tail]
        done.update([*tails, *(["a"] if self.shape.lead != "input" else [])])
        return done


class Client:
    """Calls a thread, each call on a saver and a graph made anew if asked, and holds what it sees against the model."""

    def __init__(self, shape: Shape, world, opened, stack, reopens):
        self.shape, self.world, self.opened, self.stack, self.reopens = shape, world, opened, stack, reopens
        self.model, self.effects = Model(shape), Counter[str]()
        self.trace = [str(shape)]
        self.ids = {}
        self.app = None

    def call(self, method, *args):
        if self.app is None or self.reopens:
            self.stack.close()
            self.app = build(self.shape, self.effects, self.stack.enter_context(self.opened()))
        return self.world.call(self.app, method, *args)

    def look(self):
        """The thread shows what the model says; what was asked before is asked under the same id."""
        state, where = self.call("get_state", config()), " > ".join(self.trace)
        assert_same(sorted(state.next), self.model.next, f"{where}: next")
        ids = {each.value: each.id for each in state.interrupts}
        assert_same(sorted(ids), self.model.questions, f"{where}: questions")
        assert_same({q: ids[q] for q in self.ids if q in ids}, {q: self.ids[q] for q in self.ids if q in ids}, f"{where}: ids")
        self.ids.update(ids)

    def answer(self, questions):
        self.trace.append(f"answer {questions}")
        self.call("invoke", Command(resume={self.ids[q]: f"to {q}" for q in questions}), config())
        for question in questions:
            self.model.answer(question)

    def edit(self, random):
        """One of the edits that the model knows the outcome of: as a node that asks, two of them at once, as the one
        before, twice, without `as_node`."""
        model, entries = self.model, [f"e{len(self.model.edits)}", f"e{len(self.model.edits) + 1}"]
        open_ = model.open
        ways = ["as one"] * bool(open_) + ["as two"] * (len(open_) > 1)
        if not model.spoken:
            ways += ["as none", "as none"]
            ways += ["as a", "twice as a"] if self.shape.lead != "input" else []
        if not ways:
            return
        way = random.choice(ways)
        self.trace.append(way)
        if way in ("as one", "as two"):
            names = random.sample(open_, 2) if way == "as two" else [random.choice(open_)]
            if self.shape.lead == "sends":
                names = open_[: len(names)]
            self.trace[-1] = f"as {names}"
            as_node = ["w"] * len(names) if self.shape.lead == "sends" else names
            updates = [StateUpdate({"log": [entry]}, node) for entry, node in zip(entries, as_node, strict=False)]
            self.call("bulk_update_state", config(), [updates])
            model.spoken += names
            model.edits += entries[: len(names)]
            return
        if way == "twice as a":
            self.call("bulk_update_state", config(), [[StateUpdate({"log": [entry]}, "a")] for entry in entries])
            model.edits += entries
            return
        self.call("update_state", config(), {"log": entries[:1]}, *(["a"] if way == "as a" else []))
        model.edits += entries[:1]

    def end(self):
        """Go on until nothing is left; in the end all is there once."""
        for _ in range(10):
            self.trace.append("on")
            if self.model.questions:
                self.call("invoke", Command(resume={self.ids[q]: f"to {q}" for q in self.model.questions}), config())
                for question in self.model.questions:
                    self.model.answer(question)
            else:
                self.call("invoke", None, config())
            state = self.call("get_state", config())
            self.ids.update({each.value: each.id for each in state.interrupts})
            if not state.next:
                break
        where = " > ".join(self.trace)
        assert_same(sorted(state.values.get("log", [])), self.model.log(), f"{where}: log in the end")
        assert_same(self.effects, self.model.effects(), f"{where}: effects")


@trial("R28", quick=20, full=40 * len(SHAPES))
def edits_while_paused(round):
    """Graphs of up to 5 nodes that ask, call `@task`s, send and nest graphs, edited while they are paused: as a node that
    asks, as two at once, as the node before, twice, without `as_node`; before and after some questions were answered;
    each call by a fresh process, as far as the thread can tell. What is open, under which ids, the log in the end and how
    often each body ran are those of a plain model."""
    random = round.random
    shape = SHAPES[round.number % len(SHAPES)] if round.number >= 40 else random.choice(SHAPES)
    kind = random.choice(["memory", "sqlite", "sqlite", "postgres" if round.number % 20 == 0 else "memory"])
    with Mode(random.choice(["sync", "async"])) as world, ExitStack() as stack:
        if kind == "memory":
            saver = InMemorySaver()
            client = Client(shape, world, lambda: saver, stack, False)
            client.app = build(shape, client.effects, saver)
        else:
            storage = sqlite(round) if kind == "sqlite" else postgres(round)
            client = Client(shape, world, storage.open, stack, random.random() < 0.5)
        client.call("invoke", {"log": [], "done": []}, config())
        client.look()
        for _ in range(random.randrange(1, 4)):
            if not client.model.spoken and len(client.model.questions) > 1 and random.random() < 0.3:
                client.answer([random.choice(client.model.questions)])
                client.look()
            before = len(client.trace)
            client.edit(random)
            if len(client.trace) > before:
                client.look()
                round.count("edits")
        client.end()
    round.count("threads")


@trial("R28", quick=6, full=5_000)
def edits_of_live_runs(round):
    """While a node runs its thread is edited, once or twice, by others. The edit or the run is told that it came second,
    and what is there can be gone on with: each edit that was told ok and each node is in the log once."""
    random, tried, edited = round.random, list[str](), list[str]()
    durability, place, many = random.choice(["sync", "async", "exit"]), random.randrange(3), random.choice([1, 2])

    def says(name, at):
        def body(_):
            if at == place and not tried:
                for number in range(many):
                    tried.append(f"e{number}")
                    with suppress(CheckpointConflictError):
                        app.update_state(config(), {"log": tried[-1:]}, "a" if at else "p")
                        edited.append(tried[-1])
            return {"log": [name]}

        return body

    def ask(_):
        return {"log": [interrupt("go on?")]}

    graph = chain_of(State, a=says("a", 5), ask=ask)
    for at, name in enumerate("pq", 1):
        graph.add_node(name, says(name, at)).add_edge("a", name)
    graph.add_node("z", says("z", 0)).add_edge("p", "z")
    with Mode(random.choice(["sync", "async"])) as world, sqlite(round).open() as saver:
        app = graph.compile(saver if random.random() < 0.6 else InMemorySaver())
        told = []
        given = {"log": []}
        for _ in range(8):
            try:
                world.call(app, "invoke", given, config(), durability=durability)
            except CheckpointConflictError:
                told.append("run")
            state = world.call(app, "get_state", config())
            if state.created_at and not state.next:
                break
            given = Command(resume="yes") if state.interrupts else None if state.created_at else given
    where = f"{durability}, {many} edits by {place}, told: {told}"
    log = Counter(state.values["log"])
    assert_same({name: log[name] for name in edited}, dict.fromkeys(edited, 1), f"{where}: edits in {dict(log)}")
    if max(log.values()) > 1:
        raise CheckFailed(f"{where}: twice in the log: {dict(log)}")
    round.count("edits", len(edited))
    round.count("runs told", len(told))


@trial("R28", quick=3, full=600)
def pending_twice(round):
    """A node is pending several times, by `Send`s and by an edge. Updates for some of these tasks leave the others, and
    each of those runs once."""
    random = round.random
    sends = random.randrange(1, 4)
    spoken = [f"e{number}" for number in range(random.randrange(2, sends + 2))]
    graph = graph_of(State, "S>a>w", w=lambda _: {"log": ["ran"]}).add_conditional_edges(
        "a", lambda _: [Send("w", {"done": [str(number)]}) for number in range(sends)], ["w"]
    )
    left = ["w"] * (sends + 1 - len(spoken))
    with Mode(random.choice(["sync", "async"])) as world, sqlite(round).open() as saver:
        app = graph.compile(random.choice([saver, InMemorySaver()]), interrupt_before=["w"])
        world.call(app, "invoke", EMPTY, config())
        world.call(app, "bulk_update_state", config(), [[StateUpdate({"log": [entry]}, "w") for entry in spoken]])
        assert_same(list(world.call(app, "get_state", config()).next), left, f"{sends} Sends, {len(spoken)} updates: next")
        if left:
            world.call(app, "invoke", None, config())
        log = world.call(app, "get_state", config()).values["log"]
    assert_same(sorted(log), sorted(["a", *spoken, *("ran" for _ in left)]), f"{sends} Sends, {len(spoken)} updates: log")
    round.count("updates", len(spoken))


# -- beside Sends -------------------------------------------------------------------------------------------------------


class Fan(NamedTuple):
    """A node `a`, or START, that sends several tasks to `w`, with `p` beside them; `c` and `q`, a join `d`, or a deferred `d` follow.

    Attributes:
        sends: what each task of `w` does: "says", "asks", "sleeps", or "fails" the first time.
        beside: what `p` does; "" if there is none.
        lead: "input" (the router of START), "router", "goto" (both by one Command), "mixed" (Sends by a Command, `p` by a
            router), "edge" (Sends by a router, `p` by an edge).
        tail: "none", "each", "join" or "defer".
        stop: before what follows, by a breakpoint; else only where tasks do not finish.
    """

    sends: tuple[str, ...]
    beside: str
    lead: str
    tail: str
    stop: bool
    schedule: str

    @property
    def kinds(self):
        """What each task does, by its name."""
        found = {f"w{place}": kind for place, kind in enumerate(self.sends)}
        return found | ({"p": self.beside} if self.beside else {})

    @property
    def tails(self):
        if self.tail == "each":
            return ["c", "q"] if self.beside else ["c"]
        return ["d"] if self.tail in ("join", "defer") else []


DOES = ("says", "asks", "sleeps", "fails")
FANS = [
    Fan(sends, beside, lead, tail, stop, schedule)
    for count in (1, 2, 3)
    for sends in product(DOES, repeat=count)
    for beside in ("", *DOES)
    for lead in ("input", "router", "goto", "mixed", "edge")
    for tail in ("none", "each", "join", "defer")
    for stop in (False, True)
    for schedule in ("supersteps", "ready")
    if (stop or {*sends, beside} - {"says", ""}) and not (stop and tail == "none")
    if list(sends) == sorted(sends) and (beside or lead in ("input", "router", "goto"))
]


class Fanned:
    """Calls a thread of a `Fan`, and holds it against the rule: a plain edit is refused or keeps all that was under way,
    and in the end everything is in the log once."""

    def __init__(self, fan: Fan, durability, call, saver):
        self.fan, self.ran, self.failed = fan, Counter[str](), set[str]()
        self.durability = durability
        self.now = 2_000_000_000.0
        self.app = self.build(saver)
        self.call = lambda method, *args, **kwargs: call(self.app, method, *args, **kwargs)
        self.trace = [str(fan), durability]
        self.log = sorted([*fan.kinds, *fan.tails, *(["a"] if fan.lead != "input" else [])])
        self.edits, self.refused = 0, 0
        self.spoken = False

    def build(self, saver):
        fan = self.fan
        items = [Send("w", {"name": f"w{place}"}) for place in range(len(fan.sends))]
        p = ["p"] * bool(fan.beside)

        def act(name):
            kind = fan.kinds.get(name, "says")
            if kind == "asks" and interrupt(name) != f"to {name}":
                raise CheckFailed(f"{name} was given another answer")
            if kind == "sleeps":
                get_runtime().sleep(3600.0, durable_after=0)
            if kind == "fails" and name not in self.failed:
                self.failed.add(name)
                raise OSError(name)
            self.ran[name] += 1
            return {"log": [name]}

        def a(_):
            goto = {"goto": [*items, *p], "mixed": items}.get(fan.lead, [])
            return Command(update=act("a"), goto=goto)

        graph = StateGraph(State).add_node("w", lambda given: act(given["name"]))
        for name in ["p"] * bool(fan.beside) + fan.tails:
            graph.add_node(name, lambda _, name=name: act(name), defer=name == "d" and fan.tail == "defer")
        source = START if fan.lead == "input" else "a"
        if source == "a":
            graph.add_node("a", a, destinations=("w", *p)).add_edge(START, "a")
        if fan.lead == "edge":
            graph.add_edge("a", "p")
        routed = {"input": [*items, *p], "router": [*items, *p], "edge": items, "mixed": p}.get(fan.lead)
        if routed:
            graph.add_conditional_edges(source, lambda _: routed, ["w", *p])
        if fan.tail == "each":
            graph.add_edge("w", "c")
            if fan.beside:
                graph.add_edge("p", "q")
        if fan.tail == "defer" or (fan.tail == "join" and not p):
            for name in ["w", *p]:
                graph.add_edge(name, "d")
        elif fan.tail == "join":
            graph.add_edge(["w", "p"], "d")
        stops = fan.tails if fan.stop else []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GraphWarning)  # its join waits for what only Sends lead to
            return graph.compile(saver, schedule=fan.schedule, interrupt_before=stops)  # type: ignore[arg-type]

    def look(self):
        return self.call("get_state", config())

    def run(self, given, config):
        with suppress(OSError):
            self.call("invoke", given, config, durability=self.durability)

    def plain(self, where=None):
        """An edit that does not say as whom: whether it was taken."""
        before = self.call("get_state", where or config())
        self.trace.append(f"plain edit at {before.next}")
        try:
            self.call("update_state", where or config(), {"log": [f"e{self.edits}"]})
        except InvalidUpdateError as error:
            self.refused += 1
            if not self.fan.beside or "specify as_node" not in str(error):
                raise CheckFailed(f"{self.trace}: {error}") from error
            assert_same(self.call("get_state", where or config()), before, f"{self.trace}: after a refused edit")
            return False
        state = self.look()
        if before.next != (START,):
            assert_same(sorted(state.next), sorted(before.next), f"{self.trace}: next")
        if where is None:
            assert_same({q.id for q in state.interrupts}, {q.id for q in before.interrupts}, f"{self.trace}: questions")
        self.edits += 1
        return True

    def speak(self, names):
        """An edit as nodes whose tasks are open, one for each."""
        before = self.look()
        self.trace.append(f"as {names}")
        updates = [StateUpdate({"log": [f"e{self.edits + place}"]}, name) for place, name in enumerate(names)]
        self.call("bulk_update_state", config(), [updates])
        self.edits += len(names)
        self.spoken = True
        left = Counter(before.next) - Counter(names)
        assert_same(Counter(self.look().next), left, f"{self.trace}: next")

    def end(self):
        """Go on to the end."""
        for _ in range(12):
            state = self.look()
            if not state.next:
                return state
            self.now += 7200
            self.run(Command(resume={q.id: f"to {q.value}" for q in state.interrupts}) if state.interrupts else None, config())
        raise CheckFailed(f"{self.trace}: still {state.next}")


def edit_beside_sends(fan: Fan, random, call, saver):
    """Edit a thread where it stops, and once more at a checkpoint of its history."""
    thread = Fanned(fan, random.choice(["sync", "async", "exit"]), call, saver)
    with patched(CLOCK, "time", lambda: thread.now):
        thread.run({"log": [], "done": []}, config())
        for _ in range(random.randrange(1, 4)):
            open_ = [name for name in thread.look().next if name not in fan.tails]
            if open_ and fan.tail == "none" and random.random() < 0.4:
                thread.speak(random.sample(open_, random.randrange(1, min(len(open_), 2) + 1)))
            else:
                thread.plain()
        state = thread.end()
        entries = [f"e{number}" for number in range(thread.edits)]
        names = [name for name in state.values["log"] if name not in entries]
        where = str(thread.trace)
        assert_same(Counter(state.values["log"]) - Counter(names), Counter(entries), f"{where}: edits in the end")
        if thread.spoken:
            assert_same(Counter(names) - Counter(thread.log), Counter(), f"{where}: twice in the log")
        else:
            assert_same(sorted(names), thread.log, f"{where}: log in the end")
        assert_same(thread.ran, Counter(names), f"{where}: bodies that ran")
        if not thread.spoken:
            at = random.choice([*thread.app.get_state_history(config())])
            before = [entry for entry in at.values.get("log", []) if entry in entries]
            entries = [f"e{thread.edits}"] * thread.plain(at.config)
            if entries:
                assert_same(sorted(thread.end().values["log"]), sorted([*thread.log, *before, *entries]), f"{thread.trace}: fork")
    return thread


@trial("R28", quick=30, full=len(FANS))
def edits_beside_sends(round):
    """`Send`s, with and without a node beside them, led to by edges, routers, Commands and the input, in both schedules;
    each durability; edited where the thread asks, sleeps, has failed or is at a breakpoint, and at a checkpoint of its history. An edit
    without `as_node` is refused as ambiguous, or all that was under way goes on; in the end everything is in the log once."""
    random = round.random
    fan = random.choice(FANS)
    kind = random.choice(["memory", "memory", "sqlite", "postgres" if round.number % 20 == 0 else "memory"])
    with Mode(random.choice(["sync", "async"])) as world, ExitStack() as stack:
        opened = None if kind == "memory" else sqlite(round) if kind == "sqlite" else postgres(round)
        saver = InMemorySaver() if opened is None else stack.enter_context(opened.open())
        thread = edit_beside_sends(fan, random, world.call, saver)
    round.count("edits", thread.edits)
    round.count("edits refused as ambiguous", thread.refused)
