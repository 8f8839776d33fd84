"""Graphs in one line, for tests of joins: what runs in which superstep.

Parts are separated by spaces. `S>a>b` are edges from START on; `[a,b]any>d` is a join, with `all`, `any`, a number
or `reachable`; `r:a=b|c` gives `a` a router that may go to `b` or `c`, or to END, `r:a=*` one that does not say where;
`x~b|e` declares where the Commands of `x` may go; `defer:x` makes `x` deferred; `handle:a` gives `a` an error handler.

What nodes and routers do is a script: name -> what it does in its first, second, ... run. A letter's script is a list
of names to go to (by its router, or by Command if it declares destinations), of `Send`s, or "fail" or "ask".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import add
from typing import Annotated, Any, TypedDict

from stategraph import END, START, Command, NodeError, Runtime, StateGraph, get_config, interrupt


class State(TypedDict, total=False):
    log: Annotated[list[tuple[int, str]], add]


class Boom(Exception):
    pass


Script = Mapping[str, Sequence[Any]]


def read_graph(text):
    """The edges in order, and what else is said of nodes."""
    edges = []
    said = {"routers": {}, "destinations": {}, "deferred": set(), "handled": set(), "names": {}}

    def name(found: str) -> str:
        if found not in ("S", "END"):
            said["names"][found] = None
        return {"S": START, "END": END}.get(found, found)

    for part in text.split():
        if part.startswith("defer:"):
            said["deferred"].update(part[6:].split(","))
        elif part.startswith("handle:"):
            said["handled"].update(part[7:].split(","))
        elif part.startswith("r:"):
            source, ends = part[2:].split("=")
            said["routers"][name(source)] = None if ends == "*" else [name(end) for end in ends.split("|")]
        elif "~" in part:
            source, ends = part.split("~")
            said["destinations"][name(source)] = [name(end) for end in ends.split("|")]
        elif part.startswith("["):
            sources, rest = part[1:].split("]")
            kind, target = rest.split(">")
            wait = int(kind) if kind.isdigit() else kind
            edges.append(([name(source) for source in sources.split(",")], name(target), wait))
        else:
            names = [name(each) for each in part.split(">")]
            edges += pairwise(names)
    return edges, said


def build(text, script: Script | None = None, **options):
    """The builder of a graph. `state["log"]` gathers the runs of the nodes, `d(a+b)` with what was joined."""
    edges, said = read_graph(text)
    script = script or {}
    builder = StateGraph(State, **options)

    def turn(name: str, state: State):
        """What the script says of this run: which one it is, the state tells."""
        mine = script.get(name, ())
        return mine[min(count_runs(state, name), len(mine) - 1)] if mine else None

    def node(name: str):
        def run(state: State, runtime: Runtime[None]):
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

    def router(name: str):
        def choose(state: State):
            # Its own run stands in the log already, START has none.
            mine = script.get(name, ())
            doing = mine[min(max(0, count_runs(state, name) - 1), len(mine) - 1)] if mine else None
            return END if doing in (None, []) else doing

        return choose

    def handler(state: State, error: NodeError):
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


def count_runs(state: State, name: str) -> int:
    return sum(text.partition("(")[0] == name for _, text in state.get("log", ()))
