"""Laws of every graph, sync and async: stopping, storing, observing and failing never change the result.

The graphs are random; `kit.graph_specs` says what they are made of. `pytest --hypothesis-profile=full` looks longer.
"""

from __future__ import annotations

import asyncio
from operator import add
from typing import Annotated, get_args

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st
from kit.graph_specs import (
    KINDS,
    MODES,
    Boom,
    Described,
    build,
    chunks,
    history,
    is_matter_of_time,
    plain,
    story,
    whole_story,
)
from kit.graph_specs import given as taken
from kit.random_graphs import NAMES, graphs
from kit.uninterrupted_runs import Thread, look, unbroken

import stategraph
from stategraph.pregel.types import Durability, StreamMode

pytestmark = pytest.mark.filterwarnings("ignore::stategraph.GraphWarning")  # random graphs need not make sense


DURABILITIES = st.sampled_from(get_args(Durability))
ALL_MODES = [mode for mode in get_args(StreamMode) if mode != "messages"]


def ended(found):
    """The ids of the tasks that a reader has seen end well."""
    return {data["id"] for mode, data in found if mode == "tasks" and "result" in data and not data["error"]}


# -- both worlds ----------------------------------------------------------------------------------------------


@look()
@given(graph=graphs(failures=True), bodies_async=st.booleans())
def test_sync_and_async_have_the_same_history(graph, bodies_async):
    """Supersteps, updates, values, errors, the history of the thread, the result."""
    sync_story = whole_story(graph, stategraph, is_async=False)
    async_story = whole_story(graph, stategraph, is_async=True, bodies_async=bodies_async)
    assume(not is_matter_of_time(sync_story, async_story))
    assert async_story == sync_story


# -- stop anywhere, resume = never stopped --------------------------------------------------------------------


@look(0.5)
@given(
    graph=graphs(),
    stops=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    modes=st.sets(st.sampled_from(["values", "updates", "tasks", "checkpoints"]), min_size=1),
    durability=DURABILITIES,
)
def test_a_stream_closed_anywhere_is_resumed_as_if_never_stopped(drive, graph, stops, modes, durability):
    whole, thread = unbroken(graph, drive), Thread(graph, drive)
    options = {"stream_mode": [*sorted(modes - {"tasks"}), "tasks"], "durability": durability}
    calls_when_told = {}
    value = thread.input
    for stop in stops:
        found = drive.stream(thread.app, value, thread.config, take=stop, **options)
        calls_when_told |= {task_id: thread.calls.count[task_id] for task_id in ended(found)}
        if not thread.state.next:
            break
        value = None
    thread.finish(durability=durability)
    assert thread.values == whole.values
    # A task whose end the reader was told of is not run again; in the async world it may have been cancelled before.
    assert calls_when_told == {task_id: thread.calls.count[task_id] for task_id in calls_when_told}
    # In the sync world no task is run again: those under way may end.
    assert drive.is_async or not thread.calls.repeated


@look(0.5)
@given(
    graph=graphs(),
    before=st.one_of(st.just("*"), st.sets(st.sampled_from(NAMES)).map(sorted)),
    after=st.one_of(st.just("*"), st.sets(st.sampled_from(NAMES)).map(sorted)),
    durability=DURABILITIES,
)
def test_a_run_stopped_at_breakpoints_is_resumed_as_if_never_stopped(drive, graph, before, after, durability):
    whole, thread = unbroken(graph, drive), Thread(graph, drive)
    names = {node["name"] for node in graph["nodes"]}
    options = {
        "interrupt_before": before if before == "*" else sorted(names & set(before)),
        "interrupt_after": after if after == "*" else sorted(names & set(after)),
        "durability": durability,
    }
    assert thread.invoke(thread.input, **options) is None
    thread.finish(**options)
    assert thread.values == whole.values
    assert not thread.calls.repeated and thread.calls.count.total() == whole.calls.count.total()


@look(0.5)
@given(
    graph=graphs(),
    failing=st.sets(st.integers(1, 12), min_size=1, max_size=3),
    durability=DURABILITIES,
)
def test_a_run_whose_nodes_fail_is_resumed_to_the_same_end(drive, graph, failing, durability):
    """Finished siblings are not called again, the failed ones are."""
    whole, thread = unbroken(graph, drive), Thread(graph, drive, *failing)
    options = {"stream_mode": MODES, "durability": durability}
    found, error = chunks(thread.app, thread.input, thread.config, drive.is_async, **options)
    event(f"ends with {error}")
    thread.finish(durability=durability)
    assert thread.values == whole.values
    assert not thread.calls.repeated & ended(found)
    assert drive.is_async or not thread.calls.repeated  # in the async world siblings of a failed task are cancelled


