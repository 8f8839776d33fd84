"""The laws of schedule="ready", on random graphs whose tasks end in random orders."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ready_graphs import State, ends_by

from stategraph import END, START, Command, InMemorySaver, Send, StateGraph, interrupt
from stategraph.testing import virtual_time

CONFIG: Any = {"configurable": {"thread_id": "t"}}
EMPTY: Any = {"log": []}
pytestmark = pytest.mark.filterwarnings("ignore::stategraph.GraphWarning")


class Died(BaseException):
    """The process ends here."""


class MortalSaver(InMemorySaver):
    """Dies before it stores its commit number `left`."""

    left = -1

    def commit(self, commit: Any) -> Any:
        if self.left == 0:
            raise Died
        self.left -= 1
        return super().commit(commit)

    async def acommit(self, commit: Any) -> Any:
        return self.commit(commit)


def make_graph(
    seed: int,
    *,
    asks: bool = True,
    even: bool = False,
    defers: bool = False,
    waves: bool = False,
    races: bool = False,
    wait: Callable[[str], Any] = str,
) -> StateGraph[Any]:
    """Levels of nodes; edges, joins, routers and Sends lead down, some routers up again.

    Args:
        asks: some nodes ask.
        defers: some nodes are deferred.
        even: all ways to a node are of equal length, and no router is there.
        waves: joins do not only wait for all.
        races: some nodes let Sends race, of which one may fail.
        wait: what a node does while it runs.
    """
    dice = random.Random(seed)
    levels = [[f"n{depth}{place}" for place in range(dice.randint(1, 3))] for depth in range(dice.randint(2, 4))]
    names = [name for level in levels for name in level]
    builder: Any = StateGraph(State)
    for name in names:
        node = _asking(name) if asks and dice.random() < 0.2 else _node(name, wait)
        builder.add_node(name, node, defer=defers and crc32(f"{seed}{name}".encode()) % 4 == 0)
    for name in levels[0]:
        builder.add_edge(START, name)
    for depth, level in enumerate(levels[:-1]):
        below = levels[depth + 1] if even else [name for deeper in levels[depth + 1 :] for name in deeper]
        for name in level:
            ends = dice.sample(below, dice.randint(1, min(2, len(below))))
            kind = "edge" if even else dice.choice(["edge", "edge", "router", "send", "up"])
            if races and crc32(f"race {seed}{name}".encode()) % 2:
                builder.add_conditional_edges(name, _race(ends[:1] if even else ends, crc32(name.encode()) % 3), ends)
            elif kind == "edge":
                for end in ends:
                    builder.add_edge(name, end)
            elif kind == "router":
                builder.add_conditional_edges(name, _pick(name, ends), ends)
            elif kind == "send":
                builder.add_conditional_edges(name, _send(ends[0], dice.randint(1, 3)), [ends[0]])
            else:
                top = dice.choice(names[: names.index(name) + 1])
                builder.add_conditional_edges(name, _up(name, top, ends), [top, *ends])
        if not even and len(level) > 1 and dice.random() < 0.5:
            kinds = ["any", "reachable", "reachable", "all"] if waves else ["all"]
            end = dice.choice(below)
            kind = kinds[crc32(f"{seed}{end}".encode()) % len(kinds)]
            builder.add_edge(level, end, kind if builder.nodes[end].defer is False else "all")
    return builder


def _node(name: str, wait: Callable[[str], Any]) -> Callable[[Any], Any]:
    def run(state: Any) -> Any:
        wait(f"{name}{state.get('n', '')}")
        if state.get("n", "").endswith("!"):
            raise ArithmeticError("it never wins")
        return {"log": [f"{name}({len(state['log'])}{state.get('n', '')})"]}

    return run


def _asking(name: str) -> Callable[[Any], Any]:
    def run(state: Any) -> Any:
        return {"log": [f"{name}({interrupt(name)}{len(state['log'])})"]}

    return run


def _pick(name: str, ends: list[str]) -> Callable[[Any], Any]:
    return lambda state: ends[crc32(f"{name}{state['log'][-1]}".encode()) % len(ends)]


def _send(end: str, count: int) -> Callable[[Any], Any]:
    return lambda state: [Send(end, {"log": state["log"], "n": f"#{number}"}) for number in range(count)]


def _race(ends: list[str], count: int) -> Callable[[Any], Any]:
    names = ["#!", *(f"#{number}" for number in range(count + 1))]
    return lambda state: [
        Send(ends[place % len(ends)], {"log": state["log"], "n": name}, race="r") for place, name in enumerate(names)
    ]


def _up(name: str, top: str, ends: list[str]) -> Callable[[Any], Any]:
    return lambda state: ends if sum(each.startswith(name) for each in state["log"]) > 1 else [top, ends[0]]


def by_chance(seed: int) -> Callable[[Any], Any]:
    """An order of ends that depends on the tasks and on the state in which they are at work."""

    def rank(task: Any) -> Any:
        now = task.run.output  # of the whole call
        origin = task.run.machine
        return crc32(f"{seed}{task.name}{task.path[1:]}{origin.step}{type(now).__name__}".encode()), task.path, origin.step

    return rank


def facts(app: Any, config: Any = CONFIG) -> list[Any]:
    """What the history of a thread says, without ids and times."""
    return [
        (
            each.metadata["step"],
            each.metadata["source"],
            each.values.get("log"),
            each.next,
            sorted((task.name, task.path, str(task.result)) for task in each.tasks),
        )
        for each in app.get_state_history(config)
    ]


def finish(app: Any, given: Any, rank: Any, *, is_async: bool = False, asked: bool = False) -> Any:
    """Run to the end, answering one question after the other.

    Args:
        asked: the thread may have stopped at questions.
    """
    for _ in range(60):
        with ends_by(rank):
            result = asyncio.run(app.ainvoke(given, CONFIG)) if is_async else app.invoke(given, CONFIG)
        waiting = app.get_state(CONFIG).interrupts
        if not waiting:
            return result
        given = Command(resume={waiting[0].id: "!"})
    raise AssertionError("the graph does not end")


seeds = st.integers(0, 10**6)


@given(seeds, seeds, st.booleans(), st.booleans())
def test_sync_and_async_make_the_same_history(graph: int, order: int, waves: bool, races: bool) -> None:
    found = []
    for is_async in (False, True):
        app = make_graph(graph, defers=waves, waves=waves, races=races).compile(InMemorySaver(), schedule="ready")
        finish(app, EMPTY, by_chance(order), is_async=is_async)
        found.append(facts(app))
    assert found[0] == found[1]


# A deferred node was woken, held back by another one, and forgotten when that had led to more work.
@example(464527, 2016, False, "async", True, True)
@given(seeds, seeds, st.booleans(), st.sampled_from(["sync", "async"]), st.booleans(), st.booleans())
def test_stopped_anywhere_and_resumed_is_never_stopped(
    graph: int, order: int, is_async: bool, durability: Any, waves: bool, races: bool
) -> None:
    options: Any = {"defers": waves, "waves": waves, "races": races}
    whole = make_graph(graph, **options).compile(InMemorySaver(), schedule="ready")
    finish(whole, EMPTY, by_chance(order))
    expected = facts(whole)
    saver = MortalSaver()
    given: Any = EMPTY
    for _ in range(200):
        app = make_graph(graph, **options).compile(saver, schedule="ready")
        saver.left = 2 if given is EMPTY else 1
        try:
            with ends_by(by_chance(order)):
                if is_async:
                    asyncio.run(app.ainvoke(given, CONFIG, durability=durability))
                else:
                    app.invoke(given, CONFIG, durability=durability)
        except Died:
            given = None
            continue
        saver.left = -1
        waiting = app.get_state(CONFIG).interrupts
        if not waiting:
            break
        given = Command(resume={waiting[0].id: "!"})
    assert facts(app) == expected


@given(seeds, seeds, seeds, st.booleans(), st.booleans())
def test_which_tasks_run_and_what_comes_of_it_is_as_in_supersteps(
    graph: int, one: int, other: int, defers: bool, races: bool
) -> None:
    """With branches of equal length, reducers that commute, and nodes that read no key that others write."""
    found = []
    for schedule, order in (("supersteps", one), ("ready", one), ("ready", other)):
        app = make_graph(graph, asks=False, even=True, defers=defers, races=races).compile(InMemorySaver(), schedule=schedule)
        result = finish(app, EMPTY, by_chance(order))
        found.append(sorted(each.partition("(")[0] for each in result["log"]))
    assert found[0] == found[1] == found[2]


@given(seeds, st.booleans(), st.booleans())
def test_one_at_a_time_the_history_is_a_function_of_the_input(graph: int, waves: bool, races: bool) -> None:
    found = []
    for is_async in (False, True, False):
        app = make_graph(graph, asks=False, waves=waves, races=races).compile(InMemorySaver(), schedule="ready")
        config = {**CONFIG, "max_concurrency": 1}
        asyncio.run(app.ainvoke(EMPTY, config)) if is_async else app.invoke(EMPTY, config)
        found.append(facts(app))
    assert found[0] == found[1] == found[2]


def seconds_of(name: str, pace: int) -> float:
    return 1 + crc32(f"{pace}{name}".encode()) % 9973 / 100


@given(seeds, seeds)
def test_in_virtual_time_the_shorter_task_ends_first(graph: int, pace: int) -> None:
    found = []
    for is_async in (False, True):
        with virtual_time() as clock:
            builder = make_graph(graph, asks=False, wait=lambda name: clock.sleep(seconds_of(name, pace)))
            app = builder.compile(InMemorySaver(), schedule="ready")
            asyncio.run(app.ainvoke(EMPTY, CONFIG)) if is_async else app.invoke(EMPTY, CONFIG)
        found.append([each.values.get("log") for each in app.get_state_history(CONFIG)])
    assert found[0] == found[1]


@given(seeds, seeds)
def test_in_real_time_each_node_runs_as_often_as_in_supersteps(graph: int, pace: int) -> None:
    found = []
    for schedule in ("supersteps", "ready"):
        builder = make_graph(graph, asks=False, even=True, wait=lambda name: time.sleep(seconds_of(name, pace) / 2e4))
        result = builder.compile(InMemorySaver(), schedule=schedule).invoke(EMPTY, CONFIG)
        found.append(sorted(each.partition("(")[0] for each in result["log"]))
    assert found[0] == found[1]


@given(seeds, seeds, st.booleans(), st.booleans())
def test_both_schedules_take_turns_on_a_thread(graph: int, order: int, waves: bool, races: bool) -> None:
    """Whatever ran when, each ends what the other has left."""
    saver = MortalSaver()
    given: Any = EMPTY
    for turn in range(400):
        app = make_graph(graph, defers=waves, waves=waves, races=races).compile(saver, schedule=("ready", "supersteps")[turn % 2])
        saver.left = 3
        try:
            with ends_by(by_chance(order)):
                app.invoke(given, CONFIG)
        except Died:
            given = None
            continue
        saver.left = -1
        waiting = app.get_state(CONFIG).interrupts
        if not waiting:
            break
        given = Command(resume={waiting[0].id: "!"})
    state = app.get_state(CONFIG)
    assert state.next == () and END not in state.values

