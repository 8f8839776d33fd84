"""The programs that are explored: two parties side by side that ask up to three times each, in every shape that has its
own way through the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

from kit.graphs import EMPTY, chain_of
from kit.graphs import Log as State

from stategraph import START, Send, StateGraph, entrypoint, interrupt, task

from .world import GO, RAISE, Process


class NodeFailed(Exception):
    """What a node raises on demand."""


class Swapped(AssertionError):
    """A question was given another one's answer."""


@dataclass(frozen=True)
class Program:
    """A program, and what its end looks like.

    Attributes:
        asks: party → how many questions it asks, one after the other: `p1`, `p2`, ...
        build: makes the graph for a process and a saver.
    """

    name: str
    asks: dict[str, int]
    build: Callable[[Process, Any, dict[str, int]], Any]

    @property
    def questions(self):
        """All that are asked in the end."""
        return [f"{name}{n}" for name, count in self.asks.items() for n in range(1, count + 1)]

    def finished(self, answers):
        """What is in the log in the end, sorted, if these answers were given."""
        return sorted(
            (name, *(answers[f"{name}{n}"] for n in range(1, count + 1))) for name, count in self.asks.items()
        )


TURNED = "goes on, its questions the other way round"


def ask(question, key=None):
    """Ask; look whether the answer is one to this question."""
    answer = interrupt(question, key=key)
    if not isinstance(answer, str) or not answer.startswith(question + "="):
        raise Swapped(f"{question!r} was given the answer {answer!r}")
    return answer


def act(outcome, name, count):
    """What a party does when it is its turn: it asks all its questions and ends, or it fails."""
    if outcome == RAISE:
        raise NodeFailed(name)
    return (name, *(ask(f"{name}{n}") for n in range(1, count + 1)))


def turned(process: Process, saver, asks, schedule="supersteps"):
    """Nodes side by side that ask forwards or backwards, as it comes each time they run."""
    graph = StateGraph(State)

    def act_turned(outcome, name, count):
        if outcome == RAISE:
            raise NodeFailed(name)
        numbers = range(count, 0, -1) if outcome == TURNED else range(1, count + 1)
        answers = {n: ask(f"{name}{n}", key=str(n)) for n in numbers}
        return {"log": [(name, *(answers[n] for n in sorted(answers)))]}

    def party(name, count):
        outcomes = (GO, TURNED, RAISE) if count > 1 else (GO, RAISE)

        def node(_):
            return act_turned(process.gate(name, outcomes), name, count)

        async def anode(_):
            return act_turned(await process.agate(name, outcomes), name, count)

        return node if process.world.loop is None else anode

    for name, count in asks.items():
        graph.add_node(name, party(name, count)).add_edge(START, name)
    return graph.compile(saver, schedule=schedule)


def body(process: Process, told):
    """The function of a node or task that is a party, of the world's kind: it waits for its turn, then acts.

    Args:
        told: from what it is given to the party's name and how much it asks.
    """

    def node(given):
        name, count = told(given)
        return {"log": [act(process.gate(name, (GO, RAISE)), name, count)]}

    async def anode(given):
        name, count = told(given)
        return {"log": [act(await process.agate(name, (GO, RAISE)), name, count)]}

    return node if process.world.loop is None else anode


def party(process: Process, name, count):
    """A node that is one of the parties."""
    return body(process, lambda _: (name, count))


def calling(process: Process, asks):
    """A function that calls a `@task` for each of these, side by side."""
    work = task(body(process, lambda given: given))

    def calls(given):
        return {"log": [future.result()["log"][0] for future in [work(each) for each in asks.items()]]}

    async def acalls(given):
        return {"log": [(await future)["log"][0] for future in [work(each) for each in asks.items()]]}

    return calls if process.world.loop is None else acalls


def side_by_side(process: Process, saver, asks):
    """Nodes of one superstep; `z`, if there, comes after all others."""
    graph = StateGraph(State)
    first = [name for name in asks if name != "z"]
    for name in asks:
        graph.add_node(name, party(process, name, asks[name]))
    for name in first:
        graph.add_edge(START, name)
    if "z" in asks:
        graph.add_edge(first, "z")
    return graph.compile(saver)


