"""schedule="ready": a `Limit` is acquired before a task starts, in whichever step it starts."""

from __future__ import annotations

import asyncio

import pytest
from kit.graphs import CONFIG, EMPTY, Log
from kit.ready_graphs import ready

from stategraph import START, InMemorySaver, Limit, StateGraph, interrupt


def wide(limit: Limit, node, chains=5, length=3):
    """Chains side by side, each node under the limit, then one node."""
    graph = StateGraph(Log)
    graph.add_node("end", lambda state: {"log": ["end"]})
    for chain in range(chains):
        before = START
        for number in range(length):
            name = f"c{chain}n{number}"
            graph.add_node(name, node, limit=limit).add_edge(before, name)
            before = name
        graph.add_edge(before, "end")
    return graph


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("saved", [False, True])
def test_no_more_tasks_run_at_once_than_the_limit(drive, most, saved):
    at_work, seen = [0], set()

    def enter(step):
        at_work[0] += step
        seen.add(at_work[0])

    def work(state):
        enter(1)
        enter(-1)
        return {"log": ["done"]}

    async def awork(state):
        enter(1)
        await asyncio.sleep(0)
        enter(-1)
        return {"log": ["done"]}

    app = wide(Limit(most), awork if drive.is_async else work).compile(InMemorySaver() if saved else None, schedule="ready")
    assert drive.invoke(app, EMPTY, CONFIG)["log"] == ["done"] * 15 + ["end"]
    assert max(seen) <= most


def test_a_question_and_a_failure_hold_no_place(drive):
    failing = [True]

    def work(state):
        if failing and failing.pop():
            raise ValueError("no")
        return {"log": [interrupt("?")]}

    limit = Limit(1)
    thread = drive.on(ready(wide(limit, work, 3, 1), on_failure="finish"))
    with pytest.raises(ValueError, match="no"):
        thread.invoke(EMPTY)
    thread.invoke(None)
    answers = {each.id: "yes" for each in thread.state.interrupts}
    assert thread.resume(answers)["log"] == ["yes"] * 3 + ["end"]
    assert limit.has_room()
