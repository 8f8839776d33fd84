"""The verdicts on stored threads, each checked by really going on with the thread: "same" ends as under the old graph,
"breaks" is refused or loses its question, and the others go on.
"""

from __future__ import annotations

import operator
import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Annotated, Any, TypedDict

import pytest
from kit.drive import each_schedule
from kit.flow_cases import CASES
from kit.graphs import Log, chain_of, graph_of
from kit.pausing_graphs import asks, fails, says
from kit.shapes import POSTED, each_shape, shaped
from kit.upgrades import (
    check,
    compiled,
    config_of,
    go_on,
    look_at,
    mutations,
    rename_node,
    stopped_threads,
)
from pydantic import BaseModel, Field

from stategraph import (
    START,
    InMemorySaver,
    InvalidGraphError,
    Runtime,
    Send,
    StateGraph,
    interrupt,
    task,
)
from stategraph.testing import virtual_time
from stategraph.upgrade import Migration, outline, outlook, proof, prove

pytestmark = pytest.mark.filterwarnings("ignore::stategraph.GraphWarning")


# -- threads of all joins and deferred nodes, stopped at each superstep, and all small changes -----


@pytest.mark.trial
@each_schedule
def test_verdicts_hold_when_the_threads_go_on(schedule):
    """With STATEGRAPH_EXAMPLES every change is tried, for a quarter of an hour."""
    assert not [*find_wrong(schedule, every=1 if "STATEGRAPH_EXAMPLES" in os.environ else 23)]


def find_wrong(schedule, every):
    """Yield the verdicts that are wrong.

    Args:
        every: take only one of so many changes.
    """
    options = {} if schedule == "supersteps" else {"schedule": schedule}
    count = 0
    for case in CASES.values():
        saver = InMemorySaver()
        try:
            threads = stopped_threads(case, saver, **options)
        except InvalidGraphError:  # a limit of schedule="ready"
            continue
        old = compiled(case.graph, case.script, saver, **options)
        for graph, script in mutations(case):
            count += 1
            if count % every:
                continue
            try:
                new = compiled(graph, script, saver, **options)
            except (InvalidGraphError, ValueError):
                continue
            names = [each.id for each in threads]
            proofs = prove(new, old, threads=names), prove(new, threads=names)
            for thread, verdict, alone in zip(threads, *(each.verdicts for each in proofs), strict=True):
                end = go_on(new, saver, thread)
                known = graph != case.graph or verdict.kind == alone.kind == "same"
                if not (known and check(verdict.kind, thread.end, end) and check(alone.kind, None, end)):
                    yield case.graph, graph, verdict, alone, end, thread.end


# -- threads in the 40 shapes of a fleet, and versions that differ in one node or edge --------------


@pytest.mark.trial
@each_schedule
def test_verdicts_on_the_shapes_of_a_fleet_hold(schedule):
    assert not [*find_wrong_shapes(schedule, every=1 if "STATEGRAPH_EXAMPLES" in os.environ else 12)]


def find_wrong_shapes(schedule, every):
    """Yield the verdicts that are wrong; see `find_wrong`."""
    saver = InMemorySaver()
    options = {"name": "shop", "schedule": schedule, "inbox": True}
    with virtual_time():
        old = shaped("1", schedule).builder.compile(saver, **options)
        names = [f"{given['kind']} {given['number']}" for given in each_shape()]
        for name, given in zip(names, each_shape(), strict=True):
            old.invoke(given, config_of(name))
            if given["kind"] == "post":
                old.post(config_of(name), {"log": [POSTED]})
        threads = [look_at(old, saver, name) for name in names]
        for builder, others in islice(each_version(schedule), 0, None, every):
            new = builder.compile(saver, **{**options, **others})
            proofs = prove(new, old, threads=names), prove(new, threads=names)
            for thread, verdict, alone in zip(threads, *(each.verdicts for each in proofs), strict=True):
                end = go_on(new, saver, thread)
                if not (check(verdict.kind, thread.end, end) and check(alone.kind, None, end)):
                    yield verdict, alone, end, thread.end


def each_version(schedule):
    """Yield builders, each with options of compile: the same one, and with other options, names of nodes and edges."""

    def make():
        return shaped("1", schedule).builder

    yield make(), {}
    yield make(), {"interrupt_before": ["last"]}
    yield make(), {"schedule": "ready" if schedule == "supersteps" else "supersteps"}
    for node in make().nodes:
        yield rename_node(make(), node), {}
        if node != "last":
            yield make().add_edge(node, "last"), {}