# -- storing --------------------------------------------------------------------------------------------------


def told(graph: Described, drive, **options):
    """The story of one run, with or without a saver."""
    config = {"configurable": {"thread_id": "1"}, "recursion_limit": graph["limit"], **options.pop("config", {})}
    app = build(graph, stategraph, is_async=drive.is_async, saver=options.pop("saver", None))
    question = taken(graph["inputs"][0], stategraph)
    found, error = chunks(app, question, config, drive.is_async, stream_mode=MODES, **options)
    one = story(found, error)
    if app.checkpointer is not None:
        state = drive.get_state(app, config)
        one["final"] = plain(state.values) if error is None else None
        one["next"] = list(state.next) if error is None else None
        one["paths"] = [[(t.name, t.path) for t in s.tasks] for s in drive.history(app, config)]
        one["history"] = history(app, config)
    return one


@look(0.5)
@given(graph=graphs(failures=True))
def test_storing_changes_nothing(drive, graph):
    """No saver, and each durability: the same supersteps; the same thread at the end."""
    bare = told(graph, drive)
    stored = {d: told(graph, drive, saver=stategraph.InMemorySaver(), durability=d) for d in get_args(Durability)}
    for one in stored.values():
        assert {key: one[key] for key in bare} == bare
        assert (one["final"], one["next"]) == (stored["sync"]["final"], stored["sync"]["next"])
    assert stored["async"]["history"] == stored["sync"]["history"]
    assert stored["exit"]["history"][-1:] == stored["sync"]["history"][-1:]


@look(0.5)
@given(graph=graphs())
def test_the_same_input_makes_the_same_history(drive, graph):
    """Whoever finishes first, and however many may run at once."""
    first = told(graph, drive, saver=stategraph.InMemorySaver())
    assume(first["error"] in (None, "GraphRecursionError"))
    for limit in (None, 1, 2):
        assert told(graph, drive, saver=stategraph.InMemorySaver(), config={"max_concurrency": limit}) == first


# -- watching -------------------------------------------------------------------------------------------------


def scribble(value):
    """Spoil whatever a reader can reach in a chunk."""
    if isinstance(value, dict):
        for inner in list(value.values()):
            scribble(inner)
        value["scribbled"] = True
    elif isinstance(value, list):
        for inner in value:
            scribble(inner)
        value.append("scribbled")
    elif isinstance(value, tuple):
        for inner in value:
            scribble(inner)


@look(0.5)
@given(graph=graphs(), subgraphs=st.booleans(), version=st.sampled_from(["v1", "v2"]))
def test_a_reader_never_changes_the_run(drive, graph, subgraphs, version):
    whole, thread = unbroken(graph, drive), Thread(graph, drive)
    options = {"stream_mode": ALL_MODES, "subgraphs": subgraphs, "version": version}
    if drive.is_async:
        read_and_scribble_async(thread, options)
    else:
        for chunk in thread.app.stream(thread.input, thread.config, **options):
            scribble(chunk)
    assert thread.values == whole.values
    assert history(thread.app, thread.config) == history(whole.app, whole.config)


def read_and_scribble_async(thread, options):
    async def read():
        async for chunk in thread.app.astream(thread.input, thread.config, **options):
            scribble(chunk)

    asyncio.run(read())


# -- failing --------------------------------------------------------------------------------------------------


class FailingAdd:
    """A reducer that fails on one of its calls."""

    def __init__(self, failing):
        self.left = failing

    def __call__(self, a, b):
        self.left -= 1
        if self.left == 0:
            raise Boom("reducer")
        return add(a, b)


@look(0.5)
@given(graph=graphs(nested=False), failing=st.integers(1, 25), durability=DURABILITIES)
def test_a_superstep_is_applied_whole_or_not_at_all(drive, graph, failing, durability):
    """A reducer that fails, and two writes to a key that takes one, leave the thread as it was."""
    thread = Thread(graph, drive, kinds={**KINDS, "list": Annotated[list, FailingAdd(failing)]})
    options = {"stream_mode": "values", "durability": durability}
    views, error = chunks(thread.app, thread.input, thread.config, drive.is_async, **options)
    event(f"ends with {error}")
    assume(error in ("Boom", "InvalidUpdateError"))
    # Each superstep that was applied was shown.
    if views:
        assert thread.stored == plain(views[-1])
    else:
        assert not any(thread.stored.values())  # not even the input came in
    if error == "Boom":
        whole = unbroken(graph, drive)
        thread.finish(durability=durability)
        assert thread.values == whole.values
