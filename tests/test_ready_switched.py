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


@pytest.mark.parametrize("memory", [None, True])
@each_case("schedules, inner", product(product((R, S), repeat=4), (R, S)))
def test_a_graph_inside_goes_on_where_it_stopped(drive: Any, memory: Any, schedules: Any, inner: str) -> None:
    saver, paid = InMemorySaver(), []
    nodes = {"pay": lambda state: paid.append(1), "q": ask("q1?"), "r": ask("q2?"), "s": ask("q3?")}

    def make(schedule: Any) -> Any:
        sub: Any = build("S>pay>q>r>s", nodes=nodes).compile(checkpointer=memory, schedule=inner)  # type: ignore[call-overload]
        return build("S>sub S>a>b", nodes={"sub": sub}).compile(saver, schedule=schedule)

    asked, state = answer_all(drive, make, schedules)
    assert (asked, state.next, paid) == (["q1?", "q2?", "q3?"], (), [1])
    assert sorted(state.values["log"]) == ["0", "1", "2", "a", "b"]
