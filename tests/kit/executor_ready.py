"""Graphs with schedule="ready" whose nodes run on an executor: part of `executor_suite`."""

from __future__ import annotations

import operator
import os
import signal
import time
from pathlib import Path
from typing import Annotated

import pytest
from typing_extensions import TypedDict

from kit.graphs import graph_of, thread_config
from kit.ready_graphs import ready

READY_THREAD = thread_config("ready")


class Branches(TypedDict, total=False):
    folder: str
    log: Annotated[list[str], operator.add]


def starts_a_chain(state: Branches):
    return {"log": ["a"]}


def ends_a_chain(state: Branches):
    Path(state["folder"], "chain").touch()
    return {"log": ["b"]}


def outlasts_the_chain(state: Branches):
    """Ends only if b, which starts a step later, runs beside it."""
    deadline = time.monotonic() + 30
    while not Path(state["folder"], "chain").exists():
        assert time.monotonic() < deadline, "the chain does not go on"
        time.sleep(0.01)
    return {"log": [f"long saw {len(state['log'])}"]}


def outlasts_and_dies(state: Branches):
    died = Path(state["folder"], "died")
    if not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return outlasts_the_chain(state)


def branches(long, executor):
    graph = graph_of(Branches, "S>a>b S>long", a=starts_a_chain, b=ends_a_chain, long=long)
    return ready(graph, executor=executor)


def check_steps(app):
    """a has ended a step; b and long may have ended together, and long has read the state at which it started."""
    logs = [each.values.get("log", []) for each in app.get_state_history(READY_THREAD)]
    assert ["a"] in logs and sorted(logs[0]) == ["a", "b", "long saw 0"]


@pytest.mark.trial
def test_branches_of_a_ready_graph_overlap_on_an_executor(drive, far, tmp_path):
    app = branches(outlasts_the_chain, far)
    drive.invoke(app, {"folder": str(tmp_path), "log": []}, READY_THREAD)
    check_steps(app)


@pytest.mark.trial
def test_a_worker_that_dies_in_one_branch_delays_no_other(world, mortal, tmp_path):
    app = branches(outlasts_and_dies, mortal)
    world.invoke(app, {"folder": str(tmp_path), "log": []}, READY_THREAD)
    check_steps(app)
