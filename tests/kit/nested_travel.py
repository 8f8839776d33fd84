"""Three graphs in each other, and a plain model of what follows each of their checkpoints. For tests of going back inside."""

from __future__ import annotations

import copy
import operator
import warnings
from dataclasses import dataclass
from typing import Annotated, Any

from typing_extensions import TypedDict

from kit.graphs import CONFIG, thread_config
from kit.graphs import Log as State
from kit.pausing_graphs import Ran, seen
from stategraph import START, Command, GraphWarning, InMemorySaver, StateGraph, interrupt

ORDER = ["a", "m", "s", "i", "j", "t", "n", "z"]
"""All nodes in the order in which they run: a and z of the root, m and n of `mid`, the others of `in`."""
LEVEL = {**dict.fromkeys("az", ""), **dict.fromkeys("mn", "mid"), **dict.fromkeys("sijt", "mid|in")}
FIRST = {"": 0, "mid": 1, "mid|in": 2}
PAST = {"": 8, "mid": 7, "mid|in": 6}
"""The place in `ORDER` of each graph's first node, and the one after its last."""
GIVEN = {"i": "I", "j": "J"}
"""The answers of the original run; in turn 2 they have a 2 behind them."""


class Middle(TypedDict, total=False):
    m: Annotated[list[Any], operator.add]


class Inmost(TypedDict, total=False):
    i: Annotated[list[Any], operator.add]


KEEPS = [None, True, "own", False]
"""What a nested graph's `checkpointer` may be; "own" is a saver of its own."""
CALLS = ["replay", "answer", "update"]
"""What may be done at a checkpoint: go on from it; bring an answer to it; change it and go on from what that made."""

KEY = {"": "log", "mid": "m", "mid|in": "i"}


def node(name, ran):
    key = KEY[LEVEL[name]]

    def body(state):
        ran.append(name)
        return {key: [(name, interrupt(f"{name}?")) if name in GIVEN else name]}

    return body


def chain(schema, bodies, checkpointer):
    builder = StateGraph(schema)
    for last, (name, body) in zip([START, *bodies], bodies.items(), strict=False):
        builder.add_node(name, body).add_edge(last, name)
    with warnings.catch_warnings():
        # The model follows each graph's own log.
        warnings.filterwarnings("ignore", ".* shares no key with the graph around it", GraphWarning)
        return builder.compile(checkpointer=checkpointer)


def nest(ran, mid, inmost, saver):
    """The root, with `mid` in it, with `in` in that; each with its `checkpointer`."""
    below = chain(Inmost, {name: node(name, ran) for name in "sijt"}, inmost)
    middle = chain(Middle, {"m": node("m", ran), "in": below, "n": node("n", ran)}, mid)
    return chain(State, {"a": node("a", ran), "mid": middle, "z": node("z", ran)}, saver)


def names(ns):
    """A namespace without the ids of tasks."""
    return "|".join(level.split(":")[0] for level in ns.split("|")) if ns else ""


@dataclass
class Stop:
    """A checkpoint of the original run, and what follows it.

    Attributes:
        turn: 1 or 2. `start`: the place in `ORDER` of the node that runs next.
        shown: what it held. `takes_input`: its input is still to be taken, and an update as `__start__` replaces it.
    """

    ns: str
    turn: int
    start: int
    config: Any
    shown: list[Any]
    takes_input: bool


