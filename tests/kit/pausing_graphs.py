"""Small graphs that log, interrupt and fail, and short ways to read their threads. For tests of pausing and time
travel.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Annotated, Any

from typing_extensions import TypedDict

from kit.graphs import graph_of
from kit.graphs import says as says
from stategraph import Command, InMemorySaver, StateGraph, interrupt


class State(TypedDict, total=False):
    a: int
    log: Annotated[list[Any], operator.add]


Node = Callable[..., Any]
SAVES = object()
OPTIONS = inspect.signature(StateGraph.compile).parameters


class Ran(list[str]):
    """The names of the bodies that ran, in order; `take` empties it."""

    def take(self):
        names = sorted(self)
        self.clear()
        return names


def asks(name, ran=None, count=1, **options):
    """A node that asks `count` questions and logs the answers."""

    def node(state):
        if ran is not None:
            ran.append(name)
        return {"log": [(name, *(interrupt(f"{name}{i or ''}?", **options) for i in range(count)))]}

    return node


def fails(name, times, ran=None):
    """A node that raises so many times before it logs its name."""
    left = [times]

    def node(state):
        if ran is not None:
            ran.append(name)
        if left[0]:
            left[0] -= 1
            raise ValueError(f"{name} failed")
        return {"log": [name]}

    return node


def graph(edges, /, checkpointer=SAVES, **more):
    """A compiled graph of `graph_of`; it saves unless it is told otherwise. What is no node is an option of `compile`."""
    options = {name: more.pop(name) for name in {*more}.intersection(OPTIONS)}
    checkpointer = InMemorySaver() if checkpointer is SAVES else checkpointer
    return graph_of(State, edges, **more).compile(checkpointer, **options)


def asked(result):
    """What a paused call asks."""
    return [question.value for question in result["__interrupt__"]]


def ids(result):
    """Question → id, of a paused call or a snapshot."""
    found = result["__interrupt__"] if isinstance(result, dict) else result.interrupts
    return {question.value: question.id for question in found}


def answer(**by_question):
    """From a paused call to the command that answers some of its questions by id: `answer(p=1)` answers `p?`."""
    return lambda paused: Command(resume={ids(paused)[f"{name}?"]: value for name, value in by_question.items()})


def rows(snapshots):
    """Source, step, log and next of each checkpoint, the oldest first."""
    return [
        (s.metadata["source"], s.metadata["step"], s.values.get("log", []), s.next) for s in reversed(list(snapshots))
    ]


def at(thread, step, source="loop"):
    """The config of the oldest checkpoint with this step and source."""
    found = [s for s in thread.history() if (s.metadata["source"], s.metadata["step"]) == (source, step)]
    return found[-1].config


def seen(snapshots):
    """Everything that history shows, but for when and as what it was made: what a fork must not change."""
    return [
        (s.values, s.next, s.config, s.metadata, s.created_at, s.parent_config, [repr(t) for t in s.tasks], s.interrupts)
        for s in snapshots
    ]
