"""What a thread of one small graph must look like after any sequence of calls: a model made of plain records.

The graph: START -> p, q, r in one superstep; z joins them. p logs, q asks two questions in a row, r asks one.
Nothing here imports the engine. `test_history_model` makes the same calls to both and compares.
"""

from __future__ import annotations

import asyncio
import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import strategies as st
from kit.graphs import CONFIG, parallel_of, thread_config
from kit.graphs import Log as State

from stategraph import (
    END,
    Command,
    GraphWarning,
    InMemorySaver,
    StateGraphError,
    interrupt,
)

ASKED = {"p": 0, "q": 2, "r": 1}
ALL = frozenset(ASKED)
NOTHING = object()


class Refused(Exception):
    """The call must raise, and leave everything as it was."""


@dataclass(frozen=True)
class Point:
    """A checkpoint: the state, and what was kept beside it."""

    source: str
    step: int
    parent: int | None
    log: tuple[Any, ...] = ()
    given: tuple[Any, ...] | None = None  # input that START has not spread yet
    pending: frozenset[str] = frozenset()
    joined: frozenset[str] = frozenset()
    z: bool = False
    # Beside it: what finished tasks wrote, answers by task, tasks with an open or answered question, a command's update.
    done: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    update: tuple[Any, ...] = ()
    touched: bool = False

    def bare(self, **changes):
        """The state alone, a command's update folded in."""
        beside = {"done": {}, "answers": {}, "asked": {}, "update": (), "touched": False}
        return replace(self, log=self.log + self.update, **beside, **changes)

    @property
    def tasks(self):
        """What runs next, in path order."""
        start = ("__start__",) if self.given is not None else ()
        return (*start, *sorted(self.pending), *(("z",) if self.z else ()))

    def shown(self):
        """The row that history shows."""
        return (self.source, self.step, self.parent, [*self.log, *self.update], self.tasks)

    def live(self):
        """What the head shows: log, next and open questions."""
        log = [*self.log, *self.update, *(item for t in sorted(self.done) for item in self.done[t])]
        following = tuple(t for t in self.tasks if t not in self.done)
        return log, following, [f"{t}{self.asked[t]}" for t in sorted(self.asked) if t not in self.done]


