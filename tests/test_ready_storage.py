"""What a graph with schedule="ready" stores when several go on with one thread, and when it is cut off."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ready_graphs import build, by_order, ends_by

from stategraph import CheckpointConflictError, Command, InMemorySaver, SqliteSaver, interrupt, task

CONFIG: Any = {"configurable": {"thread_id": "t"}}
EMPTY: Any = {"log": []}
CHAIN_FIRST = by_order("a", "b", "c", "long")


@pytest.fixture(params=["memory", "sqlite"])
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        return InMemorySaver()
    return SqliteSaver(str(tmp_path / "threads.db"), synchronous="off")


def elsewhere(function: Callable[[], Any]) -> None:
    """Call it as another process would: outside of the task that runs here."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def beside_a_chain(saver: Any, node: Any) -> Any:
    """`long` beside a > b > c, and d behind both."""
    return build("S>a>b>c>d S>long>d", nodes={"long": node}).compile(saver, schedule="ready")


def test_a_run_that_lags_records_nothing_beside_a_birth(drive: Any, saver: Any) -> None:
    """Another one has asked a question since, which has not moved the thread."""
    first = [True]

    def long(state: Any) -> Any:
        if first and first.pop():
            elsewhere(lambda: drive.invoke(app, None, CONFIG))
            raise ValueError("late")
        return {"log": [interrupt("?")]}

    app = beside_a_chain(saver, long)
    with ends_by(CHAIN_FIRST), pytest.raises(CheckpointConflictError):
        drive.invoke(app, EMPTY, CONFIG)
    asked = {each.name: each for each in drive.get_state(app, CONFIG).tasks}["long"]
    assert (asked.error, [each.value for each in asked.interrupts]) == (None, ["?"])


def test_of_two_runs_from_one_place_one_records_the_calls_of_a_task(drive: Any, saver: Any) -> None:
    first, called = [True], []

    @task
    def call() -> int:
        called.append(len(called))
        return called[-1]

    def long(state: Any) -> Any:
        if first and first.pop():
            elsewhere(lambda: drive.invoke(app, None, CONFIG))
        return {"log": [f"{call().result()} {interrupt('?')}"]}

    app = beside_a_chain(saver, long)
    with ends_by(CHAIN_FIRST):
        with pytest.raises(CheckpointConflictError):
            drive.invoke(app, EMPTY, CONFIG)
        result = drive.invoke(app, Command(resume="yes"), CONFIG)
    assert result["log"] == ["a", "b", "c", "0 yes", "d"]