# -- one shape after the other ---------------------------------------------------------------------


class Wide(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    more: str


class Model(BaseModel):
    log: Annotated[list[Any], operator.add] = []
    n: int = 0


class Strict(BaseModel):
    log: Annotated[list[Any], operator.add] = []
    n: int = Field(0, le=9)


@dataclass(frozen=True)
class Shape:
    """A thread and a new version of its graph.

    Attributes:
        old, new: the builders.
        verdict: what becomes of the thread.
        reason: words of the first reason.
        given: the input of the thread.
        options: what the new version is compiled with.
        inbox: the old version takes posts, and one waits.
    """

    old: StateGraph[Any, Any, Any, Any]
    new: StateGraph[Any, Any, Any, Any]
    verdict: str
    reason: str = ""
    given: Any = None
    options: Any = None
    inbox: bool = False


def sleeps(state, runtime: Runtime[Any]):
    runtime.sleep(timedelta(days=3))
    return {"log": ["slept"]}


@task
def step(number: int) -> int:
    return number


def calls(state):
    first = step(1).result()
    return {"log": [first, interrupt("go?"), step(2).result()]}


def race(builder=None, *, target: str = "bid"):
    """Two racers that ask."""
    graph = StateGraph(Log).add_node("open", says("open")).add_node(target, asks("bid")).add_node("end", says("end"))
    sends = [Send(target, {"log": [n]}, race="quote") for n in (1, 2)]
    graph.add_conditional_edges("open", lambda state: sends, [target])
    return graph.add_edge(START, "open").add_edge(target, "end")


def fan(target="work", then="end"):
    graph = StateGraph(Log).add_node("open", says("open")).add_node(target, asks("work")).add_node(then, says(then))
    sends = [Send(target, {"log": [n]}) for n in (1, 2, 3)]
    graph.add_conditional_edges("open", lambda state: sends, [target])
    return graph.add_edge(START, "open").add_edge(target, then)


def around(inner: StateGraph[Any, Any, Any, Any], name: str = "sub", **options):
    return chain_of(Log, **{name: inner.compile(**options)}, after=says("after"))


def inside(**nodes):
    return chain_of(Log, **nodes)


def joined(*before):
    """A node asks; with another trigger its tasks have other ids."""
    graph = graph_of(Log, "S>a S>b a>q", q=asks("q"))
    return graph.add_edge([*before], "q") if before else graph


JOINED = joined(), joined("a", "b")
Q = graph_of(Log, "S>q>z", q=asks("q"))
NESTED = around(inside(first=says("first"), q=asks("q"), z=says("z")))
RENAMED = inside(first=says("first"), r=asks("q"), z=says("z"))


def remembers(name):
    return chain_of(Log, **{name: inside(i=says("i")).compile(checkpointer=True)}, after=asks("after"))


SHAPES = {
    "the same graph": Shape(Q, Q, "same"),
    "other code": Shape(Q, chain_of(Log, q=asks("q"), z=says("other name")), "same"),
    "the asking node is gone": Shape(Q, graph_of(Log, "S>other>z", other=asks("q")), "breaks", "node 'q' is gone"),
    "the asking node is a graph": Shape(Q, graph_of(Log, "S>q>z", q=inside(i=says("i")).compile()), "breaks", "kind"),
    "a node is new ahead": Shape(Q, graph_of(Log, "S>q>y>z", q=asks("q")), "changes", "'q' → 'z' is gone"),
    "a breakpoint is new": Shape(Q, Q, "changes", "pauses before", options={"interrupt_before": ["z"]}),
    "another schedule": Shape(Q, Q, "changes", "schedule", options={"schedule": "ready"}),
    "a key is new": Shape(Q, graph_of(Wide, "S>q>z", q=asks("q")), "same"),
    "a join is new before the asking node": Shape(JOINED[0], JOINED[1], "breaks", "question"),
    "it sleeps": Shape(graph_of(Log, "S>s>z", s=sleeps), graph_of(Log, "S>s>z", s=sleeps), "same"),
    "it sleeps in a node that is gone": Shape(graph_of(Log, "S>s>z", s=sleeps), Q, "breaks", "node 's' is gone"),
    "it has failed": Shape(graph_of(Log, "S>f>z", f=fails("f", 1)), graph_of(Log, "S>f>z"), "same"),
    "it has called tasks": Shape(graph_of(Log, "S>c>z", c=calls), graph_of(Log, "S>c>z", c=calls), "same"),
    "racers ask": Shape(race(), race(), "same"),
    "racers are gone": Shape(race(), race(target="ask"), "breaks", "node 'bid' is gone"),
    "Sends ask": Shape(fan(), fan(), "same"),
    "Sends go to a node that is gone": Shape(fan(), fan("other"), "breaks", "node 'work' is gone"),
    "after Sends another node": Shape(fan(), fan(then="last"), "changes", "'work' → 'end' is gone"),
    "a graph inside asks": Shape(NESTED, NESTED, "same"),
    "the asking node inside is gone": Shape(
        NESTED, around(inside(first=says("first"), r=asks("q"), z=says("z"))), "breaks", "in 'sub': node 'q' is gone"
    ),
    "an edge ahead inside is gone": Shape(
        NESTED, around(inside(first=says("first"), q=asks("q"), y=says("y"))), "changes", "in 'sub': the edge 'q' → 'z'"
    ),
    "a graph inside with a memory asks": Shape(
        around(Q, checkpointer=True), around(Q, checkpointer=True), "same"
    ),
    "the graph inside has lost its memory": Shape(around(Q, checkpointer=True), around(Q), "changes", "starts over"),
    "the asking node inside is renamed": Shape(
        NESTED, around(RENAMED, migrate=Migration().rename_node("q", "r")), "migrates", "in 'sub': node 'q' is gone, node 'r' is new"
    ),
    "a graph with an idle memory is renamed": Shape(
        remembers("sub"), remembers("team"), "changes", "with the memory", options={"migrate": Migration().rename_node("sub", "team")}
    ),
    "the node around it is gone": Shape(NESTED, around(inside(q=asks("q")), "other"), "breaks", "node 'sub' is gone"),
    "a model takes the state": Shape(chain_of(Model, q=asks("q")), chain_of(Strict, q=asks("q")), "same", given={"n": 1}),
    "a model refuses the state": Shape(
        chain_of(Model, q=asks("q")), chain_of(Strict, q=asks("q")), "breaks", "ValidationError of n", given={"n": 10}
    ),
    "posts wait": Shape(Q, Q, "same", options={"inbox": True}, inbox=True),
    "posts that nobody takes": Shape(Q, Q, "changes", "posts wait", inbox=True),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_a_verdict_holds(name):
    assert not describe_wrong(name)


def describe_wrong(name: str):
    """What is wrong with the verdict on a shape."""
    shape, saver = SHAPES[name], InMemorySaver()
    options = shape.options or {}
    with virtual_time() as clock:
        old = shape.old.compile(saver, inbox=shape.inbox)
        with suppress(ValueError):  # of the shape that has failed
            old.invoke(shape.given or {"log": ["in"]}, config_of("t"))
        if shape.inbox:
            old.post(config_of("t"), {"log": ["posted"]})
        new = shape.new.compile(saver, **options)
        whole, alone = prove(new, old), prove(new)
        clock.advance(timedelta(days=4))
        thread = look_at(old, saver, "t")
        end = go_on(new, saver, thread)
    [verdict] = whole.verdicts
    said = (verdict.kind, alone.holds) == (shape.verdict, shape.verdict != "breaks")
    # What functions do is not proved: here one has other code.
    true = name == "other code" or check(verdict.kind, thread.end, end)
    if said and true and shape.reason in " ".join(verdict.reasons):
        return None
    return verdict, alone, thread.end, end


# -- wrong verdicts planted into the proof: going on with the threads notices each of them -----------


BUGS = {
    "work that is lost is not seen": (outlook, "lost_work", lambda *_: []),
    "waiting joins and deferred nodes are not seen": (outlook, "_find_waiting", lambda machine: []),
    "what tasks have left is not seen": (outlook, "_find_orphans", lambda *_: []),
    "nothing ahead is compared": (outline, "_compare_node", lambda *_: []),
    "only the pending nodes are compared": (outline, "walk", lambda starts, leads: set(starts)),
    "tasks are not compared": (proof._Judge, "_compare_task", lambda *_: []),
}


@pytest.mark.trial
@pytest.mark.parametrize("bug", BUGS)
def test_going_on_notices(bug, monkeypatch):
    where, name, wrong = BUGS[bug]
    monkeypatch.setattr(where, name, wrong)
    assert any(map(describe_wrong, SHAPES)) or next(find_wrong("supersteps", every=5), None)
