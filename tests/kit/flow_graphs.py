"""Graphs of words, see `read_words`, for tests of joins: what runs in which superstep.

What nodes and routers do is a script: name -> what it does in its first, second, ... run. A letter's script is a list
of names to go to (by its router, or by Command if it declares destinations), of `Send`s, or "fail" or "ask".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import add
from typing import Annotated, Any, TypedDict

from kit.graphs import read_words
from stategraph import END, Command, NodeError, Runtime, StateGraph, get_config, interrupt


class State(TypedDict, total=False):
    log: Annotated[list[tuple[int, str]], add]


class Boom(Exception):
    pass


Script = Mapping[str, Sequence[Any]]


def build(text, script: Script | None = None, **options):
    """The builder of a graph. `state["log"]` gathers the runs of the nodes, `d(a+b)` with what was joined."""
    edges, said = read_words(text)
    script = script or {}
    builder = StateGraph(State, **options)

    def turn(name, state: State):
        """What the script says of this run: which one it is, the state tells."""
        mine = script.get(name, ())
        return mine[min(count_runs(state, name), len(mine) - 1)] if mine else None

    def node(name):
        def run(state, runtime: Runtime[None]):
            doing = turn(name, state)
            if doing == "fail":
                raise Boom(name)
            if doing == "ask":
                interrupt(name)
            joined = f"({'+'.join(runtime.joined)})" if runtime.joined else ""
            update = {"log": [(get_config()["metadata"]["stategraph_step"], name + joined)]}
            if name in said["destinations"]:
                return Command(update=update, goto=doing or [])
            return update

        return run

    def router(name):
        def choose(state):
            # Its own run stands in the log already, START has none.
            mine = script.get(name, ())
            doing = mine[min(max(0, count_runs(state, name) - 1), len(mine) - 1)] if mine else None
            return END if doing in (None, []) else doing

        return choose

    def handler(state, error: NodeError):
        return None

    for name in said["names"]:
        builder.add_node(
            name,
            node(name),
            defer=name in said["deferred"],
            destinations=said["destinations"].get(name),
            error_handler=handler if name in said["handled"] else None,
        )
    for edge in edges:
        builder.add_edge(*edge)
    for name, ends in said["routers"].items():
        builder.add_conditional_edges(name, router(name), None if ends is None else [*dict.fromkeys([*ends, END])])
    return builder


def show(log: Sequence[tuple[int, str]]):
    """The log as the tables of the tests have it: supersteps separated by slashes."""
    steps = {}
    for step, text in log:
        steps.setdefault(step, []).append(text)
    return " / ".join(" ".join(texts) for _, texts in sorted(steps.items()))


def count_runs(state, name):
    return sum(text.partition("(")[0] == name for _, text in state.get("log", ()))
