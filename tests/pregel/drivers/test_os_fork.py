"""A node may call os.fork. The child must not continue the run: its parent does."""

import os
import sys

import pytest
from kit.graphs import CONFIG
from kit.pausing_graphs import State

from stategraph import START, InMemorySaver, StateGraph


def fork_and_leave(how):
    """Fork; the child leaves the function, its parent says how the child has ended."""
    child = os.fork()
    if child == 0:
        if how == "fails":
            raise ValueError("in the child")
        if how == "exits":
            sys.exit(3)
        return ["child"]
    return [f"the child ended with {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}"]


CODES = {"returns": 0, "fails": 1, "exits": 3}


@pytest.mark.trial
@pytest.mark.parametrize("how", CODES)
@pytest.mark.parametrize("kind", ["plain", "timeout", "coroutine"])
def test_a_forked_child_that_returns_from_its_node_exits(drive, tmp_path, kind, how, capfd):
    ran = tmp_path / "ran"

    def forks(state):
        return {"log": fork_and_leave(how)}

    async def aforks(state):
        return {"log": fork_and_leave(how)}

    def last(state):
        with ran.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return {"log": ["last"]}

    if kind == "coroutine" and not drive.is_async:
        pytest.skip("a coroutine needs an async run")
    graph = StateGraph(State)
    graph.add_node(
        "forks", aforks if kind == "coroutine" else forks, timeout=60 if kind == "timeout" else None
    )
    graph.add_node("last", last)
    app = graph.add_edge(START, "forks").add_edge("forks", "last").compile(InMemorySaver())
    log = drive.invoke(app, {}, CONFIG)["log"]
    assert log == [f"the child ended with {CODES[how]}", "last"]
    assert ran.read_text().split() == [str(os.getpid())]
    assert ("ValueError: in the child" in capfd.readouterr().err) == (how == "fails")
