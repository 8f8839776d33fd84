"""R20: any sequence of inputs, answers, updates, edits, replays and branches makes the history that a plain model says,
in both worlds; and nothing that was there before ever changes.

`HISTORY_STEPS=1000000 pytest tests/test_history_model.py` makes that many steps per world, with new sequences each time.
"""

from __future__ import annotations

import asyncio
import operator
import os
import warnings
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from history_model import ASKED, Refused, Thread
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typing_extensions import TypedDict

from stategraph import (
    END,
    START,
    Command,
    GraphWarning,
    InMemorySaver,
    StateGraph,
    StateGraphError,
    interrupt,
)

CFG: Any = {"configurable": {"thread_id": "1"}}
CALLS = 40  # of one thread
WANTED = os.environ.get("HISTORY_STEPS")
EXAMPLES = max(1, int(WANTED or 100 * settings.default.max_examples) // CALLS)


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


def asks(name: str) -> Any:
    return lambda state: {"log": [(name, *(interrupt(f"{name}{k}") for k in range(ASKED[name])))]}


def the_graph() -> StateGraph:
    builder = StateGraph(State)
    for name in ASKED:
        builder.add_node(name, asks(name)).add_edge(START, name)
    return builder.add_node("z", lambda state: {"log": ["z"]}).add_edge([*ASKED], "z")


class World:
    """The engine's side: the same calls, in one world."""

    def __init__(self, runner: asyncio.Runner | None, saver: Any = None) -> None:
        self.app = the_graph().compile(checkpointer=saver or InMemorySaver())
        self.runner = runner
        self.ids: list[str] = []  # of the checkpoints, in the order in which they were made
        self.known: dict[str, Any] = {}

    def call(self, method: str, *args: Any) -> Any:
        if self.runner is None:
            return getattr(self.app, method)(*args)
        return self.runner.run(getattr(self.app, "a" + method)(*args))

    def history(self, limit: int | None = None) -> list[Any]:
        return list(self.app.get_state_history(CFG, limit=limit))

    def config(self, at: int | None) -> Any:
        return CFG if at is None else {"configurable": {"thread_id": "1", "checkpoint_id": self.ids[at]}}

    def result(self, *args: Any) -> Any:
        result = self.call("invoke", *args) or {}
        return result.get("log", []), [q.value for q in result.get("__interrupt__", ())]

    def questions(self, at: int | None) -> dict[str, str]:
        """Task → id of its question."""
        state = self.call("get_state", self.config(at))
        return {q.value[0]: q.id for q in state.interrupts}

    def row(self, snapshot: Any) -> Any:
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


def expected(model: Thread, step: Any) -> Any:
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


def observed(world: World, step: Any, known: dict[str, str]) -> Any:
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


def possible(model: Thread, step: Any) -> Any:
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


def same(world: World, model: Thread, before: int) -> None:
    """The new checkpoints and the head are as the model says."""
    added = len(model.points) - before
    fresh = world.history(added + 1)[:added] if added else []
    for snapshot in reversed(fresh):
        world.ids.append(snapshot.config["configurable"]["checkpoint_id"])
    assert [world.row(s) for s in reversed(fresh)] == [p.shown() for p in model.points[before:]]
    if model.points:
        state = world.call("get_state", CFG)
        assert state.config["configurable"]["checkpoint_id"] == world.ids[-1]
        assert (state.values.get("log", []), state.next, [q.value for q in state.interrupts]) == model.points[-1].live()


def untouched(world: World, model: Thread, moving: set[int]) -> None:
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
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner | None]:
    if request.param == "sync":
        yield None
        return
    with asyncio.Runner() as runner:
        yield runner


@settings(
    max_examples=EXAMPLES, derandomize=WANTED is None, deadline=None, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)  # fmt: skip
@given(STEPS)
def test_any_sequence_of_calls_makes_the_history_that_the_model_says(
    runner: asyncio.Runner | None, steps: list[Any]
) -> None:
    follow(World(runner), steps)


def follow(world: World, steps: list[Any]) -> None:
    """Make the calls in the engine and in the model, and compare after each."""
    model = Thread()
    moving: set[int] = set()
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
