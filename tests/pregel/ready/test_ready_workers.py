"""Graphs with schedule="ready" on a queue: workers are killed while two branches are running."""

import os
import signal
from collections import Counter
from contextlib import contextmanager

import pytest
from kit import cluster
from kit.fleet import Fleet, State, branches, until, working
from kit.graphs import EMPTY, graph_of, thread_config
from kit.ready_graphs import ask, show

from stategraph import Command
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.workers import Queue

postgres = cluster.emptied
pytestmark = pytest.mark.trial


@contextmanager
def two_branches_under_way(postgres, folder):
    """A job whose branches have kept a result and go on when a file is there: the queue, the fleet, its worker, the file."""
    go_on = folder / "go on"
    with Queue.from_conn_string(postgres, branches) as queue, Fleet(postgres, folder, graph="branches") as workers:
        queue.setup()
        first = workers.start()
        queue.submit("t", {"log": [], "exits": str(go_on)})
        until(lambda: {("b", "kept"), ("long", "kept")} <= {(name, what) for name, what, _ in workers.notes.read()})
        yield queue, workers, first, go_on


def test_branches_of_a_killed_worker_are_resumed_by_another(postgres, tmp_path):
    """Each goes on from its origin, under its key; what was recorded is not done again."""
    with two_branches_under_way(postgres, tmp_path) as (queue, workers, first, go_on):
        workers.kill(first)
        assert Counter(name for name, what, _ in workers.notes.read() if what == "began") == {"a": 1, "b": 1, "long": 1}
        go_on.touch()
        workers.start()
        log = queue.result("t", wait=60).unwrap()["log"]
        assert (log[0], sorted(log[1:3]), log[3]) == ("a saw 0", ["b saw 1", "long saw 0"], "d saw 3")
        notes = workers.notes.read()
    assert Counter(name for name, what, _ in notes if what == "began") == {"a": 1, "b": 2, "long": 2, "d": 1}
    assert Counter(name for name, what, _ in notes if what == "had") == {"a": 1, "b": 1, "long": 1, "d": 1}
    assert len({key for _, _, key in notes}) == 4, "each task has one key"


def asking():
    """`ask` beside a > b, and d behind both."""
    builder = graph_of(State, "S>ask>d S>a>b>d", ask=ask)
    return builder.compile(name="asking", schedule="ready")


def test_an_interrupted_job_has_finished_all_else_and_another_worker_resumes_it(postgres):
    graph = asking()
    with Queue.from_conn_string(postgres, graph) as queue:
        queue.setup()
        with working(graph, postgres):
            queue.submit("t", EMPTY)
            found = queue.result("t", wait=60)
            assert (found.status, [each.value for each in found.interrupts]) == ("paused", ["?"])
        with working(graph, postgres):
            queue.submit("t", Command(resume="yes"))
            assert queue.result("t", wait=60).unwrap()["log"] == ["a", "b", "yes", "d"]
    with PostgresSaver.from_conn_string(postgres) as saver:
        config = thread_config("t")
        assert show([*graph.copy({"checkpointer": saver}).get_state_history(config)]) == "a / b / yes / d"


def test_a_stopped_worker_returns_a_job_between_two_steps(postgres, tmp_path):
    """What is under way ends and is stored; nothing further starts there."""
    with two_branches_under_way(postgres, tmp_path) as (queue, workers, first, go_on):
        os.kill(first.pid, signal.SIGTERM)
        go_on.touch()
        first.join(30)
        workers.start()
        log = queue.result("t", wait=60).unwrap()["log"]
        assert (sorted(log[:3]), log[3]) == (["a saw 0", "b saw 1", "long saw 0"], "d saw 3")
        assert {tries for _, tries in Counter(name for name, what, _ in workers.notes.read() if what == "began").items()} == {1}
