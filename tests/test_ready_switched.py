"""A thread that goes on under schedule="ready" and in supersteps by turns."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from conftest import each_case
from ready_graphs import build

from stategraph import Command, InMemorySaver, interrupt

CONFIG: Any = {"configurable": {"thread_id": "t"}}
EMPTY: Any = {"log": []}
R, S = "ready", "supersteps"


def ask(*questions: str) -> Any:
    return lambda state: {"log": ["".join(interrupt(each) for each in questions)]}


def answer_all(drive: Any, make: Any, schedules: Any, **options: Any) -> tuple[list[Any], Any]:
    """Call the graph with one schedule after the other, with an answer each time: what it asks, and the last state."""
    asked = []
    given: Any = EMPTY
    for number, schedule in enumerate(schedules):
        app = make(schedule)
        drive.invoke(app, given, CONFIG, **options)
        state = drive.get_state(app, CONFIG)
        asked += [question.value for question in state.interrupts]
        given = Command(resume=str(number))
    return asked, state


@pytest.mark.parametrize("durability", ["sync", "exit"])
@each_case("schedules", product((R, S), repeat=4))
def test_each_question_of_a_task_is_asked_once(drive: Any, durability: str, schedules: Any) -> None:
    saver = InMemorySaver()
    graph = build("S>q S>a>b", nodes={"q": ask("q1?", "q2?", "q3?")})
    asked, state = answer_all(drive, lambda schedule: graph.compile(saver, schedule=schedule), schedules, durability=durability)
    assert (asked, state.next) == (["q1?", "q2?", "q3?"], ())
    assert sorted(state.values["log"]) == ["012", "a", "b"]
