"""Small graphs that the checks run, and what can be seen of a thread afterwards, without ids and
clocks."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from ..checkpoint.base import BaseCheckpointSaver
from ..graph import END, START, CompiledStateGraph, StateGraph
from ..pregel.task.interrupts import interrupt
from ..pregel.types import Command, Send

NOTED = "noted"


class LogState(TypedDict, total=False):
    """What the graphs hold: a log that grows, a counter, and things whose types a careless
    checkpointer changes."""

    log: Annotated[list[Any], operator.add]
    count: Annotated[int, operator.add]
    pair: tuple[int, ...]
    seen: set[str]
    left: int


Note = Callable[..., None]


def quiet(*words: Any) -> None:
    """Note nothing."""


def looping(
    saver: BaseCheckpointSaver | None, width: int = 3, note: Note = quiet
) -> CompiledStateGraph:
    """As often as `left` says: `width` tasks side by side, then one that gathers. Each notes its
    name and number."""

    def work(task: dict[str, Any]) -> dict[str, Any]:
        note("work", task["round"], task["lane"])
        return {"log": [("work", task["round"], task["lane"])], "count": 1}

    def gather(state: LogState) -> dict[str, Any]:
        left = state["left"]
        note("gather", left)
        return {
            "left": left - 1,
            "pair": (left, len(state["log"])),
            "seen": {f"k{n}" for n in range(left)},
        }

    def spread(state: LogState) -> Any:
        return (
            [Send("work", {"round": state["left"], "lane": lane}) for lane in range(width)]
            if state["left"]
            else END
        )

    graph = StateGraph(LogState)
    graph.add_node("work", work)
    graph.add_node("gather", gather)
    graph.add_conditional_edges(START, spread, ["work", END])
    graph.add_edge("work", "gather")
    graph.add_conditional_edges("gather", spread, ["work", END])
    return graph.compile(checkpointer=saver)


def asking(saver: BaseCheckpointSaver | None, note: Note = quiet) -> CompiledStateGraph:
    """Three nodes side by side, two of which ask, one of them inside a nested graph; then one that
    gathers."""

    def plain(state: LogState) -> dict[str, Any]:
        note("plain")
        return {"log": [("plain", (1,))]}

    def asks(state: LogState) -> dict[str, Any]:
        first = interrupt({"question": ("first",)})
        second = interrupt("second")
        note("asks", first, second)
        return {"log": [("asked", first, second)], "count": 1}

    def inner_asks(state: LogState) -> dict[str, Any]:
        answer = interrupt("inner")
        note("inner", answer)
        return {"log": [("inner", answer)]}

    def last(state: LogState) -> dict[str, Any]:
        note("last")
        return {"pair": (len(state["log"]),), "seen": {"last"}}

    inner = StateGraph(LogState)
    inner.add_node("before", lambda state: {"log": ["before"]})
    inner.add_node("inner_asks", inner_asks)
    inner.add_edge(START, "before")
    inner.add_edge("before", "inner_asks")
    nested = inner.compile()

    graph = StateGraph(LogState)
    graph.add_node("plain", plain)
    graph.add_node("asks", asks)
    graph.add_node("nested", nested)
    graph.add_node("last", last)
    for name in ("plain", "asks", "nested"):
        graph.add_edge(START, name)
    graph.add_edge(["plain", "asks", "nested"], "last")
    return graph.compile(checkpointer=saver)


def appending(saver: BaseCheckpointSaver, item: str) -> CompiledStateGraph:
    """As often as `left` says: one more item in the log."""

    def append(state: LogState) -> dict[str, Any]:
        return {"log": [item], "left": state["left"] - 1}

    graph = StateGraph(LogState)
    graph.add_node("append", append)
    graph.add_edge(START, "append")
    graph.add_conditional_edges(
        "append", lambda state: "append" if state["left"] else END, ["append", END]
    )
    return graph.compile(checkpointer=saver)


def thread(name: str = "t", **more: Any) -> Any:
    """The config of a thread."""
    return {"configurable": {"thread_id": name, **more}, "recursion_limit": 100_000}


def shown(snapshots: list[Any]) -> list[Any]:
    """What people see of a history, without ids and clocks: one row per snapshot, parents by their
    place."""
    place = {_id(each.config): len(snapshots) - number for number, each in enumerate(snapshots)}
    return [
        {
            "values": each.values,
            "next": each.next,
            "step": each.metadata["step"],
            "source": each.metadata["source"],
            "parent": place.get(_id(each.parent_config)),
            "tasks": [
                (task.name, [i.value for i in task.interrupts], repr(task.error))
                for task in each.tasks
            ],
        }
        for each in snapshots
    ]


def _id(config: Any) -> Any:
    return config and config["configurable"]["checkpoint_id"]


def answers(app: CompiledStateGraph, value: Any, mode: Any) -> Command:
    """A command that answers every open question of the thread with this value."""
    snapshot = mode.call(app, "get_state", thread())
    return Command(resume={each.id: (each.value, value) for each in snapshot.interrupts})