def sends(process: Process, saver, asks):
    """Sends to one node."""
    graph = StateGraph(State).add_node("work", body(process, lambda given: given))
    graph.add_conditional_edges(START, lambda state: [Send("work", each) for each in asks.items()])
    return graph.compile(saver)


def tasks(process: Process, saver, asks):
    """`@task`s of one entrypoint."""
    return entrypoint(checkpointer=saver)(calling(process, asks))


def tasks_in_node(process: Process, saver, asks):
    """A node that calls `@task`s, beside one that asks."""
    first = next(iter(asks))
    others = {name: count for name, count in asks.items() if name != first}
    graph = StateGraph(State).add_node(first, party(process, first, asks[first]))
    graph.add_node("calls", calling(process, others))
    return graph.add_edge(START, first).add_edge(START, "calls").compile(saver)


class Inner(TypedDict, total=False):
    log: list[Any]


def nested(process: Process, saver, asks):
    """The first party is a node of a graph that is a node, beside the others."""
    first, *others = asks
    inner = StateGraph(Inner).add_node(first, party(process, first, asks[first])).add_edge(START, first)
    graph = chain_of(State, nested=inner.compile())
    for name in others:
        graph.add_node(name, party(process, name, asks[name])).add_edge(START, name)
    return graph.compile(saver)


def chained(process: Process, saver, asks):
    """A nested graph whose parties come one after the other: its own history moves on while the outer one waits."""
    first, second, *others = asks
    inner = StateGraph(State).add_node(first, party(process, first, asks[first]))
    inner.add_node(second, party(process, second, asks[second])).add_edge(START, first).add_edge(first, second)
    compiled = inner.compile()

    def calls(state):
        return {"log": compiled.invoke(EMPTY)["log"]}

    async def acalls(state):
        return {"log": (await compiled.ainvoke(EMPTY))["log"]}

    graph = chain_of(State, calls=calls if process.world.loop is None else acalls)
    for name in others:
        graph.add_node(name, party(process, name, asks[name])).add_edge(START, name)
    return graph.compile(saver)


def ready(process: Process, saver, asks):
    """Nodes that start at different checkpoints and are under way together: before each party but the first stands a node
    that does nothing, and ends before anything else happens."""

    def rest(state):
        return {}

    async def arest(state):
        return {}

    graph = StateGraph(State)
    for number, name in enumerate(asks):
        # The last of three is called by its node, as a `@task`.
        calls = number == 2
        graph.add_node(name, calling(process, {name: asks[name]}) if calls else party(process, name, asks[name]))
        before = [f"rest{n}" for n in range(number)]
        for each in before:
            if each not in graph.nodes:
                graph.add_node(each, rest if process.world.loop is None else arest)
        for source, target in zip([START, *before], [*before, name], strict=True):
            if (source, target) not in graph.edges:
                graph.add_edge(source, target)
    return graph.compile(saver, schedule="ready")


def _programs():
    found = [
        Program("alone", {"p": 3}, side_by_side),
        Program("one", {"p": 2}, side_by_side),
        Program("pair", {"p": 2, "r": 1}, side_by_side),
        Program("busy", {"p": 2, "r": 0}, side_by_side),
        Program("pair_then", {"p": 2, "r": 1, "z": 1}, side_by_side),
        Program("three_each", {"p": 3, "r": 3}, side_by_side),
        Program("sends", {"p": 2, "r": 1}, sends),
        Program("tasks", {"p": 2, "r": 1}, tasks),
        Program("task_beside", {"p": 1, "r": 1}, tasks_in_node),
        Program("called", {"p": 2, "r": 0}, tasks),
        Program("inside", {"p": 2, "r": 0}, nested),
        Program("nested", {"p": 2, "r": 1}, nested),
        Program("ready", {"p": 1, "r": 1}, ready),
        Program("ready_calls", {"p": 0, "q": 1, "r": 1}, ready),
        Program("ready_twice", {"p": 2, "r": 1}, ready),
        Program("chained", {"p": 1, "q": 1, "r": 1}, chained),
        Program("turned", {"p": 2}, turned),
        Program("turned_three", {"p": 3}, turned),
        Program("turned_pair", {"p": 2, "r": 1}, turned),
        Program("turned_ready", {"p": 2, "r": 0}, partial(turned, schedule="ready")),
    ]
    return {each.name: each for each in found}


PROGRAMS = _programs()