class Thread:
    """The model: a list of points, the last committed being the head."""

    def __init__(self):
        self.points = []
        self._forked = False

    @property
    def head(self):
        return len(self.points) - 1

    # -- calls ------------------------------------------------------------------------------------------------

    def input(self, at, items):
        """New input, at the head or at an old point: what was pending is dropped."""
        base = self.points[self.head if at is None else at].bare() if self.points else Point("", -2, None)
        joined = frozenset() if base.z else base.joined
        parent = (self.head if at is None else at) if self.points else None
        point = replace(base, source="input", step=base.step + 1, parent=parent, given=items, pending=frozenset())
        self.points.append(replace(point, joined=joined, z=False))
        return self._run({}, NOTHING)

    def go_on(self, at):
        """None: at the head, or (named) done anew."""
        if not self.points:
            raise Refused
        if at is not None:
            self._fork(at)
            if at != self.head and not self._forked:
                return self._result(self.points[at], live=False)
        return self._run({}, NOTHING)

    def update(self, items):
        """A command with an update, at the head."""
        head = self.points[self.head]
        self.points[self.head] = replace(head, update=head.update + items, touched=True)
        return self._run({}, NOTHING)

    def open(self, at):
        """Task → number of its question that an answer may name; at an old point also answered ones."""
        point = self.points[self.head if at is None else at]
        again = at is not None and at != self.head
        return {t: k for t, k in sorted(point.asked.items()) if again or t not in point.done}

    def answer(self, at, answers, single=NOTHING):
        """Answers by task (their open question), or a single one."""
        if not self.points:
            raise Refused
        where = self.head if at is None else at
        point, waiting = self.points[where], self.open(at)
        if not point.tasks or set(answers) - set(waiting) or (single is not NOTHING and len(waiting) > 1):
            raise Refused
        if single is not NOTHING and len(waiting) == 1:
            answers, single = {next(iter(waiting)): single}, NOTHING
        if where != self.head:
            kept = {t: a[: point.asked.get(t, len(a))] for t, a in point.answers.items()}
            self._fork(where, kept)
        return self._run(answers, single)

    def edit(self, at, as_node, items):
        """update_state."""
        where = self.head if at is None else at
        point = self.points[where] if self.points else Point("", -1, None)
        done = point.done if where == self.head else {}
        base = point.bare(source="update", step=point.step + 1, parent=where if self.points else None)
        if as_node == "__copy__":
            if not self.points:
                raise Refused
            self.points.append(replace(base, source="fork", parent=point.parent, done=dict(done), touched=bool(done)))
            return
        if as_node == "__end__":
            log = base.log + tuple(item for t in sorted(done) for item in done[t])
            joined = (frozenset() if base.z else base.joined) | (ALL & set(done))
            joined = frozenset() if joined == ALL else joined
            self.points.append(replace(base, log=log, given=None, pending=frozenset(), joined=joined, z=False))
            return
        in_place = as_node in point.pending or (as_node == "z" and point.z)
        # The join stays full if nobody acts for z: what z has done stays beside the new checkpoint, where it is done, too.
        again = {"z": done["z"]} if "z" in done and as_node != "z" else {}
        done = {t: found for t, found in done.items() if t not in again}
        writes = [*sorted((t, 0, done[t]) for t in done), (as_node if in_place else "", 1, list(items))]
        log = base.log + tuple(item for _, _, found in sorted(writes, key=lambda w: w[:2]) for item in found)
        z = base.z and as_node != "z"
        joined = (base.joined if z or not base.z else frozenset()) | (ALL & {*done, as_node})
        left = base.pending - frozenset(done) - {as_node} if in_place else frozenset()
        kept = left if where == self.head else ()  # their questions stay open, and what was answered stays answered
        self.points.append(
            replace(
                base, log=log, joined=joined, z=z or joined == ALL, given=None, pending=left, done=again,
                answers={t: a for t, a in point.answers.items() if t in kept},
                asked={t: k for t, k in point.asked.items() if t in kept},
            )
        )  # fmt: skip

    # -- what follows -----------------------------------------------------------------------------------------

    def _fork(self, at, answers=None):
        """A branch of its own, unless there is nothing to do or the head was made for it and is untouched."""
        point = self.points[at]
        fresh = at == self.head and point.source in ("update", "fork") and not point.touched
        self._forked = bool(point.update or (point.tasks and not fresh))
        if self._forked:
            fork = point.bare(source="fork", step=point.step + 1, parent=at)
            self.points.append(replace(fork, answers=dict(answers or {})))

    def _run(self, answers, single):
        """Superstep after superstep, from the head."""
        while True:
            here = self.points[self.head]
            if not here.tasks:
                return self._result(here, live=True)
            base = here.bare(source="loop", step=here.step + 1, parent=self.head)
            if here.given is not None:
                self.points.append(replace(base, log=base.log + here.given, given=None, pending=ALL))
                continue
            done, known, asked = dict(here.done), dict(here.answers), dict(here.asked)
            if here.z:
                done["z"] = ["z"]
            for name in sorted(here.pending - set(done)):
                got = list(known.get(name, ()))
                while len(got) < ASKED[name]:
                    if name in answers:
                        got.append(answers.pop(name))
                    elif single is not NOTHING:
                        got.append(single)
                        single = NOTHING
                    else:
                        break
                known[name] = tuple(got)
                if len(got) == ASKED[name]:
                    done[name] = [(name, *got)]
                else:
                    asked[name] = len(got)
            self.points[self.head] = replace(here, done=done, answers=known, asked=asked, touched=True)
            if here.pending - set(done):
                return self._result(self.points[self.head], live=True)
            items = tuple(item for name in sorted(done) for item in done[name])
            joined = (frozenset() if here.z else base.joined) | here.pending
            self.points.append(replace(base, log=base.log + items, pending=frozenset(), z=joined == ALL, joined=joined))

    def _result(self, point: Point, live):
        """What the call returns: the log, and the questions that are open."""
        log, _, questions = point.live() if live else ([*point.log, *point.update], (), [])
        return log, questions


CALLS = 40  # of one thread


def asks(name):
    return lambda state: {"log": [(name, *(interrupt(f"{name}{k}") for k in range(ASKED[name])))]}


def the_graph():
    builder = parallel_of(State, {name: asks(name) for name in ASKED})
    return builder.add_node("z", lambda state: {"log": ["z"]}).add_edge([*ASKED], "z")


class World:
    """The engine's side: the same calls, in one world."""

    def __init__(self, runner: asyncio.Runner | None, saver=None):
        self.app = the_graph().compile(saver or InMemorySaver())
        self.runner = runner
        self.ids = []  # of the checkpoints, in the order in which they were made
        self.known = {}

    def call(self, method, *args):
        if self.runner is None:
            return getattr(self.app, method)(*args)
        return self.runner.run(getattr(self.app, "a" + method)(*args))

    def history(self, limit=None):
        return list(self.app.get_state_history(CONFIG, limit=limit))

    def config(self, at):
        return CONFIG if at is None else thread_config(checkpoint_id=self.ids[at])

    def result(self, *args):
        result = self.call("invoke", *args) or {}
        return result.get("log", []), [q.value for q in result.get("__interrupt__", ())]

    def questions(self, at):
        """Task → id of its question."""
        state = self.call("get_state", self.config(at))
        return {q.value[0]: q.id for q in state.interrupts}

    def row(self, snapshot):
        parent = snapshot.parent_config
        return (
            snapshot.metadata["source"], snapshot.metadata["step"],
            None if parent is None else self.ids.index(parent["configurable"]["checkpoint_id"]),
            snapshot.values.get("log", []), snapshot.next,
        )  # fmt: skip


