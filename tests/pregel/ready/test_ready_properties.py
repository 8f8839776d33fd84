"""The laws of schedule="ready", on random graphs whose tasks end in random orders."""

import asyncio
import time
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kit.graphs import CONFIG
from kit.ready_graphs import ends_by, ready
from kit.ready_random import EMPTY, Died, MortalSaver, by_chance, make_graph

from stategraph import END, Command, InMemorySaver
from stategraph.testing import virtual_time

pytestmark = pytest.mark.filterwarnings("ignore::stategraph.GraphWarning")


def facts(app, config=CONFIG):
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


def finish(app, given, rank, *, is_async=False, asked=False):
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
def test_sync_and_async_make_the_same_history(graph, order, waves, races):
    found = []
    for is_async in (False, True):
        app = ready(make_graph(graph, defers=waves, waves=waves, races=races))
        finish(app, EMPTY, by_chance(order), is_async=is_async)
        found.append(facts(app))
    assert found[0] == found[1]


# A deferred node was woken, held back by another one, and forgotten when that had led to more work.
@example(464527, 2016, False, "async", True, True)
@given(seeds, seeds, st.booleans(), st.sampled_from(["sync", "async"]), st.booleans(), st.booleans())
def test_stopped_anywhere_and_resumed_is_never_stopped(graph, order, is_async, durability, waves, races):
    options = {"defers": waves, "waves": waves, "races": races}
    whole = ready(make_graph(graph, **options))
    finish(whole, EMPTY, by_chance(order))
    expected = facts(whole)
    saver = MortalSaver()
    given = EMPTY
    for _ in range(200):
        app = ready(make_graph(graph, **options), saver=saver)
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
def test_the_tasks_and_the_final_state_are_as_in_supersteps(graph, one, other, defers, races):
    """With branches of equal length, reducers that commute, and nodes that read no key that others write."""
    found = []
    for schedule, order in (("supersteps", one), ("ready", one), ("ready", other)):
        app = make_graph(graph, asks=False, even=True, defers=defers, races=races).compile(InMemorySaver(), schedule=schedule)
        result = finish(app, EMPTY, by_chance(order))
        found.append(sorted(each.partition("(")[0] for each in result["log"]))
    assert found[0] == found[1] == found[2]


@given(seeds, st.booleans(), st.booleans())
def test_one_at_a_time_the_history_is_a_function_of_the_input(graph, waves, races):
    found = []
    for is_async in (False, True, False):
        app = ready(make_graph(graph, asks=False, waves=waves, races=races))
        config = {**CONFIG, "max_concurrency": 1}
        asyncio.run(app.ainvoke(EMPTY, config)) if is_async else app.invoke(EMPTY, config)
        found.append(facts(app))
    assert found[0] == found[1] == found[2]


def seconds_of(name, pace):
    return 1 + crc32(f"{pace}{name}".encode()) % 9973 / 100


@given(seeds, seeds)
def test_in_virtual_time_the_shorter_task_ends_first(graph, pace):
    found = []
    for is_async in (False, True):
        with virtual_time() as clock:
            builder = make_graph(graph, asks=False, wait=lambda name: clock.sleep(seconds_of(name, pace)))
            app = ready(builder)
            asyncio.run(app.ainvoke(EMPTY, CONFIG)) if is_async else app.invoke(EMPTY, CONFIG)
        found.append([each.values.get("log") for each in app.get_state_history(CONFIG)])
    assert found[0] == found[1]


@given(seeds, seeds)
def test_in_real_time_each_node_runs_as_often_as_in_supersteps(graph, pace):
    found = []
    for schedule in ("supersteps", "ready"):
        builder = make_graph(graph, asks=False, even=True, wait=lambda name: time.sleep(seconds_of(name, pace) / 2e4))
        result = builder.compile(InMemorySaver(), schedule=schedule).invoke(EMPTY, CONFIG)
        found.append(sorted(each.partition("(")[0] for each in result["log"]))
    assert found[0] == found[1]


@given(seeds, seeds, st.booleans(), st.booleans())
def test_schedules_may_alternate_on_a_thread(graph, order, waves, races):
    """Whatever ran when, each ends what the other has left."""
    saver = MortalSaver()
    given = EMPTY
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