class Nest:
    """The three graphs after two turns of questions and answers on one thread."""

    def __init__(self, drive, mid, inmost, saver=None):
        self.drive, self.ran = drive, Ran()
        self.keeps = {"mid": mid, "mid|in": inmost}
        self.savers = saver or InMemorySaver(), InMemorySaver()
        own = {"own": self.savers[1]}
        self.app = nest(self.ran, own.get(mid, mid), own.get(inmost, inmost), self.savers[0])
        for turn in (1, 2):
            paused = drive.invoke(self.app, {"log": [f"turn {turn}"]}, CONFIG)
            while "__interrupt__" in paused:
                asked = paused["__interrupt__"][0].value[0]
                paused = drive.invoke(self.app, Command(resume=self.given(asked, turn)), CONFIG)
        self.before = self.histories()
        self.threads = [copy.deepcopy(saver._threads) for saver in self.savers]
        self.stops = self.find_stops()

    def rewind(self):
        """Make the savers what they were after the two turns."""
        self.ran.clear()
        for saver, threads in zip(self.savers, self.threads, strict=True):
            saver._threads = copy.deepcopy(threads)

    def given(self, question, turn):
        return GIVEN[question] + ("2" if turn == 2 else "")

    def histories(self):
        """The history of every namespace to which the snapshots of the thread lead by the `state` of their tasks."""
        self.snapshots = {}
        left = [""]
        while left:
            ns = left.pop()
            self.snapshots[ns] = self.drive.history(self.app, config_of(ns))
            states = [task.state for snapshot in self.snapshots[ns] for task in snapshot.tasks]
            below = {state["configurable"]["checkpoint_ns"] for state in states if state is not None}
            left += sorted(below - {*self.snapshots, *left})
        return {ns: seen(found) for ns, found in self.snapshots.items()}

    def find_stops(self):
        """Every checkpoint of all three graphs, the oldest first."""
        found = []
        for ns in self.before:
            turn, level = 0, names(ns)
            for snapshot in reversed(self.snapshots[ns]):
                root = snapshot.metadata["parents"].get("", snapshot.config["configurable"]["checkpoint_id"])
                turn = self.turn_of(root)
                (following,) = snapshot.next or ("",)
                start = {"": PAST[level], "__start__": FIRST[level], "mid": 1, "in": 2}.get(following)
                start = ORDER.index(following) if start is None else start
                shown = snapshot.values.get(KEY[level], [])
                found.append(Stop(ns, turn, start, snapshot.config, shown, following == "__start__"))
        return found

    def turn_of(self, root):
        """In which turn a checkpoint of the root was made."""
        turn = 0
        for row in reversed(self.before[""]):
            turn += row[3]["source"] == "input"
            if row[2]["configurable"]["checkpoint_id"] == root:
                return turn
        raise AssertionError(root)

    def whole(self, level, turn, stop: Stop, added, answers):
        """What a graph holds at the end of a turn that went on from a checkpoint, by the model."""
        nodes = [name for name in ORDER if LEVEL[name] == level]

        def said(name, from_, turn):
            changed = answers.get(name) if turn == stop.turn and from_ >= stop.start else None
            return (name, changed or self.given(name, turn)) if name in GIVEN else name

        keeps = level == "" or self.keeps[level] is True
        log = []
        for each in range(1, turn + 1):
            if not keeps:
                log = []
            on_the_way = each == stop.turn and level == names(stop.ns)
            instead = on_the_way and bool(added) and stop.takes_input
            log += [f"turn {each}"] if level == "" and not instead else []
            for name in nodes:
                place = ORDER.index(name)
                if on_the_way and place >= stop.start:
                    log, on_the_way = log + added, False
                log.append(said(name, place, each))
            if on_the_way:
                log = log + added
        return log

    def go_on(self, given, config, stop: Stop):
        """Call, and answer what is asked as in the original run."""
        found = self.drive.invoke(self.app, given, config)
        while "__interrupt__" in found:
            (question,) = found["__interrupt__"]
            found = self.drive.invoke(self.app, Command(resume=self.given(question.value[0], stop.turn)), CONFIG)
        return found

    def check(self, found, stop: Stop, added, answers):
        """What followed ran, nothing else did; each graph holds what the model says; all that was there still is."""
        repeated = [*dict.fromkeys(self.ran)]
        following = ORDER[stop.start :]
        assert repeated == following, f"{stop}: ran {self.ran}, should have run {following}"
        assert found["log"] == self.whole("", stop.turn, stop, added, answers), f"{stop}"
        after = self.histories()
        for ns, rows in self.before.items():
            assert after[ns][-len(rows) :] == rows, f"{stop}: the history of {ns!r} has changed"
        for level in ("mid", "mid|in"):
            if PAST[level] < stop.start or (PAST[level] == stop.start and names(stop.ns) != level):
                continue  # had ended before
            newest = [rows[0] for ns, rows in after.items() if rows and names(ns) == level and ns not in self.before]
            newest += [rows[0] for ns, rows in after.items() if ns == level]
            if newest:
                assert newest[0][0].get(KEY[level], []) == self.whole(level, stop.turn, stop, added, answers), f"{stop} {level}"


def config_of(ns):
    return thread_config(checkpoint_ns=ns)


def travel(nest: Nest, stop: Stop, call):
    """Go back to one checkpoint, and compare what follows with the model."""
    nest.rewind()
    added = []
    answers = {}
    given, config = None, stop.config
    if call == "answer":
        answers = dict.fromkeys([name for name in ORDER[stop.start :] if name in GIVEN][:1], "new")
        given = Command(resume="new") if answers else None
    elif call == "update":
        added = ["by hand"]
        as_node = "__start__" if stop.takes_input else None
        config = nest.drive.update_state(nest.app, stop.config, {KEY[names(stop.ns)]: added}, as_node)
    nest.check(nest.go_on(given, config, stop), stop, added, answers)