UNKNOWN = {"q": "a" * 32, "r": "b" * 32}
ANSWERS = st.sampled_from([None, False, {}, 0, "", "yes", ("t", 1), [1], {"k": "v"}])
PLACE = st.one_of(st.none(), st.none(), st.integers(0, 30))  # the head more often than an old checkpoint
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("input"), PLACE, st.integers(0, 9)),
        st.tuples(st.just("go on"), PLACE, st.none()),
        st.tuples(st.just("update"), st.none(), st.integers(0, 9)),
        st.tuples(st.just("single"), PLACE, ANSWERS),
        st.tuples(st.just("map"), PLACE, st.dictionaries(st.sampled_from("qr"), ANSWERS, min_size=1)),
        st.tuples(st.just("map"), PLACE, st.fixed_dictionaries({"q": ANSWERS, "r": ANSWERS})),
        st.tuples(st.just("stale"), PLACE, ANSWERS),
        st.tuples(st.just("edit"), PLACE, st.sampled_from(["p", "q", "r", "z", END, "__copy__"])),
    ),
    min_size=CALLS,
    max_size=CALLS,
)


def expected(model, step):
    """What the model says the call returns.

    Raises:
        Refused: the call must fail.
    """
    kind, at, what = step
    if kind == "input":
        return model.input(at, (what,))
    if kind == "go on":
        return model.go_on(at)
    if kind == "update":
        return model.update((what,))
    if kind == "single":
        return model.answer(at, {}, what)
    if kind == "map":
        return model.answer(at, dict(what))
    if kind == "stale":
        raise Refused
    return model.edit(at, what, () if what in (END, "__copy__") else (f"as {what}",))


def observed(world: World, step, known):
    """What the engine returns."""
    kind, at, what = step
    config = world.config(at)
    if kind == "input":
        return world.result({"log": [what]}, config)
    if kind == "go on":
        return world.result(None, config)
    if kind == "update":
        return world.result(Command(update={"log": [what]}), config)
    if kind == "single":
        return world.result(Command(resume=what), config)
    if kind == "map":
        return world.result(Command(resume={known.get(t, UNKNOWN[t]): a for t, a in what.items()}), config)
    if kind == "stale":
        return world.result(Command(resume={"f" * 32: what, **dict.fromkeys(known.values(), what)}), config)
    with warnings.catch_warnings():
        # Such updates are drawn on purpose, and the model says what becomes of the questions.
        warnings.filterwarnings("ignore", "thread .* closes the questions", GraphWarning)
        world.call("update_state", config, None if what in (END, "__copy__") else {"log": [f"as {what}"]}, what)
    return None


def possible(model, step):
    """The step with a place that exists; None if its outcome is left open."""
    kind, at, what = step
    if not model.points:
        if kind == "update" or (kind == "edit" and what == "__copy__"):
            return None
        return kind, None, what
    at = None if at is None else at % len(model.points)
    if kind == "single":
        where = model.points[model.head if at is None else at]
        if not model.open(at) and where.tasks and where.tasks not in (("q",), ("r",), ("z",)):
            return None  # who asks first takes it; that may be q or r
    return kind, at, what


def same(world: World, model, before):
    """The new checkpoints and the head are as the model says."""
    added = len(model.points) - before
    fresh = world.history(added + 1)[:added] if added else []
    for snapshot in reversed(fresh):
        world.ids.append(snapshot.config["configurable"]["checkpoint_id"])
    assert [world.row(s) for s in reversed(fresh)] == [p.shown() for p in model.points[before:]]
    if model.points:
        state = world.call("get_state", CONFIG)
        assert state.config["configurable"]["checkpoint_id"] == world.ids[-1]
        assert (state.values.get("log", []), state.next, [q.value for q in state.interrupts]) == model.points[-1].live()


def untouched(world: World, model, moving):
    """Every checkpoint is as it was when it was last looked at; only those that calls went on from have more results."""
    now = {s.config["configurable"]["checkpoint_id"]: s for s in world.history()}
    assert len(now) == len(model.points)
    for number, known in enumerate(world.ids):
        snapshot = now[known]
        assert world.row(snapshot) == model.points[number].shown()
        old = world.known.get(known)
        if old is not None and number not in moving:
            assert old == snapshot
        world.known[known] = snapshot


@pytest.fixture(scope="module", params=["sync", "async"])
def runner(request):
    if request.param == "sync":
        yield None
        return
    with asyncio.Runner() as runner:
        yield runner


def follow(world: World, steps):
    """Make the calls in the engine and in the model, and compare after each."""
    model = Thread()
    moving = set()
    for count, drawn in enumerate(steps):
        step = possible(model, drawn)
        if step is None:
            continue
        known = world.questions(step[1]) if model.points else {}
        before, points = len(model.points), list(model.points)
        moving.add(before - 1)
        try:
            wanted = expected(model, step)
        except Refused:
            model.points = points
            with pytest.raises((StateGraphError, ValueError)):
                observed(world, step, known)
        else:
            assert observed(world, step, known) == wanted
        same(world, model, before)
        if count % 8 == 7:
            untouched(world, model, moving)
            moving = set()
    untouched(world, model, moving)
