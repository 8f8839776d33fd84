"""schedule="ready": what cannot start stays pending, and what runs meanwhile ends and is applied."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from ready_graphs import build, by_order, ends_by

from stategraph import END, Command, GraphRecursionError, InMemorySaver

CONFIG: Any = {"configurable": {"thread_id": "t"}}
EMPTY: Any = {"log": []}
GRAPH = "S>a>c r:x=c|E S>x S>y>y2"
"""c is due after a, waits for x, which does not lead to it, and would start beside y."""


class Short(BaseModel):
    log: list[str]

    def model_post_init(self, context: Any) -> None:
        if len(self.log) < 4:
            raise ValueError("too short")


def app_of(saver: Any, **nodes: Any) -> Any:
    builder = build(GRAPH, {"x": lambda _: END}, nodes)
    return builder.compile(saver, schedule="ready")


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_node_whose_schema_refuses_its_input(drive: Any, durability: Any) -> None:
    def read(state: Short) -> Any:
        return {"log": ["c"]}

    app = app_of(InMemorySaver(), c=read)
    with ends_by(by_order("a", "x", "y")), pytest.raises(ValidationError):
        drive.invoke(app, EMPTY, CONFIG, durability=durability)
    state = drive.get_state(app, CONFIG)
    assert (state.values, state.next) == ({"log": ["a", "x", "y"]}, ("c", "y2"))
    with ends_by(by_order("c")):
        assert drive.invoke(app, Command(update={"log": ["edit"]}), CONFIG)["log"] == ["a", "x", "y", "edit", "c", "y2"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_node_beyond_the_recursion_limit(drive: Any, durability: Any) -> None:
    app = app_of(InMemorySaver())
    with ends_by(by_order("a", "x", "y")), pytest.raises(GraphRecursionError):
        drive.invoke(app, EMPTY, {**CONFIG, "recursion_limit": 1}, durability=durability)
    assert drive.get_state(app, CONFIG).next == ("c", "y2")
    with ends_by(by_order("c")):
        assert drive.invoke(app, None, CONFIG)["log"] == ["a", "x", "y", "c", "y2"]
