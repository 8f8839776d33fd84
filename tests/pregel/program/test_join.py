"""A join is one record: made by the builder, kept in the program, read by planning, explain and drawings."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import TypedDict

import pytest

from stategraph import END, START, StateGraph
from stategraph.channels import NamedBarrierValue, NamedBarrierValueAfterFinish
from stategraph.pregel.program.flow import JOIN_KINDS, Join, parse_join


class State(TypedDict, total=False):
    x: int


def graph():
    builder = StateGraph(State)
    for name in "abc":
        builder.add_node(name, lambda state: None).add_edge(START, name)
    builder.add_node("late", lambda state: None, defer=True).add_node("z", lambda state: None)
    return builder.add_edge(["a", "b"], "z").add_edge({"c", "b"}, "late").add_edge(["z", "late"], END)


JOINS = (Join(("a", "b"), "z"), Join(("b", "c"), "late", deferred=True), Join(("z", "late"), END))


def test_the_program_has_every_join_also_those_into_the_end():
    assert graph().compile().program.joins == JOINS


def test_only_a_join_with_a_node_behind_it_has_a_channel():
    app = graph().compile()
    assert {name for name in app.channels if name.startswith("join:")} == {"join:a+b:z", "join:b+c:late"}


def test_the_channel_is_named_as_threads_have_stored_it():
    assert [join.channel for join in JOINS] == ["join:a+b:z", "join:b+c:late", "join:z+late:__end__"]


@pytest.mark.parametrize(("deferred", "kind"), [(False, NamedBarrierValue), (True, NamedBarrierValueAfterFinish)])
def test_it_makes_the_channel_that_gathers_its_sources(deferred, kind):
    channel = Join(("a", "b"), "z", deferred).make_channel()
    assert type(channel) is kind and channel.describe().missing == ("a", "b")


@pytest.mark.parametrize("kind", JOIN_KINDS)
@pytest.mark.parametrize("sources", [("a",), ("a", "b", "c")])
def test_a_stored_channel_name_gives_the_sources_and_target_of_a_join(kind, sources):
    read = parse_join(Join(sources, "z", kind=kind).channel)
    assert read is not None and (read.sources, read.target) == (sources, "z")


@pytest.mark.parametrize("name", ["branch:to:z", "x", "__start__", ""])
def test_other_channels_are_no_joins(name):
    assert parse_join(name) is None


def test_it_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        JOINS[0].target = "a"  # type: ignore[misc]


def test_a_builder_shows_them_as_langgraph_does():
    assert graph().waiting_edges == {(("a", "b"), "z"), (("b", "c"), "late"), (("z", "late"), END)}
