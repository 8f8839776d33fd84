"""What is logged: retries, conflicts, slow commits and lost workers, one line each, with thread, node, step and
attempt as fields.
"""

from __future__ import annotations

import json
import logging
import operator
from typing import Annotated

import pytest
from kit.graphs import thread_config
from kit.programs import printed
from typing_extensions import TypedDict

from stategraph import (
    START,
    CheckpointConflictError,
    InMemorySaver,
    Observer,
    ProcessExecutor,
    RetryPolicy,
    SqliteSaver,
    StateGraph,
)
from stategraph.pregel import log

THREAD = thread_config("7")
QUICK = RetryPolicy(initial_interval=0.001, jitter=False, max_attempts=2)


class State(TypedDict, total=False):
    x: Annotated[list, operator.add]


def one(function, **options):
    return StateGraph(State).add_node("a", function, **options).add_edge(START, "a")


def fields(record):
    return record.levelname, record.thread_id, record.graph, record.node, record.step, record.attempt


@pytest.fixture(autouse=True)
def info(caplog):
    caplog.set_level(logging.INFO, "stategraph")


def test_a_retry_and_an_abandoned_call_are_logged(drive, caplog):
    def fail(state):
        raise ConnectionError("down")

    with pytest.raises(ConnectionError):
        drive.invoke(one(fail, retry_policy=QUICK).compile(InMemorySaver()), {"x": []}, THREAD)
    assert [fields(record) for record in caplog.records] == [
        ("INFO", "7", "StateGraph", "a", 1, 1),
        ("WARNING", "7", "StateGraph", "a", 1, 2),
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "node 'a' failed in attempt 1; next attempt in 0.001 s: ConnectionError: down",
        "node 'a' is given up after attempt 2: ConnectionError: down",
    ]
    assert {record.name for record in caplog.records} == {"stategraph"}


def test_a_failure_that_is_only_raised_is_not_logged(drive, caplog):
    with pytest.raises(ZeroDivisionError):
        drive.invoke(one(lambda state: 1 / 0).compile(), {"x": []})
    assert not caplog.records


def test_a_conflict_is_logged_once(drive, caplog):
    saver = InMemorySaver()
    other = one(lambda state: {}).compile(saver)

    def intrude(state):
        other.invoke({"x": [7]}, THREAD)

    with pytest.raises(CheckpointConflictError):
        drive.invoke(one(intrude).compile(saver, name="mine"), {"x": []}, THREAD)
    (record,) = caplog.records
    assert fields(record)[:3] == ("WARNING", "7", "mine")
    assert record.getMessage().startswith("thread '7': CheckpointConflictError")


def test_a_slow_commit_is_logged(drive, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(log, "SLOW", 0.0)
    monkeypatch.setattr(log, "SLOW_COMMITS", log._SlowCommits())
    with SqliteSaver(tmp_path / "threads.db") as saver:
        drive.invoke(one(lambda state: {}).compile(saver), {"x": []}, THREAD)
    assert {fields(record)[:3] for record in caplog.records} == {("WARNING", "7", "StateGraph")}
    assert "a commit of thread '7' took" in caplog.records[-1].getMessage() and caplog.records[-1].step is not None


def die(state):
    import os

    os._exit(3)


@pytest.mark.trial
def test_a_lost_worker_is_logged(caplog):
    with ProcessExecutor(1) as executor, pytest.raises(Exception, match="worker"):
        one(die).compile(executor=executor).invoke({"x": []})
    assert ("WARNING", None, None, "a", 1, 1) in [fields(record) for record in caplog.records]


def test_a_retry_alone_does_not_load_logging():
    program = """
import sys
from typing import TypedDict
from stategraph import START, RetryPolicy, StateGraph
tries = []
def flaky(state):
    tries.append(1)
    if len(tries) < 2:
        raise ConnectionError
graph = StateGraph(TypedDict("State", {"x": int}))
graph.add_node("a", flaky, retry_policy=RetryPolicy(initial_interval=0, jitter=False)).add_edge(START, "a")
graph.compile().invoke({"x": 0})
print("logging" in sys.modules, len(tries))
"""
    assert printed(program) == "False 2\n"


def test_a_mistake_of_an_observer_has_the_fields_too(caplog):
    """So that a format which names them works for all records of the logger."""

    class Broken(Observer):
        def run_started(self, run):
            raise LookupError("broken")

    one(lambda state: {"x": [1]}).compile(observer=Broken()).invoke({"x": []})
    (record,) = caplog.records
    assert fields(record) == ("WARNING", None, None, None, None, None)


def test_slow_commits_are_counted_and_logged_once_a_minute():
    slow = log._SlowCommits()
    told = [slow.add(1.2 + at / 100, now) for at, now in enumerate((5.0, 6.0, 64.0, 65.5, 70.0, 140.0))]
    assert told == [
        "took 1.2 s", None, None, "took 1.23 s; 2 more in 60 s were slow, the slowest 1.23 s",
        None, "took 1.25 s; 1 more in 74 s were slow, the slowest 1.25 s",
    ]  # fmt: skip


def test_a_run_that_failed_before_its_nodes_names_none(caplog):
    log.log_failed_run(log.LOG, ValueError("no input"), thread_id="7", run_id="r", graph="g", user=None)
    assert caplog.messages == ["the run r of thread '7' has failed: ValueError: no input"]


FAILED = ["During task with name 'inner' and id '1', in step 1", "During task with name 'outer' and id '2', in step 1"]


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_line_of_the_commands_has_time_level_logger_ids_and_traceback(style):
    root, level = logging.getLogger(), logging.getLogger("stategraph").level
    before, root_level = [*root.handlers], root.level
    try:
        log.configure_logging(style)
        log.configure_logging(None)  # keeps what is configured
        [handler] = root.handlers
    finally:
        root.handlers[:] = before
        root.setLevel(root_level)
        logging.getLogger("stategraph").setLevel(level)
    lines = []
    own = logging.getLogger("stategraph.own")
    probe = logging.Handler()
    probe.emit = lambda record: lines.append(handler.format(record))  # type: ignore[method-assign]
    own.addHandler(probe)
    try:
        raise ValueError("a\nforged line")
    except ValueError as error:
        for note in FAILED:
            error.add_note(note)
        log.log_failed_run(own, error, thread_id="7", run_id="r", graph="g", user="ann\x1b[2J")
    finally:
        own.removeHandler(probe)
    if style == "json":
        shown = json.loads(lines[0])
        assert (shown["level"], shown["logger"], shown["node"], shown["user"]) == ("ERROR", own.name, "inner", "ann\x1b[2J")
        assert "raise ValueError" in shown["traceback"] and shown["time"].endswith("Z") and "step" not in shown
        return
    head, *trace = lines[0].splitlines()
    assert head.partition(" ")[2] == (
        "ERROR stategraph.own: the run r of thread '7' has failed in node 'inner': ValueError: a\\nforged line "
        "[thread_id=7 run_id=r graph=g node=inner user=ann\\x1b[2J]"
    )
    assert all(line.startswith("  ") for line in trace) and "raise ValueError" in "".join(trace)
