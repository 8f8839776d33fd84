"""Many live threads: what a run needs of its thread stays with the run. A step costs the same however many others
there are, and nothing is kept of those that have ended. Counted, not timed.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from typing import TypedDict

import pytest
from kit import cluster
from kit.graphs import chain_of, thread_config

from stategraph import END
from stategraph.checkpoint.base import Commit
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.checkpoint.sql import postgres_wire
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.pregel.run.run import Run
from stategraph.pregel.schedule.machine import Machine

postgres = cluster.emptied
STEPS = 4


class Count(TypedDict):
    n: int
    text: str


def on(thread):
    return thread_config(str(thread))


def loop(saver, steps=STEPS, inside=None):
    def tick(state):
        if inside is not None:
            inside(state["n"])
        return {"n": state["n"] + 1}

    return (
        chain_of(Count, tick=tick)
        .add_conditional_edges("tick", lambda state: "tick" if state["n"] < steps else END, ["tick", END])
        .compile(saver)
    )


class Statements:
    """Counts the statements that a saver sends."""

    def __init__(self, saver, patch):
        self.count = 0
        if isinstance(saver, SqliteSaver):
            saver._database.connection.set_trace_callback(self.add)
            return
        for method in ("rows", "run", "later"):
            patch.setattr(postgres_wire.Wire, method, self._counted(getattr(postgres_wire.Wire, method)))

    def _counted(self, execute):
        def counted(wire, *args):
            self.add()
            return execute(wire, *args)

        return counted

    def add(self, _=None):
        self.count += 1


@pytest.fixture(params=["sqlite", "postgres"])
def saver(request, tmp_path):
    if request.param == "sqlite":
        opened = SqliteSaver.from_conn_string(str(tmp_path / "db"), synchronous="off")
    else:
        opened = PostgresSaver.from_conn_string(request.getfixturevalue("postgres"))
    with opened as made:
        yield made


def per_step(app, statements: Statements, threads, name):
    """Statements per superstep of so many runs that take their steps in turn."""
    runs = [app.stream({"n": 0, "text": ""}, on(f"{name} {number}"), stream_mode="values") for number in range(threads)]
    for run in runs:
        next(run)
        next(run)
    before = statements.count
    for _ in range(STEPS - 1):
        for run in runs:
            next(run)
    counted = statements.count - before
    for run in runs:
        assert not [*run]
    return counted / (STEPS - 1) / threads


@pytest.mark.trial
def test_a_step_takes_as_many_statements_with_300_live_threads_as_with_none(saver, monkeypatch):
    app = loop(saver)
    app.invoke({"n": 0, "text": ""}, on("first"))
    statements = Statements(saver, monkeypatch)
    alone = per_step(app, statements, 1, "alone")
    assert per_step(app, statements, 300, "many") == alone
    assert alone == (4 if isinstance(saver, SqliteSaver) else 1)


@pytest.mark.trial
def test_the_first_step_on_a_thread_that_was_there_takes_no_more_than_the_others(saver, monkeypatch):
    app = loop(saver)
    runs = [on(number) for number in range(200)]
    for each in runs:
        app.invoke({"n": STEPS, "text": ""}, each)
    statements = Statements(saver, monkeypatch)
    saver.get_tuple(on(0))
    reading = statements.count
    statements.count = 0
    for each in runs:
        app.invoke({"n": STEPS, "text": ""}, each)
    a_commit = 4 if isinstance(saver, SqliteSaver) else 1
    assert statements.count <= len(runs) * (reading + 3 * a_commit)  # the input, START, the node


@pytest.mark.trial
def test_nothing_is_kept_of_threads_that_have_ended(saver):
    app = loop(saver, steps=1)
    size = 200_000
    app.invoke({"n": 0, "text": "w" * size}, on("first"))
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(40):
            app.invoke({"n": 0, "text": chr(97 + number % 26) * size}, on(number))
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2 * size, f"{kept:,} bytes are kept of 40 threads of {size:,}"


@pytest.mark.trial
def test_a_run_that_has_ended_is_freed_without_the_collector(drive, local_saver):
    app = loop(local_saver, steps=1)
    gc.collect()
    gc.disable()
    try:
        drive.invoke(app, {"n": 0, "text": ""}, on("invoked"))
        drive.stream(app, {"n": 0, "text": ""}, on("streamed"))
        limit = time.monotonic() + 10
        while kept_objects() and time.monotonic() < limit:  # until the checkpointer's thread has ended its job
            time.sleep(0.01)
        kept = kept_objects()
    finally:
        gc.enable()
    assert not kept


def kept_objects():
    return {type(each).__name__ for each in gc.get_objects() if isinstance(each, (Run, Machine, Commit))}


@pytest.mark.parametrize("other", ["the same saver", "another"])
def test_a_run_continues_when_its_history_is_pruned(saver, other, tmp_path):
    steps, pruned = 80, []
    pruning = saver
    if other == "another":
        pruning = type(saver)(str(tmp_path / "db") if isinstance(saver, SqliteSaver) else saver._server.address()[0])

    def inside(n):
        if n % 7 == 3:
            pruning.prune(["t"])
            pruned.append(n)

    assert loop(saver, steps, inside).invoke({"n": 0, "text": "long " * 100}, on("t"))["n"] == steps
    assert len(pruned) > 10
    assert loop(saver).get_state(on("t")).values == {"n": steps, "text": "long " * 100}
    assert [each.values["n"] for each in loop(saver).get_state_history(on("t"))] == [*range(steps, 73, -1), 73]
    if other == "another":
        pruning.close()
